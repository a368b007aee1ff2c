"""Rows and twins of further entries: memories behind the window."""

import math

import torch
from torch import Tensor

from rltransformers.laws import Limit
from tests.attention import twins
from tests.attention.row import CHOICE, Row, both, fill
from tests.attention.twins import Reader, Rows, sigmoid, softmax


def reads_store(reader: Reader) -> bool:
    """The last but one layer, of up to four."""
    layer = reader.options("memory_kind").layer
    return reader.layer == (max(0, reader.config.layers - 2) if layer is None else layer)


def of_length_one(row: Tensor) -> Tensor:
    """Henry et al. 2020, arXiv 2010.04245."""
    return row / torch.sqrt((row * row).sum() + 1e-12)


def scaled_query(reader: Reader, head: int, q: Tensor) -> Tensor:
    """Products over sqrt(Dh) become cosines times sqrt(Dh) and a factor of the head."""
    factor = reader.get("mixing.mixer.retriever.log_scale")
    assert (factor is not None) == reads_store(reader)
    return q if factor is None else of_length_one(q) * len(q) * torch.exp(factor[head])


def normalized_key(reader: Reader, k: Tensor) -> Tensor:
    """A key of length 1."""
    return of_length_one(k) if reads_store(reader) else k


def kept_keys(reader: Reader, tokens: Rows, prepared: Rows) -> dict[str, Tensor]:
    """Keys as they are compared, and values."""
    both = twins.layer_keys(reader, tokens, prepared)["keys"]
    width, groups = reader.head_dim, reader.config.kv_heads or reader.heads
    found = []
    for row in both:
        keys = [normalized_key(reader, row[g * width : (g + 1) * width]) for g in range(groups)]
        found.append(torch.cat([*keys, row[groups * width :]]))
    return {"keys": torch.stack(found), "sink_keys": torch.stack(found)}


def recalled(
    reader: Reader, head: int, q: Tensor, past: list[tuple[Tensor, Tensor]], logits: Rows, out: Tensor
) -> Tensor:
    """Wu et al. 2022, section 3.2: the nearest of the tokens whose step is older than the window's."""
    if not reads_store(reader):
        return out
    options, group, t = reader.options("memory_kind"), reader.config.tokens_per_step, len(past) - 1
    ages = [t // group - s // group for s in range(t + 1)]
    memory = reader.config.memory
    old = [past[s] for s in range(t + 1) if memory < ages[s] <= memory + options.store]
    found = sorted(
        ((q @ k.detach() / math.sqrt(len(q)), v.detach()) for k, v in old), key=lambda pair: -float(pair[0].detach())
    )
    found = found[: options.neighbors]
    if not found:
        return out
    if options.joint:
        shares = softmax([*(logit for logit, _ in found), *logits])
        local = sum(shares[len(found) :], torch.zeros(()))
        return sum((share * v for share, (_, v) in zip(shares, found, strict=False)), out * local)
    shares = softmax([logit for logit, _ in found])
    mixed = sum((share * v for share, (_, v) in zip(shares, found, strict=True)), torch.zeros(reader.value_dim))
    gate = sigmoid(reader["mixing.mixer.retriever.gate"][head])
    return gate * mixed + (1 - gate) * out


MEMORIZING = twins.Memory(rows=kept_keys, query=scaled_query, key=normalized_key, recall=recalled)


def memorizing(**options: object) -> dict[str, object]:
    """The choice of the memory with a small store."""
    return {"memory_kind": {"name": "memorizing", "store": 3, "neighbors": 2, **options}}


def written_slots(reader: Reader, tokens: Rows) -> Rows:
    """Cherepanov et al. 2025, section 3.3: what every block of the episode writes, into the slots in turn."""
    options, width = reader.options("memory_kind"), reader.width
    heads = max(n for n in range(1, options.heads + 1) if width % n == 0)
    size = width // heads
    maps = {name: reader[f"mixing.memory.{name}.weight"] for name in ("query", "key", "value", "out")}
    slots, written = list(reader["mixing.memory.start"]), []
    for block in range(len(tokens) // options.block):
        inside = tokens[block * options.block : (block + 1) * options.block]
        inside = [twins.layer_norm(row, torch.ones(width), torch.zeros(width)) for row in inside]
        slot, outputs = slots[block % options.slots], []
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            shares = softmax(
                [maps["query"][part] @ slot @ (maps["key"][part] @ row) / math.sqrt(size) for row in inside]
            )
            values = [share * (maps["value"][part] @ row) for share, row in zip(shares, inside, strict=True)]
            outputs.append(sum(values, torch.zeros(size)))
        gain, bias = (reader[f"mixing.memory.norm.{name}"] for name in ("weight", "bias"))
        new = twins.layer_norm(slot + maps["out"] @ torch.cat(outputs), gain, bias)
        slots[block % options.slots] = (
            new if block < options.slots else options.blend * new + (1 - options.blend) * slot
        )
        written.append(slots[block % options.slots])
    return written


def slots_and_window(reader: Reader, head: int, t: int) -> list[twins.Key]:
    """The newest slots of the blocks that are finished before that of the token; the window."""
    options = reader.options("memory_kind")
    done, block = t // options.block, options.block
    slots: list[twins.Key] = [("slot", k, t - ((k + 1) * block - 1)) for k in range(max(0, done - options.slots), done)]
    return slots + twins.by_patterns(reader, head, t)


def rows_of_block(reader: Reader, tokens: Rows, prepared: Rows) -> dict[str, Tensor]:
    """Inputs of the window, and as many as a block is made from but for one."""
    count = reader.options("memory_kind").block - 1
    newest = [torch.zeros(reader.width)] * count + tokens
    return {**twins.layer_inputs(reader, tokens, prepared), "block": torch.stack(newest[len(newest) - count :])}


def newest_slots(reader: Reader, slots: Rows, count: int) -> dict[str, Tensor]:
    """The slots that are not rewritten yet, in the order in which they were written."""
    return {
        "slots": torch.stack(([torch.zeros(reader.width)] * reader.options("memory_kind").slots + slots)[len(slots) :])
    }


SLOTS = twins.Memory(
    slots_and_window, rows_of_block, written_slots, state_of_slots=newest_slots,
    tokens_of_slot=lambda reader: reader.options("memory_kind").block,
)  # fmt: skip


def slots_of(**options: object) -> dict[str, object]:
    """The choice of a memory with slots of blocks of two tokens."""
    return {"memory_kind": {"name": "slots", "slots": 3, "block": 2, **options}}


ALONE = {"position": "none", "layers": 1}
ROWS: dict[tuple[str, str], Row] = {
    # In one softmax with the window it equals KNNAttention of lucidrains/memorizing-transformers-pytorch at 272e39b,
    # with its weights and token by token, to 2e-12 in float64.
    ("memory_kind", "memorizing"): Row(
        twin=MEMORIZING,
        limits=(
            # A gate that is shut leaves the window, with the same normalized queries and keys.
            Limit(
                memorizing(),
                memorizing(store=1, neighbors=1),
                both(fill("retriever.gate", -1e3), lambda special, plain: fill("retriever.gate", -1e3)(plain, special)),
            ),
            # One softmax over the window and all that lies behind it is full attention.
            Limit({**ALONE, **memorizing(joint=True, store=17, neighbors=20)}, {**ALONE, "memory": 23, **memorizing()}),
        ),
        bfloat16=0.4,
        why=CHOICE,
    ),
    ("memory_kind", "slots"): Row(
        twin=SLOTS,
        limits=(
            Limit(slots_of(block=30), {}),  # no block is ever finished
            Limit(slots_of(slots=10, blend=0.3), slots_of(slots=10, blend=1.0)),  # no slot is ever rewritten
        ),
    ),
}
VARIANTS: dict[str, Row] = {
    "a store in one softmax with the window": Row(
        {**memorizing(joint=True, neighbors=3, store=2), "memory": 2, "tokens_per_step": 3, "kv_heads": 1,
         "position": "rope", "value_dim": 4, "attention_bias": True},
        bfloat16=0.4,
        why=CHOICE,
    ),
    "slots among steps": Row(
        {**slots_of(slots=2, block=3, blend=0.7, heads=2), "memory": 1, "tokens_per_step": 2, "kv_heads": 1,
         "position": "rope", "residual": "post_ln"},
    ),
    "a store and chosen keys": Row(
        {**memorizing(), "prior": "realformer",
         "selection": {"name": "topk", "k": 3}, "layers": 3},
        bfloat16=0.4,
        why=CHOICE,
    ),
}  # fmt: skip
PRESET_ROWS: dict[str, Row] = {
    "memorizing": Row(memorizing(), bfloat16=0.4, why=CHOICE),
}
