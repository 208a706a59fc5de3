"""`import pyflash` registers the ops wherever torch is imported, and imports no torch itself; what
type checkers and dir() see of the package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pyflash

ROOT = Path(__file__).resolve().parents[2]


def run_python(code: str, folder: Path = ROOT, **environment: str) -> str:
    """In a process of its own."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


CALL = "q = torch.zeros(1, 2, 2, 8).half(); print(torch.ops.pyflash.fwd(q, q, q)[0].shape)"


@pytest.mark.parametrize(
    "imports", ["import torch, pyflash", "import pyflash, torch", "import pyflash, torch.nn"]
)
def test_the_op_is_registered_in_either_order(imports):
    assert run_python(f"{imports}; import torch; {CALL}") == "torch.Size([1, 2, 2, 8])\n"


def test_the_op_is_registered_with_its_gradients():
    code = """if True:
        import pyflash, torch
        q = torch.ones(1, 2, 2, 8).half().requires_grad_()
        torch.ops.pyflash.fwd(q, q, q)[0].sum().backward()
        print(q.grad.shape)
    """
    assert run_python(code) == "torch.Size([1, 2, 2, 8])\n"


def test_pyflash_alone_imports_no_torch_and_leaves_its_loader_as_it_was():
    code = """if True:
        import sys, pyflash
        assert "torch" not in sys.modules
        finders = len(sys.meta_path)
        import torch
        assert len(sys.meta_path) == finders - 1
        assert "exec_module" not in vars(torch.__loader__)
    """
    run_python(code)


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
