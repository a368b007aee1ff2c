"""Which agents a config may name, and the keywords that each takes in ``algorithm`` and ``policy``."""

from collections.abc import Mapping
from inspect import signature
from typing import Any, Literal, get_type_hints

from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.sac.policies import SACPolicy

from rltransformers.agents.decision_transformer import DecisionTransformer
from rltransformers.agents.gtrxl_dqn import GTrXLDQN
from rltransformers.agents.gtrxl_ppo import GTrXLPPO
from rltransformers.agents.gtrxl_sac import GTrXLSAC
from rltransformers.agents.gtrxl_vmpo import GTrXLVMPO
from rltransformers.backbone import BackboneConfig
from rltransformers.cli.settings import SET_ELSEWHERE, refuse_set_elsewhere
from rltransformers.core.device import find_device
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import annotations, check, check_settings
from rltransformers.envs.make import check_wrapper
from rltransformers.policies.observed import read_observation
from rltransformers.policies.readouts.catalogue import read_readout
from rltransformers.policies.token_backbone import check_dropout
from rltransformers.training.offline.settings import USUAL_CONTEXT, PolicySettings, backbone_config
from rltransformers.training.online.on_policy_agent import check_batch_size
from rltransformers.training.online.online_agent import OnlineAgent
from rltransformers.training.runs.experiment import BASELINES, AgentName, ExperimentConfig

MEMORY_AGENTS: Mapping[AgentName, type[OnlineAgent]] = {
    AgentName.GTRXL_PPO: GTrXLPPO,
    AgentName.GTRXL_VMPO: GTrXLVMPO,
    AgentName.GTRXL_DQN: GTrXLDQN,
    AgentName.GTRXL_SAC: GTrXLSAC,
}
"""Online agents of this package."""
AGENT_CLASSES: Mapping[AgentName, type[Any]] = {
    **MEMORY_AGENTS,
    AgentName.DECISION_TRANSFORMER: DecisionTransformer,
    AgentName.RECURRENT_PPO: RecurrentPPO,
    AgentName.PPO: PPO,
    AgentName.SAC: SAC,
}
BASELINE_POLICIES: Mapping[AgentName, type[Any]] = {
    AgentName.RECURRENT_PPO: RecurrentActorCriticPolicy,
    AgentName.PPO: ActorCriticPolicy,
    AgentName.SAC: SACPolicy,
}
"""Classes whose keywords ``policy`` takes for agents of Stable-Baselines3."""
OBJECTS = (
    "action_noise",
    "replay_buffer_class",
    "replay_buffer_kwargs",
    "rollout_buffer_class",
    "rollout_buffer_kwargs",
)
"""Keywords of agents of Stable-Baselines3 whose values no YAML has."""
Cell = Literal["lstm", "gru"]  # what remembers in ``recurrent_ppo``


def keyword_hints(agent: AgentName) -> dict[str, Any]:
    """The keywords that ``algorithm`` takes for an agent, with their annotations.

    A keyword of a baseline that the agent of this package with the same algorithm has too has its range.
    """
    hints = annotations(AGENT_CLASSES[agent].__init__, VecEnv=VecEnv)  # a name that Stable-Baselines3 leaves open
    if agent in BASELINES:
        ours = annotations((GTrXLSAC if agent is AgentName.SAC else GTrXLPPO).__init__)
        hints = {name: ours.get(name, hint) for name, hint in hints.items() if name not in OBJECTS}
    return {name: hint for name, hint in hints.items() if name not in SET_ELSEWHERE}


def policy_class(agent: AgentName) -> type[Any]:
    """The class whose keywords ``policy`` takes for an agent."""
    if agent in MEMORY_AGENTS:
        return next(iter(MEMORY_AGENTS[agent].policy_aliases.values()))
    return PolicySettings if agent is AgentName.DECISION_TRANSFORMER else BASELINE_POLICIES[agent]


def policy_hints(agent: AgentName) -> dict[str, Any]:
    """The keywords that ``policy`` takes for an agent, without the backbone, with their annotations."""
    of_dt = agent is AgentName.DECISION_TRANSFORMER
    hints = get_type_hints(PolicySettings, include_extras=True) if of_dt else annotations(policy_class(agent).__init__)
    hints |= {"cell": Cell} if agent is AgentName.RECURRENT_PPO else {}
    without = ("observation_space", "action_space", "lr_schedule", "use_sde", "backbone")
    return {name: hint for name, hint in hints.items() if name not in without}


def check_config(config: ExperimentConfig, new: bool = True) -> None:
    """Raise ConfigError unless a config can work as far as it shows; without ``new`` only values by themselves."""
    check_keywords(config.agent, config.algorithm, config.policy)
    if not new:
        return
    for wrapper in config.environment.wrappers:
        check_wrapper(wrapper)
    read_observation(config.policy.get("observation"), "policy.observation")
    read_readout(config.policy.get("readout"), "policy.readout")
    defaults = {name: each.default for name, each in signature(AGENT_CLASSES[config.agent].__init__).parameters.items()}
    algorithm = defaults | config.algorithm
    if config.agent in MEMORY_AGENTS:
        check_dropout(BackboneConfig.from_dict(config.backbone or {}))
        if "n_steps" in algorithm:
            check_batch_size(algorithm["batch_size"], algorithm["n_steps"])
    elif config.agent is AgentName.DECISION_TRANSFORMER:
        context = algorithm["context_length"] or USUAL_CONTEXT  # None fits data, which only the run reads
        backbone_config(offline_policy(config), algorithm["mode"], context, algorithm["return_in"])


def offline_policy(config: ExperimentConfig) -> dict[str, Any]:
    """The ``policy_kwargs`` of a ``DecisionTransformer`` for a config."""
    return dict(config.policy) | ({"backbone": config.backbone} if config.backbone else {})


def check_keywords(agent: AgentName, algorithm: Mapping[str, Any], policy: Mapping[str, Any] | None = None) -> None:
    """Raise ConfigError unless ``algorithm`` and ``policy`` hold keywords of the agent, each in its range.

    The message has the full name of the setting, as algorithm.gamma, and the closest keyword or where it is set.
    """
    refuse_set_elsewhere(algorithm)
    check_settings(keyword_hints(agent), algorithm, "algorithm.")
    if agent in BASELINES and algorithm.get("batch_size") == 1 and algorithm.get("normalize_advantage", True):
        raise ConfigError("algorithm.batch_size is 1, but one advantage has no deviation to be normalized by; raise it")
    find_device(algorithm.get("device", "auto"), "algorithm.device")
    if agent in MEMORY_AGENTS:
        MEMORY_AGENTS[agent].check_policy(policy or {}, "policy.")
    elif agent is AgentName.DECISION_TRANSFORMER:
        check(policy or {}, PolicySettings, "policy")
    else:
        check_settings(policy_hints(agent), policy or {}, "policy.")
