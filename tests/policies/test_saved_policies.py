"""Policies as files of their own: ``save`` and ``load`` as Stable-Baselines3 has them, in the format of checkpoints."""

import json
import zipfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltransformers.agents import GTrXLDQN, GTrXLPPO, GTrXLVMPO, load_agent
from rltransformers.backbone import BackboneConfig
from rltransformers.core.errors import CheckpointError, ConfigError
from rltransformers.policies.actor_critic import GTrXLPolicy
from rltransformers.policies.memory_policy import MemoryPolicy
from rltransformers.policies.popart import PopArt
from rltransformers.policies.q_network import GTrXLQPolicy
from tests.agents.test_own_parts import Deep, DeepQ
from tests.agents.tiny_envs import AnySpace
from tests.policies.test_own_encoders import Distances

TINY = {"preset": "gtrxl", "width": 8, "layers": 2, "heads": 2, "memory": 5}
BOX, CHOICE = spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(4, start=-1)
NESTED = spaces.Dict({"a": BOX, "b": spaces.Tuple([CHOICE, spaces.MultiBinary(2)])})
MASKED = spaces.Dict({"seen": BOX, "action_mask": spaces.MultiBinary(4)})
POLICIES: dict[str, tuple[type[MemoryPolicy], Any, Any, dict[str, Any]]] = {
    "plain": (GTrXLPolicy, BOX, CHOICE, {"backbone": TINY}),
    "config": (GTrXLPolicy, NESTED, NESTED, {"backbone": BackboneConfig.from_dict(TINY), "shared_backbone": False}),
    "extractor": (GTrXLPolicy, BOX, BOX, {"features_extractor_class": Distances, "backbone": TINY, "head_width": 6}),
    "readout": (GTrXLPolicy, BOX, CHOICE, {"readout": {"name": "knn", "size": 20}, "backbone": TINY}),
    "masks": (GTrXLPolicy, MASKED, CHOICE, {"backbone": TINY, "previous_action": True, "first_step": True}),
    "subclass": (Deep, BOX, CHOICE, {"hidden": 9, "backbone": TINY}),
    "values": (GTrXLQPolicy, BOX, CHOICE, {"epsilon": 0.5, "backbone": TINY, "optimizer_kwargs": {"eps": 1e-3}}),
    "subclass of values": (DeepQ, BOX, CHOICE, {"backbone": TINY}),
}


def made(name: str) -> MemoryPolicy:
    """A policy with random numbers in all of its parameters."""
    kind, observed, acted, keywords = POLICIES[name]
    make: Any = kind
    policy = make(observed, acted, lambda _: 1e-3, **keywords)
    policy.complete()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.5)
    if policy.action_head.readout is not None:
        keys, actions = torch.randn(12, 8, generator=generator), {"": torch.arange(12) % 4 - 1}
        episodes = torch.zeros(12, dtype=torch.long)
        policy.action_head.readout.store.add(keys, policy.action_head.as_numbers(actions), episodes)
    return cast(MemoryPolicy, policy)


def steps(policy: MemoryPolicy, count: int = 16) -> list[Any]:
    """Observations of three environments."""
    space = policy.observation_space
    space.seed(3)
    found = []
    for _ in range(count):
        rows = [space.sample() for _ in range(3)]
        if isinstance(space, spaces.Dict) and "action_mask" in space.spaces:
            for row in rows:
                row["action_mask"][0] = 1
        found.append(rows)
    return found


def play(policy: Any, observations: list[Any], state: Any, begin: int) -> tuple[list[Any], Any]:
    """Sampled actions, and the state at the end."""
    generator, actions = torch.Generator().manual_seed(7), []
    for number, rows in enumerate(observations, begin):
        batch = stacked(policy.observation_space, rows)
        start = np.array([number % 11 == 0, number == 3, False])
        action, state = policy.predict(batch, state, start, generator=generator)
        actions.append(action)
    return actions, state


def stacked(space: Any, rows: list[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: stacked(leaf, [row[key] for row in rows]) for key, leaf in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stacked(leaf, [row[place] for row in rows]) for place, leaf in enumerate(space))
    return np.stack(rows)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a is None or bool((torch.as_tensor(a) == torch.as_tensor(b)).all())


@pytest.mark.parametrize("name", POLICIES)
def test_a_loaded_policy_goes_on_in_the_middle_of_an_episode_as_the_saved_one(name: str, tmp_path: Path) -> None:
    policy = made(name)
    observations = steps(policy)
    _, state = play(policy, observations[:7], None, 0)
    policy.save(tmp_path / "policy.pkl")
    loaded = type(policy).load(tmp_path / "policy.pkl", device="cpu")
    assert (tmp_path / "policy.pkl").is_file()  # the name of the caller is kept
    expected, end = play(policy, observations[7:], state, 7)
    found, loaded_end = play(loaded, observations[7:], state, 7)
    assert same(found, expected) and same(loaded_end.tensors(), end.tensors())
    assert same(dict(loaded.state_dict()), dict(policy.state_dict()))
    assert loaded.observation_space == policy.observation_space and loaded.action_space == policy.action_space
    loaded.save(tmp_path / "again")
    again = type(policy).load(tmp_path / "again")  # ".zip" is added to a name without ending
    assert same(play(again, observations[7:], state, 7)[0], expected)


def test_values_in_units_of_their_targets_come_back_in_them(tmp_path: Path) -> None:
    policy = made("plain")
    assert isinstance(policy, GTrXLPolicy)
    policy.normalize_values(0.25).follow(torch.tensor([100.0, 300.0]))
    policy.save(tmp_path / "policy")
    loaded = GTrXLPolicy.load(tmp_path / "policy")
    leaves = {"": torch.rand(2, 3)}
    first, state = torch.tensor([True, True]), policy.initial_state(2)
    torch.testing.assert_close(loaded.values(leaves, state, first), policy.values(leaves, state, first), rtol=0, atol=0)
    targets = torch.tensor([5.0, 7.0])
    for each in (policy, loaded):  # as in learning, at the same pace
        assert isinstance(each.value_net, PopArt)
        each.value_net.follow(targets)
    assert policy.value_units == loaded.value_units != 1.0


AGENTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (GTrXLPPO, {"n_steps": 4, "popart": 0.1}),
    "vmpo": (GTrXLVMPO, {"n_steps": 4}),
    "dqn": (GTrXLDQN, {}),
}


@pytest.mark.parametrize("name", AGENTS)
def test_the_policy_of_an_agent_becomes_that_of_another_agent(name: str, tmp_path: Path) -> None:
    kind, options = AGENTS[name]

    def agent(seed: int) -> Any:
        keywords = {"backbone": TINY}
        policy = next(iter(kind.policy_aliases))
        return kind(policy, AnySpace(BOX, CHOICE), policy_kwargs=keywords, seed=seed, device="cpu", **options)

    model, other, third = agent(0), agent(1), agent(2)
    model.learn(8)
    model.policy.save(tmp_path / "policy")
    loaded = type(model.policy).load(tmp_path / "policy")
    other.policy.load_state_dict(loaded.state_dict())
    third.set_parameters({"policy": loaded.state_dict()}, exact_match=False)
    observations = steps(model.policy, 6)
    expected = play(model.policy, observations, None, 0)[0]
    for each in (loaded, other.policy, third.policy):
        assert same(play(each, observations, None, 0)[0], expected)
    with pytest.raises(CheckpointError, match=f"{type(loaded).__name__}.load"):
        kind.load(tmp_path / "policy")
    with pytest.raises(CheckpointError, match="not an agent"):
        load_agent(tmp_path / "policy")
    model.save(tmp_path / "agent")
    with pytest.raises(CheckpointError, match=f"{kind.kind}.load"):
        type(loaded).load(tmp_path / "agent")


def test_a_file_of_another_class_is_refused_by_name(tmp_path: Path) -> None:
    made("subclass").save(tmp_path / "policy")
    with pytest.raises(CheckpointError, match=r"is a Deep checkpoint; load it with Deep\.load"):
        GTrXLPolicy.load(tmp_path / "policy")
    with pytest.raises(CheckpointError, match="does not exist"):
        GTrXLPolicy.load(tmp_path / "none")


def test_a_policy_that_a_file_cannot_describe_is_not_saved(tmp_path: Path) -> None:
    class Odd(GTrXLPolicy):
        def __init__(self, *args: Any, extra: Any = None, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    class Placed(GTrXLPolicy):
        def __init__(self, observed: Any, acted: Any, schedule: Any, extra: int = 0, **kwargs: Any) -> None:
            super().__init__(observed, acted, schedule, **kwargs)

    with pytest.raises(ConfigError, match="extra must be what a file can hold"):
        Odd(BOX, CHOICE, lambda _: 0.0, backbone=TINY, extra=object()).save(tmp_path / "policy")
    with pytest.raises(ConfigError, match="by keyword"):
        Placed(BOX, CHOICE, lambda _: 0.0, 4, backbone=TINY).save(tmp_path / "policy")
    assert list(tmp_path.iterdir()) == []


def edited(source: Path, target: Path, settings: dict[str, Any]) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        header = json.loads(old.read("header.json"))
        header["settings"] |= settings
        new.writestr("header.json", json.dumps(header))
        new.writestr("tensors.pt", old.read("tensors.pt"))
    return target


def test_damaged_files_are_refused_as_what_they_are(tmp_path: Path) -> None:
    made("plain").save(tmp_path / "policy")
    whole = (tmp_path / "policy.zip").read_bytes()
    files = []
    for number, length in enumerate((0, 10, len(whole) // 2, len(whole) - 1)):
        files.append(tmp_path / f"cut{number}.zip")
        files[-1].write_bytes(whole[:length])
    torch.save({"state_dict": {}, "data": {}}, tmp_path / "sb3.zip")  # what Stable-Baselines3 writes
    changes: list[dict[str, Any]] = [
        {"policy_kwargs": {"backbone": TINY | {"width": 512}}},  # not built before it is refused
        {"policy_kwargs": {"backbone": TINY | {"width": 16}}},
        {"policy_kwargs": {"bakbone": TINY}},
        {"policy_kwargs": None},
        {"popart": 2.0},
        {"popart": 0.5},
        {"action_space": {}},
    ]
    for number, change in enumerate(changes):
        files.append(edited(tmp_path / "policy.zip", tmp_path / f"edited{number}.zip", change))
    with pytest.raises(CheckpointError, match="describe a backbone with"):
        GTrXLPolicy.load(tmp_path / "edited0.zip")
    for file in (*files, tmp_path / "sb3.zip"):
        with pytest.raises(CheckpointError, match=file.stem) as caught:
            GTrXLPolicy.load(file)
        assert "\n" not in str(caught.value)
