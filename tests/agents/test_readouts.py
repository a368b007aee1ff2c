"""Both agents with a readout: what is stored when, ratios, checkpoints, files, machine code."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from rltransformers.agents import DecisionTransformer, GTrXLPPO
from rltransformers.cli.main import main
from rltransformers.core.errors import ConfigError
from rltransformers.data import Trajectories, load_trajectories, record
from rltransformers.policies import steps
from rltransformers.policies.readouts.interface import Datastore
from rltransformers.policies.steps import Acting
from tests.agents.rollouts import rollout
from tests.agents.test_export import assert_file_equals_eager
from tests.export.stand_in import StandIn

SMALL: dict[str, Any] = {"width": 8, "layers": 1, "heads": 2, "memory": 4}
Agent = GTrXLPPO | DecisionTransformer


def online(readout: Any, environment: str = "CartPole-v1", acting: Acting = "eager", **policy: Any) -> GTrXLPPO:
    env = gym.make_vec(environment, num_envs=2, vectorization_mode="sync")
    kwargs = {"backbone": SMALL, "readout": readout, **policy}
    settings: dict[str, Any] = {"n_steps": 16, "n_epochs": 2, "seed": 0, "device": "cpu", "learning_rate": 1e-2}
    return GTrXLPPO("GTrXLPolicy", env, policy_kwargs=kwargs, acting=acting, **settings)


def offline(readout: Any, environment: str = "CartPole-v1", data: Any = None, **settings: Any) -> DecisionTransformer:
    data = record(environment, "random", episodes=4, num_envs=2, seed=0) if data is None else data
    values: dict[str, Any] = {"context_length": 5, "batch_size": 8, "warmup_steps": 1, "learning_rate": 1e-2, "seed": 0}
    kwargs = {"backbone": {"width": 8, "layers": 1, "heads": 2}, "readout": readout}
    return DecisionTransformer("DTPolicy", data, policy_kwargs=kwargs, device="cpu", **(values | settings))


def store_of(model: Agent) -> Datastore:
    head = model.policy.action_head if isinstance(model, GTrXLPPO) else model.policy.head
    assert head.readout is not None
    return head.readout.store


def contents(store: Datastore) -> list[Tensor]:
    return [value.clone() for value in store.buffers()]


@pytest.mark.parametrize(
    ("readout", "environment"),
    [
        ({"name": "knn", "neighbors": 3, "size": 50}, "CartPole-v1"),
        ({"name": "knn", "neighbors": 1, "weight": 0.9, "temperature": 0.1}, "CartPole-v1"),
        ({"name": "spalm", "neighbors": 3, "size": 50}, "CartPole-v1"),
        ({"name": "spalm", "neighbors": 4}, "Pendulum-v1"),
    ],
)
def test_the_store_is_frozen_from_rollout_to_update_and_the_first_ratio_is_one(readout: Any, environment: str) -> None:
    model = online(readout, environment)
    errors, before = [], []
    remember = model.policy.remember

    def remembering(segment: Any) -> None:
        before.append(contents(store_of(model)))
        remember(segment)

    model.policy.remember = remembering  # type: ignore[method-assign]
    after: list[list[Tensor]] = []
    for _ in range(4):
        model.learn(32, reset_num_timesteps=False)
        errors.append(model.logger.name_to_value["train/first_ratio_error"])
        after.append(contents(store_of(model)))
    assert [int(held[3]) for held in after] == [min(32 * n, store_of(model).size) for n in (1, 2, 3, 4)]
    for earlier, later in zip(after, before[1:], strict=False):
        assert all(map(torch.equal, earlier, later))
    assert max(errors) <= 1e-5


def test_only_what_turned_out_better_is_stored_where_that_is_asked() -> None:
    model = online({"name": "spalm", "better": True})
    segment = rollout(model)
    segment = replace(segment, advantages=torch.linspace(-1, 1.5, 32).view(2, 16))
    model.policy.remember(segment)
    assert int(store_of(model).filled) == int((segment.advantages > 0).sum()) < 32


def test_stored_features_are_those_that_acting_has() -> None:
    """With frozen weights the nearest stored feature of a step is its own, and its action the one taken."""
    model = online({"name": "knn", "weight": 1.0, "neighbors": 1, "temperature": 1e-3})
    segment = rollout(model)
    model.policy.remember(segment)
    with torch.no_grad():
        again = model.policy.evaluate_segment(segment)
    assert again.log_probs.exp().gt(0.99).float().mean() > 0.95  # two steps may look alike


@pytest.mark.parametrize("name", ["knn", "spalm"])
def test_an_agent_goes_on_from_a_checkpoint_with_what_it_stored(name: str, tmp_path: Path) -> None:
    readout = {"name": name, "neighbors": 3, "size": 40}
    with pytest.raises(
        ConfigError, match=r"readout\.refresh \(4\) counts updates of a Decision Transformer.*leave it out"
    ):
        online(readout | {"refresh": 4})
    first = online(readout)
    first.policy_kwargs["readout"] = readout | {"refresh": 4}  # as files of before may have it
    first.learn(64)
    first.save(tmp_path / "model")
    loaded = GTrXLPPO.load(tmp_path / "model")
    assert all(map(torch.equal, contents(store_of(loaded)), contents(store_of(first))))
    observation = np.ones((2, 4), np.float32)
    actions = [model.predict(observation, deterministic=True)[0].tolist() for model in (first, loaded)]
    assert actions[0] == actions[1]
    data = record("CartPole-v1", "random", episodes=4, num_envs=2, seed=0)
    stopped, straight = (offline(readout, data=data, decay_steps=0) for _ in range(2))
    stopped.learn(6)
    stopped.save(tmp_path / "offline")
    resumed = DecisionTransformer.load(tmp_path / "offline", dataset=data, device="cpu")
    assert resumed.readout is not None and resumed.readout.to_dict() == readout
    resumed.learn(5)
    straight.learn(11)
    for one, other in zip(resumed.policy.state_dict().values(), straight.policy.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def episodes_of(lengths: tuple[int, ...]) -> Trajectories:
    chance = np.random.default_rng(0)
    space = gym.spaces.Discrete(3)
    rows = [
        {
            "observations": chance.normal(size=(n + 1, 2)).astype(np.float32),
            "actions": chance.integers(0, 3, n),
            "rewards": np.full(n, float(index)),
            "terminations": np.arange(n) == n - 1,
            "truncations": np.zeros(n, bool),
        }
        for index, n in enumerate(lengths)
    ]
    box = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    return load_trajectories(rows, observation_space=box, action_space=space, name="rows")


@pytest.mark.parametrize("context", [1, 4, 5])
def test_every_step_of_a_dataset_is_stored_once_with_its_action(context: int) -> None:
    data = episodes_of((1, 3, 4, 5, 9, 14))
    model = offline({"name": "knn", "size": 60}, data=data, context_length=context)
    model.build_datastore()
    store = store_of(model)
    count = int(store.filled)
    assert count == data.steps
    for episode in range(len(data)):
        rows = store.episodes[:count] == episode
        taken = store.actions[:count][rows].argmax(-1).bincount(minlength=3)
        expected = np.bincount(data.episode(episode).actions[""], minlength=3)
        assert taken.tolist() == expected.tolist()


def test_stored_features_are_those_of_the_decisions() -> None:
    """In the mode refresh a decision sees as much as the window that its step is stored from."""
    data = episodes_of((14,))
    model = offline({"name": "knn", "size": 14}, data=data, context_length=5, acting_mode="refresh")
    model.build_datastore()
    store, features = store_of(model), []
    head = model.policy.head
    forward = head.forward

    def watch(x: Tensor) -> Tensor:
        features.append(x)
        return forward(x)

    head.forward = watch  # type: ignore[method-assign,assignment]
    episode = data.episode(0)
    actor, state = model.decider(), None
    for t in range(14):
        state = actor.initial_state(1) if state is None else state
        *_, state = actor.step(
            {"": torch.as_tensor(episode.observations[""][t : t + 1])},
            state,
            start=torch.tensor([t == 0]),
            reward=torch.tensor([0.0 if t == 0 else float(episode.rewards[t - 1])], dtype=torch.float64),
            target_return=torch.tensor([float(episode.rewards.sum())], dtype=torch.float64),
        )
        taken = {"": torch.as_tensor(episode.actions[""][t : t + 1])}
        with torch.inference_mode():
            state.action.copy_(model.policy.head.embed(taken))
    found = store.nearest(torch.cat(features), 1)
    assert found.distance.max() < 1e-9


def test_a_dataset_larger_than_the_store_and_its_better_half() -> None:
    data = episodes_of((9, 9, 9, 9))
    small = offline({"name": "knn", "size": 10}, data=data)
    small.build_datastore()
    assert int(store_of(small).filled) == 10
    better = offline({"name": "knn", "size": 60, "better": True}, data=data)
    better.build_datastore()
    assert sorted(set(store_of(better).episodes[:18].tolist())) == [2, 3] and int(store_of(better).filled) == 18


def test_learning_fills_the_store_when_it_says() -> None:
    data = episodes_of((9, 9, 9))
    for name, learns in (("knn", False), ("spalm", True)):
        model = offline({"name": name, "size": 30, "refresh": 3}, data=data)
        seen = []
        for _ in range(4):
            model.learn(1)
            seen.append(store_of(model).keys.clone())
        fresh = [bool((one - other).abs().max() > 0) for one, other in pairwise(seen)]
        assert fresh == ([False, False, True] if learns else [True, True, True])


def test_what_cannot_be_filled_is_refused(tmp_path: Path) -> None:
    data = episodes_of((9, 9))
    with pytest.raises(ConfigError, match="no readout to fill"):
        offline(None, data=data).build_datastore()
    model = offline("knn", data=data)
    model.save(tmp_path / "model")
    with pytest.raises(ConfigError, match="no dataset to read"):
        DecisionTransformer.load(tmp_path / "model").build_datastore()
    with pytest.raises(ConfigError, match="use readout 'spalm'"):
        online("knn", "Pendulum-v1")
    with pytest.raises(ConfigError, match="did you mean 'knn'"):
        offline("kn", data=data)


@pytest.mark.parametrize("name", ["knn", "spalm"])
@pytest.mark.parametrize("make", [online, offline])
def test_machine_code_reads_the_store_of_now(name: str, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "CompiledStep", StandIn)
    model = make({"name": name, "neighbors": 3, "size": 40}, acting="compiled")
    observation, found = np.ones((2, 4), np.float32), []
    model.learn(64 if make is online else 3)
    found.append(model.predict(observation, deterministic=True)[0])
    model.policy.machine_code = None
    assert found[0].tolist() == model.predict(observation, deterministic=True)[0].tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "make", "file"), [("knn", offline, "policy.onnx"), ("spalm", online, "policy.pt2")])
def test_files_hold_the_store_and_equal_eager(name: str, make: Any, file: str, tmp_path: Path) -> None:
    model = make({"name": name, "neighbors": 3, "size": 40})
    model.learn(64 if make is online else 3)
    model.export(tmp_path / file)
    assert_file_equals_eager(tmp_path / file, model, 30, 3, 1e-5)


def test_readouts_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    main(["list", "--json"])
    contents = json.loads(capsys.readouterr().out)
    assert [entry["id"] for entry in contents["axes"]["readout"]] == ["O1", "O2"]
    main(["list"])
    assert "policy.readout" in capsys.readouterr().out
