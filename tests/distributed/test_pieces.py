"""The pieces that chunks are cut into cover what the mask of the whole sequence covers, once."""

import itertools

import pytest
import torch

from pyflash.distributed.layout import LAYOUTS, chunks, local_rows, local_seqlen
from pyflash.distributed.pieces import Mask, Piece, pieces
from pyflash.distributed.schedule import Geometry
from pyflash.op.reference import attended

MASKS = [
    Mask(),
    Mask(-1, 0),
    Mask(5, 0),
    Mask(0, 0),
    Mask(3, 9),
    Mask(40, 2),
    Mask(7, -1),
    Mask(1 << 40, 1 << 40),
]
LENGTHS = [(37, 37), (40, 23), (23, 40), (5, 5), (0, 7), (7, 0)]


def mask_of(piece: Piece) -> torch.Tensor:
    """What the op attends in the rectangle of a piece."""
    windows = (piece.window_left, piece.window_right)
    rows = torch.arange(piece.seqlen_q)
    return attended(rows, piece.seqlen_q, piece.seqlen_k, *windows)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_pieces_cover_the_mask_once(mask, n_ranks, layout):
    for seqlen_q, seqlen_k in LENGTHS:
        whole = attended(
            torch.arange(seqlen_q), seqlen_q, seqlen_k, mask.window_left, mask.window_right
        )
        band = mask.band(seqlen_q, seqlen_k)
        for q_rank, k_rank in itertools.product(range(n_ranks), repeat=2):
            q_rows, k_rows = (
                [i for rows in local_rows([seqlen], rank, n_ranks, layout) for i in rows]
                for seqlen, rank in ((seqlen_q, q_rank), (seqlen_k, k_rank))
            )
            expected = whole[q_rows][:, k_rows].int()
            covered = torch.zeros_like(expected)
            for piece in pieces(
                chunks(seqlen_q, q_rank, n_ranks, layout),
                chunks(seqlen_k, k_rank, n_ranks, layout),
                band,
            ):
                assert piece.window_left >= -1
                assert piece.window_right >= -1
                attends = mask_of(piece)
                assert attends.any(0).all()
                assert attends.any(1).all()
                assert piece.pairs == attends.sum()
                covered[piece.q_start : piece.q_stop, piece.k_start : piece.k_stop] += attends
            assert torch.equal(covered, expected)


@pytest.mark.parametrize("n_ranks", [2, 3, 8])
def test_a_causal_step_is_one_call_and_ranks_have_the_same_work(n_ranks):
    geometry = Geometry((64 * n_ranks,), (64 * n_ranks,), Mask(-1, 0), n_ranks, "zigzag")
    for shift in range(n_ranks):
        found = [geometry.pieces(r, (r - shift) % n_ranks)[0] for r in range(n_ranks)]
        assert all(len(of_rank) == 1 for of_rank in found)
        assert len({of_rank[0].pairs for of_rank in found}) == 1
        assert found[0][0].window_left == -1
        assert found[0][0].window_right == (0 if shift == 0 else -1)


def test_a_full_step_is_one_call():
    geometry = Geometry((96,), (96,), Mask(), 3, "zigzag")
    assert [len(geometry.pieces(0, k_rank)[0]) for k_rank in range(3)] == [1, 1, 1]


def test_blocks_that_nobody_attends_do_not_travel():
    def shifts(mask, layout):
        return Geometry((1024,), (1024,), mask, 8, layout).shifts()

    assert shifts(Mask(100, 0), "contiguous") == (0, 1)
    assert shifts(Mask(129, 0), "contiguous") == (0, 1, 2)
    assert shifts(Mask(100, 100), "contiguous") == (0, 1, 7)
    assert shifts(Mask(60, 0), "zigzag") == (0, 1, 7)
    assert shifts(Mask(-1, 0), "contiguous") == tuple(range(8))


def test_ranks_hold_every_row_once():
    for layout, n_ranks, seqlen in itertools.product(LAYOUTS, (1, 2, 3, 5), (0, 1, 7, 30, 97)):
        ranks = range(n_ranks)
        rows = [local_rows([seqlen], rank, n_ranks, layout) for rank in ranks]
        assert sorted(i for of_rank in rows for part in of_rank for i in part) == [*range(seqlen)]
        lengths = [local_seqlen(seqlen, rank, n_ranks, layout) for rank in ranks]
        assert lengths == [sum(map(len, of_rank)) for of_rank in rows]
