"""What variants have made before their kernels, as it is kept from call to call: by calls of a
device that is a counter, beside errors planted in the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.host_kernels import planted_program, printed

ERRORS = {
    "a use that is not counted": ("++use.entry_->users;", "use.entry_->users += !PLANTED(1);"),
    "another key": ("entry->key == key;", "(PLANTED(2) || entry->key == key);"),
    "what was used goes": (
        "entries_.splice(entries_.begin(), entries_, found);",
        "if (!PLANTED(3)) entries_.splice(entries_.begin(), entries_, found);",
    ),
    "freed in use": ("entry.users == 0 &&", "(PLANTED(4) || entry.users == 0) &&"),
    "kept without a launch": ("if (use.is_launched_", "if ((PLANTED(5) || use.is_launched_)"),
    "the same twice": ("&& is_new", "&& (PLANTED(6) || is_new)"),
    "freed for another device": (
        "entry.key.device == key.device",
        "(PLANTED(7) || entry.key.device == key.device)",
    ),
    "a note that nobody needs": ("use.is_noted_ &&", "(PLANTED(8) || use.is_noted_) &&"),
    "forgotten though nobody promised": ("(promise != 0 &&", "((PLANTED(9) || promise != 0) &&"),
    "found though forgotten": (
        "return !entry->is_forgotten",
        "return (PLANTED(10) || !entry->is_forgotten)",
    ),
    "no bound": ("held + bytes > most_bytes_", "!PLANTED(11) && held + bytes > most_bytes_"),
    "a large one": (
        "std::min(kMostBytesOfEntry,",
        "std::min(PLANTED(12) ? bytes : kMostBytesOfEntry,",
    ),
    "what comes once": ("&& was_seen(key)", "&& (PLANTED(13) || was_seen(key))"),
    "no room for it": (
        "&& bytes_[key.device] + bytes <= most_bytes_",
        "&& (PLANTED(14) || bytes_[key.device] + bytes <= most_bytes_)",
    ),
    "taken and not freed": (
        "  entry.calls.give_back(entry.memory, use.stream_);",
        "  if (!PLANTED(15)) entry.calls.give_back(entry.memory, use.stream_);",
    ),
    "freed for another stream": (
        "entry.is_noted || entry.key.stream",
        "PLANTED(16) || entry.is_noted || entry.key.stream",
    ),
    "noted though it was not": ("use.stream_) == 0", "use.stream_) == (PLANTED(17) ? 1 : 0)"),
    "counted though there is none": (
        "    bytes_[key.device] -= bytes;\n    use.entry_.reset();",
        "    bytes_[key.device] -= PLANTED(18) ? 0 : bytes;\n    use.entry_.reset();",
    ),
    "held for ever": ("forget(*use.entry_);", "if (!PLANTED(19)) forget(*use.entry_);"),
}  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    return planted_program(folder, "host/made_store.cpp", "check_made.cpp", ERRORS.values())


def test_calls_find_what_they_may(program):
    (line,) = printed(program, [], 0)
    assert int(line.partition(" checks")[0]) > 1000


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_shows(program, error):
    found = printed(program, [], 1 + list(ERRORS).index(error))
    assert any(line.startswith("not so: ") for line in found)
