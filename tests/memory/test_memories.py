"""What memories keep, forget, and let gradients through."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rltransformers.backbone import AXES, Backbone, BackboneConfig, Record, State
from rltransformers.core.errors import ConfigError
from rltransformers.functional.windows import compressed_blocks
from rltransformers.laws import perturbed
from rltransformers.memory.compressive import Options, build
from tests.attention.rows import config_of


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


PROJECT = "layers.0.mixing.mixer.project.weight"  # 15 rows make queries, the others keys and values
COMPRESSIVE = {"memory": 3, "memory_kind": {"name": "compressive", "slots": 2, "rate": 2}}


@pytest.mark.parametrize("kind", sorted(AXES["memory_kind"].table))
def test_the_gradient_reaches_all_that_an_output_depends_on_but_what_is_compressed_or_stored(kind: str) -> None:
    example = AXES["memory_kind"].table[kind].example
    backbone = perturbed(config_of({"layers": 1, "position": "none", "memory": 3, "memory_kind": kind, **example}))
    x = torch.randn(1, 20, 15, requires_grad=True)
    (gradient,) = torch.autograd.grad(backbone(x)[0][0, -1].square().sum(), x)
    reached = set(gradient[0].ne(0).any(-1).nonzero().flatten().tolist())
    changed = [backbone(x + torch.randn_like(x) * (torch.arange(20) == t)[:, None])[0][0, -1] for t in range(20)]
    seen = {t for t in range(20) if not torch.equal(changed[t], backbone(x)[0][0, -1])}
    assert reached <= seen and (reached != seen) == (kind in ("compressive", "memorizing"))


def gradient_of_keys(kind: str) -> Tensor:
    """Of the key projection, when the only token of the call is zero and cannot itself have caused it."""
    backbone = perturbed(config_of({"memory_kind": kind, "residual": "post_ln", "position": "none", "layers": 1}))
    _, state = backbone(torch.randn(1, 9, 15))
    y, _ = backbone(torch.zeros(1, 1, 15), state)
    (gradient,) = torch.autograd.grad(y.square().sum(), backbone.get_parameter(PROJECT))
    return gradient[15:]


def test_remembered_inputs_train_todays_key_projection_and_cached_keys_do_not() -> None:
    assert gradient_of_keys("transformer_xl").ne(0).any()
    assert gradient_of_keys("cache").eq(0).all()


def test_a_new_weight_changes_remembered_inputs_but_not_cached_keys() -> None:
    for kind, changes in (("transformer_xl", True), ("cache", False)):
        backbone = perturbed(config_of({"memory_kind": kind, "residual": "post_ln", "position": "none", "layers": 1}))
        _, state = backbone(torch.randn(1, 9, 15))
        before, _ = backbone(torch.zeros(1, 1, 15), state)
        backbone.get_parameter(PROJECT).data[15:] *= 1.5
        after, _ = backbone(torch.zeros(1, 1, 15), state)
        assert torch.equal(before, after) != changes


def test_an_acting_state_is_refreshed_by_with_cache_after_an_update() -> None:
    backbone = perturbed(config_of({}))
    x = torch.randn(2, 9, 15)
    _, state = backbone(x, backbone.initial_state(2, cached=True))
    for parameter in backbone.parameters():
        parameter.data *= 1.1
    token = torch.randn(2, 1, 15)
    stale, _ = backbone(token, state)
    fresh, _ = backbone(token, backbone.without_cache(state))
    refreshed, _ = backbone(token, backbone.with_cache(state))
    assert not torch.allclose(stale, fresh)
    torch.testing.assert_close(refreshed, fresh)
    assert all("keys" not in name for name in backbone.without_cache(state).tensors)


def test_a_state_of_keys_alone_holds_no_layer_inputs_and_cannot_be_turned_into_any_other() -> None:
    backbone = perturbed(config_of({"layers": 1}))
    _, state = backbone(torch.randn(2, 9, 15), backbone.initial_state(2, cached="only"))
    assert set(state.tensors) == {"position", "clock", "layer0.key_ring"}
    for change in (backbone.with_cache, backbone.without_cache):
        with pytest.raises(ConfigError, match="cached=True"):
            change(state)


@pytest.mark.parametrize(
    "overrides", [{}, {"memory_kind": "cache"}, {"pattern": {"name": "band", "window": 4}}], ids=str
)
def test_a_token_further_back_than_layers_times_window_has_no_influence(overrides: dict[str, Any]) -> None:
    backbone = perturbed(config_of({"layers": 2, **overrides}))
    reach = 2 * (3 if "pattern" in overrides else 6)
    x = torch.randn(1, 20, 15, requires_grad=True)
    (gradient,) = torch.autograd.grad(backbone(x)[0][0, -1].sum(), x)
    seen = gradient[0].ne(0).any(-1)
    assert seen.tolist() == [t >= 19 - reach for t in range(20)]


def test_sinks_are_seen_for_ever_and_only_in_their_episode() -> None:
    backbone = perturbed(config_of({"layers": 1, "pattern": {"name": "longformer", "window": 3, "sinks": 2}}))
    x = torch.randn(1, 20, 15, requires_grad=True)
    reset = torch.arange(20)[None] == 5
    y, _ = backbone(x, None, reset)
    (gradient,) = torch.autograd.grad(y[0, -1].sum(), x)
    assert gradient[0].ne(0).any(-1).nonzero().flatten().tolist() == [5, 6, 17, 18, 19]


def test_tokens_of_one_step_see_whole_steps() -> None:
    backbone = perturbed(config_of({"layers": 1, "memory": 1, "tokens_per_step": 3}))
    x = torch.randn(1, 12, 15, requires_grad=True)
    y, _ = backbone(x)
    for t in (6, 7, 8):
        (gradient,) = torch.autograd.grad(y[0, t].sum(), x, retain_graph=True)
        assert gradient[0].ne(0).any(-1).nonzero().flatten().tolist() == list(range(3, t + 1))


def test_the_task_does_not_train_the_compression_and_its_loss_trains_nothing_else() -> None:
    backbone = perturbed(config_of({**COMPRESSIVE, "losses": {"compression": 0.5}}))
    record = Record()
    x = torch.randn(2, 17, 15, requires_grad=True)
    y, _ = backbone(x, record=record)
    names = ["x", *dict(backbone.named_parameters())]
    wanted = [x, *backbone.parameters()]
    task = torch.autograd.grad(y.square().sum(), wanted, allow_unused=True, retain_graph=True)
    loss = torch.autograd.grad(record.losses["compression"], wanted, allow_unused=True)
    for name, by_task, by_loss in zip(names, task, loss, strict=True):
        assert (by_task is None) == (".memory." in name), name
        assert (by_loss is not None) == (".memory." in name), name


def test_the_compression_loss_is_the_error_of_decoding_every_block_once() -> None:
    backbone = perturbed(config_of({**COMPRESSIVE, "layers": 1, "position": "none"}))
    x, record = torch.randn(1, 9, 15), Record()
    backbone(x, record=record)
    encode, decode = (backbone.get_submodule(f"layers.0.mixing.memory.{name}") for name in ("encode", "decode"))
    blocks = x[0, :8].reshape(4, 30)
    torch.testing.assert_close(record.losses["compression"], (decode(encode(blocks)) - blocks).square().mean())


def test_the_mean_of_equal_tokens_is_the_token() -> None:
    memory = build(3, 5, 4, 0, 1, Options(slots=2, rate=4, function="mean"))
    assert torch.equal(memory.compress(torch.full((1, 2, 4, 5), 2.5)), torch.full((1, 2, 5), 2.5))
    memory = build(3, 5, 4, 0, 1, Options(slots=2, rate=4, function="max"))
    largest = memory.compress(torch.arange(20.0).view(1, 1, 4, 5))
    assert largest.flatten().tolist() == [15, 16, 17, 18, 19]


def test_blocks_are_compressed_once_all_recent_places_are_taken() -> None:
    assert compressed_blocks(torch.tensor([0, 3, 4, 5, 6, 9]), 3, 2).tolist() == [0, 0, 0, 1, 1, 3]


def test_a_state_has_the_size_the_readme_promises() -> None:
    backbone = Backbone(config_of({"kv_heads": 1, "head_dim": 4, "value_dim": 7, "layers": 1}))
    training, acting = backbone.initial_state(2), backbone.initial_state(2, cached=True)
    assert training.tensors["layer0.hidden"].shape == (2, 6, 15)
    assert acting.tensors["layer0.key_ring"].shape == (2, 7, 4 + 7)
    assert isinstance(training, State) and training.batch_size == 2


@pytest.mark.parametrize("objective", ["autoencode", "attention"])
@pytest.mark.parametrize("residual", ["post_ln", "gru"])
def test_only_the_compression_learns_from_its_loss(objective: str, residual: str) -> None:
    kind = {"name": "compressive", "slots": 3, "rate": 2, "objective": objective}
    backbone = Backbone(
        BackboneConfig.preset("compressive", width=12, heads=2, memory=3, memory_kind=kind, residual=residual)
    )
    record = Record()
    backbone(torch.randn(2, 11, 12), record=record)
    record.losses["compression"].backward()
    learning = {name for name, parameter in backbone.named_parameters() if parameter.grad is not None}
    assert learning and all(".memory." in name for name in learning)


def test_attention_does_not_notice_a_compression_that_keeps_everything() -> None:
    kind = {"name": "compressive", "slots": 3, "rate": 1, "objective": "attention"}
    backbone = Backbone(BackboneConfig.preset("compressive", width=12, heads=2, memory=3, memory_kind=kind))
    x = torch.randn(2, 11, 12)
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            if ".memory.encode.weight" in name:
                parameter.copy_(torch.eye(12))
            elif ".memory.encode.bias" in name:
                parameter.zero_()
    record, changed = Record(), Record()
    backbone(x, record=record)
    assert record.losses["compression"] < 1e-10  # float32 rounding of two equal sums
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            if ".memory.encode.weight" in name:
                parameter.mul_(0.5)
    backbone(x, record=changed)
    assert changed.losses["compression"] > 1e-4


def test_the_attention_loss_is_the_mean_squared_difference_of_what_every_token_reads() -> None:
    """By head and token: 5 blocks of 2 in the first stream, 2 in the second, which has 5 tokens and padding."""
    kind = {"name": "compressive", "slots": 3, "rate": 2, "objective": "attention"}
    config = {"width": 12, "heads": 2, "head_dim": 5, "value_dim": 3, "layers": 1, "memory": 4, "memory_kind": kind}
    backbone = perturbed(BackboneConfig.preset("compressive", **config))
    x, lengths, record = torch.randn(2, 11, 12), (11, 5), Record()
    backbone(x, valid=torch.arange(11) < torch.tensor(lengths)[:, None], record=record)
    into_query, into_key, into_value = backbone.get_parameter("layers.0.mixing.mixer.project.weight").split([10, 10, 6])
    encode = backbone.get_submodule("layers.0.mixing.memory.encode")

    def read(token: Tensor, rows: Tensor, head: int) -> Tensor:
        query = into_query[5 * head : 5 * head + 5] @ token
        powers = torch.stack([(query @ (into_key[5 * head : 5 * head + 5] @ row) / 5**0.5).exp() for row in rows])
        values = torch.stack([into_value[3 * head : 3 * head + 3] @ row for row in rows])
        return (powers[:, None] * values).sum(0) / powers.sum()

    errors = []
    for stream, length in zip(x, lengths, strict=True):
        raw = stream[: length // 2 * 2]
        vectors = torch.stack([encode(block) for block in raw.reshape(-1, 24)])
        for token in stream[:length]:
            errors.append(torch.cat([read(token, raw, head) - read(token, vectors, head) for head in (0, 1)]).square())
    torch.testing.assert_close(record.losses["compression"], torch.cat(errors).mean())
