"""The compiled libraries: the op library, and the config map of the process.

Importing this module loads pyflash/lib/libpyflash_ops.so, which registers `torch.ops.pyflash`, and
every kernel library pyflash/lib/libpyflash_kernels-*.so, then those that `pyflash build` left in
the user's cache. Each is checked before it is mapped; one that cannot be loaded is skipped with a
warning. `load` and `build` add more at any time. The tuned tables of selection are read, too.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from pyflash.codegen import kernel_libraries, seal
from pyflash.codegen.cache_dir import CacheError, opened
from pyflash.codegen.kernel_libraries import LIB_DIR
from pyflash.codegen.trust import path_of
from pyflash.config import ARCHS, Arch, Features, KernelConfig, as_config, parse, rank
from pyflash.config.arch import archs_of
from pyflash.config.op import combinations
from pyflash.installation import VERSION
from pyflash.op.answers import forget
from pyflash.op.built import BuiltConfig as BuiltConfig
from pyflash.op.built import built_configs as built_configs
from pyflash.op.explanation import undo_explanation

OLDEST_TORCH = (2, 10)


def load(path: str | os.PathLike[str]) -> int:
    """Adds a kernel library to the config map of the process; returns how many configs it holds.

    Its kernels replace those of configs that the map holds already. Raises RuntimeError for a file
    that is no kernel library, is damaged, or was built for another version of pyflash, with the
    command that builds it again; the map is then as it was.
    """
    path = Path(path).absolute()
    with (
        kernel_libraries.checked(path, torch.ops.pyflash.kernel_library_abi()) as name,
        _calling_it(path, name),
    ):
        n_configs = torch.ops.pyflash.load_kernels(name)
        forget()
        return n_configs


def load_cubin(path: str | os.PathLike[str]) -> None:
    """Adds the kernels of a cubin, as `pyflash.codegen.kernels.compile_kernel` makes them, to those
    that the config map of the process has for their config; those with the same features are
    replaced. From then on the config runs on the cubin's architecture alone.

    Raises OSError or ValueError for a file that is not such a cubin, RuntimeError for one in the
    cache that others can have written, and where no kernel library is loaded, which is what
    launches it.
    """
    path = Path(path).absolute()
    with opened(path.with_suffix(".row.json")) as file:
        record = json.load(file)
    config, arch = parse(record["config"]), Arch.of(record["arch"])
    features = map(config.family.op.features.parse, record["kernels"])
    with opened(path) as file, _calling_it(path, name := path_of(file)):
        torch.ops.pyflash.load_cubin(
            name,
            str(config),
            ",".join(record["kernels"]),
            ",".join(record["kernels"].values()),
            config.family.nvcc_arch(arch),
            n_threads=config.n_threads,
            smem_bytes=max(map(config.smem_bytes_with, features)),
            ctas_per_sm=config.num_ctas_per_sm(arch),
            rank=rank(config),
        )
        forget()


@contextmanager
def _calling_it(path: Path, name: str) -> Iterator[None]:
    """In errors, names the file by its path instead of its descriptor's `name`."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(str(error).replace(name, str(path))) from None


def build(
    configs: KernelConfig | str | Iterable[KernelConfig | str],
    archs: Arch | str | int | Iterable[Arch | str | int] | None = None,
    features: Features | str | Iterable[Features | str] | None = None,
) -> int:
    """Compiles configs of any family and adds them to the config map of this process; returns the
    number of kernels: configs with the same `canonical` share one.

    `archs`: default PYFLASH_ARCHS, or the architectures of this machine's GPUs. `features`: the
    combinations that each config is compiled with, such as ["plain", "right_window+softcap"], by
    default those of its family.
    Configs, architectures and features are values or text, one or several.

    What is compiled is kept in the user's cache: a second build, in whatever process, only loads
    it. `pyflash build` builds for every process from its start. Raises TypeError for other types,
    ValueError for configs that break rules, `pyflash.codegen.build.BuildError` for those that do
    not compile, RuntimeError without a compiler, with the command that installs one.
    """
    # Needs a compiler, which running kernels does not.
    from pyflash.codegen.build import build_on_demand

    if isinstance(configs, KernelConfig | str):
        configs = [configs]
    configs = [as_config(config) for config in configs]
    archs = None if archs is None else archs_of(archs)
    for config in configs:
        _refuse_illegal(config, archs or ARCHS)
    if features is not None:
        features = combinations(features)
        for config in configs:  # refuses features that its op does not have
            config.family.op.features.in_dispatch_order(features)
    return load(build_on_demand(configs, archs, features))


def _refuse_illegal(config: KernelConfig, archs: Iterable[Arch]) -> None:
    """One sentence, where `build_kernels` lists every violation of every config."""
    violations = [config.violations(arch) for arch in archs]
    if all(violations):
        raise ValueError(
            f"pyflash: config '{config}' is legal on none of {', '.join(map(str, archs))}: "
            f"{violations[0][0].sentence}"
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
        version = seal.check(ops).get("version")
        if version != VERSION:
            raise seal.BadFileError(f"was built for version {version}, expected {VERSION}")
        torch.ops.load_library(ops)
    except seal.BadFileError as error:
        raise ImportError(f"{ops} {error}; to build it again: pyflash build --ops") from error
    except OSError as error:
        raise ImportError(
            f"{ops} cannot be loaded ({error}); to build it again: pyflash build --ops"
        ) from error
    undo_explanation()


def _load_kernels() -> None:
    """Loads the package's libraries first, so that kernels which the user built replace them."""
    libraries = kernel_libraries.installed(LIB_DIR)
    try:
        libraries += kernel_libraries.of_user(torch.ops.pyflash.kernel_library_abi())
    except CacheError as error:
        warnings.warn(f"pyflash: the kernels in the cache are skipped: {error}", stacklevel=2)
    for path in libraries:
        try:
            load(path)
        except RuntimeError as error:
            sentence = str(error).removeprefix("pyflash: ")
            warnings.warn(f"pyflash: skipped a library: {sentence}", stacklevel=2)


_load_ops()

# Autograd, autocast, vmap and the fake implementations need the ops registered; append has an op of
# its own.
from pyflash.op import append, autograd, fake, tables  # noqa: E402, F401
from pyflash.op.variants import autograd as _autograd_of_variants  # noqa: E402, F401

_load_kernels()
tables.load_tables()
