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

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pyflash.integrations.padding import padded_attention
from pyflash.op.ops import attention, attention_varlen
from pyflash.op.options import AttentionOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

NAME = "pyflash"
OLDEST = (5, 4)

# Arguments that some models pass to attention functions, for what pyflash does not support.
_UNSUPPORTED = {
    "block_indices": "sparse attention",
    "block_table": "paged caches",
    "cache": "paged caches",
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
_OTHER_MASK = (
    "pyflash: this model adds a mask of its own to the causal one: expected causal or "
    "bidirectional attention, sliding windows, padding and packed sequences only; "
    "attn_implementation='sdpa' takes other masks"
)


def register() -> None:
    """Makes `attn_implementation="pyflash"` known to transformers; a second call changes nothing.

    Supported: full and padded batches, causal and bidirectional attention, sliding windows,
    softcap, sinks, grouped heads, packed sequences (restarting position_ids or cu_seq_lens_q) and
    caches, in float16 and bfloat16. For anything else that a model asks for, its forward pass
    raises ValueError.

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
    _allow_in_models_with_sinks(modeling_utils.PreTrainedModel)


def _skip_lookup_of_kernels(modeling_utils: Any) -> None:
    """For an attn_implementation with "flash" in its name, a registered one too, transformers loads
    a FlashAttention package, or a kernel of that name from the hub, when it creates a model.

    NOTE: "flash" in the name has effects which are wanted: packed sequences for image encoders,
    refusal of chunked attention, and 2-D masks beside static caches.
    """
    load = modeling_utils.lazy_import_flash_attention
    if getattr(load, "_skips_pyflash", False):
        return

    @functools.wraps(load)
    def load_unless_pyflash(implementation: str | None, *args: Any, **kwargs: Any) -> Any:
        return None if implementation == NAME else load(implementation, *args, **kwargs)

    load_unless_pyflash._skips_pyflash = True
    modeling_utils.lazy_import_flash_attention = load_unless_pyflash


# FlashAttention-3 with sinks and FlashAttention-4: a model that lists one of them as compatible
# needs flash attention with sinks.
_WITH_SINKS = {"kernels-community/vllm-flash-attn3", "flash_attention_4"}


def _allow_in_models_with_sinks(model_class: Any) -> None:
    """A model with sinks lists the flash implementations that have them, and transformers replaces
    others, with no more than a log line. pyflash joins the lists that it satisfies; for other lists
    it raises ValueError instead of being replaced."""
    check = model_class._check_and_adjust_attn_implementation
    if getattr(check, "_knows_pyflash", False):
        return

    @functools.wraps(check)
    def check_with_pyflash(self: Any, implementation: str | None, *args: Any, **kwargs: Any) -> Any:
        listed = getattr(self, "_compatible_flash_implementations", None)
        if implementation != NAME or not listed or NAME in listed:
            return check(self, implementation, *args, **kwargs)
        if not _WITH_SINKS.intersection(listed):
            raise ValueError(
                f"pyflash: {type(self).__name__} is compatible with {', '.join(listed)} only: "
                "expected one of these, or 'eager', as attn_implementation"
            )
        self._compatible_flash_implementations = [*listed, NAME]
        return check(self, implementation, *args, **kwargs)

    check_with_pyflash._knows_pyflash = True
    model_class._check_and_adjust_attn_implementation = check_with_pyflash


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
    # transformers counts the query itself in a window, which is two-sided unless causal.
    window = -1 if sliding_window is None else sliding_window - 1
    options: AttentionOptions = {
        "softmax_scale": scaling,
        "causal": causal,
        "window_left": window,
        "window_right": -1 if causal else window,
        "softcap": softcap or 0.0,
        "sinks": _sinks(q, kwargs),
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
            "memory; attn_implementation='eager' returns them"
        )
    for name, what in _UNSUPPORTED.items():
        if kwargs.get(name) is not None:
            raise ValueError(
                f"pyflash: {name} is given: expected None, because pyflash has no {what}; use "
                "another attn_implementation for this model"
            )


def _autocast(x: Tensor) -> Tensor:
    """Under autocast rotary embeddings and norms return float32."""
    if x.dtype == torch.float32 and torch.is_autocast_enabled(x.device.type):
        return x.to(torch.get_autocast_dtype(x.device.type))
    return x


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
    """The mask for the layers of a forward pass: None, or a mask for `padding.py`, (batch, n). For
    causal attention its last column is the last query's; keys past it are slots of a static cache
    that are not filled yet.

    Query i is at position q_offset + i, key j at kv_offset + j. `attention_mask`, 2-D, covers the
    positions so far. mask_function(batch, head, query, key) says which positions attend which.
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
    # NOTE: with a static cache, generate makes the mask twice, so that it may already be cut to the
    # columns of a sliding window: they are counted from the right.
    attention_mask = attention_mask[:, :end]
    return attention_mask[:, attention_mask.shape[1] - filled :]


@torch.compiler.disable  # reads the result of mask_function on the host
def _sequence_numbers(
    batch_size: int,
    q_length: int,
    q_offset: int | Tensor,
    mask_function: Callable[..., Tensor],
    device: torch.device | str | None,
) -> Tensor | None:
    """The number of each query's sequence, (batch, q_length), int32, from 1; None if there is one
    only. A sequence starts where a query does not attend the key before its own."""
    batch = torch.arange(batch_size, device=device)[:, None]
    head = torch.zeros((), dtype=torch.int64, device=device)
    place = int(q_offset) + torch.arange(1, q_length, device=device)[None]
    if mask_function(batch, head, place - 1, place).any():
        raise ValueError(_OTHER_MASK)
    starts = ~mask_function(batch, head, place, place - 1).expand(batch_size, -1)
    if not starts.any():
        return None
    return nn.functional.pad(starts, (1, 0)).cumsum(1, dtype=torch.int32) + 1
