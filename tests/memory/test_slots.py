"""Slots that are rewritten at the end of blocks: which one, with what share, and who reads them."""

from typing import Any

import torch
from torch import Tensor

from rltransformers import laws
from rltransformers.backbone import Backbone
from rltransformers.laws import perturbed
from rltransformers.memory.slots import SlotMemory
from tests.attention.rows import config_of

ALONE = {"layers": 1, "position": "none", "memory": 1}


def backbone_of(**options: Any) -> Backbone:
    return perturbed(config_of({**ALONE, "memory_kind": {"name": "slots", "slots": 2, "block": 3, **options}}))


def slots_after(backbone: Backbone, x: Tensor) -> Tensor:
    """Oldest first."""
    with torch.no_grad():
        return backbone(x)[1].tensors["layer0.slots"]


def test_a_block_rewrites_the_slot_that_was_written_first_and_no_other() -> None:
    with laws.in_double():
        x = torch.randn(1, 12, 15)
        for blend in (0.25, 1.0):
            backbone = backbone_of(blend=blend)
            assert slots_after(backbone, x[:, :2]).eq(0).all()
            first, second = slots_after(backbone, x[:, :6])[0]
            one, three = slots_after(backbone, x[:, :9])[0]
            torch.testing.assert_close(
                torch.stack([slots_after(backbone, x[:, :3])[0, 1], one]), torch.stack([first, second])
            )
            memory = backbone.layer(0).mixing.memory
            assert isinstance(memory, SlotMemory)
            with torch.no_grad():
                new = memory.norm(first + memory.read(first[None, None], x[:, None, 6:9])[0, 0])
            torch.testing.assert_close(three, (1 - blend) * first + blend * new)


def test_a_token_reads_what_the_newest_blocks_before_its_own_wrote() -> None:
    with laws.in_double():
        backbone = backbone_of(blend=1.0)
        for parameter in backbone.get_submodule("layers.0.mixing.memory").parameters():
            parameter.requires_grad_(False)
        backbone.get_parameter("layers.0.mixing.memory.norm.weight").fill_(1.0)
        x = torch.randn(1, 18, 15, requires_grad=True)
        y, _ = backbone(x)
        # With two slots a block rewrites what the one two blocks before it wrote, and still reads that.
        for t, blocks in ((5, [0]), (8, [0, 1]), (9, [0, 1, 2]), (11, [0, 1, 2]), (17, [0, 1, 2, 3, 4])):
            (gradient,) = torch.autograd.grad(y[0, t].sum(), x, retain_graph=True)
            seen = [token for block in blocks for token in range(3 * block, 3 * block + 3)]
            assert gradient[0].ne(0).any(-1).nonzero().flatten().tolist() == sorted({*seen, t - 1, t}), t


def test_what_an_earlier_call_wrote_gets_no_gradient_and_what_this_call_writes_does() -> None:
    backbone = backbone_of()
    _, state = backbone(torch.randn(1, 9, 15))
    names = ["query.weight", "key.weight", "value.weight", "out.weight"]
    wanted = [backbone.get_parameter(f"layers.0.mixing.memory.{name}") for name in names]
    for tokens, learns in ((3, False), (4, True)):
        y, _ = backbone(torch.randn(1, tokens, 15), state)
        found = torch.autograd.grad(y.square().sum(), wanted, allow_unused=True)
        assert [each is not None and bool(each.ne(0).any()) for each in found] == [learns] * 4, tokens
