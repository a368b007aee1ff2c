"""Files of online agents: what a checkpoint holds, and how an agent comes back from it. Axis letter: E environments."""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar, Self, cast

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from rltransformers.backbone import BackboneConfig
from rltransformers.core.action_masks import observes_mask
from rltransformers.core.checkpoint import (
    Checkpoint,
    File,
    check_tensor,
    contents_of,
    file_name,
    load_checkpoint,
    save_checkpoint,
    unpack_arrays,
)
from rltransformers.core.device import find_device
from rltransformers.core.errors import CheckpointError, ConfigError, one_line
from rltransformers.core.ranges import Count, check, check_settings, constructor_annotations, shown, strict
from rltransformers.core.spaces import Space, space_from_json, space_to_json
from rltransformers.envs.saving import restore_bonus, restore_environment, takes_state
from rltransformers.policies.actor_critic import GTrXLPolicy
from rltransformers.policies.memory_policy import MemoryPolicy
from rltransformers.policies.observations import tree_space
from rltransformers.policies.own_policies import check_same_network, named_policy, policy_settings, stored_kwargs
from rltransformers.policies.steps import ActorCriticMachine
from rltransformers.policies.stored_size import check_stored_size
from rltransformers.training import normalization
from rltransformers.training.online.online_checkpoint import own_tensors, restore_learning, restore_place, tensors_of
from rltransformers.training.online.vec_envs import trained_spaces
from rltransformers.training.parameters import print_system, replaced_settings, take_parameters, uncompiled
from rltransformers.training.schedules import as_schedule, line_of, plain_schedule


@dataclass(frozen=True)
class Stored:
    """An online agent in a checkpoint, its description checked."""

    policy: str  # name of its class
    settings: dict[str, Any]  # constructor arguments
    spaces: tuple[Space, Space]  # of observations and actions
    n_envs: int  # of all processes
    tensors: dict[str, Any]  # everything else, as ``tensors_of`` gives it


NOT_SETTINGS = ("policy", "env", "device", "_init_setup_model")
"""Arguments of a constructor that are passed anew when a checkpoint is loaded."""


def setting_hints(cls: type) -> dict[str, Any]:
    """Annotations of the settings of an agent, those too that a constructor hands on to the next as ``**kwargs``."""
    return {name: hint for name, hint in constructor_annotations(cls).items() if name not in NOT_SETTINGS}


class StoredAgent(BaseAlgorithm):
    """Base class of the online agents: settings, checkpoints and exported policies.

    Attributes:
        kind: name of the agent in its checkpoints and logs.
        scheduled: constructor arguments that may be a schedule.
        policy_aliases: the policy of the agent, by the name that a user gives.
        per_environment: parts of a checkpoint whose tensors have a row for every environment.
        settled: settings that an agent is made with for good; ``load`` makes one with others.
        parts: what learns, modules and optimizers, as attributes and by the names of ``get_parameters``.
    """

    acting: str
    kind: ClassVar[str]
    scheduled: ClassVar[tuple[str, ...]]
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"GTrXLPolicy": GTrXLPolicy}
    per_environment: ClassVar[tuple[str, ...]] = (
        "acting",
        "segment",
        "last_observation",
        "last_episode_starts",
        "running_returns",
    )
    settled: ClassVar[tuple[str, ...]] = ("acting", "updates", "scale_rewards")
    parts: ClassVar[tuple[str, ...]] = ("policy", "policy.optimizer")

    @classmethod
    def setting_names(cls) -> list[str]:
        """Constructor arguments that a checkpoint stores and ``load`` may override."""
        return list(setting_hints(cls))

    @classmethod
    def check_policy(cls, settings: Mapping[str, Any], prefix: str, policy: str | type | None = None) -> dict[str, Any]:
        """The keywords of a policy, by default the one of the agent, each checked; see ``policy_settings``."""
        chosen = next(iter(cls.policy_aliases)) if policy is None else policy
        return policy_settings(named_policy(chosen, cls.policy_aliases), settings, prefix)

    def check_together(self) -> None:
        """Raise ConfigError for settings that do not fit each other."""

    @classmethod
    def only_starts(cls, name: str, value: Any, stored: Any) -> bool:
        """Whether a setting is the first value of what training then changes, so that ``load`` cannot replace it.

        Args:
            stored: the setting in the file.
        """
        return False

    def _taken_over(self, tensors: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors that this agent takes over from the file of an agent with other ``settings``."""
        return tensors

    def _own_tensors(self) -> dict[str, Any]:
        """Tensors for a checkpoint, beside those of every online agent."""
        return {}

    def _restore_own(self, tensors: Mapping[str, Any], n_envs: int) -> None:
        """Restore ``_own_tensors`` of an agent with ``n_envs`` environments."""

    @classmethod
    @strict
    def load(
        cls,
        path: File,
        env: Any = None,
        device: torch.device | str = "auto",
        custom_objects: Mapping[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool | None = True,
        **overrides: Any,
    ) -> Self:
        """Return the agent that ``save`` wrote.

        Args:
            path: file, with or without ``.zip``, or one that is open for bytes.
            env: environment to go on with; None when only ``predict`` is needed. It is wrapped in ``VecNormalize`` if
                the agent was trained with it, whose statistics are restored. With another number of copies new
                episodes begin, and an agent with a replay fills a new one, with a warning.
            device: where the weights go.
            custom_objects: settings that replace the stored ones, under the names of Stable-Baselines3.
            print_system_info: print this machine and its versions, and the version that wrote the file.
            force_reset: begin new episodes. False goes on where the saved run stopped: ``env`` stands there, or takes
                the stored state (``rltransformers.envs.saving``). None: False if it takes that state, else True.
            **overrides: settings that replace the stored ones. Whether there is ``popart`` cannot change; a ``seed``
                begins new random streams. ``tensorboard_log`` is never stored.

        Raises:
            CheckpointError: when the file is missing, corrupt, or of another agent.
            ConfigError: when ``env`` has other spaces, or an override is unknown or changes the network.
        """
        device = find_device(device)
        checkpoint = load_checkpoint(path, cls.kind)
        if print_system_info:
            print_system(checkpoint.code_version)
        with contents_of(path, cls.kind):
            stored = describe(cls, checkpoint)
        overrides = _checked_overrides(cls, stored, custom_objects, overrides)
        packed, vec_env = stored.tensors.get("normalization"), None if env is None else cls._wrap_env(env)
        if vec_env is not None:
            with contents_of(path, cls.kind):
                vec_env = normalization.with_normalizer(vec_env, packed)
            normalization.check_same_observations(vec_env, packed)
            stored = replace(stored, spaces=trained_spaces(stored.spaces, vec_env))
        with _fit_check(cls, path, overrides), contents_of(path, cls.kind, alone=env is None and not overrides):
            agent: Any = _rebuilt(cls, stored, overrides, vec_env, device)
        if agent.policy.uses_previous_reward:
            if agent.scale_rewards != (trained := stored.settings["scale_rewards"]):
                raise ConfigError(
                    f"scale_rewards={agent.scale_rewards}: the policy reads rewards and was trained with "
                    f"scale_rewards={trained}; leave it out"
                )
            if vec_env is not None:
                normalization.check_same_rewards(vec_env, packed)
        same_envs = stored.n_envs == agent.all_envs
        with _fit_check(cls, path, overrides), contents_of(path, cls.kind):
            tensors = agent._taken_over(stored.tensors, stored.settings)
            tensors = own_tensors(agent, tensors) if same_envs else tensors
            restore_learning(agent, tensors, agent.n_envs if same_envs else stored.n_envs)
        with contents_of(path, cls.kind):
            if overrides.get("seed") is not None:
                agent._begin_streams(agent.seed)
            if packed is not None and vec_env is None:
                space = tree_space(agent.observation_space)
                agent._loaded_normalization = normalization.checked_normalization(packed, space)
            elif packed is not None:
                normalization.set_statistics(cast(VecNormalize, agent._vec_normalize_env), packed, agent.sharing)
                agent._scaled_rewards = packed["settings"]["norm_reward"]
            state = unpack_arrays(tensors["environment"])
        stands = tensors["last_observation"] is not None
        if force_reset is False and not stands and agent.num_timesteps:
            raise ConfigError(
                "the file holds no place to go on from: its agent had no environment when it was saved, or one that "
                "somebody else had reset or stepped; leave force_reset out to begin new episodes"
            )
        restorable = same_envs and state is not None and vec_env is not None and takes_state(vec_env, state)
        if stands and (restorable if force_reset is None else not force_reset):
            if not same_envs:
                raise ConfigError(
                    f"the run was saved with {stored.n_envs} environments, this one has {agent.all_envs}; "
                    "load with force_reset=True to begin new episodes"
                )
            with contents_of(path, cls.kind):
                if restorable:
                    restore_environment(cast(VecEnv, vec_env), state)
                restore_place(agent, tensors)
        elif restorable:
            with contents_of(path, cls.kind):
                restore_bonus(cast(VecEnv, vec_env), state)
        return cast(Self, agent)

    @strict
    def save(self, path: File, exclude: Any = None, include: Any = None) -> None:
        """Write all that a later ``learn`` or ``predict`` needs to one file; nothing in it is executed on loading.

        ``path`` may be a file that is open for bytes, and stays open. The file holds weights, optimizer, settings,
        spaces, counters, random streams, memory, observations and statistics, unwritten metrics, and the state of
        environments that can tell it (``rltransformers.envs.saving``). A schedule that is a function is stored as the
        line that it is; one that is no line as its present value, with a warning.

        Raises:
            ConfigError: for ``exclude`` or ``include``, which this format has no use for.
        """
        if exclude or include:
            raise ConfigError(f"a checkpoint of {self.kind} is always complete; leave out exclude and include")
        agent: Any = self  # with what OnlineAgent adds
        for name in agent.scheduled:
            value = getattr(agent, name)
            if callable(value) and line_of(as_schedule(value, name)) is None:
                warnings.warn(
                    f"{name} is a function that is no straight line, and files hold no functions: this one holds its "
                    f"present value; whoever goes on gives it again, load(path, {name}=...)",
                    stacklevel=2,
                )
        settings = settings_of(agent) | {
            "observation_space": space_to_json(tree_space(agent.observation_space)),
            "action_space": space_to_json(agent.action_space),
            "n_envs": agent.all_envs,
            "policy": type(uncompiled(agent.policy)).__name__,
        }
        tensors = tensors_of(agent) | agent._own_tensors()
        if agent.sharing.is_leader:
            save_checkpoint(path, agent.kind, settings, tensors)

    def _compile(self) -> None:
        """Let policies act as machine code where the settings say so; they keep none in copies and files."""
        for part in vars(self).values():
            if isinstance(part, MemoryPolicy) and self.acting == "compiled":
                part.machine_code = ActorCriticMachine(part)

    def __setstate__(self, state: dict[str, Any]) -> None:  # of a copy
        vars(self).update(state)
        if "policy" in state:
            self._compile()

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return list(self.parts), []

    def _learned_parts(self) -> dict[str, Any]:
        """The ``parts`` by name."""
        return {name: uncompiled(attrgetter(name)(self)) for name in self.parts}

    @strict
    def set_parameters(
        self, load_path_or_dict: File | Mapping[str, Any], exact_match: bool = True, device: torch.device | str = "auto"
    ) -> None:
        """Take over weights and optimizers: those of a checkpoint, or what ``get_parameters`` returned.

        The latter names no leaves: keys of Dicts must have the same order in both agents. Memories stay; their keys
        and values are computed anew.

        Args:
            exact_match: require every part and every parameter; False takes those that are given.
            device: where tensors of a file are read to; the agent stays where it is.

        Raises:
            CheckpointError: when the file is missing, corrupt, or of another agent.
            ConfigError: for what does not fit; a part of other names or shapes changes nothing.
        """
        agent: Any = self
        spaces = tree_space(agent.observation_space), agent.action_space
        take_parameters(self._learned_parts(), load_path_or_dict, exact_match, self.kind, spaces, device)
        carry, policy = agent.carry, agent._actor
        carry.acting = policy.with_cache(policy.without_cache(carry.acting))


def settings_of(agent: Any) -> dict[str, Any]:
    """Constructor arguments as JSON values; refuses an agent whose constructor would not get or take them back."""
    kind: Any = type(agent)
    names, base = kind.setting_names(), next(each for each in kind.__mro__ if "kind" in vars(each))
    if lost := [name for name in base.setting_names() if name not in names]:
        raise ConfigError(
            f"a {kind.__name__} cannot be saved: its constructor takes no {', '.join(lost)}; let it take "
            "**kwargs, and pass them to super().__init__"
        )
    if absent := [name for name in names if name != "stats_window_size" and not hasattr(agent, name)]:
        raise ConfigError(
            f"a {kind.__name__} cannot be saved: it does not keep the argument {absent[0]!r} of its "
            f"constructor; set self.{absent[0]}"
        )
    for name, made in agent._settled.items():
        if (now := getattr(agent, name)) != made:
            raise ConfigError(
                f"{name} was {shown(made)} when this {kind.__name__} was made, which is built for it, and is "
                f"{shown(now)} now; set it back, and load a saved agent with it, {kind.__name__}.load(path, {name}=...)"
            )
    settings = {name: _plain_setting(agent, name) for name in names if name != "tensorboard_log"}
    checked = check_settings(setting_hints(kind), settings)
    agent.check_together()
    return checked


def _plain_setting(agent: Any, name: str) -> Any:
    if name == "stats_window_size":
        return agent._stats_window_size
    value = getattr(agent, name)
    if name == "policy_kwargs":
        return stored_kwargs(value)
    if name == "train_freq":
        return value.frequency
    if name in agent.scheduled and not isinstance(value, str | None):
        return plain_schedule(as_schedule(value, name), agent._current_progress_remaining)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def describe(cls: Any, checkpoint: Checkpoint) -> Stored:
    """The agent of a checkpoint, each part of its description checked."""
    values, tensors = checkpoint.settings, checkpoint.tensors
    known = {name: values[name] for name in cls.setting_names() if name in values and name != "tensorboard_log"}
    settings = check_settings(setting_hints(cls), known, "settings.")
    keywords = settings["policy_kwargs"] or {}
    settings["policy_kwargs"] = cls.check_policy(keywords, "settings.policy_kwargs.", values["policy"])
    spaces = space_from_json(values["observation_space"]), space_from_json(values["action_space"])
    n_envs = check(values["n_envs"], Count, "settings.n_envs")
    policy = check(values["policy"], str, "policy")
    rewards = check_tensor(tensors["acting"]["previous_reward"], "acting.previous_reward", (None,), torch.float32)
    if len(rewards) != n_envs:
        raise CheckpointError(f"it names {n_envs} environments and holds another number of memories")
    if settings["scale_rewards"] and tensors.get("reward_scale") is None:
        raise CheckpointError("it says that rewards are scaled and holds no scale")
    return Stored(policy, settings, spaces, n_envs, tensors)


def _checked_overrides(
    cls: Any, stored: Stored, custom_objects: Mapping[str, Any] | None, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Settings that replace the stored ones; raises ConfigError for one that cannot."""
    replaced = replaced_settings(custom_objects, overrides, cls.setting_names())
    known = stored.settings
    if outdated := [name for name, value in replaced.items() if cls.only_starts(name, value, known.get(name))]:
        raise ConfigError(
            f"{', '.join(outdated)}: the first value of what the file holds as it is by now, so another one has no "
            "effect; leave it out"
        )
    popart = stored.settings.get("popart")
    if "popart" in replaced and (replaced["popart"] is None) is not (popart is None):
        raise ConfigError(
            f"popart was {popart} when the agent was made: whether its value head follows "
            "the returns is settled, and load changes only the step of one that does; leave popart out"
        )
    if replaced.get("policy_kwargs") is not None:
        ours = stored.settings["policy_kwargs"]
        theirs = cls.check_policy(replaced["policy_kwargs"], "policy_kwargs.", stored.policy)
        learned, asked = ours.get("action_masks"), theirs.get("action_masks")
        masked = bool(learned) or observes_mask(*stored.spaces, learned)  # other policies may get masks, or none
        masks = {"action_masks": masked}, {"action_masks": masked and asked is not False}
        check_same_network(named_policy(stored.policy, cls.policy_aliases), ours | masks[0], theirs | masks[1])
        if learned and asked is None:
            replaced["policy_kwargs"] = {**replaced["policy_kwargs"], "action_masks": learned}
    return replaced


def _rebuilt(cls: Any, stored: Stored, overrides: Mapping[str, Any], env: VecEnv | None, device: torch.device) -> Any:
    """The agent that a checkpoint describes, with new weights, unless the file has fewer than it describes."""
    settings = stored.settings | dict(overrides)
    agent = cls(stored.policy, env, device=device, _init_setup_model=False, **settings)
    agent.observation_space, agent.action_space = stored.spaces
    if env is None:
        agent.n_envs = stored.n_envs
    backbone = BackboneConfig.from_dict(agent.policy_kwargs.get("backbone") or {})
    acting = check(stored.tensors["acting"]["actor"], Mapping[str, Any], "acting.actor")
    check_stored_size(backbone, stored.tensors["policy"], acting, stored.n_envs)
    agent._setup_model()
    return agent


@contextmanager
def _fit_check(cls: Any, path: File, overrides: Mapping[str, Any]) -> Iterator[None]:
    """Within the block, that a checkpoint does not fit its agent is a fault of ``overrides`` if it fits without."""
    try:
        yield
    except CheckpointError as error:
        if not overrides:
            raise
        if isinstance(path, str | os.PathLike):
            cls.load(path, device="cpu")  # refuses a file that is broken
        raise ConfigError(
            f"what {file_name(path)} holds does not fit with {', '.join(overrides)} replaced "
            f"({one_line(error.__cause__)}); a setting that changes the network, its memory or its optimizer "
            "cannot be replaced on load: leave it out"
        ) from error
