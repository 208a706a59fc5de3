"""The library of one emulated kernel, by ctypes: cute_kernels/emulator/c_api.h.

NOTE: ctypes and not pybind11, since that would need Python's headers, which a machine with a
compiler and Python need not have.
"""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Mapping, Sequence
from ctypes import c_char_p, c_double, c_int, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from torch import Tensor

from pyflash.codegen import seal
from pyflash.config import KernelConfig

_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "new": (c_void_p, [c_char_p, c_uint64]),
    "delete": (None, [c_void_p]),
    "set_tensor": (
        c_int,
        [
            c_void_p,
            c_char_p,
            c_void_p,
            c_int,
            ctypes.POINTER(c_int64),
            ctypes.POINTER(c_int64),
            c_char_p,
        ],
    ),
    "set_integer": (c_int, [c_void_p, c_char_p, c_int64]),
    "set_float": (c_int, [c_void_p, c_char_p, c_double]),
    "prepare": (c_char_p, [c_void_p, c_char_p, c_int, c_int]),
    "problem": (c_char_p, [c_void_p]),
    "set_outputs": (None, [c_void_p, ctypes.POINTER(c_void_p)]),
    "n_parts": (c_int, [c_void_p]),
    "n_phases": (c_int, [c_void_p]),
    "own_phase": (c_int, [c_void_p]),
    "phase_name": (c_char_p, [c_void_p, c_int]),
    "begin_phase": (c_char_p, [c_void_p, c_int]),
    "n_ctas": (c_int64, [c_void_p]),
    "cluster": (c_int, [c_void_p]),
    "n_threads": (c_int, [c_void_p]),
    "smem_bytes": (c_int, [c_void_p]),
    "run_cluster": (c_int, [c_void_p, c_int64]),
    "finish": (None, [c_void_p]),
    "report": (c_char_p, [c_void_p]),
}


@functools.cache
def _load(path: Path) -> ctypes.PyDLL:
    # NOTE: with the GIL held: the machine runs one kernel at a time.
    with seal.checked(path) as (name, _):
        library = ctypes.PyDLL(name)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, f"pyflash_emulator_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class Machine:
    """One run of the kernels of a call: `prepare`, `set_outputs`, `run`."""

    def __init__(self, library: Path, order: str, seed: int) -> None:
        self._library = _load(library)
        self._handle = self._function("new")(order.encode(), seed)
        if not self._handle:
            raise MemoryError("the emulator's threads")

    def _function(self, name: str) -> Any:
        return getattr(self._library, f"pyflash_emulator_{name}")

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._function(name)(self._handle, *arguments)

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self._call("delete")

    def prepare(
        self, arguments: Mapping[str, Tensor | int | float | None], config: KernelConfig
    ) -> dict[str, Any]:
        """Checks a call of the op and normalises it, as the op does; `config` is the kernel's.
        Returns the numbers that the kernel gets. The tensors must outlive the run.

        Raises ValueError where the op refuses the call, TypeError for what it does not take.
        """
        for name, value in arguments.items():
            if value is not None:
                self._set_argument(name, value)
        short_form = config.short_form().encode()
        refusal = self._call("prepare", short_form, config.dtype, config.d_head)
        if refusal is not None:
            raise ValueError(refusal.decode())
        return json.loads(self._call("problem"))

    def capture(
        self,
        tensors: Sequence[Tensor],
        reals: Sequence[float],
        integers: Sequence[int],
        sums: Mapping[int, Tensor] | None = None,
    ) -> None:
        """Before `prepare`: what a variant captures, and by the place of a tensor where its
        gradient is summed. The tensors must outlive the run."""
        for i, value in enumerate(tensors):
            self._set_argument(f"variant {i}", value)
        for i, value in (sums or {}).items():
            self._set_argument(f"sums of variant {i}", value)
        for value in (*map(float, reals), *map(int, integers)):
            self._set_argument("variant", value)

    def _set_argument(self, name: str, value: Tensor | int | float) -> None:
        if isinstance(value, Tensor):
            extents = c_int64 * value.dim()
            known = self._call(
                "set_tensor",
                name.encode(),
                value.data_ptr(),
                value.dim(),
                extents(*value.shape),
                extents(*value.stride()),
                str(value.dtype).removeprefix("torch.").encode(),
            )
        else:
            setter = "set_float" if isinstance(value, float) else "set_integer"
            known = self._call(setter, name.encode(), value)
        if not known:
            raise TypeError(f"{name} = {value!r} is not an option of attention, or not of its type")

    def n_parts(self) -> int:
        """After `prepare`: the parts of out and lse that the kernel writes, which are its splits,
        or 1 where it merges them itself."""
        return self._call("n_parts")

    def set_outputs(self, *outputs: Tensor) -> None:
        """Contiguous memory for what the kernels write: out and lse, or dq, dk and dv. With
        n_parts > 1: out and lse for each part, float32, (n_parts, elements of lse, d_head) and
        (n_parts, elements of lse)."""
        pointers = (c_void_p * len(outputs))(*(output.data_ptr() for output in outputs))
        self._call("set_outputs", pointers)

    def run(self) -> dict[str, Any]:
        """Runs the kernels in a row, each over its grid, or up to a cluster that cannot go on;
        returns the values of the report of the config's own, with the findings of all."""
        own, findings, found = self._call("own_phase"), [], {}
        for phase in range(self._call("n_phases")):
            values = self._run_phase(phase)
            name = self._call("phase_name", phase).decode()
            findings += [finding | {"kernel": name} for finding in values["findings"]]
            if phase <= own:
                found = values
            if not values["completed"]:
                found["completed"] = False
                break
        return found | {"findings": findings}

    def _run_phase(self, phase: int) -> dict[str, Any]:
        if failure := self._call("begin_phase", phase):
            raise RuntimeError(failure.decode())
        n_ctas, cluster = self._call("n_ctas"), self._call("cluster")
        completed = all(self._call("run_cluster", cta) for cta in range(0, n_ctas, cluster))
        if completed:
            self._call("finish")
        return json.loads(self._call("report")) | {
            "n_ctas": n_ctas,
            "cluster": cluster,
            "n_threads": self._call("n_threads"),
            "smem_bytes": self._call("smem_bytes"),
            "completed": completed,
        }
