"""Compiles many objects, each once for all: kept under a hash of everything it is made of."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from pyflash.codegen import compile_object
from pyflash.codegen.cache import object_problem, used
from pyflash.codegen.cache_dir import (
    cache_dir,
    discard,
    is_safe,
    make_folder,
    write_if_changed,
)
from pyflash.codegen.cache_locks import lock_file, locked_for
from pyflash.codegen.compile_object import digest, phases_file
from pyflash.codegen.guard import guarded
from pyflash.codegen.progress import BuildProgress
from pyflash.config import OPS
from pyflash.third_party.cuda import CudaError, find_tool

# Holds codegen/ and cute_kernels/: a checkout, or pyflash/ in site-packages.
ROOT = Path(__file__).resolve().parent.parent
# What a compiler may take on a CuTe kernel; more jobs than fit would bring the machine to swap.
BYTES_PER_JOB = 4 << 30

# GCC looks for garbage, through all that is precompiled too, only when this much is in use. What is
# compiled is the same.
_LATE_COLLECTION = ["--param", "ggc-min-heapsize=1000000"]  # KiB

console = Console(stderr=True, highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Compiler:
    """`identity` stands for the compiler itself and for the headers that are not this project's.

    It and `flags` are part of an object's key. `includes`, pairs of an option and a folder of
    headers, are not: the same headers give the same object wherever they lie.
    """

    command: tuple[str, ...]
    flags: tuple[str, ...]
    includes: tuple[str, ...]
    identity: str
    suffix: str  # of its sources
    object_suffix: str = ".o"

    @property
    def is_gcc(self) -> bool:
        # `--version` speaks of it; nvcc's identity has that of its host compiler, too.
        return self.suffix == ".cpp" and "Free Software" in self.identity

    @property
    def include_dirs(self) -> list[Path]:
        """The folders of this project's headers: those that `-I` names."""
        options = zip(self.includes[::2], self.includes[1::2], strict=True)
        return [Path(folder) for option, folder in options if option == "-I"]


@dataclass(frozen=True)
class Compilation:
    """One object to be, called `label` in messages.

    The source is the file `path` where there is one; else it is emitted: `text`, written beside the
    object."""

    label: str
    stem: str
    text: str
    compiler: Compiler
    path: Path | None = None

    @classmethod
    def of_file(cls, path: Path, compiler: Compiler) -> Compilation:
        return cls(path.name, path.stem, path.read_text(), compiler, path)

    @property
    def files(self) -> Sequence[Path]:
        """The project's files that the object is made of, but for an emitted source."""
        return self._sources.files

    @property
    def digest(self) -> str:
        return self._sources.digest

    @cached_property
    def _sources(self) -> _Sources:
        return _sources_of(self.text, self.path, tuple(self.compiler.include_dirs))

    @cached_property
    def key(self) -> str:
        parts = (self.text, self.digest, *self.compiler.flags, self.compiler.identity)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    @cached_property
    def object(self) -> Path:
        name = f"{self.stem}{self.compiler.object_suffix}"
        return cache_dir() / "objects" / self.stem / self.key / name

    @property
    def source(self) -> Path:
        return self.path or self.object.with_name(f"{self.stem}{self.compiler.suffix}")

    @property
    def log(self) -> Path:
        """What the compiler printed."""
        return self.object.with_suffix(".log")

    @property
    def record(self) -> dict[str, Any]:
        """Seconds and ptxas's figures, as codegen.compile_object wrote them."""
        return json.loads(self.object.with_suffix(".json").read_text())

    @property
    def n_kernels(self) -> int:
        """The number of kernels that the compiler generates code for: combinations of features
        times architectures."""
        targets = [flag for flag in self.compiler.flags if flag.startswith("-gencode")]
        return sum(self.text.count(f"{op.features.struct}{{") for op in OPS) * len(targets)

    @property
    def command(self) -> list[str]:
        """For codegen.compile_object, which names the output."""
        compiler = self.compiler
        timing = [f"--time={phases_file(self.object)}"] if compiler.suffix == ".cu" else []
        late = _LATE_COLLECTION if compiler.is_gcc else []
        options = [*compiler.flags, *compiler.includes, *timing, *late]
        return [*compiler.command, *options, "-c", str(self.source)]

    def first_errors(self) -> str:
        """The lines of the log with the compiler's errors."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        errors = [line for line in lines if "error" in line]
        return "\n".join((errors or lines[-3:] or ["the compiler did not run"])[:3])


def compile_all(compilations: Sequence[Compilation], what: str) -> list[Compilation]:
    """Compiles those whose object is not in the cache, or not as it was written, `what` being their
    name in messages.

    Several at once, as many as cores and memory allow, going on after a failure. What another
    builder is compiling is waited for and reused. Returns the compilations that failed. However
    this process ends, no compiler outlives it.
    """
    _check_paths(compilations)
    with locked_for((), waiting) as locks:
        missing = [c for c in compilations if not _reusable(c)]
        reused = len(compilations) - len(missing)
        if not missing:
            console.print(f"{what}: all {reused} objects reused")
            return []
        n_jobs = max_jobs()
        seconds = expected_seconds(missing, n_jobs)
        expected = f", about {seconds:.0f} s" if seconds else ""
        console.print(
            f"{what}: compiling {len(missing)}, {n_jobs} at a time, reusing {reused}{expected}"
        )
        for c in missing:
            make_folder(c.object.parent)
            if c.path is None:
                write_if_changed(c.source, c.text)
        _run_ninja(missing, n_jobs, locks, seconds)
    return [c for c in missing if not c.object.exists()]


def waiting(lock: Path) -> None:
    console.print(f"waiting for another build that holds {lock}")


def _reusable(c: Compilation) -> bool:
    """Whether the object is in the cache and as it was written; what is left of another goes."""
    if object_problem(c.object) is not None and c.object.exists():
        with locked_for([c.object], waiting):
            problem = object_problem(c.object)  # another may have compiled it by now
            if problem and c.object.exists():
                console.print(f"{c.label}: {c.object}: {problem}; it is compiled again")
                discard(c.object.parent)
    found = object_problem(c.object) is None
    if found:
        used(c.object.parent)
    return found


def _check_paths(compilations: Iterable[Compilation]) -> None:
    """nvcc passes its arguments on to a shell, as they are."""
    words = {word for c in compilations if c.compiler.suffix == ".cu" for word in c.command}
    if words:
        words.add(tempfile.gettempdir())
    if unsafe := sorted(word for word in words if word.startswith("/") and not is_safe(word)):
        raise ValueError(
            f"the path {unsafe[0]!r} goes to nvcc, which passes it to a shell: expected letters, "
            "digits, spaces and /.+-_=@%:~; move it, or set CUDA_HOME, CUTLASS_PATH or TMPDIR"
        )


def expected_seconds(missing: Sequence[Compilation], n_jobs: int) -> float | None:
    """The expected seconds, if each kernel takes as long as the latest ones did; None without a
    record."""
    n_kernels = [c.n_kernels for c in missing]
    records = []
    for record in cache_dir().glob("objects/*/*/*.json"):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            records.append((record.stat().st_mtime, record))
    seconds, n_compiled = 0.0, 0
    for _, record in sorted(records)[-8:]:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            values = json.loads(record.read_text())
            if n := len(values["kernels"]):
                seconds += values["seconds"]
                n_compiled += n
    if not n_compiled or not any(n_kernels):
        return None
    n_rounds = max(sum(n_kernels) / n_jobs, *n_kernels)
    return seconds / n_compiled * n_rounds


def max_jobs() -> int:
    """Compilers to run at once: min(cores, available memory / 4 GiB), at least 1."""
    n_cores = len(os.sched_getaffinity(0))
    return max(1, min(n_cores, available_memory() // BYTES_PER_JOB))


def available_memory() -> int:
    """Bytes that this process may still take: of the machine, and of its control group."""
    meminfo = Path("/proc/meminfo").read_text()
    (available,) = (line for line in meminfo.splitlines() if line.startswith("MemAvailable"))
    limits = [int(available.split()[1]) * 1024]
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError):  # no control group of version 2
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            limits.append(int(limit) - int((group / "memory.current").read_text()))
    return min(limits)


def included_headers(
    text: str, path: Path | None = None, include_dirs: Sequence[Path] = ()
) -> list[Path]:
    """The project's headers that a source includes, directly or through others, in order of their
    names in the folders where they were found: the order is the same wherever these lie.

    They are looked for beside the file that includes them, in `include_dirs` and below ROOT. Every
    `#include "..."` counts, also one that the preprocessor would skip.
    """
    return _headers_and_places(_INCLUDE.findall(text), path, include_dirs)[0]


def _headers_and_places(
    names: Sequence[str], path: Path | None, include_dirs: Sequence[Path]
) -> tuple[list[Path], set[str]]:
    """The headers that these names lead to, and the folders that were looked into."""
    found: dict[str, str] = {}
    places: set[str] = set()
    roots = [os.path.realpath(folder) for folder in (*include_dirs, ROOT)]
    pending = [(names, str(path.parent) if path else roots[0])]
    while pending:
        names, folder = pending.pop()
        for name in names:
            candidates = [os.path.join(at, name) for at in (folder, *roots)]
            places.update(map(os.path.dirname, candidates))
            header = next((_real_path(c) for c in candidates if os.path.isfile(c)), None)
            if header and header not in found:
                parent = os.path.dirname(header)
                root = next((root for root in roots if header.startswith(f"{root}/")), parent)
                found[header] = header[len(root) + 1 :]
                status = os.stat(header)
                pending.append((_includes(header, status.st_mtime_ns, status.st_size), parent))
    return sorted(map(Path, found), key=lambda header: (found[str(header)], header)), places


@dataclass(frozen=True)
class _Sources:
    """The files of an object, as long as none of `stamps` is another."""

    files: tuple[Path, ...]
    digest: str
    stamps: dict[str, tuple[int, int] | None]  # of the files, and of the folders of their names


_known: dict[tuple[Any, ...], _Sources] = {}


def _sources_of(text: str, path: Path | None, include_dirs: tuple[Path, ...]) -> _Sources:
    """Found and read again where a file has changed, or a folder where one might be."""
    names = tuple(_INCLUDE.findall(text))
    key = (names, path, include_dirs, ROOT)
    known = _known.get(key)
    if known is None or any(_stamp(p) != stamp for p, stamp in known.stamps.items()):
        headers, places = _headers_and_places(names, path, include_dirs)
        files = (*filter(None, [path]), *headers)
        # NOTE: before they are read: what changes meanwhile is read again.
        stamps = {p: _stamp(p) for p in (*map(str, files), *places)}
        known = _known[key] = _Sources(files, digest(files), stamps)
    return known


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@functools.cache
def _includes(header: str, modified: int, size: int) -> Sequence[str]:
    """What a header includes, read again when it has changed: hundreds of sources share them."""
    return _INCLUDE.findall(Path(header).read_text())


_real_path = functools.cache(os.path.realpath)
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def _run_ninja(
    missing: Sequence[Compilation], n_jobs: int, locks: Sequence[int], seconds: float | None
) -> None:
    """Runs the commands, whether or not some fail. The build file names no inputs: what has to be
    compiled was decided by the keys, never by times."""
    with tempfile.TemporaryDirectory(prefix="pyflash-ninja-") as folder:
        lines = ["rule object", "  command = $command", "  description = $number"]
        cuobjdump = _cuobjdump()
        for i, c in enumerate(missing):
            files = [compile_object.__file__, c.object, lock_file(c.object)]
            command = [sys.executable, "-I", "-S", *map(str, files), str(n_jobs), c.digest]
            command += [cuobjdump if c.compiler.suffix == ".cu" else "", *map(str, c.files)]
            command += ["--", *c.command]
            lines += [
                f"build {_ninja_path(c.object)}: object",
                f"  command = {_ninja_text(shlex.join(command))}",
                f"  number = {i}",
            ]
        build_file = Path(folder) / "build.ninja"
        build_file.write_text(f"builddir = {_ninja_text(folder)}\n" + "\n".join(lines) + "\n")
        ninja = [sys.executable, "-m", "ninja", "-f", str(build_file), "-k", "0"]
        ninja += ["-j", str(n_jobs)]
        # NOTE: into a pipe, ninja prints one line per command, when it has ended.
        options = {
            "env": os.environ | {"NINJA_STATUS": "@ ", "TMPDIR": folder},
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
        }
        broken = []  # what is wrong with no source
        with (
            guarded(ninja, locks, remove=Path(folder), **options) as process,
            BuildProgress(console, len(missing), seconds) as progress,
        ):
            for line in process.stdout:
                if line.startswith("@ "):
                    c = missing[int(line.split()[1])]
                    progress.finished(c.label, failed=not c.object.exists())
                elif line.startswith(("ninja: error", "error: ")):
                    broken.append(line.strip().removeprefix("error: "))
        if broken:
            raise RuntimeError("; ".join(broken))


def _cuobjdump() -> str:
    """Its path, or "" where there is none."""
    try:
        return str(find_tool("cuobjdump"))
    except CudaError:
        return ""


def _ninja_text(text: str) -> str:
    return text.replace("$", "$$")


def _ninja_path(path: Path) -> str:
    return _ninja_text(str(path)).replace(" ", "$ ").replace(":", "$:")
