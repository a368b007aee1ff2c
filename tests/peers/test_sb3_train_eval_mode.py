"""What Stable-Baselines3 asks of parts that differ between training and acting: its ``test_train_eval_mode``."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn

from rltransformers.agents import GTrXLDQN, GTrXLPPO, GTrXLSAC
from rltransformers.core.errors import ConfigError
from tests.peers.small import STEPS, WITH_REPLAY, Kind, agent, every_agent


class Normalized(BaseFeaturesExtractor):
    def __init__(self, observation_space: gym.Space[Any], part: str = "BatchNorm1d") -> None:
        super().__init__(observation_space, 3)
        self.part = nn.Dropout(0.5) if part == "Dropout" else nn.BatchNorm1d(3)

    def forward(self, observations: Tensor) -> Tensor:
        return self.part(observations)


class Counting(BaseFeaturesExtractor):
    """The observation itself; counts how often it was read in training mode."""

    count: Tensor

    def __init__(self, observation_space: gym.Space[Any]) -> None:
        super().__init__(observation_space, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, observations: Tensor) -> Tensor:
        if self.training:
            self.count += 1
        return observations


def counts(model: Any, part: str = "policy") -> list[float]:
    """Of every such extractor of the policy; that of a target last."""
    return [float(each.count) for each in getattr(model, part).modules() if isinstance(each, Counting)]


def counting(kind: Kind, **settings: Any) -> Any:
    return agent(kind, policy={"features_extractor_class": Counting}, **settings)


@pytest.mark.parametrize("part", ["BatchNorm1d", "Dropout"])
@every_agent
def test_parts_that_act_otherwise_than_they_learn_are_refused(kind: Kind, part: str) -> None:
    with pytest.raises(ConfigError, match=f"{part}.*acting and training compute different"):
        agent(kind, policy={"features_extractor_class": Normalized, "features_extractor_kwargs": {"part": part}})


@every_agent
def test_acting_is_in_evaluation_mode_and_learning_in_training_mode(kind: Kind) -> None:
    model = counting(kind)
    before = counts(model)
    model.policy.set_training_mode(True)
    model.predict(np.zeros(3, np.float32))
    assert not model.policy.training and counts(model) == before
    _, callback = model._setup_learn(STEPS)
    collected = (model.train_freq, model.replay_buffer) if kind in WITH_REPLAY else (model.rollout_buffer, STEPS)
    model._actor.set_training_mode(True)
    assert model.collect_rollouts(model.env, callback, *collected)
    assert not model._actor.training and counts(model) == before
    model.learn(2 * STEPS)
    assert counts(model)[0] > before[0]


@every_agent
def test_a_prediction_repeats_and_changes_nothing(kind: Kind) -> None:
    model = agent(kind)
    before = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
    observations = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    first, _ = model.predict(observations, deterministic=True)
    for _ in range(3):
        np.testing.assert_array_equal(model.predict(observations, deterministic=True)[0], first)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.policy.state_dict().items())


@every_agent
def test_a_renewed_target_has_the_statistics_of_the_learner(kind: Kind) -> None:
    if kind is GTrXLPPO:
        pytest.skip("it has no target")
    model = counting(kind, **({} if kind is GTrXLSAC else {"target_update_interval": 1}))
    model.learn(2 * STEPS)
    learner, *rest = counts(model)
    assert learner > 1
    if kind is GTrXLSAC:  # its critics read by an extractor of their own
        learner, *rest = rest
    assert (rest if kind in WITH_REPLAY else counts(model, "target")) == [learner]


def test_a_target_of_q_learning_has_them_whatever_its_share_of_the_weights() -> None:
    model = counting(GTrXLDQN, target_update_interval=1, tau=1e-6).learn(2 * STEPS)
    learner, target = counts(model)
    assert target == learner > 1
    assert not torch.equal(model.policy.action_head.linear.weight, model.policy.target["action_head"].linear.weight)
