"""What an ``EvalCallback`` of Stable-Baselines3 needs to evaluate an agent, checked before the agent learns."""

from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, sync_envs_normalization, unwrap_vec_normalize

from rltransformers.core.action_masks import MASK_METHOD
from rltransformers.core.errors import ConfigError
from rltransformers.policies.memory_policy import MemoryPolicy
from rltransformers.training.interval_log import with_inner


def check_eval_callbacks(callback: BaseCallback, env: VecEnv, policy: MemoryPolicy) -> None:
    """Raise ConfigError for an ``EvalCallback`` without the masks of ``policy``, or the statistics of ``env``."""
    for each in with_inner([callback]):
        if isinstance(each, EvalCallback):
            if policy.masks_beside and type(each)._on_step is EvalCallback._on_step and each.eval_freq > 0:
                raise ConfigError(
                    f"EvalCallback does not ask its environment for {MASK_METHOD}(), and the policy acts with masks of "
                    "actions only; take MaskableEvalCallback of sb3-contrib, which has the same arguments"
                )
            if unwrap_vec_normalize(env) is not None:
                try:
                    sync_envs_normalization(env, each.eval_env)
                except (AssertionError, AttributeError) as error:
                    raise ConfigError(
                        f"EvalCallback evaluates in {_wrappers(each.eval_env)}, training runs in {_wrappers(env)}, "
                        "whose statistics go from wrapper to wrapper; make both in the same way, that of evaluation "
                        "with VecNormalize(env, training=False, norm_reward=False)"
                    ) from error


def _wrappers(env: VecEnv) -> str:
    """Names of the vector environment and its wrappers, the outermost first."""
    name = type(env).__name__
    return f"{name}({_wrappers(env.venv)})" if isinstance(env, VecEnvWrapper) else name
