"""Both agents act by machine code as they act in eager mode, wherever they act."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor

from rltransformers.agents import DecisionTransformer, GTrXLPPO
from rltransformers.core.errors import DataError
from rltransformers.data import record
from rltransformers.export.cache import VARIABLE
from rltransformers.policies import steps
from rltransformers.policies.decider import ActingMode, ActingState
from rltransformers.policies.steps import Acting
from tests.agents.test_decision_transformer import Drift
from tests.export.laws import ROUNDING, Run, assert_runs_equal, cloned
from tests.export.stand_in import StandIn

STEPS = 30
"""Of the longest episode."""
ROWS = STEPS + 1
"""Places of a table: an episode, and the observation behind its limit."""
ACTINGS: tuple[Acting, ...] = ("eager", "compiled")
Agent = GTrXLPPO | DecisionTransformer


@pytest.fixture(scope="module", autouse=True)
def _environment() -> Any:
    gym.register("Short-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=STEPS)
    gym.register("Drift-v0", lambda **_: Drift())
    yield
    del gym.registry["Short-v0"], gym.registry["Drift-v0"]


def online(
    acting: str, rows: int = ROWS, position: str = "learned", environment: str = "Short-v0", **settings: Any
) -> GTrXLPPO:
    places = {"position": {"name": position, "max_len": rows}}
    policy = {"backbone": {"width": 8, "layers": 1, "heads": 2, "memory": 4} | places, "previous_action": True}
    values: dict[str, Any] = {"n_steps": 32, "seed": 0, "device": "cpu", "acting": acting, "policy_kwargs": policy}
    return GTrXLPPO("GTrXLPolicy", environment, **(values | settings))


def offline(
    acting: str, rows: int = STEPS, position: str = "timestep", environment: str = "Short-v0", **settings: Any
) -> DecisionTransformer:
    data = record(environment, "random", episodes=4, num_envs=2, seed=0)
    backbone = {"width": 8, "layers": 1, "heads": 2, "position": {"name": position, "max_len": rows}}
    values: dict[str, Any] = {"context_length": 6, "batch_size": 8, "seed": 0, "device": "cpu", "acting": acting}
    return DecisionTransformer("DTPolicy", data, policy_kwargs={"backbone": backbone}, **(values | settings))


def steps_until_refused(model: Agent) -> tuple[int, str]:
    """How many steps of one episode an agent acts in, and the error after them."""
    state: Any = None
    for count in range(100):
        try:
            _, state = model.predict(np.zeros((2, 4), np.float32), state, deterministic=True, reward=np.ones(2))
        except DataError as error:
            return count, str(error)
    raise AssertionError("no place was missing")


@pytest.mark.parametrize("position", ["learned", "timestep"])
def test_online_acting_ends_with_the_table_of_places_in_either_way_of_acting(
    position: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "CompiledStep", StandIn)
    eager, compiled = (steps_until_refused(online(acting, 7, position)) for acting in ACTINGS)
    assert eager == compiled
    assert eager[0] == 7 and "outside the position table of 7 rows" in eager[1]


@pytest.mark.parametrize("mode", get_args(ActingMode))
def test_offline_acting_ends_with_the_table_of_steps_in_either_way_of_acting(
    mode: ActingMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "CompiledStep", StandIn)
    eager, compiled = (steps_until_refused(offline(acting, 9, acting_mode=mode)) for acting in ACTINGS)
    assert eager == compiled
    assert eager[0] == 9 and "environment step 9 is outside the position table of 9 rows" in eager[1]


def test_offline_acting_ends_with_the_table_of_tokens_in_either_way_of_acting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "CompiledStep", StandIn)
    eager, compiled = (steps_until_refused(offline(acting, 20, "learned", acting_mode="banded")) for acting in ACTINGS)
    assert eager == compiled
    assert eager[0] == 7 and "episode position 22 is outside the position table of 20 rows" in eager[1]


@pytest.mark.parametrize("acting", ACTINGS)
@pytest.mark.parametrize(("mode", "rows"), [("banded", 20), ("refresh", 17)])
def test_a_table_that_holds_an_episode_or_a_window_serves_one_after_another(
    mode: ActingMode, rows: int, acting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The action that ended an episode, or a window, is fed with the next step and stands where no row is."""
    monkeypatch.setattr(steps, "CompiledStep", StandIn)
    model = offline(acting, rows, "learned", acting_mode=mode)
    state: Any = None
    for time in range(21):
        start = np.full(2, time % 7 == 0)
        observation = np.full((2, 4), 0.1 * time, np.float32)
        _, state = model.predict(observation, state, start, deterministic=True, reward=np.ones(2))


@pytest.mark.parametrize("acting", ACTINGS)
def test_acting_under_autocast_leaves_nothing_behind(acting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "CompiledStep", StandIn)
    settings = {"backbone": {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4}}
    policy, fresh, eager = (online(each, policy_kwargs=settings).policy for each in (acting, acting, "eager"))
    observations, first = {"": torch.ones(2, 4)}, torch.ones(2, dtype=torch.bool)

    def value(of: Any) -> torch.Tensor:
        result: torch.Tensor = of.step(observations, of.initial_state(2), first, None)[1]
        assert result.dtype == torch.float32
        return result

    with torch.autocast("cpu", torch.bfloat16):
        rounded = value(policy)
        assert torch.equal(rounded, value(eager))
    assert torch.equal(value(policy), value(fresh))
    assert not torch.equal(rounded, value(fresh))


# With a compiler: one package, for the online agent; those of the offline agent with `make test-third-party`. That
# other actions and modes have machine code that computes the same is the work of the compiler; how they reach it is
# seen with StandIn.


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cache of the module."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(folder))
        yield folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An online agent that is no longer indifferent between actions."""
    path = tmp_path_factory.mktemp("online") / "agent.zip"
    online("eager", learning_rate=3e-3).learn(256).save(path)
    return path


class Ratios:
    """Keeps what an agent logs about its first ratios."""

    def __init__(self) -> None:
        self.errors: list[float] = []

    def __call__(self, local: dict[str, Any], _: Any) -> bool:
        self.errors.append(local["self"].logger.name_to_value.get("train/first_ratio_error", 0.0))
        return True


def packages(folder: Path) -> int:
    """How many a cache holds."""
    return len(list(folder.rglob("*.pt2")))


def tensors_of(state: Any) -> dict[str, torch.Tensor]:
    """All of what an agent remembers, by name."""
    if isinstance(state, ActingState):
        memory = {} if state.memory is None else state.memory.tensors
        asked = {"asked": ~state.return_to_go.isnan(), "return_to_go": state.return_to_go.nan_to_num()}
        return cloned(memory | asked | {"action": state.action, "step": state.step})
    return cloned(state.actor.tensors | {"previous_action": state.previous_action[""]})


def played(model: Agent, deterministic: bool) -> Run:
    """Actions and memories in three environments for 100 steps; episodes have 25, 30 and 17 steps."""
    size = (100, 3, *(model.observation_space.shape or ()))
    observations = np.random.default_rng(5).normal(size=size).astype(np.float32)
    state: Any = None
    run: Run = []
    for time, observation in enumerate(observations):
        starts = np.array([time % length == 0 for length in (25, STEPS, 17)])
        action, state = model.predict(
            observation, state, starts, deterministic=deterministic, reward=observation[:, 0].clip(-1, 1)
        )
        run.append(({"action": torch.as_tensor(action)}, tensors_of(state)))
    return run


@pytest.mark.slow
@pytest.mark.xdist_group("compiled_acting")
class TestWithACompiler:
    """Actions are equal; memories are within ``ROUNDING``, which has its reasons there."""

    @pytest.mark.parametrize("deterministic", [True, False])
    def test_an_online_agent_predicts_the_same(self, cache: Path, trained: Path, deterministic: bool) -> None:
        eager, compiled = (
            played(GTrXLPPO.load(trained, device="cpu", acting=acting), deterministic) for acting in ACTINGS
        )
        assert_runs_equal(compiled, eager, tolerance=ROUNDING)
        assert packages(cache) == 1
        assert len({int(number) for outputs, _ in eager for number in outputs["action"]}) == 2, "takes both actions"

    def test_an_online_agent_is_evaluated_the_same(self, cache: Path, trained: Path) -> None:
        results = []
        for acting in ACTINGS:
            model = GTrXLPPO.load(trained, device="cpu", acting=acting)
            env = Monitor(gym.make("Short-v0"))
            env.reset(seed=2)
            # Sampled actions: the most likely ones may all be the same, whatever is observed.
            settings: dict[str, Any] = {"n_eval_episodes": 10, "deterministic": False, "return_episode_rewards": True}
            results.append(evaluate_policy(model, env, **settings))
        assert results[0] == results[1]
        assert packages(cache) == 1

    @pytest.mark.parametrize(
        ("environment", "rows"),
        [("Short-v0", ROWS), pytest.param("Pendulum-v1", 201, marks=pytest.mark.third_party)],
    )
    def test_an_online_agent_learns_the_same(self, cache: Path, environment: str, rows: int) -> None:
        """Four updates; acting in the last three has weights that an update changed, and deviations of actions."""
        before = packages(cache)
        agents = [online(acting, rows, environment=environment) for acting in ACTINGS]
        for model in agents:
            ratios = Ratios()
            model.set_logger(configure(None, []))
            model.learn(128, callback=ratios)
            assert max(ratios.errors) < 1e-5
        eager, compiled = agents
        assert packages(cache) == (max(before, 1) if environment == "Short-v0" else before + 1)  # others made the first
        for one, other in zip(eager.policy.parameters(), compiled.policy.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(
        "mode",
        [
            pytest.param(mode, marks=() if mode == "recompute" else pytest.mark.third_party)
            for mode in get_args(ActingMode)
        ],
    )
    @pytest.mark.filterwarnings("ignore:the return head predicts")  # after a few updates
    def test_an_offline_agent_acts_the_same(self, cache: Path, tmp_path: Path, mode: ActingMode) -> None:
        """In "refresh" actions are numbers and a head predicts returns: they are its own, then those asked for."""
        before, head = packages(cache), mode == "refresh"
        environment = "Drift-v0" if head else "Short-v0"
        more: dict[str, Any] = {"environment": environment, "return_head": "expectile" if head else None}
        model = offline("eager", acting_mode=mode, learning_rate=1e-2, warmup_steps=1, **more).learn(20)
        model.save(tmp_path / "agent.zip")
        models = [DecisionTransformer.load(tmp_path / "agent.zip", device="cpu", acting=acting) for acting in ACTINGS]
        eager, compiled = (played(each, deterministic=True) for each in models)
        assert_runs_equal(compiled, eager, tolerance=ROUNDING)
        for targets in ([10.0, 30.0], None)[: 1 + head]:
            evaluated = [each.evaluate(environment, targets, episodes=3, num_envs=2) for each in models]
            for first, second in zip(*evaluated, strict=True):
                assert first.returns == (pytest.approx(second.returns, abs=1e-4) if head else second.returns)
        assert packages(cache) == before + (mode != "recompute")
