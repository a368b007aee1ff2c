"""Which keys patterns show: numbers worked out by hand, and what their papers promise of them."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from rltransformers.attention.layer import Attention
from rltransformers.attention.reach import Pattern
from rltransformers.backbone import Backbone, BackboneConfig
from rltransformers.core.errors import ConfigError
from rltransformers.functional.call import Call, Tokens
from rltransformers.functional.keys import Group, Rows
from tests.attention.rows import config_of


def pattern_of(name: str, memory: int, layer: int = 0, steps: int = 1, **options: Any) -> Pattern:
    """The reaches of one layer."""
    settings = {"memory": memory, "tokens_per_step": steps, "pattern": {"name": name, **options}}
    mixer = Backbone(config_of(settings)).layer(layer).mixing.mixer
    assert isinstance(mixer, Attention)
    return mixer.plan.pattern


def table(pattern: Pattern, length: int, head: int = 0) -> Tensor:
    """Who sees whom [query, key] in one episode of ``length`` tokens, sinks aside."""
    i = torch.arange(length)[None, None, :, None]
    distance = i - torch.arange(length)
    heads = pattern.heads
    seen = heads[head if len(heads) > 1 else 0].sees(i, distance) & (distance >= 0)
    return seen[0, head if seen.shape[1] > 1 else 0]


def keys(name: str, query: int, memory: int = 30, head: int = 0, **options: Any) -> list[int]:
    """What one query sees."""
    return table(pattern_of(name, memory, **options), query + 1, head)[query].nonzero().flatten().tolist()


def test_blocks_begin_where_the_episode_does() -> None:
    assert keys("block_local", 7, block=3) == [6, 7]
    assert keys("block_local", 7, block=3, back=1) == [3, 4, 5, 6, 7]
    assert keys("block_local", 4, block=2, steps=2) == [4]  # step 2 begins a block
    assert keys("image_1d", 10, block=4, before=3) == [5, 6, 7, 8, 9, 10]


def test_a_rectangle_of_the_grid_has_its_rows_and_columns() -> None:
    """A grid of 5 columns; token 17 stands in row 3 and column 2, its block of 2 x 2 begins at row 2 and column 2."""
    assert keys("image_2d", 17, width=5, rows=2, columns=2) == [12, 13, 17]
    assert keys("image_2d", 17, width=5, rows=2, columns=2, above=1, beside=1) == [6, 7, 8, 9, 11, 12, 13, 14, 16, 17]
    assert keys("image_2d", 8, width=3, rows=2, columns=3, steps=3) == [6, 7, 8]  # of a step, the columns


def test_strides_and_summaries_are_those_of_the_paper() -> None:
    assert keys("sparse_strided", 13, stride=4, part="local") == [9, 10, 11, 12, 13]
    assert keys("sparse_strided", 13, stride=4, part="strided") == [1, 5, 9, 13]
    assert keys("sparse_strided", 13, stride=4) == [1, 5, 9, 10, 11, 12, 13]
    assert keys("sparse_fixed", 13, block=4, part="block") == [12, 13]
    assert keys("sparse_fixed", 13, block=4, summary=2, part="summary") == [2, 3, 6, 7, 10, 11, 13]
    assert keys("sparse_fixed", 13, block=4, offset=1, part="summary") == [2, 6, 10, 13]
    assert keys("sparse_fixed", 13, block=4) == [3, 7, 11, 12, 13]


def test_heads_look_at_blocks_of_their_own() -> None:
    assert [keys("blockwise", 7, head=head, block=3, shifts=[0, 1, 2]) for head in range(3)] == [
        [6, 7],
        [3, 4, 5, 7],
        [0, 1, 2, 7],
    ]
    assert keys("blockwise", 4, head=2, block=3, shifts=[0, 1, 2]) == [3, 4]  # there is no block so far back
    assert keys("blockwise", 7, head=1, block=3, shifts=[0, 1], own=True) == [3, 4, 5, 6, 7]
    assert keys("blockwise", 7, head=2, block=3, shifts=[0, 1]) == [6, 7]  # heads take the shifts in turn


@pytest.mark.parametrize(("name", "parts", "options"), [
    ("sparse_strided", ("local", "strided"), {"stride": 5}),
    ("sparse_fixed", ("block", "summary"), {"block": 5}),
])  # fmt: skip
def test_two_layers_with_one_part_each_connect_all_tokens(
    name: str, parts: tuple[str, str], options: dict[str, Any]
) -> None:
    """Child et al. 2019, section 4.2: every earlier token is reached in two steps."""
    length = 29
    first, second = (table(pattern_of(name, 30, part=part, **options), length).long() for part in parts)
    full = torch.ones(length, length).tril() > 0
    if name == "sparse_strided":
        assert torch.equal(first @ second > 0, full)
        assert torch.equal(second @ first > 0, full)
    both = table(pattern_of(name, 30, **options), length).long()
    assert torch.equal(both @ both > 0, full)


def test_neighbors_are_those_of_the_table() -> None:
    graph: dict[str, Any] = {"offsets": [3], "edges": [[5, 1], [5, 4], [7, 0]]}
    assert keys("adjacency", 5, **graph) == [1, 2, 4, 5]
    assert keys("adjacency", 7, **graph) == [0, 4, 7]
    assert keys("adjacency", 20, **graph) == [17, 20]
    assert keys("adjacency", 11, **graph, steps=2) == [2, 3, 4, 5, 8, 9, 10, 11]  # token 11 is the second of step 5


def test_a_graph_of_all_earlier_tokens_gives_their_mean() -> None:
    """As average attention does without its network (Zhang et al. 2018, equation 1)."""
    mixer = Backbone(config_of({"mixer": "gcn", "position": "none", "memory": 10})).layer(0).mixing.mixer
    assert isinstance(mixer, Attention)
    h, p = torch.randn(1, 9, 15), torch.arange(9)[None]
    query, keys = mixer.queries_and_keys(h)
    call = Call(Tokens(p, p, torch.ones(1, 9, dtype=torch.bool), torch.tensor([-1])))
    found = mixer(h, query, (Group(keys, Rows()),), {}, call, None).out
    into, out = (mixer.get_parameter(name) for name in ("project.weight", "output.weight"))
    means = (h @ into.T).cumsum(1) / (p[..., None] + 1)
    torch.testing.assert_close(found, means @ out.T)


def test_a_union_shows_what_any_of_its_patterns_shows() -> None:
    assert keys("union", 9, patterns=["global", {"name": "dilated", "window": 3, "dilation": 4}]) == [1, 5, 9]
    shifts = [{"name": "blockwise", "block": 3, "shifts": [shift]} for shift in range(3)]
    assert torch.equal(table(pattern_of("union", 8, patterns=shifts), 9), torch.ones(9, 9).tril() > 0)
    assert pattern_of("union", 8, patterns=["global", {"name": "global", "sinks": 4}]).sinks == 4


@pytest.mark.parametrize(("patterns", "words"), [
    ([], "its list is empty; set pattern to 'full'"),
    (["full", "bp"], "'bp' chooses the keys of a query itself; take 'bp' out of its patterns"),
    (["x"], r"backbone.pattern.patterns\[0\]: unknown pattern 'x'"),
    ([{"name": "band", "window": 0}], r"backbone.pattern.patterns\[0\].window must be"),
    (["full", {"name": "union", "patterns": ["full"]}], r"patterns\[1\]: pattern 'union' inside itself adds nothing"),
    ([{"name": ["full"]}], r"patterns\[0\] takes a name"),
    ("full", r"backbone.pattern.patterns must be a list of names"),
    (["schedule"], "chosen by other settings: write pattern: "),
])  # fmt: skip
def test_a_union_says_what_it_cannot_join(patterns: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_of({"pattern": {"name": "union", "patterns": patterns}})


def test_a_union_can_be_written_down_and_read_again() -> None:
    config = config_of({"pattern": {"name": "union", "patterns": ("full", {"name": "band", "window": 2})}})
    (choice,) = config.choices.layer(0).patterns
    assert choice.to_dict() == {"name": "union", "patterns": ["full", {"name": "band", "window": 2}]}
    again = config_of({"pattern": choice})
    assert again.choices == config.choices
    assert again.to_dict()["pattern"] == choice.to_dict()


def test_a_part_of_a_union_refuses_what_it_would_refuse_alone() -> None:
    joined = {"name": "union", "patterns": ["full", {"name": "random", "count": 1}]}
    with pytest.raises(ConfigError, match=r"'random'.*one mask for all of them"):
        config_of({"pattern": joined, "head_mixing": "talking"})
    config_of({"pattern": {"name": "union", "patterns": ["full"]}, "head_mixing": "talking"})


def test_layers_take_the_patterns_of_a_list_in_turn() -> None:
    backbone = Backbone(config_of({"layers": 5, "pattern": ["full", {"name": "band", "window": 3}]}))
    mixers = [backbone.layer(index).mixing.mixer for index in range(5)]
    assert [mixer.horizon for mixer in mixers if isinstance(mixer, Attention)] == [6, 2, 6, 2, 6]


def test_scales_of_heads_narrow_whatever_the_pattern_shows() -> None:
    settings = {"memory": 20, "span": {"name": "multi_scale", "windows": [1, 4, 21]}}
    mixer = Backbone(config_of({**settings, "pattern": {"name": "block_local", "block": 6}})).layer(0).mixing.mixer
    assert isinstance(mixer, Attention)
    found = [table(mixer.plan.pattern, 12, head)[11].nonzero().flatten().tolist() for head in range(3)]
    assert found == [[11], [8, 9, 10, 11], [6, 7, 8, 9, 10, 11]]
    assert table(mixer.plan.pattern, 12, 1)[7].nonzero().flatten().tolist() == [6, 7]
    mixer = (
        Backbone(config_of({"memory": 20, "span": {"name": "multi_scale", "windows": [3, 2]}})).layer(0).mixing.mixer
    )
    assert mixer.horizon == 2  # no more is kept than the longest window needs


def test_scales_of_layers_leave_no_common_keys_for_logits_that_are_handed_on() -> None:
    scales = [{"name": "multi_scale", "windows": [window]} for window in (2, 5)]
    with pytest.raises(ConfigError, match=r"span is a list.*about the same keys; set span to 'full'"):
        config_of({"span": scales, "prior": "realformer"})
    config_of({"span": [scales[0], scales[0]], "prior": "realformer"})
    config_of({"span": [{"name": "adaptive", "ramp": 2.0}, "full"], "prior": "realformer"})


def test_all_shifts_together_are_full_attention() -> None:
    pattern = pattern_of("blockwise", 8, block=3, shifts=[0, 1, 2])
    assert torch.equal(
        sum((table(pattern, 9, head) for head in range(3)), torch.zeros(9, 9)) > 0, torch.ones(9, 9).tril() > 0
    )


def test_random_keys_are_so_many_different_ones_of_the_past_in_reach() -> None:
    seen = table(pattern_of("random", 12, count=4), 40)
    for i, row in enumerate(seen):
        found = row.nonzero().flatten().tolist()
        assert len(found) == 1 + min(i, 4)
        assert i in found and min(found) >= i - 12
    blocks = table(pattern_of("random", 12, count=2, block=3), 40)
    for i, row in enumerate(blocks):
        found = Counter(j // 3 for j in row.nonzero().flatten().tolist())
        assert len(found) == 1 + min(i // 3, 2)
        assert found.pop(i // 3) == i % 3 + 1
        assert set(found.values()) <= {3} and min(found, default=i // 3) >= i // 3 - 3


def test_random_keys_depend_on_seed_layer_and_head_and_on_nothing_else() -> None:
    one, same = (table(pattern_of("random", 20, count=3), 30) for _ in range(2))
    assert torch.equal(one, same)
    assert torch.equal(table(pattern_of("random", 20, count=3), 17), one[:17, :17])
    others = [
        table(pattern_of("random", 20, count=3), 30, head=1),
        table(pattern_of("random", 20, layer=1, count=3), 30),
        table(pattern_of("random", 20, count=3, seed=1), 30),
    ]
    assert not any(torch.equal(one, other) for other in others)


def test_random_keys_are_spread_evenly() -> None:
    """3 of 20 keys: the shares of 6,000 x 3 draws lie within 5 standard deviations (sqrt(900 x 0.85) = 28) of 900."""
    pattern = pattern_of("random", 20, count=3)
    i = torch.arange(20, 2020)[None, None, :, None]
    seen = pattern.heads[0].sees(i, torch.arange(21).expand(1, 1, 2000, 21))
    counts = seen.sum((0, 1, 2))
    assert counts[0] == 6000
    assert (counts[1:] - 900).abs().max() < 140
    pairs = seen[..., 1:].flatten(0, 2).double().T.corrcoef()  # without replacement: -1/19
    assert (pairs[~torch.eye(20, dtype=torch.bool)] + 1 / 19).abs().max() < 5 / 6000**0.5


def test_the_first_draws_are_those_written_down_here() -> None:
    """Weights of a trained policy belong to its keys, so the draws may never change. From whole numbers of Python."""
    prime, key = 2**31 - 1, ((7 + 2) ** 5 % (2**31 - 1) + 0 + 1) ** 5 % (2**31 - 1)
    state = ((1000 + key + 1) ** 5 % prime + 2 + 1) ** 5 % prime  # token 1000, head 2
    guesses = [(state + draw + 1) ** 5 % prime % (98 + draw) for draw in range(3)]
    assert len(set(guesses)) == 3
    assert keys("random", 1000, memory=100, head=2, count=3, seed=7) == sorted(
        [1000, *(1000 - 1 - back for back in guesses)]
    )
    assert [keys("random", i, memory=100, count=3, seed=7) for i in (5, 50, 1000)] == [
        [0, 1, 4, 5],
        [5, 13, 30, 50],
        [921, 929, 993, 1000],
    ]


def test_big_bird_has_all_three_kinds_of_keys() -> None:
    band, drawn = table(pattern_of("band", 12, window=3), 30), table(pattern_of("random", 12, count=2), 30)
    pattern = pattern_of("bigbird", 12, window=3, random=2, sinks=2)
    assert torch.equal(table(pattern, 30), band | drawn)
    assert pattern.sinks == 2


@pytest.mark.parametrize(("name", "options", "words"), [
    ("block_local", {"block": 3, "back": 2}, "looks 8 steps back but memory keeps 6; set memory to at least 8"),
    ("image_1d", {"block": 5, "before": 3}, "looks 7 steps back"),
    ("image_2d", {"width": 3, "rows": 2, "columns": 1, "above": 1}, "looks 6 steps back"),
    ("sparse_strided", {"stride": 7}, "looks 7 steps back"),
    ("sparse_fixed", {"block": 8}, "looks 7 steps back"),
    ("sparse_fixed", {"block": 5, "summary": 2, "offset": 2}, "set block to at least 6"),
    ("blockwise", {"block": 2, "shifts": [0, 3]}, "looks 7 steps back"),
    ("blockwise", {"block": 2, "shifts": []}, "shifts is empty; give at least one number"),
    ("random", {"count": 1, "block": 4}, "set memory to at least 7"),
    ("bigbird", {"window": 8}, "set memory to at least 7"),
    ("adjacency", {"offsets": [7]}, "set memory to at least 7"),
    ("adjacency", {"edges": [[9, 2]]}, "set memory to at least 7"),
    ("adjacency", {"edges": [[2, 3]]}, r"from step 2 to step 3, which comes later; write \[3, 2\]"),
])  # fmt: skip
def test_a_memory_that_is_too_short_is_refused(name: str, options: dict[str, Any], words: str) -> None:
    if name == "image_2d":
        config_of({"memory": 6, "pattern": {"name": name, **options}})
        options = {**options, "columns": 2}
        words = "looks 7 steps back"
    with pytest.raises(ConfigError, match=words):
        config_of({"memory": 6, "pattern": {"name": name, **options}})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"pattern": {"name": "blockwise", "block": 2, "shifts": [0, 1, 0, 1]}}, "'blockwise': shifts has 4 numbers"),
        ({"span": {"name": "multi_scale", "windows": [1, 2, 3, 4]}}, "'multi_scale': windows has 4 numbers"),
    ],
)
def test_numbers_that_no_head_takes_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=rf"{words} .* but heads is 3; set heads to at least 4"):
        config_of(values)


@pytest.mark.parametrize("preset", ["blockwise", "multi_scale"])
def test_presets_of_four_kinds_of_heads_need_four_heads(preset: str) -> None:
    with pytest.raises(ConfigError, match="heads is 2; set heads to at least 4"):
        BackboneConfig.preset(preset, heads=2)
