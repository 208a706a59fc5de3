"""The native module: a kernel's own CuTe types, and CuTe's algebra against pycute's."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.command_lines import config_of
from support.listings import BASE, BEST

from pyflash import FlashForwardSm90Config
from pyflash.codegen.compilation import ROOT, Compilation, compile_all
from pyflash.codegen.precompiled import headers_for, using
from pyflash.inspect import native
from pyflash.inspect.native import NativeError, describe, emit_module
from pyflash.layouts import (
    Access,
    Layout,
    Swizzle,
    composition,
    conflicts,
    tile_to_shape,
)
from pyflash.third_party.cuda import CudaError
from pyflash.third_party.cutlass import CutlassError

SM90 = config_of(FlashForwardSm90Config.family)
# Whose layouts are compared with CuTe's alone.
OTHERS = [
    FlashForwardSm90Config.parse(text)
    for text in (
        "(FP16, 64, 64, 96, 1): sm90+stages_2",
        "(BF16, 96, 192, 96, 3): sm90+stages_3",
        "(FP16, 256, 128, 64, 2): sm90+stages_2+persistent",
    )
]


@pytest.fixture(scope="module")
def algebra(uncaptured):
    return _built(uncaptured, native.algebra)


@pytest.fixture(scope="module")
def description(uncaptured):
    return _built(uncaptured, lambda: describe(BEST))


@pytest.fixture(scope="module")
def sm90_description(uncaptured, description):
    if SM90.family.emulation_header is None:
        pytest.skip("the SM90 traits compile for the CPU once the emulator runs their kernels")
    return _built(uncaptured, lambda: describe(SM90))


def _built(uncaptured, build):
    try:
        with uncaptured():
            return build()
    except (NativeError, CudaError, CutlassError) as error:
        pytest.skip(str(error))


def test_layouts_are_those_of_the_kernel(description):
    swizzled = "Sw<3,3,3> o _0 o ((_8,_8),(_64,_2)):((_64,_512),(_1,_4096))"
    for name in ("Q", "K", "V", "O"):
        assert description.layouts[name].text == swizzled
    assert description.layouts["K"].extents == (64, 128)
    assert description.layouts["copy g2s destination"].extents == (16, 64)
    assert description.smem_bytes == BEST.smem_bytes
    assert [(m.name, m.offset) for m in description.smem] == [
        ("q", 0), ("o", 0), ("k", 16384), ("v", 32768),
    ]  # fmt: skip


def test_pycute_computes_them_as_cute_does(description):
    assert len(description.layouts) == 16
    for layout in description.layouts.values():
        assert tuple(layout.layout.offsets()) == layout.offsets, layout.name


def test_the_sm90_traits_keep_to_the_names(sm90_description):
    """What config_layouts.h does not find under its names it leaves out, silently."""
    for layout in sm90_description.layouts.values():
        assert tuple(layout.layout.offsets()) == layout.offsets, layout.name
    smem = {n: x.extents for n, x in sm90_description.layouts.items() if x.kind == "smem"}
    stages, consumers = SM90.stages, SM90.n_consumers
    block = (SM90.B_c, SM90.d_head, stages)
    assert smem == {
        "Q": (64, SM90.d_head, consumers),
        "K": block,
        "V": block,
        "V^T": (SM90.d_head, SM90.B_c, stages),
        "O": (16, SM90.slab_columns),  # a warp's
    }
    threads = {n: x.extents for n, x in sm90_description.layouts.items() if x.kind == "threads"}
    assert threads == {
        **{f"MMA QK^T {o}": e for o, e in (("A", (64, 16)), ("B", (SM90.B_c, 16)))},
        "MMA QK^T C": (64, SM90.B_c),
        **{f"MMA PV {o}": e for o, e in (("A", (64, 16)), ("B", (SM90.d_head, 16)))},
        "MMA PV C": (64, SM90.d_head),
    }
    bytes_of_kv = 2 * SM90.B_c * SM90.d_head * stages
    slabs_of_O = SM90.slab_columns if SM90.persistent else 0
    bytes_of_q = 2 * SM90.B_r * (SM90.d_head + slabs_of_O)
    assert [(m.name, m.offset, m.bytes) for m in sm90_description.smem] == [
        ("q", 0, bytes_of_q),
        ("k", bytes_of_q, bytes_of_kv),
        ("v", bytes_of_q + bytes_of_kv, bytes_of_kv),
    ]
    assert sm90_description.smem_bytes == SM90.smem_bytes


@pytest.mark.parametrize("name", ["Q", "K", "V"])
def test_sm90_tiles_lie_as_tma_writes_them(sm90_description, name):
    """The 128-byte swizzle of TMA: chunks of 16 bytes are exchanged by the row's number mod 8."""
    tile = sm90_description.layouts[name].tile
    for row, chunk in itertools.product(range(16), range(8)):
        assert tile(row, 8 * chunk) == 64 * row + 8 * (chunk ^ row % 8)
    assert conflicts(Access.ldmatrix(tile)).degree == 1


def test_each_config_has_its_own_module_in_one_process(description, uncaptured):
    plain = _built(uncaptured, lambda: describe(BASE))
    assert plain.layouts["K"].text == "(_64,_128):(_128,_1)"
    assert plain.layouts["K"].text != description.layouts["K"].text
    assert describe(BEST).layouts["K"].text == description.layouts["K"].text


@pytest.mark.usefixtures("sm90_description")  # there is what compiles it
def test_layouts_that_sm90_traits_state_are_what_cute_computes(uncaptured):
    """It does not compile where sm90/forward/tiled.h finds a difference."""
    text = (
        f'#include "{native._HEADER.relative_to(ROOT)}"\n#include "{SM90.family.traits_header}"\n'
    )
    for number, config in enumerate(OTHERS):
        traits = f"pyflash::sm90::{SM90.family.traits}<{config.to_cpp_struct()}>"
        text += f"constexpr auto kTiled{number} = sizeof(typename {traits}::Tiled);\n"
    unit = Compilation("layouts", "native_tiled", text, native.native_compiler())
    with uncaptured():
        unit = using(unit, headers_for([unit], native._HEADER, "native_"))
        assert compile_all([unit], "layouts of SM90 traits") == []


def test_a_module_is_emitted_for_the_canonical_config():
    text = emit_module(BASE)
    assert text == emit_module(BASE)
    assert text.startswith(f"// {BASE}\n")
    assert '#include "cute_kernels/sm80/forward/tiled.h"' in text
    assert f"pyflash::sm80::KernelTraits<{BASE.to_cpp_struct()}>" in text


powers = st.integers(0, 3).map(lambda exponent: 2**exponent)
fours = st.tuples(powers, powers, powers, powers)


def nested(shape, stride) -> Layout:
    return Layout(
        ((shape[0], shape[1]), (shape[2], shape[3])),
        ((stride[0], stride[1]), (stride[2], stride[3])),
    )


@given(fours, st.tuples(*[st.integers(0, 100)] * 4))
def test_offsets_agree_with_cute(algebra, shape, stride):
    assert list(nested(shape, stride).offsets()) == algebra.evaluate(shape, stride)


@given(
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(3, 5),
    st.lists(st.integers(0, 1 << 16), min_size=1),
)
def test_swizzles_agree_with_cute(algebra, bits, base, shift, offsets):
    swizzle = Swizzle(bits, base, shift)
    assert [swizzle(offset) for offset in offsets] == algebra.swizzle(bits, base, shift, offsets)


@settings(max_examples=50)
@given(fours, fours, st.tuples(powers, powers), st.tuples(powers, powers))
def test_compositions_agree_with_cute(algebra, shape, stride, shape_b, stride_b):
    first, second = nested(shape, stride), Layout(shape_b, stride_b)
    assume(second.cosize <= first.size)
    try:
        composed = composition(first, second)
    except ValueError:
        assume(False)
    assert list(composed.offsets()) == algebra.compose(shape, stride, shape_b, stride_b)


def test_tilings_agree_with_cute(algebra):
    for tiled in algebra.tiled_layouts():
        rows, columns = tiled["block"]
        swizzle = Swizzle(tiled["bits"], tiled["base"], tiled["shift"])
        block = composition(swizzle, Layout((rows, columns), (columns, 1)))
        order = (0, 1) if tiled["first"] == 0 else (1, 0)
        layout = tile_to_shape(block, tuple(tiled["shape"]), order)
        assert list(layout.offsets()) == tiled["offsets"]
