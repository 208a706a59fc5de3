"""Functions of torch.nn.functional, computed by pyflash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Size, Tensor

from pyflash.config.words import type_name
from pyflash.op.ops import attention

if TYPE_CHECKING:
    from pyflash.config import KernelConfig


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
    config: KernelConfig | str = "",
    compile: bool = False,
    deterministic: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention by pyflash; raises where it cannot.

    query is (batch, heads, seqlen_q, d_head), key and value are (batch, heads_kv, seqlen_k,
    d_head); all three may lack the batch dimension. scale: default 1 / sqrt(d_head).
    dropout_p, config, compile and deterministic: as for `pyflash.attention`.

    Returns (batch, heads, seqlen_q, d_head), a transposed view of the output of
    `pyflash.attention`; nothing is copied.

    Raises ValueError for what PyTorch supports and pyflash does not: attn_mask, is_causal with
    seqlen_q != seqlen_k, broadcast batches, a d_head of value other than query's; TypeError for an
    argument that is no tensor, and for a tensor as scale. Dtypes, devices and strides are those of
    `pyflash.attention`, which raises ValueError for others.
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor):
            raise TypeError(f"pyflash.sdpa: {name} is {type_name(x)}: expected a tensor")
    for name, flag in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if not isinstance(flag, bool):
            raise TypeError(f"pyflash.sdpa: {name} is {type_name(flag)}: expected a bool")
    _check_others(attn_mask, dropout_p, scale)
    q_shape, k_shape, v_shape = query.shape, key.shape, value.shape
    if not (len(q_shape) == 4 and q_shape == k_shape == v_shape):  # those are right
        _check_shapes(q_shape, k_shape, v_shape, is_causal, enable_gqa)
    q, k, v = (x.transpose(-2, -3) for x in (query, key, value))
    options = {
        "softmax_scale": scale,
        "causal": is_causal,
        "config": config,
        "compile": compile,
        "deterministic": deterministic,
        "dropout_p": dropout_p,
    }
    if query.dim() == 3:
        out = attention(q[None], k[None], v[None], **options)[0]
    else:
        out = attention(q, k, v, **options)
    return out.transpose(-2, -3)


def _check_others(attn_mask: Any, dropout_p: float, scale: Any) -> None:
    if attn_mask is not None:
        if not isinstance(attn_mask, Tensor):
            raise TypeError(f"pyflash.sdpa: attn_mask is {type_name(attn_mask)}: expected None")
        raise ValueError(
            f"pyflash.sdpa: attn_mask has shape {tuple(attn_mask.shape)}: expected None; use "
            "is_causal, the windows of pyflash.attention, or, for padded batches, "
            "pyflash.attention_varlen"
        )
    if not isinstance(dropout_p, int | float):
        raise TypeError(f"pyflash.sdpa: dropout_p is {type_name(dropout_p)}: expected a number")
    if isinstance(scale, Tensor):
        raise TypeError("pyflash.sdpa: scale is a tensor: expected a number, as PyTorch does")


def _check_shapes(q: Size, k: Size, v: Size, is_causal: bool, enable_gqa: bool) -> None:
    for name, shape in (("query", q), ("key", k), ("value", v)):
        if len(shape) != len(q) or len(shape) not in (3, 4):
            raise ValueError(
                f"pyflash.sdpa: {name} has shape {tuple(shape)}: expected "
                f"{'as many dimensions as query' if len(q) in (3, 4) else '4 dimensions'}, "
                "(batch, heads, seqlen, d_head), or 3, (heads, seqlen, d_head)"
            )
    for name, shape in (("key", k), ("value", v)):
        if shape[-1] != q[-1]:
            raise _mismatch(name, shape, f"d_head {q[-1]} as query")
        if shape[-3] != q[-3] and not enable_gqa:
            raise ValueError(
                f"pyflash.sdpa: {name} has {shape[-3]} heads and query has {q[-3]}: expected as "
                "many, or enable_gqa=True"
            )
        if shape[:-3] != q[:-3]:
            raise _mismatch(name, shape, f"batch {q[0]} as query")
    if v[-3] != k[-3]:
        raise _mismatch("value", v, f"heads {k[-3]} as key")
    if v[-2] != k[-2]:
        raise _mismatch("value", v, f"seqlen {k[-2]} as key")
    if q[-3] % max(1, k[-3]):
        raise _mismatch("key", k, f"a number of heads that divides the {q[-3]} of query")
    if is_causal and q[-2] != k[-2]:
        raise ValueError(
            f"pyflash.sdpa: is_causal with {q[-2]} queries and {k[-2]} keys: expected as many, "
            "because PyTorch's causal mask is top-left aligned and that of pyflash bottom-right; "
            "for the latter call pyflash.attention(..., causal=True)"
        )


def _mismatch(name: str, shape: Size, expected: str) -> ValueError:
    return ValueError(f"pyflash.sdpa: {name} has shape {tuple(shape)}: expected {expected}")
