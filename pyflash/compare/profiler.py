"""Runs the CUTLASS profiler, `cutlass_profiler`, on GEMMs."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from pyflash.bench import profiler_csv
from pyflash.bench.profiler_csv import Profile, ProfileError
from pyflash.bench.work import DTYPE_NAMES, Gemm

WARMUP_ITERATIONS = 5
PROFILING_ITERATIONS = 20
SECONDS_LIMIT = 900  # for one GEMM; a build with all of CUTLASS's kernels has thousands


class ProfilerError(RuntimeError):
    """No profiler, or one that failed."""


def find_profiler(path: str | Path | None = None) -> Path:
    """`path`, else the variable CUTLASS_PROFILER, else cutlass_profiler on PATH.

    The first of these that is given is used or refused. Raises ProfilerError where it cannot be
    run, or where there is none.
    """
    named = path or os.environ.get("CUTLASS_PROFILER")
    if named:
        found = Path(named).expanduser()
        if found.is_dir():
            found /= "cutlass_profiler"
        if not (found.is_file() and os.access(found, os.X_OK)):
            raise ProfilerError(f"{named}: no cutlass_profiler that can be run")
        return found.resolve()
    on_path = shutil.which("cutlass_profiler")
    if on_path is None:
        raise ProfilerError(
            "cutlass_profiler not found: build it from a CUTLASS checkout (target "
            "cutlass_profiler), then pass its path, set CUTLASS_PROFILER or put it on PATH"
        )
    return Path(on_path)


def command(
    profiler: Path, gemm: Gemm, output: Path, kernels: str | None = None, verify: bool = False
) -> list[str]:
    """`kernels` is the profiler's pattern; by default every kernel with the dtype in its name.

    With `verify` the profiler compares each result with its reference, on the device.
    """
    return [
        str(profiler),
        "--operation=Gemm",
        f"--m={gemm.m}",
        f"--n={gemm.n}",
        f"--k={gemm.k}",
        f"--batch_count={gemm.batch_count}",
        f"--kernels={kernels or f'*{DTYPE_NAMES[gemm.dtype]}*'}",
        f"--A={gemm.A}",
        f"--B={gemm.B}",
        f"--warmup-iterations={WARMUP_ITERATIONS}",
        f"--profiling-iterations={PROFILING_ITERATIONS}",
        f"--verification-enabled={str(verify).lower()}",
        f"--output={output}",
    ]


def run_profiler(
    profiler: Path, gemm: Gemm, kernels: str | None = None, verify: bool = False
) -> Profile:
    """A row for each kernel of the profiler that fits the GEMM, whatever atoms it is made of.

    Raises ProfilerError where the profiler fails, or has no kernel that fits.
    """
    with tempfile.TemporaryDirectory(prefix="pyflash-profiler-") as folder:
        arguments = command(profiler, gemm, Path(folder) / "gemms.csv", kernels, verify)
        try:
            result = subprocess.run(
                arguments, capture_output=True, text=True, cwd=folder, timeout=SECONDS_LIMIT
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProfilerError(f"{shlex.join(arguments)}: {error}") from None
        # It names its file after the kind of operation.
        written = Path(folder) / "gemms.gemm.csv"
        if not written.is_file():
            said = (result.stdout + result.stderr).strip()[-2000:]
            raise ProfilerError(
                f"{shlex.join(arguments)}: no results, exit status {result.returncode}\n{said}"
            )
        try:
            found = profiler_csv.read(written)
        except ProfileError as error:
            raise ProfilerError(f"{shlex.join(arguments)}: {error}") from None
    if not found.rows:
        reasons = "\n".join(map(str, found.refused)) or "its build has no kernel that fits"
        raise ProfilerError(f"{shlex.join(arguments)}: no kernel ran: {reasons}")
    return found
