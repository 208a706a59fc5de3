"""The benchmarks, at small sizes on the CPU."""

import dataclasses
import json
from statistics import median

import pytest
import torch

from pyflash import DType, Problem, attention
from pyflash.bench import __main__ as cli
from pyflash.bench import host
from pyflash.bench.contenders import BASELINE, Contender, pyflash_configs, torch_backends
from pyflash.bench.forward import flops, rotated_inputs, run
from pyflash.bench.timing import Timing, time_in_turns
from pyflash.config import FlashForwardKernelConfig

CPU = torch.device("cpu")
CONFIG = FlashForwardKernelConfig.parse("(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles")
PROBLEM = Problem(
    batch=2,
    heads_q=3,
    heads_kv=3,
    seqlen_q=48,
    seqlen_k=80,
    d_head=64,
    dtype=DType.FP16,
    device="cpu",
)


@pytest.fixture(autouse=True)
def short_warmup(monkeypatch):
    monkeypatch.setattr("pyflash.bench.timing.SECONDS_OF_WARMUP", 0.0)


def test_flops_are_those_of_the_two_gemms():
    assert flops(PROBLEM) == 4 * 2 * 3 * 48 * 80 * 64
    assert flops(dataclasses.replace(PROBLEM, options={"causal": True})) == 2 * 2 * 3 * 48 * 80 * 64


def test_inputs_are_random_and_no_two_alike():
    buffers = rotated_inputs(PROBLEM, CPU)
    assert len(buffers) >= 2
    q, k, v = buffers[0]
    assert q.shape == (2, 48, 3, 64)
    assert k.shape == v.shape == (2, 80, 3, 64)
    for x in (*buffers[0], *buffers[1]):
        assert 0.9 < x.float().std() < 1.1
    assert not torch.equal(q, buffers[1][0])
    assert not torch.equal(k, v)


def test_contenders_take_turns():
    order = []
    calls = {name: lambda n, name=name: order.append((name, n)) for name in "abc"}
    timings = time_in_turns(calls, CPU, n_samples=4)
    assert [timing.n_samples for timing in timings.values()] == [4, 4, 4]
    assert "".join(name for name, _ in order[-12:]) == "abcbcacababc"


def test_median_and_spread():
    samples = [1.0, 2.0, 3.0, 4.0, 100.0]
    assert Timing.of(samples) == Timing(median(samples), spread=(4.0 - 2.0) / 3.0, n_samples=5)


def test_figures_follow_from_the_times():
    contenders = [*torch_backends(CPU), *pyflash_configs([CONFIG])]
    baseline, ours = run(PROBLEM, contenders, n_samples=3)
    assert (baseline.contender.name, baseline.ratio) == (BASELINE, 1.0)
    assert ours.contender.config == CONFIG
    assert ours.error <= ours.bound
    assert ours.tflops == pytest.approx(flops(PROBLEM) / ours.timing.seconds / 1e12)
    assert ours.ratio == pytest.approx(baseline.timing.seconds / ours.timing.seconds)
    assert ours.percent_of_gemm > 0


def test_causal_contenders_are_right_and_full_ones_are_not():
    problem = dataclasses.replace(PROBLEM, seqlen_k=48, heads_kv=1, options={"causal": True})
    for causal, status in ((True, "ok"), (False, "wrong")):
        contenders = [*torch_backends(CPU, causal), *pyflash_configs([CONFIG], causal)]
        results = run(problem, contenders, n_samples=2)
        assert [result.status for result in results] == [status, status]


def test_who_is_wrong_or_refuses_is_not_timed():
    calls = []

    def wrong(q, k, v):
        calls.append("wrong")
        return attention(q, k, v) * 1.5

    other_d_head = pyflash_configs([CONFIG.replace(d_head=32)])
    wrong, refused = run(PROBLEM, [Contender("wrong", wrong), *other_d_head], n_samples=2)
    assert wrong.status == "wrong"
    assert wrong.error > wrong.bound
    assert calls == ["wrong"]
    assert refused.status.startswith("refused: pyflash: config")
    assert wrong.timing is refused.timing is None


def test_command_line_writes_records_and_prints_a_table(tmp_path, capsys):
    out = tmp_path / "records" / "bench.jsonl"
    tiny = ["--seqlen", "16", "32", "--tokens", "32", "--heads", "1", "--samples", "2"]
    cli.main([*tiny, "--causal", "--set", "prog", "--device", "cpu", "--out", str(out)])
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(records) == 2 * (1 + 7)
    assert [r["problem"]["batch"] for r in records[::8]] == [2, 1]
    for record in records:
        assert record["status"] == "ok"
        assert record["problem"]["options"] == {"causal": True}
        assert record["environment"]["torch"] == torch.__version__
        assert record["timing"]["n_samples"] == 2
        if record["config"]:
            assert str(FlashForwardKernelConfig.from_dict(record["config"])) == record["contender"]
    table = capsys.readouterr().out.rsplit("contender\n", maxsplit=1)[1].splitlines()
    assert len(table) == 8
    assert table[0].endswith(BASELINE)


def test_configs_of_another_head_dimension_are_refused():
    with pytest.raises(SystemExit, match="none of these 7 configs is for d_head 64"):
        cli.main(["--d-head", "64", "--device", "cpu"])


def test_host_times_are_ratios_to_sdpa_of_the_same_run(tmp_path, capsys):
    out = tmp_path / "host.jsonl"
    cli.main(["--host", "--samples", "2", "--device", "cpu", "--out", str(out)])
    records = [json.loads(line) for line in out.read_text().splitlines()]
    baseline = records[0]
    assert (baseline["name"], baseline["ratio"]) == (host.BASELINE, 1.0)
    for record in records:
        assert record["bench"] == "host"
        assert record["ratio"] == record["microseconds"] / baseline["microseconds"]
    table = capsys.readouterr().out.rsplit("call\n", maxsplit=1)[1].splitlines()
    assert len(table) == len(records)
