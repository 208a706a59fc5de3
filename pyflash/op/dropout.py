"""Dropout of attention's probabilities: the state that calls draw, and by definition what is kept.

The scheme is FlashAttention-2's, as in cute_kernels/common/dropout.h.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_LANES = 32
_ROUNDS = 7
_MAX_GRID = 65535  # of PyTorch's flash attention
_MASK32 = 0xFFFFFFFF


def drops(options: Mapping[str, Any]) -> bool:
    """Whether a call with these options drops anything."""
    return bool(options.get("dropout_p"))


def refuse(options: Mapping[str, Any], beside: str) -> None:
    """Raises ValueError for dropout beside something that excludes it."""
    if drops(options):
        raise ValueError(
            f"pyflash: dropout_p = {options['dropout_p']} came with {beside}: expected one of them"
        )


def with_zero_state(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with seed 0 and offset 0, where dropout has no state."""
    if not drops(options) or options.get("dropout_state") is not None:
        return dict(options)
    return {**options, "dropout_state": torch.zeros(2, dtype=torch.int64)}


def with_state(
    arguments: dict[str, Any], q: Tensor, cu_seqlens_q: Tensor | None = None
) -> dict[str, Any]:
    """The op's keyword arguments with the state of dropout, drawn where none is given, or without
    one where nothing is dropped. Shapes that the op refuses are left to it."""
    if "dropout_p" not in arguments:
        if "dropout_state" not in arguments:
            return arguments
        return {name: x for name, x in arguments.items() if name != "dropout_state"}
    if hasattr(q, "placements"):
        raise ValueError(
            f"pyflash: dropout_p = {arguments['dropout_p']} came with a DTensor: expected 0, "
            "because ranks do not know the places of their sequences and heads among all"
        )
    lengths = q if cu_seqlens_q is None else cu_seqlens_q
    if "dropout_state" in arguments or q.dim() < 3 or lengths.dim() == 0:
        return arguments
    n_sequences = lengths.shape[0] - (cu_seqlens_q is not None)
    if n_sequences < 0:
        return arguments
    return {**arguments, "dropout_state": draw_state(q.device, n_sequences, q.shape[-2])}


def draw_state(device: torch.device, n_sequences: Any, heads: Any) -> Tensor:
    """(2,), seed and offset, from the default generator of a device.

    On a GPU PyTorch's flash attention makes it, of one query and one key in each head: so the
    generator moves on by 32 for each head, as under PyTorch's own dropout, and inside of CUDA
    graphs the state is that of the replay.
    """
    if device.type != "cuda":
        return torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=device)
    for name, n in (("sequences", n_sequences), ("heads", heads)):
        if isinstance(n, int) and n > _MAX_GRID:
            raise ValueError(
                f"pyflash: dropout_p came with {n} {name}: expected at most {_MAX_GRID}, or "
                "dropout_state"
            )
    if isinstance(n_sequences, int) and isinstance(heads, int) and n_sequences * heads == 0:
        return torch.zeros(2, dtype=torch.int64, device=device)
    x = torch.zeros(8, dtype=torch.float16, device=device).expand(n_sequences, heads, 1, 8)
    made = torch.ops.aten._scaled_dot_product_flash_attention(x, x, x, 0.5, False, False, scale=1.0)
    return made[6]


def factor_of(p: float) -> float:
    """What is kept counts so many times: 1 / (1 - p), of float32."""
    one = torch.ones((), dtype=torch.float32)
    return (one / (one - p)).item()


def largest_kept(p: float) -> int:
    """Elements are kept whose random byte is at most this."""
    kept = (torch.ones((), dtype=torch.float32) - p).item()
    return math.floor(kept * 255)


def kept(options: Mapping[str, Any], batch: int, heads: int, rows: Tensor, seqlen_k: int) -> Tensor:
    """(batch, heads, rows, seqlen_k), bool: what dropout keeps of these queries' probabilities."""
    state = options["dropout_state"]
    seed, offset = (int(x) % 2**64 for x in state.tolist())
    device = rows.device
    q = rows.to(torch.int64)[:, None]
    k = torch.arange(seqlen_k, device=device)
    lane = q % 8 * 4 + k % 8 // 2
    first = [
        (offset + _LANES * i) % 2**64 for i in range(batch * heads)
    ]  # NOTE: of 64 bits, which int64 has no room for
    low = torch.tensor([x & _MASK32 for x in first], device=device)[:, None, None] + lane
    high = torch.tensor([x >> 32 for x in first], device=device)[:, None, None] + (low >> 32)
    counter = (low & _MASK32, high & _MASK32, q // 16, k // 32)
    words = philox4x32(torch.broadcast_tensors(*counter), seed, _ROUNDS)
    tile = (k // 8 % 4).expand(words[0].shape)
    word = torch.stack(words).gather(0, tile[None])[0]
    byte = word >> (16 * (q // 8 % 2) + 8 * (k % 2)) & 0xFF
    return (byte <= largest_kept(options["dropout_p"])).unflatten(0, (batch, heads))


def state_of_sequence(state: Tensor, b: int, heads: int) -> Tensor:
    """With it a call of sequence b alone drops what a call of several drops of it with `state`."""
    seed, offset = (int(x) % 2**64 for x in state.tolist())
    of_b = (offset + _LANES * heads * b) % 2**64
    signed = [x - 2**64 if x >= 2**63 else x for x in (seed, of_b)]
    return torch.tensor(signed, dtype=torch.int64, device=state.device)


def philox4x32(counter: tuple[Tensor, ...], key: int, rounds: int) -> tuple[Tensor, ...]:
    """Philox-4x32 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") of counters
    of four words, in int64, under a key of 64 bits."""
    a, b, c, d = counter
    key0, key1 = key & _MASK32, key >> 32
    for _ in range(rounds):
        (low0, high0), (low1, high1) = _product(a, 0xD2511F53), _product(c, 0xCD9E8D57)
        a, b, c, d = high1 ^ b ^ key0, low1, high0 ^ d ^ key1, low0
        key0, key1 = (key0 + 0x9E3779B9) & _MASK32, (key1 + 0xBB67AE85) & _MASK32
    return a, b, c, d


def _product(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The lower and upper 32 bits of the product of two numbers of 32 bits."""
    upper = (x >> 16) * factor  # 48 bits
    lower = (x & 0xFFFF) * factor
    middle = upper + (lower >> 16)
    return (middle & 0xFFFF) << 16 | lower & 0xFFFF, middle >> 16
