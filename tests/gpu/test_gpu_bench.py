"""The bench and the ladder on a GPU: every backend is right or refuses, and has its figures."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from pyflash import DType, Problem
from pyflash.bench.contenders import BASELINE, backends, selected
from pyflash.bench.measure import run
from pyflash.bench.passes import Pass
from pyflash.cli import app

pytestmark = pytest.mark.gpu


def problem(seqlen_q: int = 512, causal: bool = False, heads_kv: int = 4) -> Problem:
    return Problem(
        batch=2, heads_q=4, heads_kv=heads_kv, seqlen_q=seqlen_q, seqlen_k=512, d_head=128,
        dtype=DType.BF16, options={"causal": causal},
    )  # fmt: skip


@pytest.mark.parametrize("what", list(Pass), ids=lambda what: what.value)
@pytest.mark.parametrize("causal", [False, True])
def test_no_backend_is_wrong(what, causal):
    asked = problem(causal=causal)
    results = run(asked, [*backends(asked), selected(asked)], 3, what)
    by_name = {result.contender.name: result for result in results}
    for name in (BASELINE, "pyflash"):
        assert by_name[name].status == "ok"
        assert by_name[name].host_microseconds > 0
        assert by_name[name].tflops > 0
    assert not [name for name, result in by_name.items() if result.status == "wrong"]


@pytest.mark.parametrize(("seqlen_q", "causal"), [(1, False), (300, True)])
def test_no_backend_is_wrong_where_lengths_differ(seqlen_q, causal):
    asked = problem(seqlen_q, causal, heads_kv=2)
    results = run(asked, [*backends(asked), selected(asked)], 3)
    assert not [r.contender.name for r in results if r.status == "wrong"]
    assert results[-1].status == "ok"
    assert results[-1].gb_per_second > 0


def test_the_ladder_has_speeds():
    arguments = ["ladder", "--seqlen", "512", "--part", "speed", "--samples", "3", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    ladder = json.loads(result.stdout)
    assert ladder["missing"] == {}
    assert all(step["record"]["status"] == "ok" for step in ladder["steps"])
    assert ladder["baseline"]["contender"] == BASELINE
