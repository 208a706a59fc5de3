"""The repository's Markdown: its prose, links, anchors and blocks of code.

A comment on the line before a block says how the block is tested: `<!-- test: gpu -->` runs it on
a GPU, `<!-- test: shown -->` only parses it, because it needs a process group or a run's records.
Without one a block of Python runs on the CPU, after those above it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
GUIDES = ("docs/guides", "docs/concepts")  # what is true now: no dates, no runs
MARK = re.compile(r"<!-- test: (gpu|shown) -->")


class Block(NamedTuple):
    language: str
    text: str
    line: int  # of the first line of code, from 0
    mark: str  # gpu, shown or nothing


class Link(NamedTuple):
    target: str
    line: int  # of the paragraph, from 1


def markdown_files() -> list[Path]:
    """Every file that a reader may open, relative to the root."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    return sorted(path.relative_to(ROOT) for path in found)


@cache
def tokens_of(path: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse((ROOT / path).read_text())


def blocks_of(path: Path) -> list[Block]:
    found = []
    for before, token in zip([None, *tokens_of(path)], tokens_of(path), strict=False):
        if token.type == "fence" and token.map:
            marked = MARK.search(before.content) if before and before.type == "html_block" else None
            mark = marked[1] if marked else ""
            found.append(Block(token.info.strip(), token.content, token.map[0] + 1, mark))
    return found


def _inline(path: Path) -> list[tuple[Token, int]]:
    """The pieces of inline text, with the line at which their block begins."""
    return [
        (child, token.map[0] + 1 if token.map else 1)
        for token in tokens_of(path)
        if token.type == "inline"
        for child in token.children or ()
    ]


def links_of(path: Path) -> list[Link]:
    found = []
    for child, line in _inline(path):
        target = child.attrGet("href") or child.attrGet("src")
        if target:
            found.append(Link(str(target), line))
    return found


def anchor_of(heading: str) -> str:
    """As GitHub makes them."""
    words = re.sub(r"[^\w\- ]", "", heading.lower())
    return words.replace(" ", "-")


def anchors_of(path: Path) -> list[str]:
    """A heading that comes again has a number, as on GitHub."""
    found: list[str] = []
    for token, content in pairwise(tokens_of(path)):
        if token.type == "heading_open":
            shown = "".join(child.content for child in content.children or ())
            anchor = anchor_of(shown)
            again = sum(other == anchor for other in found)
            found.append(f"{anchor}-{again}" if again else anchor)
    return found


def prose_of(path: Path) -> str:
    """Everything but blocks of code and comments."""
    kept = (ROOT / path).read_text().splitlines()
    for token in tokens_of(path):
        if token.type in ("fence", "html_block") and token.map:
            kept[slice(*token.map)] = [""] * (token.map[1] - token.map[0])
    return "\n".join(kept)


def lines_too_long(path: Path) -> list[int]:
    """The numbers of lines beyond 120 columns; a row of a table cannot be broken."""
    lines = (ROOT / path).read_text().splitlines()
    return [i for i, line in enumerate(lines, 1) if len(line) > 120 and not line.startswith("|")]


def session(path: Path, gpu: bool = False) -> str:
    """The Python that runs on the CPU, or on a GPU, each line where it is in the file."""
    lines = [""] * len((ROOT / path).read_text().splitlines())
    for block in blocks_of(path):
        if block.language == "python" and block.mark in ("", "gpu" if gpu else ""):
            text = block.text.splitlines()
            lines[block.line : block.line + len(text)] = text
    return "\n".join(lines)


# `make test` builds no kernels, so what it runs must not find a GPU.
ON_THE_CPU = {"CUDA_VISIBLE_DEVICES": ""}


def run_python(
    source: str, path: Path, folder: Path = ROOT, environment: Mapping[str, str] = ON_THE_CPU
) -> subprocess.CompletedProcess:
    """In a process of its own, whose tracebacks name the lines of the file."""
    program = f"exec(compile({source!r}, {str(path)!r}, 'exec'), {{'__name__': '__main__'}})"
    python_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, **environment, "PYTHONPATH": python_path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
