"""Places of tensors: each once, under all of its names, with the tensor of today."""

import torch
from torch import nn

from rltransformers.core.places import named_places, places_of


class Tied(nn.Module):
    """A linear map that two names lead to, and a norm with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3, bias=False)
        self.again = self.first
        self.norm = nn.BatchNorm1d(3, affine=False)


def test_a_place_has_every_name_that_leads_to_it() -> None:
    names = [name for name, _ in named_places(Tied())]
    buffers = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    absent = ["norm.weight", "norm.bias"]  # parameters that are None
    assert sorted(names) == sorted(["first.weight", "first.bias", "again.weight", "again.bias", *buffers, *absent])
    assert [name for name, _ in named_places(Tied().first)] == ["weight", "bias"]


def test_each_place_is_listed_once_and_holds_the_tensor_of_today() -> None:
    module = Tied()
    places = places_of(module, module.norm)
    assert len(places) == 7
    module.first.weight = nn.Parameter(torch.ones(3, 2))
    (holder, name), *_ = places
    assert holder[name] is module.first.weight
