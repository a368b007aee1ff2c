"""Windows that share storage stay values: whatever is appended, no window changes."""

import torch
from torch import Tensor

from rltransformers.memory.room import append


def test_a_stream_of_appends_equals_concatenation() -> None:
    window = torch.randn(2, 5, 3)
    everything = window
    for _ in range(100):  # more than the spare room: the window moves several times
        new = torch.randn(2, 1, 3)
        everything = torch.cat([everything, new], 1)
        joined, window = append(window, new)
        assert torch.equal(joined, everything[:, -6:])
        assert torch.equal(window, everything[:, -5:])


def test_appending_moves_no_window_while_there_is_room() -> None:
    _, window = append(torch.randn(2, 5, 3), torch.randn(2, 1, 3))
    _, later = append(window, torch.randn(2, 1, 3))
    assert later.untyped_storage().data_ptr() == window.untyped_storage().data_ptr()


def test_two_continuations_of_one_window_do_not_see_each_other() -> None:
    _, window = append(torch.randn(2, 5, 3), torch.randn(2, 1, 3))
    before = window.clone()
    news: list[Tensor] = [torch.randn(2, 2, 3) for _ in range(3)]
    continued = [append(window, new)[1] for new in news]
    assert torch.equal(window, before)
    for new, found in zip(news, continued, strict=True):
        assert torch.equal(found, torch.cat([before, new], 1)[:, -5:])


def test_the_gradient_reaches_rows_of_the_past_and_new_ones() -> None:
    past, new = torch.randn(1, 4, 2, requires_grad=True), torch.randn(1, 1, 2, requires_grad=True)
    joined, kept = append(past, new)
    assert [part.shape[1] for part in (joined, kept)] == [5, 4]
    gradients = torch.autograd.grad(joined.sum() + kept.sum(), (past, new))
    assert gradients[0][0, :, 0].tolist() == [1, 2, 2, 2]
    assert gradients[1].eq(2).all()


def test_a_window_of_another_precision_is_joined_in_the_wider_one() -> None:
    joined, _ = append(torch.zeros(1, 2, 2, dtype=torch.bfloat16), torch.full((1, 1, 2), 1.001))
    assert joined.dtype == torch.float32
    assert joined[0, 2, 0].item() == torch.tensor(1.001).item()
