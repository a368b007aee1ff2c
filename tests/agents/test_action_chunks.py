"""A Decision Transformer that decides several actions at once: data, masks, evaluation, files, what it goes with."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from rltransformers.agents import DecisionTransformer
from rltransformers.core.errors import ConfigError
from rltransformers.data import Trajectories
from tests.agents.test_decision_masks import episodes, model_of
from tests.agents.test_decision_transformer import TINY, make, record


@pytest.fixture(scope="module")
def data() -> Trajectories:
    return record()


def test_later_actions_are_learned_under_the_masks_of_their_own_steps() -> None:
    data = episodes()
    model = model_of(data, chunk=3)
    assert model._sampler is not None
    batch = model._sampler.window(torch.arange(model._sampler.windows))
    assert batch.chunks is not None
    masks = batch.chunks.masks["action_mask"]
    recorded = (batch.chunks.actions[""] - 3)[..., None]
    assert bool(masks.gather(-1, recorded)[batch.valid].all())
    first = batch.observations["action_mask"].unsqueeze(2).expand_as(masks)
    assert not bool(first.gather(-1, recorded)[batch.valid].all())  # the mask of the decision forbids later ones
    assert float(model.loss(batch).detach()) < 10  # a forbidden action would lose 1e30
    state, generator = None, np.random.default_rng(0)
    for time in range(9):
        observation = {name: generator.normal(size=(4, *leaf.shape)).astype(leaf.dtype)
                       for name, leaf in data.observation_space.spaces.items()}  # type: ignore[attr-defined]  # fmt: skip
        mask = generator.random((4, masks.shape[-1])) < 0.4
        mask[:, 0] |= ~mask.any(1)
        actions, state = model.predict(
            observation | {"action_mask": mask.astype(np.int8)}, state, deterministic=time % 2 == 0,
            reward=None if time == 0 else np.zeros(4),
        )  # fmt: skip
        assert mask[np.arange(4), actions - 3].all()


@pytest.mark.parametrize("settings", [{"chunk": 3}, {"chunk": 4, "decide_every": 2, "action_head": "mixture"}], ids=str)
def test_results_do_not_depend_on_the_number_of_environments(data: Trajectories, settings: dict[str, Any]) -> None:
    model = make(data, learning_rate=1e-2, **settings).learn(10)
    sampled = "action_head" in settings
    one, several = (
        model.evaluate("test/Drift-v0", [2.0], episodes=6, num_envs=count, deterministic=not sampled)[0]
        for count in (1, 4)
    )
    assert one.lengths == several.lengths
    assert one.returns == pytest.approx(several.returns, abs=1e-4)  # float32, in batches of other sizes


def test_a_saved_model_decides_as_often_as_it_is_told(data: Trajectories, tmp_path: Path) -> None:
    model = make(data, learning_rate=1e-2, chunk=4).learn(10)
    model.save(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"decide_every \(5\) .* of 4; lower .* which a saved one cannot get"):
        DecisionTransformer.load(tmp_path / "model", device="cpu", decide_every=5)
    often = DecisionTransformer.load(tmp_path / "model", device="cpu", decide_every=1)
    assert (often.settings.chunk, often.settings.decide_every, model.settings.decide_every) == (4, 1, None)
    observations, states = np.random.default_rng(1).normal(size=(6, 2, 2)).astype(np.float32), [cast(Any, None)] * 2
    same = []
    for observation in observations:
        actions = []
        for index, each in enumerate((model, often)):
            action, states[index] = each.predict(observation, states[index], deterministic=True, reward=np.zeros(2))
            actions.append(action)
        same.append(bool(np.allclose(*actions)))
    assert same[0] and not any(same[1:4])
    model.predict(observations[1], states[1], deterministic=True, reward=np.zeros(2))  # a state fits both
    with pytest.raises(ValueError, match="chunk belongs to what the file has learned"):
        DecisionTransformer.load(tmp_path / "model", chunk=1)


def test_a_mixture_of_chunks_learns_online_with_what_was_done(data: Trajectories) -> None:
    model = make(data, action_head="mixture", chunk=3).learn_online("test/Drift-v0", 9, updates_per_episode=2)
    assert model.online_timesteps >= 9 and model._entropy is not None
    noisy = make(data, chunk=3, decide_every=2).learn_online(
        "test/Drift-v0", 9, updates_per_episode=2, exploration_noise=0.3
    )
    assert noisy.online_timesteps >= 9


def test_exits_are_learned_and_calibrated_with_chunks(data: Trajectories) -> None:
    backbone = {**TINY["backbone"], "depth": "calm", "losses": {"exits": 0.1}}
    for settings in ({}, {"action": "mixed"}):
        model = make(record(6, **settings), chunk=3, policy_kwargs={"backbone": backbone}).learn(3)
        assert 0 <= model.calibrate_exits(0.3, windows=32, candidates=4) <= 2e9


@pytest.mark.parametrize("action", ["box", "mixed"])
def test_held_out_episodes_say_how_well_first_and_later_actions_are_predicted(action: str) -> None:
    model = make(record(12, action=action), chunk=3, learning_rate=1e-2, validation=0.3).learn(20)
    result, sampler = model.validate(), model._validation_sampler
    assert sampler is not None
    windows, wanted = sampler.windows_over(torch.arange(len(sampler.trajectories)))
    batch = sampler.window(windows)
    assert batch.chunks is not None
    with torch.no_grad():
        features, _ = model.policy.read(
            batch.observations, batch.actions, batch.return_to_go, batch.timestep, batch.valid
        )
        decoded = model.policy.head.decode(model.policy.outputs(features, None))
    found = {error.component: error for error in result.errors}
    for path, leaf in model.policy.head.spaces.items():
        missed: dict[str, list[float]] = {"first": [], "all": []}
        for b in range(len(windows)):
            for t in range(sampler.context_length):
                for j in range(3 if wanted[b, t] else 0):
                    if not batch.chunks.counts[b, t, j]:
                        continue
                    one = np.reshape(decoded[path][b, t, j].numpy(), -1)[0]
                    other = np.reshape(batch.chunks.actions[path][b, t, j].numpy(), -1)[0]
                    value = float(one == other) if np.issubdtype(leaf.dtype, np.integer) else (one - other) ** 2
                    missed["all"].append(value)
                    missed["first"] += [value] if j == 0 else []
        root = 1.0 if np.issubdtype(leaf.dtype, np.integer) else 0.5
        error = found[(path or "action") + (".0" if leaf.shape else "")]
        assert error.policy == pytest.approx(np.mean(missed["first"]) ** root, rel=1e-5)
        assert error.chunk == pytest.approx(np.mean(missed["all"]) ** root, rel=1e-5)
    assert any(name.endswith("_chunk") for name in result.metrics())
    assert type(result).from_dict(result.to_dict()) == result
