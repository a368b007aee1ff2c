"""From an environment id to environments, single and vectorised, with clear errors for ids, packages and spaces."""

import difflib
import importlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecMonitor

from rltransformers.core.errors import ConfigError, MissingExtraError, did_you_mean, one_line, require
from rltransformers.core.guard import ENVIRONMENT_ERRORS, CheckedEnv, FiniteVecEnv
from rltransformers.core.ranges import Environments, check
from rltransformers.core.spaces import check_supported, is_nested
from rltransformers.envs.vector import GymnasiumVecEnv, SerialVecEnv
from rltransformers.envs.wrappers import WRAPPERS, CopyObservation, FlatDict, check_observation_space

Env = gymnasium.Env[Any, Any]
WrapperConfig = str | Mapping[str, Any]
WrapperFunction = Callable[[Env], Env]

SUITES = {
    "popgym-": ("popgym", "popgym"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
    "ALE/": ("ale_py", "atari"),
}
"""Prefix of an id → (module that registers it, extra of this package that installs it)."""


def make_vec_env(
    env_id: str,
    num_envs: int = 1,
    *,
    seed: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[WrapperConfig | WrapperFunction] = (),
    processes: bool = False,
    monitor: bool = True,
) -> VecEnv:
    """``num_envs`` copies of an environment, guarded against NaN and with episode statistics in the infos.

    Our own tasks run as one numpy program unless wrappers or processes are asked for; others one after another in this
    process. Nested observations arrive as one flat Dict keyed by path.

    Args:
        env_id: a registered id; "module:id" imports the module first. Packages of known suites are imported by need.
        seed: of the first copy, copy i gets seed + i at the first reset; None is random.
        env_kwargs: for the environment's constructor.
        wrappers: applied in order; each a name, {"name": ..., option: ...}, or a function of an environment. Names are
            those in ``WRAPPERS``, those of ``gymnasium.wrappers``, or "module:Class".
        processes: one process per copy (the script needs an ``if __name__ == "__main__"`` guard).
        monitor: adds ``infos[i]["episode"]`` (return, length, time) at episode ends.

    Raises:
        ConfigError: for an unknown id, wrapper or option, and for spaces that no encoder or head takes.
        MissingExtraError: when the package behind the id is not installed.
    """
    spec, options = find_spec(env_id), dict(env_kwargs or {})
    venv: VecEnv
    if processes:
        make_env(spec, env_kwargs=options, wrappers=wrappers).close()  # an error in a worker is a broken pipe
        copies = _copies(spec, num_envs, options, wrappers, relay=True)
        venv = SubprocVecEnv([partial(_in_worker, copy) for copy in copies])
    elif _is_program(spec, wrappers):
        venv = GymnasiumVecEnv(_make_program(spec, num_envs, {"autoreset_mode": "SameStep"} | options))
    else:
        venv = SerialVecEnv(_copies(spec, num_envs, options, wrappers))
    if seed is not None:
        venv.seed(seed)
    venv = FiniteVecEnv(venv)
    return VecMonitor(venv) if monitor else venv


def make_vector_env(
    env_id: str,
    num_envs: int = 1,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[WrapperConfig | WrapperFunction] = (),
) -> VectorEnv[Any, Any, Any]:
    """As ``make_vec_env``, but a vector environment of Gymnasium that waits at the end of an episode for a reset.

    Nested observations stay nested. Values are not watched: who steps it calls ``attempt`` and ``check_outcome``.

    Raises:
        ConfigError, MissingExtraError: as ``make_vec_env``.
    """
    spec, options = find_spec(env_id), dict(env_kwargs or {})
    if _is_program(spec, wrappers):
        return _make_program(spec, num_envs, options | {"autoreset_mode": AutoresetMode.DISABLED.value})
    copies = _copies(spec, num_envs, options, wrappers, flat=False)
    return SyncVectorEnv(copies, autoreset_mode=AutoresetMode.DISABLED)


def _copies(
    spec: EnvSpec,
    num_envs: int,
    options: dict[str, Any],
    wrappers: Sequence[WrapperConfig | WrapperFunction],
    *,
    flat: bool = True,
    relay: bool = False,
) -> list[Callable[[], Env]]:
    """Functions that make the copies, each checked; ``relay`` as for ``CheckedEnv``."""

    def build(index: int) -> Env:
        return CheckedEnv(make_env(spec, env_kwargs=options, wrappers=wrappers, flat=flat), index, relay)

    return [partial(build, index) for index in range(check(num_envs, Environments, "num_envs"))]


def _is_program(spec: EnvSpec, wrappers: Sequence[Any]) -> bool:
    """Whether all copies run as one numpy program: our own tasks, as long as nothing is wrapped around a single one."""
    return not wrappers and str(spec.vector_entry_point).startswith("rltransformers.")


def _in_worker(build: Callable[[], Env]) -> Env:
    """An environment in a process that leaves it to its parent what an interruption or a closed terminal means.

    Both signals reach all processes of a terminal: workers that died of them would break the update a run finishes.
    """
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    return build()


def make_env(
    env: str | EnvSpec,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[WrapperConfig | WrapperFunction] = (),
    flat: bool = True,
) -> Env:
    """One environment with its wrappers and, where observations are nested, ``FlatDict`` (unless ``flat`` is False).

    Other arguments and errors are those of ``make_vec_env``. Observations are copied first (``CopyObservation``).
    Gymnasium's passive checker is off: some suites do not pass it.
    """
    spec = find_spec(env) if isinstance(env, str) else env
    made: Env = CopyObservation(_make(spec, dict(env_kwargs or {})))
    for wrapper in wrappers:
        made = wrapper(made) if callable(wrapper) else _wrap(made, wrapper)
    _check_spaces(spec.id, made)
    return FlatDict(made) if flat and is_nested(made.observation_space) else made


def find_spec(env_id: str) -> EnvSpec:
    """The registered specification of ``env_id``, after importing the package that registers it.

    Raises:
        ConfigError: when no environment has this id; names the closest ones.
        MissingExtraError: when the id belongs to a known suite that is not installed.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{env_id!r} asks for the module {module!r}, which cannot be imported: {error_line(error)}"
            ) from error
    for prefix, (suite, extra) in SUITES.items():
        if name.startswith(prefix) and name not in gymnasium.registry:
            require(suite, extra)
    if name not in gymnasium.registry:
        raise ConfigError(f"no environment is registered as {name!r}; {_close_ids(name)}")
    return gymnasium.spec(name)


def _close_ids(name: str) -> str:
    """The closest registered ids, with or without their namespace, in any case of letters."""
    ids = {key.lower(): key for key in gymnasium.registry}
    bare = {key.rpartition("/")[2]: key for key in ids}
    wanted = name.lower()
    close = difflib.get_close_matches(wanted, ids, n=2) + [
        bare[match] for match in difflib.get_close_matches(wanted.rpartition("/")[2], bare, n=2)
    ]
    if not close:
        return "gymnasium.pprint_registry() lists all; give 'module:id' when a module of yours registers it"
    return f"did you mean {' or '.join(repr(ids[key]) for key in dict.fromkeys(close))}?"


def _make(spec: EnvSpec, options: dict[str, Any]) -> Env:
    with _construction(spec, options):
        return gymnasium.make(spec, disable_env_checker=True, **options)


def _make_program(spec: EnvSpec, num_envs: int, options: dict[str, Any]) -> VectorEnv[Any, Any, Any]:
    count = check(num_envs, Environments, "num_envs")
    with _construction(spec, options):
        return gymnasium.make_vec(spec, count, vectorization_mode="vector_entry_point", **options)


@contextmanager
def _construction(spec: EnvSpec, options: dict[str, Any]) -> Iterator[None]:
    """What a constructor raises, as an error of ours that names the environment."""
    try:
        yield
    except gymnasium.error.DependencyNotInstalled as error:
        extra = ": pip install 'rltransformers[mujoco]'" if ".mujoco." in str(spec.entry_point) else ""
        raise MissingExtraError(f"{spec.id} needs a package that is not installed{extra} ({error})") from error
    except ConfigError as error:
        raise ConfigError(f"env_kwargs of {spec.id}: {error}") from error
    except ENVIRONMENT_ERRORS:
        raise
    except Exception as error:  # whatever a constructor raises for keywords that it was not made for
        raise ConfigError(f"{spec.id} cannot be made with env_kwargs {options}: {error_line(error)}") from error


def error_line(error: Exception) -> str:
    """An error of somebody else's code in one line."""
    return f"{type(error).__name__}: {one_line(error)}"


def _wrap(env: Env, wrapper: WrapperConfig) -> Env:
    options = {"name": wrapper} if isinstance(wrapper, str) else dict(wrapper) if isinstance(wrapper, Mapping) else {}
    name = options.pop("name", None)
    if not isinstance(name, str) or not all(isinstance(option, str) for option in options):
        raise ConfigError(f"a wrapper is a name or {{'name': ..., option: ...}}, got {wrapper!r}")
    wrapper_type = _wrapper_type(name)
    try:
        return wrapper_type(env, **options)
    except ENVIRONMENT_ERRORS:
        raise
    except Exception as error:
        raise ConfigError(f"wrapper {name} does not take the options {options}: {error_line(error)}") from error


def _wrapper_type(name: str) -> type[gymnasium.Wrapper[Any, Any, Any, Any]]:
    if name in WRAPPERS:
        return WRAPPERS[name]
    module, _, class_name = name.rpartition(":")
    try:
        found = getattr(importlib.import_module(module or "gymnasium.wrappers"), class_name, None)
    except (ImportError, TypeError, ValueError) as error:
        raise ConfigError(f"wrapper {name!r}: the module {module!r} cannot be imported ({error})") from error
    if not (isinstance(found, type) and issubclass(found, gymnasium.Wrapper)):
        known = [*WRAPPERS, *gymnasium.wrappers.__all__]
        raise ConfigError(f"unknown wrapper {name!r}; {did_you_mean(name, known)}")
    return found


def _check_spaces(env_id: str, env: Env) -> None:
    try:
        check_observation_space(env.observation_space)
        check_supported(env.action_space, "action")
    except ConfigError as error:
        raise ConfigError(f"{env_id}: {error}") from error
