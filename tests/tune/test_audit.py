"""The audit of selection, on the CPU, where a config need not be built for a GPU."""

import json

import pytest
from support.fake_library import build_fake_library

import pyflash
from pyflash.config import parse
from pyflash.op.selection import select_on
from pyflash.tuner import audit
from pyflash.tuner.journal import Journal
from pyflash.tuner.problems import parse_problem, problem_to_json
from pyflash.tuner.workload import Contender, Workload

NAMES = [
    "fp16,batch=2,heads=2,seqlen=50,d_head=64,causal",
    "fp16,batch=1,heads=2,seqlen=9,d_head=64",
]
ROWS = [
    f"(FP16, 64, 64, {B_c}, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
    for B_c in (32, 64)
]


@pytest.fixture(autouse=True)
def built(monkeypatch):
    """What the CPU is to take for built."""
    monkeypatch.setattr(audit, "built_configs", lambda: dict.fromkeys(map(parse, ROWS)))


def test_every_built_config_is_checked_timed_and_compared_with_the_choice(tmp_path, capsys):
    path = tmp_path / "audit.jsonl"
    command = ["--device", "cpu", "--samples", "2", "--out", str(path)]
    command += [word for name in NAMES for word in ("--problem", name)]
    assert audit.main(command) == 0
    run, *records = map(json.loads, path.read_text().splitlines())
    assert run["environment"]["torch"]
    assert [record["name"] for record in records] == NAMES
    for record in records:
        assert set(record["seconds"]) == {*ROWS, record["selected"]}
        seconds = record["seconds"]
        assert record["ratio"] == seconds[record["selected"]] / min(seconds.values())
    out = capsys.readouterr().out
    assert "2 problems: " in out
    assert "geometric mean" in out


def test_a_replay_takes_only_what_was_measured(tmp_path, tmp_path_factory):
    """No other times, and no other splits."""
    pyflash.load(build_fake_library(tmp_path_factory.mktemp("library")))
    name = "fp16,batch=1,heads=132,seqlen=128,d_head=512"
    problem = parse_problem(name)
    chosen = select_on(problem, 90, 132)
    config = str(chosen.config)
    fields = {"problem": problem_to_json(problem), "best": "", "ratio": 1.0, "reason": ""}
    for seconds, splits, error in (
        ({config: 2.0}, {}, None),
        ({config: 2.0}, {config: chosen.num_splits}, None),
        ({config: 2.0}, {config: chosen.num_splits + 1}, "was not measured with 1 splits"),
        ({}, {}, "was not measured with 1 splits"),
    ):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        with Journal(path) as journal:
            journal.append("run", what="audit", sm=90, n_sms=132)
            seconds = seconds | {"": 1.0}
            journal.append("audit", name=name, seconds=seconds, splits=splits, **fields)
        (record,) = audit.replay(path)
        if error is None:
            assert (record["ratio"], record["selected"]) == (2.0, config)
        else:
            assert record["error"].endswith(error)
            assert "ratio" not in record


def test_an_audit_goes_on_after_the_last_problem(tmp_path, monkeypatch):
    problems = [parse_problem(name, "cpu") for name in NAMES]
    with Journal(tmp_path / "audit.jsonl") as journal:
        (first,) = audit.audit(problems[:1], journal, n_samples=2)
        again, second = audit.audit(problems, journal, n_samples=2)
        assert again is first
        assert second["name"] == NAMES[1]
        n_lines = len(journal.records)
        monkeypatch.setattr(Workload, "sample", _fails)
        audit.audit(problems, journal, n_samples=2)
        assert len(journal.records) == n_lines


def test_a_problem_that_fails_is_recorded_and_tried_again(tmp_path, monkeypatch):
    problems = [parse_problem(NAMES[0], "cpu")]
    with Journal(tmp_path / "audit.jsonl") as journal:
        with monkeypatch.context() as patch:
            patch.setattr(Workload, "sample", _fails)
            (record,) = audit.audit(problems, journal, n_samples=2)
        assert record["error"] == "the device is gone"
        assert audit.summary([record]) == "no problem was measured"
        (record,) = audit.audit(problems, journal, n_samples=2)
        assert record["ratio"] >= 1


def test_a_config_that_is_wrong_is_not_timed(tmp_path, monkeypatch):
    def check(self, contender):
        if contender.config == ROWS[0]:
            raise AssertionError("out: 2 at (0, 0), expected 1")
        return right_check(self, contender)

    right_check = Workload.check
    monkeypatch.setattr(Workload, "check", check)
    with Journal(tmp_path / "audit.jsonl") as journal:
        (record,) = audit.audit([parse_problem(NAMES[0], "cpu")], journal, n_samples=2)
    assert record["failed"][ROWS[0]] == "out: 2 at (0, 0), expected 1"
    assert ROWS[0] not in record["seconds"]


def test_a_wrong_output_is_found():
    workload = Workload(parse_problem(NAMES[0], "cpu"))
    error, bound = workload.check(Contender(""))
    assert error <= bound
    out, _ = workload.call(Contender(""))
    workload.call = lambda contender: (out + 0.1, _)
    with pytest.raises(AssertionError, match="bound"):
        workload.check(Contender(""))


def _fails(*_):
    raise RuntimeError("the device is gone\nsee above")
