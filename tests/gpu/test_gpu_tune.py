"""Tuning on a GPU: with real clocks, real compilers, and candidates that take the device along."""

import dataclasses
import time
from statistics import median

import pytest
import torch
from support.gpu_calls import CONFIGS
from support.headers import ROOT

import pyflash
from pyflash.config import Arch, Space
from pyflash.op import tables
from pyflash.op.selection import select
from pyflash.third_party.cuda import CudaError, find_nvcc
from pyflash.tuner.api import BACKEND, Measuring
from pyflash.tuner.builder import KernelBuilder, NoBuilder
from pyflash.tuner.candidates import kernels_for
from pyflash.tuner.install import install
from pyflash.tuner.journal import read_journal
from pyflash.tuner.problems import parse_problem, problem_text
from pyflash.tuner.workload import Contender, Workload

pytestmark = pytest.mark.gpu

PROBLEM = "bf16,batch=1,heads=8,seqlen=1024,d_head=128"


def arch() -> Arch:
    major, minor = torch.cuda.get_device_capability()
    return Arch.of(10 * major + minor)


def built() -> list:
    """The configs that the process holds, and that run the problem here."""
    return [k.config for k in kernels_for(parse_problem(PROBLEM), CONFIGS)]


def test_the_winner_of_what_is_built_is_what_is_selected_once_installed(tmp_path, monkeypatch):
    """The tables of this test are the user's own."""
    monkeypatch.setenv("PYFLASH_CONFIG_DIR", str(tmp_path / "config"))
    measuring = Measuring(BACKEND, {"device": "cuda"}, NoBuilder())
    journal = tmp_path / "journal.jsonl"
    result = pyflash.tune(
        built(), PROBLEM, journal=journal, effort="exhaustive", measuring=measuring
    )
    (winner,) = result.winners.values()
    try:
        install(journal)
        selection = select(winner.problem)
        assert selection.config == winner.config
        assert "by the table" in selection.reason
        q = torch.randn(1, 1024, 8, 128, device="cuda", dtype=torch.bfloat16)
        named = pyflash.attention(q, q, q, config=winner.config)
        assert torch.equal(pyflash.attention(q, q, q), named)
    finally:
        monkeypatch.undo()
        tables.load_tables()


@pytest.mark.times
def test_clocks_have_settled_when_samples_are_taken():
    """At first, and after any pause, they are up to a tenth higher, more for some configs."""
    workload = Workload(parse_problem("bf16,batch=4,heads=16,seqlen=4096,d_head=128,causal"))
    time.sleep(0.5)
    (samples,) = workload.sample([Contender("")], 60)
    assert median(samples[:6]) == pytest.approx(median(samples[-6:]), rel=0.05)


def test_candidates_that_trap_or_never_end_do_not_end_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
    configs = built()
    assert len(configs) >= 3
    options = {"traps": [str(configs[0])], "hangs": [str(configs[1])], "device": "cuda"}
    measuring = Measuring("support.faulty_gpu:Faulty", options, NoBuilder(), check_seconds=20)
    result = pyflash.tune(
        configs, PROBLEM, journal=tmp_path / "j", effort="thorough", measuring=measuring
    )
    failed = {
        r["config"]: r["reason"] for r in read_journal(tmp_path / "j") if r["kind"] == "failed"
    }
    assert failed.keys() == {str(configs[0]), str(configs[1])}
    assert failed[str(configs[1])] == "did not end within 20 s"
    assert "assert" in failed[str(configs[0])].lower() or "SIGABRT" in failed[str(configs[0])]
    (coverage,) = result.coverage.values()
    assert coverage.n_measured == len(configs) - 2


def test_candidates_are_compiled_checked_and_timed(tmp_path):
    """Two kernels, each with the one combination of features that its problem needs."""
    try:
        find_nvcc()
    except CudaError as error:
        pytest.skip(str(error))
    space = Space(
        dtype="BF16", d_head=64, B_r=64, B_c=[32, 64], n_warps=4, async_copy=True, swizzled=True,
        eager_load_blocks=True, Q_mma_load_K_tiles=0, K_mma_load_K_tiles=2, V_mma_load_K_tiles=2,
        mma_double_buffer_loads=False, optimized_softmax=True,
    )  # fmt: skip
    name = problem_text(parse_problem("bf16,heads=8,seqlen=500,d_head=64,causal"))
    folder = tmp_path / "libraries"
    measuring = Measuring(BACKEND, {"device": "cuda"}, KernelBuilder(arch(), folder))
    result = pyflash.tune(space, name, journal=tmp_path / "j", measuring=measuring)
    assert result.coverage[name].n_measured == 2
    samples = [r for r in read_journal(tmp_path / "j") if r["kind"] == "sample"]
    assert {r["features"] for r in samples} == {"right_window"}
    assert all(0 < s < 1e-3 for r in samples for s in r["samples"])
    assert dataclasses.asdict(result.winners[name])["tflops"] > 0
