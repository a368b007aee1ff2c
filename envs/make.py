"""From an environment id to environments, single and vectorized, with clear errors for ids, packages and spaces."""

import errno
import inspect
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from rltransformers.core.checked_env import ENVIRONMENT_ERRORS, CheckedEnv
from rltransformers.core.errors import (
    ConfigError,
    MissingExtraError,
    did_you_mean,
    error_line,
    one_line,
    refuse_unknown,
)
from rltransformers.core.guard import FiniteVecEnv
from rltransformers.core.modules import SAFE_PATH, named_object, safe_path
from rltransformers.core.ranges import Environments, Processes, Seed, annotations, check, shown, suggesting
from rltransformers.core.registry import GLOBAL_RANDOMNESS, find_spec
from rltransformers.core.seeding import branch_seeds, seed_environments
from rltransformers.core.spaces import check_supported, is_nested
from rltransformers.envs.pool import EnvPoolVector, check_pool_id
from rltransformers.envs.tensors import TensorVecEnv
from rltransformers.envs.tensors.tasks import tensor_source
from rltransformers.envs.vector import GymnasiumVecEnv, SerialVecEnv, with_statistics
from rltransformers.envs.wrappers import WRAPPERS, CopyObservation, FlatDict, GlobalSeed, check_observation_space

Env = gymnasium.Env[Any, Any]
WrapperConfig = str | Mapping[str, Any]
WrapperFunction = Callable[[Env], Env]
Wrappers = Sequence[WrapperConfig | WrapperFunction]
Source = EnvSpec | Callable[..., Env] | Env
"""A specification, a function or class that makes an environment, or an environment."""
EnvironmentSource = str | Source
"""The same, or an id."""


@suggesting
def make_vec_env(
    env_id: EnvironmentSource,
    num_envs: int = 1,
    *,
    seed: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Wrappers = (),
    processes: Processes = False,
    monitor: bool = True,
) -> VecEnv:
    """``num_envs`` copies of an environment, guarded against NaN and with episode statistics in the infos.

    Our own tasks run as one numpy program unless wrappers or processes are asked for; others one after another in this
    process. Nested observations arrive as one flat Dict keyed by path.

    Args:
        env_id: a registered id; "module:id" imports the module first, also one in the current folder. Packages of known
            suites are imported by need. In place of an id a specification, a function or a class that makes an
            environment from ``env_kwargs``, or one environment, of which there are no copies.
        seed: of all copies, each of which draws from a stream of its own, from the first reset on; None is random.
        env_kwargs: for the environment's constructor.
        wrappers: applied in order; each a name, {"name": ..., option: ...}, or a function of an environment. Names are
            those in ``WRAPPERS``, those of ``gymnasium.wrappers``, or "module:Class".
        processes: who steps the copies. False: this process. True: a process for each (``SubprocVecEnv``; the script
            needs an ``if __name__ == "__main__"`` guard). "envpool": threads of EnvPool, where the id is one of
            EnvPool's, ``env_kwargs`` are keywords of ``envpool.make``, and there are no wrappers. "tensors": a program
            on a device, as a ``TensorVecEnv``; ids are those in ``TENSOR_TASKS`` and "module:function", which is called
            with ``num_envs``, ``device`` ("auto" unless ``env_kwargs`` say another) and ``env_kwargs``; no wrappers.
        monitor: adds ``infos[i]["episode"]`` (return, length, time) at episode ends, unless the environment has a
            ``Monitor`` of its own; a ``TensorVecEnv`` always has them, but for the time.

    Raises:
        ConfigError: for an unknown id, wrapper or option, and for spaces that no encoder or head takes.
        MissingExtraError: when the package behind the id, or EnvPool, is not installed.
    """
    options = _checked(env_kwargs, wrappers)
    seed = check(seed, Seed | None, "seed")
    check(processes, Processes, "processes")
    check(monitor, bool, "monitor")
    venv: VecEnv
    if processes == "tensors":
        venv = _make_tensors(env_id, num_envs, options, wrappers)
    elif processes == "envpool":
        venv = GymnasiumVecEnv(_make_pool(env_id, num_envs, options, wrappers))
    else:
        source = environment_source(env_id, num_envs, options)
        if processes:
            venv = _in_processes(source, num_envs, options, wrappers)
        elif isinstance(source, EnvSpec) and _is_program(source, wrappers):
            venv = GymnasiumVecEnv(_make_program(source, num_envs, options, AutoresetMode.SAME_STEP))
        else:
            venv = SerialVecEnv(_copies(source, num_envs, options, wrappers))
    if seed is not None:
        seed_environments(venv, branch_seeds(seed, "environment", venv.num_envs))
    if processes == "tensors":
        return venv
    venv = FiniteVecEnv(venv)
    return with_statistics(venv) if monitor else venv


def make_vector_env(
    env_id: EnvironmentSource,
    num_envs: int = 1,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Wrappers = (),
) -> VectorEnv[Any, Any, Any]:
    """As ``make_vec_env``, but a vector environment of Gymnasium that waits at the end of an episode for a reset.

    Nested observations stay nested. Values are not watched: who steps it calls ``attempt`` and ``check_outcome``.
    Errors are those of ``make_vec_env``.
    """
    options = _checked(env_kwargs, wrappers)
    source = environment_source(env_id, num_envs, options)
    if isinstance(source, EnvSpec) and _is_program(source, wrappers):
        return _make_program(source, num_envs, options, AutoresetMode.DISABLED)
    copies = _copies(source, num_envs, options, wrappers, flat=False)
    return SyncVectorEnv(copies, autoreset_mode=AutoresetMode.DISABLED)


def source_name(source: EnvironmentSource) -> str:
    """Return the name of an environment for messages."""
    if isinstance(source, EnvSpec):
        return source.id
    if isinstance(source, gymnasium.Env):
        return source.spec.id if source.spec is not None else type(source.unwrapped).__name__
    return str(getattr(source, "__qualname__", source))


@contextmanager
def construction(source: EnvironmentSource, options: Mapping[str, Any]) -> Iterator[None]:
    """Turn exceptions of a constructor into an error of ours that names the environment."""
    try:
        yield
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        mujoco = ".mujoco." in str(getattr(source, "entry_point", ""))
        extra = ": pip install 'rltransformers[mujoco]'" if mujoco else ""
        raise MissingExtraError(
            f"{source_name(source)} needs a package that is not installed{extra} ({one_line(error)})"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"env_kwargs of {source_name(source)}: {error}") from error
    except ENVIRONMENT_ERRORS:
        raise
    except Exception as error:  # whatever a constructor raises for keywords that it was not made for
        raise ConfigError(
            f"{source_name(source)} cannot be made with env_kwargs {dict(options)}: {error_line(error)}"
        ) from error


def make_by(function: Callable[..., Any], options: Mapping[str, Any]) -> Env:
    """Make an environment with ``function``; ConfigError if that raises an exception, or makes something else."""
    with construction(function, options):
        env = function(**options)
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(
            f"{source_name(function)} makes {shown(env)}, which is no environment of Gymnasium; a function makes one "
            "environment, and vector environments are given themselves"
        )
    return env


def environment_source(env: Any, num_envs: int = 1, env_kwargs: Mapping[str, Any] | None = None) -> Source:
    """Source of environments: an id as its specification, everything else as it is.

    Raises:
        ConfigError: for an unknown id, for what makes no environment, and for copies or keywords of one environment.
        MissingExtraError: when the package behind the id is not installed.
    """
    if isinstance(env, str):
        return find_spec(env)
    if isinstance(env, gymnasium.Env):
        if num_envs != 1 or env_kwargs:
            raise ConfigError(
                f"{shown(env)} is one environment, which has no copies and takes no env_kwargs; give its id, or a "
                "function that makes one"
            )
        return env
    if isinstance(env, EnvSpec) or callable(env):
        return env
    if isinstance(env, VecEnv | VectorEnv):
        raise ConfigError(
            f"{type(env).__name__} holds environments already, and is not reset one by one here; give an id, a "
            "function that makes an environment, or one environment"
        )
    raise ConfigError(
        f"an environment is given as an id, a function that makes one, or an object of Gymnasium, not {shown(env)}"
    )


def _copies(
    source: Source, num_envs: int, options: dict[str, Any], wrappers: Wrappers, flat: bool = True, relay: bool = False
) -> list[Callable[[], Env]]:
    """Functions that make the copies, each checked; ``relay`` as for ``CheckedEnv``."""

    def build(index: int) -> Env:
        return CheckedEnv(make_env(source, env_kwargs=options, wrappers=wrappers, flat=flat), index, relay)

    return [partial(build, index) for index in range(check(num_envs, Environments, "num_envs"))]


def _in_processes(source: Source, num_envs: int, options: dict[str, Any], wrappers: Wrappers) -> VecEnv:
    """A process for each copy."""
    if isinstance(source, gymnasium.Env):
        raise ConfigError("an environment cannot be taken into another process; give a function that makes it")
    make_env(source, env_kwargs=options, wrappers=wrappers).close()  # an error in a worker is a broken pipe
    here, safe = os.getpid(), SAFE_PATH in os.environ
    copies: list[Callable[[], Env]] = [
        partial(_in_worker, copy, here, safe) for copy in _copies(source, num_envs, options, wrappers, relay=True)
    ]
    try:
        with safe_path():
            return SubprocVecEnv(copies)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise ConfigError(
            f"num_envs {num_envs} with a process each (processes) needs more open files than the system allows; take "
            "fewer, or processes false, or raise the limit (ulimit -n)"
        ) from error


def _make_pool(env_id: EnvironmentSource, num_envs: int, options: dict[str, Any], wrappers: Wrappers) -> EnvPoolVector:
    if not isinstance(env_id, str):
        raise ConfigError(f"EnvPool makes environments of ids of its own, not of {shown(env_id)}; leave 'envpool' out")
    if wrappers:
        raise ConfigError(
            f"EnvPool has no single environments that wrappers {list(wrappers)} could go around; leave them out, or "
            "take processes true"
        )
    count = check(num_envs, Environments, "num_envs")
    check_pool_id(env_id)
    with construction(env_id, options):
        return EnvPoolVector(env_id, count, options)


def _make_tensors(
    env_id: EnvironmentSource, num_envs: int, options: dict[str, Any], wrappers: Wrappers
) -> TensorVecEnv:
    if wrappers:
        raise ConfigError(
            f"environments in tensors have no single ones that wrappers {list(wrappers)} could go around; leave them "
            "out, or processes"
        )
    if isinstance(env_id, str):
        make, given = tensor_source(env_id)
    elif callable(env_id) and not isinstance(env_id, gymnasium.Env):
        make, given = env_id, {}
    else:
        raise ConfigError(f"environments in tensors are made of an id or a function, not of {shown(env_id)}")
    keywords = {"num_envs": check(num_envs, Environments, "num_envs"), "device": "auto"} | given | options
    with construction(env_id, options):
        env = make(**keywords)
    if not isinstance(env, TensorVecEnv):
        raise ConfigError(
            f"{shown(env_id)} makes {shown(env)}, which is no TensorVecEnv of rltransformers.envs.tensors"
        )
    return env


def _is_program(spec: EnvSpec, wrappers: Wrappers) -> bool:
    """Whether all copies run as one numpy program: our own tasks, as long as nothing is wrapped around a single one."""
    return not wrappers and str(spec.vector_entry_point).startswith("rltransformers.")


def _in_worker(build: Callable[[], Env], parent: int, safe: bool) -> Env:
    """An environment in a process that leaves it to ``parent`` what an interruption or a closed terminal means.

    Both signals reach all processes of a terminal: workers that died of them would break the update a run finishes.
    Programs that the environment starts find their modules as those of ``parent`` do, which is ``safe`` or not.
    """
    if not safe and os.getpid() != parent:
        os.environ.pop(SAFE_PATH, None)
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name) and os.getpid() != parent:
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    return build()


def make_env(
    env: EnvironmentSource, *, env_kwargs: Mapping[str, Any] | None = None, wrappers: Wrappers = (), flat: bool = True
) -> Env:
    """One environment with its wrappers and, where observations are nested, ``FlatDict`` (unless ``flat`` is False).

    Other arguments and errors are those of ``make_vec_env``. Observations are copied first (``CopyObservation``), and
    ids in ``GLOBAL_RANDOMNESS`` get ``GlobalSeed``. Gymnasium's passive checker is off: some suites do not pass it.
    """
    options = _checked(env_kwargs, wrappers)
    source = environment_source(env, 1, options)
    if isinstance(source, EnvSpec):
        with construction(source, options):
            bare: Env = gymnasium.make(source, disable_env_checker=True, **options)
    else:
        bare = source if isinstance(source, gymnasium.Env) else make_by(source, options)
    wrapped: Env = CopyObservation(bare)
    if isinstance(source, EnvSpec) and source.id.startswith(GLOBAL_RANDOMNESS):
        wrapped = GlobalSeed(wrapped)
    for wrapper in wrappers:
        wrapped = wrapper(wrapped) if callable(wrapper) else _wrap(wrapped, wrapper)
        if not isinstance(wrapped, gymnasium.Env):
            raise ConfigError(
                f"the wrapper {shown(wrapper)} makes {shown(wrapped)}, which is no environment of Gymnasium"
            )
    try:
        check_observation_space(wrapped.observation_space)
        check_supported(wrapped.action_space, "action")
    except ConfigError as error:
        raise ConfigError(f"{source_name(source)}: {error}") from error
    return FlatDict(wrapped) if flat and is_nested(wrapped.observation_space) else wrapped


def _checked(env_kwargs: Any, wrappers: Any) -> dict[str, Any]:
    """``env_kwargs`` as a dictionary of its own, where they and the list of wrappers are what they have to be."""
    if isinstance(wrappers, str | Mapping):
        raise ConfigError(f"wrappers is a list, also of a single one: write [{wrappers!r}]")
    check(wrappers, Sequence[Any], "wrappers")
    return dict(check(env_kwargs, Mapping[str, Any] | None, "env_kwargs") or {})


def _make_program(
    spec: EnvSpec, num_envs: int, options: dict[str, Any], mode: AutoresetMode
) -> VectorEnv[Any, Any, Any]:
    count = check(num_envs, Environments, "num_envs")
    if "autoreset_mode" in options:
        raise ConfigError("env_kwargs: how episodes are reset is not theirs to choose; leave autoreset_mode out")
    with construction(spec, options):
        program: dict[str, Any] = {"vectorization_mode": "vector_entry_point", "autoreset_mode": mode.value}
        return gymnasium.make_vec(spec, count, **options, **program)


def check_wrapper(wrapper: WrapperConfig) -> None:
    """Raise ConfigError for what names no wrapper; of "module:Class" no module is imported to see that."""
    name, _ = _read_wrapper(wrapper)
    if ":" not in name:
        _wrapper_type(name)


def _read_wrapper(wrapper: WrapperConfig) -> tuple[str, dict[str, Any]]:
    options = {"name": wrapper} if isinstance(wrapper, str) else dict(wrapper) if isinstance(wrapper, Mapping) else {}
    name = options.pop("name", None)
    if not isinstance(name, str) or not all(isinstance(option, str) for option in options):
        raise ConfigError(f"a wrapper is a name or {{'name': ..., option: ...}}, got {wrapper!r}")
    return name, options


def _wrap(env: Env, wrapper: WrapperConfig) -> Env:
    name, options = _read_wrapper(wrapper)
    wrapper_type = _wrapper_type(name)
    if name in WRAPPERS:  # of others, some hand keywords on that they do not name
        refuse_unknown(options, [each for each in annotations(wrapper_type.__init__) if each != "env"], f"{name}.")
    else:
        options = _with_tuples(wrapper_type, options)
    try:
        return wrapper_type(env, **options)
    except ENVIRONMENT_ERRORS:
        raise
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise _missing_package(name, error) from error
    except Exception as error:
        raise ConfigError(f"wrapper {name} does not take the options {options}: {error_line(error)}") from error


def _with_tuples(wrapper_type: type[gymnasium.Wrapper[Any, Any, Any, Any]], options: dict[str, Any]) -> dict[str, Any]:
    """Turn lists into tuples where the wrapper's annotation names one: YAML and JSON write lists alone."""
    parameters = inspect.signature(wrapper_type.__init__).parameters
    tuples = {name for name, parameter in parameters.items() if "tuple[" in str(parameter.annotation)}
    return {
        name: tuple(value) if name in tuples and isinstance(value, list) else value for name, value in options.items()
    }


def _missing_package(name: str, error: Exception) -> MissingExtraError:
    extra = ": pip install 'rltransformers[atari]'" if name == "AtariPreprocessing" else ""
    return MissingExtraError(f"wrapper {name} needs a package that is not installed{extra} ({one_line(error)})")


def _wrapper_type(name: str) -> type[gymnasium.Wrapper[Any, Any, Any, Any]]:
    if name in WRAPPERS:
        return WRAPPERS[name]
    try:
        wrapper_type = named_object(name, "wrapper") if ":" in name else getattr(gymnasium.wrappers, name, None)
    except ImportError as error:  # Gymnasium imports what a wrapper needs when it is named
        raise _missing_package(name, error) from error
    if not (isinstance(wrapper_type, type) and issubclass(wrapper_type, gymnasium.Wrapper)):
        known = [*WRAPPERS, *(each for each in gymnasium.wrappers.__all__ if each[0].isupper())]  # no modules
        raise ConfigError(f"unknown wrapper {name!r}; {did_you_mean(name, known)}")
    return wrapper_type
