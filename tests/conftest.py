"""Fixtures of all tests, and what `pytest -m gpu` means.

The tests marked gpu are in test_gpu_*.py, and with `-m gpu` only these modules are imported: a
machine with a GPU may hold no more than torch, pytest, a checkout and its prebuilt libraries.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from pyflash import FlashForwardKernelConfig, named_set
from pyflash.arch import Arch


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.option.markexpr == "gpu" and collection_path.suffix == ".py":
        return not _may_hold_gpu_tests(collection_path) or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_no_gpu()
    for item in items:
        if item.get_closest_marker("gpu"):
            if not _may_hold_gpu_tests(item.path):
                raise pytest.UsageError(f"{item.nodeid} is marked gpu: move it to a test_gpu_*.py")
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def _may_hold_gpu_tests(path: Path) -> bool:
    return path.name.startswith("test_gpu_")


def why_no_gpu() -> str | None:
    """What keeps the tests marked gpu from running here, if anything."""
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a CPU build"
    if not torch.cuda.is_available():
        return "torch finds no CUDA GPU"
    return None


@pytest.fixture(scope="session")
def built_arch() -> Arch:
    """What `built_library` is compiled for, GPU or not."""
    return Arch.of("sm_90")


@pytest.fixture(scope="session")
def build_showing_progress(
    built_arch: Arch, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Callable[[Iterable[FlashForwardKernelConfig], str], Path]:
    """Builds a kernel library for `built_arch`, of cached objects where there are any: minutes, the
    first time, so what the build prints is not captured."""
    from codegen.build import build_kernels

    def build(configs: Iterable[FlashForwardKernelConfig], name: str) -> Path:
        capture = pytestconfig.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print(file=sys.stderr)
            return build_kernels(configs, [built_arch], tmp_path_factory.mktemp("lib"), name)

    return build


@pytest.fixture(scope="session")
def built_library(
    build_showing_progress: Callable[[Iterable[FlashForwardKernelConfig], str], Path],
) -> Path:
    """The kernel library that is built by default."""
    return build_showing_progress(named_set("all"), "all")
