"""What goes wrong in attention extensions: each is the business of a test, whose docstring names it
as `Pitfall 7: int32 offsets.`, in the words of this table."""

import ast
import re
from collections import defaultdict
from pathlib import Path

PITFALLS = {
    1: "builds of hours, memory exhausted",
    2: "pip's isolated build finds no torch or the wrong one",
    3: "undefined symbol after a torch upgrade",
    4: "no kernel image",
    5: "wrong GPU, default stream",
    6: "CUDA graph capture breaks",
    7: "int32 offsets",
    8: "grids of more than 65535",
    9: "unchecked launch returns stale memory as success",
    10: "rows with nothing to attend give NaN",
    11: "empty inputs",
    12: "lengths that are no multiple of the tile",
    13: "strides ignored",
    14: "16-byte alignment, strides of dimensions of size 1",
    15: "head dimensions that are not built",
    16: "causal where the lengths differ",
    17: "graph break under torch.compile",
    18: "the fake kernel's strides differ from the real ones",
    19: "other bits from run to run",
    20: "silent fallback to another kernel",
    21: "stale build cache",
    22: "concurrent builders",
    23: "one crashing candidate stops the rest",
    24: "toolchain and power decide speed",
    25: "what lse is: base, shape, padding",
    26: "another caller's plans in a library's cache",
    27: "the first CUDA call of a thread",
    28: "combinations of features and rows without keys",
    29: "a library that another user planted",
    30: "one bad file of the user breaks the import",
    31: "a command that works for one family only",
}


def named_in_docstrings() -> dict[int, list[tuple[str, str]]]:
    """Number -> (test, the words of its docstring)."""
    found = defaultdict(list)
    for path in sorted(Path(__file__).parents[1].rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                docstring = ast.get_docstring(node) or ""
                for number, words in re.findall(r"^Pitfall (\d+): (.*)$", docstring, re.MULTILINE):
                    found[int(number)].append((f"{path.name}::{node.name}", words))
    return found


def test_each_pitfall_is_named_by_a_test():
    found = named_in_docstrings()
    for number, title in PITFALLS.items():
        print(f"{number}. {title}: {', '.join(test for test, _ in found[number])}")
    assert not [number for number in PITFALLS if not found[number]]


def test_pitfalls_are_named_in_the_words_of_the_table():
    for number, tests in named_in_docstrings().items():
        for test, words in tests:
            assert re.match(re.escape(PITFALLS[number]) + r"\.( |$)", words), f"{test}: {words}"
