"""How well a Decision Transformer predicts recorded actions: an evaluation without an environment.

R steps that count, C components of an action, A numbers of it, k actions of a chunk.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Shaped
from stable_baselines3.common.logger import Logger
from torch import Tensor

from rltransformers.algorithms.decision import step_losses
from rltransformers.core.action_masks import ACTION_MASK
from rltransformers.core.described import count
from rltransformers.data import ContextSampler
from rltransformers.policies.action_leaves import ActionLeaf, BinaryAction, BoxAction, CategoricalAction, NormalAction
from rltransformers.policies.decision_network import DecisionPolicy
from rltransformers.policies.several_modes import MixtureAction
from rltransformers.training.offline.loss import RecordedActions
from rltransformers.training.offline.one_step import OneStep, decode

INTERVALS = 50, 90
"""Percent of a distribution that its central intervals hold."""
BINS = 15
"""Of equal width, for the calibration error of classes (Guo et al. 2017, arXiv 1706.04599)."""


@dataclass(frozen=True)
class ActionError:
    """How far predictions of one component of the action lie from what was recorded.

    Attributes:
        component: its column, where the data were a table with a column for each; otherwise path of the leaf and index
            of the component in it, as "arm.2"; a space that is one leaf is "action".
        measure: "rmse", the root mean square of the difference, in the unit of the action; or "accuracy", the share of
            steps with the recorded class or bit.
        policy: of the most probable action, of a Box the mean; of a chunk the first one.
        mean_action: of the mean of the recorded actions of training, or their most frequent class.
        one_step: of behavior cloning with one step, see ``OneStep``.
        chunk: as ``policy``, over all actions of the chunks that lie in the episode; None without chunks.
    """

    component: str
    measure: Literal["rmse", "accuracy"]
    policy: float
    mean_action: float
    one_step: float
    chunk: float | None = None


@dataclass(frozen=True)
class ValidationResult:
    """Errors on recorded episodes that the model did not learn from; every step counts alike.

    Attributes:
        step: updates of the evaluated weights.
        episodes, steps: how many there are.
        action_loss: the loss of actions that training minimizes; ``best.zip`` has the lowest where there is no
            environment.
        errors: of every component of the action.
        calibration: by name, with the path of the leaf behind it where there are several: "coverage_50" and
            "coverage_90", shares of the recorded actions in the central 50 % and 90 % of a Box with a density;
            "calibration_error" of classes and bits, the mean difference between the probability of the most probable
            one and how often it was taken.
    """

    step: int
    episodes: int
    steps: int
    action_loss: float
    errors: tuple[ActionError, ...]
    calibration: dict[str, float]

    def __repr__(self) -> str:
        episodes = f"{count(self.episodes, 'episode')}, {count(self.steps, 'step')}"
        return f"ValidationResult({episodes}: {self.line()})"

    def line(self, components: int = 3) -> str:
        """Loss and first errors in words, for a log."""
        parts = [f"action loss {self.action_loss:.4f}"]
        for error in self.errors[:components]:
            mean = "mean action" if error.measure == "rmse" else "most frequent"
            others = f"{mean} {error.mean_action:.3g}, one step {error.one_step:.3g}"
            parts.append(f"{error.measure} of {error.component} {error.policy:.3g} ({others})")
        return "; ".join(parts)

    def metrics(self) -> dict[str, float]:
        """All numbers by name, as a log has them below ``eval/``."""
        values = {"action_loss": self.action_loss}
        for error in self.errors:
            name = f"{error.measure}_{error.component}"
            values |= {name: error.policy, f"{name}_mean_action": error.mean_action, f"{name}_one_step": error.one_step}
            if error.chunk is not None:
                values[f"{name}_chunk"] = error.chunk
        return values | self.calibration

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ValidationResult":
        """The result ``to_dict`` was called on."""
        return cls(**{**values, "errors": tuple(ActionError(**error) for error in values["errors"])})


def record_validation(logger: Logger, result: ValidationResult) -> None:
    """Record all numbers of a result under ``eval/``; the console gets the loss alone, for it cuts long names."""
    for name, value in result.metrics().items():
        logger.record(f"eval/{name}", value, exclude=None if name == "action_loss" else "stdout")


class _Sums:
    """Sums over steps of one leaf of the action."""

    def __init__(self, leaf: ActionLeaf) -> None:
        self.leaf = leaf
        self.measured: Literal["rmse", "accuracy"] = "rmse" if isinstance(leaf, BoxAction) else "accuracy"
        self.errors: Any = 0.0  # squared differences, or hits, of the three predictions [3, C]
        self.of_chunks: Any = 0.0  # those of the policy in all actions of chunks [C]
        self.actions = 0  # how many these are
        self.inside: Any = 0.0  # actions within the intervals [2]
        self.bins: Any = 0.0  # steps, probabilities and hits by probability [3, BINS]

    def add(
        self,
        output: Float[Tensor, "R A"],
        predicted: Shaped[Tensor, "R ..."],
        taken: Shaped[Tensor, "R ..."],
        others: list[Float[Tensor, "R N"]],
        allowed: Bool[Tensor, "R M"] | None,
    ) -> None:
        """Count R steps with these predicted and recorded actions."""
        leaf, actual = self.leaf, _flat(taken)
        predictions = [predicted, *(decode(leaf, numbers, allowed) for numbers in others)]
        differences = torch.stack([_flat(each) for each in predictions]) - actual
        self.errors += self._missed(differences).sum(1)
        if isinstance(leaf, NormalAction | MixtureAction):
            off = (2.0 * leaf.cumulative(output, taken) - 1.0).abs()
            self.inside += torch.stack([(off <= percent / 100).double().mean(1).sum() for percent in INTERVALS])
        elif isinstance(leaf, CategoricalAction | BinaryAction):
            if isinstance(leaf, CategoricalAction):
                likely = leaf.logits(output).softmax(-1).amax(-1)
            else:
                likely = torch.maximum(output.sigmoid(), (-output).sigmoid())
            likely = likely.double().flatten()
            place = (likely * BINS).ceil().long().clamp(1, BINS) - 1
            parts = torch.stack([torch.ones_like(likely), likely, (differences[0] == 0).double().flatten()])
            self.bins += parts.new_zeros(3, BINS).index_add(1, place, parts)

    def add_chunks(
        self,
        predicted: Shaped[Tensor, "R k ..."],
        taken: Shaped[Tensor, "R k ..."],
        counts: Bool[Tensor, "R k"],
    ) -> None:
        """Count all actions of R chunks that lie in the episode."""
        self.of_chunks += self._missed(_flat(predicted[counts]) - _flat(taken[counts])).sum(0)
        self.actions += int(counts.sum())

    def _missed(self, differences: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return differences.square() if self.measured == "rmse" else (differences == 0).double()

    def action_errors(self, path: str, steps: int, columns: list[str] | None) -> list[ActionError]:
        means = self.errors / steps
        if self.actions:
            means = torch.cat([means, self.of_chunks[None] / self.actions])
        values = (means.sqrt() if self.measured == "rmse" else means).T.tolist()
        if columns is not None:
            names = [_name(column) for column in columns]
        else:
            names = [_name(path, index) for index in range(len(values))] if self.leaf.shape else [_name(path)]
        return [ActionError(name, self.measured, *row) for name, row in zip(names, values, strict=True)]

    def calibration(self, path: str, steps: int) -> dict[str, float]:
        end = f"_{_name(path)}" if path else ""
        if isinstance(self.leaf, NormalAction | MixtureAction):
            shares = (self.inside / steps).tolist()
            return {f"coverage_{percent}{end}": share for percent, share in zip(INTERVALS, shares, strict=True)}
        if isinstance(self.leaf, BoxAction):
            return {}
        counts, probabilities, hits = self.bins
        return {f"calibration_error{end}": float((probabilities - hits).abs().sum() / counts.sum())}


def _flat(actions: Shaped[Tensor, "R ..."]) -> Float[Tensor, "R C"]:
    return actions.reshape(len(actions), -1).double()


def _name(path: str, index: int | None = None) -> str:
    """Name of a component in logs, where a "/" would begin a section."""
    name = path.replace("/", ".") or "action"
    return name if index is None else f"{name}.{index}"


@torch.no_grad()
def validate(
    policy: DecisionPolicy, sampler: ContextSampler, one_step: OneStep, batch_size: int, step: int
) -> ValidationResult:
    """Predict every action of the sampler's episodes once, from what was recorded before it.

    The windows are those of ``ContextSampler.windows_over``: each step has the context that it has in acting, where the
    windows of training would repeat it with shorter ones.

    Args:
        one_step: what the policy is compared with.
        batch_size: windows at a time; changes nothing but rounding.
        step: updates of the policy.
    """
    head, device = policy.head, policy.head.linear.weight.device
    data, sums = sampler.trajectories, {path: _Sums(leaf) for path, leaf in policy.head.by_path.items()}
    windows, wanted = sampler.windows_over(torch.arange(len(data), device="cpu"))
    total, trains = 0.0, policy.training
    generator = torch.Generator().manual_seed(0)  # the same noise at every evaluation
    policy.eval()
    for part in torch.arange(len(windows), device="cpu").split(batch_size):
        batch, rows = sampler.window(windows[part]).to(device), wanted[part].to(device)
        inputs = batch.observations, batch.actions, batch.return_to_go, batch.timestep, batch.valid
        recorded = RecordedActions.of(policy, batch)
        outputs = policy.masked(policy.outputs(policy.read(*inputs)[0], None), recorded.masks)
        noise = torch.rand(*batch.valid.shape, head.loss_draws, generator=generator).to(device)
        losses = step_losses(head, outputs, recorded.actions, noise, recorded.counts)
        total += float(losses[rows].double().sum())
        observations = {path: leaf[rows] for path, leaf in batch.observations.items()}
        linear = one_step.predict(observations).to(outputs)
        others = [head.split(each, "numbers") for each in (one_step.mean_action.to(linear).expand_as(linear), linear)]
        allowed = head.split(observations[ACTION_MASK] != 0, "choices") if policy.masks else {}
        parts, predicted = head.split(outputs[rows]), head.decode(outputs[rows])
        for path, leaf_sums in sums.items():
            output, action, taken = parts[path], predicted[path], recorded.actions[path][rows]
            if recorded.counts is not None:
                leaf_sums.add_chunks(action, taken, recorded.counts[rows])
                output, action, taken = output[:, 0], action[:, 0], taken[:, 0]
            leaf_sums.add(output, action, taken, [each[path] for each in others], allowed.get(path))
    policy.train(trains)
    return ValidationResult(
        step,
        len(data),
        data.steps,
        total / data.steps,
        tuple(
            error
            for path, each in sums.items()
            for error in each.action_errors(path, data.steps, data.component_names("actions", path))
        ),
        {name: value for path, each in sums.items() for name, value in each.calibration(path, data.steps).items()},
    )
