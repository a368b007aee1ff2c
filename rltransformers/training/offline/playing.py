"""How a Decision Transformer plays episodes to learn from (Zheng et al. 2022, arXiv 2202.05607). N environments."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple, Self, cast

import numpy as np
import torch
from annotated_types import Ge, Le
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import MaybeCallback
from tqdm.auto import tqdm

from rltransformers.algorithms.decision import default_warmup
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import Count, Environments, strict
from rltransformers.core.seeding import step_seed
from rltransformers.core.spaces import Space, leaf_values, nest_leaves
from rltransformers.data import ContextSampler, Trajectories
from rltransformers.data.episode_replay import EpisodeReplay
from rltransformers.data.load import in_spaces
from rltransformers.data.recorder import record
from rltransformers.envs.make import WrapperConfig, WrapperFunction
from rltransformers.policies.action_heads import ActionHead
from rltransformers.policies.action_leaves import ContinuousAction
from rltransformers.policies.decider import ActingState, Decider
from rltransformers.policies.returns import finite_targets
from rltransformers.training.interval_log import IntervalLog
from rltransformers.training.offline.agent import OfflineAgent
from rltransformers.training.offline.episodes import action_token, executed, open_environments
from rltransformers.training.offline.settings import Settings, Updates
from rltransformers.training.stepping import act_on_arrays


@dataclass
class Exploring:
    """A behavior that samples actions of a Decision Transformer asked for one return."""

    decider: Decider
    target: float  # the return to ask for, NaN for what the policy predicts
    noise: float  # deviation of what is added to the one action of a Box, in units where its bounds are -1 and 1
    spaces: tuple[Space, Space]  # of observations and actions that the policy learned from
    action_space: Space  # of the environment, whose Boxes may be narrower
    name: str = "exploring"
    state: ActingState | None = None

    def act(
        self,
        observations: Any,
        episode_starts: np.ndarray,
        generator: np.random.Generator,
        rewards: np.ndarray | None = None,
    ) -> Any:
        rows, policy = len(episode_starts), self.decider.policy
        state = self.decider.initial_state(rows) if self.state is None else self.state
        leaves = {path: np.asarray(leaf) for path, leaf in leaf_values(self.spaces[0], observations).items()}
        noise = generator.random((rows, policy.head.draws))
        targets = [self.target] * rows
        received = np.zeros(rows) if rewards is None else np.asarray(rewards)
        actions, state = act_on_arrays(
            self.decider, self.spaces[1], leaves, state, episode_starts, received, targets, noise, overwrites=True
        )
        if self.noise > 0:  # the state then remembers what was done, not what was decided
            device = state.action.device
            for path, leaf in point_leaves(policy.head):
                added = torch.as_tensor(self.noise * generator.standard_normal(actions[path].shape), device=device)
                moved = leaf.disturbed(torch.as_tensor(actions[path], device=device), added)
                actions[path] = moved.cpu().numpy().astype(actions[path].dtype)
            state = replace(state, action=action_token(policy, actions))
        actions, self.state = executed(policy, actions, state, self.action_space)
        return nest_leaves(self.spaces[1], actions)


def point_leaves(head: ActionHead) -> list[tuple[str, ContinuousAction]]:
    """Leaf paths and parts of the Boxes that have one action for every state."""
    return [
        (path, leaf) for path, leaf in head.by_path.items() if isinstance(leaf, ContinuousAction) and not leaf.draws
    ]


def check_explores(head: ActionHead, settings: Settings, noise: float) -> None:
    """Raise ConfigError for a policy that cannot learn from episodes of its own."""
    if settings.mode == "bc":
        raise ConfigError("mode 'bc' asks for no return, so it would imitate itself; learn_online needs mode 'dt'")
    if settings.mode == "advantage":
        raise ConfigError(
            "mode 'advantage' compares with values of the dataset, which the policy's own episodes outdate, so"
            " learn_online needs mode 'dt'. Record episodes of the policy (rltransformers.data.record), and train a new"
            " model on them and the dataset: Trajectories.concatenate([dataset, own])"
        )
    paths = [path for path, _ in point_leaves(head)]
    if paths and noise == 0:
        place = f" {paths[0]!r}" if paths[0] else ""
        raise ConfigError(
            f"the policy has one action of the Box{place} for every state, so it would try nothing out; make the model"
            " with action_head='gaussian' or 'mixture', or set exploration_noise (0.1 is usual)"
        )
    if settings.action_head == "flow":
        raise ConfigError(
            "learn_online keeps actions apart by a bound on their entropy, and action_head 'flow' has neither entropy"
            " nor density; make the model with action_head='mixture' or 'gaussian'"
        )
    if noise > 0 and not paths:
        raise ConfigError(
            f"exploration_noise ({noise:g}) moves the one action of a Box, and all actions of this policy are drawn"
            " already; leave it at 0"
        )


def check_lengths(
    settings: Settings, longest_episode: int | None, spec: EnvSpec | None, env_kwargs: Mapping[str, Any] | None
) -> None:
    """Raise ConfigError where ``whole_episodes`` may meet an episode of more than ``context_length`` steps."""
    cut = (env_kwargs or {}).get("max_episode_steps", None if spec is None else spec.max_episode_steps)
    # In keywords of the environment -1 is no limit.
    longest = min((limit for limit in (longest_episode, cut) if limit not in (None, -1)), default=None)
    if settings.whole_episodes and (longest is None or longest > settings.context_length):
        raise ConfigError(
            f"whole_episodes learns from episodes of at most context_length = {settings.context_length} steps, and the"
            f" environment plays {'without a limit' if longest is None else f'up to {longest}'}; give longest_episode"
            f" (evaluation.longest_episode in a config) of at most {settings.context_length}, after which an episode is"
            " an error, or leave whole_episodes out (of a saved model with"
            " load(..., whole_episodes=False))"
        )


class Turn(NamedTuple):
    """One update: where its windows come from, the share of the training that is over, whether it is the last one."""

    sampler: ContextSampler
    progress: float
    last: bool


class OnlineLearner(OfflineAgent):
    """An offline agent that can go on learning from episodes it plays."""

    def _train(self, sampler: ContextSampler, turns: Iterable[Turn], callback: BaseCallback, log_interval: int) -> Self:
        raise NotImplementedError

    @strict
    def learn_online(
        self,
        env: Any,
        timesteps: Updates,
        *,
        exploration_return: float | None = None,
        exploration_noise: Annotated[float, Ge(0), Le(2)] = 0.0,
        replay_episodes: Count = 1_000,
        updates_per_episode: Count = 300,
        num_envs: Environments = 1,
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[WrapperConfig | WrapperFunction] = (),
        longest_episode: int | None = None,
        callback: MaybeCallback = None,
        log_interval: Count = 100,
        tb_log_name: str = "DecisionTransformer",
        progress_bar: bool = False,
    ) -> Self:
        """Play whole episodes and learn from them, until ``timesteps`` more steps of the environment were taken.

        Online Decision Transformer (Zheng et al. 2022, arXiv 2202.05607): every episode, played with sampled actions
        under a return beyond those of the data, goes into a replay that begins with the best episodes of the dataset;
        then come updates on windows of the replay, whose returns are what the episodes really returned. The replay is
        saved with the model, which goes on as if it had not stopped; updates left from an earlier call come first.

        Args:
            env: as for ``evaluate``.
            exploration_return: what episodes are asked for, in reward units; None asks for the best return of the
                dataset and as much again as its returns differ by, or with a return head for what that predicts.
            exploration_noise: deviation of normal noise that is added to the one action of a Box (``action_head``
                "deterministic"), in units where its bounds are -1 and 1.
            replay_episodes: episodes of the replay; the oldest make room for new ones.
            updates_per_episode: updates after every episode.
            num_envs: episodes that are played at the same time.
            longest_episode: as for ``evaluate``.
            callback, log_interval: as for ``learn``.

        Raises:
            ConfigError: when the model has neither dataset nor replay, has no actions to try out, is asked for no
                return, or trains on ``whole_episodes`` shorter than the environment may play; for other spaces.
            DataError: for what the environment may not return, or a loss that is no longer finite.
        """
        settings = self.settings
        check_explores(self.policy.head, settings, exploration_noise)
        if self._replay is None:
            self._needed_sampler("episodes to begin with", f"give a dataset to {self.kind}.load(path, dataset=...)")
        if exploration_return is not None:
            target = float(finite_targets(exploration_return, 1, self.summary.return_scale, "exploration_return")[0])
        elif settings.return_head is not None:
            target = math.nan  # a policy that predicts returns is asked for what it predicts
        else:  # the paper asks for twice the return of the expert; where the worst return is 0, so does this
            target = self.summary.best_return + self.summary.spread
        spaces = self.observation_space, self.action_space
        with open_environments(env, num_envs, env_kwargs, wrappers, spaces) as (envs, spec):
            check_lengths(settings, longest_episode, spec, env_kwargs)
            if self._replay is None and self._sampler is not None:
                self._replay = EpisodeReplay(self._sampler.trajectories, replay_episodes)
            replay, online = cast(EpisodeReplay, self._replay), self._online
            replay.capacity, end = replay_episodes, online.timesteps + timesteps
            self._choose_warmup(updates_per_episode * math.ceil(timesteps / float(replay.data.lengths.mean())))
            callback = self._begin_callbacks(callback, tb_log_name)
            callback.on_training_start(locals(), globals())
            first = self._sampler_of(replay.data)

            def turns() -> Iterator[Turn]:
                sampler, log = first, IntervalLog(self.logger, 0, self._interval)
                with tqdm(total=timesteps, unit="step", disable=not progress_bar) as bar:
                    while online.updates or online.timesteps < end:
                        if not online.updates:
                            played = self._play_round(envs, target, exploration_noise, longest_episode)
                            added = played.delayed_rewards() if settings.delayed_reward else played
                            replay.add(added)
                            self._raise_limits(added)
                            online.timesteps += played.steps
                            online.episodes += len(played)
                            online.updates = updates_per_episode * len(played)
                            for name, values in (("return", played.returns), ("length", played.lengths)):
                                mean = torch.tensor(float(values.mean()), dtype=torch.float32, device=self.device)
                                log.add({f"online/{name}_mean": mean})
                            bar.update(min(played.steps, bar.total - bar.n))
                            sampler = self._sampler_of(replay.data)
                        while online.updates:
                            online.updates -= 1
                            last = online.timesteps >= end and not online.updates
                            yield Turn(sampler, min(online.timesteps / end, 1.0), last)

            return self._train(first, turns(), callback, log_interval)

    def _play_round(
        self, envs: VectorEnv[Any, Any, Any], target: float, noise: float, longest: int | None
    ) -> Trajectories:
        """Play one episode of every environment with sampled actions, seeded by the number of episodes before.

        Process 0 plays them for all. They are data of the spaces of the model, not of those of the environments.
        """
        if not self.sharing.is_leader:
            return self.sharing.broadcast(cast(Trajectories, None))
        spaces = self.observation_space, self.action_space
        with warnings.catch_warnings():  # of an environment that nobody can make again: nobody is to, of a replay
            warnings.filterwarnings("ignore", ".*keeps no specification", UserWarning)
            played = record(
                envs,
                Exploring(self.decider(), target, noise, spaces, envs.single_action_space),
                episodes=envs.num_envs,
                seed=step_seed(self.seed, self._online.episodes, "online"),
                name="online",
                longest_episode=longest,
            )
        return self.sharing.broadcast(in_spaces(played, *spaces))

    def _choose_warmup(self, updates: int) -> None:
        if self.settings.warmup_steps is None and updates:
            steps = default_warmup(updates, self.settings.decay_steps)
            self.settings = replace(self.settings, warmup_steps=steps)
