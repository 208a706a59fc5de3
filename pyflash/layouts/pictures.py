"""Pictures of layouts: banks of shared memory, and which thread owns what."""

from __future__ import annotations

from markupsafe import Markup

from pyflash.layouts.algebra import Layout
from pyflash.layouts.conflicts import (
    ELEMENT_BYTES,
    MATRIX_ROWS,
    VECTOR_BYTES,
    Access,
    bank,
    conflicts,
)
from pyflash.ui.notebook import view
from pyflash.ui.svg import FILLS, Picture, side_by_side

_CELL = (26, 17)
_MARGIN = 30  # of row numbers
_BANKS_OF_VECTOR = VECTOR_BYTES // 4


def plot(
    layout: Layout,
    other: Layout | None = None,
    *,
    title: str = "",
    rows: int = 16,
    element_bytes: int = ELEMENT_BYTES,
) -> Markup:
    """A layout of shared memory as SVG, and another beside it: each cell is 16 bytes, which is what
    an instruction moves for a lane; its colour and number tell which 4 of the 32 banks it is in.

    Framed are the 8 rows that ldmatrix reads at once: in one colour they queue up for the same
    banks, in eight they come in one pass. Only the first `rows` rows are shown, since swizzles
    repeat after 8. A layout with a swizzle is shown beside itself without, unless there is another.

    Modes beyond rows and columns, such as stages, are shown at 0. Raises ValueError for a layout of
    one mode.
    """
    shown = [layout] if other is None else [layout, other]
    if other is None and layout.swizzle:
        shown = [layout.plain, layout]
    shown = list(map(_matrix, shown))
    pictures = [_banks(one, rows, element_bytes) for one in shown]
    whole = Picture()
    top = 0
    if title:
        whole.text(0, 14, title, size=14, bold=True)
        top = 26
    whole.place(side_by_side(pictures), 0, top)
    label = f"{title or 'shared memory'}: {'; '.join(map(_verdict, shown))}"
    return whole.to_svg(label)


@view.register
def _(layout: Layout) -> Markup:
    return plot(layout)


def plot_threads(
    owners: Layout, shape: tuple[int, int], *, title: str = "", rows: int = 16
) -> Markup:
    """A (thread, value) layout as SVG: each cell of a tile of `shape` shows its thread and, below,
    which of the thread's values it is; colours are those of the thread in its group of 8. Only the
    first `rows` rows are shown, which are those of the first warp where rows are what warps share.
    """
    n_rows, n_columns = shape
    shown = min(rows, n_rows)
    n_threads, n_values = owners.extents
    picture = Picture()
    if title:
        picture.text(0, 14, title, size=14, bold=True)
    top = 40 if title else 16
    width, height = 30, 26
    for column in range(n_columns):
        picture.text(_MARGIN + (column + 0.5) * width, top - 4, str(column), 9, "middle", "s")
    for row in range(shown):
        picture.text(_MARGIN - 4, top + (row + 0.65) * height, str(row), 9, "end", "s")
    for thread in range(n_threads):
        for value in range(n_values):
            column, row = divmod(owners(thread, value), n_rows)
            if row >= shown:
                continue
            x, y = _MARGIN + column * width, top + row * height
            hint = f"thread {thread}, value {value}: row {row}, column {column}"
            picture.rect(x + 0.5, y + 0.5, width - 1, height - 1, FILLS[thread % 8], hint)
            picture.text(x + width / 2, y + 12, f"T{thread}", 9, "middle", "c")
            picture.text(x + width / 2, y + 22, f"V{value}", 8, "middle", "c")
    if shown < n_rows:
        y = top + shown * height + 13
        picture.text(_MARGIN, y, f"and {n_rows - shown} more rows", 10, kind="s")
    return picture.to_svg(f"{title or 'threads'}: {n_threads} threads of {n_values} values each")


def _matrix(layout: Layout) -> Layout:
    """The first two modes."""
    if layout.rank < 2:
        raise ValueError(f"{layout} has one mode, expected rows and columns")
    return Layout(layout.shape[:2], layout.stride[:2], layout.swizzle)


def _banks(layout: Layout, n_rows: int, element_bytes: int) -> Picture:
    rows, columns = layout.extents
    shown = min(rows, n_rows)
    elements = VECTOR_BYTES // element_bytes
    n_vectors = columns // elements
    width, height = _CELL
    picture = Picture()
    picture.text(0, 12, "swizzled" if layout.swizzle else "plain", 13, bold=True)
    picture.text(0, 28, _verdict(layout), 11)
    picture.text(0, 43, str(layout), 9.5, kind="s")
    top = 66
    for vector in range(n_vectors):
        if vector % 2 == 0:
            x = _MARGIN + (vector + 0.5) * width
            picture.text(x, top - 5, str(vector * elements), 9, "middle", "s")
    for row in range(shown):
        y = top + row * height
        picture.text(_MARGIN - 5, y + 0.7 * height, str(row), 9, "end", "s")
        for vector in range(n_vectors):
            address = layout(row, vector * elements) * element_bytes
            first = bank(address)
            group = first // _BANKS_OF_VECTOR
            x = _MARGIN + vector * width
            hint = f"row {row}, columns from {vector * elements}: byte {address}, banks {first} to"
            hint += f" {first + _BANKS_OF_VECTOR - 1}"
            picture.rect(x + 0.5, y + 0.5, width - 1, height - 1, FILLS[group], hint)
            picture.text(x + width / 2, y + 0.7 * height, str(first), 10, "middle", "c")
    picture.frame(_MARGIN, top, width, MATRIX_ROWS * height)
    if shown < rows:
        y = top + shown * height + 13
        picture.text(_MARGIN, y, f"and {rows - shown} more rows", 10, kind="s")
    return picture


def _verdict(layout: Layout) -> str:
    found = conflicts(Access.ldmatrix(layout, n_matrices=1))
    passes = "1 wavefront" if found.wavefronts == 1 else f"{found.wavefronts} wavefronts"
    return f"ldmatrix reads 8 rows in {passes}"
