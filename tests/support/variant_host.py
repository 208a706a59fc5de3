"""Host time of calls with a variant and of tracing, and CPU seconds of first calls.

They are the parts `host` and `first` of support.variant_speed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any
from unittest import mock

import torch
from support import host_time
from support.timed_variants import DEVICE, ON_GPU, given_of, marked, ours, problem_of, said, say

import pyflash
from pyflash.bench.measure import rotated_inputs
from pyflash.bench.variants import Given
from pyflash.op.variants.arguments import captured_of
from pyflash.variant import bind, parse, trace

FIRST = ("alibi", "documents", "natten_2d")


def host() -> None:
    problem = problem_of(64, 512 if ON_GPU else 1, 1, heads=2)
    inputs = rotated_inputs(problem, DEVICE)[0]
    calls = {"plain": {}, "causal, built in": {"causal": True}}
    for name in ("causal", "alibi", "documents"):
        given = given_of(name, problem)
        ours(given)(*inputs)  # compiled and loaded
        values = {"tensors": given.tensors} if given.tensors else {}
        calls[f"variant {name}"] = {"variant": given.variant} | values
        if given.tensors:
            calls[f"variant {name}, frozen"] = given.arguments
    bound = given_of("alibi", problem)
    calls["variant alibi, bound"] = {"variant": bind(bound.variant, **bound.tensors)}
    calls["variant alibi, bound, compile"] = calls["variant alibi, bound"] | {"compile": ON_GPU}
    contenders = [
        host_time.Contender(name, lambda *x, o=options: pyflash.attention(*x, **o), inputs)
        for name, options in calls.items()
    ]
    with mock.patch.object(host_time, "MEASURES", ("forward",)):
        found = host_time.host_times(contenders, 200 if ON_GPU else 3, 20)
    plain = found["plain"]["forward"]
    for name, times in found.items():
        more = times["forward"] - plain
        bar = marked(more, 5) if name.startswith("variant") else ""
        say(f"host {name:30s} {times['forward']:6.1f} us, over plain {more:+.1f} {bar}")
    host_of_tracing()


def host_of_tracing() -> None:
    slopes = torch.rand(8, device=DEVICE)

    def fresh() -> Callable[..., Any]:
        return lambda s, b, h, q, k: s + slopes[h] * (k - q)

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    known = fresh()
    for name, call, most in (
        ("known callables", lambda: trace(known, mask), 20),
        ("and what it captures", lambda: captured_of(trace(known, mask), None), 20),
        ("fresh closures", lambda: trace(fresh(), mask), 1000),
    ):
        call()
        us = median(host_time._timed([call] * 20) for _ in range(50))
        say(f"trace of {name:22s} {us:6.1f} us {marked(us, most)}")


def first() -> None:
    for name in FIRST:
        with said(f"first call of {name}"), tempfile.TemporaryDirectory() as folder:
            # NOTE: a cache is private to its user, as such a folder is.
            environment = os.environ | {"PYFLASH_CACHE_DIR": folder}
            command = [sys.executable, "-m", "support.variant_host", name]
            run = subprocess.run(command, env=environment, capture_output=True, text=True)
            if run.returncode:
                raise RuntimeError(run.stderr.strip().splitlines()[-1])
            for line in run.stdout.splitlines():
                if not line.startswith("["):
                    continue
                cell, cpu, wall = json.loads(line)
                say(f"first call of {cell:24s} {cpu:5.2f} CPU s, {wall:.2f} s {marked(cpu, 6)}")


def first_of(name: str) -> None:
    """In a process of its own. The cache has what all libraries share, as it has behind `pyflash
    build` or another variant."""
    problem = problem_of(128, 256 if ON_GPU else 16, 1, heads=2)
    inputs = rotated_inputs(problem, DEVICE)[0]
    other = Given(parse("other: s * 0.5 where (k <= q) & (k >= 5)"), "other", {})
    cells = {f"{name}, behind another": given_of(name, problem)}
    if name == FIRST[0]:
        cells = {"any, in an empty cache": other} | cells
    else:
        ours(other)(*inputs)
    for cell, given in cells.items():
        run = ours(given)
        before, start = sum(os.times()[:4]), time.monotonic()
        run(*inputs)
        if ON_GPU:
            torch.cuda.synchronize()
        used, seconds = sum(os.times()[:4]) - before, time.monotonic() - start
        print(json.dumps([cell, used, seconds]), flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        first_of(sys.argv[1])
