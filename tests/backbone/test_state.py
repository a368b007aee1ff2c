"""The state record and the call itself."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rltransformers.backbone import AXES, Backbone, State
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.spec import Spec
from rltransformers.functional.call import Call
from rltransformers.memory.interface import Cached
from rltransformers.mixers.interface import LayerState, Mixed, StateMixer
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
    no_rows: list[Any] = [0, -1, torch.tensor(2), None]
    for index in no_rows:
        with pytest.raises(
            ConfigError, match=r"a state is indexed by rows and stays a batch: state\[\[0\]\] or state\[0:1\]"
        ):
            state[index]


def test_layers_with_two_digits_are_told_apart() -> None:
    backbone = Backbone(config_of({"layers": 11, "width": 3, "heads": 1}))
    state = backbone.initial_state(1)
    assert set(state.layer("layer1")) == {"hidden"}
    assert len(state.tensors) == 12


def test_wrong_shapes_are_named() -> None:
    backbone = Backbone(config_of({}))
    with pytest.raises(
        ConfigError, match=r"a tensor \[batch, time, width 15\] of at least one stream and one token, got \(2, 15\)"
    ):
        backbone(torch.randn(2, 15))
    with pytest.raises(ConfigError, match=r"width 15\] .*, got \(2, 3, 16\)"):
        backbone(torch.randn(2, 3, 16))
    with pytest.raises(ConfigError, match="state is for 3 streams, x has 2"):
        backbone(torch.randn(2, 1, 15), backbone.initial_state(3))


@pytest.mark.parametrize("name", ["reset", "valid", "timestep", "task"])
def test_what_stands_beside_the_tokens_has_their_shape(name: str) -> None:
    """Others would be spread over streams or tokens, and give numbers of another meaning."""
    backbone = Backbone(config_of({"position": "timestep", "prior": {"name": "camtl", "tasks": 5}}))
    tasks = torch.zeros(3, 4, dtype=torch.long)
    for shape in ((3, 1), (1, 4), (4,), (3,), (3, 5), (4, 3), (3, 4, 1)):
        beside = torch.zeros(shape, dtype=torch.bool if name in ("reset", "valid") else torch.long)
        with pytest.raises(ConfigError) as caught:
            backbone(torch.randn(3, 4, 15), **({"task": tasks} | {name: beside}))
        assert f"{name} has shape {shape}, the tokens have (3, 4)" in str(caught.value)
    state = backbone.initial_state(3, cached=True)
    with pytest.raises(ConfigError, match=r"reset has shape \(3,\), the tokens have \(3, 1\)"):
        backbone(torch.randn(3, 1, 15), state, torch.zeros(3, dtype=torch.bool), task=tasks[:, :1])


@pytest.mark.parametrize("cached", [None, False, True])
def test_a_call_without_a_token_or_a_stream_is_refused(cached: bool | None) -> None:
    backbone = Backbone(config_of({}))
    for batch, time in ((2, 0), (0, 3)):
        state = None if cached is None else backbone.initial_state(batch, cached=cached)
        with pytest.raises(ConfigError, match=rf"at least one stream and one token, got \({batch}, {time}, 15\)"):
            backbone(torch.randn(batch, time, 15), state)


@pytest.mark.parametrize("cached", [False, True, "only"])
@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"layers": 1}, "lacks layer1."),
        ({"layers": 3}, "holds layer2."),
        ({"memory": 9}, r"layer0.\w+ has shape \(3, "),
        ({"width": 18}, r"layer0.\w+ has shape \(3, "),
        ({"mixer": "average", "position": "none"}, "lacks layer0."),
    ],
)
def test_a_state_of_another_backbone_is_refused(cached: Cached, other: dict[str, Any], words: str) -> None:
    backbone, x = Backbone(config_of({})), torch.randn(3, 1, 15)
    state = Backbone(config_of(other)).initial_state(3, cached=cached)
    for time in (1, 2):
        with pytest.raises(ConfigError, match=f"state is of another backbone: (it )?{words}"):
            backbone(x.repeat(1, time, 1), state)
    backbone(x, backbone(x, backbone.initial_state(3, cached=cached))[1])


RETURNED: dict[str, tuple[Callable[[Tensor, LayerState], Any], str]] = {
    "a tuple": (lambda h, state: (h, state), r"Own returned a tuple; let it return Mixed\(out, state\)"),
    "no state": (
        lambda h, state: Mixed(h, {}),
        r"Own returned a state with {}, but its state_shapes\(\) are {'s': \(15,\)}",
    ),
    "a part": (
        lambda h, state: Mixed(h, {"s": state["s"][:, :3]}),
        r"Own returned a state with {'s': \(3,\)}, but its",
    ),
    "more": (lambda h, state: Mixed(h, {**state, "more": state["s"]}), r"a state with {'s': \(15,\), 'more': \(15,\)}"),
}


@pytest.mark.parametrize("axis", ["mixer", "ff"])
@pytest.mark.parametrize("returned", RETURNED)
def test_a_mixer_that_returns_another_state_than_it_says_is_named(
    axis: str, returned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, words = RETURNED[returned]

    class Own(StateMixer):
        def __init__(self, *sizes: Any) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(15))

        def state_shapes(self) -> dict[str, tuple[int, ...]]:
            return {"s": (15,)}

        def forward(self, h: Tensor, state: LayerState, call: Call) -> Mixed:
            found: Mixed = function(self.weight * h, state)
            return found

    monkeypatch.setitem(AXES[axis].table, "own", Spec("S99", "own", axis, "-", "Nothing.", Own))
    backbone = Backbone(config_of({"position": "none", axis: "own"}))
    for state in (None, backbone.initial_state(2, cached=True)):
        with pytest.raises(ConfigError, match=words):
            backbone(torch.randn(2, 1, 15), state)


def test_tasks_and_timesteps_that_do_not_exist_are_refused() -> None:
    backbone = Backbone(
        config_of({"position": {"name": "timestep", "max_len": 9}, "prior": {"name": "camtl", "tasks": 5}})
    )
    x, zeros = torch.randn(2, 3, 15), torch.zeros(2, 3, dtype=torch.long)
    for task in (-1, 5):
        with pytest.raises(DataError, match=f"task {task} is none of the 5 tasks, which are counted from 0"):
            backbone(x, task=zeros + task)
    for step in (-1, 9):
        with pytest.raises(DataError, match=f"environment step {step} is outside the position table of 9 rows"):
            backbone(x, task=zeros, timestep=zeros + step)
    valid = torch.tensor([[True, True, False], [False, True, True]])
    padding = torch.where(valid, 3, 99)
    expected = backbone(x, task=zeros + 3, valid=valid)[0]
    assert torch.equal(backbone(x, task=padding, timestep=torch.where(valid, zeros, 99), valid=valid)[0],
                       backbone(x, task=zeros + 3, timestep=zeros, valid=valid)[0])  # fmt: skip
    assert expected.isfinite().all()


EXAMPLES = [
    {"memory": 20, "position": "none", **spec.example}
    for axis in ("mixer", "prior", "memory_kind", "ff", "residual")
    for spec in AXES[axis].table.values()
]


@pytest.mark.parametrize("values", [{}, {"memory": 0}, *EXAMPLES], ids=str)
@pytest.mark.parametrize("gradient", [False, True])
def test_a_state_keeps_nothing_of_a_segment_but_its_own_numbers(values: dict[str, Any], gradient: bool) -> None:
    backbone = Backbone(config_of(values)).eval()
    buffer = torch.randn(2, 500, 15)
    with torch.set_grad_enabled(gradient):
        _, first = backbone(buffer)
        _, second = backbone(buffer, first)
        _, acting = backbone(buffer, backbone.with_cache(second))
    for state in (first, second, acting, backbone.without_cache(acting)):
        storages = {value.untyped_storage().data_ptr(): value.untyped_storage() for value in state.tensors.values()}
        held = sum(each.nbytes() for each in storages.values())  # what is saved, too
        assert held <= sum(value.nbytes for value in state.tensors.values())


def test_timesteps_are_read_by_the_timestep_position_only() -> None:
    backbone = Backbone(config_of({"position": {"name": "timestep", "max_len": 50}, "tokens_per_step": 3, "memory": 2}))
    x = torch.randn(1, 6, 15)
    usual = backbone(x, timestep=torch.tensor([[0, 0, 0, 1, 1, 1]]))[0]
    assert torch.equal(usual, backbone(x)[0])
    assert not torch.equal(usual, backbone(x, timestep=torch.tensor([[7, 7, 7, 8, 8, 8]]))[0])
    other = Backbone(config_of({}))
    assert torch.equal(other(x, timestep=torch.full((1, 6), 9))[0], other(x)[0])


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        ({"reset": torch.zeros(3, 4)}, r"reset is of torch.float32, expected torch.bool: pass reset.bool\(\)"),
        ({"valid": torch.ones(3, 4, dtype=torch.int8)}, r"valid is of torch.int8, expected torch.bool"),
        ({"timestep": torch.zeros(3, 4)}, r"timestep is of torch.float32, expected whole numbers: pass timestep.long"),
        ({"task": torch.zeros(3, 4, dtype=torch.bool)}, r"task is of torch.bool, expected whole numbers"),
    ],
    ids=["reset", "valid", "timestep", "task"],
)
def test_what_stands_beside_the_tokens_has_a_type_of_its_own(beside: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Backbone(config_of({}))(torch.randn(3, 4, 15), **beside)


def test_tokens_are_floating_point_numbers() -> None:
    with pytest.raises(ConfigError, match=r"takes floating-point tensors, got torch\.int64: pass x\.float\(\)"):
        Backbone(config_of({}))(torch.zeros(3, 4, 15, dtype=torch.long))


@pytest.mark.parametrize("values", [{}, {"mixer": "min_gru", "position": "none"}], ids=str)
def test_a_state_is_of_the_type_of_the_weights(values: dict[str, Any]) -> None:
    backbone, x = Backbone(config_of(values)).eval(), torch.randn(3, 4, 15)
    for cached in (False, True):
        state = backbone.initial_state(3, cached=cached)
        with pytest.raises(
            ConfigError, match=r"state is of torch.float64, the weights are of torch.float32: pass state.to\(dtype="
        ):
            backbone(x[:, :1], state.to(dtype=torch.float64))
        double = Backbone(config_of(values)).double()
        with pytest.raises(ConfigError, match=r"state is of torch.float32, the weights are of torch.float64"):
            double(x.double(), state)
        assert double(x.double(), state.to(dtype=torch.float64))[0].dtype == torch.float64


def test_a_state_in_half_precision_goes_on_in_sums() -> None:
    """Autocast may have left it."""
    backbone, x = Backbone(config_of({"mixer": "min_gru", "position": "none"})).eval(), torch.randn(3, 4, 15)
    _, state = backbone(x)
    assert backbone(x, state.to(dtype=torch.bfloat16))[0].dtype == torch.float32


def test_tokens_are_of_the_type_of_the_weights_but_under_autocast() -> None:
    backbone = Backbone(config_of({})).eval()
    state, x = backbone.initial_state(3, cached=True), torch.randn(3, 4, 15)
    for each in (x.double(), x.bfloat16()):
        with pytest.raises(ConfigError, match=rf"x is of {each.dtype}, the weights are of torch\.float32: pass x\.to"):
            backbone(each)
        with pytest.raises(ConfigError, match=rf"x is of {each.dtype}, the weights"):
            backbone(each[:, :1], state)
    with torch.autocast("cpu", torch.bfloat16):
        assert backbone(x.bfloat16())[0].shape == x.shape
    assert backbone.double()(x.double())[0].dtype == torch.float64


@pytest.mark.parametrize("time", [1, 2])
def test_what_is_no_state_is_refused(time: int) -> None:
    backbone: Any = Backbone(config_of({})).eval()
    x, state = torch.randn(3, time, 15), backbone.initial_state(3)
    for each in (state.tensors, tuple(state.tensors.values()), x):
        with pytest.raises(ConfigError, match=rf"state is a {type(each).__name__}; pass what a call returned, State"):
            backbone(x, each)
    assert torch.equal(backbone(x, State(state.tensors))[0], backbone(x, state)[0])


def test_a_step_takes_the_tokens_of_one_step_and_a_state_for_acting() -> None:
    backbone = Backbone(config_of({"tokens_per_step": 3})).eval()
    acting, x = backbone.initial_state(2, cached=True), torch.randn(2, 4, 15)
    with pytest.raises(ConfigError, match=r"a step has at most 3 tokens \(tokens_per_step\), got 4"):
        backbone.step(x, acting)
    with pytest.raises(ConfigError, match="a step needs a state for acting"):
        backbone.step(x[:, :3], backbone.initial_state(2))
    assert torch.equal(backbone.step(x[:, :3], acting)[0], backbone(x[:, :3], acting)[0])


def test_a_task_that_does_not_exist_is_refused_while_acting() -> None:
    backbone = Backbone(config_of({"prior": {"name": "camtl", "tasks": 5}}))
    state, x = backbone.initial_state(2, cached=True), torch.randn(2, 1, 15)
    for task in (-1, 5):
        with pytest.raises(DataError, match=f"task {task} is none of the 5 tasks"):
            backbone(x, state, task=torch.tensor([[0], [task]]))


def test_states_of_two_forms_are_not_joined() -> None:
    backbone = Backbone(config_of({}))
    forms = [backbone.initial_state(2, cached=cached) for cached in (False, True, "only")]
    for one in forms:
        for other in forms:
            if one is other:
                assert State.cat([one, other]).batch_size == 4
                continue
            for join in (lambda a, b: State.cat([a, b]), lambda a, b: a.where(torch.tensor([True, False]), b)):
                with pytest.raises(ConfigError, match="states of two forms cannot be joined: only one of them has"):
                    join(one, other)
    with pytest.raises(ConfigError, match="there is no state to join"):
        State.cat([])


@pytest.mark.parametrize("mask", [torch.tensor([True]), torch.ones(3, dtype=torch.bool), torch.ones(2, 1) > 0])
def test_a_mask_of_rows_has_one_flag_per_stream(mask: torch.Tensor) -> None:
    state = Backbone(config_of({})).initial_state(2)
    with pytest.raises(ConfigError, match=r"the mask has shape .* pass one flag per stream"):
        state.where(mask, state)
    with pytest.raises(ConfigError, match="the states have 2 and 1 streams"):
        state.where(torch.tensor([True, False]), state[:1])


@pytest.mark.parametrize("name", sorted(AXES["mixer"].table))
def test_a_state_for_acting_is_contiguous(name: str) -> None:
    """Machine code writes into it."""
    example = {"memory": 20, "position": "none", **AXES["mixer"].table[name].example}
    backbone = Backbone(config_of(example)).eval()
    _, state = backbone(torch.randn(3, 5, 15))
    for each in (backbone.with_cache(state), backbone(torch.randn(3, 5, 15), backbone.with_cache(state))[1]):
        assert all(value.is_contiguous() for value in each.tensors.values())


def test_a_form_of_state_that_there_is_none_of_is_refused() -> None:
    with pytest.raises(ConfigError, match="cached must be False, True or 'only', got 'keys'"):
        Backbone({}).initial_state(2, cached="keys")  # type: ignore[arg-type]
