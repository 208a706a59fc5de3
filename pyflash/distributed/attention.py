"""Attention over a process group whose ranks hold slices of the sequence."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from pyflash.distributed import model
from pyflash.distributed.exchange import agree, process_group
from pyflash.distributed.head_parallel import HeadParallelAttention, why_not
from pyflash.distributed.layout import LAYOUTS
from pyflash.distributed.options import (
    autocast,
    check_positional,
    check_with_op,
    in_words,
    refuse_gradients,
)
from pyflash.distributed.pieces import Mask
from pyflash.distributed.renamed import takes_renamed
from pyflash.distributed.ring import Attention, RingAttention
from pyflash.distributed.schedule import Geometry
from pyflash.op import ops  # noqa: F401  (registers torch.ops.pyflash)
from pyflash.op.options import (
    DEFAULTS,
    TENSORS,
    AttentionOptions,
    Scope,
    of_scope,
    refuse_unknown,
    shows_options,
    tensors_of,
    windows_asked,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

_FUNCTIONS = {"ring": RingAttention, "all_to_all": HeadParallelAttention}


@takes_renamed(variant="method")
@shows_options
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: dist.ProcessGroup | DeviceMesh | None = None,
    method: str = "auto",
    layout: str = "zigzag",
    cu_seqlens_q: Tensor | Sequence[int] | None = None,
    cu_seqlens_k: Tensor | Sequence[int] | None = None,
    return_lse: bool = False,
    **options: Unpack[AttentionOptions],
) -> Tensor | tuple[Tensor, Tensor]:
    """`pyflash.attention` of a sequence that the ranks of a group hold slices of.

    q is (batch, local seqlen_q, heads, d_head), k and v are (batch, local seqlen_k, heads_kv,
    d_head): the rows of this rank, the same number on each, as `shard` gives them. Masks are those
    of the whole sequence. Every rank of the group calls, with the same arguments.

    - group: a process group or a mesh of one dimension; default: all ranks.
    - method: "ring": keys and values travel around the group; "all_to_all": ranks exchange rows
      for heads, heads must divide; "auto": the one whose forward pass `plan` expects to be faster.
    - layout: which rows rank r of n holds. "zigzag": chunks r and 2 n - 1 - r of 2 n, so that under
      a causal mask all have the same work; "contiguous": chunk r of n, so that with narrow windows
      most blocks are not even sent.
    - cu_seqlens_q, cu_seqlens_k: for packed sequences, where q is (local rows, heads, d_head), k
      and v the like: those of all ranks together, (sequences + 1), int32 tensors or numbers. Of
      each sequence every rank holds its chunks, whatever the length. Tensors on the CPU save a wait
      for the GPU. cu_seqlens_k: default cu_seqlens_q.
    {options}

    A tensor among the options is the same on every rank. Its gradient is this rank's part of a sum
    over ranks, as that of every parameter. A config runs every part of a ring.

    Returns out, of the shape and dtype of q, contiguous; with `return_lse` also lse of all keys,
    (batch, heads, local seqlen_q) or (heads, local rows), float32.

    out has gradients with respect to q, k, v and sinks, first derivatives only; lse has none. The
    same call on a group of the same size gives the same bits; gradients on a GPU do under
    `torch.use_deterministic_algorithms(True)`, without which `deterministic` is refused there.
    Under `torch.autocast` q, k and v are cast to its dtype.

    The first call of its kind has all ranks compare their arguments; where they differ, or one is
    refused, every rank raises. A rank that dies or does not come is an error on every other after
    the group's timeout at most (`torch.distributed.init_process_group(timeout=...)`).

    Raises ValueError, or RuntimeError where `pyflash.attention` does, that names the argument, what
    was expected and what came; RuntimeError for ranks that are gone.
    """
    group = process_group(group)
    refuse_unknown("attention", options)
    (q, k, v), options = autocast((q, k, v), options)
    lengths = _lengths(q, k, cu_seqlens_q, cu_seqlens_k, dist.get_world_size(group))
    config = options.get("config", "")
    short_form = config if isinstance(config, str) else config.canonical().short_form()
    everything = {**DEFAULTS, **options, "config": short_form}
    tensors = tensors_of(everything)
    packed = cu_seqlens_q is not None

    def describe() -> dict[str, Any]:
        _check(q, k, group, method, layout, lengths, packed)
        check_with_op(q, k, v, len(lengths[0]) if packed else None, everything)
        check_positional(q, k, dist.get_world_size(group), method, everything)
        described = {
            name: in_words(x, 1 if packed else 0) for name, x in {"q": q, "k": k, "v": v}.items()
        }
        described |= {"method": method, "layout": layout}
        if packed:
            described |= {"cu_seqlens_q and cu_seqlens_k": _digest(lengths)}
        words = {name: in_words(x) for name, x in zip(TENSORS, tensors, strict=True)}
        return described | everything | words

    numbers = tuple((name, x) for name, x in everything.items() if name not in TENSORS)
    shapes = tuple(x if x is None else (x.shape, x.dtype, x.device) for x in (q, k, v, *tensors))
    agree(group, describe, (method, layout, lengths, packed, shapes, numbers))
    refuse_gradients(q, k, v, everything)

    mask = Mask(*windows_asked(everything))
    geometry = Geometry(*lengths, mask, dist.get_world_size(group), layout)
    if method == "auto" and of_scope(everything, Scope.POSITION):
        method = "all_to_all"
    elif method == "auto":
        method = model.choose(_problem(q, k, geometry), _machine(q.device))
    call = Attention.of(group, geometry, packed, everything)
    out, lse = _FUNCTIONS[method].apply(call, q, k, v, *tensors)
    return (out, lse) if return_lse else out


def ring_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """`attention` with method = "ring": same arguments, same result."""
    return attention(q, k, v, method="ring", **options)


def all_to_all_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """`attention` with method = "all_to_all": same arguments, same result."""
    return attention(q, k, v, method="all_to_all", **options)


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    group: dist.ProcessGroup | DeviceMesh | None = None,
    layout: str = "zigzag",
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention of slices of the sequence, or a refusal.

    query is (batch, heads, local seqlen_q, d_head), key and value are (batch, heads_kv, local
    seqlen_k, d_head). Returns a tensor of the shape of query.

    Raises ValueError for attn_mask, dropout_p above 0, heads other than key's without enable_gqa,
    and what `attention` raises.
    """
    if attn_mask is not None or dropout_p:
        raise ValueError(
            "pyflash: attn_mask and dropout_p cannot be used on slices of a sequence: expected "
            "None and 0; is_causal is the mask there is"
        )
    if query.dim() == 4 and query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(
            f"pyflash: query has {query.shape[1]} heads and key {key.shape[1]}: expected as many, "
            "or enable_gqa = True"
        )
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    options = {"softmax_scale": scale, "causal": is_causal}
    return attention(q, k, v, group=group, layout=layout, **options).transpose(1, 2)


Lengths = tuple[tuple[int, ...], tuple[int, ...]]


def _lengths(
    q: Tensor,
    k: Tensor,
    cu_seqlens_q: Tensor | Sequence[int] | None,
    cu_seqlens_k: Tensor | Sequence[int] | None,
    n_ranks: int,
) -> Lengths:
    """Those of the whole sequences of q and of k."""
    if cu_seqlens_q is None:
        return tuple((x.shape[1] * n_ranks if x.dim() > 1 else 0,) for x in (q, k))
    seqlens_q = seqlens_of(cu_seqlens_q)
    return seqlens_q, seqlens_q if cu_seqlens_k is None else seqlens_of(cu_seqlens_k)


def seqlens_of(cu_seqlens: Tensor | Sequence[int]) -> tuple[int, ...]:
    """Lengths of packed sequences."""
    starts = cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else list(cu_seqlens)
    return tuple(stop - start for start, stop in itertools.pairwise(starts))


def _digest(lengths: Lengths) -> str:
    """A short digest of the lengths."""
    name = hashlib.sha256(repr(lengths).encode()).hexdigest()[:12]
    return f"of {len(lengths[0])} sequences, {sum(lengths[0])} and {sum(lengths[1])} rows ({name})"


def _check(
    q: Tensor,
    k: Tensor,
    group: dist.ProcessGroup,
    method: str,
    layout: str,
    lengths: Lengths,
    packed: bool,
) -> None:
    if method not in ("auto", *_FUNCTIONS):
        raise ValueError(f"pyflash: method = '{method}': expected auto, {', '.join(_FUNCTIONS)}")
    if layout not in LAYOUTS:
        raise ValueError(f"pyflash: layout = '{layout}': expected {' or '.join(LAYOUTS)}")
    n_ranks = dist.get_world_size(group)
    for name, x, seqlens in zip(("q", "k"), (q, k), lengths, strict=True):
        if x.dim() != (3 if packed else 4):
            axes = "local rows" if packed else "batch, local seqlen"
            raise ValueError(
                f"pyflash: {name} has shape {tuple(x.shape)}: expected ({axes}, heads, d_head)"
            )
        _check_rows(name, x, seqlens, layout, packed, dist.get_rank(group), n_ranks)
    if len(lengths[0]) != len(lengths[1]):
        raise ValueError(
            f"pyflash: cu_seqlens_k is for {len(lengths[1])} sequences: expected "
            f"{len(lengths[0])} as cu_seqlens_q"
        )
    if method == "all_to_all" and (reason := why_not(q.shape[-2], k.shape[-2], n_ranks)):
        raise ValueError(f"pyflash: {reason}; method = 'ring' takes any")


def _check_rows(
    name: str, x: Tensor, seqlens: tuple[int, ...], layout: str, packed: bool, rank: int, n: int
) -> None:
    if not packed:
        if layout == "zigzag" and n > 1 and x.shape[1] % 2:
            raise ValueError(
                f"pyflash: {name} has {x.shape[1]} rows on rank {rank}: expected an even number, "
                f"the two chunks of a zigzag layout; pad the sequence to a multiple of {2 * n}"
            )
        return
    if any(length < 0 for length in seqlens):
        raise ValueError(f"pyflash: cu_seqlens_{name} descends: expected lengths of 0 or more")
    expected = Geometry(seqlens, seqlens, Mask(), n, layout).rows_q(rank)
    if len(x) != expected:
        raise ValueError(
            f"pyflash: {name} has {len(x)} rows on rank {rank}: expected {expected} for these "
            f"cu_seqlens and layout = '{layout}', as pyflash.distributed.shard gives them"
        )


def _problem(q: Tensor, k: Tensor, geometry: Geometry) -> model.Problem:
    """For the model packed sequences are a batch, all of the mean length."""
    batch = len(q)
    if q.dim() == 3:
        batch = max(1, len(geometry.seqlens_q))
        lengths = (geometry.seqlens_q, geometry.seqlens_k)
        seqlens_q, seqlens_k = ((sum(seqlens) // batch,) for seqlens in lengths)
        geometry = replace(geometry, seqlens_q=seqlens_q, seqlens_k=seqlens_k)
    return model.Problem(geometry, batch, q.shape[-2], k.shape[-2], q.shape[-1])


def _machine(device: torch.device) -> model.Machine:
    return model.machine_of(
        torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    )
