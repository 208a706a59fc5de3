"""The compiled libraries: the op library, and the config map of the process.

Importing this module loads pyflash/lib/libpyflash_ops.so, which registers `torch.ops.pyflash`, and
every kernel library pyflash/lib/libpyflash_kernels-*.so; one that cannot be loaded is skipped with
a warning. `load` and `build` add more at any time.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from pyflash.config import Arch, Features, KernelConfig, parse, rank
from pyflash.op import registration

LIB_DIR = Path(__file__).resolve().parents[1] / "lib"
OLDEST_TORCH = (2, 10)


@dataclass(frozen=True, slots=True)
class BuiltConfig:
    """A row of the config map: what is compiled for one config."""

    config: KernelConfig
    features: tuple[Features, ...]  # combinations, in the order of dispatch
    sm_archs: tuple[str, ...]  # targets of the machine code, such as ("80", "90a")
    ptx_arch: int  # PTX of this one, for newer devices; 0: none
    n_threads: int  # per CTA
    smem_bytes: int  # per CTA
    rank: int  # the selection rule's order of preference, smaller first


def load(path: str | os.PathLike[str]) -> int:
    """Adds a kernel library to the config map of the process; returns how many configs it holds.

    Its kernels replace those of configs that the map holds already. Raises RuntimeError for a file
    that cannot be loaded or that was built for another version of pyflash.
    """
    return torch.ops.pyflash.load_kernels(str(Path(path).resolve()))


def load_cubin(path: str | os.PathLike[str]) -> None:
    """Adds the kernels of a cubin, as `pyflash.codegen.kernels.compile_kernel` makes them, to those
    that the config map of the process has for their config; those with the same features are
    replaced. From then on the config runs on the cubin's architecture alone.

    Raises OSError or ValueError for a file that is not such a cubin, RuntimeError for one of
    another family than SM80, and where no kernel library is loaded, which is what launches it.
    """
    path = Path(path).resolve()
    record = json.loads(path.with_suffix(".row.json").read_text())
    config, arch = parse(record["config"]), Arch.of(record["arch"])
    torch.ops.pyflash.load_cubin(
        str(path),
        str(config),
        ",".join(record["kernels"]),
        ",".join(record["kernels"].values()),
        config.family.nvcc_arch(arch),
        n_threads=config.n_threads,
        smem_bytes=config.smem_bytes,
        ctas_per_sm=config.num_ctas_per_sm(arch),
        rank=rank(config),
    )


def built_configs() -> dict[KernelConfig, BuiltConfig]:
    """The config map, in ascending order: every config that `attention` can run on a GPU."""
    rows = [_built_config(**row) for row in json.loads(torch.ops.pyflash.config_map())]
    return {row.config: row for row in rows}


def build(
    configs: KernelConfig | str | Iterable[KernelConfig | str],
    archs: Iterable[Arch | str | int] | None = None,
    features: Iterable[Features | str] | None = None,
) -> int:
    """Compiles configs of any family and adds them to the config map of this process; returns the
    number of kernels: configs with the same `canonical` share one.

    `archs`: default PYFLASH_ARCHS, or the architectures of this machine's GPUs. `features`: the
    combinations that each config is compiled with, such as ["plain", "right_window+softcap"], by
    default those of its family.
    Objects are cached, so a second build is only a link; `pyflash build` builds for every process.
    Raises ValueError for configs that break rules, with every rule, and
    `pyflash.codegen.build.BuildError` for those that do not compile.
    """
    # Needs a compiler, which running kernels does not.
    from pyflash.codegen.build import build_kernels

    if isinstance(configs, KernelConfig | str):
        configs = [configs]
    # A new path each time: for a known one the loader returns what it has loaded before.
    with tempfile.TemporaryDirectory(prefix="pyflash-") as folder:
        library = build_kernels(configs, archs, Path(folder), name="session", features=features)
        return load(library)


def _built_config(config: str, features: list[str], sm_archs: str, **values: int) -> BuiltConfig:
    return BuiltConfig(
        parse(config),
        tuple(map(Features.parse, features)),
        tuple(filter(None, sm_archs.split(","))),
        **values,
    )


def _load_ops() -> None:
    if torch.torch_version.TorchVersion(torch.__version__) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise ImportError(
            f"pyflash needs torch >= {oldest}, this is {torch.__version__}: pip install -U torch"
        )
    ops = LIB_DIR / "libpyflash_ops.so"
    if not ops.exists():
        raise ImportError(f"{ops} is missing; to build it: pyflash build --ops")
    try:
        torch.ops.load_library(ops)
    except OSError as error:
        raise ImportError(
            f"{ops} cannot be loaded ({error}); to build it again: pyflash build --ops"
        ) from error
    registration.undo_explanation()


def _load_kernels() -> None:
    for path in sorted(LIB_DIR.glob("libpyflash_kernels-*.so")):
        try:
            load(path)
        except RuntimeError as error:
            warnings.warn(f"pyflash: {path} is skipped: {error}", stacklevel=2)


_load_ops()

# Autograd, autocast, vmap and the fake implementations need the ops registered.
from pyflash.op import autograd, fake  # noqa: E402, F401

_load_kernels()
