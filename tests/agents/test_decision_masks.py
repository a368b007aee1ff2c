"""A Decision Transformer keeps to masks of actions; encoders of leaves and pictures in it."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rltransformers.agents import DecisionTransformer
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.data import Trajectories, load_trajectories
from rltransformers.policies import register_encoder
from rltransformers.policies.encoders import ImageEncoder, VectorEncoder
from tests.agents.masked_envs import Locks

SMALL: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2}


def episodes(observed: bool = True, wrong: bool = False) -> Trajectories:
    """Ten episodes of ``Locks``, with random allowed actions."""
    env, recorded = Locks(observed=observed), []
    generator = np.random.default_rng(0)
    for seed in range(10):
        seen = [env.reset(seed=seed)[0]]
        actions, rewards, ended = [], [], False
        while not ended:
            action = int(generator.choice(np.flatnonzero(env.mask))) + 3
            observation, reward, ended, _, _ = env.step(np.int64(action))
            seen.append(observation)
            actions.append(action)
            rewards.append(reward)
        if wrong and seed == 4:
            actions[1] = 3 + int(np.flatnonzero(seen[1]["action_mask"] == 0)[0])
        leaves = {key: np.stack([each[key] for each in seen]) for key in seen[0]} if observed else np.stack(seen)
        recorded.append({"observations": leaves, "actions": np.array(actions), "rewards": np.array(rewards),
                         "terminations": np.arange(1, len(actions) + 1) == len(actions)})  # fmt: skip
    space = env.observation_space
    return load_trajectories(recorded, observation_space=space, action_space=env.action_space)


def model_of(data: Trajectories, **settings: Any) -> DecisionTransformer:
    policy = {"backbone": SMALL} | settings.pop("policy", {})
    values: dict[str, Any] = {"context_length": 4, "batch_size": 8, "warmup_steps": 1, "seed": 0, "device": "cpu"}
    return DecisionTransformer("DTPolicy", data, policy_kwargs=policy, **(values | settings))


@pytest.mark.parametrize(
    "settings", [{}, {"mode": "bc"}, {"critic": "qt", "critic_kwargs": {"width": 8, "candidates": 3}}]
)
def test_masks_in_the_data_hold_in_training_and_acting(settings: dict[str, Any], tmp_path: Path) -> None:
    data = episodes()
    model = model_of(data, **settings)
    assert model._sampler is not None
    batch = model._sampler.sample(16, torch.Generator().manual_seed(0))
    outputs = model.policy(batch.observations, batch.actions, batch.return_to_go, batch.timestep, batch.valid)
    chances = outputs.softmax(-1)[batch.valid]
    masks = batch.observations["action_mask"].bool()[batch.valid]
    assert (chances[~masks] == 0.0).all()
    assert (chances[masks] > 0.0).all()
    assert torch.isfinite(model.loss(batch))
    model.learn(6)
    observations = {path: leaf[:40] for path, leaf in data.observations.items()}
    state = None
    for step in range(30):
        seen = {path: np.roll(np.asarray(leaf), step, 0)[:5] for path, leaf in observations.items()}
        reward = None if state is None else np.zeros(5)
        actions, state = model.predict(seen, state, np.full(5, step == 0), reward=reward)
        assert seen["action_mask"][np.arange(5), actions - 3].all()
    model.save(tmp_path / "model")
    loaded = DecisionTransformer.load(tmp_path / "model", dataset=data, device="cpu")
    assert loaded.policy.masks
    model.learn(4)
    loaded.learn(4)
    for name, value in model.policy.state_dict().items():
        assert torch.equal(value, loaded.policy.state_dict()[name]), name


def test_masks_beside_the_observation_hold_in_acting() -> None:
    model = model_of(episodes(observed=False)).learn(2)
    assert not model.policy.masks
    seen = np.zeros((2, 3), np.float32)
    masks = np.array([[0, 0, 1, 0], [1, 0, 0, 0]])
    actions, _ = model.predict(seen, action_masks=masks)
    assert actions.tolist() == [5, 3]
    with pytest.raises(DataError, match="environment 1 allows no action"):
        model.predict(seen, action_masks=[[1, 0, 0, 0], [0, 0, 0, 0]])


def test_recorded_actions_that_their_mask_forbids_are_named() -> None:
    with pytest.raises(DataError, match="the data's step 1 of episode 4 has an action"):
        model_of(episodes(wrong=True))
    model = model_of(episodes(wrong=True), policy={"action_masks": False})
    assert not model.policy.masks
    seen = {path: np.asarray(leaf)[:2] for path, leaf in episodes().observations.items()}
    with pytest.raises(ConfigError, match="leave action_masks out"):
        model.predict(seen, action_masks=np.ones((2, 4)))
    with pytest.raises(ConfigError, match="leave action_masks out"):
        model.actor().predict(seen, action_masks=np.ones((2, 4)))


def test_other_data_that_break_their_masks_are_refused() -> None:
    model = model_of(episodes()).learn(2)
    with pytest.raises(DataError, match="the data's step 1 of episode 4 has an action"):
        model.validate(episodes(wrong=True))


def test_evaluations_and_exports_keep_to_masks_that_are_observed(tmp_path: Path) -> None:
    gym.register("Locks-of-a-test-v0", lambda **kwargs: Locks(observed=True))
    try:
        model = model_of(episodes()).learn(2)
        (result,) = model.evaluate("Locks-of-a-test-v0", [1.0], episodes=4, num_envs=2, deterministic=False)
        assert len(result.returns) == 4
        model.export(tmp_path / "policy.pt2")
    finally:
        del gym.registry["Locks-of-a-test-v0"]


def test_environments_that_wait_for_the_last_episodes_of_an_evaluation_are_given_allowed_actions() -> None:
    """``Locks`` raises an exception for others."""
    model = model_of(episodes()).learn(2)
    (result,) = model.evaluate(lambda: Locks(observed=True), [1.0], episodes=5, num_envs=4)
    assert result.lengths == (5, 5, 5, 5, 3)


def pictures(high: float) -> Trajectories:
    generator = np.random.default_rng(0)
    recorded = [
        {
            "observations": generator.uniform(0, min(high, 9), (5, 12, 10, 3)).astype(np.float32),
            "actions": generator.integers(2, size=4),
            "rewards": generator.normal(size=4),
            "terminations": np.arange(1, 5) == 4,
        }
        for _ in range(4)
    ]
    space = spaces.Box(0.0, high, (12, 10, 3))
    return load_trajectories(recorded, observation_space=space, action_space=spaces.Discrete(2))


def test_float_pictures_go_through_a_convolution_and_are_scaled_once() -> None:
    """Standardized by the data they are not divided by 255 as well."""
    for normalize, largest in ((True, 1.0), (False, 255.0)):
        with pytest.warns(UserWarning, match="as a picture"):
            model = model_of(pictures(255.0), normalize_observations=normalize)
        assert model.policy.encoder is not None
        encoder = model.policy.encoder.get_submodule("leaf_encoders.0")
        assert isinstance(encoder, ImageEncoder)
        assert encoder.picture.largest == largest


def sets(fill: float) -> Trajectories:
    """Episodes of four entities, of which the last is there in a twentieth of the steps; elsewhere stands ``fill``."""
    rng, episodes = np.random.default_rng(0), []
    for _ in range(20):
        mask = (rng.random((7, 4)) < [0.9, 0.7, 0.3, 0.05]).astype(np.int8)
        entities = np.where(mask[..., None], rng.normal([3.0, -1.0], [0.5, 20.0], (7, 4, 2)), fill)
        observations = {"entities": entities.astype(np.float32), "mask": mask}
        actions = rng.integers(0, 3, 6)
        episodes.append({"observations": observations, "actions": actions, "rewards": rng.normal(size=6)})
    space = spaces.Dict({"entities": spaces.Box(-np.inf, np.inf, (4, 2)), "mask": spaces.MultiBinary(4)})
    return load_trajectories(episodes, observation_space=space, action_space=spaces.Discrete(3))


@pytest.mark.parametrize("fill", [0.0, -1000.0])
def test_elements_of_a_set_have_the_same_units_at_every_place(fill: float, tmp_path: Path) -> None:
    encoder = {"name": "bert", "leaf": "entities", "mask": "mask", "position": "none", "heads": 2, "layers": 1}
    data, options = sets(fill), {"observation": {"encoder": encoder}}
    model = model_of(data, policy=options, critic="qt", critic_kwargs={"width": 8})
    ((_, mean, deviation),) = model.policy.statistics()
    acted = np.ones(len(data.observations["mask"]), bool)
    acted[6::7] = False
    there = data.observations["entities"][acted][data.observations["mask"][acted] != 0].astype(np.float64)
    np.testing.assert_allclose(mean, np.tile(there.mean(0), (4, 1)), rtol=1e-5)
    np.testing.assert_allclose(deviation, np.tile(there.std(0), (4, 1)), rtol=1e-5)

    model.learn(2).save(tmp_path / "model")
    loaded = DecisionTransformer.load(tmp_path / "model", device="cpu")
    seen = {"entities": there[:4].astype(np.float32), "mask": np.array([1, 0, 1, 1], np.int8)}
    turned = {path: leaf[::-1].copy() for path, leaf in seen.items()}
    other = {**seen, "entities": np.where(seen["mask"][:, None], seen["entities"], -fill).astype(np.float32)}
    found = []
    for agent, observation in ((model, seen), (model, turned), (loaded, seen), (model, other)):
        actor = agent.actor(1.0)
        actor.reset()
        found.append(actor.decide(observation))
    for each in found[1:]:
        np.testing.assert_allclose(each.probabilities, found[0].probabilities, rtol=1e-5)
    for each in found[2:]:  # critics read places, and nothing of what is not there
        np.testing.assert_allclose(each.value, found[0].value, rtol=1e-5)


def test_encoders_of_leaves_are_saved_and_serve_critics_too(tmp_path: Path) -> None:
    register_encoder("means of a test", lambda space, width: nn.Sequential(nn.Flatten(), nn.Linear(360, width)))
    for name in ("vector", "means of a test"):
        data = pictures(1.0)
        leaves = {"observation": {"leaves": {"": name}}}
        model = model_of(data, policy=leaves, critic="qt", critic_kwargs={"width": 8}).learn(2)
        model.save(tmp_path / "model")
        loaded = DecisionTransformer.load(tmp_path / "model", dataset=data, device="cpu")
        for agent in (model, loaded):
            assert agent.policy.critics is not None
            assert agent.policy.encoder is not None
            for part in (agent.policy.encoder, agent.policy.critics.first.encoder):
                encoder = part.get_submodule("leaf_encoders.0")
                assert isinstance(encoder, VectorEncoder) == (name == "vector")
            agent.learn(2)
        for key, value in model.policy.state_dict().items():
            assert torch.equal(value, loaded.policy.state_dict()[key]), key
