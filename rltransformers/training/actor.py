"""A trained agent that acts step by step and remembers by itself. Axis letter: B environments that act together."""

import copy
import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, unwrap_vec_normalize

from rltransformers.core.action_masks import ACTION_MASK, add_masks
from rltransformers.core.described import spaces_line
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import Seed, check
from rltransformers.core.seeding import numpy_stream
from rltransformers.core.spaces import leaf_spaces, nest_leaves, nested_leaves, split_members
from rltransformers.core.values import Bools, check_observations
from rltransformers.policies.action_heads import draw_noise
from rltransformers.policies.observations import StateWatch, fit_observation, fit_rewards, fit_starts
from rltransformers.policies.output import Kinds, PolicyOutput
from rltransformers.training.online.vec_envs import as_vec_env
from rltransformers.training.stepping import FileSteps, Stepping


class Actor:
    """A policy with what it remembers of the episodes it is in.

    ``reset()`` begins an episode, ``actor(observation, reward)`` decides one step of it. Observations and rewards are
    those of the environment: what ``VecNormalize`` did in training, the actor does by itself with the statistics of the
    agent. It follows the weights of the agent, whose own streams of random numbers it leaves alone. A copy, also by
    ``pickle`` for another process, goes on where this one stands and has weights and statistics of its own; it acts in
    eager mode.

    An episode of more than ``longest_episode`` steps (4,096 of a Decision Transformer by default) raises DataError at
    the first step beyond. It is also a behavior for ``rltransformers.data.record``.

    Args:
        policy: what decides; agents make it in ``actor()``, ``Actor.from_export`` from a file.
        deterministic: take the most likely action, or a sample.
        seed: of sampled actions; None draws one.
        name: what a recording calls it.
    """

    def __init__(self, policy: Stepping, *, deterministic: bool = True, seed: int | None = None, name: str) -> None:
        self.observation_space, self.action_space = policy.observation_space, policy.action_space
        self.deterministic, self.name = check(deterministic, bool, "deterministic"), name
        self._policy = policy
        check(seed, Seed | None, "seed")
        self._generator = numpy_stream(seed, "action")
        self._state_watch = StateWatch()
        self._state: Any = None
        self._start: Bools | None = None  # where the next observation begins an episode; None before the first reset
        self._heard: tuple[Any, NDArray[Any]] | None = None  # last observations and rewards of a watched environment

    def __repr__(self) -> str:
        way = "most likely actions" if self.deterministic else "sampled actions"
        return f"Actor({self.name}, {way})" + spaces_line(self.observation_space, self.action_space)

    @property
    def longest_episode(self) -> int | None:
        """Steps of an episode that position tables of the policy reach; None where there is no end."""
        return self._policy.longest_episode

    @property
    def normalizes(self) -> bool:
        """Whether it normalizes observations by itself; then it may not act in environments that do so, too."""
        return self._policy.normalizes()

    @property
    def masks_beside(self) -> bool:
        """Whether it needs masks of actions that are no part of the observation."""
        return self._policy.needs_masks and ACTION_MASK not in leaf_spaces(self.observation_space)

    @classmethod
    def from_export(
        cls,
        path: str | os.PathLike[str],
        target_return: Any = None,
        *,
        deterministic: bool = True,
        seed: int | None = None,
    ) -> Self:
        """The actor of a policy that ``export`` of an agent wrote; needs neither the agent nor its networks.

        An ``.onnx`` file is data. A ``.pt2`` file is read by torch, which may run code that stands in it: load those of
        people you trust only.

        Args:
            path: of a ``.pt2`` or an ``.onnx`` file.
            target_return: asked of every episode of a Decision Transformer, in reward units, a number or one for each
                environment; None for the best of its dataset, or what the policy predicts.
            deterministic, seed: as for ``Actor``.

        Raises:
            CheckpointError: for a file that is missing or that ``export`` did not write.
            ConfigError: for another ending, and a target return that is none or that nobody reads.
            MissingExtraError: for an ``.onnx`` file without onnxruntime.
        """
        policy = FileSteps(check(path, str | os.PathLike[str], "path"), target_return)
        return cls(policy, deterministic=deterministic, seed=seed, name=f"export:{os.fspath(path)}")

    def reset(self, ended: Any = True) -> None:
        """Begin new episodes: the next observation is the first one.

        Args:
            ended: True for all environments, whose number may then change; a boolean for each [B] begins new ones
                where it is True, as ``terminated | truncated`` of vector environments that reset by themselves. (In
                Gymnasium's mode NEXT_STEP the first observation comes one step after the end; so does this call.)

        Raises:
            ConfigError: for one boolean each before all environments began an episode.
            DataError: for another number of environments.
        """
        if isinstance(ended, bool | np.bool_) and ended:
            self._state, self._start = None, np.ones((), bool)  # for any number of environments
            return
        if self._start is None:
            raise ConfigError("an actor begins with all environments: call actor.reset() before the first observation")
        starts = fit_starts(ended, np.size(ended) if self._state is None else self._state.batch_size)
        if self._state is not None:
            self._start = self._start | starts

    def __call__(self, observation: Any, reward: Any = None, action_masks: Any = None) -> Any:
        """The next action of one environment, or of B of them, nested as the action space (of a vector environment).

        Args:
            observation: as the environment gave it; the batch axis of vector environments is in front.
            reward: of the last step, a number or one each [B]; not read where an episode begins. Policies that read
                no rewards (most online ones, behavior cloning) do without.
            action_masks: which actions are allowed, [M] or one row per environment, as for ``predict`` of the agent.

        Raises:
            ConfigError: before ``reset``, for a missing reward or mask, or another number of environments than before.
            DataError: for an observation, a reward or a mask that is none, or that allows nothing. What is remembered
                stays as it was.
        """
        fields, _ = self._next(observation, reward, action_masks, whole=False)
        return nest_leaves(self.action_space, fields["action"])

    def decide(
        self,
        observation: Any,
        reward: Any = None,
        action_masks: Any = None,
        *,
        advance: bool = True,
        generator: np.random.Generator | None = None,
    ) -> PolicyOutput:
        """The next action as a call gives it, with its probability, those of the others, and the value.

        Arguments and errors as for a call. It is computed in eager mode, also where acting is compiled.

        Args:
            advance: whether this is a step of the episode; False only looks: the next call decides the same step.
            generator: of a sampled action; None for that of the actor.
        """
        check(advance, bool, "advance")
        fields, state = self._next(observation, reward, action_masks, whole=True, advance=advance, generator=generator)
        return PolicyOutput.of(self.action_space, fields, state)

    def _next(
        self,
        observation: Any,
        reward: Any,
        action_masks: Any,
        *,
        whole: bool,
        advance: bool = True,
        generator: np.random.Generator | None = None,
    ) -> tuple[Kinds, Any]:
        """Fields of the next step, without batch axis where the observation has none, and the state after it."""
        if self._start is None:
            raise ConfigError(
                "actor.reset() comes first: call it wherever an episode begins, as env.reset(), and then "
                "actor(observation, reward) once per step"
            )
        generator = self._generator if generator is None else generator
        generator = generator if advance else copy.deepcopy(generator)
        way_out = "call actor.reset() to begin with another number of environments"
        arguments = observation, self._state, self._start, reward, action_masks, self.deterministic, generator, way_out
        fields, batched, state = self._fields(*arguments, whole=whole)
        if advance:
            self._state, self._start = state, np.zeros(state.batch_size, bool)
        if batched:
            return fields, state
        return {kind: {path: leaf[0] for path, leaf in leaves.items()} for kind, leaves in fields.items()}, state

    def act(
        self,
        observations: Any,
        episode_starts: Bools,
        generator: np.random.Generator,
        rewards: NDArray[np.floating[Any]] | None = None,
    ) -> Any:
        """Actions [B, ...] as a behavior; where all environments begin episodes, what came before is forgotten."""
        state = None if episode_starts.all() else self._state
        way_out = "a recording has one number of environments"
        fields, _, self._state = self._fields(
            observations, state, episode_starts, rewards, None, self.deterministic, generator, way_out
        )
        self._start = np.zeros(len(episode_starts), bool)
        return nest_leaves(self.action_space, fields["action"])

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool | None = None,
        reward: Any = None,
        action_masks: Any = None,
        generators: Sequence[np.random.Generator] | None = None,
    ) -> tuple[Any, Any]:
        """``predict`` of Stable-Baselines3 on what the environment gave: actions, and the state to pass in next.

        What the actor itself remembers stays as it is, so that an evaluation may come in the middle of an episode.

        Args:
            state: what the last call returned; None at the start of all episodes.
            episode_start: where a new episode begins [B]; None for nowhere unless ``state`` is None.
            deterministic: None for that of the actor.
            reward: of the last step; None for that of the environment of ``watch``, where these are the observations
                that it gave last.
            action_masks: as for a call; ``evaluate_policy`` of sb3-contrib passes them.
            generators: of sampled actions, one for each environment [B]; None for that of the actor.

        Raises:
            ConfigError: for a missing reward or mask, or a state that ``predict`` did not return.
            DataError: for an observation, a reward or a mask that is none, or that allows nothing.
        """
        greedy = self.deterministic if deterministic is None else check(deterministic, bool, "deterministic")
        if reward is None and self._heard is not None and _same(self._heard[0], observation):
            reward = self._heard[1]
        self._state_watch(state, episode_start)
        streams = self._generator if generators is None else generators
        fields, batched, state = self._fields(observation, state, episode_start, reward, action_masks, greedy, streams)
        actions = split_members(self.action_space, fields["action"])
        return (actions if batched else actions[0]), state

    def watch(self, env: Any) -> VecEnv:
        """``env``, whose rewards ``predict`` then hears: for loops that do not pass them, as ``evaluate_policy``.

        Args:
            env: what agents take: an id, a function, an environment, a vector environment. It is not normalized:
                the actor does that.

        Raises:
            ConfigError: for an environment that normalizes observations, where the actor does so by itself.
        """
        vec_env = as_vec_env(env)
        if self.normalizes and unwrap_vec_normalize(vec_env) is not None:
            raise ConfigError(
                "the actor normalizes observations by itself, and so does this environment; give the environment "
                "without VecNormalize, as env.venv or an id"
            )
        return _Watched(vec_env, self)

    def _fields(
        self,
        observation: Any,
        state: Any,
        start: Any,
        reward: Any,
        action_masks: Any,
        deterministic: bool,
        generator: np.random.Generator | Sequence[np.random.Generator],
        way_out: str | None = None,
        *,
        whole: bool = False,
    ) -> tuple[Kinds, bool, Any]:
        """Fields of ``PolicyOutput`` by leaf [B, ...], whether the observation was a batch, and the state after them.

        Args:
            way_out: of another number of environments, where the state is the actor's own; None where it was passed in.
            whole: all fields, or the action alone.
        """
        policy, spaces = self._policy, leaf_spaces(self.observation_space)
        found, batched = fit_observation(spaces, observation)
        with np.errstate(over="ignore"):  # told below
            leaves = {path: np.asarray(leaf, spaces[path].dtype) for path, leaf in found.items()}
        if any(leaves[path] is not leaf for path, leaf in found.items()):
            check_observations(spaces, leaves)
        rows = len(next(iter(leaves.values())))
        begins = state is None
        if begins:
            state = policy.begin(rows)
        elif way_out is None:
            policy.check_state(state, rows)
        elif state.batch_size != rows:
            raise ConfigError(f"the actor is in episodes of {state.batch_size} environments, got {rows}; {way_out}")
        starts = fit_starts(start, rows, all_begin=begins)
        if reward is None and policy.needs_reward(state, starts):
            raise ConfigError(
                "this policy reads the reward of the last step: actor(observation, reward), or predict(..., reward="
                "rewards); evaluate_policy passes none: evaluate_policy(actor, actor.watch(env))"
            )
        rewards = np.where(starts, 0.0, np.nan) if reward is None else fit_rewards(reward, starts)
        add_masks(leaves, action_masks, self.action_space, policy.takes_masks, policy.needs_masks)
        noise = None if deterministic else draw_noise(policy.noise, rows, generator, policy.noise_type)
        fields, state = policy.step(leaves, state, starts, rewards, noise, whole)
        return fields, batched, state


class _Watched(VecEnvWrapper):
    """Environments whose rewards an actor hears."""

    def __init__(self, env: VecEnv, actor: Actor) -> None:
        super().__init__(env)
        self._actor = actor

    def reset(self) -> Any:
        observations = self.venv.reset()
        self._actor._heard = observations, np.zeros(self.num_envs)
        return observations

    def step_wait(self) -> Any:
        result = self.venv.step_wait()
        self._actor._heard = result[0], np.asarray(result[1])
        return result


def _same(one: Any, other: Any) -> bool:
    """Whether two observations, nested as Stable-Baselines3 has them, are the same."""
    ours, theirs = nested_leaves(one), nested_leaves(other)
    return ours.keys() == theirs.keys() and all(
        leaf is theirs[path] or np.array_equal(leaf, theirs[path]) for path, leaf in ours.items()
    )
