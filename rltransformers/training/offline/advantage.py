"""Advantages that a Decision Transformer is conditioned on: values fitted on the data, and what steps gained over them.

E episodes and N steps of the data, B windows of K steps, M atoms of a distribution.
"""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm.auto import tqdm

from rltransformers.algorithms.advantage import advantages, bin_edges, bins_of, mean_values, value_losses
from rltransformers.algorithms.decision import learning_rate_factor
from rltransformers.core.checkpoint import check_tensor, restore_weights
from rltransformers.core.device import forked_rng
from rltransformers.core.errors import CheckpointError, DataError
from rltransformers.core.ranges import check
from rltransformers.core.seeding import step_seed
from rltransformers.data import ContextBatch, ContextSampler, Trajectories
from rltransformers.functional.modules import masked_mean
from rltransformers.policies.decision_network import DecisionPolicy
from rltransformers.policies.optimizers import decay_groups
from rltransformers.training.offline.settings import AdvantageOptions, Settings

ATOMS = 51
"""Of the distribution of a return. RECAP has 201; fewer are learned from fewer episodes, and means are as exact."""
CHECKS = 10
"""How often values are compared with the other half of the episodes; the best ones stay."""
CHECK_BATCHES = 8
"""Batches of the other half that they are compared with."""
HALVES = ("first", "second")
"""Of the episodes, and names of the value functions that value them."""


class ValueFunction(nn.Module):
    """Distribution of the return-to-go given the history: the policy's backbone without returns, and a linear layer."""

    def __init__(self, trunk: DecisionPolicy) -> None:
        super().__init__()
        self.trunk = trunk
        self.linear = nn.Linear(trunk.width, ATOMS)

    @torch.no_grad()
    def begin(self, returns: NDArray[np.float32]) -> None:
        """Begin with the distribution of these returns, scaled to [0, 1], for every history."""
        counts = torch.from_numpy(np.bincount(np.rint(returns.clip(0, 1) * (ATOMS - 1)).astype(int), minlength=ATOMS))
        self.linear.bias.copy_((counts + 1).log())

    def forward(self, batch: ContextBatch) -> Float[Tensor, "B K M"]:
        """Logits at the observation of every step, which know the steps before it and not its action."""
        inputs = batch.observations, batch.actions, batch.return_to_go, batch.timestep, batch.valid
        return self.linear(self.trunk.read(*inputs)[0])


class AdvantageLearner:
    """Two value functions, and the bins of the advantages over them.

    Each learns from the returns of one half of the episodes and values the steps of the other half: a value that has
    seen the episode itself takes its luck for skill of the behavior, and leaves no advantage.

    Args:
        make_trunk: makes the network that a value function reads histories with.
        range_to_go: lowest and highest return-to-go of the data.
    """

    def __init__(
        self,
        make_trunk: Callable[[], DecisionPolicy],
        settings: Settings,
        options: AdvantageOptions,
        range_to_go: tuple[float, float],
        device: torch.device,
    ) -> None:
        self.settings, self.options, self.range_to_go, self.device = settings, options, range_to_go, device
        self.values = tuple(ValueFunction(make_trunk()).to(device).eval() for _ in HALVES)
        self.edges: NDArray[np.float64] | None = None  # between bins [bins - 1]; None before ``fit``

    def bins(self, sampler: ContextSampler) -> NDArray[np.float32]:
        """The bin of every step, 0 to ``bins`` - 1 [N]; the best one for all before ``fit``."""
        data = sampler.trajectories
        if self.edges is None:
            return np.full(data.steps, self.options.bins - 1, np.float32)
        return bins_of(self._advantages(data, self.values_of(sampler)), self.edges)

    def fit(
        self, sampler: ContextSampler, seed: int, progress: bool = False
    ) -> tuple[NDArray[np.float32], dict[str, float]]:
        """Fit the values and then the bins; the bins of the data [N], and metrics by path.

        Args:
            sampler: of windows with returns, as for ``values_of``.

        Raises:
            DataError: the loss is no longer finite.
        """
        data, losses = sampler.trajectories, []
        half, returns = _halves(data), data.return_to_go(self.settings.discount)
        bar = tqdm(total=2 * self.options.updates, desc="values", unit="update", disable=not progress, leave=False)
        with forked_rng(self.device), bar:
            for index, network in enumerate(self.values):
                network.begin(self._scaled(returns))
                learned, others = (
                    sampler.windows_of(torch.from_numpy(each)) for each in (half != index, half == index)
                )
                if len(others):  # of a single episode one half has none
                    losses.append(self._fit(network, sampler, learned if len(learned) else others, others, seed, bar))
        values, returns = self.values_of(sampler), returns.astype(np.float64)
        gained = self._advantages(data, values)
        self.edges = bin_edges(gained, self.options.bins)
        unexplained = float(np.var(returns - values)) / (float(np.var(returns)) or 1.0)
        metrics = {"value_loss": float(np.mean(losses)), "explained_variance": 1.0 - unexplained}
        return bins_of(gained, self.edges), {f"advantage/{name}": value for name, value in metrics.items()}

    def _fit(
        self,
        network: ValueFunction,
        sampler: ContextSampler,
        learned: Tensor,
        others: Tensor,
        seed: int,
        bar: "tqdm[Any]",
    ) -> float:
        """Fit one value function on some windows; the lowest loss on other ones, whose weights stay."""
        options, settings, trunk = self.options, self.settings, network.trunk
        groups = decay_groups(network, list(network.parameters()))
        optimizer = torch.optim.AdamW(groups, options.learning_rate, weight_decay=settings.weight_decay, fused=True)
        lowest, best, every = math.inf, network.state_dict(), math.ceil(options.updates / CHECKS)
        for update in range(options.updates):
            generator = torch.Generator().manual_seed(step_seed(seed, update, "value batch"))
            torch.manual_seed(step_seed(seed, update, "value dropout"))
            network.train()
            loss = self._loss(network, sampler, learned, settings.batch_size, generator)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), settings.max_grad_norm)
            for group in optimizer.param_groups:
                factor = learning_rate_factor(update, options.updates // 10, (0, options.updates))
                group["lr"] = options.learning_rate * factor
            optimizer.step()
            trunk.backbone.constrain_()
            trunk.backbone.maintain()
            network.eval()
            bar.update()
            if (update + 1) % every == 0 or update + 1 == options.updates:
                generator = torch.Generator().manual_seed(step_seed(seed, 0, "value check"))
                with torch.no_grad():
                    batches = range(CHECK_BATCHES)
                    checks = [self._loss(network, sampler, others, settings.batch_size, generator) for _ in batches]
                mean = float(torch.stack(checks).mean())
                if not math.isfinite(mean):
                    raise DataError(
                        f"the loss of the values is {mean} after {update + 1} updates; lower"
                        " advantage_kwargs.learning_rate, or look for extreme values in the data"
                    )
                if mean < lowest:
                    lowest, best = mean, copy.deepcopy(network.state_dict())
        network.load_state_dict(best)
        return lowest

    def _loss(
        self, network: ValueFunction, sampler: ContextSampler, windows: Tensor, count: int, generator: torch.Generator
    ) -> Tensor:
        """Mean loss over the steps of ``count`` windows, drawn from those with the given indices."""
        draw = torch.randint(len(windows), (count,), generator=generator, device=generator.device)
        batch = sampler.window(windows[draw]).to(self.device)
        return masked_mean(value_losses(network(batch), self._scaled(batch.return_to_go)), batch.valid)

    def _scaled(self, returns: Any) -> Any:
        """Returns in units where those of the data reach from 0 to 1."""
        lowest, highest = self.range_to_go
        return (returns - lowest) / ((highest - lowest) or 1.0)

    @torch.no_grad()
    def values_of(self, sampler: ContextSampler) -> NDArray[np.float64]:
        """Value of the history before every step of the data, in reward units [N]; its context is that of acting."""
        data = sampler.trajectories
        half, offsets = _halves(data), torch.from_numpy(data.offsets)
        lowest, highest = self.range_to_go
        values = np.empty(data.steps, np.float64)
        for index, network in enumerate(self.values):
            valued = np.flatnonzero(half == index)
            if not len(valued):  # a single episode is in one half
                continue
            windows, wanted = sampler.windows_over(torch.from_numpy(valued))
            for part in torch.arange(len(windows)).split(self.settings.batch_size):
                batch, rows = sampler.window(windows[part]), wanted[part]
                places = (offsets[batch.episode][:, None] + batch.timestep)[rows]
                found = mean_values(network(batch.to(self.device)))[rows.to(self.device)]
                values[places.numpy()] = found.double().cpu().numpy()
        return lowest + (highest - lowest) * values

    def _advantages(self, data: Trajectories, values: NDArray[np.float64]) -> NDArray[np.float64]:
        rewards = np.asarray(data.rewards, np.float64)
        return advantages(rewards, values, data.offsets, self.settings.discount, self.options.gae_lambda)

    def tensors(self) -> dict[str, Any]:
        edges = None if self.edges is None else torch.from_numpy(self.edges)
        networks = {name: network.state_dict() for name, network in zip(HALVES, self.values, strict=True)}
        return networks | {"edges": edges}

    def restore(self, stored: Any) -> None:
        """Take on the tensors of a checkpoint, or raise CheckpointError."""
        stored = check(stored, Mapping[str, Any], "advantage")
        for name, network in zip(HALVES, self.values, strict=True):
            restore_weights(network, stored[name], f"advantage.{name}")
        self.edges = None
        if stored["edges"] is not None:
            edges = check_tensor(stored["edges"], "advantage.edges", (self.options.bins - 1,), torch.float64).cpu()
            if not bool(edges.isfinite().all()) or bool((edges.diff() < 0).any()):
                raise CheckpointError("advantage.edges are not in order, or not finite")
            self.edges = edges.numpy()


def _halves(data: Trajectories) -> NDArray[np.int64]:
    """The half that each episode is in, 0 or 1 [E]; the number of episodes alone decides."""
    count = len(data)
    return np.random.default_rng(count).permutation(count) % 2
