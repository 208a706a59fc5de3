"""The room that configs have for variants, against ptxas: where there is room, the way through the
main loop of a block that a mask shows all of has no spill, and that of one that it cuts has at most
one."""

from __future__ import annotations

import networkx
import pytest

from pyflash.config import parse
from pyflash.inspect import sass
from pyflash.inspect.compiled import compiled_kernels
from pyflash.inspect.sass import Kernel
from pyflash.third_party.cuda import CudaError, find_tool
from pyflash.variant import parse as parse_variant
from pyflash.variant.library import named
from pyflash.variant.needs import needs_of

FOUR = "(BF16, 64, 256, 64, 4): sm90+stages_4+overlap+persistent+rescale_threshold"
THREE = "(BF16, 64, 192, 96, 3): sm90+stages_3+overlap+persistent+rescale_threshold"
BOOLS = "bools(m: bool[2]): s where m[q, k]"
BIAS = "fullbias(bias: bf16[4]): s + bias[b, h, q, k]"
WITH_ROOM = [
    (FOUR, "documents"),
    (FOUR, "softcap"),
    (THREE, "alibi"),
    (THREE, BOOLS),
    (THREE, BIAS),
]
# Beside what is computed once more after an overflow, and copies of rows that are not aligned.
MOST_SPILLED = 96
_MINUS_INFINITY = ("0xff800000", "-INF")


def _spills_on_the_way(kernel: Kernel, hides: bool) -> int:
    """Loads and stores of spilled registers on the shortest way through the main loop; hides: on
    the shortest of those that hide scores."""
    code, inside = kernel.instructions, set(kernel.main_loop.indices)
    graph, starts = sass.flow(code)
    after = dict(zip(starts, [*starts[1:], len(code)], strict=True))
    blocks = {start: code[start : after[start]] for start in starts if start in inside}
    head = kernel.main_loop.indices[0]
    ways = networkx.DiGraph()
    for start, instructions in blocks.items():
        hidden = any(
            "SEL" in i.opcode and any(text in i.operands for text in _MINUS_INFINITY)
            for i in instructions
        )
        for successor in graph.successors(start):
            for before in (False, True):
                to = ("end" if successor == head else successor, before or hidden)
                if successor in blocks:
                    ways.add_edge((start, before), to, weight=len(instructions))
    lengths = networkx.single_source_dijkstra_path_length(ways, (head, False), weight="weight")
    ends = [end for end in (("end", False), ("end", True)) if end in lengths]
    end = ("end", True) if hides else min(ends, key=lengths.__getitem__)
    way = networkx.shortest_path(ways, (head, False), end, "weight")
    return sum(
        instruction.opcode.startswith(("STL", "LDL"))
        for start, _ in way[:-1]
        for instruction in blocks[start]
    )


@pytest.mark.parametrize(("config", "text"), WITH_ROOM)
def test_with_room_nothing_spills_on_the_way(config, text, built_arch, uncaptured):
    try:
        find_tool("cuobjdump")
    except CudaError as error:
        pytest.skip(str(error))
    variant = parse_variant(text) if ":" in text else named(text).variant
    config = parse(config)
    assert config.family.variant_refusal(config, needs_of(variant)) is None
    with uncaptured():
        (kernel,) = compiled_kernels(config, built_arch, variant=variant)
    assert kernel.spill_store_bytes <= MOST_SPILLED
    assert all(share.fits for share in kernel.shares)
    # Where bits hide scores amid the exponentials, all ways do.
    assert _spills_on_the_way(kernel.kernel, hides=False) <= (text == BOOLS)
    assert _spills_on_the_way(kernel.kernel, hides=True) <= 1
