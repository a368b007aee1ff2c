"""The policy module: optional inputs, heads, sampling, state records, separate value backbone."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.spaces import leaf_spaces
from rltransformers.policies.actor_critic import Evaluation, GTrXLPolicy
from rltransformers.policies.observations import fit_observation
from rltransformers.policies.policy_state import PolicyState, StepInputs, with_reward

VECTOR = spaces.Box(-1.0, 1.0, (3,))
ACTIONS: dict[str, gym.Space[Any]] = {
    "discrete": spaces.Discrete(3),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(2),
    "box": spaces.Box(-9.0, 9.0, (2,)),
}
BACKBONE = {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4}


def one_step(
    model: GTrXLPolicy, observations: dict[str, torch.Tensor], state: PolicyState, first: torch.Tensor
) -> Evaluation:
    """One step of every environment as a segment, with its auxiliary loss."""
    inputs = StepInputs(
        {path: leaf.unsqueeze(1) for path, leaf in observations.items()},
        {path: leaf.unsqueeze(1) for path, leaf in state.previous_action.items()},
        state.previous_reward.unsqueeze(1),
        first.unsqueeze(1),
    )
    return model.evaluate(inputs, state)


def policy(action_space: gym.Space[Any] = ACTIONS["discrete"], **kwargs: Any) -> GTrXLPolicy:
    return GTrXLPolicy(VECTOR, action_space, lambda _: 1e-3, **{"backbone": BACKBONE, **kwargs})


def act(
    model: GTrXLPolicy, seed: int | None = 0, rows: int = 4, **kwargs: Any
) -> tuple[Tensor, Tensor, Tensor, PolicyState]:
    """One step of a bare action space; without a seed the most likely actions."""
    noise = None if seed is None else model.action_head.draw(rows, torch.Generator().manual_seed(seed))
    observation = torch.arange(rows * 3).reshape(rows, 3) / 10
    state = kwargs.pop("state", model.initial_state(rows))
    first = kwargs.pop("first", torch.ones(rows, dtype=torch.bool))
    actions, values, log_probs, after = model.step({"": observation}, state, first, noise)
    return actions[""], values, log_probs, after


@pytest.mark.parametrize("name", ACTIONS)
def test_samples_follow_their_own_generator(name: str) -> None:
    model = policy(ACTIONS[name])
    global_state = torch.get_rng_state()
    actions, values, log_probs, _ = act(model, rows=4)
    again = act(model, rows=4)[0]
    assert torch.equal(actions, again) and not torch.equal(torch.cat([act(model, s)[0] for s in range(1, 9)]),
                                                          actions.repeat(8, *[1] * (actions.dim() - 1)))  # fmt: skip
    assert torch.equal(torch.get_rng_state(), global_state)
    assert values.shape == log_probs.shape == (4,)


@pytest.mark.parametrize("name", ACTIONS)
def test_the_deterministic_action_is_the_most_likely_one(name: str) -> None:
    model = policy(ACTIONS[name])
    actions, _, log_probs, _ = act(model, seed=None)
    for seed in range(20):
        other = act(model, seed)[2]
        assert bool((other <= log_probs + 1e-6).all())
    assert torch.equal(actions, act(model, seed=None)[0])


@pytest.mark.parametrize("option", ["previous_action", "previous_reward", "first_step"])
def test_an_optional_input_is_seen_and_only_after_the_first_step(option: str) -> None:
    model, plain = policy(ACTIONS["discrete"], **{option: True}), policy()
    observation = {"": torch.zeros(2, 1, 3)}
    actions, rewards = {"": torch.tensor([[0], [2]])}, torch.tensor([[0.0], [5.0]])

    def values(model: GTrXLPolicy, first: bool) -> Tensor:
        flags = torch.tensor([[first], [first]])
        with torch.no_grad():
            inputs = StepInputs(observation, actions, rewards, flags)
            return model.evaluate(inputs, model.initial_state(2)).values[:, 0]

    assert float((values(plain, False)[0] - values(plain, False)[1]).abs()) == 0.0
    later, first = values(model, False), values(model, True)
    assert float((first[0] - first[1]).abs()) == 0.0
    if option == "first_step":
        assert float((later - first).abs().min()) > 1e-4
    else:
        assert float((later[0] - later[1]).abs()) > 1e-4


def test_a_separate_value_backbone_shares_nothing_with_the_actor() -> None:
    model = policy(shared_backbone=False)
    result = one_step(model, {"": torch.randn(2, 3)}, model.initial_state(2), torch.ones(2, dtype=torch.bool))
    result.values.sum().backward()
    assert all(parameter.grad is None for parameter in model.actor.parameters())
    assert model.critic is not None
    assert any(parameter.grad is not None for parameter in model.critic.parameters())


def test_a_hidden_layer_in_front_of_the_heads_is_used() -> None:
    model = policy(head_width=5)
    assert model.value_net.in_features == 5
    result = one_step(model, {"": torch.randn(2, 3)}, model.initial_state(2), torch.ones(2, dtype=torch.bool))
    (result.values.sum() + model.action_head.entropy(result.outputs).sum()).backward()
    assert all(
        parameter.grad is not None
        for parameter in (*model.value_hidden.parameters(), *model.action_hidden.parameters())
    )


def test_first_action_probabilities_are_nearly_equal() -> None:
    model = policy()
    result = one_step(model, {"": torch.randn(50, 3)}, model.initial_state(50), torch.ones(50, dtype=torch.bool))
    assert (
        float(model.action_head.entropy(result.outputs).detach().min()) > np.log(3) - 1e-2
    )  # gain 0.01 leaves logits of about 0.01


def test_state_rows_can_be_chosen_and_survive_storage() -> None:
    model = policy(shared_backbone=False, previous_action=True)
    state = with_reward(act(model)[3], np.arange(4.0))
    rows = state[torch.tensor([2, 0])]
    assert rows.batch_size == 2 and rows.previous_reward.tolist() == [2.0, 0.0]
    copied = PolicyState.from_tensors(state.tensors())
    no = torch.zeros(4, dtype=torch.bool)
    for a, b in zip(act(model, state=state, first=no)[:3], act(model, state=copied, first=no)[:3], strict=True):
        assert torch.equal(a, b)


def test_acting_on_and_recomputing_the_cache_agree() -> None:
    model = policy()
    state = act(model)[3]
    renewed = model.with_cache(model.without_cache(state))
    no = torch.zeros(4, dtype=torch.bool)
    expected, found = (model.values({"": torch.ones(4, 3)}, s, no) for s in (state, renewed))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shared", [True, False])
def test_auxiliary_losses_are_weighted_and_reach_their_parameters(shared: bool) -> None:
    """The mean span of a layer is its share of the memory of 4: 1 and 3 tokens, from one backbone or from two."""
    spans = [{"name": "adaptive", "initial": share} for share in (0.25, 0.75)]
    backbone = {**BACKBONE, "preset": "adaptive_span", "layers": 2, "span": spans, "losses": {"span": 0.3}}
    model = policy(backbone=backbone, shared_backbone=shared)
    result = one_step(model, {"": torch.randn(2, 3)}, model.initial_state(2), torch.ones(2, dtype=torch.bool))
    assert result.auxiliary_loss is not None
    torch.testing.assert_close(result.auxiliary_loss, torch.tensor(0.3 * (1 + 3) * (1 if shared else 2)))
    result.auxiliary_loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert len(gradients) == (2 if shared else 4)
    for gradient in gradients.values():
        torch.testing.assert_close(gradient, torch.full((2,), 0.3 * 4 / 2))


def test_observations_are_taken_with_and_without_a_batch_axis() -> None:
    space = spaces.Dict({"x": VECTOR, "n": spaces.Discrete(4)})
    single, batched = fit_observation(leaf_spaces(space), {"x": np.zeros(3), "n": 2})
    assert not batched and single["x"].shape == (1, 3) and single["n"].shape == (1,)
    many, batched = fit_observation(leaf_spaces(space), {"x": np.zeros((5, 3)), "n": np.zeros(5, int)})
    assert batched and many["n"].shape == (5,)
    with pytest.raises(DataError, match="some leaves of the observation have a batch axis"):
        fit_observation(leaf_spaces(space), {"x": np.zeros((5, 3)), "n": 2})
    with pytest.raises(DataError, match="lacks 'n'"):
        fit_observation(leaf_spaces(space), {"x": np.zeros(3)})


def test_a_policy_without_state_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a state"):
        policy()._predict(np.zeros(3))
    with pytest.raises(ConfigError, match="state must be what predict returned"):
        policy().predict(np.zeros(3, np.float32), state=(1, 2))
