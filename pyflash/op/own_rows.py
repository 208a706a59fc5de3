"""The table of a contiguous cache in which sequence b has row b, kept from call to call."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

_CAPACITY = 4096  # sequences; of more, each call makes its own


@dataclass
class _Kept:
    """Row b has b, (_CAPACITY, 1), int32. NOTE: never dropped, because a CUDA graph may read it."""

    table: Tensor
    made: torch.cuda.Event | None  # None: whoever reads it, it is there
    stream: torch.cuda.Stream | None  # that makes it
    parts: dict[int, Tensor] = field(default_factory=dict)  # by the number of sequences

    def part(self, n: int) -> Tensor:
        if n not in self.parts:
            self.parts[n] = self.table[:n]
        return self.parts[n]

    def may_be_read(self) -> bool:
        """Whether the current stream may read it. It is not capturing."""
        if self.made is None or self.made.query():
            self.made = None
            return True
        return self.stream == torch.cuda.current_stream(self.table.device)


_kept: dict[torch.device, _Kept] = {}


def own_rows(n: int, like: Tensor) -> Tensor:
    """(n, 1), int32, on the device of `like`: row b has b. Nobody writes to it."""
    device = like.device
    # NOTE: fake tensors and those of other modes are of other types.
    if torch.compiler.is_compiling() or type(like) is not Tensor or n > _CAPACITY:
        return _rows(n, device)
    kept = _kept.get(device)
    if kept is not None and kept.made is None:
        part = kept.parts.get(n)
        return kept.part(n) if part is None else part
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return _rows(n, device)
    if kept is None:
        kept = _make(device)
        if kept is None:
            return _rows(n, device)
        _kept[device] = kept
    return kept.part(n) if kept.may_be_read() else _rows(n, device)


def _rows(n: int, device: torch.device) -> Tensor:
    return torch.arange(n, dtype=torch.int32, device=device).unsqueeze(-1)


def _make(device: torch.device) -> _Kept | None:
    """None where a mode makes tensors of other types."""
    with torch.inference_mode(False):
        table = _rows(_CAPACITY, device)
    if type(table) is not Tensor:
        return None
    if device.type != "cuda":
        return _Kept(table, None, None)
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream()
        return _Kept(table, stream.record_event(), stream)
