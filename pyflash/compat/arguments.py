"""The arguments of FlashAttention 2, FlashAttention 3 and vLLM: defaults, what is missing, and the
options of `pyflash.attention` that they are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyflash.op.options import AttentionOptions

# What the libraries have and pyflash has not, by the argument that asks for it: the value that asks
# for nothing, and what it is.
MISSING: dict[str, tuple[Any, str]] = {
    "rotary_cos": (None, "rotary embedding inside the call: apply it to q and k before"),
    "rotary_sin": (None, "rotary embedding inside the call: apply it to q and k before"),
    "rotary_seqlens": (None, "rotary embedding inside the call: apply it to q and k before"),
    "cache_leftpad": (None, "left padding of a cache: begin each sequence in its first row"),
    "qv": (None, "a second product with V in the scores"),
    "q_v": (None, "a second product with V in the scores"),
    "q_descale": (None, "FP8"),
    "k_descale": (None, "FP8"),
    "v_descale": (None, "FP8"),
    "seqused_q": (None, "lengths of queries inside q: leave rows that are not used out of q"),
    "cp_world_size": (1, "context parallelism inside the call"),
    "cp_rank": (0, "context parallelism inside the call"),
    "cp_tot_seqused_k": (None, "context parallelism inside the call"),
    "batch_invariant": (False, "a batch-invariant mode"),
}
# Choices of their kernels: neither the results nor their order depend on them.
_OF_THEIR_KERNELS = {
    "fa_version": None,
    "pack_gqa": None,
    "rotary_interleaved": True,  # says how rotary_cos is applied
    "sm_margin": 0,
}
_OPTIONS = {
    "dropout_p": 0.0,
    "softmax_scale": None,
    "causal": False,
    "window_size": (-1, -1),
    "softcap": 0.0,
    "alibi_slopes": None,
    "attention_chunk": 0,
    "num_splits": 0,
    "s_aux": None,
    "deterministic": False,
    "return_attn_probs": False,
    "return_softmax_lse": False,
    "out": None,
}
SHARED = {**_OPTIONS, **_OF_THEIR_KERNELS, **{name: none for name, (none, _) in MISSING.items()}}
DEFAULTS: dict[str, Any] = {
    **SHARED,
    **dict.fromkeys(
        (
            "k", "v", "cu_seqlens_k", "cu_seqlens_k_new", "cu_seqlens_q", "max_seqlen_q",
            "seqused_k", "block_table", "page_table", "cache_seqlens", "cache_batch_idx",
            "scheduler_metadata", "num_heads_q", "headdim_v", "page_size",
        )
    ),
    "qkv_dtype": torch.bfloat16,
    "max_seqlen_k_new": 0,
    "has_softcap": False,
}  # fmt: skip


def known_to(core: Callable[..., Any]) -> set[str]:
    """The arguments that a function of functions.py takes: its own, and with **shared all that the
    functions share."""
    parameters = inspect.signature(core).parameters.values()
    own = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name != "triple"}
    return own | ({*SHARED} if any(p.kind is p.VAR_KEYWORD for p in parameters) else set())


def refuse_missing(function: str, given: Mapping[str, Any]) -> None:
    """Raises ValueError for an argument that asks for what pyflash has not."""
    for name, value in given.items():
        if name in MISSING:
            none, what = MISSING[name]
            if isinstance(value, Tensor) or value != none:
                shown = "a tensor" if isinstance(value, Tensor) else value
                raise ValueError(
                    f"pyflash: {name} of {function} is {shown}: expected {none}, because pyflash "
                    f"has no {what}"
                )


def options_of(shared: Mapping[str, Any]) -> AttentionOptions:
    """The options of `pyflash.attention` that the shared arguments of a call are."""
    dropout_p = shared["dropout_p"]
    if dropout_p and shared["return_attn_probs"]:
        raise ValueError(
            f"pyflash: return_attn_probs is True with dropout_p = {dropout_p}: expected False, "
            "because the probabilities are never in memory"
        )
    causal, window = shared["causal"], shared["window_size"]
    left, right = (-1, -1) if window is None else window
    return {
        "softmax_scale": shared["softmax_scale"],
        "causal": causal,
        "window_left": max(left, -1),
        "window_right": -1 if causal else max(right, -1),  # theirs, too, puts causal first
        "softcap": shared["softcap"],
        "alibi_slopes": shared["alibi_slopes"],
        "attention_chunk": shared["attention_chunk"],
        "num_splits": shared["num_splits"],
        "sinks": shared["s_aux"],
        "deterministic": shared["deterministic"],
        "dropout_p": dropout_p,
    }


def returned(shared: Mapping[str, Any], out: Tensor, lse: Tensor, triple: bool) -> Any:
    """What a call returns; triple: lse comes with the probabilities that dropout kept, as in
    FlashAttention 2. There is no dropout then, and they are empty."""
    if (into := shared["out"]) is not None:
        if into.shape != out.shape or into.dtype != out.dtype:
            raise ValueError(
                f"pyflash: out is {tuple(into.shape)}, {into.dtype}: expected "
                f"{tuple(out.shape)}, {out.dtype}"
            )
        out = into.copy_(out)
    if shared["return_attn_probs"] and triple:
        return out, lse, out.new_empty(0)
    return (out, lse) if shared["return_attn_probs"] or shared["return_softmax_lse"] else out
