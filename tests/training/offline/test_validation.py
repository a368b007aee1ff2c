"""Held-out episodes: no update sees them, and the errors on them are those of a plain loop over their steps."""

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure

from rltransformers.agents import DecisionTransformer
from rltransformers.core.errors import CheckpointError, ConfigError
from rltransformers.core.spaces import stack_members
from rltransformers.data import ContextSampler, Trajectories, load_trajectories
from rltransformers.policies.several_modes import MixtureAction
from rltransformers.policies.shipping import DecisionInFile
from rltransformers.training.offline.evaluation_callback import EvaluationCallback
from rltransformers.training.offline.one_step import CLASSES, LARGEST_LEAF, OneStep
from rltransformers.training.offline.validation import BINS, ValidationResult

LENGTHS = (3, 9, 4, 12, 8, 5, 7, 2, 6, 11)
SMALL = {"width": 8, "layers": 1, "heads": 2, "dropout": 0.1}
BOX = spaces.Box(np.array([-2, 1], np.float32), np.array([2, 7], np.float32))
SPACES: dict[str, Any] = {
    "discrete": spaces.Discrete(3, start=4),
    "box": BOX,
    "gaussian": BOX,
    "mixture": BOX,
    "nested": spaces.Dict(
        {"arm": BOX, "keys": spaces.MultiBinary(2), "mode": spaces.MultiDiscrete([3, 2]), "go": spaces.Discrete(2)}
    ),
}


def episodes(kind: str, lengths: tuple[int, ...] = LENGTHS) -> Trajectories:
    """Episodes whose first observation tells the episode; actions depend on observations, so that something helps."""
    space, generator = SPACES[kind], np.random.default_rng(7)
    space.seed(7)
    recorded = []
    for number, steps in enumerate(lengths):
        seen = generator.normal([3, -40], [2, 9], (steps + 1, 2)).astype(np.float32)
        recorded.append(
            {
                "observations": {"place": seen, "episode": np.full(steps + 1, number)},
                "actions": stack_members(space, [space.sample() for _ in range(steps)]),
                "rewards": generator.normal(5, 3, steps).astype(np.float32),
                "terminations": np.arange(steps) == steps - 1,
            }
        )
    observations = spaces.Dict({"place": spaces.Box(-np.inf, np.inf, (2,)), "episode": spaces.Discrete(len(LENGTHS))})
    return load_trajectories(recorded, observation_space=observations, action_space=space)


def make(kind: str, data: Trajectories, **settings: Any) -> DecisionTransformer:
    options: dict[str, Any] = {
        "context_length": 5,
        "batch_size": 4,
        "learning_rate": 1e-2,
        "warmup_steps": 3,
        "action_head": kind if kind in ("gaussian", "mixture") else "deterministic",
        "action_head_kwargs": {"components": 1} if kind == "mixture" else None,
    }
    return DecisionTransformer(
        "DTPolicy", data, policy_kwargs={"backbone": SMALL}, seed=3, **(options | {"validation": 0.3} | settings)
    )


def numbers(data: Trajectories) -> set[int]:
    return set(data.observations["episode"].tolist())


class Batches(BaseCallback):
    """The episodes of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def _on_training_start(self) -> None:
        sample = ContextSampler.sample

        def noted(sampler: ContextSampler, *arguments: Any) -> Any:
            batch = sample(sampler, *arguments)
            self.seen |= set(batch.observations["episode"].flatten().tolist())
            return batch

        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(ContextSampler, "sample", noted)

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self.patch.undo()


def test_held_out_episodes_never_enter_a_minibatch() -> None:
    data = episodes("discrete")
    model, batches = make("discrete", data), Batches()
    held_out = set(model.held_out.episodes.tolist())
    assert len(held_out) == 3
    model.learn(60, callback=[batches, EvaluationCallback(eval_freq=20)])
    assert batches.seen == set(range(len(LENGTHS))) - held_out  # all others did
    assert model.validate().episodes == 3
    assert model.validate().steps == sum(LENGTHS[number] for number in held_out)


def test_the_seed_chooses_which_episodes_are_held_out() -> None:
    data = episodes("discrete")
    models = [
        DecisionTransformer("DTPolicy", data, validation=0.3, policy_kwargs={"backbone": SMALL}, seed=seed)
        for seed in (0, 1, 0)
    ]
    chosen = [model.held_out.episodes.tolist() for model in models]
    assert chosen[0] == chosen[2] != chosen[1]


def test_training_with_held_out_episodes_equals_training_without_them() -> None:
    """Validation changes nothing but the data; at 0 these are all of them, as without the setting."""
    data = episodes("gaussian")
    held = make("gaussian", data)
    others = np.setdiff1d(np.arange(len(data)), held.held_out.episodes.numpy())
    plain = make("gaussian", data.select(others), validation=0.0)
    held.learn(12, callback=EvaluationCallback(eval_freq=3))
    plain.learn(12)
    assert held.summary == plain.summary
    for name, weight in plain.policy.state_dict().items():
        assert torch.equal(weight, held.policy.state_dict()[name]), name
    everything = make("gaussian", data, validation=0.0)
    assert everything._sampler is not None and len(everything._sampler.trajectories) == len(data)
    with pytest.raises(ConfigError, match="holds no episodes out"):
        everything.validate()


def plain_loop(model: DecisionTransformer, data: Trajectories) -> dict[str, float]:
    """The numbers of ``validate`` step by step, in numpy."""
    length, policy = model.settings.context_length, model.policy
    jump = length - length // 2
    training = [number for number in range(len(data)) if number not in model.held_out.episodes.tolist()]
    leaves, spaces_of = policy.head.by_path, cast(dict[str, Any], policy.head.spaces)

    def feature(number: int, t: int) -> np.ndarray:
        row = int(data.offsets[number]) + number + t
        one = np.zeros(len(LENGTHS))
        one[data.observations["episode"][row]] = 1
        place = data.observations["place"][row].astype(np.float64)
        return np.concatenate([place, one] if next(iter(data.observations)) == "place" else [one, place])

    def action(number: int, t: int, path: str) -> np.ndarray:
        return np.reshape(data.actions[path][int(data.offsets[number]) + t], -1).astype(np.float64)

    def coded(path: str, value: np.ndarray) -> np.ndarray:
        """Numbers of an action: one-hot classes, bits, or [-1, 1]."""
        space = spaces_of[path]
        if isinstance(space, spaces.Box):
            return (value - (space.high + space.low) / 2) / ((space.high - space.low) / 2)
        if isinstance(space, spaces.MultiBinary):
            return value
        sizes = [space.n] if isinstance(space, spaces.Discrete) else space.nvec
        start = space.start if isinstance(space, spaces.Discrete) else 0
        return np.concatenate([np.eye(size)[int(each - start)] for size, each in zip(sizes, value, strict=True)])

    def decoded(path: str, row: np.ndarray) -> np.ndarray:
        space = spaces_of[path]
        if isinstance(space, spaces.Box):
            return np.clip(row * (space.high - space.low) / 2 + (space.high + space.low) / 2, space.low, space.high)
        if isinstance(space, spaces.MultiBinary):
            return (row > 0.5).astype(float)
        sizes = [space.n] if isinstance(space, spaces.Discrete) else list(space.nvec)
        parts = np.split(row, np.cumsum(sizes)[:-1])
        return np.array([part.argmax() for part in parts]) + (space.start if isinstance(space, spaces.Discrete) else 0)

    steps = [(number, t) for number in training for t in range(LENGTHS[number])]
    x = np.stack([feature(*step) for step in steps])
    center, deviation = x.mean(0), np.where(x.std(0) > 1e-6, x.std(0), 1.0)
    x = (x - center) / deviation
    values: dict[str, float] = {}
    errors: dict[str, list[list[np.ndarray]]] = {path: [] for path in leaves}
    inside: dict[str, list[list[float]]] = {path: [] for path in leaves}
    guesses: dict[str, list[tuple[float, float]]] = {path: [] for path in leaves}
    losses = []
    fits = {}
    for path in leaves:
        y = np.stack([coded(path, action(*step, path)) for step in steps])
        weights = np.linalg.solve(x.T @ x / len(x) + 1e-3 * np.eye(x.shape[1]), x.T @ (y - y.mean(0)) / len(x))
        fits[path] = y.mean(0), weights
    returns = data.return_to_go(model.settings.discount)
    for number in model.held_out.episodes.tolist():
        first, steps_of = int(data.offsets[number]), LENGTHS[number]
        for t in range(steps_of):
            begin = 0 if t < length else ((t - length) // jump + 1) * jump  # the window that t is among the last of
            window = range(begin, t + 1)  # nothing behind t is looked at
            rows = [first + number + each for each in window]
            taken = [first + each for each in window]
            outputs = policy(
                {path: torch.as_tensor(leaf[rows])[None] for path, leaf in data.observations.items()},
                {path: torch.as_tensor(leaf[taken])[None] for path, leaf in data.actions.items()},
                torch.as_tensor(returns[taken])[None],
                torch.as_tensor([*window])[None],
                torch.ones(1, len(rows), dtype=torch.bool),
            )[0, -1:]
            loss = 0.0
            for path, part in policy.head.split(outputs).items():
                truth, mean, weights = action(number, t, path), *fits[path]
                linear = mean + (feature(number, t) - center) / deviation @ weights
                chosen = leaves[path].decode(part).numpy().reshape(-1).astype(np.float64)
                part = part[0][-4:] if isinstance(leaves[path], MixtureAction) else part[0]  # without its one weight
                rivals = [chosen, decoded(path, mean), decoded(path, linear)]
                space = spaces_of[path]
                if isinstance(space, spaces.Box):
                    errors[path].append([(each - truth) ** 2 for each in rivals])
                    middle = np.tanh(part[:2].numpy())
                    distance = coded(path, truth) - middle
                    if len(part) == 4:
                        deviations = np.exp(-5 + 3.5 * (np.tanh(part[2:].numpy()) + 1))
                        loss += float(np.sum(0.5 * (distance / deviations) ** 2 + np.log(deviations)))
                        loss += 2 * 0.5 * math.log(2 * math.pi)
                        for z, where in ((0.67448975, 0), (1.64485363, 1)):
                            inside[path] += [[float(each), where] for each in np.abs(distance) <= z * deviations]
                    else:
                        loss += float(np.mean(distance**2))
                    continue
                errors[path].append([(each == truth).astype(np.float64) for each in rivals])
                code = coded(path, truth)
                if isinstance(space, spaces.MultiBinary):
                    on = 1 / (1 + np.exp(-part.numpy().astype(np.float64)))
                    loss -= float(np.sum(np.log(np.where(code == 1, on, 1 - on))))
                    chances = np.maximum(on, 1 - on)
                else:
                    sizes = [space.n] if isinstance(space, spaces.Discrete) else list(space.nvec)
                    logits = np.split(part.numpy().astype(np.float64), np.cumsum(sizes)[:-1])
                    shares = [np.exp(each) / np.exp(each).sum() for each in logits]
                    loss -= float(np.sum(np.log(np.concatenate(shares)[code == 1])))
                    chances = np.array([share.max() for share in shares])
                guesses[path] += list(zip(chances, chosen == truth, strict=True))
            losses.append(loss)
    values["action_loss"] = float(np.mean(losses))
    for path in leaves:
        table = np.mean(np.array(errors[path]), axis=0)  # [3, C]
        measure = "rmse" if isinstance(policy.head.spaces[path], spaces.Box) else "accuracy"
        table = np.sqrt(table) if measure == "rmse" else table
        end = f"_{path}" if path else ""
        for column in range(table.shape[1]):
            component = (path or "action") + (f".{column}" if policy.head.spaces[path].shape else "")
            for rival, name in zip(table[:, column], ("", "_mean_action", "_one_step"), strict=True):
                values[f"{measure}_{component}{name}"] = float(rival)
        for percent, where in ((50, 0), (90, 1)) if inside[path] else ():
            values[f"coverage_{percent}{end}"] = float(np.mean([hit for hit, place in inside[path] if place == where]))
        if guesses[path]:
            gap = 0.0
            for low in range(BINS):
                members = [(p, hit) for p, hit in guesses[path] if low / BINS < p <= (low + 1) / BINS]
                if members:
                    gap += abs(sum(p for p, _ in members) - sum(hit for _, hit in members))
            values[f"calibration_error{end}"] = gap / len(guesses[path])
    return values


@pytest.mark.parametrize("kind", SPACES)
@torch.no_grad()
def test_the_numbers_are_those_of_a_plain_loop(kind: str) -> None:
    data = episodes(kind)
    model = make(kind, data)
    with torch.enable_grad():
        model.learn(30)
    metrics = model.validate().metrics()
    expected = plain_loop(model, data)
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=2e-5, abs=1e-6), name


def test_a_flow_is_validated_with_the_same_noise_every_time() -> None:
    data, settings = episodes("box"), {"action_head": "flow", "action_head_kwargs": {"width": 8}}
    model = make("box", data, **settings).learn(3)
    first = model.validate()
    assert "coverage_50" not in first.calibration
    whole = make("box", data, batch_size=64, **settings)
    whole.policy.load_state_dict(model.policy.state_dict())
    assert model.validate() == first
    assert whole.validate().action_loss == pytest.approx(first.action_loss, rel=1e-5)


def test_an_evaluation_leaves_random_numbers_and_the_mode_of_the_policy_alone() -> None:
    model = make("discrete", episodes("discrete"))
    model.policy.train()
    before = torch.get_rng_state()
    first = model.validate()
    assert first == model.validate() and model.policy.training and torch.equal(before, torch.get_rng_state())


def test_other_episodes_can_be_validated_on_and_have_to_fit() -> None:
    data = episodes("discrete")
    model = make("discrete", data, validation=0.0)
    held = make("discrete", data)
    chosen = held.held_out.episodes.numpy()
    assert model.validate(data.select(chosen)).steps == held.validate().steps
    assert model.validate(data).episodes == len(data)
    with pytest.raises(ConfigError, match="action space of the dataset"):
        model.validate(episodes("box"))


def test_resume_equals_the_uninterrupted_run(tmp_path: Path) -> None:
    """Split, best loss and evaluations since then are in the checkpoint."""
    data = episodes("discrete")

    def learn(model: DecisionTransformer, steps: int, name: str) -> EvaluationCallback:
        callback = EvaluationCallback(eval_freq=2, best_model_save_path=tmp_path / name, patience=100)
        model.learn(steps, callback=callback, log_interval=100)
        return callback

    whole = make("discrete", data, decay_steps=20)
    expected = learn(whole, 20, "whole").validations
    part = make("discrete", data, decay_steps=20)
    begun = learn(part, 8, "parts").validations
    part.save(tmp_path / "part.zip")
    again = DecisionTransformer.load(tmp_path / "part.zip", dataset=data)
    assert again.held_out.best == part.held_out.best is not None and again.held_out.since == part.held_out.since
    assert begun + learn(again, 12, "parts").validations == expected
    assert again.held_out.best == whole.held_out.best and again.held_out.since == whole.held_out.since
    best = [DecisionTransformer.load(tmp_path / name / "best_model.zip", dataset=data) for name in ("whole", "parts")]
    assert best[0].num_timesteps == best[1].num_timesteps
    assert best[0].validate() == best[1].validate()
    assert best[0].validate().action_loss == min(result.action_loss for _, result in expected)


def test_another_seed_leaves_the_held_out_episodes_of_a_loaded_model_as_they_are(tmp_path: Path) -> None:
    data = episodes("discrete")
    model = make("discrete", data, top_fraction=0.5)
    model.save(tmp_path / "model.zip")
    again = DecisionTransformer.load(tmp_path / "model.zip", dataset=data, seed=77, top_fraction=1.0)
    assert again.held_out.episodes.tolist() == model.held_out.episodes.tolist()
    assert again._sampler is not None
    assert numbers(again._sampler.trajectories).isdisjoint(model.held_out.episodes.tolist())
    without = DecisionTransformer.load(tmp_path / "model.zip")
    without.save(tmp_path / "copy.zip")
    copy = DecisionTransformer.load(tmp_path / "copy.zip", dataset=data, seed=78)
    assert copy.held_out.episodes.tolist() == model.held_out.episodes.tolist()
    with pytest.warns(UserWarning, match="may have learned from some of them"):
        shorter = DecisionTransformer.load(tmp_path / "model.zip", dataset=episodes("discrete", LENGTHS[:6]))
    assert shorter.held_out.of == 6 and shorter.validate().episodes == 1


def test_what_was_held_out_stays_so_when_episodes_come_behind_them(tmp_path: Path) -> None:
    model = make("discrete", episodes("discrete", LENGTHS[:5]))
    model.save(tmp_path / "model.zip")
    before = model.held_out.episodes.tolist()
    grown = DecisionTransformer.load(tmp_path / "model.zip", dataset=episodes("discrete")).held_out
    assert grown.of == 10 and grown.episodes[:2].tolist() == before and grown.episodes[2:].tolist() >= [5]
    assert len(grown.episodes) == 3


def test_other_episodes_all_count_where_the_best_are_learned_from() -> None:
    model = make("discrete", episodes("discrete"), top_fraction=0.5)
    assert model.validate(episodes("discrete")).episodes == len(LENGTHS)


def test_a_checkpoint_with_impossible_held_out_episodes_is_refused(tmp_path: Path) -> None:
    data = episodes("discrete")
    model = make("discrete", data)
    for damage in ([0, 1, 99], [2, 1, 3], [0, 1]):
        model.held_out.episodes = torch.tensor(damage)
        model.save(tmp_path / "model.zip")
        with pytest.raises(CheckpointError, match="held_out"):
            DecisionTransformer.load(tmp_path / "model.zip")


def test_patience_ends_training(tmp_path: Path) -> None:
    model = make("discrete", episodes("discrete"), learning_rate=0.5, max_grad_norm=100.0, warmup_steps=0)
    callback = EvaluationCallback(eval_freq=2, patience=3)
    model.learn(500, callback=callback)
    losses = [result.action_loss for _, result in callback.validations]
    assert model.num_timesteps == 2 * len(losses) < 500
    assert np.argmin(losses) == len(losses) - 4 and model.held_out.since == 3


def test_a_log_has_all_numbers_and_the_console_the_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make("nested", episodes("nested"))
    model.set_logger(configure(str(tmp_path), ["csv", "stdout"]))
    model.learn(2, callback=EvaluationCallback(eval_freq=2, verbose=1, log_path=tmp_path), log_interval=100)
    model.logger.close()
    header, *_, last = (tmp_path / "progress.csv").read_text().splitlines()
    row = dict(zip(header.split(","), last.split(","), strict=True))
    metrics = model.validate().metrics()
    assert {name: float(row[f"eval/{name}"]) for name in metrics} == pytest.approx(metrics)
    out = capsys.readouterr().out
    assert "action_loss" in out and "rmse_arm" not in out and "update 2: action loss" in out
    with np.load(tmp_path / "evaluations.npz") as file:
        assert file["timesteps"].tolist() == [2] and file["action_losses"].tolist() == [metrics["action_loss"]]


def test_results_are_json_values() -> None:
    result = make("nested", episodes("nested")).validate()
    assert ValidationResult.from_dict(result.to_dict()) == result
    assert "rmse of arm.0" in repr(result) and "3 episodes" in repr(result)


def test_settings_that_cannot_work_are_refused() -> None:
    data = episodes("discrete")
    for wrong in (1.0, -0.1, "half"):
        with pytest.raises(ConfigError, match="validation"):
            make("discrete", data, validation=wrong)
    with pytest.raises(ConfigError, match="holds whole episodes out"):
        make("discrete", data.select([0]))
    model = make("discrete", data, validation=0.0)
    with pytest.raises(ConfigError, match="holds no episodes out"):
        model.learn(4, callback=EvaluationCallback(eval_freq=2))
    assert model.num_timesteps == 0
    with pytest.raises(ConfigError, match="target_returns are for an environment"):
        EvaluationCallback(target_returns=[1.0])
    assert make("discrete", data, validation=0.01).held_out.episodes.shape == (1,)
    assert make("discrete", data, validation=0.99).held_out.episodes.shape == (9,)


def test_observations_of_many_numbers_and_classes_are_read_in_parts() -> None:
    """An image is mixed, classes beyond the last feature share one; the prediction stays one number per action."""
    side = math.isqrt(LARGEST_LEAF) + 1
    generator, steps = np.random.default_rng(0), 30
    recorded = [
        {
            "observations": {
                "image": generator.integers(0, 255, (steps + 1, side, side, 1), np.uint8),
                "word": generator.integers(0, CLASSES + 50, steps + 1),
            },
            "actions": generator.integers(0, 2, steps),
            "rewards": np.ones(steps, np.float32),
            "terminations": np.arange(steps) == steps - 1,
        }
        for _ in range(3)
    ]
    observations = spaces.Dict(
        {"image": spaces.Box(0, 255, (side, side, 1), np.uint8), "word": spaces.Discrete(CLASSES + 50)}
    )
    data = load_trajectories(recorded, observation_space=observations, action_space=spaces.Discrete(2))
    model = DecisionTransformer("DTPolicy", data, policy_kwargs={"backbone": SMALL}, context_length=4, seed=0)
    one_step = OneStep(model.policy, data)
    seen = {path: torch.as_tensor(leaf[:7]) for path, leaf in data.observations.items()}
    features = one_step._features(seen)
    assert features.shape == (7, LARGEST_LEAF + CLASSES) and one_step.predict(seen).shape == (7, 2)
    words = features[:, -CLASSES:].argmax(1) if list(model.policy.observation_leaves)[-1] == "word" else None
    assert words is not None and words.tolist() == [int(word) % CLASSES for word in seen["word"]]


def test_the_unit_of_observations_changes_no_prediction_of_one_step() -> None:
    numbers = np.random.default_rng(0).standard_normal((6, 9, 2))
    errors = []
    for unit in (1.0, 1e-9):  # meters and nanometers
        recorded = [
            {"observations": (unit * each).astype(np.float32), "actions": np.tanh(each[:-1]), "rewards": np.ones(8)}
            for each in numbers
        ]
        data = load_trajectories(recorded, action_space=spaces.Box(-1, 1, (2,), np.float64))
        model = DecisionTransformer("DTPolicy", data, policy_kwargs={"backbone": SMALL}, validation=0.3, seed=0)
        errors.append([error.one_step for error in model.validate().errors])
    assert errors[1] == pytest.approx(errors[0], rel=1e-4) and max(errors[0]) < 0.5


def test_components_are_called_as_in_the_log(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs the extra csv")
    frame = pandas.DataFrame(np.random.default_rng(0).uniform(-1, 1, (40, 5)), columns=[*"abc", "left/up", "right"])
    frame["run"] = np.repeat(np.arange(8), 5)
    columns = {"observations": ["b", "a"], "actions": ["right", "left/up"], "rewards": "c", "episode": "run"}
    policy = {"backbone": SMALL}
    data = load_trajectories(frame, columns=columns)
    model = DecisionTransformer("DTPolicy", data, context_length=3, validation=0.5, policy_kwargs=policy, seed=0)
    names = [error.component for error in model.validate().errors]
    assert names == ["right", "left.up"]  # a "/" would begin a section of the log
    model.save(tmp_path / "model")
    loaded = DecisionTransformer.load(tmp_path / "model")
    about = DecisionInFile(loaded.decider(), 1.0, loaded.summary.names).about()
    assert about["names"] == {"observations": {"": ["b", "a"]}, "actions": {"": ["right", "left/up"]}}
