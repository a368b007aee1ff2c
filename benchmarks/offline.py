"""Speed and memory of the offline side: updates, batches and acting of the Decision Transformer, data in, data out.

The peer is the Decision Transformer of the package transformers at the published size (Chen et al. 2021, arXiv
2106.01345). Axes: B batch or environments, K steps of context, N steps of data.
"""

import itertools
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from torch import Tensor, nn

from benchmarks.harness import ROOT, Row, absolute, interleave, parameters, repeat, resident_bytes
from rltransformers.agents import DecisionTransformer
from rltransformers.data import (
    ContextBatch,
    ContextSampler,
    Trajectories,
    load_trajectories,
    record,
    write_csv,
    write_minari,
)
from rltransformers.policies.decider import ActingMode
from rltransformers.policies.steps import DecisionMachine

Floats = npt.NDArray[np.float32]

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (11,), np.float32)
ACTIONS = spaces.Box(-1.0, 1.0, (3,), np.float32)
EPISODE = 1000
MILLION = 1000 * EPISODE
CONTEXT = 20
BATCH = 64
LEARNING_RATE = 1e-4
WEIGHT_DECAY = 1e-4
LARGEST_NORM = 0.25
DROPOUT = 0.1
UPDATES = 5  # per timed run
SAMPLES = 200
STEPS = 100  # timed steps of an episode: whole periods of the cache, which restarts every K / 2 steps
PEER = "transformers"
SIZES = "3 layers, width 128, 1 head, FF 512 ReLU, Box(11) to Box(3)"


# --- data and models ---


def synthetic(episodes: int, length: int = EPISODE, seed: int = 0) -> Trajectories:
    """Episodes of random numbers that end by truncation."""
    generator = np.random.default_rng(seed)
    steps = episodes * length
    truncations = np.zeros(steps, bool)
    truncations[length - 1 :: length] = True
    return Trajectories(
        observations={"": generator.standard_normal((steps + episodes, 11), np.float32)},
        actions={"": generator.uniform(-1.0, 1.0, (steps, 3)).astype(np.float32)},
        rewards=generator.random(steps, np.float32),
        terminations=np.zeros(steps, bool),
        truncations=truncations,
        offsets=np.arange(episodes + 1, dtype=np.int64) * length,
        observation_space=OBSERVATIONS,
        action_space=ACTIONS,
        name="synthetic",
    )


def our_model(data: Trajectories, context: int = CONTEXT) -> DecisionTransformer:
    """The agent at the published size, with a timestep table of the same rows as the peer's."""
    position = {"name": "timestep", "max_len": EPISODE}
    backbone = {"preset": "decision_transformer", "position": position, "dropout": DROPOUT}
    return DecisionTransformer(
        "DTPolicy",
        data,
        context_length=context,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        warmup_steps=0,
        batch_size=BATCH,
        max_grad_norm=LARGEST_NORM,
        policy_kwargs={"backbone": backbone},
        seed=0,
        device="cpu",
    )


def peer_model() -> nn.Module:
    """The Decision Transformer of transformers at the published size, with the fused attention of torch."""
    try:
        from transformers import DecisionTransformerConfig, DecisionTransformerModel
    except ImportError as error:
        raise SystemExit('the peer transformers is missing: pip install "rltransformers[bench]"') from error
    options: dict[str, Any] = {
        "state_dim": 11,
        "act_dim": 3,
        "hidden_size": 128,
        "n_layer": 3,
        "n_head": 1,
        "n_inner": 512,
        "max_ep_len": EPISODE,
        "activation_function": "relu",
        "resid_pdrop": DROPOUT,
        "embd_pdrop": DROPOUT,
        "attn_pdrop": DROPOUT,
        "use_cache": False,  # a cache is of no use to windows that move
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": "sdpa",
    }
    model: nn.Module = DecisionTransformerModel(DecisionTransformerConfig(**options))
    return model


# --- dt-update ---


class StopAfter(BaseCallback):
    """Ends ``learn`` after some updates, so that its last one is like the others: nothing is logged there."""

    def __init__(self, updates: int) -> None:
        super().__init__()
        self.updates = updates

    def _on_step(self) -> bool:
        return self.n_calls < self.updates


def learning(model: DecisionTransformer) -> Callable[[], None]:
    """``UPDATES`` updates through ``learn``."""

    def run() -> None:
        model.learn(10**9, callback=StopAfter(UPDATES), log_interval=10**9)

    return run


def peer_batch(batch: ContextBatch, data: Trajectories, return_scale: float) -> dict[str, Tensor]:
    """The same windows as the peer takes them, already standardized and scaled."""
    means, deviations = data.observation_statistics()
    states = (batch.observations[""] - torch.from_numpy(means[""])) / torch.from_numpy(deviations[""])
    return {
        "states": states,
        "actions": batch.actions[""],
        "rewards": batch.rewards[..., None],
        "returns_to_go": batch.return_to_go[..., None] / return_scale,
        "timesteps": batch.timestep,
        "attention_mask": batch.valid.long(),
    }


def peer_learning(model: nn.Module, batches: Sequence[dict[str, Tensor]]) -> Callable[[], None]:
    """``UPDATES`` updates: mean squared error of the actions over the valid steps, clipping, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    endless = itertools.cycle(batches)

    def run() -> None:
        model.train()
        for batch in itertools.islice(endless, UPDATES):
            valid = batch["attention_mask"] > 0
            predicted = model(**batch, return_dict=False)[1]
            loss = nn.functional.mse_loss(predicted[valid], batch["actions"][valid])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)
            optimizer.step()

    return run


def dt_update(*, repetitions: int = 5) -> Iterator[Row]:
    """Updates of the agent, batch drawing included, against updates of the peer on prepared batches."""
    peer = peer_model()
    data = synthetic(MILLION // EPISODE)
    model = our_model(data)
    sampler, generator = ContextSampler(data, CONTEXT), torch.Generator().manual_seed(0)
    batches = [
        peer_batch(sampler.sample(BATCH, generator), data, model.summary.return_scale) for _ in range(4 * UPDATES)
    ]
    setting = (
        f"{SIZES}, K {CONTEXT}, batch {BATCH}, dropout {DROPOUT}, AdamW, 10^6 steps of data;"
        f" parameters: ours {parameters(model.policy):,}, peer {parameters(peer):,}"
    )
    pair = interleave(learning(model), peer_learning(peer, batches), repetitions)
    ours, theirs = (UPDATES / np.median(seconds) for seconds in (pair.ours, pair.peer))
    note = (
        f"{ours:.1f} updates/s, peer {theirs:.1f}; ours through learn(), batches drawn; the peer's are prepared."
        " 131,072 of the peer's weights are a table of which it adds one row; it predicts states and returns too"
    )
    yield pair.row("DT update", setting, "ms per update", PEER, ">= 1.5", scale=1e3 / UPDATES, note=note)
    drawn = interleave(sampling(sampler, BATCH), learning(model), repetitions)
    shares = [
        100 * (drawing / SAMPLES) / (updating / UPDATES)
        for drawing, updating in zip(drawn.ours, drawn.peer, strict=True)
    ]
    where = f"batch {BATCH}, K {CONTEXT}, 10^6 steps; of the update above"
    yield absolute("DT sampling, share", where, "% of an update", shares, "<= 1")


# --- dt-sampling ---


def sampling(sampler: ContextSampler, batch: int, samples: int = SAMPLES) -> Callable[[], None]:
    """``samples`` batches."""
    generator = torch.Generator().manual_seed(0)

    def run() -> None:
        for _ in range(samples):
            sampler.sample(batch, generator)

    return run


def dt_sampling(*, repetitions: int = 5) -> Iterator[Row]:
    """Batches of windows from a million steps."""
    sampler = ContextSampler(synthetic(MILLION // EPISODE), CONTEXT)
    for batch, samples, target in ((BATCH, SAMPLES, "<= 0.4"), (4096, 20, "<= 8")):
        seconds = repeat(sampling(sampler, batch, samples), repetitions)
        milliseconds = [1e3 * value / samples for value in seconds]
        setting = f"batch {batch}, K {CONTEXT}, 10^6 steps in 1,000 episodes, Box(11), Box(3)"
        yield absolute(f"DT sampling, batch {batch}", setting, "ms per batch", milliseconds, target)


# --- dt-acting ---


class TableEnvs:
    """Environments that do nothing: observations come from a table, every reward is 1."""

    def __init__(self, num_envs: int) -> None:
        self.observations = np.random.default_rng(0).standard_normal((EPISODE + 1, num_envs, 11), np.float32)
        self.rewards = np.ones(num_envs)

    def reset(self) -> Floats:
        """The first observations."""
        self.time = 0
        return self.observations[0]

    def step(self, actions: Floats) -> tuple[Floats, npt.NDArray[np.float64]]:
        """The next observations and the rewards."""
        self.time += 1
        return self.observations[self.time], self.rewards


class OurActing:
    """The loop of a user of ``Decider``.

    Args:
        compiled: steps are machine code.
        spread: environment i begins its episode a little later than i - 1, so that their caches restart at different
            steps; otherwise all restart together, as in episodes of equal length.
    """

    def __init__(
        self,
        model: DecisionTransformer,
        num_envs: int,
        mode: ActingMode | None = None,
        *,
        spread: bool = False,
        compiled: bool = False,
    ) -> None:
        self.decider = model.decider(mode)
        self.machine_code = DecisionMachine() if compiled else None
        self.envs = TableEnvs(num_envs)
        self.num_envs = num_envs
        period = self.decider.context_length // 2
        self.begins = torch.arange(num_envs) * (period if spread else 0) // num_envs
        self.target = torch.full((num_envs,), 500.0, dtype=torch.float64)

    def __call__(self) -> float:
        """Seconds of ``STEPS`` steps in the middle of an episode."""
        self.decider.policy.machine_code = self.machine_code
        observation, reward = self.envs.reset(), np.zeros(self.num_envs)
        state = self.decider.initial_state(self.num_envs)
        before = 2 * self.decider.context_length
        for step in range(before + STEPS):
            if step == before:
                began = time.perf_counter()
            actions, _, state = self.decider.step(
                {"": torch.from_numpy(observation)},
                state,
                start=(self.begins == step) | (step == 0),
                reward=torch.from_numpy(reward),
                target_return=self.target,
                overwrites=True,
            )
            observation, reward = self.envs.step(actions[""].numpy())
        return time.perf_counter() - began


class PeerActing:
    """The published loop: every decision runs the newest K steps, left-padded, from arrays that hold the episode."""

    def __init__(self, model: nn.Module, num_envs: int, context: int, statistics: tuple[Tensor, Tensor]) -> None:
        self.model, self.num_envs, self.context = model.eval(), num_envs, context
        self.envs = TableEnvs(num_envs)
        self.mean, self.deviation = statistics
        rows = context - 1 + EPISODE
        self.states, self.actions = torch.zeros(num_envs, rows, 11), torch.zeros(num_envs, rows, 3)
        self.returns, self.rewards = torch.zeros(num_envs, rows, 1), torch.zeros(num_envs, rows, 1)
        self.timesteps = (torch.arange(rows) - (context - 1)).clamp(min=0).expand(num_envs, rows)
        self.mask = (torch.arange(rows) >= context - 1).long().expand(num_envs, rows)

    @torch.no_grad()
    def __call__(self) -> float:
        """Seconds of ``STEPS`` steps in the middle of an episode; the steps before are taken as played."""
        observation = self.envs.reset()
        asked = torch.full((self.num_envs, 1), 0.5)
        before = 2 * self.context
        self.envs.time = before
        began = time.perf_counter()
        for step in range(before, before + STEPS):
            window, now = slice(step, step + self.context), step + self.context - 1
            self.states[:, now] = (torch.from_numpy(observation) - self.mean) / self.deviation
            self.returns[:, now] = asked
            self.actions[:, now] = 0.0
            action = self.model(
                states=self.states[:, window],
                actions=self.actions[:, window],
                rewards=self.rewards[:, window],
                returns_to_go=self.returns[:, window],
                timesteps=self.timesteps[:, window],
                attention_mask=self.mask[:, window],
                return_dict=False,
            )[1][:, -1]
            self.actions[:, now] = action
            observation, reward = self.envs.step(action.numpy())
            asked = asked - torch.from_numpy(reward).float()[:, None] / 1000.0
        return time.perf_counter() - began


def one_by_one(peer: PeerActing, num_envs: int) -> Callable[[], float]:
    """The peer with one environment, one episode after the other."""

    def run() -> float:
        return sum(peer() for _ in range(num_envs))

    return run


def dt_acting(*, repetitions: int = 5) -> Iterator[Row]:
    """Steps of episodes whose window is full, in environments that cost nothing."""
    peer = peer_model()
    data = synthetic(10)
    means, deviations = data.observation_statistics()
    statistics = torch.from_numpy(means[""]), torch.from_numpy(deviations[""])
    model, long_model = our_model(data), our_model(data, 100)
    single = PeerActing(peer, 1, CONTEXT, statistics)
    batched = PeerActing(peer, 8, CONTEXT, statistics)
    eight = one_by_one(single, 8)

    def row(name: str, ours: OurActing, theirs: Callable[[], float], how: str, target: str = "", note: str = "") -> Row:
        envs = "1 environment" if ours.num_envs == 1 else f"{ours.num_envs} environments"
        setting = (
            f"{SIZES}, K {ours.decider.context_length}, {envs}, acting {ours.decider.mode!r},"
            f" {STEPS} steps after the first {2 * ours.decider.context_length}"
        )
        unit = "ms per step of all" if ours.num_envs > 1 else "ms per step"
        return interleave(ours, theirs, repetitions).row(
            name, setting, unit, f"{PEER}, {how}", target, scale=1e3 / STEPS, note=note
        )

    def fast(model: DecisionTransformer, num_envs: int) -> OurActing:
        return OurActing(model, num_envs, compiled=True)

    yield row("DT acting, 1 env", OurActing(model, 1), single, "window anew", ">= 3")
    yield row("DT acting, compiled, 1 env", fast(model, 1), single, "window anew", ">= 6")
    yield row(
        "DT acting, 1 env, banded", OurActing(model, 1, "banded"), single, "window anew",
        note="for models trained on windows longer than the memory; information",
    )  # fmt: skip
    yield row("DT acting, 8 envs", OurActing(model, 8), eight, "one by one", ">= 14")
    yield row("DT acting, compiled, 8 envs", fast(model, 8), eight, "one by one", ">= 25")
    yield row("DT acting, 8 envs", OurActing(model, 8), batched, "batched", ">= 6")
    yield row("DT acting, compiled, 8 envs", fast(model, 8), batched, "batched", ">= 10")
    yield row(
        "DT acting, 8 envs, spread", OurActing(model, 8, spread=True), batched, "batched",
        note="episodes of different ages: caches restart at different steps; information",
    )  # fmt: skip
    yield row("DT acting, 8 envs, banded", OurActing(model, 8, "banded"), batched, "batched", note="information")
    long = one_by_one(PeerActing(peer, 1, 100, statistics), 8)
    yield row("DT acting, 8 envs, K 100", OurActing(long_model, 8), long, "one by one", ">= 24")
    yield row("DT acting, compiled, 8 envs, K 100", fast(long_model, 8), long, "one by one", ">= 40")
    note = "the peer's time is that of one environment times 100"
    for form, ours, target in (("", OurActing(model, 100), ">= 26"), (", compiled", fast(model, 100), ">= 40")):
        yield row(f"DT acting{form}, 100 envs", ours, lambda: 100 * single(), "one by one", target, note=note)


# --- dt-load ---


def write_d4rl(data: Trajectories, path: Path) -> None:
    """The file that D4RL would offer: flat arrays, next observations included, compressed with gzip."""
    import h5py

    rows = np.arange(data.steps) + np.repeat(np.arange(len(data)), data.lengths)
    arrays = {
        "observations": data.observations[""][rows],
        "next_observations": data.observations[""][rows + 1],
        "actions": data.actions[""],
        "rewards": data.rewards,
        "terminals": data.terminations,
        "timeouts": data.truncations,
    }
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, compression="gzip")


def write_minari_itself(data: Trajectories, dataset_id: str) -> None:
    """The data set as Minari's own functions store it, like those that it offers for download."""
    import minari
    from minari.data_collector import EpisodeBuffer

    episodes = [data.episode(index) for index in range(len(data))]
    buffers = [
        EpisodeBuffer(
            id=index,
            observations=episode.observations[""],
            actions=episode.actions[""],
            rewards=episode.rewards.astype(np.float64),
            terminations=episode.terminations,
            truncations=episode.truncations,
        )
        for index, episode in enumerate(episodes)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an author, code and environment that nobody named
        minari.create_dataset_from_buffers(
            dataset_id, buffers, observation_space=data.observation_space, action_space=data.action_space
        )


@contextmanager
def minari_folder(root: Path) -> Iterator[Path]:
    """Minari keeps its data sets in ``root``."""
    known = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(root)
    try:
        yield root
    finally:
        del os.environ["MINARI_DATASETS_PATH"]
        if known is not None:
            os.environ["MINARI_DATASETS_PATH"] = known


def evict(source: Path) -> None:
    """Ask the system to forget what it holds of a file or folder, so that a load reads from the disk."""
    for path in [source] if source.is_file() else [each for each in source.rglob("*") if each.is_file()]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def cold(source: Path) -> float:
    """Seconds of a load that finds neither a cache nor the file in memory."""
    evict(source)
    began = time.perf_counter()
    load_trajectories(source)
    return time.perf_counter() - began


def held_bytes(data: Trajectories) -> int:
    """Bytes of the arrays."""
    leaves = [*data.observations.values(), *data.actions.values(), data.rewards, data.terminations, data.truncations]
    return sum(leaf.nbytes for leaf in leaves)


def memory_share(source: str) -> float:
    """Highest memory of a load in this process above what the imports hold, in units of the data."""
    import h5py  # noqa: F401
    import minari  # noqa: F401

    before = resident_bytes("VmRSS")
    data = load_trajectories(source)
    return (resident_bytes("VmHWM") - before) / held_bytes(data)


def memory_share_of_new_process(source: Path) -> float:
    """``memory_share`` where nothing was loaded before."""
    return in_new_process(f"from benchmarks.offline import memory_share; print(memory_share({str(source)!r}))")


def in_new_process(program: str) -> float:
    """The number that a program prints in a process of its own."""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{program!r} failed in a new process:\n{done.stderr}")
    return float(done.stdout)


def dt_load(*, repetitions: int = 5) -> Iterator[Row]:
    """A million steps from D4RL and Minari: first load, load from the cache, memory."""
    data = synthetic(MILLION // EPISODE)
    with tempfile.TemporaryDirectory() as name, minari_folder(Path(name) / "minari") as root:
        root.mkdir()
        write_minari_itself(data, "synthetic/million-v0")
        write_d4rl(data, Path(name) / "million.hdf5")
        sources = (
            ("D4RL", Path(name) / "million.hdf5", "gzip, next_observations included"),
            ("Minari", root / "synthetic" / "million-v0", "hdf5 as Minari writes it"),
        )
        del data
        for label, source, how in sources:
            setting = f"10^6 steps in 1,000 episodes, Box(11), Box(3), {how}"
            seconds = repeat(lambda: cold(source), repetitions)  # noqa: B023
            note = "imports are done, the file is asked out of the page cache before each load"
            yield absolute(f"{label} load, cold", setting, "s", seconds, "<= 5", note=note)
            cache = Path(name) / "cache"
            load_trajectories(source, cache=cache)
            seconds = repeat(lambda: time_of(lambda: load_trajectories(source, cache=cache)), repetitions)  # noqa: B023
            yield absolute(f"{label} load, cached", setting, "s", seconds, "<= 0.2", note="memory-mapped copy")
            shares = [memory_share_of_new_process(source) for _ in range(repetitions)]
            note = "highest resident memory of a new process above that after its imports"
            yield absolute(f"{label} load, memory", setting, "x bytes of the data", shares, "<= 1.3", note=note)


def frame_memory(path: str, ours: bool) -> float:
    """Highest memory of reading a CSV file in this process, by us or by pandas, in megabytes above the imports."""
    import pandas

    before = resident_bytes("VmRSS")
    read_quietly(path) if ours else pandas.read_csv(path)
    return (resident_bytes("VmHWM") - before) / 1e6


def read_quietly(path: str) -> Trajectories:
    """A CSV file, without the warning that names the columns that were guessed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_trajectories(path)


def csv_load(*, repetitions: int = 5) -> Iterator[Row]:
    """A million rows of CSV beside ``pandas.read_csv`` of the same file."""
    import pandas

    with tempfile.TemporaryDirectory() as name:
        path = str(write_csv(synthetic(MILLION // EPISODE), Path(name) / "million.csv"))
        setting = f"10^6 rows of {len(pandas.read_csv(path, nrows=1).columns)} columns, Box(11), Box(3)"
        pair = interleave(
            lambda: time_of(lambda: read_quietly(path)), lambda: time_of(lambda: pandas.read_csv(path)), repetitions
        )
        yield pair.row("CSV load", setting, "s", "pandas.read_csv", ">= 0.333")
        shares = []
        for _ in range(repetitions):
            ours, peer = (
                in_new_process(f"from benchmarks.offline import frame_memory; print(frame_memory({path!r}, {side}))")
                for side in (True, False)
            )
            shares.append(ours / peer)
        note = "highest resident memory of a new process above that after its imports"
        yield absolute("CSV load, memory", setting, "x pandas.read_csv", shares, "<= 2.5", note=note)


def time_of(work: Callable[[], Any]) -> float:
    """Seconds of ``work``, whose result is dropped afterwards."""
    began = time.perf_counter()
    result = work()
    spent = time.perf_counter() - began
    del result
    return spent


# --- recorder ---


def recorder(*, repetitions: int = 5) -> Iterator[Row]:
    """Steps per second of a random policy in 16 CartPoles: into a Minari data set on disk, and into memory."""
    steps = 50_000
    setting = f"CartPole-v1, 16 environments, random policy, {steps:,} steps"

    def collected() -> float:
        data = record("CartPole-v1", "random", steps, num_envs=16)
        write_minari(data, "bench/cartpole-v0", overwrite=True)
        return float(data.steps)

    def written() -> float:
        data = record("CartPole-v1", "random", steps, num_envs=16, seed=0)
        write_minari(data, "bench/cartpole-v0", overwrite=True)
        return float(data.steps)

    def recorded() -> float:
        return float(record("CartPole-v1", "random", steps, num_envs=16, seed=0).steps)

    single = "what the command collect runs: single environments in one process"
    vector = "on Gymnasium's vector CartPole"
    with tempfile.TemporaryDirectory() as name, minari_folder(Path(name)):
        for label, work, target, note in (
            ("recorder, collect to Minari", collected, ">= 30000", f"{single}, episodes of about 22 steps"),
            ("recorder, record to Minari", written, "", f"record() {vector}, then write_minari(); information"),
            ("recorder, record to memory", recorded, "", f"record() {vector} alone; information"),
        ):
            rates = rate_of(work, repetitions)
            yield absolute(label, setting, "steps/s", rates, target, note=note)


def rate_of(work: Callable[[], float], repetitions: int) -> list[float]:
    """Steps per second of every run of ``work``, which returns the steps it made; the first run does not count."""
    rates = []
    for _ in range(1 + repetitions):
        began = time.perf_counter()
        steps = work()
        rates.append(steps / (time.perf_counter() - began))
    return rates[1:]
