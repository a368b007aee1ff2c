"""Parts are built from what the mechanisms declare."""

import ast
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rltransformers.attention.reach import Reach
from rltransformers.attention.roles import Part
from rltransformers.backbone import AXES, PLAIN, Backbone, BackboneConfig, build, catalogue, choices, rules
from rltransformers.blocks.activations import ACTIVATIONS
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, NoOptions, Spec
from rltransformers.functional.online_means import OnlineMeans
from rltransformers.memory.interface import MemoryOptions, build_rows
from rltransformers.mixers import linear
from rltransformers.mixers.interface import Dims, RowMixer


@dataclass(frozen=True)
class TwoSteps(MemoryOptions):
    """Of a memory that shows a token itself and the one before."""

    def reach(self, memory: int) -> Reach:
        """Whatever the layer may see."""
        return Reach(2)


def test_a_new_memory_decides_what_is_visible_where_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Spec("M99", "new", "memory_kind", "-", "Nothing.", build_rows, TwoSteps)
    monkeypatch.setitem(AXES["memory_kind"].table, "new", spec)
    backbone = Backbone(BackboneConfig(**{**PLAIN, "layers": 1, "memory": 5, "memory_kind": "new"}))
    x = torch.randn(1, 6, backbone.width, requires_grad=True)
    backbone(x)[0][0, 4].square().sum().backward()
    assert x.grad is not None
    assert (x.grad[0].abs().sum(-1) > 0).tolist() == [False, False, False, True, True, False]


@pytest.mark.parametrize("name", sorted(AXES["mixer"].table))
def test_mixers_offer_rows_where_they_read_some(name: str) -> None:
    spec = AXES["mixer"].table[name]
    config = BackboneConfig(**{**PLAIN, "memory": 20, **spec.example})
    mixer = Backbone(config).layer(0).mixing.mixer
    assert isinstance(mixer, RowMixer) == (Feature.ROWS in spec.offers)


class Common(linear.LinearAttention):
    """A mixer whose layers have one output projection."""

    shared = ("out",)


def test_layers_of_one_choice_have_in_common_what_their_mixer_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    table = AXES["mixer"].table
    monkeypatch.setitem(table, "common", replace(linear.SPEC, name="common", build=Common))
    values = {
        **PLAIN,
        "layers": 6,
        "ff_width": 5,
        "mixer": ["common", "linear", "common"],
        "final_norm": False,
        "residual": "post_ln",
    }
    backbone = Backbone(BackboneConfig(**values))
    outputs = [backbone.layer(index).mixing.mixer.get_submodule("out") for index in range(6)]
    assert [outputs.index(each) for each in outputs] == [0, 1, 0, 0, 4, 0]
    counted, _ = backbone.config.numbers()
    assert counted == sum(value.numel() for value in backbone.parameters())


@pytest.mark.parametrize(
    "values",
    [
        {"depth": "universal", "pattern": ["full", "full"]},
        {"depth": "universal", "mixer": ["softmax", "softmax"], "span": ["full", "full"]},
        {"prior": "predictive"},
        {"position": "t5", "mixer": ["set_transformer", "lowrank_band"]},
        {"memory_kind": {"name": "memorizing", "store": 3}, "layers": 4},
    ],
    ids=str,
)
def test_numbers_of_a_config_are_those_of_its_backbone(values: dict[str, Any]) -> None:
    config = BackboneConfig(**{**PLAIN, "width": 12, "heads": 2, "memory": 30, "layers": 3, **values})
    backbone = Backbone(config)
    norms = (backbone.final_norm, backbone.input_norm)
    of_norms = sum(value.numel() for norm in norms if norm is not None for value in norm.parameters())
    state = backbone.initial_state(1).tensors
    assert config.numbers() == (
        sum(value.numel() for value in backbone.parameters()) - of_norms,
        sum(value.numel() for name, value in state.items() if name != "position"),
    )


@pytest.mark.parametrize(
    ("values", "tokens"),
    [
        ({}, 6),
        ({"layers": 3}, 9),
        ({"memory": 0}, 0),
        ({"tokens_per_step": 2}, 14),  # three steps and the other token of its own
        ({"pattern": [{"name": "band", "window": 2}, "full"]}, 4),
        ({"mixer": ["softmax", {"name": "light_conv", "taps": 3}]}, 5),
        ({"ff": {"name": "sep_conv", "taps": 2, "second_taps": 2}}, 10),
        ({"pattern": {"name": "longformer", "window": 2, "sinks": 1}}, None),
        ({"mixer": "linear"}, None),
    ],
    ids=str,
)
def test_the_receptive_field_is_what_an_output_depends_on(values: dict[str, Any], tokens: int | None) -> None:
    config = BackboneConfig(**{**PLAIN, "width": 12, "heads": 2, "layers": 2, "memory": 3, **values})
    backbone = Backbone(config).eval()
    assert backbone.receptive_field == tokens
    if tokens is not None:
        x = torch.randn(1, 20, 12, requires_grad=True)
        (gradient,) = torch.autograd.grad(backbone(x)[0][0, -1].square().sum(), x)
        (seen,) = gradient[0].ne(0).any(-1).nonzero(as_tuple=True)
        assert tokens - config.tokens_per_step < 19 - int(seen.min()) <= tokens


def test_only_online_means_are_statistics_that_processes_add_up() -> None:
    """Whatever a module of somebody's own calls its buffers."""

    class Mine(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sums", torch.ones(3))
            self.register_buffer("counts", torch.ones(3))

        def maintain(self) -> None:
            pass

    backbone = Backbone({**PLAIN, "width": 12, "heads": 2, "selection": {"name": "routing", "clusters": 3}})
    backbone.layers.append(Mine())
    means = [module for module in backbone.modules() if isinstance(module, OnlineMeans)]
    found = [value.data_ptr() for value in backbone.statistics()]
    assert found == [value.data_ptr() for module in means for value in (module.sums, module.counts)]
    assert len(means) == backbone.config.layers


@pytest.mark.parametrize("module", [build, rules, choices])
def test_what_is_built_is_not_known_to_the_builder(module: object) -> None:
    builds = [spec.build for specs in catalogue().values() for spec in specs if spec.build]
    mechanisms = {getattr(build, "func", build).__module__ for build in builds}
    # Beside the interfaces stand entries that do nothing, or keep rows alone.
    interfaces = ("attention.roles", "attention.reach", "memory.interface", "positions.interface")
    mechanisms -= {f"rltransformers.{name}" for name in interfaces}
    tree = ast.parse(Path(str(getattr(module, "__file__", ""))).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    named = {f"{node.module}.{each.name}" for node in imports for each in node.names}
    assert not mechanisms & ({node.module for node in imports} | named)


ACTIVATED = [{"ff": {"name": "ffn", "activation": name}} for name in ACTIVATIONS]


@pytest.mark.parametrize("values", [{}, {"depth": "depth_adaptive", "layers": 2}, *ACTIVATED], ids=str)
def test_a_backbone_passes_through_a_pickle(values: dict[str, Any]) -> None:
    """As ``torch.save`` of whole modules and processes that are spawned need it."""
    backbone, x = Backbone({**PLAIN, "width": 12, "heads": 2, "memory": 5, **values}).eval(), torch.randn(2, 7, 12)
    assert torch.equal(pickle.loads(pickle.dumps(backbone))(x)[0], backbone(x)[0])


def test_no_entry_of_the_catalogue_keeps_a_backbone_out_of_a_pickle() -> None:
    for specs in catalogue().values():
        pickle.dumps(list(specs))


# Made with torch 2.13.0 by the sum below at commit 3b85c5d, before most mechanisms were there.
WEIGHTS = {
    "gtrxl": 12570.760269768536,
    "decision_transformer": 31182.048332955597,
    "performer": 5462.689139723778,
    "compressive": 9027.747928701341,
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_seed_gives_the_weights_that_it_always_gave(name: str) -> None:
    """Published results repeat only while building draws the same random numbers, and none besides."""
    torch.manual_seed(0)
    total = sum(float(value.detach().double().abs().sum()) for value in Backbone({"preset": name}).parameters())
    assert total == pytest.approx(WEIGHTS[name], rel=1e-9)


def test_shapes_without_numbers_follow_views_and_arithmetic() -> None:
    with torch.device("meta"), build._Unfilled():
        rows = torch.empty(3, 4).t_()
        assert rows.shape == (4, 3)
        assert (1 - rows).shape == rows.uniform_().exp().shape == (4, 3)
        assert (rows[:, :1] * torch.rand(3)).shape == (4, 3)
        assert torch.nn.init.xavier_uniform_(torch.empty(2, 5)).shape == (2, 5)


INITIAL = [
    lambda count: torch.arange(1, count + 1) / count,
    lambda count: 2.0 ** -torch.arange(count),
    lambda count: torch.arange(count).exp(),
    lambda count: torch.where(torch.arange(count) > 0, 0.5, 1.0),
    lambda count: (torch.arange(count) == 1).float(),
    lambda count: (torch.rand(count, 1) + torch.arange(count))[0],
    lambda count: torch.randn(count).double() * torch.arange(count),
    lambda count: torch.clamp(torch.arange(count), min=torch.as_tensor(0.5)),
    lambda count: torch.as_tensor(1.0) * torch.arange(count) + torch.from_numpy(np.ones(count, np.float32)),
]


@pytest.mark.parametrize("index", range(len(INITIAL)))
def test_initial_values_without_numbers_have_the_type_of_those_with_numbers(index: int) -> None:
    expected = INITIAL[index](4)
    with torch.device("meta"), build._Unfilled():
        found = INITIAL[index](4)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


def unit_vector(dims: Dims, options: NoOptions) -> Part:
    """Looks at the numbers of a tensor."""
    torch.ones(dims.heads).norm().item()
    return Part()


def test_a_mechanism_that_cannot_be_built_without_numbers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Spec("B99", "mine", "prior", "-", "Nothing.", unit_vector)
    monkeypatch.setitem(AXES["prior"].table, "mine", spec)
    with pytest.raises(ConfigError, match=r"prior 'mine' .*item.*once without numbers, to count its sizes") as caught:
        BackboneConfig(**{**PLAIN, "prior": "mine"})
    assert isinstance(caught.value.__cause__, RuntimeError)
