"""Optimizers by name, and the groups of parameters that they learn."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, TypedDict

import torch
from annotated_types import Ge, Le, Lt
from torch import nn

from rltransformers.backbone import Backbone
from rltransformers.core.errors import refuse_unknown
from rltransformers.core.ranges import Weight

OptimizerName = Literal["adam", "adamw", "muon"]
Decay = Annotated[float, Ge(0), Lt(1)]
MUON_EPS = 1e-7
"""Least norm that torch.optim.Muon divides a gradient by; the epsilon of Adam means something else."""


class OptimizerOptions(TypedDict, total=False):
    """Keywords of an optimizer beside the learning rate, of those that it has.

    Attributes:
        betas, eps, amsgrad, fused: of Adam and AdamW, and of the AdamW in "muon".
        weight_decay: "adam" adds it to the gradient; the others shrink weights by it times the learning rate.
        momentum, nesterov, ns_steps: of torch.optim.Muon.
    """

    betas: tuple[Decay, Decay]
    eps: Annotated[float, Ge(1e-20), Le(1)]
    weight_decay: Weight
    amsgrad: bool
    fused: bool
    momentum: Decay
    nesterov: bool
    ns_steps: Annotated[int, Ge(1), Le(99)]


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon for the groups in which "muon" is True, AdamW for the others, as one optimizer.

    Both work on the groups and the state of this one. The rate of a matrix is scaled so that its steps are as large as
    those of AdamW (arXiv 2502.16982): one learning rate fits both.

    Args:
        params: groups; without "muon", or plain parameters, they are AdamW's.
        lr, weight_decay: of both.
        momentum, nesterov, ns_steps: of torch.optim.Muon.
        betas, eps, amsgrad, fused: of torch.optim.AdamW.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 1e-2,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        amsgrad: bool = False,
        fused: bool | None = None,
    ) -> None:
        options: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov, "ns_steps": ns_steps}
        options |= {"betas": betas, "eps": eps, "amsgrad": amsgrad, "fused": fused}
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay} | options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if param_group.setdefault("muon", False):
            param_group.setdefault("eps", MUON_EPS)
        super().add_param_group(param_group)
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:  # of a copy, and in ``load_state_dict``
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        """Make the optimizers that take the steps; their groups are the dictionaries of this one's."""
        self._parts: list[torch.optim.Optimizer] = []
        for group in self.param_groups:
            matrices = group["muon"]
            part = torch.optim.Muon([group], adjust_lr_fn="match_rms_adamw") if matrices else torch.optim.AdamW([group])
            part.state = self.state
            self._parts.append(part)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # of two forms
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for part in self._parts:
            part.step()
        return loss


OPTIMIZERS: dict[OptimizerName, type[Any]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "muon": Muon}


def make_optimizer(
    name: OptimizerName, module: nn.Module, groups: list[dict[str, Any]], lr: float, options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """Make an optimizer of some groups of the parameters of ``module``; raise ConfigError for options it has not."""
    kind = OPTIMIZERS[name]
    known = OptimizerOptions.__annotations__.keys() & inspect.signature(kind).parameters.keys()
    refuse_unknown(options, known, "policy_kwargs.optimizer_kwargs.", f"optimizer {name!r}")
    optimizer: torch.optim.Optimizer = kind(_groups_for(kind, module, groups), lr=lr, **options)
    return optimizer


def over(optimizer: torch.optim.Optimizer, module: nn.Module, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Return the optimizer if it already holds exactly these groups, else a fresh one of the same kind."""
    kind: Any = type(optimizer)
    groups = _groups_for(kind, module, groups)
    wanted, held = (
        [[id(each) for each in group["params"]] for group in some] for some in (groups, optimizer.param_groups)
    )
    options = dict(optimizer.defaults)
    if issubclass(kind, torch.optim.AdamW):
        options.pop("decoupled_weight_decay", None)  # of Adam, which AdamW sets itself
    return optimizer if held == wanted else kind(groups, **options)


def decay_groups(module: nn.Module, parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Groups of an optimizer: ``parameters``, and apart those that weight decay leaves alone, where there are any.

    A module names its own in ``no_decay``, as "gain" or "gate.bias"; names that it does not have are passed over.
    """
    exempt: set[int] = set()
    for part in module.modules():
        names = getattr(part, "no_decay", ())
        exempt |= {id(each) for name, each in part.named_parameters() if name in names} if names else set()
    learned, kept = _split(parameters, exempt)
    groups: list[dict[str, Any]] = [{"params": learned}]
    return [*groups, {"params": kept, "weight_decay": 0.0}] if kept else groups


def hidden_weights(module: nn.Module) -> set[int]:
    """Identities of the weights of hidden layers: linear layers of backbones, and those in front of heads."""
    hidden = [part for name, part in module.named_modules() if isinstance(part, Backbone) or name.endswith("_hidden")]
    return {id(each.weight) for part in hidden for each in part.modules() if isinstance(each, nn.Linear)}


def _groups_for(kind: type, module: nn.Module, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups, for ``Muon`` each with its matrices apart."""
    if not issubclass(kind, Muon):
        return groups
    hidden = hidden_weights(module)
    parts = [
        group | {"params": params, "muon": muon}
        for group in groups
        for params, muon in zip(_split(group["params"], hidden), (False, True), strict=True)
    ]
    return [part for part in parts if part["params"]]


def _split(parameters: Iterable[nn.Parameter], chosen: set[int]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Those whose identities are not among the ``chosen``, and those whose are."""
    learned = list(parameters)
    return [each for each in learned if id(each) not in chosen], [each for each in learned if id(each) in chosen]
