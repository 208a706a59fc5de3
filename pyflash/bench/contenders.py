"""The contenders: callables over (q, k, v), each (batch, seqlen, heads, d_head)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from pyflash.bench import packages
from pyflash.bench.records import OURS
from pyflash.bench.variants import Given
from pyflash.config import FORWARD, KernelConfig
from pyflash.op.backward import kernels
from pyflash.op.ops import attention
from pyflash.op.selection import Problem, select

BASELINE = "PyTorch flash"
FLEX = "flex"  # the one beside which variants are timed

# PyTorch's own backends, in the order of tables; the first is the baseline.
_SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
BACKENDS = (*_SDPA, *packages.PACKAGES)


@dataclass(frozen=True)
class Contender:
    """`run` returns out, shaped as q; it is called inside `context()`."""

    name: str
    run: Callable[[Tensor, Tensor, Tensor], Tensor]
    config: KernelConfig | None = None
    context: Callable[[], AbstractContextManager] = nullcontext


def pyflash_configs(configs: Iterable[KernelConfig], causal: bool = False) -> list[Contender]:
    """A config of op forward has the gradients of whatever computes them, one of op backward the
    results of the selected forward pass."""
    return [
        Contender(
            name=str(config),
            run=functools.partial(
                attention if config.family.op is FORWARD else _with_gradients_by,
                causal=causal,
                config=str(config.canonical()),
            ),
            config=config,
        )
        for config in configs
    ]


class _GradientsByConfig(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, config: str, causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = torch.ops.pyflash.fwd(q, k, v, causal=causal)
        ctx.options = {"causal": causal, "config": config}
        ctx.save_for_backward(out, lse, q, k, v)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *kernels.bwd(grad_out, *ctx.saved_tensors, **ctx.options))


def _with_gradients_by(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, config: str) -> Tensor:
    return _GradientsByConfig.apply(config, causal, q, k, v)


def selected(problem: Problem) -> Contender:
    """pyflash without a named config. Raises RuntimeError where it refuses the problem, or has no
    kernel for it."""
    run = functools.partial(attention, causal=bool(problem.options.get("causal")))
    return Contender(OURS, run, select(problem).config)


def with_variant(
    problem: Problem, given: Given, configs: Sequence[KernelConfig], names: Sequence[str] | None
) -> list[Contender]:
    """FlexAttention, where `names` have it or on a GPU by default, and pyflash with these configs,
    or the default one. Kernels that are not built are compiled at the first call.

    Raises ValueError for another name: no other attention takes a variant.
    """
    on_gpu = torch.device(problem.device).type == "cuda"
    names = ([FLEX] if on_gpu else []) if names is None else names
    if others := set(names) - {FLEX}:
        raise ValueError(f"--backend {min(others)} takes no variant: expected {FLEX} or none")
    flex = [Contender(title_of(FLEX), packages.flex_with(problem, given))] if names else []
    run = functools.partial(attention, compile=on_gpu, **given.arguments)
    if not configs:
        return [*flex, Contender(OURS, run)]
    return [
        *flex,
        *(
            Contender(str(config), functools.partial(run, config=str(config.canonical())), config)
            for config in configs
        ),
    ]


def backends(problem: Problem, names: Sequence[str] | None = None) -> list[Contender]:
    """The attention of others, by the names in `BACKENDS`; by default every one that is importable
    and meant for the problem's device. The first is the baseline.

    Raises ValueError for an unknown name, ImportError for a named one that is not installed.
    """
    device = torch.device(problem.device)
    if names is None:
        names = [name for name in BACKENDS if _is_default(name, device)]
    check_backends(names)
    return [_backend(name, problem) for name in BACKENDS if name in names]


def check_backends(names: Iterable[str]) -> None:
    """Raises ValueError for a name that is not in `BACKENDS`."""
    if unknown := set(names) - set(BACKENDS):
        raise ValueError(f"unknown backends {sorted(unknown)}: expected {', '.join(BACKENDS)}")


def title_of(backend: str) -> str:
    """What it is called in records."""
    return f"PyTorch {backend}" if backend in _SDPA else packages.PACKAGES[backend].title


def _is_default(name: str, device: torch.device) -> bool:
    """Efficient and math write or recompute every score, which on a CPU is all there is."""
    if device.type == "cpu":
        return name in ("flash", "math")
    if name == "cudnn":
        return torch.backends.cudnn.is_available()
    return name != "math" and (name in _SDPA or packages.is_installed(name))


def _backend(name: str, problem: Problem) -> Contender:
    causal = bool(problem.options.get("causal"))
    if name in _SDPA:
        return Contender(
            name=title_of(name),
            run=functools.partial(_scaled_dot_product, causal=causal),
            context=functools.partial(sdpa_kernel, _SDPA[name]),
        )
    return Contender(title_of(name), packages.attention(name, problem))


def _scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """NOTE: its flag is_causal is top-left aligned; what is bottom-right aligned is a bias."""
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    same_length = q.shape[1] == k.shape[1]
    bias = None
    if causal and not same_length:
        from torch.nn.attention.bias import causal_lower_right  # takes seconds: torch.compile's

        bias = causal_lower_right(q.shape[1], k.shape[1])
    out = torch.nn.functional.scaled_dot_product_attention(
        *heads_first,
        attn_mask=bias,
        is_causal=causal and same_length,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)
