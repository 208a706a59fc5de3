"""Autograd, autocast and vmap of the ops.

`torch.library.register_autograd` is the public way, but costs every call of the op some
microseconds on the host, those without gradients too, and takes no keyword-only tensors. So
there are two implementations: `private_api`, fast, which uses private parts of torch, and
`public_api`, which does not. The environment variable PYFLASH_TORCH_API, "private" or "public",
picks one; by default the first if this torch has what it needs. With "public" torch.func transforms
(grad) raise, and so do gradients by the formula on a GPU.
"""

from __future__ import annotations

import os

import torch

from pyflash.op.autograd import private_api, public_api
from pyflash.op.autograd.formulas import FORWARDS, SECOND_DERIVATIVES, VMAP, refusal
from pyflash.op.options import OPTIONS, TENSORS

_APIS = {"private": private_api, "public": public_api}


def _picked() -> str:
    default = "private" if private_api.is_available() else "public"
    name = os.environ.get("PYFLASH_TORCH_API") or default
    if name not in _APIS:
        raise ImportError(f"PYFLASH_TORCH_API is {name!r}: expected 'private' or 'public'")
    return name


TORCH_API = _picked()
above_autograd = _APIS[TORCH_API].above_autograd
autocast = _APIS[TORCH_API].autocast
call_op = _APIS[TORCH_API].call_op
is_seen_by_nobody = _APIS[TORCH_API].is_seen_by_nobody


def _register(library: torch.library.Library) -> None:
    api = _APIS[TORCH_API]
    for forward in FORWARDS:
        api.register_forward(library, forward)
        for device_type, key in (("cuda", "AutocastCUDA"), ("cpu", "AutocastCPU")):
            library.impl(forward.name, api.autocast(forward, device_type, key), key)
        library.impl(forward.name, refusal(VMAP), "FuncTorchBatched")
    own = [OPTIONS[name].gradient for name in TENSORS if OPTIONS[name].gradient]
    for name in ("bwd", "bwd_varlen", *own):
        api.register_backward(library, name, refusal(SECOND_DERIVATIVES))
        library.impl(name, refusal(VMAP), "FuncTorchBatched")


_library = torch.library.Library("pyflash", "FRAGMENT")
_register(_library)
