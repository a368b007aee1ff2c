"""Agents with parts that users bring: feature extractors, encoders of leaves, subclasses of the policies."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import Tensor, nn

from rltransformers.agents import GTrXLDQN, GTrXLPPO, GTrXLVMPO
from rltransformers.core.errors import CheckpointError, ConfigError
from rltransformers.policies import registered
from rltransformers.policies.actor_critic import GTrXLPolicy
from rltransformers.policies.q_network import GTrXLQPolicy
from tests.agents.replayed import agent as replayed_agent
from tests.agents.replayed import collect
from tests.agents.rollouts import loud, rollout
from tests.agents.test_gtrxl_dqn_laws import differences
from tests.agents.tiny_envs import Stroll
from tests.policies.test_own_encoders import Distances

TINY = {"preset": "gtrxl", "width": 16, "layers": 1, "heads": 2, "memory": 4}


class Deep(GTrXLPolicy):
    """More layers in front of the value head."""

    def __init__(self, *args: Any, hidden: int = 6, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        width = self.config.width
        self.value_hidden = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, width), nn.Tanh())


class DeepQ(GTrXLQPolicy):
    """A layer in front of the values, which the target network has too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.action_hidden = nn.Sequential(nn.Linear(self.config.width, self.config.width), nn.Tanh())


def cubes(space: Any, width: int, power: int = 3) -> nn.Module:
    class Power(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x**power

    return nn.Sequential(Power(), nn.Linear(3, width))


registered.register_encoder("cubes of a test", cubes)
PARTS: dict[str, dict[str, Any]] = {
    "extractor": {"features_extractor_class": Distances, "features_extractor_kwargs": {"features_dim": 6}},
    "leaf": {"observation": {"leaves": {"": {"name": "cubes of a test", "power": 2}}}},
    "policy": {},
    "own critic": {"features_extractor_class": Distances, "shared_backbone": False},
}


def build(kind: str, part: str) -> Any:
    env = DummyVecEnv([Stroll] * 3)
    policy = {"backbone": TINY, **PARTS[part]}
    if kind == "dqn":
        model = replayed_agent(env, TINY, PARTS[part], learning_starts=20, train_freq=4)
        if part == "policy":
            return GTrXLDQN(
                DeepQ, env, policy_kwargs=policy, buffer_size=240, batch_size=3, segment_length=5, learning_starts=20,
                train_freq=4, n_step=2, exploration=0.5, seed=0, device="cpu",
            )  # fmt: skip
        return model
    settings: dict[str, Any] = {"n_steps": 12, "n_epochs": 2, "seed": 0, "device": "cpu", "learning_rate": 1e-2}
    chosen: Any = "GTrXLPolicy"
    if part == "policy":
        chosen, policy["hidden"] = Deep, 5
    return {"ppo": GTrXLPPO, "vmpo": GTrXLVMPO}[kind](chosen, env, policy_kwargs=policy, **settings)


CASES = [("ppo", part) for part in PARTS] + [
    ("vmpo", "extractor"),
    ("vmpo", "policy"),
    ("dqn", "extractor"),
    ("dqn", "policy"),
]


@pytest.mark.parametrize(("kind", "part"), CASES)
def test_own_parts_learn_and_go_on_from_a_file_as_if_never_stopped(kind: str, part: str, tmp_path: Path) -> None:
    whole, first = build(kind, part), build(kind, part)
    before = {name: value.clone() for name, value in whole.policy.named_parameters()}
    whole.learn(72)
    changed = {name for name, value in whole.policy.named_parameters() if not torch.equal(value, before[name])}
    still = {name for name in set(before) - changed if not name.startswith("target.")}
    assert not {name for name in still if any(key in name for key in ("observation", "value_hidden", "action_hidden"))}
    whole.learn(72, reset_num_timesteps=False)
    first.learn(72)
    first.save(tmp_path / "model")
    second = type(first).load(tmp_path / "model", env=first.env, force_reset=False, device="cpu")
    assert type(second.policy) is type(first.policy)
    second.learn(72, reset_num_timesteps=False)
    for name, value in whole.policy.state_dict().items():
        assert torch.equal(value, second.policy.state_dict()[name]), name


@pytest.mark.parametrize("part", PARTS)
def test_own_parts_compute_the_same_acting_and_training(part: str) -> None:
    model = build("ppo", part)
    loud(model)
    segment = rollout(model)
    model.policy.set_training_mode(True)
    with torch.no_grad():
        now = model.policy.evaluate_segment(segment)
    # float32: sums of terms of order 1 to 10, in another order
    torch.testing.assert_close(now.log_probs, segment.log_probs, atol=1e-5, rtol=0)
    torch.testing.assert_close(now.values, segment.values, atol=1e-5, rtol=1e-5)


def test_own_parts_of_q_networks_are_in_their_targets_and_segments() -> None:
    model = build("dqn", "policy")
    assert isinstance(model.policy.target["action_hidden"], nn.Sequential)
    assert differences(model, collect(model, 60)).max() < 1e-5


def test_a_file_names_what_the_program_has_to_bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fleeting(GTrXLPolicy):
        pass

    env = DummyVecEnv([Stroll])
    settings: dict[str, Any] = {"policy_kwargs": {"backbone": TINY}, "n_steps": 8, "device": "cpu"}
    GTrXLPPO(Fleeting, env, **settings).save(tmp_path / "policy")
    Fleeting.__name__ = "Gone"
    with pytest.raises(CheckpointError, match="that this program has imported, got 'Fleeting'"):
        GTrXLPPO.load(tmp_path / "policy")
    build("ppo", "leaf").save(tmp_path / "leaf")
    monkeypatch.delitem(registered._MAKERS, "cubes of a test")
    with pytest.raises(CheckpointError, match=r"no encoder is registered as 'cubes of a test'"):
        GTrXLPPO.load(tmp_path / "leaf")


def test_policies_go_by_class_name_or_alias_and_keep_their_keywords(monkeypatch: pytest.MonkeyPatch) -> None:
    env = DummyVecEnv([Stroll])
    settings: dict[str, Any] = {"n_steps": 8, "device": "cpu"}
    kwargs = {"backbone": TINY, "hidden": 3}
    monkeypatch.setitem(GTrXLPPO.policy_aliases, "Deeper", Deep)  # as with algorithms of Stable-Baselines3
    for named in (Deep, "Deep", "Deeper"):
        model: Any = GTrXLPPO(named, env, policy_kwargs=kwargs, **settings)
        assert type(model.policy) is Deep
        assert model.policy.get_submodule("value_hidden.0").out_features == 3
    with pytest.raises(ConfigError, match=r"policy_kwargs\.hidden must be a whole number"):
        GTrXLPPO(Deep, env, policy_kwargs={"hidden": "3"}, **settings)
    with pytest.raises(ConfigError, match="hiden"):
        GTrXLPPO(Deep, env, policy_kwargs={"hiden": 3}, **settings)
    with pytest.raises(ConfigError, match="hidden"):
        GTrXLPPO("GTrXLPolicy", env, policy_kwargs=kwargs, **settings)
    for wrong in (DeepQ, "Deap", nn.Linear):
        with pytest.raises(ConfigError, match=r"subclass of GTrXLPolicy|class made from GTrXLPolicy"):
            GTrXLPPO(wrong, env, **settings)  # type: ignore[arg-type]  # wrong on purpose


def test_keywords_without_effect_are_refused() -> None:
    env = DummyVecEnv([Stroll])
    for policy, reason in (
        ({"features_extractor_kwargs": {"features_dim": 3}}, "no effect without a features_extractor_class"),
        ({**PARTS["extractor"], **PARTS["leaf"]}, "reads all leaves"),
    ):
        with pytest.raises(ConfigError, match=reason):
            GTrXLPPO("GTrXLPolicy", env, n_steps=8, policy_kwargs={"backbone": TINY, **policy}, device="cpu")


class Seeing(gym.Env[Any, Any]):
    """Floats in [0, 255], a picture among them."""

    observation_space = gym.spaces.Dict(
        {key: gym.spaces.Box(0, 255, (10, 10, 3), np.float32) for key in ("camera", "chosen", "plain", "rows")}
    )
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        return self._observation(), float(action), bool(self.np_random.random() < 0.2), False, {}

    def _observation(self) -> Any:
        space = self.observation_space
        return {key: self.np_random.uniform(0, 255, leaf.shape).astype(np.float32) for key, leaf in space.items()}


def divisors(policy: Any) -> dict[str, float]:
    encoder = policy.actor.observation
    parts = zip(encoder.paths, encoder.leaf_encoders, strict=True)
    return {path: part.picture.largest if hasattr(part, "picture") else part.largest for path, part in parts}


@pytest.mark.filterwarnings("ignore:the observation at .* is read as a picture")
@pytest.mark.parametrize("kind", [GTrXLPPO, GTrXLDQN])
def test_pictures_that_are_normalized_are_not_divided_as_well(kind: Any, tmp_path: Path) -> None:
    keys = ["camera", "chosen", "rows"]
    leaves = {"chosen": {"name": "image", "channels": "last"}, "rows": "vector"}
    settings: dict[str, Any] = {"policy_kwargs": {"backbone": TINY, "observation": {"leaves": leaves}}, "seed": 0}
    settings |= {"n_steps": 8, "n_epochs": 1} if kind is GTrXLPPO else {"buffer_size": 100, "segment_length": 4}
    env = VecNormalize(DummyVecEnv([Seeing]), norm_obs_keys=keys)
    model = kind(*kind.policy_aliases, env, device="cpu", **settings).learn(8)
    expected = {"camera": 1.0, "chosen": 1.0, "plain": 255.0, "rows": 1.0}
    assert divisors(model.policy) == expected
    model.save(tmp_path / "model")
    model.policy.save(tmp_path / "policy")
    loaded = kind.load(tmp_path / "model", device="cpu")
    for policy in (loaded.policy, type(model.policy).load(tmp_path / "policy", device="cpu")):
        assert divisors(policy) == expected
    raw = kind(*kind.policy_aliases, DummyVecEnv([Seeing]), device="cpu", **settings)
    assert divisors(raw.policy) == {"camera": 255.0, "chosen": 255.0, "plain": 255.0, "rows": 1.0}
    raw.save(tmp_path / "raw")  # as a file of before reads pictures, whatever its environment does
    assert divisors(kind.load(tmp_path / "raw", env=env, device="cpu").policy)["camera"] == 255.0
    seen = Seeing().reset(seed=3)[0]
    actors = [each.actor() for each in (model, loaded)]
    for actor in actors:
        actor.reset()
    assert actors[0].decide(seen).value == actors[1].decide(seen).value


class Dropping(GTrXLPolicy):
    """Forgets half of what its action head reads."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.action_hidden = nn.Sequential(nn.Linear(self.config.width, self.config.width), nn.Dropout())


class DroppingQ(GTrXLQPolicy):
    """The same of values."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.action_hidden = nn.Sequential(nn.Linear(self.config.width, self.config.width), nn.Dropout())


def test_policies_that_act_otherwise_than_they_learn_are_refused() -> None:
    env, kwargs = DummyVecEnv([Stroll]), {"backbone": TINY}
    with pytest.raises(ConfigError, match=r"policy Dropping has Dropout at 'action_hidden\.1'"):
        GTrXLPPO(Dropping, env, policy_kwargs=kwargs, n_steps=8, device="cpu")
    with pytest.raises(ConfigError, match=r"policy DroppingQ has Dropout at 'action_hidden\.1'"):
        GTrXLDQN(DroppingQ, env, policy_kwargs=kwargs, device="cpu")


class Activated(GTrXLPolicy):
    """Takes the class of an activation, as policies of Stable-Baselines3 do."""

    def __init__(self, *args: Any, activation: Any = nn.Tanh, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.value_hidden = nn.Sequential(nn.Linear(self.config.width, self.config.width), activation())


def test_keywords_that_no_file_can_hold_are_refused_at_once(tmp_path: Path) -> None:
    env = DummyVecEnv([Stroll])
    for policy, name in (
        ({"activation": nn.ReLU}, r"policy_kwargs\.activation"),
        ({"activation": lambda: nn.ReLU()}, r"policy_kwargs\.activation"),
        ({"observation": {"leaves": {"": {"name": "cubes of a test", "power": np.ones(2)}}}}, r"leaves\.\.power"),
    ):
        with pytest.raises(ConfigError, match=f"{name} must be what a file can hold"):
            GTrXLPPO(Activated, env, n_steps=8, policy_kwargs={"backbone": TINY, **policy}, device="cpu")
    numbers = {"observation": {"leaves": {"": {"name": "cubes of a test", "power": np.int64(2)}}}}
    backbone = {**TINY, "width": np.int64(16)}
    model = GTrXLPPO("GTrXLPolicy", env, n_steps=8, policy_kwargs={"backbone": backbone, **numbers}, device="cpu")
    model.save(tmp_path / "model")
    assert GTrXLPPO.load(tmp_path / "model", device="cpu").policy_kwargs == model.policy_kwargs


@pytest.mark.slow
@pytest.mark.parametrize("part", ["extractor", "policy"])
def test_own_parts_are_exported(part: str, tmp_path: Path) -> None:
    model = build("ppo", part)
    model.export(tmp_path / "policy.pt2")
    program = torch.export.load(tmp_path / "policy.pt2").module()
    assert callable(program)
    assert np.isfinite(model.predict(np.zeros(3, np.float32))[0])
