"""Mechanisms of other packages are registered, refused where they would not work, and chosen as our own are."""

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from annotated_types import Ge

import rltransformers
from rltransformers import mechanisms
from rltransformers.backbone import Backbone, BackboneConfig, Record
from rltransformers.cli.main import main
from rltransformers.cli.settings import find_settings
from rltransformers.core.errors import ConfigError
from rltransformers.core.extensions import EXTENSIONS, load_installed
from rltransformers.mechanisms import (
    TABLES,
    Acts,
    Call,
    Dims,
    Feature,
    MemoryOptions,
    Mixed,
    NoOptions,
    Objective,
    Position,
    Spec,
    StateMixer,
    Traits,
    register,
)
from tests.extending import install, unregistered, write_module

LINEAR = TABLES["mixer"]["linear"]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with unregistered():
        yield


@dataclass(frozen=True)
class Options:
    """Options of a test.

    Attributes:
        strength: how much.
    """

    strength: Annotated[float, Ge(0)] = 1.0


@dataclass
class Thawed:
    """Not frozen."""

    strength: float = 1.0


@dataclass(frozen=True)
class Outside:
    """A default that is outside its range."""

    strength: Annotated[float, Ge(2)] = 1.0


@dataclass(frozen=True)
class Weighted:
    """The name of a key of losses."""

    weight: float = 1.0


def build(dims: Dims, options: Options) -> Any:
    return LINEAR.build(dims, NoOptions()) if LINEAR.build else None


MINE = Spec(name="mine", axis="mixer", summary="Linear attention again.", build=build, options=Options)


def test_a_registered_mechanism_is_chosen_as_every_other() -> None:
    assert rltransformers.register(MINE) is MINE
    config = BackboneConfig(mixer={"name": "mine", "strength": 2}, position="none", width=8, heads=2)
    assert config.to_dict()["mixer"] == {"name": "mine", "strength": 2.0}
    assert Backbone(config)(torch.randn(2, 5, 8))[0].shape == (2, 5, 8)
    assert EXTENSIONS["mixer", "mine"].module == __name__
    with pytest.raises(ConfigError, match=r"backbone\.mixer: unknown mixer 'mime'; did you mean 'mine'"):
        BackboneConfig(mixer="mime")


def test_registering_the_same_record_twice_changes_nothing() -> None:
    rltransformers.register(MINE)
    rltransformers.register(MINE)
    assert list(EXTENSIONS) == [("mixer", "mine")]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (build, r"register takes a Spec, got .*: Spec\(name="),
        (replace(MINE, axis="mixr"), r"Spec\.axis: unknown axis 'mixr'; did you mean 'mixer'"),
        (replace(MINE, name="my mixer"), r"Spec\.name must be letters, digits and underscores, .*got 'my mixer'"),
        (replace(MINE, summary=""), "mixer 'mine' has no summary; say in one sentence"),
        (
            replace(MINE, traits=Traits(half=0.3)),
            r"errors of 1e-05 in float32 and 0\.3 in bfloat16.* say why in Traits",
        ),
        (replace(MINE, name="linear"), r"mixer 'linear' is taken by rltransformers\.mixers\.linear; choose another"),
        (replace(MINE, options=Thawed), r"must be a class under @dataclass\(frozen=True\), got .*Thawed"),
        (replace(MINE, options=dict), r"must be a class under @dataclass\(frozen=True\), got <class 'dict'>"),
        (replace(MINE, options=Outside), "the default of option strength must be a finite number of at least 2"),
        (replace(MINE, axis="losses", options=Weighted), "an option cannot be called 'weight'"),
        (replace(MINE, axis="memory_kind"), r"must be made from MemoryOptions: class Options\(MemoryOptions\)"),
        (replace(MINE, build=None), r"mixer 'mine' has no build; write a function build\(dims, options\)"),
        (replace(MINE, build=len), "which its function does not take: too many positional"),
        (replace(MINE, offers=TABLES["mixer"]["softmax"].offers), r"is built by build\(dims, plan, options\)"),
        (replace(MINE, axis="depth"), r"is built by build\(options\), which its function does not take"),
        (
            replace(MINE, axis="memory_kind", options=MemoryOptions),
            r"is built by build\(rows, width, key_width, sinks, tokens_per_step, options\)",
        ),
    ],
)
def test_what_could_not_work_is_refused(spec: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rltransformers.register(spec)
    assert not EXTENSIONS


def test_a_module_that_runs_again_replaces_its_own_mechanism() -> None:
    text = (
        "import rltransformers\nfrom rltransformers.mechanisms import Spec, TABLES\n"
        "def build(dims, options): return TABLES['mixer']['linear'].build(dims, options)\n"
        "SPEC = rltransformers.register(Spec(name='mine', axis='mixer', summary='NUMBER', build=build))\n"
    )
    for number in ("one", "two"):
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec(text.replace("NUMBER", number), namespace)
        assert TABLES["mixer"]["mine"].summary == EXTENSIONS["mixer", "mine"].spec.summary == number
    with pytest.raises(ConfigError, match="mixer 'mine' is taken by __main__; choose another name"):
        exec(text.replace("build", "make").replace("make=make", "build=make").replace(".make(", ".build("), namespace)


def test_a_name_that_another_module_registered_is_taken_by_that_module() -> None:
    mechanisms.add(MINE, "theirs")
    with pytest.raises(ConfigError, match="mixer 'mine' is taken by theirs; choose another name"):
        rltransformers.register(replace(MINE))


@pytest.mark.parametrize("axis", [axis for axis in TABLES if axis != "losses"])
def test_every_axis_takes_a_copy_of_an_entry_of_its_own(axis: str) -> None:
    spec = next(each for each in TABLES[axis].values() if each.build)
    assert rltransformers.register(replace(spec, name="copy")) is TABLES[axis]["copy"]


@dataclass(frozen=True)
class Loudness(Objective):
    """The size of what the heads read."""

    name: str = "loudness"

    def of_outputs(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.square().mean((1, 3))


def build_loudness(dims: Dims, options: NoOptions) -> Objective:
    return Loudness()


def test_a_loss_of_ones_own_is_weighed_and_has_gradients() -> None:
    rltransformers.register(
        Spec(
            name="loudness",
            axis="losses",
            summary="Loud heads.",
            build=build_loudness,
            needs=TABLES["losses"]["disagreement"].needs,
        )
    )
    config = BackboneConfig(width=8, heads=2, losses={"loudness": 0.5})
    assert config.loss_weights() == {"loudness": 0.5}
    record, backbone = Record(), Backbone(config)
    backbone(torch.randn(2, 5, 8), record=record)
    assert record.losses["loudness"] > 0
    torch.autograd.grad(record.losses["loudness"], list(backbone.parameters()), allow_unused=True)


def test_list_and_settings_show_it(capsys: pytest.CaptureFixture[str]) -> None:
    rltransformers.register(MINE)
    rltransformers.register(replace(TABLES["losses"]["span"], name="reach"))
    (entry,) = find_settings("backbone.mixer.strength")
    assert (entry.of, entry.default, entry.says) == ("mine", "1.0", "How much")
    assert "gtrxl_ppo" in entry.agents and "decision_transformer" in entry.agents
    assert find_settings("backbone.losses.reach")
    assert all(
        "mine" in each.names
        for each in find_settings("backbone.mixer")
        if each.key in ("backbone.mixer", "backbone.mixer.name")
    )
    assert main(["list"]) == 0
    assert "Linear attention again" in capsys.readouterr().out


def test_installed_packages_are_asked_for_names_that_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path, "installed_one")
    write_module(tmp_path, "installed_two")
    install(monkeypatch, tmp_path, one="installed_one:MIXER", two="installed_two")
    BackboneConfig(mixer="linear", position="none")
    assert "installed_one" not in sys.modules
    BackboneConfig(mixer="installed_two_mixer", residual="installed_one_gate", position="none")
    assert EXTENSIONS["mixer", "installed_one_mixer"].distribution == "own-mechanisms"
    assert EXTENSIONS["mixer", "installed_two_mixer"].module == "installed_two"


def test_a_broken_package_is_named_and_leaves_the_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module(tmp_path, "whole")
    write_module(tmp_path, "broken", "raise RuntimeError('no such luck')")
    install(monkeypatch, tmp_path, a="broken:SPEC", b="whole:MIXER", c="whole:nothing", d="sys:path")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_installed()
    texts = [str(each.message) for each in caught]
    assert len(texts) == 3 and all("installed package 'own-mechanisms' is left out" in text for text in texts)
    assert "RuntimeError: no such luck; update the package or uninstall it" in texts[0]
    assert ("mixer", "whole_mixer") in EXTENSIONS
    load_installed()  # once per process


class Log(Position):
    """A distance costs its logarithm; ``acts`` says where."""

    acts = Acts.SCORE

    def __init__(self, dims: Dims, options: NoOptions) -> None:
        super().__init__()

    def of_distances(self, distance: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return torch.log1p(distance[:, None]).expand(-1, 4)

    def scores(self, q: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return -table.T


@pytest.mark.parametrize("other", ["alibi", "rope"])
@pytest.mark.parametrize("first", [True, False])
def test_only_one_position_acts_inside_attention(other: str, first: bool) -> None:
    register(Spec(name="log", axis="position", summary="log", build=Log, needs=(Feature.SCORES,)))
    Backbone({"position": "log"})
    with pytest.raises(ConfigError, match="both act inside attention; keep one of them"):
        Backbone({"position": ["log", other] if first else [other, "log"]})


def test_a_position_acts_at_the_input_or_inside_attention() -> None:
    both = type("Both", (Log,), {"acts": Acts.INPUT | Acts.SCORE})
    register(Spec(name="both", axis="position", summary="both", build=both, needs=(Feature.SCORES,)))
    with pytest.raises(ConfigError, match="make two positions of it"):
        Backbone({"position": "both"})


@pytest.mark.parametrize(
    ("acts", "offers"),
    [(Acts.EVERY_LAYER, ()), (Acts.INPUT | Acts.EVERY_LAYER, ()), (Acts.EVERY_LAYER, (Feature.LAYER_SIGNALS,))],
)
def test_a_position_of_every_layer_says_so_wherever_it_acts(acts: Acts, offers: tuple[Feature, ...]) -> None:
    each = type("Each", (Position,), {"acts": acts})
    register(Spec(name="each", axis="position", summary="each", build=lambda dims, options: each(), offers=offers))
    with pytest.raises(ConfigError, match=r"it also needs Acts\.INPUT.* and offers=\(Feature\.LAYER_SIGNALS,\)"):
        Backbone({"position": "each"})


@pytest.mark.parametrize("name", ["hidden", "keys", "hidden_ring"])
def test_states_of_mixers_leave_names_of_memories_alone(name: str) -> None:
    class Mean(StateMixer):
        def __init__(self, dims: Dims, options: NoOptions) -> None:
            super().__init__()
            self.width = dims.width

        def state_shapes(self) -> dict[str, tuple[int, ...]]:
            return {name: (self.width,)}

        def forward(self, h: torch.Tensor, state: dict[str, torch.Tensor], call: Call) -> Mixed:
            raise AssertionError

    register(Spec(name="mean", axis="mixer", summary="mean", build=Mean))
    with pytest.raises(ConfigError, match=f"mixer 'mean' calls a tensor of its state '{name}'"):
        Backbone({"mixer": "mean", "position": "none"})


BETWEEN_LAYERS = {
    "prior": ["realformer", "lazyformer", "value_residual", "predictive"],
    "depth": ["calm", "depth_adaptive", "universal_act"],
}


@pytest.mark.parametrize(("axis", "name"), [(axis, name) for axis, names in BETWEEN_LAYERS.items() for name in names])
def test_what_acts_between_layers_needs_two(axis: str, name: str) -> None:
    with pytest.raises(ConfigError, match="has no effect in a single layer"):
        Backbone({axis: name, "layers": 1})
    Backbone({axis: name, "layers": 2})
