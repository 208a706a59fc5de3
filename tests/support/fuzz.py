"""Random problems of attention, each drawn from a seed and checked against the reference.

    PYTHONPATH=tests python -m support.fuzz 1234 --device cuda

prints case 1234 and runs it again.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from support.gpu_calls import built_for
from support.memory_layout import Layout, draw_layout
from support.problems import Mask, make_sinks, new_memory_is_nan
from support.refused import call_or_fall_back
from torch import Tensor

from pyflash import Features, attention, attention_varlen, built_configs, named_set
from pyflash.config import ARCHS, FAMILIES, FORWARD, DType, KernelConfig, family_of
from pyflash.op.reference import expect, expect_varlen
from pyflash.op.selection import TORCH_DTYPES

PRIMES = (7, 13, 31, 61, 67, 97, 127, 131, 193, 251, 257, 383, 509, 577, 599)
EDGES = (16, 32, 64, 96, 128, 192, 256, 384, 512)
COMMON_D = (64, 128)
MAX_D_HEAD = 256
# Limits that keep the reference, and the op on the CPU, fast.
MAX_SCORES = {"cuda": 1 << 26, "cpu": 1 << 17}
MAX_ELEMENTS = {"cuda": 1 << 27, "cpu": 1 << 20}
ON_CPU = [
    config
    for built in named_set("all")
    if built.family.op is FORWARD
    for config in (built, built.replace(d_head=256))
    if any(config.is_legal(arch) for arch in ARCHS)
]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call of attention, or, with packed sequences, of attention_varlen."""

    seed: int
    device: str
    dtype: DType
    packed: bool
    seqlens_q: tuple[int, ...]  # padded: all alike
    seqlens_k: tuple[int, ...]
    heads_kv: int
    group: int  # heads of q for each head of k and v
    d_head: int
    layouts: tuple[Layout, Layout, Layout]  # of q, k, v
    mask: Mask
    softmax_scale: float | None
    sinks: str | None  # "float32", or "q": the dtype of q
    num_splits: int
    max_seqlen_slack: tuple[int, int]  # by how much max_seqlen_q and max_seqlen_k are too large
    repeated: bool  # run twice, for bitwise equality
    config: str  # short form, or "" for the best known
    family: str | None = None  # the config is one of this family; None: any, or the best known
    magnitudes: tuple[float, float, float] = (1.0, 1.0, 1.0)  # of the numbers in q, k, v

    def __str__(self) -> str:
        fields = dataclasses.asdict(self) | {"mask": self.mask.options, "dtype": self.dtype.name}
        fields["layouts"] = ", ".join(map(str, self.layouts))
        return "\n".join(f"  {name}: {value}" for name, value in fields.items())

    @property
    def repro(self) -> str:
        """The command that runs this case again."""
        family = f" --family {self.family}" if self.family else ""
        return f"PYTHONPATH=tests python -m support.fuzz {self.seed} --device {self.device}{family}"

    @property
    def heads(self) -> int:
        return self.heads_kv * self.group

    @property
    def n_scores(self) -> int:
        pairs = zip(self.seqlens_q, self.seqlens_k, strict=True)
        return self.heads * sum(q * k for q, k in pairs)

    @property
    def is_quick(self) -> bool:
        # Splits are combined from as many partial results.
        rows = max(1, self.num_splits) * self.heads * sum(self.seqlens_q)
        rows += self.heads_kv * sum(self.seqlens_k)
        quick = self.n_scores <= MAX_SCORES[self.device]
        return quick and rows * self.d_head <= MAX_ELEMENTS[self.device]


def case(seed: int, device: str, family: str | None = None) -> Case:
    """The case of this seed: the first one drawn that the device can run and check quickly; of
    `family`, a name of FAMILIES, with one of its configs."""
    if device == "cuda" and not built_configs():
        raise RuntimeError("no config is built: pyflash build")
    for attempt in itertools.count():
        rng = random.Random(f"{seed}.{attempt}")
        drawn = dataclasses.replace(draw(rng, seed, device), family=family)
        runnable = configs_for(drawn)
        if runnable and drawn.is_quick:
            return _with_config(rng, drawn, runnable)
    raise AssertionError


def run(case: Any, check: Callable[[Any], None] | None = None) -> None:
    """Raises AssertionError, with the case and the command that repeats it, for a wrong result.
    check: of a case of another generator, which raises for one."""
    try:
        (check or _check)(case)
    except (AssertionError, RuntimeError, ValueError) as error:
        raise AssertionError(f"{error}\n{case}\nagain: {case.repro}") from error


def failures(
    seeds: Iterable[int],
    device: str,
    family: str | None = None,
    draw_case: Callable[..., Any] | None = None,
    check: Callable[[Any], None] | None = None,
) -> list[str]:
    """The failures among the cases of these seeds; of another generator's, as `run` takes them."""
    messages = []
    for seed in seeds:
        try:
            run((draw_case or case)(seed, device, family), check)
        except AssertionError as error:
            messages.append(str(error))
            if device == "cuda":
                torch.cuda.synchronize()  # raises if no further case can run
    return messages


def configs_for(case: Case) -> list[KernelConfig]:
    """The configs that can run it. On the CPU a config need not be built."""
    able = built_for(Features()) if case.device == "cuda" else ON_CPU
    return [
        c
        for c in able
        if c.dtype == case.dtype
        and case.d_head <= c.d_head <= MAX_D_HEAD
        and case.family in (None, family_of(c).name)
    ]


def inputs_of(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of normal random numbers."""
    generator = torch.Generator(case.device).manual_seed(case.seed)
    sizes = (
        (case.seqlens_q, case.heads),
        (case.seqlens_k, case.heads_kv),
        (case.seqlens_k, case.heads_kv),
    )
    return tuple(
        randn(case, generator, layout, *size, magnitude)
        for layout, size, magnitude in zip(case.layouts, sizes, case.magnitudes, strict=True)
    )


def randn(
    case: Case,
    generator: torch.Generator,
    layout: Layout,
    seqlens: tuple[int, ...],
    heads: int,
    magnitude: float = 1.0,
) -> Tensor:
    """Normal random numbers with a row for each query or key of a case."""
    rows = (sum(seqlens),) if case.packed else (len(seqlens), max(seqlens, default=0))
    size = (*rows, heads, case.d_head)
    values = torch.randn(size, generator=generator, device=case.device) * magnitude
    return layout.place(values.to(TORCH_DTYPES[case.dtype]))


def sinks_of(case: Case) -> Tensor | None:
    if case.sinks is None:
        return None
    dtype = torch.float32 if case.sinks == "float32" else TORCH_DTYPES[case.dtype]
    return make_sinks(case.heads, dtype, case.device, case.seed)


def draw(rng: random.Random, seed: int, device: str) -> Case:
    """Any case, slow ones too, without a config."""
    packed = rng.random() < 0.4
    seqlens_q, seqlens_k = _draw_lengths(rng, packed)
    return Case(
        seed=seed,
        device=device,
        dtype=rng.choice(list(DType)),
        packed=packed,
        seqlens_q=seqlens_q,
        seqlens_k=seqlens_k,
        heads_kv=rng.choice((1, 1, 2, 2, 3, 5, 8)),
        group=rng.choice((1, 1, 1, 2, 3, 4, 7, 8, 16)),
        d_head=_draw_d_head(rng),
        layouts=tuple(draw_layout(rng, n_dims=3 if packed else 4) for _ in "qkv"),
        mask=_draw_mask(rng, max((*seqlens_q, *seqlens_k), default=0)),
        softmax_scale=None if rng.random() < 0.7 else rng.choice((1e-3, 0.05, 0.2, 1.0, 3.0)),
        num_splits=rng.choice((0, 0, 0, 0, 0, 0, 1, 2, 3, 5, 8, rng.randint(1, 128))),
        max_seqlen_slack=tuple(rng.choice((0, 0, 1, 63, 1000)) for _ in "qk"),
        repeated=rng.random() < 0.25,
        sinks=rng.choice(("float32", "q")) if rng.random() < 0.2 else None,
        config="",
    )


def _with_config(rng: random.Random, case: Case, runnable: list[KernelConfig]) -> Case:
    named = case.family is not None or rng.random() < 0.6
    return dataclasses.replace(case, config=str(rng.choice(runnable))) if named else case


def _draw_lengths(rng: random.Random, packed: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if packed:
        batch = rng.choice((1, 2, 3, 3, 4, 5, 9)) if rng.random() < 0.97 else 0
        decoding = rng.random() < 0.15
        lengths_q = (rng.randint(0, 3) if decoding else _draw_length(rng) for _ in range(batch))
        return tuple(lengths_q), tuple(_draw_length(rng) for _ in range(batch))
    batch = rng.choice((1, 1, 1, 2, 2, 3, 7)) if rng.random() < 0.99 else 0
    decoding = rng.random() < 0.25
    seqlen_q = rng.choice((1, 1, 1, 2, 4, 16)) if decoding else _draw_length(rng)
    seqlen_k = rng.choice((_draw_length(rng), rng.randint(500, 9000) if decoding else seqlen_q))
    return (seqlen_q,) * batch, (seqlen_k,) * batch


def _draw_length(rng: random.Random) -> int:
    kind = rng.choices(("zero", "tiny", "prime", "edge", "any", "long"), (3, 15, 25, 25, 25, 7))[0]
    match kind:
        case "zero":
            return 0
        case "tiny":
            return rng.randint(1, 9)
        case "prime":
            return rng.choice(PRIMES)
        case "edge":
            return rng.choice(EDGES) + rng.choice((-1, 0, 1))
        case "any":
            return rng.randint(1, 600)
    return rng.randint(1000, 3000)


def _draw_d_head(rng: random.Random) -> int:
    return rng.choice(COMMON_D) if rng.random() < 0.5 else 8 * rng.randint(1, MAX_D_HEAD // 8)


def _draw_mask(rng: random.Random, longest: int) -> Mask:
    def window() -> int:
        return rng.choice((-1, 0, 1, 5, 63, 64, 127, rng.randint(0, longest + 10)))

    kind = rng.choices(("full", "causal", "left", "both"), (30, 30, 10, 30))[0]
    softcap = rng.choice((0.5, 5.0, 30.0)) if rng.random() < 0.15 else 0.0
    return Mask(
        kind,
        causal=kind in ("causal", "left"),
        window_left=window() if kind in ("left", "both") else -1,
        window_right=window() if kind == "both" else -1,
        attention_chunk=rng.choice((1, 48, 64, 100, longest + 1)) if rng.random() < 0.15 else 0,
        softcap=softcap,
    )


def _check(case: Case) -> None:
    inputs = inputs_of(case)
    options = case.mask.options | {"softmax_scale": case.softmax_scale, "sinks": sinks_of(case)}
    call = {"num_splits": case.num_splits, "config": case.config, "return_lse": True, **options}
    with new_memory_is_nan(case.device):
        if case.packed:
            arguments = (*inputs, *lengths_of(case))
            function = attention_varlen
        else:
            function, arguments = attention, inputs
        results = [call_or_fall_back(function, arguments, **call) for _ in range(1 + case.repeated)]
    expected = (
        expect_varlen(*arguments[:5], **options) if case.packed else expect(*inputs, **options)
    )
    out, lse = results[0]
    assert out.is_contiguous(), f"out has strides {out.stride()}"
    assert lse.is_contiguous(), f"lse has strides {lse.stride()}"
    assert out.dtype == inputs[0].dtype, f"out is {out.dtype}"
    expected.check(out, lse)
    for again in results[1:]:
        same = all(map(torch.equal, results[0], again))
        assert same, "a second run differs"


def lengths_of(case: Case) -> tuple[Any, ...]:
    """cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k."""
    both = (case.seqlens_q, case.seqlens_k)
    starts = [list(itertools.accumulate(lengths, initial=0)) for lengths in both]
    cu_seqlens = [torch.tensor(x, dtype=torch.int32, device=case.device) for x in starts]
    longest = [max(lengths, default=0) for lengths in both]
    return *cu_seqlens, *map(sum, zip(longest, case.max_seqlen_slack, strict=True))


def main(argv: list[str] | None = None) -> None:
    description = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m support.fuzz", description=description)
    parser.add_argument("seed", type=int)
    parser.add_argument("--device", choices=list(MAX_SCORES), default="cuda")
    parser.add_argument("--count", type=int, default=1, help="of cases, from this seed on")
    parser.add_argument("--family", choices=[f.name for f in FAMILIES], help="of the configs")
    arguments = parser.parse_args(argv)
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    if arguments.count == 1:
        print(case(arguments.seed, arguments.device, arguments.family))
    found = failures(seeds, arguments.device, arguments.family)
    print(*found, f"{arguments.count} cases, {len(found)} wrong", sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
