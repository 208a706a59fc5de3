"""Attention whose captured tensors have gradients: variants, what they capture, what is exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from support.combined_variants import combined
from support.variant_gradients import Extents
from torch import Tensor

from pyflash.op.variants.arguments import Captured, captured_of
from pyflash.op.variants.reference import attention_variant_ref
from pyflash.variant import Variant, parse
from pyflash.variant.library import named
from pyflash.variant.summed import Summed, differentiable

# Scores of slope 1: P^T takes the place of S^T. Every kind of place in the sums.
ADDED = {
    "alibi": str(named("alibi").variant),
    "t5_bias": str(named("t5_bias").variant),
    "relative_table": "relative_table(table: f32[2], far: i32): "
    "s + table[h, clamp(k - q - k_len + q_len, -far, far) + far]",
    "sandwich": "sandwich(wave: f32[1], tilt: f32[1]): "
    "s + tilt[h] * wave[q + k_len - q_len - k] where k <= q + k_len - q_len",
    "graphormer": "graphormer(near: i32[3], gift: f32[2]): s + gift[near[b, q, k], h]",
    "of_head": "of_head(offset: f32[2]): s - offset[b, h] * 0.01 * max(q - k, 0)",
    "of_row": "of_row(row: f32[3]): s + row[b, h, q] * cos(0.1 * k)",
    "of_column": "of_column(column: f32[3]): s + column[b, h, k] * sin(0.1 * q)",
    "of_pair": "of_pair(bias: f32[4]): s + bias[b, h, q, k]",
    "of_all": "of_all(whole: f32[0]): s + whole * 0.01 * (k % 7)",
    # The derivative is infinite where the mask hides.
    "rooted": "rooted(root: f32[1]): s - sqrt(root[h] * max(q - k, 0)) where k < q",
    "twice": "twice(place: f32[1]): s + place[k - 9] * place[q]",
}
# Scores with slopes, or derivatives that read the score: S^T stays.
CURVED = {
    "temperature": str(named("temperature").variant),
    "gain": "gain(gain: f32[3]): s * gain[b, h, q] where k - q <= 40",
    "cap": "cap(cap: f32[1]): cap[h] * tanh(s / cap[h])",
    "mixed": "mixed(slope: f32[1], heat: f32[2]): s * heat[h, k] + slope[h] * (k - q)"
    " where (k + q) % 3 != 0",
    "logarithm": "logarithm(power: f32[1]): s * log(power[h] * max(q - k, 0)) where k < q",
}
GROUPS = {"added": ADDED, "curved": CURVED}


@cache
def parts(group: str) -> list[Variant]:
    return [parse(text) for text in GROUPS[group].values()]


@cache
def whole(group: str) -> Summed:
    """All of a group as one, with the gradients of all that has some."""
    normal = combined(parts(group)).normal
    return Summed(normal, differentiable(normal))


def values(name: str, at: Extents) -> dict[str, Any]:
    """What a variant captures."""
    generator = torch.Generator().manual_seed(5)

    def random(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) + 0.5

    b, h, q, k = at.batch, at.heads, at.q_len, at.k_len
    near = torch.randint(0, 9, (b, q, k), generator=generator, dtype=torch.int32)
    return {
        "alibi": lambda: {"slope": random(h) / 8},
        "t5_bias": lambda: {
            "bucket": (torch.arange(61, dtype=torch.int32) - 30).abs() // 4,
            "weight": random(8, h),
            "reach": 30,
        },
        "relative_table": lambda: {"table": random(h, 41), "far": 20},
        "sandwich": lambda: {"wave": random(q + k) / 4, "tilt": random(h)},
        "graphormer": lambda: {"near": near, "gift": random(9, h)},
        "of_head": lambda: {"offset": random(b, h)},
        "of_row": lambda: {"row": random(b, h, q)},
        "of_column": lambda: {"column": random(b, h, k)},
        "of_pair": lambda: {"bias": random(b, h, q, k)},
        "of_all": lambda: {"whole": random()},
        "rooted": lambda: {"root": random(h)},
        "twice": lambda: {"place": random(max(q, k))},
        "temperature": lambda: {"temperature": random(h)},
        "gain": lambda: {"gain": random(b, h, q)},
        "cap": lambda: {"cap": random(h) * 2},
        "mixed": lambda: {"slope": random(h) / 8, "heat": random(h, k)},
        "logarithm": lambda: {"power": random(h)},
    }[name]()


class Problem(NamedTuple):
    inputs: tuple[Any, ...]  # grad_out, out, lse, q, k, v, and the lengths where it is packed
    captured: Captured  # of the whole group
    exact: tuple[Tensor, ...]  # dq, dk, dv in fp64
    of_places: dict[int, Tensor]  # the exact gradients of what is summed, zeros of other parts


def make_problem(
    group: str,
    name: str,
    at: Extents,
    dtype: torch.dtype,
    options: Mapping[str, Any] | None = None,
    lengths: tuple[Sequence[int], Sequence[int]] | None = None,
    own: Mapping[str, Any] | None = None,
) -> Problem:
    """Random tensors, and the gradients of a part of a group in fp64. lengths: of packed sequences.
    own: what the part captures, by default `values`."""
    own = values(name, at) if own is None else own
    generator = torch.Generator().manual_seed(at.q_len + at.k_len)
    rows = (at.q_len, at.k_len) if lengths is None else tuple(map(sum, lengths))
    sizes = ((rows[0], at.heads), (rows[1], at.heads_kv), (rows[1], at.heads_kv))
    batch = (at.batch,) if lengths is None else ()
    inputs = [torch.randn(*batch, *n, at.d_head, generator=generator).to(dtype) for n in sizes]
    packing: tuple[Any, ...] = ()
    if lengths is not None:
        starts = [torch.tensor([0, *n]).cumsum(0, dtype=torch.int32) for n in lengths]
        packing = (*starts, *map(max, lengths))
    part = parse(GROUPS[group][name])
    captured = captured_of(part, own)
    leaves = [x.double().requires_grad_() for x in inputs]
    tensors = [
        x.double().requires_grad_() if x.is_floating_point() else x for x in captured.tensors
    ]
    out, lse = attention_variant_ref(
        *leaves, captured._replace(tensors=tensors), *packing[:2], dtype=torch.float64,
        **(options or {}),
    )  # fmt: skip
    grad_out = torch.randn(out.shape, generator=generator).to(dtype)
    floating = [x for x in tensors if x.requires_grad]
    (*exact,) = torch.autograd.grad(out, [*leaves, *floating], grad_out.double())
    gradients = iter(exact[3:])
    names = [param.name for param in part.captured if param.rank is not None]
    by_name = {n: next(gradients) for n, x in zip(names, tensors, strict=True) if x.requires_grad}
    results = (grad_out, out.detach().to(dtype), lse.detach().float())
    return Problem(
        (*results, *inputs, *packing),
        _captured_by_whole(group, name, own),
        tuple(exact[:3]),
        _of_places(group, by_name),
    )


def _captured_by_whole(group: str, name: str, own: Mapping[str, Any]) -> Captured:
    variant = combined(parts(group))
    found: dict[str, Any] = {}
    for param in variant.params:
        kind = {"f32": torch.float32, "i32": torch.int32}[param.kind.value]
        if param.rank is not None:
            found[param.name] = torch.ones([1] * param.rank, dtype=kind)
        else:
            found[param.name] = 1
    return captured_of(variant, found | dict(own) | {"which": list(GROUPS[group]).index(name)})


def _of_places(group: str, by_name: Mapping[str, Tensor]) -> dict[int, Tensor]:
    variant = combined(parts(group))
    names = [param.name for param in variant.captured if param.rank is not None]
    return {place: by_name.get(names[place], torch.zeros(())) for place in whole(group).places}


def empty_sums(problem: Problem) -> dict[int, Tensor]:
    return {
        place: torch.zeros(problem.captured.tensors[place].shape) for place in problem.of_places
    }


def relative_error(found: Tensor, exact: Tensor) -> float:
    """As a share of the norm; the norm of what is found where the exact one is 0."""
    norm = exact.norm().item()
    return ((found.double() - exact).norm() / (norm or 1.0)).item()
