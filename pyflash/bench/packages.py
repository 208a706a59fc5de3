"""The attention of other packages, where they are installed, as callables over (q, k, v), each
(batch, seqlen, heads, d_head), causal ones bottom-right aligned."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyflash.bench.variants import Given, flex_functions
from pyflash.op.selection import TORCH_DTYPES, Problem

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class Package(NamedTuple):
    title: str  # in tables
    module: str
    make: Callable[[Problem], Attention]


def is_installed(name: str) -> bool:
    """Looks for the package without importing it."""
    module = PACKAGES[name].module
    try:
        return find_spec(module) is not None
    except ImportError:  # of the package that holds it
        return False


def attention(name: str, problem: Problem) -> Attention:
    """What `name`, a key of `PACKAGES`, runs this problem with. The package is imported at the
    first call, which raises what importing it raises.

    Raises ImportError for a package that is not installed.
    """
    package = PACKAGES[name]
    if not is_installed(name):
        raise ImportError(f"--backend {name}: the module {package.module} is not installed")
    made = functools.cache(lambda: package.make(problem))
    return lambda q, k, v: made()(q, k, v)


def _is_causal(problem: Problem) -> bool:
    return bool(problem.options.get("causal"))


def flex_with(problem: Problem, given: Given) -> Attention:
    """FlexAttention of a variant, whose functions and mask are made at the first call."""

    @functools.cache
    def made() -> Attention:
        extents = {"b": problem.batch, "h": problem.heads_q}
        shared = tuple(n if name in given.mask_reads else None for name, n in extents.items())
        return _flex_of(problem, *flex_functions(given, problem), shared)

    return lambda q, k, v: made()(q, k, v)


def _flex(problem: Problem) -> Attention:
    offset = problem.seqlen_k - problem.seqlen_q

    def bottom_right(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j <= i + offset

    return _flex_of(problem, None, bottom_right if _is_causal(problem) else None)


def _flex_of(
    problem: Problem,
    score_mod: Any,
    mask_mod: Any,
    extents: tuple[int | None, ...] = (None, None),
) -> Attention:
    """FlexAttention, compiled on a GPU: elsewhere it writes every score. extents: of its mask,
    batches and heads, None where all share it."""
    flex = import_module("torch.nn.attention.flex_attention")
    run, mask = flex.flex_attention, None
    if mask_mod is not None:
        lengths = (problem.seqlen_q, problem.seqlen_k)
        mask = flex.create_block_mask(mask_mod, *extents, *lengths, device=problem.device)
    if torch.device(problem.device).type == "cuda":
        run = torch.compile(run, dynamic=False)
    grouped = problem.heads_q != problem.heads_kv
    run = functools.partial(run, score_mod=score_mod, block_mask=mask, enable_gqa=grouped)
    return lambda q, k, v: run(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


def _flash_attn(module: str, problem: Problem) -> Attention:
    """FlashAttention 2 or 3. Older ones of the latter return lse beside out."""
    function = functools.partial(import_module(module).flash_attn_func, causal=_is_causal(problem))

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result = function(q, k, v)
        return result[0] if isinstance(result, tuple) else result

    return run


def _xformers(problem: Problem) -> Attention:
    ops = import_module("xformers.ops")
    bias = ops.fmha.attn_bias.LowerTriangularFromBottomRightMask() if _is_causal(problem) else None
    function = functools.partial(ops.memory_efficient_attention, attn_bias=bias)
    if problem.heads_q == problem.heads_kv:
        return function
    groups = (problem.heads_kv, problem.heads_q // problem.heads_kv)

    def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(batch, seqlen, heads_kv, heads of a group, d_head), k and v expanded."""
        k, v = (x.unsqueeze(3).expand(*x.shape[:3], groups[1], x.shape[3]) for x in (k, v))
        return function(q.unflatten(2, groups), k, v).flatten(2, 3)

    return grouped


def _flashinfer(problem: Problem) -> Attention:
    """Its kernel for prefilling a batch of whole sequences; planned once."""
    flashinfer = import_module("flashinfer")
    device = torch.device(problem.device)
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=device)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    starts = torch.arange(problem.batch + 1, dtype=torch.int32, device=device)
    wrapper.plan(
        starts * problem.seqlen_q,
        starts * problem.seqlen_k,
        problem.heads_q,
        problem.heads_kv,
        problem.d_head,
        causal=_is_causal(problem),
        q_data_type=TORCH_DTYPES[problem.dtype],
    )
    return lambda q, k, v: wrapper.run(*(x.flatten(0, 1) for x in (q, k, v))).view_as(q)


# In the order of tables.
PACKAGES = {
    "flex": Package("FlexAttention", "torch.nn.attention.flex_attention", _flex),
    "flash_attn_2": Package(
        "FlashAttention-2", "flash_attn", functools.partial(_flash_attn, "flash_attn")
    ),
    "flash_attn_3": Package(
        "FlashAttention-3",
        "flash_attn_interface",
        functools.partial(_flash_attn, "flash_attn_interface"),
    ),
    "xformers": Package("xFormers", "xformers.ops", _xformers),
    "flashinfer": Package("FlashInfer", "flashinfer", _flashinfer),
}
