"""What policies say beside the action: probabilities, entropy and values of acting are those of training."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from rltransformers.agents import Actor, DecisionTransformer, GTrXLDQN, GTrXLPPO, GTrXLVMPO
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.spaces import leaf_spaces, leaf_values, nest_leaves, stack_members
from rltransformers.data import load_trajectories
from rltransformers.policies.observations import STATELESS_CALLS
from rltransformers.policies.output import PolicyOutput
from tests.agents.masked_envs import Locks
from tests.agents.tiny_envs import AnySpace

BACKBONE = {"width": 8, "heads": 2, "layers": 1, "memory": 4}
SEEN = spaces.Box(-1.0, 1.0, (3,))
NESTED = spaces.Dict(
    {
        "arm": spaces.Box(np.array([-900.0, -50.0], np.float32), np.array([900.0, 4000.0], np.float32)),
        "grip": spaces.Discrete(3, start=5),
        "more": spaces.Tuple((spaces.MultiDiscrete([2, 3], start=[1, 4]), spaces.MultiBinary([2, 2]))),
    }
)
COUNTED = spaces.Dict({"grip": spaces.Discrete(3, start=5), "more": spaces.MultiDiscrete([2, 3], start=[1, 4])})
BATCH, STEPS = 3, 7


def online(kind: type[Any], action_space: gym.Space[Any], masks: bool = False, **policy: Any) -> Any:
    """With head weights so large that probabilities differ, on normalized observations where there are no masks."""
    env: Any = DummyVecEnv([lambda: Locks(action_space) if masks else AnySpace(SEEN, action_space)] * 2)
    if not masks:
        env = VecNormalize(env)
        env.obs_rms.mean, env.obs_rms.var = np.array([0.1, 0.2, -0.3]), np.array([2.0, 0.5, 1.0])
    kwargs = {"backbone": BACKBONE, "previous_action": True, "previous_reward": True} | policy
    model = kind(*kind.policy_aliases, env, policy_kwargs=kwargs, seed=0, device="cpu")
    with torch.no_grad():
        model.policy.action_head.linear.weight.mul_(25.0)
    return model


def offline(action_space: gym.Space[Any], **settings: Any) -> DecisionTransformer:
    SEEN.seed(0)
    action_space.seed(0)
    episode = {
        "observations": stack_members(SEEN, [SEEN.sample() for _ in range(9)]),
        "actions": stack_members(action_space, [action_space.sample() for _ in range(8)]),
        "rewards": np.arange(8.0),
        "terminations": np.arange(8) == 7,
        "truncations": np.zeros(8, bool),
    }
    data = load_trajectories([episode] * 2, observation_space=SEEN, action_space=action_space, name="any")
    policy = {"backbone": {"width": 8, "heads": 2, "layers": 1}}
    return DecisionTransformer(
        "DTPolicy", data, context_length=STEPS, batch_size=2, seed=3, device="cpu", policy_kwargs=policy, **settings
    )


ONLINE: dict[str, Callable[[], Any]] = {
    "ppo": lambda: online(GTrXLPPO, spaces.Discrete(4)),
    "vmpo, nested actions": lambda: online(GTrXLVMPO, NESTED, log_std_init=-2.0),
    "ppo, masks": lambda: online(GTrXLPPO, spaces.MultiDiscrete([3, 2]), masks=True),
    "ppo, a backbone of values": lambda: online(GTrXLPPO, spaces.MultiBinary(3), shared_backbone=False),
    "dqn, masks": lambda: online(GTrXLDQN, spaces.Discrete(4, start=3), masks=True, epsilon=0.3),
}
OFFLINE: dict[str, Callable[[], Any]] = {
    "dt": lambda: offline(COUNTED),
    "dt, a Box with a deviation": lambda: offline(NESTED, action_head="gaussian"),
    "dt, critics": lambda: offline(spaces.Box(-1.0, 3.0, (2,)), critic="qt"),
    "bc": lambda: offline(spaces.Discrete(3), mode="bc"),
}
MAKERS = ONLINE | OFFLINE


@pytest.fixture(scope="module", params=MAKERS)
def agent(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param]()


class Course:
    """Steps of ``BATCH`` environments, and what an actor said in each."""

    def __init__(self, model: Any, ends: float = 0.2) -> None:
        generator = np.random.default_rng(0)
        self.observations = generator.normal(size=(STEPS, BATCH, 3)).astype(np.float32)
        self.rewards = generator.normal(size=(STEPS, BATCH))
        self.starts = generator.random((STEPS, BATCH)) < ends
        self.starts[0] = True
        self.masks = None
        if getattr(model.policy, "masks_beside", False):
            choices = sum(leaf.choices for leaf in model.policy.action_head.leaves)
            masks = generator.random((STEPS, BATCH, choices)) < 0.6
            masks[..., [0, -1]] = True
            self.masks = masks

    def inputs(self, step: int) -> tuple[Any, ...]:
        """Arguments of an actor."""
        masks = () if self.masks is None else (self.masks[step],)
        return self.observations[step], self.rewards[step - 1], *masks

    def play(self, actor: Actor) -> list[PolicyOutput]:
        actor.reset()
        outputs = []
        for step in range(STEPS):
            if step:
                actor.reset(self.starts[step])
            outputs.append(actor.decide(*self.inputs(step)))
        return outputs


def stacked(space: gym.Space[Any], outputs: list[PolicyOutput], kind: str) -> Any:
    """A field of leaves as [B, T, ...], nested."""
    rows = [leaf_values(space, getattr(each, kind)) for each in outputs]
    return nest_leaves(space, {path: np.stack([row[path] for row in rows], 1) for path in rows[0]})


def assert_same(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Of two records, one of tensors; None where the other has None."""
    assert (found is None) == (expected is None)
    if isinstance(expected, dict | tuple):
        keys = expected if isinstance(expected, dict) else range(len(expected))
        for key in keys:
            assert_same(found[key], expected[key], tolerance)
    elif expected is not None:
        found = found.detach().numpy() if isinstance(found, torch.Tensor) else found
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


OF_ACTIONS = ("log_prob", "entropy", "value")
OF_LEAVES = ("probabilities", "mean", "deviation", "q_values")


def compare(model: Any, output: PolicyOutput, outputs: list[PolicyOutput]) -> None:
    for kind in OF_ACTIONS:
        values = [getattr(each, kind) for each in outputs]
        assert_same(getattr(output, kind), None if values[0] is None else np.stack(values, 1))
    for kind in OF_LEAVES:
        if getattr(outputs[0], kind) is None:
            assert getattr(output, kind) is None
            continue
        found = leaf_values(model.action_space, getattr(output, kind))
        for path in leaf_spaces(model.action_space):
            leaves = [leaf_values(model.action_space, getattr(each, kind))[path] for each in outputs]
            assert_same(found[path], None if leaves[0] is None else np.stack(leaves, 1))


@pytest.mark.parametrize("name", ONLINE)
def test_online_sequences_are_evaluated_as_they_were_acted(name: str) -> None:
    model, normal = ONLINE[name](), None
    course = Course(model)
    outputs = course.play(model.actor(deterministic=False, seed=1))
    observations, rewards = (np.moveaxis(each, 0, 1) for each in (course.observations, course.rewards))
    if (normal := model.get_vec_normalize_env()) is not None:
        observations, rewards = normal.normalize_obs(observations), normal.normalize_reward(rewards)
    sequences = [
        observations,
        stacked(model.action_space, outputs, "action"),
        course.starts.T,
        rewards,
        None if course.masks is None else np.moveaxis(course.masks, 0, 1),
    ]

    def evaluated(part: slice, state: Any = None) -> PolicyOutput:
        cut = [nest(each, part) for each in sequences]
        result: PolicyOutput = model.policy.evaluate_actions(*cut[:4], state=state, action_masks=cut[4])
        return result

    whole = evaluated(slice(None))
    compare(model, whole, outputs)
    compare(model, evaluated(slice(3, None), evaluated(slice(3)).state), outputs[3:])
    (whole.log_prob.sum() + whole.value.sum()).backward()
    assert model.policy.action_head.linear.weight.grad.abs().sum() > 0
    assert np.ptp(np.stack([each.log_prob for each in outputs])) > 0.01  # else anything would equal it


def nest(values: Any, part: slice) -> Any:
    """Steps of sequences, however nested."""
    if isinstance(values, dict):
        return {key: nest(value, part) for key, value in values.items()}
    if isinstance(values, tuple):
        return tuple(nest(value, part) for value in values)
    return None if values is None else values[:, part]


@pytest.mark.parametrize("name", OFFLINE)
def test_windows_of_a_decision_transformer_are_evaluated_as_they_were_acted(name: str) -> None:
    model = OFFLINE[name]()
    course = Course(model, ends=0.0)
    target = {} if name == "bc" else {"target_return": 9.0}
    outputs = course.play(model.actor(deterministic=False, seed=1, **target))
    left = 9.0 - np.concatenate([np.zeros((1, BATCH)), course.rewards.cumsum(0)[:-1]]).T
    found = model.policy.evaluate_actions(
        np.moveaxis(course.observations, 0, 1),
        stacked(model.action_space, outputs, "action"),
        *([] if name == "bc" else [left]),
    )
    compare(model, found, outputs)
    assert (found.log_prob is None) == (name == "dt, critics")
    assert (found.value is None) == (name != "dt, critics")


def test_the_record_says_how_likely_the_action_is(agent: Any) -> None:
    """By hand: the product of probabilities of classes and bits; those that a mask forbids have none."""
    course = Course(agent)
    for step, output in enumerate(course.play(agent.actor(deterministic=False, seed=1))):
        actions, log_prob, begin = leaf_values(agent.action_space, output.action), np.zeros(BATCH), 0
        leaves: dict[str, Any] = leaf_spaces(agent.action_space)
        for path, leaf in leaves.items():
            if isinstance(leaf, spaces.Box):
                log_prob = np.full(BATCH, np.nan)
                continue
            chances = leaf_values(agent.action_space, output.probabilities)[path]
            if isinstance(leaf, spaces.MultiBinary):
                taken = np.where(actions[path] == 1, chances, 1 - chances).reshape(BATCH, -1)
            else:
                sizes = np.reshape(leaf.n if isinstance(leaf, spaces.Discrete) else leaf.nvec, -1)
                first = np.cumsum([0, *sizes[:-1]]) - np.reshape(leaf.start, -1)
                taken = np.take_along_axis(chances, actions[path].reshape(BATCH, -1) + first, 1)
                np.testing.assert_allclose(chances.sum(1), len(sizes), rtol=1e-5)
                if course.masks is not None:
                    assert (chances[~course.masks[step][:, begin : begin + sum(sizes)]] == 0).all()
                    begin += sum(sizes)
            log_prob += np.log(taken).sum(1)
        known = ~np.isnan(log_prob)
        if known.any():
            np.testing.assert_allclose(output.log_prob[known], log_prob[known], rtol=1e-4, atol=1e-5)


def test_a_look_is_no_step_and_a_decision_is_what_a_call_gives(agent: Any) -> None:
    course, calls, decisions = Course(agent), *(agent.actor(deterministic=False, seed=1) for _ in range(2))
    for actor in (calls, decisions):
        actor.reset()
    for step in range(STEPS):
        looks = [calls.decide(*course.inputs(step), advance=False).action for _ in range(2)]
        action = calls(*course.inputs(step))
        for other in (*looks, decisions.decide(*course.inputs(step)).action):
            assert_same(other, action, 0.0)
    one = agent.actor()
    one.reset()
    single = one.decide(*(part[0] for part in course.inputs(0)))
    assert np.shape(single.log_prob if single.log_prob is not None else single.value) == ()


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda actor: pickle.loads(pickle.dumps(actor))], ids=["copy", "pickle"]
)
def test_a_copy_of_an_actor_goes_on_where_it_stands(agent: Any, copied: Callable[[Actor], Actor]) -> None:
    course, actor = Course(agent), agent.actor(deterministic=False, seed=1)
    actor.reset()
    actor(*course.inputs(0))
    other = copied(actor)
    with torch.no_grad():
        for weight in agent.policy.parameters():
            weight.mul_(1.0)  # the copy has weights of its own
    assert other._policy is not actor._policy
    for step in range(1, STEPS):
        for each in (actor, other):
            each.reset(course.starts[step])
        assert_same(other(*course.inputs(step)), actor(*course.inputs(step)), 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ending"),
    [("vmpo, nested actions", "onnx"), pytest.param("dt, critics", "pt2", marks=pytest.mark.third_party)],
)
def test_a_file_says_what_the_live_agent_says(name: str, ending: str, tmp_path: Path) -> None:
    model = MAKERS[name]()
    path = model.export(tmp_path / f"policy.{ending}")
    assert path == tmp_path / f"policy.{ending}"
    course, actor = Course(model), Actor.from_export(path, deterministic=False, seed=1)
    expected = course.play(model.actor(deterministic=False, seed=1))
    for found, other in zip(course.play(actor), expected, strict=True):
        for kind in ("action", *OF_ACTIONS, *OF_LEAVES):
            assert_same(getattr(found, kind), getattr(other, kind), 1e-4)
    actor.reset()
    actor(*course.inputs(0))
    for copied in (copy.deepcopy(actor), pickle.loads(pickle.dumps(actor))):
        assert_same(copied(*course.inputs(1)), copy.deepcopy(actor)(*course.inputs(1)), 0.0)


FAULTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"observations": np.zeros((2, 3))}, DataError, r"shape \[B, T, 3\], got \(2, 3\)"),
    ({"actions": np.zeros((2, 4), int)}, DataError, "2 sequences of 5 steps, actions of 2 of 4"),
    ({"actions": np.full((2, 5), 9)}, DataError, "action of step 0 of sequence 0 is 9, outside"),
    ({"actions": np.zeros((2, 5, 1), int)}, DataError, r"shape \[B, T\], got"),
    ({"rewards": None}, ConfigError, "evaluate_actions.*rewards"),
    ({"observations": np.full((2, 5, 3), np.nan)}, DataError, "not finite"),
    ({"episode_starts": np.zeros(3)}, DataError, r"episode_starts must be.*\(2, 5\); got shape \(3,\)"),
    ({"episode_starts": np.zeros((5, 2))}, DataError, r"episode_starts must be.*got shape \(5, 2\)"),
    ({"rewards": np.zeros((5, 2))}, DataError, r"rewards must be a number, or one per step \[B, T\].*\(5, 2\)"),
    ({"rewards": np.nan}, DataError, "rewards holds nan, which is not finite"),
    ({"rewards": np.zeros(10)}, DataError, r"rewards must be .*got shape \(10,\)"),
    ({"state": 3}, ConfigError, "state must be what predict returned"),
    ({"observations": np.zeros((0, 5, 3))}, DataError, "one at least"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), FAULTS, ids=[message for *_, message in FAULTS])
def test_sequences_that_do_not_fit_are_refused(wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    right = {"observations": np.zeros((2, 5, 3)), "actions": np.zeros((2, 5), int), "rewards": np.zeros((2, 5))}
    policy = ONLINE["ppo"]().policy
    assert policy.evaluate_actions(**right).value.shape == (2, 5)
    with pytest.raises(error, match=message):
        policy.evaluate_actions(**right | wrong)


def test_one_number_for_all_steps_or_an_axis_of_one_is_the_same() -> None:
    policy = ONLINE["ppo"]().policy
    inputs = {"observations": np.zeros((2, 5, 3)), "actions": np.zeros((2, 5), int)}
    first, *others = (
        policy.evaluate_actions(**inputs, rewards=rewards, episode_starts=starts).value
        for rewards, starts in (
            (np.ones((2, 5)), np.zeros((2, 5), bool)),
            (np.ones((2, 5, 1)), np.zeros((2, 5, 1), bool)),
            (1.0, False),
        )
    )
    assert all(torch.equal(each, first) for each in others)


def test_masks_of_other_sequences_are_refused() -> None:
    policy = ONLINE["ppo, masks"]().policy
    inputs = {"observations": np.zeros((2, 5, 3)), "actions": np.zeros((2, 5, 2), int), "rewards": 0.0}
    with pytest.raises(DataError, match=r"action_masks have shape \[B, T, M\], here \(2, 5, M\), got \(5, 2, 5\)"):
        policy.evaluate_actions(**inputs, action_masks=np.ones((5, 2, 5)))


@pytest.mark.parametrize("name", ["return_to_go", "timesteps"])
def test_numbers_of_other_windows_are_refused(name: str) -> None:
    policy = OFFLINE["dt"]().policy
    actions = stack_members(COUNTED, [COUNTED.sample() for _ in range(10)])
    actions = nest_leaves(COUNTED, {p: v.reshape(2, 5, *v.shape[1:]) for p, v in leaf_values(COUNTED, actions).items()})
    right = {"observations": np.zeros((2, 5, 3)), "actions": actions, "return_to_go": np.zeros((2, 5))}
    right["timesteps"] = np.tile(np.arange(5), (2, 1))
    assert policy.evaluate_actions(**right).log_prob.shape == (2, 5)
    with pytest.raises(DataError, match=rf"{name} must be a number, or one per step \[B, T\].*got shape \(5, 2\)"):
        policy.evaluate_actions(**right | {name: np.zeros((5, 2))})
    with pytest.raises(DataError, match=f"{name} holds inf, which is not finite"):
        policy.evaluate_actions(**right | {name: np.where(right["timesteps"] == 3, np.inf, 0.0)})


@pytest.mark.parametrize("wrong", [0.5, -1.0])
def test_steps_of_an_episode_are_whole_numbers(wrong: float) -> None:
    policy = OFFLINE["bc"]().policy
    right = np.zeros((2, 5, 3)), np.zeros((2, 5), int)
    with pytest.raises(DataError, match="timesteps number the steps of an episode"):
        policy.evaluate_actions(*right, timesteps=np.arange(5.0) + wrong * np.ones((2, 1)))


def test_an_episode_beyond_a_position_table_is_refused() -> None:
    position: dict[str, Any] = {
        "backbone": BACKBONE | {"position": {"name": "learned", "max_len": 6}},
        "previous_reward": False,
    }
    policy = online(GTrXLPPO, spaces.Discrete(4), **position).policy
    seen, done = np.zeros((2, 6, 3)), np.zeros((2, 6), int)
    state = policy.evaluate_actions(seen, done).state
    starts = np.zeros((2, 6), bool)
    with pytest.raises(DataError, match="position"):
        policy.evaluate_actions(seen, done, starts, state=state)
    starts[:, 0] = True
    policy.evaluate_actions(seen, done, starts, state=state)


@pytest.mark.parametrize("make", [lambda: online(GTrXLPPO, spaces.Discrete(4), previous_reward=False), OFFLINE["bc"]])
def test_a_loop_without_state_is_told_once(make: Callable[[], Any]) -> None:
    model, one = make(), np.zeros(3, np.float32)
    for acts in (model, model.actor()):
        _, state = acts.predict(one)
        for _ in range(STATELESS_CALLS):  # steps and first steps of an evaluation
            acts.predict(one, state)
            acts.predict(one)
        with pytest.warns(UserWarning, match=r"in a row with state=None.*model\.actor"):
            for _ in range(STATELESS_CALLS):
                acts.predict(one)
        for _ in range(2 * STATELESS_CALLS):  # warnings are errors here
            acts.predict(one)


def test_a_loop_without_state_is_right_where_nothing_is_remembered() -> None:
    settings: dict[str, Any] = {
        "previous_reward": False,
        "previous_action": False,
        "backbone": BACKBONE | {"memory": 0},
    }
    model = online(GTrXLPPO, spaces.Discrete(4), **settings)
    for _ in range(2 * STATELESS_CALLS):
        model.predict(np.zeros(3, np.float32))
