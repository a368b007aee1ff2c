"""Decision Transformer (Chen et al. 2021, arXiv 2106.01345): offline reinforcement learning as sequence modeling.

Read from top to bottom: the constructor, ``learn`` and its update, ``predict``, ``evaluate``. ``OnlineLearner`` holds
``learn_online``, ``OfflineAgent`` network, logger and files. B batch, K steps, N environments.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import MaybeCallback
from torch import Tensor

from rltransformers.algorithms.decision import learning_rate_factor
from rltransformers.backbone import Record
from rltransformers.core.action_masks import ACTION_MASK, add_masks, observes_mask
from rltransformers.core.device import find_device, forked_rng
from rltransformers.core.episodes import longest_allowed
from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.core.ranges import (
    Count,
    Environments,
    Episodes,
    Fraction,
    PositiveNumber,
    Seed,
    Weight,
    WholeNumber,
    check,
    strict,
)
from rltransformers.core.seeding import branch_seeds, step_seed
from rltransformers.core.spaces import nest_leaves
from rltransformers.core.world import Sharing
from rltransformers.data import ContextBatch, ContextSampler, load_trajectories
from rltransformers.envs.make import WrapperConfig, WrapperFunction
from rltransformers.policies.decider import ActingMode, ActingState
from rltransformers.policies.observations import fit_observation, fit_rewards, fit_starts
from rltransformers.policies.observed import read_observation
from rltransformers.policies.returns import ReturnIn
from rltransformers.policies.several_modes import ActionHeadName, ActionHeadOptions
from rltransformers.policies.steps import Acting
from rltransformers.training.actor import Actor
from rltransformers.training.evaluation import EvaluationEpisode, EvaluationResult, result_of
from rltransformers.training.interval_log import IntervalLog, ProgressBar
from rltransformers.training.offline.data import (
    check_longest,
    data_parts,
    fitted_context,
    highest_to_go,
    statistics_of,
    summary_of,
)
from rltransformers.training.offline.episodes import evaluate_decisions, open_environments
from rltransformers.training.offline.loss import decision_loss, loss_numbers
from rltransformers.training.offline.playing import OnlineLearner, Turn
from rltransformers.training.offline.settings import (
    AdvantageOptions,
    BatchSize,
    Chunk,
    ContextLength,
    CriticName,
    CriticOptions,
    Expectile,
    LearningRate,
    Mode,
    PolicySettings,
    ReturnHead,
    Settings,
    Share,
    Updates,
    backbone_config,
    read_options,
    readout_choice,
)
from rltransformers.training.update import memory_panel


class DecisionTransformer(OnlineLearner):
    """Decision Transformer (arXiv 2106.01345): learns from recorded episodes to act for a return that it is asked for.

    The interface is that of Stable-Baselines3, with a dataset in place of an environment; callbacks that do not touch a
    training environment work. ``learn`` adds updates to those already done, which ``num_timesteps`` counts.

    Args:
        policy: "DTPolicy".
        dataset: what ``rltransformers.data.load_trajectories`` takes: an id of Minari, D4RL or OGBench, a file or
            folder of episodes, a data set of Hugging Face, a buffer of Stable-Baselines3, a list of dicts, or
            ``Trajectories``.
        context_length: steps K of a training window; windows longer than the backbone's memory train that memory. None
            takes the longest episode of the data if it has at most 64 steps, else 20.
        learning_rate, weight_decay: of the optimizer.
        warmup_steps: updates over which the learning rate rises linearly (the paper: 10,000 of 100,000); None takes a
            tenth of those that the first ``learn`` is asked for (or of ``decay_steps``), at most 1,000, and keeps it.
        decay_steps: update at which a cosine that follows the warm-up would end; the learning rate falls with it to a
            tenth, after four fifths, and stays there; 0 keeps it constant. None: it falls over every call of ``learn``
            anew, and over a call that finishes a stopped one as it would have; ``learn_online`` leaves it where it is.
        batch_size: windows per update.
        max_grad_norm: larger gradients are scaled down to this norm.
        return_scale: return-to-go is divided by it before the network sees it; None takes the root mean square of
            return-to-go over the dataset, which makes the input of order 1 for any reward. Saved with the model.
        discount: of the return-to-go; the paper uses 1. Acting divides the remaining return by it at every step.
        delayed_reward: train as if every episode paid its whole return in its last step, and act accordingly.
        normalize_observations: standardize floating-point observation leaves by statistics of the dataset, saved with
            the model.
        mode: what is asked for. "dt": a return. "advantage": to do better than the data usually do from here, in the
            best of some bins of advantages (RECAP, arXiv 2511.14759; ACT, arXiv 2309.05915); needs no target and is
            not misled by luck. "bc", behavior cloning: nothing, the same network without return tokens.
        advantage_kwargs: options of mode "advantage", see ``AdvantageOptions``: {"bins": 3, "updates": 1_000, ...}.
        top_fraction: train only on the episodes of highest return that together hold at most this fraction of the
            steps (at least one episode); with mode "bc" and 0.1 this is the 10 % behavior cloning of the paper.
        return_head: "expectile" predicts from observations and actions the largest return-to-go that the data hold for
            them (Reinformer, arXiv 2405.08740), and acting asks for that unless it is given a target, and for no more
            than the data hold at that step. Needs mode "dt", and returns outside the sequence.
        expectile: level tau of the predicted return: 1/2 predicts the mean, and the nearer to 1, the nearer to the
            largest return (0.99 to 0.9999).
        return_in: "sequence" has a token of the return in every step; "condition" leaves returns out of the sequence
            and lets the newest one condition its output: a third fewer tokens, and a past that no target changes. None:
            "condition" with a return head, which must not read returns, else "sequence".
        critic: adds the value of the policy's actions to its loss, with the same weight everywhere ("qt", arXiv
            2405.17098), or one that grows with the distance of the episode's return from the best one ("qcs", arXiv
            2402.02017); docs/offline/beyond_cloning.md says what differs from the published code.
        critic_kwargs: options of the critic, see ``CriticOptions``: {"weight": 1.0, "discount": 0.99, ...}.
        action_head: of a Box: "deterministic", one action per state; "gaussian", a normal distribution, and "mixture",
            several, both kept from narrowing down by a bound on the entropy (Online Decision Transformer, arXiv
            2202.05607); "flow", a learned flow from noise to actions (arXiv 2210.02747); see docs/offline/actions.md.
        action_head_kwargs: options of the head, see ``ActionHeadOptions``: {"components": 5} or {"steps": 10}.
        chunk: actions that every state decides, its own and those of the steps after it (ACT, arXiv 2304.13705).
        decide_every: steps from one decision to the next, which take as many actions of a chunk; None takes them all
            (receding horizon of Diffusion Policy, arXiv 2303.04137).
        validation: share of the episodes that no update sees, whole ones that the seed chooses; see ``validate``.
        whole_episodes: every window is a whole episode, as acting sees it; None: where ``context_length`` covers all.
        acting_mode: what happens when an episode outgrows the context, see ``Decider``; "auto" is "banded" when the
            backbone's memory is below ``context_length`` - 1, else "refresh".
        acting: "compiled" acts by machine code that computes the same as "eager", made once per kind of model and
            machine (about half a minute) and kept in the user's cache folder.
        policy_kwargs: see ``PolicySettings``; "memory" of the backbone (in steps) defaults to context_length - 1.
        tensorboard_log: folder for TensorBoard; the x axis counts updates.
        verbose: 1 also prints what is logged.
        seed: same seed, same run; None draws one.
        device: "auto", "cpu", "cuda", ...

    Raises:
        ConfigError: for impossible settings.
        DataError: for a dataset that breaks a rule, see ``load_trajectories``.
    """

    kind = "DecisionTransformer"
    earlier_defaults: ClassVar[dict[str, Any]] = {
        "context_length": 20, "learning_rate": 1e-4, "decay_steps": 0, "whole_episodes": False,
        "policy_kwargs": {"backbone": "decision_transformer"},
    }  # fmt: skip
    """Keywords with which all is as the defaults were until November 2026."""

    @strict
    def __init__(
        self,
        policy: str,
        dataset: Any,
        *,
        context_length: ContextLength | None = None,
        learning_rate: LearningRate = 1e-3,
        weight_decay: Weight = 1e-4,
        warmup_steps: WholeNumber | None = None,
        decay_steps: WholeNumber | None = None,
        batch_size: BatchSize = 64,
        max_grad_norm: PositiveNumber = 0.25,
        return_scale: PositiveNumber | None = None,
        discount: Fraction = 1.0,
        delayed_reward: bool = False,
        normalize_observations: bool = True,
        mode: Mode = "dt",
        advantage_kwargs: Mapping[str, Any] | None = None,
        top_fraction: Fraction = 1.0,
        whole_episodes: bool | None = None,
        acting_mode: ActingMode | Literal["auto"] = "auto",
        acting: Acting = "eager",
        return_head: ReturnHead | None = None,
        expectile: Expectile = 0.999,
        return_in: ReturnIn | None = None,
        critic: CriticName | None = None,
        critic_kwargs: Mapping[str, Any] | None = None,
        action_head: ActionHeadName = "deterministic",
        action_head_kwargs: Mapping[str, Any] | None = None,
        chunk: Chunk = 1,
        decide_every: Chunk | None = None,
        validation: Share = 0.0,
        policy_kwargs: Mapping[str, Any] | None = None,
        tensorboard_log: str | os.PathLike[str] | None = None,
        verbose: WholeNumber = 0,
        seed: Seed | None = None,
        device: torch.device | str = "auto",
    ) -> None:
        if policy != "DTPolicy":
            raise ConfigError(f"policy {policy!r} is unknown; {did_you_mean(policy, ['DTPolicy'])}")
        if mode != "dt" and return_scale is not None:
            raise ConfigError(f"mode {mode!r} has no return tokens, so return_scale has no effect; leave it at None")
        device, options = find_device(device), check(policy_kwargs or {}, PolicySettings, "policy_kwargs")
        if context_length is None:
            dataset = load_trajectories(dataset)
            context_length = fitted_context(dataset)
        return_in = return_in or ("sequence" if return_head is None else "condition")
        backbone = backbone_config(policy_kwargs, mode, context_length, return_in)
        if acting_mode == "auto":  # whether the memory of the backbone limits the view, or the context does
            acting_mode = "banded" if backbone.memory < context_length - 1 else "refresh"
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
            advantage_options=read_options(AdvantageOptions, advantage_kwargs, "advantage_kwargs", mode == "advantage"),
            top_fraction=top_fraction,
            whole_episodes=whole_episodes,
            acting_mode=acting_mode,
            acting=acting,
            seed=self.sharing.broadcast(int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed),
            return_head=return_head,
            expectile=expectile,
            return_in=return_in,
            critic=critic,
            critic_options=read_options(CriticOptions, critic_kwargs, "critic_kwargs", critic is not None),
            action_head=action_head,
            action_head_options=ActionHeadOptions.read(action_head, action_head_kwargs or {}),
            validation=validation,
            chunk=chunk,
            decide_every=decide_every,
            **{name: options[name] for name in ("optimizer", "optimizer_kwargs") if options.get(name)},
        )
        readout = readout_choice(options, settings)
        encoding = read_observation(options.get("observation"), "policy_kwargs.observation")
        parts = data_parts(load_trajectories(dataset), settings)
        data, spaces = parts.training, (parts.training.observation_space, parts.training.action_space)
        observed = observes_mask(*spaces, options.get("action_masks"))
        if options.get("action_masks") and not observed:
            raise ConfigError(
                f"policy_kwargs={{'action_masks': True}}: observations of {data.name} have no leaf {ACTION_MASK!r} to "
                "read masks from; leave it out (policy.action_masks in a config)"
            )
        self._build(
            settings,
            backbone,
            spaces,
            summary_of(data, settings, return_scale),
            statistics_of(data, encoding.elements) if normalize_observations else None,
            device,
            readout,
            encoding,
            observed,
            None if return_head is None else highest_to_go(data, discount),
        )
        self.decider()  # a mode that the network cannot act in is refused before it has learned
        self._attach(parts, tensorboard_log, verbose)

    # Training

    @strict
    def learn(
        self,
        gradient_steps: Updates,
        callback: MaybeCallback = None,
        log_interval: Count = 100,
        tb_log_name: str = "DecisionTransformer",
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
        sampler = self._needed_sampler("dataset to learn from")
        for part in filter(None, (sampler, self._validation_sampler)):
            check_longest(self.policy.backbone, part.trajectories)
        self._choose_warmup(gradient_steps)
        total_timesteps = self.num_timesteps + gradient_steps
        if self._decay[1] != total_timesteps and self.settings.decay_steps is None:
            self._decay = self.num_timesteps, total_timesteps
        bar = [ProgressBar(total_timesteps)] if progress_bar else []
        callback = self._begin_callbacks(callback, tb_log_name, bar)
        callback.on_training_start(locals(), globals())
        sampler = self._with_advantages(sampler, progress_bar)
        steps = range(self.num_timesteps, total_timesteps)
        turns = (Turn(sampler, step / total_timesteps, step + 1 == total_timesteps) for step in steps)
        return self._train(sampler, turns, callback, log_interval)

    def _train(self, sampler: ContextSampler, turns: Iterable[Turn], callback: BaseCallback, log_interval: int) -> Self:
        """Do the updates; log means over ``log_interval`` of them, and let callbacks evaluate, save and stop."""
        log = IntervalLog(self.logger, self.num_timesteps, self._interval)
        with forked_rng(self.device):
            for sampler, self._progress, last in turns:
                logs = last or (self.num_timesteps + 1) % log_interval == 0
                metrics = self._update(sampler, with_panel=logs)  # callbacks find them among the locals
                self.num_timesteps += 1
                log.add(metrics)
                if logs:
                    if self._replay is not None:
                        self.logger.record("online/timesteps", self._online.timesteps)
                        self.logger.record("online/episodes", self._online.episodes)
                        self.logger.record("online/replay_return_mean", float(self._replay.data.returns.mean()))
                    self.sharing.log_traffic(self.logger.record)
                    log.write(self.num_timesteps, self._optimizer.param_groups[0]["lr"])
                callback.update_locals(locals())
                if self.sharing.any(not callback.on_step()):
                    break
        callback.on_training_end()
        if self.policy.head.readout is not None and not self.policy.head.readout.learns:
            self._fill_store(sampler)
        return self

    def _update(self, sampler: ContextSampler, with_panel: bool) -> dict[str, Tensor]:
        """One step of the optimizer on one batch; the random numbers depend on the seed and the step count only."""
        settings, policy, sharing = self.settings, self.policy, self.sharing
        readout, step = policy.head.readout, self.num_timesteps
        if readout is not None and step % readout.options.refresh == 0:
            self._fill_store(sampler)
        generator = torch.Generator().manual_seed(step_seed(self.seed, step, "batch"))
        torch.manual_seed(step_seed(self.seed, step, "dropout" if sharing.is_leader else f"dropout {sharing.rank}"))
        part = sharing.part(settings.batch_size)
        batch = sampler.sample(settings.batch_size, generator, part).to(self.device)
        metrics = {} if self._critic is None else self._critic.step(policy, batch, sharing)

        policy.train()
        loss, parts = self._losses(batch, Record(), settings.batch_size, part, sharing)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        sharing.sum_in_place(weight.grad for weight in policy.actor_parameters())
        norm = torch.nn.utils.clip_grad_norm_(policy.actor_parameters(), settings.max_grad_norm)
        decay = self._decay if settings.decay_steps is None else (0, settings.decay_steps)
        factor = learning_rate_factor(step, settings.warmup_steps or 0, decay)
        for group in self._optimizer.param_groups:
            group["lr"] = settings.learning_rate * factor
        self._optimizer.step()
        policy.backbone.constrain_()
        for sums in policy.backbone.statistics():
            sharing.sum_in_place([sums])
        policy.backbone.maintain()
        policy.eval()

        if self._critic is not None:
            self._critic.follow(policy)
        if self._entropy is not None:
            self._entropy.step(parts["train/entropy"])
        panel = memory_panel(lambda record: self.loss(batch, record)) if with_panel else {}
        return {"train/loss": loss.detach(), "train/grad_norm": norm.detach(), **metrics, **parts, **panel}

    def loss(self, batch: ContextBatch, record: Record | None = None) -> Tensor:
        """Mean loss of a batch as ``learn`` minimizes it: of recorded actions, and of whatever options add."""
        rows = len(batch.valid)
        return self._losses(batch.to(self.device), record or Record(), rows, slice(rows), Sharing())[0]

    def _losses(
        self, batch: ContextBatch, record: Record, rows: int, part: slice, sharing: Sharing
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of the ``part`` of ``rows`` windows, with random numbers of the next update."""
        policy, learners = self.policy, (self._critic, self._entropy)
        numbers = loss_numbers(policy.head, batch, rows, part, self.seed, self.num_timesteps)
        return decision_loss(
            policy, batch, record, self.settings.expectile, *learners, *numbers, sharing, self._progress
        )

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
            target_return, deterministic: as for ``predict``.
            acting_mode: another one than the model's.
            seed: of sampled actions; None draws one.

        Raises:
            ConfigError: for a target return that is no finite number, and for one of behavior cloning.
        """
        return Actor(self._steps(target_return, acting_mode), deterministic=deterministic, seed=seed, name=self.kind)

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
            deterministic: True takes the most probable action, of a Box as ``action_head`` says; False samples, Boxes
                only of a model whose ``action_head`` is not "deterministic".
            target_return: return asked of the episodes that start here, in reward units; when None the best of the
                dataset, or with a return head what that predicts in every step.
            reward: received after the last action [B]; needed to follow an episode unless the model is behavior
                cloning or trained with delayed rewards. A return head that is asked for nothing does without, too, but
                its answers are then limited by the data alone, in ``evaluate`` also by those before.
            action_masks: which actions are allowed, [M] or one row per environment, whether or not the data held masks;
                a mask in the observation gives way to it.

        Raises:
            ConfigError: for a target return that is not a finite number or of behavior cloning, a missing reward, or
                a state that is not of this model.
            DataError: for observations that do not fit the space, or observations and rewards that are not finite.
        """
        deterministic = check(deterministic, bool, "deterministic")
        steps = self._steps(target_return)
        leaves, batched = fit_observation(self.policy.observation_leaves, observation)
        rows = len(next(iter(leaves.values())))
        add_masks(leaves, action_masks, self.action_space, steps.takes_masks, steps.needs_masks)
        self._state_watch(state, episode_start)
        start = fit_starts(episode_start, rows, all_begin=state is None)
        if state is None:
            state = steps.begin(rows)
        else:
            steps.check_state(state, rows)
            if reward is None and steps.needs_reward(state, start):
                raise ConfigError(
                    "the return-to-go of a running episode needs the reward of its last step:"
                    " predict(..., reward=rewards); evaluate() does this by itself"
                )
        rewards = np.where(start, 0.0, np.nan) if reward is None else fit_rewards(reward, start)
        noise = None if deterministic else self._action_noise.random((rows, self.policy.head.draws))
        fields, state = steps.step(leaves, state, start, rewards, noise, whole=False)
        actions = fields["action"] if batched else {path: value[0] for path, value in fields["action"].items()}
        return nest_leaves(self.action_space, actions), state

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

        Every started episode runs to its end and is counted, so the number of environments changes no result. Actions
        are clipped to the Boxes of the environment, whose bounds may be narrower than those of the data.

        Args:
            env: Gymnasium id, a function that makes an environment, one environment (episodes are then played one after
                another), or a Gymnasium vector environment with ``AutoresetMode.DISABLED`` that can reset under a
                ``reset_mask`` (``num_envs``, ``env_kwargs`` and ``wrappers`` are then its own). Objects stay open.
            target_returns: as ``target_return`` of ``predict``, discounted where the model has a ``discount`` below 1.
            num_envs: environments that run at the same time.
            wrappers: applied to every single environment, first innermost: names or {"name": ..., option: ...} as for
                ``rltransformers.envs.make_vec_env``, then functions.
            deterministic: False samples actions as ``predict`` does, from a generator per episode.
            longest_episode: steps after which an episode that goes on is an error; None: 200,000, or the step limit of
                the environment's spec where that is larger.
            progress_bar: show a bar of the episodes.

        Raises:
            ConfigError: for target returns that a network cannot read, or an environment with other spaces.
            DataError: for what the environment may not return, with environment and step, and an endless episode.
        """
        targets = self.targets_of(target_returns)
        counted = self.settings.discount, self.settings.delayed_reward
        seeds = branch_seeds(seed, "evaluation", episodes)
        played = [EvaluationEpisode(episode_seed, target, *counted) for target in targets for episode_seed in seeds]
        with open_environments(
            env, min(num_envs, len(played)), env_kwargs, wrappers, (self.observation_space, self.action_space)
        ) as (envs, spec):
            decider, title = self.decider(acting_mode), None if spec is None else spec.id
            longest = longest_allowed(longest_episode, spec)
            evaluate_decisions(envs, played, decider, self.action_space, deterministic, longest, title, progress_bar)
        name, step = title or self.summary.environment, self.num_timesteps
        return [result_of(played[i * episodes : (i + 1) * episodes], name, step) for i in range(len(targets))]
