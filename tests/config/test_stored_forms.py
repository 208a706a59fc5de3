"""Configs as text of 2026-11: what logs, records and profiles hold must parse to the same values
for ever. Append rows, never change one."""

import json

import pytest

from pyflash import config
from pyflash.config import FlashForwardKernelConfig
from pyflash.config.fields import describe

# The 13 fields of then, in order; short form; JSON; a symbol or a C++ literal.
STORED = [
    (
        ("FP16", 128, 64, 64, 4, True, False, False, 0, 0, 0, False, False),
        "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles",
        '{"dtype": "FP16", "d_head": 128, "B_r": 64, "B_c": 64, "n_warps": 4, "async_copy": '
        'true, "eager_load_blocks": false, "swizzled": false, "Q_mma_load_K_tiles": 0, '
        '"K_mma_load_K_tiles": 0, "V_mma_load_K_tiles": 0, "mma_double_buffer_loads": false, '
        '"optimized_softmax": false}',
        "void pyflash::flash_forward_kernel<FlashForwardKernelConfig{(DType)5, 128, 64, 64, "
        "4, true, false, false, 0, 0, 0, false, false}, "
        "(pyflash::Variant)0>(pyflash::ForwardParams)",
    ),
    (
        ("FP16", 128, 64, 64, 4, True, False, True, 0, 0, 0, False, False),
        "(FP16, 128, 64, 64, 4): async+swizzled+load_0_0_0_tiles",
        '{"dtype": "FP16", "d_head": 128, "B_r": 64, "B_c": 64, "n_warps": 4, "async_copy": '
        'true, "eager_load_blocks": false, "swizzled": true, "Q_mma_load_K_tiles": 0, '
        '"K_mma_load_K_tiles": 0, "V_mma_load_K_tiles": 0, "mma_double_buffer_loads": false, '
        '"optimized_softmax": false}',
        "void flash_forward_kernel<FlashForwardKernelConfig{(DType)5, (int)128, (int)64, "
        "(int)64, (int)4, (bool)1, (bool)0, (bool)1, (int)0, (int)0, (int)0, (bool)0, "
        "(bool)0}, (Variant)3>(ForwardParams)",
    ),
    (
        ("FP16", 128, 64, 64, 4, True, True, True, 0, 0, 0, False, False),
        "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_0_0_tiles",
        '{"dtype": "FP16", "d_head": 128, "B_r": 64, "B_c": 64, "n_warps": 4, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": true, "Q_mma_load_K_tiles": 0, '
        '"K_mma_load_K_tiles": 0, "V_mma_load_K_tiles": 0, "mma_double_buffer_loads": false, '
        '"optimized_softmax": false}',
        "flash_forward_kernel<FlashForwardKernelConfig{5, 128, 64, 64, 4, 1, 1, 1, 0, 0, 0, "
        "0, 0}>(...)",
    ),
    (
        ("FP16", 128, 64, 64, 4, True, True, True, 2, 2, 2, False, False),
        "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles",
        '{"dtype": "FP16", "d_head": 128, "B_r": 64, "B_c": 64, "n_warps": 4, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": true, "Q_mma_load_K_tiles": 2, '
        '"K_mma_load_K_tiles": 2, "V_mma_load_K_tiles": 2, "mma_double_buffer_loads": false, '
        '"optimized_softmax": false}',
        "void pyflash::flash_forward_kernel<(FlashForwardKernelConfig){(DType)5, 128, 64, 64, "
        "4, true, true, true, 2, 2, 2, false, false}, "
        "(pyflash::Variant)1>(pyflash::ForwardParams)",
    ),
    (
        ("FP16", 128, 64, 64, 4, True, True, True, 2, 2, 2, True, False),
        "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer",
        '{"dtype": "FP16", "d_head": 128, "B_r": 64, "B_c": 64, "n_warps": 4, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": true, "Q_mma_load_K_tiles": 2, '
        '"K_mma_load_K_tiles": 2, "V_mma_load_K_tiles": 2, "mma_double_buffer_loads": true, '
        '"optimized_softmax": false}',
        "void flash_forward_kernel<FlashForwardKernelConfig{(c10::ScalarType)5, (int)128, "
        "(int)64, (int)64, (int)4, (bool)1, (bool)1, (bool)1, (int)2, (int)2, (int)2, "
        "(bool)1, (bool)0}>(float*, int)",
    ),
    (
        ("FP16", 128, 64, 64, 4, True, True, True, 2, 2, 2, True, True),
        "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
        '{"dtype": "FP16", "d_head": 128, "B_r": 64, "B_c": 64, "n_warps": 4, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": true, "Q_mma_load_K_tiles": 2, '
        '"K_mma_load_K_tiles": 2, "V_mma_load_K_tiles": 2, "mma_double_buffer_loads": true, '
        '"optimized_softmax": true}',
        "FlashForwardKernelConfig{.dtype = DType::FP16, .d_head = 128, .B_r = 64, .B_c = 64, "
        ".n_warps = 4, .async_copy = true, .eager_load_blocks = true, .swizzled = true, "
        ".Q_mma_load_K_tiles = 2, .K_mma_load_K_tiles = 2, .V_mma_load_K_tiles = 2, "
        ".mma_double_buffer_loads = true, .optimized_softmax = true}",
    ),
    (
        ("FP16", 128, 64, 64, 4, True, True, True, 0, 2, 2, False, True),
        "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
        '{"dtype": "FP16", "d_head": 128, "B_r": 64, "B_c": 64, "n_warps": 4, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": true, "Q_mma_load_K_tiles": 0, '
        '"K_mma_load_K_tiles": 2, "V_mma_load_K_tiles": 2, "mma_double_buffer_loads": false, '
        '"optimized_softmax": true}',
        "void flash_forward_kernel<FlashForwardKernelConfig{(DType)5, (int)128, (int)64, "
        "(int)64, (int)4, (bool)1, (bool)1, (bool)1, (int)0, (int)2, (int)2, (bool)0, "
        "(bool)1}, (Variant)3>(ForwardParams)",
    ),
    (
        ("FP16", 128, 128, 64, 4, True, True, True, 2, 2, 2, False, True),
        "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
        '{"dtype": "FP16", "d_head": 128, "B_r": 128, "B_c": 64, "n_warps": 4, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": true, "Q_mma_load_K_tiles": 2, '
        '"K_mma_load_K_tiles": 2, "V_mma_load_K_tiles": 2, "mma_double_buffer_loads": false, '
        '"optimized_softmax": true}',
        "flash_forward_kernel<FlashForwardKernelConfig{5, 128, 128, 64, 4, 1, 1, 1, 2, 2, 2, "
        "0, 1}>(...)",
    ),
    (
        ("FP16", 128, 128, 32, 4, True, True, True, 2, 2, 2, True, True),
        "(FP16, 128, 128, 32, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
        '{"dtype": "FP16", "d_head": 128, "B_r": 128, "B_c": 32, "n_warps": 4, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": true, "Q_mma_load_K_tiles": 2, '
        '"K_mma_load_K_tiles": 2, "V_mma_load_K_tiles": 2, "mma_double_buffer_loads": true, '
        '"optimized_softmax": true}',
        "void pyflash::flash_forward_kernel<(FlashForwardKernelConfig){(DType)5, 128, 128, "
        "32, 4, true, true, true, 2, 2, 2, true, true}, "
        "(pyflash::Variant)1>(pyflash::ForwardParams)",
    ),
    (
        ("FP16", 128, 64, 32, 4, True, True, True, 2, 2, 0, False, True),
        "(FP16, 128, 64, 32, 4): async+eager+swizzled+load_2_2_0_tiles+opt_softmax",
        '{"dtype": "FP16", "d_head": 128, "B_r": 64, "B_c": 32, "n_warps": 4, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": true, "Q_mma_load_K_tiles": 2, '
        '"K_mma_load_K_tiles": 2, "V_mma_load_K_tiles": 0, "mma_double_buffer_loads": false, '
        '"optimized_softmax": true}',
        "void flash_forward_kernel<FlashForwardKernelConfig{(c10::ScalarType)5, (int)128, "
        "(int)64, (int)32, (int)4, (bool)1, (bool)1, (bool)1, (int)2, (int)2, (int)0, "
        "(bool)0, (bool)1}>(float*, int)",
    ),
    (
        ("FP16", 64, 128, 128, 4, True, True, True, 2, 2, 2, False, True),
        "(FP16, 64, 128, 128, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
        '{"dtype": "FP16", "d_head": 64, "B_r": 128, "B_c": 128, "n_warps": 4, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": true, "Q_mma_load_K_tiles": 2, '
        '"K_mma_load_K_tiles": 2, "V_mma_load_K_tiles": 2, "mma_double_buffer_loads": false, '
        '"optimized_softmax": true}',
        "void pyflash::flash_forward_kernel<FlashForwardKernelConfig{(DType)5, 64, 128, 128, "
        "4, true, true, true, 2, 2, 2, false, true}, "
        "(pyflash::Variant)0>(pyflash::ForwardParams)",
    ),
    (
        ("FP16", 64, 128, 64, 4, True, True, True, 0, 0, 0, False, True),
        "(FP16, 64, 128, 64, 4): async+eager+swizzled+load_0_0_0_tiles+opt_softmax",
        '{"dtype": "FP16", "d_head": 64, "B_r": 128, "B_c": 64, "n_warps": 4, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": true, "Q_mma_load_K_tiles": 0, '
        '"K_mma_load_K_tiles": 0, "V_mma_load_K_tiles": 0, "mma_double_buffer_loads": false, '
        '"optimized_softmax": true}',
        "FlashForwardKernelConfig{.dtype = DType::FP16, .d_head = 64, .B_r = 128, .B_c = 64, "
        ".n_warps = 4, .async_copy = true, .eager_load_blocks = true, .swizzled = true, "
        ".Q_mma_load_K_tiles = 0, .K_mma_load_K_tiles = 0, .V_mma_load_K_tiles = 0, "
        ".mma_double_buffer_loads = false, .optimized_softmax = true}",
    ),
    (
        ("FP16", 64, 64, 64, 4, True, True, True, 0, 2, 2, False, True),
        "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
        '{"dtype": "FP16", "d_head": 64, "B_r": 64, "B_c": 64, "n_warps": 4, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": true, "Q_mma_load_K_tiles": 0, '
        '"K_mma_load_K_tiles": 2, "V_mma_load_K_tiles": 2, "mma_double_buffer_loads": false, '
        '"optimized_softmax": true}',
        "flash_forward_kernel<FlashForwardKernelConfig{5, 64, 64, 64, 4, 1, 1, 1, 0, 2, 2, 0, "
        "1}>(...)",
    ),
    (
        ("FP16", 64, 128, 32, 4, True, True, True, 0, 2, 2, False, True),
        "(FP16, 64, 128, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
        '{"dtype": "FP16", "d_head": 64, "B_r": 128, "B_c": 32, "n_warps": 4, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": true, "Q_mma_load_K_tiles": 0, '
        '"K_mma_load_K_tiles": 2, "V_mma_load_K_tiles": 2, "mma_double_buffer_loads": false, '
        '"optimized_softmax": true}',
        "void pyflash::flash_forward_kernel<(FlashForwardKernelConfig){(DType)5, 64, 128, 32, "
        "4, true, true, true, 0, 2, 2, false, true}, "
        "(pyflash::Variant)1>(pyflash::ForwardParams)",
    ),
    (
        ("FP16", 64, 64, 32, 4, True, True, True, 0, 2, 2, False, True),
        "(FP16, 64, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
        '{"dtype": "FP16", "d_head": 64, "B_r": 64, "B_c": 32, "n_warps": 4, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": true, "Q_mma_load_K_tiles": 0, '
        '"K_mma_load_K_tiles": 2, "V_mma_load_K_tiles": 2, "mma_double_buffer_loads": false, '
        '"optimized_softmax": true}',
        "void flash_forward_kernel<FlashForwardKernelConfig{(c10::ScalarType)5, (int)64, "
        "(int)64, (int)32, (int)4, (bool)1, (bool)1, (bool)1, (int)0, (int)2, (int)2, "
        "(bool)0, (bool)1}>(float*, int)",
    ),
    (
        ("BF16", 32, 128, 64, 4, True, True, True, 2, 2, 2, False, True),
        "(BF16, 32, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
        '{"dtype": "BF16", "d_head": 32, "B_r": 128, "B_c": 64, "n_warps": 4, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": true, "Q_mma_load_K_tiles": 2, '
        '"K_mma_load_K_tiles": 2, "V_mma_load_K_tiles": 2, "mma_double_buffer_loads": false, '
        '"optimized_softmax": true}',
        "void pyflash::flash_forward_kernel<FlashForwardKernelConfig{(DType)15, 32, 128, 64, "
        "4, true, true, true, 2, 2, 2, false, true}, "
        "(pyflash::Variant)0>(pyflash::ForwardParams)",
    ),
    (
        ("BF16", 96, 128, 64, 4, True, True, True, 2, 2, 2, False, True),
        "(BF16, 96, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
        '{"dtype": "BF16", "d_head": 96, "B_r": 128, "B_c": 64, "n_warps": 4, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": true, "Q_mma_load_K_tiles": 2, '
        '"K_mma_load_K_tiles": 2, "V_mma_load_K_tiles": 2, "mma_double_buffer_loads": false, '
        '"optimized_softmax": true}',
        "void flash_forward_kernel<FlashForwardKernelConfig{(DType)15, (int)96, (int)128, "
        "(int)64, (int)4, (bool)1, (bool)1, (bool)1, (int)2, (int)2, (int)2, (bool)0, "
        "(bool)1}, (Variant)3>(ForwardParams)",
    ),
    (
        ("BF16", 192, 128, 64, 8, True, True, True, 2, 2, 2, False, True),
        "(BF16, 192, 128, 64, 8): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
        '{"dtype": "BF16", "d_head": 192, "B_r": 128, "B_c": 64, "n_warps": 8, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": true, "Q_mma_load_K_tiles": 2, '
        '"K_mma_load_K_tiles": 2, "V_mma_load_K_tiles": 2, "mma_double_buffer_loads": false, '
        '"optimized_softmax": true}',
        "FlashForwardKernelConfig{.dtype = DType::BF16, .d_head = 192, .B_r = 128, .B_c = 64, "
        ".n_warps = 8, .async_copy = true, .eager_load_blocks = true, .swizzled = true, "
        ".Q_mma_load_K_tiles = 2, .K_mma_load_K_tiles = 2, .V_mma_load_K_tiles = 2, "
        ".mma_double_buffer_loads = false, .optimized_softmax = true}",
    ),
    (
        ("BF16", 256, 128, 32, 8, True, True, True, 2, 2, 2, False, True),
        "(BF16, 256, 128, 32, 8): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
        '{"dtype": "BF16", "d_head": 256, "B_r": 128, "B_c": 32, "n_warps": 8, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": true, "Q_mma_load_K_tiles": 2, '
        '"K_mma_load_K_tiles": 2, "V_mma_load_K_tiles": 2, "mma_double_buffer_loads": false, '
        '"optimized_softmax": true}',
        "void pyflash::flash_forward_kernel<(FlashForwardKernelConfig){(DType)15, 256, 128, "
        "32, 8, true, true, true, 2, 2, 2, false, true}, "
        "(pyflash::Variant)1>(pyflash::ForwardParams)",
    ),
    (
        ("BF16", 64, 128, 32, 8, False, False, False, 4, 4, 0, True, False),
        "(BF16, 64, 128, 32, 8): load_4_4_0_tiles+buffer",
        '{"dtype": "BF16", "d_head": 64, "B_r": 128, "B_c": 32, "n_warps": 8, "async_copy": '
        'false, "eager_load_blocks": false, "swizzled": false, "Q_mma_load_K_tiles": 4, '
        '"K_mma_load_K_tiles": 4, "V_mma_load_K_tiles": 0, "mma_double_buffer_loads": true, '
        '"optimized_softmax": false}',
        "void flash_forward_kernel<FlashForwardKernelConfig{(c10::ScalarType)15, (int)64, "
        "(int)128, (int)32, (int)8, (bool)0, (bool)0, (bool)0, (int)4, (int)4, (int)0, "
        "(bool)1, (bool)0}>(float*, int)",
    ),
    (
        ("BF16", 64, 64, 128, 4, False, False, True, 8, 8, 4, True, True),
        "(BF16, 64, 64, 128, 4): swizzled+load_8_8_4_tiles+buffer+opt_softmax",
        '{"dtype": "BF16", "d_head": 64, "B_r": 64, "B_c": 128, "n_warps": 4, "async_copy": '
        'false, "eager_load_blocks": false, "swizzled": true, "Q_mma_load_K_tiles": 8, '
        '"K_mma_load_K_tiles": 8, "V_mma_load_K_tiles": 4, "mma_double_buffer_loads": true, '
        '"optimized_softmax": true}',
        "void pyflash::flash_forward_kernel<FlashForwardKernelConfig{(DType)15, 64, 64, 128, "
        "4, false, false, true, 8, 8, 4, true, true}, "
        "(pyflash::Variant)0>(pyflash::ForwardParams)",
    ),
    (
        ("FP16", 80, 16, 48, 1, True, True, False, 0, 4, 2, False, False),
        "(FP16, 80, 16, 48, 1): async+eager+load_0_4_2_tiles",
        '{"dtype": "FP16", "d_head": 80, "B_r": 16, "B_c": 48, "n_warps": 1, "async_copy": '
        'true, "eager_load_blocks": true, "swizzled": false, "Q_mma_load_K_tiles": 0, '
        '"K_mma_load_K_tiles": 4, "V_mma_load_K_tiles": 2, "mma_double_buffer_loads": false, '
        '"optimized_softmax": false}',
        "void flash_forward_kernel<FlashForwardKernelConfig{(DType)5, (int)80, (int)16, "
        "(int)48, (int)1, (bool)1, (bool)1, (bool)0, (int)0, (int)4, (int)2, (bool)0, "
        "(bool)0}, (Variant)3>(ForwardParams)",
    ),
    (
        ("BF16", 256, 128, 64, 8, True, False, True, 16, 16, 8, False, False),
        "(BF16, 256, 128, 64, 8): async+swizzled+load_16_16_8_tiles",
        '{"dtype": "BF16", "d_head": 256, "B_r": 128, "B_c": 64, "n_warps": 8, "async_copy": '
        'true, "eager_load_blocks": false, "swizzled": true, "Q_mma_load_K_tiles": 16, '
        '"K_mma_load_K_tiles": 16, "V_mma_load_K_tiles": 8, "mma_double_buffer_loads": false, '
        '"optimized_softmax": false}',
        "flash_forward_kernel<FlashForwardKernelConfig{15, 256, 128, 64, 8, 1, 0, 1, 16, 16, "
        "8, 0, 0}>(...)",
    ),
    (
        ("FP16", 12345, 1, 23456, 7, False, False, False, 10, 200, 3000, False, False),
        "(FP16, 12345, 1, 23456, 7): load_10_200_3000_tiles",
        '{"dtype": "FP16", "d_head": 12345, "B_r": 1, "B_c": 23456, "n_warps": 7, '
        '"async_copy": false, "eager_load_blocks": false, "swizzled": false, '
        '"Q_mma_load_K_tiles": 10, "K_mma_load_K_tiles": 200, "V_mma_load_K_tiles": 3000, '
        '"mma_double_buffer_loads": false, "optimized_softmax": false}',
        "FlashForwardKernelConfig{.dtype = DType::FP16, .d_head = 12345, .B_r = 1, .B_c = "
        "23456, .n_warps = 7, .async_copy = false, .eager_load_blocks = false, .swizzled = "
        "false, .Q_mma_load_K_tiles = 10, .K_mma_load_K_tiles = 200, .V_mma_load_K_tiles = "
        "3000, .mma_double_buffer_loads = false, .optimized_softmax = false}",
    ),
]


@pytest.mark.parametrize(("values", "short_form", "record", "symbol"), STORED)
def test_stored_text_means_the_same_values(values, short_form, record, symbol):
    expected = as_it_was(values)
    for parse in (FlashForwardKernelConfig.parse, config.parse):
        assert parse(short_form) == expected
        assert parse(symbol) == expected
    for from_dict in (FlashForwardKernelConfig.from_dict, config.from_dict):
        assert from_dict(json.loads(record)) == expected


@pytest.mark.parametrize(("values", "short_form", "record", "symbol"), STORED)
def test_fields_at_their_defaults_print_as_then(values, short_form, record, symbol):
    assert str(as_it_was(values)) == short_form
    stored = json.loads(record)
    assert {name: as_it_was(values).to_dict()[name] for name in stored} == stored


def test_the_rows_are_different_configs():
    assert len({as_it_was(values) for values, *_ in STORED}) == len(STORED) >= 20
    literals = [symbol for *_, symbol in STORED if ".dtype" in symbol]
    assert len(STORED) - len(literals) >= 20


def as_it_was(values):
    """The config of 13 values, with the dtype by name, and of defaults."""
    fields = list(describe(FlashForwardKernelConfig).fields.values())
    assert [field.required for field in fields] == [True] * 13 + [False] * (len(fields) - 13)
    dtype, *others = values
    return FlashForwardKernelConfig(config.DType[dtype], *others)
