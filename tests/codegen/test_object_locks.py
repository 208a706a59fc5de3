"""Builders in several processes: side by side where their objects differ, one after the other where
they do not, and never held up by one that is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.fake_compiler import fake_compiler, sources

from pyflash.codegen.cache import object_problem
from pyflash.codegen.cache_dir import cache_dir, partials
from pyflash.codegen.compilation import ROOT, Compiler, compile_all

# Compiles objects FIRST to LAST by the compiler COMMAND, JOBS at once.
_BUILDER = """
import sys
from support.fake_compiler import sources
from pyflash.codegen import compilation
command, jobs, first, last = sys.argv[1], *map(int, sys.argv[2:])
compilation.max_jobs = lambda: jobs
compiler = compilation.Compiler((command,), (), (), "fake", ".cpp")
failures = compilation.compile_all(sources(compiler, 9)[first:last], "objects")
sys.exit(len(failures))
"""

# Ends when as many as MEET run at the same time, and fails where they do not come to be; leaves in
# the folder how many there were.
_MEETING = """\
#!/bin/sh
while [ "$1" != -o ]; do shift; done
here={folder}/running-$$
touch $here
for i in $(seq 200); do
  n=$(ls {folder} | grep -c running-)
  [ $n -le {meet} ] || touch {folder}/too-many
  if [ $n -ge {meet} ]; then
    sleep 0.1
    echo made > "$2"
    rm $here
    exit 0
  fi
  sleep 0.05
done
rm $here
exit 1
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "tests"))))
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))


@pytest.fixture
def builder() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started = []

    def start(compiler: Compiler, jobs: int, first: int, last: int) -> subprocess.Popen[str]:
        words = [compiler.command[0], *map(str, (jobs, first, last))]
        command = [sys.executable, "-c", _BUILDER, *words]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def ended(*builders: subprocess.Popen[str]) -> list[str]:
    """What they printed; none failed."""
    printed = [process.communicate(timeout=60)[1] for process in builders]
    assert [process.returncode for process in builders] == [0] * len(builders), printed
    return printed


def meeting(folder: Path, meet: int) -> Compiler:
    script = folder / "meeting"
    (folder / "at").mkdir()
    script.write_text(_MEETING.format(folder=folder / "at", meet=meet))
    script.chmod(0o755)
    return Compiler((str(script),), (), (), "fake", ".cpp")


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.01)


def test_different_objects_are_compiled_at_the_same_time(builder, tmp_path):
    compiler = meeting(tmp_path, 2)
    ended(builder(compiler, 2, 0, 1), builder(compiler, 2, 1, 2))


def test_builders_together_run_no_more_compilers_than_one_may(builder, tmp_path):
    compiler = meeting(tmp_path, 1)
    ended(builder(compiler, 1, 0, 3), builder(compiler, 1, 3, 6))
    assert list((tmp_path / "at").iterdir()) == []


def test_one_object_is_compiled_once_and_others_meanwhile(builder, tmp_path):
    """The second builder's own object does not wait for the first's, which both need."""
    slow, quick = fake_compiler(tmp_path, 600), fake_compiler(tmp_path)
    first = builder(slow, 2, 0, 1)
    wait_for(tmp_path / "runs")
    second = builder(quick, 2, 0, 2)
    shared, own = sources(quick, 2)
    wait_for(own.object)
    assert not shared.object.exists()
    assert second.poll() is None
    first.kill()
    first.communicate()
    ended(second, builder(quick, 2, 0, 2))
    names = [Path(line).name.split("-", 2)[2] for line in (tmp_path / "runs").read_text().split()]
    assert names == [f"{name}.o" for name in ("source_0", "source_1", "source_0")]
    assert [object_problem(c.object) for c in (shared, own)] == [None, None]
    assert partials(cache_dir()) == []


def test_builders_of_the_same_objects_share_the_work(builder, tmp_path):
    compiler = fake_compiler(tmp_path, 0.05)
    ended(*(builder(compiler, 2, 0, 9) for _ in range(3)))
    assert len((tmp_path / "runs").read_text().split()) == 9


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_who_is_killed_at_work_blocks_nobody(builder, tmp_path, number):
    """Nor where its guard, which would end its compilers, is killed with it: these are waited for
    while they run."""
    process = builder(fake_compiler(tmp_path, 1), 2, 0, 2)
    wait_for(tmp_path / "runs")
    (guard,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(guard), number)
    process.kill()
    process.communicate()
    compiler = fake_compiler(tmp_path)
    start = time.monotonic()
    assert compile_all(sources(compiler, 3), "objects") == []
    assert time.monotonic() - start < 30
    assert all(object_problem(c.object) is None for c in sources(compiler, 3))


def test_what_is_damaged_is_removed_by_one_and_never_while_it_is_compiled(builder, tmp_path):
    """Each found it damaged, and only the first to have its lock finds it so again."""
    compiler = fake_compiler(tmp_path, 0.3)
    objects = sources(compiler, 2)
    assert compile_all(objects, "objects") == []
    for c in objects:
        c.object.write_text("damaged")
    printed = ended(*(builder(compiler, 2, 0, 2) for _ in range(3)))
    assert "".join(printed).count("it is damaged; it is compiled again") == len(objects)
    assert len((tmp_path / "runs").read_text().split()) == 2 * len(objects)
    assert all(object_problem(c.object) is None for c in objects)
