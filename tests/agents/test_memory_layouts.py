"""Arrays of every memory layout give what their plain copies give, at every door that takes an observation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper

from rltransformers.agents import Actor, DecisionTransformer, GTrXLDQN, GTrXLPPO
from rltransformers.core.device import CPU
from rltransformers.core.spaces import map_leaves
from rltransformers.core.values import to_tensor
from rltransformers.data import record
from tests.agents.tiny_envs import AnySpace

BATCH = 3
SPACE = spaces.Dict(
    {"image": spaces.Box(0, 255, (5, 4, 3), np.uint8), "place": spaces.Box(-1.0, 1.0, (3,)), "room": spaces.Discrete(4)}
)
ACTIONS = spaces.Discrete(3)
TINY = {"width": 8, "heads": 2, "layers": 1}


def field_of(array: np.ndarray) -> np.ndarray:
    """A view with gaps that are no multiple of its numbers."""
    records = np.zeros(array.shape, [("flag", "u1"), ("value", array.dtype)])
    records["value"] = array
    view: np.ndarray = records["value"]
    return view


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


LAYOUTS: dict[str, Callable[[np.ndarray], Any]] = {
    "negative strides": lambda array: np.flip(np.flip(array).copy()),
    "read-only": read_only,
    "Fortran": np.asfortranarray,
    "other byte order": lambda array: array.astype(array.dtype.newbyteorder()),
    "slice": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "field of records": field_of,
    "wider": lambda array: array.astype(np.float64 if array.dtype.kind == "f" else np.int64),
    "long double": lambda array: array.astype(np.longdouble),
    "list": lambda array: array.tolist(),
    "tensor": torch.from_numpy,
    "tensor by columns": lambda array: torch.from_numpy(np.asfortranarray(array)),
}
"""Of an array with at least one axis the same values in another form."""
TENSORS = ("tensor", "tensor by columns")


def steps() -> list[dict[str, Any]]:
    """Inputs of three steps of ``BATCH`` environments."""
    generator = np.random.default_rng(0)
    return [
        {
            "observation": {
                "image": generator.integers(0, 256, (BATCH, 5, 4, 3)).astype(np.uint8),
                "place": generator.uniform(-1, 1, (BATCH, 3)).astype(np.float32),
                "room": generator.integers(0, 4, BATCH),
            },
            "reward": generator.normal(size=BATCH),
            "starts": generator.random(BATCH) < 0.4,
            "masks": np.array([[0, 1, 1], [1, 1, 0], [1, 0, 1]], np.int8),
        }
        for _ in range(3)
    ]


class Masked(AnySpace):
    def __init__(self) -> None:
        super().__init__(SPACE, ACTIONS)

    def action_masks(self) -> np.ndarray:
        return np.ones(3, bool)


def online(kind: type[Any] = GTrXLPPO, **settings: Any) -> Any:
    policy = {"backbone": TINY | {"memory": 4}, "previous_reward": True}
    env = DummyVecEnv([Masked] * BATCH)
    return kind(*kind.policy_aliases, env, policy_kwargs=policy, seed=0, device="cpu", **settings)


def offline() -> Any:
    data = record(DummyVecEnv([lambda: AnySpace(SPACE, ACTIONS)] * BATCH), "random", episodes=6, seed=0)
    return DecisionTransformer("DTPolicy", data, context_length=4, policy_kwargs={"backbone": TINY}, seed=0)


MODELS: dict[str, Callable[[], Any]] = {
    "ppo": online,
    "dqn": lambda: online(GTrXLDQN, buffer_size=600),
    "dt": offline,
}
Door = Callable[[Any, Callable[[Any], Any]], list[Any]]


def by_predict(model: Any, laid_out: Callable[[Any], Any]) -> list[Any]:
    state, start, actions = None, None, []
    for step in steps():
        given = {name: map_leaves(laid_out, step[name]) for name in step}
        more = {"reward": given["reward"], "action_masks": given["masks"]}
        action, state = model.predict(given["observation"], state, start, deterministic=True, **more)
        start = given["starts"]
        actions.append(action)
    return [*actions, *(np.ravel(each) for each in numbers_of(state))]


def numbers_of(state: Any) -> list[np.ndarray]:
    """Some of what a state remembers, which says more than actions do."""
    tensors = getattr(state, "tensors", None)
    if isinstance(tensors, dict):
        return list(tensors.values())
    memory = state.memory if hasattr(state, "memory") else state.actor
    return [tensor.numpy() for tensor in memory.tensors.values()]


def by_call(actor: Actor, laid_out: Callable[[Any], Any]) -> list[Any]:
    actions = []
    actor.reset()
    for step in steps():
        given = {name: map_leaves(laid_out, step[name]) for name in step}
        actions.append(actor(given["observation"], given["reward"], given["masks"]))
        actor.reset(given["starts"])
    return [*actions, *numbers_of(actor._state)]


def by_behavior(actor: Actor, laid_out: Callable[[Any], Any]) -> list[Any]:
    """Of what a recording passes on, the observations are as the environments gave them."""
    actor.reset()
    step = {name: map_leaves(laid_out, value) for name, value in steps()[0].items()}
    if actor._policy.needs_masks:
        return []
    starts = np.ones(BATCH, bool)
    return [actor.act(step["observation"], starts, np.random.default_rng(0), np.asarray(step["reward"]))]


DOORS: dict[str, Door] = {
    "model.predict": by_predict,
    "policy.predict": lambda model, laid_out: by_predict(model.policy, laid_out),
    "actor": lambda model, laid_out: by_call(model.actor(), laid_out),
    "actor.predict": lambda model, laid_out: by_predict(model.actor(), laid_out),
    "actor.act": lambda model, laid_out: by_behavior(model.actor(), laid_out),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


def plain(array: Any) -> Any:
    return array


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("door", DOORS)
def test_a_door_takes_every_layout(model: Any, door: str, layout: str) -> None:
    if door == "policy.predict" and not hasattr(model.policy, "predict"):
        return
    assert_same(DOORS[door], model, layout)


def assert_same(door: Door, subject: Any, layout: str) -> None:
    found, expected = door(subject, LAYOUTS[layout]), door(subject, plain)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["pt2"])
def test_an_exported_policy_takes_every_layout(ending: str, tmp_path: Path) -> None:
    online().export(tmp_path / f"policy.{ending}")
    actor = Actor.from_export(tmp_path / f"policy.{ending}")
    for layout in LAYOUTS:
        for door in (by_call, by_predict):
            assert_same(door, actor, layout)
    _, state = actor.predict(steps()[0]["observation"], action_masks=steps()[0]["masks"])
    again: dict[str, Any] = {"reward": np.ones(BATCH), "action_masks": np.ones((BATCH, 3))}
    expected = actor.predict(steps()[1]["observation"], state, **again)[1]
    for name, laid_out in LAYOUTS.items():
        if name not in ("wider", "long double", "list", *TENSORS):  # a state is of the arrays that it came as
            held = type(state)({key: laid_out(value) for key, value in state.tensors.items()}, state.age)
            found = actor.predict(steps()[1]["observation"], held, **again)[1]
            for key, value in expected.tensors.items():
                np.testing.assert_array_equal(found.tensors[key], value)


class LaidOut(VecEnvWrapper):
    """Environments whose observations, rewards and ends come in a layout."""

    def __init__(self, venv: Any, layout: str) -> None:
        super().__init__(venv)
        self.layout = LAYOUTS[layout]

    def reset(self) -> Any:
        return map_leaves(self.layout, self.venv.reset())

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = self.venv.step_wait()
        return map_leaves(self.layout, observations), self.layout(rewards), self.layout(dones), infos


ARRAYS = [layout for layout in LAYOUTS if layout not in ("list", "wider", *TENSORS)]
"""Layouts of arrays that a vector environment may give; flags have no wider type."""


@pytest.mark.parametrize("kind", [GTrXLPPO, GTrXLDQN])
def test_environments_may_give_every_layout_while_an_agent_learns_and_is_saved(kind: type[Any], tmp_path: Path) -> None:
    expected: dict[str, Any] = {}
    settings = {"n_steps": 16} if kind is GTrXLPPO else {"buffer_size": 600, "learning_starts": 30}
    for layout in [None, *(each for each in ARRAYS if each != "long double")]:
        venv = DummyVecEnv([lambda: AnySpace(SPACE, ACTIONS)] * BATCH)
        env = venv if layout is None else LaidOut(venv, layout)
        policy = {"backbone": TINY | {"memory": 4}}
        model = kind(*kind.policy_aliases, env, policy_kwargs=policy, seed=0, device="cpu", **settings).learn(60)
        model.save(tmp_path / "model.zip")
        weights = model.policy.state_dict()
        expected = expected or weights
        for name, weight in weights.items():
            assert torch.equal(weight, expected[name]), (layout, name)


def test_environments_may_give_every_layout_while_episodes_are_recorded() -> None:
    first = None
    for layout in [None, *ARRAYS]:
        venv = DummyVecEnv([lambda: AnySpace(SPACE, ACTIONS)] * BATCH)
        env = venv if layout is None else LaidOut(venv, layout)
        data = record(env, "random", episodes=4, seed=0)
        first = first or data
        for path, leaf in data.observations.items():
            np.testing.assert_array_equal(leaf, first.observations[path])
        np.testing.assert_array_equal(data.rewards, first.rewards)


def test_data_may_have_every_layout() -> None:
    """Of a Decision Transformer: the loss of a batch is that of plain data."""
    generator, losses = np.random.default_rng(0), []
    episode = {
        "observations": generator.normal(size=(7, 3)).astype(np.float32),
        "actions": generator.integers(0, 3, 6),
        "rewards": generator.normal(size=6).astype(np.float32),
        "terminations": np.arange(6) == 5,
        "truncations": np.zeros(6, bool),
    }
    for layout in [plain, *(LAYOUTS[name] for name in LAYOUTS if name != "long double")]:  # makes classes fractions
        data = [{name: value if value.dtype == bool else layout(value) for name, value in episode.items()}] * 2
        model = DecisionTransformer("DTPolicy", data, context_length=4, policy_kwargs={"backbone": TINY}, seed=0)
        batch = model._sampler.sample(4, torch.Generator().manual_seed(0))  # type: ignore[union-attr]  # it has data
        losses.append(model.loss(batch).item())
    assert len(set(losses)) == 1


def test_a_tensor_of_a_plain_array_shares_its_memory() -> None:
    array = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    assert to_tensor(array, CPU).data_ptr() == array.ctypes.data
    assert to_tensor(array, CPU, torch.float32).data_ptr() == array.ctypes.data
