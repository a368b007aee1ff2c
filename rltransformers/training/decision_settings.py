"""Settings of the Decision Transformer: their ranges, and the backbone that goes with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from annotated_types import Ge, Gt, Le

from rltransformers.backbone import BackboneConfig
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import (
    Count,
    Fraction,
    PositiveNumber,
    Weight,
    WholeNumber,
    check,
    check_fields,
    shown,
)
from rltransformers.core.spec import Choice
from rltransformers.policies.decision import ActingMode
from rltransformers.policies.readouts.catalogue import read_readout
from rltransformers.policies.steps import Acting

Mode = Literal["dt", "bc"]
ContextLength = Annotated[int, Ge(1), Le(10**5)]
LearningRate = Annotated[float, Gt(0), Le(1e6)]
BatchSize = Annotated[int, Ge(1), Le(10**6)]


class PolicySettings(TypedDict, total=False):
    """What ``policy_kwargs`` may hold."""

    backbone: BackboneConfig | Mapping[str, Any] | None
    readout: str | Mapping[str, Any] | None


@dataclass(frozen=True)
class Settings:
    """The scalar settings of ``DecisionTransformer``, checked; a checkpoint holds them all.

    Raises:
        ConfigError: for a value outside its range.
    """

    context_length: ContextLength
    learning_rate: LearningRate
    weight_decay: Weight
    warmup_steps: WholeNumber
    decay_steps: Count | None
    batch_size: BatchSize
    max_grad_norm: PositiveNumber
    discount: Fraction
    delayed_reward: bool
    normalize_observations: bool
    mode: Mode
    top_fraction: Fraction
    whole_episodes: bool
    acting_mode: ActingMode
    acting: Acting
    seed: WholeNumber

    def __post_init__(self) -> None:
        check_fields(self)
        if self.decay_steps is not None and self.decay_steps <= self.warmup_steps:
            raise ConfigError(
                f"decay_steps ({self.decay_steps}) must lie beyond warmup_steps ({self.warmup_steps}), or be None"
            )
        if self.mode == "bc" and (self.delayed_reward or self.discount != 1):
            raise ConfigError(
                "mode 'bc' reads no rewards, so delayed_reward and discount have no effect; leave them at False and 1"
            )


def backbone_config(policy_kwargs: Mapping[str, Any] | None, mode: str, context_length: int) -> BackboneConfig:
    """The backbone for windows of G tokens a step."""
    options = check(policy_kwargs or {}, PolicySettings, "policy_kwargs")
    values: dict[str, Any] = {"preset": "decision_transformer", "memory": max(context_length - 1, 0)}
    chosen = options.get("backbone") or {}
    values |= chosen.to_dict() if isinstance(chosen, BackboneConfig) else dict(chosen)
    check_tokens(values.setdefault("tokens_per_step", tokens_of(mode)), mode)
    return BackboneConfig.from_dict(values)


def readout_choice(policy_kwargs: Mapping[str, Any] | None) -> Choice | None:
    """What the head adds of recorded actions, or None."""
    options = check(policy_kwargs or {}, PolicySettings, "policy_kwargs")
    return read_readout(options.get("readout"), "policy_kwargs.readout")


def fitting_mode(backbone: BackboneConfig, context_length: int) -> ActingMode:
    """Whether the memory of the backbone limits the view, or the context does."""
    return "banded" if backbone.memory < context_length - 1 else "refresh"


def with_acting_mode(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Stored settings; in files of the first release ``acting`` was the acting mode."""
    if "acting_mode" in settings:
        return dict(settings)
    return {**settings, "acting_mode": settings.get("acting"), "acting": "eager"}


def tokens_of(mode: str) -> int:
    """Tokens of a step: without return-to-go in behaviour cloning."""
    return 2 if mode == "bc" else 3


def check_tokens(tokens_per_step: Any, mode: str) -> None:
    """Raise ConfigError unless a backbone has as many tokens per step as the mode."""
    expected = tokens_of(mode)
    if tokens_per_step != expected:
        raise ConfigError(
            f"mode {mode!r} has {expected} tokens per step, the backbone says {shown(tokens_per_step)};"
            " leave tokens_per_step out"
        )
