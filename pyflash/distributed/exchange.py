"""Communication of ranks: agreement on a call, and blocks that travel around a ring."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

_MAX_AGREED = 1024
_agreed: WeakKeyDictionary[dist.ProcessGroup, set[Any]] = WeakKeyDictionary()


def process_group(group: dist.ProcessGroup | DeviceMesh | None) -> dist.ProcessGroup:
    """The group itself, that of a mesh of one dimension, or for None the default group.

    Raises RuntimeError without a default group, ValueError for a mesh of several dimensions.
    """
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(
                f"pyflash: group is a mesh of {group.ndim} dimensions: expected one, such as "
                "mesh['cp']"
            )
        return group.get_group()
    if group is not None:
        return group
    if not dist.is_initialized():
        raise RuntimeError(
            "pyflash: there is no process group: call torch.distributed.init_process_group, or "
            "start with torchrun, and pass group"
        )
    return dist.group.WORLD


def agree(group: dist.ProcessGroup, describe: Callable[[], Mapping[str, Any]], key: Any) -> None:
    """Raises ValueError on every rank if they are about to make different calls, or one of them a
    call that is refused: otherwise the others would wait for what it never sends.

    `describe` gives what has to be the same, or raises. A call that all ranks agreed on is not
    asked about again: key stands for it.
    """
    agreed = _agreed.setdefault(group, set())
    if key in agreed:
        return
    refusal: Exception | None = None
    mine: Mapping[str, Any] | str
    try:
        mine = describe()
    except (TypeError, ValueError, RuntimeError) as error:
        refusal, mine = error, str(error)
    n_ranks = dist.get_world_size(group)
    theirs: list[Any] = [None] * n_ranks
    with clear_errors(group, "agree on a call"):
        dist.all_gather_object(theirs, mine, group=group)
    if refusal is not None:
        raise refusal
    for rank, other in enumerate(theirs):
        if isinstance(other, str):
            raise ValueError(f"pyflash: rank {rank} of the group refused the call: {other}")
    for name, value in mine.items():
        for rank, other in enumerate(theirs):
            if other.get(name) != value:
                raise ValueError(
                    f"pyflash: {name} is {value} on rank {dist.get_rank(group)} and "
                    f"{other.get(name)} on rank {rank} of the group: expected the same on every "
                    "rank"
                )
    if len(agreed) >= _MAX_AGREED:
        agreed.clear()
    agreed.add(key)


@contextmanager
def clear_errors(group: dist.ProcessGroup, what: str) -> Iterator[None]:
    """Turns an exception of the transport into a sentence."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"pyflash: rank {dist.get_rank(group)} could not {what} with the other "
            f"{dist.get_world_size(group) - 1} ranks of the group: one of them died, called with "
            f"other arguments, or did not come within the group's timeout ({error})"
        ) from error


class Transfer:
    """Tensors on their way. `wait` gives those received; until then neither those may be read nor
    those sent be written."""

    def __init__(
        self, group: dist.ProcessGroup, sent: Sequence[Tensor], received: Sequence[Tensor], hop: int
    ) -> None:
        rank, n_ranks = dist.get_rank(group), dist.get_world_size(group)
        self.group, self.sent, self.received = group, sent, tuple(received)
        destination, source = (rank + hop) % n_ranks, (rank - hop) % n_ranks
        operations = [
            dist.P2POp(call, x, group=group, group_peer=peer)
            for tensors, call, peer in (
                (sent, dist.isend, destination),
                (received, dist.irecv, source),
            )
            for x in tensors
            if x.numel()
        ]
        with clear_errors(group, "exchange keys and values"):
            self.works = dist.batch_isend_irecv(operations) if operations else []

    def wait(self) -> tuple[Tensor, ...]:
        """On a GPU the current stream waits, the host does not."""
        with clear_errors(self.group, "exchange keys and values"):
            for work in self.works:
                work.wait()
        return self.received


class Ring:
    """Passes blocks of tensors around a group.

    A block is a tuple of tensors of the same shape, contiguous; a rank's is at home at shift 0 and
    at rank r + s at shift s. What is received goes to two buffers in turns: one is sent and
    computed with while the other is filled. On a GPU, NCCL sends and receives on a stream of its
    own, which waits for what the current stream was told before, and runs beside what it is told
    after.
    """

    def __init__(
        self, group: dist.ProcessGroup, like: Sequence[Tensor], rows: Sequence[int], row_dim: int
    ) -> None:
        """like: a block; rows: how many rows the block of each rank has, in dimension row_dim."""
        self.group, self.rows, self.row_dim = group, rows, row_dim
        self.like = like
        self.buffers = [self._new_buffer() for _ in range(2)] if len(rows) > 1 else []
        self.turns = itertools.cycle(self.buffers)

    def _new_buffer(self) -> tuple[Tensor, ...]:
        shape = list(self.like[0].shape)
        shape[self.row_dim] = max(self.rows)
        return tuple(x.new_empty(shape) for x in self.like)

    def send(self, block: Sequence[Tensor], shift: int, hop: int) -> Transfer:
        """Sends on the block that is here at a shift; the transfer gives the one that is here
        `hop` shifts later."""
        n_ranks = len(self.rows)
        owner = (dist.get_rank(self.group) - shift - hop) % n_ranks
        received = [x.narrow(self.row_dim, 0, self.rows[owner]) for x in next(self.turns)]
        return Transfer(self.group, block, received, hop)

    def travel(
        self, block: Sequence[Tensor], shifts: Sequence[int]
    ) -> Iterator[tuple[int, Sequence[Tensor]]]:
        """Yields (shift, the block that is here), with the next block on its way meanwhile."""
        for shift, following in itertools.zip_longest(shifts, shifts[1:]):
            transfer = None if following is None else self.send(block, shift, following - shift)
            yield shift, block
            if transfer is not None:
                block = transfer.wait()
