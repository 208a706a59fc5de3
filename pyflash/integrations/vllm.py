"""An attention backend for vLLM 0.33: attention over its pages by `pyflash.attention_paged`.

The package is a plugin of vLLM, which registers the backend as CUSTOM:

    vllm serve MODEL --attention-backend CUSTOM

vLLM is imported when it asks for `Backend`. Its interfaces change from one minor version to the
next, so another one is refused.
"""

from __future__ import annotations

import copy
import functools
import os
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from pyflash.op.append import append_kv
from pyflash.op.errors import require
from pyflash.op.paged import attention_paged

KNOWN = (0, 33)
_CACHE_DTYPES = ("auto", "float16", "bfloat16")
_LARGEST_HEAD = 256


def register() -> None:
    """What vLLM calls in each of its processes."""
    registry = import_module("vllm.v1.attention.backends.registry")
    registry.register_backend(registry.AttentionBackendEnum.CUSTOM, f"{__name__}.Backend")


@dataclass
class Metadata:
    """What the layers of a step share. The names are those that vLLM's own backends have."""

    num_actual_tokens: int
    max_query_len: int
    query_start_loc: Tensor  # (sequences + 1,)
    max_seq_len: int
    seq_lens: Tensor  # (sequences,), with the keys of the step
    block_table: Tensor  # (sequences, max_pages)
    slot_mapping: Tensor


class BackendMethods:
    """What pyflash can do, as vLLM asks for it."""

    supported_dtypes = (torch.float16, torch.bfloat16)
    supported_kv_cache_dtypes = _CACHE_DTYPES
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type:
        return _classes()["Impl"]

    @staticmethod
    def get_builder_cls() -> type:
        return _classes()["Builder"]

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        """Those that TMA loads on a Hopper, whatever B_c is."""
        return [16, 32, 64, 128, 256]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and 0 < head_size <= _LARGEST_HEAD

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type == "decoder"

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return tuple(capability) >= (8, 0)


class BuilderMethods:
    supports_update_block_table = True

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)  # type: ignore[call-arg]

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> Metadata:
        given = common_attn_metadata
        require(
            given.causal is True,
            "vLLM asks for attention that is not causal: expected a decoder's",
        )
        return Metadata(
            num_actual_tokens=given.num_actual_tokens,
            max_query_len=given.max_query_len,
            query_start_loc=given.query_start_loc,
            max_seq_len=given.max_seq_len,
            seq_lens=given.seq_lens,
            block_table=given.block_table_tensor,
            slot_mapping=given.slot_mapping,
        )

    def update_block_table(
        self, metadata: Metadata, blk_table: Tensor, slot_mapping: Tensor
    ) -> Metadata:
        """The same step of layers whose keys are in other pages."""
        updated = copy.copy(metadata)
        updated.block_table, updated.slot_mapping = blk_table, slot_mapping
        return updated


class ImplMethods:
    """The attention of a layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = "decoder",
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        require(attn_type == "decoder", f"attn_type = {attn_type}: expected decoder")
        require(
            kv_cache_dtype in _CACHE_DTYPES,
            f"kv_cache_dtype = {kv_cache_dtype}: expected one of {', '.join(_CACHE_DTYPES)}",
        )
        require(
            BackendMethods.supports_head_size(head_size),
            f"head_size = {head_size}: expected a multiple of 8 up to {_LARGEST_HEAD}",
        )
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype, self.attn_type = kv_cache_dtype, attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        self.options: dict[str, Any] = {"softmax_scale": self.scale, "causal": True}
        if sliding_window is not None:  # vLLM counts a query's own key
            self.options["window_left"] = sliding_window - 1
        if logits_soft_cap:
            self.options["softcap"] = float(logits_soft_cap)
        if alibi_slopes is not None:  # on the device of the model that is being loaded
            self.options["alibi_slopes"] = torch.tensor(alibi_slopes, dtype=torch.float32)
        if sinks is not None:
            self.options["sinks"] = sinks
        if os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
            self.options["batch_invariant"] = True

    def _caches(self, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        """kv_cache: (num_pages, heads_kv, page_size, 2 * d_head)."""
        return kv_cache.transpose(1, 2).split(self.head_size, -1)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Metadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Writes into output, and returns it. The rows past num_actual_tokens are padding."""
        require(
            output_scale is None and output_block_scale is None,
            "vLLM asks for an output that is quantized: expected none",
        )
        if attn_metadata is None:  # a run that measures memory
            return output.fill_(0)
        n = attn_metadata.num_actual_tokens
        shape = (-1, self.num_heads, self.head_size)
        attention_paged(
            query.view(shape)[:n],
            *self._caches(kv_cache),
            attn_metadata.block_table,
            attn_metadata.seq_lens,
            cu_seqlens_q=attn_metadata.query_start_loc,
            max_seqlen_q=attn_metadata.max_query_len,
            out=output.view(shape)[:n],
            **self.options,
        )
        return output

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """key and value may be padded, slot_mapping is not."""
        append_kv(key, value, *self._caches(kv_cache), slot_mapping)


@functools.cache
def _classes() -> dict[str, type]:
    version = import_module("vllm").__version__
    if tuple(map(int, version.split(".")[:2])) != KNOWN:
        raise ImportError(
            f"pyflash: its backend is for vLLM {KNOWN[0]}.{KNOWN[1]} (this is {version})"
        )
    base = import_module("vllm.v1.attention.backend")
    # NOTE: a captured graph serves queries up to the longest at its capture, as grids follow that.
    support = {"_cudagraph_support": base.AttentionCGSupport.UNIFORM_BATCH}
    made = {
        "Backend": (BackendMethods, base.AttentionBackend),
        "Builder": (BuilderMethods, base.AttentionMetadataBuilder),
        "Impl": (ImplMethods, base.AttentionImpl),
    }
    return {
        name: type(name, bases, {"__module__": __name__, **(support if name == "Builder" else {})})
        for name, bases in made.items()
    }


def __getattr__(name: str) -> Any:
    if name in ("Backend", "Builder", "Impl"):
        return _classes()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
