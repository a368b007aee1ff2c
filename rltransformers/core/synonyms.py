"""What other programs call our settings and names, for "did you mean" in Python, YAML and on the command line."""

from collections.abc import Iterable

_WORDS = {
    "agent": "algo algorithm_name model model_type",
    "environment": "env",
    "environment.id": "env_id env_name gym_id environment_id environment_name task",
    "environment.num_envs": "n_envs nenvs num_environments num_env num_workers num_actors",
    "environment.kwargs": "env_kwargs env_config env_args",
    "environment.wrappers": "env_wrapper env_wrappers wrapper wrapper_class",
    "environment.processes": "vec_env vec_env_cls vec_env_type async asynchronous",
    "environment.normalize_observation": "normalize norm_obs normalize_obs vec_normalize",
    "environment.normalize_reward": "normalize norm_reward normalize_rewards vec_normalize",
    "environment.novelty_bonus": "intrinsic_reward exploration_bonus count_bonus curiosity",
    "train.total_timesteps": "steps timesteps total_steps n_timesteps max_timesteps max_steps num_timesteps",
    "train.gradient_steps": "steps timesteps max_steps max_iters train_steps n_updates num_updates updates",
    "dataset.id": "data dataset_id dataset_name dataset_path",
    "evaluation.every": "eval_freq eval_every eval_steps eval_interval evaluation_interval",
    "evaluation.episodes": "n_eval_episodes eval_episodes num_eval_episodes n_episodes num_episodes",
    "evaluation.target_returns": "target_return rtg return_to_go target_rtg env_targets desired_return",
    "output": "log_dir logdir output_dir out save_dir save_path log_path log_folder run_dir",
    "seed": "random_seed random_state rng",
    "threads": "num_threads n_threads torch_num_threads",
    "algorithm.learning_rate": "lr learningrate step_size anneal_lr lr_schedule",
    "algorithm.n_steps": "num_steps nsteps rollout_length rollout_steps unroll_length horizon rollout_fragment_length",
    "algorithm.segment_length": "unroll_length sequence_length seq_len trace_length",
    "algorithm.batch_size": "minibatch_size mini_batch_size num_minibatches n_minibatches nminibatches batch",
    "algorithm.n_epochs": "epochs num_epochs update_epochs noptepochs num_sgd_iter",
    "algorithm.gamma": "discount discount_factor",
    "algorithm.discount": "gamma discount_factor",
    "algorithm.gae_lambda": "lambda lambda_ lam gae td_lambda lmbda",
    "algorithm.clip_range": "clip clip_coef cliprange clip_param clip_eps clip_epsilon",
    "algorithm.clip_range_vf": "clip_vloss vf_clip_param cliprange_vf",
    "algorithm.normalize_advantage": "norm_adv normalize_advantages",
    "algorithm.ent_coef": "entropy entropy_coef entropy_coeff ent entropy_cost",
    "algorithm.vf_coef": "value_coef vf_coeff vf_loss_coeff value_loss_coef baseline_cost",
    "algorithm.max_grad_norm": "grad_clip clip_grad gradient_clip grad_norm clip_grad_norm gradient_clipping",
    "algorithm.buffer_size": "buffer replay_size replay_buffer_size replay_capacity",
    "algorithm.n_step": "n_steps nstep n_step_returns multi_step",
    "algorithm.tau": "polyak target_update_tau target_update_interval",
    "algorithm.target_update_interval": "target_network_frequency target_update target_network_update_freq",
    "algorithm.exploration": "epsilon eps_greedy exploration_fraction exploration_initial_eps exploration_final_eps "
    "start_e end_e",
    "algorithm.train_freq": "train_frequency update_every",
    "algorithm.prioritized": "prioritized_replay per prioritised",
    "algorithm.action_head": "stochastic stochastic_policy gmm mdn diffusion",
    "algorithm.chunk": "chunk_size chunk_length action_chunk prediction_horizon pred_horizon horizon num_queries",
    "algorithm.decide_every": "execute n_action_steps action_horizon execution_horizon replan_every",
    "algorithm.context_length": "k context context_len context_size max_length seq_len sequence_length block_size",
    "algorithm.warmup_steps": "warmup warmup_ratio num_warmup_steps",
    "algorithm.return_scale": "rtg_scale return_to_go_scale",
    "policy.head_width": "head_hidden mlp_width",
    "policy.lstm_hidden_size": "hidden_size hidden_dim hidden d_model rnn_hidden_size",
    "policy.n_lstm_layers": "n_layers num_layers n_layer layers",
    "policy.features_extractor_class": "features_extractor feature_extractor cnn encoder_class",
    "policy.log_std_init": "log_std init_log_std",
    "policy.action_masks": "action_mask mask_actions masking",
    "backbone": "network backbone_config transformer_kwargs",
    "backbone.preset": "gtrxl transformer transformer_xl architecture arch model network",
    "backbone.width": "d_model hidden_size hidden_dim hidden embed_dim embedding_dim n_embd model_dim emb_dim "
    "transformer_dim lstm_hidden_size rnn_hidden_size attention_dim net_arch features_dim",
    "backbone.layers": "n_layers num_layers n_layer num_hidden_layers n_lstm_layers num_blocks n_blocks "
    "num_transformer_units num_encoder_layers net_arch",
    "backbone.heads": "n_head n_heads num_heads num_attention_heads nhead attention_num_heads num_head",
    "backbone.kv_heads": "num_key_value_heads n_kv_heads num_kv_heads",
    "backbone.head_dim": "d_head attention_head_dim dim_head",
    "backbone.memory": "window mem_len memory_len memory_length memory_size memory_inference memory_training "
    "attention_window window_size sliding_window lstm_memory",
    "backbone.memory_kind": "memory_type",
    "backbone.mixer": "attention attention_type attn attention_class attention_kind",
    "backbone.pattern": "window attention attention_window window_size sliding_window attention_type attn sparsity",
    "backbone.position": "relative positional_encoding position_encoding pos_encoding pos_emb pos_embed positions "
    "positional_embedding position_embedding position_embedding_type relative_position rope rotary",
    "backbone.residual": "gate gates gating gated gru_gate gate_type init_gru_gate_bias layer_norm norm_first "
    "pre_norm prenorm post_norm layer_norm_type",
    "backbone.norm": "norm_type norm_layer rms_norm rmsnorm use_rms_norm",
    "backbone.ff": "activation activation_fn activation_function hidden_act act_fn mlp feedforward feed_forward",
    "backbone.ff_width": "d_ff dim_feedforward n_inner intermediate_size ffn_dim d_inner position_wise_mlp_dim mlp_dim",
    "backbone.dropout": "dropout_rate attn_pdrop resid_pdrop embd_pdrop attention_dropout hidden_dropout_prob drop",
    "backbone.checkpoint": "gradient_checkpointing use_checkpoint",
    "backbone.compute_dtype": "dtype torch_dtype precision bf16 fp16 amp",
    # Values and names
    "gtrxl_ppo": "gtrxl ppo transformer_ppo ppo_trxl trxl_ppo",
    "gtrxl_vmpo": "gtrxl vmpo v_mpo",
    "gtrxl_dqn": "gtrxl dqn r2d2 drqn dtqn",
    "gtrxl_sac": "gtrxl sac soft_actor_critic",
    "decision_transformer": "dt bc offline",
    "recurrent_ppo": "lstm gru ppo_lstm recurrentppo lstm_ppo",
    "ppo": "mlp memoryless",
    "GTrXLPolicy": "mlppolicy cnnpolicy multiinputpolicy mlplstmpolicy cnnlstmpolicy multiinputlstmpolicy",
    "DTPolicy": "mlppolicy cnnpolicy multiinputpolicy",
    "gpt": "gpt2 decoder causal",
    "trxl": "relative transformer_xl xl",
    "shaw": "relative",
    "rope": "rotary",
    "softmax": "attention dot_product scaled_dot_product self_attention multihead mha",
    "full": "causal dense",
    "band": "window local sliding_window windowed",
    "gru": "gate gated gating gtrxl",
    "pre_ln": "pre_norm prenorm pre_layer_norm",
    "post_ln": "post_norm postnorm post_layer_norm",
    "train": "run fit learn start resume continue",
    "evaluate": "eval test play enjoy watch rollout render",
    "collect": "record generate",
    "tune": "optimize optimise sweep search hyperopt hpo",
    "show": "print config dump",
    "list": "ls presets agents configs",
    "settings": "options params parameters hyperparameters explain",
    "inspect": "check describe info",
    "export": "convert onnx save",
    "behavior": "behaviour policy",
    "overwrite": "force",
    "num_envs": "n_envs jobs",
}
"""What we call it → what others do, in lower case; a setting by its dotted key in a config."""


_VALUES = {"stochastic": "gaussian", "stochastic_policy": "gaussian", "gmm": "mixture", "mdn": "mixture"}
"""Words of others that are one value of what we call so."""


_GSDE = "there is no exploration that depends on the state (gSDE); leave it out, ent_coef makes an agent explore more"
_REPLAY = "a replay always keeps segments; leave it out, its settings are buffer_size and segment_length"
_ROLLOUT = "a rollout always keeps segments; leave it out, their length is n_steps"
WITHOUT_EQUIVALENT = {
    "use_sde": _GSDE,
    "use_sde_at_warmup": _GSDE,
    "sde_sample_freq": _GSDE,
    "action_noise": "no noise is added to actions, which the policy samples itself; leave it out",
    "optimize_memory_usage": "leave it out: a replay stores every observation once",
    "replay_buffer_class": _REPLAY,
    "replay_buffer_kwargs": _REPLAY,
    "rollout_buffer_class": _ROLLOUT,
    "rollout_buffer_kwargs": _ROLLOUT,
}
"""Words of others for what we do not have, and what to do instead."""


SYNONYMS: dict[str, tuple[str, ...]] = {}  # a word of others → what we call it
for _ours, _theirs in _WORDS.items():
    for _word in _theirs.split():
        SYNONYMS[_word] = (*SYNONYMS.get(_word, ()), _ours)


def meant_by(word: object) -> tuple[str, ...]:
    """Our names for a word of others, in any case of letters and with any dashes."""
    return SYNONYMS.get(_plain(word), ())


def with_value(ours: str, word: object) -> str:
    """A setting of ours for a message, with the value that a word of others stands for: "'action_head': 'gaussian'"."""
    name, value = ours.rpartition(".")[2], _VALUES.get(_plain(word))
    if value is None or name not in [each.rpartition(".")[2] for each in meant_by(word)]:
        return repr(ours)
    return f"{ours!r}: {value!r}"


def _plain(word: object) -> str:
    return str(word).lower().lstrip("-").replace("-", "_")


def ways_to(word: object, known: Iterable[str]) -> list[str]:
    """What to write for a word of others where only the names ``known`` are taken, ready for a message.

    A setting of the backbone or the policy is reached through ``backbone`` or ``policy_kwargs`` where there is no other
    way, as in constructors of agents.
    """
    names = {each.lstrip("-").replace("-", "_"): each for each in known}
    ways = []
    for key in (*meant_by(word), *(key for key in _WORDS if key.endswith(f".{word}"))):
        section, _, name = key.rpartition(".")
        inside = f"{{{name!r}: ...}}"
        if key in names or name in names:
            ways.append(with_value(names.get(key, names.get(name, "")), word))
        elif section == "backbone" and "backbone" in names:
            ways.append(f"'backbone': {inside}")
        elif section == "backbone" and "policy_kwargs" in names:
            ways.append(f"policy_kwargs={{'backbone': {inside}}}")
        elif section == "policy" and "policy_kwargs" in names and "lstm" not in name:  # of the baseline, not of a class
            ways.append(f"policy_kwargs={inside}")
    return list(dict.fromkeys(ways))
