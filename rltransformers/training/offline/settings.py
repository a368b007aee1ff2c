"""Settings of the Decision Transformer: their ranges, and the backbone that goes with them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, TypedDict, TypeVar

from annotated_types import Ge, Gt, Le, Lt

from rltransformers.backbone import BackboneConfig
from rltransformers.core.errors import ConfigError, refuse_unknown
from rltransformers.core.ranges import (
    Fraction,
    PositiveNumber,
    UnitInterval,
    Weight,
    WholeNumber,
    check,
    check_fields,
    shown,
)
from rltransformers.core.spec import Choice
from rltransformers.policies.decider import ActingMode
from rltransformers.policies.observed import ObservationOptions
from rltransformers.policies.optimizers import OptimizerName, OptimizerOptions
from rltransformers.policies.readouts.catalogue import read_readout
from rltransformers.policies.returns import ReturnIn
from rltransformers.policies.several_modes import ActionHeadName, ActionHeadOptions
from rltransformers.policies.steps import Acting

Mode = Literal["dt", "advantage", "bc"]
ContextLength = Annotated[int, Ge(1), Le(10**5)]
USUAL_CONTEXT = 20
"""That of the published models."""
SIZES = {"width": 64, "layers": 2, "heads": 2}
"""Of a backbone for which no preset is named."""
LearningRate = Annotated[float, Gt(0), Le(1e6)]
Updates = Annotated[int, Ge(0), Lt(2**63)]
BatchSize = Annotated[int, Ge(1), Le(10**6)]
ReturnHead = Literal["expectile"]
Expectile = Annotated[float, Ge(0.5), Lt(1)]
CriticName = Literal["qcs", "qt"]
Spreads = Annotated[float, Gt(0), Le(100)]
"""A difference between returns, in units of the best minus the worst return of the data."""
Share = Annotated[float, Ge(0), Lt(1)]
"""A part of the episodes that leaves some."""
Chunk = Annotated[int, Ge(1), Le(1_000)]
"""Actions that are predicted at once."""

Options = TypeVar("Options", "AdvantageOptions", "CriticOptions")


@dataclass(frozen=True)
class AdvantageOptions:
    """Keys of ``advantage_kwargs``.

    Attributes:
        bins: of advantages, with equally many steps of the data in each; acting asks for the best one. Fewer take more
            of the data for good, more take luck for skill sooner.
        updates: of each of the two value functions, before the first update of the policy.
        gae_lambda: lambda of the generalized advantage estimate: 1 compares the return with the value, and counts what
            happened later, luck included; 0 compares the next step's value, and trusts the values.
        learning_rate: of the value functions (AdamW), with warm-up and decay.
    """

    bins: Annotated[int, Ge(2), Le(256)] = 3
    updates: Annotated[int, Ge(1), Le(10**7)] = 1_000
    gae_lambda: UnitInterval = 0.95
    learning_rate: LearningRate = 1e-3

    def __post_init__(self) -> None:
        check_fields(self, "advantage_kwargs.")


@dataclass(frozen=True)
class CriticOptions:
    """Keys of ``critic_kwargs``.

    Attributes:
        weight: of the value in the loss of the policy: "qt" eta; "qcs" the largest weight, that of the worst episode.
        discount: of the values.
        alignment: weight of the term that keeps actions for more return from being worth less; 0 leaves it out.
        shift: how far returns are moved at most for that term.
        candidates: actions that acting chooses from by their value, each under another target return; 1: no choice.
        jitter: how far their targets lie from the one that is asked for at most.
        learning_rate: of the critics (Adam).
        width: of their three hidden layers.
        polyak: share of the critics that their slow copies, which make the targets, take on in every update.
        actor_average: share of itself that the averaged policy keeps in every update, whose actions the targets value.
    """

    weight: Weight = 1.0
    discount: Fraction = 0.99
    alignment: Weight = 0.0
    shift: Spreads = 0.2
    candidates: Annotated[int, Ge(1), Le(1000)] = 1
    jitter: Spreads = 0.2
    learning_rate: LearningRate = 3e-4
    width: Annotated[int, Ge(1), Le(10**4)] = 256
    polyak: Fraction = 0.005
    actor_average: Annotated[float, Ge(0), Lt(1)] = 0.995

    def __post_init__(self) -> None:
        check_fields(self, "critic_kwargs.")
        idle = CriticOptions.shift, CriticOptions.jitter
        for name, value, usual, reader, read in (
            ("shift", self.shift, idle[0], "alignment", self.alignment > 0),
            ("jitter", self.jitter, idle[1], "candidates", self.candidates > 1),
        ):
            if value != usual and not read:
                raise ConfigError(f"critic_kwargs.{name} ({value:g}) has no effect without {reader}; set {reader}, too")


def read_options(kind: type[Options], values: Mapping[str, Any] | None, name: str, needed: bool) -> Options | None:
    """Options from the keywords ``name``; None where there are none of these and nothing needs them."""
    if not values and not needed:
        return None
    refuse_unknown(values or {}, [each.name for each in fields(kind)], f"{name}.")
    return kind(**values or {})


class PolicySettings(TypedDict, total=False):
    """Keys of ``policy_kwargs``.

    Attributes:
        backbone: as for ``BackboneConfig.from_dict``, by default the preset "decision_transformer".
        readout: what the head adds of recorded actions: "knn" (discrete actions), "spalm" or {"name": ...,
            option: ...}.
        observation: {"encoder": "bert"} or {"encoder": {"name": ..., option: ...}} reads the elements of a set or
            sequence inside the observation, {"leaves": {path: name}} chooses the encoder of a leaf.
        action_masks: whether the leaf ``action_mask`` of the observation says which actions are allowed; None: where
            there is such a leaf.
        optimizer: "adam", "adamw" (None), or "muon": Muon for the weights of hidden layers, AdamW for everything else;
            see docs/lab/optimizers.md. Critics and value functions keep theirs.
        optimizer_kwargs: keywords of the optimizer beside the learning rate and ``weight_decay``, see
            ``OptimizerOptions``.
    """

    backbone: BackboneConfig | Mapping[str, Any] | str | None
    readout: str | Mapping[str, Any] | None
    observation: ObservationOptions | None
    action_masks: bool | None
    optimizer: OptimizerName | None
    optimizer_kwargs: OptimizerOptions | None


@dataclass(frozen=True)
class Settings:
    """The scalar settings of ``DecisionTransformer``, checked; a checkpoint holds them all."""

    context_length: ContextLength = USUAL_CONTEXT
    learning_rate: LearningRate = 1e-3
    weight_decay: Weight = 1e-4
    warmup_steps: WholeNumber | None = None
    decay_steps: WholeNumber | None = None
    batch_size: BatchSize = 64
    max_grad_norm: PositiveNumber = 0.25
    discount: Fraction = 1.0
    delayed_reward: bool = False
    normalize_observations: bool = True
    mode: Mode = "dt"
    top_fraction: Fraction = 1.0
    whole_episodes: bool | None = None
    acting_mode: ActingMode = "refresh"
    acting: Acting = "eager"
    seed: WholeNumber = 0
    return_head: ReturnHead | None = None
    expectile: Expectile = 0.999
    return_in: ReturnIn = "sequence"
    critic: CriticName | None = None
    critic_options: CriticOptions | None = None
    action_head: ActionHeadName = "deterministic"
    action_head_options: ActionHeadOptions = field(default_factory=ActionHeadOptions)
    validation: Share = 0.0
    advantage_options: AdvantageOptions | None = None
    chunk: Chunk = 1
    decide_every: Chunk | None = None
    optimizer: OptimizerName = "adamw"
    optimizer_kwargs: OptimizerOptions = field(default_factory=OptimizerOptions)

    def __post_init__(self) -> None:
        check_fields(self)
        if "weight_decay" in self.optimizer_kwargs:
            raise ConfigError(
                "policy_kwargs.optimizer_kwargs.weight_decay: a Decision Transformer has an argument of its own for it;"
                " set weight_decay (algorithm.weight_decay in a config)"
            )
        if self.decay_steps and self.decay_steps <= (self.warmup_steps or 0):
            raise ConfigError(
                f"decay_steps ({self.decay_steps}) must lie beyond warmup_steps ({self.warmup_steps}), or be 0"
            )
        if self.mode == "bc" and (self.delayed_reward or self.discount != 1):
            raise ConfigError(
                "mode 'bc' has no return-to-go, so delayed_reward and discount have no effect;"
                " leave them at False and 1"
            )
        if self.mode == "advantage" and self.delayed_reward:
            raise ConfigError(
                "mode 'advantage' asks for no return, and rewards that are all paid at the end would count what was"
                " earned before a step for it; leave delayed_reward at False"
            )
        if (self.mode == "advantage") != (self.advantage_options is not None):
            raise ConfigError(f"advantage_kwargs have no effect with mode {self.mode!r}; set mode to 'advantage'")
        if self.mode != "dt" and self.return_head is not None:
            raise ConfigError(
                f"mode {self.mode!r} has no returns that return_head could predict; leave return_head out"
            )
        if self.return_head is not None and self.return_in == "sequence":
            raise ConfigError(
                "return_head predicts the return from observations and actions, so returns are no part of the sequence;"
                " leave return_in out"
            )
        if self.return_head is None and self.expectile != Settings.expectile:
            other = " or set return_head to 'expectile'" if self.mode == "dt" else ""
            raise ConfigError(f"expectile has no effect without a return_head; leave it out{other}")
        if self.mode == "bc" and self.return_in != "sequence":
            raise ConfigError(f"mode 'bc' has no returns, so return_in {self.return_in!r} has no effect; leave it out")
        if self.critic is not None and self.action_head in ("mixture", "flow"):
            raise ConfigError(
                f"critic {self.critic!r} values one action of a Box for every state, and action_head"
                f" {self.action_head!r} has several; leave action_head or critic out"
            )
        if (self.decide_every or 1) > self.chunk:
            raise ConfigError(
                f"decide_every ({self.decide_every}) steps take an action each of a chunk of {self.chunk}; lower "
                f"decide_every, or make and train a model with chunk={self.decide_every}, which a saved one cannot get"
            )
        if self.critic is not None and self.chunk > 1:
            raise ConfigError(
                f"critic {self.critic!r} values the action of one step, and chunk {self.chunk} decides several before"
                " their states are known; leave chunk at 1, or critic out"
            )
        options = self.critic_options
        if (self.critic is None) != (options is None):
            raise ConfigError("critic_kwargs have no effect without a critic; set critic to 'qcs' or 'qt'")
        if options is None:
            return
        if self.context_length < 2:
            raise ConfigError(
                f"critic {self.critic!r} learns from the value of the next step, and context_length is"
                f" {self.context_length}; set it to at least 2"
            )
        if not self.takes_target and options.alignment > 0:
            raise ConfigError(
                f"critic_kwargs.alignment ({options.alignment:g}) aligns actions with the return asked for, and mode"
                f" {self.mode!r} asks for none; leave it at 0 or set mode to 'dt'"
            )
        if options.candidates > 1 and (not self.takes_target or self.return_head is not None):
            other = "a return_head" if self.takes_target else f"mode {self.mode!r}"
            raise ConfigError(
                f"critic_kwargs.candidates ({options.candidates}) differ in the return they are asked for, and with"
                f" {other} nobody asks; leave it at 1"
            )

    @property
    def takes_target(self) -> bool:
        """Whether acting is asked for a return."""
        return self.mode == "dt"


REPLACEABLE = (
    *("learning_rate", "weight_decay", "warmup_steps", "decay_steps", "batch_size", "max_grad_norm", "top_fraction"),
    *("whole_episodes", "expectile", "acting", "acting_mode", "decide_every", "seed"),
)
"""Settings that ``load`` may replace: with others of the rest the weights would mean something else."""


def check_replaceable(names: Iterable[str]) -> None:
    """Raise ConfigError for a setting among ``names`` that belongs to the weights."""
    for name in names:
        if name in Settings.__dataclass_fields__ and name not in REPLACEABLE:
            raise ConfigError(
                f"{name} belongs to what the file has learned, and load cannot replace it; it replaces "
                f"{', '.join(REPLACEABLE)}"
            )


def read_settings(stored: Any) -> Settings:
    """Settings of a file; ConfigError or KeyError for those that are missing or impossible."""
    values = dict(check(stored, Mapping[str, Any], "settings"))
    values = {each.name: values.pop(each.name) for each in fields(Settings)} | values  # all of them, no other
    kinds: dict[str, Any] = {"critic_options": CriticOptions, "advantage_options": AdvantageOptions}
    for name, kind in kinds.items():
        if values[name] is not None:
            values[name] = read_options(kind, check(values[name], Mapping[str, Any], name), name, needed=True)
    options = check(values["action_head_options"], Mapping[str, Any], "action_head_options")
    return Settings(**values | {"action_head_options": ActionHeadOptions(**options)})


def backbone_config(
    policy_kwargs: Mapping[str, Any] | None, mode: str, context_length: int, return_in: str = "sequence"
) -> BackboneConfig:
    """The backbone for windows of G tokens a step."""
    options = check(policy_kwargs or {}, PolicySettings, "policy_kwargs")
    values: dict[str, Any] = {"preset": "decision_transformer", "memory": max(context_length - 1, 0)}
    chosen = options.get("backbone") or {}
    if isinstance(chosen, str):
        chosen = {"preset": chosen}
    chosen = chosen.to_dict() if isinstance(chosen, BackboneConfig) else dict(chosen)
    values |= chosen if "preset" in chosen else SIZES | chosen
    check_tokens(values.setdefault("tokens_per_step", tokens_of(mode, return_in)), mode, return_in)
    return BackboneConfig.from_dict(values)


def readout_choice(policy_kwargs: PolicySettings, settings: Settings) -> Choice | None:
    """The readout of recorded actions for the head, or None; ConfigError beside a critic, chunks or another head."""
    readout = read_readout(policy_kwargs.get("readout"), "policy_kwargs.readout")
    if readout is not None and settings.critic is not None:
        raise ConfigError(
            f"critic {settings.critic!r} values the actions of an averaged policy, and the store of readout"
            f" {readout.name!r} holds features of another one; leave one of the two out"
        )
    if readout is not None and settings.action_head != "deterministic":
        raise ConfigError(
            f"readout {readout.name!r} adds recorded actions to one action of a Box, and action_head"
            f" {settings.action_head!r} has a distribution there; leave one of the two out"
        )
    if readout is not None and settings.chunk > 1:
        raise ConfigError(
            f"readout {readout.name!r} adds recorded actions of single steps, and chunk {settings.chunk} predicts"
            " several; leave chunk at 1, or readout out"
        )
    return readout


def jitter_of(options: CriticOptions | None, spread: float) -> tuple[float, ...]:
    """How much more than the target every candidate is asked for, in reward units, the target itself first."""
    if options is None or options.candidates == 1:
        return ()
    side = options.candidates // 2
    reach = options.jitter * spread
    return tuple(reach * (-1) ** place * ((place + 1) // 2) / side for place in range(options.candidates))


def tokens_of(mode: str, return_in: str) -> int:
    """Tokens of a step: return-to-go or advantage, observation, action; without the first where it is none."""
    return 3 if mode != "bc" and return_in == "sequence" else 2


def check_tokens(tokens_per_step: Any, mode: str, return_in: str) -> None:
    """Raise ConfigError unless a backbone has as many tokens per step as the settings ask for."""
    expected = tokens_of(mode, return_in)
    if tokens_per_step != expected:
        place = f", return_in {return_in!r}" if return_in != "sequence" else ""
        raise ConfigError(
            f"mode {mode!r}{place} has {expected} tokens per step, the backbone says {shown(tokens_per_step)};"
            f" set tokens_per_step to {expected} or leave it out"
        )
