"""attn_implementation="pyflash" in Hugging Face transformers.

    from pyflash.integrations import transformers as pyflash_transformers

    pyflash_transformers.register()
    model = AutoModelForCausalLM.from_pretrained(
        name, dtype=torch.bfloat16, attn_implementation="pyflash"
    )

transformers then calls `make_mask` once per forward pass, and passes the result to
`attention_forward` in each layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pyflash.integrations.continuous_batching import (
    allow_continuous_batching,
    decode,
)
from pyflash.integrations.packing import known_of, layout_of
from pyflash.integrations.padding import attention_to, padded_attention
from pyflash.integrations.transformers_masks import make_mask, pattern_of
from pyflash.integrations.transformers_models import NAME, PAGED, allow_pyflash
from pyflash.op.fitted import fitted
from pyflash.op.ops import attention, attention_varlen
from pyflash.op.options import AttentionOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

OLDEST = (5, 4)

# Arguments that some models pass to attention functions, for what pyflash does not support.
_UNSUPPORTED = {
    "block_indices": "sparse attention",
    "block_table": "paged caches without register(continuous_batching=True)",
    "cache": "paged caches without register(continuous_batching=True)",
    "head_mask": "masks of heads",
    "indices": "sparse attention",
    "position_bias": "biases of the scores",
}
# Names for the logits of attention sinks, (heads,).
_SINKS = ("s_aux", "sinks")
_NEEDED = (
    f"pyflash.integrations.transformers needs transformers >= {OLDEST[0]}.{OLDEST[1]}: "
    f"pip install -U 'transformers>={OLDEST[0]}.{OLDEST[1]}'"
)


def register(continuous_batching: bool = False) -> None:
    """Makes `attn_implementation="pyflash"` known to transformers; a second call changes nothing.

    continuous_batching: for `generate_batch` and its managers, too, which changes functions of
    transformers that are not public. Needs transformers 5.23.

    Supported: full and padded batches, causal and bidirectional attention, sliding windows,
    softcap, sinks, grouped heads, attention_dropout in training, packed sequences (restarting
    position_ids or cu_seq_lens_q) and caches, in float16 and bfloat16. Heads of other sizes than
    the kernels' are padded, and float32 q, k and v, as adapters leave them, cast to the model's
    dtype.

    A model whose class does not declare flash attention is refused with a ValueError when it is
    made; for anything else that a model asks for, its forward pass raises ValueError.

    Raises ImportError where transformers >= 5.4 is missing.
    """
    try:
        import transformers
        from transformers import AttentionInterface, AttentionMaskInterface, modeling_utils
    except ImportError as error:
        raise ImportError(_NEEDED) from error
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if version < OLDEST:
        raise ImportError(f"{_NEEDED} (this is {transformers.__version__})")
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, make_mask)
    allow_pyflash(modeling_utils)
    if continuous_batching:
        allow_continuous_batching(version)
        AttentionInterface.register(PAGED, paged_attention_forward)


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
    pattern = None if attention_mask is None else pattern_of(attention_mask)
    _check(attention_mask if pattern is None else None, kwargs)
    layout = None
    is_packed = cu_seq_lens_q is not None or cu_seq_lens_k is not None
    has_sinks = any(kwargs.get(name) is not None for name in _SINKS)
    if pattern is not None and not (is_packed or dropout or has_sinks):
        layout = layout_of(query, key, value, scaling, softcap)
        if layout is not None and (repeated := known_of(attention_mask).calls.get(layout)):
            return repeated(query, key, value), None
    given = (query, key, value)
    query, key, value = _of_one_dtype(module, query, key, value)
    *tensors, scale = fitted(query, key, value, scaling)
    if not all(x is y for x, y in zip(tensors, given, strict=True)):
        layout = None  # of other tensors than the layers'
    q, k, v = (x.transpose(1, 2) for x in tensors)
    if pattern is not None:
        causal, sliding_window = pattern
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    # transformers counts the query itself in a window, which is two-sided unless causal.
    window = -1 if sliding_window is None else sliding_window - 1
    options: AttentionOptions = {
        "softmax_scale": scale,
        "causal": causal,
        "window_left": window,
        "window_right": -1 if causal else window,
        "softcap": softcap or 0.0,
        "sinks": _sinks(q, kwargs),
        "dropout_p": dropout,
    }
    has_padding = attention_mask is not None and attention_mask.shape[1] > 0
    if is_packed:
        mask = attention_mask if has_padding else None
        lengths = (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
        out = _packed_attention(q, k, v, mask, *lengths, **options)
    elif has_padding:
        out = padded_attention(q, k, v, attention_mask, layout=layout, **options)
    else:
        out = attention(q, k, v, **options)
        if layout is not None and (repeated := attention_to(k.shape[1], options)):
            known_of(attention_mask).calls[layout] = repeated
    return out[..., : value.shape[-1]], None


def paged_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    *,
    cache: Any,
    **told: Any,
) -> tuple[Tensor, None]:
    """`attention_forward` of a step of continuous batching: of packed sequences, whose keys so far
    are in `cache`, a PagedAttentionCache. It gets the keys of the step first, and puts what it says
    of this layer into `told`."""
    if dropout > 0:
        raise ValueError(
            f"pyflash: dropout is {dropout:g} over pages: expected 0, call model.eval()"
        )
    _check(attention_mask, {**told, "block_table": None})
    query, key, value = _of_one_dtype(module, query, key, value)
    key, value = cache.update(
        key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=told
    )
    if told.get("block_table") is None:
        return attention_forward(module, query, key, value, None, **told)
    out = decode(
        query,
        key,
        value,
        told,
        module.layer_idx,
        softmax_scale=told.get("scaling"),
        softcap=told.get("softcap") or 0.0,
        sinks=_sinks(query, told),
    )
    return out, None


def _check(attention_mask: Tensor | None, kwargs: dict[str, Any]) -> None:
    if attention_mask is not None and attention_mask.dim() != 2:
        raise ValueError(
            f"pyflash: attention_mask has shape {tuple(attention_mask.shape)}: expected "
            "(batch, seqlen), 0 for padding; attn_implementation='sdpa' takes other masks"
        )
    if kwargs.get("output_attentions"):
        raise ValueError(
            "pyflash: output_attentions is True: expected False, because the weights are never in "
            "memory; attn_implementation='eager' returns them"
        )
    for name, what in _UNSUPPORTED.items():
        if kwargs.get(name) is not None:
            raise ValueError(
                f"pyflash: {name} is given: expected None, because pyflash has no {what}; use "
                "another attn_implementation for this model"
            )


def _of_one_dtype(module: nn.Module, *tensors: Tensor) -> list[Tensor]:
    """Casts what is float32: adapters, norms and rotary embeddings may return it in a model of 16
    bits, and under autocast."""
    if all(x.dtype != torch.float32 for x in tensors):
        return list(tensors)
    dtype = _dtype_of_model(module, tensors)
    return [x.to(dtype) if x.dtype == torch.float32 else x for x in tensors]


def _dtype_of_model(module: nn.Module, tensors: tuple[Tensor, ...]) -> torch.dtype:
    for x in tensors:
        if x.dtype != torch.float32:
            return x.dtype
    device = tensors[0].device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    if not hasattr(module.config, "_is_quantized"):
        for layer in module.modules():
            if isinstance(layer, nn.Linear):
                return layer.weight.dtype
    return module.config.dtype


def _sinks(q: Tensor, kwargs: dict[str, Any]) -> Tensor | None:
    given = [kwargs[name] for name in _SINKS if kwargs.get(name) is not None]
    if not given:
        return None
    sinks = given[0].reshape(-1)
    return sinks if sinks.dtype == q.dtype else sinks.float()


def _packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | Tensor | None,
    max_seqlen_k: int | Tensor | None,
    **options: Unpack[AttentionOptions],
) -> Tensor:
    """Attention of packed sequences, whose total is the tokens of the batch."""
    if cu_seqlens_q is None or cu_seqlens_k is None:
        raise ValueError("pyflash: expected cu_seq_lens_q and cu_seq_lens_k, or neither")
    if mask is not None and mask.dtype != torch.int32:
        raise ValueError(
            "pyflash: attention_mask and cu_seq_lens_q are given: expected one of them, because "
            "packed sequences have no padding"
        )
    out = attention_varlen(
        *(x.flatten(0, 1) for x in (q, k, v)),
        *(x.to(torch.int32).contiguous() for x in (cu_seqlens_q, cu_seqlens_k)),
        _longest(cu_seqlens_q, max_seqlen_q, q),
        _longest(cu_seqlens_k, max_seqlen_k, k),
        **options,
    )
    return out.unflatten(0, q.shape[:2])


def _longest(cu_seqlens: Tensor, max_seqlen: int | Tensor | None, rows: Tensor) -> int:
    """An upper bound of the lengths.

    NOTE: where continuous batching records graphs, rows behind the last sequence pad the batch,
    which sequences of that bound may have no room for.
    """
    if max_seqlen is None:
        return int(cu_seqlens.diff().max())
    n_sequences = max(cu_seqlens.shape[0] - 1, 1)
    return max(int(max_seqlen), -(-rows.shape[0] * rows.shape[1] // n_sequences))
