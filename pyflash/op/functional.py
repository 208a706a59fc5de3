"""Functions of torch.nn.functional, by pyflash."""

from __future__ import annotations

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
    """torch.nn.functional.scaled_dot_product_attention, or a refusal.

    query is (batch, heads, seqlen_q, d_head), key and value are (batch, heads_kv, seqlen_k,
    d_head); all three may lack the batch dimension. scale: default 1 / sqrt(d_head).

    Returns (batch, heads, seqlen_q, d_head), a transposed view of what `pyflash.attention` gives;
    nothing is copied on the way there.

    Raises ValueError for what PyTorch does and pyflash does not: attn_mask, dropout_p above 0,
    is_causal with seqlen_q other than seqlen_k, a d_head of value other than query's. Dtypes,
    devices and strides are those of `pyflash.attention`, which raises RuntimeError for others.
    """
    _check_arguments(attn_mask, dropout_p)
    _check_shapes(query, key, value, is_causal, enable_gqa)
    if query.dim() == 3:
        query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        return sdpa(query, key, value, None, 0.0, is_causal, scale, enable_gqa).squeeze(0)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return attention(query, key, value, softmax_scale=scale, causal=is_causal).transpose(1, 2)


def _check_arguments(attn_mask: Tensor | None, dropout_p: float) -> None:
    if attn_mask is not None:
        raise ValueError(
            f"pyflash.sdpa: attn_mask has shape {tuple(attn_mask.shape)}: expected None; is_causal "
            "and the windows of pyflash.attention are the masks there are, and "
            "pyflash.attention_varlen takes padded batches without their padding"
        )
    if dropout_p > 0:
        raise ValueError(
            f"pyflash.sdpa: dropout_p = {dropout_p:g}: expected 0, there is no dropout"
        )


def _check_shapes(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, enable_gqa: bool
) -> None:
    tensors = (("query", query), ("key", key), ("value", value))
    for name, tensor in tensors:
        if tensor.dim() != query.dim() or tensor.dim() not in (3, 4):
            raise ValueError(
                f"pyflash.sdpa: {name} has shape {tuple(tensor.shape)}: expected "
                f"{'as many dimensions as query' if query.dim() in (3, 4) else '4 dimensions'}, "
                "(batch, heads, seqlen, d_head), or 3, (heads, seqlen, d_head)"
            )
    for name, tensor in tensors[1:]:
        if tensor.shape[-1] != query.shape[-1]:
            raise ValueError(
                f"pyflash.sdpa: {name} has d_head {tensor.shape[-1]}: "
                f"expected {query.shape[-1]} as query"
            )
        if tensor.shape[-3] != query.shape[-3] and not enable_gqa:
            raise ValueError(
                f"pyflash.sdpa: {name} has {tensor.shape[-3]} heads and query has "
                f"{query.shape[-3]}: expected as many, or enable_gqa=True"
            )
    if is_causal and query.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"pyflash.sdpa: is_causal with {query.shape[-2]} queries and {key.shape[-2]} keys: "
            "expected as many, because PyTorch lets the first query attend the first key alone, "
            "and pyflash lets the last query attend all keys; if that is meant, call "
            "pyflash.attention(..., causal=True)"
        )
