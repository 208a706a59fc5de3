"""Kernels that PYFLASH_JIT has compiled for the parts of a ring: each as the part masks."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.forgetful import Forgetful

from pyflash import Features
from pyflash.distributed.merge import take
from pyflash.distributed.pieces import Mask
from pyflash.distributed.ring import Attention
from pyflash.distributed.schedule import Geometry, calls
from pyflash.op import on_demand
from pyflash.op.reference import attended

CONFIG = "(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles"
N_RANKS = 3


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("mask", [Mask(), Mask(-1, 0), Mask(9, 0), Mask(30, 7)], ids=str)
def test_each_part_asks_for_what_it_masks(monkeypatch, mask, layout, packed):
    asked = []
    monkeypatch.setattr(on_demand, "_is_on_gpu", lambda q: True)
    monkeypatch.setattr(on_demand, "_asked_by_environment", lambda: True)
    monkeypatch.setattr(on_demand, "_ensure_once", lambda *a: asked.append(a) or a[0])
    monkeypatch.setattr(on_demand, "_built", Forgetful())
    geometry = Geometry((36,), (36,), mask, N_RANKS, layout)
    attention = Attention.of(None, geometry, packed, {"config": CONFIG})
    seen = set()
    for rank, k_rank in itertools.product(range(N_RANKS), repeat=2):
        for call in calls(geometry, rank, k_rank, packed, torch.device("cpu")):
            x = torch.zeros(*(() if packed else (1,)), 12, 2, 64, dtype=torch.float16)
            q, k = take(x, call.q_rows), take(x, call.k_rows)
            attention.forward_op(call, q, k, k)
            lengths = q.shape[-3], k.shape[-3]
            rows = torch.arange(lengths[0])
            left, right = (
                not attended(rows, *lengths, *windows).all()
                for windows in ((call.window_left, -1), (-1, call.window_right))
            )
            needed = str(Features(bool(right), bool(left) and (packed or lengths[0] > 1)))
            assert asked.pop() == (CONFIG, needed, None)
            seen.add(needed)
    assert len(seen) > 1 or mask == Mask()
