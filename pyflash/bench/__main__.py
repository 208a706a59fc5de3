"""python -m pyflash.bench: configs beside PyTorch's attention at one d_head and several lengths; or
the host time of a call."""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from pyflash.bench.contenders import pyflash_configs, torch_backends
from pyflash.bench.environment import environment
from pyflash.bench.forward import Result, run
from pyflash.bench.host import host_table, host_times
from pyflash.config import KernelConfig, parse
from pyflash.config.sets import SET_NAMES, named_set
from pyflash.op.selection import Problem


def main(argv: list[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    facts = environment(torch.device(arguments.device))
    print(", ".join(f"{name} {value}" for name, value in facts.items() if value))
    if arguments.host:
        times = host_times(torch.device(arguments.device), arguments.samples)
        print(host_table(times))
        if arguments.out:
            _append(arguments.out, "host", [time.record() for time in times], facts)
        return
    results = []
    for problem, configs in _problems(arguments):
        contenders = [
            *torch_backends(torch.device(problem.device), arguments.causal),
            *pyflash_configs(configs, arguments.causal),
        ]
        new = run(problem, contenders, arguments.samples)
        results += new
        if arguments.out:
            _append(arguments.out, "forward", [result.record() for result in new], facts)
        print(f"{_title(problem)}: done", flush=True)
    for problem, group in groupby(results, key=lambda result: result.problem):
        print(f"\n{_title(problem)}\n{table(group)}")


def table(results: Iterable[Result]) -> str:
    """A row for each contender: its figures, or why there are none."""
    header = (
        f"{'ms':>9} {'spread':>7} {'TFLOP/s':>8} {'ratio':>6} {'% GEMM':>7} {'error':>8}  contender"
    )
    return "\n".join([header, *map(_row, results)])


def _row(result: Result) -> str:
    if result.timing is None:
        return (
            f"{result.status} (error {result.error}, bound {result.bound})  {result.contender.name}"
        )
    ratio = f"{result.ratio:6.3f}" if result.ratio else f"{'-':>6}"
    return (
        f"{result.timing.seconds * 1e3:9.4f} {result.timing.spread:7.1%} {result.tflops:8.2f} "
        f"{ratio} {result.percent_of_gemm:7.1f} {result.error:8.1e}  {result.contender.name}"
    )


def _title(problem: Problem) -> str:
    return (
        f"{problem.dtype.name}, batch {problem.batch}, seqlen {problem.seqlen_q}, "
        f"heads {problem.heads_q}, heads_kv {problem.heads_kv}, d_head {problem.d_head}"
        f"{', causal' if problem.options.get('causal') else ''}"
    )


def _problems(
    arguments: argparse.Namespace,
) -> Iterable[tuple[Problem, list[KernelConfig]]]:
    """One for each dtype among the configs and each length, with the configs that fit."""
    configs = [parse(text) for text in arguments.config or ()]
    configs = configs or named_set(arguments.set)
    fitting = [config for config in configs if config.d_head == arguments.d_head]
    if not fitting:
        raise SystemExit(f"none of these {len(configs)} configs is for d_head {arguments.d_head}")
    heads = arguments.heads or max(1, 2048 // arguments.d_head)
    for dtype in dict.fromkeys(config.dtype for config in fitting):
        for seqlen in arguments.seqlen:
            problem = Problem(
                batch=max(1, arguments.tokens // seqlen),
                heads_q=heads,
                heads_kv=arguments.heads_kv or heads,
                seqlen_q=seqlen,
                seqlen_k=seqlen,
                d_head=arguments.d_head,
                dtype=dtype,
                device=arguments.device,
                options={"causal": arguments.causal},
            )
            yield problem, [config for config in fitting if config.dtype == dtype]


def _append(
    path: Path, bench: str, records: Iterable[dict[str, Any]], facts: dict[str, str | None]
) -> None:
    """Adds a line of JSON for each record."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for record in records:
            line = {"bench": bench, "time": now, "environment": facts} | record
            file.write(json.dumps(line) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pyflash.bench", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--set", choices=SET_NAMES, default="prog", help="configs (default: prog)")
    what.add_argument(
        "--config", action="append", metavar="SHORT_FORM", help="one config; may be repeated"
    )
    what.add_argument(
        "--host", action="store_true", help="host time per call of a tiny problem, beside SDPA's"
    )
    parser.add_argument("--seqlen", type=int, nargs="+", default=[4096], metavar="N")
    parser.add_argument(
        "--tokens", type=int, default=16384, help="batch is tokens / seqlen (default: 16384)"
    )
    parser.add_argument("--d-head", type=int, default=128)
    parser.add_argument("--heads", type=int, help="default: 2048 / d_head")
    parser.add_argument("--heads-kv", type=int, help="of k and v; default: as many as of q")
    parser.add_argument("--causal", action="store_true", help="FLOPs are counted halved")
    parser.add_argument("--samples", type=int, default=25, help="of each contender (default: 25)")
    parser.add_argument("--out", type=Path, metavar="FILE.jsonl", help="records are appended")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="as torch names it"
    )
    return parser


if __name__ == "__main__":
    main()
