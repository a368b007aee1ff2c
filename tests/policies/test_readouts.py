"""Readouts against loops over what is stored, at their limits, and the store itself."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.core.errors import ConfigError
from rltransformers.core.spaces import leaf_spaces
from rltransformers.policies.action_heads import ActionHead
from rltransformers.policies.action_leaves import CategoricalAction, ContinuousAction, GaussianAction
from rltransformers.policies.readouts.catalogue import READOUTS, read_readout
from rltransformers.policies.readouts.interface import Datastore
from rltransformers.policies.readouts.spalm import GatedMemory

WIDTH, ROWS = 5, 9
SPACES: dict[str, spaces.Space[Any]] = {
    "one": spaces.Discrete(3, start=2),
    "several": spaces.Dict({"a": spaces.MultiDiscrete([2, 4]), "b": spaces.MultiBinary(3)}),
}
REAL = spaces.Dict({"a": spaces.Box(-2.0, 4.0, (2,)), "b": spaces.Discrete(3)})


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def head_of(space: spaces.Space[Any], readout: dict[str, Any], **settings: Any) -> ActionHead:
    return ActionHead(space, WIDTH, readout=read_readout({"size": ROWS, **readout}), **settings).double()


def actions_of(space: spaces.Space[Any], rows: int) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for index, (path, leaf) in enumerate(leaf_spaces(space).items()):
        leaf.seed(index)
        found[path] = torch.as_tensor(np.stack([leaf.sample() for _ in range(rows)]))
    return found


def filled(head: ActionHead, space: spaces.Space[Any], rows: int = ROWS) -> tuple[Tensor, dict[str, Tensor]]:
    """Keys and actions that the head has stored."""
    assert head.readout is not None
    keys, actions = torch.randn(rows, WIDTH), actions_of(space, rows)
    head.readout.store.add(keys, head.as_numbers(actions), torch.arange(rows) // 2)
    return keys, actions


def plain(head: ActionHead, features: Tensor) -> Tensor:
    """Outputs without a readout."""
    return torch.nn.functional.linear(features, head.linear.weight, head.linear.bias)


def nearest_by_hand(f: Tensor, keys: Tensor, count: int) -> list[tuple[int, float]]:
    distances = [float(((f - key) ** 2).sum()) for key in keys]
    order = sorted(range(len(keys)), key=distances.__getitem__)[:count]
    return [(i, distances[i]) for i in order]


def probabilities(head: ActionHead, outputs: Tensor) -> list[Tensor]:
    """Of the classes of every component, and of every bit to be on."""
    found = []
    for path, leaf in head.by_path.items():
        part = head.split(outputs)[path]
        if isinstance(leaf, CategoricalAction):
            found += [each.softmax(-1) for each in part.split_with_sizes(leaf.sizes, -1)]
        else:
            found += [torch.stack([1 - p, p], -1) for p in part.sigmoid().unbind(-1)]
    return found


def components(head: ActionHead, actions: dict[str, Tensor]) -> list[Tensor]:
    """The class of every component of the actions, counted from 0."""
    found: list[Tensor] = []
    for path, leaf in head.by_path.items():
        if isinstance(leaf, CategoricalAction):
            found += leaf.classes(actions[path]).unbind(-1)
        else:
            found += actions[path].long().unbind(-1)
    return found


# Against github.com/urvashik/knnlm, 8afab92, get_knn_log_prob and combine_knn_and_vocab_probs at temperature 1, for the
# same features and actions in float64: largest error of probabilities 1.7e-16.
@pytest.mark.parametrize("kind", SPACES)
def test_neighbors_are_mixed_in_as_the_formula_says(kind: str) -> None:
    space = SPACES[kind]
    head = head_of(space, {"name": "knn", "neighbors": 4, "weight": 0.3, "temperature": 1.7}).requires_grad_(False)
    keys, actions = filled(head, space)
    features = torch.randn(2, 3, WIDTH)
    mixture = probabilities(head, head(features))
    model = probabilities(head, plain(head, features))
    taken = components(head, actions)
    for b in range(2):
        for t in range(3):
            near = nearest_by_hand(features[b, t], keys, 4)
            total = sum(math.exp(-d / 1.7) for _, d in near)
            for part, own, classes in zip(mixture, model, taken, strict=True):
                for y in range(part.shape[-1]):
                    share = sum(math.exp(-d / 1.7) for i, d in near if int(classes[i]) == y) / total
                    assert float(part[b, t, y]) == pytest.approx(0.3 * share + 0.7 * float(own[b, t, y]), abs=1e-12)
                assert float(part[b, t].sum()) == pytest.approx(1, abs=1e-12)


def test_at_its_limits_the_mixture_is_the_model_or_the_neighbors() -> None:
    space, features = SPACES["one"], torch.randn(4, WIDTH)
    without = head_of(space, {"name": "knn", "weight": 0.0})
    filled(without, space)
    assert torch.equal(without(features), plain(without, features))
    head = head_of(space, {"name": "knn", "weight": 1.0, "neighbors": 1})
    keys, actions = filled(head, space)
    (found,) = probabilities(head, head(keys))
    torch.testing.assert_close(found, torch.nn.functional.one_hot(actions[""] - 2, 3).to(found.dtype))
    assert head.entropy(head(keys)).abs().max() < 1e-12  # and no NaN from classes that nobody took
    assert head.log_prob(head(keys), actions).abs().max() < 1e-12


def test_duplicates_add_up() -> None:
    """Three neighbors at one place: shares of thirds."""
    head = head_of(SPACES["one"], {"name": "knn", "weight": 1.0, "neighbors": 3})
    assert head.readout is not None
    head.readout.store.add(torch.ones(3, WIDTH), head.as_numbers({"": torch.tensor([2, 4, 4])}), torch.zeros(3).long())
    (found,) = probabilities(head, head(torch.randn(1, WIDTH)))
    torch.testing.assert_close(found, torch.tensor([[1 / 3, 0, 2 / 3]]), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", READOUTS)
def test_nothing_stored_leaves_the_model_alone(name: str) -> None:
    head, features = head_of(SPACES["several"], {"name": name}), torch.randn(2, 3, WIDTH)
    expected = plain(head, features)
    for found, own in zip(probabilities(head, head(features)), probabilities(head, expected), strict=True):
        torch.testing.assert_close(found, own)


# No published code was found to compare with (looked for SPALM and adaptive semiparametric language models).
@pytest.mark.parametrize("gate", ["scalar", "vector"])
@pytest.mark.parametrize("box", [ContinuousAction, lambda space, *_: GaussianAction(space, 0.3)])
def test_the_gated_memory_is_what_the_formula_says(gate: str, box: Any) -> None:
    head = head_of(REAL, {"name": "spalm", "neighbors": 4, "gate": gate}, box=box)
    readout = head.readout
    assert isinstance(readout, GatedMemory) and readout.values is not None
    torch.nn.init.normal_(readout.gate.weight)
    keys, actions = filled(head, REAL)
    features = torch.randn(2, 3, WIDTH)
    found = head(features)
    for b in range(2):
        for t in range(3):
            h = features[b, t]
            near = [i for i, _ in nearest_by_hand(h, keys, 4)]
            y = [
                sum(((actions["a"][i][c] - 1) / 3 * readout.values[c] for c in range(2)), torch.zeros(WIDTH))
                + head.linear.weight[2 + int(actions["b"][i])]
                for i in near
            ]
            powers = [math.exp(float((each @ h).detach())) for each in y]
            memory = sum((p / sum(powers) * each for p, each in zip(powers, y, strict=True)), torch.zeros(WIDTH))
            g = 1 / (1 + torch.exp(-(readout.gate.weight @ h + readout.gate.bias)))
            z = g * h + (1 - g) * memory
            torch.testing.assert_close(found[b, t], head.linear.weight @ z + head.linear.bias, atol=1e-7, rtol=1e-7)


def test_an_open_gate_is_the_model_and_a_shut_one_the_only_action_there_is() -> None:
    head = head_of(SPACES["one"], {"name": "spalm", "neighbors": 4})
    readout = head.readout
    assert isinstance(readout, GatedMemory)
    readout.store.add(torch.randn(6, WIDTH), head.as_numbers({"": torch.full((6,), 3)}), torch.zeros(6).long())
    features = torch.randn(4, WIDTH)
    readout.gate.bias.data.fill_(1e3)
    torch.testing.assert_close(head(features), plain(head, features))
    readout.gate.bias.data.fill_(-1e3)
    row = head.linear.weight[1]
    torch.testing.assert_close(head(features), (head.linear.weight @ row + head.linear.bias).expand(4, 3))


def test_gradients_reach_embeddings_and_gate_and_not_the_keys() -> None:
    head = head_of(REAL, {"name": "spalm", "neighbors": 4})
    readout = head.readout
    assert isinstance(readout, GatedMemory) and readout.values is not None
    filled(head, REAL)
    features = torch.randn(3, WIDTH, requires_grad=True)
    head(features).square().sum().backward()
    for learned in (readout.values, readout.gate.weight, head.linear.weight, features):
        assert learned.grad is not None and learned.grad.ne(0).any()
    assert all(not buffer.requires_grad for buffer in readout.store.buffers())


def test_what_neighbors_did_is_a_constant_for_the_features() -> None:
    head = head_of(SPACES["one"], {"name": "knn", "weight": 1.0, "neighbors": 4})
    filled(head, SPACES["one"])
    features = torch.randn(3, WIDTH, requires_grad=True)
    head.log_prob(head(features), {"": torch.tensor([2, 3, 4])}).sum().backward()
    assert features.grad is not None and features.grad.abs().max() == 0


def test_learning_reads_nothing_of_the_same_episode() -> None:
    head = head_of(SPACES["one"], {"name": "spalm", "neighbors": 3})
    keys, _ = filled(head, SPACES["one"])  # two steps of every episode
    assert head.readout is not None
    found = head.readout.store.nearest(keys, 3, torch.arange(ROWS) // 2)
    for row, index in enumerate(found.index.tolist()):
        others = [i for i, _ in nearest_by_hand(keys[row], keys, ROWS) if i // 2 != row // 2]
        assert index == others[:3]
    with_all, without = head(keys), head.learning(keys, torch.arange(ROWS) // 2)
    assert not torch.allclose(with_all, without)
    knn = head_of(SPACES["one"], {"name": "knn"})
    filled(knn, SPACES["one"])
    assert torch.equal(knn.learning(keys, torch.arange(ROWS)), plain(knn, keys))


def test_a_full_store_forgets_its_oldest_rows() -> None:
    store = Datastore(4, 1, 1, "exact", 1e-3)
    rows = torch.arange(11.0)[:, None]
    for first, last in ((0, 3), (3, 5), (5, 11)):
        store.add(rows[first:last], rows[first:last], torch.arange(first, last))
        held = sorted(store.keys[: int(store.filled)].flatten().tolist())
        assert held == list(range(max(0, last - 4), last))
        assert torch.equal(store.actions, store.keys) and torch.equal(store.episodes, store.keys.flatten().long())
    store.clear()
    assert not store.nearest(torch.zeros(2, 1), 3).exists.any()


def test_rounding_does_not_decide_between_alike_features() -> None:
    """Rows that differ by less than the resolution are read in their order, whatever the noise of the feature."""
    store = Datastore(6, WIDTH, 1, "exact", 1e-3)
    state = torch.randn(WIDTH)
    store.add(state + 1e-7 * torch.randn(6, WIDTH), torch.zeros(6, 1), torch.zeros(6).long())
    found = store.nearest(state + 1e-6 * torch.randn(50, WIDTH), 2)
    assert found.index.tolist() == [[0, 1]] * 50


@pytest.mark.parametrize("name", READOUTS)
def test_faiss_reads_what_exact_search_reads(name: str) -> None:
    pytest.importorskip("faiss")
    space = SPACES["several"]
    exact, other = (head_of(space, {"name": name, "neighbors": 3, "search": each}) for each in ("exact", "faiss"))
    features = torch.randn(4, 2, WIDTH)
    for rows in (0, 2, ROWS, 3):  # the index follows what is stored
        if rows:
            filled(exact, space, rows)
        other.load_state_dict(exact.state_dict())
        torch.testing.assert_close(other(features), exact(features), atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(copy.deepcopy(other)(features), exact(features), atol=1e-9, rtol=1e-9)


def test_a_large_search_is_cut_and_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from rltransformers.policies.readouts import interface

    head = head_of(SPACES["one"], {"name": "knn", "neighbors": 3})
    filled(head, SPACES["one"])
    features = torch.randn(7, 3, WIDTH)
    whole = head(features)
    monkeypatch.setattr(interface, "LARGEST_PRODUCT", 4 * ROWS)
    torch.testing.assert_close(head(features), whole)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="use readout 'spalm'"):
        head_of(REAL, {"name": "knn"})
    with pytest.raises(ConfigError, match="did you mean 'knn'"):
        read_readout("kn", "policy_kwargs.readout")
    with pytest.raises(ConfigError, match=r"policy_kwargs.readout.weight must be a finite number in \[0, 1\]"):
        read_readout({"name": "knn", "weight": 2}, "policy_kwargs.readout")
    assert read_readout(None) is None
