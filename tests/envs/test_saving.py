"""The state of environments as plain data: what goes on from it equals what never stopped."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecMonitor, VecNormalize

from rltransformers.core.checkpoint import load_checkpoint, pack_arrays, save_checkpoint, unpack_arrays
from rltransformers.core.errors import ConfigError
from rltransformers.envs import TASKS, FiniteVecEnv, GymnasiumVecEnv, make_vec_env
from rltransformers.envs.saving import environment_state, restore_environment, takes_state
from tests.envs.test_memory_tasks import SMALL, make_vec


def rows(env: VecEnv, steps: int, seed: int) -> list[Any]:
    """Everything an agent sees of ``steps`` random steps; the clock is left out."""
    generator, seen = np.random.default_rng(seed), []
    space = env.action_space

    def random(generator: np.random.Generator, count: int) -> Any:
        if isinstance(space, spaces.Discrete):
            return generator.integers(space.n, size=count)
        return generator.uniform(-1.0, 1.0, (count, *(space.shape or ()))).astype(np.float32)

    for _ in range(steps):
        observation, reward, done, infos = env.step(random(generator, env.num_envs))
        told = [{k: v for k, v in info.items() if k not in ("episode", "terminal_observation")} for info in infos]
        sums = [(i["episode"]["r"], i["episode"]["l"]) for i in infos if "episode" in i]
        seen.append((np.array(observation).tolist(), reward.tolist(), done.tolist(), told, sums))
    return seen


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_stack_goes_on_from_a_file_as_if_it_had_not_stopped(task: str, mode: AutoresetMode, tmp_path: Path) -> None:
    def make() -> VecEnv:
        program = make_vec(task, 3, autoreset_mode=mode, **SMALL[task])
        return VecMonitor(FiniteVecEnv(GymnasiumVecEnv(program)))

    first, second = make(), make()
    first.seed(5)
    first.reset()
    rows(first, 7, seed=0)
    save_checkpoint(tmp_path / "state", "Test", {}, {"state": pack_arrays(environment_state(first))})
    second.seed(9)  # of no account: it stands where the first one stood, and does not begin anew
    state = unpack_arrays(load_checkpoint(tmp_path / "state", "Test").tensors["state"])
    assert takes_state(second, state)
    restore_environment(second, state)
    after = rows(first, 40, seed=1)
    assert any(any(row[2]) for row in after)
    assert rows(second, 40, seed=1) == after
    assert np.array_equal(np.array(first.reset()), np.array(second.reset()))


def test_a_layer_that_cannot_tell_leaves_the_stack_without_a_state() -> None:
    ours = make_vec_env("rltransformers/CueRecall-v0", 2, seed=0)
    state = environment_state(ours)
    assert state is not None
    assert environment_state(VecNormalize(ours)) is not None and takes_state(VecNormalize(ours), state)
    assert environment_state(VecFrameStack(ours, 2)) is None and not takes_state(VecFrameStack(ours, 2), state)
    assert not takes_state(ours.venv, state)  # type: ignore[attr-defined]
    for other in (
        DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]),
        GymnasiumVecEnv(gymnasium.make_vec("CartPole-v1", 2)),
        VecMonitor(FiniteVecEnv(GymnasiumVecEnv(gymnasium.make_vec("CartPole-v1", 2)))),
    ):
        assert environment_state(other) is None and not takes_state(other, state)


def test_a_state_of_another_number_of_copies_is_refused() -> None:
    state = environment_state(make_vec_env("rltransformers/CueRecall-v0", 2, seed=0))
    assert state is not None
    with pytest.raises(ConfigError, match="that of 2 copies, this task has 3"):
        restore_environment(make_vec_env("rltransformers/CueRecall-v0", 3, seed=0), state)


def test_a_copy_that_has_ended_is_reset_in_the_next_step_there_too() -> None:
    first, second = (make_vec("CueRecall", 3, delay=1, autoreset_mode=AutoresetMode.NEXT_STEP) for _ in range(2))
    first.reset(seed=0)
    ended = [first.step(np.zeros(3, np.int64))[2].all() for _ in range(3)]
    assert ended == [False, False, True]
    second.load_state_dict(first.state_dict())  # type: ignore[attr-defined]
    for _ in range(5):
        one, other = (env.step(np.zeros(3, np.int64)) for env in (first, second))
        for left, right in zip(one[:4], other[:4], strict=True):
            np.testing.assert_array_equal(left, right)
