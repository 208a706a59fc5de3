"""`emulate`, `emulate_varlen` and `emulate_paged`: attention by a real kernel on the CPU."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyflash.config import BACKWARD, FORWARD, KernelConfig, Op, as_config, backward
from pyflash.config.features import (
    EMULATED_DROPOUT,
    EMULATED_FIXED,
    EMULATED_FP8,
    EMULATED_PAGED,
    EMULATED_PAGED_FIXED,
    EMULATED_PAGED_SHARED,
    EMULATED_SHARED,
)
from pyflash.emulator.machine import Machine
from pyflash.emulator.report import Report, parse
from pyflash.op.dropout import drops, with_zero_state
from pyflash.op.invariant import AT_FIXED_KEYS
from pyflash.op.options import Scope, of_scope, refuse_unknown, shows_options
from pyflash.op.schedule import BY_LENGTH
from pyflash.op.variants.arguments import Captured, captured_of
from pyflash.op.variants.features import (
    are_gathered,
    backward_features_asked,
    features_asked,
    on_pages,
)
from pyflash.variant import Bound, Variant
from pyflash.variant.parser import normal_of

# In which order warps, and the lanes of a warp, run; "random" as the seed says, anew at each point
# where a warp meets. A bug may show under one and hide under another.
ORDERS = ("ascending", "descending", "random")

# Multiprocessors of an H100 or H200: persistent kernels of the SM90 family take one CTA for each.
RESIDENT_CTAS = 132


@shows_options
def emulate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    config: KernelConfig | str,
    *,
    num_splits: int = 1,
    order: str = "ascending",
    seed: int = 0,
    resident_ctas: int = RESIDENT_CTAS,
    variant: Variant | Bound | str | None = None,
    tensors: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Report]:
    """Attention as `pyflash.attention` computes it with `config` on a GPU, by the same kernel
    template, thread by thread on the CPU. Arguments that both have mean the same.

    q is (batch, seqlen_q, heads, d_head), k and v are (batch, seqlen_k, heads_kv, d_head), on the
    CPU. The kernel is compiled for the CPU and kept in the cache of builds: half a minute the first
    time. A tile of 64 x 64 at d_head 128 takes about 2 ms.

    `resident_ctas` is how many CTAs run at a time: a persistent kernel has no more, each of which
    takes tile after tile, and clusters only where all run.

    `variant` and `tensors` are those of `attention`: the kernel is compiled with the variant.

    With num_splits > 1 the kernel writes partial results, one per split of the keys, and PyTorch
    merges them. With num_splits = -1 `resident_ctas` CTAs share the keys, and the emulator merges
    the parts of sequences that it cuts. With num_splits = -2 keys are split at fixed places: where
    four tiles or more come to five CTAs, a CTA folds the splits of its tile if the kernel can, else
    the emulator does.

    Returns (out, lse, report). out and lse are what the kernel wrote, NaN where it wrote nothing;
    they agree with a GPU's up to the order of sums. Races and the like do not raise: they are in
    `report.findings`, and `report.check()` raises them.

    Raises ValueError for arguments that attention refuses, in the same words, for an unknown order,
    num_splits < 1 but for -1, text that is not a config and a config that breaks a rule;
    `pyflash.codegen.build.BuildError` where the kernel does not compile.
    """
    return _emulate(
        "emulate",
        (q, k, v),
        config,
        order=order,
        seed=seed,
        num_splits=num_splits,
        resident_ctas=resident_ctas,
        variant=variant,
        tensors=tensors,
        **options,
    )


def emulate_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    config: KernelConfig | str,
    **options: Any,
) -> tuple[Tensor, Tensor, Report]:
    """`emulate` for packed sequences, as `pyflash.attention_varlen` takes them.

    q is (total_q, heads, d_head), k and v are (total_k, heads_kv, d_head); what cu_seqlens hold is
    checked as little as on a GPU. `options` are the others of `emulate`. Returns (out, lse, report)
    with lse (heads, total_q).
    """
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _emulate("emulate_varlen", (q, k, v, *lengths), config, **options)


def emulate_paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seqlens_k: Tensor,
    config: KernelConfig | str,
    *,
    cu_seqlens_q: Tensor | None = None,
    max_seqlen_q: int | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Report]:
    """`emulate` over keys and values in pages, as `pyflash.attention_paged` takes them.

    What block_table, seqlens_k and cu_seqlens_q hold is checked as little as on a GPU. `options`
    are the others of `emulate`. Returns (out, lse, report).
    """
    pages = (block_table, seqlens_k, cu_seqlens_q, max_seqlen_q, k_scale, v_scale)
    return _emulate("emulate_paged", (q, k_cache, v_cache), config, pages=pages, **options)


def _emulate(
    function: str,
    inputs: tuple[Any, ...],
    config: KernelConfig | str,
    *,
    pages: tuple[Any, ...] = (),
    order: str = ORDERS[0],
    seed: int = 0,
    num_splits: int = 1,
    resident_ctas: int = RESIDENT_CTAS,
    variant: Variant | Bound | str | None = None,
    tensors: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Report]:
    from pyflash.codegen.emulated import build_emulated  # needs a compiler; only emulating does

    refuse_unknown(function, options)
    options = with_zero_state(options)
    named = {**options, **dict(zip(_PAGES, pages, strict=False))}
    _check(inputs, order, num_splits, resident_ctas, named)
    config = as_config(config).canonical()
    refuse_other_op(config, FORWARD)
    captured = None
    if variant is None:
        kinds = {
            BY_LENGTH: (EMULATED_SHARED, EMULATED_PAGED_SHARED),
            AT_FIXED_KEYS: (EMULATED_FIXED, EMULATED_PAGED_FIXED),
        }
        features = kinds.get(num_splits, (None, EMULATED_PAGED))[bool(pages)]
        if named.get("k_scale") is not None:
            features = EMULATED_FP8
        elif drops(options):
            features = EMULATED_DROPOUT
        (library,) = build_emulated([config], features=features).values()
    else:
        captured = captured_of(variant, tensors)
        asked = features_asked(options, inputs[0].shape[-1], config)
        if pages:
            asked = on_pages(asked, are_gathered(inputs[1], pages[0]))
        (library,) = build_emulated([config], normal_of(captured.text), [asked]).values()
    return run_library(
        library,
        inputs,
        config,
        pages=pages,
        captured=captured,
        order=order,
        seed=seed,
        num_splits=num_splits,
        resident_ctas=resident_ctas,
        **options,
    )


_INPUTS = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
_PAGES = ("block_table", "seqlens_k", "cu_seqlens_q", "max_seqlen_q", "k_scale", "v_scale")


def run_library(
    library: Path,
    inputs: tuple[Any, ...],
    config: KernelConfig,
    *,
    pages: tuple[Any, ...] = (),
    order: str = ORDERS[0],
    seed: int = 0,
    num_splits: int = 1,
    resident_ctas: int = RESIDENT_CTAS,
    captured: Captured | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Report]:
    """`emulate`, or `emulate_varlen`, with a library that was built, of a canonical config and,
    where there is one, of the variant that `captured` is of.

    `inputs` are the positional arguments but for the config; `pages` those of `emulate_paged` after
    q, k_cache and v_cache.
    """
    numbers = {"num_splits": num_splits, "resident_ctas": resident_ctas}
    named = {**dict(zip(_INPUTS, inputs, strict=False)), **dict(zip(_PAGES, pages, strict=False))}
    arguments = {**named, **options, **numbers}
    with Machine(library, order, seed) as machine:
        if captured is not None:
            machine.capture(captured.tensors, captured.reals, captured.integers)
        problem = machine.prepare(arguments, config)
        out, lse = outputs = _outputs(inputs[0])
        if (n_parts := machine.n_parts()) > 1:
            outputs = _partial_outputs(lse, n_parts, out.shape[-1])
        machine.set_outputs(*outputs)
        report = _report(machine, config, problem, order, seed)
    if n_parts > 1:
        logits = of_scope(options, Scope.DENOMINATOR).values()
        _merge(*outputs, tuple(logits), out, lse)
    return out, lse, report


def _report(
    machine: Machine, config: KernelConfig, problem: dict[str, Any], order: str, seed: int
) -> Report:
    """Runs the kernels, and returns what they did."""
    start = time.perf_counter()
    values = machine.run()
    return Report(
        config=config.short_form(),
        problem=problem,
        order=order,
        seed=seed,
        seconds=time.perf_counter() - start,
        **{**values, **parse(values)},
    )


def emulate_backward(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    config: KernelConfig | str,
    *,
    grad_lse: Tensor | None = None,
    order: str = ORDERS[0],
    seed: int = 0,
    resident_ctas: int = RESIDENT_CTAS,
    variant: Variant | Bound | str | None = None,
    tensors: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Report]:
    """The gradients of q, k and v by the kernels of a config of op backward, as `torch.ops.pyflash`
    computes them on a GPU, thread by thread on the CPU: the kernels before and after the config's
    own, too. out and lse are the results of the forward pass, grad_out and grad_lse the gradients
    of these; the other arguments are those of `emulate`. What a variant captures is constant. CTAs
    run one after another: where one waits for another that comes after it, a deadlock is found.

    Returns (dq, dk, dv, report); the report's counts are those of the config's own kernel, its
    findings those of all. Raises as `emulate` does.
    """
    return _emulate_backward(
        "emulate_backward",
        (grad_out, out, lse),
        (q, k, v),
        config,
        grad_lse=grad_lse,
        order=order,
        seed=seed,
        resident_ctas=resident_ctas,
        variant=variant,
        tensors=tensors,
        **options,
    )


def emulate_backward_varlen(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    config: KernelConfig | str,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Report]:
    """`emulate_backward` for packed sequences, with the tensors of `emulate_varlen`. Gradients of
    rows behind the last sequence stay NaN."""
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    inputs = (q, k, v, *lengths)
    return _emulate_backward(
        "emulate_backward_varlen", (grad_out, out, lse), inputs, config, **options
    )


def _emulate_backward(
    function: str,
    results: tuple[Tensor, Tensor, Tensor],
    inputs: tuple[Any, ...],
    config: KernelConfig | str,
    *,
    grad_lse: Tensor | None = None,
    order: str = ORDERS[0],
    seed: int = 0,
    resident_ctas: int = RESIDENT_CTAS,
    variant: Variant | Bound | str | None = None,
    tensors: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Report]:
    from pyflash.codegen.emulated import build_emulated

    refuse_unknown(function, options)
    config = as_config(config).canonical()
    refuse_other_op(config, BACKWARD)
    _check(inputs, order, 1, resident_ctas, options)
    options = with_zero_state(options)
    captured = None
    if variant is None:
        features = backward.EMULATED_DROPOUT if drops(options) else None
        (library,) = build_emulated([config], features=features).values()
    else:
        captured = captured_of(variant, tensors)
        asked = [backward_features_asked(options, packed=len(inputs) > 3)]
        (library,) = build_emulated([config], normal_of(captured.text), asked).values()
    return run_backward_library(
        library,
        (*results, *inputs),
        config,
        captured=captured,
        grad_lse=grad_lse,
        order=order,
        seed=seed,
        resident_ctas=resident_ctas,
        **options,
    )


def run_backward_library(
    library: Path,
    inputs: tuple[Any, ...],
    config: KernelConfig,
    *,
    order: str = ORDERS[0],
    seed: int = 0,
    captured: Captured | None = None,
    sums: Mapping[int, Tensor] | None = None,
    **arguments: Any,
) -> tuple[Tensor, Tensor, Tensor, Report]:
    """`emulate_backward`, or `emulate_backward_varlen`, with a library that was built, of a
    canonical config and, where there is one, of the variant that `captured` is of. `inputs` are the
    positional arguments but for the config. `sums`: to which the gradients of captured tensors are
    added, contiguous, in float32, by their places; those that the variant is summed of."""
    names = ("grad_out", "out", "lse", *_INPUTS)
    gradients = tuple(torch.full(x.shape, torch.nan, dtype=x.dtype) for x in inputs[3:6])
    with Machine(library, order, seed) as machine:
        if captured is not None:
            machine.capture(captured.tensors, captured.reals, captured.integers, sums)
        problem = machine.prepare({**dict(zip(names, inputs, strict=False)), **arguments}, config)
        machine.set_outputs(*gradients)
        report = _report(machine, config, problem, order, seed)
    return (*gradients, report)


def refuse_other_op(config: KernelConfig, op: Op) -> None:
    """Raises ValueError for a config of another op."""
    if config.family.op is not op:
        raise ValueError(f"config '{config}' is of op {config.family.op}: expected one of {op}")


def _check(
    inputs: tuple[Any, ...],
    order: str,
    num_splits: int,
    resident_ctas: int,
    options: Mapping[str, Any],
) -> None:
    """Refuses what attention accepts and the emulator lacks."""
    if order not in ORDERS:
        raise ValueError(f"unknown order {order!r}: expected one of {', '.join(ORDERS)}")
    if num_splits < 1 and num_splits not in (BY_LENGTH, AT_FIXED_KEYS):
        raise ValueError(
            f"num_splits = {num_splits}: expected at least 1, {BY_LENGTH} or {AT_FIXED_KEYS}; "
            "nothing chooses it here"
        )
    if resident_ctas < 1:
        raise ValueError(f"resident_ctas = {resident_ctas}: expected at least 1")
    for name, value in {**dict(zip(_INPUTS, inputs, strict=False)), **options}.items():
        if isinstance(value, Tensor) and value.device.type != "cpu":
            raise ValueError(f"pyflash: {name} is on {value.device}: emulate runs on the CPU")


def _outputs(q: Tensor) -> tuple[Tensor, Tensor]:
    """out and lse, NaN."""
    lse_shape = (*q.shape[:-3], q.shape[-2], q.shape[-3])
    out = torch.full(q.shape, torch.nan, dtype=q.dtype)
    return out, torch.full(lse_shape, torch.nan)


def _partial_outputs(lse: Tensor, n_parts: int, d_head: int) -> tuple[Tensor, Tensor]:
    shape = (n_parts, *lse.shape)
    return lse.new_full((*shape, d_head), torch.nan), lse.new_full(shape, torch.nan)


def _merge(
    o_partial: Tensor,
    lse_partial: Tensor,
    logits: tuple[Tensor, ...],
    out: Tensor,
    lse: Tensor,
) -> None:
    """lse = ln(sum_s exp(lse_s) + exp(logit)), out = sum_s exp(lse_s - lse) O_s, in fp32, as
    cute_kernels/merge_splits.cu. logits: (heads,), which join the denominator."""
    lse.copy_(lse_partial.logsumexp(0))
    for logit in logits:
        lse.copy_(torch.logaddexp(lse, logit.float()[:, None]))
    weighted = (lse_partial - lse).exp()[..., None] * o_partial
    nothing = (lse_partial == -math.inf)[..., None]  # attended: a weight of 0
    rows = weighted.masked_fill(nothing, 0).sum(0)  # (..., heads, seqlen, d_head)
    out.copy_(rows.transpose(-3, -2))
