"""What sb3-contrib asks of its recurrent agent, of those with a transformer in its place: its ``test_lstm``.

Pictures, Dicts and actions of several axes are in test_sb3_save_load.py and test_sb3_spaces.py, scores in tests/agents.
"""

from typing import Any

import pytest

from rltransformers.agents import GTrXLDQN, GTrXLPPO, GTrXLVMPO
from rltransformers.core.errors import ConfigError
from tests.agents.tiny_envs import PixelCue
from tests.peers.small import BACKBONE, STEPS, Kind, agent, every_agent

SHAPES: dict[str, dict[str, Any]] = {
    "two backbones": {"shared_backbone": False},
    "a wide head": {"head_width": 16},
    "two layers": {"backbone": BACKBONE | {"layers": 2}},
    "no memory": {"backbone": BACKBONE | {"memory": 0}},
}


@pytest.mark.parametrize("shape", SHAPES)
@every_agent
def test_policies_of_every_shape_learn(kind: Kind, shape: str) -> None:
    if kind is GTrXLDQN and "shared_backbone" in SHAPES[shape]:
        with pytest.raises(ConfigError, match="shared_backbone"):  # it has no values beside those of its actions
            agent(kind, policy=SHAPES[shape])
        return
    model = agent(kind, policy=SHAPES[shape])
    before = [weight.clone() for weight in model.policy.parameters()]
    model.learn(2 * STEPS)
    assert any((weight != old).any() for weight, old in zip(model.policy.parameters(), before, strict=True))


@pytest.mark.parametrize("kind", [GTrXLPPO, GTrXLVMPO])
def test_two_backbones_have_an_encoder_of_pictures_each(kind: Kind) -> None:
    env = PixelCue((40, 40, 3))
    sizes = [sum(weight.numel() for weight in agent(kind, env, policy=shape).policy.parameters())
             for shape in ({}, {"shared_backbone": False})]  # fmt: skip
    assert sizes[1] > 1.9 * sizes[0]
    agent(kind, env, policy={"shared_backbone": False}).learn(STEPS)


@every_agent
def test_settings_that_contradict_each_other_are_refused_before_training(kind: Kind) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"backbone": BACKBONE | {"dropout": 0.5}}, "must be 0 online"),
        ({"backbone": BACKBONE | {"heads": 3}}, "must divide width"),
        ({"features_extractor_kwargs": {"features_dim": 3}}, "no effect without a features_extractor_class"),
        ({"lstm_hidden_size": 4}, "lstm_hidden_size"),
    ]
    for policy, words in cases:
        with pytest.raises(ConfigError, match=words):
            agent(kind, policy=policy)


def test_values_may_be_clipped() -> None:
    assert agent(GTrXLPPO, clip_range_vf=0.1).learn(2 * STEPS)._n_updates == 2
