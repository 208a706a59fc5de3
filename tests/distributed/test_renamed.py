"""`method` was called `variant`: the old name works, and warns with the name to write."""

from __future__ import annotations

import inspect
import re
import warnings
from typing import Any

import pytest
import torch
from ranks import results

from pyflash import distributed
from pyflash.distributed.model import METHODS


def attend(rank: int, options: list[dict[str, Any]]) -> list[tuple[Any, list[str]]]:
    """The output of each call, or the sentence of its error, and what it warned of."""
    generator = torch.Generator().manual_seed(rank)
    q, k, v = (torch.randn(1, 8, 2, 32, generator=generator).half() for _ in range(3))
    found: list[tuple[Any, list[str]]] = []
    for given in options:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", DeprecationWarning)
            try:
                outcome = distributed.attention(q, k, v, causal=True, **given).tolist()
            except ValueError as error:
                outcome = str(error)
        found.append((outcome, [f"{w.filename}: {w.message}" for w in warned]))
    return found


def test_the_old_keyword_is_the_new_one_and_warns():
    names = ("auto", *METHODS)
    options = [{keyword: name} for keyword in ("method", "variant") for name in names]
    for found in results(2, attend, options):
        new, old = found[: len(names)], found[len(names) :]
        for (expected, silence), (out, (warning,)) in zip(new, old, strict=True):
            assert out == expected
            assert silence == []
            assert warning.startswith(__file__)  # the caller's line
            assert "the argument variant is called method now: write method" in warning


def test_what_the_old_keyword_refuses():
    both = [{"method": m, "variant": v} for m in ("auto", *METHODS) for v in ("auto", *METHODS)]
    found = results(1, attend, [{"variant": "tree"}, *both])[0]
    assert found[0][0] == "pyflash: method = 'tree': expected auto, ring, all_to_all"
    for (sentence, warned), given in zip(found[1:], both, strict=True):
        assert sentence == (
            f"pyflash: method = '{given['method']}' and variant = '{given['variant']}' are both "
            "given: expected method alone, variant is its old name"
        )
        assert warned == []


@pytest.mark.parametrize("method", METHODS)
def test_a_function_of_one_method_takes_no_other(method):
    function = getattr(distributed, f"{method}_attention")
    with pytest.raises(ValueError, match=re.escape(f"method = '{method}' and variant = 'ring'")):
        function(*(torch.ones(1, 2, 1, 32) for _ in range(3)), variant="ring")


def test_the_signature_has_the_new_name_alone():
    parameters = inspect.signature(distributed.attention).parameters
    assert "method" in parameters
    assert "variant" not in parameters


def test_the_old_attributes_of_a_plan():
    planned = distributed.plan(seqlen=1 << 16, heads=16, n_ranks=4)
    for old, new in (("variant", "method"), ("seconds_by_variant", "seconds_by_method")):
        with pytest.warns(DeprecationWarning, match=f"{old} is called {new} now: write {new}"):
            assert getattr(planned, old) == getattr(planned, new)
