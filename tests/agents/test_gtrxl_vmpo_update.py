"""One update of V-MPO equals a plain loop: advantages, both steps, multipliers, PopArt, Adam, the copy, in order."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.agents import GTrXLVMPO
from rltransformers.data.rollout import Segment
from tests.agents.rollouts import loud, rollout
from tests.agents.test_gtrxl_ppo_update import (
    ADAPTIVE,
    COMPRESSIVE,
    ENVIRONMENTS,
    EPOCHS,
    ROWS,
    STEPS,
    choices,
    forward,
    parameters,
    walks,
)

CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "one backbone, real actions, PopArt": (
        walks,
        {"backbone": ADAPTIVE, "previous_action": True, "previous_reward": True, "first_step": True, "head_width": 6},
        {"learning_rate": 0.01, "vf_coef": 0.4, "max_grad_norm": 0.3, "gradient_window": 3, "popart": 0.3,
         "eps_eta": 0.2, "eps_mean": 0.02, "eps_covariance": 0.004, "eta_init": 2.0, "alpha_init": 3.0, "gamma": 0.8},
    ),
    "two backbones, actions that can be counted": (
        choices,
        {"backbone": COMPRESSIVE, "shared_backbone": False, "previous_action": True},
        {"learning_rate": 0.02, "vf_coef": 0.6, "max_grad_norm": 0.2, "memory_refresh": "epoch", "gamma": 0.9,
         "eps_alpha": 0.03, "multiplier_learning_rate": 0.2, "alpha_init": 0.5},
    ),
}  # fmt: skip


def kl_of(outputs: Tensor, old: Tensor, head: Any, old_head: Any) -> dict[str, Tensor]:
    """Divergences of every step, straight from the formulas."""
    if hasattr(head.leaves[0], "log_std"):
        s, s_old = head.leaves[0].log_std.exp() ** 2, old_head.leaves[0].log_std.detach().exp() ** 2
        spread = 0.5 * ((s_old / s).sum() - len(s) + (s / s_old).log().sum())
        return {"mean": 0.5 * ((outputs - old) ** 2 / s_old).sum(-1), "covariance": spread.expand(outputs.shape[:2])}
    p, q = old.softmax(-1), outputs.softmax(-1)
    return {"classes": (p * (p / q).log()).sum(-1)}


def plain_update(model: GTrXLVMPO, acted: Segment, before: Segment | None, settings: dict[str, Any]) -> Any:
    """Policy, multipliers and what was seen, after one update of a model that stays as it is."""
    policy, target = copy.deepcopy(model.policy).requires_grad_(True), copy.deepcopy(model.target)
    generator = torch.Generator()
    generator.set_state(model._batch_generator.get_state())
    adam = torch.optim.Adam(policy.parameters(), lr=settings["learning_rate"], eps=1e-5)
    adam.load_state_dict(copy.deepcopy(model.policy.optimizer.state_dict()))
    eta = model.multipliers.log_temperature.detach().clone().requires_grad_()
    alphas = {kind: value.detach().clone().requires_grad_() for kind, value in model.multipliers.log_penalties.items()}
    dual = torch.optim.Adam([eta, *alphas.values()], lr=settings.get("multiplier_learning_rate", 0.01))
    dual.load_state_dict(copy.deepcopy(model.multiplier_optimizer.state_dict()))
    bounds = {"classes": 0.01, "mean": 0.01, "covariance": 5e-5} | {
        kind: settings[name]
        for kind, name in (("classes", "eps_alpha"), ("mean", "eps_mean"), ("covariance", "eps_covariance"))
        if name in settings
    }
    with torch.no_grad():
        old = target.evaluate_segment(acted).outputs
        memory = acted.memory if model.carry.own_memory is None else model.carry.own_memory
        values = forward(policy, replace(acted, memory=memory), STEPS)[1]
        if settings.get("popart"):
            values = policy.value_net.shift + policy.value_net.scale * values  # type: ignore[operator]
    advantages, counts = acted.returns - values, acted.counts
    mean, square, units = 0.0, 1.0, 1.0
    if settings.get("popart"):
        mean, square = float(policy.value_net.mean), float(policy.value_net.square)  # type: ignore[arg-type]
    seen: dict[str, list[float]] = {"norms": [], "kl": [], "units": []}
    for epoch in range(EPOCHS):
        if epoch and before is not None:
            with torch.no_grad():
                memory = forward(policy, before, STEPS)[-1]
        order = torch.randperm(ENVIRONMENTS, generator=generator)
        for begin in range(0, ENVIRONMENTS, ROWS):
            rows = order[begin : begin + ROWS]
            batch, use = replace(acted, memory=memory).rows(rows), counts[rows]
            if settings.get("popart"):
                step, found = settings["popart"], batch.returns[use].double()
                mean = (1 - step) * mean + step * float(found.mean())
                square = (1 - step) * square + step * float((found**2).mean())
                deviation = math.sqrt(square - mean**2)
                with torch.no_grad():
                    head: Any = policy.value_net
                    head.weight.mul_(head.scale / deviation)
                    head.bias.copy_((head.scale * head.bias + head.shift - mean) / deviation)
                    head.scale.fill_(deviation), head.shift.fill_(mean)
                units = deviation**-2
            log_probs, values, _, _, auxiliary, _ = forward(policy, batch, settings.get("gradient_window") or STEPS)
            if settings.get("popart"):
                values = policy.value_net.shift + policy.value_net.scale * values  # type: ignore[operator]
            outputs = policy.evaluate_segment(batch, gradient_window=settings.get("gradient_window")).outputs
            pairs = sorted(((float(a), i) for i, a in enumerate(advantages[rows][use])), reverse=True)
            best = [i for _, i in pairs[: (len(pairs) + 1) // 2]]
            chosen, logs = advantages[rows][use][best], log_probs[use][best]
            temperature = eta.exp()
            psi = (chosen / temperature).detach().softmax(0)
            loss = -(psi * logs).sum() + auxiliary
            loss = loss + temperature * (settings.get("eps_eta", 0.1) + (chosen / temperature).exp().mean().log())
            for kind, kl in kl_of(outputs, old[rows], policy.action_head, target.action_head).items():
                alpha, average = alphas[kind].exp(), kl[use].mean()
                loss = loss + alpha * (bounds[kind] - average.detach()) + alpha.detach() * average
                seen["kl"].append(float(average.detach()))
            error = 0.5 * ((batch.returns - values)[use] ** 2).mean()
            loss = loss + settings["vf_coef"] * units * error
            adam.zero_grad(), dual.zero_grad()
            loss.backward()
            gradients = [parameter.grad for parameter in policy.parameters() if parameter.grad is not None]
            norm = float(torch.cat([gradient.flatten() for gradient in gradients]).norm())
            for gradient in gradients:
                gradient.mul_(min(1.0, settings["max_grad_norm"] / (norm + 1e-6)))
            adam.step(), dual.step()
            with torch.no_grad():
                for name, parameter in policy.named_parameters():
                    if name.endswith("span.fraction"):
                        parameter.clamp_(0.0, 1.0)
            seen["norms"].append(norm)
            seen["units"].append(units)
    return policy, {"eta": eta, **alphas}, seen


@pytest.mark.parametrize("name", CASES)
def test_learner_and_multipliers_after_an_update_are_those_of_a_plain_loop(name: str) -> None:
    """In the second update, so that the learner is no longer the target and has a memory of its own."""
    make, kwargs, settings = CASES[name]
    values = {"n_steps": STEPS, "batch_size": ROWS * STEPS, "n_epochs": EPOCHS, "seed": 0, "device": "cpu"}
    model = GTrXLVMPO("GTrXLPolicy", make(), policy_kwargs=kwargs, target_update_interval=10, **(values | settings))  # type: ignore[arg-type]
    loud(model)
    rollout(model)
    model.train()
    acted = rollout(model)
    assert model.carry.target_age == 9 and model.carry.own_memory is not None
    counts = torch.rand(ENVIRONMENTS, STEPS, generator=torch.Generator().manual_seed(3)) < 0.8
    model.carry.segment = acted = replace(acted, counts=counts)
    start = parameters(model.policy)
    policy, multipliers, seen = plain_update(model, acted, model.carry.before, settings)
    model.train()
    # A hundredth of a step of Adam: sums run in another order, and Adam divides by them.
    rate = model.policy.optimizer.param_groups[0]["lr"]
    torch.testing.assert_close(parameters(model.policy), parameters(policy), atol=0.01 * rate, rtol=1e-5)
    assert sum(not torch.equal(start[each], found) for each, found in model.policy.named_parameters()) > 10
    found = {"eta": model.multipliers.log_temperature, **dict(model.multipliers.log_penalties.items())}
    assert found.keys() == multipliers.keys()
    for kind, value in found.items():
        torch.testing.assert_close(value, multipliers[kind], atol=1e-4, rtol=1e-4)  # of steps of 0.01 and more
    # Every rule of the loop had something to do, and the target is a copy after 18 steps.
    assert len(seen["norms"]) == EPOCHS * 3 and min(seen["norms"]) > settings["max_grad_norm"]
    assert min(seen["kl"]) > 1e-4 and (seen["units"][0] != 1.0) == ("popart" in settings)
    assert model.carry.target_age == 0
    assert torch.equal(
        *(torch.nn.utils.parameters_to_vector(each.parameters()) for each in (model.policy, model.target))
    )
    assert isinstance(model.action_space, spaces.Box) == ("mean" in multipliers)
