"""Checkpoints of Hugging Face's Decision Transformer as weights of ours; nothing in them is executed.

``transformers.DecisionTransformerModel`` is GPT-2 without positions of its own: tokens of return, state and action plus
one learned vector per environment step, a LayerNorm, pre-norm layers with biases, a LayerNorm, a linear map and tanh.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Le
from gymnasium import spaces
from torch import Tensor

from rltransformers.backbone import BackboneConfig
from rltransformers.core.checkpoint import contents_of, load_weights
from rltransformers.core.errors import CheckpointError, ConfigError, one_line, require
from rltransformers.core.files import read_json
from rltransformers.core.ranges import DropoutRate, PositiveNumber, check_fields, shown
from rltransformers.policies.stored_size import check_stored_size

EXTRA = "huggingface"
HUGGINGFACE_MODEL = "Hugging Face DecisionTransformerModel"
CONFIG, SAFE, PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"
ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu",
    "swish": "silu",
}  # fmt: skip
"""Their names → ours."""
EPSILON = 1e-5
"""Of every LayerNorm here."""
UNUSED = ("encoder.wte.weight", "predict_state.weight", "predict_state.bias", "predict_return.weight",
          "predict_return.bias")  # fmt: skip
"""Weights that acting does not read: there are no words, and states and returns are predicted for training at most."""
CAUSAL_MASKS = (".attn.bias", ".attn.masked_bias")
"""Ends of names; older releases of transformers store them beside the weights."""
_Count = Annotated[int, Ge(1), Le(1_000_000)]


@dataclass(frozen=True)
class Configuration:
    """Entries of ``config.json`` that decide what the model computes; names and defaults are theirs."""

    state_dim: _Count = 17
    act_dim: _Count = 4
    hidden_size: _Count = 128
    max_ep_len: _Count = 4096
    action_tanh: bool = True
    n_layer: _Count = 3
    n_head: _Count = 1
    n_inner: _Count | None = None
    activation_function: str = "relu"
    resid_pdrop: DropoutRate = 0.1
    layer_norm_epsilon: PositiveNumber = EPSILON
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.activation_function not in ACTIVATIONS:
            raise ConfigError(
                f"activation_function {self.activation_function!r} has no counterpart here; those with one: "
                f"{', '.join(ACTIVATIONS)}"
            )
        if self.layer_norm_epsilon != EPSILON:
            raise ConfigError(f"layer_norm_epsilon is {self.layer_norm_epsilon:g}, LayerNorms here have {EPSILON:g}")
        if self.add_cross_attention:
            raise ConfigError("add_cross_attention is set, and the Decision Transformer has nothing to attend to there")

    def backbone(self, context_length: int) -> BackboneConfig:
        """The same stack, for windows of ``context_length`` steps."""
        return BackboneConfig.from_dict(
            {
                "preset": "decision_transformer",
                "width": self.hidden_size,
                "layers": self.n_layer,
                "heads": self.n_head,
                "ff_width": self.n_inner or 4 * self.hidden_size,
                "ff": {"name": "ffn", "activation": ACTIVATIONS[self.activation_function]},
                "position": {"name": "timestep", "max_len": self.max_ep_len},
                "attention_bias": True,
                "memory": context_length - 1,
                "dropout": float(self.resid_pdrop),
            }
        )

    def query_scale(self, layer: int) -> float:
        """Factor of the queries of the published model, in units of 1 / sqrt(head width), which ours always are."""
        scale = 1.0 if self.scale_attn_weights else math.sqrt(self.hidden_size // self.n_head)
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale


@dataclass(frozen=True)
class PublishedModel:
    """A model of Hugging Face in our terms: what it is built from, its weights, and the units of its observations."""

    backbone: BackboneConfig
    spaces: tuple[spaces.Box, spaces.Box]
    weights: dict[str, Tensor]
    statistics: dict[str, tuple[Tensor, Tensor]] | None


def read_huggingface(
    folder: str | os.PathLike[str], context_length: int, state_mean: Any = None, state_std: Any = None
) -> PublishedModel:
    """Read the model in a folder, in float32; arguments and errors are those of ``from_huggingface``."""
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise CheckpointError(f"there is no folder {place}; pass one that save_pretrained wrote or the Hub holds")
    try:
        configuration = _configuration(place / CONFIG)
        backbone = configuration.backbone(context_length)
    except ConfigError as error:
        raise ConfigError(f"{place / CONFIG}: {error}") from error
    stored = _weights(place)
    weights = {name: stored[name] for name in stored if name not in UNUSED and not name.endswith(CAUSAL_MASKS)}
    with contents_of(place, HUGGINGFACE_MODEL):
        check_stored_size(backbone, weights)
        weights = _translated(configuration, weights)
    statistics = None
    if (state_mean is None) != (state_std is None):
        raise ConfigError("give both state_mean and state_std, or neither; the model card lists them")
    if state_mean is not None:
        mean = _statistic(configuration, "state_mean", state_mean)
        deviation = _statistic(configuration, "state_std", state_std)
        if not bool((deviation > 0).all()):
            raise ConfigError(
                f"state_std must be above 0 everywhere, its smallest number is {float(deviation.min()):g}"
            )
        statistics = {"": (mean, deviation)}
        weights |= {"observation_mean_0": mean, "observation_deviation_0": deviation}
    observation_space = spaces.Box(-np.inf, np.inf, (configuration.state_dim,), np.float32)
    bound = 1.0 if configuration.action_tanh else np.inf  # what the model puts out is the action as it is
    action_space = spaces.Box(-bound, bound, (configuration.act_dim,), np.float32)
    return PublishedModel(backbone, (observation_space, action_space), weights, statistics)


def _statistic(configuration: Configuration, name: str, values: Any) -> Tensor:
    """Read one number for each component of a state."""
    try:
        array = np.array(values, np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be {configuration.state_dim} numbers, got {shown(values)}") from error
    if array.shape != (configuration.state_dim,) or not np.isfinite(array).all():
        raise ConfigError(
            f"{name} must be {configuration.state_dim} finite numbers, got {array.shape}: {shown(values)}"
        )
    return torch.as_tensor(array)


def _configuration(file: Path) -> Configuration:
    values = read_json(file, CheckpointError, "save_pretrained writes it")
    kind = values.get("model_type") if isinstance(values, dict) else None
    if kind != "decision_transformer":
        raise CheckpointError(f"{file} describes a model of type {shown(kind)}, expected 'decision_transformer'")
    return Configuration(**{name: values[name] for name in Configuration.__annotations__ if name in values})


def _weights(folder: Path) -> Mapping[str, Tensor]:
    if (folder / SAFE).is_file():
        safetensors = require("safetensors", EXTRA)
        load = require("safetensors.torch", EXTRA).load_file
        try:
            weights: dict[str, Tensor] = load(folder / SAFE)
        except (safetensors.SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as error:
            raise CheckpointError(
                f"{folder / SAFE} is truncated or damaged ({one_line(error)}); download it again"
            ) from error
        return weights
    if (folder / PICKLED).is_file():
        return load_weights(folder / PICKLED)
    sharded = sorted(each.name for each in folder.glob("*.index.json"))
    way_out = (
        f"its weights are spread over several files ({sharded[0]}); save it again with max_shard_size='50GB'"
        if sharded
        else f"it needs {SAFE} or {PICKLED}"
    )
    raise CheckpointError(f"the folder {folder} holds no weights that can be read: {way_out}")


def _translated(configuration: Configuration, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our names and layouts; a name that is missing is a KeyError, one that is left over a CheckpointError."""
    theirs = {name: value.to(torch.float32) for name, value in weights.items()}
    ours: dict[str, Tensor] = {}

    def linear(to: str, name: str, transposed: bool = False) -> None:
        """A linear map; GPT-2 stores those inside its layers transposed."""
        weight = theirs.pop(f"{name}.weight")
        ours[f"{to}.weight"] = weight.t().contiguous() if transposed else weight
        ours[f"{to}.bias"] = theirs.pop(f"{name}.bias")

    linear("encoder.leaf_encoders.0.linear", "embed_state")
    linear("head.leaves.0.embedding", "embed_action")
    linear("embed_return", "embed_return")
    linear("head.linear", "predict_action.0")
    linear("backbone.input_norm", "embed_ln")
    linear("backbone.final_norm", "encoder.ln_f")
    ours["backbone.input_positions.0.table.weight"] = theirs.pop("embed_timestep.weight")
    # Every token is told that it stands at position 0: a constant behind the norm.
    ours["backbone.input_norm.bias"] = ours["backbone.input_norm.bias"] + theirs.pop("encoder.wpe.weight")[0]
    for layer in range(configuration.n_layer):
        to, name = f"backbone.layers.{layer}", f"encoder.h.{layer}"
        linear(f"{to}.join_mixing.norm", f"{name}.ln_1")
        linear(f"{to}.join_ff.norm", f"{name}.ln_2")
        linear(f"{to}.mixing.mixer.project", f"{name}.attn.c_attn", transposed=True)
        linear(f"{to}.mixing.mixer.output", f"{name}.attn.c_proj", transposed=True)
        linear(f"{to}.ff.into", f"{name}.mlp.c_fc", transposed=True)
        linear(f"{to}.ff.out", f"{name}.mlp.c_proj", transposed=True)
        for part in ("weight", "bias"):
            queries = ours[f"{to}.mixing.mixer.project.{part}"][: configuration.hidden_size]
            queries *= configuration.query_scale(layer)
    if theirs:
        raise CheckpointError(f"it holds {shown(sorted(theirs))}, which have no place in a Decision Transformer")
    return ours
