"""What the tests of the emulator share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from pyflash.codegen import emulated
from pyflash.codegen.cache_dir import cache_dir
from pyflash.config import KernelConfig, KernelFeatures
from pyflash.variant import Variant
from pyflash.variant.summed import Summed

_build = emulated.build_emulated
_built: dict[object, dict[KernelConfig, Path]] = {}


def _build_once(
    configs: Iterable[KernelConfig | str],
    variant: Variant | Summed | None = None,
    features: Sequence[KernelFeatures] | None = None,
) -> dict[KernelConfig, Path]:
    configs = tuple(configs)
    key = (cache_dir(), configs, variant, features and tuple(features))
    if key not in _built:
        _built[key] = _build(configs, variant, features)
    return _built[key]


@pytest.fixture(autouse=True, scope="module")
def _each_library_is_looked_up_once() -> Iterator[None]:
    """`build_emulated` looks at some thousand files each time, for as long as the emulator takes to
    run a small problem. No source changes while these tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulated, "build_emulated", _build_once)
        yield
