"""Observation wrappers: what they show, what they refuse, and that a spec can store and rebuild them."""

import pickle
import random
from copy import deepcopy
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import data_equivalence

from rltransformers.core.errors import ConfigError
from rltransformers.envs import (
    VELOCITY_INDICES,
    CopyObservation,
    DropIndices,
    DropUnsupported,
    FlatDict,
    Flicker,
    GlobalSeed,
    GridSymbols,
    History,
    KeepIndices,
    make_vec_env,
)
from rltransformers.envs.saving import environment_state


class Shown(gymnasium.Env[Any, Any]):
    """Shows samples of any observation space; ends after four steps."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any] | None = None) -> None:
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(3) if action_space is None else action_space
        self.shown: Any = None
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        self.shown = self.observation_space.sample()
        return self.shown, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.shown = self.observation_space.sample()
        return self.shown, 0.5 * self.t, self.t == 4, False, {}


VECTOR = spaces.Box(np.arange(-5, 0, dtype=np.float64), np.arange(5, dtype=np.float64), dtype=np.float64)
GRID = spaces.Box(np.zeros((2, 3, 3), np.uint8), np.tile(np.array([10, 5, 3], np.uint8), (2, 3, 1)), dtype=np.uint8)
NESTED = spaces.Dict(
    {
        "said": spaces.Text(5),
        "pair": spaces.Tuple([spaces.Discrete(3), spaces.Text(2)]),
        "deep": spaces.Dict({"only": spaces.Text(3)}),
        "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
    }
)


MASKED = spaces.Dict({"observation": VECTOR, "action_mask": spaces.MultiBinary(3)})


def run(env: gymnasium.Env[Any, Any], actions: int = 4) -> list[Any]:
    """Observations of one episode; each lies in the space."""
    seen = [env.reset(seed=0)[0]]
    for _ in range(actions):
        seen.append(env.step(env.action_space.sample())[0])
    assert all(observation in env.observation_space for observation in seen)
    return seen


def test_kept_indices_come_in_the_given_order() -> None:
    env = Shown(VECTOR)
    wrapped = KeepIndices(env, [3, 0])
    observation, _ = wrapped.reset()
    np.testing.assert_array_equal(observation, env.shown[[3, 0]])
    assert wrapped.observation_space == spaces.Box(np.array([-2.0, -5.0]), np.array([3.0, 0.0]), dtype=np.float64)
    run(wrapped)


def test_dropped_indices_leave_the_rest() -> None:
    env = Shown(VECTOR)
    wrapped = DropIndices(env, [4, 1])
    observation, _ = wrapped.reset()
    np.testing.assert_array_equal(observation, env.shown[[0, 2, 3]])
    run(wrapped)


@pytest.mark.parametrize("indices", [[1.7], [False, True], [0.5, 2], ["1"], np.array([0.5])], ids=str)
def test_indices_are_whole_numbers(indices: Any) -> None:
    for wrapper in (KeepIndices, DropIndices):
        with pytest.raises(ConfigError, match="an entry of indices must be a whole number"):
            wrapper(Shown(VECTOR), indices)
    assert KeepIndices(Shown(VECTOR), cast(Any, np.array([3, 0]))).observation_space.shape == (2,)


@pytest.mark.parametrize("switch", ["previous_action", "previous_reward", "first_step"])
def test_what_history_shows_is_switched_on_or_off(switch: str) -> None:
    for value in ("no", 0, None):
        with pytest.raises(ConfigError, match=f"{switch} must be true or false"):
            History(Shown(VECTOR), **cast(Any, {switch: value}))


def test_velocities_of_known_environments_can_be_dropped_by_name() -> None:
    full = gymnasium.make("CartPole-v1")
    masked = DropIndices(gymnasium.make("CartPole-v1"), "velocities")
    np.testing.assert_array_equal(masked.reset(seed=1)[0], full.reset(seed=1)[0][[0, 2]])


@pytest.mark.parametrize("env_id", ["Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "Ant-v5"])
def test_the_velocity_table_lists_what_velocities_alone_change(env_id: str) -> None:
    pytest.importorskip("mujoco")
    env = gymnasium.make(env_id)
    env.reset(seed=0)
    simulator: Any = env.unwrapped
    position = simulator.data.qpos.copy()
    views = []
    for speed in (0.0, 1.0):
        simulator.set_state(position, np.full_like(simulator.data.qvel, speed))
        views.append(simulator._get_obs())
    np.testing.assert_array_equal(np.flatnonzero(views[0] != views[1]), VELOCITY_INDICES[env_id])
    env.close()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: KeepIndices(Shown(VECTOR), [5]), r"0\.\.4"),
        (lambda: KeepIndices(Shown(VECTOR), [-1]), r"0\.\.4"),
        (lambda: KeepIndices(Shown(VECTOR), [1, 1]), "different"),
        (lambda: KeepIndices(Shown(VECTOR), []), "at least one"),
        (lambda: DropIndices(Shown(VECTOR), range(5)), "leave at least one"),
        (lambda: DropIndices(Shown(VECTOR), "velocity"), "'velocities'"),
        (lambda: DropIndices(Shown(VECTOR), "velocities"), "not known"),
        (lambda: KeepIndices(Shown(NESTED), [0]), "vector observation"),
        (lambda: FlatDict(Shown(VECTOR)), "only Dict and Tuple"),
        (lambda: DropUnsupported(Shown(spaces.Text(4))), "no field"),
        (lambda: GridSymbols(Shown(VECTOR)), "MiniGrid"),
        (lambda: GridSymbols(Shown(spaces.Dict({"image": GRID}))), "MiniGrid"),
        (lambda: Flicker(Shown(VECTOR), 1.5), r"probability must be .*\[0, 1\], got 1.5"),
        (lambda: Flicker(Shown(VECTOR), True), "probability"),
        (lambda: Flicker(Shown(spaces.Discrete(3)), 0.5), r"the observation is Discrete\(3\).*FlattenObservation"),
        (lambda: Flicker(Shown(spaces.MultiDiscrete([3, 2])), 0.5), "the observation is MultiDiscrete"),
        (lambda: Flicker(Shown(NESTED), 0.5), "'deep/only' is Text.*DropUnsupported"),
        (lambda: Flicker(History(Shown(VECTOR)), 0.5), r"'previous_action' is Discrete\(4\).*inside of the wrapper"),
        (lambda: Flicker(Shown(MASKED), 0.5), "forbid every action.*inside of ActionMasks"),
        (lambda: History(Shown(VECTOR), False, False, False), "adds nothing"),
        (lambda: History(Shown(VECTOR, spaces.Tuple([spaces.Discrete(2)]))), "previous_action=False"),
    ],
)
def test_impossible_wrappings_are_refused(build: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build()


def test_history_shows_the_last_action_and_reward_and_marks_the_first_step() -> None:
    env = History(Shown(VECTOR))
    first, _ = env.reset()
    assert (first["previous_action"], first["previous_reward"][0], first["first_step"][0]) == (0, 0, 1)
    for t, action in enumerate([0, 2], start=1):
        later, reward, *_ = env.step(action)
        assert (later["previous_action"], later["previous_reward"][0]) == (action + 1, reward)
        assert reward == 0.5 * t and later["first_step"][0] == 0
    assert env.reset()[0]["first_step"][0] == 1


@pytest.mark.parametrize(
    "actions",
    [
        spaces.Discrete(3, start=5),
        spaces.MultiDiscrete([2, 4]),
        spaces.MultiDiscrete([2, 4], start=[3, 1]),
        spaces.MultiBinary(3),
        spaces.Box(-2.0, 2.0, (2,)),
        spaces.Box(1.0, 2.0, (2,)),
    ],
)
def test_every_previous_action_lies_in_its_space_and_none_is_told_apart(actions: spaces.Space[Any]) -> None:
    env = History(Shown(VECTOR, actions), previous_reward=False, first_step=False)
    first, *later = run(env)
    assert set(first) == {"observation", "previous_action"}
    if isinstance(actions, spaces.Discrete | spaces.MultiDiscrete):
        assert not np.any(first["previous_action"]) and all(np.all(row["previous_action"]) for row in later)


def test_the_previous_action_is_not_a_view_of_the_callers_array() -> None:
    env = History(Shown(VECTOR, spaces.Box(-1.0, 1.0, (2,))))
    env.reset()
    action = np.full(2, 0.5, np.float32)
    observation, *_ = env.step(action)
    action[:] = 0
    np.testing.assert_array_equal(observation["previous_action"], 0.5)


def test_unsupported_fields_are_dropped_at_any_depth() -> None:
    env = DropUnsupported(Shown(NESTED))
    image = spaces.Box(0, 255, (4, 4, 3), np.uint8)
    assert env.observation_space == spaces.Dict({"pair": spaces.Tuple([spaces.Discrete(3)]), "image": image})
    run(env)


def test_containers_that_would_be_empty_are_dropped_with_their_fields() -> None:
    text = spaces.Text(4)
    space = spaces.Tuple([text, VECTOR, spaces.Dict({"a": text, "b": spaces.Tuple([text])}), spaces.Discrete(3)])
    shown = Shown(space)
    env = DropUnsupported(shown)
    assert env.observation_space == spaces.Tuple([VECTOR, spaces.Discrete(3)])
    observation, _ = env.reset()
    assert observation[0] is shown.shown[1] and observation[1] == shown.shown[3] and len(observation) == 2


def test_a_grid_of_symbols_keeps_every_symbol_of_every_cell() -> None:
    env = Shown(spaces.Dict({"image": GRID, "direction": spaces.Discrete(4), "mission": spaces.Text(9)}))
    wrapped = GridSymbols(env)
    assert set(wrapped.observation_space) == {"direction", "symbols"}  # type: ignore[call-overload]  # a Dict iterates keys
    observation, _ = wrapped.reset()
    np.testing.assert_array_equal(observation["symbols"].reshape(2, 3, 3), env.shown["image"])
    assert observation["direction"] == env.shown["direction"]
    run(wrapped)


def test_a_nested_observation_becomes_a_flat_dict_by_path() -> None:
    env = FlatDict(DropUnsupported(Shown(NESTED)))
    assert set(env.observation_space) == {"pair/0", "image"}  # type: ignore[call-overload]  # a Dict iterates its keys
    run(env)
    again = FlatDict(env)  # its own keys hold a "/", which is fine
    assert again.observation_space == env.observation_space


def test_copied_observations_survive_later_steps() -> None:
    space = spaces.Dict({"a": VECTOR, "b": spaces.Tuple([VECTOR])})
    shown = Shown(space)
    observation, _ = CopyObservation(shown).reset()
    kept = {"a": observation["a"].copy(), "b": (observation["b"][0].copy(),)}
    shown.shown["a"][:], shown.shown["b"][0][:] = 0, 0
    assert data_equivalence(observation, kept, exact=True)


@pytest.mark.parametrize(
    ("wrapper", "options"),
    [
        (KeepIndices, {"indices": [0, 2]}),
        (DropIndices, {"indices": [1, 3]}),
        (DropIndices, {"indices": "velocities"}),
        (History, {"previous_reward": False}),
        (CopyObservation, {}),
        (Flicker, {"probability": 0.4}),
        (GlobalSeed, {}),
    ],
)
def test_a_spec_stores_and_rebuilds_the_wrapped_environment(wrapper: Any, options: dict[str, Any]) -> None:
    """The way in which Minari keeps the environment of a dataset: through JSON."""
    wrapped = wrapper(gymnasium.make("CartPole-v1"), **options)
    rebuilt = gymnasium.make(EnvSpec.from_json(wrapped.spec.to_json()))
    assert rebuilt.observation_space == wrapped.observation_space
    assert data_equivalence(rebuilt.reset(seed=4)[0], wrapped.reset(seed=4)[0], exact=True)


def test_a_spec_stores_nested_wrappers() -> None:
    wrapped = FlatDict(History(DropIndices(gymnasium.make("CartPole-v1"), [1, 3])))
    rebuilt = gymnasium.make(EnvSpec.from_json(wrapped.spec.to_json()))  # type: ignore[union-attr]  # made by id
    assert rebuilt.observation_space == wrapped.observation_space


def episodes(env: gymnasium.Env[Any, Any], count: int, seed: int | None = 0) -> list[Any]:
    """All observations of ``count`` episodes, the first with ``seed``, under actions 0."""
    seen = []
    for index in range(count):
        seen.append(env.reset(seed=seed if index == 0 else None)[0])
        ended = False
        while not ended:
            observation, _, terminated, truncated, _ = env.step(0)
            seen.append(observation)
            ended = terminated or truncated
    return seen


def test_every_observation_fails_by_itself_with_the_probability_and_the_others_are_untouched() -> None:
    """4 standard deviations of 2,000 coins of 0.3 are 0.041. CartPole is never all zeros by itself."""
    plain = np.array(episodes(gymnasium.make("CartPole-v1"), 220))[:2000]
    seen = np.array(episodes(Flicker(gymnasium.make("CartPole-v1"), 0.3), 220))[:2000]
    failed = (seen == 0).all(1)
    np.testing.assert_array_equal(seen[~failed], plain[~failed])
    assert seen.dtype == plain.dtype and abs(failed.mean() - 0.3) < 0.041
    assert abs((failed[1:] & failed[:-1]).mean() - 0.09) < 0.03  # no failure brings another


@pytest.mark.parametrize(("probability", "dark"), [(0, False), (1, True)])
def test_probabilities_of_zero_and_one_fail_never_and_always(probability: float, dark: bool) -> None:
    seen = np.array(episodes(Flicker(gymnasium.make("CartPole-v1"), probability), 3))
    assert ((seen == 0).all(1) == dark).all()


def test_failures_follow_from_the_seed_and_go_on_over_resets() -> None:
    first, again, other = (episodes(Flicker(gymnasium.make("CartPole-v1"), 0.5), 4, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    env = Flicker(Shown(VECTOR), 0.5)
    kinds = [[not np.any(row) for row in episodes(env, 8, seed)] for seed in (3, None, 3, 4)]
    assert kinds[0] == kinds[2] and kinds[0] != kinds[1] and kinds[0] != kinds[3]
    assert not np.array_equal(first[0], other[0])


def test_failures_tell_nothing_about_what_the_environment_drew_from_the_same_seed() -> None:
    """4 standard deviations of 300 coins are 0.116."""
    shown = gymnasium.make("rltransformers/CueRecall-v0")
    env = Flicker(gymnasium.make("rltransformers/CueRecall-v0"), 0.5)
    cues = np.array([shown.reset(seed=seed)[0] for seed in range(300)])
    failed = np.array([not env.reset(seed=seed)[0].any() for seed in range(300)])
    for cue in (0, 1):
        assert abs(failed[cues[:, cue] == 1].mean() - 0.5) < 0.164  # half as many coins


def test_all_leaves_of_an_observation_fail_together_and_keep_their_types() -> None:
    space = spaces.Dict(
        {
            "deep": spaces.Dict({"image": spaces.Box(0, 255, (4, 2), np.uint8)}),
            "pair": spaces.Tuple([VECTOR, spaces.MultiBinary(3)]),
        }
    )
    env = Flicker(Shown(space), 0.5)
    assert env.observation_space == space
    dark = []
    for observation in episodes(env, 10):
        assert observation in env.observation_space
        parts = [observation["deep"]["image"], *observation["pair"]]
        dark.append(not any(part.any() for part in parts[:2]))
        assert not dark[-1] or not parts[2].any()
    assert 5 < sum(dark) < 45


def test_bounds_that_leave_out_zero_are_widened_to_it() -> None:
    space = spaces.Tuple([spaces.Box(np.array([1, -3, -2.0]), np.array([2, -1, 5.0]), dtype=np.float64), VECTOR])
    env = Flicker(Shown(space), 1.0)
    wide = spaces.Box(np.array([0, -3, -2.0]), np.array([2, 0, 5.0]), dtype=np.float64)
    assert env.observation_space == spaces.Tuple([wide, VECTOR])
    run(env)
    assert Flicker(Shown(spaces.Box(3, 9, (2,), np.uint8)), 0.1).observation_space == spaces.Box(0, 9, (2,), np.uint8)


@pytest.mark.parametrize("copied", [deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_with_the_same_failures(copied: Any) -> None:
    env = Flicker(gymnasium.make("CartPole-v1"), 0.5)
    episodes(env, 2)
    other = copied(env)
    np.testing.assert_array_equal(episodes(env, 4, None), episodes(other, 4, None))


def test_a_step_before_the_first_reset_is_refused() -> None:
    with pytest.raises(ResetNeeded, match="reset before the first step"):
        Flicker(Shown(VECTOR), 0.5).step(0)


def test_flickering_copies_fail_apart_and_have_no_state_to_save() -> None:
    env = make_vec_env("CartPole-v1", 16, seed=0, wrappers=[{"name": "Flicker", "probability": 0.5}, "History"])
    seen: Any = env.reset()
    dark = (seen["observation"] == 0).all(1)
    assert 2 < dark.sum() < 14 and (seen["first_step"] == 1).all()
    assert environment_state(env) is None


class GlobalDraws(gymnasium.Env[Any, Any]):
    """Shows a number of NumPy's global generator and one of Python's; seeds the former anew, as Labyrinths do."""

    observation_space = spaces.Box(0, 1, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        if options is not None:
            np.random.seed(options["numpy"])
        return self._drawn(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        if action:
            raise RuntimeError("broken")
        return self._drawn(), 0.0, self.t == 4, False, {}

    def _drawn(self) -> Any:
        return np.array([np.random.random(), random.random()])


def test_seeds_reach_what_is_drawn_from_global_generators() -> None:
    first, other, again = (episodes(GlobalSeed(GlobalDraws()), 3, seed) for seed in (3, 4, 3))
    np.testing.assert_array_equal(first, again)
    assert len(np.unique([first, other])) == 2 * np.size(first)  # nothing is drawn twice, of the next episode neither
    env = GlobalSeed(GlobalDraws())
    anew = [
        episodes(env, 3, 3),
        episodes(env, 3, None),
        episodes(env, 3, 3),
        episodes(GlobalSeed(GlobalDraws()), 1, None),
    ]
    np.testing.assert_array_equal(anew[0], anew[2])
    assert not np.isin(anew[1], first).any() and not np.isin(anew[3], [*first, *anew[1]]).any()


def test_copies_and_everybody_else_keep_their_own_draws() -> None:
    alone = [episodes(GlobalSeed(GlobalDraws()), 1, seed) for seed in (3, 4)]
    np.random.seed(7)
    random.seed(7)
    left, right = GlobalSeed(GlobalDraws()), GlobalSeed(GlobalDraws())
    seen = [[env.reset(seed=seed)[0] for env, seed in ((left, 3), (right, 4))]]
    seen += [[env.step(0)[0] for env in (left, right)] for _ in range(4)]
    with pytest.raises(RuntimeError, match="broken"):
        left.step(1)
    right.reset(options={"numpy": 0})
    np.testing.assert_array_equal(np.swapaxes(seen, 0, 1), alone)
    assert (np.random.random(), random.random()) == (
        np.random.RandomState(7).random_sample(),
        random.Random(7).random(),
    )


@pytest.mark.parametrize("copied", [deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_with_the_same_draws(copied: Any) -> None:
    env = GlobalSeed(GlobalDraws())
    episodes(env, 2)
    other = copied(env)
    np.testing.assert_array_equal(episodes(env, 2, None), episodes(other, 2, None))


def test_draws_before_the_first_reset_are_refused() -> None:
    with pytest.raises(ResetNeeded, match="reset before the first step"):
        GlobalSeed(GlobalDraws()).step(0)


@pytest.mark.parametrize("env_id", ["pointmaze-tests-v0", "popgym-CountRecallTests-v0", "tests/GlobalDraws-v0"])
def test_environments_that_are_known_to_need_it_get_global_seeds(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvSpec(env_id, entry_point=cast(Any, GlobalDraws))
    monkeypatch.setitem(gymnasium.registry, env_id, spec)
    seen = [np.asarray(make_vec_env(env_id, 2, seed=3).reset()) for _ in range(2)]
    assert np.array_equal(seen[0], seen[1]) == (not env_id.startswith("tests/"))
    assert len(np.unique(seen[0])) == 4
