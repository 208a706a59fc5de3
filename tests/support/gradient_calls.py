"""Gradients of attention with what each call may add to it, and the places that they are computed
in: a second stream, threads, and CUDA graphs, which replay them with other inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import pyflash

CURVED = "curved(gain: f32[1]): gain[h] * tanh(s / gain[h]) + 0.01 * (k - q)"
# Its mask makes lists of blocks on the device, before each pass.
THIRDS = f"{CURVED} where (k + q) % 3 != 0 and k < q + 70"
HEADS, D_HEAD = 4, 64
LENGTHS = (71, 0, 130)  # of packed sequences; together as many as the rows of padded ones


@dataclass(frozen=True)
class Call:
    """A call of attention, with options beside those here."""

    variant: str | None = None
    dropout_p: float = 0.0
    packed: bool = False
    deterministic: bool = False

    def inputs(self, device: str, seed: int) -> list[Tensor]:
        """q, k, v, the gradient of out, what the variant captures, the state of dropout."""
        generator = torch.Generator().manual_seed(seed)
        rows = (sum(LENGTHS),) if self.packed else (2, sum(LENGTHS))
        heads = (HEADS, HEADS // 2, HEADS // 2, HEADS)
        made = [torch.randn(*rows, n, D_HEAD, generator=generator).half() for n in heads]
        made.append(torch.linspace(1, 3 + seed, HEADS))
        made.append(torch.tensor([2**40 + seed, 8 * seed]))
        return [x.to(device) for x in made]

    def results(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """out, and the gradients of q, k and v."""
        *attended, grad_out, gain, state = inputs
        leaves = [x.detach().requires_grad_() for x in attended]
        options: dict[str, Any] = {"causal": True, "deterministic": self.deterministic}
        if self.variant:
            options |= {"variant": self.variant, "tensors": {"gain": gain}}
            options["compile"] = gain.is_cuda
        if self.dropout_p:
            options |= {"dropout_p": self.dropout_p, "dropout_state": state}
        if self.packed:
            starts = _starts(str(gain.device))
            longest = max(LENGTHS)
            out = pyflash.attention_varlen(*leaves, starts, starts, longest, longest, **options)
        else:
            out = pyflash.attention(*leaves, **options)
        return (out.detach(), *torch.autograd.grad(out, leaves, grad_out))


CALLS = {
    "plain": Call(),
    "variant": Call(CURVED),
    "mask": Call(THIRDS),
    "packed mask": Call(THIRDS, packed=True),
    "deterministic mask": Call(THIRDS, deterministic=True),
    "dropout": Call(dropout_p=0.3),
    "packed dropout": Call(dropout_p=0.3, packed=True),
    "deterministic dropout": Call(dropout_p=0.3, deterministic=True),
}

_made: dict[str, Tensor] = {}


def _starts(device: str) -> Tensor:
    """cu_seqlens, made once: a graph that is captured copies nothing from the host."""
    if device not in _made:
        _made[device] = torch.tensor([0, *LENGTHS]).cumsum(0, dtype=torch.int32).to(device)
    return _made[device]


def close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> bool:
    """By the norms of out and of each gradient: sums of gradients are added in any order."""
    return all(
        bool(torch.linalg.norm(one.double() - other.double()) <= 2e-3 * other.double().norm())
        for one, other in zip(found, expected, strict=True)
    )


def in_threads(functions: list[Callable[[], Any]]) -> list[Any]:
    """What the functions return, each in a thread of its own, all at once. Raises what one
    raised."""
    results: list[Any] = [None] * len(functions)
    barrier = threading.Barrier(len(functions))

    def work(i: int) -> None:
        try:
            barrier.wait()
            results[i] = functions[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results
