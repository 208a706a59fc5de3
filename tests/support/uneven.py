"""Random batches of sequences of different lengths, padded and packed, beside fp64. What no query
attends is NaN: rows past the ends, and one sequence from end to end."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyflash import attention, attention_varlen
from pyflash.op.reference import expect_varlen


@dataclass(frozen=True)
class Uneven:
    q: Tensor  # (batch, seqlen_q, heads, d_head)
    k: Tensor
    v: Tensor
    seqlens_q: Tensor  # (batch,), int32
    seqlens_k: Tensor
    options: dict[str, Any]
    nan_sequence: int | None

    @property
    def places(self) -> tuple[Tensor, Tensor]:
        """The rows of q and of k that are used, (batch, seqlen)."""
        pairs = ((self.q, self.seqlens_q), (self.k, self.seqlens_k))
        return tuple(
            torch.arange(x.shape[1], device=x.device) < lengths[:, None] for x, lengths in pairs
        )

    @property
    def packed(self) -> tuple[Any, ...]:
        """The arguments of attention_varlen for the rows that are used."""
        of_q, of_k = self.places
        starts = [
            torch.nn.functional.pad(x.cumsum(0), (1, 0)).int()
            for x in (self.seqlens_q, self.seqlens_k)
        ]
        largest = (self.q.shape[1], self.k.shape[1])
        return (self.q[of_q], self.k[of_k], self.v[of_k], *starts, *largest)


def make_uneven(
    seed: int,
    device: str = "cpu",
    longest: int = 300,
    d_head: int = 0,
    dtype: torch.dtype | None = None,
) -> Uneven:
    chance = random.Random(seed)
    d_head = d_head or chance.choice((16, 64, 64, 96, 128, 128))
    chosen = chance.choice((torch.float16, torch.bfloat16))
    batch = chance.randint(1, 6)
    heads, heads_kv = chance.choice(((1, 1), (4, 2), (3, 1), (8, 2)))
    few = chance.random() < 0.3

    def lengths(most: int) -> list[int]:
        kinds = (0, 1, chance.randint(1, 16), chance.randint(1, most), most)
        return [min(chance.choice(kinds), most) for _ in range(batch)]

    seqlen_k = chance.randint(1, longest)
    seqlen_q = chance.randint(1, 8) if few else chance.randint(1, longest)
    of_q = lengths(seqlen_q)
    same = not few and chance.random() < 0.5
    of_k = [min(n, seqlen_k) for n in of_q] if same else lengths(seqlen_k)
    options: dict[str, Any] = chance.choice(
        (
            {},
            {"causal": True},
            {"causal": True, "window_left": chance.randint(0, 100)},
            {"window_left": chance.randint(0, 50), "window_right": chance.randint(0, 50)},
            {"attention_chunk": chance.randint(1, 100)},
        )
    )
    generator = torch.Generator(device).manual_seed(seed)

    def randn(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=device)

    if chance.random() < 0.2:
        options["softcap"] = chance.choice((1.0, 30.0))
    if chance.random() < 0.3:
        options["sinks"] = randn(heads)
    nan_sequence = chance.randrange(batch) if chance.random() < 0.5 else None
    tensors = []
    for seqlen, used, n in ((seqlen_q, of_q, heads), *[(seqlen_k, of_k, heads_kv)] * 2):
        x = randn(batch, seqlen, n, d_head).to(dtype or chosen)
        for b, length in enumerate(used):
            x[b, 0 if b == nan_sequence else length :] = torch.nan
        tensors.append(x)
    int32 = {"dtype": torch.int32, "device": device}
    seqlens = (torch.tensor(of_q, **int32), torch.tensor(of_k, **int32))
    return Uneven(*tensors, *seqlens, options, nan_sequence)


def check_used(case: Uneven, out: Tensor, lse: Tensor) -> None:
    """out and lse as `attention` returns them with seqlens_q and seqlens_k."""
    is_used = case.places[0]
    assert (out[~is_used] == 0).all()
    assert (lse.transpose(1, 2)[~is_used] == -torch.inf).all()
    check_packed(case, out[is_used], lse.transpose(1, 2)[is_used].T)


def check_packed(case: Uneven, out: Tensor, lse: Tensor) -> None:
    """out and lse as attention_varlen returns them."""
    q, k, v, *lengths = case.packed
    if case.nan_sequence is not None:
        of_q, of_k = (
            torch.repeat_interleave(x.diff().to(torch.int64)) == case.nan_sequence
            for x in lengths[:2]
        )
        out, lse = out.clone(), lse.clone()
        out[of_q], lse[:, of_q] = 0, -torch.inf
        # The sequence has no keys in the reference, and no sink.
        seqlens_k = case.seqlens_k.clone()
        seqlens_k[case.nan_sequence] = 0
        q, k, v = q.masked_fill(of_q[:, None, None], 0), k[~of_k], v[~of_k]
        lengths[1] = torch.nn.functional.pad(seqlens_k.cumsum(0), (1, 0)).int()
    expected = expect_varlen(q, k, v, *lengths[:2], **case.options)
    if case.nan_sequence is not None and "sinks" in case.options:
        lse[:, of_q] = expected.lse[:, of_q].to(lse)
    expected.check(out, lse)


def run_uneven(seed: int, device: str = "cpu", **how: Any) -> None:
    """Padded with lengths, and packed, beside fp64. The seed makes the case again."""
    case = make_uneven(seed, device, **how)
    lengths = {"seqlens_q": case.seqlens_q, "seqlens_k": case.seqlens_k}
    try:
        padded = attention(case.q, case.k, case.v, return_lse=True, **lengths, **case.options)
        check_used(case, *padded)
        packed = attention_varlen(*case.packed, return_lse=True, **case.options)
        check_packed(case, *packed)
    except Exception as error:
        error.add_note(f"support.uneven.run_uneven({seed}, {device!r}, **{how})")
        raise
