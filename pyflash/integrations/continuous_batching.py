"""Continuous batching of transformers, `generate_batch`, with attn_implementation="pyflash".

While a manager runs a model, its implementation is `PAGED`, which has no mask function: sequences
are told apart by their lengths, and nothing is read on the host. Its layers get a cache, which they
update. The cache returns packed keys; or, where a step decodes alone, pages and a block table.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyflash.integrations.transformers_models import NAME, PAGED
from pyflash.op.append import append_kv, slots_of
from pyflash.op.paged import DEVICES, attention_paged

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


class Step(NamedTuple):
    """What layers with one block table share in a step."""

    lengths: Tensor  # (sequences,), int32, after the step
    slots: Tensor  # (sequences,), of their keys


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    told: dict[str, Any],
    layer: int,
    softmax_scale: float | None,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    """Attention of one query of each sequence over pages, into which its key goes first. q, k and
    v are (1, heads, sequences, d_head); returns (1, sequences, heads, d_head).

    NOTE: layers with windows have no block tables.
    """
    k_cache, v_cache, table = told["k_cache"], told["v_cache"], told["block_table"]
    lengths, slots = _step_of(told["cu_seq_lens_k"], table, k_cache.shape[1], layer)
    append_kv(k[0].transpose(0, 1), v[0].transpose(0, 1), k_cache, v_cache, slots)
    out = attention_paged(
        q.permute(2, 0, 1, 3),
        k_cache,
        v_cache,
        table,
        lengths,
        softmax_scale=softmax_scale,
        causal=True,
        softcap=softcap,
        sinks=sinks,
    )
    return out.transpose(0, 1)


def _is_captured(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _step_of(starts: Tensor, table: Tensor, page_size: int, layer: int) -> Step:
    """The step of these starts of keys, (sequences + 1,), after it: kept with them for the layers
    behind the first.

    NOTE: a graph has to make its own. It is recorded after a step with the same tensors, layer by
    layer from the first again, so what a layer finds is of its own pass if an earlier one made it.
    """
    keeps = not (torch.compiler.is_compiling() or starts.is_inference())
    if keeps:
        key = (starts._version, _is_captured(starts), table.data_ptr(), table.shape, page_size)
        known = getattr(starts, "_pyflash_step", None)
        if known is not None and known[0] == key and known[1] < layer:
            starts._pyflash_step = (key, layer, known[2])
            return known[2]
    lengths = starts.diff()
    each = torch.arange(len(starts), dtype=torch.int32, device=starts.device)
    step = Step(lengths, slots_of(table, lengths, each, page_size, len(lengths)))
    if keeps:
        starts._pyflash_step = (key, layer, step)
    return step
