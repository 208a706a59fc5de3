"""Compiles candidates behind the measuring of others: each with the one combination of features
that its problems need.

    python -m pyflash.tuner.builder < request > reply

is what compiles, at a low priority; it ends with the process that started it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyflash.config import Arch, Features, KernelConfig, parse
from pyflash.variant import parse as parse_variant

NICENESS = 10


@dataclass(frozen=True, order=True)
class Kernel:
    """What is compiled, a canonical config with one combination of features and the text of a
    variant or "", and into how many parts a launch splits the keys, 0 being for the rule of splits
    to choose."""

    config: KernelConfig
    features: Features
    num_splits: int = 0
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.config} x{self.num_splits}" if self.num_splits else str(self.config)

    @property
    def compiled(self) -> Kernel:
        """Which one has to be compiled."""
        return Kernel(self.config, self.features, variant=self.variant)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Kernel:
        """That a journal's record is of."""
        features = Features.parse(record["features"])
        num_splits, variant = record.get("num_splits", 0), record.get("variant", "")
        return cls(parse(record["config"]), features, num_splits, variant)


@dataclass(frozen=True)
class Built:
    """`library`, a kernel library or a cubin, where it compiled (None: nothing has to be), else
    `reason`."""

    library: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Batch:
    built: dict[Kernel, Built]
    seconds: float  # of the wall clock


class BuilderError(RuntimeError):
    """No candidate's fault: nothing can be compiled."""


class Builder(Protocol):
    batch_size: int

    def submit(self, kernels: Sequence[Kernel]) -> Future[Batch]:
        """Compiles them, after what was submitted before. The result raises BuilderError."""
        ...

    def cancel(self) -> None:
        """Ends what is running, which raises BuilderError."""
        ...

    def close(self) -> None:
        """Ends what is running, and what was submitted after."""
        ...


class NoBuilder:
    """For candidates that are built, and for a backend that needs none to be."""

    batch_size = 8

    def submit(self, kernels: Sequence[Kernel]) -> Future[Batch]:
        future: Future[Batch] = Future()
        future.set_result(Batch({kernel: Built() for kernel in kernels}, 0.0))
        return future

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        pass


class KernelBuilder:
    """nvcc, as many at a time as the machine has cores and memory for; libraries go to `folder`.

    `cubins`: whether kernels may come as cubins, which only a process that has a kernel library can
    launch.
    """

    def __init__(self, arch: Arch, folder: Path, cubins: bool = True) -> None:
        from pyflash.codegen.compilation import max_jobs

        # Two for each job: the wait for the slowest of a batch is shorter.
        self.batch_size = 2 * max_jobs()
        self._arch, self._folder, self._cubins = arch, folder, cubins
        self._thread = ThreadPoolExecutor(1)
        self._process: subprocess.Popen[str] | None = None
        self._n_batches = 0
        self._closed = False

    def submit(self, kernels: Sequence[Kernel]) -> Future[Batch]:
        self._n_batches += 1
        return self._thread.submit(self._build, list(kernels), f"tune{self._n_batches}")

    def cancel(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self._closed = True
        self.cancel()
        self._thread.shutdown(cancel_futures=True)

    def _build(self, kernels: list[Kernel], name: str) -> Batch:
        start = time.monotonic()
        request = {
            "arch": self._arch.name,
            "folder": str(self._folder),
            "name": name,
            "cubins": self._cubins,
            "kernels": [[str(k.config), str(k.features), k.variant] for k in kernels],
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pyflash.tuner.builder"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a group of its own, with the compilers
        )
        if self._closed:
            self._process.kill()
        reply, messages = self._process.communicate(json.dumps(request))
        if self._process.returncode != 0:
            last = (messages.strip().splitlines() or ["no message"])[-1]
            raise BuilderError(
                f"candidates cannot be compiled (status {self._process.returncode}): {last}"
            )
        answers = (Built(*answer) for answer in json.loads(reply))
        built = dict(zip(kernels, answers, strict=True))
        return Batch(built, time.monotonic() - start)


def build(
    kernels: Sequence[Kernel], arch: Arch | str | int, folder: Path, name: str, cubins: bool = True
) -> dict[Kernel, Built]:
    """Compiles all: with `cubins` as device code alone, which takes a fraction of the time, else in
    kernel libraries. The one place where the tuner asks the build for kernels."""
    arch = Arch.of(arch)
    if with_variant := [kernel for kernel in kernels if kernel.variant]:
        others = [kernel for kernel in kernels if not kernel.variant]
        built = _build_with_variants(with_variant, arch)
        return built | (build(others, arch, folder, name, cubins) if others else {})
    if cubins and not arch.ptx_of:
        return _build_cubins(kernels, arch)
    return _build_libraries(kernels, arch, folder, name)


def _build_cubins(kernels: Sequence[Kernel], arch: Arch) -> dict[Kernel, Built]:
    from pyflash.codegen.kernels import Request, compile_kernels

    requests = {Request(kernel.config, (kernel.features,)): kernel for kernel in kernels}
    results = compile_kernels(requests, arch)
    return {
        requests[request]: Built(library=str(result))
        if isinstance(result, Path)
        else Built(reason=result.failures[0].first_errors())
        for request, result in results.items()
    }


def _build_with_variants(kernels: Sequence[Kernel], arch: Arch) -> dict[Kernel, Built]:
    """A kernel library for each, in the cache."""
    from pyflash.codegen.build import build_with_variants, legal_archs, variant_compilations
    from pyflash.codegen.compilation import compile_all

    compilations = {}
    for kernel in kernels:
        archs_of = legal_archs([kernel.config], [arch])
        of_pair = variant_compilations([parse_variant(kernel.variant)], archs_of, [kernel.features])
        (compilations[kernel],) = of_pair.values()
    failures = compile_all(list(compilations.values()), f"{len(kernels)} candidates")
    built = {}
    for kernel, compilation in compilations.items():
        if compilation in failures:
            built[kernel] = Built(reason=compilation.first_errors())
        else:
            variant = parse_variant(kernel.variant)
            library = build_with_variants([variant], [kernel.config], [arch], [kernel.features])
            built[kernel] = Built(library=str(library))
    return built


def _build_libraries(
    kernels: Sequence[Kernel], arch: Arch, folder: Path, name: str
) -> dict[Kernel, Built]:
    """Compiles all at once, then links a library for each combination of features, because a
    library has a config once."""
    from pyflash.codegen.build import build_kernels, kernel_compilations, legal_archs
    from pyflash.codegen.compilation import compile_all

    by_features: dict[Features, list[KernelConfig]] = {}
    for kernel in kernels:
        by_features.setdefault(kernel.features, []).append(kernel.config)
    compilations = {
        Kernel(config, features): compilation
        for features, configs in by_features.items()
        for config, compilation in kernel_compilations(
            legal_archs(configs, [arch]), [features]
        ).items()
    }
    failures = compile_all(list(compilations.values()), f"{len(kernels)} candidates")
    built = {
        kernel: Built(reason=compilation.first_errors())
        for kernel, compilation in compilations.items()
        if compilation in failures
    }
    for i, (features, configs) in enumerate(by_features.items()):
        good = [config for config in configs if Kernel(config, features) not in built]
        if good:
            library = build_kernels(good, [arch], folder, f"{name}-{i}", features=[features])
            built |= {Kernel(config, features): Built(library=str(library)) for config in good}
    return built


def main() -> int:
    from pyflash.tuner.worker import end_with_parent

    end_with_parent()
    os.nice(NICENESS)
    request: dict[str, Any] = json.load(sys.stdin)
    kernels = [
        Kernel(parse(text), Features.parse(name), variant=variant)
        for text, name, variant in request["kernels"]
    ]
    folder = Path(request["folder"])
    built = build(kernels, request["arch"], folder, request["name"], request["cubins"])
    json.dump([[built[k].library, built[k].reason] for k in kernels], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
