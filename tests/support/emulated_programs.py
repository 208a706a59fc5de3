"""Random variants in emulated kernels, several to a kernel, beside float64, element by element.

PYTHONPATH=.:tests python -m support.emulated_programs [--count 300] [--seed 0]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from support.combined_variants import combined
from support.random_attention import compare, inputs_of, values_of, variant_of

import pyflash
from pyflash.config import parse
from pyflash.variant.expr import MAX_NODES

CONFIG = parse("(FP16, 64, 128, 64, 2): sm90+stages_2+overlap+persistent+rescale_threshold")
_OF_A_CHOICE = 5  # nodes


def groups(seeds: Sequence[int]) -> Iterator[list[int]]:
    """As many of them together as one variant can hold."""
    group: list[int] = []
    nodes = 0
    for seed in seeds:
        own = max(variant_of(seed).score.size, variant_of(seed).mask.size) + _OF_A_CHOICE
        if nodes + own > MAX_NODES:
            yield group
            group, nodes = [], 0
        group.append(seed)
        nodes += own
    yield group


def check(seeds: Sequence[int]) -> None:
    """Raises AssertionError where one of these programs is wrong; they are compiled together."""
    programs = [variant_of(seed) for seed in seeds]
    variant = combined(programs)
    values: dict[str, Any] = {}
    for program in programs:
        values |= values_of(program)
    for which, seed in enumerate(seeds):
        out, lse, report = pyflash.emulate(
            *inputs_of(seed), CONFIG, variant=variant, tensors=values | {"which": which},
            order="random", seed=seed,
        )  # fmt: skip
        report.check()
        compare(seed, out, lse)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    wrong = kernels = 0
    for seeds in groups(range(asked.seed, asked.seed + asked.count)):
        kernels += 1
        try:
            check(seeds)
        except AssertionError as error:
            wrong += 1
            print(error, flush=True)
    print(f"{asked.count} programs in {kernels} kernels, of which {wrong} have one that is wrong")
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
