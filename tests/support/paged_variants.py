"""Variants over caches in pages: what is tested of the op, of the emulated kernels and on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from support.paged import Cache
from torch import Tensor

from pyflash.op.variants.reference import expect

# What reads lengths, heads, sequences, single keys and pairs; masks as intervals, as neighbouring
# blocks and others, and as bits; scores with parts of a row, a column, a distance and a pair.
TEXTS = {
    "alibi": "alibi(slope: f32[1]): s + slope[h] * (k - q - k_len + q_len)",
    "causal": "causal: s where k <= q + k_len - q_len",
    "last_half": "last_half: s where 2 * k + 1 >= k_len",
    "sinks_and_window": "w(first: i32, near: i32): s"
    " where (k < first) | (abs(k - q - k_len + q_len) <= near)",
    "far_apart": "far_apart: s where (k < k_len - 100) | (k >= k_len - 8)",
    "documents": "d(doc: i32[2]): s where doc[b, k] == doc[b, q + k_len - q_len]",
    "of_head": "of_head(reach: i32[1]): s where k_len - k <= reach[h]",
    "of_key": "of_key(bias: f32[2]): s + bias[b, k]",
    "of_pair": "of_pair(pair: f32[3]): s + pair[h, q, k]",
    "dilated": "dilated: s where (k * 7 + q * 5) % 3 < 2",
    "of_end": "of_end: s + sin(0.1 * (k_len - k))",
    "curved": "curved: tanh(s) * 2 + 0.1 * s where k <= q + k_len - q_len",
}


class PagedProblem(NamedTuple):
    lengths_q: tuple[int, ...]
    lengths_k: tuple[int, ...]
    page_size: int
    heads: int = 4
    heads_kv: int = 2
    d_head: int = 64
    padded: bool = False  # q of equal lengths


PROBLEMS = {
    "one_query": PagedProblem((1, 1, 1, 1), (37, 0, 200, 129), 16, padded=True),
    "few_queries": PagedProblem((3, 3), (131, 3), 64, padded=True),
    "packed": PagedProblem((5, 0, 70, 2), (150, 40, 70, 0), 16),
    "pages_of_64": PagedProblem((1, 1), (230, 70), 64, padded=True),
    "more_queries_than_keys": PagedProblem((90, 33), (40, 65), 4),
    "one_page": PagedProblem((40, 3), (150, 129), 160),
    "pages_of_1": PagedProblem((1, 17), (70, 140), 1),
    "pages_of_7": PagedProblem((2, 70), (75, 141), 7),
    "pages_of_48": PagedProblem((1, 1, 1), (230, 48, 49), 48, padded=True),
    "one_head": PagedProblem((9, 30), (64, 131), 32, heads=2, heads_kv=1),
    "narrow": PagedProblem((12, 70), (64, 131), 16, d_head=40),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "window": {"window_left": 40, "window_right": 3},
    "wide_window": {"window_left": 120, "window_right": 0},
    "softcap": {"softcap": 2.0, "softmax_scale": 0.3},
    "sinks": {"sinks": torch.tensor([0.5, -3.0, 2.0, 0.0])},
    "splits": {"num_splits": 3},
}


class PagedCall:
    """Random tensors. Rows of pages that hold no key are NaN, and entries behind them no pages."""

    def __init__(
        self,
        name: str,
        at: PagedProblem,
        dtype: torch.dtype = torch.half,
        device: str = "cpu",
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Keys that windows among the options hide from all queries are NaN, too."""
        torch.manual_seed(len(at.lengths_q) + sum(at.lengths_k))
        self.text, self.at, self.device = TEXTS[name], at, device
        width = 1 if at.page_size >= max(at.lengths_k) else None
        cache = Cache(at.lengths_k, at.page_size, at.heads_kv, at.d_head, dtype, width=width)
        cache.expire(at.lengths_q, **options)
        q = torch.randn(sum(at.lengths_q), at.heads, at.d_head).to(dtype)
        self._values = _values(name, at)
        self._packed = (q, torch.cat(cache.keys), torch.cat(cache.values))
        padded = q.view(len(at.lengths_q), -1, *q.shape[1:]) if at.padded else q
        # The positional arguments of `attention_paged`.
        self.inputs = tuple(x.to(device) for x in (padded, *cache.tensors))
        self.tensors = {n: self._on_device(x) for n, x in self._values.items()}

    def _on_device(self, x: Any) -> Any:
        return x.to(self.device) if isinstance(x, Tensor) else x

    @property
    def seqlens_k(self) -> Tensor:
        return self.inputs[4]

    @property
    def packing(self) -> dict[str, Any]:
        if self.at.padded:
            return {}
        starts = _starts(self.at.lengths_q).to(self.device)
        return {"cu_seqlens_q": starts, "max_seqlen_q": max(self.at.lengths_q)}

    def check(self, out: Tensor, lse: Tensor, **options: Any) -> None:
        """Beside fp64, sequence by sequence."""
        out, lse = out.cpu(), lse.cpu()
        if self.at.padded:
            out = out.flatten(0, 1)
            lse = lse.transpose(0, 1).flatten(1)
        starts = (_starts(self.at.lengths_q), _starts(self.at.lengths_k))
        given = {n: x for n, x in options.items() if n != "num_splits"}
        expected = expect(*self._packed, *starts, variant=self.text, tensors=self._values, **given)
        expected.check(out, lse)


def _starts(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def _values(name: str, at: PagedProblem) -> dict[str, Any]:
    n_q, n_k = max(at.lengths_q), max(at.lengths_k)
    batch, longest = len(at.lengths_q), max(n_q, n_k) + 1
    return {
        "alibi": lambda: {"slope": torch.linspace(0.02, 0.5, at.heads)},
        "sinks_and_window": lambda: {"first": 3, "near": 20},
        "documents": lambda: {
            "doc": (torch.arange(longest) // 30 * torch.ones(batch, 1)).to(torch.int32)
        },
        "of_head": lambda: {"reach": torch.arange(1, at.heads + 1, dtype=torch.int32) * 20},
        "of_key": lambda: {"bias": torch.randn(batch, longest)},
        "of_pair": lambda: {"pair": torch.randn(at.heads, n_q, (n_k + 3) // 4 * 4)},
    }.get(name, dict)()
