"""The playground of layouts: algebra, bank conflicts, pictures."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pyflash.layouts import (
    Access,
    Layout,
    Swizzle,
    bank,
    composition,
    conflicts,
    partition,
    plot,
    plot_threads,
    thread_values,
    tile_to_shape,
    zipped_divide,
)

PLAIN = Layout((64, 128), (128, 1))
K = tile_to_shape(composition(Swizzle(3, 3, 3), Layout((8, 64), (64, 1))), (64, 128))
MMA_C = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))

powers = st.integers(0, 4).map(lambda exponent: 2**exponent)
shapes = st.recursive(powers, lambda inner: st.tuples(inner, inner), max_leaves=4)
swizzles = st.builds(Swizzle, st.integers(0, 3), st.integers(0, 4), st.integers(3, 5))


@st.composite
def layouts(draw) -> Layout:
    shape = draw(shapes)
    strides = st.integers(0, 5).map(lambda exponent: 2**exponent)

    def stride(mode):
        return tuple(map(stride, mode)) if isinstance(mode, tuple) else draw(strides)

    return Layout(shape, stride(shape), draw(st.none() | swizzles))


@given(layouts())
def test_a_layout_is_parsed_as_it_is_printed(layout):
    assert Layout.parse(str(layout)) == layout


def test_layouts_are_parsed_as_cute_prints_them():
    text = "Sw<3,3,3> o smem_ptr[16b](unset) o ((_8,_8),(_64,_2)):((_64,_512),(_1,_4096))"
    assert Layout.parse(text) == K
    assert Layout.parse("Sw<0,4,3> o 0 o (_64,_128):(_128,_1)") == PLAIN
    assert Layout.parse("_8:_1") == Layout(8, 1)
    for wrong in ("", "(_8,_8)", "(8,8:(1,8)", "(8,8):8", "Layout"):
        with pytest.raises(ValueError, match=r"no layout|not alike|no shape"):
            Layout.parse(wrong)


@settings(max_examples=50)
@given(layouts(), layouts())
def test_composition_is_one_after_the_other(first, second):
    second = second.plain
    assume(second.cosize <= first.size)
    try:
        composed = composition(first, second)
    except ValueError:
        assume(False)
    assert composed.size == second.size
    assert [composed(i) for i in range(second.size)] == [
        first(second(i)) for i in range(second.size)
    ]


@given(swizzles)
def test_a_swizzle_permutes_and_undoes_itself(swizzle):
    offsets = range(2 ** (swizzle.bits + swizzle.base + swizzle.shift))
    images = [swizzle(offset) for offset in offsets]
    assert sorted(images) == list(offsets)
    assert [swizzle(image) for image in images] == list(offsets)


def test_what_has_no_meaning_is_refused():
    with pytest.raises(ValueError, match="modes overlap"):
        composition(Layout((2, 2), (1, 1)), Layout((2, 2), (1, 1)))
    with pytest.raises(ValueError, match="no even division"):
        composition(Layout((4, 6), (1, 8)), Layout(3, 3))
    with pytest.raises(ValueError, match="shift of at least bits"):
        Swizzle(3, 3, 2)
    with pytest.raises(ValueError, match="not alike"):
        Layout((2, 2), (1, (2, 3)))
    with pytest.raises(ValueError, match="does not tile"):
        tile_to_shape(K, (60, 128))
    with pytest.raises(ValueError, match="one swizzle"):
        composition(Swizzle(1, 0, 1), K)
    with pytest.raises(ValueError, match="has to come last"):
        composition(PLAIN, K)


@given(st.sampled_from([(8, 64), (16, 32), (8, 8)]), st.sampled_from([None, (1, 0)]))
def test_tiles_repeat_the_block(block, order):
    rows, columns = block
    layout = Layout(block, (columns, 1))
    tiled = tile_to_shape(layout, (4 * rows, 2 * columns), order)
    assert tiled.extents == (4 * rows, 2 * columns)
    step = (rows * columns) * ((1, 4) if order is None else (2, 1))[0]
    for row, column in itertools.product(range(rows), range(columns)):
        assert tiled(row, column) == layout(row, column)
        assert tiled(row + rows, column) == layout(row, column) + step
    assert sorted(tiled.offsets()) == list(range(tiled.size))


def test_every_value_has_one_owner():
    """16 rows of 8 threads, 8 elements each: what copies a block of 64 columns."""
    owners = thread_values(Layout((16, 8), (8, 1)), Layout((1, 8)))
    assert owners.extents == (128, 8)
    assert sorted(owners.offsets()) == list(range(16 * 64))
    assert [divmod(owners(thread, 0), 16) for thread in (0, 1, 8)] == [(0, 0), (8, 0), (0, 1)]
    offsets = partition(Layout((16, 64), (64, 1)), owners)
    assert [offsets(thread, 3) for thread in (0, 1, 8)] == [3, 11, 67]


def test_division_into_tiles():
    divided = zipped_divide(K, (8, 64))
    assert divided.extents == (512, 16)
    assert [divided(0, tile) for tile in (0, 1, 8)] == [0, 512, 4096]


def test_the_swizzle_is_what_ldmatrix_needs():
    """The ladder's second step: 8 rows of a plain block are in the same 4 banks."""
    for row, column in itertools.product(range(0, 64, 32), range(0, 128, 8)):
        assert conflicts(Access.ldmatrix(K, row, column)).degree == 1
        assert conflicts(Access.ldmatrix(PLAIN, row, column)).degree == 8
    assert str(conflicts(Access.ldmatrix(PLAIN))) == "32 wavefronts, 4 at best: 8-way conflicts"


@given(
    st.lists(st.integers(0, 255), min_size=32, max_size=32),
    st.sampled_from([4, 8, 16]),
)
def test_conflicts_are_different_words_of_one_bank(numbers, width):
    """Counted another way: the largest number of words that one bank has to deliver to a group."""
    access = Access(tuple(n * width for n in numbers), width)
    lanes = {4: 32, 8: 16, 16: 8}[width]
    expected = 0
    for first in range(0, 32, lanes):
        group = access.addresses[first : first + lanes]
        words = {byte // 4 for a in group for byte in range(a, a + width, 4)}
        expected += max(Counter(bank(4 * word) for word in words).values())
    found = conflicts(access)
    assert (found.wavefronts, found.ideal) == (expected, 32 // lanes)


def test_conflicts_of_a_partition():
    """A store of 16 bytes a lane through the copy's threads: 8 lanes fill a row of 128 bytes."""
    owners = thread_values(Layout((16, 8), (8, 1)), Layout((1, 8)))
    stored = partition(Layout((16, 64), (64, 1)), owners)
    assert conflicts(Access.of(stored, warp=w) for w in range(4)).degree == 1
    with pytest.raises(ValueError, match="no multiple of 16"):
        conflicts(Access((8,), 16))


def test_a_picture_shows_the_banks():
    root = ElementTree.fromstring(plot(PLAIN, K, title="K & V"))
    assert root.get("aria-label") == (
        "K & V: ldmatrix reads 8 rows in 8 wavefronts; ldmatrix reads 8 rows in 1 wavefront"
    )
    svg = "{http://www.w3.org/2000/svg}"
    cells = [r for r in root.iter(f"{svg}rect") if r.find(f"{svg}title") is not None]
    assert len(cells) == 2 * 16 * 16
    framed = [cell.get("fill") for cell in cells[:256] if cell.get("x") == cells[0].get("x")][:8]
    assert len(set(framed)) == 1
    swizzled = [cell.get("fill") for cell in cells[256:] if cell.get("x") == cells[256].get("x")]
    assert len(set(swizzled[:8])) == 8
    texts = "".join(text.text or "" for text in root.iter(f"{svg}text"))
    assert "and 48 more rows" in texts


def test_pictures_stay_inside_their_box():
    for svg in (plot(K), plot_threads(MMA_C, (16, 8)), plot(Layout((64, 32, 2), (32, 1, 2048)))):
        root = ElementTree.fromstring(svg)
        width, height = (float(root.get(name)) for name in ("width", "height"))
        assert width < 1100
        for text in root.iter("{http://www.w3.org/2000/svg}text"):
            assert 0 <= float(text.get("x")) <= width
            assert 0 < float(text.get("y")) <= height


def test_a_notebook_shows_a_layout():
    assert K._repr_svg_().startswith("<svg ")
    assert K._repr_svg_() == plot(K.plain, K)


def test_a_picture_of_threads():
    svg = plot_threads(MMA_C, (16, 8), title="C of mma.m16n8k16")
    assert svg.count("<rect") == 128
    assert "thread 31, value 3: row 15, column 7" in svg
    assert plot_threads(MMA_C, (16, 8), rows=4).count("<rect") == 32
    with pytest.raises(ValueError, match="one mode"):
        plot(Layout(64))


def test_the_picture_in_the_docs_is_what_is_drawn():
    path = Path(__file__).parents[2] / "docs" / "pictures" / "k_shared_memory.svg"
    assert path.read_text() == plot(PLAIN, K) + "\n"
