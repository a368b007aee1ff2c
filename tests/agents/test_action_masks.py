"""Agents keep to masks of actions wherever they act, and learn with the masks that they acted with."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.callbacks import EvalCallback, EveryNTimesteps
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from rltransformers.agents import Actor, GTrXLDQN, GTrXLPPO
from rltransformers.core.action_masks import choices_of
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.seeding import branch_seeds
from rltransformers.envs import ActionMasks
from rltransformers.policies.shipping import ActorCriticInFile
from rltransformers.training.evaluation import evaluate_online
from rltransformers.training.online.on_policy_agent import OnPolicyMemoryAgent
from rltransformers.training.online.vec_envs import as_vec_env
from tests.agents.masked_envs import Keyholes, Locks
from tests.agents.replayed import agent as replayed_agent
from tests.agents.replayed import collect, draw_from, replay_of
from tests.agents.rollouts import ON_POLICY, loud, rollout
from tests.agents.test_gtrxl_dqn_laws import differences
from tests.agents.tiny_envs import AnySpace

TINY = {"preset": "gtrxl", "width": 16, "layers": 2, "heads": 2, "memory": 4}
SPACES = {
    "discrete": spaces.Discrete(4, start=3),
    "multi": spaces.MultiDiscrete([2, 4, 3]),
    "bits": spaces.MultiBinary(3),
}
SOURCES = ("method", "observation", "wrapper")
Maker = Callable[[], gym.Env[Any, Any]]


def locks(source: str = "method", action_space: Any = None, **settings: Any) -> Maker:
    def make() -> gym.Env[Any, Any]:
        env = Locks(action_space, observed=source == "observation", **settings)
        return ActionMasks(env) if source == "wrapper" else env

    return make


def on_policy(kind: type[OnPolicyMemoryAgent], make: Maker, n: int = 3, **settings: Any) -> OnPolicyMemoryAgent:
    policy = {"backbone": TINY, "previous_action": True} | settings.pop("policy", {})
    values: dict[str, Any] = {
        "n_steps": 12,
        "n_epochs": 2,
        "seed": 0,
        "device": "cpu",
        "learning_rate": 1e-2,
    } | settings
    return kind("GTrXLPolicy", DummyVecEnv([make] * n), policy_kwargs=policy, **values)


def q_learner(make: Maker, n: int = 3, **settings: Any) -> GTrXLDQN:
    return replayed_agent(DummyVecEnv([make] * n), {"memory": 3}, {"previous_action": True}, **settings)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("kind", ON_POLICY)
def test_the_update_computes_the_masked_probabilities_of_acting(
    kind: type[OnPolicyMemoryAgent], space: str, source: str
) -> None:
    """The environment refuses every action that its mask does not allow."""
    model = on_policy(kind, locks(source, SPACES[space]))
    loud(model)
    segment = rollout(model)
    with torch.no_grad():
        now = model.policy.evaluate_segment(segment)
    masks = segment.observations["action_mask"].bool()
    assert masks.shape == (3, 12, sum(choices_of(SPACES[space])))
    assert not masks.all()
    # float32: sums of terms of order 1, in another order
    torch.testing.assert_close(now.log_probs, segment.log_probs, atol=1e-5, rtol=0)
    model.learn(36, reset_num_timesteps=False)
    assert model.logger.name_to_value["train/first_ratio_error"] < 1e-5


@pytest.mark.parametrize("source", SOURCES)
def test_replayed_values_are_those_of_acting_and_targets_keep_to_the_mask(source: str) -> None:
    model = q_learner(locks(source, truncates=True))
    said = collect(model, 60)
    assert differences(model, said).max() < 1e-5
    replay = replay_of(model)
    window = model._normalized(replay.gather(draw_from(replay, 16, torch.Generator().manual_seed(0))))
    q = model.policy.evaluate_window(window).q
    masks = window.observations["action_mask"][:, window.context :].bool()
    assert (q[~masks] < -1e20).all()
    assert (q[masks].abs() < 1e6).all()
    assert masks.gather(-1, q.argmax(-1, keepdim=True)).all()
    assert masks.gather(-1, model.policy.classes(window)[..., None])[window.counts].all()
    model.train(1, 16)
    assert np.isfinite(model.logger.name_to_value["train/loss"])
    assert abs(model.logger.name_to_value["train/target"]) < 1e6
    model.learn(300, reset_num_timesteps=False)


def test_last_observations_of_cut_episodes_are_kept_with_their_masks() -> None:
    """A vector environment has reset by the time anybody could ask for them."""
    model = q_learner(locks(truncates=True), n=1)
    collect(model, 30)
    replay = replay_of(model)
    written = int(replay.written[0])
    masks, counts = replay.observations["action_mask"][0, :written], replay.counts[0, :written]
    assert int((~counts).sum()) >= 4
    alone, drawn = Locks(truncates=True), []
    alone.reset(seed=branch_seeds(0, "environment", 1)[0])
    for acted in counts.tolist():
        drawn.append(alone.mask.copy())
        if acted:
            alone.step(np.int64(np.flatnonzero(alone.mask)[0] + 3))
        else:
            alone.reset()
    np.testing.assert_array_equal(masks.numpy(), np.stack(drawn))


class Forgetful(DummyVecEnv):
    """Its infos lose what a ``CheckedEnv`` put there, as processes lose it that have none."""

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = super().step_wait()
        for info in infos:
            info.pop("last_action_mask", None)
        return observations, rewards, dones, infos


def test_a_lost_last_mask_is_an_error_where_values_depend_on_it() -> None:
    env = Forgetful([locks(truncates=True)] * 2)
    model = replayed_agent(env, {"memory": 3}, {})
    with pytest.raises(DataError, match=r"environment 0 at step 5 .* ActionMasks"):
        model.learn(40)
    on_policy(GTrXLPPO, locks(truncates=True)).learn(36)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_a_mask_that_allows_nothing_names_the_environment(kind: str, source: str) -> None:
    makers = [locks(source), locks(source, nothing_at=2)]
    env = DummyVecEnv(makers)
    model: Any = (
        GTrXLPPO("GTrXLPolicy", env, n_steps=8, policy_kwargs={"backbone": TINY}, device="cpu")
        if kind == "ppo"
        else replayed_agent(env, {"memory": 3}, {})
    )
    with pytest.raises(DataError, match="environment 1 at step 2 of this run allows no action"):
        model.learn(40)


@pytest.mark.parametrize("source", SOURCES)
def test_a_last_mask_that_allows_nothing_is_refused_with_another_end(source: str) -> None:
    model = q_learner(locks(source, truncates=True, nothing_at=5))
    with pytest.raises(DataError, match=r"at step 5 of this run allows no action; .* return terminated=True"):
        model.learn(40)
    q_learner(locks(source, nothing_at=5)).learn(40)


@pytest.mark.parametrize("found", [np.ones(3, bool), lambda: 1 / 0])
def test_masks_that_cannot_be_asked_for_are_a_fault_of_the_environment(found: Any) -> None:
    env = Locks()
    env.action_masks = found
    model = GTrXLPPO("GTrXLPolicy", env, n_steps=8, policy_kwargs={"backbone": TINY}, device="cpu")
    with pytest.raises(DataError, match=r"environment 0 raised \w+Error in action_masks\(\): "):
        model.learn(8)


def test_environments_that_reset_in_their_next_step_may_allow_nothing_there() -> None:
    class Over(Locks):
        def _observe(self) -> Any:
            place = super()._observe()
            if self.t == (5, 3, 7)[self.episode % 3]:
                self.mask[:] = 0
            return place

    env = gym.wrappers.vector.RecordEpisodeStatistics(SyncVectorEnv([Over] * 2, autoreset_mode=AutoresetMode.NEXT_STEP))
    model = GTrXLPPO("GTrXLPolicy", env, n_steps=16, policy_kwargs={"backbone": TINY}, device="cpu", seed=0).learn(64)
    assert model.carry.segment is not None
    assert not model.carry.segment.counts.all()
    assert model.logger.name_to_value["train/first_ratio_error"] < 1e-5


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_predict_takes_masks_as_sb3_contrib_gives_them(kind: str) -> None:
    model: Any = on_policy(GTrXLPPO, locks()) if kind == "ppo" else q_learner(locks())
    seen, generator = np.zeros((3, 3), np.float32), np.random.default_rng(0)
    state = None
    for _ in range(30):
        masks = generator.random((3, 4)) < 0.3
        masks[np.arange(3), generator.integers(4, size=3)] = True
        actions, state = model.predict(seen, state, deterministic=False, action_masks=masks)
        assert masks[np.arange(3), actions - 3].all()
    one, _ = model.predict(seen[0], action_masks=[False, False, True, False])
    assert one == 5
    with pytest.raises(ConfigError, match="get_action_masks"):
        model.predict(seen)
    with pytest.raises(DataError, match="environment 1 allows no action"):
        model.predict(seen, action_masks=np.array([[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]))
    with pytest.raises(DataError, match="need"):
        model.predict(seen, action_masks=np.ones((3, 5)))


@pytest.mark.parametrize("source", ["method", "observation"])
@pytest.mark.parametrize("kind", ["ppo", "dqn", "file"])
def test_actors_keep_to_masks(kind: str, source: str, tmp_path: Path) -> None:
    """Those given with the call, also against observed ones; samples and greedy actions, live and from a file."""
    model: Any = q_learner(locks(source)) if kind == "dqn" else on_policy(GTrXLPPO, locks(source))
    if kind == "file":
        model.export(tmp_path / "policy.pt2")
        actor = Actor.from_export(tmp_path / "policy.pt2", deterministic=False, seed=0)
    else:
        actor = model.actor(deterministic=False, seed=0)
    generator = np.random.default_rng(0)
    leaves = {} if source == "method" else {"action_mask": np.ones((3, 4), np.int8)}
    plain = np.zeros((3, 3), np.float32)
    seen: Any = plain if source == "method" else leaves | {"place": plain}
    actor.reset()
    for _ in range(20):
        masks = generator.random((3, 4)) < 0.3
        masks[np.arange(3), generator.integers(4, size=3)] = True
        assert masks[np.arange(3), actor(seen, action_masks=masks) - 3].all()
        actions, _ = actor.predict(seen, deterministic=True, action_masks=masks)
        assert masks[np.arange(3), actions - 3].all()
    with pytest.raises(DataError, match="environment 1 allows no action"):
        actor(seen, action_masks=np.array([[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]))
    if source == "method":
        with pytest.raises(ConfigError, match=r"acts only with them: .* or actor\(observation, reward, action_masks\)"):
            actor(seen)
    else:
        seen["action_mask"] = np.array([[0, 0, 0, 1]] * 3, np.int8)
        assert (actor(seen) == 6).all()


def test_an_actor_of_a_policy_without_masks_takes_none() -> None:
    plain = AnySpace(spaces.Box(-np.inf, np.inf, (3,)), spaces.Discrete(4, start=3))
    actor = GTrXLPPO("GTrXLPolicy", DummyVecEnv([lambda: plain]), policy_kwargs={"backbone": TINY}).actor()
    actor.reset()
    with pytest.raises(ConfigError, match="learned without"):
        actor(np.zeros(3, np.float32), action_masks=[1, 1, 1, 1])


def test_evaluations_of_sb3_contrib_of_sb3_and_of_ours_keep_to_masks() -> None:
    beside = on_policy(GTrXLPPO, locks())
    evaluate_masked(beside, DummyVecEnv([locks()]), n_eval_episodes=3, deterministic=False, warn=False)  # type: ignore[arg-type]  # for MaskablePPO
    evaluate_online(beside, DummyVecEnv([locks()] * 2), "Locks", 4, deterministic=False)
    evaluate_online(beside.actor(), DummyVecEnv([locks()] * 2), "Locks", 4)
    inside = on_policy(GTrXLPPO, locks("wrapper"))
    evaluate_policy(inside, DummyVecEnv([locks("wrapper")]), n_eval_episodes=3, deterministic=False, warn=False)
    evaluate_online(inside, DummyVecEnv([locks("wrapper")] * 2), "Locks", 4, deterministic=False)


@pytest.mark.parametrize("source", ["method", "observation"])
@pytest.mark.parametrize("kind", ["ppo", "vmpo", "dqn"])
def test_a_resumed_run_with_masks_equals_one_that_never_stopped(kind: str, source: str, tmp_path: Path) -> None:
    def build() -> Any:
        if kind == "dqn":
            return q_learner(locks(source, truncates=True), learning_starts=20, train_freq=4)
        return on_policy(ON_POLICY[kind == "vmpo"], locks(source), memory_refresh="epoch")

    whole, first = build(), build()
    whole.learn(72)
    whole.learn(72, reset_num_timesteps=False)
    first.learn(72)
    first.save(tmp_path / "model")
    assert first.env is not None
    second = type(first).load(tmp_path / "model", env=first.env, force_reset=False, device="cpu")
    assert second.policy.masks
    second.learn(72, reset_num_timesteps=False)
    for name, value in whole.policy.state_dict().items():
        assert torch.equal(value, second.policy.state_dict()[name]), name


def test_a_loaded_agent_without_environment_asks_for_masks(tmp_path: Path) -> None:
    on_policy(GTrXLPPO, locks()).save(tmp_path / "model")
    model = GTrXLPPO.load(tmp_path / "model", device="cpu")
    action, _ = model.predict(np.zeros(3, np.float32), action_masks=[0, 0, 0, 1])
    assert action == 6
    with pytest.raises(ConfigError, match="get_action_masks"):
        model.predict(np.zeros(3, np.float32))
    plain = AnySpace(spaces.Box(-np.inf, np.inf, (3,)), spaces.Discrete(4, start=3))
    with pytest.raises(ConfigError, match="neither a method action_masks"):
        GTrXLPPO.load(tmp_path / "model", env=plain, device="cpu")


def test_an_environment_given_later_has_the_masks_of_the_policy(tmp_path: Path) -> None:
    def plain() -> AnySpace:
        return AnySpace(spaces.Box(-np.inf, np.inf, (3,)), spaces.Discrete(4, start=3))

    masked = DummyVecEnv([locks()] * 3)
    with_masks = on_policy(GTrXLPPO, locks())
    with pytest.raises(ConfigError, match=r"masks actions by the method action_masks\(\) .* this one has none"):
        with_masks.set_env(DummyVecEnv([plain] * 3))
    with_masks.set_env(masked)
    on_policy(GTrXLPPO, plain).save(tmp_path / "plain")
    with pytest.raises(ConfigError, match=r"policy was made without masks: GTrXLPPO\.load\(path, env=env\)"):
        GTrXLPPO.load(tmp_path / "plain", device="cpu").set_env(masked)
    assert GTrXLPPO.load(tmp_path / "plain", env=masked, device="cpu").policy.masks
    on_policy(GTrXLPPO, plain, policy={"action_masks": False}).set_env(masked)


def test_masks_can_be_left_alone() -> None:
    """The environment then refuses actions, which the agent does not know of."""
    model = on_policy(GTrXLPPO, locks(), policy={"action_masks": False})
    assert not model.policy.masks
    with pytest.raises(DataError, match="does not allow"):
        model.learn(36)
    with pytest.raises(ConfigError, match="learned without"):
        model.predict(np.zeros(3, np.float32), action_masks=np.ones(4))


class OtherMasks(AnySpace):
    """Its method has the name of the one that says which actions are allowed, and is another one."""

    def action_masks(self, player: int) -> None:
        raise AssertionError("nobody asks")


def test_a_method_of_the_same_name_can_be_left_alone_in_cut_episodes_too() -> None:
    env = TimeLimit(OtherMasks(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)), 2)
    model = GTrXLPPO(
        "GTrXLPolicy", env, n_steps=16, policy_kwargs={"backbone": TINY, "action_masks": False}, device="cpu"
    )
    assert model.learn(32).num_timesteps == 32


@pytest.mark.parametrize("source", ["method", "observation"])
@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_masks_beside_normalized_observations(kind: str, source: str) -> None:
    env = VecNormalize(
        DummyVecEnv([locks(source, truncates=True)] * 3), norm_obs_keys=["place"] if source == "observation" else None
    )
    model: Any = (
        GTrXLPPO("GTrXLPolicy", env, n_steps=8, policy_kwargs={"backbone": TINY}, device="cpu")
        if kind == "ppo"
        else replayed_agent(env, {"memory": 3}, {})
    )
    model.learn(120)


def test_action_masker_of_sb3_contrib_is_understood() -> None:
    def make() -> gym.Env[Any, Any]:
        env = Locks()
        masks = env.action_masks
        del env.action_masks
        return ActionMasker(env, lambda _: masks())

    model = on_policy(GTrXLPPO, make)
    assert model.policy.masks_beside
    model.learn(36)


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_an_evaluation_without_masks_is_refused_before_the_run(kind: str) -> None:
    model: Any = on_policy(GTrXLPPO, locks()) if kind == "ppo" else q_learner(locks())
    settings: dict[str, Any] = {"eval_freq": 4, "n_eval_episodes": 1, "verbose": 0, "warn": False}
    evaluates = EvalCallback(DummyVecEnv([locks()]), **settings)
    with pytest.raises(ConfigError, match="take MaskableEvalCallback of sb3-contrib"):
        model.learn(36, callback=[EveryNTimesteps(9, evaluates)])
    assert model.num_timesteps == 0
    masked = MaskableEvalCallback(DummyVecEnv([locks()]), **settings)
    model.learn(36, callback=[masked])
    assert np.isfinite(masked.last_mean_reward)
    observed = on_policy(GTrXLPPO, locks("observation"))
    observed.learn(36, callback=EvalCallback(DummyVecEnv([locks("observation")]), **settings))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "masks"), [("vmpo", True), ("dqn", True), ("ppo", False)])
def test_masks_are_what_makes_a_task_learnable(kind: str, masks: bool) -> None:
    """8 is the most, 4 is random among allowed actions."""
    env = DummyVecEnv([partial(Keyholes, masks)] * 8)
    policy = {"backbone": {**TINY, "layers": 1, "memory": 0}}
    settings: dict[str, Any] = {"policy_kwargs": policy, "seed": 0, "device": "cpu", "learning_rate": 6e-3}
    if kind == "dqn":
        model: Any = GTrXLDQN(
            "GTrXLQPolicy", env, learning_starts=500, segment_length=8, buffer_size=8_000, target_update_interval=50,
            exploration=0.3, gamma=0.5, **settings,
        ).learn(5_000)  # fmt: skip
    else:
        model = ON_POLICY[kind == "vmpo"]("GTrXLPolicy", env, n_steps=32, gamma=0.5, **settings).learn(5_000)
    score = evaluate_online(model, env, "Keyholes", 50).mean
    assert score > 7.0 if masks else score < 1.5


@pytest.mark.parametrize("source", ["method", "observation"])
def test_exported_policies_take_the_mask_as_an_input(source: str, tmp_path: Path) -> None:
    model = on_policy(GTrXLPPO, locks(source))
    model.export(tmp_path / "policy.pt2")
    extra = {"rltransformers.json": ""}
    program = torch.export.load(tmp_path / "policy.pt2", extra_files=extra).module()
    assert json.loads(extra["rltransformers.json"])["metadata"]["action_mask"] == "observation.action_mask"
    step = ActorCriticInFile(model.policy).eval()
    inputs, state = step.examples(2)
    for mask in ([[0, 1, 0, 0], [0, 0, 0, 1]], [[1, 0, 0, 0], [0, 0, 1, 0]]):
        inputs["observation.action_mask"] = torch.tensor(mask, dtype=torch.int8)
        outputs, state = program(inputs, state)
        assert outputs["action"].tolist() == [row.index(1) + 3 for row in mask]


class OneArray(Locks):
    """Keeps its mask in one array, into which a reset writes."""

    def __init__(self) -> None:
        super().__init__(truncates=True)
        self.kept = np.zeros(4, np.int8)
        self.action_masks = lambda: self.kept

    def _observe(self) -> Any:
        place = super()._observe()
        self.kept[:] = self.mask
        return place


def test_the_mask_of_a_last_observation_is_not_that_of_the_next_episode() -> None:
    masks = []
    for make in (OneArray, partial(Locks, truncates=True)):
        env = as_vec_env(DummyVecEnv([make]))
        env.seed(0)
        env.reset()
        for _ in range(5):
            *_, infos = env.step(np.array([np.flatnonzero(env.env_method("action_masks")[0])[0] + 3]))
        masks.append(infos[0]["last_action_mask"])
    np.testing.assert_array_equal(*masks)
