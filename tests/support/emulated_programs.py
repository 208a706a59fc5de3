"""Random variants in emulated kernels, ten to a kernel, beside float64, element by element.

PYTHONPATH=.:tests python -m support.emulated_programs [--count 300] [--seed 0]
"""

from __future__ import annotations

import argparse
from typing import Any

from support.combined_variants import combined
from support.random_attention import compare, inputs_of, values_of, variant_of

import pyflash
from pyflash.config import parse

TOGETHER = 10  # programs of a kernel: more have too many nodes
CONFIG = parse("(FP16, 64, 128, 64, 2): sm90+stages_2+overlap+persistent+rescale_threshold")


def check(first: int) -> None:
    """Raises AssertionError where one of the programs from seed `first` on is wrong."""
    seeds = range(first, first + TOGETHER)
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
    wrong = 0
    for first in range(asked.seed, asked.seed + asked.count, TOGETHER):
        try:
            check(first)
        except AssertionError as error:
            wrong += 1
            print(error, flush=True)
    print(
        f"{asked.count} programs in kernels of {TOGETHER}, of which {wrong} have one that is wrong"
    )
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
