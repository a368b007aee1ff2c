"""Encoders of a user's own for leaves of an observation, by the name that a config gives them. W token width."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from rltransformers.core.errors import ConfigError, did_you_mean, one_line
from rltransformers.core.ranges import check, shown
from rltransformers.core.spaces import Space

Maker = Callable[..., nn.Module]
BUILT_IN = ("vector", "index", "image")  # names of encoders of ours, see ``ObservationEncoder``
_MAKERS: dict[str, Maker] = {}


def register_encoder(name: str, make: Maker) -> None:
    """Let configs name ``make`` as the encoder of a leaf: ``observation={"leaves": {path: name}}``.

    Args:
        name: a config may give options with it, {"name": name, option: value}; they are keywords of ``make``.
        make: a class or a function that takes the space of the leaf and W, and options, and returns a module from
            leaves [N, *leaf shape], of the type in which the environment gives them (floats as float32, classes as
            int64), to [N, W]. What it makes of one row must not depend on other rows, nor on chance.

    A later registration replaces an earlier one. Files hold the name alone: register before ``load``.

    Raises:
        ConfigError: for a name of an encoder of ours, or what cannot be called.
    """
    if check(name, str, "name") in BUILT_IN:
        raise ConfigError(f"{name!r} is an encoder of this package; register another name")
    if not callable(make):
        raise ConfigError(f"encoder {name!r} must be a class or a function that makes a module, got {shown(make)}")
    _MAKERS[name] = make


@dataclass(frozen=True)
class LeafChoice:
    """The name of an encoder, and its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> Any:
        """The shortest form that ``read_leaves`` reads back."""
        return {"name": self.name, **self.options} if self.options else self.name


def read_leaves(value: Mapping[str, Any] | None, path: str = "leaves") -> dict[str, LeafChoice]:
    """Choices of encoders by leaf path, from names or {"name": ..., option: value}; ConfigError for unknown names."""
    found = {}
    for leaf, given in check(value or {}, Mapping[str, Any], path).items():
        parts = {"name": given} if isinstance(given, str) else given
        if not isinstance(parts, Mapping) or not isinstance(parts.get("name"), str):
            raise ConfigError(f"{path}.{leaf} takes a name or {{name: ..., option: value}}, got {shown(given)}")
        name = parts["name"]
        if name not in (*BUILT_IN, *_MAKERS):
            raise ConfigError(
                f"{path}.{leaf}: no encoder is registered as {name!r}; {did_you_mean(name, (*BUILT_IN, *_MAKERS))}; "
                "import the module that calls register_encoder first"
            )
        found[leaf] = LeafChoice(name, {key: option for key, option in parts.items() if key != "name"})
    return found


class OwnEncoder(nn.Module):
    """A registered encoder of one leaf: [..., *leaf shape] to [..., W], whatever axes lead.

    Raises:
        ConfigError: it refuses its options, is no module, gives something else than W numbers of float32 per row,
            or computes something else in training than in acting.
    """

    def __init__(self, space: Space, width: int, choice: LeafChoice, example: Tensor) -> None:
        super().__init__()
        self.shape, self.width = tuple(space.shape or ()), width
        what = f"encoder {choice.name!r}"
        try:
            self.inside = _MAKERS[choice.name](space, width, **choice.options)
        except TypeError as error:
            raise ConfigError(f"{what} was refused by what makes it: {one_line(error)}") from error
        if not isinstance(self.inside, nn.Module):
            raise ConfigError(f"{what} must make a module of torch, got {shown(self.inside)}")
        check_encoder(self.inside, lambda leaves: self.inside(leaves[""]), {"": example}, width, what)

    def forward(self, x: Tensor) -> Tensor:
        lead = x.shape[: x.dim() - len(self.shape)]
        return self.inside(x.reshape(math.prod(lead), *self.shape)).reshape(*lead, self.width)


def check_alike(module: nn.Module, what: str) -> None:
    """Raise ConfigError unless a module computes the same while acting and while training.

    The probabilities of the rollout and of the update would differ, on whose ratio the update relies; a Decision
    Transformer would act with another function than it learned.
    """
    for name, part in module.named_modules():
        drops = isinstance(part, _DropoutNd) and part.p > 0
        drops |= isinstance(part, nn.MultiheadAttention | nn.RNNBase) and part.dropout > 0
        follows = isinstance(part, _BatchNorm) or (isinstance(part, _NormBase) and part.track_running_stats)
        if drops or follows or isinstance(part, nn.RReLU):
            raise ConfigError(
                f"{what} has {type(part).__name__} at {name!r}, with which acting and training compute different "
                "numbers; take it out, or its dropout (LayerNorm and GroupNorm are the same in both)"
            )


@torch.no_grad()
def check_encoder(
    module: nn.Module, compute: Callable[[dict[str, Tensor]], Any], example: dict[str, Tensor], width: int, what: str
) -> None:
    """Raise ConfigError unless ``compute`` makes rows [2, W] of float32, the same in both modes and of each row alone.

    Behind what ``check_alike`` sees: functions that read the mode, draw noise, or mix the rows of a batch, which are
    other ones in acting than in training. Weights and statistics of ``module`` stay as they are.
    """
    check_alike(module, what)

    def computed(leaves: dict[str, Tensor], kind: str) -> Any:
        try:
            return compute(leaves)
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
            raise ConfigError(f"{what} fails on {kind}: {one_line(error)}") from error

    found = computed(example, "two rows of zeros")
    usual = torch.get_default_dtype()
    if not isinstance(found, Tensor) or found.shape != (2, width) or found.dtype != usual:
        result = f"{tuple(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(f"{what} must give rows [N, {width}] of {usual}; of two rows it made {result}")
    leaves = {path: _varied(leaf) for path, leaf in example.items()}

    def rows(indices: slice) -> Tensor:
        return computed({path: leaf[indices] for path, leaf in leaves.items()}, "rows of numbers up to 1")

    training, state = module.training, {name: value.clone() for name, value in module.state_dict().items()}
    with torch.random.fork_rng(devices=[]):
        module.train()
        trained = [rows(slice(2)) for _ in range(3)]  # chance may spare all numbers of one call
        module.eval()
        expected = rows(slice(2))
        alone = torch.cat([rows(slice(i, i + 1)) for i in range(2)])
    module.train(training)
    module.load_state_dict(state)
    if not all(torch.allclose(each, expected, rtol=1e-4, atol=1e-5, equal_nan=True) for each in trained):
        raise ConfigError(
            f"{what} computes other numbers in training than in evaluation mode; acting and training would differ: "
            "leave out noise, dropout and statistics that follow the data"
        )
    if not torch.allclose(alone, expected, rtol=1e-4, atol=1e-5, equal_nan=True):
        raise ConfigError(
            f"{what} computes other numbers of a row alone than beside another one; acting and training would differ, "
            "whose batches hold other rows: compute each row by itself"
        )


def _varied(leaf: Tensor) -> Tensor:
    """Rows that differ, of numbers and pixels; classes as they are."""
    if leaf.dtype == torch.uint8:
        return (leaf + torch.arange(leaf.numel()).view_as(leaf)).to(torch.uint8)
    return leaf + torch.linspace(0.1, 1.0, leaf.numel()).view_as(leaf) if leaf.is_floating_point() else leaf
