"""Compiles one object file and records what the compiler said; ninja runs one of these per object.

    python compile_object.py OBJECT LOCK JOBS DIGEST CUOBJDUMP FILES... -- COMPILER ARGUMENTS...

The compiler's output becomes OBJECT.log; seconds and ptxas's figures become OBJECT.json. The
object appears last and at once, so that one that is there is whole and has its record, with its
size and hash; it does not appear if FILES, the sources, no longer have the DIGEST that it is kept
under, nor if its machine code has a fault that CUOBJDUMP, "" for none, shows (stale_reads.py).

The file LOCK is the object's: who finds it locked waits, and takes the object that another made. Of
all builders whose locks are in one folder at most JOBS run compilers.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

_PARTIAL = ".partial-"  # cache_dir.PARTIAL; nothing of this project is imported here
_POLL_SECONDS = 0.02


def main(argv: list[str]) -> int:
    separator = argv.index("--")
    target, lock, n_jobs, expected, cuobjdump, *files = argv[:separator]
    target = Path(target)
    # NOTE: the compiler inherits both, and what it starts: they are free when all that is gone.
    with open(lock, "w") as of_object:
        fcntl.flock(of_object, fcntl.LOCK_EX)
        if target.exists():
            return 0
        with _job(Path(lock).parent, int(n_jobs)) as job:
            inherited = (of_object.fileno(), job.fileno())
            return _compile(target, expected, cuobjdump, files, argv[separator + 1 :], inherited)


def _job(folder: Path, n_jobs: int) -> TextIO:
    """The lock of one of `n_jobs`, once it is free."""
    while True:
        for i in range(n_jobs):
            file = open(folder / f"job-{i}", "w")  # noqa: SIM115
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
            else:
                return file
        time.sleep(_POLL_SECONDS)


def _compile(
    target: Path,
    expected: str,
    cuobjdump: str,
    files: Sequence[str],
    command: Sequence[str],
    locks: Sequence[int],
) -> int:
    partial = target.with_name(f"{_PARTIAL}{os.getpid()}-{target.name}")
    for stray in target.parent.glob(f"{_PARTIAL}*-{target.name}"):
        stray.unlink(missing_ok=True)
    phases = phases_file(target)
    start = time.monotonic()
    result = subprocess.run(
        [*command, "-o", partial],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=locks,
    )
    seconds = time.monotonic() - start
    log = result.stdout
    edited = digest(map(Path, files)) != expected
    if edited:
        log += "error: a source file was edited while it was compiled, build again\n"
    failed = result.returncode != 0 or edited
    if cuobjdump and not failed:
        faults = _faults(cuobjdump, partial)
        log += faults
        failed = bool(faults)
    target.with_suffix(".log").write_text(log)
    if failed:
        partial.unlink(missing_ok=True)
        return 1
    record = {
        "seconds": round(seconds, 2),
        "seconds_by_arch": seconds_by_arch(phases.read_text()) if phases.exists() else {},
        "kernels": parse_ptxas(log),
        "bytes": partial.stat().st_size,
    }
    with partial.open("rb") as file:
        record["sha256"] = content_digest(file, record)
    phases.unlink(missing_ok=True)
    target.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    partial.rename(target)
    return 0


def _faults(cuobjdump: str, target: Path) -> str:
    """Lines that name the faults of the machine code; "" for none."""
    checker = Path(__file__).with_name("stale_reads.py")
    command = [sys.executable, "-I", "-S", checker, cuobjdump, target]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return result.stdout if result.returncode != 0 else ""


def digest(files: Iterable[Path]) -> str:
    """The digest of the contents, in the order given."""
    contents = hashlib.sha256()
    for path in files:
        contents.update(hashlib.sha256(path.read_bytes()).digest())
    return contents.hexdigest()


def content_digest(file: BinaryIO, record: Mapping[str, Any]) -> str:
    """Digests the first record["bytes"] bytes of a file, and its record but for "sha256"."""
    contents = hashlib.sha256()
    file.seek(0)
    left = record["bytes"]
    while left > 0 and (block := file.read(min(left, 1 << 20))):
        contents.update(block)
        left -= len(block)
    others = {name: value for name, value in record.items() if name != "sha256"}
    contents.update(json.dumps(others, sort_keys=True).encode())
    return contents.hexdigest()


def phases_file(target: Path) -> Path:
    """Where nvcc's --time table is expected, if one is asked for."""
    return target.with_suffix(".phases.csv")


def parse_ptxas(log: str) -> list[dict[str, str | int]]:
    """What `ptxas -v` says of each kernel: arch, function, registers per thread, bytes of spill
    stores and loads, stack and static shared memory; ascending by arch and function.
    """
    kernels: list[dict[str, str | int]] = []
    properties_of = None  # may be a function that a kernel calls
    for line in log.splitlines():
        if m := re.search(r"Compiling entry function '(\S+)' for 'sm_(\d+)", line):
            kernels.append({"arch": int(m[2]), "function": m[1]})
        elif m := re.search(r"Function properties for (\S+)", line):
            properties_of = m[1]
        elif not kernels or properties_of != kernels[-1]["function"]:
            continue
        elif m := re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line
        ):
            kernels[-1] |= {
                "stack_bytes": int(m[1]),
                "spill_store_bytes": int(m[2]),
                "spill_load_bytes": int(m[3]),
            }
        elif m := re.search(r"Used (\d+) registers", line):
            smem = re.search(r"(\d+) bytes smem", line)
            kernels[-1] |= {
                "registers": int(m[1]),
                "static_smem_bytes": int(smem[1]) if smem else 0,
            }
    return sorted(kernels, key=lambda kernel: (kernel["arch"], kernel["function"]))


def seconds_by_arch(phases: str) -> dict[str, float]:
    """Seconds per architecture from nvcc's --time table; "host" is what they share."""
    seconds: dict[str, float] = {}
    for row in csv.DictReader(phases.splitlines(), skipinitialspace=True):
        cells = {key.strip(): value.strip() for key, value in row.items()}
        per_arch = cells["phase name"] in ("gcc (preprocessing 1)", "cicc", "ptxas")
        part = cells["arch"].rpartition("_")[2] if per_arch else "host"
        seconds[part] = seconds.get(part, 0.0) + float(cells["metric"]) / 1000
    return {part: round(value, 2) for part, value in sorted(seconds.items())}


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as error:  # as of a disk that is full, where no log can be written
        print(f"error: {error.filename or sys.argv[1]}: {error.strerror}")
        sys.exit(1)
