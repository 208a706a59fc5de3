"""The backend of vLLM: its signatures beside those of vLLM 0.33 that are recorded here, and steps
as vLLM makes them, beside fp64. vLLM need not be installed."""

from __future__ import annotations

import inspect
import itertools
import sys
from abc import ABC, abstractmethod
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Generic, TypeVar

import pytest
import torch
from support.paged import Cache
from support.refusals import int32

from pyflash.integrations import vllm as ours

# Parameters of what vLLM 0.33 calls, by name; those with a default end with =.
BACKEND = {
    "get_name": "",
    "get_impl_cls": "",
    "get_builder_cls": "",
    "get_supported_kernel_block_sizes": "kv_cache_spec=",
    "supports_head_size": "head_size",
    "supports_sink": "",
    "supports_sliding_window": "",
    "supports_batch_invariance": "",
    "supports_attn_type": "attn_type",
    "supports_compute_capability": "capability",
}
BUILDER = {
    "__init__": "kv_cache_spec layer_names vllm_config device",
    "build": "common_prefix_len common_attn_metadata fast_build=",
    "update_block_table": "metadata blk_table slot_mapping",
}
IMPL = {
    "__init__": (
        "num_heads head_size scale num_kv_heads= alibi_slopes= sliding_window= kv_cache_dtype= "
        "logits_soft_cap= attn_type= kv_sharing_target_layer_name= sinks="
    ),
    "forward": (
        "layer query key value kv_cache attn_metadata output output_scale= output_block_scale="
    ),
    "do_kv_cache_update": "layer key value kv_cache slot_mapping",
}


def parameters(function) -> str:
    return " ".join(
        name + ("" if parameter.default is parameter.empty else "=")
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in ("self", "cls")
    )


@pytest.mark.parametrize(
    ("methods", "recorded"),
    [
        (ours.BackendMethods, BACKEND),
        (ours.BuilderMethods, BUILDER),
        (ours.ImplMethods, IMPL),
    ],
)
def test_signatures(methods, recorded):
    found = {
        name: parameters(getattr(methods, name))
        for name in vars(methods)
        if callable(getattr(methods, name)) and (name in recorded or not name.startswith("_"))
    }
    assert found == recorded


class CGSupport(Enum):
    ALWAYS = 3
    UNIFORM_BATCH = 2


class AttentionBackend(ABC):
    @staticmethod
    @abstractmethod
    def get_name(): ...

    @staticmethod
    @abstractmethod
    def get_impl_cls(): ...

    @staticmethod
    @abstractmethod
    def get_builder_cls(): ...

    @classmethod
    def supports_dtype(cls, dtype):
        return dtype in cls.supported_dtypes


T = TypeVar("T")


class AttentionMetadataBuilder(ABC, Generic[T]):
    _cudagraph_support = None

    @abstractmethod
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.device = device

    @abstractmethod
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False): ...


class AttentionImpl(ABC, Generic[T]):
    def __new__(cls, *args, **kwargs):
        self = super().__new__(cls)
        self.dcp_world_size = 1
        return self

    @abstractmethod
    def __init__(self): ...

    @abstractmethod
    def forward(self): ...


@pytest.fixture
def vllm(monkeypatch):
    """A package of that name with the base classes, and what is registered."""
    registered = {}
    registry = SimpleNamespace(
        AttentionBackendEnum=SimpleNamespace(CUSTOM="CUSTOM"),
        register_backend=lambda backend, path: registered.__setitem__(backend, path),
    )
    base = SimpleNamespace(
        AttentionCGSupport=CGSupport,
        AttentionBackend=AttentionBackend,
        AttentionMetadataBuilder=AttentionMetadataBuilder,
        AttentionImpl=AttentionImpl,
    )
    package = ModuleType("vllm")
    package.__version__ = "0.33.0"
    for name in ("v1", "v1.attention", "v1.attention.backends"):
        monkeypatch.setitem(sys.modules, f"vllm.{name}", ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm", package)
    monkeypatch.setitem(sys.modules, "vllm.v1.attention.backend", base)
    monkeypatch.setitem(sys.modules, "vllm.v1.attention.backends.registry", registry)
    ours._classes.cache_clear()
    package.registered = registered
    yield package
    ours._classes.cache_clear()


def test_the_plugin_registers_a_class_that_vllm_finds(vllm):
    ours.register()
    assert vllm.registered == {"CUSTOM": "pyflash.integrations.vllm.Backend"}
    backend = ours.Backend
    assert issubclass(backend, AttentionBackend)
    assert (backend.__module__, backend.__qualname__) == ("pyflash.integrations.vllm", "Backend")
    assert backend.get_name() == "CUSTOM"
    assert backend.get_impl_cls() is ours.Impl
    assert backend.get_builder_cls() is ours.Builder
    assert ours.Builder._cudagraph_support is CGSupport.UNIFORM_BATCH
    assert [backend.supports_head_size(n) for n in (0, 8, 12, 256, 264)] == [
        False, True, False, True, False]  # fmt: skip
    assert [backend.supports_dtype(x) for x in (torch.bfloat16, torch.float32)] == [True, False]
    assert backend.supports_compute_capability((9, 0))
    assert not backend.supports_compute_capability((7, 5))
    assert not backend.supports_attn_type("encoder")
    with pytest.raises(AttributeError, match="has no attribute 'Other'"):
        ours.Other  # noqa: B018


def test_another_version_is_refused(vllm):
    vllm.__version__ = "0.34.1"
    with pytest.raises(ImportError, match=r"its backend is for vLLM 0\.33 \(this is 0\.34\.1\)"):
        ours.Backend  # noqa: B018


OPTIONS = {
    "plain": ({}, {}),
    "window": ({"sliding_window": 10}, {"window_left": 9}),
    "softcap": ({"logits_soft_cap": 2.0}, {"softcap": 2.0}),
    "alibi": (
        {"alibi_slopes": [0.5, 0.25, 0.125, 1.0]},
        {"alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 1.0])},
    ),
    "sinks": ({"sinks": torch.linspace(-2, 3, 4)}, {"sinks": torch.linspace(-2, 3, 4)}),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("invariant", [False, True])
def test_a_step(vllm, monkeypatch, options, is_flat, invariant):
    """Its keys are written first, then all are attended; rows past the step's tokens stay."""
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", str(int(invariant)))
    theirs, expected = options
    lengths, lengths_q, padding = (37, 5, 20), (1, 5, 7), 3
    starts = [0, *itertools.accumulate(lengths_q)]
    n = starts[-1]
    cache = Cache(lengths, 16)
    kv_cache = torch.cat([cache.k, cache.v], -1).transpose(1, 2)  # (pages, heads, page, 2 * d)
    key, value = torch.zeros(2, n + padding, 2, 64).half()
    slots = []
    for b, (length, n_new) in enumerate(zip(lengths, lengths_q, strict=True)):
        rows = slice(starts[b], starts[b + 1])
        key[rows], value[rows] = cache.keys[b][-n_new:], cache.values[b][-n_new:]
        page, row = cache.place(b, length - n_new, length)
        slots += (page * 16 + row).tolist()
        kv_cache[page, :, row] = torch.nan
    impl = ours.Impl(4, 64, 0.125, 2, **theirs)
    assert impl.options.get("batch_invariant", False) == invariant
    builder = ours.Builder(None, ["layer"], None, torch.device("cpu"))
    common = SimpleNamespace(
        query_start_loc=int32(*starts), query_start_loc_cpu=int32(*starts),
        seq_lens=cache.seqlens, num_reqs=3, num_actual_tokens=n, max_query_len=7, max_seq_len=37,
        block_table_tensor=torch.zeros_like(cache.table), slot_mapping=torch.tensor(slots),
        causal=True,
    )  # fmt: skip
    metadata = builder.build(0, common)
    metadata = builder.update_block_table(metadata, cache.table, metadata.slot_mapping)
    impl.do_kv_cache_update(None, key, value, kv_cache, metadata.slot_mapping)
    query = torch.randn(n + padding, 4, 64).half()
    output = torch.full((n + padding, 256) if is_flat else (n + padding, 4, 64), -7.0).half()
    assert impl.forward(None, query, key, value, kv_cache, metadata, output) is output
    out = output.view(-1, 4, 64)
    assert (out[n:] == -7).all()
    for b in range(3):
        rows = slice(starts[b], starts[b + 1])
        _, lse = ours.attention_paged(
            query[None, rows], *impl._caches(kv_cache), cache.table[b : b + 1],
            cache.seqlens[b : b + 1], return_lse=True, causal=True, **expected,
        )  # fmt: skip
        cache.check(b, query[rows], out[rows], lse[0], causal=True, **expected)
    assert (impl.forward(None, query, key, value, kv_cache, None, output) == 0).all()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"attn_type": "encoder"}, "attn_type = encoder: expected decoder"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype = fp8: expected one of auto, float16"),
        ({"head_size": 264}, "head_size = 264: expected a multiple of 8 up to 256"),
    ],
)
def test_what_is_missing_is_refused_in_words(vllm, changed, said):
    with pytest.raises(ValueError, match=f"^pyflash: {said}"):
        ours.Impl(**{"num_heads": 4, "head_size": 64, "scale": 0.125, **changed})
    x = torch.zeros(1, 4, 64).half()
    with pytest.raises(ValueError, match="an output that is quantized"):
        ours.Impl(4, 64, 1.0).forward(None, x, x, x, x, None, x, output_scale=x)
    common = SimpleNamespace(causal=False)
    with pytest.raises(ValueError, match="attention that is not causal"):
        ours.Builder(None, [], None, "cpu").build(0, common)
