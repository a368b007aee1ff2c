"""GTrXLPPO among the tools of Stable-Baselines3 and Gymnasium: spaces, vector environments, callbacks, bad input."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor, VecNormalize

from rltransformers.agents import GTrXLPPO
from rltransformers.core.errors import CheckpointError, ConfigError, DataError
from rltransformers.core.guard import reset_rows
from rltransformers.core.spaces import leaf_values
from rltransformers.data import record
from rltransformers.envs import FlatDict, GymnasiumVecEnv, NoveltyBonus, make_vec_env
from rltransformers.policies.observations import fit_observation
from rltransformers.training.evaluation import evaluate_online
from tests.agents.rollouts import rollout
from tests.agents.tiny_envs import AnySpace, PixelCue, Poisoned, Walk

BACKBONE = {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4}
VECTOR = spaces.Box(-1.0, 1.0, (3,))
CHOICE = spaces.Discrete(3)
OBSERVATIONS: dict[str, gym.Space[Any]] = {
    "vector": VECTOR,
    "double": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
    "image": spaces.Box(0, 255, (7, 7, 3), np.uint8),
    "channels first": spaces.Box(0, 255, (3, 8, 9), np.uint8),
    "discrete": spaces.Discrete(5, start=2),
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
    "multi-binary": spaces.MultiBinary(4),
    "dict": spaces.Dict({"image": spaces.Box(0, 255, (7, 7, 3), np.uint8), "vector": VECTOR}),
    "tuple": spaces.Tuple((CHOICE, VECTOR)),
    "nested": spaces.Dict({"camera": spaces.Dict({"left": VECTOR, "index": CHOICE}), "rest": spaces.Tuple((VECTOR,))}),
}
ACTIONS: dict[str, gym.Space[Any]] = {
    "discrete": CHOICE,
    "discrete from 5": spaces.Discrete(2, start=5),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-discrete from 1": spaces.MultiDiscrete([2, 3], start=[1, 1]),
    "multi-binary": spaces.MultiBinary(3),
    "box": spaces.Box(-0.5, 0.5, (2,)),
    "box of two axes": spaces.Box(np.array([[-1.0, 0.0]]), np.array([[1.0, 0.1]]), dtype=np.float64),
    "bits of two axes": spaces.MultiBinary([2, 2]),
}
NESTED: dict[str, gym.Space[Any]] = {
    "dict": spaces.Dict({"grip": spaces.Discrete(2, start=5), "arm": spaces.Box(-0.1, 0.1, (2,), np.float64)}),
    "tuple": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Dict({"lamps": spaces.MultiBinary(3)})]),
}
HISTORY = {"previous_action": True, "previous_reward": True, "first_step": True}


def agent(env: Any, policy: dict[str, Any] | None = None, **settings: Any) -> GTrXLPPO:
    chosen: dict[str, Any] = {"n_steps": 8, "seed": 0, "device": "cpu", "n_epochs": 1} | settings
    return GTrXLPPO("GTrXLPolicy", env, policy_kwargs={"backbone": BACKBONE} | (policy or {}), **chosen)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_every_observation_space_is_learned_from_and_predicted_on(name: str) -> None:
    env = AnySpace(OBSERVATIONS[name], CHOICE)
    model = agent(env, HISTORY).learn(16)
    raw = OBSERVATIONS[name].sample()
    action, _ = model.predict(raw)
    assert np.shape(action) == () and CHOICE.contains(int(action))


@pytest.mark.parametrize("name", ACTIONS)
def test_every_action_space_is_acted_in(name: str) -> None:
    space = ACTIONS[name]
    env = DummyVecEnv([partial(AnySpace, VECTOR, space)] * 2)
    model = agent(env, HISTORY).learn(32)  # the environment asserts that it is given members of its space
    action, state = model.predict(VECTOR.sample())
    assert space.contains(action[()] if isinstance(space, spaces.Discrete) else action)
    actions, _ = model.predict(np.stack([VECTOR.sample()] * 3))
    assert actions.shape == (3, *(space.shape or ()))
    assert state.batch_size == 1


def checked(name: str) -> gym.Env[Any, Any]:
    """The environment asserts that it is given members of its space."""
    return AnySpace(VECTOR, NESTED[name])


@pytest.mark.parametrize("name", NESTED)
def test_nested_actions_are_learned_saved_and_predicted(name: str, tmp_path: Path) -> None:
    env = VecNormalize(DummyVecEnv([partial(checked, name)] * 2))
    model = agent(env, HISTORY, memory_refresh="epoch").learn(48)
    model.save(tmp_path / "nested")
    loaded = GTrXLPPO.load(tmp_path / "nested", DummyVecEnv([partial(checked, name)] * 2), device="cpu")
    observation, state, twin = VECTOR.sample(), None, None
    for reward in (None, 0.5, -0.5):
        action, state = model.predict(observation, state, deterministic=True, reward=reward)
        same, twin = loaded.predict(observation, twin, deterministic=True, reward=reward)
        assert NESTED[name].contains(action)
        assert str(action) == str(same)
    actions, _ = model.predict(np.stack([VECTOR.sample()] * 3))
    assert len(actions) == 3 and all(NESTED[name].contains(each) for each in actions)
    loaded.learn(16)
    mean, _ = evaluate_policy(agent(env).learn(16), DummyVecEnv([lambda: Monitor(checked(name))] * 2), 2)
    assert mean == 10.0  # rewards 1, 2, 3, 4


class Eraser(AnySpace):
    """Overwrites the action that it was given."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        action[...] = 0
        return result


@pytest.mark.parametrize("name", ["multi-discrete", "multi-binary", "box"])
def test_an_environment_may_write_into_its_action(name: str) -> None:
    given, erased = (
        rollout(agent(DummyVecEnv([partial(kind, VECTOR, ACTIONS[name])] * 2), HISTORY)) for kind in (AnySpace, Eraser)
    )
    assert torch.equal(given.actions[""], erased.actions[""]) and given.actions[""].any()


class Payer(AnySpace):
    """Pays what the leaves of its nested action sum to."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        leaves = leaf_values(self.action_space, action).values()
        return observation, float(sum(np.sum(leaf) for leaf in leaves)), terminated, truncated, info


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("vector_env", [DummyVecEnv, SyncVectorEnv])
def test_every_copy_gets_its_own_nested_action(name: str, vector_env: Any) -> None:
    model = agent(vector_env([partial(Payer, VECTOR, NESTED[name])] * 3), scale_rewards=False)
    segment = rollout(model)
    executed = model.policy.action_head.execute(segment.actions)
    paid = sum(leaf.flatten(2).double().sum(-1) for leaf in (each[..., None] for each in executed.values()))
    assert isinstance(paid, torch.Tensor) and len(paid.unique()) > 3
    torch.testing.assert_close(segment.rewards.double(), paid, atol=1e-6, rtol=0.0)  # rewards are float32


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("vector_env", [SyncVectorEnv, AsyncVectorEnv])
def test_gymnasium_vector_environments_take_nested_actions(name: str, vector_env: Any) -> None:
    env = vector_env([partial(checked, name)] * 2)
    model = agent(env, HISTORY).learn(16)
    assert model.num_timesteps == 16 and [episode["r"] for episode in model.ep_info_buffer or ()][:2] == [10.0, 10.0]
    env.close()


def test_an_environment_id_is_enough() -> None:
    model = agent("CartPole-v1").learn(8)
    assert model.get_env() is not None and model.num_timesteps == 8


def test_a_flat_dict_and_a_nested_observation_mean_the_same() -> None:
    env = AnySpace(OBSERVATIONS["nested"], CHOICE)
    model = agent(env)
    raw = OBSERVATIONS["nested"].sample()
    flat = FlatDict(env).observation(raw)
    assert set(flat) == {"camera/left", "camera/index", "rest/0"}
    one, two = (model.policy.values(*first_step(model, x)) for x in (raw, flat))
    assert torch.equal(one, two)


def first_step(model: GTrXLPPO, observation: Any) -> tuple[Any, Any, Any]:
    leaves, _ = fit_observation(model.policy.observation_leaves, observation)
    return model.policy.leaves_to_tensors(leaves), model.policy.initial_state(1), torch.ones(1, dtype=torch.bool)


@pytest.mark.parametrize("name", ["dict", "image"])
def test_eval_callback_and_evaluate_policy_drive_dict_and_image_environments(name: str, tmp_path: Path) -> None:
    def make() -> gym.Env[Any, Any]:
        return Monitor(PixelCue() if name == "image" else AnySpace(OBSERVATIONS["dict"], CHOICE))

    callback = EvalCallback(
        DummyVecEnv([make] * 3), n_eval_episodes=5, eval_freq=4, best_model_save_path=str(tmp_path), verbose=0
    )
    model = agent(DummyVecEnv([make] * 2)).learn(32, callback=callback)
    assert callback.last_mean_reward > -np.inf
    mean, _ = evaluate_policy(model, DummyVecEnv([make] * 2), 4)
    single, _ = evaluate_policy(model, make(), 2)
    assert np.isfinite([mean, single]).all()
    assert GTrXLPPO.load(tmp_path / "best_model").observation_space == model.observation_space


@pytest.mark.filterwarnings("ignore:saved at step")
def test_checkpoint_callback_progress_bar_and_stopping_callbacks_work(tmp_path: Path) -> None:
    callbacks = [
        CheckpointCallback(4, str(tmp_path), name_prefix="walk", verbose=0),
        StopTrainingOnMaxEpisodes(3, verbose=0),
    ]
    model = agent(Walk((5,))).learn(1000, callback=callbacks, progress_bar=True)
    assert model.num_timesteps == 15
    assert (tmp_path / "walk_12_steps.zip").is_file()


def test_vec_normalize_and_its_statistics_are_used_in_training() -> None:
    env = VecNormalize(DummyVecEnv([partial(Walk, (5,))] * 2))
    model = agent(env).learn(32)
    assert model.get_vec_normalize_env() is env
    assert env.ret_rms.count > 30
    segment = model.carry.segment
    assert segment is not None and float(segment.observations[""].abs().max()) <= 10.0


def test_images_that_were_normalized_load_with_an_environment_of_pixels(tmp_path: Path) -> None:
    def pixels() -> VecEnv:
        return DummyVecEnv([partial(AnySpace, OBSERVATIONS["image"], CHOICE)] * 2)

    normalized: Any = VecNormalize(pixels())
    model = agent(normalized).learn(32)
    model.save(tmp_path / "model")
    for env in (pixels(), VecNormalize(pixels())):
        loaded, given_later = GTrXLPPO.load(tmp_path / "model", env=env), GTrXLPPO.load(tmp_path / "model")
        given_later.set_env(env)
        for each in (loaded, given_later):
            statistics: Any = each.get_vec_normalize_env()
            np.testing.assert_array_equal(statistics.obs_rms.mean, normalized.obs_rms.mean)
            assert each.observation_space == model.observation_space
        loaded.learn(16)
    for other in ("discrete", "vector"):
        env = DummyVecEnv([partial(AnySpace, OBSERVATIONS[other], CHOICE)] * 2)
        with pytest.raises(ConfigError, match="trained with observation space"):
            GTrXLPPO.load(tmp_path / "model", env=env)
        with pytest.raises(ConfigError, match="trained with observation space"):
            GTrXLPPO.load(tmp_path / "model").set_env(env)


@pytest.mark.parametrize("own", [3, {"r": "x", "l": 1}, {"number": 2}, [1.0]])
def test_an_episode_of_the_environments_own_in_its_info_is_no_record(own: Any) -> None:
    class Counting(Walk):
        def step(self, action: Any) -> Any:
            *rest, info = super().step(action)
            return (*rest, info | {"episode": own})

    env = DummyVecEnv([partial(Counting, (5,))] * 2)
    model = agent(env).learn(32)
    assert not model.ep_info_buffer
    assert evaluate_online(model, env, "walk", 2).lengths == (5, 5)


@pytest.mark.filterwarnings("ignore:Training and eval env:UserWarning", "ignore:Evaluation environment is:UserWarning")
@pytest.mark.parametrize("wrap", [VecMonitor, VecNormalize])
def test_an_evaluation_that_takes_no_statistics_is_refused_when_learning_begins(wrap: Callable[[Any], Any]) -> None:
    def walks() -> VecEnv:
        return DummyVecEnv([partial(Walk, (5,))] * 2)

    model = agent(VecNormalize(VecMonitor(walks())))
    good = VecNormalize(VecMonitor(walks()), training=False, norm_reward=False)
    with pytest.raises(
        ConfigError, match=r"EvalCallback evaluates in .*, training runs in VecNormalize\(VecMonitor\(Du"
    ):
        model.learn(16, callback=[EvalCallback(good, verbose=0), EvalCallback(wrap(walks()), verbose=0)])
    assert model.num_timesteps == 0
    model.learn(16, callback=EvalCallback(good, eval_freq=4, verbose=0))


def test_an_evaluation_in_environments_with_a_bonus_leaves_it_out() -> None:
    env, other = (NoveltyBonus(make_vec_env("CartPole-v1", count, seed=0), 0.25) for count in (2, 1))
    evaluates = EvalCallback(VecNormalize(other, training=False, norm_reward=False), eval_freq=8, verbose=0)
    model = agent(VecNormalize(env)).learn(16, callback=evaluates)
    returns, lengths = evaluate_policy(model, evaluates.eval_env, 3, return_episode_rewards=True)
    assert returns == lengths


def test_integers_are_not_normalized() -> None:
    numbers = spaces.Box(0, 40, (3,), np.int64)
    both = spaces.Dict({"vector": VECTOR, "numbers": numbers})
    for space, message in (
        (numbers, r"fractions of the observation, whose space .*norm_obs=False"),
        (both, r"fractions of leaf 'numbers' of the observation, .*norm_obs_keys"),
    ):
        made = partial(AnySpace, space, CHOICE)
        with pytest.raises(ConfigError, match=message):
            agent(VecNormalize(DummyVecEnv([made] * 2)))
        agent(VecNormalize(DummyVecEnv([made] * 2), norm_obs=False)).learn(16)
    agent(VecNormalize(DummyVecEnv([partial(AnySpace, both, CHOICE)] * 2), norm_obs_keys=["vector"])).learn(16)


@pytest.mark.slow
def test_environments_in_other_processes_give_the_same_run() -> None:
    def weights(env: VecEnv) -> torch.Tensor:
        model = agent(env).learn(32)
        env.close()
        return torch.nn.utils.parameters_to_vector(model.policy.parameters()).detach()

    make = [partial(gym.make, "CartPole-v1")] * 2
    assert torch.equal(weights(SubprocVecEnv(make)), weights(DummyVecEnv(make)))  # type: ignore[arg-type]


def test_images_may_come_in_either_order_of_axes() -> None:
    model = agent(AnySpace(OBSERVATIONS["image"], CHOICE))
    picture = OBSERVATIONS["image"].sample()
    one = model.predict(picture, deterministic=True)[1]
    two = model.predict(picture.transpose(2, 0, 1), deterministic=True)[1]
    assert all(torch.equal(a, b) for a, b in zip(one.actor.tensors.values(), two.actor.tensors.values(), strict=True))


# Gymnasium's own vector environments


def vector_env(mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([partial(Walk, (5, 3)), partial(Walk, (4,))], autoreset_mode=mode)


def episode_returns(model: GTrXLPPO, episodes: int) -> list[list[float]]:
    """Returns per environment of the deterministic policy, first episodes."""
    env = model.get_env()
    assert env is not None
    env.seed(3)
    observation, state, start = env.reset(), None, np.ones(env.num_envs, dtype=bool)
    totals, found = np.zeros(env.num_envs), [[] for _ in range(env.num_envs)]  # type: ignore[var-annotated]
    while min(map(len, found)) < episodes:
        action, state = model.predict(observation, state, start, deterministic=True)
        observation, reward, start, _ = env.step(action)
        totals += reward
        for i in np.flatnonzero(start):
            found[i].append(round(float(totals[i]), 4))
            totals[i] = 0.0
        start = start | reset_rows(env)
    return [returns[:episodes] for returns in found]


def test_all_autoreset_modes_give_the_same_returns() -> None:
    modes = [vector_env(mode) for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED)]
    reference: list[list[float]] | None = None
    for env in modes:
        returns = episode_returns(agent(env), 5)
        assert all(len(set(row)) > 1 for row in returns)
        reference = returns if reference is None else reference
        assert returns == reference


def test_asynchronous_vector_environments_train() -> None:
    env = AsyncVectorEnv([partial(Walk, (5, 3)), partial(Walk, (4,))])
    model = agent(env).learn(32)
    assert model.num_timesteps == 32 and len(model.ep_info_buffer or ()) >= 6
    env.close()


class ResetRows(VecEnv):
    """Two copies of ``Walk`` whose resets take a row of their own, as foreign next-step environments do."""

    def __init__(self) -> None:
        self.envs = [Walk((5, 3)), Walk((4,))]
        self.over = np.zeros(2, dtype=bool)
        super().__init__(2, self.envs[0].observation_space, self.envs[0].action_space)

    def reset(self) -> Any:
        return np.stack([env.reset(seed=seed)[0] for env, seed in zip(self.envs, self._seeds, strict=True)])

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> Any:
        rewards, dones = np.zeros(2, np.float32), np.zeros(2, dtype=bool)
        rows, infos = [], list[dict[str, Any]]()
        self.reset_rows = self.over
        for i, env in enumerate(self.envs):
            if self.over[i]:
                rows.append(env.reset()[0])
                infos.append({})
                continue
            observation, rewards[i], terminated, truncated, _ = env.step(self.actions[i])
            dones[i] = terminated or truncated
            rows.append(observation)
            infos.append({"terminal_observation": observation, "TimeLimit.truncated": truncated} if dones[i] else {})
        self.over = dones.copy()
        return np.stack(rows), rewards, dones, infos

    def close(self) -> None: ...
    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(env, attr_name) for env in self.envs]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...
    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        return []

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False, False]


class Telling(Walk):
    """Puts into its infos what vector environments put there, and once did."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *row, info = super().step(action)
        return *row, info | {"reset_row": True, "reset_rows": True}


@pytest.mark.parametrize("make", [Telling, lambda: DummyVecEnv([Telling] * 2), lambda: SyncVectorEnv([Telling] * 2)])
def test_infos_of_an_environment_make_no_reset_rows(make: Any) -> None:
    model = agent(make())
    model.learn(1)
    assert model.carry.segment is not None and bool(model.carry.segment.counts.all())
    assert record(make(), "random", steps=20).steps >= 20


def test_reset_rows_are_no_steps_and_start_no_memory() -> None:
    model = agent(ResetRows(), n_steps=20).learn(32)
    segment = model.carry.segment
    assert segment is not None
    ends = {row: np.flatnonzero(~segment.counts[row].numpy()).tolist() for row in range(2)}
    # lengths 5, 3, 5 and 4, 4, 4, 4, each followed by one row that only resets
    assert ends == {0: [5, 9, 15, 19], 1: [4, 9, 14, 19]}
    for row, rows in ends.items():
        firsts = np.flatnonzero(segment.first[row].numpy()).tolist()
        assert firsts == sorted({0, *rows, *(at + 1 for at in rows if at < 19)})
    assert model.num_timesteps == 40 - 8  # eight rows only reset
    # the steps themselves are those of the environment without reset rows
    plain = agent(GymnasiumVecEnv(vector_env(AutoresetMode.SAME_STEP)), n_steps=16)
    plain.learn(32)
    reference = plain.carry.segment
    assert reference is not None
    kept = segment.observations[""][1][segment.counts[1]][:, 0]
    torch.testing.assert_close(kept, reference.observations[""][1][:, 0])


class OneArray(gym.Env[Any, Any]):
    """Returns the same array at every step; observes the share of its ten steps that is over, when a limit cuts."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(2)
        self.seen, self.t = np.zeros(1, np.float32), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.t, self.seen[:] = 0, 0.0
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.seen[:] = self.t / 10
        return self.seen, 1.0, False, self.t == 10, {}


@pytest.mark.parametrize(
    "make",
    [
        OneArray,
        lambda: OneArray,
        lambda: DummyVecEnv([OneArray]),
        lambda: SyncVectorEnv([OneArray], autoreset_mode=AutoresetMode.SAME_STEP),
    ],
    ids=["object", "function", "DummyVecEnv", "SyncVectorEnv"],
)
def test_a_cut_episode_is_valued_at_its_last_observation_where_the_environment_writes_into_it_again(make: Any) -> None:
    valued: list[float] = []

    model = GTrXLPPO("GTrXLPolicy", make(), n_steps=24, policy_kwargs={"backbone": BACKBONE}, device="cpu")
    values = model.policy.values

    def watch(leaves: Any, *rest: Any) -> Any:
        valued.extend(leaves[""].ravel().tolist())
        return values(leaves, *rest)

    model.policy.values = watch  # type: ignore[method-assign, assignment]
    model.learn(24)
    assert valued[:-1] == [1.0, 1.0]  # the last one is that of the observation behind the rollout


# Bad input


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("reward", [False, True])
def test_a_number_that_is_not_finite_names_environment_and_step(reward: bool, normalized: bool) -> None:
    env: VecEnv = DummyVecEnv([Poisoned, partial(Poisoned, 6, reward), Poisoned])
    env = VecNormalize(env) if normalized else env
    what = "reward" if reward else "observation"
    with pytest.raises(DataError, match=rf"{what} of environment 1 .*(not finite.* step 6|step 6.*not finite)"):
        agent(env).learn(100)


class Unborn(Poisoned):
    """Turns NaN in the reset."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**options)
        return np.full(2, np.nan, np.float32), {}


@pytest.mark.parametrize(
    ("poisoned", "what", "steps"),
    [(Unborn, "observation", 0), (partial(Poisoned, 1), "observation", 1), (partial(Poisoned, 6), "observation", 6),
     (partial(Poisoned, 6, True), "reward", 6)],
)  # fmt: skip
@pytest.mark.parametrize("processes", [False, True])
def test_a_number_that_is_not_finite_never_enters_the_statistics_of_a_normalizer(
    poisoned: Any, what: str, steps: int, processes: bool
) -> None:
    env = VecNormalize((SubprocVecEnv if processes else DummyVecEnv)([Poisoned, poisoned]))
    statistics: Any = env.obs_rms
    before = statistics.count
    with pytest.raises(DataError, match=rf"{what} of environment 1 .*in step {steps}|{what} of .* 1 .*at step {steps}"):
        agent(env).learn(100)
    env.close()
    assert statistics.count - before == pytest.approx(2 * steps)  # the reset and all steps but the one that is refused
    for each in (statistics, env.ret_rms):
        assert np.isfinite(each.mean).all() and np.isfinite(each.var).all()
    assert np.isfinite(env.returns).all()


def test_statistics_that_are_not_finite_are_refused_with_the_file_that_holds_them(tmp_path: Path) -> None:
    env = VecNormalize(DummyVecEnv([Poisoned]))
    model, statistics = agent(env), cast(Any, env.obs_rms)
    statistics.mean[0] = np.nan
    model.save(tmp_path / "spoiled")
    for given in (None, DummyVecEnv([Poisoned])):
        with pytest.raises(CheckpointError, match=r"spoiled.*normalization.observations.*mean is not finite"):
            GTrXLPPO.load(tmp_path / "spoiled", env=given)


@pytest.mark.parametrize("action", [VECTOR, CHOICE, spaces.Box(0, 9, (1,), np.int64)], ids=str)
def test_a_network_that_is_not_finite_is_to_blame_and_not_the_environment(action: gym.Space[Any]) -> None:
    model = agent(AnySpace(VECTOR, action))
    with torch.no_grad():
        model.policy.action_head.linear.weight.fill_(torch.nan)
    with pytest.raises(DataError, match="log-probabilities are not finite; look whether its weights"):
        model.predict(np.zeros(3, np.float32))
    if not isinstance(action, spaces.Discrete):
        with pytest.raises(DataError, match=r"policy's action for environment 0 is .*nan.*; look whether its weights"):
            model.learn(8)


def test_bounds_that_float32_does_not_have_are_kept() -> None:
    bound = np.array([0.1, -0.3])  # of one number each
    model = agent(AnySpace(VECTOR, spaces.Box(bound, bound, dtype=np.float64)))
    for deterministic in (True, False):
        action, _ = model.predict(np.zeros(3, np.float32), deterministic=deterministic)
        assert action.dtype == np.float64 and action.tolist() == bound.tolist()


def poisoned_end(at: int | None) -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(Poisoned(at), 6)


@pytest.mark.parametrize("normalized", [False, True])
def test_a_last_observation_that_is_not_finite_names_environment_and_step(normalized: bool) -> None:
    env: VecEnv = DummyVecEnv([partial(poisoned_end, at) for at in (None, 6, None)])
    env = VecNormalize(env) if normalized else env
    with pytest.raises(DataError, match=r"terminal observation of environment 1 .*step 6.*not finite"):
        agent(env).learn(100)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 12}, "multiple of n_steps .8.*nearest that is: 16"),
        ({"memory_refresh": "updates"}, "did you mean 'update'"),
        ({"n_steps": 0}, "n_steps must be a whole number in .* got 0"),
        ({"gradient_window": 0}, "gradient_window must be a whole number of at least 1 or None"),
        ({"gamma": 1.5}, r"gamma must be a finite number in \[0, 1\], got 1.5"),
        (
            {"least_advantage_std": -0.1},
            "least_advantage_std must be a finite number in .0, 1e.30. or None .null., got -0.1",
        ),
        (
            {"least_advantage_std": 0.1, "normalize_advantage": False},
            "=0.1 bounds .* set normalize_advantage=True, or least_advantage_std=0",
        ),
        (
            {"learning_rate": "fast"},
            "learning_rate must be .*, a function or a mapping with start, end, fraction, got",
        ),
        (
            {"learning_rate": {"start": 1.0, "stop": 0.0}},
            r"unknown setting learning_rate\.stop; known: end, frac",
        ),
        ({"clip_range": -0.1}, r"clip_range must be a finite number in \[0, 1000000.0\], a function .* got -0.1"),
        ({"ent_coef": {"start": 0.1}}, "ent_coef needs end: it is a mapping with start, end, fraction"),
        ({"barrier_coef": -0.1}, "barrier_coef must be a finite number in .*, got -0.1"),
        ({"policy": {"bakbone": {}}}, r"unknown setting policy_kwargs\.bakbone; did you mean 'backbone'"),
        (
            {"n_steps": 10**12},
            "need .*e.0[45] GiB, this process may have .*; lower n_steps or the number of environments",
        ),
        ({"learning_rate": {"start": 0.1, "end": -0.1}}, r"learning_rate\.end must be a finite number in .*, got -0.1"),
        ({"clip_range": lambda: 0.1}, "clip_range must be a function of the remaining progress"),
        ({"clip_range": lambda progress: -progress}, "clip_range at progress 1 must be a finite number .*, got -1.0"),
        ({"device": "nonsense"}, "device must be 'auto', 'cpu', 'cuda' .* got 'nonsense'"),
        (
            {"policy": {"optimizer_kwargs": {"esp": 1}}},
            r"setting policy_kwargs\.optimizer_kwargs\.esp; did you mean",
        ),
        ({"policy": {"backbone": {"preset": "gtrxl", "dropout": 0.1}}}, "dropout is 0.1, but must be 0 online"),
        ({"policy": {"head_width": -1}}, r"policy_kwargs\.head_width must be a whole number in \[0, 65536\], got -1"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_with_the_way_out(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agent(Walk(), **settings)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (None, "env is None, but an agent learns in one"),
        ("CartPol-v1", "no environment is registered as 'CartPol-v1'; did you mean 'CartPole-v1'"),
        (3, "env must be an environment id, a function .*; got 3"),
    ],
)
def test_something_that_is_no_environment_is_refused(env: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agent(env)


def test_a_log_barrier_needs_actions_that_can_be_counted() -> None:
    box = AnySpace(VECTOR, spaces.Box(-1.0, 1.0, (2,)))
    with pytest.raises(ConfigError, match="with a Box of actions use ent_coef"):
        agent(box, barrier_coef={"start": 0.0, "end": 0.1})
    agent(box, barrier_coef=0.0)


def test_another_policy_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"policy must be 'GTrXLPolicy', a subclass of .*got 'MlpPolicy'"):
        GTrXLPPO("MlpPolicy", Walk())


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (spaces.Text(5), CHOICE, "observation space is Text"),
        (VECTOR, spaces.Tuple((CHOICE, spaces.Text(5))), "action space at '1' is Text"),
        (VECTOR, spaces.Box(-np.inf, np.inf, (2,)), "needs finite bounds"),
        (VECTOR, spaces.Dict({"a": spaces.Box(0, np.inf, (2,))}), "needs finite bounds, got .* at 'a'"),
    ],
)
def test_an_unsupported_space_is_refused(observation: Any, action: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agent(AnySpace(observation, action))


def test_an_observation_of_the_wrong_shape_is_refused() -> None:
    model = agent(Walk())
    with pytest.raises(DataError, match=r"has shape \(4,\), the space has \(3,\)"):
        model.predict(np.zeros(4, np.float32))
    with pytest.raises(DataError, match="not finite"):
        model.predict(np.full(3, np.nan, np.float32))


def test_a_policy_that_needs_rewards_says_so_when_none_is_given() -> None:
    model = agent(Walk(), {"previous_reward": True})
    _, state = model.predict(np.zeros(3, np.float32))
    with pytest.raises(ConfigError, match="needs predict"):
        model.predict(np.zeros(3, np.float32), state)
    model.predict(np.zeros(3, np.float32), state, reward=0.5)
    model.predict(np.zeros(3, np.float32), state, episode_start=np.array([True]))


def test_monitored_environments_are_not_monitored_twice() -> None:
    model = agent(Monitor(Walk((4,))), n_steps=8).learn(16)
    assert [info["l"] for info in model.ep_info_buffer or ()] == [4] * 4
    model = agent(VecMonitor(DummyVecEnv([partial(Walk, (4,))])), n_steps=8).learn(16)
    assert [info["l"] for info in model.ep_info_buffer or ()] == [4] * 4


def test_two_vec_normalize_are_refused() -> None:
    """A checkpoint holds the statistics of one."""
    env = VecNormalize(VecMonitor(VecNormalize(DummyVecEnv([partial(Walk, (5,))] * 2))))
    with pytest.raises(ConfigError, match="stands in two VecNormalize"):
        GTrXLPPO("GTrXLPolicy", env, n_steps=8)


def test_an_environment_that_was_never_reset_is_named() -> None:
    model = GTrXLPPO(
        "GTrXLPolicy", make_vec_env("CartPole-v1", 2), n_steps=8, policy_kwargs={"backbone": {"width": 8, "heads": 2}}
    )
    model.learn(16)
    model.set_env(make_vec_env("CartPole-v1", 2), force_reset=False)
    with pytest.raises(DataError, match=r"environment 0 is to take a step and was never reset .*force_reset=False"):
        model.learn(16, reset_num_timesteps=False)
