"""The op's tests on other versions of torch, each in a virtual environment of its own.

    python tests/support/torch_versions.py [VERSION ...]

By default on the oldest and the newest supported. They are CPU builds, from PyTorch's index; an
index that serves none of a version skips it, because PyPI's own builds for Linux need gigabytes of
CUDA libraries. Environments stay in build/torch-VERSION for the next time. Not part of CI.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INDEX = "https://download.pytorch.org/whl/cpu"
VERSIONS = ("2.10.0", "2.13.0")
TESTS = (
    "test_autograd.py",
    "test_compile.py",
    "test_op_errors.py",
    "test_options.py",
    "test_registration.py",
    "test_sdpa.py",
    "test_sinks.py",
    "test_torch_world.py",
    "test_varlen.py",
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", default=VERSIONS)
    parser.add_argument("--index-url", default=INDEX, help=f"of torch (default: {INDEX})")
    arguments = parser.parse_args(argv)
    results = {version: _run(version, arguments.index_url) for version in arguments.versions}
    print(*(f"torch {version}: {result}" for version, result in results.items()), sep="\n")
    ran = [result for result in results.values() if not result.startswith("skipped")]
    return int(not ran or any(result != "passed" for result in ran))


def _run(version: str, index_url: str) -> str:
    """The result: passed, failed, or why the tests did not run."""
    folder = ROOT / "build" / f"torch-{version}"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "install", "--quiet"]
        # NOTE: the local version +cpu keeps pip from taking a CUDA build of PyPI.
        if not _succeeds(*pip, "--extra-index-url", index_url, f"torch=={version}+cpu"):
            return (
                f"skipped: no CPU build of it at {index_url}, nor where pip is configured to look"
            )
        if not _succeeds(*pip, "numpy", "pytest", "hypothesis", "ninja", "rich", "typer"):
            return "failed: its environment could not be set up"
        (folder / "installed").touch()
    tests = (f"tests/op/{name}" for name in TESTS)
    return "passed" if _succeeds(python, "-m", "pytest", "-q", *tests) else "failed"


def _succeeds(*command: str | Path) -> bool:
    print(">", *command, flush=True)
    return subprocess.run(command, cwd=ROOT).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
