"""Reading configs, and refusing what cannot work with the rule, the value and the way out."""

import json
from typing import Any

import pytest
import torch

from rltransformers.backbone import PLAIN, PRESETS, Backbone, BackboneConfig, catalogue
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Choice
from rltransformers.memory import compressive
from rltransformers.policies.readouts.catalogue import READOUTS
from rltransformers.policies.set_encoders.catalogue import ENCODERS
from tests.attention.rows import cases, preset_config

COMPRESSIVE = {"name": "compressive", "slots": 2, "rate": 2}
ADAPTIVE = {"name": "adaptive", "ramp": 2.0}
CASES = cases()
BAND = {"name": "band", "window": 3}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"width": 0}, r"backbone.width must be a whole number in \[1, 1000000\], got 0"),
    ({"width": 64.5}, r"backbone.width must be a whole number in \[1, 1000000\], got 64.5"),
    ({"layers": 0}, r"backbone.layers must be a whole number in \[1, 1000\], got 0"),
    ({"layers": True}, r"backbone.layers must be a whole number in \[1, 1000\], got True"),
    ({"heads": 0}, "heads must be a whole number"),
    ({"memory": -1}, r"backbone.memory must be a whole number in \[0, 1000000\], got -1"),
    (
        {"memory": 0, "pattern": {"name": "longformer", "window": 1}},
        "pattern 'longformer' keeps first tokens, so memory 0",
    ),
    (
        {"memory": 0, "pattern": {"name": "union", "patterns": ["global", {"name": "band", "window": 1}]}},
        "pattern 'union' keeps first tokens, so memory 0 does not make it memoryless; set memory to at least 1 or "
        "pattern to 'full'",
    ),
    ({"memory": 0, "pattern": [["full", "full", "global", "full"]]}, "pattern 'global' keeps first tokens"),
    ({"memory": 0, "memory_kind": "compressive"}, "it keeps compressed rows, so that memory 0 does not make"),
    ({"tokens_per_step": 0}, "tokens_per_step must be a whole number"),
    ({"kv_heads": 0}, r"backbone.kv_heads must be a whole number in \[1, 1000000\] or None \(null\), got 0"),
    ({"head_dim": "8"}, "head_dim must be a whole number"),
    ({"width": 64, "heads": 5}, r"heads \(5\) must divide width \(64\); nearest that do: 4, 8; or set head_dim"),
    ({"heads": 4, "kv_heads": 3}, r"kv_heads \(3\) must divide heads \(4\)"),
    ({"dropout": 1.0}, r"backbone.dropout must be a finite number in \[0, 1\), got 1.0"),
    ({"position": "rotary"}, "unknown position 'rotary'"),
    ({"position": "sinusoid"}, "unknown position 'sinusoid'; did you mean 'sinusoidal'"),
    ({"mixer": "lineal"}, "unknown mixer 'lineal'; did you mean 'linear'"),
    (
        {"pattern": {"name": "band", "windw": 3}},
        "pattern 'band': unknown setting backbone.pattern.windw; did you mean 'window'",
    ),
    ({"pattern": "band"}, "pattern 'band' needs window: write {name: band, window: ...}"),
    (
        {"depth": {"name": "fixed", "epsilon": 0.1}},
        "depth 'fixed': unknown setting backbone.depth.epsilon; it takes none",
    ),
    ({"ff": 3}, "ff takes a name or {name: ..., option: value}, got 3"),
    ({"head_mixing": "mqa"}, "head_mixing 'mqa' is chosen by other settings: write kv_heads: 1"),
    ({"head_mixing": "decoupled"}, "is chosen by other settings: write head_dim: n"),
    ({"losses": {"spam": 1.0}}, "unknown setting backbone.losses.spam; did you mean 'span'"),
    ({"losses": {"span": "much"}}, r"backbone.losses.span must be a finite number in \[0, 1000000.0\], got 'much'"),
    (
        {"mixer": "average", "attention_bias": True},
        "attention_bias is about queries, keys and values, but mixer 'average'",
    ),
    ({"losses": {"span": 1.0}}, "loss 'span' has nothing to act on; it needs span: adaptive"),
    ({"losses": {"pattern": {"target": "first"}}}, "backbone.losses.pattern needs weight: write {weight: ..., ...}"),
    ({"losses": {"pattern": {"weight": -1}}}, r"backbone.losses.pattern.weight must be a finite number in \[0,"),
    (
        {"losses": {"pattern": {"weight": 1, "goal": 2}}},
        "unknown setting backbone.losses.pattern.goal; known: share, target",
    ),
    (
        {"losses": {"pattern": 1.0}, "mixer": "linear"},
        "loss 'pattern' needs the logits of all pairs .* set losses to {}",
    ),
    ({"losses": {"ponder": 1.0}}, "loss 'ponder' has nothing to act on; it needs depth: universal_act"),
    ({"losses": {"compression": 1.0}}, "loss 'compression' has nothing to act on"),
    (
        {"losses": {"compression": 1.0}, "memory_kind": {**COMPRESSIVE, "function": "mean"}},
        "loss 'compression' has nothing to act on; it needs memory_kind: {name: compressive, function: conv}",
    ),
    ({"position": ["sinusoidal", "learned"]}, "positions sinusoidal and learned both act on the input"),
    ({"position": ["trxl", "alibi"]}, "positions trxl and alibi both act inside attention"),
    ({"position": "shaw", "value_dim": 5}, r"needs value_dim \(5\) equal to the head width"),
    ({"position": {"name": "rope", "dims": 3}}, r"rope dims \(3\) must be even"),
    ({"pattern": [[BAND, BAND]]}, "2 patterns per head for 4 heads; give one per head"),
    (
        {"mixer": "linear", "position": "trxl"},
        "position 'trxl' needs scores of pairs of tokens, by distance, but mixer 'linear' has none",
    ),
    (
        {"mixer": "average", "selection": "topk"},
        "selection 'topk' needs the logits of all pairs of tokens, but mixer 'average' has none",
    ),
    ({"mixer": "performer", "prior": "realformer"}, "prior 'realformer' needs the logits of all pairs of tokens"),
    ({"mixer": "linear", "head_mixing": "talking"}, "head_mixing 'talking' needs the logits of all pairs of tokens"),
    ({"mixer": "light_conv", "span": ADAPTIVE}, "span 'adaptive' needs scores of pairs of tokens"),
    (
        {"mixer": "linear", "pattern": BAND},
        "pattern 'band' needs keys that a pattern can leave out, but mixer 'linear' has none",
    ),
    ({"mixer": ["softmax", "nystrom"], "memory_kind": COMPRESSIVE}, "compressed rows .* but mixer 'nystrom' has none"),
    ({"mixer": ["softmax", "linear"], "span": ADAPTIVE}, "but mixer 'linear' of layer 1 has none"),
    ({"mixer": "average", "kv_heads": 1}, "kv_heads is about queries, keys and values, but mixer 'average' has none"),
    (
        {"head_mixing": "talking", "pattern": [[BAND, "full", "full", "full"]]},
        "a pattern per head .*: heads that are mixed need one mask",
    ),
    (
        {"head_mixing": "talking", "selection": "topk"},
        "a selection of keys per head .*: heads that are mixed need one mask",
    ),
    (
        {"mixer": {"name": "softmax", "qk_norm": True}, "selection": "lsh"},
        "selection 'lsh' makes both by one projection; set qk_norm to False or selection to 'none'",
    ),
    (
        {"mixer": {"name": "softmax", "sink_logit": True}, "span": ADAPTIVE},
        "learned spans normalize them again; set sink_logit to False or span to 'full'",
    ),
    ({"memory_kind": COMPRESSIVE, "pattern": BAND}, "itself decides which tokens are visible; set pattern to 'full'"),
    (
        {"memory_kind": COMPRESSIVE, "tokens_per_step": 2},
        r"set tokens_per_step to 1 \(a Decision Transformer has 2 or 3\) or memory_kind to 'transformer_xl'",
    ),
    (
        {"residual": "reversible", "prior": "realformer"},
        "what passes from layer to layer beside the streams is not rebuilt",
    ),
    (
        {"residual": "reversible", "depth": "universal"},
        "the signals added between its applications are not taken off again",
    ),
    (
        {"residual": "reversible", "span": ADAPTIVE, "losses": {"span": 1.0}},
        "no gradient would reach them; set losses to {}",
    ),
    ({"residual": "reversible", "checkpoint": True}, "rebuilt from their outputs already; set checkpoint to False"),
    ({"ff": "sep_conv", "ff_chunks": 3}, "every token reads those before it; set ff_chunks to 1"),
    ({"ff": "none", "ff_chunks": 3}, "there is no transform; set ff_chunks to 1"),
    (
        {"ff": "none", "ff_width": 128},
        "ff_width 128 has no effect: ff 'none' has no transform; .* or leave ff_width out",
    ),
    (
        {"pattern": ["full", BAND, "full"]},
        "pattern lists 3 choices for layers to take in turn, but layers is 2; set layers to at least 3 or shorten",
    ),
    ({"layers": 1, "mixer": ["softmax", "softmax"]}, "mixer lists 2 choices .* but layers is 1"),
    ({"norm": "batch"}, "backbone.norm must be one of 'layer', 'rms'"),
    ({"compute_dtype": "float16"}, "backbone.compute_dtype must be one of 'float32', 'bfloat16'"),
    ({"depth": "universal", "pattern": ["full", BAND]}, "only one layer, which cannot change between its applications"),
    ({"prior": "realformer", "depth": "universal_act"}, "a halted token takes no step"),
    (
        {"prior": "realformer", "pattern": ["full", BAND]},
        r"pattern is a list\): the logits of the previous layer must be about the same keys",
    ),
]

REFUSED_OPTIONS: list[tuple[dict[str, Any], str]] = [
    (
        {"memory": 4, "pattern": {"name": "band", "window": 9}},
        "looks 8 steps back but memory keeps 4; set memory to at least 8",
    ),
    ({"memory": 4, "pattern": {"name": "longformer", "window": 9}}, "longformer window 9 looks 8 steps back"),
    (
        {"memory": 4, "pattern": {"name": "dilated", "window": 4, "dilation": 2}},
        "looks 6 steps back but memory keeps 4",
    ),
    (
        {"tokens_per_step": 3, "pattern": {"name": "dilated", "window": 3, "dilation": 2}},
        "3 tokens make a step; use 'band'",
    ),
    (
        {"position": {"name": "t5", "buckets": 20, "max_distance": 10}},
        r"t5 max_distance \(10\) must be above half of the buckets \(20\).*at least 11",
    ),
    (
        {"memory": 9000, "mixer": "nystrom", "position": "none"},
        "would keep 1124 landmarks of a memory of 9000 tokens, at most are 1000",
    ),
    ({"width": 10**6}, r"24,000,018,000,000 parameters, more than 1,000,000,000, most of them in 'layers.0.ff"),
    ({"layers": 1000, "width": 1024}, r"12,592,128,000 parameters"),
    ({"memory": 10**6, "width": 1024, "head_dim": 64}, "numbers of state per stream, more than 1,000,000,000"),
    (
        {"memory_kind": {"name": "compressive", "slots": 10**6}, "width": 1024, "memory": 1},
        "numbers of state per stream, more than 1,000,000,000, most of them in 'layers.0.slot_keys'",
    ),
    (
        {"memory_kind": {**COMPRESSIVE, "function": "max", "objective": "attention"}},
        "objective 'attention' trains a compression that learns, but function 'max' does not; set function to 'conv'",
    ),
    (
        {"pattern": {"name": "sparse_fixed", "block": 3, "part": "block", "offset": 1}},
        r"backbone\.pattern\.offset 1 has no effect with part 'block'; leave offset out",
    ),
    (
        {"pattern": {"name": "bigbird", "window": 2, "random": 0, "seed": 0}},
        r"backbone\.pattern\.seed 0 has no effect with random 0",
    ),
    (
        {"mixer": ["softmax", {"name": "linformer", "projection": "max", "sharing": "kv"}]},
        r"backbone\.mixer\[1\]\.sharing 'kv' has no effect with projection 'mean' or 'max'",
    ),
    (
        {"mixer": {"name": "informer", "samples": 2, "active_queries": 2, "factor": 3}},
        "factor 3 has no effect with samples and active_queries of their own",
    ),
    (
        {"depth": {"name": "calm", "decay": None, "horizon": 9}},
        r"backbone\.depth\.horizon 9 has no effect with no decay; leave horizon out",
    ),
    (
        {"depth": "depth_adaptive", "losses": {"exits": {"weight": 1.0, "training": "mixed", "weights": "uniform"}}},
        r"backbone\.losses\.exits\.weights 'uniform' has no effect with training 'mixed'",
    ),
    (
        {"depth": "depth_adaptive", "losses": {"exits": {"weight": 1.0, "slack": 0.3}}},
        r"losses\.exits\.slack 0\.3 has no effect: nothing reads it beside depth 'depth_adaptive' .*leave slack out",
    ),
    (
        {"depth": {"name": "calm", "confidence": "classifier"}, "losses": {"exits": {"weight": 1.0, "penalty": 0.3}}},
        r"losses\.exits\.penalty 0\.3 has no effect.*depth 'calm'",
    ),
    (
        {"depth": "calm", "losses": {"exits": {"weight": 1.0, "slack": 0.3}}},
        r"losses\.exits\.slack 0\.3 has no effect",
    ),
    ({"ff": {"name": "ffn", "activation": "swish"}}, "backbone.ff.activation must be one of 'relu', 'gelu'"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=str)
def test_a_config_that_cannot_work_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BackboneConfig(**{**PLAIN, **values})


@pytest.mark.parametrize(("values", "message"), REFUSED_OPTIONS, ids=str)
def test_options_that_do_not_fit_each_other_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BackboneConfig(**{**PLAIN, **values})


def test_unknown_settings_and_presets_are_refused_with_the_closest_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting backbone\.withd; did you mean 'width'"):
        BackboneConfig.from_dict({"withd": 64})
    with pytest.raises(ConfigError, match=r"unknown setting backbone\.head; did you mean 'heads'"):
        BackboneConfig.preset("gpt", head=3)
    with pytest.raises(ConfigError, match=r"unknown setting backbone\.prest; did you mean 'preset'"):
        BackboneConfig.from_dict({"prest": "gpt"})
    with pytest.raises(ConfigError, match="unknown preset 'gtrlx'; did you mean 'gtrxl'"):
        BackboneConfig.preset("gtrlx")
    with pytest.raises(ConfigError, match="unknown preset 'gtrlx'"):
        Backbone({"preset": "gtrlx"})


def test_a_config_of_nothing_is_gtrxl_however_it_is_made() -> None:
    config = BackboneConfig()
    assert (config.residual, config.position) == ("gru", "trxl")
    assert config == BackboneConfig.from_dict({}) == BackboneConfig.preset("gtrxl")
    assert BackboneConfig(width=32) == BackboneConfig.from_dict({"width": 32}) != config
    assert BackboneConfig.from_dict(config) is config


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_changes_the_plain_stack_and_nothing_else(name: str) -> None:
    plain, found = BackboneConfig(**PLAIN).to_dict(), BackboneConfig.preset(name).to_dict()
    assert (plain["position"], plain["residual"], plain["mixer"]) == ("none", "pre_ln", "softmax")
    assert {key for key, value in found.items() if value != plain[key]} <= set(PRESETS[name].overrides)


@pytest.mark.parametrize(("name", "field"), [("longformer", "pattern"), ("multi_scale", "span")])
def test_the_list_of_a_preset_is_cut_to_the_layers_that_there_are(name: str, field: str) -> None:
    whole = getattr(BackboneConfig.preset(name), field)
    for layers in (1, 2, 3, 5):
        config = BackboneConfig.preset(name, layers=layers)
        assert getattr(config, field) == whole[:layers]
        assert BackboneConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ConfigError, match=f"{field} lists 3 choices .* but layers is 2"):
        BackboneConfig.preset(name, layers=2, **{field: whole})


@pytest.mark.parametrize(("name", "layers"), [("hybrid", 1), ("hybrid", 3), ("kimi", 2), ("griffin", 2)])
def test_layers_that_leave_out_a_needed_mixer_of_a_preset_are_refused_by_its_list(name: str, layers: int) -> None:
    whole = BackboneConfig.preset(name).mixer
    message = (
        rf"^mixer of preset '{name}' is a list of {len(whole)} \(.*, softmax\), of which layers, {layers}, leaves out "
        rf"the last {len(whole) - layers}; set layers to at least {len(whole)}, or mixer to \[.*softmax.*\]\. "
        rf"With the first {layers}: .* but mixer '{whole[0]}' has none"
    )
    with pytest.raises(ConfigError, match=message):
        BackboneConfig.preset(name, layers=layers)
    BackboneConfig.preset(name, layers=layers, mixer=whole[-layers:])
    with pytest.raises(ConfigError, match=r"^backbone\.layers must be"):
        BackboneConfig.preset(name, layers=0)
    with pytest.raises(ConfigError, match=r"^(position|head_mixing) '"):  # no list of mixers mends the width
        BackboneConfig.preset(name, layers=layers, width=33)


# What checkpoints of older versions hold: what a user wrote, or every field of a config that was made without a preset.
AS_WRITTEN = {"width": 32, "memory": 8, "attention_bias": True}
EVERY_FIELD: dict[str, Any] = {
    "width": 32, "layers": 2, "heads": 4, "kv_heads": None, "head_dim": None, "value_dim": None, "memory": 8,
    "memory_kind": "transformer_xl", "tokens_per_step": 1, "position": "none", "mixer": "softmax", "pattern": "full",
    "selection": "none", "prior": "none", "head_mixing": "mha", "span": "full", "depth": "fixed",
    "residual": "pre_ln", "ff": "ffn", "ff_width": None, "input_norm": False, "final_norm": False, "dropout": 0.0,
    "losses": {},
}  # fmt: skip

LATER_FIELDS = {
    "attention_bias": False, "ff_chunks": 1, "checkpoint": False, "compute_dtype": "float32", "topology": "decoder",
    "norm": "layer",
}  # fmt: skip


def test_settings_of_older_checkpoints_give_the_networks_that_they_gave() -> None:
    config = BackboneConfig.from_dict(AS_WRITTEN)
    assert (config.position, config.residual, config.attention_bias) == ("trxl", "gru", True)
    assert BackboneConfig.from_dict(EVERY_FIELD).to_dict() == {**EVERY_FIELD, **LATER_FIELDS}
    parts = {name.split(".")[2] for name, _ in Backbone(EVERY_FIELD).named_parameters()}
    assert parts == {"mixing", "ff", "join_mixing", "join_ff"}
    shapes = {name: tuple(value.shape) for name, value in Backbone(EVERY_FIELD).named_parameters()}
    assert shapes["layers.1.join_ff.norm.weight"] == (32,) and "layers.1.join_ff.gate.bias" not in shapes
    assert not any("position" in name for name in shapes)


def test_choices_are_read_when_a_config_is_made_and_never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    config = BackboneConfig(memory_kind=COMPRESSIVE, depth="universal_act")
    assert config.choices is config.choices
    assert config.choices.memory_kind.options == compressive.Options(slots=2, rate=2)
    assert config.choices.depth.options.epsilon == 0.01

    def again(*_: Any) -> None:
        raise AssertionError("read a second time")

    monkeypatch.setattr(Choice, "parse", again)
    Backbone(config)(torch.zeros(1, 2, 64))
    config.numbers()


def test_settings_of_keys_need_one_layer_with_keys() -> None:
    mixed = {**PLAIN, "mixer": ["average", "softmax"], "kv_heads": 2, "attention_bias": True, "width": 12}
    shapes = {name: value.shape for name, value in Backbone(BackboneConfig(**mixed)).named_parameters()}
    assert shapes["layers.1.mixing.mixer.project.weight"] == (12 + 6 + 6, 12)  # 4 heads of queries, 2 of keys, values
    # Without keys heads divide nothing.
    Backbone(BackboneConfig(**{**PLAIN, "mixer": "average", "width": 10, "heads": 4}))


def test_a_choice_for_all_layers_acts_in_those_that_can() -> None:
    names = {"position": "trxl", "prior": "gaussian_transformer", "head_mixing": "talking"}
    backbone = Backbone(BackboneConfig(**{**PLAIN, "mixer": ["linear", "softmax"], **names}))
    parts = [name.split(".") for name, _ in backbone.named_parameters()]
    acting = {(parts[1], parts[4]) for parts in parts if parts[2] == "mixing"}
    assert {("1", "position"), ("1", "prior"), ("1", "head_mixing")} <= acting
    assert {name for layer, name in acting if layer == "0"} == {"project", "out"}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_works_with_no_more_than_its_name(name: str) -> None:
    Backbone(BackboneConfig.preset(name))


def test_every_tested_config_and_preset_survives_json() -> None:
    presets = {f"preset {name}": preset_config(name) for name in PRESETS}
    for name, config in {**{name: config for name, (config, _) in CASES.items()}, **presets}.items():
        again = BackboneConfig.from_dict(json.loads(json.dumps(config.to_dict())))
        assert again.to_dict() == config.to_dict(), name


def test_choices_cycle_over_layers_and_heads() -> None:
    config = BackboneConfig(
        layers=3, heads=2, pattern=["full", [BAND, "full"]], selection=["none", {"name": "topk", "k": 2}]
    )
    assert [[each.name for each in config.choices.layer(layer).patterns] for layer in range(3)] == [
        ["full"],
        ["band", "full"],
        ["full"],
    ]
    assert [config.choices.layer(layer).selection.name for layer in range(3)] == ["none", "topk", "none"]


def test_the_catalogue_tells_id_source_summary_and_formula_of_every_entry() -> None:
    everything = [spec for specs in catalogue().values() for spec in specs]
    of_all = [spec.id for spec in (*everything, *ENCODERS.values(), *READOUTS.values())]
    of_all += [preset.id for preset in PRESETS.values() if preset.id]
    assert not {each for each in of_all if of_all.count(each) > 1}
    for axis, specs in catalogue().items():
        for spec in specs:
            assert spec.axis == axis
            assert spec.summary and spec.formula and spec.paper and spec.example, spec.id
            assert spec.traits.time in ("T", "T^2")
            assert (spec.traits.causality == "X") <= bool(spec.traits.causal_form)


def test_every_preset_says_how_it_differs_from_its_source() -> None:
    for name, preset in PRESETS.items():
        assert preset.paper and preset.deviation, name


def test_gpt_has_the_parameters_of_a_block_of_gpt_2() -> None:
    backbone = Backbone(BackboneConfig.preset("gpt", width=12, layers=1, heads=3))
    shapes = {name.removeprefix("layers.0."): tuple(value.shape) for name, value in backbone.named_parameters()}
    blocks = {"c_attn": "mixing.mixer.project", "c_proj": "mixing.mixer.output", "c_fc": "ff.into", "mlp": "ff.out"}
    sizes = {"c_attn": (36, 12), "c_proj": (12, 12), "c_fc": (48, 12), "mlp": (12, 48)}
    for part, (rows, columns) in sizes.items():
        assert shapes[f"{blocks[part]}.weight"] == (rows, columns)
        assert shapes[f"{blocks[part]}.bias"] == (rows,)
    assert backbone.get_parameter("layers.0.mixing.mixer.project.bias").eq(0).all()
