"""Sequences of different lengths in one call, as people train and serve: named workloads, and every
attention of packed sequences that is importable."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from pyflash.bench.records import OURS
from pyflash.bench.timing import Calls, Timing, time_in_turns
from pyflash.op.ops import attention_varlen
from pyflash.op.reference import attention_ref, tolerance
from pyflash.ui.tables import Table

_CHECKED_ROWS = 64  # the last ones of two sequences: the reference writes every score
_SMALLER_ON_CPU = 64
_EQUAL = "equal documents"


@dataclass(frozen=True)
class Workload:
    """Sequences, packed, causal within each."""

    kind: str  # packed, ragged or mixed
    lengths_q: tuple[int, ...]
    lengths_k: tuple[int, ...]
    heads: int
    heads_kv: int
    d_head: int

    @property
    def title(self) -> str:
        n, total = len(self.lengths_k), sum(self.lengths_k)
        return (
            f"{self.kind}: {n} sequences, {sum(self.lengths_q):,} queries, {total:,} keys, at most "
            f"{max(self.lengths_k):,}; {self.heads} heads on {self.heads_kv}, d {self.d_head}"
        )

    @property
    def scores(self) -> float:
        """Pairs that are attended, of one head; a diagonal counts as half of its square."""
        pairs = zip(self.lengths_q, self.lengths_k, strict=True)
        return sum(q * (k - q / 2) for q, k in pairs)

    @property
    def n_bytes(self) -> int:
        """q, k and v read once, and out written, in 16 bits."""
        rows = 2 * sum(self.lengths_q) * self.heads + 2 * sum(self.lengths_k) * self.heads_kv
        return 2 * self.d_head * rows

    @property
    def equal(self) -> Workload | None:
        """As many documents of one length; None where sequences are no whole documents."""
        if self.lengths_q != self.lengths_k:
            return None
        n = len(self.lengths_q)
        lengths = (sum(self.lengths_q) // n,) * n
        return replace(self, lengths_q=lengths, lengths_k=lengths)

    def smaller(self, factor: int) -> Workload:
        q, k = (
            tuple(max(n // factor, 1) for n in lengths)
            for lengths in (self.lengths_q, self.lengths_k)
        )
        return replace(self, lengths_q=q, lengths_k=k)


def _lognormal(middle: float, sigma: float, generator: torch.Generator) -> int:
    return int(middle * torch.exp(sigma * torch.randn(1, generator=generator)))


def _packed() -> Iterator[Workload]:
    """Documents of lognormal lengths that fill a number of tokens."""
    generator = torch.Generator().manual_seed(5)
    for tokens, middle, sigma, heads, d_head in (
        (16384, 700, 1.0, 16, 128),
        (65536, 700, 1.0, 16, 128),
        (65536, 2000, 1.0, 16, 128),
        (65536, 700, 1.0, 32, 64),
        (65536, 150, 1.2, 16, 128),
        (32768, 4000, 1.5, 16, 128),
    ):
        lengths: list[int] = []
        while (left := tokens - sum(lengths)) > 0:
            lengths.append(max(1, min(_lognormal(middle, sigma, generator), left)))
        yield Workload("packed", tuple(lengths), tuple(lengths), heads, heads, d_head)


def _ragged() -> Iterator[Workload]:
    """Decodes of caches of lognormal lengths, the first ones of 256."""
    normal = torch.randn(256, generator=torch.Generator().manual_seed(1234))
    lengths = (1500 * torch.exp(1.2 * normal)).round().clamp(1, 32768).int().tolist()
    for batch in (8, 64, 256):
        yield Workload("ragged", (1,) * batch, tuple(lengths[:batch]), 32, 8, 128)


def _mixed() -> Iterator[Workload]:
    """A chunk of a prompt beside decodes; then each of the two alone, its parts."""
    chunk, decodes = ((2048,), (8192,)), ((1,) * 63, (4096,) * 63)
    for lengths in ((chunk[0] + decodes[0], chunk[1] + decodes[1]), chunk, decodes):
        yield Workload("mixed", *lengths, 32, 8, 128)


WORKLOADS: dict[str, Callable[[], Iterator[Workload]]] = {
    "packed": _packed,
    "ragged": _ragged,
    "mixed": _mixed,
}


@dataclass(frozen=True)
class UnevenResult:
    workload: Workload
    device: str
    contender: str
    status: str  # "ok", or why it was not timed
    error: float | None = None
    bound: float | None = None
    timing: Timing | None = None
    tflops: float | None = None
    gb_per_second: float | None = None
    ratio: float | None = None  # of pyflash's seconds to those of the contender
    # The time of equal documents for as many scores, over that of these.
    of_ideal: float | None = None

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"timing": asdict(self.timing) if self.timing else None}


@dataclass(frozen=True)
class _Packed:
    q: Tensor
    k: Tensor
    v: Tensor
    starts_q: Tensor
    starts_k: Tensor
    longest_q: int
    longest_k: int


_Run = Callable[[_Packed], Tensor]


def measure(
    name: str, device: torch.device, n_samples: int, dtype: torch.dtype
) -> Iterator[list[UnevenResult]]:
    """A result for each contender, workload by workload. On the CPU lengths are 64 times shorter.
    A contender that raises, or is wrong, is not timed."""
    for workload in WORKLOADS[name]():
        if device.type == "cpu":
            workload = workload.smaller(_SMALLER_ON_CPU)
        yield _measure(workload, device, n_samples, dtype)


def _measure(
    workload: Workload, device: torch.device, n_samples: int, dtype: torch.dtype
) -> list[UnevenResult]:
    buffers = _buffers(workload, device, dtype)
    expected = [_expected(buffers[0], workload, b) for b in _checked(workload)]
    results, timed = [], {}
    for name, make in _contenders(device).items():
        result = UnevenResult(workload, str(device), name, "ok")
        try:
            run = make(workload, buffers[0])
            out = run(buffers[0])
        except Exception as error:  # of any package, which must not end the run of the others
            words = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            results.append(replace(result, status=f"refused: {words}"))
            continue
        error = max(_error(out[rows], ref) for rows, ref, _ in expected)
        bound = max(bound for *_, bound in expected)
        status = "ok" if error <= bound else "wrong"
        results.append(replace(result, status=status, error=error, bound=bound))
        if status == "ok":
            timed[name] = _calls(run, buffers)
    if OURS in timed and (equal := workload.equal) is not None:
        timed[_EQUAL] = _calls(_ours, _buffers(equal, device, dtype))
    timings = time_in_turns(timed, device, n_samples) if timed else {}
    return [_with_timing(result, timings) for result in results]


def _with_timing(result: UnevenResult, timings: dict[str, Timing]) -> UnevenResult:
    workload, timing = result.workload, timings.get(result.contender)
    if timing is None:
        return result
    seconds, ours, equal = timing.seconds, timings.get(OURS), timings.get(_EQUAL)
    ideal = None
    if equal is not None and workload.equal is not None:
        ideal = equal.seconds * workload.scores / workload.equal.scores
    return replace(
        result,
        timing=timing,
        tflops=4 * workload.scores * workload.heads * workload.d_head / seconds / 1e12,
        gb_per_second=workload.n_bytes / seconds / 1e9,
        ratio=ours.seconds / seconds if ours else None,
        of_ideal=ideal / seconds if ideal else None,
    )


def _buffers(workload: Workload, device: torch.device, dtype: torch.dtype) -> list[_Packed]:
    """As many as L2 does not hold until their next use."""
    l2_bytes = (
        torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    )
    generator = torch.Generator(device).manual_seed(0)
    starts = [
        torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)
        for lengths in (workload.lengths_q, workload.lengths_k)
    ]
    of_q = (sum(workload.lengths_q), workload.heads, workload.d_head)
    of_kv = (sum(workload.lengths_k), workload.heads_kv, workload.d_head)
    longest = (max(workload.lengths_q), max(workload.lengths_k))
    return [
        _Packed(
            *(
                torch.randn(size, generator=generator, device=device, dtype=dtype)
                for size in (of_q, of_kv, of_kv)
            ),
            *starts,
            *longest,
        )
        for _ in range(2 + 2 * l2_bytes // workload.n_bytes)
    ]


def _checked(workload: Workload) -> set[int]:
    """The first sequence, that with the most keys, and the last."""
    lengths = workload.lengths_k
    return {0, lengths.index(max(lengths)), len(lengths) - 1}


def _expected(packed: _Packed, workload: Workload, b: int) -> tuple[slice, Tensor, float]:
    """The last rows of a sequence: where they are, out in fp32, and its bound."""
    end_q, end_k = (sum(x[: b + 1]) for x in (workload.lengths_q, workload.lengths_k))
    rows = slice(end_q - min(workload.lengths_q[b], _CHECKED_ROWS), end_q)
    keys = slice(end_k - workload.lengths_k[b], end_k)
    inputs = [packed.q[None, rows], packed.k[None, keys], packed.v[None, keys]]
    ref = attention_ref(*inputs, causal=True, dtype=torch.float32)[0][0]
    pt16 = attention_ref(*inputs, causal=True, dtype=packed.q.dtype)[0][0]
    return rows, ref, tolerance(ref, pt16)


def _error(out: Tensor, ref: Tensor) -> float:
    return (out.to(ref.dtype) - ref).abs().nan_to_num(nan=torch.inf).max().item()


def _calls(run: _Run, buffers: list[_Packed]) -> Calls:
    def calls(n: int) -> None:
        for i in range(n):
            run(buffers[i % len(buffers)])

    return calls


# Contenders: from a workload and its first inputs, what runs it.


def _contenders(device: torch.device) -> dict[str, Callable[[Workload, _Packed], _Run]]:
    found: dict[str, Callable[[Workload, _Packed], _Run]] = {
        OURS: lambda *_: _ours,
        "PyTorch SDPA, a call for each": lambda workload, _: functools.partial(_sdpa, workload),
        "FlexAttention": _flex,
    }
    if device.type == "cuda":
        found["PyTorch varlen_attn"] = lambda *_: _torch_varlen
    for title, module in (
        ("FlashAttention-2", "flash_attn"),
        ("FlashAttention-3", "flash_attn_interface"),
    ):
        if find_spec(module) is not None:
            found[title] = lambda *_, module=module: functools.partial(_flash_attn, module)
    return found


def _arguments(x: _Packed) -> tuple[Any, ...]:
    return (x.q, x.k, x.v, x.starts_q, x.starts_k, x.longest_q, x.longest_k)


def _ours(x: _Packed) -> Tensor:
    return attention_varlen(*_arguments(x), causal=True)


def _torch_varlen(x: _Packed) -> Tensor:
    module = import_module("torch.nn.attention.varlen")
    # PyTorch 2.11 has no such argument.
    grouped = {"enable_gqa": True} if x.q.shape[1] != x.k.shape[1] else {}
    return module.varlen_attn(*_arguments(x), window_size=(-1, 0), **grouped)


def _flash_attn(module: str, x: _Packed) -> Tensor:
    """Older ones return lse beside out."""
    out = import_module(module).flash_attn_varlen_func(*_arguments(x), causal=True)
    return out[0] if isinstance(out, tuple) else out


def _sdpa(workload: Workload, x: _Packed) -> Tensor:
    parts = zip(
        x.q.split(workload.lengths_q),
        x.k.split(workload.lengths_k),
        x.v.split(workload.lengths_k),
        strict=True,
    )
    grouped = workload.heads != workload.heads_kv
    outs = []
    for q, k, v in parts:
        n_q, n_k = q.shape[0], k.shape[0]
        bias = causal_lower_right(n_q, n_k) if 1 < n_q != n_k else None
        out = torch.nn.functional.scaled_dot_product_attention(
            *(part.transpose(0, 1)[None] for part in (q, k, v)),
            attn_mask=bias,
            is_causal=n_q == n_k,
            enable_gqa=grouped,
        )
        outs.append(out[0].transpose(0, 1))
    return torch.cat(outs)


def _flex(workload: Workload, x: _Packed) -> _Run:
    """With a mask of blocks made once; compiled on a GPU: elsewhere it writes every score."""
    flex = import_module("torch.nn.attention.flex_attention")
    device = x.q.device
    sequence_q, sequence_k = (
        torch.repeat_interleave(starts.diff().long()) for starts in (x.starts_q, x.starts_k)
    )
    # How far query and key of a sequence are apart in the packed tensors, the last ones aligned.
    offset = (x.starts_k[1:] - x.starts_q[1:])[sequence_q]

    def mask(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (sequence_q[i] == sequence_k[j]) & (j <= i + offset[i])

    extents = (sum(workload.lengths_q), sum(workload.lengths_k))
    blocks = flex.create_block_mask(mask, None, None, *extents, device=device)
    run = flex.flex_attention
    if device.type == "cuda":
        run = torch.compile(run, dynamic=False)
    run = functools.partial(run, block_mask=blocks, enable_gqa=workload.heads != workload.heads_kv)
    return lambda x: run(*(part.transpose(0, 1)[None] for part in (x.q, x.k, x.v)))[0].transpose(
        0, 1
    )


_COLUMNS = (
    "contender", "us", "spread", "TFLOP/s", "GB/s", "ratio", "of ideal", "error", "bound", "status",
)  # fmt: skip
_NOTE = (
    "ratio: pyflash's time over the contender's. of ideal: the time of equal documents with as "
    "many scores, by pyflash, over the contender's"
)


def table(results: list[UnevenResult]) -> Table:
    rows = [
        (
            r.contender,
            r.timing.seconds * 1e6 if r.timing else None,
            r.timing.spread if r.timing else None,
            r.tflops,
            r.gb_per_second,
            r.ratio,
            r.of_ideal,
            r.error,
            r.bound,
            r.status,
        )
        for r in results
    ]
    return Table.of(results[0].workload.title, _COLUMNS, rows, _NOTE)
