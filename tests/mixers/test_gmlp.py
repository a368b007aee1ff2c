"""gMLP: its limit without mixing, numbers by hand, and calls that are cut into blocks."""

import torch

from rltransformers.backbone import Backbone
from rltransformers.functional.call import Tokens
from rltransformers.functional.taps import many_taps
from rltransformers.laws import perturbed
from rltransformers.mixers.gmlp import weights_of_places
from tests.attention.rows import config_of


def gmlp(**options: object) -> Backbone:
    values = {"position": "none", "ff": "none", "mixer": {"name": "gmlp", **options}}
    return perturbed(config_of(values)).double()


def test_without_a_map_over_time_no_token_reads_another() -> None:
    backbone, x = gmlp(tokens=5), torch.randn(2, 9, 15, dtype=torch.float64)
    for name, value in backbone.named_parameters():
        if name.endswith("mixer.weight"):
            value.data.zero_()
    order = torch.randperm(9)
    torch.testing.assert_close(backbone(x[:, order])[0], backbone(x)[0][:, order])


def test_the_map_starts_next_to_nothing_and_its_bias_at_one() -> None:
    mixer = Backbone(config_of({"position": "none", "mixer": {"name": "gmlp", "tokens": 50}})).get_submodule(
        "layers.0.mixing.mixer"
    )
    assert mixer.get_parameter("weight").abs().max() < 1e-4
    assert mixer.get_parameter("bias").tolist() == [1.0]


def test_weights_of_places_in_blocks_of_three_tokens_by_hand() -> None:
    p = torch.tensor([[0, 1, 2, 3, 4]])
    tokens = Tokens(p, p, p < 0, torch.tensor([-1]))
    weight = torch.tensor([[1.0, 0, 0], [2, 3, 0], [4, 5, 6]])
    expected = [[1, 0, 0], [3, 2, 0], [6, 5, 4], [1, 0, 0], [3, 2, 0]]
    assert weights_of_places(weight, tokens)[0].tolist() == expected


def test_long_calls_equal_single_tokens() -> None:
    for weights in ("relative", "absolute"):
        backbone, x = gmlp(tokens=7, weights=weights), torch.randn(2, 101, 15, dtype=torch.float64)
        reset = torch.rand(2, 101) < 0.1
        whole, last = backbone(x, None, reset)
        state, outputs = backbone.initial_state(2), []
        for t in range(101):
            y, state = backbone(x[:, t : t + 1], state, reset[:, t : t + 1])
            outputs.append(y)
        torch.testing.assert_close(torch.cat(outputs, 1), whole)
        for name, value in last.tensors.items():
            torch.testing.assert_close(state.tensors[name], value)


def test_many_taps_are_sums_over_the_newest_rows() -> None:
    for time in (3, 32, 33, 70):
        rows, weights = torch.randn(2, 5 + time, 3, dtype=torch.float64), torch.randn(2, time, 6, dtype=torch.float64)
        expected = torch.stack(
            [sum((weights[:, t, k, None] * rows[:, 5 + t - k] for k in range(1, 6)), weights[:, t, :1] * rows[:, 5 + t])
             for t in range(time)], 1
        )  # fmt: skip
        torch.testing.assert_close(many_taps(rows, weights), expected)
