"""`pyflash bench packed`, `ragged` and `mixed`, small on the CPU."""

import json

import pytest
import torch
from typer.testing import CliRunner

from pyflash.bench import records, uneven
from pyflash.cli import app

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr("pyflash.bench.timing.SECONDS_OF_WARMUP", 0.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_workloads_are_those_that_are_named():
    packed, ragged, mixed = (list(make()) for make in uneven.WORKLOADS.values())
    totals = [sum(workload.lengths_q) for workload in packed]
    assert totals == [16384, 65536, 65536, 65536, 65536, 32768]
    assert [len(workload.lengths_q) for workload in packed] == [18, 67, 29, 66, 215, 2]
    assert [len(workload.lengths_k) for workload in ragged] == [8, 64, 256]
    assert all(ragged[2].lengths_k[: len(r.lengths_k)] == r.lengths_k for r in ragged)
    whole, *parts = mixed
    assert whole.scores == sum(part.scores for part in parts)
    for make in uneven.WORKLOADS.values():  # the same in every run
        assert list(make()) == list(make())


def test_scores_are_counted_as_a_triangle():
    workload = uneven.Workload("", (4, 1), (4, 10), 1, 1, 64)
    assert workload.scores == 8 + 9.5
    assert workload.equal is None
    assert workload.n_bytes == 2 * 64 * 2 * (5 + 14)


@pytest.mark.parametrize("name", uneven.WORKLOADS)
def test_every_contender_of_the_cpu_is_right(name, monkeypatch, tmp_path):
    one = next(uneven.WORKLOADS[name]())
    monkeypatch.setitem(uneven.WORKLOADS, name, lambda: iter([one]))
    monkeypatch.setattr(uneven, "_SMALLER_ON_CPU", 512)
    out = tmp_path / "out.jsonl"
    command = ["bench", name, "--samples", "2", "--device", "cpu", "--json", "--out", str(out)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(record["contender"], record["status"]) for record in found] == [
        ("pyflash", "ok"),
        ("PyTorch SDPA, a call for each", "ok"),
        ("FlexAttention", "ok"),
    ]
    assert found == records.read(out, name)
    for record in found:
        assert record["timing"]["seconds"] > 0
        assert record["error"] <= record["bound"]
        assert (record["of_ideal"] is None) == (name != "packed")
    assert found[0]["ratio"] == 1


def test_who_is_wrong_is_not_timed(monkeypatch):
    monkeypatch.setattr(uneven, "_ours", lambda x: torch.zeros_like(x.q))
    workload = uneven.Workload("packed", (5, 9), (5, 9), 2, 1, 16)
    ours, sdpa, _ = uneven._measure(workload, CPU, 2, torch.float16)
    assert (ours.status, ours.timing) == ("wrong", None)
    assert (sdpa.status, sdpa.ratio, sdpa.of_ideal) == ("ok", None, None)
    assert uneven.table([ours, sdpa]).rows[0][-1] == "wrong"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--seqlen", "1k"], "packed has no --seqlen: its problems are fixed"),
        (["--format", "csv"], "packed has no --format csv"),
        (["(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles"], "packed came beside configs"),
    ],
)
def test_what_does_not_go_with_a_workload(options, words):
    result = CliRunner().invoke(app, ["bench", "packed", "--device", "cpu", *options])
    assert result.exit_code == 1
    assert words in result.output
