"""Words of other programs lead to ours."""

import inspect
from functools import partial
from typing import Any

import pytest
import stable_baselines3

from rltransformers.agents import DecisionTransformer, GTrXLDQN, GTrXLPPO, GTrXLSAC
from rltransformers.backbone import Backbone
from rltransformers.cli.main import build_parser
from rltransformers.cli.settings import all_settings, catalogue
from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.core.synonyms import SYNONYMS
from rltransformers.envs import make_vec_env


def test_every_word_leads_to_a_name_that_there_is() -> None:
    keys = {each.key for each in all_settings()}
    commands = build_parser().commands
    options = {
        option.lstrip("-").replace("-", "_") for each in commands.values() for option in each._option_string_actions
    }
    names = {name for each in all_settings() for name in each.names} | {each["name"] for each in catalogue()["presets"]}
    known = (
        keys | {key.rpartition(".")[0] for key in keys} | {*commands} | options | names | {"GTrXLPolicy", "DTPolicy"}
    )
    assert not {ours for meant in SYNONYMS.values() for ours in meant} - known


def test_a_name_of_ours_wins_over_what_it_means_elsewhere_and_case_does_not_matter() -> None:
    assert did_you_mean("window", ["window_size", "band"]) == "did you mean 'band'?"
    assert did_you_mean("GTrXL", ["gpt", "gtrxl"]) == "did you mean 'gtrxl'?"
    assert did_you_mean("--N-Layers", ["layers", "heads"]) == "did you mean 'layers'?"


PPO = partial(GTrXLPPO, "GTrXLPolicy", "CartPole-v1")
SAC = partial(GTrXLSAC, "GTrXLSACPolicy", "Pendulum-v1")


@pytest.mark.parametrize(
    ("make", "keywords", "way"),
    [
        (PPO, {"lr": 1}, "'learning_rate'"),
        (PPO, {"net_arch": [64]}, "policy_kwargs={'backbone': {'width': ...}}"),
        (PPO, {"width": 64}, "policy_kwargs={'backbone': {'width': ...}}"),
        (PPO, {"policy_kwargs": {"gate": "gru"}}, "'backbone': {'residual': ...}"),
        (GTrXLPPO, {"policy": "MlpLstmPolicy", "env": "CartPole-v1"}, "'GTrXLPolicy'"),
        (DecisionTransformer, {"policy": "DTPolicy", "n_layers": 3}, "policy_kwargs={'backbone': {'layers': ...}}"),
        (DecisionTransformer, {"policy": "DTPolicy", "K": 20}, "'context_length'"),
        (SAC, {"n_steps": 3}, "'n_step'"),
        (SAC, {"target_update_interval": 1}, "'tau'"),
        (make_vec_env, {"env_id": "CartPole-v1", "n_envs": 3}, "'num_envs'"),
        (Backbone, {"config": {"n_head": 3}}, "'heads'"),
        (Backbone, {"config": {"position": "relative"}}, "'trxl' or 'shaw'"),
    ],
)
def test_constructors_say_what_a_word_of_others_is_called_here(make: Any, keywords: dict[str, Any], way: str) -> None:
    with pytest.raises((ConfigError, TypeError)) as refusal:
        make(**keywords)
    assert f"did you mean {way}" in str(refusal.value)


@pytest.mark.parametrize("agent", [GTrXLPPO, GTrXLDQN, GTrXLSAC])
def test_arguments_of_stable_baselines3_without_an_equivalent_say_so(agent: Any) -> None:
    theirs = inspect.signature(getattr(stable_baselines3, agent.__name__.removeprefix("GTrXL"))).parameters
    for name in [name for name in theirs if name not in inspect.signature(agent).parameters]:
        with pytest.raises(TypeError, match=rf"no argument '{name}'; .*(leave it out|did you mean '(n_step|tau|expl))"):
            agent(next(iter(agent.policy_aliases)), "CartPole-v1", **{name: None})
