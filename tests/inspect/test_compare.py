"""CSV files of the CUTLASS profiler, and attention beside its two GEMMs."""

from __future__ import annotations

import csv
import json
import math
import shlex
import stat
import sys
from pathlib import Path

import pytest
from support.profiles import RECORDED, problem_of
from typer.testing import CliRunner

from pyflash.bench.attention_rows import attention_row
from pyflash.bench.profiler_csv import number
from pyflash.cli import app
from pyflash.compare import (
    COLUMNS,
    ProfileError,
    ProfilerError,
    as_text,
    compare,
    find_gpu,
    find_profiler,
    gemms_of,
    join,
    parse,
    read,
    run_profiler,
)
from pyflash.compare.profiler import command
from pyflash.config import FlashForwardKernelConfig
from pyflash.op.selection import Problem

FILES = sorted(RECORDED.glob("*.csv"))
H200 = find_gpu("NVIDIA H200")


def edited(**cells: str) -> str:
    """The first recorded file with these cells in its second row."""
    with FILES[0].open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows[1] |= cells
    return as_text(rows)


def test_the_columns_are_those_of_the_recorded_files():
    assert len(FILES) == 4
    for path in FILES:
        assert tuple(path.read_text().splitlines()[0].split(",")) == COLUMNS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_recorded_figures_are_reproduced_to_the_digit(path):
    profile = read(path)
    assert (len(profile.rows), profile.refused, profile.note) == (4, (), "")
    name, _, seqlen = path.name.partition(".")[0].partition("_")
    gemm = gemms_of(problem_of(int(seqlen)))[("qk", "pv").index(name)]
    for row in profile.rows:
        cells = row.cells
        assert cells["Bytes"] == str(gemm.bytes)
        assert cells["Flops"] == str(gemm.flops)
        assert cells["Runtime"] == number(row.seconds * 1e3)
        # Both factors of a rate were rounded to 6 digits.
        assert math.isclose(float(cells["GFLOPs"]), row.gflops, rel_tol=1e-5)
        assert math.isclose(float(cells["GB/s"]), row.gib_per_second, rel_tol=1e-5)
        assert not row.verified


def test_a_file_written_again_is_the_same():
    for path in FILES:
        assert as_text(row.cells for row in read(path).rows) == path.read_text()


def test_the_command_is_that_of_the_recording():
    """As the README of the recorded files gives it."""
    qk, pv = gemms_of(problem_of(1024))
    common = (
        "--batch_count=256 --kernels='*bf16*' --A=bf16:row --B=bf16:{} --warmup-iterations=5 "
        "--profiling-iterations=20 --verification-enabled=false --output={}"
    )
    for gemm, shape, layout, output in (
        (qk, "--m=1024 --n=1024 --k=128", "column", "qk.csv"),
        (pv, "--m=1024 --n=128 --k=1024", "row", "pv.csv"),
    ):
        expected = f"cutlass_profiler --operation=Gemm {shape} {common.format(layout, output)}"
        assert command(Path("cutlass_profiler"), gemm, Path(output)) == shlex.split(expected)


def test_grouped_heads_are_rows_of_one_gemm():
    qk, pv = gemms_of(problem_of(1024, heads_kv=4))
    assert (qk.m, qk.n, qk.k, qk.batch_count) == (4096, 1024, 128, 64)
    assert (pv.m, pv.n, pv.k, pv.batch_count) == (4096, 128, 1024, 64)
    with pytest.raises(ValueError, match="packed"):
        gemms_of(problem_of(1024, packed=True))


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"Status": "not_supported"}, "status not_supported"),
        ({"Status": ""}, "status empty"),
        ({"Disposition": "incorrect"}, "disposition incorrect"),
        ({"Disposition": "failed"}, "disposition failed"),
        ({"Disposition": "not_run"}, "disposition not_run"),
        ({"Runtime": "0"}, "Runtime is '0', expected a positive number"),
        ({"Runtime": "nan"}, "Runtime is 'nan'"),
        ({"Runtime": ""}, "Runtime is ''"),
        ({"m": "-4"}, "m is '-4', expected a positive integer"),
        ({"Bytes": "1e6"}, "Bytes is '1e6'"),
        ({"GFLOPs": "451318"}, "GFLOPs is 451318, but bytes, FLOPs and runtime give"),
    ],
)
def test_a_bad_row_is_refused_and_the_others_kept(cells, reason):
    profile = parse(edited(**cells), "edited.csv")
    assert len(profile.rows) == 3
    (refused,) = profile.refused
    assert refused.line == 3
    assert refused.operation == read(FILES[0]).rows[1].operation
    assert reason in refused.reason


def test_a_verified_row_is_marked():
    assert [row.verified for row in parse(edited(Disposition="passed"), "x").rows] == [
        False,
        True,
        False,
        False,
    ]


def test_rows_of_a_wrong_length_are_refused():
    lines = FILES[0].read_text().splitlines()
    lines[2] = lines[2].rsplit(",", 3)[0]
    lines.append(lines[1][:40])
    profile = parse("\n".join(lines), "cut.csv")
    assert len(profile.rows) == 3
    assert [r.reason for r in profile.refused] == [
        "48 cells, expected 51",
        f"{len(lines[-1].split(','))} cells, expected 51",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("\n \n", "empty"),
        ("1,CUTLASS,gemm\n", "not a CSV file of the CUTLASS profiler: line 1"),
        ("Operation,Runtime\n", "no column OperationKind, Disposition, Status, m, n, k, Bytes"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(text, message, tmp_path):
    path = tmp_path / "some.csv"
    path.write_text(text)
    with pytest.raises(ProfileError, match=message):
        read(path)


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ProfileError, match="cannot be read"):
        read(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ProfileError, match="cannot be read"):
        read(tmp_path / "binary.csv")


def test_columns_of_another_version_are_read_by_name():
    """Tags in front, a column more, and columns that older versions do not have."""
    with FILES[0].open(newline="") as file:
        rows = list(csv.DictReader(file))
    dropped = ("D", "use_pdl", "batch_count", "GFLOPs")
    lines = []
    for row in rows:
        kept = {"tag": "nightly"} | {k: v for k, v in row.items() if k not in dropped}
        lines = lines or [",".join(kept)]
        lines.append(",".join(kept.values()))
    profile = parse("\n".join(lines), "other.csv")
    assert len(profile.rows) == 4
    assert {row.batch_count for row in profile.rows} == {1}
    assert profile.note == (
        "not the columns of CUTLASS 4.2.0: without D, batch_count, use_pdl, GFLOPs and with tag"
    )


def test_files_put_together_are_read_through():
    text = FILES[0].read_text() + FILES[1].read_text()
    assert len(parse(text, "both.csv").rows) == 8


def test_a_comparison_with_recorded_gemms():
    profiles = [read(path) for path in FILES]
    comparison = compare(problem_of(4096), profiles, [], H200)
    figures = {line.what: round(line.seconds * 1e3, 6) for line in comparison.gemms}
    assert figures == {
        "QK^T, any atoms": 0.785742,
        "PV, any atoms": 0.58192,
        "QK^T, SM80 atoms": 1.4,
        "PV, SM80 atoms": 0.609205,
        "QK^T, SM90 atoms": 0.785742,
        "PV, SM90 atoms": 0.58192,
    }
    any_atoms, sm80, sm90 = comparison.sums
    assert (any_atoms.seconds, any_atoms.bytes) == (sm90.seconds, 2 * 2281701376)
    assert math.isclose(sm80.seconds, 2.009205e-3)
    assert any_atoms.flops == 4 * 4 * 16 * 4096**2 * 128
    # 4.56 GB at 4.8 TB/s: both GEMMs are bound by memory.
    assert math.isclose(any_atoms.roofline_seconds, 4563402752 / 4.8e12)
    assert any_atoms.bound == "memory"
    assert comparison.softmax_bytes == 2 * 2 * 4 * 16 * 4096**2
    assert comparison.savings == []


def test_a_comparison_with_attention():
    problem = problem_of(1024)
    config = FlashForwardKernelConfig.parse("(BF16, 128, 64, 64, 4): async+load_0_0_0_tiles")
    fused = parse(as_text([attention_row(result_of(problem, config, 0.25e-3).record())]), "pyflash")
    comparison = compare(problem, map(read, FILES), [fused], H200)
    (line,) = comparison.fused
    assert line.kernel == str(config)
    assert line.flops == 4 * 16 * 16 * 1024**2 * 128
    # Q, K, V, O of 16384 x 16 x 128 elements of 2 bytes, lse of 4 bytes a row.
    assert line.bytes == 4 * 16384 * 16 * 128 * 2 + 4 * 16384 * 16
    assert line.bound == "compute"
    saving = comparison.savings[0]
    assert saving.bytes == 2 * 671088640 - line.bytes
    assert math.isclose(saving.ratio, (0.211699 + 0.166738) / 0.25, rel_tol=1e-6)
    assert json.loads(comparison.to_json())["fused"][0]["tflops"] == line.tflops
    causal = compare(problem_of(1024, {"causal": True}), map(read, FILES), [fused], None)
    assert causal.fused == []
    assert causal.sums[0].flops == line.flops // 2


def test_a_comparison_needs_both_gemms():
    with pytest.raises(ValueError, match=r"no row of PV .*batch_count 256, bf16:row bf16:row"):
        compare(problem_of(1024), [read(RECORDED / "qk_1024.gemm.csv")], [])
    with pytest.raises(ValueError, match="window"):
        compare(problem_of(1024, {"window_left": 5}), [], [])


def result_of(
    problem: Problem, config: FlashForwardKernelConfig, seconds: float | None, status="ok"
):
    from pyflash.bench.contenders import pyflash_configs
    from pyflash.bench.measure import Result
    from pyflash.bench.timing import Timing

    (contender,) = pyflash_configs([config])
    timing = Timing(seconds, 0.0, 3) if seconds else None
    return Result(problem, contender, status, timing=timing)


def test_results_without_figures_are_refused_rows():
    problem = problem_of(1024)
    config = FlashForwardKernelConfig.parse("(BF16, 128, 64, 64, 4): async+load_0_0_0_tiles")
    results = [result_of(problem, config, None, s) for s in ("wrong", "refused: no such kernel")]
    profile = parse(as_text(attention_row(r.record()) for r in results), "pyflash")
    assert profile.rows == ()
    assert [r.reason for r in profile.refused] == ["disposition incorrect", "status not_supported"]


def test_two_files_are_joined_by_operation_and_problem():
    first = read(FILES[0])
    faster = parse(edited(Runtime="0.162797", GFLOPs="422530", **{"GB/s": "3839.14"}), "faster.csv")
    joined = join(first, faster)
    assert len(joined) == 4
    assert [j.speedup for j in joined if j.operation != first.rows[1].operation] == [1.0] * 3
    changed = next(j for j in joined if j.operation == first.rows[1].operation)
    assert math.isclose(changed.speedup, 2, rel_tol=1e-5)
    apart = join(first, read(RECORDED / "qk_1024.gemm.csv"))
    assert len(apart) == 8
    assert all((j.first is None) != (j.second is None) for j in apart)


# A profiler that prints what it was asked and gives a recorded file.
_PROGRAM = """\
#!{python}
import sys
options = dict(a.removeprefix("--").split("=", 1) for a in sys.argv[1:])
name = "qk" if options["B"].endswith("column") else "pv"
text = open(f"{recorded}/{{name}}_{{max(options['m'], options['n'])}}.gemm.csv").read()
mode = "{mode}"
if mode == "fails":
    sys.exit("no device")
if mode == "no kernel fits":
    text = text.splitlines()[0]
if mode == "garbage":
    text = "Segmentation fault"
open(options["output"].removesuffix(".csv") + ".gemm.csv", "w").write(text)
"""


def program(folder: Path, mode: str = "") -> Path:
    path = folder / "cutlass_profiler"
    path.write_text(_PROGRAM.format(python=sys.executable, recorded=RECORDED, mode=mode))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_profiler_is_the_option_or_the_variable_or_on_path(tmp_path, monkeypatch):
    monkeypatch.delenv("CUTLASS_PROFILER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(ProfilerError, match="cutlass_profiler not found"):
        find_profiler()
    places = [tmp_path / name for name in ("path", "variable", "option")]
    for place in places:
        place.mkdir()
        program(place)
    monkeypatch.setenv("PATH", str(places[0]))
    assert find_profiler() == places[0] / "cutlass_profiler"
    monkeypatch.setenv("CUTLASS_PROFILER", str(places[1] / "cutlass_profiler"))
    assert find_profiler() == places[1] / "cutlass_profiler"
    assert find_profiler(places[2]) == places[2] / "cutlass_profiler"
    with pytest.raises(ProfilerError, match="no cutlass_profiler that can be run"):
        find_profiler(tmp_path)


def test_a_run_gives_the_rows_of_its_file(tmp_path):
    profiles = [run_profiler(program(tmp_path), gemm) for gemm in gemms_of(problem_of(4096))]
    assert profiles[0].rows == read(RECORDED / "qk_4096.gemm.csv").rows
    assert profiles[1].rows == read(RECORDED / "pv_4096.gemm.csv").rows


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("fails", "no results, exit status 1\nno device"),
        ("no kernel fits", "no kernel ran: its build has no kernel that fits"),
        ("garbage", "not a CSV file of the CUTLASS profiler"),
    ],
)
def test_a_run_that_fails_says_so(mode, message, tmp_path):
    with pytest.raises(ProfilerError) as error:
        run_profiler(program(tmp_path, mode), gemms_of(problem_of(4096))[0])
    assert message in str(error.value)


def test_the_command_compares_and_joins_files():
    runner = CliRunner()
    qk, pv = (str(RECORDED / f"{name}_4096.gemm.csv") for name in ("qk", "pv"))
    result = runner.invoke(app, ["compare", qk, pv, "--seqlen", "4096", "--gpu", "H200", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["sums"][0]["bytes"] == 2 * 2281701376
    joined = runner.invoke(app, ["compare", qk, qk])
    assert joined.exit_code == 0
    assert joined.stdout.count("1.000") == 4
    for arguments in ([], [qk], [qk, "--seqlen", "4096", "--gpu", "Voodoo 2"]):
        refused = runner.invoke(app, ["compare", *arguments])
        assert refused.exit_code == 1
        assert "error: " in refused.output
