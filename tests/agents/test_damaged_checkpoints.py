"""What a checkpoint file holds is checked part by part: a wrong one is refused by file and name, in one line."""

import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from rltransformers.agents import DecisionTransformer, GTrXLPPO, GTrXLVMPO
from rltransformers.core.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from rltransformers.core.errors import CheckpointError, ConfigError
from tests.agents.tiny_envs import AnySpace
from tests.data.coded import coded_episodes

TINY = {"width": 8, "heads": 2, "layers": 1}
AGENTS: dict[str, Any] = {"GTrXLPPO": GTrXLPPO, "GTrXLVMPO": GTrXLVMPO, "DecisionTransformer": DecisionTransformer}
Edit = Callable[[dict[str, Any], dict[str, Any]], Any]
LAYER = "backbone.layers.0.join_ff.norm.weight"


def environments(count: int = 3) -> VecEnv:
    return DummyVecEnv([lambda: AnySpace(spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3))] * count)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """What the two agents write after an update."""
    folder = tmp_path_factory.mktemp("saved")

    @cache
    def checkpoint(kind: str) -> Checkpoint:
        policy = {"backbone": TINY}
        if kind != "DecisionTransformer":
            model: Any = AGENTS[kind](
                "GTrXLPolicy", VecNormalize(environments()), n_steps=4, n_epochs=1, policy_kwargs=policy | {
                    "backbone": TINY | {"memory": 3}}, memory_refresh="epoch", popart=0.1, seed=0, device="cpu",
            )  # fmt: skip
            model.learn(12)
        else:
            model = DecisionTransformer(
                "DTPolicy", coded_episodes(), context_length=4, policy_kwargs=policy, seed=0, device="cpu"
            )
            model.learn(3, log_interval=2, callback=lambda *_: model.num_timesteps < 3)
        model.save(folder / kind)
        return load_checkpoint(folder / kind, kind)

    return checkpoint


def put(path: str, value: Any) -> Edit:
    """An edit of the header or, behind "tensors", of the tensors; whole numbers in the path are indices."""

    def edit(settings: dict[str, Any], tensors: dict[str, Any]) -> None:
        first, *names = path.split("/")
        place: Any = tensors if first == "tensors" else settings
        for name in names[:-1]:
            place = place[int(name) if name.isdigit() else name]
        last: Any = int(names[-1]) if names[-1].isdigit() else names[-1]
        if value is GONE:
            del place[last]
        else:
            place[last] = value

    return edit


GONE = object()
WRONG: dict[str, list[tuple[str, Any, str]]] = {
    "GTrXLPPO": [
        ("settings/gamma", 2.0, "settings.gamma must be"),
        ("settings/n_steps", "4", "settings.n_steps must be"),
        ("settings/learning_rate", {"start": 1.0}, "settings.learning_rate needs end"),
        ("settings/policy_kwargs", {"bakbone": {}}, "settings.policy_kwargs.bakbone"),
        ("settings/policy_kwargs", {"backbone": {"width": "8"}}, "backbone.width must be"),
        ("settings/n_envs", True, "settings.n_envs must be"),
        ("settings/n_envs", 10**9, "names 1000000000 environments"),
        ("settings/batch_size", 7, "batch_size (7) must be a multiple of n_steps"),
        ("settings/observation_space", 3, "not the description of a space"),
        ("tensors/policy/action_head.linear.weight", GONE, "policy lacks action_head.linear.weight"),
        ("tensors/policy/more", torch.zeros(1), "policy holds 'more'"),
        ("tensors/policy/action_head.linear.weight", torch.zeros(2), "policy.action_head.linear.weight is (2,)"),
        ("tensors/policy/action_head.linear.weight", torch.zeros(3, 8).double(), "is (3, 8) of torch.float64"),
        ("tensors/policy/action_head.linear.weight", None, "policy.action_head.linear.weight is None"),
        ("tensors/policy", [], "must be a mapping"),
        ("tensors/optimizer/param_groups/0/lr", None, "optimizer.lr must be"),
        ("tensors/optimizer/state/0/exp_avg", torch.zeros(5), "optimizer.state.0.exp_avg is (5,)"),
        ("tensors/optimizer/state/0/exp_avg_sq", GONE, "optimizer.state.0 lacks exp_avg_sq"),
        ("tensors/optimizer/state/999", {}, "optimizer.state holds 999"),
        ("tensors/optimizer/state", GONE, "lacks 'state'"),
        ("tensors/counters/num_timesteps", -1, "counters.num_timesteps must be"),
        ("tensors/counters/_n_updates", GONE, "lacks '_n_updates'"),
        ("tensors/counters/_current_progress_remaining", "x", "counters._current_progress_remaining must be"),
        ("tensors/generators/_batch_generator", torch.zeros(2), "generators._batch_generator is (2,)"),
        ("tensors/generators/_batch_generator", 3, "generators._batch_generator is 3"),
        ("tensors/episodes", {"a": 1}, "episodes must be"),
        ("tensors/episodes", [{"l": 1}], "lacks 'r'"),
        ("tensors/successes", ["x"], "successes must be"),
        ("tensors/metrics", {"a": 1}, "metrics must be"),
        ("tensors/metrics", {"a": [[1], 1, [""]]}, "metrics.a must be"),
        ("tensors/segment/rewards", torch.zeros(3), "segment.rewards is (3,)"),
        ("tensors/segment/actions/", torch.zeros(3, 4), "segment.actions. is (3, 4) of torch.float32"),
        ("tensors/segment/memory", {}, "segment.memory lacks actor"),
        ("tensors/acting/previous_reward", torch.zeros(3, 2), "acting.previous_reward is (3, 2)"),
        ("tensors/acting/actor/position", GONE, "acting.actor lacks position"),
        ("tensors/acting", GONE, "lacks 'acting'"),
        ("tensors/rate_share", 1.5, "rate_share must be"),
    ],
    "GTrXLVMPO": [
        ("settings/eps_eta", 0, "settings.eps_eta must be"),
        ("settings/target_update_interval", 1.5, "settings.target_update_interval must be"),
        ("settings/popart", 2.0, "settings.popart must be"),
        ("tensors/target/action_head.linear.weight", GONE, "target lacks action_head.linear.weight"),
        ("tensors/target/value_net.scale", torch.ones(2), "target.value_net.scale is (2,)"),
        ("tensors/target", GONE, "lacks 'target'"),
        ("tensors/target_age", -1, "target_age must be"),
        ("tensors/multipliers/log_temperature", torch.ones(1), "multipliers.log_temperature is (1,)"),
        ("tensors/multipliers/log_penalties.mean", torch.ones(()), "multipliers holds 'log_penalties.mean'"),
        ("tensors/multiplier_optimizer/param_groups/0/lr", "x", "multiplier_optimizer.lr must be"),
        ("tensors/multiplier_optimizer/state/5", {}, "multiplier_optimizer.state holds 5"),
        ("tensors/own_memory/actor", {}, "own_memory.actor lacks"),
        ("tensors/own_memory/previous_reward", torch.zeros(2), "own_memory.previous_reward is (2,)"),
        ("tensors/own_memory", GONE, "lacks 'own_memory'"),
    ],
    "DecisionTransformer": [
        ("settings/settings/discount", 2.0, "discount must be"),
        ("settings/settings/seed", GONE, "'seed'"),
        ("settings/settings", [], "settings must be a mapping"),
        ("settings/summary/return_scale", None, "summary.return_scale must be"),
        ("settings/summary/return_scale", -1.0, "summary.return_scale must be"),
        ("settings/summary/return_scale", 1e-300, "return_scale (1e-300) is too small"),
        ("settings/summary/best_return", "x", "summary.best_return must be"),
        ("settings/summary/environment", 3, "summary.environment must be"),
        ("settings/backbone/heads", 1.5, "backbone.heads must be"),
        ("settings/backbone/tokens_per_step", 2, "mode 'dt' has 3 tokens per step, the backbone says 2"),
        ("settings/action_space", "{}", "not the description of a space"),
        ("tensors/policy/head.linear.weight", GONE, "policy lacks head.linear.weight"),
        ("tensors/policy/more", torch.zeros(1), "policy holds 'more'"),
        ("tensors/policy/head.linear.weight", torch.zeros(2), "policy.head.linear.weight is (2,)"),
        ("tensors/policy/observation_mean_0", torch.zeros(5), "policy.observation_mean_0 is (5,)"),
        ("tensors/policy/observation_deviation_0", GONE, "lacks observation_deviation_0"),
        ("tensors/policy", 3, "policy must be a mapping"),
        ("tensors/optimizer/param_groups/0/lr", "x", "optimizer.lr must be"),
        ("tensors/optimizer/state/0/step", torch.zeros(2), "optimizer.state.0.step is (2,)"),
        ("tensors/updates", "3", "updates must be"),
        ("tensors/updates", GONE, "lacks 'updates'"),
        ("tensors/generators", {}, "lacks 'action'"),
        ("tensors/generators/action", 3, "generators.action must be"),
        ("tensors/generators/action", {}, "state must be for a PCG64"),
        ("tensors/generators/action/state/state", -1, "out of bounds"),
        ("tensors/interval", {"train/loss": 3}, "interval must be"),
        ("tensors/interval", {"train/loss": (torch.zeros(2), 3)}, "interval.train/loss is (2,)"),
    ],
}  # fmt: skip


def copied(value: Any) -> Any:
    """New containers with the same leaves."""
    if isinstance(value, Mapping):
        return {key: copied(part) for key, part in value.items()}
    return [copied(part) for part in value] if isinstance(value, list) else value


def write(path: Path, checkpoint: Checkpoint, *edits: Edit) -> Path:
    settings, tensors = copied(checkpoint.settings), copied(checkpoint.tensors)
    for edit in edits:
        edit(settings, tensors)
    save_checkpoint(path, checkpoint.kind, settings, tensors)
    return path


@pytest.mark.parametrize(
    ("kind", "place", "value", "words"),
    [(kind, *case) for kind, cases in WRONG.items() for case in cases],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_a_wrong_part_is_refused_with_the_file_and_its_name(
    saved: Callable[[str], Checkpoint], tmp_path: Path, kind: str, place: str, value: Any, words: str
) -> None:
    path = write(tmp_path / "model.zip", saved(kind), put(place, value))
    with pytest.raises(CheckpointError) as caught:
        AGENTS[kind].load(path, device="cpu")
    message = str(caught.value)
    assert str(path) in message and words in message and "\n" not in message


@pytest.mark.parametrize("kind", AGENTS)
def test_an_untouched_copy_loads(saved: Callable[[str], Checkpoint], tmp_path: Path, kind: str) -> None:
    """The tests around this one refuse what they changed, not the way in which they write."""
    model = AGENTS[kind].load(write(tmp_path / "model", saved(kind)), device="cpu")
    weights = saved(kind).tensors["policy"]
    assert all(torch.equal(value, weights[name]) for name, value in model.policy.state_dict().items())


@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("sizes", [{"width": 6000}, {"ff_width": 10**6}, {"layers": 900}])
def test_a_backbone_larger_than_its_weights_is_refused_before_it_is_built(
    saved: Callable[[str], Checkpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    sizes: dict[str, int],
) -> None:
    place = "settings/backbone" if kind == "DecisionTransformer" else "settings/policy_kwargs/backbone"
    edits = [put(f"{place}/{name}", size) for name, size in sizes.items()]
    path = write(tmp_path / "model.zip", saved(kind), *edits)
    monkeypatch.setattr("rltransformers.policies.token_backbone.Backbone", None)  # nothing may call these
    monkeypatch.setattr("rltransformers.policies.decision_network.Backbone", None)
    with pytest.raises(CheckpointError, match=r"model\.zip .* describe a backbone with [\d,]+ parameters, it holds"):
        AGENTS[kind].load(path, device="cpu")


def test_a_memory_larger_than_the_one_that_is_held_is_refused_before_it_is_made(
    saved: Callable[[str], Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit = put("settings/policy_kwargs/backbone/memory", 10**6)
    path = write(tmp_path / "model.zip", saved("GTrXLPPO"), edit)
    monkeypatch.setattr("rltransformers.policies.token_backbone.Backbone", None)
    with pytest.raises(CheckpointError, match=r"numbers of state, it holds"):
        GTrXLPPO.load(path, device="cpu")


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("tensors/last_observation", {"": torch.zeros(3, 5)}, "last observation"),
        ("tensors/last_observation", {"": 3}, "last_observation must be"),
        ("tensors/last_observation", {}, "lacks 'a bare value'"),
        ("tensors/last_episode_starts", torch.zeros(2, dtype=torch.bool), "last_episode_starts is (2,)"),
        ("tensors/normalization/settings", {"clip_obs": "x"}, "normalization.clip_obs must be"),
        ("tensors/normalization/settings", {"clip": 1.0}, "unknown setting normalization.clip"),
        ("tensors/normalization/returns", {"mean": torch.zeros(2)}, "normalization.returns"),
        ("tensors/normalization/settings/clip_obs", math.nan, "normalization.clip_obs must be"),
        ("tensors/normalization/running_returns", 3, "normalization.running_returns is 3"),
        ("tensors/normalization/observations//mean", torch.zeros(7), "normalization.observations"),
    ],
)
def test_the_place_where_a_run_stood_is_checked_where_it_is_taken(
    saved: Callable[[str], Checkpoint], tmp_path: Path, place: str, value: Any, words: str
) -> None:
    path = write(tmp_path / "model.zip", saved("GTrXLPPO"), put(place, value))
    with pytest.raises(CheckpointError) as caught:
        GTrXLPPO.load(path, env=environments(), device="cpu", force_reset=False)
    message = str(caught.value)
    assert str(path) in message and words in message and "\n" not in message


def test_a_normalization_without_a_bound_comes_back(saved: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    edit = put("tensors/normalization/settings/clip_obs", math.inf)
    loaded = GTrXLPPO.load(write(tmp_path / "model", saved("GTrXLPPO"), edit), env=environments(), device="cpu")
    assert loaded.get_vec_normalize_env().clip_obs >= 1e30  # type: ignore[union-attr]


def test_what_does_not_fit_to_a_whole_file_is_no_fault_of_the_file(
    saved: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    path = write(tmp_path / "model.zip", saved("GTrXLPPO"))
    with pytest.raises(ConfigError, match="batch_size"):
        GTrXLPPO.load(path, batch_size=7)
    with pytest.raises(ConfigError, match=r"saved with 3 environments, this one has 2"):
        GTrXLPPO.load(path, env=environments(2), force_reset=False)
    with pytest.raises(ConfigError, match="trained with observation space"):
        GTrXLPPO.load(path, env=gymnasium.make("CartPole-v1"))
    assert np.isfinite(GTrXLPPO.load(path, env=environments(2)).learn(8)._current_progress_remaining)


OTHER_NETWORKS: list[dict[str, Any]] = [
    {"popart": None},
    {"policy_kwargs": {"backbone": TINY | {"memory": 3, "width": 16}}},
    {"policy_kwargs": {"backbone": TINY | {"memory": 5}}},
    {"custom_objects": {"policy_kwargs": {"backbone": TINY | {"memory": 3, "layers": 2}}}},
]


@pytest.mark.parametrize("kind", ["GTrXLPPO", "GTrXLVMPO"])
@pytest.mark.parametrize("overrides", OTHER_NETWORKS)
def test_a_setting_that_changes_the_network_is_refused_and_the_file_is_not_blamed(
    saved: Callable[[str], Checkpoint], tmp_path: Path, kind: str, overrides: dict[str, Any]
) -> None:
    path = write(tmp_path / "model.zip", saved(kind))
    name = next(iter(overrides.get("custom_objects", overrides)))
    words = rf"what .*model\.zip holds does not fit with {name}, gamma replaced .* leave it out"
    if name == "popart":
        words = r"popart was 0\.1 when the agent was made: .* leave popart out"
    if name == "policy_kwargs":
        words = r"policy_kwargs\.backbone\.\w+ is \d+ and was \d+ when the weights were learned"
    for env in (None, environments()):
        with pytest.raises(ConfigError, match=words):
            AGENTS[kind].load(path, env=env, device="cpu", **overrides, gamma=0.5)
    damaged = write(tmp_path / "damaged.zip", saved(kind), put("tensors/policy/action_head.linear.weight", GONE))
    for some in ({"stats_window_size": 50}, {"gamma": 0.5}):
        with pytest.raises(CheckpointError, match=r"damaged\.zip does not hold a complete"):
            AGENTS[kind].load(damaged, device="cpu", **some)
