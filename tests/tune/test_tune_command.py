"""`pyflash tune` with measurements that are injected; pictures; audits replayed; picks judged."""

import functools
import json
import re

import pytest
from support.fake_library import build_fake_library
from support.pages import check_page
from typer.testing import CliRunner

import pyflash
from pyflash.cli import app
from pyflash.op import tables
from pyflash.tuner import api, audit, compare
from pyflash.tuner.api import BACKEND, Measuring
from pyflash.tuner.builder import NoBuilder
from pyflash.tuner.install import install
from pyflash.tuner.journal import Journal, read_journal
from pyflash.tuner.measurer import Measurer
from pyflash.tuner.picture import draw, main_effects, seen_in
from pyflash.tuner.problems import parse_problem
from pyflash.tuner.spaces import default_space, parse_space

NAME = "fp16,batch=1,heads=2,seqlen=40,d_head=64"
SPACE = (
    "d_head=64 dtype=FP16 B_r=64 B_c=32,64 n_warps=4,8 async_copy=true eager_load_blocks=1 "
    "swizzled=true Q_mma_load_K_tiles=0 K_mma_load_K_tiles=2 V_mma_load_K_tiles=2 "
    "mma_double_buffer_loads=false optimized_softmax=true"
)


def run(*arguments):
    return CliRunner().invoke(app, ["tune", *map(str, arguments)])


def assert_one_line(result, says):
    assert result.exit_code == 1, result.output
    assert re.fullmatch(f"error: [^\n]*({says})[^\n]*\n", result.stderr), result.stderr


# With measurements that are injected.


@pytest.fixture
def on_the_cpu(monkeypatch):
    """Candidates are measured by the wall clock of the op on the CPU: all of a run but the GPU."""
    measuring = Measuring(BACKEND, {"device": "cpu"}, NoBuilder())
    monkeypatch.setattr(api, "tune", functools.partial(api.tune, measuring=measuring))


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """The journal of a run on the CPU."""
    path = tmp_path_factory.mktemp("tune") / "journal.jsonl"
    measuring = Measuring(BACKEND, {"device": "cpu"}, NoBuilder())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "tune", functools.partial(api.tune, measuring=measuring))
        result = run(
            "--device", "cpu", "--space", SPACE, "--problem", NAME, "--journal", path, "--effort",
            "thorough",
        )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "4 configs, 2 legal kernels on cpu" in result.output
    assert "refused by rows_per_warp 2" in result.output
    assert "2/2" in result.output
    return path


def test_a_run_leaves_a_journal_with_a_winner(journal):
    records = read_journal(journal)
    (winner,) = (r for r in records if r["kind"] == "winner")
    assert winner["problem"] == NAME
    assert {r["config"] for r in records if r["kind"] == "sample"} == {
        f"(FP16, 64, 64, {B_c}, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
        for B_c in (32, 64)
    }


@pytest.mark.usefixtures("on_the_cpu")
def test_json_and_files_go_on_from_the_journal(journal, tmp_path):
    n_samples = sum(r["kind"] == "sample" for r in read_journal(journal))
    result = run(
        "--device", "cpu", "--space", SPACE, "--problem", NAME, "--journal", journal, "--json",
        "--effort", "thorough", "--picture", tmp_path / "tune.svg", "--html", tmp_path / "p.html",
    )  # fmt: skip
    values = json.loads(result.stdout)
    assert values["problems"][NAME]["winner"]["seconds"] > 0
    assert sum(r["kind"] == "sample" for r in read_journal(journal)) == n_samples
    assert "<svg" in (tmp_path / "tune.svg").read_text()[:1000]
    check_page((tmp_path / "p.html").read_text())


def test_a_journal_of_the_cpu_is_not_installed(journal, tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLASH_CONFIG_DIR", str(tmp_path))
    with pytest.raises(ValueError, match="these journals were measured on the CPU"):
        install(journal)
    assert list(tmp_path.glob("tuned/*")) == []


@pytest.mark.usefixtures("on_the_cpu")
def test_a_table_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(Measurer, "check", lambda *_: pytest.fail("measured"))
    (tmp_path / "file").touch()
    monkeypatch.setenv("PYFLASH_CONFIG_DIR", str(tmp_path / "file"))
    result = run(
        "--device", "cpu", "--space", SPACE, "--problem", NAME, "--journal", tmp_path / "j",
        "--install",
    )  # fmt: skip
    assert_one_line(result, "file")
    assert not (tmp_path / "j").exists()


def test_a_dry_run_shows_what_would_be_tried(tmp_path):
    result = run("--dry-run", "--device", "cpu", "--space", SPACE, "--problem", NAME)
    assert result.exit_code == 0, result.output
    assert f"{NAME}: 2 candidates" in result.output
    assert "4 configs, 2 legal kernels; refused: rows_per_warp 2" in result.output
    assert list(tmp_path.iterdir()) == []
    values = json.loads(
        run("--dry-run", "--json", "--arch", "90", "--space", SPACE, "--problem", NAME).stdout
    )
    assert (values["configs"], values["legal"], values["refused"]) == (4, 2, {"rows_per_warp": 2})
    (problem,) = values["problems"].values()
    assert problem["candidates"] == len(problem["first"]) == 2
    assert problem["first"][0]["seconds"] <= problem["first"][1]["seconds"]


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--problem", "bf16,heads=x"], "error: unknown word 'heads=x' in problem"),
        (["--space", "d_heads=64"], "error: unknown word 'd_heads=64' in space"),
        (["--space", "sm70_forward d_head=64"], "error: unknown family 'sm70_forward'"),
        (["--space", "swizzled=maybe"], "error: 'swizzled=maybe': 'maybe' is not true or false"),
        (["--set", "tunes"], "error: unknown set of kernels 'tunes'"),
        (["--effort", "much"], "error: unknown effort 'much'"),
        (["--config", "(FP16, 64)"], "error: "),
        (["--journal", "/proc/no/journal"], "error: "),
    ],
)
def test_mistakes_are_one_line(arguments, says):
    result = run("--device", "cpu", *arguments)
    assert result.exit_code == 1
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_spaces_as_text():
    space = parse_space("sm90_forward dtype=BF16 d_head=128 B_c=64,128 overlap=true")
    assert space.family.name == "sm90_forward"
    assert {(c.B_c, c.overlap, c.d_head) for c in space} == {(64, True, 128), (128, True, 128)}
    assert len(parse_space("")) == len(pyflash.Space())


def test_the_default_space_has_every_family_that_runs_and_enough_candidates():
    problems = [parse_problem(f"bf16,heads=2,seqlen=9,d_head={d}") for d in (128, 64, 40)]
    families = {
        arch: [space.family.name for space in default_space(problems, pyflash.Arch.of(arch))]
        for arch in (80, 90)
    }
    assert families == {80: ["sm80_forward"], 90: ["sm80_forward", "sm90_forward"]}
    for space in default_space(problems, pyflash.Arch.of(90)):
        legal = space.legal("sm_90")
        assert {c.dtype for c in legal} == {pyflash.DType.BF16}
        assert {c.d_head for c in legal} >= {64, 128}
        assert len({c.canonical() for c in legal if c.d_head == 128}) >= 300


# Pictures.


def sample(config, seconds, problem=NAME):
    return {
        "kind": "sample", "problem": problem, "config": config, "features": "plain",
        "seconds": seconds, "rung": 0, "samples": [seconds] * 3,
    }  # fmt: skip


TILES = {(64, 32): 3.0, (64, 64): 2.0, (128, 32): 5.0, (128, 64): 4.0}
RECORDS = [
    sample(f"(FP16, 64, {B_r}, {B_c}, 4): async+load_0_0_0_tiles", seconds)
    for (B_r, B_c), seconds in TILES.items()
]


def test_main_effects_are_those_of_the_best_with_each_value():
    effects = main_effects(seen_in(RECORDS))
    assert effects == {
        ("sm80_forward", "B_r"): {64: 1.0, 128: 2.0},
        ("sm80_forward", "B_c"): {32: 1.5, 64: 1.0},
    }


def test_a_picture(tmp_path, journal):
    draw(journal, tmp_path / "out" / "tune.png")
    assert (tmp_path / "out" / "tune.png").read_bytes().startswith(b"\x89PNG")
    with Journal(tmp_path / "empty") as empty:
        empty.append("run")
    with pytest.raises(ValueError, match="holds no measured candidate"):
        draw(tmp_path / "empty", tmp_path / "no.png")


# Audits replayed, picks judged.


def test_a_replay_tells_what_selection_would_choose_now(tmp_path, capsys):
    pyflash.load(build_fake_library(tmp_path))
    names = [f"(FP16, 512, {tile}, 4): async+load_0_0_0_tiles" for tile in ("128, 32", "64, 64")]
    name = "fp16,batch=1,heads=132,seqlen=128,d_head=512"
    with Journal(tmp_path / "j") as journal:
        journal.append("run", what="audit", sm=90, n_sms=132)
        problem = {
            "dtype": "FP16", "batch": 1, "heads": 132, "heads_kv": 132, "seqlen_q": 128,
            "seqlen_k": 128, "d_head": 512,
        }  # fmt: skip
        journal.append(
            "audit", name=name, problem=problem, seconds={names[0]: 2e-6, names[1]: 1e-6},
            best=names[1], ratio=1.0, selected=names[1], num_splits=1, selected_seconds=1e-6,
        )  # fmt: skip
    (record,) = audit.replay(tmp_path / "j")
    assert (record["selected"], record["ratio"]) == (names[0], 2.0)
    assert audit.main(["--replay", str(tmp_path / "j")]) == 0
    assert "1 problems: 0 within 3% of the best" in capsys.readouterr().out
    row = {
        "class": {
            "dtype": "FP16", "d_head": 512, "features": "plain", "packed": False,
            "pairs": [1, 200], "rows": [1, 200], "keys": [1, 200],
        },
        "config": names[1], "num_splits": 0,
    }  # fmt: skip
    table = {"format": 1, "name": "t", "sm": 90, "n_sms": 132, "choices": [row]}
    try:
        tables.use_tables([table])
        assert audit.replay(tmp_path / "j")[0]["ratio"] == 1.0
    finally:
        tables.load_tables()


def test_picks_are_judged_by_the_exhaustive_journal(tmp_path, capsys):
    def winner(path, records, config):
        with Journal(path) as journal:
            for record in records:
                journal.append(**record)
            journal.append("winner", problem=NAME, config=config, features="plain", n_candidates=4)

    configs = [record["config"] for record in RECORDS]
    winner(tmp_path / "all", RECORDS, configs[1])
    winner(tmp_path / "some", RECORDS[:1], configs[0])
    (pick,) = compare.compare(read_journal(tmp_path / "all"), read_journal(tmp_path / "some"))
    assert (pick.ratio, pick.n_measured, pick.n_samples, pick.n_samples_of_all) == (1.5, 1, 3, 12)
    assert compare.main([str(tmp_path / "all"), str(tmp_path / "some")]) == 0
    assert re.search(r"1\.500 +1/4 +3/12", capsys.readouterr().out)
    assert compare.main([str(tmp_path / "all"), str(tmp_path / "none")]) == 1
