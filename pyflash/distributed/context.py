"""The three lines of torch.distributed.tensor.experimental.context_parallel, with pyflash.

PyTorch's own entry replaces torch.nn.functional.scaled_dot_product_attention by a ring over the
kernels in a table of its own, which takes no further ones. What it does to buffers holds for any
attention: this keeps it, and puts pyflash in the function's place.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import experimental

from pyflash.distributed.attention import sdpa


@contextmanager
def context_parallel(
    mesh: DeviceMesh,
    *,
    buffers: Sequence[Tensor],
    buffer_seq_dims: Sequence[int],
    no_restore_buffers: set[Tensor] | None = None,
) -> Iterator[None]:
    """torch.distributed.tensor.experimental.context_parallel, by pyflash: inside, `buffers` hold
    this rank's rows (in dimension buffer_seq_dims of each), in the zigzag layout, and
    torch.nn.functional.scaled_dot_product_attention is `pyflash.distributed.sdpa` over the mesh.
    At the end the buffers are whole again, but for no_restore_buffers.

    Calls of scaled_dot_product_attention by its full name are meant, and those of
    torch.nn.functional under another name; a name imported from it is not replaced. Backward may
    run inside or after.

    Raises ValueError for a sequence that is not a multiple of 2 * mesh.size().
    """
    if not buffers:
        raise ValueError(
            "pyflash: buffers is empty: expected the inputs of the model, such as tokens, "
            "positions and labels"
        )
    n_chunks = 2 * mesh.size()
    for i, (buffer, dim) in enumerate(zip(buffers, buffer_seq_dims, strict=True)):
        if buffer.shape[dim] % n_chunks:
            raise ValueError(
                f"pyflash: buffer {i} has {buffer.shape[dim]} rows in dimension {dim}: expected a "
                f"multiple of {n_chunks}; pad the sequence"
            )
    with experimental.context_parallel(
        mesh,
        buffers=list(buffers),
        buffer_seq_dims=list(buffer_seq_dims),
        no_restore_buffers=no_restore_buffers,
    ):
        replaced = F.scaled_dot_product_attention
        F.scaled_dot_product_attention = functools.partial(sdpa, group=mesh)
        try:
            yield
        finally:
            F.scaled_dot_product_attention = replaced
