"""Measures every combination of the options, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pyflash.bench import measure, records
from pyflash.bench.contenders import (
    Contender,
    backends,
    pyflash_configs,
    selected,
    with_variant,
)
from pyflash.bench.environment import environment
from pyflash.bench.measurements import measurements, titles
from pyflash.bench.passes import Pass
from pyflash.bench.variants import Given
from pyflash.codegen.progress import BuildProgress
from pyflash.config import FORWARD, KernelConfig
from pyflash.op.selection import Problem
from pyflash.ui.app import console
from pyflash.ui.problems import dtype_of
from pyflash.ui.variants import AskedVariant


@dataclass(frozen=True)
class Wanted:
    """What is to be timed: every combination of these."""

    passes: list[str]
    dtypes: list[str]
    d_heads: list[int]
    masks: list[str]
    seqlens: list[int]
    decode: bool
    tokens: int  # batch is tokens / seqlen
    width: int  # heads is width / d_head
    heads: int | None  # instead
    heads_kv: int | None
    device: str
    configs: list[KernelConfig]  # none: the selected one
    backends: list[str] | None  # None: those that are importable
    variant: AskedVariant | None = None


def measure_all(wanted: Wanted, samples: int, out: Path | None) -> list[dict[str, Any]]:
    """The records, each appended to `out` as soon as it is there."""
    problems = [(one, problem) for one in wanted.passes for problem in _problems(wanted)]
    facts = environment(torch.device(wanted.device))
    found = []
    err = console(stderr=True)
    err.print(", ".join(f"{name} {value}" for name, value in facts.items() if value))
    with BuildProgress(err, len(problems)) as progress:
        for one, problem in problems:
            given = Given.of(wanted.variant, problem) if wanted.variant else None
            contenders = _contenders(wanted, problem, given)
            results = measure.run(problem, contenders, samples, Pass(one), given)
            new = records.stamped("attention", (result.record() for result in results), facts)
            if out is not None:
                records.append(out, new)
            found += new
            progress.finished(titles(measurements(new))[0], failed=False)
    return found


def _problems(wanted: Wanted) -> Iterator[Problem]:
    for dtype in map(dtype_of, wanted.dtypes):
        for d_head in wanted.d_heads:
            _check_fit(wanted, dtype.name, d_head)
            heads = wanted.heads or max(1, wanted.width // d_head)
            for mask in wanted.masks:
                for seqlen in wanted.seqlens:
                    yield Problem(
                        batch=max(1, wanted.tokens // seqlen),
                        heads_q=heads,
                        heads_kv=heads if wanted.heads_kv is None else wanted.heads_kv,
                        seqlen_q=1 if wanted.decode else seqlen,
                        seqlen_k=seqlen,
                        d_head=d_head,
                        dtype=dtype,
                        device=wanted.device,
                        options={"causal": mask == "causal"},
                    )


def _check_fit(wanted: Wanted, dtype: str, d_head: int) -> None:
    if FORWARD.name in wanted.passes:
        for config in wanted.configs:
            if config.family.op is not FORWARD:
                op = config.family.op
                raise ValueError(f"{config} is of op {op}, which has no forward pass: --pass {op}")
    fitting = [c for c in wanted.configs if (c.dtype.name, c.d_head) == (dtype, d_head)]
    if wanted.configs and not fitting:
        raise ValueError(
            f"none of these {len(wanted.configs)} configs is for {dtype} and d_head {d_head}: "
            "pass --dtype and --d-head"
        )


def _contenders(wanted: Wanted, problem: Problem, given: Given | None) -> list[Contender]:
    causal = bool(problem.options.get("causal"))
    fitting = [c for c in wanted.configs if (c.dtype, c.d_head) == (problem.dtype, problem.d_head)]
    if given:
        return with_variant(problem, given, fitting, wanted.backends)
    ours = pyflash_configs(fitting, causal) if wanted.configs else [selected(problem)]
    return [*backends(problem, wanted.backends), *ours]
