"""Base of policies with memory, whatever trains them: how they act, evaluate sequences, and go into files.

Axes: B environments, T steps, W token width, A action numbers. One forward pass serves acting (T = 1, cached memory)
and training (whole segments), so that both compute the same function.
"""

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from torch import Tensor, nn

from rltransformers.backbone import BackboneConfig, Record
from rltransformers.backbone.state import Tables, part_of, prefixed
from rltransformers.core.action_masks import ACTION_MASK, add_masks, mask_space, observes_mask
from rltransformers.core.checkpoint import contents_of, load_checkpoint, restore_weights, save_checkpoint
from rltransformers.core.described import count, spaces_line
from rltransformers.core.device import find_device
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import Fraction, check, shown, strict
from rltransformers.core.spaces import (
    Space,
    check_supported,
    check_width,
    leaf_spaces,
    space_from_json,
    space_to_json,
    split_members,
)
from rltransformers.core.values import all_members, as_array, to_tensor
from rltransformers.data.rollout import action_layout, observation_layout
from rltransformers.functional.call import EVERY, episode_positions
from rltransformers.memory.interface import Cached
from rltransformers.policies.action_heads import ActionHead, as_arrays, blank_invalid, check_action_space
from rltransformers.policies.deep_losses import Targets, tell_deep_losses
from rltransformers.policies.observations import (
    StateWatch,
    check_state,
    fit_action_sequences,
    fit_observation,
    fit_rewards,
    fit_sequences,
    fit_starts,
    flat_masks,
    flat_steps,
    tree_space,
)
from rltransformers.policies.output import PolicyOutput
from rltransformers.policies.own_policies import GIVEN_FIRST, policy_settings, stored_kwargs
from rltransformers.policies.policy_state import PolicyState, StepInputs, with_reward
from rltransformers.policies.stored_size import check_stored_size
from rltransformers.policies.token_backbone import BaseEvaluation, TokenBackbone, TokenParts, check_dropout

NOTHING = slice(0, 0)  # ask for no outputs, only for the memory after all steps


class MemoryPolicy(BasePolicy):
    """Observation tokens and a backbone with memory.

    A subclass sets ``action_hidden`` and ``action_head``, and ``_read`` reads features. Arguments and errors are those
    of ``GTrXLPolicy``; ``parts`` are what its tokens are made of.
    """

    action_hidden: nn.Module  # between features and the action head
    action_head: ActionHead
    masks: bool  # whether only actions are taken that the leaf ``action_mask`` allows
    masks_beside: bool  # whether masks are no part of the observation, but join it
    seen_leaves: dict[str, Space]  # spaces of a stored step: the leaves of the observation, and the mask
    only_learns: ClassVar[tuple[str, ...]] = ()  # parts that acting has no use for, and files leave out
    popart: float | None = None  # step with which the value head follows the scale of its targets, where it does
    outside_steps: ClassVar[frozenset[str]] = frozenset({"progress", "state_watch"})  # what machine code does not read
    given: tuple[tuple[Any, ...], dict[str, Any]]  # positional arguments behind the first three, and keywords

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        policy = super().__new__(cls)
        # Here, because the constructors of subclasses, whatever they take, all lie behind it.
        keywords = {name: value for name, value in kwargs.items() if name not in GIVEN_FIRST}
        policy.given = args[len(GIVEN_FIRST) :], keywords
        return policy

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        backbone: BackboneConfig | Mapping[str, Any] | str | None,
        parts: TokenParts,
        head_width: int,
        action_masks: bool | None,
        shared_backbone: bool = True,
    ) -> None:
        check_action_space(action_space)
        tree = tree_space(observation_space)
        check_supported(tree, "observation")
        super().__init__(observation_space, action_space)
        self.tree = tree
        self.observation_leaves = leaf_spaces(tree)
        self.seen_leaves = dict(self.observation_leaves)
        self.masks = observes_mask(tree, action_space, action_masks)
        self.masks_beside = bool(action_masks) and not self.masks
        if self.masks_beside:
            self.masks, self.seen_leaves[ACTION_MASK] = True, mask_space(action_space)
        self.leaf_types = {path: dtype for path, (_, dtype) in observation_layout(self.seen_leaves).items()}
        self.config = BackboneConfig.from_dict({} if backbone is None else backbone)
        check_dropout(self.config)
        check_width(action_space, "action", max(self.config.width, head_width))
        self.uses_previous_reward, self.uses_previous_action = parts.previous_reward, parts.previous_action
        self.encoding = parts.encoding
        network = tree, action_space, self.config, parts
        self.actor = TokenBackbone(*network)
        self.critic: TokenBackbone | None = None if shared_backbone else TokenBackbone(*network)
        sources = [module for part in self.backbones() for module in part.backbone.table_sources()]
        self.tables = Tables(self, sources, self._compute_tables)
        self.machine_code: Callable[..., Any] | None = None  # an ``ActorCriticMachine``
        sees_past = any(part.backbone.receptive_field != 0 for part in self.backbones())
        self.remembers = sees_past or parts.previous_action or parts.previous_reward or parts.first_step
        self.state_watch = StateWatch()
        self.progress = 0.0  # share of the training that is over: some auxiliary losses end before it does
        self.action_layout = action_layout(action_space)

    @abstractmethod
    def _read(
        self, features: Tensor, value_features: Tensor, observations: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Values [...], and outputs [..., A] of allowed actions, of features [..., W] of these observations."""

    def outputs(self, features: Tensor, observations: Mapping[str, Tensor]) -> Tensor:
        """Outputs [..., A] of the action head, of allowed actions, of features [..., W] of these observations."""
        outputs = self.action_head.forward(self.action_hidden(features))
        return self.action_head.masked(outputs, observations[ACTION_MASK]) if self.masks else outputs

    def __repr__(self) -> str:
        config, parameters = self.backbones()[0].backbone.config, sum(each.numel() for each in self.parameters())
        sizes = f"width {config.width}, {count(config.layers, 'layer')}, memory {config.memory}"
        first = f"{type(self).__name__}({sizes}, {count(parameters, 'parameter')})"
        return first + spaces_line(self.observation_space, self.action_space)

    def _compute_tables(self) -> dict[str, Tensor]:
        tables = prefixed("actor", self.actor.backbone.tables())
        return tables if self.critic is None else tables | prefixed("critic", self.critic.backbone.tables())

    def backbones(self) -> list[TokenBackbone]:
        """The actor's and, where it has its own, the critic's backbone."""
        return [self.actor] if self.critic is None else [self.actor, self.critic]

    # State

    def initial_state(self, batch_size: int, cached: Cached = True) -> PolicyState:
        """Empty memory for ``batch_size`` environments; ``cached`` as for ``Backbone.initial_state``."""
        device = self.action_head.linear.weight.device  # SB3's property walks through all modules
        none = {
            path: torch.zeros((batch_size, *shape), dtype=dtype, device=device)
            for path, (shape, dtype) in self.action_layout.items()
        }
        action = blank_invalid(self.action_head.spaces, none, torch.zeros(batch_size, dtype=torch.bool, device=device))
        actor = self.actor.backbone.initial_state(batch_size, cached=cached)
        critic = None if self.critic is None else self.critic.backbone.initial_state(batch_size, cached=cached)
        return PolicyState(actor, critic, action, torch.zeros(batch_size, device=device))

    def with_cache(self, state: PolicyState) -> PolicyState:
        """The state for acting: keys and values of the memory under today's weights."""
        critic = state.critic
        if self.critic is not None and critic is not None:
            critic = self.critic.backbone.with_cache(critic)
        return replace(state, actor=self.actor.backbone.with_cache(state.actor), critic=critic)

    def without_cache(self, state: PolicyState) -> PolicyState:
        """The state for training and storage: layer inputs only."""
        critic = state.critic
        if self.critic is not None and critic is not None:
            critic = self.critic.backbone.without_cache(critic)
        return replace(state, actor=self.actor.backbone.without_cache(state.actor), critic=critic)

    @torch.inference_mode()
    def step(
        self,
        observations: Mapping[str, Tensor],
        state: PolicyState,
        first: Tensor,
        noise: Tensor | None,
        *,
        overwrites: bool = False,
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, PolicyState]:
        """Actions by path, values [B], log-probabilities [B] and the next state, for one step of every environment.

        ``first`` bool [B] marks environments whose episode begins here; ``noise`` of ``action_head.draw`` decides the
        actions, None takes the most likely ones. The next state already holds the actions as previous actions; whoever
        steps the environments adds the rewards with ``with_reward``. ``overwrites`` says that nobody needs ``state``
        any more: its rings are written in place and belong to the next state.

        Raises:
            DataError: an episode is longer than a position table; the state is as it was.
        """
        self.check_places(state, first)
        tables = self.tables.current()
        if self.machine_code is not None and (
            result := self.machine_code(observations, state, first, noise, tables, overwrites)
        ):
            return result
        outputs, values, after = self.network_step(observations, state, first, tables, overwrites)
        actions = self.action_head.decode(outputs, noise)
        log_probs = self.action_head.log_prob(outputs, actions)
        return actions, values, log_probs, replace(after, previous_action=actions)

    @torch.inference_mode()
    def decide(
        self, observations: Mapping[str, Tensor], state: PolicyState, first: Tensor, noise: Tensor | None
    ) -> tuple[dict[str, dict[str, Tensor]], PolicyState]:
        """``step`` in eager mode: fields of ``PolicyOutput`` by leaf, with unclipped actions, and the next state."""
        self.check_places(state, first)
        outputs, values, after = self.network_step(observations, state, first, self.tables.current())
        actions = self.action_head.decode(outputs, noise)
        fields = {"action": actions, "value": {"": values}} | self.action_head.distribution(outputs, actions)
        return fields, replace(after, previous_action=actions)

    @torch.inference_mode()
    def values(self, observations: Mapping[str, Tensor], state: PolicyState, first: Tensor) -> Tensor:
        """Values [B] of observations that would come next; the state is left as it is. Raises as ``step``."""
        self.check_places(state, first)
        return self.network_step(observations, state, first, self.tables.current())[1]

    def check_places(self, state: PolicyState, first: Tensor) -> None:
        """Raise DataError unless position tables reach to the next step; both backbones have the same positions."""
        backbone = self.actor.backbone
        if backbone.finite_positions:  # most policies have none
            backbone.check_places((state.actor.tensors["position"] + 1).masked_fill(first, 0))

    def network_step(
        self,
        observations: Mapping[str, Tensor],
        state: PolicyState,
        first: Tensor,
        tables: dict[str, Tensor],
        overwrites: bool = False,
    ) -> tuple[Tensor, Tensor, PolicyState]:
        """Action outputs [B, A], values [B], and the state with the new memories; looks at no data."""
        inputs = StepInputs(observations, state.previous_action, state.previous_reward, first)
        features, actor = self.actor.step(inputs, state.actor, part_of("actor", tables), overwrites)
        value_features, critic = features, state.critic
        if self.critic is not None and critic is not None:
            value_features, critic = self.critic.step(inputs, critic, part_of("critic", tables), overwrites)
        after = PolicyState(actor, critic, state.previous_action, state.previous_reward)
        outputs, values = self._read(features, value_features, observations)
        kind = self.action_head.linear.weight.dtype  # torch.autocast would round what rollouts keep
        return outputs.to(kind), values.to(kind), after

    def run_backbones(
        self,
        inputs: StepInputs,
        state: PolicyState,
        record: Record | None = None,
        value_record: Record | None = None,
        wanted: slice = EVERY,
    ) -> tuple[Tensor, Tensor, PolicyState]:
        """Features for actions and for values of the ``wanted`` of T steps, and the state with the memory after all."""
        features, actor = self.actor(inputs, state.actor, record, wanted)
        if self.critic is None:
            return features, features, replace(state, actor=actor)
        value_features, critic = self.critic(inputs, state.critic, value_record, wanted)
        return features, value_features, replace(state, actor=actor, critic=critic)

    # Between environment and tensors

    def leaves_to_tensors(self, leaves: Mapping[str, Any]) -> dict[str, Tensor]:
        """Numpy leaves as stored: float32 for floats, integers as they are."""
        device = self.action_head.linear.weight.device  # SB3's property walks through all modules
        return {path: to_tensor(leaves[path], device, dtype) for path, dtype in self.leaf_types.items()}

    def end_training_mode(self) -> None:
        """As ``set_training_mode(False)``, which takes longer than a small step, where any part is in training mode."""
        if any(module.training for module in self.modules()):
            self.set_training_mode(False)

    def environment_actions(self, actions: Mapping[str, Tensor], output: Tensor | None = None) -> Any:
        """Actions as the environments take them: an array [B, ...], or a list of B nested actions; Boxes clipped.

        Raises DataError as ``as_arrays``.
        """
        head = self.action_head
        return split_members(self.action_space, as_arrays(head.execute(actions), head.spaces, output))

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        reward: np.ndarray | float | None = None,
        generator: torch.Generator | Sequence[np.random.Generator] | None = None,
        action_masks: Any = None,
    ) -> tuple[Any, Any]:
        """Actions for one observation or a batch of them, and the state to pass in with the next one.

        The actions of a batch are an array, or a list of nested ones where the action space is a Dict or a Tuple.

        Args:
            observation: as the environment gives it; nested Dicts and Tuples and channel-last or channel-first images
                are understood.
            state: what the last call returned; None begins an episode in every environment.
            episode_start: bool per environment, True where this observation is the first of an episode.
            deterministic: take the most likely action in place of a sample.
            reward: what the last action earned; needed by policies with ``previous_reward``, from the second step on.
            generator: source of the sampled actions, or one for each environment [B].
            action_masks: which actions are allowed, [M] or one row per environment, as ``get_action_masks`` of
                sb3-contrib gives them; a mask in the observation gives way to it.

        Raises:
            DataError: for an observation that does not fit the observation space or is not finite, a mask that allows
                nothing, a reward that is not finite, or outputs of the network that are not. The state that was passed
                in stays as it was.
            ConfigError: when the policy needs rewards or masks and none are given, ``deterministic`` is no boolean, or
                ``state`` is none that ``predict`` returned for as many environments.
        """
        if not isinstance(deterministic, bool | np.bool_):
            raise ConfigError(f"deterministic must be true or false, got {shown(deterministic)}")
        self.end_training_mode()
        arrays, batched = fit_observation(self.observation_leaves, observation)
        add_masks(arrays, action_masks, self.action_space, takes=self.masks, needs=self.masks)
        if self.remembers:
            self.state_watch(state, episode_start)
        n = len(next(iter(arrays.values())))
        start = fit_starts(episode_start, n, all_begin=state is None)
        rewards = None if reward is None else fit_rewards(reward, start)
        state = self.initial_state(n) if state is None else self._continue(state, start, rewards)
        noise = None if deterministic else self.action_head.draw(n, generator)
        leaves, first = self.leaves_to_tensors(arrays), to_tensor(start, self.device)
        actions, values, log_probs, state = self.step(leaves, state, first, noise)
        environment_actions = self.environment_actions(actions, values + log_probs)
        return (environment_actions if batched else environment_actions[0]), state

    def evaluate_actions(
        self,
        observations: Any,
        actions: Any,
        episode_starts: Any = None,
        rewards: Any = None,
        state: PolicyState | None = None,
        action_masks: Any = None,
    ) -> PolicyOutput:
        """Log-probabilities, entropy and values of B sequences of T steps as tensors [B, T] that carry gradients.

        They are computed as in an update, and equal those of acting. The gradient flows through all T steps, and not
        into ``state``.

        Args:
            observations: as for ``predict``, every leaf [B, T, ...].
            actions: taken in these steps, nested as the action space, every leaf [B, T, ...].
            episode_starts: where an observation is the first of an episode [B, T]; None for nowhere but, without a
                state, in the first step.
            rewards: what the actions earned [B, T]; needed by policies with ``previous_reward``.
            state: memory before the first step, of an earlier call or of ``predict``; None for none.
            action_masks: which actions were allowed [B, T, M]; those in the observation give way to it.

        Raises:
            DataError: for observations, actions, rewards or masks that do not fit, and for an episode that is longer
                than a position table.
            ConfigError: for missing rewards or masks, or a state of another policy.
        """
        self.end_training_mode()
        flat, shape = fit_sequences(self.observation_leaves, observations, "observations")
        arrays, _ = fit_observation(self.observation_leaves, flat)
        add_masks(arrays, flat_masks(action_masks, *shape), self.action_space, takes=self.masks, needs=self.masks)
        leaves = {path: leaf.unflatten(0, shape) for path, leaf in self.leaves_to_tensors(arrays).items()}
        flat = fit_action_sequences(self.action_head.spaces, actions, *shape)
        device, (rows, steps) = self.action_head.linear.weight.device, shape
        executed = {
            path: to_tensor(flat[path], device, dtype).unflatten(0, shape)
            for path, (_, dtype) in self.action_layout.items()
        }
        taken = self.action_head.as_drawn(executed)
        starts = None if episode_starts is None else flat_steps(episode_starts, *shape, "episode_starts")
        first = to_tensor(fit_starts(starts, rows * steps), device).view(shape)
        if state is None:
            first[:, 0], before = True, self.initial_state(rows, cached=False)
        else:
            self.check_state(state, rows)
            before = self.without_cache(state)
        if self.uses_previous_reward and rewards is None:
            raise ConfigError("this policy reads rewards: evaluate_actions(..., rewards=...), what the actions earned")
        if self.actor.backbone.finite_positions:
            self.actor.backbone.check_places(episode_positions(before.actor.tensors["position"], first))
        earned = flat_steps(0.0 if rewards is None else rewards, *shape, "rewards")
        gains = to_tensor(earned, device, before.previous_reward.dtype).view(shape)
        features, value_features, after = self.run_backbones(before.inputs(leaves, taken, gains, first), before)
        outputs, values = self._read(features, value_features, leaves)
        fields = {"action": executed, "value": {"": values}} | self.action_head.distribution(outputs, taken)
        with torch.no_grad():
            after = self.with_cache(after.after(taken, gains).map(Tensor.detach))
            return PolicyOutput.of(self.action_space, fields, after)

    def add_losses_of_layers(self, result: BaseEvaluation, targets: Targets, part: TokenBackbone) -> None:
        """Add the losses of the features behind inner layers to an evaluation whose record has some, of ``part``."""
        record = result.record
        if record is None:
            return
        exits = None if record.exits is None else record.exits[:, : targets.counts.shape[1]]
        deep = Record(streams=record.streams, exits=exits, random_exits=record.random_exits)
        tell_deep_losses(part.backbone, deep, targets, self.progress)
        result.add_losses(part.backbone, deep, of_critic=part is self.critic)

    def check_state(self, state: Any, rows: int) -> None:
        """Raise ConfigError unless ``state`` is one of this policy, of ``rows`` environments."""
        check_state(state, PolicyState, rows)
        done = state.previous_action
        shapes = {path: shape for path, (shape, _) in self.action_layout.items()}
        fits = {path: leaf.shape[1:] for path, leaf in done.items()} == shapes
        if fits and self.uses_previous_action:  # an embedding has rows for the actions of this policy alone
            leaves = self.action_head.spaces.items()
            classes = [
                (path, leaf) for path, leaf in leaves if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete)
            ]
            fits = all(all_members(leaf, as_array(done[path])) for path, leaf in classes)
        if not fits:
            raise ConfigError(
                f"the state is of a policy with other actions than {self.action_space}; pass what this one returned, "
                "or None"
            )
        self.actor.backbone.check_state(state.actor)
        if (self.critic is None) is not (state.critic is None):
            raise ConfigError(
                "the state is of a policy whose value has its own backbone where this one's has none, or the other way "
                "round; pass what this one returned, or None"
            )
        if self.critic is not None:
            self.critic.backbone.check_state(state.critic)

    def _continue(self, state: Any, start: np.ndarray, rewards: np.ndarray | None) -> PolicyState:
        """A checked state with the last rewards [B] in it, where the policy reads them."""
        self.check_state(state, len(start))
        if self.uses_previous_reward:
            if rewards is None and not start.all():
                raise ConfigError(
                    "this policy was built with previous_reward=True and needs predict(..., reward=...) from the "
                    "second step on; loops that cannot pass it (evaluate_policy, EvalCallback) need the reward in the "
                    "observation: train with the wrapper History of rltransformers.envs and previous_reward=False"
                )
            state = with_reward(state, np.zeros(len(start)) if rewards is None else rewards)
        return state

    # Files

    def _get_constructor_parameters(self) -> dict[str, Any]:
        """The keywords that make a policy like this one, whatever its weights; a subclass may add some."""
        positional, keywords = self.given
        if positional:
            raise ConfigError(
                f"{type(self).__name__} was made with {3 + len(positional)} positional arguments; give what follows "
                f"{', '.join(GIVEN_FIRST)} by keyword, so that its file can name it"
            )
        return dict(keywords)

    @strict
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights, spaces and keywords to one file; nothing in it is executed on loading.

        ``.zip`` is added to a name without ending. What is remembered of episodes is no part of a policy: it is the
        state that ``predict`` takes and returns, and belongs to the loaded policy as well. The optimizer, and what
        ``VecNormalize`` does, are in the files of agents.

        Raises:
            CheckpointError: when the file cannot be written.
            ConfigError: a keyword of a subclass is nothing that a file can hold, or the policy was made with more than
                three positional arguments.
        """
        settings = {
            "policy_kwargs": stored_kwargs(self._get_constructor_parameters()),
            "observation_space": space_to_json(self.tree),
            "action_space": space_to_json(self.action_space),
            "popart": self.popart,
        }
        save_checkpoint(path, type(self).__name__, settings, {"policy": self.state_dict()})

    @classmethod
    @strict
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "auto") -> Self:
        """The policy that ``save`` of this class wrote; acts as it did, and learns nothing until it has an agent.

        Raises:
            CheckpointError: when the file is missing, corrupt, or of another class.
            ConfigError: when there is no such device.
        """
        place, kind = find_device(device), cls.__name__
        checkpoint = load_checkpoint(path, kind)
        with contents_of(path, kind):
            stored, weights = checkpoint.settings, checkpoint.tensors["policy"]
            keywords = check(stored["policy_kwargs"], Mapping[str, Any], "settings.policy_kwargs")
            keywords = policy_settings(cls, keywords, "settings.policy_kwargs.")
            check_stored_size(BackboneConfig.from_dict(keywords.get("backbone") or {}), weights)
            make: Any = cls  # a subclass, whose constructor is another than that of its base
            spaces = space_from_json(stored["observation_space"]), space_from_json(stored["action_space"])
            policy = make(*spaces, cls._dummy_schedule, **keywords)
            policy.complete()
            if (step := check(stored["popart"], Fraction | None, "settings.popart")) is not None:
                policy.normalize_values(step)
            restore_weights(policy, weights)
            policy.set_training_mode(False)
        return policy.to(place)

    def _predict(self, observation: Any, deterministic: bool = False) -> Tensor:
        raise ConfigError("a policy with memory needs a state: call predict(observation, state, episode_start)")
