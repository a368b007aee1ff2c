"""Every supported observation becomes one token, whatever axes lead it."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltransformers.core.errors import ConfigError
from rltransformers.core.spaces import leaf_spaces, leaf_values
from rltransformers.policies.encoders import ObservationEncoder

WIDTH = 12

SPACES: dict[str, gym.Space[Any]] = {
    "vector": spaces.Box(-1.0, 1.0, (5,)),
    "matrix": spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
    "scalar": spaces.Box(0.0, 1.0, ()),
    "bytes": spaces.Box(0, 255, (9,), np.uint8),
    "small image": spaces.Box(0, 255, (7, 7, 3), np.uint8),
    "middle image": spaces.Box(0, 255, (3, 16, 20), np.uint8),
    "large image": spaces.Box(0, 255, (84, 84, 3), np.uint8),
    "grey image": spaces.Box(0, 255, (36, 40), np.uint8),
    "discrete": spaces.Discrete(4),
    "discrete from 3": spaces.Discrete(4, start=3),
    "multi-discrete": spaces.MultiDiscrete([3, 5]),
    "multi-discrete of two axes": spaces.MultiDiscrete(np.array([[3, 5], [2, 2]])),
    "multi-discrete from -1": spaces.MultiDiscrete([3, 5], start=[-1, -1]),
    "multi-binary": spaces.MultiBinary(6),
    "multi-binary of two axes": spaces.MultiBinary([2, 2]),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,)))),
    "nested": spaces.Dict(
        {"a": spaces.Dict({"image": spaces.Box(0, 255, (7, 7, 3), np.uint8)}), "b": spaces.Tuple((spaces.Discrete(2),))}
    ),
}


def batch(space: gym.Space[Any], lead: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Random leaves [*lead, leaf shape]."""
    space.seed(0)
    n = int(np.prod(lead))
    samples = [leaf_values(space, space.sample()) for _ in range(n)]
    return {
        path: torch.as_tensor(np.stack([sample[path] for sample in samples])).reshape(*lead, *(leaf.shape or ()))
        for path, leaf in leaf_spaces(space).items()
    }


@pytest.mark.parametrize("name", SPACES)
def test_leading_axes_do_not_change_a_token(name: str) -> None:
    encoder = ObservationEncoder(SPACES[name], WIDTH).double()
    leaves = batch(SPACES[name], (2, 3))
    tokens = encoder(leaves)
    assert tokens.shape == (2, 3, WIDTH)
    single = encoder({path: leaf[1, 2] for path, leaf in leaves.items()})
    # float64: batched and single convolutions sum in another order
    torch.testing.assert_close(single, tokens[1, 2], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", SPACES)
def test_every_parameter_of_an_encoder_learns(name: str) -> None:
    torch.manual_seed(0)
    encoder = ObservationEncoder(SPACES[name], WIDTH)
    encoder(batch(SPACES[name], (16,))).square().sum().backward()
    for parameter in encoder.parameters():
        assert parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)


def test_a_bare_leaf_needs_no_dictionary() -> None:
    encoder = ObservationEncoder(SPACES["vector"], WIDTH)
    x = torch.randn(4, 5)
    torch.testing.assert_close(encoder(x), encoder({"": x}))


def test_the_start_of_a_discrete_space_is_subtracted() -> None:
    torch.manual_seed(0)
    shifted = ObservationEncoder(spaces.Discrete(4, start=3), WIDTH)
    torch.manual_seed(0)
    plain = ObservationEncoder(spaces.Discrete(4), WIDTH)
    torch.testing.assert_close(shifted(torch.arange(3, 7)), plain(torch.arange(4)))


def test_choices_of_a_multi_discrete_space_have_embeddings_of_their_own() -> None:
    encoder = ObservationEncoder(spaces.MultiDiscrete([2, 2]), WIDTH)
    x = torch.tensor([[0, 1], [1, 0], [0, 0], [1, 1]])
    tokens = encoder(x)
    # a sum of tables is additive: e(0,1) + e(1,0) = e(0,0) + e(1,1), and yet (0,1) is not (1,0)
    torch.testing.assert_close(tokens[0] + tokens[1], tokens[2] + tokens[3])
    assert float((tokens[0] - tokens[1]).detach().abs().max()) > 0.1


def test_channel_first_and_last_images_are_the_same_picture() -> None:
    torch.manual_seed(0)
    last = ObservationEncoder(spaces.Box(0, 255, (16, 20, 3), np.uint8), WIDTH)
    torch.manual_seed(0)
    first = ObservationEncoder(spaces.Box(0, 255, (3, 16, 20), np.uint8), WIDTH)
    x = torch.randint(0, 256, (2, 16, 20, 3), dtype=torch.uint8)
    torch.testing.assert_close(last(x), first(x.movedim(-1, 1)))


def test_images_and_bytes_are_scaled_to_one() -> None:
    encoder = ObservationEncoder(spaces.Box(0, 255, (9,), np.uint8), WIDTH)
    floating = ObservationEncoder(spaces.Box(0, 1, (9,)), WIDTH)
    floating.load_state_dict(encoder.state_dict())
    x = torch.randint(0, 256, (2, 9), dtype=torch.uint8)
    torch.testing.assert_close(encoder(x), floating(x / 255.0))


def test_an_integer_without_bounds_is_read_as_a_float_is_and_hides_nothing_beside_it() -> None:
    high = np.array([10, np.iinfo(np.int64).max])
    x = torch.tensor([[3, 7], [9, 1000]])
    for space, scale in (
        (spaces.Box(0, np.inf, (2,), np.int64), 1.0),
        (spaces.Box(np.zeros(2, np.int64), high, dtype=np.int64), 10.0),
    ):
        encoder, floating = ObservationEncoder(space, WIDTH), ObservationEncoder(spaces.Box(0, np.inf, (2,)), WIDTH)
        floating.load_state_dict(encoder.state_dict())
        torch.testing.assert_close(encoder(x), floating(x / scale))


def test_inputs_of_unit_variance_give_tokens_of_unit_variance() -> None:
    torch.manual_seed(0)
    space = spaces.Dict({"x": spaces.Box(-np.inf, np.inf, (40,)), "choice": spaces.Discrete(27)})
    encoder = ObservationEncoder(space, 256)
    leaves = {"x": torch.randn(500, 40), "choice": torch.randint(0, 27, (500,))}
    # 256 x 500 numbers of 67 random rows: the variance has a standard error near 2 %, 15 % is far outside it
    assert float(encoder(leaves).detach().var()) == pytest.approx(1.0, rel=0.15)


def test_many_indices_leave_more_room_for_the_few_that_change() -> None:
    torch.manual_seed(0)
    tokens = ObservationEncoder(spaces.MultiDiscrete([5] * 81), 256)(torch.randint(0, 5, (500, 81))).detach()
    assert float(tokens.var()) == pytest.approx(9.0, rel=0.15)  # the square root of 81; 405 random rows as above


def test_an_unsupported_leaf_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'mission' is Text"):
        ObservationEncoder(spaces.Dict({"mission": spaces.Text(9), "x": SPACES["vector"]}), WIDTH)
