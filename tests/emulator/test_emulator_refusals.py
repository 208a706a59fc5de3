"""Problems at the limit of the heads that a warpgroup packs: run, or refused in words."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from support.emulated_sm90 import CONFIGS
from support.headers import ROOT

import pyflash
from pyflash.codegen.emulated import build_emulated
from pyflash.config import parse
from pyflash.op.reference import expect
from pyflash.op.selection import TORCH_DTYPES

# With clusters, with several warpgroups, without either.
PACKING = [
    parse("(BF16, 128, 64, 64, 1): sm90+stages_3+overlap+rescale_threshold+pack_gqa"),
    *(config for config in CONFIGS if config.pack_gqa),
]
NOT_PACKING = CONFIGS[0]
TOO_MANY = (
    "cannot run this problem: its warpgroups pack the query heads of a head of k and v into 64 "
    "rows, and there are more"
)
GROUPS = (0, 1, 2, 63, 64, 65, 128, 1000)
QUERIES = (0, 1, 2, 65)
KEYS = (0, 3, 300)
SPLITS = (1, 2, 16, 17, 128)
HEADS_KV = (1, 2)


class Case(NamedTuple):
    group: int
    seqlen_q: int
    seqlen_k: int
    num_splits: int
    heads_kv: int
    packed: bool


CASES = [Case(*c) for c in itertools.product(GROUPS, QUERIES, KEYS, SPLITS, HEADS_KV, (0, 1))]

# In a process of its own, because a kernel's library that divides by zero ends it. Prints each case
# before it asks for it, and what came of it.
PREPARE = """if True:
    import json, sys
    from pathlib import Path
    import torch
    from pyflash.config import parse
    from pyflash.emulator.machine import Machine
    from pyflash.op.selection import TORCH_DTYPES
    library, config = Path(sys.argv[1]), parse(sys.argv[2])
    for line in sys.stdin:
        group, n_q, n_k, num_splits, heads_kv, packed = case = json.loads(line)
        print(json.dumps(case), flush=True)
        q, k = (
            torch.zeros(1, n, heads, config.d_head, dtype=TORCH_DTYPES[config.dtype])
            for n, heads in ((n_q, group * heads_kv), (n_k, heads_kv))
        )
        arguments = {"q": q, "k": k, "v": k, "num_splits": num_splits}
        if packed:
            arguments |= {"q": q[0], "k": k[0], "v": k[0]}
            for name, n in (("q", n_q), ("k", n_k)):
                arguments["cu_seqlens_" + name] = torch.tensor([0, n], dtype=torch.int32)
                arguments["max_seqlen_" + name] = n
        with Machine(library, "ascending", 0) as machine:
            try:
                machine.prepare(arguments, config)
                print("accepted", flush=True)
            except ValueError as error:
                print(error, flush=True)
"""


def outcomes(config) -> list[str]:
    (library,) = build_emulated([config]).values()
    result = subprocess.run(
        [sys.executable, "-c", PREPARE, str(library), str(config)],
        input="".join(json.dumps(case) + "\n" for case in CASES),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    lines = result.stdout.splitlines()
    assert result.returncode == 0, f"{lines[-1:]} ended the process: {result.stderr}"
    assert lines[::2] == [json.dumps(case) for case in CASES]
    return lines[1::2]


def expected(config, case: Case) -> str:
    one_query = case.seqlen_q == 1 and not case.packed  # its heads are the rows of a block
    if config.pack_gqa and case.group > 64 and not one_query:
        return f"pyflash: config '{config}' {TOO_MANY}"
    return "accepted"


@pytest.mark.parametrize("config", [*PACKING, NOT_PACKING], ids=str)
def test_more_heads_than_a_warpgroup_packs_are_refused(config):
    for case, outcome in zip(CASES, outcomes(config), strict=True):
        assert outcome == expected(config, case), case


@pytest.mark.parametrize("resident_ctas", [0, -1, 2**31, 2**32 + 1])
def test_resident_ctas_that_no_gpu_has_are_refused(resident_ctas):
    q = torch.zeros(1, 3, 2, 128, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=f"resident_ctas = {resident_ctas}: expected "):
        pyflash.emulate(q, q, q, PACKING[0], resident_ctas=resident_ctas)


@pytest.mark.parametrize("config", PACKING, ids=str)
@pytest.mark.parametrize("seqlen_q", [1, 2, 65])
def test_as_many_heads_as_a_warpgroup_packs_run(config, seqlen_q):
    dtype = TORCH_DTYPES[config.dtype]
    for group, num_splits in ((63, 2), (64, 1)):
        q, k = (torch.randn(1, n, h, 64).to(dtype) for n, h in ((seqlen_q, group), (70, 1)))
        out, lse, report = pyflash.emulate(q, k, k, config, num_splits=num_splits)
        report.check()
        expect(q, k, k).check(out, lse)


@pytest.mark.parametrize("config", [*PACKING, NOT_PACKING], ids=str)
def test_no_heads_run(config):
    q = torch.zeros(2, 3, 0, 64, dtype=TORCH_DTYPES[config.dtype])
    k = torch.zeros(2, 5, 2, 64, dtype=q.dtype)
    out, lse, report = pyflash.emulate(q, k, k, config)
    assert report.completed
    assert (out.shape, lse.shape) == (q.shape, (2, 0, 3))
