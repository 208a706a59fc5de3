"""The package as it is installed: complete outside the checkout, of no Python version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

import pyflash
from pyflash import __version__
from pyflash.codegen import build_backend, toolchain
from pyflash.codegen.compilation import ROOT
from pyflash.third_party import cuda, cutlass, packages

SOURCES = ("codegen", "cute_kernels", "pyflash", "third_party")
IN_NO_WHEEL = ("tests", "docs", "examples")
FILES = (
    "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE",
    "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", ".clang-format", "pyflash_autoload.py",
)  # fmt: skip


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """The source distribution. Made from a copy, as setuptools leaves files beside the sources."""
    copy = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__", "lib")
    for name in (*SOURCES, *IN_NO_WHEEL):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    leave_a_stale_library(copy)
    folder = tmp_path_factory.mktemp("sdist")
    code = f"import codegen.build_backend as b; b.build_sdist({str(folder)!r})"
    run([sys.executable, "-c", code], cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)})
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder)
    return folder / f"pyflash-{__version__}"


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory) -> Path:
    """The wheel of the source distribution."""
    copy = tmp_path_factory.mktemp("sources") / "copy"
    shutil.copytree(unpacked, copy)
    leave_a_stale_library(copy)
    folder = tmp_path_factory.mktemp("wheel")
    run(
        [*pip("wheel"), "--no-deps", "--no-build-isolation", "-w", folder, copy],
        cwd=folder,
        env=os.environ | {"PYFLASH_ARCHS": ""},
    )
    (path,) = folder.glob("*.whl")
    return path


def leave_a_stale_library(sources: Path) -> None:
    stale = sources / "pyflash" / "lib" / "libpyflash_kernels-stale.so"
    stale.parent.mkdir()
    stale.write_bytes(b"of another day")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory) -> Path:
    """A folder to put on the path; dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("site")
    run([*pip("install"), "--no-deps", "--no-index", "--target", folder, wheel], cwd=folder)
    return folder


def pip(command: str) -> list[str]:
    return [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", command]


def run(command: list, cwd: Path, **options) -> str:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def run_installed(installed: Path, arguments: list[str], cwd: Path) -> str:
    env = os.environ | {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    return run([sys.executable, *arguments], cwd=cwd, env=env)


def test_the_source_distribution_is_the_checkout(unpacked: Path):
    def files(root: Path) -> set[Path]:
        return {
            path.relative_to(root)
            for name in (*SOURCES, *IN_NO_WHEEL)
            for path in (root / name).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
        }

    assert files(unpacked) == {f for f in files(ROOT) if f.parts[:2] != ("pyflash", "lib")}
    assert not [name for name in FILES if not (unpacked / name).is_file()]
    assert not list(unpacked.rglob("*.so"))


def test_the_tests_of_the_source_distribution_are_found(unpacked: Path, tmp_path: Path):
    """Once it is installed, as CONTRIBUTING says: the op library is all that it lacks."""
    copy = tmp_path / "copy"
    shutil.copytree(unpacked, copy)
    library = Path("pyflash/lib/libpyflash_ops.so")
    (copy / library).parent.mkdir()
    shutil.copy(ROOT / library, copy / library)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    command += ["--assert", "plain"]  # half of the time is the rewriting of assertions
    found = run(command, cwd=copy, env=env).splitlines()
    modules = {line.split("::")[0] for line in found if "::" in line}
    assert modules == {str(path.relative_to(copy)) for path in copy.glob("tests/**/test_*.py")}


def test_the_wheel_is_of_a_platform_but_of_no_python_version(wheel: Path):
    assert wheel.name.startswith("pyflash-")
    assert "-py3-none-linux_" in wheel.name


def test_the_wheel_holds_what_builds_more_configs(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {
        str(Path("" if name == "pyflash" else "pyflash") / path.relative_to(ROOT))
        for name in SOURCES
        for path in (ROOT / name).rglob("*")
        if path.suffix in (".py", ".h", ".cuh", ".cu", ".cpp", ".map")
    }
    assert sources <= names
    on_top = {"pyflash", "pyflash_autoload.py", f"pyflash-{__version__}.dist-info"}
    assert {name.split("/")[0] for name in names} == on_top
    libraries = {name for name in names if name.endswith(".so")}
    assert libraries == {"pyflash/lib/libpyflash_ops.so"}


def test_the_op_runs_outside_the_checkout(installed: Path, tmp_path: Path):
    """torch calls the installed entry point, which registers it."""
    code = """if True:
        import sys, pyflash
        assert "torch" not in sys.modules
        import torch
        torch.ops.pyflash.fwd
        from pyflash.op.reference import check
        q, k, v = (torch.randn(1, 65, 2, 64, dtype=torch.float16) for _ in range(3))
        check(pyflash.attention(q, k, v), q, k, v)
        print(pyflash.__file__)
    """
    assert run_installed(installed, ["-c", code], tmp_path).startswith(str(installed))


@pytest.mark.parametrize("pyflash_is", ["installed", "a checkout"])
def test_a_project_may_have_packages_of_the_same_names(installed, tmp_path, pyflash_is):
    for name in ("codegen", "third_party", "cute_kernels"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('of the project')\n")
    code = """if True:
        import pyflash, torch
        from pyflash.codegen.build import kernel_compilations, legal_archs
        from pyflash.codegen.emulated import build_emulated
        from pyflash.third_party import cutlass
        pyflash.build, pyflash.emulate
        archs_of = legal_archs(pyflash.named_set("prog")[:1], [90])
        (compilation,) = kernel_compilations(archs_of).values()
        print(*compilation.files, sep="\\n")
    """
    where = installed if pyflash_is == "installed" else ROOT
    path = os.pathsep.join(map(str, (tmp_path, where)))
    env = {**os.environ, "PYTHONPATH": path, "PYFLASH_CACHE_DIR": str(tmp_path / "cache")}
    files = run([sys.executable, "-c", code], cwd=tmp_path, env=env).splitlines()
    assert len(files) > 10
    roots = (f"{where}/", f"{tmp_path / 'cache'}/generated/")
    assert [file for file in files if not file.startswith(roots)] == []


def test_codegen_runs_outside_the_checkout(installed: Path, tmp_path: Path):
    arguments = ["-m", "pyflash.codegen", "--ops", "--out", str(tmp_path / "lib")]
    run_installed(installed, arguments, tmp_path)
    assert (tmp_path / "lib" / "libpyflash_ops.so").exists()
    emitted = run_installed(
        installed, ["-m", "pyflash.codegen", "--set", "prog", "--emit-to", "cpp"], tmp_path
    )
    files = [path for path in (tmp_path / "cpp").rglob("*") if path.is_file()]
    assert f"cpp: {len(files)} files written, 0 unchanged" in emitted
    assert sum(path.suffix == ".cu" for path in files) == len(pyflash.named_set("prog"))


def test_the_editable_install_of_this_environment_is_this_checkout(tmp_path: Path):
    try:
        distribution("pyflash")
    except PackageNotFoundError:
        pytest.skip("pyflash is not installed in this environment; `make test` installs it")
    code = "import pyflash.codegen; print(pyflash.__path__[0])"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    assert run([sys.executable, "-c", code], cwd=tmp_path, env=env).strip() == str(ROOT / "pyflash")


def test_only_what_is_missing_is_asked_for(monkeypatch):
    monkeypatch.setenv("PYFLASH_ARCHS", "90")
    monkeypatch.setattr(toolchain, "package_dirs", lambda _: [])
    monkeypatch.setattr(cutlass, "package_dirs", lambda _: [])
    monkeypatch.setattr(cuda, "_find", lambda _: None)
    monkeypatch.delenv("CUTLASS_PATH", raising=False)
    cuda.find_nvcc.cache_clear()
    asked = build_backend.missing_packages()
    assert asked == ["torch>=2.10", "nvidia-cutlass==4.2.0.0", *cuda.COMPILER_WHEELS]
    monkeypatch.undo()
    cuda.find_nvcc.cache_clear()
    assert "torch>=2.10" not in build_backend.missing_packages()


def test_an_isolated_build_finds_the_environment_that_it_builds_for(monkeypatch):
    """pip hides site-packages from the build; sysconfig still knows it.
    Pitfall 2: pip's isolated build finds no torch or the wrong one."""
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda _: None)
    assert toolchain.torch_dir().name == "torch"
    assert (cutlass.include_dir() / "cute" / "tensor.hpp").is_file()


def test_pins_are_those_of_the_metadata():
    metadata = (ROOT / "pyproject.toml").read_text()
    for requirement in (toolchain.TORCH, cutlass.WHEEL, *cuda.COMPILER_WHEELS):
        assert f'"{requirement}"' in metadata


@pytest.mark.parametrize("found", ["nothing", "another version"])
def test_wrong_cutlass_path_says_what_to_do(tmp_path: Path, monkeypatch, found: str):
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path))
    if found == "another version":
        for name in ("cute/tensor.hpp", "cutlass/version.h"):
            path = tmp_path / "include" / name
            path.parent.mkdir(parents=True)
            path.write_text(
                "#define CUTLASS_MAJOR 3\n#define CUTLASS_MINOR 5\n#define CUTLASS_PATCH 1\n"
            )
    with pytest.raises(cutlass.CutlassError) as error:
        cutlass.include_dir()
    assert str(tmp_path) in str(error.value)
    assert "4.2.0" in str(error.value)
    assert ("3.5.1" in str(error.value)) == (found == "another version")


def test_no_compiler_says_what_to_install(monkeypatch):
    monkeypatch.setattr(cuda, "_find", lambda _: None)
    cuda.find_nvcc.cache_clear()
    with pytest.raises(cuda.CudaError, match=r"pip install nvidia-cuda-nvcc==13\.0\.88"):
        cuda.find_nvcc()
    cuda.find_tool.cache_clear()
    with pytest.raises(cuda.CudaError, match="pip install nvidia-cuda-cuobjdump"):
        cuda.find_tool("cuobjdump")
