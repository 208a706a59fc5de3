"""The benchmarks, at small sizes on the CPU."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import sys
import types
from statistics import median

import pytest
import torch
from typer.testing import CliRunner

import pyflash
from pyflash import DType, Problem, attention
from pyflash.bench import host, packages, profiler_csv, records
from pyflash.bench.contenders import BASELINE, Contender, backends, pyflash_configs, selected
from pyflash.bench.measure import rotated_inputs, run
from pyflash.bench.passes import Pass
from pyflash.bench.timing import Timing, time_in_turns
from pyflash.bench.work import attention_flops as flops
from pyflash.cli import app
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
    contenders = [*backends(PROBLEM, ["flash"]), *pyflash_configs([CONFIG])]
    baseline, ours = run(PROBLEM, contenders, n_samples=3)
    assert (baseline.contender.name, baseline.ratio) == (BASELINE, 1.0)
    assert ours.contender.config == CONFIG
    assert ours.error <= ours.bound
    assert ours.tflops == pytest.approx(flops(PROBLEM) / ours.timing.seconds / 1e12)
    assert ours.ratio == pytest.approx(baseline.timing.seconds / ours.timing.seconds)
    assert ours.percent_of_gemm > 0


def test_causal_contenders_are_right_and_full_ones_are_not():
    problem = dataclasses.replace(PROBLEM, seqlen_k=48, heads_kv=1, options={"causal": True})
    other = dataclasses.replace(problem, options={})
    for asked, status in ((problem, "ok"), (other, "wrong")):
        causal = bool(asked.options)
        contenders = [*backends(asked), *pyflash_configs([CONFIG], causal)]
        results = run(problem, contenders, n_samples=2)
        assert [result.status for result in results] == [status] * 3


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


def test_causal_is_bottom_right_aligned_for_every_backend():
    """Lengths differ: SDPA's own flag would mean another mask."""
    problem = dataclasses.replace(PROBLEM, options={"causal": True})
    results = run(problem, [*backends(problem, ["flash", "math", "flex"]), selected(problem)], 2)
    assert [result.status for result in results] == ["ok"] * 4


@pytest.mark.parametrize("what", [Pass.BACKWARD, Pass.BOTH])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_checked_and_timed(what, causal):
    problem = dataclasses.replace(PROBLEM, heads_q=4, heads_kv=2, options={"causal": causal})
    results = run(problem, [*backends(problem), selected(problem)], 2, what)
    assert [result.status for result in results] == ["ok"] * 3
    for result in results:
        assert result.what is what
        assert 0 < result.error <= result.bound
        work = what.flops_of_forward * flops(problem)
        assert result.tflops == pytest.approx(work / result.timing.seconds / 1e12)
        assert result.gb_per_second is None


def test_a_wrong_gradient_is_found():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 1.1

    def wrong(q, k, v):
        return attention(q, k, Scaled.apply(v))

    (forward,) = run(PROBLEM, [Contender("wrong", wrong)], 2)
    (backward,) = run(PROBLEM, [Contender("wrong", wrong)], 2, Pass.BACKWARD)
    assert (forward.status, backward.status) == ("ok", "wrong")


def test_a_contender_without_gradients_is_refused():
    detached = Contender("detached", lambda q, k, v: attention(q, k, v).detach())
    (result,) = run(PROBLEM, [detached], 2, Pass.BACKWARD)
    assert result.status.startswith("refused: ")
    assert result.timing is None


# Other packages, each in the place of the real one with a function of the same signature.


def sdpa(q, k, v, causal):
    return torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal
    ).transpose(1, 2)


class Wrapper:
    """As flashinfer.BatchPrefillWithRaggedKVCacheWrapper."""

    def __init__(self, workspace, layout):
        assert (workspace.dtype, layout) == (torch.uint8, "NHD")

    def plan(self, starts_q, starts_k, heads, heads_kv, d_head, *, causal, q_data_type):
        assert starts_q.tolist() == starts_k.tolist() == [0, 48, 96]
        assert (heads, heads_kv, d_head, q_data_type) == (3, 3, 64, torch.float16)
        self.causal = causal

    def run(self, q, k, v):
        return sdpa(*(x.unflatten(0, (2, 48)) for x in (q, k, v)), self.causal).flatten(0, 1)


def fake_xformers():
    class Bias:
        LowerTriangularFromBottomRightMask = type("Mask", (), {})

    ops = types.ModuleType("xformers.ops")
    ops.fmha = types.SimpleNamespace(attn_bias=Bias)
    ops.memory_efficient_attention = lambda q, k, v, attn_bias: sdpa(
        q, k, v, isinstance(attn_bias, Bias.LowerTriangularFromBottomRightMask)
    )
    return ops


FAKES = {
    "flash_attn_2": ("flash_attn", {"flash_attn_func": sdpa}),
    "flash_attn_3": (
        "flash_attn_interface",
        {"flash_attn_func": lambda q, k, v, causal: (sdpa(q, k, v, causal), None)},
    ),
    "xformers": ("xformers.ops", vars(fake_xformers())),
    "flashinfer": ("flashinfer", {"BatchPrefillWithRaggedKVCacheWrapper": Wrapper}),
}


@pytest.mark.parametrize("name", FAKES)
@pytest.mark.parametrize("causal", [False, True])
def test_other_packages_are_called_as_they_want(monkeypatch, name, causal):
    module_name, values = FAKES[name]
    module = types.ModuleType(module_name)
    vars(module).update({key: value for key, value in values.items() if key[:2] != "__"})
    module.__spec__ = types.SimpleNamespace()
    problem = dataclasses.replace(PROBLEM, seqlen_k=48, options={"causal": causal})
    assert not packages.is_installed(name)
    with pytest.raises(ImportError, match=f"the module {module_name} is not installed"):
        backends(problem, [name])
    if "." in module_name:
        monkeypatch.setitem(sys.modules, "xformers", types.ModuleType("xformers"))
    monkeypatch.setitem(sys.modules, module_name, module)
    (result,) = run(problem, backends(problem, [name]), n_samples=2)
    assert (result.status, result.contender.name) == ("ok", packages.PACKAGES[name].title)
    with pytest.raises(ValueError, match="unknown backends"):
        backends(problem, ["flash_attn_9"])


def test_a_package_that_does_not_load_does_not_end_the_run(monkeypatch):
    def undefined_symbol(name):
        raise ImportError(f"{name}.so: undefined symbol: _ZN2at4_ops5zeros4callE")

    monkeypatch.setattr(packages, "is_installed", lambda name: name == "xformers")
    monkeypatch.setattr(packages, "import_module", undefined_symbol)
    problem = dataclasses.replace(PROBLEM, seqlen_k=48)
    broken, ours = run(problem, [*backends(problem, ["xformers"]), selected(problem)], 2)
    assert broken.status == "refused: xformers.ops.so: undefined symbol: _ZN2at4_ops5zeros4callE"
    assert ours.status == "ok"


# The command line

TINY = ("--tokens", "32", "--heads", "1", "--samples", "2", "--device", "cpu", "--dtype", "fp16")


def bench(*arguments: object):
    return CliRunner().invoke(app, ["bench", *TINY, *map(str, arguments)])


def shown(path, *arguments: object):
    return CliRunner().invoke(app, ["bench", "--read", str(path), *map(str, arguments)])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Records of a run over lengths, head dimensions, masks and passes."""
    path = tmp_path_factory.mktemp("bench") / "records" / "bench.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyflash.bench.timing.SECONDS_OF_WARMUP", 0.0)
        result = bench(
            "--seqlen", "16,32", "--d-head", "64,128", "--mask", "full,causal", "--out", path
        )
    assert result.exit_code == 0, result.output
    return path, result.stdout


def test_command_line_writes_records_and_prints_tables(recorded):
    path, stdout = recorded
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(found) == 2 * 2 * 2 * 3
    assert [r["contender"] for r in found[:3]] == [BASELINE, "PyTorch math", "pyflash"]
    assert [r["problem"]["batch"] for r in found[:6:3]] == [2, 1]
    for record in found:
        assert record["status"] == "ok"
        assert record["environment"]["torch"] == torch.__version__
        assert record["timing"]["n_samples"] == 2
        if record["config"]:
            config = FlashForwardKernelConfig.from_dict(record["config"])
            assert str(config) == record["short_form"]
            assert config.d_head >= record["problem"]["d_head"]
    assert stdout.count("contender\n") == 8
    assert "forward: FP16, batch 2, seqlen 16, heads 1, heads_kv 1, d_head 64, causal\n" in stdout


def test_records_are_read_and_shown_again(recorded, tmp_path):
    path, stdout = recorded
    again = shown(path, "--csv", tmp_path / "bench.csv")
    assert again.stdout == stdout
    rows = list(csv.DictReader(io.StringIO((tmp_path / "bench.csv").read_text())))
    found = records.read(path)
    assert [float(row["seconds"]) for row in rows] == [r["timing"]["seconds"] for r in found]
    assert [row["causal"] for row in rows[::6]] == ["False", "True", "False", "True"]
    lines = shown(path, "--format", "json").stdout.splitlines()
    assert list(map(json.loads, lines)) == found
    path_of_nonsense = tmp_path / "nonsense.jsonl"
    path_of_nonsense.write_text(path.read_text() + '{"half": ')
    refused = shown(path_of_nonsense)
    assert refused.exit_code == 1
    assert "line 25: expected a record" in refused.stderr
    refused = shown("missing.jsonl")
    assert refused.exit_code == 1
    assert refused.stderr == "error: missing.jsonl: No such file or directory\n"


def test_rows_for_the_profiler_hold_the_same_figures(recorded):
    path, _ = recorded
    profile = profiler_csv.parse(shown(path, "--format", "cutlass").stdout, "bench")
    assert not profile.refused
    found = records.read(path)
    assert [row.provider for row in profile.rows[:3]] == ["PyTorch", "PyTorch", "pyflash"]
    for row, record in zip(profile.rows, found, strict=True):
        assert row.gflops == pytest.approx(record["tflops"] * 1e3, rel=1e-4)
        assert row.operation == (record["short_form"] or record["contender"].partition(" ")[2])


def test_markdown_has_a_cell_for_each_length(recorded):
    path, _ = recorded
    head, _, header, _, *rows = shown(path, "--format", "markdown").stdout.splitlines()
    assert head.startswith("TFLOP/s of pyflash / ratio to PyTorch flash: forward, FP16, ")
    assert header == "| d_head | 16 | 32 |"
    assert [row.split(" | ")[0] for row in rows] == [
        "| 64 full", "| 64 causal", "| 128 full", "| 128 causal",
    ]  # fmt: skip
    record = records.read(path)[2]
    assert rows[0].split(" | ")[1] == f"{record['tflops']:.0f} / {record['ratio']:.2f}"
    over = shown(path, "--format", "markdown", "--over", "PyTorch math").stdout
    _, math, _ = records.read(path)[:3]
    assert f"| {record['tflops']:.0f} / {record['tflops'] / math['tflops']:.2f} |" in over
    refused = shown(path, "--format", "markdown", "--over", "nobody")
    assert "no figures of pyflash and nobody for the same problem" in refused.stderr


def test_a_cpu_gets_a_problem_of_its_size(monkeypatch):
    problems = []
    monkeypatch.setattr("pyflash.bench.cli._write", lambda *_: None)
    monkeypatch.setattr("pyflash.bench.grid._contenders", lambda *_: [])
    monkeypatch.setattr(
        "pyflash.bench.measure.run", lambda problem, *_: problems.append(problem) or []
    )
    CliRunner().invoke(app, ["bench", "--device", "cpu"])
    (problem,) = problems
    extents = (problem.batch, problem.seqlen_q, problem.heads_q, problem.d_head)
    assert extents == (1, 512, 2, 128)


def test_decoding_and_configs_of_a_set():
    result = bench("--decode", "--seqlen", "48", "--set", "prog", "--d-head", "128", "--format",
                   "json", "--backend", "math")  # fmt: skip
    assert result.exit_code == 0, result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(found) == 1 + 7
    for record in found:
        assert (record["problem"]["seqlen_q"], record["problem"]["seqlen_k"]) == (1, 48)
        assert record["gb_per_second"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "prog", "--d-head", "64"], "none of these 7 configs is for FP16 and d_head 64"),
        (["--seqlen", "many"], "--seqlen many: expected numbers such as 512,1k"),
        (["--seqlen", "0"], "--seqlen 0: expected numbers such as 512,1k"),
        (["--mask", "diagonal"], "--mask diagonal: expected some of full, causal"),
        (["--format", "xml"], "--format xml: expected one of table, json"),
        (["--backend", "flash_attn_2"], "the module flash_attn is not installed"),
        (["--plot", "figure.bmp"], "expected a name that ends with .png or .svg"),
        ([str(CONFIG), "--set", "prog"], "configs and --set exclude each other"),
    ],
)
def test_wrong_options_are_one_line(arguments, message):
    result = bench(*arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: ")


def test_host_times_are_ratios_to_sdpa_of_the_same_run(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "_CALLS_PER_SAMPLE", 2)
    out = tmp_path / "host.jsonl"
    result = CliRunner().invoke(
        app, ["bench", "--host", "--device", "cpu", "--samples", "2", "--out", str(out)]
    )
    found = [json.loads(line) for line in out.read_text().splitlines()]
    baseline = found[0]
    assert (baseline["name"], baseline["ratio"]) == (host.BASELINE, 1.0)
    for record in found:
        assert record["bench"] == "host"
        assert record["ratio"] == record["microseconds"] / baseline["microseconds"]
    table = result.stdout.rsplit("call\n", maxsplit=1)[1].splitlines()
    assert len(table) == len(found)
    timed = {record["name"].split(",")[0] for record in found}
    calls = {name for name in pyflash.__all__ if re.match("attention|append|flex_|sdpa", name)}
    assert {f"pyflash.{name}" for name in calls} <= timed


class _NotTwice(torch.autograd.Function):
    """Attention whose backward pass frees what it needs, as compiled functions do."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return attention(q, k, v)

    @staticmethod
    def backward(ctx, grad):
        if torch._C._autograd._get_current_graph_task_keep_graph():
            raise RuntimeError("the graph is kept")
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            return torch.autograd.grad(attention(*leaves), leaves, grad)


def test_a_contender_that_cannot_be_timed_ends_no_run():
    contenders = [Contender("not twice", _NotTwice.apply), *backends(PROBLEM, ["math"])]
    not_twice, math = run(PROBLEM, contenders, 3, Pass.BACKWARD)
    assert not_twice.status == "refused: the graph is kept"
    assert not_twice.timing is None
    assert math.status == "ok"
    assert run(PROBLEM, contenders[:1], 3, Pass.BOTH)[0].status == "ok"
