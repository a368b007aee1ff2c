"""Plays episodes and notes every step of them. H heads, S steps that a head looks back, G tokens per step, T steps."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from rltransformers.agents.decision_transformer import DecisionTransformer
from rltransformers.agents.load import Agent
from rltransformers.backbone import Backbone, Record
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.spaces import differing_spaces, leaf_spaces, leaf_values
from rltransformers.envs.make import EnvironmentSource, Wrappers, make_vec_env, source_name
from rltransformers.envs.video import drawing_fault
from rltransformers.policies.decider import ActingState, Decider
from rltransformers.policies.memory_policy import MemoryPolicy
from rltransformers.policies.output import PolicyOutput
from rltransformers.training.evaluation import evaluate_online
from rltransformers.training.runs.lookback import decisions

MOST_STEPS = 1_000
"""Steps of an episode that are noted; later ones only count for its return and length."""
LARGEST_SIDE = 256  # pixels of a frame that is kept

Env = gymnasium.Env[Any, Any]


@dataclass
class Episode:
    """What an agent saw and did in one episode, a list entry per noted step t.

    Attributes:
        target: the return that was asked for; None where nobody asked.
        drawn: what the environment drew before step t, and after the last one, [height, width, 3] uint8; empty where it
            draws nothing.
        observations: leaves by path.
        rewards: behind step t, as the environment gave them.
        outputs: actions, and how they were distributed.
        returns_to_go: that step t asks for, and that a return head predicts; None where there is none.
        attention: of the newest token by layer [H, S, G], to step t - s at s; tokens of a step in their order.
        metrics: what the backbone tells besides, such as "layer0/gate_openness".
        ends: whether step t ended the episode for good, or took a life, so that the agent expects nothing after it.
        total, length, success: of the whole episode, as an evaluation counts them.
    """

    seed: int
    target: float | None = None
    drawn: list[NDArray[np.uint8]] = field(default_factory=list)
    observations: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    outputs: list[PolicyOutput] = field(default_factory=list)
    returns_to_go: list[tuple[float | None, float | None]] = field(default_factory=list)
    attention: list[dict[str, NDArray[np.float32]]] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)
    ends: list[bool] = field(default_factory=list)
    total: float = 0.0
    length: int = 0
    success: bool | None = None


class Screen(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Notes the rewards and pictures of episodes that begin with a seed, as those of an evaluation do."""

    def __init__(self, env: Env, episodes: list[Episode]) -> None:
        super().__init__(env)
        self._episodes = episodes

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._episodes.append(Episode(seed))
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        episode = self._episodes[-1]
        noted = len(episode.rewards) < MOST_STEPS
        if noted:
            del episode.drawn[len(episode.rewards) :]  # of an end that was none: a lost life
            self._draw(episode)
        result = super().step(action)
        if noted:
            episode.rewards.append(float(result[1]))
            episode.ends.append(bool(result[2]))
            if result[2] or result[3] or len(episode.rewards) == MOST_STEPS:
                self._draw(episode)
        return result

    def _draw(self, episode: Episode) -> None:
        if self.render_mode == "rgb_array":
            picture = Image.fromarray(pixels(self.render()))
            picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
            episode.drawn.append(np.asarray(picture))


class Watch:
    """An agent that ``evaluate_online`` plays with, and that notes its decisions in the newest of ``episodes``."""

    def __init__(self, agent: Agent, target_return: float | None, episodes: list[Episode]) -> None:
        self.agent, self.episodes, self.target = agent, episodes, target_return
        self.decider: Decider | None = None
        self.backbone = backbone_of(agent)
        if isinstance(agent, DecisionTransformer):
            self.actor, self.decider = agent.actor(target_return), agent.decider()
        elif target_return is None:
            self.actor = agent.actor()
        else:
            raise ConfigError(f"target returns are asked of Decision Transformers, and this is a {agent.kind}")
        self.policy, self.num_timesteps = agent.policy, agent.num_timesteps

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        reward: Any = None,
        action_masks: Any = None,
        generators: Sequence[np.random.Generator] = (),
    ) -> tuple[list[Any], None]:
        """The action of one environment; what was computed on the way is noted."""
        self.actor.deterministic = deterministic
        if episode_start[0]:
            self.actor.reset()
        leaves = observation if isinstance(observation, Mapping) else {"": observation}
        seen = {path: np.asarray(leaf[0]) for path, leaf in leaves.items()}
        masks = None if action_masks is None else action_masks[0]
        episode, calls = self.episodes[-1], list[tuple[Record, dict[str, Tensor]]]()
        notes = len(episode.outputs) < MOST_STEPS

        def collect(record: Record, attention: dict[str, Tensor], step: Tensor | None) -> None:
            calls.append((record, attention))

        with decisions(self.backbone, self.decider, collect) if notes else nullcontext():
            output = self.actor.decide(
                seen if isinstance(observation, Mapping) else seen[""], float(reward[0]), masks, generator=generators[0]
            )
        if notes:
            ((record, attention),) = calls
            group = self.backbone.config.tokens_per_step
            episode.target = self.target
            episode.observations.append(seen)
            episode.returns_to_go.append(self._returns_to_go(output.state))
            episode.outputs.append(replace(output, state=None))
            steps = len(episode.outputs)
            episode.attention.append(
                {name: by_step(mass[0].cpu().numpy(), steps, group) for name, mass in attention.items()}
            )
            episode.metrics.append({name: float(value) for name, value in record.metrics.items()})
        return [output.action], None

    def _returns_to_go(self, state: Any) -> tuple[float | None, float | None]:
        """Return-to-go that was asked for in the last step, and what a return head predicted."""
        if not isinstance(state, ActingState) or self.decider is None or not self.decider.policy.takes_target:
            return None, None
        predicted = state.predicted_return
        return float(state.return_to_go[0]), None if predicted is None else float(predicted[0])


def pixels(drawn: Any) -> NDArray[np.uint8]:
    """What ``render`` draws, [height, width, 3 or 4], or [height, width] of grey. DataError for what is no image."""
    if isinstance(drawn, np.ndarray) and drawn.ndim == 3 and drawn.size and drawn.shape[2] in (1, 3, 4):
        low, high = drawn.min(), drawn.max()
        if low >= 0 and high <= 255 and (drawn.dtype.kind in "iu" or not 0 < high <= 1):
            return np.asarray(drawn[..., 0] if drawn.shape[2] == 1 else drawn, np.uint8)
        what = f"{drawn.dtype} from {low:g} to {high:g}"
    else:
        what = "nothing" if drawn is None else f"a {type(drawn).__name__} of shape {np.shape(drawn)}"
    raise DataError(
        f"render() draws {what}, no image [height, width, 3] of numbers from 0 to 255; repair it, or leave"
        " render_mode out"
    )


def backbone_of(agent: Agent) -> Backbone:
    """The backbone that acts."""
    if isinstance(agent, DecisionTransformer):
        return agent.policy.backbone
    return cast(MemoryPolicy, agent.policy).actor.backbone


def by_step(mass: NDArray[np.float32], steps: int, group: int) -> NDArray[np.float32]:
    """Attention [H, S, G] by steps back and token of the step, from attention by distance [H, L] in tokens.

    The newest token is the observation. Where an action is a token (G > 1), that of the step is not there yet: the
    tokens before are those of the last step, its action first.

    Args:
        steps: of the episode so far; nothing is farther back.
    """
    after = int(group > 1)  # tokens of a step behind its observation
    heads, length = mass.shape
    count = min(-(-(length + after) // group), steps)
    padded = np.zeros((heads, count * group), np.float32)
    padded[:, after : length + after] = mass[:, : count * group - after]
    return padded.reshape(heads, count, group)[:, :, ::-1]


def play(
    agent: Agent,
    env: EnvironmentSource,
    *,
    episodes: int,
    seed: int,
    target_returns: Sequence[float | None],
    env_kwargs: Mapping[str, Any],
    wrappers: Wrappers,
    deterministic: bool,
    longest_episode: int | None,
) -> list[Episode]:
    """Play ``episodes`` episodes per target return, the first ones of an evaluation with this ``seed``."""
    drawing = dict(env_kwargs) | {"render_mode": "rgb_array"}
    owned = not isinstance(env, gymnasium.Env)
    if owned and drawing_fault(env, drawing, wrappers) is None:
        env_kwargs = drawing
    played: list[Episode] = []
    vec_env = make_vec_env(env, env_kwargs=env_kwargs, wrappers=[*wrappers, lambda inner: Screen(inner, played)])
    try:
        ours = agent.observation_space, agent.action_space
        for role, mine, other in differing_spaces(ours, (vec_env.observation_space, vec_env.action_space)):
            raise ConfigError(
                f"the {role} space of the environment is {other}, that of the agent {mine}; give the environment, "
                "env_kwargs and wrappers that it was trained with"
            )
        for target in target_returns:
            watch = Watch(agent, target, played)
            first, name = len(played), source_name(env)
            result = evaluate_online(
                watch, vec_env, name, episodes, seed, deterministic, longest_episode=longest_episode
            )
            for number, episode in enumerate(played[first:]):
                episode.total, episode.length = result.returns[number], result.lengths[number]
                episode.success = None if result.successes is None else result.successes[number]
    finally:
        if owned:
            vec_env.close()
    return played


def action_leaves(agent: Agent, output: PolicyOutput, kind: str) -> dict[str, Any]:
    """One field of a ``PolicyOutput`` by leaf path of the action; a leaf that lacks it is None."""
    value = getattr(output, kind)
    paths = leaf_spaces(agent.action_space)
    return dict.fromkeys(paths) if value is None else leaf_values(agent.action_space, value)
