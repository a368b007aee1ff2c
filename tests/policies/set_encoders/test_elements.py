"""Which leaves hold elements, how they are cut, and what the errors say."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltransformers.core.errors import ConfigError
from rltransformers.policies.observed import SetEncoder, build_encoder
from rltransformers.policies.set_encoders.catalogue import read_encoder
from rltransformers.policies.set_encoders.elements import Elements

WIDTH = 12
Space = spaces.Space[Any]


def encoder_of(space: Space, name: str = "bert", width: int = WIDTH, **options: Any) -> SetEncoder:
    torch.manual_seed(0)
    choice = read_encoder({"name": name, "position": "none", **options})
    assert choice is not None
    return build_encoder(choice, space, width)


def elements_of(space: Space, **options: Any) -> Elements:
    return encoder_of(space, **options).elements


def sample(space: Space, count: int) -> torch.Tensor:
    space.seed(3)
    return torch.as_tensor(np.stack([space.sample() for _ in range(count)]))


def test_a_box_of_rows_holds_numbers() -> None:
    elements = elements_of(spaces.Box(-1, 1, (7, 3)))
    x = torch.randn(2, 7, 3)
    tokens, exists = elements({"": x})
    layer = elements.encoder.leaf_encoders[0].linear
    torch.testing.assert_close(tokens, x @ layer.weight.T + layer.bias)  # type: ignore[union-attr, operator]
    assert exists.all() and exists.shape == (2, 7)


def test_a_flat_box_is_cut_by_element_size() -> None:
    x = torch.randn(2, 21)
    flat = elements_of(spaces.Box(-1, 1, (21,)), element_size=3)
    table = elements_of(spaces.Box(-1, 1, (7, 3)), element_size=3)
    assert torch.equal(flat({"": x})[0], table({"": x.view(2, 7, 3)})[0])


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint16, np.uint32, np.uint64])
def test_integers_are_divided_by_the_largest_bound(dtype: Any) -> None:
    space = spaces.Box(0, 50, (7, 3), dtype)
    x = sample(space, 2)
    whole = elements_of(space, element_size=3)({"": x})[0]
    torch.testing.assert_close(whole, elements_of(spaces.Box(0, 1, (7, 3)))({"": x / 50})[0])


def test_symbols_share_a_table_per_feature() -> None:
    """Sizes are the largest over the elements, and starts are subtracted place by place."""
    nvec, start = np.array([[3, 2], [4, 2], [2, 5]]), np.array([[0, 1], [2, 0], [7, 0]])
    space = spaces.MultiDiscrete(nvec, start=start)
    elements = elements_of(space)
    table = elements.encoder.leaf_encoders[0].table.weight  # type: ignore[union-attr]
    assert table.shape == (4 + 5, WIDTH)
    x = torch.as_tensor(start) + torch.tensor([[2, 0], [3, 1], [1, 4]])
    tokens, _ = elements({"": x[None]})
    for n, (a, b) in enumerate([(2, 0), (3, 1), (1, 4)]):
        torch.testing.assert_close(tokens[0, n], table[a] + table[4 + b])  # type: ignore[index]
    flat = elements_of(spaces.MultiDiscrete(nvec.reshape(-1), start=start.reshape(-1)), element_size=2)
    assert torch.equal(flat({"": x.reshape(1, -1)})[0], tokens)


def test_a_row_of_symbols_is_a_sequence_of_them() -> None:
    elements = elements_of(spaces.MultiDiscrete([4, 6, 5]))
    tokens, _ = elements({"": torch.tensor([[3, 5, 3]])})
    assert tokens.shape == (1, 3, WIDTH) and torch.equal(tokens[:, 0], tokens[:, 2])
    assert not torch.equal(tokens[:, 0], tokens[:, 1])


def test_symbols_of_absent_elements_may_be_none_at_all() -> None:
    space = spaces.Dict({"cards": spaces.MultiDiscrete([4, 4, 4]), "held": spaces.MultiBinary(3)})
    encoder = encoder_of(space, mask="held")
    held = torch.tensor([[1, 0, 1]])
    found, other = (encoder({"cards": torch.tensor([[1, odd, 2]]), "held": held}) for odd in (-1, 2))
    assert torch.equal(found.rows, other.rows) and torch.equal(found.pooled, other.pooled)


@pytest.mark.parametrize("shape", [(6, 8), (6, 8, 3), (3, 6, 8)])
def test_an_image_is_cut_into_patches(shape: tuple[int, ...]) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    elements, image = elements_of(space, patch=2), sample(space, 2)
    assert elements.count == 12
    last = image[..., None] if len(shape) == 2 else image.movedim(1, -1) if shape[0] == 3 else image
    cut = elements.cut(image)
    layer = elements.encoder.leaf_encoders[0].linear
    for row in range(3):
        for column in range(4):
            patch = last[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].reshape(2, -1)
            assert torch.equal(cut[:, 4 * row + column], patch)
            token = (patch / 255) @ layer.weight.T + layer.bias  # type: ignore[union-attr, operator]
            torch.testing.assert_close(elements({"": image})[0][:, 4 * row + column], token)


def test_rows_of_a_picture_are_elements_where_that_is_said() -> None:
    elements = elements_of(spaces.Box(0, 255, (7, 3), np.uint8), element_size=3)
    assert (elements.count, elements.layout.patch) == (7, 0)


def test_positions_are_added_to_tokens() -> None:
    space, x = spaces.Box(-1, 1, (7, 3)), torch.randn(2, 7, 3)
    without = elements_of(space)({"": x})[0]
    for position in ("learned", "sinusoidal"):
        elements = elements_of(space, position=position)
        assert elements.places is not None
        torch.testing.assert_close(elements({"": x})[0], without + elements.places)
        assert ("places" in elements.state_dict()) == (position == "learned")
    sines = elements_of(space, position="sinusoidal").places
    assert sines is not None and sines[0, ::2].eq(0).all() and sines[0, 1::2].eq(1).all()


MANY = spaces.Dict(
    {
        "units": spaces.Box(-1, 1, (7, 3)),
        "speed": spaces.Box(-1, 1, (2,)),
        "hand": spaces.MultiDiscrete([4, 4]),
        "camera": spaces.Box(0, 255, (6, 8, 3), np.uint8),
        "alive": spaces.MultiBinary(7),
        "held": spaces.MultiBinary(2),
        "goal": spaces.Discrete(3),
    }
)


def test_the_only_leaf_that_can_is_taken() -> None:
    assert encoder_of(MANY, patch=2).elements.paths == ("camera",)
    one = spaces.Dict({path: leaf for path, leaf in MANY.items() if path != "hand"})
    assert encoder_of(one, mask="alive").elements.paths == ("units", "alive")
    nested = spaces.Dict({"team": spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (7, 3))])})
    assert encoder_of(nested).elements.paths == ("team/1",)
    assert encoder_of(spaces.Box(-1, 1, (7, 3)), leaf="").elements.paths == ("",)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["several leaves", "'units'", "'hand'"]),
        ({"leaf": "unit"}, ["leaf 'unit'", "did you mean 'units'"]),
        ({"leaf": "goal"}, ["'goal'", "Discrete(3)", "Box"]),
        ({"leaf": "speed"}, ["flat", "element_size"]),
        ({"leaf": "speed", "element_size": 3}, ["element_size (3)", "2", "nearest that do: 2"]),
        ({"leaf": "units", "element_size": 2}, ["3 numbers", "element_size (2)"]),
        ({"leaf": "units", "patch": 2}, ["patch", "images"]),
        ({"leaf": "hand", "patch": 2}, ["patch", "symbols"]),
        ({"leaf": "camera"}, ["image", "patch"]),
        ({"leaf": "camera", "patch": 3}, ["patch (3)", "width (8)", "2, 4"]),
        ({"leaf": "camera", "patch": 4}, ["patch (4)", "height (6)", "3, 6"]),
        ({"leaf": "units", "mask": "held"}, ["MultiBinary(7)", "MultiBinary(2)"]),
        ({"leaf": "units", "mask": "speed"}, ["MultiBinary(7)", "Box"]),
        ({"leaf": "units", "mask": "aliv"}, ["mask 'aliv'", "did you mean 'alive'"]),
        ({"leaf": "units", "heads": 5}, ["heads (5)", "width (12)", "4, 6"]),
        ({"leaf": "units", "name": "linformer", "slots": 8}, ["8 slots", "7 elements"]),
        ({"leaf": "units", "name": "nystrom", "landmarks": 8}, ["landmarks (8)", "7"]),
        ({"leaf": "units", "name": "nystrom", "conv": 4}, ["conv (4)", "odd", "set 5"]),
        ({"leaf": "units", "name": "informer", "samples": 8}, ["samples (8)", "at most 7"]),
        ({"leaf": "units", "name": "informer", "active_queries": 8}, ["active_queries (8)", "at most 7"]),
        (
            {"leaf": "units", "name": "informer", "samples": 3, "active_queries": 3, "factor": 4},
            ["encoder.factor 4", "has no effect with samples"],
        ),
        ({"leaf": "units", "name": "set_transformer", "points": 10**6, "heads": 1}, ["points", "MiB"]),
        ({"leaf": "units", "name": "luna", "slots": 10**6}, ["slots", "MiB"]),
        ({"leaf": "units", "ff_width": 10**6}, ["ff_width", "MiB"]),
        ({"leaf": "units", "layers": 10**6}, ["layers", "[1, 256]"]),
        ({"leaf": "units", "position": "learnd"}, ["position", "did you mean 'learned'"]),
        ({"leaf": "units", "name": "brt"}, ["'brt'", "did you mean 'bert'"]),
        ({"leaf": "units", "point": 3, "name": "set_transformer"}, ["point", "did you mean 'points'"]),
    ],
)
def test_errors_name_the_rule_the_value_and_the_way_out(options: dict[str, Any], words: list[str]) -> None:
    wide = 120 if "MiB" in words else WIDTH
    with pytest.raises(ConfigError) as error:
        encoder_of(MANY, width=wide, **options)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_where_no_leaf_holds_elements_every_one_says_why() -> None:
    space = spaces.Dict({"speed": spaces.Box(-1, 1, (2,)), "camera": spaces.Box(0, 255, (6, 8), np.uint8)})
    with pytest.raises(ConfigError) as error:
        encoder_of(space)
    assert all(word in str(error.value) for word in ("no leaf", "'speed'", "element_size", "'camera'", "patch"))
    with pytest.raises(ConfigError, match=r"\[2, 3, 4\]|\(2, 3, 4\)"):
        encoder_of(spaces.Box(-1, 1, (2, 3, 4)))


def test_tables_that_would_fill_the_memory_are_refused() -> None:
    with pytest.raises(ConfigError, match="positions"):
        encoder_of(spaces.Box(-1, 1, (2**20, 1)), width=512, position="learned")
    with pytest.raises(ConfigError, match="classes"):
        encoder_of(spaces.MultiDiscrete([10**9, 3]))
