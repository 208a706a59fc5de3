"""Tuning runs whose clock is a formula: everything but a GPU's time."""

import contextlib
import functools
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import pytest
from rich.console import Console
from support.headers import ROOT
from support.simulated import true_seconds

import pyflash
from pyflash.config import Arch, DType, Features, Space, named_set, parse
from pyflash.tuner.api import Measuring
from pyflash.tuner.builder import Batch, BuilderError, Built, Kernel, KernelBuilder, NoBuilder
from pyflash.tuner.candidates import kernels_for, survey
from pyflash.tuner.journal import JournalError, read_journal
from pyflash.tuner.problems import parse_problem, problem_to_json
from pyflash.tuner.tables import choices_of
from pyflash.tuner.tuning import EFFORTS

LONG = "bf16,batch=4,heads=16,seqlen=4096,d_head=128"
CAUSAL = "bf16,batch=4,heads=16,seqlen=2048,d_head=128,causal"
SMALL = "bf16,batch=1,heads=8,seqlen=1000,d_head=128"
MIDDLE = "bf16,batch=1,heads=8,seqlen=3000,d_head=128"
DECODING = "bf16,batch=2,heads=8,seqlen_q=1,seqlen_k=8192,d_head=128"
NAMES = (LONG, CAUSAL, SMALL, MIDDLE, DECODING)
SPACE = Space(
    dtype="BF16", d_head=128, B_c=[32, 64], async_copy=True, eager_load_blocks=True, swizzled=True,
    optimized_softmax=True,
)  # fmt: skip
FOUR_CONSUMERS = "(BF16, 64, 256, 64, 4): sm90+stages_4+overlap+persistent+rescale_threshold"
FEW = SPACE.filter(lambda c: c.B_r == 64 and c.V_mma_load_K_tiles in (0, 2))
ALL = survey([SPACE, *named_set("tune")], Arch.of(90)).legal


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The true seconds of every candidate of these tests."""
    path = tmp_path_factory.mktemp("simulated") / "table.json"
    path.write_text(json.dumps({key_of(name): true_times(name) for name in NAMES}))
    return path


@pytest.fixture
def simulated(table, monkeypatch):
    """Makes a `Measuring` with the simulated backend; a request may take a second. `faults` are
    predicates on configs."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests'}")

    def measuring(builder=None, faults=None, **options):
        names = {
            fault: [str(c) for c in ALL if predicate(c)]
            for fault, predicate in (faults or {}).items()
        }
        options |= {"table": str(table), "faults": names}
        return Measuring("support.simulated:Simulated", options, builder or NoBuilder(), 1, 1)

    return measuring


def tune(space, problems, journal, measuring, **options):
    with open(os.devnull, "w") as file:
        options = {"device": "cpu", "console": Console(file=file)} | options
        return pyflash.tune(space, problems, journal=journal, measuring=measuring, **options)


def key_of(name):
    return json.dumps(problem_to_json(parse_problem(name)))


def candidates(name, space):
    return [k.config for k in kernels_for(parse_problem(name), survey(space, Arch.of(90)).legal)]


@functools.cache
def true_times(name):
    return {str(config): true_seconds(config, parse_problem(name)) for config in ALL}


def regret(name, config, space):
    """The true time of a pick over the least."""
    return true_times(name)[str(config)] / min(
        true_times(name)[str(c)] for c in candidates(name, space)
    )


# What is picked, at what cost.


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_third_of_the_measurements_finds_the_best(tmp_path, simulated, seed):
    result = tune(
        SPACE, [LONG, CAUSAL, SMALL], tmp_path / "j", simulated(seed=seed, noise=0.02), seed=seed
    )
    for name, winner in result.winners.items():
        n = len(candidates(name, SPACE))
        assert n > 100
        assert regret(name, winner.config, SPACE) <= 1.02
        coverage = result.coverage[name]
        assert coverage.n_candidates == n
        assert coverage.n_measured <= n / 3
        assert coverage.n_samples <= n * EFFORTS["exhaustive"].samples[0] / 3
        assert winner.lead >= 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_third_finds_the_best_of_what_a_gpu_measured(tmp_path, monkeypatch, seed):
    """By the times of an exhaustive run."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests'}")
    recorded = json.loads(Path(__file__).with_name("h200_tune_set.json").read_text())
    name, seconds = recorded["problem"], recorded["seconds"]
    table = tmp_path / "table.json"
    table.write_text(json.dumps({key_of(name): seconds}))
    options = {"table": str(table), "faults": {}, "seed": seed}
    measuring = Measuring("support.simulated:Simulated", options, NoBuilder(), 1, 1)
    result = tune([parse(c) for c in seconds], name, tmp_path / "j", measuring, seed=seed)
    (winner,) = result.winners.values()
    assert seconds[str(winner.config)] <= 1.02 * min(seconds.values())
    (coverage,) = result.coverage.values()
    assert coverage.n_measured <= math.ceil(len(seconds) / 3)


def test_exhaustive_measures_every_candidate_as_carefully_as_the_winner(tmp_path, simulated):
    result = tune(FEW, SMALL, tmp_path / "j", simulated(), effort="exhaustive")
    coverage = result.coverage[SMALL]
    assert coverage.n_measured == coverage.n_candidates == len(candidates(SMALL, FEW))
    first = [r for r in read_journal(tmp_path / "j") if r["kind"] == "sample" and r["rung"] == 0]
    assert {len(r["samples"]) for r in first} == {31}
    assert regret(SMALL, result.winners[SMALL].config, FEW) <= 1.01


def test_the_seed_decides(tmp_path, simulated):
    def tried(path, seed):
        tune(FEW, SMALL, tmp_path / path, simulated(noise=0), effort="normal", seed=seed)
        return {r["config"] for r in read_journal(tmp_path / path) if r["kind"] == "sample"}

    assert tried("a", 1) == tried("b", 1)
    assert tried("a", 1) != tried("c", 2)


def test_where_splits_matter_the_number_of_them_is_tuned(tmp_path, simulated):
    measuring = simulated(noise=0)
    result = tune(FEW, [DECODING, LONG], tmp_path / "j", measuring, effort="thorough")
    assert result.winners[DECODING].num_splits == 8
    assert result.winners[LONG].num_splits == 0
    assert result.to_json()["problems"][DECODING]["winner"]["num_splits"] == 8
    records = read_journal(tmp_path / "j")
    tried = {r["num_splits"] for r in records if r["kind"] == "sample"}
    assert tried >= {0, 1, 8, 16}
    assert {r["rung"] for r in records if r["kind"] == "sample" and r["num_splits"]} == {1, 2}
    assert not [r for r in records if r.get("problem") == LONG and r.get("num_splits")]
    coverage = result.coverage[DECODING]
    assert coverage.n_measured == coverage.n_candidates == len(candidates(DECODING, FEW))
    (row,) = (r for r in choices_of(records) if r["class"]["rows"][0] == 1)
    assert (row["config"], row["num_splits"]) == (str(result.winners[DECODING].config), 8)
    # Nothing is measured again, and the same wins.
    again = tune(FEW, [DECODING, LONG], tmp_path / "j", measuring, effort="thorough")
    assert again.winners == result.winners
    assert [r["kind"] for r in read_journal(tmp_path / "j")[len(records) :]] == ["run"]


def test_a_number_of_splits_that_fails_is_left_out(tmp_path, simulated):
    result = tune(FEW, DECODING, tmp_path / "j", simulated(noise=0, wrong_splits=8))
    assert result.winners[DECODING].num_splits == 0
    failed = [r for r in read_journal(tmp_path / "j") if r["kind"] == "failed"]
    assert {(r["stage"], r["num_splits"]) for r in failed} == {("check", 8)}


# What is not measured, and why.


def test_illegal_configs_are_refused_with_their_rule_and_counted(tmp_path, simulated):
    space = Space(
        dtype="BF16", d_head=128, B_r=64, B_c=64, swizzled=True, async_copy=True,
        eager_load_blocks=True, optimized_softmax=True,
    )  # fmt: skip
    other = "(BF16, 64, 64, 64, 4): async+load_0_0_0_tiles"
    result = tune([space, other], SMALL, tmp_path / "j", simulated(), effort="quick")
    broken = [{rule for rule, _ in refusal.violations} for refusal in space.explain("sm_90")]
    assert result.refused.keys() == set().union(*broken)
    assert result.refused["rows_per_warp"] == sum("rows_per_warp" in rules for rules in broken) > 0
    assert result.n_configs == len(space) + 1
    legal = {config.canonical() for config in space.legal("sm_90")}
    assert result.n_legal == len(legal) + 1
    assert result.coverage[SMALL].n_candidates == len(legal)  # of its d_head
    (run,) = (r for r in read_journal(tmp_path / "j") if r["kind"] == "run")
    assert run["refused"] == dict(result.refused)
    config, sentence = run["examples"]["rows_per_warp"]
    assert "n_warps = 8" in sentence
    assert config in map(str, space)


def test_candidates_that_crash_hang_or_are_wrong_do_not_end_the_run(tmp_path, simulated):
    faults = {
        "crash": lambda c: (c.B_c, c.K_mma_load_K_tiles, c.n_warps) == (32, 2, 4),
        "crash_late": lambda c: (c.B_c, c.K_mma_load_K_tiles) == (64, 2),
        "hang": lambda c: str(c).endswith(
            "128, 64, 64, 4): async+eager+swizzled+load_0_0_0_tiles+opt_softmax"
        ),
        "wrong": lambda c: (c.B_c, c.K_mma_load_K_tiles) == (32, 4),
        "raise": lambda c: (c.B_c, c.K_mma_load_K_tiles) == (64, 4),
    }
    able = [c for c in candidates(SMALL, FEW) if not any(f(c) for f in faults.values())]
    result = tune(FEW, SMALL, tmp_path / "j", simulated(faults=faults), effort="thorough")
    coverage = result.coverage[SMALL]
    records = [r for r in read_journal(tmp_path / "j") if r["kind"] == "failed"]
    assert {(r["stage"], r["reason"]) for r in records} == {
        ("check", "ended its process by SIGSEGV"),
        ("sample", "ended its process by SIGSEGV"),
        ("check", "did not end within 1 s"),
        ("check", "out: 3 at (0, 0, 0, 0), expected 1: error 2; bound 1e-3"),
        ("check", "CUDA error: misaligned address"),
    }
    assert coverage.n_measured == len(able) > 0
    assert coverage.failed.total() == coverage.n_candidates - len(able)
    assert result.winners[SMALL].config in able


class Compilers(NoBuilder):
    """Fail for some."""

    batch_size = 4

    def __init__(self):
        self.kernels = []

    def submit(self, kernels):
        self.kernels += kernels
        future = Future()
        built = {k: Built(reason="error: ptxas" if k.config.B_c == 32 else None) for k in kernels}
        future.set_result(Batch(built, 0.1))
        return future


def test_each_kernel_is_compiled_once_with_the_features_that_its_problems_need(tmp_path, simulated):
    builder = Compilers()
    space = [config for config in named_set("tune") if config.dtype == DType.BF16]
    names = [SMALL, MIDDLE, CAUSAL]
    result = tune(space, names, tmp_path / "j", simulated(builder), effort="thorough")
    n = len(candidates(SMALL, space))
    assert len(builder.kernels) == len(set(builder.kernels)) == 2 * n
    assert Counter(str(k.features) for k in builder.kernels) == {"plain": n, "right_window": n}
    for name in names:
        assert set(result.coverage[name].failed) == {"error: ptxas"}
        assert result.winners[name].config.B_c == 64


def test_compilers_that_cannot_run_are_no_candidates_fault(tmp_path):
    """They would be failures that a journal keeps."""
    illegal = Kernel(parse("(FP16, 512, 64, 64, 4): async+load_0_0_0_tiles"), Features())
    builder = KernelBuilder(Arch.of(90), tmp_path)
    try:
        with pytest.raises(BuilderError, match=r"cannot be compiled \(status 1\): .*512"):
            builder.submit([illegal]).result()
    finally:
        builder.close()


@pytest.mark.parametrize(
    ("space", "problems", "options", "says"),
    [
        (SPACE, [], {}, "no problems to tune for"),
        (SPACE, SMALL, {"effort": "hard"}, "unknown effort 'hard'"),
        (FEW, "fp16,heads=1,seqlen=9,d_head=64", {}, "no candidate for fp16,batch=1,heads=1"),
        (
            [FOUR_CONSUMERS],
            "bf16,batch=1,heads=1,seqlen=9,d_head=64",
            {"variant": "alibi", "arch": 90},
            "large enough, and room for the variant (pyflash build --list --variant)",
        ),
        (["(BF16, 128, 64)"], SMALL, {}, "(BF16, 128, 64)"),
    ],
)
def test_what_cannot_be_tuned_is_refused(tmp_path, simulated, space, problems, options, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        tune(space, problems, tmp_path / "j", simulated(), **options)


# Budget, and runs that go on.


def test_budget_is_of_all_runs_of_a_journal(tmp_path, simulated):
    def n_measured(budget):
        tune(SPACE, SMALL, tmp_path / "j", simulated(pause=0.1), effort="thorough", budget=budget)
        return sum(r["kind"] == "sample" for r in read_journal(tmp_path / "j"))

    first = n_measured(1.0)
    assert 8 <= first < len(candidates(SMALL, SPACE))
    assert n_measured(1.0) == first  # it was spent
    assert n_measured(2.0) > first


def test_a_journal_of_other_kernels_is_refused(tmp_path, simulated, monkeypatch):
    tune(FEW, SMALL, tmp_path / "j", simulated(), effort="quick")
    monkeypatch.setattr("pyflash.tuner.facts.kernels_digest", lambda: "other")
    with pytest.raises(JournalError, match=r"was measured on cpu .* name another journal"):
        tune(FEW, SMALL, tmp_path / "j", simulated())


def test_nothing_is_measured_twice(tmp_path, simulated):
    first = tune(SPACE, [SMALL, CAUSAL], tmp_path / "j", simulated(), effort="quick")
    n_lines = len(read_journal(tmp_path / "j"))
    again = tune(SPACE, [SMALL, CAUSAL], tmp_path / "j", simulated(), effort="quick")
    assert again.winners == first.winners
    assert again.coverage == first.coverage
    assert [record["kind"] for record in read_journal(tmp_path / "j")[n_lines:]] == ["run"]
    more = tune(SPACE, SMALL, tmp_path / "j", simulated(), effort="normal")
    assert more.coverage[SMALL].n_measured == len(candidates(SMALL, SPACE)) // 3
    check_each_was_measured_once(tmp_path / "j")


def test_killed_at_random_moments_and_resumed(tmp_path, simulated):
    """Pitfall 23, and the machine that is taken away."""
    path, token = tmp_path / "journal.jsonl", f"token {random.random()}"
    faults = {"crash": lambda c: c.B_c == 32 and c.n_warps == 8}
    measuring = simulated(faults=faults, noise=0.005, pause=0.02, token=token)
    program = f"""
import json, sys
import pyflash
from pyflash.tuner.api import Measuring
from pyflash.tuner.builder import NoBuilder
options = json.loads(sys.argv[1])
space = pyflash.Space(
    dtype="BF16", d_head=128, B_c=[32, 64], async_copy=True, eager_load_blocks=True, swizzled=True,
    optimized_softmax=True,
)
measuring = Measuring({measuring.backend!r}, options, NoBuilder())
pyflash.tune(
    space, {[SMALL, CAUSAL]}, journal={str(path)!r}, device="cpu", measuring=measuring
)
"""
    command = [sys.executable, "-c", program, json.dumps(measuring.options)]
    rng = random.Random(5)
    for _ in range(3):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        n_more = len(whole_lines(path)) + rng.randrange(3, 40)
        until = time.monotonic() + 60
        while len(whole_lines(path)) < n_more and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.05))
        assert process.poll() is None, "it ended before it was killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
        kept = whole_lines(path)
        assert len(kept) >= n_more
        assert ends_within(5, token)
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    assert whole_lines(path)[: len(kept)] == kept
    check_each_was_measured_once(path)
    winners = [r for r in read_journal(path) if r["kind"] == "winner"]
    assert [w["problem"] for w in winners] == [SMALL, CAUSAL]
    undisturbed = tune(
        SPACE, [SMALL, CAUSAL], tmp_path / "whole", simulated(faults=faults, noise=0.005)
    )
    for winner in winners:
        name = winner["problem"]
        seconds = true_times(name)[winner["config"]]
        other = true_times(name)[str(undisturbed.winners[name].config)]
        assert seconds == pytest.approx(other, rel=0.02)


def test_the_result_as_json(tmp_path, simulated):
    result = tune(FEW, SMALL, tmp_path / "j", simulated(), effort="quick")
    values = json.loads(json.dumps(result.to_json()))
    (problem,) = values["problems"].values()
    assert problem["winner"]["config"] == str(result.winners[SMALL].config)
    (winner,) = (r for r in read_journal(tmp_path / "j") if r["kind"] == "winner")
    assert winner["seconds"] == problem["winner"]["seconds"]
    assert winner["runners_up"]


def check_each_was_measured_once(path):
    records = [r for r in read_journal(path) if r["kind"] == "sample"]
    names = ("problem", "config", "num_splits", "rung")
    measured = Counter(tuple(r[name] for name in names) for r in records)
    assert set(measured.values()) == {1}


def whole_lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def ends_within(seconds: float, token: str) -> bool:
    """Whether no process has the token on its command line."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(token in line for line in command_lines()):
            return True
        time.sleep(0.02)
    return False


def command_lines():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended
            yield path.read_bytes().decode(errors="replace")
