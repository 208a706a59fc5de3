"""Continuous batching of transformers, `generate_batch`, with attn_implementation="pyflash".

While a manager runs a model, its implementation is `PAGED`, which has no mask function: sequences
are told apart by their lengths, and nothing is read on the host. Its layers get a cache, which they
update. The cache returns packed keys; or, where a step decodes alone, pages and a block table.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from pyflash.compat.flash_attn import flash_attn_with_kvcache
from pyflash.integrations.transformers_models import NAME, PAGED
from pyflash.op.paged import DEVICES

# The one version whose managers hand a layer what is read here.
KNOWN = (5, 23)
_NEEDED = (
    "pyflash: register(continuous_batching=True) needs transformers "
    f"{KNOWN[0]}.{KNOWN[1]}, with the functions of that version"
)


def allow_continuous_batching(version: tuple[int, ...]) -> None:
    """Makes managers run models with "pyflash"; a second call changes nothing.

    Raises ImportError for a transformers of another version, or without the functions that this
    changes.
    """
    if version[:2] != KNOWN:
        raise ImportError(f"{_NEEDED} (this is {'.'.join(map(str, version))})")
    try:
        from transformers.generation.continuous_batching import continuous_api, initialization
        from transformers.generation.continuous_batching.cache import PagedAttentionCache
        from transformers.generation.continuous_batching.utils import find_head_dim

        manager = continuous_api.ContinuousBatchingManager
        switch, ensure = (
            manager.switch_to_cb_friendly_attn,
            initialization.ensure_decode_fast_path_is_available,
        )
        assert callable(PagedAttentionCache.update)
    except (ImportError, AttributeError, AssertionError) as error:
        raise ImportError(f"{_NEEDED}: {error}") from error
    if getattr(switch, "_knows_pyflash", False):
        return

    @functools.wraps(switch)
    def switch_with_pyflash(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        switch(self, model, *args, **kwargs)
        if model.config._attn_implementation == NAME:
            model.set_attn_implementation(PAGED)
            self._original_attn_impl = NAME  # what the manager restores

    @functools.wraps(ensure)
    def ensure_with_pyflash(config: Any, cb_config: Any, user_requested: bool) -> None:
        if config._attn_implementation != PAGED:
            ensure(config, cb_config, user_requested)
        elif not _reads_pages(config, find_head_dim(config), initialization):
            cb_config.max_blocks_per_request = 0

    switch_with_pyflash._knows_pyflash = True
    manager.switch_to_cb_friendly_attn = switch_with_pyflash
    initialization.ensure_decode_fast_path_is_available = ensure_with_pyflash


def _reads_pages(config: Any, d_head: int, initialization: Any) -> bool:
    """Whether steps that only decode may go by a block table."""
    types = initialization.group_layers_by_attn_type(config)
    allocators = initialization.ATTN_TYPE_TO_ALLOCATOR
    has_tables = all(allocators[name].supports_block_table for name in types)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return has_tables and d_head % 8 == 0 and device in DEVICES


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    told: dict[str, Any],
    softmax_scale: float | None,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    """Attention of one query of each sequence over pages, into which its key goes first. q, k and
    v are (1, heads, sequences, d_head); returns (1, sequences, heads, d_head).

    NOTE: the lengths told are those after the step. Layers with windows have no block tables.
    """
    q, k, v = (x.transpose(1, 2).transpose(0, 1) for x in (q, k, v))
    return flash_attn_with_kvcache(
        q,
        told["k_cache"],
        told["v_cache"],
        k,
        v,
        cache_seqlens=told["cu_seq_lens_k"].diff() - 1,
        block_table=told["block_table"],
        softmax_scale=softmax_scale,
        causal=True,
        softcap=softcap,
        s_aux=sinks,
    ).transpose(0, 1)
