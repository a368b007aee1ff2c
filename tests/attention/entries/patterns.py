"""Rows and twins of further entries: patterns."""

import math
from typing import Any

import torch
from torch import Tensor

from rltransformers.backbone import Backbone
from rltransformers.laws import Limit
from tests.attention import twins
from tests.attention.entries.scores import no_query, values
from tests.attention.row import Row
from tests.attention.twins import Key, Meeting, Reader, Rows, Window, attention_by

PATTERNS = "tests/attention/test_patterns.py::"


def block_local(reader: Reader, options: Any) -> Window:
    """By the numbers of the blocks of steps."""
    size = options.block * reader.config.tokens_per_step
    return Window((options.back + 1) * options.block, allowed=lambda head, t, s: t // size - s // size <= options.back)


def image_1d(reader: Reader, options: Any) -> Window:
    """Parmar et al. 2018, section 3.3: from the memory in front of the block on."""
    group = reader.config.tokens_per_step

    def allowed(head: int, t: int, s: int) -> bool:
        begin = t // group // options.block * options.block
        return s // group >= begin - options.before

    return Window(options.block + options.before, allowed=allowed)


def image_2d(reader: Reader, options: Any) -> Window:
    """Parmar et al. 2018, section 3.3: by rows and columns."""

    def allowed(head: int, t: int, s: int) -> bool:
        (row, column), (y, x) = divmod(t, options.width), divmod(s, options.width)
        top, left = row // options.rows, column // options.columns
        rows = range(top * options.rows - options.above, (top + 1) * options.rows)
        columns = range(left * options.columns - options.beside, (left + 1) * options.columns + options.beside)
        return y in rows and x in columns

    return Window(reader.config.memory + 1, allowed=allowed)


def sparse_strided(reader: Reader, options: Any) -> Window:
    """Child et al. 2019, section 4.2."""
    group = reader.config.tokens_per_step

    def allowed(head: int, t: int, s: int) -> bool:
        i, j = t // group, s // group
        local, strided = j in range(i - options.stride, i + 1), (i - j) % options.stride == 0
        return {"local": local, "strided": strided, "both": local or strided}[options.part]

    return Window(reader.config.memory + 1, allowed=allowed)


def sparse_fixed(reader: Reader, options: Any) -> Window:
    """Child et al. 2019, section 4.2, with the summaries at another place of the block."""
    group = reader.config.tokens_per_step

    def allowed(head: int, t: int, s: int) -> bool:
        i, j, size = t // group, s // group, options.block
        end = size - options.offset * options.summary
        own, summary = i // size == j // size, j % size in range(end - options.summary, end) or i == j
        return {"block": own, "summary": summary, "both": own or summary}[options.part]

    return Window(reader.config.memory + 1, allowed=allowed)


def blockwise(reader: Reader, options: Any) -> Window:
    """Qiu et al. 2019, section 3, with shifts for permutations."""
    size = options.block * reader.config.tokens_per_step

    def allowed(head: int, t: int, s: int) -> bool:
        shift = options.shifts[head % len(options.shifts)]
        block = t // size - shift if t // size >= shift else t // size
        return s // size == block or s == t or (options.own and s // size == t // size)

    return Window((max(options.shifts) + 1) * options.block, allowed=allowed)


PRIME = 2**31 - 1


def hashed(*numbers: int) -> int:
    """One number of several: add, take the fifth power, and so on."""
    found = numbers[0]
    for number in numbers[1:]:
        found = (found + number + 1) ** 5 % PRIME
    return found


def drawn_blocks(reader: Reader, count: int, size: int, seed: int, head: int, block: int) -> set[int]:
    """Blocks without repetition among the whole ones in the memory (Floyd's algorithm)."""
    earlier = min(block, (reader.config.memory + 1) // size - 1)
    key = ((seed + 2) ** 5 % PRIME + reader.layer + 1) ** 5 % PRIME
    found: set[int] = set()
    for draw in range(count):
        last = earlier - count + draw
        if last >= 0:
            guess = hashed(block, key, head, draw) % (last + 1)
            found.add(last if guess in found else guess)
    return {block - 1 - back for back in found}


def random_keys(reader: Reader, options: Any) -> Window:
    """Zaheer et al. 2020, section 2: own block and drawn ones."""
    size = options.block * reader.config.tokens_per_step

    def allowed(head: int, t: int, s: int) -> bool:
        drawn = drawn_blocks(reader, options.count, options.block, options.seed, head, t // size)
        return s // size in drawn | {t // size}

    return Window(reader.config.memory + 1, allowed=allowed)


def first_tokens(reader: Reader, options: Any) -> Window:
    """Own step and sinks."""
    return Window(1, sinks=options.sinks)


def bigbird(reader: Reader, options: Any) -> Window:
    """Zaheer et al. 2020, section 2: three kinds of keys."""
    group = reader.config.tokens_per_step
    size = options.block * group

    def allowed(head: int, t: int, s: int) -> bool:
        drawn = drawn_blocks(reader, options.random, options.block, options.seed, head, t // size)
        return t // group - s // group < options.window or s // size in drawn | {t // size}

    # Sinks stand just outside the longest window, which is that of the draws where it holds whole blocks.
    farthest = (reader.config.memory + 1) // options.block * options.block if options.random else 0
    return Window(max(options.window, farthest), sinks=options.sinks, allowed=allowed if options.random else None)


def union(reader: Reader, options: Any) -> Window:
    """What any of the patterns shows."""
    windows = [reader.find("pattern", choice.name)(reader, choice.options) for choice in options.patterns]
    group = reader.config.tokens_per_step

    def allowed(head: int, t: int, s: int) -> bool:
        return any(
            t // group - s // group < each.steps
            and (t - s) % each.dilation == 0
            and (each.allowed is None or each.allowed(head, t, s))
            for each in windows
        )

    return Window(max(each.steps for each in windows), sinks=max(each.sinks for each in windows), allowed=allowed)


def adjacency(reader: Reader, options: Any) -> Window:
    """Neighbors in the graph, and the step itself."""
    group = reader.config.tokens_per_step
    edges = {tuple(edge) for edge in options.edges}

    def allowed(head: int, t: int, s: int) -> bool:
        i, j = t // group, s // group
        return i == j or i - j in options.offsets or (i, j) in edges

    return Window(reader.config.memory + 1, allowed=allowed)


def multi_scale(reader: Reader, head: int, query_row: Tensor, weights: Rows, distances: list[int]) -> Rows:
    """Guo et al. 2020: a hard window, after which the weights sum to 1 again."""
    windows = reader.options("span").windows
    kept = [w if d < windows[head % len(windows)] else w * 0 for w, d in zip(weights, distances, strict=True)]
    total = sum(kept[1:], kept[0])
    return [each / total for each in kept]


def nothing(reader: Reader, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """The same for all neighbors."""
    return torch.zeros(())


def flat(special: Backbone, plain: Backbone) -> None:
    """Synthetic logits of 0."""
    for name, value in plain.named_parameters():
        if name.endswith("score.entries"):
            value.data.zero_()


def pattern(name: str, **options: Any) -> dict[str, Any]:
    """The settings of one pattern."""
    return {"pattern": {"name": name, **options}}


BAND = {"name": "band", "window": 4}


GRAPH = pattern("adjacency", offsets=[2, 3], edges=[[4, 0], [1, 0]])


def of_one(choice: dict[str, Any]) -> dict[str, Any]:
    """A union of one pattern."""
    return pattern("union", patterns=[choice])


def etc_globals(reader: Reader, options: Any) -> int:
    """Globals that a token sees."""
    if options.globals is not None:
        return int(options.globals)
    return max(1, ((reader.config.memory * reader.config.tokens_per_step + 1) // options.block - 1) // 2)


def etc_edges(reader: Reader, options: Any, t: int) -> list[Key]:
    """The window, then the globals of the blocks before the own one."""
    group, u = reader.config.tokens_per_step, t // options.block
    near = [s for s in range(t + 1) if t // group - s // group < options.window]
    blocks = range(max(0, u - etc_globals(reader, options)), u)
    far = [(f"global {u - m}", m, t - ((m + 1) * options.block - 1)) for m in blocks]
    return [*(("token", s, t - s) for s in near), *far]


def etc_global(
    reader: Reader, kind: str, m: int, head: int, tokens: list[tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Ainslie et al. 2020, section 3.2: a global attends to its own block and to globals, here to those before it."""
    options = reader.config.choices.layer(reader.layer).patterns[0].options
    at = "mixing.mixer.chooser."
    query, count = reader[at + "query"][head], etc_globals(reader, options)
    width = math.sqrt(len(query))

    def leaves(block: int) -> list[tuple[Tensor, Tensor]]:
        return tokens[block * options.block : (block + 1) * options.block]

    def mean(seen: list[tuple[Tensor, Tensor]], logits: Rows) -> tuple[Tensor, Tensor]:
        shares = twins.softmax(logits)
        k, v = (torch.stack([w * each[i] for w, each in zip(shares, seen, strict=True)]).sum(0) for i in (0, 1))
        return k, v

    before = range(max(0, m - count), m)
    alone = [mean(leaves(j), [query @ k / width for k, _ in leaves(j)]) for j in before]
    logits = [query @ (k + reader[at + "to_long"]) / width for k, _ in leaves(m)]
    among = reader[at + "among_globals"]
    logits += [query @ (k + among[m - j - 1]) / width for j, (k, _) in zip(before, alone, strict=True)]
    return mean(leaves(m) + alone, logits)


def etc_label(reader: Reader, q: Tensor, key: Key) -> Tensor:
    """The vector of the relation of a token to a global so many blocks back."""
    if key[0] == "token":
        return torch.zeros(())
    return q @ reader["mixing.mixer.chooser.to_global"][int(key[0].split()[1]) - 1] / math.sqrt(len(q))


def etc(reader: Reader, options: Any) -> Window:
    """A window and globals."""
    return Window(
        options.window,
        edges=lambda reader, t: etc_edges(reader, options, t),
        node=etc_global,
        label=etc_label,
    )


# The masks of sparse_strided and sparse_fixed equal those of openai/sparse_attention at c53f3bd, `fixed` layouts with
# one and with four places of the summary among them, for blocks of one token. Its dense `local` mask has one key less
# than its block layout and than the paper; joined with the strided keys both are the same.
ROWS: dict[tuple[str, str], Row] = {
    ("pattern", "global"): Row(
        twin=first_tokens,
        limits=(Limit(pattern("global", sinks=2), pattern("longformer", window=1, sinks=2)),),
    ),
    ("pattern", "random"): Row(
        twin=random_keys,
        limits=(
            Limit(pattern("random", count=6), {}),
            Limit(
                {"memory": 8, **pattern("random", count=2, block=3)},
                {"memory": 8, **pattern("block_local", block=3, back=2)},
            ),
        ),
    ),
    ("pattern", "block_local"): Row(
        twin=block_local,
        limits=(
            Limit({"memory": 24, **pattern("block_local", block=25)}, {"memory": 24}),
            Limit(pattern("block_local", block=1, back=3), pattern("band", window=4)),
        ),
    ),
    ("pattern", "image_1d"): Row(
        twin=image_1d,
        limits=(
            Limit(pattern("image_1d", block=4, before=0), pattern("block_local", block=4)),
            Limit(pattern("image_1d", block=1, before=3), pattern("band", window=4)),
        ),
    ),
    ("pattern", "image_2d"): Row(
        twin=image_2d,
        limits=(
            Limit(pattern("image_2d", width=1, rows=3, columns=1, above=2), pattern("image_1d", block=3, before=2)),
            Limit({"memory": 27, **pattern("image_2d", width=4, rows=7, columns=3, beside=3)}, {"memory": 27}),
        ),
    ),
    ("pattern", "sparse_strided"): Row(
        twin=sparse_strided,
        limits=(
            Limit(pattern("sparse_strided", stride=6), {}),
            Limit(pattern("sparse_strided", stride=3, part="local"), pattern("band", window=4)),
            Limit(pattern("sparse_strided", stride=3, part="strided"), pattern("dilated", window=3, dilation=3)),
        ),
    ),
    ("pattern", "sparse_fixed"): Row(
        twin=sparse_fixed,
        limits=(
            Limit(pattern("sparse_fixed", block=3, summary=3), {}),
            Limit(pattern("sparse_fixed", block=3, part="block"), pattern("block_local", block=3)),
        ),
    ),
    ("pattern", "blockwise"): Row(
        twin=blockwise,
        limits=(
            Limit(pattern("blockwise", block=3, shifts=[0]), pattern("block_local", block=3)),
            Limit(pattern("blockwise", block=3, shifts=[1], own=True), pattern("block_local", block=3, back=1)),
        ),
    ),
    # Against github.com/google-research/bigbird, 5e7d375, the lower half of full_bigbird_mask with our draws as its
    # random blocks, blocks of 1 and of 2 tokens (there the last token of each): the same keys for all of 20 tokens and
    # 3 heads.
    ("pattern", "bigbird"): Row(
        twin=bigbird,
        limits=(
            Limit(pattern("bigbird", window=3, random=0, sinks=0), pattern("band", window=3)),
            Limit(pattern("bigbird", window=1, random=2, sinks=0), pattern("random", count=2)),
            Limit(pattern("bigbird", window=3, random=0, sinks=2), pattern("longformer", window=3, sinks=2)),
        ),
    ),
    ("pattern", "union"): Row(
        twin=union,
        limits=(
            Limit(of_one(BAND), {"pattern": BAND}),
            Limit(of_one(BAND), {"pattern": [[BAND] * 3]}),
            Limit(of_one({"name": "longformer", "window": 2, "sinks": 2}), pattern("longformer", window=2, sinks=2)),
            Limit(
                pattern(
                    "union",
                    patterns=[{"name": "sparse_strided", "stride": 3, "part": part} for part in ("local", "strided")],
                ),
                pattern("sparse_strided", stride=3),
            ),
            f"{PATTERNS}test_all_shifts_together_are_full_attention",
        ),
    ),
    ("pattern", "adjacency"): Row(
        twin=adjacency,
        limits=(
            Limit(pattern("adjacency", offsets=[0, 1, 2, 3, 4, 5, 6]), {}),
            Limit(pattern("adjacency", offsets=[1, 2]), pattern("band", window=3)),
            Limit(
                {"memory": 22, **pattern("adjacency", edges=[[i, j] for i in range(23) for j in range(i)])},
                {"memory": 22},
            ),
        ),
    ),
    ("mixer", "gcn"): Row(
        config={"position": "sinusoidal"},
        twin=attention_by(Meeting(no_query, values, nothing)),
        limits=(
            Limit(
                {"mixer": "gcn", "position": "none", **GRAPH},
                {"mixer": "synthesizer_random", "position": "none", **GRAPH},
                flat,
            ),
            f"{PATTERNS}test_a_graph_of_all_earlier_tokens_gives_their_mean",
        ),
    ),
    ("pattern", "schedule"): Row(
        twin=twins.everything,
        limits=(Limit({"pattern": [BAND, BAND]}, {"pattern": BAND}),),
    ),
    # No published code was found to compare with (looked for multi-scale self-attention of Guo et al. and for ports).
    ("span", "multi_scale"): Row(
        twin=multi_scale,
        limits=(
            Limit(
                {"span": {"name": "multi_scale", "windows": [2, 4, 3]}},
                {"pattern": [[{"name": "band", "window": window} for window in (2, 4, 3)]]},
            ),
            Limit({"span": {"name": "multi_scale", "windows": [7]}}, {}),
            Limit(
                {"span": {"name": "multi_scale", "windows": [3, 9]}, "memory": 8, "tokens_per_step": 2},
                {
                    "pattern": [[{"name": "band", "window": window} for window in (3, 9, 3)]],
                    "memory": 8,
                    "tokens_per_step": 2,
                },
            ),
            Limit(
                {"span": {"name": "multi_scale", "windows": [4]}, **pattern("block_local", block=1, back=6)},
                {"pattern": BAND},
            ),
        ),
    ),
    # Not run against published code: etcmodel of github.com/google-research/google-research, 0c1bbe5, needs TensorFlow.
    # As one reads there, a token has one softmax over window and globals, and a global one over its tokens and globals.
    ("pattern", "etc"): Row(
        twin=etc,
        config={"pattern": {"name": "etc", "window": 3, "block": 2, "globals": 2}, "memory": 10},
        limits=(
            Limit(
                {"pattern": {"name": "etc", "window": 4, "globals": 0}},
                {"pattern": {"name": "band", "window": 4}},
            ),
        ),
    ),
}

VARIANTS: dict[str, Row] = {
    "globals among steps": Row(
        {
            "pattern": {"name": "etc", "window": 2, "block": 2},
            "tokens_per_step": 3,
            "memory": 4,
            "position": "rope",
            "memory_kind": "cache",
            "kv_heads": 1,
            "value_dim": 4,
        }
    ),
    "union of heads that differ, with sinks": Row(
        {
            "position": "rope",
            **pattern(
                "union",
                patterns=[
                    {"name": "random", "count": 1},
                    {"name": "longformer", "window": 2, "sinks": 2},
                    {"name": "block_local", "block": 3},
                ],
            ),
        }
    ),
    "a graph of steps": Row(
        {"memory": 4, "tokens_per_step": 2, **pattern("adjacency", offsets=[3], edges=[[2, 0], [2, 1], [4, 1]])}
    ),
    "scales per layer on blocks": Row(
        {
            "span": [{"name": "multi_scale", "windows": [2, 5, 3]}, "full"],
            **pattern("blockwise", block=2, shifts=[0, 1, 2]),
        }
    ),
    "blocks of steps": Row({"memory": 3, "tokens_per_step": 2, **pattern("block_local", block=2, back=1)}),
    "random blocks of steps": Row(
        {"memory": 5, "tokens_per_step": 3, "position": "rope", **pattern("random", count=1, block=2, seed=4)}
    ),
    "big bird among steps": Row(
        {
            "memory": 4,
            "tokens_per_step": 2,
            "memory_kind": "cache",
            "kv_heads": 1,
            **pattern("bigbird", window=2, random=1, sinks=3),
        }
    ),
    "summaries of heads": Row(
        {
            "pattern": [
                [
                    {"name": "sparse_fixed", "block": 3, "part": "block"},
                    {"name": "sparse_fixed", "block": 3, "part": "summary", "offset": 1},
                    {"name": "blockwise", "block": 2, "shifts": [0, 1, 2]},
                ]
            ]
        }
    ),
    "strides of steps and chosen keys": Row(
        {"memory": 5, "tokens_per_step": 2, **pattern("sparse_strided", stride=2), "position": "shaw"}
    ),
    "a grid of steps": Row(
        {"memory": 4, "tokens_per_step": 3, **pattern("image_2d", width=3, rows=2, columns=2, above=1, beside=1)}
    ),
}
PRESET_ROWS: dict[str, Row] = {
    "image_transformer": Row(pattern("image_1d", block=3, before=2)),
    "sparse_transformer": Row(pattern("sparse_fixed", block=3, summary=1)),
    "blockwise": Row(pattern("blockwise", block=2, shifts=[0, 1])),
    "longformer": Row({"pattern": [{"name": "band", "window": window} for window in (2, 3, 6)], "layers": 3}),
    "bigbird": Row(pattern("bigbird", window=2, random=1, block=2, sinks=2)),
    "bp": Row({**pattern("bp", neighbors=2), "memory": 9}),
    "gpt3_alternating": Row({"pattern": ["full", {"name": "band", "window": 3}]}),
    "multi_scale": Row({"span": [{"name": "multi_scale", "windows": windows} for windows in ([1, 3], [2, 7])]}),
}
