"""Evaluation: results per episode with their summary, and an unbiased evaluation of any Stable-Baselines3-like model.

Every started episode counts and episode k always starts from branch k of the seed, which sampled actions follow from as
well, so the number of environment copies changes the speed of an evaluation, not its result.
"""

import inspect
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, is_vecenv_wrapped, unwrap_vec_normalize
from tqdm import tqdm

from rltransformers.core.action_masks import MASK_METHOD
from rltransformers.core.described import count
from rltransformers.core.episodes import endless_episode, episode_record, longest_allowed, success_of
from rltransformers.core.errors import ConfigError, DataError, one_line
from rltransformers.core.files import replacing
from rltransformers.core.guard import guarding
from rltransformers.core.ranges import Episodes, check, suggesting
from rltransformers.core.seeding import branch_seeds, episode_noise, seed_environments
from rltransformers.data.d4rl import normalized_score
from rltransformers.functional.statistics import iqm, stratified_bootstrap


class Predictor(Protocol):
    """Anything with the ``predict`` of Stable-Baselines3, recurrent or not.

    It is called with ``state``, ``episode_start`` and ``deterministic``; a ``predict`` that also has the argument
    ``reward`` (agents that read the previous reward) gets the rewards of the last step, as the environment gave them,
    and one that has ``generators`` the source of sampled actions of every environment.
    """

    @property
    def predict(self) -> Callable[..., tuple[Any, Any]]:
        """Actions for a batch of observations and the recurrent state to pass back."""
        ...


@dataclass(frozen=True)
class EvaluationResult:
    """Every episode that was started, in the order of the seeds.

    Attributes:
        env_id: names the reference scores; None when unknown.
        seeds: that the environment was reset with, per episode.
        successes: by ``is_success``, else ``success``, of the last info of each episode; None where the environment has
            neither.
        target_return: what a Decision Transformer was asked for, in reward units; None otherwise.
        step: training step of the evaluated weights, ``num_timesteps`` of the model; None when it has none.
        discounted_returns: returns as ``target_return`` counts them, of a Decision Transformer with a ``discount``
            below 1; None where these are ``returns``.
    """

    env_id: str | None
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    successes: tuple[bool, ...] | None = None
    target_return: float | None = None
    step: int | None = None
    discounted_returns: tuple[float, ...] | None = None

    def __repr__(self) -> str:
        target = "" if self.target_return is None else f", asked for {self.target_return:g}"
        success = "" if self.success_rate is None else f", success {self.success_rate:.2f}"
        step = "" if self.step is None else f", step {self.step:,}"
        return (
            f"EvaluationResult({self.env_id}, {count(len(self.returns), 'episode')}{target}: return {self.mean:.2f} ± "
            f"{self.std:.2f}, length {np.mean(self.lengths):.1f}{success}{step})"
        )

    def __post_init__(self) -> None:
        if not self.returns:
            raise ConfigError("an evaluation needs at least one episode")
        for name in ("lengths", "seeds", "successes", "discounted_returns"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.returns):
                raise ConfigError(f"{name} has {len(values)} entries for {len(self.returns)} episodes")

    @property
    def obtained(self) -> tuple[float, ...]:
        """Returns in the units of ``target_return``: discounted where the target is."""
        return self.returns if self.discounted_returns is None else self.discounted_returns

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns over episodes (not of their mean)."""
        return float(np.std(self.returns))

    @property
    def success_rate(self) -> float | None:
        """Share of successful episodes."""
        return None if self.successes is None else float(np.mean(self.successes))

    @property
    def normalized_scores(self) -> tuple[float, ...] | None:
        """Per episode, 0 for a random and 100 for an expert policy; None where no reference is known."""
        scores = None if self.env_id is None else normalized_score(self.env_id, np.asarray(self.returns))
        return None if scores is None else tuple(float(score) for score in scores)

    @property
    def alignment_error(self) -> float | None:
        """Root mean square over the episodes of asked minus obtained return; None where nothing was asked."""
        if self.target_return is None:
            return None
        return float(np.sqrt(np.mean(np.square(np.asarray(self.obtained) - self.target_return))))

    def summary(self) -> dict[str, Any]:
        """Mean, standard deviation, IQM with its 95 % bootstrap interval, episode length; error of alignment, mean
        discounted return, success rate and normalised score (mean, 100 = the expert of D4RL) where they are defined.

        The interval resamples the episodes of this one model: it says nothing about the spread between training seeds.
        """
        low, high = stratified_bootstrap([self.returns], np.random.default_rng(0))
        summary: dict[str, Any] = {
            "episodes": len(self.returns),
            "return_mean": self.mean,
            "return_std": self.std,
            "return_iqm": float(iqm(self.returns)),
            "return_iqm_interval": [low, high],
            "length_mean": float(np.mean(self.lengths)),
        }
        if self.target_return is not None:
            summary = {"target_return": self.target_return} | summary
            summary["alignment_error"] = self.alignment_error
        if self.discounted_returns is not None:
            summary["discounted_return_mean"] = float(np.mean(self.discounted_returns))
        if self.step is not None:
            summary = {"step": self.step} | summary
        if self.success_rate is not None:
            summary["success_rate"] = self.success_rate
        if self.normalized_scores is not None:
            summary["normalized_score"] = float(np.mean(self.normalized_scores))
        return summary

    def to_dict(self) -> dict[str, Any]:
        """JSON values: every episode, and the summary for readers that want only that."""
        return asdict(self) | {"summary": self.summary()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "EvaluationResult":
        """The result ``to_dict`` was called on."""
        fields: dict[str, Any] = {name: value for name, value in values.items() if name != "summary"}
        fields = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        return cls(**fields)


def return_alignment(results: Sequence[EvaluationResult]) -> float | None:
    """Root mean square over targets and episodes of asked minus obtained return; None where nothing was asked.

    Every target counts alike. 0 is a policy that returns exactly what it is asked for.
    """
    errors = [error for error in (result.alignment_error for result in results) if error is not None]
    return float(np.sqrt(np.mean(np.square(errors)))) if errors else None


def write_results(path: str | os.PathLike[str], results: Sequence[EvaluationResult]) -> None:
    """Write a list of results as JSON, for people and for programs."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps([result.to_dict() for result in results], indent=1) + "\n")


def read_results(path: str | os.PathLike[str]) -> list[EvaluationResult]:
    """The results that ``write_results`` wrote.

    Raises:
        DataError: when the file is not such a list.
    """
    try:
        return [EvaluationResult.from_dict(values) for values in json.loads(Path(path).read_text())]
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise DataError(f"{path} is not a list of evaluation results ({one_line(error)})") from error


@suggesting
def evaluate_online(
    model: Predictor,
    env: VecEnv,
    env_id: str,
    episodes: int = 50,
    seed: int = 0,
    deterministic: bool = True,
    progress: bool = False,
    longest_episode: int | None = None,
) -> EvaluationResult:
    """Run ``episodes`` episodes of ``model`` in ``env``, each from a seed of its own, which follows from ``seed``.

    The copies of ``env`` start together and wait for the slowest, wave after wave: which episodes count is fixed before
    they start, so short ones are not favoured. A copy that waits plays on, uncounted: where a few episodes are far
    longer than the others and steps of the environment are slow, fewer copies are faster. A ``VecNormalize`` must not
    be training. Under a ``Monitor`` the returns are the monitored ones, and an episode ends where the monitor says.
    Sampled actions of the agents and actors of this package follow from the seed of the episode, whatever the number of
    copies; other models sample as they do.

    An episode that goes on after ``longest_episode`` steps is an error (None: 200,000, or the step limit that
    ``env_id`` is registered with where that is larger).

    Raises:
        DataError: for an observation, a reward or a flag that is none of the space, and for an exception of the
            environment (chained): with environment and step; for an episode that does not end.
        ConfigError: for less than one episode, for what is no ``VecEnv``, and for an environment whose statistics still
            move or whose returns would be normalised.
    """
    episodes = check(episodes, Episodes, "episodes")
    if not isinstance(env, VecEnv):
        raise ConfigError(
            f"env is a {type(env).__name__}; evaluate_online takes a VecEnv: rltransformers.envs.make_vec_env(id)"
        )
    longest = longest_allowed(longest_episode, gymnasium.registry.get(env_id))
    normalize = unwrap_vec_normalize(env)
    inner = env if normalize is None or not normalize.norm_reward else normalize.venv
    monitored = is_vecenv_wrapped(inner, VecMonitor) or env.env_is_wrapped(Monitor)[0]
    if normalize is not None and normalize.training:
        raise ConfigError("an evaluation must not change the VecNormalize statistics; set training=False on it")
    if normalize is not None and normalize.norm_reward and not monitored:
        raise ConfigError("returns would be counted after normalisation; put a VecMonitor below the VecNormalize")
    finished: list[_Episode] = []
    seeds = branch_seeds(seed, "evaluation", episodes + env.num_envs)  # of those too that only fill the last wave
    bar = tqdm(total=episodes, desc="evaluating", unit="episode", disable=not progress, leave=False)
    with guarding(env) as env, bar:
        for first in range(0, episodes, env.num_envs):
            count = min(env.num_envs, episodes - first)
            wave: list[_Episode | None] = [None] * count
            own = seeds[first : first + env.num_envs]
            for copy, episode in _wave(model, env, count, own, deterministic, monitored, env_id, longest):
                wave[copy] = episode
                bar.update()
            finished += [episode for episode in wave if episode is not None]
    successes = tuple(episode.success for episode in finished if episode.success is not None)
    step = getattr(model, "num_timesteps", None)
    return EvaluationResult(
        env_id=env_id,
        returns=tuple(episode.total for episode in finished),
        lengths=tuple(episode.length for episode in finished),
        seeds=tuple(seeds[:episodes]),
        successes=successes if len(successes) == episodes else None,
        step=None if step is None else int(step),
    )


@dataclass(frozen=True)
class _Episode:
    total: float
    length: int
    success: bool | None


def _wave(
    model: Predictor,
    env: VecEnv,
    count: int,
    seeds: Sequence[int],
    deterministic: bool,
    monitored: bool,
    env_id: str,
    longest: int,
) -> Iterator[tuple[int, _Episode]]:
    """The first episode of the first ``count`` copies, each as (copy, episode) when it ends."""
    seed_environments(env, seeds)
    observation: Any = env.reset()
    state: Any = None
    takes = inspect.signature(model.predict).parameters
    noise = [episode_noise(seed) for seed in seeds]
    rewards: Any = np.zeros(env.num_envs)
    start: NDArray[np.bool_] = np.ones(env.num_envs, dtype=bool)
    running = np.arange(env.num_envs) < count
    totals, lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, dtype=np.int64)
    while running.any():
        inputs: dict[str, Any] = {"reward": rewards} if "reward" in takes else {}
        if "generators" in takes:
            inputs["generators"] = noise
        if getattr(getattr(model, "policy", None), "masks_beside", False):
            inputs["action_masks"] = np.stack(env.env_method(MASK_METHOD))
        actions, state = model.predict(
            observation, state=state, episode_start=start, deterministic=deterministic, **inputs
        )
        observation, rewards, start, infos = env.step(actions)
        totals, lengths = totals + rewards, lengths + 1
        for copy in np.flatnonzero(running & start):
            record = episode_record(infos[copy])
            if monitored and record is None:
                continue  # a lost life ends the learner's episode, not the game (Atari wrappers)
            running[copy] = False
            total, length = (record["r"], record["l"]) if record is not None else (totals[copy], lengths[copy])
            yield int(copy), _Episode(float(total), int(length), success_of(infos[copy], int(copy)))
        if (lengths[running] >= longest).any():
            raise endless_episode(env_id, int(np.flatnonzero(running & (lengths >= longest))[0]), longest)
