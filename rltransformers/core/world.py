"""Sharing of one training between several processes, which ``torchrun`` starts and ``join`` connects.

Every process holds the whole agent and a block of the environments, process 0 the first ones. Losses are computed of
numbers of all processes, so that they are the same everywhere, while the gradient of each flows through its own part
alone; summed up, that is the gradient of one process which had done all the work.
"""

import importlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # torch says so in its docs alone
from torch.distributed.rendezvous import rendezvous

from rltransformers.core.errors import ConfigError, WorldError, error_line, one_line

TIMEOUT = timedelta(minutes=30)
"""Longest wait for the others. Process 0 evaluates while they wait; one that died is noticed at once."""
Tree = Any  # tensors in nested mappings, or None
T = TypeVar("T")
FAILURE = "rltransformers/failure"  # key of the store under which a process that fails says why


@dataclass
class Traffic:
    """Traffic since ``began``: bytes that this process handed over, seconds until all was told, and messages."""

    bytes: int = 0
    seconds: float = 0.0
    calls: int = 0
    began: float = field(default_factory=time.perf_counter)


class Sharing:
    """The processes that train one agent, of which this one is number ``rank`` of ``size``; one alone does nothing.

    Methods that exchange something must be called by all processes in the same order.
    """

    def __init__(self, rank: int = 0, size: int = 1, store: Store | None = None) -> None:
        self.rank, self.size = rank, size
        self.is_single = size == 1
        self.is_leader = rank == 0  # writes files, evaluates and reports
        self.traffic = Traffic()
        self._store = store

    def share_of(self, count: int, name: str) -> int:
        """An equal part of ``count`` things; ConfigError names ``name`` where they cannot be shared out evenly."""
        share, left = divmod(count, self.size)
        if left or not share:
            near = [each for each in (share * self.size, (share + 1) * self.size) if each]
            raise ConfigError(
                f"{name} ({count}) must be a multiple of the {self.size} processes that share it; "
                f"nearest: {' or '.join(map(str, near))}"
            )
        return share

    def block(self, share: int) -> slice:
        """Where the ``share`` things of this process stand among those of all."""
        return slice(self.rank * share, (self.rank + 1) * share)

    def part(self, count: int) -> slice:
        """The part of this process of ``count`` things that everybody has; at most one larger than that of another."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    # Numbers

    def sum(self, x: Tensor) -> Tensor:
        """The sum of ``x`` over all processes; gradient flows to the own ``x`` alone."""
        if self.is_single:
            return x
        result = x.detach().clone()
        self._communicate(lambda: dist.all_reduce(result), result)
        return x - x.detach() + result if x.requires_grad else result

    def count(self, number: int) -> int:
        return int(self.sum(torch.tensor(number)))

    def mean(self, values: Tensor, valid: Tensor) -> Tensor:
        """The mean of all valid entries of all processes; 0 when nothing is valid. Gradient as for ``sum``."""
        part = torch.where(valid, values, torch.zeros_like(values)).sum()
        if self.is_single:
            return part / valid.sum().clamp(min=1)
        both = self.sum(torch.stack([part, valid.sum().to(part.dtype)]))
        return both[0] / both[1].clamp(min=1)

    def mean_of_means(self, means: Tensor, numbers: Tensor) -> Tensor:
        """Means over the entries of all processes, from those over the own ones, of which there are ``numbers``."""
        shares = numbers / self.sum(numbers).clamp(min=1)
        return self.sum(means * shares.to(means.dtype))

    def max(self, *numbers: float) -> list[float]:
        """Of every number the largest of all processes."""
        if self.is_single:
            return list(numbers)
        result = torch.tensor(numbers, dtype=torch.float64)
        self._communicate(lambda: dist.all_reduce(result, dist.ReduceOp.MAX), result)
        return list(result.tolist())

    def any(self, fact: bool) -> bool:
        return self.max(float(fact)) != [0.0]

    def broadcast(self, value: T) -> T:
        """The argument of process 0, plain data."""
        if self.is_single:
            return value
        box = [value]
        self._communicate(lambda: dist.broadcast_object_list(box, 0, device=torch.device("cpu")))
        return box[0]

    def all_gather_object(self, value: T) -> list[T]:
        """The arguments of all processes, plain data, by rank."""
        if self.is_single:
            return [value]
        result: list[Any] = [None] * self.size
        self._communicate(lambda: dist.all_gather_object(result, value))
        return result

    def sum_in_place(self, tensors: Iterable[Tensor | None]) -> None:
        """Replace tensors of one type by their sums over all processes, in one message; leave out None."""
        parts = [] if self.is_single else [tensor for tensor in tensors if tensor is not None]
        if not parts:
            return
        flat = torch.cat([part.flatten() for part in parts])
        self._communicate(lambda: dist.all_reduce(flat), flat)
        for part, total in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
            part.copy_(total.view_as(part))

    # Rows

    def all_gather(self, tree: Tree) -> Tree:
        """The rows of all processes behind each other; each holds equally many. Without gradient."""
        if self.is_single:
            return tree
        packed = _packed(tree)
        result = packed.new_empty((self.size * len(packed), packed.shape[1]))
        self._communicate(lambda: dist.all_gather(list(result.chunk(self.size)), packed), packed)
        return _unpacked(result, tree)

    def gather(self, tree: Tree, takers: Tensor) -> Tree:
        """Rows of all processes in common order: row i is the next one of process ``takers[i]``.

        Gradient flows to the own rows alone.
        """
        if self.is_single:
            return tree
        packed = _packed(tree)
        counts = takers.bincount(minlength=self.size)
        room = packed.new_zeros((int(counts.max()), packed.shape[1]))
        room[: len(packed)] = packed
        parts = [torch.empty_like(room) for _ in range(self.size)]
        self._communicate(lambda: dist.all_gather(parts, room), room)
        behind = torch.cat([part[:count] for part, count in zip(parts, counts.tolist(), strict=True)])
        order = takers.argsort(stable=True)
        result = _unpacked(behind[order.argsort().to(behind.device)], tree)
        rows = (takers == self.rank).nonzero().flatten()

        def join(own: Tensor, leaf: Tensor) -> Tensor:
            return leaf.index_copy(0, rows.to(own.device), own) if own.requires_grad else leaf

        return _map(join, tree, result)

    def assign(self, owners: Tensor) -> Tensor:
        """Who takes each of the things that processes ``owners`` hold: all take equally many, own ones first."""
        room = [len(part) for part in torch.arange(len(owners)).tensor_split(self.size)]
        result, left = owners.clone(), []
        for index, owner in enumerate(owners.tolist()):
            if room[owner]:
                room[owner] -= 1
            else:
                left.append(index)
        free = [rank for rank, rows in enumerate(room) for _ in range(rows)]
        result[left] = torch.tensor(free, dtype=result.dtype)
        return result

    def all_to_all(self, tree: Tree, owners: Tensor, takers: Tensor) -> Tree:
        """The rows that this process takes, in common order, of all that processes ``owners`` hold in that order."""
        if self.is_single:
            return tree
        packed = _packed(tree)
        going, coming = takers[owners == self.rank], owners[takers == self.rank]
        sent = packed[going.argsort(stable=True).to(packed.device)]
        result = packed.new_empty((len(coming), packed.shape[1]))
        received, handed = (each.bincount(minlength=self.size).tolist() for each in (coming, going))
        self._communicate(lambda: dist.all_to_all_single(result, sent, received, handed), sent[handed[self.rank] :])
        return _unpacked(result[coming.argsort(stable=True).argsort().to(result.device)], tree)

    def to_leader(self, tree: Tree) -> Tree:
        """On process 0 the rows of all behind each other, each of which holds equally many; elsewhere the own ones."""
        if self.is_single:
            return tree

        def hand_over(leaf: Tensor) -> Tensor:
            own = leaf.detach().cpu()
            packed = _packed(own)
            parts = [torch.empty_like(packed) for _ in range(self.size)] if self.is_leader else None
            self._communicate(lambda: dist.gather(packed, parts, 0), packed)
            return own if parts is None else _unpacked(torch.cat(parts), own)

        return _map(hand_over, tree)

    def check(self, readout: object, *batches: int) -> None:
        """Raise ConfigError for a ``readout``, and for ``batches`` of fewer segments or windows than processes."""
        if min(batches) < self.size:
            raise ConfigError(
                f"a minibatch of {min(batches)} cannot be shared by {self.size} processes: raise batch_size, of which "
                "every process takes its part (on policy it holds whole segments, and the last one may be smaller)"
            )
        if not self.is_single and readout is not None:
            raise ConfigError(
                f"a readout keeps a store of its own in every process, so {self.size} processes would act by "
                f"{self.size} different ones; train it with one process, or leave readout out"
            )

    def log_traffic(self, record: Callable[[str, float], None]) -> None:
        """Record the messages since the last call: megabytes, their number, and their share of the time."""
        if self.is_single:
            return
        traffic, self.traffic = self.traffic, Traffic()
        record("time/sent_mb", traffic.bytes / 1e6)
        record("time/messages", traffic.calls)
        record("time/waiting", traffic.seconds / max(self.traffic.began - traffic.began, 1e-9))

    def _communicate(self, call: Any, sent: Tensor | None = None) -> None:
        """Make a call of ``torch.distributed``; count it and the bytes of ``sent``. WorldError without the others."""
        began = time.perf_counter()
        try:
            call()
        except RuntimeError as error:
            raise WorldError(
                f"process {self.rank} of {self.size} lost the others: {self._failure()} ({one_line(error)})"
            ) from error
        self.traffic.calls += 1
        self.traffic.seconds += time.perf_counter() - began
        self.traffic.bytes += 0 if sent is None else sent.numel() * sent.itemsize

    def tell(self, error: BaseException) -> None:
        """Leave word for the others why this process ends."""
        if self._store is not None:
            with suppress(RuntimeError):  # nobody is left to read it
                self._store.set(FAILURE, f"process {self.rank} failed: {error_line(error)}")

    def _failure(self) -> str:
        if self._store is not None:
            with suppress(RuntimeError):
                if self._store.check([FAILURE]):
                    return self._store.get(FAILURE).decode()
        minutes = TIMEOUT.seconds // 60
        return f"one of them ended, or did not answer within {minutes} minutes; what that one says is the reason"


_sharing = Sharing()


def current_sharing() -> Sharing:
    """The sharing that this process has joined, or that of a single process."""
    return _sharing


@contextmanager
def join() -> Iterator[Sharing]:
    """Within the block, agents that are made in this process learn together with those in the others of ``torchrun``.

    The messages go by gloo for tensors on the CPU and by nccl for those on GPUs; every process gets the GPU of its
    local rank. A process that no ``torchrun`` started is single.

    Raises ConfigError for more processes on a machine than it has GPUs, WorldError when the others cannot be reached.
    """
    global _sharing
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" not in os.environ or size == 1 or not _sharing.is_single:
        yield _sharing
        return
    local, here = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    backend = "gloo"
    if torch.cuda.is_available():
        if here > torch.cuda.device_count():
            raise ConfigError(
                f"{here} processes on a machine with {torch.cuda.device_count()} GPUs: start one for each GPU, or hide "
                "them with CUDA_VISIBLE_DEVICES= to train on the CPU"
            )
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    # Making an optimizer imports it, and its functions keep the group of then as a default (PyTorch 2.13): imported
    # later, the group would outlive the block, with threads that sometimes abort at the end of the process.
    importlib.import_module("torch.distributed.nn")
    try:
        store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
        store = PrefixStore(_start(store, rank, size), store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise WorldError(
            f"process {os.environ['RANK']} of {size} cannot reach the others: {one_line(error)}"
        ) from error
    _sharing = Sharing(dist.get_rank(), dist.get_world_size(), store)
    try:
        yield _sharing
    except BaseException as error:
        if not isinstance(error, WorldError):  # the others know
            _sharing.tell(error)
        raise
    finally:
        _sharing = Sharing()
        dist.destroy_process_group()


def _start(store: Store, rank: int, size: int) -> str:
    """A name of this start of the processes that all of them know, and no earlier start.

    The store of ``torchrun`` outlives restarts with everything that was written to it, addresses of the dead included,
    and the count of restarts is another one on every machine.
    """
    if rank == 0:
        name = uuid4().hex
        store.set("rltransformers", name)
        for other in range(1, size):
            store.set(f"{name}/met/{other}", store.get(f"{name}/{other}").decode())
        return name
    own = uuid4().hex
    while True:
        name = store.get("rltransformers").decode()
        store.set(f"{name}/{rank}", own)
        for _ in range(20):  # after which process 0 may have written a newer name
            if store.check([f"{name}/met/{rank}"]) and store.get(f"{name}/met/{rank}").decode() == own:
                return name
            time.sleep(0.05)


# Rows as bytes: one message for tensors of any types ---------------------------------------------------------


def _map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    if isinstance(tree, Mapping):
        return {name: _map(function, part, *(other[name] for other in others)) for name, part in tree.items()}
    return None if tree is None else function(tree, *others)


def _packed(tree: Tree) -> Tensor:
    """The rows of all tensors as bytes [rows, width]."""
    rows: list[Tensor] = []

    def pack(leaf: Tensor) -> None:
        if numbers := math.prod(leaf.shape[1:]):
            rows.append(leaf.detach().reshape(len(leaf), numbers).contiguous().view(torch.uint8))

    _map(pack, tree)
    return torch.cat(rows, 1)


def _unpacked(packed: Tensor, like: Tree) -> Tree:
    """The inverse of ``_packed`` for any number of rows."""
    end = 0

    def unpack(leaf: Tensor) -> Tensor:
        nonlocal end
        begin, end = end, end + math.prod(leaf.shape[1:]) * leaf.itemsize
        return packed[:, begin:end].contiguous().view(leaf.dtype).view(len(packed), *leaf.shape[1:])

    return _map(unpack, like)


def rows_of(tree: Tree, rows: slice | Tensor) -> Tree:
    """Rows of every tensor."""
    return _map(lambda leaf: leaf[rows], tree)
