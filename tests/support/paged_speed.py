"""Decoding and prefill over pages beside contiguous tensors, within CUDA graphs.

    PYTHONPATH=tests python -m support.paged_speed [--quick]

Calls follow each other over other sequences each time, so that K and V come from memory; contenders
take turns. It prints microseconds a call, the median, and the ratio to contiguous.
"""

from __future__ import annotations

import argparse
import statistics

import torch

import pyflash

HEADS, HEADS_KV, D_HEAD, DTYPE = 32, 8, 128, torch.bfloat16
DECODE = [(1, 1024), (8, 1024), (64, 1024), (256, 1024), (1, 8192), (8, 8192), (64, 8192)]
PREFILL = [(4, 4096), (1, 16384)]
PAGES = (1, 16, 64, 256)
COPIES_BYTES = 1 << 30  # of K and V that calls go through


def tables_of(batch: int, seqlen: int, page_size: int, copies: int) -> list[torch.Tensor]:
    """Tables of several batches over shuffled pages that cover all keys once."""
    n_pages = -(-seqlen // page_size)
    numbers = torch.randperm(copies * batch * n_pages, device="cuda").int()
    return list(numbers.view(copies, batch, n_pages))


def graph_of(calls) -> torch.cuda.CUDAGraph:
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def contenders(batch: int, seqlen: int, seqlen_q: int) -> dict[str, list]:
    """Calls over each copy of K and V, by contender; checked beside each other first."""
    bytes_of_one = 2 * 2 * batch * seqlen * HEADS_KV * D_HEAD
    copies = max(2, min(24, COPIES_BYTES // bytes_of_one))
    shape = (copies * batch, seqlen, HEADS_KV, D_HEAD)
    k, v = (torch.randn(shape, device="cuda").to(DTYPE) for _ in "kv")
    q = torch.randn(batch, seqlen_q, HEADS, D_HEAD, device="cuda").to(DTYPE)
    lengths = torch.full((batch,), seqlen, dtype=torch.int32, device="cuda")
    causal = seqlen_q > 1
    found = {
        "contiguous": [
            lambda i=i: pyflash.attention(
                q, k[i * batch : (i + 1) * batch], v[i * batch : (i + 1) * batch], causal=causal
            )
            for i in range(copies)
        ]
    }
    for page_size in PAGES:
        if seqlen % page_size:
            continue
        pages = [x.view(-1, page_size, HEADS_KV, D_HEAD) for x in (k, v)]
        tables = tables_of(batch, seqlen, page_size, copies)
        found[f"pages of {page_size}"] = [
            lambda pages=pages, table=table: pyflash.attention_paged(
                q, *pages, table, lengths, causal=causal
            )
            for table in tables
        ]
        gathered = [x[tables[0].long()].flatten(1, 2) for x in pages]
        expected = pyflash.attention(q, *gathered, causal=causal)
        actual = found[f"pages of {page_size}"][0]()
        torch.testing.assert_close(actual, expected, atol=2e-2, rtol=2e-2)
    return found


def microseconds(graphs: dict[str, torch.cuda.CUDAGraph], n_calls: int, rounds: int) -> dict:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            graph.replay()
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) * 1e3 / n_calls)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer cells and rounds")
    quick = parser.parse_args().quick
    print(torch.cuda.get_device_name(), f"{HEADS}/{HEADS_KV} heads, D {D_HEAD}, us a call")
    cells = [(b, s, 1) for b, s in DECODE] + [(8, 8192, 4)] + [(b, s, s) for b, s in PREFILL]
    for batch, seqlen, seqlen_q in cells[::3] if quick else cells:
        calls = contenders(batch, seqlen, seqlen_q)
        graphs = {name: graph_of(of_one) for name, of_one in calls.items()}
        found = microseconds(graphs, len(calls["contiguous"]), 5 if quick else 15)
        base = found["contiguous"]
        row = "  ".join(f"{name} {t:.1f} ({t / base:.3f})" for name, t in found.items())
        print(f"batch {batch} keys {seqlen} queries {seqlen_q}: {row}", flush=True)
        del calls, graphs
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
