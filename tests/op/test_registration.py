"""`import pyflash` registers the ops wherever torch is imported, and imports torch itself only
where torch would not call pyflash; what type checkers and dir() see of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pyflash

ROOT = Path(__file__).resolve().parents[2]


def run_python(code: str, folder: Path = ROOT, **environment: str) -> str:
    """In a process of its own; of the environment "-S" is an option: site-packages are not read."""
    options = ["-S"] * (environment.pop("-S", None) is not None)
    result = subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def environments(tmp_path_factory) -> dict[str, tuple[Path, dict[str, str]]]:
    """The folder and the environment variables of each way in which pyflash may be found.

    "installed": torch finds the entry point; "switched off": its user lets torch call none; "on the
    path": the checkout alone, without anything that an installation of it leaves; "left over": with
    the metadata that an installation elsewhere has left beside it.
    """
    project = (ROOT / "pyproject.toml").read_text()
    (entry_point,) = re.findall(r'"torch\.backends"\]\npyflash = "(.*)"\n', project)

    def leave_metadata(folder: Path, name: str, text: str) -> None:
        (folder / name).mkdir()
        (folder / name / text).write_text("Metadata-Version: 2.1\nName: pyflash\nVersion: 1\n")
        (folder / name / "entry_points.txt").write_text(
            f"[torch.backends]\npyflash = {entry_point}\n"
        )

    def checkout(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        for part in ("pyflash", "pyflash_autoload.py", "codegen", "cute_kernels", "third_party"):
            (folder / part).symlink_to(ROOT / part)
        return folder

    def without_site(folder: Path) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join((str(others), str(folder))), "-S": ""}

    site, others = Path(torch.__file__).parents[1], tmp_path_factory.mktemp("others")
    for package in site.iterdir():
        if "pyflash" not in package.name:
            (others / package.name).symlink_to(package)
    if prefix := sys.pycache_prefix:  # else torch would be compiled once more, at its other path
        bytecode = Path(prefix, *others.parts[1:])
        bytecode.parent.mkdir(parents=True, exist_ok=True)
        bytecode.symlink_to(Path(prefix, *site.parts[1:]))
    installed, on_the_path, left_over = map(checkout, ("installed", "checkout", "left"))
    leave_metadata(installed, "pyflash-1.dist-info", "METADATA")
    leave_metadata(left_over, "pyflash.egg-info", "PKG-INFO")
    switched_off = {**without_site(installed), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    return {
        "installed": (installed, without_site(installed)),
        "switched off": (installed, switched_off),
        "on the path": (on_the_path, without_site(on_the_path)),
        "left over": (left_over, without_site(left_over)),
    }


IN_ORDER = """if True:
    import sys
    before = list(sys.meta_path)
    import pyflash
    print("torch" in sys.modules, sys.meta_path == before)
    import {torch}
    import torch
    q = torch.ones(1, 2, 2, 8).half().requires_grad_()
    out, lse = torch.ops.pyflash.fwd(q, q, q)
    out.sum().backward()
    print(q.grad.shape, sys.meta_path == before)
"""


@pytest.mark.parametrize("first", ["torch", "torch.nn"])
@pytest.mark.parametrize("way", ["installed", "switched off", "on the path", "left over"])
def test_pyflash_and_then_torch(environments, way, first):
    """The op with its gradients; torch is imported early only where it would call nothing."""
    folder, variables = environments[way]
    printed = run_python(IN_ORDER.format(torch=first), folder, **variables)
    by_torch = way in ("installed", "left over")
    assert printed == f"{not by_torch} True\ntorch.Size([1, 2, 2, 8]) True\n"


def test_torch_and_then_pyflash(environments):
    """torch alone imports nothing of pyflash but the entry point."""
    code = """if True:
        import sys, torch
        print([n for n in sys.modules if n.split(".")[0].startswith("pyflash")])
        import pyflash
        print(torch.ops.pyflash.fwd)
    """
    folder, variables = environments["installed"]
    printed = run_python(code, folder, **variables)
    assert printed == "['pyflash_autoload']\npyflash.fwd\n"


def test_without_torch_the_configs_can_be_used():
    code = """if True:
        import sys
        sys.modules["torch"] = None  # as if it were missing
        import pyflash
        print(len(pyflash.named_set("prog")))
        try:
            pyflash.attention
        except ImportError as error:
            print(error.name)
    """
    assert run_python(code) == "7\ntorch\n"


def test_a_missing_op_library_is_explained_at_the_first_use(tmp_path):
    """Once the library is there, the ops are."""
    code = """if True:
        import os, pyflash, torch
        try:
            torch.ops.pyflash.fwd
        except AttributeError as error:
            print(error)
        try:
            pyflash.attention
        except ImportError as error:
            print(error)
        os.symlink(os.environ["LIB"], pyflash.__path__[0] + "/lib")
        pyflash.attention
        print(torch.ops.pyflash.fwd)
    """
    package = ROOT / "pyflash"
    ignored = shutil.ignore_patterns("lib", "__pycache__")
    shutil.copytree(package, tmp_path / "pyflash", ignore=ignored)
    shutil.copytree(ROOT / "codegen", tmp_path / "codegen", ignore=ignored)
    printed = run_python(code, tmp_path, LIB=str(package / "lib"))
    missing, explained, registered = printed.splitlines()
    assert missing == f"torch.ops.pyflash.fwd is not registered: {explained}"
    assert explained.endswith("libpyflash_ops.so is missing; to build it: pyflash build --ops")
    assert registered == "pyflash.fwd"


@pytest.mark.parametrize("api", ["private", "public"])
def test_which_parts_of_torch_are_used_can_be_set(api):
    code = "import pyflash.op.ops; from pyflash.op.autograd import TORCH_API; print(TORCH_API)"
    assert run_python(code, PYFLASH_TORCH_API=api) == f"{api}\n"


def test_another_torch_api_is_refused():
    code = """if True:
        try:
            import torch, pyflash.op.ops
        except ImportError as error:
            print(error)
    """
    expected = "PYFLASH_TORCH_API is 'x': expected 'private' or 'public'\n"
    assert run_python(code, PYFLASH_TORCH_API="x") == expected


def test_the_ops_work_with_the_public_parts_of_torch_alone():
    """Autograd, autocast and torch.compile."""
    tests = ["test_autograd.py", "test_torch_world.py", "test_sinks.py"]
    chosen = (
        "gradients_of_some or lse_has or no_graph or in_place or checkpoints or refused or "
        "opcheck_with or autocast or gradients_of_sinks_alone or aot_eager"
    )
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", chosen, *(f"tests/op/{x}" for x in tests)],
        cwd=ROOT,
        env={**os.environ, "PYFLASH_TORCH_API": "public"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout


# What is seen of the package


def test_dir_shows_the_public_names():
    assert dir(pyflash) == sorted([*pyflash.__all__, "__version__"])
    for name in pyflash.__all__:
        assert getattr(pyflash, name) is not None


def test_a_type_checker_sees_what_is_imported_at_first_use():
    source = (ROOT / "pyflash" / "__init__.py").read_text()
    block = source.split("if TYPE_CHECKING:\n", 1)[1].split("\n\n", 1)[0]
    for name in pyflash._LAZY:
        assert f" {name}" in block.replace(",", "")
