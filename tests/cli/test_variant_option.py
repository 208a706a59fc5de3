"""`--variant` of commands: names, texts and files, and what is refused before anything is done."""

import dataclasses
import json

import pytest
import torch
from typer.testing import CliRunner

import pyflash
from pyflash.cli import app
from pyflash.codegen import compilation
from pyflash.config import DType
from pyflash.op.selection import Problem
from pyflash.op.variants.selection import select
from pyflash.tuner.api import Measuring
from pyflash.tuner.builder import NoBuilder
from pyflash.tuner.costs import observations_of
from pyflash.tuner.journal import read_journal
from pyflash.tuner.report import TuningReport
from pyflash.tuner.tables import choices_of

SM90 = "(BF16, 64, 128, 128, 2): sm90+stages_2+overlap"
SMALL = "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles"
BACKWARD = "(BF16, 64, 128, 128, 2): sm90_bwd+stages_2"
COMMANDS = {
    "build": ["build", SM90, "--arch", "90"],
    "bench": ["bench", SMALL, "--device", "cpu", "--dtype", "fp16", "--d-head", "64"],
    "tune": ["tune", "--dry-run", "--config", SM90, "--arch", "sm_90"],
    "select": ["select", "--device", "cpu"],
    "inspect": ["inspect", SM90, "--arch", "sm_90"],
    "diff": ["diff", SM90, SM90, "--arch", "sm_90"],
    "emulate": ["emulate", SMALL],
}
WRONG = {
    "alibbi": "no variant is called 'alibbi': did you mean alibi?",
    "mine: s where": "expression",
    "no/such/file": "No such file",
    "empty.txt": "holds no variant",
}


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch, tmp_path):
    def fail(*_):
        raise AssertionError("compiled")

    monkeypatch.setattr(compilation, "_run_ninja", fail)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("# none\n")


def invoke(words):
    return CliRunner().invoke(app, words, env={"COLUMNS": "1000"})


@pytest.mark.parametrize("text", WRONG)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_variant_is_refused_first(command, text):
    result = invoke([*COMMANDS[command], "--variant", text])
    assert result.exit_code == 1, result.output
    assert WRONG[text] in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"build", "select"}))
def test_a_value_is_refused_that_is_none_of_the_variants(command):
    line = [*COMMANDS[command], "--variant", "alibi", "--value"]
    assert "expected 1 axes of lists" in invoke([*line, "slope=1"]).stderr
    assert "of the parameters slope" in invoke([*line, "n=1"]).stderr
    assert (
        "--value came without --variant" in invoke([*COMMANDS[command], *line[-1:], "n=1"]).stderr
    )


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", BACKWARD, "--arch", "sm_90"],
        ["diff", SM90, BACKWARD, "--arch", "sm_90"],
        ["emulate", BACKWARD],
    ],
    ids=lambda words: words[0],
)
def test_kernels_that_take_no_variant_are_refused(words):
    result = invoke([*words, "--variant", "alibi"])
    assert result.exit_code == 2
    assert "--variant: kernels of sm90_backward take none" in result.stderr


def test_a_file_is_its_text(tmp_path):
    (tmp_path / "mine.txt").write_text("# two lines\nmine(w: i32):\n  s where abs(k - q) <= w\n")
    shown = [
        json.loads(invoke(["variant", "show", text, "--json"]).stdout)
        for text in ("./mine.txt", "mine.txt", "mine(w: i32): s where abs(k - q) <= w")
    ]
    assert shown[0] == shown[1] == shown[2]


def test_a_build_names_its_library_by_the_variant(tmp_path):
    line = [*COMMANDS["build"], "--variant", "alibi", "--emit-to", str(tmp_path / "cpp"), "--json"]
    found = json.loads(invoke(line).stdout)
    key = pyflash.variant.library.named("alibi").variant.key
    assert {name for name in found["written"] if key in name}
    assert "variant_rows.cpp" in found["written"]
    rows = (tmp_path / "cpp" / "variant_rows.cpp").read_text()
    assert rows.count(key) >= 2


def test_kernels_of_gradients_are_built_beside_those_of_scores(tmp_path):
    words = ["build", SM90, BACKWARD, "--arch", "90", "--variant", "alibi"]
    result = invoke([*words, "--emit-to", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    rows = (tmp_path / "variant_rows.cpp").read_text()
    written = json.loads(result.stdout)["written"]
    assert len([name for name in written if name.endswith(".cu")]) == 2
    assert "VariantRowOf<Backward> const rows[]" in rows


def test_without_a_kernel_selection_says_what_would_be_compiled(monkeypatch):
    monkeypatch.setattr("pyflash.op.variants.selection.architecture_of", lambda _: (90, 132))
    problem = Problem(
        batch=1, heads_q=4, heads_kv=4, seqlen_q=64, seqlen_k=64, d_head=64, dtype=DType.BF16
    )
    with pytest.raises(RuntimeError, match=r"no kernel of variant .* compile=True, .* for '\(BF16"):
        select(problem, "alibi")
    slopes = {"alibi_slopes": torch.zeros(4)}
    with_slopes = dataclasses.replace(problem, options=slopes)
    with pytest.raises(ValueError, match="alibi_slopes came with a variant"):
        select(with_slopes, "alibi")


def test_tuning_with_a_variant_checks_and_times_it(tmp_path, monkeypatch):
    """On the CPU, which has no kernels: what is measured is the op with the variant."""
    monkeypatch.setattr("pyflash.tuner.workload._SECONDS_OF_WARMUP", 0.0)
    backend = Measuring("pyflash.tuner.backend:TorchBackend", {"device": "cpu"}, NoBuilder())
    result = pyflash.tune(
        [SMALL, "(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles"],
        "fp16,batch=1,heads=2,seqlen=64,d_head=64",
        variant="window", values={"left": 8, "right": 8}, journal=tmp_path / "j", device="cpu",
        effort="quick", measuring=backend,
    )  # fmt: skip
    ((name, winner),) = result.winners.items()
    assert " with window " in name
    assert '"left": 8' in name
    assert winner is not None
    assert not result.coverage[name].failed
    records = read_journal(tmp_path / "j")
    assert {r["variant"] for r in records if r["kind"] == "sample"}
    assert choices_of(records) == []
    assert observations_of(records) == {}
    assert TuningReport.of(tmp_path / "j").to_json()["problems"]
