"""Two processes with half the environments each learn what one learns with all of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rltransformers.core.errors import ConfigError
from rltransformers.core.world import Sharing
from tests.training.distributed_jobs import evaluation_statistics, import_late, online, resumed, rows
from tests.worlds import Pool, pool

pytestmark = pytest.mark.xdist_group("two processes")

TOLERANCE = 1e-6
"""Sums of float32 in another order differ by 1e-7 of a gradient, and Adam's steps by that share of its rate."""


@pytest.fixture(scope="module")
def two() -> Iterator[Pool]:
    with pool(2) as found:
        yield found


CASES: dict[str, dict[str, Any]] = {
    "ppo, discrete, episodes that terminate": dict(
        agent="ppo", task="cue", num_envs=8, updates=3, n_steps=8, batch_size=24, n_epochs=2
    ),
    "ppo, box, truncations, normalized, statistics of values": dict(
        agent="ppo",
        task="walk",
        num_envs=6,
        updates=3,
        normalize=True,
        n_steps=6,
        popart=0.1,
        batch_size=24,
        n_epochs=4,
        memory_refresh="epoch",
    ),
    "ppo, stopped by its divergence": dict(
        agent="ppo",
        task="stroll",
        num_envs=4,
        updates=3,
        n_steps=6,
        target_kl=1e-4,
        learning_rate=1e-2,
        batch_size=12,
        n_epochs=3,
    ),
    "vmpo, discrete": dict(
        agent="vmpo", task="stroll", num_envs=4, updates=4, n_steps=6, batch_size=12, target_update_interval=3, tau=0.5
    ),
    "vmpo, box": dict(agent="vmpo", task="walk", num_envs=4, updates=3, n_steps=5, batch_size=20, n_epochs=2),
    "dqn, even draws": dict(
        agent="dqn", task="cue", num_envs=4, updates=12, exploration=0.5, policy=dict(optimizer_kwargs=dict(eps=1e-5)),
        learning_starts=20, learning_rate=1e-2, train_freq=3, segment_length=4, batch_size=5, target_update_interval=4,
        memory_refresh="update",
    ),
    "dqn, draws by priority, normalized": dict(
        agent="dqn", task="stroll", num_envs=4, updates=12, normalize=True, prioritized=True, n_step=2,
        learning_starts=20, learning_rate=1e-2, train_freq=3, segment_length=4, batch_size=6,
        target_update_interval=4, tau=0.3,
        policy=dict(optimizer_kwargs=dict(eps=1e-5)),
    ),
    "sac, box": dict(
        agent="sac", task="narrow", num_envs=4, updates=12, n_step=2, normalize=True,
        learning_starts=20, learning_rate=1e-2, train_freq=3, segment_length=4, batch_size=5,
        policy=dict(optimizer_kwargs=dict(eps=1e-5), head_width=16, n_critics=3), memory_refresh="update",
    ),
    "sac, discrete, one trunk": dict(
        agent="sac", task="stroll", num_envs=4, updates=12, learning_starts=20, learning_rate=1e-2, train_freq=3,
        segment_length=4, batch_size=6,
        policy=dict(optimizer_kwargs=dict(eps=1e-5), head_width=16, shared_backbone=True),
    ),
    "ppo, centroids and an auxiliary loss": dict(
        agent="ppo", task="cue", num_envs=4, updates=2, n_steps=6, batch_size=12,
        backbone=dict(
            layers=1, selection=dict(name="routing", clusters=2, window=3, decay=0.5),
            losses=dict(commitment=0.1),
        ),
    ),
}  # fmt: skip
# Episodes of unequal length, which a limit cuts: of every mean each process has another share.
REPLAY: dict[str, Any] = dict(
    task="ramble", num_envs=4, updates=9, learning_starts=20, train_freq=3, segment_length=4, batch_size=5,
    gradient_steps=2, learning_rate=1e-3, policy=dict(optimizer_kwargs=dict(eps=1e-3)),
)  # fmt: skip
ROLLOUTS: dict[str, Any] = dict(
    task="ramble", num_envs=6, updates=2, n_steps=9, batch_size=27, gradient_window=5, n_epochs=2, learning_rate=1e-3,
    policy=REPLAY["policy"],
)  # fmt: skip
CRITICS: dict[str, Any] = REPLAY | dict(policy=REPLAY["policy"] | dict(head_width=16))
SEVERAL = dict(losses=dict(al_rfou=1.0, pattern=1.0, disagreement=1.0))
NOW = dict(losses=dict(al_rfou=dict(weight=1.0, future=0.0), pattern=1.0, disagreement=1.0))
EXITS = dict(losses=dict(exits=1.0), depth="depth_adaptive")
PONDER = dict(losses=dict(ponder=0.1), depth="universal_act")
COMPRESSION = dict(losses=dict(compression=1.0), memory_kind=dict(name="compressive", slots=3, rate=2))
CASES |= {
    "ppo, several auxiliary losses": dict(agent="ppo", backbone=SEVERAL, **ROLLOUTS),
    "ppo, compression": dict(agent="ppo", backbone=COMPRESSION, **ROLLOUTS),
    "vmpo, several auxiliary losses": dict(agent="vmpo", backbone=SEVERAL, **ROLLOUTS),
    "dqn, several auxiliary losses": dict(agent="dqn", backbone=SEVERAL, **REPLAY),
    "dqn, ponder": dict(agent="dqn", backbone=PONDER, **REPLAY),
    "sac, several auxiliary losses": dict(agent="sac", backbone=NOW, **CRITICS),
    "sac, exits": dict(agent="sac", backbone=EXITS, **CRITICS),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_two_processes_learn_what_one_learns(two: Pool, case: dict[str, Any]) -> None:
    one = online(**case)
    found = two.run(online, **case)
    assert np.abs(one["weights"] - one["start"]).max() > 1e-3
    assert len(one["returns"]) > 2
    for each in found:
        check_same(each, one)
    for name, value in found[0].items():  # the processes themselves do not drift apart at all
        np.testing.assert_array_equal(found[1][name], value, err_msg=name)


@pytest.mark.parametrize("agent", ["ppo", "sac"])
def test_processes_with_muon_hold_the_same_weights(two: Pool, agent: str) -> None:
    """What one process learns differs by more than with Adam, as Muon rounds gradients to bfloat16."""
    replay = dict(learning_starts=20, train_freq=3, segment_length=4, batch_size=6)
    own: dict[str, Any] = dict(n_steps=8, batch_size=16, n_epochs=2) if agent == "ppo" else replay
    case: dict[str, Any] = dict(agent=agent, task="cue", num_envs=4, updates=4, policy=dict(optimizer="muon"), **own)
    one, found = online(**case), two.run(online, **case)
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value, err_msg=name)
    moved = np.abs(one["weights"] - one["start"]).max()
    assert np.abs(found[0]["weights"] - one["weights"]).max() < 0.05 * moved > 0


def check_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            # Variances of returns reach 1e4, and are of rewards in float32.
            np.testing.assert_allclose(found[name], value, rtol=1e-7, atol=TOLERANCE, err_msg=name)
        else:
            assert found[name] == pytest.approx(value, abs=1e-5), name


STOPS: dict[str, dict[str, Any]] = {
    "ppo": dict(agent="ppo", normalize=True, n_steps=6, batch_size=12, n_epochs=2, memory_refresh="epoch"),
    "ppo, rewards in every step": dict(agent="ppo", task="maze", n_steps=6, batch_size=12, n_epochs=2),
    "vmpo": dict(agent="vmpo", n_steps=6, batch_size=12, target_update_interval=3),
    "dqn": dict(
        agent="dqn", policy=dict(optimizer_kwargs=dict(eps=1e-5)), prioritized=True, normalize=True, learning_starts=20,
        learning_rate=3e-3, train_freq=6, segment_length=4, batch_size=5, target_update_interval=2,
    ),
    "sac": dict(
        agent="sac", policy=dict(optimizer_kwargs=dict(eps=1e-5), head_width=16), normalize=True, learning_starts=20,
        learning_rate=3e-3, train_freq=6, segment_length=4, batch_size=5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STOPS.values(), ids=STOPS.keys())
def test_a_checkpoint_does_not_depend_on_the_number_of_processes(
    two: Pool, case: dict[str, Any], tmp_path: Path
) -> None:
    usual: dict[str, Any] = dict(task="cue", num_envs=4, normalize=False)
    case = usual | case
    going_on: dict[str, Any] = {name: case[name] for name in ("agent", *usual)} | {"steps": 4 * 6 * 4}
    whole = online(updates=4, **case)
    two.run(online, updates=2, save=str(tmp_path / "two"), **case)
    online(updates=2, save=str(tmp_path / "one"), **case)
    for name, value in resumed(str(tmp_path / "two"), **going_on).items():
        check_same({name: value}, {name: whole[name]})
    for each in two.run(resumed, path=str(tmp_path / "one"), **going_on):
        check_same(each, {name: value for name, value in whole.items() if name != "start"})


@pytest.mark.parametrize("case", STOPS.values(), ids=STOPS.keys())
def test_all_processes_end_with_the_rollout_in_which_the_callback_of_one_ends_training(
    two: Pool, case: dict[str, Any]
) -> None:
    usual: dict[str, Any] = dict(task="cue", num_envs=4)
    case = usual | case
    first, _ = two.run(online, updates=1, **case)
    for each in two.run(online, updates=4, ends_in=1, **case):  # in the second rollout
        assert each["steps"] == 2 * 6 * 4
        np.testing.assert_array_equal(each["weights"], first["weights"])


def test_evaluations_of_unequal_length_keep_statistics_of_their_own(two: Pool) -> None:
    """Also those whose ``VecNormalize`` is in training mode, after a callback made its statistics those of training."""
    for steps, found in zip((3, 0), two.run(evaluation_statistics, steps=[3, 0]), strict=True):
        assert found["training"] == pytest.approx(4, abs=1e-3)
        assert found["evaluation"] == pytest.approx(4 + 1 + steps, abs=1e-3)
        assert found["later"] == pytest.approx(8, abs=1e-3)


def test_rows_change_hands_and_keep_their_order(two: Pool) -> None:
    owners, takers = [1, 1, 0, 1, 0, 1, 1], [0, 1, 1, 0, 0, 1, 1]
    for rank, found in enumerate(two.run(rows, owners=owners, takers=takers)):
        wanted = np.flatnonzero(np.array(takers) == rank)
        np.testing.assert_array_equal(found["number"], wanted)
        np.testing.assert_array_equal(found["flag"], wanted % 2 == 1)
        np.testing.assert_array_equal(found["pair"], np.stack([wanted, -wanted], 1))
        np.testing.assert_array_equal(found["whole"], np.arange(7) ** 2)
        np.testing.assert_array_equal(found["gradient"], 2.0 * wanted * 21 + 91)  # of sum x^2 times sum x


def test_all_processes_take_equally_many_and_their_own_first() -> None:
    owners = torch.tensor([0, 0, 0, 2, 0, 1, 2, 2])
    assert Sharing(0, 3).assign(owners).tolist() == [0, 0, 0, 2, 1, 1, 2, 1]


def test_processes_that_part_have_no_threads_left_that_abort_at_the_end() -> None:
    """As PyTorch leaves some where an agent has been made, whose optimizer imports ``torch.distributed.nn``."""
    with pool(2, "spawn") as both:
        both.run(import_late)
    assert both.threads == [0, 0]


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"num_envs \(15\) must be a multiple of the 2 processes .* nearest: 14 or 16"
    ):
        Sharing(0, 2).share_of(15, "num_envs")
    with pytest.raises(ConfigError, match="a minibatch of 1 cannot be shared by 2 processes: raise batch_size"):
        Sharing(0, 2).check(None, 4, 1)
    with pytest.raises(ConfigError, match="a readout keeps a store of its own in every process"):
        Sharing(0, 2).check("knn", 4)
    Sharing().check("knn", 1)
