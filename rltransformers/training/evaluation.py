"""Evaluation: results per episode with their summary, and an unbiased evaluation of models like those of SB3."""

import inspect
import json
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import gymnasium
import numpy as np
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, is_vecenv_wrapped, unwrap_vec_normalize
from tqdm import tqdm

from rltransformers.core.action_masks import MASK_METHOD
from rltransformers.core.described import count, exact
from rltransformers.core.episodes import endless_episode, longest_allowed
from rltransformers.core.errors import ConfigError, DataError, one_line
from rltransformers.core.files import replacing
from rltransformers.core.guard import guarding, warn_of_statistics
from rltransformers.core.ranges import Episodes, check, suggesting
from rltransformers.core.seeding import branch_seeds, episode_noise, seed_environments
from rltransformers.core.values import episode_record, success_of
from rltransformers.data.d4rl import normalized_score
from rltransformers.envs.play import Act, steps
from rltransformers.functional.statistics import iqm, stratified_bootstrap
from rltransformers.training.tensor_evaluation import play_in_tensors, plays_tensors


class Predictor(Protocol):
    """Anything with the ``predict`` of Stable-Baselines3, recurrent or not.

    It is called with ``state``, ``episode_start`` and ``deterministic``; a ``predict`` that also has the argument
    ``reward`` (agents that read the previous reward) gets the rewards of the last step, as the environment gave them,
    and one that has ``generators`` the source of sampled actions of every environment.
    """

    @property
    def predict(self) -> Callable[..., tuple[Any, Any]]:
        """Actions for a batch of observations and the recurrent state to pass back."""


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
        predicted_returns: what a return head answered in the first step of each episode, the return that the policy
            then acted for; None without a return head, and where a return was asked for.
    """

    env_id: str | None
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    successes: tuple[bool, ...] | None = None
    target_return: float | None = None
    step: int | None = None
    discounted_returns: tuple[float, ...] | None = None
    predicted_returns: tuple[float, ...] | None = None

    def __repr__(self) -> str:
        target = "" if self.target_return is None else f", asked for {exact(self.target_return)}"
        if self.predicted_return is not None:
            target = f", predicted {self.predicted_return:g}"
        success = "" if self.success_rate is None else f", success {self.success_rate:.2f}"
        step = "" if self.step is None else f", step {self.step:,}"
        return (
            f"EvaluationResult({self.env_id}, {count(len(self.returns), 'episode')}{target}: return {self.mean:.2f} ± "
            f"{self.std:.2f}, length {np.mean(self.lengths):.1f}{success}{step})"
        )

    def __post_init__(self) -> None:
        if not self.returns:
            raise ConfigError("an evaluation needs at least one episode")
        for name in ("lengths", "seeds", "successes", "discounted_returns", "predicted_returns"):
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
    def predicted_return(self) -> float | None:
        """Mean return that a return head predicted in the first step, within its limits; None where it did not."""
        return None if self.predicted_returns is None else float(np.mean(self.predicted_returns))

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

    def line(self) -> str:
        """Return, success rate and target or predicted return in words, for a log.

        Targets of discounted returns stand beside those.
        """
        success = "" if self.success_rate is None else f", success {self.success_rate:.2f}"
        obtained = "" if self.discounted_returns is None else f"discounted {np.mean(self.discounted_returns):.2f}, "
        aim = "" if self.target_return is None else f" ({obtained}target {exact(self.target_return)})"
        if self.predicted_return is not None:
            aim = f" ({obtained}predicted {self.predicted_return:g})"
        return f"return {self.mean:.2f} ± {self.std:.2f}{success}{aim}"

    def summary(self) -> dict[str, Any]:
        """Mean, standard deviation, IQM with its 95 % bootstrap interval, episode length; error of alignment, mean
        discounted return, success rate and normalized score (mean, 100 = the expert of D4RL) where they are defined.

        The interval resamples the episodes of this one model: it says nothing about the spread between training seeds.
        """
        low, high = stratified_bootstrap([self.returns], np.random.default_rng(0))
        discounted, scores = self.discounted_returns, self.normalized_scores
        summary = {
            "step": self.step,
            "target_return": self.target_return,
            "episodes": len(self.returns),
            "return_mean": self.mean,
            "return_std": self.std,
            "return_iqm": float(iqm(self.returns)),
            "return_iqm_interval": [low, high],
            "length_mean": float(np.mean(self.lengths)),
            "predicted_return_mean": self.predicted_return,
            "alignment_error": self.alignment_error,
            "discounted_return_mean": None if discounted is None else float(np.mean(discounted)),
            "success_rate": self.success_rate,
            "normalized_score": None if scores is None else float(np.mean(scores)),
        }
        return {name: value for name, value in summary.items() if value is not None}

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


def record_results(logger: Logger, results: Sequence[EvaluationResult]) -> EvaluationResult:
    """Record results by their target returns, and that with the highest mean as Stable-Baselines3 does; return it."""
    best = max(results, key=lambda result: result.mean)
    logger.record("eval/mean_reward", best.mean)
    logger.record("eval/mean_ep_length", float(np.mean(best.lengths)))
    for name, value in (("predicted_return", best.predicted_return), ("success_rate", best.success_rate)):
        if value is not None:
            logger.record(f"eval/{name}", value)
    for result in results:
        target = "" if result.target_return is None else f"_target_{exact(result.target_return)}"
        summary = result.summary()
        means = ("return_mean", "length_mean") if target else ()  # without targets these are the two above
        for key in (*means, "return_std", "return_iqm", "success_rate", "normalized_score"):
            if key in summary:
                logger.record(f"eval/{key}{target}", summary[key])
    return best


def write_results(path: str | os.PathLike[str], results: Sequence[EvaluationResult]) -> None:
    """Write a list of results as JSON, for people and for programs."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps([result.to_dict() for result in results], indent=1) + "\n")


def read_results(path: str | os.PathLike[str]) -> list[EvaluationResult]:
    """The results that ``write_results`` wrote, or ``rltransformers evaluate --json``.

    Raises:
        DataError: when the file is not such a list.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        results = content["results"] if "validation" in content else content  # beside that on held-out episodes
        return [EvaluationResult.from_dict(values) for values in results]
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise DataError(f"{path} is not a list of evaluation results ({one_line(error)})") from error


@dataclass
class EvaluationEpisode:
    """One episode of an evaluation: its seed, the return it is asked for (None: none), and its outcome.

    ``discount`` and ``delayed`` (the whole return is paid in the last step) say how the target counts rewards.
    """

    seed: int
    target: float | None = None
    discount: float = 1.0
    delayed: bool = False
    total: float = 0.0
    discounted: float = 0.0
    length: int = 0
    success: bool | None = None
    predicted: float | None = None  # answer of a return head in the first step

    def __post_init__(self) -> None:
        self.noise = episode_noise(self.seed)

    @property
    def obtained(self) -> float:
        """The return as the target counts it."""
        return self.total * self.discount ** (self.length - 1) if self.delayed else self.discounted

    def add(self, reward: float) -> None:
        self.total += reward
        self.discounted += self.discount**self.length * reward
        self.length += 1


def play(
    env: VecEnv,
    act: Act,
    running: list[EvaluationEpisode | None],
    follow: Callable[[int], EvaluationEpisode | None],
    end: Callable[[EvaluationEpisode, dict[str, Any]], bool],
    longest: int,
    name: str | None,
    bar: Any,
) -> None:
    """Play the episodes that run, each to its end, and those that follow on them.

    Args:
        running: by environment; None where an environment plays nothing that counts.
        follow: the episode that begins in environment i behind an end.
        end: take the last info of an episode, and say whether the episode is over.
        longest: steps after which an episode that goes on is an error.
        name: of the environment, for messages.
        bar: shows how many episodes are over.
    """
    for step in steps(env, act):
        for row, episode in enumerate(running):
            if episode is None:
                continue
            episode.add(float(step.rewards[row]))
            if step.ended[row] and end(episode, step.infos[row]):
                episode.success = success_of(step.infos[row], row)
                running[row] = follow(row)
                bar.update()
            elif episode.length >= longest:
                raise endless_episode(name, row, longest)
        if not any(running):
            return


def result_of(episodes: Sequence[EvaluationEpisode], env_id: str | None, step: int | None) -> EvaluationResult:
    """The result of episodes that were played with one target return, by the weights of training step ``step``."""
    discount = episodes[0].discount
    successes = tuple(episode.success for episode in episodes if episode.success is not None)
    predicted = tuple(episode.predicted for episode in episodes if episode.predicted is not None)
    return EvaluationResult(
        env_id=env_id,
        returns=tuple(episode.total for episode in episodes),
        lengths=tuple(episode.length for episode in episodes),
        seeds=tuple(episode.seed for episode in episodes),
        successes=successes if len(successes) == len(episodes) else None,
        target_return=episodes[0].target,
        discounted_returns=None if discount == 1.0 else tuple(episode.obtained for episode in episodes),
        predicted_returns=predicted or None,
        step=step,
    )


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
    they start, so short ones are not favored. A copy that waits plays on, uncounted: where a few episodes are far
    longer than the others and steps of the environment are slow, fewer copies are faster. Under a ``Monitor`` the
    returns are the monitored ones, and an episode ends where the monitor says. Sampled actions of the agents and actors
    of this package follow from the seed of the episode, whatever the number of copies; other models sample as they do.

    An episode that goes on after ``longest_episode`` steps is an error (None: 200,000, or the step limit that
    ``env_id`` is registered with where that is larger).

    Raises:
        DataError: for an observation, a reward or a flag that is none of the space, and for an exception of the
            environment (chained): with environment and step; for an episode that does not end.
        ConfigError: for less than one episode, for what is no ``VecEnv``, and for an environment whose statistics still
            move or whose returns would be normalized.
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
        raise ConfigError("returns would be counted after normalization; put a VecMonitor below the VecNormalize")
    warn_of_statistics(env)
    played = [EvaluationEpisode(each) for each in branch_seeds(seed, "evaluation", episodes + env.num_envs)]
    bar = tqdm(total=episodes, desc="evaluating", unit="episode", disable=not progress, leave=False)

    def end(episode: EvaluationEpisode, info: dict[str, Any]) -> bool:
        record = episode_record(info)
        if record is not None:
            episode.total, episode.length = float(record["r"]), int(record["l"])
        return record is not None or not monitored  # a lost life is the end for the learner, not of the game (Atari)

    in_tensors, takes = plays_tensors(model, env), inspect.signature(model.predict).parameters
    with nullcontext(env) if in_tensors else guarding(env) as env, bar:
        for begin in range(0, episodes, env.num_envs):
            wave = played[begin : begin + env.num_envs]  # those too that only fill the last one
            seeds, counted = [episode.seed for episode in wave], min(env.num_envs, episodes - begin)
            if in_tensors:
                ends = play_in_tensors(model, env, seeds, counted, deterministic, longest, env_id)
                for episode, ending in zip(wave, ends, strict=False):
                    episode.total, episode.length, episode.success = ending
                bar.update(counted)
                continue
            seed_environments(env, seeds)
            state: Any = None

            def act(observation: Any, first: Any, rewards: Any, noise: Any = tuple(each.noise for each in wave)) -> Any:
                nonlocal state
                inputs: dict[str, Any] = {"reward": rewards} if "reward" in takes else {}
                if "generators" in takes:
                    inputs["generators"] = noise
                if getattr(getattr(model, "policy", model), "masks_beside", False):
                    inputs["action_masks"] = np.stack(env.env_method(MASK_METHOD))
                actions, state = model.predict(
                    observation, state=state, episode_start=first, deterministic=deterministic, **inputs
                )
                return actions

            running = [*wave[:counted], *[None] * (env.num_envs - counted)]
            play(env, act, running, lambda _: None, end, longest, env_id, bar)
    step = getattr(model, "num_timesteps", None)
    return result_of(played[:episodes], env_id, None if step is None else int(step))
