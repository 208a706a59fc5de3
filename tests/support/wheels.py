"""The source distribution and a wheel, in dist/, each tested in an environment of its own.

    python tests/support/wheels.py [--kernels SET_OR_CONFIGS] [--archs 80,90]

The wheel is built from the source distribution. With architectures it holds kernels: those of a set
or of short forms, with semicolons between. An environment has this one's packages but pyflash, and
no nvcc on its PATH: what is installed needs none.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
PIP = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
AS_IT_IS = ["--no-deps", "--no-build-isolation"]  # with the packages that are there
NEW_SDIST = "import codegen.build_backend as backend, sys; backend.build_sdist(sys.argv[1])"
# Run in a folder without a checkout; the arguments are the environment's folder and how many
# architectures the wheel has kernels for.
CHECK = """
import importlib.metadata, sys, time
from pathlib import Path

import torch

import pyflash
from pyflash.op.reference import check

folder, n_archs = Path(sys.argv[1]), int(sys.argv[2])
assert Path(pyflash.__file__).is_relative_to(folder), pyflash.__file__
metadata = importlib.metadata.metadata("pyflash")
assert metadata["Version"] == pyflash.__version__
assert metadata["License-Expression"] == "BSD-3-Clause"
for name in metadata.get_all("License-File"):
    (found,) = folder.glob(f"**/pyflash-*.dist-info/licenses/{name}")
    assert found.read_text().strip(), name
q, k, v = (torch.randn(2, 65, 2, 64, dtype=torch.float16) for _ in range(3))
check(pyflash.attention(q, k, v, causal=True), q, k, v, causal=True)
configs = pyflash.built_configs()
assert bool(configs) == bool(n_archs), configs
print(f"pyflash {pyflash.__version__}: {len(configs)} configs with kernels")
if n_archs and torch.cuda.is_available():
    start = time.perf_counter()
    pyflash.attention(q.cuda(), k.cuda(), v.cuda())
    torch.cuda.synchronize()
    print(f"first call on a GPU: {time.perf_counter() - start:.2f} s")
"""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", default="all", help="a set, or short forms with ; between")
    parser.add_argument("--archs", default="", help="such as 80,90; none by default")
    asked = parser.parse_args(argv)
    n_archs = len(asked.archs.replace(";", ",").split(",")) if asked.archs else 0
    kernels = {"PYFLASH_KERNELS": asked.kernels, "PYFLASH_ARCHS": asked.archs}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sdist = new_sdist(folder / "sdist")
        wheel = new_wheel(sdist, folder / "wheel", kernels)
        test(wheel, folder / "of the wheel", n_archs)
        test(sdist, folder / "of the sdist", 0)
        DIST.mkdir(exist_ok=True)
        for path in (sdist, wheel):
            shutil.copy(path, DIST)
            print(f"dist/{path.name}: {path.stat().st_size / 1e6:.1f} MB, tested")


def new_sdist(folder: Path) -> Path:
    folder.mkdir()
    left = ROOT / "pyflash.egg-info"
    was_there = left.exists()
    run([sys.executable, "-c", NEW_SDIST, folder], ROOT, stdout=subprocess.DEVNULL)
    if not was_there:
        shutil.rmtree(left)
    (path,) = folder.glob("*.tar.gz")
    return path


def new_wheel(sdist: Path, folder: Path, kernels: Mapping[str, str]) -> Path:
    folder.mkdir()
    run([*PIP, "wheel", *AS_IT_IS, "-w", folder, sdist], folder, kernels)
    (path,) = folder.glob("*.whl")
    return path


def test(package: Path, folder: Path, n_archs: int) -> None:
    """Installs a distribution into an environment of its own, and uses it there."""
    venv.create(folder)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    # NOTE: a line of a .pth adds a folder, but not the .pth files in it: no editable install.
    (site / "packages.pth").write_text("".join(f"{path}\n" for path in packages_of_this()))
    run([*PIP, "--python", python, "install", *AS_IT_IS, package], folder, {"PYFLASH_ARCHS": ""})
    bare = {"PATH": f"{folder}/bin:/usr/bin:/bin", "PYFLASH_CACHE_DIR": f"{folder}/cache"}
    run([python, "-c", CHECK, site, n_archs], folder, bare)
    run([folder / "bin" / "pyflash", "info", "--json"], folder, bare, stdout=subprocess.DEVNULL)


test.__test__ = False  # type: ignore[attr-defined]


def packages_of_this() -> list[str]:
    return [path for path in sys.path if path.endswith("-packages")]


def run(
    command: list[object],
    cwd: Path,
    more: Mapping[str, str] | None = None,
    stdout: int | None = None,
) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = list(map(str, command))
    subprocess.run(words, cwd=cwd, env=env | dict(more or {}), check=True, stdout=stdout)


if __name__ == "__main__":
    main()
