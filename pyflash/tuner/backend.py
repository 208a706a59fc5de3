"""What candidates are measured with. A backend lives in a worker process (`pyflash.tuner.worker`),
which may crash or hang.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from pyflash.op import library
from pyflash.op.selection import Problem
from pyflash.tuner.problems import problem_from_json, problem_name
from pyflash.tuner.workload import Contender, Workload
from pyflash.ui.variants import AskedVariant

# config, a short form, num_splits, and library, the path of a kernel library or a cubin, or None
Candidate = dict[str, Any]
Samples = list[list[float]]


class Backend(Protocol):
    """Any callable that gives one, called with the options as keyword arguments, can be named as
    "module:name". Values go through JSON."""

    def check(self, problem: dict[str, Any], candidate: Candidate) -> tuple[float, float]:
        """(error, bound). Raises AssertionError for a wrong result and RuntimeError for a candidate
        that does not run, each with the reason."""
        ...

    def sample(
        self, problem: dict[str, Any], candidates: list[Candidate], n_samples: int
    ) -> Samples:
        """Seconds per call: `n_samples` of each, in turns. Raises as `check` does."""
        ...

    def is_usable(self) -> bool:
        """Whether it can go on after an exception; a device may be in an error that stays."""
        ...


class TorchBackend:
    """`torch.ops.pyflash` on a device: by CUDA events, or on the CPU, where a config needs no
    library, by the wall clock.

    `cold`: inputs are rotated so that L2 does not hold them.
    """

    MOST_WORKLOADS = 16

    def __init__(self, device: str = "cuda", cold: bool = True, seed: int = 0) -> None:
        self._device, self._cold, self._seed = torch.device(device), cold, seed
        self._workloads: dict[str, Workload] = {}
        self._cubins: set[str] = set()

    def check(self, problem: dict[str, Any], candidate: Candidate) -> tuple[float, float]:
        return self._workload(problem).check(self._load(candidate))

    def sample(
        self, problem: dict[str, Any], candidates: list[Candidate], n_samples: int
    ) -> Samples:
        workload = self._workload(problem)
        contenders = [self._load(candidate) for candidate in candidates]
        return workload.sample(contenders, n_samples)

    def is_usable(self) -> bool:
        if self._device.type != "cuda":
            return True
        try:
            torch.cuda.synchronize(self._device)
        except RuntimeError:
            return False
        return True

    def _load(self, candidate: Candidate) -> Contender:
        """Loads a kernel library each time: another one may have the config for another problem's
        features. A cubin adds its features to those that the config has."""
        path = candidate["library"]
        if path and path.endswith(".so"):
            library.load(path)
        elif path and path not in self._cubins:
            library.load_cubin(path)
            self._cubins.add(path)
        return Contender(candidate["config"], candidate["num_splits"])

    def _workload(self, values: dict[str, Any]) -> Workload:
        asked = AskedVariant.of_json(values) if "variant" in values else None
        of_problem = {k: v for k, v in values.items() if k not in ("variant", "values")}
        problem: Problem = problem_from_json(of_problem, str(self._device))
        name = problem_name(problem, asked)
        if name not in self._workloads:
            while self._workloads and self._is_full():
                del self._workloads[next(iter(self._workloads))]
                if self._device.type == "cuda":
                    torch.cuda.empty_cache()
            self._workloads[name] = Workload(problem, self._seed, self._cold, asked)
        return self._workloads[name]

    def _is_full(self) -> bool:
        if len(self._workloads) >= self.MOST_WORKLOADS:
            return True
        if self._device.type != "cuda":
            return False
        free, total = torch.cuda.mem_get_info(self._device)
        return free < total / 2
