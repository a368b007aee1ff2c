"""Files of online agents: what a checkpoint holds, and how an agent comes back from it. Axis letter: E environments."""

import inspect
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast

import gymnasium as gym
import torch
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from rltransformers.backbone import BackboneConfig
from rltransformers.core.checkpoint import (
    Checkpoint,
    File,
    check_same,
    check_tensor,
    contents_of,
    file_name,
    load_checkpoint,
    pack_arrays,
    restore_optimizer,
    restore_weights,
    save_checkpoint,
    unpack_arrays,
)
from rltransformers.core.device import find_device
from rltransformers.core.errors import CheckpointError, ConfigError, one_line, refuse_unknown
from rltransformers.core.ranges import Count, annotations, check, check_settings
from rltransformers.core.spaces import space_from_json, space_to_json
from rltransformers.core.world import rows_of
from rltransformers.envs.saving import part_of_state, restore_environment, takes_state
from rltransformers.policies.memory_policy import PolicyState
from rltransformers.policies.observations import tree_space
from rltransformers.policies.own_policies import check_same_network, restored_kwargs, stored_kwargs
from rltransformers.policies.stored_size import check_stored_size
from rltransformers.training.carry import on_device, segment_tensors, stored_segment
from rltransformers.training.normalization import (
    check_same_observations,
    check_same_rewards,
    checked_normalization,
    set_statistics,
    with_normalizer,
)
from rltransformers.training.online_checkpoint import (
    pack_progress,
    restore_generators,
    restore_observation,
    restore_progress,
)
from rltransformers.training.parameters import print_system, replaced_settings, take_parameters, uncompiled
from rltransformers.training.schedules import as_schedule, is_line, plain_schedule
from rltransformers.training.unwritten_metrics import UnwrittenMetrics
from rltransformers.training.vec_envs import check_trained_spaces

GENERATORS = ("_action_generator", "_batch_generator", "_predict_generator")


@dataclass(frozen=True)
class Stored:
    """An online agent in a checkpoint, its description checked.

    Attributes:
        policy: name of its class.
        settings: constructor arguments.
        spaces: of observations and actions.
        n_envs: environments of all processes.
        tensors: everything else, as ``tensors_of`` gives it.
    """

    policy: str
    settings: dict[str, Any]
    spaces: tuple[gym.Space[Any], gym.Space[Any]]
    n_envs: int
    tensors: dict[str, Any]

    @property
    def normalization(self) -> Any:
        """Settings and statistics of ``VecNormalize``; None without."""
        return self.tensors.get("normalisation")


NOT_SETTINGS = ("policy", "env", "device", "_init_setup_model")
"""Arguments of a constructor that are passed anew when a checkpoint is loaded."""


def setting_hints(cls: type) -> dict[str, Any]:
    """Annotations of the settings of an agent, those too that a constructor hands on to the next as ``**kwargs``."""
    hints: dict[str, Any] = {}
    for kind in cls.__mro__:
        if "__init__" in vars(kind):
            constructor = vars(kind)["__init__"]
            hints = annotations(constructor) | hints
            parameters = inspect.signature(constructor).parameters.values()
            if not any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters):
                break
    return {name: hint for name, hint in hints.items() if name not in NOT_SETTINGS}


# Saving


def settings_of(agent: Any) -> dict[str, Any]:
    """Constructor arguments of an agent as JSON values.

    Raises:
        ConfigError: for a subclass whose constructor would not get them back, or does not keep one.
    """
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
    return {name: _plain_setting(agent, name) for name in names if name != "tensorboard_log"}


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


def save_agent(agent: Any, path: File) -> None:
    """Write a checkpoint of an agent; of several processes the first one writes it.

    Warns:
        UserWarning: of a schedule that is a function and no straight line.
    """
    for name in agent.scheduled:
        value = getattr(agent, name)
        if callable(value) and not is_line(as_schedule(value, name)):
            warnings.warn(
                f"{name} is a function that is no straight line, and files hold no functions: this one holds its "
                f"present value; whoever goes on gives it again, load(path, {name}=...)",
                UserWarning,
                stacklevel=3,
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


def tensors_of(agent: Any) -> dict[str, Any]:
    """Everything that changes while an agent learns, of all processes; complete on the first one alone."""
    sharing, carry, scale = agent.sharing, agent.carry, agent._scale
    if sharing.any(agent._moved):
        agent._last_obs = None  # of episodes that are gone: nobody can go on from it
    logger = agent.logger if hasattr(agent, "_logger") else None
    again = agent.memory_refresh == "epoch" and carry.segment is not None  # the next update encodes it again
    normalization = agent._normalization()
    if normalization is not None:
        normalization = normalization | {"running_returns": sharing.to_leader(normalization["running_returns"])}
    return {
        "policy": uncompiled(agent.policy).state_dict(),
        "optimizer": agent.policy.optimizer.state_dict(),
        "generators": {name: getattr(agent, name).get_state() for name in GENERATORS},
        "metrics": pack_arrays(agent._metrics.to_store(logger)),
        "segment": sharing.to_leader(segment_tensors(carry.segment) if again else None),
        "acting": sharing.to_leader(carry.acting.tensors()),
        **pack_progress(agent, sharing),
        "normalisation": normalization,
        "reward_scale": None if scale is None else scale.tensors(),
        "running_returns": None if scale is None else sharing.to_leader(torch.as_tensor(scale.returns)),
    }


def set_parameters(agent: Any, source: File | Mapping[str, Any], exact: bool, device: torch.device | str) -> None:
    """Take over weights and optimizers of a checkpoint or a mapping; see ``OnlineAgent.set_parameters``."""
    if isinstance(source, Mapping):
        states = dict(source)
    else:
        tensors = load_checkpoint(source, agent.kind, find_device(device)).tensors
        with contents_of(source, agent.kind):
            states = {name: tensors[key] for name, key in agent.parts.items()}
    take_parameters({name: uncompiled(attrgetter(name)(agent)) for name in agent.parts}, states, exact)
    carry, policy = agent.carry, agent._actor
    carry.acting = policy.with_cache(policy.without_cache(carry.acting))


# Loading


def load_agent(
    cls: Any,
    path: File,
    env: Any,
    device: torch.device | str,
    custom_objects: Mapping[str, Any] | None,
    print_system_info: bool,
    force_reset: bool | None,
    overrides: Mapping[str, Any],
) -> Any:
    """The agent of class ``cls`` in a checkpoint; see ``OnlineAgent.load``."""
    device = find_device(device)
    checkpoint = load_checkpoint(path, cls.kind)
    if print_system_info:
        print_system(checkpoint.code_version)
    with contents_of(path, cls.kind):
        stored = describe(cls, checkpoint)
    overrides = _checked_overrides(cls, stored, custom_objects, overrides)
    packed, vec_env = stored.normalization, None if env is None else cls._wrap_env(env)
    if vec_env is not None:
        if packed is not None:
            with contents_of(path, cls.kind):
                vec_env = with_normalizer(vec_env, packed)
            check_same_observations(vec_env, packed)
        check_trained_spaces(stored.spaces, vec_env)
    with _fit_check(cls, path, overrides), contents_of(path, cls.kind, alone=env is None and not overrides):
        agent = _rebuilt(cls, stored, overrides, vec_env, device)
    if agent.policy.uses_previous_reward:
        if agent.scale_rewards != (trained := stored.settings["scale_rewards"]):
            raise ConfigError(
                f"scale_rewards={agent.scale_rewards}: the policy reads rewards and was trained with "
                f"scale_rewards={trained}; leave it out"
            )
        if vec_env is not None:
            check_same_rewards(vec_env, packed)
    same_envs = stored.n_envs == agent.all_envs
    with _fit_check(cls, path, overrides), contents_of(path, cls.kind):
        tensors = _own_rows(agent, stored.tensors) if same_envs else stored.tensors
        _restore(agent, tensors, agent.n_envs if same_envs else stored.n_envs)
    with contents_of(path, cls.kind):
        if overrides.get("seed") is not None:
            agent._begin_streams(agent.seed)
        if packed is not None and vec_env is None:
            agent._loaded_normalization = checked_normalization(packed, tree_space(agent.observation_space))
        elif packed is not None:
            set_statistics(cast(VecNormalize, agent._vec_normalize_env), packed, agent.sharing)
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
            agent._restore_place(tensors)
    return agent


def describe(cls: Any, checkpoint: Checkpoint) -> Stored:
    """The agent of a checkpoint, each part of its description checked."""
    values, tensors = checkpoint.settings, checkpoint.tensors
    known = {name: values[name] for name in cls.setting_names() if name in values and name != "tensorboard_log"}
    settings = check_settings(setting_hints(cls), known, "settings.")
    keywords = restored_kwargs(settings["policy_kwargs"] or {})
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
    refuse_unknown(overrides, cls.setting_names(), source="load")
    replaced = replaced_settings(custom_objects, cls.setting_names()) | dict(overrides)
    if outdated := [name for name in cls.first_values if name in replaced]:
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
        check_same_network(stored.settings.get("policy_kwargs") or {}, replaced["policy_kwargs"])
    return replaced


def _rebuilt(cls: Any, stored: Stored, overrides: Mapping[str, Any], env: VecEnv | None, device: torch.device) -> Any:
    """The agent that a checkpoint describes, with new weights, unless the file has fewer than it describes."""
    settings = stored.settings | dict(overrides)
    agent = cls(stored.policy, env, device=device, _init_setup_model=False, **settings)
    if env is None:
        (agent.observation_space, agent.action_space), agent.n_envs = stored.spaces, stored.n_envs
    backbone = BackboneConfig.from_dict(agent.policy_kwargs.get("backbone") or {})
    acting = check(stored.tensors["acting"]["actor"], Mapping[str, Any], "acting.actor")
    check_stored_size(backbone, stored.tensors["policy"], acting, stored.n_envs)
    agent._setup_model()
    return agent


def _restore(agent: Any, tensors: Mapping[str, Any], n_envs: int) -> None:
    """Restore everything but the place where acting stopped; ``n_envs`` is the number of environments then."""
    carry, scale = agent.carry, agent._scale
    restore_weights(agent.policy, tensors["policy"])
    restore_optimizer(agent.policy.optimizer, tensors["optimizer"])
    restore_generators({name: getattr(agent, name) for name in GENERATORS}, tensors["generators"])
    restore_progress(agent, tensors)
    check_same(tensors["acting"], carry.acting.tensors(), "acting", n_envs)
    if scale is not None and tensors["reward_scale"] is not None:
        scale.restore(tensors["reward_scale"], tensors["running_returns"], n_envs)
    agent._metrics = UnwrittenMetrics(unpack_arrays(tensors["metrics"]))
    segment = stored_segment(tensors["segment"], agent.policy, n_envs, agent.device)
    carry.segment = segment if n_envs == agent.n_envs else None
    agent._restore_own(tensors, n_envs)


def restore_place(agent: Any, tensors: Mapping[str, Any]) -> None:
    """Let an agent go on where acting stopped: its memory and the newest observations."""
    agent.carry.acting = PolicyState.from_tensors(on_device(tensors["acting"], agent.device))
    restore_observation(agent, tensors)


def _own_rows(agent: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    """Rows of the environments of this process in the tensors of a checkpoint that have one for each."""
    sharing = agent.sharing
    if sharing.is_single:
        return tensors
    block = sharing.block(agent.n_envs)
    own = tensors | {name: rows_of(tensors[name], block) for name in agent.of_environments}
    if (packed := own["normalisation"]) is not None:
        own["normalisation"] = packed | {"running_returns": rows_of(packed["running_returns"], block)}
    if (state := own["environment"]) is not None:
        own["environment"] = pack_arrays(part_of_state(unpack_arrays(state), sharing.rank, sharing.size))
    return own


@contextmanager
def _fit_check(cls: Any, path: File, overrides: Mapping[str, Any]) -> Iterator[None]:
    """Within the block, that a checkpoint does not fit its agent is a fault of ``overrides`` if it fits without.

    Raises:
        ConfigError: names the overrides.
    """
    try:
        yield
    except CheckpointError as error:
        if not overrides:
            raise
        if isinstance(path, str | os.PathLike):
            cls.load(path, device="cpu")  # refuses a file that is broken
        raise ConfigError(
            f"what {file_name(path)} holds does not fit with {', '.join(overrides)} replaced "
            f"({one_line(error.__cause__)}); a setting that changes the network, its memory or its optimiser "
            "cannot be replaced on load: leave it out"
        ) from error
