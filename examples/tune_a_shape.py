"""The fastest config for one shape.

    python examples/tune_a_shape.py [PROBLEM]

On a GPU this measures: candidates are compiled, checked and timed for two minutes, and the winner
beside the config that pyflash selects is printed. Without a GPU nothing is measured: the model of
time orders the candidates, and only the order means anything.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

import pyflash
from pyflash.tuner.dry_run import DryRun
from pyflash.tuner.model import gpu_of
from pyflash.tuner.problems import parse_problem

PROBLEM = "bf16,batch=4,heads=32,heads_kv=8,seqlen=4096,d_head=128,causal"
# Every field that is not named takes every value that tuning explores.
SPACE = pyflash.Space(
    dtype="BF16",
    d_head=128,
    async_copy=True,
    eager_load_blocks=True,
    swizzled=True,
    optimized_softmax=True,
    rescale_threshold=True,
)


def order_by_model(problem: pyflash.Problem) -> None:
    """What `pyflash tune --dry-run` shows: the candidates that would be tried first."""
    gpu = gpu_of(torch.device("cpu"), "sm_90")
    (ranking,) = DryRun.of(SPACE, [problem], gpu).expected.values()
    print(f"no GPU: nothing is measured. {len(ranking)} candidates, ordered by the model of time:")
    fastest = next(iter(ranking.values()))
    for config, seconds in list(ranking.items())[:5]:
        print(f"  {seconds / fastest:.2f}  {config}")


def measure(problem: pyflash.Problem) -> None:
    selected = pyflash.select(problem)
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "tune.jsonl"
        result = pyflash.tune(SPACE, [problem], journal=journal, limit=120)
    print(f"selected: {selected.config}, because {selected.reason}")
    for winner in result.winners.values():
        print(f"winner:   {winner}")
    print("`pyflash tune --install` makes a winner what later calls take")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("problem", nargs="?", default=PROBLEM)
    problem = parse_problem(parser.parse_args().problem)
    if torch.cuda.is_available():
        measure(problem)
    else:
        order_by_model(problem)


if __name__ == "__main__":
    main()
