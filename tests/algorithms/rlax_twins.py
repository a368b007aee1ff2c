"""Q-learning and V-MPO beside rlax, in float64.

Importing JAX starts threads, and every later ``fork`` of the process warns of a deadlock. So pytest does not collect
this file by itself: ``test_rlax.py`` runs it in a process of its own.
"""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rltransformers.algorithms.dqn import q_targets, td_errors
from rltransformers.algorithms.vmpo import VMPOBounds, better_half, vmpo_loss, weights_of
from tests.algorithms.test_dqn import A, B, L, steps_of
from tests.algorithms.test_dqn import numbers as values_of
from tests.algorithms.test_vmpo import EVERY, Now, numbers, recorded

with warnings.catch_warnings():  # of what JAX will change
    warnings.simplefilter("ignore")
    import jax
    import rlax
    from jax import numpy as jnp

jax.config.update("jax_enable_x64", True)

TOLERANCE: Any = {"atol": 1e-6, "rtol": 1e-6}  # rlax adds 1e-10 to the sums it divides by


def tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array))


def test_double_q_learning_is_that_of_rlax() -> None:
    """One step: errors, and gradients of half their squares."""
    steps = steps_of(1, ends=(2,))
    q, target_q = values_of(B, L + 1, A, seed=3).requires_grad_(), values_of(B, L + 1, A, seed=4)
    targets = q_targets(q.detach(), target_q, steps, 0.9, 1)
    errors = td_errors(q, targets, steps)
    (0.5 * errors.square()).sum().backward()
    ours = q.detach().numpy()

    def theirs(values: Any) -> Any:
        def one(row: int, t: int) -> Any:
            discount = 0.0 if steps.terminal[row, t] else 0.9
            selector = jnp.asarray(ours[row, t + 1])
            return rlax.double_q_learning(
                values[row, t],
                int(steps.actions[row, t]),
                float(steps.rewards[row, t]),
                discount,
                jnp.asarray(target_q[row, t + 1].numpy()),
                selector,
            )

        return jnp.stack([jnp.stack([one(row, t) for t in range(L)]) for row in range(B)])

    expected = theirs(jnp.asarray(ours))
    gradient = jax.grad(lambda values: 0.5 * jnp.square(theirs(values)).sum())(jnp.asarray(ours))
    torch.testing.assert_close(errors.detach(), tensor(expected), **TOLERANCE)
    assert q.grad is not None
    torch.testing.assert_close(q.grad, tensor(gradient), **TOLERANCE)


@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
@pytest.mark.parametrize("rescaled", [False, True])
def test_n_step_q_learning_is_that_of_rlax(n_step: int, rescaled: bool) -> None:
    steps = steps_of(n_step, ends=(1, 5))
    scale = 8.0  # values where h is far from the identity
    q = (scale * values_of(B, L + n_step, A, seed=3)).requires_grad_()
    target_q = scale * values_of(B, L + n_step, A, seed=4)
    targets = q_targets(q.detach(), target_q, steps, 0.9, n_step, rescaled)
    errors = td_errors(q, targets, steps)
    (0.5 * errors.square()).sum().backward()
    pair = rlax.SIGNED_HYPERBOLIC_PAIR if rescaled else rlax.IDENTITY_PAIR
    discounts = 0.9 * (~steps.terminal).double()
    best = q.detach().argmax(-1)

    def theirs(values: Any) -> Any:
        rows = []
        for row in range(B):
            found = rlax.transformed_n_step_q_learning(
                values[row, :-1],
                jnp.asarray(steps.actions[row, :-1].numpy()),
                jnp.asarray(target_q[row, 1:].numpy()),
                jnp.asarray(best[row, 1:].numpy()),
                jnp.asarray(steps.rewards[row, :-1].numpy()),
                jnp.asarray(discounts[row, :-1].numpy()),
                n_step,
                tx_pair=pair,
            )
            rows.append(found[:L])  # theirs goes on with fewer steps at the end
        return jnp.stack(rows)

    values = jnp.asarray(q.detach().numpy())
    torch.testing.assert_close(errors.detach(), tensor(theirs(values)), **TOLERANCE)
    gradient = jax.grad(lambda each: 0.5 * jnp.square(theirs(each)).sum())(values)
    assert q.grad is not None
    torch.testing.assert_close(q.grad, tensor(gradient), **TOLERANCE)


@pytest.mark.parametrize(("eta", "alphas", "scale"), [(0.3, (0.2, 3.0), 1.0), (20.0, (1e-3, 50.0), 400.0)])
@pytest.mark.filterwarnings("ignore")
def test_loss_and_gradients_are_those_of_rlax(eta: float, alphas: tuple[float, float], scale: float) -> None:
    """``rlax.vmpo_loss`` 0.1.9, a per-step loss whose mean is the whole; its value error is ours to add."""
    advantages, bounds = numbers(scale=scale), (0.02, 0.5)
    inputs: dict[str, Any] = {
        "log_probs": numbers(1) - 2.0, "mean": numbers(2) ** 2, "covariance": numbers(3) ** 2,
        "eta": torch.tensor(eta, dtype=torch.float64), "alphas": torch.tensor(alphas, dtype=torch.float64),
    }  # fmt: skip
    inputs = {name: value.requires_grad_() for name, value in inputs.items()}
    zeros = torch.zeros(3, 8, dtype=torch.float64)
    ours = vmpo_loss(
        Now(inputs["log_probs"], zeros, zeros),
        recorded(advantages, zeros, EVERY),
        {"mean": inputs["mean"], "covariance": inputs["covariance"]},
        inputs["eta"],
        {"mean": inputs["alphas"][0], "covariance": inputs["alphas"][1]},
        VMPOBounds(0.1, {"mean": bounds[0], "covariance": bounds[1]}, vf_coef=0.0),
    )
    ours.total.backward()

    def theirs(found: Any) -> Any:
        penalties = [rlax.LagrangePenalty(found["alphas"][i], jnp.asarray(bounds[i])) for i in range(2)]
        loss, outputs = rlax.vmpo_loss(
            found["log_probs"],
            jnp.asarray(advantages.numpy()),
            rlax.LagrangePenalty(found["eta"], jnp.asarray(0.1)),
            [(found["mean"], penalties[0]), (found["covariance"], penalties[1])],
        )
        return loss.mean(), outputs

    held = {name: jnp.asarray(value.detach().numpy()) for name, value in inputs.items()}
    (total, outputs), gradients = jax.value_and_grad(theirs, has_aux=True)(held)
    assert float(ours.total.detach()) == pytest.approx(float(total), rel=1e-6)
    assert float(ours.temperature) == pytest.approx(float(outputs.temperature_loss), rel=1e-6)
    weights = weights_of(advantages, better_half(advantages, EVERY), inputs["eta"])
    torch.testing.assert_close(weights, tensor(outputs.normalized_weights), **TOLERANCE)
    for name, gradient in gradients.items():
        torch.testing.assert_close(inputs[name].grad, tensor(gradient), **TOLERANCE)
