"""Gradients of random problems on the CPU, and that the harness sees what is wrong."""

import pytest
from support import backward_fuzz

from pyflash.op.backward import kernels


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_random_problems(first):
    """Pitfall 12: lengths that are no multiple of the tile."""
    found = backward_fuzz.failures(range(first, first + 25), "cpu")
    assert not found, f"{len(found)} of 25 cases are wrong\n\n" + "\n\n".join(found)


def test_what_is_drawn_is_of_every_kind():
    cases = [backward_fuzz.case(seed, "cpu") for seed in range(300)]
    assert cases[:9] == [backward_fuzz.case(seed, "cpu") for seed in range(9)]
    for kinds in (
        lambda c: c.forward.packed,
        lambda c: c.forward.dtype,
        lambda c: c.forward.group > 1,
        lambda c: c.forward.d_head in (64, 128),
        lambda c: c.forward.mask.options["causal"],
        lambda c: c.forward.mask.options["window_left"] >= 0,
        lambda c: c.forward.mask.options["attention_chunk"] > 0,
        lambda c: c.forward.mask.options["softcap"] > 0,
        lambda c: c.forward.sinks is None,
        lambda c: c.forward.softmax_scale == 1e-6,
        lambda c: c.forward.softmax_scale == 3.0,
        lambda c: c.forward.magnitudes == (1, 1, 1),
        lambda c: 0 in c.forward.seqlens_q,
        lambda c: 0 in c.forward.seqlens_k,
        lambda c: c.broadcast or c.layout.expanded,
        lambda c: c.lse_has_gradient,
        lambda c: c.slopes > 0,
        lambda c: c.deterministic,
    ):
        found = list(map(kinds, cases))
        assert len(set(found)) == 2
        assert all(found.count(kind) >= 4 for kind in set(found)), found


@pytest.mark.parametrize("which", range(3), ids=["dq", "dk", "dv"])
def test_wrong_gradients_are_seen(which, monkeypatch):
    """A row of a gradient is left out."""
    right = kernels.bwd

    def wrong(*arguments, **options):
        gradients = right(*arguments, **options)
        gradients[which][..., -1:, :, :] = 0
        return gradients

    monkeypatch.setattr(kernels, "bwd", wrong)
    found = backward_fuzz.failures(range(40), "cpu")
    assert len(found) > 20
    assert "again: PYTHONPATH=tests python -m support.backward_fuzz" in found[0]
