"""Functions of torch.nn.functional, computed by pyflash."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyflash.op.ops import attention


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention by pyflash; raises where it cannot.

    query is (batch, heads, seqlen_q, d_head), key and value are (batch, heads_kv, seqlen_k,
    d_head); all three may lack the batch dimension. scale: default 1 / sqrt(d_head).

    Returns (batch, heads, seqlen_q, d_head), a transposed view of the output of
    `pyflash.attention`; nothing is copied.

    Raises ValueError for what PyTorch supports and pyflash does not: attn_mask, dropout_p above 0,
    is_causal with seqlen_q != seqlen_k, broadcast batches, a d_head of value other than query's;
    TypeError for an argument that is no tensor, and for a tensor as scale. Dtypes, devices and
    strides are those of `pyflash.attention`, which raises RuntimeError for others.
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor):
            raise TypeError(f"pyflash.sdpa: {name} is {_type(x)}: expected a tensor")
    _check_others(attn_mask, dropout_p, scale)
    _check_shapes(query, key, value, is_causal, enable_gqa)
    q, k, v = (x.transpose(-2, -3) for x in (query, key, value))
    if query.dim() == 3:
        out = attention(q[None], k[None], v[None], softmax_scale=scale, causal=is_causal)[0]
    else:
        out = attention(q, k, v, softmax_scale=scale, causal=is_causal)
    return out.transpose(-2, -3)


def _check_others(attn_mask: Any, dropout_p: float, scale: Any) -> None:
    if attn_mask is not None:
        if not isinstance(attn_mask, Tensor):
            raise TypeError(f"pyflash.sdpa: attn_mask is {_type(attn_mask)}: expected None")
        raise ValueError(
            f"pyflash.sdpa: attn_mask has shape {tuple(attn_mask.shape)}: expected None; use "
            "is_causal, the windows of pyflash.attention, or, for padded batches, "
            "pyflash.attention_varlen"
        )
    if dropout_p != 0:
        raise ValueError(
            f"pyflash.sdpa: dropout_p = {dropout_p:g}: expected 0, dropout is not supported"
        )
    if isinstance(scale, Tensor):
        raise TypeError("pyflash.sdpa: scale is a tensor: expected a number, as PyTorch does")


def _check_shapes(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, enable_gqa: bool
) -> None:
    tensors = (("query", query), ("key", key), ("value", value))
    for name, x in tensors:
        if x.dim() != query.dim() or x.dim() not in (3, 4):
            raise ValueError(
                f"pyflash.sdpa: {name} has shape {tuple(x.shape)}: expected "
                f"{'as many dimensions as query' if query.dim() in (3, 4) else '4 dimensions'}, "
                "(batch, heads, seqlen, d_head), or 3, (heads, seqlen, d_head)"
            )
    for name, x in tensors[1:]:
        _check_axis(name, x, "d_head", -1, "query", query)
        if x.shape[-3] != query.shape[-3] and not enable_gqa:
            raise ValueError(
                f"pyflash.sdpa: {name} has {x.shape[-3]} heads and query has "
                f"{query.shape[-3]}: expected as many, or enable_gqa=True"
            )
        if query.dim() == 4:
            _check_axis(name, x, "batch", 0, "query", query)
    _check_axis("value", value, "heads", -3, "key", key)
    _check_axis("value", value, "seqlen", -2, "key", key)
    if query.shape[-3] % max(1, key.shape[-3]):
        raise ValueError(
            f"pyflash.sdpa: key has shape {tuple(key.shape)}: expected a number of heads that "
            f"divides the {query.shape[-3]} of query"
        )
    if is_causal and query.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"pyflash.sdpa: is_causal with {query.shape[-2]} queries and {key.shape[-2]} keys: "
            "expected as many, because PyTorch's causal mask is top-left aligned and that of "
            "pyflash bottom-right; for the latter call pyflash.attention(..., causal=True)"
        )


def _check_axis(
    name: str, x: Tensor, axis_name: str, axis: int, other_name: str, other: Tensor
) -> None:
    if x.shape[axis] != other.shape[axis]:
        raise ValueError(
            f"pyflash.sdpa: {name} has shape {tuple(x.shape)}: expected {axis_name} "
            f"{other.shape[axis]} as {other_name}"
        )


def _type(value: Any) -> str:
    return type(value).__name__
