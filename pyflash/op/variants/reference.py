"""Attention with a variant by its formula in torch, and its gradients.

expected = expect(q, k, v, variant="alibi", tensors={"slope": slopes})
expected.check(out, lse)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyflash.op.reference import Expected, Modifier, attention_ref, of_sequence, tolerance
from pyflash.op.variants.arguments import Captured, captured_of
from pyflash.op.variants.formula import Formula
from pyflash.variant import Bound, Variant
from pyflash.variant.parser import normal_of
from pyflash.variant.scalars import F32

_normal_of = functools.lru_cache(maxsize=256)(normal_of)


def formula_of(captured: Captured) -> Formula:
    """What a variant computes, for the op's arguments."""
    normal = _normal_of(captured.text)
    tensors, reals, integers = (iter(x or ()) for x in captured[1:])
    values = [
        next(tensors if p.rank is not None else reals if p.kind.computed is F32 else integers)
        for p in normal.params
    ]
    return Formula(normal, values)


def modifier(formula: Formula, batches: Sequence[int]) -> Modifier:
    """For `attention_ref` of these batches."""

    def modify(scores: Tensor, rows: Tensor, seqlen_q: int, seqlen_k: int) -> tuple[Tensor, Tensor]:
        def along(values: Any, axis: int) -> Tensor:
            shape = [1] * 5
            shape[axis] = -1
            return torch.as_tensor(values, dtype=torch.int32, device=scores.device).view(shape)

        _, heads_kv, group, _, _ = scores.shape
        heads = torch.arange(heads_kv * group, dtype=torch.int32, device=scores.device)
        numbers = {"q_len": seqlen_q, "k_len": seqlen_k, "q0": 0, "k0": 0}
        return formula.apply(
            scores,
            {
                "b": along(list(batches), 0),
                "h": heads.view(1, heads_kv, group, 1, 1),
                "q": along(rows, 3),
                "k": along(range(seqlen_k), 4),
                **{name: along([value], 0) for name, value in numbers.items()},
            },
        )

    return modify


def attention_variant_ref(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    captured: Captured,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """`attention_ref` with a variant, or `attention_varlen_ref` where cu_seqlens are given."""
    formula = formula_of(captured)
    if cu_seqlens_q is None or cu_seqlens_k is None:
        modify = modifier(formula, range(q.shape[0]))
        return attention_ref(q, k, v, dtype=dtype, modify=modify, **options)
    outs, lses = [q[:0].to(dtype)], [q[:0, :, 0].T.to(dtype)]
    starts_q, starts_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for b in range(len(starts_q) - 1):
        rows_q, rows_k = (slice(*starts[b : b + 2]) for starts in (starts_q, starts_k))
        sequence = (x[None] for x in (q[rows_q], k[rows_k], v[rows_k]))
        own = of_sequence(options, b, q.shape[1])  # type: ignore[arg-type]
        out, lse = attention_ref(*sequence, dtype=dtype, modify=modifier(formula, [b]), **own)
        outs.append(out[0])
        lses.append(lse[0])
    return torch.cat(outs), torch.cat(lses, dim=1)


def expect(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    *,
    variant: Variant | Bound | str,
    tensors: Mapping[str, Any] | None = None,
    **options: Any,
) -> Expected:
    """`pyflash.op.reference.expect` in fp64, with a variant."""
    captured = captured_of(variant, tensors)
    inputs = (q, k, v, captured, cu_seqlens_q, cu_seqlens_k)
    out, lse = attention_variant_ref(*inputs, dtype=torch.float64, **options)
    pt16, _ = attention_variant_ref(*inputs, dtype=q.dtype, **options)
    return Expected(out, lse, bound=tolerance(out, pt16), lse_bound=1e-4)


def gradients(
    grad_out: Tensor,
    inputs: Sequence[Tensor],
    captured: Captured,
    cu_seqlens: tuple[Tensor | None, Tensor | None],
    differentiable: Sequence[str],
    **options: Any,
) -> list[Tensor]:
    """Those of q, k and v, of the options that are named, and of each captured tensor, zeros for
    one of integers; by the formula in float32."""
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
    tensors = [x.detach().requires_grad_(x.is_floating_point()) for x in captured.tensors]
    given = {name: options[name].detach().requires_grad_() for name in differentiable}
    options |= given
    with torch.enable_grad():
        out, _ = attention_variant_ref(
            *leaves, captured._replace(tensors=tensors), *cu_seqlens, **options
        )
    wanted = [*leaves, *given.values(), *tensors]
    floating = [x for x in wanted if x.requires_grad]
    found = torch.autograd.grad(
        out, floating, grad_out.to(out.dtype), allow_unused=True, materialize_grads=True
    )
    of_leaf = iter(found)
    return [next(of_leaf) if x.requires_grad else torch.zeros_like(x) for x in wanted]
