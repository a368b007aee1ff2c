"""Context windows: every step weighs alike, windows are aligned, padding is told apart."""

from collections import Counter

import numpy as np
import pytest
import torch

from rltransformers.core.errors import ConfigError
from rltransformers.data import ContextSampler, Trajectories, load_trajectories
from tests.data.coded import LENGTHS, coded_episodes, seeded


@pytest.fixture
def data() -> Trajectories:
    return load_trajectories(coded_episodes())


def weights(sampler: ContextSampler) -> Counter[int]:
    """How many of all windows hold each step as a valid entry, by its code; counted, not sampled."""
    batch = sampler.window(torch.arange(sampler.windows))
    return Counter(batch.observations[""][..., 0][batch.valid].int().tolist())


@pytest.mark.parametrize("context", [1, 4, 7, 20])
def test_every_step_lies_in_exactly_as_many_windows_as_the_context_is_long(data: Trajectories, context: int) -> None:
    sampler = ContextSampler(data, context, whole_episodes=False)
    assert sampler.windows == data.steps + len(data) * (context - 1)
    counts = weights(sampler)
    assert len(counts) == data.steps
    assert set(counts.values()) == {context}


def test_whole_episodes_weigh_every_step_once(data: Trajectories) -> None:
    sampler = ContextSampler(data, 14, whole_episodes=True)
    assert sampler.windows == len(LENGTHS)
    assert set(weights(sampler).values()) == {1}
    assert (sampler.sample(50, seeded()).timestep[:, 0] == 0).all()
    with pytest.raises(ConfigError, match="needs context_length >= 12"):
        ContextSampler(data, 11, whole_episodes=True)


def test_windows_are_whole_episodes_where_they_hold_the_longest(data: Trajectories) -> None:
    assert ContextSampler(data, 12).windows == len(data)
    assert ContextSampler(data, 11).windows == data.steps + len(data) * 10


def test_draws_are_uniform_over_the_windows(data: Trajectories) -> None:
    sampler = ContextSampler(data, 4)
    batch = sampler.sample(200_000, seeded(1))
    seen = batch.observations[""][..., 0][batch.valid].int()
    counts = torch.bincount(seen)[[1000 * e + t for e, length in enumerate(LENGTHS) for t in range(length)]].double()
    # Each count is binomial with mean 200000 * 4 / 45 = 17778 and deviation 127: 4 deviations for 30 counts.
    assert (counts / (200_000 * 4 / sampler.windows) - 1).abs().max() < 4 * 127 / 17_778


def test_windows_hold_consecutive_steps_of_one_episode_and_their_own_numbers(data: Trajectories) -> None:
    batch = ContextSampler(data, 6, discount=0.9).sample(500, seeded())
    episode = (batch.observations[""][..., 0] / 1000).floor().long()
    code = 1000 * episode + batch.timestep
    assert (episode == episode[:, :1]).all()
    assert (batch.observations[""][..., 0] == code).all() and (batch.observations[""][..., 1] == -code).all()
    torch.testing.assert_close(batch.actions[""][..., 0], code / 10_000)
    assert (batch.rewards == 10 * episode + batch.timestep + 1).all()
    steps = torch.from_numpy(data.offsets)[episode] + batch.timestep
    torch.testing.assert_close(batch.return_to_go, torch.from_numpy(data.return_to_go(0.9))[steps])
    # Odd episodes terminate, even ones are truncated.
    ends = batch.timestep == torch.tensor(LENGTHS)[episode] - 1
    assert (batch.terminated == (ends & (episode % 2 == 1))).all()
    inside = batch.valid[:, 1:]
    assert (batch.timestep.diff(dim=1)[inside] == 1).all()


def test_padding_is_on_the_right_and_repeats_the_last_valid_step(data: Trajectories) -> None:
    batch = ContextSampler(data, 6).sample(500, seeded())
    assert batch.valid[:, 0].all() and not batch.valid.all()
    assert (batch.valid.int().diff(dim=1) <= 0).all()
    last = (batch.valid.sum(1) - 1)[:, None]
    repeated = batch.timestep.gather(1, last).expand_as(batch.timestep)
    assert (batch.timestep == torch.where(batch.valid, batch.timestep, repeated)).all()


def test_windows_that_begin_before_the_episode_are_its_first_steps(data: Trajectories) -> None:
    batch = ContextSampler(data, 3).window(torch.arange(7))  # episode 0 has 5 steps: 5 + 2 windows
    codes = [row[valid].int().tolist() for row, valid in zip(batch.observations[""][..., 0], batch.valid, strict=True)]
    assert codes == [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4], [4]]


def test_unknown_last_observations_are_never_read() -> None:
    with_last, without = (load_trajectories(coded_episodes(final=final)) for final in (True, False))
    for context in (1, 5, 20):
        one, other = (ContextSampler(data, context).sample(300, seeded(2)) for data in (with_last, without))
        assert (one.observations[""] == other.observations[""]).all()


def test_the_generator_alone_decides_the_batch(data: Trajectories) -> None:
    sampler = ContextSampler(data, 4)
    first, again, other = (sampler.sample(8, seeded(seed)) for seed in (3, 3, 4))
    assert (first.timestep == again.timestep).all() and (first.rewards == again.rewards).all()
    assert not (first.rewards == other.rewards).all()


def test_memory_mapped_data_give_the_same_batches(data: Trajectories, tmp_path) -> None:  # type: ignore[no-untyped-def]
    opened = Trajectories.open(data.save(tmp_path / "folder"))
    one, other = (ContextSampler(source, 4).sample(8, seeded()) for source in (data, opened))
    assert (one.observations[""] == other.observations[""]).all()


def test_read_only_arrays_are_sampled_without_complaint(data: Trajectories) -> None:
    data.rewards.flags.writeable = False
    ContextSampler(data, 2).sample(3, seeded())


def test_leaves_keep_their_types_and_shapes() -> None:
    observations = {
        "image": np.zeros((4, 3, 5), np.uint8),
        "at": np.array([2, 0, 1, 2]),
        "flags": np.array([[True, False]] * 4),
        "speed": np.zeros((4, 2)),
    }
    data = load_trajectories(
        [{"observations": observations, "actions": [[0, 1], [2, 3], [1, 1]], "rewards": [1, 2, 3]}]
    )
    batch = ContextSampler(data, 5).sample(7, seeded()).to("cpu")
    shapes = {path: (leaf.dtype, tuple(leaf.shape)) for path, leaf in batch.observations.items()}
    assert shapes == {
        "image": (torch.uint8, (7, 5, 3, 5)),
        "at": (torch.int64, (7, 5)),
        "flags": (torch.int8, (7, 5, 2)),
        "speed": (torch.float32, (7, 5, 2)),
    }
    assert batch.actions[""].shape == (7, 5, 2) and batch.actions[""].dtype == torch.int64


def test_a_context_without_steps_is_refused(data: Trajectories) -> None:
    with pytest.raises(ConfigError, match="context_length must be a whole number of at least 1, got 0"):
        ContextSampler(data, 0)


def test_chunks_are_the_actions_that_follow_in_the_episode_also_behind_the_window(data: Trajectories) -> None:
    batch = ContextSampler(data, 3, chunk=4).window(torch.arange(ContextSampler(data, 3).windows))
    plain = ContextSampler(data, 3).window(torch.arange(len(batch.valid)))
    assert plain.chunks is None and torch.equal(plain.actions[""], batch.actions[""])
    assert batch.chunks is not None
    assert torch.equal(batch.chunks.actions[""][:, :, 0], batch.actions[""])
    behind = 0
    for b, episode in enumerate(batch.episode.tolist()):
        start, length = int(data.offsets[episode]), LENGTHS[episode]
        for t in range(int(batch.valid[b].sum())):
            for j in range(4):
                step = int(batch.timestep[b, t]) + j
                assert bool(batch.chunks.counts[b, t, j]) == (step < length)
                expected = data.actions[""][start + min(step, length - 1)]
                assert np.array_equal(batch.chunks.actions[""][b, t, j].numpy(), expected)
                behind += step < length and step > int(batch.timestep[b, 2])
    assert behind > 0
