"""How DTensor shards the ops: by batch and by heads, so that tensor-parallel and data-parallel
models run them on their shards, without communication.

A sharding that is no part of attention, of rows or of columns, is refused instead of being gathered
without a word.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from pyflash.op import dropout, ops  # noqa: F401  (registers torch.ops.pyflash)
from pyflash.op.options import TENSORS

# The axes of each argument and result, by name: padded and packed.
_PADDED = ("batch", "sequence", "heads", "d_head")
_PACKED = ("sequence", "heads", "d_head")
_LIKE_LSE = ("lse", "grad_lse")
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k")
_KV = ("k", "v", "dk", "dv")


def repeat_kv_heads(x: Tensor, n: int) -> Tensor:
    """K or V, (..., heads_kv, d_head), with each head as often as makes their number a multiple of
    n, the ranks that share them: for grouped heads that are fewer than ranks. Attention stays what
    it was. On DTensors that are replicated nothing is sent.

    Raises ValueError if n is no multiple of heads_kv.
    """
    heads_kv = x.shape[-2]
    if heads_kv % n == 0:
        return x
    if n % heads_kv:
        raise ValueError(
            f"pyflash: {heads_kv} heads cannot be repeated for {n} ranks: expected a multiple or a "
            f"divisor of {n}"
        )
    return x.unsqueeze(-2).expand(*x.shape[:-1], n // heads_kv, x.shape[-1]).flatten(-3, -2)


def _axes(name: str, packed: bool, rank: int = 0) -> tuple[str, ...]:
    """The axes of a tensor argument or result of an op, by its name in the schema; an option's may
    lack the first."""
    if name in _LENGTHS:
        return ("lengths",)
    if name in TENSORS:
        return ("batch", "heads")[-rank:]
    if name in _LIKE_LSE:
        return ("heads", "sequence") if packed else ("batch", "heads", "sequence")
    return _PACKED if packed else _PADDED


def _register(op: torch._ops.OpOverload, results: tuple[str, ...], packed: bool) -> None:
    names = [argument.name for argument in op._schema.arguments]

    @register_sharding(op)
    def rule(*args: Any, **kwargs: Any) -> list[tuple[list[Placement], list[Placement | None]]]:
        given = dict(zip(names, args, strict=False)) | kwargs
        tensors = {name: x for name, x in given.items() if hasattr(x, "placements")}
        dropout.refuse(given, "DTensors")
        shares = _shares_of_heads(tensors, packed)

        def placement(name: str, axis: str | None, replicated: tuple[str, ...]) -> Placement:
            axes = _axes(name, packed, tensors[name].ndim if name in tensors else 0)
            if axis in axes and name not in replicated:
                return Shard(axes.index(axis))
            # A result without the axis is a sum over it.
            return Partial() if axis and name in results else Replicate()

        def sharding(axis: str | None, replicated: tuple[str, ...] = ()) -> tuple[Any, Any]:
            # None for positional arguments that are no tensors.
            inputs = [
                placement(name, axis, replicated) if name in tensors else None
                for name in given
                if name in tensors or name not in kwargs
            ]
            return [placement(name, axis, replicated) for name in results], inputs

        shardings = [sharding(None)]
        if not packed:
            shardings.append(sharding("batch"))
        if shares > 1:
            heads_kv = tensors["k"].shape[-2]
            shardings.append(sharding("heads", replicated=() if heads_kv % shares == 0 else _KV))
        return shardings


def _shares_of_heads(tensors: dict[str, Any], packed: bool) -> int:
    """Over how many ranks heads are sharded; 1 where they are not.

    Raises ValueError for a sharding that attention cannot run on.
    """
    shares = 1
    q, k = tensors["q"], tensors["k"]
    for name in ("q", "k", "v"):
        of_heads = 1
        for size, placement in zip(q.mesh.shape, tensors[name].placements, strict=True):
            if isinstance(placement, Shard):
                of_heads *= size if _sharded_axis(name, placement, packed) == "heads" else 1
        shares = max(shares, of_heads)
    heads, heads_kv = q.shape[-2], k.shape[-2]
    if heads % shares:
        raise ValueError(
            f"pyflash: q has {heads} heads, sharded over {shares} ranks: expected a multiple of "
            f"{shares}"
        )
    if heads_kv % shares and heads_kv != 1:
        raise ValueError(
            f"pyflash: k and v have {heads_kv} heads, to be sharded over {shares} ranks as q is: "
            f"expected a multiple of {shares}, or 1; replicate k and v and pass "
            f"pyflash.distributed.repeat_kv_heads(k, {shares}), the same of v"
        )
    return shares


def _sharded_axis(name: str, placement: Shard, packed: bool) -> str:
    axis = _axes(name, packed)[placement.dim]
    if axis == "sequence":
        raise ValueError(
            f"pyflash: {name} is sharded by rows (Shard({placement.dim})): expected batch or heads "
            "to be sharded; for slices of a sequence call pyflash.distributed.attention with the "
            "local tensors"
        )
    if axis == "d_head":
        raise ValueError(
            f"pyflash: {name} is sharded by d_head (Shard({placement.dim})): expected batch or "
            "heads to be sharded; redistribute it"
        )
    return axis


for _name, _results in (("fwd", ("out", "lse")), ("bwd", ("dq", "dk", "dv"))):
    _register(getattr(torch.ops.pyflash, _name).default, _results, packed=False)
    _register(getattr(torch.ops.pyflash, _name + "_varlen").default, _results, packed=True)
