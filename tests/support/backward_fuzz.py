"""Random problems of attention as `fuzz` draws them, small ones, whose gradients are held against
fp64.

    PYTHONPATH=tests python -m support.backward_fuzz 1234 --device cuda --family sm90_backward

prints case 1234 and runs it again.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import random
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from support import fuzz
from support.memory_layout import Layout, draw_layout
from support.problems import new_memory_is_nan
from torch import Tensor

from pyflash import attention, attention_varlen, built_configs
from pyflash.config import FAMILIES, KernelConfig, family_of
from pyflash.op.backward import kernels
from pyflash.op.reference import expect, expect_varlen
from pyflash.op.reference_gradients import ExpectedGradients, expect_gradients, gradients_ref

MAX_D_HEAD = 128
MAX_LENGTH = 600
MAX_HEADS = 16
MAX_SEQUENCES = 5  # the reference runs packed ones one by one
MAX_SCORES = {"cuda": 1 << 20, "cpu": fuzz.MAX_SCORES["cpu"]}
SCALES = (1e-6, 1e-3, 0.05, 0.5, 1.0, 3.0)
MAGNITUDES = (1e-3, 0.1, 1.0, 1.0, 4.0)
BACKWARD_FAMILIES = tuple(f.name for f in FAMILIES if f.op.name == "backward")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call of attention, and the gradients of its results."""

    forward: fuzz.Case
    layout: Layout  # of grad_out
    broadcast: bool  # grad_out is one number, as out.sum() has it
    magnitude: float  # of the numbers in grad_out
    lse_has_gradient: bool
    slopes: int  # dimensions of alibi_slopes; 0: none
    deterministic: bool
    family: str | None  # of op backward, whose config is named; None: the CPU

    def __str__(self) -> str:
        own = [f"  {field.name}: {getattr(self, field.name)}" for field in dataclasses.fields(self)]
        return "\n".join([str(self.forward), *own[1:]])

    @property
    def repro(self) -> str:
        """The command that runs this case again."""
        seed, device = self.forward.seed, self.forward.device
        family = f" --family {self.family}" if self.family else ""
        return f"PYTHONPATH=tests python -m support.backward_fuzz {seed} --device {device}{family}"


def case(seed: int, device: str, family: str | None = None) -> Case:
    """The case of this seed: the first small one drawn whose dtype and d_head a built config of
    `family` has."""
    for attempt in itertools.count():
        rng = random.Random(f"backward {seed}.{attempt}")
        forward = fuzz.draw(rng, seed, device)
        if _is_small(forward) and (family is None or configs_for(forward, family)):
            return _with_gradients(rng, forward, family)
    raise AssertionError


def failures(seeds: Iterable[int], device: str, family: str | None = None) -> list[str]:
    """The failures among the cases of these seeds."""
    return fuzz.failures(seeds, device, family, case, _check)


def configs_for(forward: fuzz.Case, family: str) -> list[KernelConfig]:
    """The built ones of a family that have room for the heads; not each has every feature."""
    return [
        config
        for config in _built(family)
        if config.dtype == forward.dtype and forward.d_head <= config.d_head
    ]


@functools.cache
def _built(family: str) -> list[KernelConfig]:
    return [config for config in built_configs("backward") if family_of(config).name == family]


def _is_small(forward: fuzz.Case) -> bool:
    lengths = (forward.seqlens_q, forward.seqlens_k)
    return (
        forward.d_head <= MAX_D_HEAD
        and forward.heads <= MAX_HEADS
        and len(forward.seqlens_q) <= MAX_SEQUENCES
        and forward.n_scores <= MAX_SCORES[forward.device]
        and all(sum(x) > 0 and max(x) <= MAX_LENGTH for x in lengths)
    )


def _with_gradients(rng: random.Random, forward: fuzz.Case, family: str | None) -> Case:
    forward = dataclasses.replace(
        forward,
        softmax_scale=None if rng.random() < 0.5 else rng.choice(SCALES),
        magnitudes=tuple(rng.choice(MAGNITUDES) if rng.random() < 0.3 else 1.0 for _ in "qkv"),
    )
    has_slopes = not forward.mask.options["softcap"] and rng.random() < 0.2
    return Case(
        forward=forward,
        layout=draw_layout(rng, n_dims=3 if forward.packed else 4),
        broadcast=rng.random() < 0.1,
        magnitude=rng.choice(MAGNITUDES) if rng.random() < 0.3 else 1.0,
        lse_has_gradient=rng.random() < 0.3,
        slopes=rng.choice((1, 2)) if has_slopes else 0,
        deterministic=rng.random() < 0.3,
        family=family,
    )


def options_of(case: Case) -> dict[str, Any]:
    forward = case.forward
    options = {**forward.mask.options, "softmax_scale": forward.softmax_scale}
    generator = torch.Generator(forward.device).manual_seed(forward.seed)
    if case.slopes:
        size = (len(forward.seqlens_q), forward.heads)[-case.slopes :]
        options["alibi_slopes"] = torch.rand(size, generator=generator, device=forward.device)
    return options


def gradients_of_results(case: Case, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor | None]:
    """grad_out, and grad_lse if there is one."""
    forward = case.forward
    generator = torch.Generator(out.device).manual_seed(forward.seed + 1)
    grad_out = fuzz.randn(
        forward, generator, case.layout, forward.seqlens_q, forward.heads, case.magnitude
    )
    if case.broadcast:
        grad_out = grad_out.flatten()[0].expand(out.shape)
    if not case.lse_has_gradient:
        return grad_out, None
    grad_lse = torch.randn(lse.shape, generator=generator, device=out.device) * case.magnitude
    return grad_out, grad_lse


def _check(case: Case) -> None:
    forward = case.forward
    qkv, sinks, options = fuzz.inputs_of(forward), fuzz.sinks_of(forward), options_of(case)
    packing = fuzz.lengths_of(forward) if forward.packed else ()
    attend = attention_varlen if forward.packed else attention
    out, lse = attend(*qkv, *packing, return_lse=True, sinks=sinks, **options)
    grad_out, grad_lse = gradients_of_results(case, out, lse)
    chosen = {"config": config_of(case, qkv, packing, options)} if case.family else {}

    def gradients() -> tuple[Tensor, ...]:
        return kernels.bwd(
            grad_out, out, lse, *qkv, packing=packing, grad_lse=grad_lse, **chosen, **options
        )

    with new_memory_is_nan(forward.device) if case.deterministic else nullcontext():
        found = gradients()
        if case.deterministic:
            again = gradients()
    options["sinks"] = sinks  # for the gradients, they are in lse
    expect_out = expect_varlen if forward.packed else expect
    of_forward = expect_out(*qkv, *packing[:2], **options)
    of_forward.check(out, lse)
    upstream = {"grad_lse": grad_lse, "cu_seqlens": packing[:2]}
    expected = expect_gradients(*qkv, grad_out, **upstream, **options)
    name, error, bound = expected.worst(found)
    if not error <= bound:
        expected = with_rounded_out(
            expected, qkv, grad_out, out - of_forward.out, upstream, options
        )
        try:
            expected.check(found)
        except AssertionError as second:
            config = chosen.get("config", "the CPU")
            first = f"{name}: error {error:.3e}, bound {bound:.3e}"
            raise AssertionError(f"{config}: {first}; given out, {second}") from second
    for x, gradient in zip(qkv, found, strict=True):
        assert gradient.dtype == x.dtype, f"a gradient is {gradient.dtype}"
    if case.deterministic:
        assert all(map(torch.equal, found, again)), "a second run differs"


def with_rounded_out(
    expected: ExpectedGradients,
    qkv: tuple[Tensor, ...],
    grad_out: Tensor,
    rounding: Tensor,
    upstream: dict[str, Any],
    options: dict[str, Any],
) -> ExpectedGradients:
    """What is expected given out in 16 bits. Its rounding changes delta = rowsum(dO * O) as a
    gradient of lse would; where nearly all of P is of one key the rest of dS is as small."""
    changed = (grad_out.double() * rounding).sum(-1).transpose(-1, -2)
    of_rounding = gradients_ref(
        *qkv,
        torch.zeros_like(grad_out),
        dtype=torch.float64,
        **{**upstream, "grad_lse": -changed},
        **options,
    )
    exact = tuple(map(torch.add, expected.exact, of_rounding))
    return dataclasses.replace(expected, exact=exact)


def config_of(
    case: Case, qkv: tuple[Tensor, ...], packing: tuple[Any, ...], options: dict[str, Any]
) -> str:
    """A random config of the family among those that take the problem; one has to."""
    configs = configs_for(case.forward, case.family)
    random.Random(case.forward.seed).shuffle(configs)
    asked = {**options, "deterministic": case.deterministic}
    problem = kernels.problem_of(*qkv[:2], packing, asked)
    reasons = []
    for config in map(str, configs):
        found, reason = kernels.choice(qkv[0].device, {**problem, "config": config})
        if found:
            return config
        reasons.append(reason)
    raise AssertionError("no config takes the problem: " + "; ".join(reasons))


def main(argv: list[str] | None = None) -> None:
    description = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(
        prog="python -m support.backward_fuzz", description=description
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("--device", choices=list(MAX_SCORES), default="cuda")
    parser.add_argument("--count", type=int, default=1, help="of cases, from this seed on")
    parser.add_argument("--family", choices=BACKWARD_FAMILIES, help="of the configs")
    arguments = parser.parse_args(argv)
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    if arguments.count == 1:
        print(case(arguments.seed, arguments.device, arguments.family))
    found = failures(seeds, arguments.device, arguments.family)
    print(*found, f"{arguments.count} cases, {len(found)} wrong", sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
