"""Decision Transformer (Chen et al. 2021, arXiv 2106.01345): offline reinforcement learning as sequence modelling.

Read from top to bottom: construction from a dataset, ``learn``, ``predict``, ``evaluate``; ``save`` and ``load`` are
those of every ``OfflineAgent``. Behaviour cloning and its filtered form are the same agent with ``mode="bc"`` and
``top_fraction``; three options go beyond cloning: ``return_head``, ``return_in``, ``critic``. B batch, K steps, N
environments.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, Self, cast

import gymnasium as gym
import numpy as np
import torch
from annotated_types import Ge, Le
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import MaybeCallback
from torch import Tensor
from tqdm.auto import tqdm

from rltransformers.algorithms.decision import default_warmup, learning_rate_factor
from rltransformers.backbone import BackboneConfig, Record
from rltransformers.blocks.leaving import Confident
from rltransformers.core.action_masks import ACTION_MASK, masks_of_step, observes_mask
from rltransformers.core.device import find_device
from rltransformers.core.episodes import longest_allowed
from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.core.ranges import (
    Count,
    Environments,
    Episodes,
    Fraction,
    PositiveNumber,
    Seed,
    UnitInterval,
    Weight,
    WholeNumber,
    check,
    strict,
)
from rltransformers.core.registry import find_spec
from rltransformers.core.seeding import branch_seeds, step_seed
from rltransformers.core.spaces import nest_leaves
from rltransformers.core.spec import Choice
from rltransformers.core.world import World
from rltransformers.data import ContextBatch, ContextSampler, Trajectories, load_trajectories
from rltransformers.data.episode_replay import EpisodeReplay
from rltransformers.envs.make import EnvironmentSource, WrapperConfig, WrapperFunction, make_vector_env
from rltransformers.policies.decision import ActingMode, ActingState, Decider, DecisionPolicy
from rltransformers.policies.observations import StateWatch, fit_observation, fit_rewards, fit_starts
from rltransformers.policies.observed import Encoding
from rltransformers.policies.returns import ReturnIn
from rltransformers.policies.steps import Acting, DecisionMachine
from rltransformers.training.actor import Actor
from rltransformers.training.datastore import fill_store
from rltransformers.training.decision_critic import CriticLearner
from rltransformers.training.decision_data import DataSummary, shaped, statistics_of, summary_of, training_data
from rltransformers.training.decision_loss import decision_loss
from rltransformers.training.decision_online import (
    Exploring,
    OnlineCounts,
    check_explores,
    check_lengths,
    exploration_target,
    interval_of,
    play_round,
    step_limit,
)
from rltransformers.training.decision_settings import (
    BatchSize,
    ContextLength,
    CriticName,
    CriticOptions,
    Expectile,
    LearningRate,
    Mode,
    ReturnHead,
    Settings,
    backbone_config,
    encoding_choice,
    fitting_mode,
    jitter_of,
    readout_choice,
)
from rltransformers.training.distributed import check_shared, log_traffic
from rltransformers.training.entropy_bound import EntropyBound
from rltransformers.training.episodes import check_spaces, check_vector_env, evaluate_decisions
from rltransformers.training.evaluation import EvaluationEpisode, EvaluationResult, result_of
from rltransformers.training.exits import calibrate
from rltransformers.training.interval_log import IntervalLog
from rltransformers.training.offline_agent import OfflineAgent, Updates
from rltransformers.training.stepping import NO_TARGET, DecisionSteps, act_on_arrays
from rltransformers.training.target_returns import finite_targets, target_list
from rltransformers.training.update import memory_panel

if __name__ != "rltransformers.agents.decision_transformer":
    raise ImportError("import this file as rltransformers.agents.decision_transformer")

POLICIES = ("DTPolicy",)
KIND = "DecisionTransformer"


class DecisionTransformer(OfflineAgent):
    """Decision Transformer (arXiv 2106.01345): learns from recorded episodes to act for a return that it is asked for.

    The interface is that of Stable-Baselines3, with a dataset in place of an environment.
    ``learn`` adds updates to those already done (``num_timesteps`` counts them); a loaded model goes on exactly as if
    it had not stopped. Callbacks of Stable-Baselines3 that do not touch a training environment work.

    Args:
        policy: "DTPolicy".
        dataset: what ``rltransformers.data.load_trajectories`` takes: an id of Minari, D4RL or OGBench, a file or
            folder of episodes, a data set of Hugging Face, a buffer of Stable-Baselines3, a list of dicts, or
            ``Trajectories``.
        context_length: steps K of a training window; windows longer than the backbone's memory train that memory.
        learning_rate, weight_decay: of AdamW.
        warmup_steps: updates over which the learning rate rises linearly (the paper: 10,000 of 100,000); None takes a
            tenth of those that the first ``learn`` is asked for (or of ``decay_steps`` where that is less), at most
            1,000. The model keeps that number: further calls and a loaded model go on with it.
        decay_steps: update at which a cosine that follows the warm-up has brought the learning rate to a tenth, where
            it stays; None keeps it constant.
        batch_size: windows per update.
        max_grad_norm: larger gradients are scaled down to this norm.
        return_scale: return-to-go is divided by it before the network sees it; None takes the root mean square of
            return-to-go over the dataset, which makes the input of order 1 for any reward. Saved with the model.
        discount: of the return-to-go; the paper uses 1. Acting divides the remaining return by it at every step, so
            a deviation from the requested return grows as discount^-t, up to the range of the data: beyond it what
            is asked for never moves further away.
        delayed_reward: train as if every episode paid its whole return in its last step, and act accordingly.
        normalize_observations: standardise floating-point observation leaves by statistics of the dataset, saved with
            the model.
        mode: "dt", or "bc" for behaviour cloning: the same network without return tokens.
        top_fraction: train only on the episodes of highest return that together hold at most this fraction of the
            steps (at least one episode); with mode "bc" and 0.1 this is the 10 % behaviour cloning of the paper.
        return_head: "expectile" predicts from every observation the largest return-to-go that the data hold for it
            (Reinformer, arXiv 2405.08740), and acting asks for that, so that nobody has to choose a target; a
            ``target_return`` that is given takes precedence. Needs mode "dt".
        expectile: level tau of the predicted return: 1/2 predicts the mean, and the nearer to 1, the nearer to the
            largest return (0.9 to 0.999).
        return_in: "sequence" has a token of the return in every step; "condition" leaves returns out of the sequence
            and lets the newest one condition its output: a third fewer tokens, and a past that no target changes.
        critic: adds the value of the policy's actions to its loss. "qt" (arXiv 2405.17098): with the same weight
            everywhere; "qcs" (arXiv 2402.02017): with a weight that grows with the distance of the episode's return
            from the best one, so that poor episodes are improved upon and the best are copied; docs/offline.md
            says what differs from the published code.
        critic_kwargs: options of the critic, see ``CriticOptions``: {"weight": 1.0, "discount": 0.99, "alignment": 0.0,
            "candidates": 1, ...}.
        stochastic: actions of a Box are normal, with a deviation that depends on the state, kept from vanishing by a
            bound on the entropy (Online Decision Transformer, arXiv 2202.05607); ``learn_online`` needs it or noise
            for every Box. Deterministic acting takes the mean.
        whole_episodes: every window is a whole episode (context_length must cover the longest) instead of a stretch
            that may begin anywhere; wastes less on padding when episodes are about as long as the context.
        acting_mode: what happens when an episode outgrows the context, see ``Decider``; "auto" is "banded" when the
            backbone's memory is below ``context_length`` - 1, else "refresh".
        acting: "compiled" takes steps of acting as machine code, made once per kind of model and machine (about half a
            minute) and kept in the user's cache folder; "eager" as PyTorch operations. Both compute the same.
        policy_kwargs: {"backbone": {...}} as for ``BackboneConfig.from_dict``, by default the preset
            "decision_transformer". "tokens_per_step" is set here; "memory" (in steps) defaults to context_length - 1.
            {"readout": ...}: what the head adds of recorded actions, "knn" (discrete actions), "spalm" or {"name": ...,
            option: ...}; see ``build_datastore``. {"observation": {"encoder": ...}}: what encodes a set or sequence
            inside the observation, which layers look at with the backbone's ``topology: encoder_decoder``; {"leaves":
            {path: name}}: the encoder of a leaf, see ``GTrXLPolicy``. {"action_masks": False} reads the leaf
            "action_mask" of the observation as any other; otherwise it says which actions can be predicted and taken.
        tensorboard_log: folder for TensorBoard; the x axis counts updates.
        verbose: 1 also prints what is logged.
        seed: same seed, same run; None draws one.
        device: "auto", "cpu", "cuda", ...

    Raises:
        ConfigError: for impossible settings.
        DataError: for a dataset that breaks a rule, see ``load_trajectories``.
    """

    kind = KIND

    @strict
    def __init__(
        self,
        policy: str,
        dataset: Any,
        *,
        context_length: ContextLength = 20,
        learning_rate: LearningRate = 1e-4,
        weight_decay: Weight = 1e-4,
        warmup_steps: WholeNumber | None = None,
        decay_steps: Count | None = None,
        batch_size: BatchSize = 64,
        max_grad_norm: PositiveNumber = 0.25,
        return_scale: PositiveNumber | None = None,
        discount: Fraction = 1.0,
        delayed_reward: bool = False,
        normalize_observations: bool = True,
        mode: Mode = "dt",
        top_fraction: Fraction = 1.0,
        whole_episodes: bool = False,
        acting_mode: ActingMode | Literal["auto"] = "auto",
        acting: Acting = "eager",
        return_head: ReturnHead | None = None,
        expectile: Expectile = 0.99,
        return_in: ReturnIn = "sequence",
        critic: CriticName | None = None,
        critic_kwargs: Mapping[str, Any] | None = None,
        stochastic: bool = False,
        policy_kwargs: Mapping[str, Any] | None = None,
        tensorboard_log: str | os.PathLike[str] | None = None,
        verbose: WholeNumber = 0,
        seed: Seed | None = None,
        device: torch.device | str = "auto",
    ) -> None:
        if policy not in POLICIES:
            raise ConfigError(f"policy {policy!r} is unknown; {did_you_mean(policy, POLICIES)}")
        if mode == "bc" and return_scale is not None:
            raise ConfigError("mode 'bc' has no return tokens, so return_scale has no effect; leave it at None")
        device = find_device(device)
        settings = Settings(
            context_length=context_length,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            warmup_steps=warmup_steps,
            decay_steps=decay_steps,
            batch_size=batch_size,
            max_grad_norm=max_grad_norm,
            discount=discount,
            delayed_reward=delayed_reward,
            normalize_observations=normalize_observations,
            mode=mode,
            top_fraction=top_fraction,
            whole_episodes=whole_episodes,
            acting_mode="refresh" if acting_mode == "auto" else acting_mode,
            acting=acting,
            seed=self.world.same(int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed),
            return_head=return_head,
            expectile=expectile,
            return_in=return_in,
            critic=critic,
            critic_options=CriticOptions.read(critic_kwargs or {}) if critic or critic_kwargs else None,
            stochastic=stochastic,
        )
        backbone = backbone_config(policy_kwargs, mode, context_length, return_in)
        readout = readout_choice(policy_kwargs, settings)
        if acting_mode == "auto":
            settings = replace(settings, acting_mode=fitting_mode(backbone, context_length))
        data = training_data(load_trajectories(dataset), settings)
        masks = observes_mask(data.observation_space, data.action_space, (policy_kwargs or {}).get("action_masks"))
        self._build(
            settings,
            backbone,
            (data.observation_space, data.action_space),
            summary_of(data, settings, return_scale),
            statistics_of(data) if normalize_observations else None,
            device,
            readout,
            encoding_choice(policy_kwargs),
            masks,
        )
        self.decider()  # a mode that the network cannot act in is refused before it has learned
        self._attach(data, tensorboard_log, verbose)

    def _build(
        self,
        settings: Settings,
        backbone: BackboneConfig,
        spaces: tuple[gym.Space[Any], gym.Space[Any]],
        summary: DataSummary,
        statistics: Mapping[str, tuple[Tensor, Tensor]] | None,
        device: torch.device,
        readout: Choice | None,
        encoder: Encoding,
        action_masks: bool,
    ) -> None:
        check_shared(self.world, readout, settings.batch_size)
        self.settings, self.summary, self.backbone_config = settings, summary, backbone
        self.readout, self.encoder = readout, encoder
        self.observation_space, self.action_space = spaces
        self.device = device
        self.seed = settings.seed
        self.num_timesteps = 0
        self._interval = {}
        self._progress = 0.0
        self._state_watch = StateWatch()
        self._action_noise = np.random.default_rng(step_seed(settings.seed, 0, "action"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(step_seed(settings.seed, 0, "weights"))
            self.policy = DecisionPolicy(
                *spaces,
                backbone,
                return_conditioned=settings.mode == "dt",
                return_scale=summary.return_scale,
                statistics=statistics,
                readout=readout,
                encoder=encoder,
                action_masks=action_masks,
                return_in=settings.return_in,
                predicts_return=settings.return_head is not None,
                critic_width=None if settings.critic_options is None else settings.critic_options.width,
                stochastic=settings.stochastic,
                action_units=summary.action_units,
            ).to(self.device)
        self.policy.eval()
        self._online, self._replay = OnlineCounts(), None
        normal = self.policy.head.normal_leaves()
        self._entropy = EntropyBound(sum(leaf.components for _, leaf in normal), self.device) if normal else None
        self._critic = None
        if settings.critic is not None and settings.critic_options is not None:
            self._critic = CriticLearner(self.policy, settings.critic, settings.critic_options, summary)
        self._optimizer = torch.optim.AdamW(
            self.policy.actor_parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        if settings.acting == "compiled":
            self.policy.machine_code = DecisionMachine()

    # Training

    @strict
    def learn(
        self,
        gradient_steps: Updates,
        callback: MaybeCallback = None,
        log_interval: Count = 100,
        tb_log_name: str = KIND,
        progress_bar: bool = False,
    ) -> Self:
        """Train for ``gradient_steps`` more updates.

        Args:
            callback: Stable-Baselines3 callback(s), called after every update; returning False stops.
            log_interval: updates between two lines of the log; losses are averaged over them.

        Raises:
            ConfigError: when the model was loaded without a dataset, and for an ``EvalCallback``.
            DataError: for an episode that is longer than a position table, and when the loss is no longer finite.
        """
        if self._sampler is None:
            raise ConfigError(f"this model has no dataset to learn from; give one to {KIND}.load(path, dataset=...)")
        self._check_longest(self._sampler.trajectories)
        self._choose_warmup(gradient_steps)
        total_timesteps = self.num_timesteps + gradient_steps
        callback = self._start_learning(callback, tb_log_name, progress_bar, total_timesteps)
        callback.on_training_start(locals(), globals())
        log = IntervalLog(self.logger, self.num_timesteps, self._interval)
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            while self.num_timesteps < total_timesteps:
                self._progress = self.num_timesteps / total_timesteps
                last = self.num_timesteps + 1 == total_timesteps
                if not self._logged_update(self._sampler, log, log_interval, last, callback):
                    break
        callback.on_training_end()
        self._finish_store(self._sampler)
        return self

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
        tb_log_name: str = KIND,
        progress_bar: bool = False,
    ) -> Self:
        """Play whole episodes and learn from them, until ``timesteps`` more steps of the environment were taken.

        Updates that an earlier call still owes the episodes it played come first.

        Online Decision Transformer (Zheng et al. 2022, arXiv 2202.05607): every episode, played with sampled actions
        under a return beyond those of the data, goes into a replay that begins with the best episodes of the dataset;
        then come updates on windows of the replay, whose returns are what the episodes really returned. The replay is
        saved with the model, which goes on as if it had not stopped, with or without its dataset.

        Args:
            env: as for ``evaluate``.
            exploration_return: what episodes are asked for, in reward units; None asks for the best return of the
                dataset and as much again as its returns differ by, or with a return head for what that predicts.
            exploration_noise: deviation of normal noise that is added to the one action of a Box (without
                ``stochastic``), in units where its bounds are -1 and 1.
            replay_episodes: episodes of the replay; the oldest make room for new ones.
            updates_per_episode: updates after every episode.
            num_envs: episodes that are played at the same time.
            longest_episode: as for ``evaluate``.
            callback: Stable-Baselines3 callback(s), called after every update; returning False stops.
            log_interval: updates between two lines of the log.

        Raises:
            ConfigError: when the model has neither dataset nor replay, has no actions to try out (a Box needs
                ``stochastic=True`` or ``exploration_noise``), is behaviour cloning, trains on ``whole_episodes``
                shorter than the environment may play, or the environment has other spaces.
            DataError: for what the environment may not return, or a loss that is no longer finite.
        """
        settings = self.settings
        check_explores(self.policy.head, settings, exploration_noise)
        if self._replay is None and self._sampler is None:
            raise ConfigError(
                f"this model has no episodes to begin with; give a dataset to {KIND}.load(path, dataset=...)"
            )
        target = exploration_target(exploration_return, settings, self.summary)
        if exploration_return is not None:
            finite_targets(exploration_return, 1, self.summary.return_scale)
        envs = self._vector_env(env, num_envs, env_kwargs, wrappers)
        bar = tqdm(total=timesteps, unit="step", disable=not progress_bar)
        try:
            check_spaces(envs, self.observation_space, self.action_space)
            limits = (longest_episode, step_limit(self._spec_of(env, envs), env_kwargs))
            check_lengths(settings, min((limit for limit in limits if limit is not None), default=None))
            replay, online, last = self._replay, self._online, self._online.timesteps + timesteps
            if replay is None:
                assert self._sampler is not None
                replay = self._replay = EpisodeReplay(self._sampler.trajectories, replay_episodes)
            replay.capacity = replay_episodes
            self._choose_warmup(updates_per_episode * math.ceil(timesteps / float(replay.data.lengths.mean())))
            callback = self._start_learning(callback, tb_log_name, False, self.num_timesteps)
            callback.on_training_start(locals(), globals())
            log = IntervalLog(self.logger, self.num_timesteps, self._interval)
            sampler = self._sampler_of(replay.data)
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                going = True
                while going and (online.updates or online.timesteps < last):
                    if not online.updates:
                        played = self._play_round(envs, target, exploration_noise, longest_episode)
                        replay.add(shaped(played, settings))
                        online.timesteps += played.steps
                        online.episodes += len(played)
                        online.updates = updates_per_episode * len(played)
                        log.add(interval_of(played, self.device))
                        bar.update(min(played.steps, bar.total - bar.n))
                        sampler = self._sampler_of(replay.data)
                    self._progress = min(online.timesteps / last, 1.0)
                    while going and online.updates:
                        online.updates -= 1
                        end = online.timesteps >= last and not online.updates
                        going = self._logged_update(sampler, log, log_interval, end, callback)
            callback.on_training_end()
            self._finish_store(sampler)
        finally:
            bar.close()
            if not isinstance(env, gym.Env | VectorEnv):
                envs.close()
        return self

    def _choose_warmup(self, updates: int) -> None:
        """Choose the warm-up where the settings leave it open and ``updates`` more are asked for."""
        if self.settings.warmup_steps is None and updates:
            steps = default_warmup(updates, self.settings.decay_steps)
            self.settings = replace(self.settings, warmup_steps=steps)

    def _play_round(
        self, envs: VectorEnv[Any, Any, Any], target: float, noise: float, longest: int | None
    ) -> Trajectories:
        """One episode of every environment, with sampled actions; process 0 plays them for all."""
        if not self.world.leads:
            return self.world.same(cast(Trajectories, None))
        decider, spaces = self.decider(), (self.observation_space, self.action_space)
        act = partial(self._act, decider, overwrites=True)
        behaviour = Exploring(act, decider, target, noise, spaces, envs.single_action_space)
        return self.world.same(play_round(envs, behaviour, self.seed, self._online.episodes, longest))

    def _logged_update(
        self, sampler: ContextSampler, log: IntervalLog, log_interval: int, last: bool, callback: BaseCallback
    ) -> bool:
        """One update and what is told of it; False where a callback of any process wants to stop."""
        logs = last or (self.num_timesteps + 1) % log_interval == 0
        metrics = self._update(sampler, with_panel=logs)
        self.num_timesteps += 1
        log.add(metrics)
        if logs:
            if self._replay is not None:
                self.logger.record("online/timesteps", self._online.timesteps)
                self.logger.record("online/episodes", self._online.episodes)
                self.logger.record("online/replay_return_mean", float(self._replay.data.returns.mean()))
            log_traffic(self.logger, self.world)
            log.write(self.num_timesteps, self._optimizer.param_groups[0]["lr"])
        callback.update_locals(locals())
        return not self.world.any(not callback.on_step())

    def _finish_store(self, sampler: ContextSampler) -> None:
        """Fill the store of a readout that does not learn; training goes on as before, whatever it holds."""
        readout = self.policy.head.readout
        if readout is not None and not readout.learns:
            self._fill_store(sampler)

    def _fill_store(self, sampler: ContextSampler) -> None:
        fill_store(self.policy, sampler, step_seed(self.seed, self.num_timesteps, "datastore"), self.device)

    def build_datastore(self) -> Self:
        """Fill the store of the readout with features of the dataset under today's weights, and the recorded actions.

        ``learn`` does so, too: every ``refresh`` updates, and for "knn" at its end.

        Raises:
            ConfigError: when the model has no readout, or was loaded without a dataset.
        """
        if self.readout is None:
            raise ConfigError('this model has no readout to fill; give policy_kwargs={"readout": "knn"} or "spalm"')
        if self._sampler is None:
            raise ConfigError(f"this model has no dataset to read; give one to {KIND}.load(path, dataset=...)")
        self._fill_store(self._sampler)
        return self

    def _update(self, sampler: ContextSampler, with_panel: bool) -> dict[str, Tensor]:
        """One step of AdamW on one batch; the random numbers depend on the seed and the step count only."""
        settings, readout, world = self.settings, self.policy.head.readout, self.world
        if readout is not None and self.num_timesteps % readout.options.refresh == 0:
            self._fill_store(sampler)
        generator = torch.Generator().manual_seed(step_seed(self.seed, self.num_timesteps, "batch"))
        torch.manual_seed(
            step_seed(self.seed, self.num_timesteps, "dropout" if world.leads else f"dropout {world.rank}")
        )
        part = world.part(settings.batch_size)
        batch = sampler.sample(settings.batch_size, generator, part).to(self.device)
        metrics = {} if self._critic is None else self._critic.step(self.policy, batch, world)
        self.policy.train()
        loss, parts = self._loss(batch, Record(), self._chances(settings.batch_size)[part], world)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        world.sum_in_place(each.grad for each in self.policy.actor_parameters())
        norm = torch.nn.utils.clip_grad_norm_(self.policy.actor_parameters(), settings.max_grad_norm)
        learning_rate = settings.learning_rate * learning_rate_factor(
            self.num_timesteps, settings.warmup_steps or 0, settings.decay_steps
        )
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self.policy.backbone.constrain_()
        for sums in self.policy.backbone.seen():
            world.sum_in_place([sums])
        self.policy.backbone.maintain()
        self.policy.eval()
        if self._critic is not None:
            self._critic.follow(self.policy)
        if self._entropy is not None:
            self._entropy.step(parts["train/entropy"])
        panel = memory_panel(lambda record: self.loss(batch, record)) if with_panel else {}
        return {"train/loss": loss.detach(), "train/grad_norm": norm.detach(), **metrics, **parts, **panel}

    def loss(self, batch: ContextBatch, record: Record | None = None) -> Tensor:
        """Mean loss of a batch as ``learn`` minimises it: of recorded actions, and of whatever options add."""
        return self._loss(batch.to(self.device), record or Record(), self._chances(len(batch.valid)), World())[0]

    def _chances(self, count: int) -> Tensor:
        """Random numbers of the critic for ``count`` windows of the next update."""
        generator = torch.Generator().manual_seed(step_seed(self.seed, self.num_timesteps, "shift"))
        return torch.rand(count, generator=generator)

    def _loss(
        self, batch: ContextBatch, record: Record, chances: Tensor, world: World
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return decision_loss(
            self.policy,
            batch,
            record,
            expectile=self.settings.expectile,
            critic=self._critic,
            entropy=self._entropy,
            chances=chances,
            world=world,
            progress=self._progress,
        )

    @strict
    def calibrate_exits(
        self,
        bound: UnitInterval = 0.1,
        error: UnitInterval = 0.05,
        windows: Count = 512,
        candidates: Count = 20,
        dataset: Any = None,
    ) -> float:
        """Set the threshold of a policy with ``depth: calm`` as low as is safe, and return it.

        With probability 1 - ``error`` over the windows, decisions with early exits differ from those of the whole stack
        by at most ``bound`` in expectation: the share of steps with another most probable action, for a Box the
        difference by the width of its bounds (Schuster et al. 2022, arXiv 2207.07061, section 4).

        Args:
            windows: drawn from the data, the samples of the test.
            candidates: thresholds that are tried, from 1 downwards in equal steps.
            dataset: what to calibrate on, best other data than it was trained on; None for the data of training.

        Raises:
            ConfigError: the depth of the backbone is another one, or there is no dataset.
        """
        leaving = self.policy.backbone.halt
        if not isinstance(leaving, Confident):
            raise ConfigError(f"only depth 'calm' has a threshold, not {self.backbone_config.choices.depth.name!r}")
        sampler = self._sampler
        if dataset is not None:
            sampler = self._sampler_of(training_data(load_trajectories(dataset), self.settings))
        if sampler is None:
            raise ConfigError("this model has no dataset to calibrate on; pass calibrate_exits(dataset=...)")
        generator = torch.Generator().manual_seed(step_seed(self.seed, self.num_timesteps, "batch"))
        batch = sampler.sample(windows, generator).to(self.device)

        return calibrate(self.policy, leaving, batch, bound, error, candidates)

    # Acting

    @strict
    def actor(
        self,
        target_return: float | Sequence[float] | np.ndarray | None = None,
        *,
        deterministic: bool = True,
        acting_mode: ActingMode | None = None,
        seed: Seed | None = None,
    ) -> Actor:
        """The model as something that acts and remembers by itself: episodes so far, and the return-to-go.

        Args:
            target_return: asked of every episode, in reward units, a number or one for each environment; None for the
                best return of the dataset, or with a return head for what that predicts.
            deterministic: most probable actions, or samples.
            acting_mode: another one than the model's.
            seed: of sampled actions; None draws one.

        Raises:
            ConfigError: for a target return that is no finite number, and for one of behaviour cloning.
        """
        if target_return is None and self.settings.return_head is None:
            target_return = self.summary.best_return
        elif target_return is not None and self.settings.mode == "bc":
            raise ConfigError(NO_TARGET)
        spaces = self.observation_space, self.action_space
        steps = DecisionSteps(self.decider(acting_mode), spaces, target_return)
        return Actor(steps, deterministic=deterministic, seed=seed, name=self.kind)

    def decider(self, mode: ActingMode | None = None) -> Decider:
        """How the trained policy acts, in the model's acting mode or the one given; holds no state of its own."""
        settings = self.settings
        return Decider(
            self.policy,
            settings.context_length,
            mode or settings.acting_mode,
            settings.discount,
            settings.delayed_reward,
            jitter_of(settings.critic_options, self.summary.spread),
            self.summary.range_to_go,
        )

    def predict(
        self,
        observation: Any,
        state: ActingState | None = None,
        episode_start: np.ndarray | bool | None = None,
        deterministic: bool = False,
        *,
        target_return: float | Sequence[float] | np.ndarray | None = None,
        reward: float | Sequence[float] | np.ndarray | None = None,
        action_masks: Any = None,
    ) -> tuple[Any, ActingState]:
        """The next action of one environment or of a batch of them, and the state to pass to the next call.

        Args:
            observation: of one environment, or stacked for B.
            state: what the last call returned; None at the start of all episodes.
            episode_start: where a new episode begins [B]; None means nowhere unless ``state`` is None.
            deterministic: True takes the most probable action, of a Box the mean; False samples, Boxes only of a model
                that is ``stochastic``.
            target_return: return asked of the episodes that start here, in reward units; when None the best of the
                dataset, or with a return head what that predicts in every step.
            reward: received after the last action [B]; needed to follow an episode unless the model is behaviour
                cloning, trained with delayed rewards, or asked for nothing.
            action_masks: which actions are allowed, [M] or one row per environment, whether or not the data held masks;
                a mask in the observation gives way to it.

        Raises:
            ConfigError: for a target return that is not a finite number or of behaviour cloning, a missing reward, or
                a state that is not of this model.
            DataError: for observations that do not fit the space, or observations and rewards that are not finite. The
                state that was passed in stays as it was.
        """
        deterministic = check(deterministic, bool, "deterministic")
        if target_return is not None and self.settings.mode == "bc":
            raise ConfigError(NO_TARGET)
        leaves, batched = fit_observation(self.policy.observation_leaves, observation)
        rows = len(next(iter(leaves.values())))
        if action_masks is not None or self.policy.masks:
            leaves[ACTION_MASK] = self._fit_masks(leaves, action_masks)
        needs_reward = self.settings.mode == "dt" and not self.settings.delayed_reward
        decider = self.decider()
        self._state_watch(state, episode_start)
        start = fit_starts(episode_start, rows, all_begin=state is None)
        if state is None:
            state = decider.initial_state(rows)
        else:
            decider.check_state(state, rows)
            running = ~start & ~state.return_to_go.isnan().cpu().numpy()
            if needs_reward and reward is None and running.any():
                raise ConfigError(
                    "the return-to-go of a running episode needs the reward of its last step:"
                    " predict(..., reward=rewards); evaluate() does this by itself"
                )
        rewards = np.zeros(rows) if reward is None else fit_rewards(reward, start)
        if target_return is None and self.settings.return_head is not None:
            asked = np.full(rows, np.nan)
        else:
            target = self.summary.best_return if target_return is None else target_return
            asked = finite_targets(target, rows, self.summary.return_scale)
        noise = None if deterministic else self._action_noise.random((rows, self.policy.head.draws))
        actions, state = self._act(decider, leaves, state, start, rewards, asked, noise)
        if not batched:
            actions = {path: value[0] for path, value in actions.items()}
        return nest_leaves(self.action_space, actions), state

    def _fit_masks(self, leaves: Mapping[str, np.ndarray], action_masks: Any) -> np.ndarray:
        if not self.policy.masks and ACTION_MASK in leaves:
            raise ConfigError("policy_kwargs={'action_masks': False} has no masks of actions; leave action_masks out")
        return masks_of_step(leaves, action_masks, self.action_space)

    def _act(self, decider: Decider, *arguments: Any, **keywords: Any) -> tuple[dict[str, np.ndarray], ActingState]:
        return act_on_arrays(decider, self.action_space, *arguments, **keywords)

    def _vector_env(
        self,
        env: EnvironmentSource | VectorEnv[Any, Any, Any],
        num_envs: int,
        env_kwargs: Mapping[str, Any] | None,
        wrappers: Sequence[WrapperConfig | WrapperFunction],
    ) -> VectorEnv[Any, Any, Any]:
        """The environments of a caller, or new ones of an id or a function."""
        if isinstance(env, VectorEnv):
            return check_vector_env(env, env_kwargs, wrappers)
        num_envs = 1 if isinstance(env, gym.Env) else num_envs
        return make_vector_env(env, num_envs, env_kwargs=env_kwargs, wrappers=sorted(wrappers, key=callable))

    def _spec_of(self, env: Any, envs: VectorEnv[Any, Any, Any]) -> EnvSpec | None:
        """Specification of the environment of a caller, from which ``envs`` were made."""
        return find_spec(env) if isinstance(env, str) else envs.spec or getattr(env, "spec", None)

    # Evaluation

    @strict
    def evaluate(
        self,
        env: Any,
        target_returns: Iterable[float] | float | None = None,
        episodes: Episodes = 50,
        num_envs: Environments = 16,
        seed: Seed = 0,
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[WrapperConfig | WrapperFunction] = (),
        deterministic: bool = True,
        acting_mode: ActingMode | None = None,
        longest_episode: int | None = None,
        progress_bar: bool = False,
    ) -> list[EvaluationResult]:
        """Results per target return, each over the same ``episodes`` episodes, whose seeds follow from ``seed``.

        Targets and episodes share one batch of environments. Every started episode runs to its end and is counted, so
        neither the number of environments nor their order changes a result. Actions are clipped to the Boxes of the
        environment, whose bounds may be narrower than those of the data, and remembered so.

        Args:
            env: Gymnasium id, a function that makes an environment, one environment (episodes are then played one after
                another), or a Gymnasium vector environment with ``AutoresetMode.DISABLED`` that can reset under a
                ``reset_mask`` (``num_envs``, ``env_kwargs`` and ``wrappers`` are then its own). Objects stay open.
            target_returns: in reward units, discounted returns where the model has a ``discount`` below 1; when None
                the best return of the dataset, or with a return head what that predicts. Behaviour cloning takes none.
            num_envs: environments that run at the same time.
            wrappers: applied to every single environment, first innermost: names or {"name": ..., option: ...} as for
                ``rltransformers.envs.make_vec_env``, then functions.
            deterministic: False samples actions, as ``predict`` does, from a generator per episode.
            acting_mode: another one than the model's.
            longest_episode: steps after which an episode that goes on is an error; None: 200,000, or the step limit of
                the environment's spec where that is larger. To cut episodes of an endless task, give the environment
                the keyword ``max_episode_steps`` in ``env_kwargs``.
            progress_bar: show a bar of the episodes.

        Raises:
            ConfigError: for target returns that are not numbers, or an environment with other spaces than the dataset.
            DataError: for an observation or a reward that is not finite or not of the space, with environment and step;
                for an episode that does not end.
        """
        if target_returns is None and self.settings.return_head is not None:
            targets: list[float | None] = [None]
        else:
            best = None if self.settings.mode == "bc" else self.summary.best_return
            targets = target_list(target_returns, best, self.summary.return_scale)
        counted = self.settings.discount, self.settings.delayed_reward
        seeds = branch_seeds(seed, "evaluation", episodes)
        played = [EvaluationEpisode(episode_seed, target, *counted) for target in targets for episode_seed in seeds]
        envs = self._vector_env(env, min(num_envs, len(played)), env_kwargs, wrappers)
        try:
            check_spaces(envs, self.observation_space, self.action_space)
            decider = self.decider(acting_mode)
            draws = None if deterministic else self.policy.head.draws
            spec = self._spec_of(env, envs)
            longest = longest_allowed(longest_episode, spec)
            title = None if spec is None else spec.id
            act = partial(self._act, decider, overwrites=True)
            evaluate_decisions(envs, played, act, decider, draws, longest, title, progress_bar)
        finally:
            if not isinstance(env, gym.Env | VectorEnv):
                envs.close()
        name = title or self.summary.environment
        step = self.num_timesteps
        return [result_of(played[i * episodes : (i + 1) * episodes], name, step) for i in range(len(targets))]
