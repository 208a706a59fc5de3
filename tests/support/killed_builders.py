"""python -m support.killed_builders FOLDER N: kills N builders at random moments.

Prints a JSON line for each: the processes that ran when it was killed, those that were left soon
after, the objects that it had compiled, the temporary files of all until then. After each kill
another build must make what is right.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from support.fake_compiler import fake_compiler, sources

from pyflash.codegen import compilation
from pyflash.codegen.cache import object_problem
from pyflash.codegen.cache_dir import cache_dir, partials
from pyflash.codegen.compilation import Compilation, Compiler, compile_all
from pyflash.codegen.linking import link, reusable

# An environment variable that all processes of a build inherit.
MARK = "PYFLASH_TEST_MARK"
N_OBJECTS = 2


def processes_of(mark: str) -> dict[int, str]:
    """The command lines of the living processes that bear the mark."""
    found = {}
    for name in os.listdir("/proc"):
        try:
            environment = Path("/proc", name, "environ").read_bytes()
            if f"{MARK}={mark}\0".encode() in environment:
                found[int(name)] = Path("/proc", name, "cmdline").read_text().replace("\0", " ")
        except (OSError, ValueError):
            continue
    return {pid: line for pid, line in found.items() if line}  # a zombie has none


def build(round_: str, compiler: Compiler) -> None:
    objects = sources(compiler, N_OBJECTS, round_)
    assert compile_all(objects, round_) == []
    library = library_of(round_)
    if not reusable(library):
        link(library, objects, [])


def library_of(round_: str) -> Path:
    return cache_dir() / "emulated" / round_ / f"{round_}.so"


def start_builder(round_: str, mark: str, compiler: Compiler) -> int:
    """A copy of this process, so that the kill falls into the build and not into imports."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.environ[MARK] = mark
            build(round_, compiler)
            status = 0
        finally:
            os._exit(status)
    return pid


def check(round_: str, objects: list[Compilation]) -> None:
    contents = b"".join(f"made of {c.text}".encode() for c in objects)
    assert library_of(round_).read_bytes().startswith(b"made of " + contents)
    assert all(object_problem(c.object) is None for c in objects)
    assert partials(cache_dir()) == []


def main(folder: Path, n_kills: int) -> None:
    compilation.console.quiet = True
    rng = random.Random(0)
    endless, slow, quick = (fake_compiler(folder, seconds) for seconds in (600, 0.1, 0))
    # What a builder waits for that is killed late enough: an object, its library, nothing.
    cases = [(endless, quick), (quick, endless), (slow, slow)]
    os.environ["CXX"] = slow.command[0]
    start = time.monotonic()
    build("not_killed", slow)
    seconds = time.monotonic() - start  # as busy as this machine is
    for i in range(n_kills):
        round_ = f"round_{i}"
        compiler, linker = cases[i % len(cases)]
        os.environ["CXX"] = linker.command[0]
        mark = f"{round_} in {folder}"
        pid = start_builder(round_, mark, compiler)
        time.sleep(rng.uniform(0, seconds))
        running = list(processes_of(mark).values())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        end = time.monotonic() + 10
        while (left := processes_of(mark)) and time.monotonic() < end:
            time.sleep(0.02)
        for process in left:
            os.kill(process, signal.SIGKILL)
        compiled = sum(c.object.exists() for c in sources(compiler, N_OBJECTS, round_))
        outcome = {"running": running, "left": list(left.values()), "compiled": compiled}
        outcome["temporary"] = len(list(Path(os.environ["TMPDIR"]).iterdir()))
        print(json.dumps(outcome), flush=True)
        os.environ["CXX"] = quick.command[0]
        build(round_, quick)
        check(round_, sources(quick, N_OBJECTS, round_))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
