"""What one layer retrieves from behind its window, and from a bank of demonstrations."""

import copy
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rltransformers import laws
from rltransformers.attention.store import Store
from rltransformers.backbone import PLAIN, Backbone, BackboneConfig
from rltransformers.core.errors import ConfigError, MissingExtraError
from rltransformers.laws import Case, perturbed
from rltransformers.memory.memorizing import Options, save_bank
from tests.attention.row import BASE


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def config(options: dict[str, Any] | None = None, /, **overrides: Any) -> BackboneConfig:
    chosen = {"name": "memorizing", "store": 3, "neighbors": 2, **(options or {})}
    return BackboneConfig(**{**PLAIN, **BASE, "memory_kind": chosen, **overrides})


def store_of(backbone: Backbone, layer: int = 0) -> Store:
    found = backbone.get_submodule(f"layers.{layer}.mixing.mixer.retriever")
    assert isinstance(found, Store)
    return found


@pytest.fixture
def bank(tmp_path: Path) -> str:
    chance = np.random.default_rng(0)
    save_bank(tmp_path / "bank.npz", chance.standard_normal((11, 3, 5)), chance.standard_normal((11, 3, 5)))
    return str(tmp_path / "bank.npz")


@pytest.mark.parametrize(("layers", "layer"), [(1, 0), (2, 0), (3, 1), (4, 2), (6, 3), (12, 8)])
def test_one_high_layer_but_not_the_last_reads_the_store(layers: int, layer: int) -> None:
    assert Options().layer_with_store(range(layers), layers) == layer
    backbone = Backbone(config(layers=layers))
    assert [index for index in range(layers) if backbone.layer(index).mixing.mixer.stored] == [layer]
    counted, state = backbone.config.numbers()
    norms = sum(value.numel() for name, value in backbone.named_parameters() if name.startswith("final_norm"))
    assert counted == sum(value.numel() for value in backbone.parameters()) - norms
    tensors = backbone.initial_state(1).tensors
    assert state == sum(value.numel() for name, value in tensors.items() if name != "position")


def test_a_layer_without_attention_cannot_read_a_store() -> None:
    assert store_of(Backbone(config(mixer=["linear", "softmax"], position="none", layers=4)), 1)
    with pytest.raises(ConfigError, match="the layers that can are 1, 3"):
        config({"layer": 2}, mixer=["linear", "softmax"], position="none", layers=4)


def test_what_is_stored_gets_no_gradient_and_is_still_read() -> None:
    backbone = perturbed(config(layers=1, memory=4))
    x = torch.randn(1, 9, 15, requires_grad=True)
    y, _ = backbone(x)
    (gradient,) = torch.autograd.grad(y[:, 7].sum(), x)
    assert gradient[:, :3].eq(0).all() and gradient[:, 3:8].ne(0).any(-1).all()
    with torch.no_grad():
        changed = x.detach().clone()
        changed[:, :3] += 1
        assert not torch.equal(backbone(changed)[0][:, 7], y[:, 7])


def test_of_one_stored_token_the_value_comes_back_weighted_by_the_gate() -> None:
    """Memory 1, third token: the first one alone is stored; output = local + sigmoid(b) (value - local)."""
    backbone = perturbed(config(layers=1, memory=1, residual="post_ln", position="none"))
    attention = backbone.get_submodule("layers.0.mixing.mixer")
    seen: list[torch.Tensor] = []
    store, x = store_of(backbone), torch.randn(1, 3, 15)
    join = store.join
    store.join = lambda window, retrieved: seen.append(join(window, retrieved)) or seen[-1]  # type: ignore[method-assign,func-returns-value]
    assert store.gate is not None
    outputs = {}
    for gate in (-1e3, 0.3, 1e3):
        store.gate.data.fill_(gate)
        backbone(x)
        outputs[gate] = seen[-1][0, 2]
    value = attention.keys(x)[0, 0, 15:]  # type: ignore[operator]
    torch.testing.assert_close(outputs[1e3], value)
    share = 1 / (1 + np.exp(-0.3))
    torch.testing.assert_close(outputs[0.3], (1 - share) * outputs[-1e3] + share * value)


@pytest.mark.parametrize("joint", [False, True])
def test_a_bank_is_read_by_every_token_and_keeps_the_laws(bank: str, joint: bool) -> None:
    backbone = perturbed(config({"bank": bank, "neighbors": 5, "joint": joint}))
    case = Case.of(backbone)
    laws.causality(case)
    laws.split_invariance(case)
    laws.episode_isolation(case)
    laws.padding(case)
    without = Backbone(config({"neighbors": 5, "joint": joint})).eval()
    without.load_state_dict(backbone.state_dict())
    first = case.x[:, :1]
    assert not torch.allclose(backbone(first)[0], without(first)[0])


def test_the_softmax_goes_over_the_nearest_of_store_and_bank_together(bank: str) -> None:
    """A bank that holds copies of what a wider store would hold gives what that store gives."""
    backbone = perturbed(config({"neighbors": 4, "store": 9}, layers=1))
    x = torch.randn(1, 14, 15)
    y, _ = backbone(x)
    _, after = backbone(x[:, :4])
    for state in (after, backbone.with_cache(after)):
        keys, values = backbone.stored_keys(state)
        assert keys.shape == values.shape == (4, 3, 5)
        save_bank(bank, keys.numpy(), values.numpy())
    split = Backbone(config({"neighbors": 4, "store": 3, "bank": bank}, layers=1)).eval()
    split.load_state_dict(backbone.state_dict())
    found, _ = split(x)
    # The last token finds tokens 0 to 6: the first four in the bank, the others in the store.
    torch.testing.assert_close(found[:, 13], y[:, 13], rtol=1e-6, atol=1e-6)


def test_faiss_finds_what_exact_search_finds(bank: str) -> None:
    pytest.importorskip("faiss")
    exact = perturbed(config({"bank": bank, "neighbors": 4}, kv_heads=3))
    other = Backbone(config({"bank": bank, "neighbors": 4, "search": "faiss"}, kv_heads=3)).eval()
    other.load_state_dict(exact.state_dict())
    x = torch.randn(3, 17, 15)
    expected, found = exact(x)[0], other(x)[0]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(copy.deepcopy(other)(x)[0], expected, rtol=1e-12, atol=1e-12)
    for one, same in ((exact, expected), (other, found)):
        gradient = torch.autograd.grad(same.square().sum(), store_of(one).log_scale)
        assert gradient[0].ne(0).all()


def test_without_faiss_the_error_names_the_extra(bank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def refuse(name: str, *rest: Any) -> Any:
        if name == "faiss":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(MissingExtraError, match=r"rltransformers\[knn\]"):
        config({"bank": bank, "search": "faiss"})


def test_a_search_without_a_bank_is_refused() -> None:
    with pytest.raises(ConfigError, match="name a bank or leave search out"):
        config({"search": "faiss"})


def test_a_bank_that_cannot_be_read_is_refused(tmp_path: Path, bank: str) -> None:
    with pytest.raises(ConfigError, match="is not there; write it with save_bank"):
        config({"bank": str(tmp_path / "none.npz")})
    (tmp_path / "text.npz").write_text("no bank")
    with pytest.raises(ConfigError, match="is no bank"):
        config({"bank": str(tmp_path / "text.npz")})
    with pytest.raises(ConfigError, match=r"key-value heads and widths \(1, 5\)"):
        config({"bank": bank}, kv_heads=1)
    with pytest.raises(ConfigError, match="no layer has a store"):
        plain = Backbone(config(memory_kind="cache"))
        plain.stored_keys(plain.initial_state(1))
    with pytest.raises(ConfigError, match=r"\[M, G, K\]"):
        save_bank(tmp_path / "other", np.zeros((3, 5)), np.zeros((3, 5)))


def test_a_span_that_hides_what_was_weighed_is_refused() -> None:
    assert config({"joint": True}) and config(span="adaptive")
    with pytest.raises(ConfigError, match=r"'memorizing' with joint .* span 'adaptive' hides .* leave joint out"):
        Backbone(config({"joint": True}, span="adaptive"))


def test_a_pattern_that_leaves_a_gap_before_the_store_is_refused() -> None:
    with pytest.raises(ConfigError, match="nobody would read what lies in between"):
        config(pattern={"name": "band", "window": 2})


def test_keys_of_one_number_cannot_be_compared() -> None:
    with pytest.raises(ConfigError, match="set head_dim to at least 2"):
        config(head_dim=1)


def test_a_damaged_bank_is_refused(bank: str, tmp_path: Path) -> None:
    whole = Path(bank).read_bytes()
    Path(bank).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match="is no bank"):
        Backbone(config({"bank": bank}))
    np.save(tmp_path / "array.npy", np.zeros((2, 3, 5)))
    with pytest.raises(ConfigError, match="is no bank"):
        Backbone(config({"bank": str(tmp_path / "array.npy")}))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1j, "text"])
def test_a_bank_holds_finite_numbers(bank: str, value: Any) -> None:
    np.savez(bank, keys=np.ones((2, 3, 5)), values=np.full((2, 3, 5), value))
    with pytest.raises(ConfigError, match=r"values of the bank .* are not all finite numbers"):
        Backbone(config({"bank": bank}))


def test_a_bank_is_found_by_the_name_that_it_was_saved_under(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    keys, values = (chance.standard_normal((5, 2, 4)) for _ in range(2))
    save_bank(tmp_path / "demonstrations", keys, values)
    kind = {"name": "memorizing", "bank": str(tmp_path / "demonstrations")}
    Backbone({"width": 8, "heads": 2, "layers": 2, "memory": 4, "position": "none", "memory_kind": kind})
