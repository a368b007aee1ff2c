"""Saving, loading, resuming and repeating runs of GTrXLPPO and GTrXLVMPO."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)

from rltransformers.agents import GTrXLPPO, GTrXLSAC, GTrXLVMPO
from rltransformers.algorithms.ppo import PPOLoss, ppo_loss
from rltransformers.backbone import BackboneConfig
from rltransformers.core.checkpoint import load_checkpoint, save_checkpoint
from rltransformers.core.errors import CheckpointError, ConfigError
from rltransformers.core.seeding import branch_seeds, seed_environments
from rltransformers.envs import NoveltyBonus, make_vec_env
from rltransformers.policies.actor_critic import GTrXLPolicy
from rltransformers.training.online.carry import MemoryRefresh
from rltransformers.training.online.on_policy_agent import OnPolicyMemoryAgent
from rltransformers.training.online.online_agent import OnlineAgent
from rltransformers.training.online.online_checkpoint import GENERATORS, tensors_of
from tests.agents.masked_envs import Locks
from tests.agents.rollouts import ON_POLICY
from tests.agents.tiny_envs import AnySpace, Stroll, Walk

BACKBONE = {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4}
STEPS = 2 * 12


def walks() -> VecEnv:
    env = DummyVecEnv([partial(Walk, (5, 30)), partial(Walk, (7,), True)])
    seed_environments(env, branch_seeds(0, "environment", 2))  # as the agent does
    return env


def agent(env: Any = None, policy: dict[str, Any] | None = None, kind: type[Any] = GTrXLPPO, **settings: Any) -> Any:
    chosen: dict[str, Any] = {"n_steps": 12, "seed": 0, "device": "cpu", "n_epochs": 2, "batch_size": 12} | settings
    kwargs = {"backbone": BACKBONE} | (policy or {})
    return kind("GTrXLPolicy", walks() if env is None else env, policy_kwargs=kwargs, **chosen)


def weights(model: OnPolicyMemoryAgent) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.policy.parameters()).detach()


class SaveAndStop(BaseCallback):
    """Saves between two updates and ends the run there, as an interruption does."""

    def __init__(self, step: int, path: Path) -> None:
        super().__init__()
        self.step, self.path = step, path

    def _on_rollout_start(self) -> None:
        if self.num_timesteps == self.step:
            self.model.save(self.path)
            raise KeyboardInterrupt

    def _on_step(self) -> bool:
        return True


class Rows(KVWriter):
    """Every line that was logged, without the clock."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        self.rows.append({"step": step} | {k: v for k, v in key_values.items() if not k.startswith("time/")})


def everything(model: OnlineAgent) -> dict[str, Any]:
    """What a checkpoint holds and the clock has no part in."""
    tensors = tensors_of(model) | model._own_tensors()
    tensors["episodes"] = [{key: value for key, value in each.items() if key != "t"} for each in tensors["episodes"]]
    return tensors


def assert_equal(a: Any, b: Any) -> None:
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_equal(one, other)
    else:
        assert a == b


def continuous() -> VecEnv:
    return VecMonitor(walks())


def discrete() -> VecEnv:
    return make_vec_env("rltransformers/CueRecall-v0", 2, seed=0, env_kwargs={"delay": 5, "shortest_delay": 1})


@pytest.mark.parametrize("memory_refresh", get_args(MemoryRefresh))
@pytest.mark.parametrize(
    ("shared", "normalized", "make"), [(True, False, continuous), (False, True, continuous), (True, False, discrete)]
)
@pytest.mark.parametrize("kind", ON_POLICY)
def test_stopping_and_resuming_is_the_same_run_as_not_stopping(
    tmp_path: Path, memory_refresh: str, shared: bool, normalized: bool, make: Callable[[], VecEnv], kind: type[Any]
) -> None:
    """Weights, optimizers, generators, statistics, place and logged metrics; the environment is in the same place."""
    # The target was a copy after eight gradient steps, is an old one where the run stops, and a new one at the end.
    of_kind: dict[str, Any] = {"target_update_interval": 8} if kind is GTrXLVMPO else {"popart": 0.1, "target_kl": 1e-6}
    if normalized:
        of_kind["popart"] = 0.1

    def begun() -> Any:
        policy = {"previous_action": True, "previous_reward": True, "shared_backbone": shared}
        env = VecNormalize(make()) if normalized else make()
        rate = {"start": 1e-2, "end": 1e-3}
        return agent(env, policy, kind, memory_refresh=memory_refresh, learning_rate=rate, **of_kind)

    def logged(model: Any) -> list[dict[str, Any]]:
        (rows,) = model.logger.output_formats
        assert isinstance(rows, Rows)
        return rows.rows

    straight = begun()
    straight.set_logger(Logger(None, [Rows()]))
    straight.learn(4 * STEPS)
    stopped = begun()
    stopped.set_logger(Logger(None, [Rows()]))
    with suppress(KeyboardInterrupt):
        stopped.learn(4 * STEPS, callback=SaveAndStop(3 * STEPS, tmp_path / "half"))
    np.random.rand(3), torch.rand(3)  # whatever happens in between
    resumed = kind.load(tmp_path / "half", env=stopped.get_env(), device="cpu", force_reset=False)
    resumed.set_logger(Logger(None, [Rows()]))
    assert resumed.num_timesteps == 3 * STEPS
    resumed.learn(STEPS, reset_num_timesteps=False)
    assert resumed.num_timesteps == straight.num_timesteps == 4 * STEPS
    assert_equal(everything(resumed), everything(straight))
    assert_equal(logged(stopped) + logged(resumed), logged(straight))


@pytest.mark.parametrize("kind", ON_POLICY)
def test_the_same_seed_is_the_same_run_and_another_seed_is_another(kind: type[Any]) -> None:
    first, second, other = (agent(kind=kind, seed=seed).learn(STEPS) for seed in (3, 3, 4))
    assert torch.equal(weights(first), weights(second))
    assert not torch.equal(weights(first), weights(other))


@pytest.mark.parametrize("kind", ON_POLICY)
def test_predicting_in_between_does_not_change_a_run(kind: type[Any]) -> None:
    quiet, busy = agent(kind=kind), agent(kind=kind)
    quiet.learn(STEPS).learn(STEPS, reset_num_timesteps=False)
    busy.learn(STEPS)
    for _ in range(5):
        busy.predict(np.zeros(3, np.float32), deterministic=False)
    busy.learn(STEPS, reset_num_timesteps=False)
    assert torch.equal(weights(quiet), weights(busy))


@pytest.mark.parametrize("kind", ON_POLICY)
def test_a_loaded_agent_needs_no_environment_to_predict(tmp_path: Path, kind: type[Any]) -> None:
    model = agent(kind=kind, policy={"shared_backbone": False, "first_step": True}).learn(STEPS)
    model.save(tmp_path / "model")
    loaded = kind.load(tmp_path / "model.zip", device="cpu")
    observations = torch.randn(6, 3).numpy()
    states: list[Any] = [None, None]
    for observation in observations:
        actions = []
        for i, one in enumerate((model, loaded)):
            action, states[i] = one.predict(observation, states[i], deterministic=True)
            actions.append(action)
        assert np.array_equal(actions[0], actions[1])


@pytest.mark.parametrize("kind", ON_POLICY)
def test_learning_without_an_environment_is_refused(tmp_path: Path, kind: type[Any]) -> None:
    agent(kind=kind).save(tmp_path / "model")
    with pytest.raises(ConfigError, match="no environment to learn in"):
        kind.load(tmp_path / "model").learn(10)


def test_settings_and_spaces_come_back(tmp_path: Path) -> None:
    nested = spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(3)}), "c": spaces.Box(0, 255, (7, 7, 3), np.uint8)})
    env = AnySpace(nested, spaces.MultiDiscrete([2, 3]))
    config = BackboneConfig.from_dict(BACKBONE)
    model = agent(
        env,
        {"backbone": config},
        learning_rate=LinearSchedule(1e-3, 1e-4, 0.5),
        clip_range={"start": 0.2, "end": 0.1},
        clip_range_vf=0.3,
        ent_coef={"start": 0.0, "end": 0.1, "fraction": 0.5},
        barrier_coef=0.01,
        target_kl=0.05,
        gradient_window=3,
    )
    model.save(tmp_path / "model")
    loaded = GTrXLPPO.load(tmp_path / "model", env=AnySpace(nested, spaces.MultiDiscrete([2, 3])))
    for left in (1.0, 0.6, 0.2):
        assert loaded.lr_schedule(left) == model.lr_schedule(left)
        assert loaded.clip_range(left) == model.clip_range(left)
    assert loaded.clip_range_vf is not None and loaded.clip_range_vf(1.0) == 0.3
    assert loaded.ent_coef == {"start": 0.0, "end": 0.1, "fraction": 0.5}
    assert loaded.barrier_coef == 0.01
    assert (loaded.target_kl, loaded.gradient_window, loaded.batch_size) == (0.05, 3, 12)
    assert loaded.policy.config == config
    assert loaded.learn(12).num_timesteps == 12


def test_an_override_replaces_what_was_stored(tmp_path: Path) -> None:
    agent().save(tmp_path / "model")
    assert GTrXLPPO.load(tmp_path / "model", ent_coef=0.5).ent_coef == 0.5
    with pytest.raises(ConfigError, match="load: unknown setting ent_coeff; did you mean 'ent_coef'"):
        GTrXLPPO.load(tmp_path / "model", ent_coeff=0.5)


def test_an_agent_goes_on_in_an_environment_named_by_its_id(tmp_path: Path) -> None:
    agent("CartPole-v1").save(tmp_path / "model")
    loaded = GTrXLPPO.load(tmp_path / "model", env="CartPole-v1", device="cpu")
    assert loaded.learn(12).num_timesteps == 12
    with pytest.raises(ConfigError, match="did you mean 'CartPole-v1'"):
        GTrXLPPO.load(tmp_path / "model", env="CartPol-v1", device="cpu")


def changed(source: Path, target: Path, settings: dict[str, Any], counters: dict[str, Any]) -> Path:
    """The checkpoint with other settings and counters, as a stranger may write it."""
    found = load_checkpoint(source)
    tensors = dict(found.tensors) | {"counters": found.tensors["counters"] | counters}
    save_checkpoint(target, found.kind, found.settings | settings, tensors)
    return target


def test_a_checkpoint_does_not_choose_where_a_run_writes(tmp_path: Path) -> None:
    agent(tensorboard_log=str(tmp_path / "own")).save(tmp_path / "model.zip")
    assert GTrXLPPO.load(tmp_path / "model.zip", device="cpu").tensorboard_log is None
    there = str(tmp_path / "there")
    changed(tmp_path / "model.zip", tmp_path / "foreign.zip", {"tensorboard_log": there}, {"tensorboard_log": there})
    loaded = GTrXLPPO.load(tmp_path / "foreign.zip", env=walks(), device="cpu")
    assert loaded.tensorboard_log is None
    loaded.learn(STEPS)
    assert not Path(there).exists()
    chosen = GTrXLPPO.load(tmp_path / "foreign.zip", device="cpu", tensorboard_log=str(tmp_path / "mine"))
    assert chosen.tensorboard_log == str(tmp_path / "mine")


def test_a_checkpoint_that_names_more_environments_than_it_holds_is_refused(tmp_path: Path) -> None:
    agent().save(tmp_path / "model.zip")
    changed(tmp_path / "model.zip", tmp_path / "foreign.zip", {"n_envs": 10**9}, {})
    with pytest.raises(CheckpointError, match="names 1000000000 environments"):
        GTrXLPPO.load(tmp_path / "foreign.zip", device="cpu")


@pytest.mark.parametrize("kind", ON_POLICY)
def test_another_number_of_environments_begins_new_episodes(tmp_path: Path, kind: type[Any]) -> None:
    agent(kind=kind).learn(STEPS).save(tmp_path / "model")
    single = kind.load(tmp_path / "model", env=Walk())
    assert single.learn(12, reset_num_timesteps=False).num_timesteps == STEPS + 12
    with pytest.raises(ConfigError, match="saved with 2 environments, this one has 1"):
        kind.load(tmp_path / "model", env=Walk(), force_reset=False)


def test_normalization_statistics_travel_with_the_agent(tmp_path: Path) -> None:
    model = agent(VecNormalize(walks(), clip_obs=3.0)).learn(STEPS)
    model.save(tmp_path / "model")
    loaded = GTrXLPPO.load(tmp_path / "model", env=walks())
    mine, theirs = model.get_vec_normalize_env(), loaded.get_vec_normalize_env()
    assert mine is not None and theirs is not None and theirs.clip_obs == 3.0
    one: Any = mine.obs_rms
    two: Any = theirs.obs_rms
    np.testing.assert_array_equal(one.mean, two.mean)
    assert mine.ret_rms.var == theirs.ret_rms.var


def test_other_spaces_are_refused(tmp_path: Path) -> None:
    agent().save(tmp_path / "model")
    with pytest.raises(ConfigError, match="trained with action space"):
        GTrXLPPO.load(tmp_path / "model", env=Walk(bound=1.0))


def test_a_damaged_or_foreign_file_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    agent().save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="corrupt or truncated"):
        GTrXLPPO.load(path)
    save_checkpoint(path, "DecisionTransformer", {}, {})
    with pytest.raises(CheckpointError, match="is a DecisionTransformer checkpoint"):
        GTrXLPPO.load(path)
    save_checkpoint(path, "GTrXLPPO", {}, {})
    with pytest.raises(CheckpointError, match="does not hold a complete GTrXLPPO"):
        GTrXLPPO.load(path)
    with pytest.raises(CheckpointError, match="does not exist"):
        GTrXLPPO.load(tmp_path / "nothing")


def test_a_size_that_is_not_that_of_the_checkpoint_is_named_as_such(tmp_path: Path) -> None:
    agent().save(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"policy_kwargs\.head_width is 7 and was 0"):
        GTrXLPPO.load(tmp_path / "model", policy_kwargs={"backbone": BACKBONE, "head_width": 7})


def test_keywords_that_make_another_function_of_the_same_weights_are_refused(tmp_path: Path) -> None:
    agent().save(tmp_path / "model")
    for changed, name in (
        ({"width": 16}, "width is 16"),
        ({"residual": "pre_ln_relu"}, "residual is 'pre_ln_relu' and was"),
        ({"ff": {"name": "ffn", "activation": "gelu"}}, "ff is"),
    ):
        with pytest.raises(ConfigError, match=rf"policy_kwargs\.backbone\.{name}.* when the weights were learned"):
            GTrXLPPO.load(tmp_path / "model", policy_kwargs={"backbone": {**BACKBONE, **changed}})
    with pytest.raises(ConfigError, match=r"log_std_init is -3\.0 and was 0\.0"):
        GTrXLPPO.load(tmp_path / "model", policy_kwargs={"backbone": BACKBONE, "log_std_init": -3.0})
    same = BackboneConfig.from_dict({**BACKBONE, "ff_chunks": 2})
    assert GTrXLPPO.load(tmp_path / "model", policy_kwargs={"backbone": same}).policy.config.ff_chunks == 2


class Gain(GTrXLPolicy):
    """A keyword that changes what is computed, and no shape."""

    def __init__(self, *args: Any, gain: Sequence[float] = (1.0,), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gain = gain


class Doubles(BaseFeaturesExtractor):
    def __init__(self, space: Any, factor: float = 2.0) -> None:
        super().__init__(space, 3)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Squares(Doubles):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square() * self.factor


KNN = {"name": "knn", "size": 40}
EXTRACTS = {"features_extractor_class": Doubles}


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ({"readout": KNN}, {"readout": KNN | {"weight": 0.9}}, "readout"),
        ({"readout": KNN}, {"readout": KNN | {"temperature": 9.0}}, "readout"),
        (EXTRACTS, EXTRACTS | {"features_extractor_kwargs": {"factor": 3.0}}, "features_extractor_kwargs"),
        (EXTRACTS, {"features_extractor_class": Squares}, "features_extractor_class"),
        ({"gain": [2.0]}, {"gain": [7.0]}, "gain"),
        ({"gain": [2.0]}, {}, "gain"),
    ],
)
def test_keywords_that_no_shape_tells_apart_are_refused(
    before: dict[str, Any], after: dict[str, Any], name: str, tmp_path: Path
) -> None:
    model = GTrXLPPO(Gain, Stroll(), policy_kwargs={"backbone": BACKBONE, **before}, device="cpu")
    model.save(tmp_path / "model")
    with pytest.raises(ConfigError, match=rf"policy_kwargs\.{name} is .* and was .* when the weights were learned"):
        GTrXLPPO.load(tmp_path / "model", policy_kwargs={"backbone": BACKBONE, **after})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"log_std_init": 0, "observation": {}, "gain": (1.0,), "action_masks": False, "readout": None}),
        ({"readout": KNN}, {"readout": KNN | {"weight": 0.25}}),
        (EXTRACTS, {"features_extractor_class": "Doubles", "features_extractor_kwargs": {}}),
        ({"gain": [2.0]}, {"gain": (2.0,), "optimizer_kwargs": {"weight_decay": 0.1}}),
    ],
)
def test_keywords_written_otherwise_are_the_same(before: dict[str, Any], after: dict[str, Any], tmp_path: Path) -> None:
    model = GTrXLPPO(Gain, Stroll(), policy_kwargs={"backbone": BACKBONE, **before}, device="cpu")
    model.save(tmp_path / "model")
    assert GTrXLPPO.load(tmp_path / "model", policy_kwargs={"backbone": BACKBONE, **after}).num_timesteps == 0


@pytest.mark.parametrize("observed", [True, False])
def test_a_policy_that_learned_with_masks_keeps_them(observed: bool, tmp_path: Path) -> None:
    model = GTrXLPPO("GTrXLPolicy", Locks(observed=observed), policy_kwargs={"backbone": BACKBONE}, device="cpu")
    model.save(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"action_masks is False and was True when the weights were learned"):
        GTrXLPPO.load(tmp_path / "model", policy_kwargs={"backbone": BACKBONE, "action_masks": False})
    assert GTrXLPPO.load(tmp_path / "model", policy_kwargs={"backbone": BACKBONE}).policy.masks


class Handed(GTrXLPPO):
    """Hands everything on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class Named(GTrXLPPO):
    """Has an argument of its own."""

    def __init__(self, policy: Any, env: Any, bonus: float = 0.5, **kwargs: Any) -> None:
        super().__init__(policy, env, **kwargs)
        self.bonus = bonus


def test_a_subclass_gets_back_what_its_constructor_hands_on(tmp_path: Path) -> None:
    env = make_vec_env("CartPole-v1", 2)
    settings: dict[str, Any] = {"n_steps": 6, "gamma": 0.5, "policy_kwargs": {"backbone": BACKBONE}, "device": "cpu"}
    for kind, more in ((Handed, {}), (Named, {"bonus": 3.0})):
        model = kind("GTrXLPolicy", env, **settings, **more)
        model.learn(24).save(tmp_path / "model")
        loaded = kind.load(tmp_path / "model", env=env, device="cpu")
        assert (loaded.n_steps, loaded.gamma, getattr(loaded, "bonus", None)) == (6, 0.5, more.get("bonus"))
        assert all(
            torch.equal(*each) for each in zip(model.policy.parameters(), loaded.policy.parameters(), strict=True)
        )
        with pytest.raises(ConfigError, match="gama"):
            kind.load(tmp_path / "model", gama=0.1)


def test_a_subclass_that_no_file_brings_back_is_refused_before_it_learns() -> None:
    class Fixed(GTrXLPPO):
        def __init__(self, env: Any) -> None:
            super().__init__("GTrXLPolicy", env, n_steps=6, policy_kwargs={"backbone": BACKBONE}, device="cpu")

    class Forgetful(GTrXLPPO):
        def __init__(self, policy: Any, env: Any, bonus: float = 0.5, **kwargs: Any) -> None:
            super().__init__(policy, env, **kwargs)

    env = make_vec_env("CartPole-v1", 2)
    with pytest.raises(ConfigError, match=r"a Fixed cannot be saved: its constructor takes no .*policy_kwargs.*kwargs"):
        Fixed(env).learn(24)
    model = Forgetful("GTrXLPolicy", env, n_steps=6, policy_kwargs={"backbone": BACKBONE}, device="cpu")
    with pytest.raises(ConfigError, match=r"does not keep the argument 'bonus' .*; set self\.bonus"):
        model.learn(24)


def test_a_checkpoint_holds_data_only(tmp_path: Path) -> None:
    model = agent(learning_rate=lambda left: 1e-3 * left**2, clip_range=lambda left: 0.1 + 0.2 * left)
    model.learn(STEPS)
    with pytest.warns(UserWarning, match=r"learning_rate is a function that is no straight line.*learning_rate=\.\.\."):
        model.save(tmp_path / "model")
    checkpoint = load_checkpoint(tmp_path / "model", "GTrXLPPO")  # reads JSON and tensors, refuses everything else
    assert checkpoint.settings["learning_rate"] == 0.0  # its present value
    assert checkpoint.settings["clip_range"] == {"start": pytest.approx(0.3), "end": 0.1}
    with pytest.raises(ConfigError, match="always complete"):
        agent().save(tmp_path / "model", exclude=["policy"])


@pytest.mark.parametrize(
    "rate",
    [lambda left: 1e-3 * (2 * left - 1), lambda left: 1e-3 if left == 1.0 else float("nan"), lambda left: 1e-3 / left],
    ids=["negative", "nan", "division by zero"],
)
def test_a_function_with_values_that_no_setting_has_is_saved_as_its_present_value(tmp_path: Path, rate: Any) -> None:
    with pytest.warns(UserWarning, match="no straight line"):
        agent(learning_rate=rate).save(tmp_path / "model")
    assert load_checkpoint(tmp_path / "model", "GTrXLPPO").settings["learning_rate"] == 1e-3


@pytest.mark.parametrize("kind", ON_POLICY)
@pytest.mark.parametrize("normalized", [None, "both", "norm_obs", "norm_reward"])
def test_environments_that_can_tell_where_they_stand_go_on_in_new_ones(
    tmp_path: Path, normalized: str | None, kind: type[Any]
) -> None:
    def env() -> VecEnv:
        if normalized is None:
            return discrete()
        norm_obs, norm_reward = (normalized in (name, "both") for name in ("norm_obs", "norm_reward"))
        return VecNormalize(discrete(), norm_obs=norm_obs, norm_reward=norm_reward)

    agent(env(), kind=kind).learn(STEPS).save(tmp_path / "half")
    straight = agent(env(), kind=kind).learn(STEPS)
    straight.learn(STEPS, reset_num_timesteps=False)
    resumed = kind.load(tmp_path / "half", env=env(), device="cpu", force_reset=None)
    assert resumed.is_in_episodes
    resumed.learn(STEPS, reset_num_timesteps=False)
    assert_equal(everything(resumed), everything(straight))


def test_environments_that_cannot_tell_begin_new_episodes(tmp_path: Path) -> None:
    agent().learn(STEPS).save(tmp_path / "model")
    assert not GTrXLPPO.load(tmp_path / "model", env=walks(), force_reset=None).is_in_episodes
    assert GTrXLPPO.load(tmp_path / "model", env=walks(), force_reset=False).is_in_episodes
    agent(discrete()).learn(STEPS).save(tmp_path / "model")
    assert not GTrXLPPO.load(tmp_path / "model", env=discrete()).is_in_episodes


@pytest.mark.parametrize("kind", ON_POLICY)
def test_new_episodes_follow_from_their_seed(kind: type[Any]) -> None:
    models = [agent(discrete(), kind=kind).learn(STEPS) for _ in range(3)]
    for model, seed in zip(models, (7, 7, 8), strict=True):
        model.begin_episodes(seed)
        model.learn(STEPS, reset_num_timesteps=False)
    assert torch.equal(weights(models[0]), weights(models[1]))
    assert not torch.equal(weights(models[0]), weights(models[2]))


@pytest.mark.parametrize("kind", ON_POLICY)
def test_an_environment_that_is_set_after_loading_is_normalized_as_one_given_to_load(
    tmp_path: Path, kind: type[Any]
) -> None:
    agent(VecNormalize(walks(), clip_obs=3.0), kind=kind).learn(STEPS).save(tmp_path / "model")
    expected = kind.load(tmp_path / "model", env=walks(), device="cpu")
    for env in (walks(), VecNormalize(walks(), clip_obs=3.0)):
        loaded = kind.load(tmp_path / "model", device="cpu")
        loaded.set_env(env)
        assert_equal(everything(loaded), everything(expected))
        assert loaded.actor().normalizes and (env is loaded.env) == isinstance(env, VecNormalize)
    loaded.learn(STEPS, reset_num_timesteps=False)
    expected.learn(STEPS, reset_num_timesteps=False)
    assert_equal(everything(loaded)["normalization"], everything(expected)["normalization"])
    with pytest.raises(ConfigError, match="trained with observation space"):
        loaded.set_env("CartPole-v1")
    with pytest.raises(
        ConfigError, match=r"the environment has 1 copies, this agent learns from .*load\(path, env=env\)"
    ):
        loaded.set_env(DummyVecEnv([partial(Walk, (5,))]))


NESTED: dict[str, spaces.Space[Any]] = {
    "dict": spaces.Dict({"a": spaces.Dict({"b": spaces.Box(-1.0, 1.0, (2,))}), "c": spaces.Discrete(3)}),
    "tuple": spaces.Tuple([spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3)]),
}


@pytest.mark.parametrize("name", NESTED)
def test_an_agent_of_nested_observations_takes_its_environment_after_loading(tmp_path: Path, name: str) -> None:
    agent(AnySpace(NESTED[name], spaces.Discrete(2))).learn(12).save(tmp_path / "model")
    loaded = GTrXLPPO.load(tmp_path / "model", device="cpu")
    loaded.set_env(AnySpace(NESTED[name], spaces.Discrete(2)))
    assert loaded.observation_space == loaded.env.observation_space  # type: ignore[union-attr]
    assert loaded.learn(12, reset_num_timesteps=False).num_timesteps == 24
    loaded.save(tmp_path / "again")
    assert GTrXLPPO.load(tmp_path / "again", device="cpu").num_timesteps == 24


@pytest.mark.parametrize("given", ["keyword", "custom_objects"])
@pytest.mark.parametrize("kind", ON_POLICY)
def test_a_seed_that_is_given_to_load_begins_the_random_streams(tmp_path: Path, kind: type[Any], given: str) -> None:
    agent(discrete(), kind=kind).learn(STEPS).save(tmp_path / "half")

    def gone_on(seed: int) -> torch.Tensor:
        words: dict[str, Any] = {"seed": seed} if given == "keyword" else {"custom_objects": {"seed": seed}}
        model = kind.load(tmp_path / "half", env=discrete(), device="cpu", force_reset=None, **words)
        assert model.seed == seed and model.is_in_episodes
        return weights(model.learn(STEPS, reset_num_timesteps=False))

    first, again, other = map(gone_on, (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("kind", ON_POLICY)
def test_a_seed_that_is_set_decides_what_is_drawn_from_then_on(kind: type[Any]) -> None:
    model = agent(kind=kind)
    observations, drawn, states = np.zeros((4, 3), np.float32), [], []
    for seed in (3, 3, 4, None):
        model.set_random_seed(seed)
        states.append([getattr(model, name).get_state() for name in GENERATORS])
        drawn.append(model.predict(observations)[0])
    assert_equal(states[0], states[1])
    assert not any(torch.equal(one, other) for one, other in zip(states[1], states[2], strict=True))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[1], drawn[2]) and not np.array_equal(drawn[2], drawn[3])  # None changes nothing


@pytest.mark.parametrize("kind", ON_POLICY)
def test_the_state_of_another_number_of_environments_is_left_out(tmp_path: Path, kind: type[Any]) -> None:
    agent(discrete(), kind=kind).learn(STEPS).save(tmp_path / "model")
    three = make_vec_env("rltransformers/CueRecall-v0", 3, seed=0, env_kwargs={"delay": 5, "shortest_delay": 1})
    model = kind.load(tmp_path / "model", env=three, device="cpu", force_reset=None)
    assert not model.is_in_episodes
    assert model.learn(36, reset_num_timesteps=False).num_timesteps == STEPS + 36


class Kind(StrEnum):
    """Text that is of a class of its own."""

    WIN = "win"


class WalkWithInfos(Walk):
    """Ends episodes with values of many types in their infos."""

    values: ClassVar[dict[str, Any]] = {
        "number": 3,
        "text": "won",
        "none": None,
        "numpy": np.float32(0.5),
        "whole": np.int64(7),
        "array": np.arange(3),
        "nested": {"a": [np.bool_(True), (1, 2)]},
        "member": Kind.WIN,
        "object": object(),
        "objects": [1, object()],
        "numpy_text": np.array(["won"]),
        "date": np.datetime64("2020-01-01"),
        "set": {1, 2},
        "keys": {(1, 2): 3},
    }

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], dict(self.values)


@pytest.mark.parametrize("kind", ON_POLICY)
def test_reported_episodes_of_any_types_are_saved_as_far_as_they_are_plain(tmp_path: Path, kind: type[Any]) -> None:
    env = Monitor(WalkWithInfos((3,)), info_keywords=tuple(WalkWithInfos.values))
    model = agent(env, kind=kind).learn(STEPS)
    model.save(tmp_path / "model")
    loaded = kind.load(tmp_path / "model", env=env, device="cpu")
    assert len(loaded.ep_info_buffer) == len(model.ep_info_buffer) > 0
    for found, expected in zip(loaded.ep_info_buffer, model.ep_info_buffer, strict=True):
        assert list(found) == ["r", "l", "t", "number", "text", "none", "numpy", "whole", "array", "nested"]
        assert [found[name] for name in ("r", "l", "t")] == [expected[name] for name in ("r", "l", "t")]
        assert [found[name] for name in ("number", "text", "none", "numpy", "whole")] == [3, "won", None, 0.5, 7]
        np.testing.assert_array_equal(found["array"], np.arange(3))
    assert loaded.learn(STEPS, reset_num_timesteps=False).num_timesteps == 2 * STEPS


class WalkWithRecord(Walk):
    """Reports its episodes by itself, in arrays of one entry."""

    def step(self, action: Any) -> Any:
        *rest, ended, _, info = super().step(action)
        return *rest, ended, False, info | ({"episode": {"r": np.array([1.5]), "l": np.array([3])}} if ended else {})


def test_an_episode_that_is_reported_in_arrays_is_loaded(tmp_path: Path) -> None:
    env = DummyVecEnv([partial(WalkWithRecord, (3,))])
    agent(env).learn(STEPS).save(tmp_path / "model")
    loaded = GTrXLPPO.load(tmp_path / "model", env=env, device="cpu")
    assert list(loaded.ep_info_buffer or ()) == [{"r": 1.5, "l": 3}] * (STEPS // 3)


def named() -> VecEnv:
    return DummyVecEnv(
        [lambda: AnySpace(spaces.Dict({k: spaces.Box(-9.0, 9.0, (2,)) for k in "ab"}), spaces.Discrete(2))]
    )


def test_an_environment_that_normalizes_other_observations_is_refused(tmp_path: Path) -> None:
    agent(VecNormalize(named(), norm_obs_keys=["a"])).learn(STEPS).save(tmp_path / "model")
    for settings in ({"norm_obs": False}, {"norm_obs_keys": ["b", "a"]}, {}):
        wrapped = VecNormalize(named(), **settings)
        with pytest.raises(ConfigError, match=r"trained with VecNormalize\(norm_obs=True, norm_obs_keys=\['a'\]\)"):
            GTrXLPPO.load(tmp_path / "model", env=wrapped, device="cpu")
        with pytest.raises(ConfigError, match="see other numbers than it learned from"):
            GTrXLPPO.load(tmp_path / "model", device="cpu").set_env(wrapped)
    rewards_as_they_are = VecNormalize(named(), norm_obs_keys=["a"], norm_reward=False)
    GTrXLPPO.load(tmp_path / "model", env=rewards_as_they_are, device="cpu")


class Mirror(VecEnvWrapper):
    """Turns observations around."""

    def reset(self) -> Any:
        return -np.asarray(self.venv.reset())

    def step_wait(self) -> Any:
        seen, *rest = self.venv.step_wait()
        return -np.asarray(seen), *rest


def test_vec_normalize_on_another_side_of_a_wrapper_is_refused(tmp_path: Path) -> None:
    agent(Mirror(VecNormalize(walks()))).learn(STEPS).save(tmp_path / "model")
    for env, here in ((Mirror(walks()), "nothing"), (VecFrameStack(VecNormalize(walks()), 1), "VecFrameStack")):
        message = f"trained with Mirror around VecNormalize, here it is {here}"
        with pytest.raises(ConfigError, match=message):
            GTrXLPPO.load(tmp_path / "model", env=env, device="cpu")
        with pytest.raises(ConfigError, match=message):
            GTrXLPPO.load(tmp_path / "model", device="cpu").set_env(env)
    GTrXLPPO.load(tmp_path / "model", env=Mirror(VecNormalize(walks())), device="cpu").learn(STEPS)


def test_a_bonus_around_vec_normalize_changes_nothing_that_is_seen(tmp_path: Path) -> None:
    model = agent(NoveltyBonus(VecNormalize(walks()), 0.1)).learn(STEPS)
    model.save(tmp_path / "model")
    plain, bare = (GTrXLPPO.load(tmp_path / "model", env=env, device="cpu") for env in (walks(), None))
    actors, observations = [each.actor() for each in (model, plain, bare)], walks().reset()
    for actor in actors:
        actor.reset()
    ours, *theirs = [actor(observations) for actor in actors]
    for actions in theirs:
        np.testing.assert_array_equal(actions, ours)


def test_a_replay_that_would_lose_a_bonus_is_refused() -> None:
    settings: Any = {"policy_kwargs": {"backbone": BACKBONE}, "buffer_size": 400, "device": "cpu"}
    with pytest.raises(ConfigError, match="NoveltyBonus stands between VecNormalize and the policy"):
        GTrXLSAC("GTrXLSACPolicy", NoveltyBonus(VecNormalize(walks()), 0.1), **settings)
    GTrXLSAC("GTrXLSACPolicy", VecNormalize(NoveltyBonus(walks(), 0.1)), **settings)


def test_a_device_that_is_not_there_is_no_fault_of_the_file(tmp_path: Path) -> None:
    agent(walks()).save(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"device must be .* got 'foo'"):
        GTrXLPPO.load(tmp_path / "model", device="foo")


def test_a_class_is_no_callback() -> None:
    with pytest.raises(ConfigError, match="callback StopTrainingOnMaxEpisodes is a class; give an instance of it"):
        agent(walks()).learn(STEPS, callback=StopTrainingOnMaxEpisodes)


def test_a_file_without_a_place_does_not_go_on_in_an_episode(tmp_path: Path) -> None:
    agent(walks()).learn(STEPS).save(tmp_path / "first")
    GTrXLPPO.load(tmp_path / "first", device="cpu").save(tmp_path / "second")
    assert GTrXLPPO.load(tmp_path / "second", env=walks(), device="cpu").num_timesteps == STEPS
    with pytest.raises(ConfigError, match=r"holds no place to go on from.*leave force_reset out"):
        GTrXLPPO.load(tmp_path / "second", env=walks(), device="cpu", force_reset=False)


def test_settings_that_do_not_fit_each_other_are_refused_before_they_are_learned_with(tmp_path: Path) -> None:
    model = agent(discrete())
    model.normalize_advantage = False  # the divisor was never given, so that there is nothing to refuse
    model.learn(model.n_steps * model.n_envs).save(tmp_path / "model.zip")
    assert not GTrXLPPO.load(tmp_path / "model.zip").normalize_advantage
    model.least_advantage_std = 0.1
    with pytest.raises(ConfigError, match=r"least_advantage_std=0.1 bounds"):
        model.learn(1)
    moving = agent(continuous())
    moving.barrier_coef = 0.1
    with pytest.raises(ConfigError, match="barrier_coef is for actions that can be counted"):
        moving.learn(1)


def test_the_rate_is_the_one_of_the_settings_where_no_divergence_ends_updates(tmp_path: Path) -> None:
    model = agent(discrete(), target_kl=1e-9, learning_rate=1e-2, n_epochs=5)
    model.learn(4 * model.n_steps * model.n_envs)
    assert model._rate_share < 0.5
    model.save(tmp_path / "model.zip")
    free = GTrXLPPO.load(tmp_path / "model.zip", env=discrete(), target_kl=None, learning_rate=1e-3)
    free.learn(1, reset_num_timesteps=False)
    assert free.policy.optimizer.param_groups[0]["lr"] == 1e-3


def test_the_rate_gives_way_to_the_share_of_minibatches_that_an_update_took() -> None:
    """One epoch of four minibatches, of which the divergence ends the third: neither early nor late."""
    model = agent(make_vec_env("CartPole-v1", 4, seed=0), target_kl=0.01, n_epochs=1)
    model._rate_share, measured, loss_of = 0.5, iter((0.0, 0.0, 1.0)), ppo_loss

    def measuring(*parts: Any) -> PPOLoss:
        return replace(loss_of(*parts), approx_kl=torch.tensor(next(measured)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rltransformers.agents.gtrxl_ppo.ppo_loss", measuring)
        model.learn(1)
    assert model._rate_share == pytest.approx(0.6)
