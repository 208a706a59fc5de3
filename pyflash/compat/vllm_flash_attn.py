"""The functions of vLLM's module `vllm_flash_attn`, computed by pyflash: those of
`pyflash.compat.flash_attn`, with positional arguments in the order of vLLM."""

from __future__ import annotations

from pyflash.compat.flash_attn import flash_attn_with_kvcache, get_scheduler_metadata
from pyflash.compat.functions import packed
from pyflash.compat.spelling import spelled

flash_attn_varlen_func = spelled(
    packed,
    "flash_attn_varlen_func",
    "q k v max_seqlen_q cu_seqlens_q max_seqlen_k | cu_seqlens_k seqused_k q_v dropout_p "
    "softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs "
    "block_table",
)

__all__ = ["flash_attn_varlen_func", "flash_attn_with_kvcache", "get_scheduler_metadata"]
