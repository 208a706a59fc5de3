"""Users without a home folder: what needs none works, and what needs one says so."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.headers import ROOT
from support.other_user import as_user, needs_root

from pyflash.codegen.cache_dir import CacheError, cache_dir
from pyflash.op import library, tables

HOMES = {
    "unset": None,
    "empty": "",
    "of no user": "~nosuchuser",
    "relative": "home",
    "missing": "/nonexistent/home",
    "a device": "/dev/null",
    "a home": "{tmp_path}",
}
XDGS = {"unset": None, "of no user": "~nosuchuser/config", "missing": "/nonexistent/config"}
NO_SUCH_UID = 54321

# Sets the environment, loads what an import of pyflash and torch loads, and prints what was told,
# and whether there are places for a cache and for tables.
TRY_ALL = """if True:
    import json, os, pwd, sys, warnings
    import pyflash, torch
    from pyflash.codegen.cache_dir import cache_dir
    from pyflash.op import library, tables
    def tell(function):
        try:
            return [str(function()), None]
        except Exception as error:
            return [None, f"{type(error).__name__}: {error}"]
    def unknown(uid):
        raise KeyError(uid)
    known = pwd.getpwuid
    for environment, is_known in json.load(sys.stdin):
        pwd.getpwuid = known if is_known else unknown
        for name in ("HOME", "XDG_CONFIG_HOME"):
            os.environ.pop(name, None)
        os.environ.update(environment)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loaded = tell(lambda: (library._load_kernels(), tables.load_tables()))
        told = [str(warning.message) for warning in caught]
        print(json.dumps([loaded, told, tell(cache_dir), tell(tables.user_dir)]))
"""


def environment(**changes: str | None) -> dict[str, str]:
    own = ("HOME", "XDG_CONFIG_HOME", "PYFLASH_CACHE_DIR", "PYFLASH_CONFIG_DIR")
    others = {name: value for name, value in os.environ.items() if name not in own}
    return {
        **others,
        "PYTHONPATH": str(ROOT),
        **{n: v for n, v in changes.items() if v is not None},
    }


def run(code: str, environment: Mapping[str, str], **options: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, **options
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_no_home_in_all_ways(tmp_path):
    cases = list(itertools.product(HOMES, XDGS, [True, False]))
    asked = [
        (
            {
                name: value.format(tmp_path=tmp_path)
                for name, value in (("HOME", HOMES[home]), ("XDG_CONFIG_HOME", XDGS[xdg]))
                if value is not None
            },
            is_known,
        )
        for home, xdg, is_known in cases
    ]
    lines = run(TRY_ALL, environment(HOME=str(tmp_path)), input=json.dumps(asked))
    for (home, xdg, is_known), line in zip(cases, lines, strict=True):
        loaded, told, cache, folder = json.loads(line)
        case = f"HOME {home}, XDG_CONFIG_HOME {xdg}, {'known' if is_known else 'unknown'} user"
        assert loaded[1] is None, case
        has_home = home in ("missing", "a device", "a home") or (home == "unset" and is_known)
        if has_home:
            assert cache[0] or "cache folder" in cache[1], case
        else:
            assert cache[1].startswith("NoCacheError: no cache folder: "), case
            assert cache[1].endswith("; set PYFLASH_CACHE_DIR to one"), case
        if xdg == "of no user":
            (sentence,) = told
            assert "XDG_CONFIG_HOME='~nosuchuser/config' leads nowhere" in sentence, case
            assert folder[1].endswith("; set it to a folder"), case
        else:
            assert told == [], case
            assert (folder[0] is not None) == (has_home or xdg == "missing"), case
            assert folder[0] or folder[1].endswith("; set PYFLASH_CONFIG_DIR to one"), case


UNKNOWN = """if True:
    import pwd
    def unknown(uid):
        raise KeyError(uid)
    pwd.getpwuid = unknown
"""
IMPORT = """
    import pyflash, torch
    q, k, v = (torch.randn(1, 8, 2, 64, dtype=torch.float16) for _ in range(3))
    print(pyflash.attention(q, k, v).shape[1])
"""


@pytest.mark.parametrize("home", ["unset", "of no user", "a device"])
def test_pyflash_and_torch_are_imported_without_a_home(home):
    """By a user who is in no list of users."""
    assert run(UNKNOWN + IMPORT, environment(HOME=HOMES[home])) == ["8"]


@pytest.mark.parametrize("variable", ["PYFLASH_CACHE_DIR", "PYFLASH_CONFIG_DIR"])
def test_a_variable_that_leads_nowhere_is_told(monkeypatch, variable):
    monkeypatch.setenv(variable, "~nosuchuser/x")
    load = library._load_kernels if variable == "PYFLASH_CACHE_DIR" else tables.load_tables
    with pytest.warns(UserWarning, match="'~nosuchuser/x' leads nowhere .* set ") as caught:
        load()
    assert len(caught) == 1
    assert variable in str(caught[0].message)


@needs_root
def test_a_user_who_is_in_no_list_of_users(monkeypatch):
    for name in ("HOME", "XDG_CONFIG_HOME", "PYFLASH_CACHE_DIR", "PYFLASH_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)

    def load() -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            library._load_kernels()
            n_rows = tables.load_tables()
        with pytest.raises(CacheError, match="set PYFLASH_CACHE_DIR to one"):
            cache_dir()
        return str(n_rows > 0)

    assert as_user(NO_SUCH_UID, load) == "True"


def test_a_command_that_needs_the_cache_says_so(tmp_path):
    command = [str(Path(sys.executable).with_name("pyflash")), "cache"]
    result = subprocess.run(
        command, env=environment(HOME="~nosuchuser"), capture_output=True, text=True
    )
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: no cache folder: ")
    assert line.endswith("set PYFLASH_CACHE_DIR to one")
