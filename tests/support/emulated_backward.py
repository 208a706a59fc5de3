"""The kernels of the SM90 backward on the emulated machine: tests/support/emulate_backward.h."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from pyflash.codegen import toolchain
from pyflash.codegen.build import BuildError
from pyflash.codegen.cache_dir import cache_dir, locked
from pyflash.codegen.compilation import ROOT, Compilation, compile_all, waiting
from pyflash.codegen.linking import link, reusable
from pyflash.op.reference import attended

ORDERS = ("ascending", "descending", "random")
NO_WINDOW = 1 << 30
DTYPES = {"FP16": torch.float16, "BF16": torch.bfloat16}

# What answers the calls of op forward's emulator.
_OF_FORWARD = {"c_api.cpp", "params.cpp", "report.cpp"}


@dataclass(frozen=True)
class Shape:
    batch: int
    heads: int
    heads_kv: int
    seqlen_q: int
    seqlen_k: int
    d_head: int
    window_left: int = NO_WINDOW
    window_right: int = NO_WINDOW

    @property
    def features(self) -> str:
        """The least BackwardFeatures that cover it."""
        windows = (self.window_right, self.window_left)
        return ", ".join(str(window < NO_WINDOW).lower() for window in windows)


class _Sizes(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int)
        for name in (
            *("batch", "heads", "heads_kv", "seqlen_q", "seqlen_k"),
            *("d_head", "window_left", "window_right", "order"),
        )
    ] + [("scale", ctypes.c_float)]


_TENSORS = ("q", "k", "v", "o", "grad_o", "lse", "grad_lse", "dq", "dk", "dv")


def run(config: str, shape: Shape, order: str, **tensors: Tensor) -> list[str]:
    """The findings of a call. config: the fields of FlashBackwardSm90Config in C++."""
    sizes = _Sizes(
        *(getattr(shape, name) for name, _ in _Sizes._fields_[:-2]),
        ORDERS.index(order),
        shape.d_head**-0.5,
    )
    pointers = (ctypes.c_void_p * len(_TENSORS))(*(tensors[name].data_ptr() for name in _TENSORS))
    for name in _TENSORS:
        assert tensors[name].is_contiguous(), name
    findings = _library(config, shape.features).emulate_backward(sizes, pointers)
    return findings.decode().splitlines()


@functools.cache
def _library(config: str, features: str) -> ctypes.PyDLL:
    unit = Compilation(
        label=f"the backward ({config})",
        stem="emulated_backward",
        text=_text(config, features),
        compiler=toolchain.emulator_compiler(watch_registers=True),
    )
    machine = [
        Compilation.of_file(path, toolchain.emulator_compiler())
        for path in sorted((ROOT / "cute_kernels" / "emulator").glob("*.cpp"))
        if path.name not in _OF_FORWARD
    ]
    objects = [unit, *machine]
    key = hashlib.sha256("".join(c.key for c in objects).encode()).hexdigest()[:16]
    path = cache_dir() / "emulated" / key / "emulated_backward.so"
    with locked(waiting):
        if not reusable(path):
            if failures := compile_all(objects, "the backward for the CPU"):
                raise BuildError(failures, len(objects))
            link(path, objects, ["-Wl,--no-undefined"])
    library = ctypes.PyDLL(str(path))
    library.emulate_backward.argtypes = [_Sizes, ctypes.POINTER(ctypes.c_void_p)]
    library.emulate_backward.restype = ctypes.c_char_p
    return library


def _text(config: str, features: str) -> str:
    return f"""#include "tests/support/emulate_backward.h"

// NOTE: not in the function, where g++ asks the sanitizer's library whether it exists.
static std::string findings;

extern "C" __attribute__((visibility("default"))) char const* emulate_backward(
    pyflash::sm90::backward::Sizes sizes, void* const* tensors) {{
  using namespace pyflash::sm90::backward;
  EmulatedBackward<FlashBackwardSm90Config{{{config}}}, BackwardFeatures{{{features}}}> backward(
      sizes, tensors);
  findings = backward.run();
  return findings.c_str();
}}
"""


def exact_gradients(
    q: Tensor, k: Tensor, v: Tensor, shape: Shape
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """o, lse, random gradients of both, and dq, dk, dv by them, in fp64."""
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    group = shape.heads // shape.heads_kv
    keys, values = (t.repeat_interleave(group, dim=2) for t in leaves[1:])
    scores = torch.einsum("bihd,bjhd->bhij", leaves[0], keys) * shape.d_head**-0.5
    rows = torch.arange(shape.seqlen_q)
    windows = [w if w < NO_WINDOW else -1 for w in (shape.window_left, shape.window_right)]
    mask = attended(rows, shape.seqlen_q, shape.seqlen_k, *windows)
    scores = scores.masked_fill(~mask, -torch.inf)
    empty = ~mask.any(dim=1)
    lse = scores.masked_fill(empty[:, None], 0).logsumexp(dim=3)
    p = (scores - lse[..., None]).exp()
    o = torch.einsum("bhij,bjhd->bihd", p, values).contiguous()
    grad_o, grad_lse = torch.randn_like(o).to(q.dtype), torch.randn(lse.shape)
    upstream = (grad_lse.double().masked_fill(empty, 0), grad_o.double())
    gradients = torch.autograd.grad((lse, o), leaves, upstream)
    lse = lse.detach().float().masked_fill(empty, -torch.inf)
    return o.detach().to(q.dtype), lse, grad_o, grad_lse, *gradients
