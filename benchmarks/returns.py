"""Returns of the Decision Transformers of d3rlpy and Hugging Face on a recording of ours, asked for what ours is asked.

Data, updates, batch, context, width, layers and heads are those of a config (``dt-returns``: ``dt_cartpole_mixture``).
Everything else is the default of d3rlpy (for Boxes with the scales of its own script), or the recipe of Hugging Face's
page on training one. Their own sizes take too long on a CPU: 3.7 s an update for d3rlpy, 0.23 s for Hugging Face, where
these take 0.08 s. Axes: E episodes, B batch, K context.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from benchmarks.harness import Row, absolute, versions
from rltransformers.cli.configs import find_config
from rltransformers.core.errors import ConfigError, DataError, did_you_mean
from rltransformers.data import Trajectories, load_trajectories
from rltransformers.training.runs.experiment import ExperimentConfig
from rltransformers.zoo.suites import SUITES, read_suite

CONFIG, SUITE = "dt_cartpole_mixture", "first_data"
Act = Callable[[Sequence[int], NDArray[np.float32], NDArray[np.float64]], Sequence[Any]]
"""Actions of the episodes with these numbers, from their observations and the rewards before them."""
Begin = Callable[[float, int], Act]
"""Begins E episodes that are asked for a return."""
Watch = Callable[[int, Mapping[str, Begin]], None]
"""Told the updates so far, before the first and after each, and the ways to choose actions by the present weights; ends
the training by an exception."""


@dataclass(frozen=True)
class Peer:
    """A Decision Transformer of others.

    Attributes:
        name: in tables.
        packages: that it needs.
        setting: what its maker sets, in words.
        train: trains on data with a seed, and tells a watch of it; returns the ways to choose actions, by name.
    """

    name: str
    packages: tuple[str, ...]
    setting: str
    train: Callable[[Trajectories, ExperimentConfig, int, Watch], Mapping[str, Begin]]

    @property
    def installed(self) -> bool:
        """Whether its packages are."""
        return all(find_spec(package) is not None for package in self.packages)


def dt_returns(*, repetitions: int = 5, only: Sequence[str] | None = None) -> Iterator[Row]:
    """Return when asked for the highest target, and the error over all targets; seeds 0, 1, ...

    Raises:
        ConfigError: for an unknown peer.
        SystemExit: where the recording or a package is missing.
    """
    for name in only or ():
        if name not in PEERS:
            raise ConfigError(f"unknown peer {name!r}; {did_you_mean(name, PEERS)}")
    config = find_config(CONFIG, [])[1]
    data = recording(config)
    for name in only or PEERS:
        yield from rows_of(PEERS[name], config, data, repetitions)


def recording(config: ExperimentConfig) -> Trajectories:
    """The dataset of the config, where it was recorded."""
    assert config.dataset is not None and config.dataset.id is not None
    name = config.dataset.id
    try:
        return load_trajectories(name)
    except DataError as error:
        words = read_suite(str(SUITES / f"{SUITE}.yaml")).text.datasets[name]
        raise SystemExit(f"{error}\nrecord it first: rltransformers collect --dataset {name} {words}") from error


def rows_of(peer: Peer, config: ExperimentConfig, data: Trajectories, repetitions: int) -> Iterator[Row]:
    """Two rows for each way to choose actions."""
    got: dict[str, list[dict[float, list[float]]]] = {}
    seconds = []
    for seed in range(repetitions):
        began = time.process_time()
        try:
            ways = peer.train(data, config, seed, lambda *_: None)
        except ImportError as error:
            raise SystemExit(f"{peer.name} is missing: pip install {' '.join(peer.packages)}") from error
        seconds.append(time.process_time() - began)
        for way, begin in ways.items():
            returns = {target: play(config, begin, target) for target in config.evaluation.target_returns}
            got.setdefault(way, []).append(returns)
            print(
                f"  {peer.name}, {way}, seed {seed}: { {k: round(float(np.mean(v)), 1) for k, v in returns.items()} }"
            )
    highest = max(config.evaluation.target_returns)
    backbone, course = config.backbone, config.algorithm
    setting = (
        f"{config.train.gradient_steps:,} updates of {course['batch_size']} windows of {course['context_length']} "
        f"steps; width {backbone['width']}, {backbone['layers']} layers, {backbone['heads']} heads; {peer.setting}"
    )
    used = " ".join(f"{package} {version}" for package, version in versions(peer.packages).items())
    for way, runs in got.items():
        means = [{target: float(np.mean(each)) for target, each in run.items()} for run in runs]
        by_target = "; ".join(f"{t:g}: {' / '.join(f'{run[t]:.1f}' for run in means)}" for t in means[0])
        note = (
            f"{used}, {config.evaluation.episodes} episodes per target, {np.mean(seconds):.0f} processor seconds of "
            f"training; returns by target, seed by seed: {by_target}"
        )
        name = f"DT returns: {peer.name}, {way}"
        yield absolute(f"{name}, asked for {highest:g}", setting, "return", [run[highest] for run in means], note=note)
        yield absolute(f"{name}, target error", setting, "RMSE", [error_of(run) for run in runs])


def error_of(returns: Mapping[float, Sequence[float]]) -> float:
    """Root mean square over targets and episodes of asked minus obtained return."""
    return math.sqrt(np.mean([(asked - got) ** 2 for asked, each in returns.items() for got in each]))


def play(config: ExperimentConfig, begin: Begin, target: float) -> list[float]:
    """Returns of as many episodes as the config evaluates, stepped together, with its seeds."""
    evaluation = config.evaluation
    envs = [gymnasium.make(config.environment.id) for _ in range(evaluation.episodes)]
    observations = {row: env.reset(seed=evaluation.seed + row)[0] for row, env in enumerate(envs)}
    rewards, totals = np.zeros(len(envs)), np.zeros(len(envs))
    act = begin(target, len(envs))
    while running := list(observations):
        actions = act(running, np.stack([observations[row] for row in running]), rewards[running])
        for row, action in zip(running, actions, strict=True):
            observation, reward, terminated, truncated, _ = envs[row].step(action)
            observations[row], rewards[row] = observation, float(reward)
            totals[row] += rewards[row]
            if terminated or truncated:
                del observations[row]
    return [float(total) for total in totals]


# --- d3rlpy ---


def train_d3rlpy(data: Trajectories, config: ExperimentConfig, seed: int, watch: Watch) -> Mapping[str, Begin]:
    """By its class for the kind of action, whose wrapper acts in one episode; discrete actions are drawn."""
    import d3rlpy
    from d3rlpy.algos import DecisionTransformerConfig, DiscreteDecisionTransformerConfig
    from d3rlpy.logging import NoopAdapterFactory
    from d3rlpy.models import VectorEncoderFactory
    from d3rlpy.preprocessing import MultiplyRewardScaler, StandardObservationScaler

    d3rlpy.seed(seed)
    discrete = isinstance(data.action_space, spaces.Discrete)
    kind, scalers = DiscreteDecisionTransformerConfig, {}
    if not discrete:
        kind = DecisionTransformerConfig
        scalers = {
            "observation_scaler": StandardObservationScaler(), "reward_scaler": MultiplyRewardScaler(1 / SCALE)
        }  # fmt: skip
    flags = [flags.astype(np.float32) for flags in (data.terminations, data.truncations)]
    dataset = d3rlpy.dataset.MDPDataset(
        np.concatenate([episode.observations for episode in episodes(data)]),
        data.actions[""].reshape(data.steps, -1),
        data.rewards.reshape(-1, 1),
        *flags,
        action_space=d3rlpy.ActionSpace.DISCRETE if discrete else d3rlpy.ActionSpace.CONTINUOUS,
    )
    backbone, updates = config.backbone, config.train.gradient_steps
    algorithm: Any = kind(
        batch_size=config.algorithm["batch_size"],
        context_size=config.algorithm["context_length"],
        encoder_factory=VectorEncoderFactory([backbone["width"]]),
        num_layers=backbone["layers"],
        num_heads=backbone["heads"],
        **scalers,
    ).create()

    def begin(target: float, count: int) -> Act:
        wrappers = [algorithm.as_stateful_wrapper(target) for _ in range(count)]

        def act(rows: Sequence[int], observations: NDArray[np.float32], rewards: NDArray[np.float64]) -> Sequence[Any]:
            steps = zip(rows, observations, rewards, strict=True)
            return [wrappers[row].predict(observation, reward) for row, observation, reward in steps]

        return act

    ways = {"drawn" if discrete else "predicted": begin}
    watch(0, ways)
    algorithm.fit(
        dataset,
        updates,
        n_steps_per_epoch=updates,
        show_progress=False,
        logger_adapter=NoopAdapterFactory(),
        callback=lambda _, __, done: watch(done, ways),
    )
    return ways


# --- Hugging Face ---

SCALE, LEARNING_RATE, WEIGHT_DECAY, LARGEST_NORM, WARM_UP = 1000.0, 1e-4, 1e-4, 0.25, 0.1
PADDED_ACTION = -10.0
Choice = Literal["larger prediction", "drawn", "predicted"]


@dataclass(frozen=True)
class Units:
    """Mean and deviation of observations [D], and what divides returns."""

    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]
    scale: float


@dataclass(frozen=True)
class Steps:
    """Steps of one episode: observations [T, D], actions [T, A] (of numbers one-hot), rewards [T]."""

    observations: NDArray[np.float32]
    actions: NDArray[np.float32]
    rewards: NDArray[np.float32]


def episodes(data: Trajectories) -> list[Steps]:
    """The steps of all episodes; an episode of T actions has T + 1 observations in the arrays."""
    actions = data.actions[""]
    if isinstance(data.action_space, spaces.Discrete):
        actions = np.eye(data.action_space.n, dtype=np.float32)[actions - data.action_space.start]
    spans = enumerate(zip(data.offsets, data.offsets[1:], strict=False))
    return [Steps(data.observations[""][a + row : b + row], actions[a:b], data.rewards[a:b]) for row, (a, b) in spans]


def train_hugging_face(data: Trajectories, config: ExperimentConfig, seed: int, watch: Watch) -> Mapping[str, Begin]:
    """By the recipe of https://huggingface.co/blog/train-decision-transformers, which is for continuous actions.

    A discrete action is the unit vector of its number, predicted with the squared error. Acting takes the largest of
    the numbers, or draws with them as probabilities, which the squared error makes of them. Where 1 is the highest
    return, returns are not divided.
    """
    from transformers import DecisionTransformerConfig, DecisionTransformerModel, get_linear_schedule_with_warmup

    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    steps, backbone, updates = episodes(data), config.backbone, config.train.gradient_steps
    assert updates is not None
    everything = np.concatenate([each.observations for each in steps])
    mean, deviation = everything.mean(axis=0), everything.std(axis=0) + 1e-6
    context = config.algorithm["context_length"]
    scale = SCALE if max(config.evaluation.target_returns) > 1 else 1.0
    model: Any = DecisionTransformerModel(
        DecisionTransformerConfig(
            state_dim=len(mean), act_dim=steps[0].actions.shape[1], hidden_size=backbone["width"],
            n_layer=backbone["layers"], n_head=backbone["heads"], bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = get_linear_schedule_with_warmup(optimizer, int(WARM_UP * updates), updates)
    lengths = np.array([len(each.rewards) for each in steps])

    def beginning(choice: Choice) -> Begin:
        return lambda target, count: HuggingFaceActing(
            model, context, Units(mean, deviation, scale), target, count, choice
        )

    discrete = isinstance(data.action_space, spaces.Discrete)
    choices: tuple[Choice, ...] = ("larger prediction", "drawn") if discrete else ("predicted",)
    ways: dict[str, Begin] = {choice: beginning(choice) for choice in choices}
    watch(0, ways)
    for done in range(1, updates + 1):
        model.train()
        picked = generator.choice(len(steps), config.algorithm["batch_size"], p=lengths / lengths.sum())
        batch = windows([(steps[row], int(generator.integers(lengths[row]))) for row in picked], context, scale)
        batch["states"] = batch["mask"][..., None] * (batch["states"] - mean) / deviation
        predicted = forward(model, batch)
        valid = torch.as_tensor(batch["mask"] > 0)
        loss = nn.functional.mse_loss(predicted[valid], torch.as_tensor(batch["actions"])[valid])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)
        optimizer.step()
        schedule.step()
        watch(done, ways)
    return ways


def windows(starts: Sequence[tuple[Steps, int]], context: int, scale: float = SCALE) -> dict[str, NDArray[Any]]:
    """Steps from these on, K of them or up to the end of the episode, filled up on the left."""
    batch = len(starts)
    arrays: dict[str, NDArray[Any]] = {
        "states": np.zeros((batch, context, starts[0][0].observations.shape[1]), np.float32),
        "actions": np.full((batch, context, starts[0][0].actions.shape[1]), PADDED_ACTION, np.float32),
        "returns": np.zeros((batch, context, 1), np.float32),
        "timesteps": np.zeros((batch, context), np.int64),
        "mask": np.zeros((batch, context), np.float32),
    }
    for row, (episode, start) in enumerate(starts):
        end = min(start + context, len(episode.rewards))
        at = slice(context - (end - start), context)
        arrays["states"][row, at] = episode.observations[start:end]
        arrays["actions"][row, at] = episode.actions[start:end]
        arrays["returns"][row, at, 0] = episode.rewards[start:][::-1].cumsum()[::-1][: end - start] / scale
        arrays["timesteps"][row, at] = np.arange(start, end)
        arrays["mask"][row, at] = 1
    return arrays


def forward(model: Any, batch: Mapping[str, NDArray[Any]]) -> torch.Tensor:
    """Predicted actions [B, K, A]; rewards are an argument that the model does not use."""
    predicted: torch.Tensor = model(
        states=torch.as_tensor(batch["states"], dtype=torch.float32),
        actions=torch.as_tensor(batch["actions"]),
        rewards=None,
        returns_to_go=torch.as_tensor(batch["returns"]),
        timesteps=torch.as_tensor(batch["timesteps"]),
        attention_mask=torch.as_tensor(batch["mask"]),
        return_dict=True,
    ).action_preds
    return predicted


class HuggingFaceActing:
    """Acts as the same page does: every decision runs the newest K steps, filled up on the left; E episodes at once."""

    def __init__(
        self,
        model: Any,
        context: int,
        units: Units,
        target: float,
        count: int,
        choice: Choice,
    ) -> None:
        self.model, self.context, self.units, self.choice = model.eval(), context, units, choice
        self.remaining, self.time = np.full(count, target), 0
        self.states = np.zeros((count, context, len(units.mean)), np.float32)
        self.actions = np.zeros((count, context, model.config.act_dim), np.float32)
        self.returns = np.zeros((count, context, 1), np.float32)
        self.generator = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def __call__(
        self, rows: Sequence[int], observations: NDArray[np.float32], rewards: NDArray[np.float64]
    ) -> Sequence[Any]:
        """Actions; all episodes that still run are at the same step."""
        self.remaining[rows] -= rewards
        for window in (self.states, self.actions, self.returns):
            window[:, :-1] = window[:, 1:].copy()
            window[:, -1] = 0
        self.states[rows, -1] = (observations - self.units.mean) / self.units.deviation
        self.returns[rows, -1, 0] = self.remaining[rows] / self.units.scale
        numbers = np.arange(self.time - self.context + 1, self.time + 1)
        batch = {
            "states": self.states[rows],
            "actions": self.actions[rows],
            "returns": self.returns[rows],
            "timesteps": np.tile(numbers.clip(0), (len(rows), 1)),
            "mask": np.tile((numbers >= 0).astype(np.float32), (len(rows), 1)),
        }
        predicted = forward(self.model, batch)[:, -1]
        self.time += 1
        if self.choice == "predicted":
            self.actions[rows, -1] = predicted
            return list(predicted.numpy())
        chosen = predicted.argmax(-1)
        if self.choice == "drawn":
            chosen = torch.multinomial(predicted.clamp(min=1e-6), 1, generator=self.generator)[:, 0]
        self.actions[rows, -1] = np.eye(predicted.shape[1], dtype=np.float32)[chosen.numpy()]
        actions: list[int] = chosen.tolist()
        return actions


PEERS = {
    "d3rlpy": Peer(
        "d3rlpy DiscreteDecisionTransformer",
        ("d3rlpy",),
        "else its defaults: Adam at 6e-4, warm-up of 10,240 tokens, dropout 0.1, GELU",
        train_d3rlpy,
    ),
    "hugging_face": Peer(
        "transformers DecisionTransformerModel",
        ("transformers",),
        "else the recipe of its page: AdamW at 1e-4 with a linear fall, warm-up of a tenth, weight decay 1e-4, norm "
        "0.25, returns / 1,000; actions one-hot, squared error",
        train_hugging_face,
    ),
}
"""By the name that ``--only`` takes."""
