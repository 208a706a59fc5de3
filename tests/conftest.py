"""Fixtures of all tests, and what `pytest -m gpu` means.

The tests marked gpu are in test_gpu_*.py, and no others are. With `-m gpu` only these modules are
imported: a machine with a GPU may hold no more than torch, pytest, a checkout and its prebuilt
libraries. With `-m "not gpu"` only the others are.
"""

from __future__ import annotations

import functools
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from pyflash import DType, FlashForwardKernelConfig, named_set
from pyflash.config.arch import Arch

if TYPE_CHECKING:
    from support.machine_code import PlainKernel

# Where Python writes no bytecode, each process that a test starts would compile torch anew, for
# seconds: those of one session share a folder instead.
BYTECODE: str | None = None
if os.environ.get("PYTHONDONTWRITEBYTECODE"):
    BYTECODE = tempfile.mkdtemp(prefix="pyflash-bytecode-")
    del os.environ["PYTHONDONTWRITEBYTECODE"]
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = BYTECODE
    sys.dont_write_bytecode = False

try:
    from hypothesis import HealthCheck, settings
except ImportError:
    pass  # as on a machine that has a GPU and little else
else:  # a busy machine is no fault
    quiet = [HealthCheck.too_slow]
    settings.register_profile("pyflash", deadline=None, suppress_health_check=quiet)
    settings.load_profile("pyflash")

try:
    import typer.testing
except ImportError:
    pass  # as above
else:  # else each line that a test types makes every command anew, for a tenth of a second
    typer.testing._get_command = functools.cache(typer.testing._get_command)

# In the background of a script SIGINT is ignored, and then by processes that tests start and stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# NOTE: their keys lack the schemas of ops, so that a graph of another version of an op is found.
for _cache in ("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE"):
    os.environ[_cache] = "0"


def pytest_configure() -> None:
    """Workers of pytest-xdist, of which there is one for each core, compute in one thread each, and
    so do the processes that they start: threads of several workers wait for each other."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        if "torch" in sys.modules:  # it has read the variable
            sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def pytest_collection_finish() -> None:
    """What was collected stays: the collector of garbage need not look through it again, nor at
    what is new after each 700 objects, which takes a tenth of what Python does."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    if "torch" in sys.modules and not sys.modules["torch"].cuda.is_available():
        _seed_the_cpu_alone(sys.modules["torch"])


def _seed_the_cpu_alone(torch: ModuleType) -> None:
    """Without a GPU torch.manual_seed puts down, for three kinds of devices that may come, where it
    was called from, which takes longer than many a small problem."""

    def manual_seed(seed: int) -> torch.Generator:
        return torch.default_generator.manual_seed(int(seed))

    torch.manual_seed = torch.random.manual_seed = manual_seed


def pytest_unconfigure() -> None:
    if BYTECODE:
        shutil.rmtree(BYTECODE, ignore_errors=True)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.suffix != ".py":
        return None
    of_gpu = _holds_gpu_tests(collection_path)
    return {"gpu": not of_gpu, "not gpu": of_gpu}.get(config.option.markexpr) or None


# The files that take longest, longest first: a worker that began one of them last would be waited
# for. The rest follows in the order of names.
LONG = (
    "test_every_command.py",
    "test_transformers_sweep.py",
    "test_build.py",
    "test_compile.py",
    "test_ptxas.py",
    "test_native.py",
    "test_emulator_fixed_splits.py",
    "test_emulator_backward_planted.py",
    "test_emulator_backward.py",
    "test_emulator_captured.py",
    "test_emulator_problems.py",
    "test_packaging.py",
    "test_emulator_dropout.py",
    "test_emulator_streams.py",
    "test_emulator_backward_packed.py",
    "test_emulator_variant_gradients.py",
    "test_new_option.py",
    "test_emulator_keyless.py",
    "test_examples.py",
    "test_emulator_variants.py",
    "test_ptxas_backward.py",
    "test_emulator_paged.py",
    "test_registration.py",
    "test_only.py",
    "test_emulator_backward_sm80.py",
    "test_emulator_shares.py",
    "test_emulator_sm90.py",
    "test_kernels.py",
    "test_emulator_refusals.py",
    "test_emulator_sm90_planted.py",
    "test_emulator_clusters.py",
    "test_select.py",
    "test_escaping.py",
    "test_transformers.py",
    "test_tuning.py",
    "test_emulator_rows_decide.py",
    "test_exhaustive.py",
    "test_typing.py",
    "test_emulator_planted.py",
    "test_serve.py",
    "test_markdown.py",
    "test_sass_variants.py",
    "test_emulator_mask_bits.py",
    "test_new_op.py",
    "test_continuous_batching.py",
    "test_emulator_variant_programs.py",
    "test_killed_builders.py",
    "test_told_apart.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONG)))
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        for item in items:
            if item.get_closest_marker("times"):
                item.add_marker(pytest.mark.skip("compares times: run it without -n"))
    reason = why_no_gpu()
    for item in items:
        marked = item.get_closest_marker("gpu")
        if marked and not _holds_gpu_tests(item.path):
            raise pytest.UsageError(f"{item.nodeid} is marked gpu: move it to a test_gpu_*.py")
        if not marked and _holds_gpu_tests(item.path):
            raise pytest.UsageError(f"{item.nodeid} is not marked gpu: move it to another file")
        if marked and reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def _holds_gpu_tests(path: Path) -> bool:
    return path.name.startswith("test_gpu_")


def why_no_gpu() -> str | None:
    """What keeps the tests marked gpu from running here, if anything."""
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a CPU build"
    if not torch.cuda.is_available():
        return "torch finds no CUDA GPU"
    return None


@pytest.fixture(autouse=True)
def _no_answers_of_other_tests() -> None:
    """A test may replace what answers follow from."""
    if answers := sys.modules.get("pyflash.op.answers"):
        answers.forget()


@pytest.fixture(scope="session")
def built_arch() -> Arch:
    """What `built_library` is compiled for, GPU or not."""
    return Arch.of("sm_90")


@pytest.fixture(scope="session")
def uncaptured(pytestconfig: pytest.Config) -> Callable[[], AbstractContextManager]:
    """For builds, which take minutes where nothing is in the cache: shows what they print."""

    @contextmanager
    def context() -> Iterator[None]:
        capture = pytestconfig.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print(file=sys.stderr)
            yield

    return context


@pytest.fixture(scope="session")
def library_configs() -> list[FlashForwardKernelConfig]:
    """What `built_library` holds, with every combination of features, each of which takes nvcc
    seconds. Plain kernels of others are in `plain_kernels`."""
    return [named_set("prog")[-1].replace(dtype=DType.BF16, d_head=64)]


@pytest.fixture(scope="session")
def built_library(
    library_configs: list[FlashForwardKernelConfig],
    built_arch: Arch,
    tmp_path_factory: pytest.TempPathFactory,
    uncaptured: Callable[[], AbstractContextManager],
) -> Path:
    """A kernel library as users build them."""
    from pyflash.codegen.build import build_kernels

    with uncaptured():
        return build_kernels(library_configs, [built_arch], tmp_path_factory.mktemp("lib"), "some")


@pytest.fixture(scope="session")
def plain_kernels(
    built_arch: Arch, uncaptured: Callable[[], AbstractContextManager]
) -> dict[FlashForwardKernelConfig, PlainKernel]:
    """The plain kernels of `machine_code.CONFIGS`."""
    from support.machine_code import compile_plain_kernels

    with uncaptured():
        return compile_plain_kernels(built_arch)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can look into, as pytest's are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def use_umask() -> Iterator[Callable[[int], int]]:
    """Sets the umask of this process, until the test ends."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)
