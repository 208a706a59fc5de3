"""The program that times gradients runs on the CPU, with stand-ins for a GPU and tiny lengths."""

from __future__ import annotations

from typing import Any

import pytest
from support import backward_calls, backward_speed
from support.without_gpu import without_gpu
from torch.nn.attention import SDPBackend

MADE = backward_calls.made


def tiny(tokens: int, seqlen: int, d_head: int, **options: Any) -> backward_calls.Call:
    if lengths := options.get("lengths"):
        options["lengths"] = [min(n, 9) for n in lengths[:4]]
    return MADE(16, min(seqlen // 512 + 1, 16), d_head, **options | {"device": "cpu"})


@pytest.fixture
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(backward_speed, "made", tiny)
    monkeypatch.setattr(backward_speed, "config_of_sm80", lambda _: "")
    monkeypatch.setattr(backward_speed, "with_workspace", lambda run: (run(), 1 << 20))
    of_torch = dict.fromkeys(backward_calls.BACKENDS, SDPBackend.MATH)
    monkeypatch.setattr(backward_calls, "BACKENDS", of_torch)
    with without_gpu():
        yield


@pytest.mark.parametrize("part", backward_speed.PARTS)
def test_cells_print_ratios_and_no_error(part, on_the_cpu, capsys):
    backward_speed.main(["--rounds", "1", part])
    _, *cells, last = capsys.readouterr().out.splitlines()
    assert last.startswith(f"# {part}, ")
    assert len(cells) > 5
    assert all(("(" in line and ": " in line) or line.startswith("#") for line in cells)


def test_an_error_of_a_part_is_a_line_of_it(monkeypatch, capsys):
    def fails(_):
        yield "a cell", [("over it", 2.0, 1.0)]
        raise RuntimeError("no kernel")

    monkeypatch.setitem(backward_speed.PARTS, "cells", fails)
    with without_gpu():
        backward_speed.main(["cells"])
    assert capsys.readouterr().out.splitlines()[1:] == [
        "a cell: over it 2.000 (1)",
        "RuntimeError: no kernel",
        "# cells, over it: mean 2.000, of its bar 2.000, 1 of 1",
    ]


@pytest.mark.parametrize("n", [1, 7, 40])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window_left": 4}])
def test_pairs_are_counted(n, options):
    left = options.get("window_left", n)
    causal = options.get("causal", False)
    shown = [k <= q and k >= q - left if causal else True for q in range(n) for k in range(n)]
    assert backward_calls.pairs(n, options) == sum(shown)
