"""Policies that fill a data set in B environments: random actions, Stable-Baselines3 files, functions, and mixtures.

Stable-Baselines3 files hold pickled objects: loading one runs code from it. Load files of people you trust only.
"""

import importlib
import inspect
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy

from rltransformers.core.action_masks import ACTION_MASK, check_masks, first_allowed, is_mask
from rltransformers.core.errors import ConfigError, DataError, did_you_mean
from rltransformers.core.modules import named_object
from rltransformers.core.ranges import fits, shown
from rltransformers.core.spaces import Space, check_supported, leaf_spaces, nest_leaves, nested_leaves
from rltransformers.core.values import Array, Bools
from rltransformers.envs import memory_rules

_SB3 = {"stable_baselines3": "PPO A2C SAC TD3 DDPG DQN", "sb3_contrib": "TQC TRPO ARS QRDQN RecurrentPPO"}
SB3_ALGORITHMS = {name.lower(): (module, name) for module, names in _SB3.items() for name in names.split()}
"""Word of a text → module and class of Stable-Baselines3 or sb3-contrib."""


@runtime_checkable
class Behavior(Protocol):
    """Anything that acts in B environments at once."""

    def act(self, observations: Any, episode_starts: Bools, generator: np.random.Generator) -> Any:
        """A batch of B actions for a batch of observations, both nested as the environment's spaces are.

        ``episode_starts`` [B] marks first observations of episodes: forget what came before. All are set on the first
        call. Randomness comes from ``generator`` alone. An ``act`` that also has the argument ``rewards`` gets those of
        the last step [B], zeros on the first call.
        """


BehaviorLoader = Callable[[str, Space, Space, bool], Behavior]
"""(argument behind the colon, observation space, action space, deterministic) -> behavior."""


def load_behavior(spec: str, observation_space: Space, action_space: Space, *, deterministic: bool = False) -> Behavior:
    """The behavior that a text names, for environments with the given spaces of one environment.

    Args:
        spec: one of
            - "random": uniform actions, of those that a leaf ``action_mask`` of the observation allows;
            - "sb3:<algorithm>:<zip>[:<statistics>]": a Stable-Baselines3 or sb3-contrib policy, with the VecNormalize
              file (.pkl, unpickled too) that it was trained with, or an .npz of its arrays mean, var, epsilon, clip_obs
              and norm_obs. Without it, files beside the policy as rl-zoo lays them out are used: ``<zip without
              suffix>/obs_norm.npz`` or ``/vecnormalize.pkl``;
            - "demonstration:<task>": what people would do in a task of this package, as "demonstration:TwoGates";
            - "checkpoint:<path>": an agent of this library, and "export:<path>": a policy that ``export`` of an agent
              wrote; both on the command line only (in Python ``load_agent(path).actor()``, ``Actor.from_export``);
            - "<module>:<name>": a function with the arguments of ``Behavior.act``, an object with that method, or a
              class that is called with the two spaces and makes such an object.
        deterministic: take the mode of stochastic policies instead of a sample.

    Raises:
        ConfigError: for a text of another form, or one that names nothing.
        DataError: for a file that cannot be read, or belongs to other spaces.
    """
    kind, _, argument = spec.partition(":")
    if kind == "random" and not argument:
        return Random(action_space, observation_space=observation_space)
    if kind in _LOADERS:
        return _LOADERS[kind](argument, observation_space, action_space, deterministic)
    if kind in ("checkpoint", "export"):
        made = "load_agent(path).actor()" if kind == "checkpoint" else "Actor.from_export(path)"
        raise ConfigError(f"{kind!r} is a text of the command line; in Python give {made} of rltransformers.agents")
    if not argument:
        known = "random, demonstration:<task>, sb3:<algorithm>:<zip>, checkpoint:<path>, export:<path>, <module>:<name>"
        raise ConfigError(f"the behavior {spec!r} is none of: {known}")
    actor = named_object(spec, "behavior")
    if isinstance(actor, type):
        _check_called(actor, argument, ("observation_space", "action_space"))
        actor = actor(observation_space, action_space)
    behavior = as_behavior(actor, observation_space, action_space, deterministic=deterministic)
    if isinstance(behavior, FunctionBehavior):
        behavior.name = spec
    return behavior


def register_behavior(kind: str, loader: BehaviorLoader) -> None:
    """Make "<kind>:<argument>" a behavior text."""
    _LOADERS[kind] = loader


@dataclass
class Random:
    """Independent uniform actions; unbounded components of a Box are standard normal.

    A leaf ``action_mask`` of the observation is kept to: actions are uniform among those that it allows.
    """

    action_space: Space
    name: str = "random"
    observation_space: Space | None = None

    def __post_init__(self) -> None:
        check_supported(self.action_space, "action")
        leaves = {} if self.observation_space is None else leaf_spaces(self.observation_space)
        self._masked = is_mask(leaves.get(ACTION_MASK), self.action_space)

    def act(self, observations: Any, episode_starts: Bools, generator: np.random.Generator) -> Any:
        batch = len(episode_starts)
        leaves = {path: _random_leaf(leaf, batch, generator) for path, leaf in leaf_spaces(self.action_space).items()}
        if self._masked:
            masks = nested_leaves(observations)[ACTION_MASK]
            check_masks(masks, self.action_space)
            leaves |= first_allowed(masks, self.action_space, 1.0 - generator.random(masks.shape))
        return nest_leaves(self.action_space, leaves)


def _random_leaf(space: Space, batch: int, generator: np.random.Generator) -> Array:
    if isinstance(space, spaces.Discrete):
        return generator.integers(space.start, space.start + space.n, batch).astype(space.dtype, copy=False)
    if isinstance(space, spaces.MultiDiscrete):
        draws = generator.integers(space.start, space.start + space.nvec, (batch, *space.shape))
        return draws.astype(space.dtype, copy=False)
    if isinstance(space, spaces.MultiBinary):
        return generator.integers(0, 2, (batch, *space.shape), dtype=np.int8)
    assert isinstance(space, spaces.Box)
    if space.dtype.kind != "f":
        high = space.high.astype(np.int64) + 1
        return generator.integers(space.low.astype(np.int64), high, (batch, *space.shape)).astype(space.dtype)
    bounded = np.isfinite(space.low) & np.isfinite(space.high)
    low, high = np.where(bounded, space.low, 0.0), np.where(bounded, space.high, 1.0)
    uniform = low + (high - low) * generator.random((batch, *space.shape))
    if bounded.all():
        return uniform.astype(space.dtype)
    normal = np.clip(generator.standard_normal((batch, *space.shape)), space.low, space.high)
    return np.where(bounded, uniform, normal).astype(space.dtype)


@dataclass
class FunctionBehavior:
    """A function with the arguments of ``Behavior.act``, without rewards."""

    function: Callable[[Any, Bools, np.random.Generator], Any]
    name: str = "function"

    def act(self, observations: Any, episode_starts: Bools, generator: np.random.Generator) -> Any:
        return self.function(observations, episode_starts, generator)


def as_behavior(
    behavior: "Behavior | BaseAlgorithm | BasePolicy | str | Callable[..., Any]",
    observation_space: Space,
    action_space: Space,
    *,
    deterministic: bool = False,
) -> Behavior:
    """A behavior from whatever can act: the ``behavior`` of ``record``, but for mixtures; ConfigError for the rest.

    A model of Stable-Baselines3 brings the statistics of its ``VecNormalize``; a policy alone has none.
    """
    if isinstance(behavior, str):
        return load_behavior(behavior, observation_space, action_space, deterministic=deterministic)
    if callable(getattr(type(behavior), "actor", None)):  # of the class: some models hold a network of that name
        made: Behavior = behavior.actor(deterministic=deterministic)  # type: ignore[union-attr]
        return made
    if isinstance(behavior, BaseAlgorithm | BasePolicy):
        if behavior.action_space != action_space:
            raise ConfigError(
                f"{type(behavior).__name__} acts in {behavior.action_space}, the environment takes {action_space}; "
                "give it the environment that it was trained in"
            )
        statistics = behavior.get_vec_normalize_env() if isinstance(behavior, BaseAlgorithm) else None
        normalize = statistics.normalize_obs if statistics is not None and statistics.norm_obs else None
        return SB3Behavior(behavior, deterministic, normalize, f"sb3:{type(behavior).__name__}")
    if isinstance(behavior, Behavior):
        return behavior
    if callable(behavior):
        name = getattr(behavior, "__qualname__", "function")
        _check_called(behavior, name, ("observations", "episode_starts", "generator"))
        return FunctionBehavior(behavior, name)
    raise ConfigError(
        "a behavior is a text, a function, an object with act(), an agent, or a model or policy of Stable-Baselines3; "
        f"got {type(behavior).__name__}"
    )


def _check_called(called: Callable[..., Any], name: str, arguments: Sequence[str]) -> None:
    """Raise ConfigError where ``called`` says that it cannot be called with these arguments, by their positions."""
    try:
        signature = inspect.signature(called)
    except ValueError:  # of a builtin nothing is known
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ConfigError(
            f"the behavior {name} is called with ({', '.join(arguments)}), but it takes {signature}: {error}"
        ) from error


def decides_by_itself(behavior: Any) -> bool:
    """Whether ``deterministic`` changes nothing about a behavior that ``as_behavior`` takes."""
    if isinstance(behavior, str):
        return behavior == "random" or behavior.startswith("demonstration:")
    return not (callable(getattr(type(behavior), "actor", None)) or isinstance(behavior, BaseAlgorithm | BasePolicy))


@dataclass(frozen=True)
class Mixture:
    """Behaviors with their shares of a data set; ``record`` gives each its exact share of steps or episodes."""

    parts: tuple[tuple[float, Any], ...]

    def shares(self, total: int) -> list[int]:
        """Split ``total`` in proportion to the weights by largest remainders; ConfigError if a part gets nothing."""
        weights = np.array([weight for weight, _ in self.parts])
        exact = total * weights / weights.sum()
        shares = np.floor(exact).astype(int)
        for index in np.argsort(-(exact - shares), kind="stable")[: total - int(shares.sum())]:
            shares[index] += 1
        if not shares.all():
            left_out = self.parts[int(shares.argmin())]
            raise ConfigError(
                f"of {total} a mixture gives {shown(left_out[1])} nothing, whose weight is {left_out[0]:g}; record "
                "more, or leave it out"
            )
        return [int(share) for share in shares]


def mixture(parts: Sequence[tuple[float, Any]]) -> Mixture:
    """A mixture of (weight, behavior) pairs; weights need not sum to 1.

    Raises:
        ConfigError: for no part, for one that is no pair, or a weight that is not positive and finite.
    """
    pairs = list(parts)
    if not pairs:
        raise ConfigError("a mixture needs at least one (weight, behavior) pair")
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ConfigError(f"a mixture is made of (weight, behavior) pairs, as (0.5, 'random'); got {shown(pair)}")
        weight, behavior = pair
        if not (fits(weight, float) or isinstance(weight, np.floating | np.integer)) or not 0 < weight < np.inf:
            raise ConfigError(
                f"the weight of {shown(behavior)} must be a positive number, got {shown(weight)}; leave the part out "
                "instead"
            )
    return Mixture(tuple((float(weight), behavior) for weight, behavior in pairs))


@dataclass
class SB3Behavior:
    """A model or a policy of Stable-Baselines3, fed with the observations it was trained on."""

    model: Any
    deterministic: bool
    normalize: Callable[[Any], Any] | None = None
    name: str = "sb3"
    _state: Any = field(default=None, repr=False)

    @property
    def normalizes(self) -> bool:
        """Whether it takes observations as the environment gives them and normalizes them by itself."""
        return self.normalize is not None

    def act(self, observations: Any, episode_starts: Bools, generator: np.random.Generator) -> Any:
        if self.normalize is not None:
            observations = self.normalize(observations)
        if episode_starts.all():
            self._state = None
        with _global_randomness(int(generator.integers(2**31))):
            if getattr(self.model, "use_sde", False) and episode_starts.any():
                policy = getattr(self.model, "policy", self.model)
                noise = getattr(policy, "actor", policy)
                noise.reset_noise(len(episode_starts))
            actions, self._state = self.model.predict(
                observations, state=self._state, episode_start=episode_starts, deterministic=self.deterministic
            )
        return actions


@contextmanager
def _global_randomness(seed: int) -> Iterator[None]:
    """Seeds the global generators that Stable-Baselines3 samples from, and restores them."""
    numpy_state, torch_state = np.random.get_state(), torch.random.get_rng_state()
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        torch.random.set_rng_state(torch_state)


def _load_demonstration(
    task: str, observation_space: Space, action_space: Space, deterministic: bool
) -> FunctionBehavior:
    known = {name: rules for name, rules in vars(memory_rules).items() if hasattr(rules, "demonstrate")}
    if task not in known:
        raise ConfigError(f"there are no demonstrations of {task!r}; {did_you_mean(task, known)}")
    rules = known[task]
    if (observation_space, action_space) != (rules().observation_space, rules().action_space):
        raise ConfigError(f"'demonstration:{task}' acts in {task} alone, and the environment has other spaces")
    return FunctionBehavior(lambda seen, _, generator: rules.demonstrate(seen, generator), f"demonstration:{task}")


def _load_sb3(argument: str, observation_space: Space, action_space: Space, deterministic: bool) -> SB3Behavior:
    """Read a policy with the spaces of the environment; what only training needs is not unpickled."""
    algorithm, *files = argument.split(":")
    if len(files) not in (1, 2):
        raise ConfigError(f"'sb3:{argument}' should read sb3:<algorithm>:<zip>[:<vecnormalize.pkl or obs_norm.npz>]")
    if algorithm not in SB3_ALGORITHMS:
        raise ConfigError(f"unknown algorithm {algorithm!r}; {did_you_mean(algorithm, SB3_ALGORITHMS)}")
    zip_path, *statistics = map(Path, files)
    if not zip_path.is_file():
        raise DataError(f"there is no policy file {zip_path}")
    module, class_name = SB3_ALGORITHMS[algorithm]
    algorithm_class = getattr(importlib.import_module(module), class_name)
    replaced: dict[str, Any] = {
        "observation_space": observation_space,
        "action_space": action_space,
        "learning_rate": 0.0,
        **dict.fromkeys(("lr_schedule", "clip_range", "exploration_schedule"), lambda _: 0.0),
        **dict.fromkeys(("clip_range_vf", "_last_obs", "_last_episode_starts", "_last_original_obs")),
        **dict.fromkeys(("ep_info_buffer", "ep_success_buffer", "replay_buffer_class", "rollout_buffer_class")),
        "replay_buffer_kwargs": {},
        "rollout_buffer_kwargs": {},
        "n_envs": 1,
        "buffer_size": 1,
    }
    try:
        with _old_gym(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = algorithm_class.load(zip_path, custom_objects=replaced, device="cpu", print_system_info=False)
    except Exception as error:  # whatever an unpickled file raises
        raise DataError(
            f"{zip_path} could not be loaded as {class_name} for observations {observation_space} and actions "
            f"{action_space}: {error}"
        ) from error
    model.policy.set_training_mode(False)
    of_zoo = (zip_path.with_suffix("") / name for name in ("obs_norm.npz", "vecnormalize.pkl"))
    name, normalize = f"sb3:{algorithm}:{zip_path.name}", None
    for file in statistics or [path for path in of_zoo if path.is_file()][:1]:
        name, normalize = f"{name}:{file.name}", _normalization(file)
    return SB3Behavior(model, deterministic, normalize, name)


def _normalization(path: Path) -> Callable[[Any], Any] | None:
    """The observation normalization of a VecNormalize file or of its arrays; None when it was switched off."""
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                on, clip = bool(arrays["norm_obs"]), float(arrays["clip_obs"])
                mean, scale = arrays["mean"], np.sqrt(arrays["var"] + float(arrays["epsilon"]))
            return (lambda seen: np.clip((seen - mean) / scale, -clip, clip).astype(np.float32)) if on else None
        with _old_gym(), warnings.catch_warnings(), path.open("rb") as file:
            warnings.simplefilter("ignore")
            saved = pickle.load(file)
        saved.training = False
        return saved.normalize_obs if saved.norm_obs else None
    except Exception as error:  # whatever an unpickled file raises
        raise DataError(f"{path} holds no readable observation statistics: {error}") from error


@contextmanager
def _old_gym() -> Iterator[None]:
    """Lets pickles that name the old package ``gym`` find Gymnasium, for as long as the block runs."""
    aliases: dict[str, ModuleType] = {"gym": gym}
    for name in ("spaces", "core", "envs", "wrappers", "logger", "error", "utils"):
        aliases[f"gym.{name}"] = importlib.import_module(f"gymnasium.{name}")
    for name in ("box", "discrete", "multi_discrete", "multi_binary", "dict", "tuple", "space", "utils"):
        aliases[f"gym.spaces.{name}"] = importlib.import_module(f"gymnasium.spaces.{name}")
    before = {name: sys.modules.get(name) for name in aliases}
    sys.modules.update(aliases)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


_LOADERS: dict[str, BehaviorLoader] = {"demonstration": _load_demonstration, "sb3": _load_sb3}
