"""Checkpoints of Hugging Face's Decision Transformer act here as they do there, and faulty ones are refused by name."""

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.agents import DecisionTransformer
from rltransformers.core.errors import CheckpointError, ConfigError
from rltransformers.training.offline.huggingface import CONFIG, PICKLED, SAFE
from tests.data.coded import seeded

STATES, ACTIONS, STEPS, K = 5, 3, 17, 6
SMALL: dict[str, Any] = {
    "state_dim": STATES,
    "act_dim": ACTIONS,
    "hidden_size": 32,
    "n_layer": 2,
    "n_head": 2,
    "max_ep_len": 40,
}
MEAN, DEVIATION = np.linspace(-1, 1, STATES), np.linspace(0.5, 2, STATES)
pytestmark = pytest.mark.third_party

TARGET, SCALE = 3600.0, 1000.0
FORMS: dict[str, dict[str, Any]] = {
    "small": {},
    "gelu, one head": {"activation_function": "gelu_new", "n_head": 1, "n_inner": 48},
    "no tanh": {"action_tanh": False, "activation_function": "silu"},
    "other scales": {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
}


def built(folder: Path, scale: float = 0.25, safe: bool = True, **options: Any) -> Any:
    """A model of Hugging Face with weights of some size, saved into ``folder``."""
    transformers = pytest.importorskip("transformers", reason="builds the models to compare with; extra bench")
    if safe:
        pytest.importorskip("safetensors", reason="reads what transformers writes; extra huggingface")
    model = transformers.DecisionTransformerModel(transformers.DecisionTransformerConfig(**options))
    generator = seeded(1)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = scale * torch.randn(parameter.shape, generator=generator)
            # Numbers that add and scale without rounding, so that what is folded into others stays exact.
            parameter.copy_(torch.round(drawn * 2**10) / 2**10)
    model.save_pretrained(folder)
    if not safe:
        torch.save(model.state_dict(), folder / PICKLED)
        (folder / SAFE).unlink()
    return model.eval()


def lived(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """States and rewards of an episode."""
    generator = np.random.default_rng(seed)
    return generator.normal(size=(STEPS, STATES)).astype(np.float32), 300 * generator.random(STEPS)


def published(model: Any, dtype: torch.dtype, seed: int = 0, standardized: bool = True) -> np.ndarray:
    """Actions as the published scripts take them: the newest K steps, padded on the left, anew for every decision."""
    states, rewards = (torch.as_tensor(each, dtype=dtype) for each in lived(seed))
    if standardized:
        mean, deviation = (torch.as_tensor(np.float32(each), dtype=dtype) for each in (MEAN, DEVIATION))
        states = (states - mean) / deviation
    actions, asked = torch.zeros(0, model.config.act_dim, dtype=dtype), [TARGET / SCALE]
    for step in range(STEPS):
        seen = slice(max(0, step + 1 - K), step + 1)
        rows = seen.stop - seen.start
        blank = K - rows

        def padded(values: Tensor, blank: int = blank) -> Tensor:
            return torch.cat([values.new_zeros(blank, *values.shape[1:]), values])[None]

        now = torch.cat([actions, actions.new_zeros(1, model.config.act_dim)])[seen]
        with torch.no_grad():
            out = model(
                states=padded(states[seen]),
                actions=padded(now),
                returns_to_go=padded(torch.tensor(asked, dtype=dtype)[seen, None]),
                timesteps=padded(torch.arange(seen.start, seen.stop)),
                attention_mask=padded(torch.ones(rows, dtype=torch.long)),
            ).action_preds[0, -1]
        actions = torch.cat([actions, out[None]])
        asked.append(asked[-1] - float(rewards[step]) / SCALE)
    return actions.numpy()


def ours(model: DecisionTransformer, dtype: torch.dtype, mode: Any = None, seed: int = 0) -> np.ndarray:
    """The same with our actor."""
    states, rewards = lived(seed)
    actor, found = model.decider(mode), []
    model.policy.to(dtype)
    state = actor.initial_state(1)
    for step in range(STEPS):
        actions, _, state = actor.step(
            {"": torch.as_tensor(states[step : step + 1])},
            state,
            start=torch.tensor([step == 0]),
            reward=torch.tensor([rewards[step - 1] if step else 0.0], dtype=torch.float64),
            target_return=torch.tensor([TARGET], dtype=torch.float64),
        )
        found.append(actions[""][0].numpy())
    return np.stack(found)


def loaded(folder: Path, **options: Any) -> DecisionTransformer:
    """The model of a folder, with the statistics of the tests."""
    given: dict[str, Any] = {"state_mean": MEAN, "state_std": DEVIATION, "context_length": K, "device": "cpu"} | options
    return DecisionTransformer.from_huggingface(folder, TARGET, **given)


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_of_hugging_face_acts_as_it_does_there(form: str, tmp_path: Path) -> None:
    """In float64 to 1e-10: the same operations on the same numbers; in float32 to 1e-6 of the largest action."""
    theirs = built(tmp_path, **SMALL | FORMS[form])
    expected = published(theirs, torch.float32)
    single = ours(loaded(tmp_path), torch.float32)
    largest = max(1.0, float(np.abs(expected).max()))
    assert np.abs(single - expected).max() < 1e-6 * largest
    exact = published(theirs.double(), torch.float64)
    assert np.abs(ours(loaded(tmp_path), torch.float64) - exact).max() < 1e-10
    assert exact.std(0).min() > 0.02  # actions that differ


def test_refreshed_caches_act_alike_as_long_as_the_episode_fits_the_context(tmp_path: Path) -> None:
    theirs = built(tmp_path, **SMALL).double()
    expected = published(theirs, torch.float64)
    found = ours(loaded(tmp_path, acting_mode="refresh"), torch.float64)
    differences = np.abs(found - expected).max(1)
    assert differences[:K].max() < 1e-10 and differences[K:].max() > 1e-4


def test_the_defaults_of_the_configuration_are_read(tmp_path: Path) -> None:
    """Whatever the file leaves out has the value that transformers gives it; weights come from torch.save."""
    theirs = built(tmp_path, 0.1, safe=False)
    values = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps({"model_type": values["model_type"]}))
    model = DecisionTransformer.from_huggingface(tmp_path, TARGET, device="cpu", context_length=20)
    assert model.observation_space == spaces.Box(-np.inf, np.inf, (17,)) and model.action_space == spaces.Box(
        -1, 1, (4,)
    )
    states = torch.randn(2, 20, 17, generator=seeded(2))
    actions = torch.rand(2, 20, 4, generator=seeded(3)) * 2 - 1
    asked, places = torch.randn(2, 20, generator=seeded(4)), torch.arange(20).repeat(2, 1) + torch.tensor([[0], [7]])
    with torch.no_grad():
        expected = theirs(states=states, actions=actions, returns_to_go=asked[..., None], timesteps=places)
        outputs = model.policy({"": states}, {"": actions}, asked * 1000.0, places, torch.ones(2, 20, dtype=torch.bool))
        found = model.policy.head.decode(outputs)[""]
    assert (found - expected.action_preds).abs().max() < 1e-6


class Field(gym.Env[np.ndarray, np.ndarray]):
    """Takes actions of the model and pays for them."""

    observation_space = spaces.Box(-10, 10, (STATES,), np.float64)
    action_space = spaces.Box(-2, 2, (ACTIONS,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = STEPS
        return self.np_random.normal(size=STATES), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self.np_random.normal(size=STATES), float(action.sum()), self.left == 0, False, {}


def test_such_a_model_is_saved_evaluated_and_trained_further(tmp_path: Path) -> None:
    built(tmp_path / "theirs", **SMALL)
    episode = {"observations": np.zeros((9, STATES)), "actions": np.zeros((8, ACTIONS)), "rewards": np.ones(8)}
    model = loaded(tmp_path / "theirs", dataset=[episode] * 3)
    before = ours(model, torch.float32)
    model.save(tmp_path / "ours.zip")
    again = DecisionTransformer.load(tmp_path / "ours.zip", device="cpu")
    np.testing.assert_array_equal(ours(again, torch.float32), before)
    gym.register("Field-v0", lambda **_: Field())
    (result,) = again.evaluate("Field-v0", episodes=3, num_envs=2)
    assert result.target_return == TARGET and len(result.returns) == 3
    model.learn(2)
    assert np.abs(ours(model, torch.float32) - before).max() > 0


# Faults ------------------------------------------------------------


def test_settings_that_have_no_counterpart_are_named(tmp_path: Path) -> None:
    built(tmp_path, **SMALL)
    values = json.loads((tmp_path / CONFIG).read_text())
    for change, words in (
        ({"activation_function": "tanh"}, "activation_function 'tanh' has no counterpart"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06"),
        ({"add_cross_attention": True}, "add_cross_attention is set"),
        ({"n_head": 5}, r"heads \(5\) must divide width \(32\)"),
        ({"n_layer": -1}, "n_layer must be"),
    ):
        (tmp_path / CONFIG).write_text(json.dumps(values | change))
        with pytest.raises(ConfigError, match=rf"config\.json: {words}"):
            loaded(tmp_path)
    for change, words in (
        ({"model_type": "gpt2"}, "a model of type 'gpt2', expected 'decision_transformer'"),
        ({"n_layer": 3}, r"does not hold a complete Hugging Face DecisionTransformerModel: it lacks 'encoder\.h\.2"),
        ({"n_layer": 1}, "which have no place in a Decision Transformer"),
        ({"hidden_size": 34}, "does not hold a complete"),
        ({"state_dim": 6}, r"the model\.encoder\.leaf_encoders\.0\.linear\.weight is \(32, 5\)"),
        ({"hidden_size": 100_000}, "parameters|more than"),
    ):
        (tmp_path / CONFIG).write_text(json.dumps(values | change))
        with pytest.raises((CheckpointError, ConfigError), match=words):
            loaded(tmp_path, state_mean=None, state_std=None)


def test_files_that_are_missing_cut_or_programs_are_named(tmp_path: Path) -> None:
    built(tmp_path / "whole", **SMALL)
    with pytest.raises(CheckpointError, match=r"there is no folder .*gone"):
        loaded(tmp_path / "gone")
    folder = tmp_path / "cut"
    shutil.copytree(tmp_path / "whole", folder)
    content = (folder / SAFE).read_bytes()
    for part in (content[: len(content) // 2], content[:100], b""):
        (folder / SAFE).write_bytes(part)
        with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or damaged"):
            loaded(folder)
    (folder / SAFE).unlink()
    with pytest.raises(CheckpointError, match=r"it needs model\.safetensors or pytorch_model\.bin"):
        loaded(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="spread over several files"):
        loaded(folder)
    torch.save({"a": Field}, folder / PICKLED)
    for content in (b"", b"hello", (folder / PICKLED).read_bytes()):
        (folder / PICKLED).write_bytes(content)
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is refused"):
            loaded(folder)
    for text in ("", "[]", "{"):
        (folder / CONFIG).write_text(text)
        with pytest.raises(
            CheckpointError, match=r"config\.json (is missing or damaged|describes a model of type None)"
        ):
            loaded(folder)
    (folder / CONFIG).unlink()
    with pytest.raises(CheckpointError, match=r"config\.json is missing or damaged"):
        loaded(folder)


def test_statistics_that_do_not_fit_are_named(tmp_path: Path) -> None:
    built(tmp_path, **SMALL)
    for change, words in (
        ({"state_std": None}, "give both state_mean and state_std, or neither"),
        ({"state_mean": MEAN[:3]}, r"state_mean must be 5 finite numbers, got \(3,\)"),
        ({"state_mean": ["a"] * 5}, "state_mean must be 5 numbers"),
        ({"state_std": [1, 1, np.nan, 1, 1]}, "state_std must be 5 finite numbers"),
        ({"state_std": [1, 1, 0, 1, 1]}, "state_std must be above 0 everywhere, its smallest number is 0"),
        ({"return_scale": 0.0}, "return_scale must be"),
    ):
        with pytest.raises(ConfigError, match=words):
            loaded(tmp_path, **change)
    with pytest.raises(ConfigError, match="the observation space of the dataset"):
        loaded(
            tmp_path, dataset=[{"observations": np.zeros((9, 2)), "actions": np.zeros((8, 3)), "rewards": np.ones(8)}]
        )
