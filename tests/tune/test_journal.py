"""The journal: nothing finished is lost, whatever moment a run is killed at."""

import json

import pytest

from pyflash.tuner.journal import Journal, JournalError, read_journal


@pytest.fixture
def path(tmp_path):
    with Journal(tmp_path / "runs" / "journal.jsonl") as journal:
        journal.append("run", seed=1)
        journal.append("sample", seconds=[1.5e-6, 2e-6])
    return journal.path


def test_records_are_read_back_in_order(path):
    expected = [{"kind": "run", "seed": 1}, {"kind": "sample", "seconds": [1.5e-6, 2e-6]}]
    assert read_journal(path) == expected
    with Journal(path) as journal:
        assert journal.records == expected
        assert [r["seed"] for r in journal.of_kind("run")] == [1]


def test_a_line_torn_at_any_byte_is_dropped_and_the_rest_is_kept(path):
    content = path.read_bytes()
    first_line = content.index(b"\n") + 1
    for length in range(first_line, len(content)):
        path.write_bytes(content[:length])
        with Journal(path) as journal:
            assert [record["kind"] for record in journal.records] == ["run"]
            journal.append("sample", seconds=[3.0])
        assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == [
            "run",
            "sample",
        ]


@pytest.mark.parametrize("line", ["not JSON", "[1, 2]", '{"no": "kind"}'])
def test_a_file_that_is_no_journal_is_refused(path, line):
    with path.open("a") as file:
        file.write(line + "\n" + '{"kind": "run"}\n')
    with pytest.raises(JournalError, match="line 3 is not a record of a journal"):
        Journal(path)


def test_two_runs_do_not_share_a_journal(path):
    with Journal(path), pytest.raises(JournalError, match="is being written by another run"):
        Journal(path)
    Journal(path).close()
