"""Pages of watched episodes: the attention shown is that of acting, and of training; nothing in the data can run."""

import base64
import io
import json
import os
import re
import shutil
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from PIL import Image
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor

from rltransformers.agents import DecisionTransformer, GTrXLDQN, GTrXLPPO, GTrXLSAC, GTrXLVMPO
from rltransformers.backbone import Record
from rltransformers.cli.runs import say_of_tensors
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.data import record
from rltransformers.envs import make_vec_env
from rltransformers.look import look, watch
from rltransformers.look.data import action_kind, round_numbers
from rltransformers.look.pack import compress, pack_attention
from rltransformers.look.page import LARGEST_PAGE, as_json, page
from rltransformers.look.watch import Episode, by_step, pixels, play
from rltransformers.policies.memory_policy import MemoryPolicy
from rltransformers.policies.policy_state import StepInputs
from rltransformers.training.evaluation import evaluate_online
from rltransformers.training.runs.experiment import EnvironmentConfig
from rltransformers.training.runs.lookback import lookback_of
from tests.cli.test_runs import refused, run, work

__all__ = ["work"]  # the fixture
SMALL = {"preset": "gtrxl", "width": 16, "layers": 2, "heads": 4, "memory": 6}
CUE = "rltransformers/CueRecall-v0"
SETTINGS: dict[str, Any] = {
    "episodes": 1, "seed": 3, "target_returns": [None], "env_kwargs": {}, "wrappers": (), "deterministic": True,
    "longest_episode": None,
}  # fmt: skip
DRAWN = {"max_episode_steps": 14}
HOSTILE = '</script><script>document.title = "broken"</script><!-- &amp; \u2028'


def online(kind: type[Any] = GTrXLPPO, env: str = CUE, **backbone: Any) -> Any:
    steps = {"n_steps": 8} if kind in (GTrXLPPO, GTrXLVMPO) else {}
    policy = {"backbone": SMALL | backbone}
    return kind(*kind.policy_aliases, env, policy_kwargs=policy, seed=0, device="cpu", **steps)


def offline(env: str = "CartPole-v1", **settings: Any) -> DecisionTransformer:
    data = record(env, "random", episodes=5, num_envs=2, seed=0, env_kwargs=DRAWN)
    backbone = {"width": 16, "layers": 2, "heads": 2}
    values: dict[str, Any] = {"context_length": 5, "batch_size": 8, "policy_kwargs": {"backbone": backbone}, "seed": 0}
    return DecisionTransformer("DTPolicy", data, **(values | settings))


def content(path: Path) -> dict[str, Any]:
    """The data of a page, as a browser reads it."""
    (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', path.read_text("utf-8"), re.S)
    return cast(dict[str, Any], json.loads(data))


def tensors(episode: Episode) -> dict[str, torch.Tensor]:
    """Observations [1, T, ...] by leaf."""
    paths = episode.observations[0]
    return {path: torch.as_tensor(np.stack([each[path] for each in episode.observations]))[None] for path in paths}


@torch.no_grad()
def test_attention_is_what_a_training_segment_computes() -> None:
    agent = online()
    (episode,) = play(agent, CUE, **SETTINGS | {"env_kwargs": {"delay": 9}})
    seen, steps, policy = tensors(episode), len(episode.outputs), cast(MemoryPolicy, agent.policy)
    first = torch.arange(steps)[None] == 0
    inputs = StepInputs(seen, {"": torch.zeros(1, steps, dtype=torch.long)}, torch.zeros(1, steps), first)
    trained = Record(weights=True, attention={})
    policy.actor(inputs, None, trained)
    assert trained.attention is not None and list(trained.attention) == ["layer0", "layer1"]
    for t, masses in enumerate(episode.attention):
        for layer, mass in masses.items():
            expected = trained.attention[layer][0, t].numpy()  # [H, L]
            assert mass.shape[1] == min(t + 1, 7), "a window of 6 steps and the step itself"
            # Rounding of float32 in sums of at most 7 weights below 1.
            np.testing.assert_allclose(mass[..., 0], expected[:, : mass.shape[1]], rtol=0, atol=1e-6)
            np.testing.assert_allclose(mass.sum((1, 2)), 1.0, rtol=0, atol=1e-6)
    assert np.ptp(episode.attention[-1]["layer1"]) > 0.01, "heads look at some steps more than at others"


@torch.no_grad()
@pytest.mark.parametrize("mode", ["refresh", "recompute", "banded", "critics"])
def test_a_decision_transformer_shows_the_tokens_that_decide(mode: str) -> None:
    """Of the cache that decides, and with critics of the return that they choose among 4."""
    settings: dict[str, Any] = {"policy_kwargs": {"backbone": {"width": 16, "layers": 2, "heads": 2, "memory": 40}}}
    chooses = mode == "critics"
    settings |= (
        {"critic": "qt", "critic_kwargs": {"candidates": 4, "jitter": 5.0}} if chooses else {"acting_mode": mode}
    )
    env = "Pendulum-v1" if chooses else "CartPole-v1"
    agent = offline(env, **settings)
    asking = SETTINGS | {"target_returns": [9.0], "env_kwargs": DRAWN, "deterministic": False}
    (episode,) = play(agent, env, **asking)
    seen, decider = tensors(episode), agent.decider()
    actions = torch.as_tensor(np.stack([output.action for output in episode.outputs]))[None]
    asked = torch.tensor([value for value, _ in episode.returns_to_go], dtype=torch.float32)[None]
    assert len(episode.outputs) > 8, "longer than the context of 5"
    chosen = set()
    for t, masses in enumerate(episode.attention):
        begin = t + 1 - int(decider.window(torch.tensor([t]))[0])
        window, steps = slice(begin, t + 1), torch.arange(begin, t + 1)[None]
        observed = {path: leaf[:, window] for path, leaf in seen.items()}
        differences = []
        for more in decider.jitter or (0.0,):
            trained = Record(weights=True, attention={})
            agent.policy(observed, {"": actions[:, window]}, asked[:, window] + more, steps, steps >= 0, trained)
            expected = {
                layer: by_step(mass[0, -1].numpy(), t + 1, 3)[:, : t + 1 - begin]
                for layer, mass in (trained.attention or {}).items()
            }
            differences.append(
                max(np.abs(masses[layer][:, : t + 1 - begin] - expected[layer]).max() for layer in masses)
            )
        # Rounding of float32 in sums of weights below 1.
        assert min(differences) < 1e-6 and len(masses) == 2
        chosen.add(int(np.argmin(differences)))
        for mass in masses.values():
            np.testing.assert_allclose(mass.sum((1, 2)), 1.0, rtol=0, atol=1e-6)
    assert len(decider.jitter) == (4 if chooses else 0) and (chosen == {0}) != chooses


@pytest.mark.parametrize("mode", ["refresh", "recompute", "banded", "critics", "chunk"])
def test_the_look_back_of_an_evaluation_is_that_of_its_decisions(mode: str) -> None:
    """Not of the stream that waits, of tokens behind which nothing is decided, or of candidates that are not taken."""
    backbone = {"width": 16, "layers": 2, "heads": 2, "memory": 40}
    settings: dict[str, Any] = {"policy_kwargs": {"backbone": backbone}}
    if mode == "critics":
        settings |= {"critic": "qt", "critic_kwargs": {"candidates": 4, "jitter": 5.0}}
    else:
        settings |= {"chunk": 3} if mode == "chunk" else {"acting_mode": mode}
    env = "Pendulum-v1" if mode == "critics" else "CartPole-v1"
    agent = offline(env, **settings)
    played = play(agent, env, **SETTINGS | {"target_returns": [9.0], "env_kwargs": DRAWN, "episodes": 3})
    with lookback_of(agent.policy.backbone, agent.decider()) as meter:
        agent.evaluate(env, 9.0, 3, num_envs=2, seed=3, env_kwargs=DRAWN)
    every = agent.policy.decide_every
    for layer, found in meter.result().items():
        rows = [
            mass[layer][:, :, ::-1].reshape(2, -1)[:, 1:] for episode in played for mass in episode.attention[::every]
        ]
        expected = np.zeros((2, max(found.shape[1], *(row.shape[1] for row in rows))))
        for row in rows:
            expected[:, : row.shape[1]] += row / len(rows)
        # Rounding of float32 in weights below 1.
        np.testing.assert_allclose(found, expected[:, : found.shape[1]], rtol=0, atol=1e-6)
        np.testing.assert_allclose(expected.sum(1), 1.0, rtol=0, atol=1e-6)
    assert len(meter.result()) == 2 and max(len(episode.outputs) for episode in played) > 8


def test_attention_by_distance_belongs_to_these_tokens() -> None:
    """Distances 0 to 5 from the observation of a step, with three, two and one tokens per step."""
    mass = np.arange(1, 7, dtype=np.float32)[None]
    # Return-to-go, observation and action of this step, which is not there, of the last one, and of the one before.
    np.testing.assert_array_equal(by_step(mass, 9, 3)[0], [[2, 1, 0], [5, 4, 3], [0, 0, 6]])
    np.testing.assert_array_equal(by_step(mass, 9, 2)[0], [[1, 0], [3, 2], [5, 4], [0, 6]])
    np.testing.assert_array_equal(by_step(mass, 3, 1)[0], [[1], [2], [3]])


@pytest.mark.parametrize("deterministic", [True, False])
def test_episodes_are_those_of_an_evaluation(deterministic: bool) -> None:
    agent, settings = online(), SETTINGS | {"episodes": 3, "deterministic": deterministic}
    result = evaluate_online(agent, make_vec_env(CUE, 2), CUE, 3, 3, deterministic)
    played = play(agent, CUE, **settings)
    assert [each.seed for each in played] == [*result.seeds] and [each.total for each in played] == [*result.returns]
    model = offline()
    settings |= {"env_kwargs": DRAWN, "target_returns": [4.0, 9.0]}
    results = model.evaluate("CartPole-v1", [4.0, 9.0], 3, seed=3, env_kwargs=DRAWN, deterministic=deterministic)
    played = play(model, "CartPole-v1", **settings)
    assert [each.total for each in played] == [total for each in results for total in each.returns]
    assert [each.target for each in played] == [4.0] * 3 + [9.0] * 3


@pytest.mark.parametrize("kind", [GTrXLPPO, GTrXLVMPO, GTrXLDQN, GTrXLSAC])
def test_every_agent_has_a_page(kind: type[Any], tmp_path: Path) -> None:
    env = "Pendulum-v1" if kind is GTrXLSAC else "CartPole-v1"
    data = content(look(online(kind, env), env, tmp_path / "a.html", env_kwargs=DRAWN))
    (episode,), (action,) = data["episodes"], data["actions"]
    steps = episode["steps"]
    assert data["layers"] == [{"name": f"layer {layer}", "heads": 4, "steps": 7} for layer in range(2)]
    assert not data["note"] and len(episode["picture"]) == steps + 1, "a picture behind the last step, too"
    names = {track["name"] for track in episode["tracks"]}
    assert {"reward", "return so far", "value", "value error", "look-back", "gates"} <= names
    assert "surprise" in names
    assert all(len(line["values"]) == steps for track in episode["tracks"] for line in track["lines"])
    kinds = {GTrXLDQN: {"action", "probabilities", "q_values"}, GTrXLSAC: {"action", "mean"}}
    assert set(episode["actions"][0]) == kinds.get(kind, {"action", "probabilities"})
    assert ("low" in action) == (kind is GTrXLSAC)


def test_values_are_told_in_rewards() -> None:
    agent = online(env="CartPole-v1")
    agent.learn(32)
    assert agent.reward_unit > 1.1, "returns of CartPole differ by more than 1"
    (episode,) = play(agent, "CartPole-v1", **SETTINGS | {"env_kwargs": DRAWN})
    tracks = {each["name"]: each["lines"][0]["values"] for each in content_of(agent, episode)["tracks"]}
    values = [float(output.value) * agent.reward_unit for output in episode.outputs]
    assert tracks["value"] == round_numbers(values)
    assert tracks["value error"][0] == pytest.approx(1 + agent.gamma * values[1] - values[0], rel=1e-3)
    assert tracks["value error"][-1] is None or episode.ends[-1], "what follows on a cut episode is unknown"
    assert tracks["surprise"][0] == pytest.approx(-float(episode.outputs[0].log_prob), rel=1e-3)


def test_values_of_actions_are_told_in_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = online(GTrXLDQN, "CartPole-v1")
    monkeypatch.setattr(GTrXLDQN, "reward_unit", 50.0)
    data = content_of(agent, *play(agent, "CartPole-v1", **SETTINGS | {"env_kwargs": DRAWN}))
    (value,) = [track["lines"][0]["values"] for track in data["tracks"] if track["name"] == "value"]
    assert value == [max(values) for values in data["actions"][0]["q_values"]]


def content_of(agent: Any, *episodes: Episode) -> dict[str, Any]:
    """Data of the first of these episodes."""
    text = page(agent, "name", episodes, True)
    return cast(
        dict[str, Any], json.loads(text.split('type="application/json">')[1].split("</script>")[0])["episodes"][0]
    )


def test_every_component_of_an_action_has_classes_of_its_own() -> None:
    several = spaces.MultiDiscrete(np.array([[2, 3]]), start=np.array([[1, 5]]))
    assert action_kind("a", several) == {"name": "a", "sizes": [2, 3], "starts": [1, 5]}
    assert action_kind("a", spaces.Discrete(3, start=2)) == {"name": "a", "sizes": [3], "starts": [2]}


NO_PICTURES: list[Any] = [
    None, [np.zeros((4, 4, 3), np.uint8)], np.zeros((0, 0, 3), np.uint8), np.zeros((3, 8, 8), np.uint8),
    np.full((8, 8, 3), 0.5), np.full((8, 8, 3), 300), np.full((8, 8, 3), np.nan),
]  # fmt: skip


@pytest.mark.parametrize("drawn", NO_PICTURES)
def test_what_is_no_picture_is_said(drawn: Any) -> None:
    env = gym.make("CartPole-v1", render_mode="rgb_array").unwrapped  # Gymnasium's checks would warn first
    env.render = lambda: drawn  # type: ignore[method-assign]
    with pytest.raises(DataError, match=r"render\(\) draws .*, no image"):
        play(online(env="CartPole-v1"), env, **SETTINGS)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pictures_are_drawn_in_grey_and_in_color(channels: int) -> None:
    shades = np.arange(5 * 6 * channels).reshape(5, 6, channels)
    for drawn in (shades.astype(np.uint8), shades, shades.astype(np.float32)):
        assert pixels(drawn).dtype == np.uint8 and (pixels(drawn).reshape(shades.shape) == shades).all()
    assert pixels(np.zeros((5, 6, 1))).shape == (5, 6), "grey, which Pillow takes without channels"


def test_attention_is_packed_with_small_errors() -> None:
    agent = online()
    (episode,) = play(agent, CUE, **SETTINGS)
    packed = zlib.decompress(base64.b64decode(pack_attention(episode, {"layer0": (4, 7), "layer1": (4, 7)})))
    rows = [
        masses[layer][head, :, 0] for layer in ("layer0", "layer1") for head in range(4) for masses in episode.attention
    ]
    roots = np.frombuffer(packed, np.uint8) / 255
    np.testing.assert_allclose(roots, np.sqrt(np.concatenate(rows)), rtol=0, atol=0.5 / 255 + 1e-7)


def test_nothing_in_the_data_can_run_or_end_the_script() -> None:
    agent = online()
    (episode,) = play(agent, CUE, **SETTINGS)
    episode.observations = [{HOSTILE: each[""]} for each in episode.observations]
    text = page(agent, HOSTILE, [episode], True)
    assert text.count("<script") == 2 and text.count("</script>") == 2 and "<!-- &" not in text
    assert json.loads(as_json(HOSTILE)) == HOSTILE and as_json(HOSTILE).isascii()
    data = json.loads(text.split('type="application/json">')[1].split("</script>")[0])
    assert data["title"] == f"GTrXLPPO in {HOSTILE}" and data["episodes"][0]["seen"][0]["name"] == HOSTILE
    assert "default-src 'none'; img-src data:; style-src 'sha256-" in text, "no network, and no other script"
    assert not re.search(r"(src|href)=|url\(|@import|https?://", text)


def test_a_page_of_500_steps_stays_below_five_megabytes() -> None:
    """Two layers of four heads that look at everything, and pictures of noise, which nothing compresses."""
    agent, generator, steps = online(memory=511), np.random.default_rng(0), 500
    (short,) = play(agent, CUE, **SETTINGS)
    noise = generator.integers(0, 256, (steps + 1, 170, 256, 3), np.uint8)
    weights = [generator.dirichlet(np.ones(t + 1), 4)[..., None].astype(np.float32) for t in range(steps)]
    repeated: dict[str, Any] = {
        name: [getattr(short, name)[0]] * steps
        for name in ("observations", "outputs", "returns_to_go", "metrics", "ends")
    }
    attention = [{"layer0": each, "layer1": each[::-1]} for each in weights]
    long = replace(short, drawn=[*noise], attention=attention, rewards=[0.0] * steps, **repeated)
    text = page(agent, "noise", [long], True)
    assert len(text) < LARGEST_PAGE
    data = json.loads(text.split('type="application/json">')[1].split("</script>")[0])
    assert len(data["pictures"]) > 50 and data["layers"][0]["steps"] == steps


def test_pictures_fit_and_equal_ones_are_kept_once() -> None:
    generator = np.random.default_rng(0)
    noise = [*generator.integers(0, 256, (40, 80, 90, 3), np.uint8)]
    pictures, numbers, stride = compress([noise, noise], 200_000)
    assert sum(map(len, pictures)) <= 200_000 and len(pictures) == 40 and numbers == [[*range(40)]] * 2 and stride == 1
    pictures, numbers, stride = compress([noise[:11], noise[11:]], 4_000)
    assert sum(map(len, pictures)) <= 4_000 and stride > 1
    first = -(-11 // stride)  # pictures of the first episode, none of which stands for the second one
    assert numbers == [[t // stride for t in range(11)], [first + t // stride for t in range(29)]]
    pictures, numbers, stride = compress([[frame] * 3 for frame in noise], 4_000)
    assert len(pictures) == 40 and stride == 4, "an episode keeps one picture"
    small = generator.integers(0, 256, (5, 6, 3), np.uint8)
    ((picture,), _, _) = compress([[small]], 4_000)
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        np.testing.assert_array_equal(np.asarray(image.convert("RGB")), small)


SHADES = np.arange(3 * 12 * 16, dtype=np.uint8).reshape(3, 12, 16)  # wraps at 256


class Pictured(gym.Env[Any, Any]):
    """Draws nothing, and shows images with channels first, and text."""

    observation_space = spaces.Box(0, 255, (3, 12, 16), np.uint8)
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.t = 0
        return SHADES, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.full((3, 12, 16), self.t, np.uint8), 1.0, self.t == 4, False, {"hint": HOSTILE}


def test_images_of_the_observation_stand_in_for_what_is_not_drawn(tmp_path: Path) -> None:
    agent = GTrXLPPO("GTrXLPolicy", Pictured, n_steps=8, policy_kwargs={"backbone": SMALL}, device="cpu")
    data = content(look(agent, Pictured, tmp_path / "a.html"))
    (episode,) = data["episodes"]
    assert (episode["steps"], episode["picture"], episode["seen"]) == (4, [0, 1, 2, 3], [])
    with Image.open(io.BytesIO(base64.b64decode(data["pictures"][0]))) as image:
        np.testing.assert_array_equal(np.asarray(image.convert("RGB")), SHADES.transpose(1, 2, 0))
    assert data["actions"][0]["sizes"] == [2, 3] and len(episode["actions"][0]["probabilities"][0]) == 5


def test_layers_without_attention_weights_are_named() -> None:
    agent = online(mixer="lstm", position="none")
    (episode,) = play(agent, CUE, **SETTINGS)
    data = json.loads(page(agent, "x", [episode], True).split('type="application/json">')[1].split("</script>")[0])
    assert data["layers"] == [] and "no attention weights, so that there are none to show: 0, 1" in data["note"]


@pytest.mark.parametrize(("settings", "every"), [({"chunk": 4}, 4), ({"chunk": 4, "decide_every": 2}, 2), ({}, 1)])
def test_a_policy_with_chunks_says_which_steps_decide(settings: dict[str, Any], every: int, tmp_path: Path) -> None:
    note = content(look(offline(**settings), "CartPole-v1", tmp_path / "a.html"))["note"]
    assert ("no decision reads the attention that is shown there" in note) == (every > 1)
    assert every == 1 or f"every {every} steps: 0, {every}, {2 * every}, ..." in note


def test_heads_that_may_look_at_nothing_tell_how_much_they_look_at() -> None:
    agent = online(preset="modern")
    (episode,) = play(agent, CUE, **SETTINGS)
    sums = np.asarray(content_of(agent, episode)["sums"])
    assert sums.shape == (2 * 4, len(episode.outputs)) and sums.max() < 0.99
    np.testing.assert_allclose(sums[4:, -1], episode.attention[-1]["layer1"].sum((1, 2)), rtol=0, atol=1e-4)
    agent = online()
    assert content_of(agent, *play(agent, CUE, **SETTINGS))["sums"] is None


def test_long_episodes_are_shown_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST_STEPS", 3)
    (episode,) = play(online(), CUE, **SETTINGS | {"env_kwargs": {"delay": 9}})
    assert [len(each) for each in (episode.outputs, episode.rewards, episode.attention)] == [3, 3, 3]
    assert episode.length == 11 and not any(episode.ends)


class Lives(gym.Env[Any, Any]):
    """Draws the number of the step; a life lasts 4 of its 12 steps."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space = spaces.Box(0, 12, (1,), np.float32)
    action_space = spaces.Discrete(3, start=12344)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.full(1, self.t, np.float32), 12345.6, self.t == 12, False, {}

    def render(self) -> np.ndarray:
        return np.full((8, 8, 3), self.t, np.uint8)


class LifeEnds(gym.Wrapper[Any, Any, Any, Any]):
    """Calls the loss of a life an end, and goes on behind it."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        goes_on = options.get("seed") is None and 0 < self.unwrapped.t < 12  # type: ignore[attr-defined]
        return (np.full(1, 4, np.float32), {}) if goes_on else super().reset(**options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, ended, cut, info = super().step(action)
        return observation, reward, ended or self.unwrapped.t % 4 == 0, cut, info  # type: ignore[attr-defined]


def test_lost_lives_leave_frames_at_their_steps_and_nothing_to_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GTrXLPPO, "reward_unit", 1e6)  # beside which values of a new policy are not rounded away
    agent = GTrXLPPO("GTrXLPolicy", Lives, n_steps=8, policy_kwargs={"backbone": SMALL}, device="cpu")
    (episode,) = play(agent, Lives, **SETTINGS | {"wrappers": [Monitor, LifeEnds]})
    assert [int(frame[0, 0, 0]) for frame in episode.drawn] == [*range(13)]
    values = [float(output.value) * agent.reward_unit for output in episode.outputs]
    (errors,) = [
        track["lines"][0]["values"] for track in content_of(agent, episode)["tracks"] if track["name"] == "value error"
    ]
    expected = [12345.6 - values[t] + (0.0 if t % 4 == 3 else agent.gamma * values[t + 1]) for t in range(len(values))]
    assert len(values) == 12 and errors == round_numbers(expected)


def test_integers_are_not_rounded_and_returns_keep_more_digits(tmp_path: Path) -> None:
    assert round_numbers([123457, 12345.6, 0.123456, None, np.inf]) == [123457, 12346, 0.1235, None, None]
    agent = GTrXLPPO("GTrXLPolicy", Lives, n_steps=8, policy_kwargs={"backbone": SMALL}, device="cpu")
    (episode,) = content(look(agent, Lives, tmp_path / "a.html"))["episodes"]
    assert {action for (action,) in episode["actions"][0]["action"]} <= {12344, 12345, 12346}
    assert episode["total"] == 148147.2
    lines = {track["name"]: track["lines"][0]["values"] for track in episode["tracks"]}
    assert lines["return so far"][:2] == [12345.6, 24691.2] and lines["reward"][0] == 12346


def test_a_page_says_which_steps_have_pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    agent = GTrXLPPO("GTrXLPolicy", Lives, n_steps=8, policy_kwargs={"backbone": SMALL}, device="cpu")
    monkeypatch.setattr("rltransformers.look.page.LEAST_PICTURES", 300)
    monkeypatch.setattr("rltransformers.look.page.LARGEST_PAGE", 0)
    data = content(look(agent, Lives, tmp_path / "a.html"))
    (number,) = [episode["picture"] for episode in data["episodes"]]
    stride = number.count(0)
    assert stride > 1 and f"pictures are those of the steps 0, {stride}, {2 * stride}, ..., and stand" in data["note"]


def test_a_policy_of_advantages_reads_an_advantage(tmp_path: Path) -> None:
    data = content(look(offline(mode="advantage"), "CartPole-v1", tmp_path / "a.html", env_kwargs=DRAWN))
    assert data["kinds"] == ["advantage", "observation", "action"]


def test_what_cannot_be_looked_at_is_refused(tmp_path: Path) -> None:
    agent = online()
    with pytest.raises(ConfigError, match=r"look shows agents of this package .* and this is a PPO"):
        look(PPO("MlpPolicy", "CartPole-v1", device="cpu"), "CartPole-v1")
    with pytest.raises(ConfigError, match=r"must end in \.html"):
        look(agent, CUE, tmp_path / "page.txt")
    with pytest.raises(ConfigError, match="target returns are asked of Decision Transformers, and this is a GTrXLPPO"):
        look(agent, CUE, tmp_path / "a.html", target_returns=3)
    with pytest.raises(ConfigError, match="the observation space of the environment is"):
        look(agent, "CartPole-v1", tmp_path / "a.html")
    with pytest.raises(ConfigError, match="target_returns is empty"):
        look(agent, CUE, tmp_path / "a.html", target_returns=[])
    assert not list(tmp_path.iterdir())


def test_what_plays_in_place_of_tensors_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for processes in (True, "tensors"):
        say_of_tensors(EnvironmentConfig("CartPole-v1", processes=processes))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "episodes of Gymnasium's CartPole-v1, which begin otherwise than those of environments in tensors"
    )


def test_the_command_writes_a_page_of_a_run_and_of_a_file(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("online", "offline", "lstm"):
        run(capsys, "train", f"{name}.yaml", "--evaluation.every", "0")
    assert run(capsys, "look", "runs/online-seed0", "--episodes", "2").strip() == "runs/online-seed0/look.html"
    told = run(capsys, "look", "runs/online-seed0", "--env-kwargs", '{"delay": 2}', "-o", "short.html")
    assert told.strip() == "short.html" and content(Path("short.html"))["episodes"][0]["total"] in (0, 1)
    data, results = content(Path("runs/online-seed0/look.html")), run(capsys, "evaluate", "runs/online-seed0", "--json")
    assert [each["total"] for each in data["episodes"]] == json.loads(results)[0]["returns"][:2]
    targets = ("--target-return", "0", "--target-return", "1", "--sample", "-o", "deep/two.html")
    assert run(capsys, "look", "runs/offline-seed0", *targets).strip() == "deep/two.html"
    data = content(Path("deep/two.html"))
    assert [each["target"] for each in data["episodes"]] == [0, 1] and "sampled actions" in data["about"]
    assert data["kinds"] == ["return-to-go", "observation", "action"]
    assert run(capsys, "look", "runs/offline-seed0/last.zip").strip() == "runs/offline-seed0/last.html"
    shutil.copy("runs/online-seed0/last.zip", "agent.zip")
    assert "agent.zip lies in no run folder" in refused(capsys, "look", "agent.zip")
    assert run(capsys, "look", "agent.zip", "--env", CUE, "--seed", "5").strip() == "agent.html"
    message = refused(capsys, "look", "runs/online-seed0/last.zip", "--checkpoint", "best")
    assert "--checkpoint chooses one of a run folder" in message
    message = refused(capsys, "look", "runs/lstm-seed0", "--trust")
    assert "recurrent_ppo has a policy of Stable-Baselines3, without attention" in message


CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def browser(path: Path, folder: Path, *options: str) -> tuple[str, list[str]]:
    """The document after its scripts ran, and what was written to the console."""
    assert CHROMIUM is not None
    words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    words += ["--virtual-time-budget=5000", f"--user-data-dir={folder / 'profile'}", *options, f"file://{path}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; CHROMIUM names the program")
@pytest.mark.parametrize("name", ["ppo", "dt"])
def test_a_browser_shows_the_page_and_keys_move_it(name: str, tmp_path: Path) -> None:
    agent: Any = offline() if name == "dt" else online(env="CartPole-v1")
    targets = [4, 9] if name == "dt" else None
    written = look(agent, "CartPole-v1", tmp_path / "page.html", env_kwargs=DRAWN, target_returns=targets)
    document, console = browser(written, tmp_path, "--dump-dom")
    assert not console
    assert document.count('class="choice') >= 2 and document.count('src="data:image/webp') >= 3
    assert len(re.findall(r"layer \d, head \d</button>", document)) == (4 if name == "dt" else 8)
    assert "of layer 0, head 0 at step 0" in document
    for width in (1400, 500):
        picture = tmp_path / f"{width}.png"
        browser(written, tmp_path, f"--screenshot={picture}", f"--window-size={width},1200")
        with Image.open(picture) as image:
            assert image.width == width and len(image.convert("RGB").getcolors(1 << 24) or []) > 50
    keys = ["ArrowRight"] * 3 + ["ArrowLeft", "ArrowDown", "ArrowDown", "]"]
    press = "".join(f"document.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}}));" for key in keys)
    text = re.sub(r"<meta http-equiv.*?>", "", written.read_text())  # which forbids scripts of a test, too
    written.write_text(text.replace("</body>", f"<script>setTimeout(() => {{{press}}}, 1000)</script></body>"))
    document, console = browser(written, tmp_path, "--dump-dom")
    assert not console and f"of layer {'1, head 0' if name == 'dt' else '0, head 2'} at step 2" in document
    assert ('aria-pressed="true"><img alt="" src="data' in document) or name == "ppo"
    if name == "dt":
        assert re.search(r'aria-pressed="true"[^>]*><img[^>]*><b>asked for 9</b>', document)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; CHROMIUM names the program")
def test_a_hostile_name_runs_nothing_in_a_browser(tmp_path: Path) -> None:
    agent = online()
    (episode,) = play(agent, CUE, **SETTINGS)
    (tmp_path / "page.html").write_text(page(agent, HOSTILE, [episode], True))
    document, console = browser(tmp_path / "page.html", tmp_path, "--dump-dom")
    assert not console and "<title>broken" not in document and "of layer 0, head 0 at step 0" in document
