"""The state record and the call itself."""

import pytest
import torch

from rltransformers.backbone import Backbone, State
from rltransformers.core.errors import ConfigError
from tests.attention.rows import config_of


def test_a_state_is_never_changed_in_place() -> None:
    backbone = Backbone(config_of({})).eval()
    for cached in (False, True):
        state = backbone.initial_state(2, cached=cached)
        copy = state.clone()
        _, after = backbone(torch.randn(2, 3, 15), state)
        for name, value in state.tensors.items():
            assert torch.equal(value, copy.tensors[name])
        assert after is not state


def test_states_are_indexed_like_tensors() -> None:
    state = State({"position": torch.arange(5), "layer0.hidden": torch.randn(5, 2, 3)})
    assert state[1:3].tensors["position"].tolist() == [1, 2]
    assert state[torch.tensor([4, 0])].tensors["position"].tolist() == [4, 0]
    assert state[torch.tensor([True, False, False, True, False])].batch_size == 2
    assert state[[2, 2]].tensors["position"].tolist() == [2, 2]
    assert set(state.layer("layer0")) == {"hidden"}
    other = state.map(torch.zeros_like)
    mask = torch.tensor([True, False, False, False, True])
    assert state.where(mask, other).tensors["position"].tolist() == [0, 1, 2, 3, 0]
    assert state.tensors["position"].tolist() == [0, 1, 2, 3, 4]


def test_layers_with_two_digits_are_told_apart() -> None:
    backbone = Backbone(config_of({"layers": 11, "width": 3, "heads": 1}))
    state = backbone.initial_state(1)
    assert set(state.layer("layer1")) == {"hidden"}
    assert len(state.tensors) == 12


def test_wrong_shapes_are_named() -> None:
    backbone = Backbone(config_of({}))
    with pytest.raises(ConfigError, match=r"takes \[batch, time, width 15\], got \(2, 15\)"):
        backbone(torch.randn(2, 15))
    with pytest.raises(ConfigError, match=r"width 15\], got \(2, 3, 16\)"):
        backbone(torch.randn(2, 3, 16))
    with pytest.raises(ConfigError, match="state is for 3 streams, x has 2"):
        backbone(torch.randn(2, 1, 15), backbone.initial_state(3))


def test_timesteps_are_read_by_the_timestep_position_only() -> None:
    backbone = Backbone(config_of({"position": {"name": "timestep", "max_len": 50}, "tokens_per_step": 3, "memory": 2}))
    x = torch.randn(1, 6, 15)
    usual = backbone(x, timestep=torch.tensor([[0, 0, 0, 1, 1, 1]]))[0]
    assert torch.equal(usual, backbone(x)[0])
    assert not torch.equal(usual, backbone(x, timestep=torch.tensor([[7, 7, 7, 8, 8, 8]]))[0])
    other = Backbone(config_of({}))
    assert torch.equal(other(x, timestep=torch.full((1, 6), 9))[0], other(x)[0])
