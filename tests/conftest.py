"""Fixtures of all tests. Collecting the tests needs torch and pytest only: a machine with a GPU may
hold no more than these, a checkout and its prebuilt libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

# What kernels are compiled for in tests, GPU or not.
TEST_ARCH = "sm_90"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_no_gpu()
    for item in items:
        if reason and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))


def why_no_gpu() -> str | None:
    """What keeps the tests marked gpu from running here, if anything."""
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a CPU build"
    if not torch.cuda.is_available():
        return "torch finds no CUDA GPU"
    return None


@pytest.fixture(scope="session")
def built_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernel library that is built by default, for one architecture, from cached objects where
    there are any: minutes, the first time."""
    pytest.importorskip("ninja", reason="building kernels needs ninja, and nvcc")
    from codegen.build import build_kernels
    from pyflash.space import named_set

    return build_kernels(named_set("all"), [TEST_ARCH], tmp_path_factory.mktemp("lib"), "all")
