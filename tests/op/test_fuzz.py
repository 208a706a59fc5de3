"""Random problems on the CPU, and that the harness sees what is wrong."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import fuzz

from pyflash import attention, attention_varlen

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_random_problems(first):
    """Pitfall 12: lengths that are no multiple of the tile."""
    found = fuzz.failures(range(first, first + 20), "cpu")
    assert not found, f"{len(found)} of 20 cases are wrong\n\n" + "\n\n".join(found)


def test_a_case_is_that_of_its_seed():
    assert [fuzz.case(seed, "cpu") for seed in range(20)] == [
        fuzz.case(seed, "cpu") for seed in range(20)
    ]
    assert len({str(fuzz.case(seed, "cpu")) for seed in range(20)}) == 20


def test_what_is_drawn_is_of_every_kind():
    cases = [fuzz.case(seed, "cpu") for seed in range(400)]
    for kinds in (
        lambda c: c.packed,
        lambda c: c.dtype,
        lambda c: c.group > 1,
        lambda c: c.mask.options["causal"],
        lambda c: c.mask.options["window_left"] >= 0,
        lambda c: c.mask.options["window_right"] >= 0,
        lambda c: c.mask.options["softcap"] > 0,
        lambda c: c.sinks is None,
        lambda c: c.softmax_scale is None,
        lambda c: c.num_splits > 1,
        lambda c: c.config == "",
        lambda c: c.d_head in fuzz.COMMON_D,
        lambda c: 0 in c.seqlens_q,
        lambda c: 0 in c.seqlens_k,
        lambda c: any(layout.expanded for layout in c.layouts),
    ):
        found = list(map(kinds, cases))
        assert all(found.count(kind) >= 5 for kind in set(found))
        assert len(set(found)) == 2


def test_tensors_lie_in_nan():
    """Only their own elements are numbers, so that a stray read is seen."""
    for seed in range(60):
        case = fuzz.case(seed, "cpu")
        for x, layout in zip(fuzz.inputs_of(case), case.layouts, strict=True):
            assert not x.isnan().any()
            memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
            own = x[:1].numel() if layout.expanded else x.numel()
            assert (~memory.isnan()).sum() == own


# Mistakes that the harness has to see.


def causal_from_the_top_left(call):
    """The first query attends the first key alone, where there are more queries than keys."""

    def wrong(q, k, v, *lengths, causal=False, **options):
        if causal and not lengths and q.shape[1] > k.shape[1]:
            causal, options["window_right"] = False, q.shape[1] - k.shape[1]
        return call(q, k, v, *lengths, causal=causal, **options)

    return wrong


def causal_off_by_one(call):
    def wrong(*arguments, causal=False, window_right=-1, **options):
        return call(*arguments, window_right=1 if causal else window_right, **options)

    return wrong


def window_off_by_one(call):
    def wrong(*arguments, window_left=-1, **options):
        return call(*arguments, window_left=window_left + (window_left > 0), **options)

    return wrong


def another_head_of_k(call):
    """Head h of q attends head h % heads_kv."""

    def wrong(q, k, v, *lengths, **options):
        order = torch.arange(q.shape[-2]).view(-1, k.shape[-2]).T.flatten()
        out, lse = call(q[..., order, :], k, v, *lengths, **options)
        back = order.argsort()
        return out[..., back, :].contiguous(), lse[..., back, :]

    return wrong


def an_element_never_written(call):
    def wrong(*arguments, **options):
        out, lse = call(*arguments, **options)
        if out.numel():
            out.flatten()[-1] = torch.nan
        return out, lse

    return wrong


def lse_of_base_2(call):
    def wrong(*arguments, **options):
        out, lse = call(*arguments, **options)
        return out, lse * 1.4427

    return wrong


def other_bits_each_time(call):
    n_calls = [0]

    def wrong(*arguments, **options):
        n_calls[0] += 1
        out, lse = call(*arguments, **options)
        return out, lse + 1e-6 * n_calls[0]

    return wrong


def sinks_in_the_other_order(call):
    def wrong(*arguments, sinks=None, **options):
        return call(*arguments, sinks=None if sinks is None else sinks.flip(0), **options)

    return wrong


def sinks_that_are_scaled(call):
    def wrong(*arguments, sinks=None, softmax_scale=None, **options):
        if sinks is not None:
            sinks = sinks * (softmax_scale or arguments[0].shape[-1] ** -0.5)
        return call(*arguments, sinks=sinks, softmax_scale=softmax_scale, **options)

    return wrong


def scale_of_the_kernels_d_head(call):
    def wrong(q, *arguments, softmax_scale=None, **options):
        padded = 64 if q.shape[-1] <= 64 else 128 if q.shape[-1] <= 128 else 256
        return call(q, *arguments, softmax_scale=softmax_scale or padded**-0.5, **options)

    return wrong


MISTAKES = [
    causal_off_by_one,
    causal_from_the_top_left,
    window_off_by_one,
    another_head_of_k,
    an_element_never_written,
    lse_of_base_2,
    other_bits_each_time,
    scale_of_the_kernels_d_head,
    sinks_in_the_other_order,
    sinks_that_are_scaled,
]


def first_failure(monkeypatch, mistake) -> str:
    for name, call in (("attention", attention), ("attention_varlen", attention_varlen)):
        monkeypatch.setattr(fuzz, name, mistake(call))
    for seed in range(200):
        if found := fuzz.failures([seed], "cpu"):
            return found[0]
    raise AssertionError("not seen in 200 cases")


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_seen(monkeypatch, mistake):
    message = first_failure(monkeypatch, mistake)
    assert re.search(r"^(out|lse): .* expected|^a second run differs", message)


def test_a_failure_says_how_to_run_it_again(monkeypatch, capsys):
    message = first_failure(monkeypatch, causal_off_by_one)
    line = re.search(r"^again: (.*)$", message, re.MULTILINE)[1]
    variable, python, *arguments = shlex.split(line)
    assert (variable, python) == ("PYTHONPATH=tests", "python")
    assert arguments[:2] == ["-m", "support.fuzz"]
    with pytest.raises(SystemExit) as failed:
        fuzz.main(arguments[2:])
    assert failed.value.code == 1
    printed = capsys.readouterr().out
    assert message in printed
    assert "causal" in printed


def test_the_line_that_is_printed_runs():
    case = fuzz.case(3, "cpu")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    result = subprocess.run(
        case.repro, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert str(case) in result.stdout
    assert "1 cases, 0 wrong" in result.stdout
