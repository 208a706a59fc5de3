"""The library of one emulated kernel, by ctypes: cute_kernels/emulator/c_api.h.

NOTE: ctypes and not pybind11, since that would need Python's headers, which a machine with a
compiler and Python need not have.
"""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Mapping
from ctypes import c_char_p, c_double, c_int, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from torch import Tensor

# What a GPU's allocator aligns tensors to, in bytes.
_ALIGNMENT = 512

_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "new": (c_void_p, [c_char_p, c_uint64]),
    "delete": (None, [c_void_p]),
    "add_tensor": (
        c_int,
        [
            c_void_p,
            c_char_p,
            c_void_p,
            c_int,
            ctypes.POINTER(c_int64),
            ctypes.POINTER(c_int64),
            c_int,
            c_int64,
            c_int,
        ],
    ),
    "set_integer": (c_int, [c_void_p, c_char_p, c_int64]),
    "set_float": (c_int, [c_void_p, c_char_p, c_double]),
    "n_ctas": (c_int64, [c_void_p]),
    "n_threads": (c_int, [c_void_p]),
    "smem_bytes": (c_int, [c_void_p]),
    "run_cta": (c_int, [c_void_p, c_int64]),
    "finish": (None, [c_void_p]),
    "report": (c_char_p, [c_void_p]),
}


@functools.cache
def _load(path: Path) -> ctypes.PyDLL:
    # NOTE: with the GIL held: the machine runs one kernel at a time.
    library = ctypes.PyDLL(str(path))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, f"pyflash_emulator_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class Machine:
    """One run of a kernel: add the tensors, set the numbers, run."""

    def __init__(self, library: Path, order: str, seed: int) -> None:
        self._library = _load(library)
        self._handle = self._call("new", order.encode(), seed)
        if not self._handle:
            raise MemoryError("the emulator's threads")

    def _call(self, function: str, *arguments: Any) -> Any:
        return getattr(self._library, f"pyflash_emulator_{function}")(*arguments)

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self._call("delete", self._handle)

    def add_tensor(self, name: str, tensor: Tensor, *, output: bool) -> None:
        """Memory that the kernel may read, or, an output, write; the param of this name."""
        extents = c_int64 * tensor.dim()
        misalignment = tensor.storage_offset() * tensor.element_size() % _ALIGNMENT
        known = self._call(
            "add_tensor",
            self._handle,
            name.encode(),
            tensor.data_ptr(),
            tensor.dim(),
            extents(*tensor.shape),
            extents(*tensor.stride()),
            tensor.element_size(),
            misalignment,
            output,
        )
        if known < 0:
            raise MemoryError(f"the emulator's record of {name}")
        assert known, name

    def set_params(self, values: Mapping[str, int | float]) -> None:
        for name, value in values.items():
            setter = "set_float" if isinstance(value, float) else "set_integer"
            assert self._call(setter, self._handle, name.encode(), value), name

    def run(self) -> dict[str, Any]:
        """Runs the whole grid, or up to a CTA that cannot go on; returns the report's values."""
        n_ctas = self._call("n_ctas", self._handle)
        completed = all(self._call("run_cta", self._handle, cta) for cta in range(n_ctas))
        if completed:
            self._call("finish", self._handle)
        return json.loads(self._call("report", self._handle)) | {
            "n_ctas": n_ctas,
            "n_threads": self._call("n_threads", self._handle),
            "smem_bytes": self._call("smem_bytes", self._handle),
            "completed": completed,
        }
