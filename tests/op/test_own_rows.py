"""The table of a cache in which sequence b has row b: kept where it may be, else made anew."""

from __future__ import annotations

import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import pyflash
from pyflash.op import own_rows as module
from pyflash.op.own_rows import own_rows


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(module, "_kept", {})


def rows_of(n: int) -> torch.Tensor:
    return own_rows(n, torch.zeros(1))


@pytest.mark.parametrize("n", [0, 1, 7, module._CAPACITY, module._CAPACITY + 1])
def test_row_b_has_b(n):
    for _ in range(2):
        rows = rows_of(n)
        assert rows.dtype == torch.int32
        assert rows.tolist() == [[b] for b in range(n)]


def test_it_is_kept():
    first = rows_of(7)
    assert rows_of(7) is first
    assert rows_of(5).data_ptr() == first.data_ptr()


def test_one_made_in_inference_serves_calls_outside_of_it():
    with torch.inference_mode():
        first = rows_of(3)
    assert not first.is_inference()
    assert rows_of(3) is first


def test_fake_ones_are_not_kept():
    with FakeTensorMode():
        fake = rows_of(3)
        assert type(fake) is not torch.Tensor
    assert module._kept == {}
    rows_of(3)
    with FakeTensorMode():
        assert type(rows_of(3)) is not torch.Tensor


def test_threads_get_the_same_rows():
    found = []
    threads = [threading.Thread(target=lambda: found.append(rows_of(9))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(rows.flatten().tolist() == list(range(9)) for rows in found)


class Event:
    def __init__(self):
        self.is_done = False

    def query(self) -> bool:
        return self.is_done


@pytest.fixture
def pending(monkeypatch):
    """A table that stream "own" makes."""
    event = Event()
    device = torch.device("cpu")
    rows = torch.full((module._CAPACITY, 1), -1, dtype=torch.int32)  # not there yet
    module._kept[device] = module._Kept(rows, event, "own")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "own")
    return event


def test_the_stream_that_makes_it_reads_it(pending):
    assert rows_of(2).tolist() == [[-1], [-1]]


def test_another_stream_does_not_until_it_is_there(pending, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "other")
    assert rows_of(2).tolist() == [[0], [1]]
    pending.is_done = True
    assert rows_of(2).tolist() == [[-1], [-1]]
    pending.is_done = False  # of which nobody asks any more
    assert rows_of(2).tolist() == [[-1], [-1]]


def test_a_compiled_call_makes_its_own():
    q, k, v = (torch.randn(2, n, 1, 16).half() for n in (1, 8, 8))
    used = torch.tensor([3, 8], dtype=torch.int32)

    def run(used: torch.Tensor) -> torch.Tensor:
        return pyflash.attention_cached(q, k, v, used)

    compiled = torch.compile(run, backend="eager", fullgraph=True)
    assert torch.equal(compiled(used), run(used))
