"""attn_implementation="pyflash" in Hugging Face transformers.

    from pyflash.integrations import transformers as pyflash_transformers

    pyflash_transformers.register()
    model = AutoModelForCausalLM.from_pretrained(
        name, dtype=torch.bfloat16, attn_implementation="pyflash"
    )

transformers then calls `make_mask` once in a forward, for what it passes to `attention_forward` in
each layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pyflash.integrations.padding import padded_attention
from pyflash.op.ops import attention, attention_varlen

NAME = "pyflash"
OLDEST = (5, 4)

# What some models pass to attention functions and pyflash does not have.
_NOT_DONE = {
    "block_indices": "sparse attention",
    "block_table": "paged caches",
    "cache": "paged caches",
    "head_mask": "masks of heads",
    "indices": "sparse attention",
    "position_bias": "biases of the scores",
    "s_aux": "attention sinks",
    "sinks": "attention sinks",
}
_NEEDED = (
    f"pyflash.integrations.transformers needs transformers >= {OLDEST[0]}.{OLDEST[1]}: "
    f"pip install -U 'transformers>={OLDEST[0]}.{OLDEST[1]}'"
)
_OTHER_MASK = (
    "pyflash: this model lays a mask of its own over the causal one: expected causal or "
    "bidirectional attention, sliding windows, padding and packed sequences only; "
    "attn_implementation='sdpa' takes other masks"
)


def register() -> None:
    """Makes `attn_implementation="pyflash"` known to transformers; a second call changes nothing.

    Models do full and padded batches, causal and bidirectional attention, sliding windows,
    capped scores, grouped heads, packed sequences (restarting position_ids or cu_seq_lens_q) and
    caches, in float16 and bfloat16. What else they ask for is refused with a ValueError.

    Raises ImportError where transformers >= 5.4 is missing.
    """
    try:
        import transformers
        from transformers import AttentionInterface, AttentionMaskInterface, modeling_utils
    except ImportError as error:
        raise ImportError(_NEEDED) from error
    if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < OLDEST:
        raise ImportError(f"{_NEEDED} (this is {transformers.__version__})")
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, make_mask)
    _skip_lookup_of_kernels(modeling_utils)


def _skip_lookup_of_kernels(modeling_utils: Any) -> None:
    """For any attn_implementation with "flash" in its name, a registered one too, a model that is
    made has transformers load a FlashAttention package or a kernel of that name from the hub.

    NOTE: that "flash" is in the name has effects which are wanted: packed sequences for encoders of
    images, refusal of chunked attention, and 2-D masks beside static caches.
    """
    load = modeling_utils.lazy_import_flash_attention
    if getattr(load, "_skips_pyflash", False):
        return

    @functools.wraps(load)
    def load_unless_pyflash(implementation: str | None, *args: Any, **kwargs: Any) -> Any:
        return None if implementation == NAME else load(implementation, *args, **kwargs)

    load_unless_pyflash._skips_pyflash = True
    modeling_utils.lazy_import_flash_attention = load_unless_pyflash


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int | Tensor | None = None,
    max_length_k: int | Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention of one layer: query is (batch, heads, seqlen_q, d_head), key and value are
    (batch, heads_kv, seqlen_k, d_head). Returns (batch, seqlen_q, heads, d_head) and None."""
    _check(attention_mask, dropout, kwargs)
    q, k, v = (_autocast(x).transpose(1, 2) for x in (query, key, value))
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    # A window of transformers counts the query itself, and is meant to both sides if not causal.
    window = -1 if sliding_window is None else sliding_window - 1
    options = {
        "softmax_scale": scaling,
        "causal": causal,
        "window_left": window,
        "window_right": -1 if causal else window,
        "softcap": softcap or 0.0,
    }
    if cu_seq_lens_q is not None or cu_seq_lens_k is not None:
        lengths = (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
        return _packed_attention(q, k, v, attention_mask, *lengths, **options), None
    if attention_mask is not None:
        return padded_attention(q, k, v, attention_mask, **options), None
    return attention(q, k, v, **options), None


def _check(attention_mask: Tensor | None, dropout: float, kwargs: dict[str, Any]) -> None:
    if dropout > 0:
        raise ValueError(
            f"pyflash: dropout is {dropout:g}: expected 0; set attention_dropout = 0 in the "
            "model's config, or call model.eval()"
        )
    if attention_mask is not None and attention_mask.dim() != 2:
        raise ValueError(
            f"pyflash: attention_mask has shape {tuple(attention_mask.shape)}: expected "
            "(batch, seqlen), 0 for padding; attn_implementation='sdpa' takes other masks"
        )
    if kwargs.get("output_attentions"):
        raise ValueError(
            "pyflash: output_attentions is True: expected False, because the weights are never in "
            "memory; attn_implementation='eager' has them"
        )
    for name, what in _NOT_DONE.items():
        if kwargs.get(name) is not None:
            raise ValueError(
                f"pyflash: {name} is given: expected None, because pyflash has no {what}; use "
                "another attn_implementation for this model"
            )


def _autocast(x: Tensor) -> Tensor:
    """Rotary embeddings and norms give float32 under autocast."""
    if x.dtype == torch.float32 and torch.is_autocast_enabled(x.device.type):
        return x.to(torch.get_autocast_dtype(x.device.type))
    return x


def _packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | Tensor | None,
    max_seqlen_k: int | Tensor | None,
    **options: Any,
) -> Tensor:
    """Attention of sequences that fill the rows of the batch one behind the other."""
    if cu_seqlens_q is None or cu_seqlens_k is None:
        raise ValueError("pyflash: expected cu_seq_lens_q and cu_seq_lens_k, or neither")
    if mask is not None and mask.dtype == torch.bool:
        raise ValueError(
            "pyflash: attention_mask and cu_seq_lens_q are given: expected one of them, because "
            "packed sequences have no padding"
        )
    out = attention_varlen(
        *(x.flatten(0, 1) for x in (q, k, v)),
        *(x.to(torch.int32).contiguous() for x in (cu_seqlens_q, cu_seqlens_k)),
        _longest(cu_seqlens_q, max_seqlen_q),
        _longest(cu_seqlens_k, max_seqlen_k),
        **options,
    )
    return out.unflatten(0, q.shape[:2])


def _longest(cu_seqlens: Tensor, max_seqlen: int | Tensor | None) -> int:
    return int(cu_seqlens.diff().max() if max_seqlen is None else max_seqlen)


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Tensor] | None = None,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    use_vmap: bool = False,
    device: torch.device | str | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """The mask that a forward's layers are given: None, or a mask of `padding`, (batch, n). If
    attention is causal its last column is the last query's; keys past it are slots of a static
    cache that nothing has filled yet.

    Query i is at position q_offset + i, key j at kv_offset + j. `attention_mask`, 2-D, is of the
    positions so far. mask_function(batch, head, query, key) tells which positions attend which.
    """
    if use_vmap:
        raise ValueError(_OTHER_MASK)
    if "allow_is_bidirectional_skip" in kwargs:
        return None if attention_mask is None else attention_mask[:, -kv_length:]
    if not allow_is_causal_skip and q_length > 1:
        numbers = _sequence_numbers(batch_size, q_length, q_offset, mask_function, device)
        if numbers is not None:
            if q_length != kv_length:
                raise ValueError(_OTHER_MASK)
            return numbers if attention_mask is None else numbers * attention_mask[:, -kv_length:]
    aligned = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    if attention_mask is None and aligned:
        return None
    return _positions_so_far(
        batch_size, q_length, kv_length, q_offset, kv_offset, attention_mask, device
    )


@torch.compiler.disable  # reads a static cache's length, a tensor, on the host
def _positions_so_far(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor,
    kv_offset: int,
    attention_mask: Tensor | None,
    device: torch.device | str | None,
) -> Tensor | None:
    end = int(q_offset) + q_length
    filled = end - kv_offset
    if filled > kv_length:
        raise ValueError(
            f"pyflash: the last query is at position {end - 1} and the last key at "
            f"{kv_offset + kv_length - 1}: expected a key for each query"
        )
    if attention_mask is None:
        if filled == kv_length:
            return None
        return torch.ones(batch_size, filled, dtype=torch.bool, device=device)
    if attention_mask.shape[1] < filled:
        raise ValueError(
            f"pyflash: attention_mask has {attention_mask.shape[1]} columns: expected {end}, one "
            "for each token so far, those in the cache too"
        )
    # NOTE: beside a static cache generate has the mask made twice, so the columns of a sliding
    # window may have been taken already: they are counted from the right.
    attention_mask = attention_mask[:, :end]
    return attention_mask[:, attention_mask.shape[1] - filled :]


@torch.compiler.disable  # reads on the host what mask_function says
def _sequence_numbers(
    batch_size: int,
    q_length: int,
    q_offset: int | Tensor,
    mask_function: Callable[..., Tensor],
    device: torch.device | str | None,
) -> Tensor | None:
    """The number of the sequence each query is of, (batch, q_length), int32, counted from 1; None
    if there is one only. A sequence starts where a query does not attend the key before its own.
    """
    batch = torch.arange(batch_size, device=device)[:, None]
    head = torch.zeros((), dtype=torch.int64, device=device)
    place = int(q_offset) + torch.arange(1, q_length, device=device)[None]
    if mask_function(batch, head, place - 1, place).any():
        raise ValueError(_OTHER_MASK)
    starts = ~mask_function(batch, head, place, place - 1).expand(batch_size, -1)
    if not starts.any():
        return None
    return nn.functional.pad(starts, (1, 0)).cumsum(1, dtype=torch.int32) + 1
