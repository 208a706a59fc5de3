"""Gradients beside their bars: cuDNN, PyTorch's flash, other masks, other numbers of heads, memory.

    PYTHONPATH=.:tests python -m support.backward_speed [--tokens 16384] [--rounds 8] [PART ...]

    cells     24 cells of d_head 64 and 128 beside cuDNN, the backward alone and both passes
    d_heads   96, 192 and 256 beside PyTorch's flash and cuDNN
    order     deterministic gradients over those in any order
    masks     softcap, windows, and groups of 8 over one head a head
    packed    documents of lognormal lengths over equal ones
    dropout   of 0.1, forward and backward, over the same without
    sm80      the SM80 family's fastest configs beside PyTorch's flash
    memory    bytes of the workspace

Contenders take turns behind a kernel that spins; medians count. A ratio is of speeds, behind it in
brackets the least that it should be. The bars of `cells` are what the best of FlashAttention-3 and
-4 had over cuDNN 9.19 on an H200 on 2026-11-23.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from support.backward_calls import config_of_sm80, made
from support.gpu_kernels import with_workspace
from support.graphs import medians

from pyflash.bench.uneven import WORKLOADS

# By d_head and whether it is causal, of 512, 1k, 2k, 4k, 8k, 16k.
OVER_CUDNN = {
    (128, False): (1.05, 1.11, 1.09, 1.13, 1.11, 1.18),
    (128, True): (1.07, 1.15, 1.16, 1.18, 1.18, 1.20),
    (64, False): (1.17, 1.20, 1.19, 1.21, 1.21, 1.23),
    (64, True): (1.17, 1.29, 1.29, 1.33, 1.34, 1.33),
}
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)
BOTH_OVER = 1.03  # of what the peers have in both passes
OVER_FLASH, SM80_OVER_FLASH = 1.6, 1.1
MASKS = (("full", {}), ("causal", {"causal": True}))
MIB = 1 << 20

Ratio = tuple[str, float, float]  # what, its speed over another's, the least that it should be
Line = tuple[str, list[Ratio]]


def cells(asked: Any) -> Iterator[Line]:
    for (d_head, causal), bars in OVER_CUDNN.items():
        for seqlen, bar in zip(SEQLENS, bars, strict=True):
            call = made(asked.tokens, seqlen, d_head, causal=causal)
            passes = ("backward", "both")
            runs = {(w, p): call.run(w, p) for w in ("own", "cudnn") for p in passes}
            us = medians(runs, asked.rounds)
            own, both = (us["cudnn", p] / us["own", p] for p in passes)
            tflops = call.flops / us["own", "backward"] / 1e6
            yield (
                f"d {d_head} {'causal' if causal else 'full'} {seqlen}: {tflops:.0f} TFLOP/s",
                [("over cudnn", own, bar), ("both passes", both, BOTH_OVER * bar)],
            )


def d_heads(asked: Any) -> Iterator[Line]:
    for d_head in (96, 192, 256):
        for mask, options in MASKS:
            for seqlen in (1024, 4096, 16384):
                call = made(asked.tokens, seqlen, d_head, **options)
                runs = {"own": call.own(), "flash": call.run("flash")}
                if d_head <= 128:
                    runs["cudnn"] = call.run("cudnn")
                us = medians(runs, asked.rounds)
                tflops = call.flops / us["own"] / 1e6
                bars = {"flash": OVER_FLASH, "cudnn": 1.0}
                ratios = [(f"over {w}", us[w] / us["own"], bars[w]) for w in runs if w in bars]
                yield f"d {d_head} {mask} {seqlen}: {tflops:.0f} TFLOP/s", ratios


def order(asked: Any) -> Iterator[Line]:
    for d_head in (64, 96, 128, 192, 256):
        for mask, options in MASKS:
            for seqlen, bar in ((1024, 0.88), (4096, 0.9), (16384, 0.9)):
                call = made(asked.tokens, seqlen, d_head, **options)
                runs = {"any": call.own(), "one": call.own(deterministic=True)}
                us = medians(runs, asked.rounds)
                tflops = call.flops / us["one"] / 1e6
                name = f"d {d_head} {mask} {seqlen} in one order: {tflops:.0f} TFLOP/s"
                yield name, [("over any", us["any"] / us["one"], bar)]


def masks(asked: Any) -> Iterator[Line]:
    for d_head in (128, 64):
        for seqlen in (1024, 4096, 16384):
            causal = made(asked.tokens, seqlen, d_head, causal=True)
            calls = {"causal": causal, "softcap": causal.with_options(softcap=30.0)}
            bars = {"softcap": 0.8, "window 1024": 0.87, "group of 8": 0.97}
            if seqlen > 1024:
                calls["window 1024"] = causal.with_options(window_left=1023)
                calls["group of 8"] = made(asked.tokens, seqlen, d_head, group=8, causal=True)
            us = medians({name: call.own() for name, call in calls.items()}, asked.rounds)
            speed = {name: call.flops / us[name] for name, call in calls.items()}
            ratios = [(name, speed[name] / speed["causal"], bars[name]) for name in [*calls][1:]]
            yield f"d {d_head} causal {seqlen}", ratios


def packed(asked: Any) -> Iterator[Line]:
    for drawn in WORKLOADS["packed"]():
        documents = drawn.smaller(max(1, 16384 // asked.tokens))
        calls = [
            made(0, 0, w.d_head, heads=w.heads, lengths=list(w.lengths_q), causal=True)
            for w in (documents, documents.equal)
        ]
        us = medians({i: call.own() for i, call in enumerate(calls)}, asked.rounds)
        speed = [call.flops / us[i] for i, call in enumerate(calls)]
        lengths = documents.lengths_q
        name = (
            f"d {drawn.d_head}, {len(lengths)} documents of {sum(lengths)} tokens, {us[0]:.0f} us"
        )
        yield name, [("a score, over equal ones", speed[0] / speed[1], 1 / 1.1)]


def dropout(asked: Any) -> Iterator[Line]:
    for d_head in (128, 64):
        for mask, options in MASKS:
            for seqlen in (1024, 4096, 16384):
                call = made(asked.tokens, seqlen, d_head, **options)
                dropped = call.with_options(dropout_p=0.1)
                passes = ("forward", "backward")
                calls = {"without": call, "with": dropped}
                runs = {(w, p): x.run("own", p) for w, x in calls.items() for p in passes}
                us = medians(runs, asked.rounds)
                ratios = [(p, us["without", p] / us["with", p], 0.75) for p in passes]
                yield f"d {d_head} {mask} {seqlen}, dropout", ratios


def sm80(asked: Any) -> Iterator[Line]:
    for d_head in (64, 128, 96, 192, 256):
        for mask, options in MASKS:
            for seqlen in (512, 1024, 4096, 16384):
                call = made(asked.tokens, seqlen, d_head, **options)
                config = config_of_sm80(call)
                runs = {"own": call.own(config=config), "flash": call.run("flash")}
                us = medians(runs, asked.rounds)
                ratio = us["flash"] / us["own"]
                yield f"{config} {mask} {seqlen}", [("over flash", ratio, SM80_OVER_FLASH)]


def memory(asked: Any) -> Iterator[Line]:
    """The most that it may be over what it is: 64 MiB, or 8 bytes for each row and column of heads
    whose tiles run at a time, and 24 bytes a row."""
    for d_head in (64, 96, 128, 192, 256):
        for seqlen, group in ((1024, 1), (16384, 1), (65536, 1), (16384, 8)):
            for extra in ({}, {"deterministic": True}):
                call = made(max(asked.tokens, seqlen), seqlen, d_head, group=group, causal=True)
                _, taken = with_workspace(call.own(**extra))
                batch, _, heads, _ = call.tensors[0].shape
                at_a_time = min(batch * heads, group * math.ceil(264 / math.ceil(seqlen / 128)))
                bound = max(64 * MIB, 8 * seqlen * d_head * at_a_time) + 24 * batch * seqlen * heads
                name = f"d {d_head} {seqlen} group {group} {[*extra]}: {taken / MIB:.1f} MiB"
                yield name, [("of what it may be", bound / max(taken, 1), 1.0)]


PARTS: dict[str, Callable[[Any], Iterable[Line]]] = {
    part.__name__: part for part in (cells, d_heads, order, masks, packed, dropout, sm80, memory)
}


def show(part: str, lines: Iterable[Line]) -> None:
    """Prints each line when it is known, then the geometric mean and how many are met."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name, ratios in lines:
        told = [
            f"{what} {x:.3f} ({bar:.3g}){'' if x >= bar else ' short'}" for what, x, bar in ratios
        ]
        print(f"{name}: {', '.join(told)}", flush=True)
        for what, x, bar in ratios:
            found.setdefault(what, []).append((x, bar))
    for what, values in found.items():
        over = math.exp(sum(math.log(x / bar) for x, bar in values) / len(values))
        mean = math.exp(sum(math.log(x) for x, _ in values) / len(values))
        met = sum(x >= bar for x, bar in values)
        print(f"# {part}, {what}: mean {mean:.3f}, of its bar {over:.3f}, {met} of {len(values)}")


def or_error(lines: Iterable[Line]) -> Iterator[Line]:
    try:
        yield from lines
    except Exception as error:  # the other parts are measured nevertheless
        print(f"{type(error).__name__}: {error}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("parts", nargs="*", metavar="PART")
    asked = parser.parse_args(arguments)
    print(torch.cuda.get_device_name(), torch.__version__, torch.backends.cudnn.version())
    for part in asked.parts or PARTS:
        show(part, or_error(PARTS[part](asked)))


if __name__ == "__main__":
    main()
