"""The configuration key: construction, order, hash, text, canonical form."""

import dataclasses
import json
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from support.strategies import LADDER_BEST, configs, near_configs

from pyflash import Arch, DType, FlashForwardKernelConfig
from pyflash.config.arch import ARCHS, Targets, targets


def test_dtypes_are_numbered_as_c10_scalar_types():
    assert (DType.FP16, DType.BF16) == (5, 15)


def test_short_form():
    assert str(LADDER_BEST) == (
        "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
    )
    assert LADDER_BEST.short_form() == str(LADDER_BEST)
    plain = FlashForwardKernelConfig(
        DType.BF16, 64, 128, 32, 8, False, False, False, 4, 4, 0, True, False
    )
    assert str(plain) == "(BF16, 64, 128, 32, 8): load_4_4_0_tiles+buffer"


def test_cpp_struct_has_designated_initialisers():
    assert LADDER_BEST.to_cpp_struct() == (
        "FlashForwardKernelConfig{.dtype = DType::FP16, .d_head = 128, .B_r = 64, .B_c = 64, "
        ".n_warps = 4, .async_copy = true, .eager_load_blocks = true, .swizzled = true, "
        ".Q_mma_load_K_tiles = 0, .K_mma_load_K_tiles = 2, .V_mma_load_K_tiles = 2, "
        ".mma_double_buffer_loads = false, .optimized_softmax = true}"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", 5),
        ("dtype", "FP16"),
        ("d_head", 128.0),
        ("d_head", True),
        ("n_warps", "4"),
        ("swizzled", 1),
        ("optimized_softmax", None),
        ("V_mma_load_K_tiles", False),
    ],
)
def test_wrong_types_are_refused(field, value):
    with pytest.raises(TypeError, match=field):
        LADDER_BEST.replace(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "least"), [("B_r", 0, 1), ("n_warps", -4, 1), ("K_mma_load_K_tiles", -2, 0)]
)
def test_sizes_below_one_and_negative_counts_are_refused(field, value, least):
    with pytest.raises(ValueError, match=f"{field} = {value}: expected at least {least}"):
        LADDER_BEST.replace(**{field: value})


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        LADDER_BEST.B_r = 128


@given(configs, configs)
def test_order_is_that_of_the_fields(a, b):
    left, right = dataclasses.astuple(a), dataclasses.astuple(b)
    assert (a < b) == (left < right)
    assert (a <= b) == (left <= right)
    assert (a == b) == (left == right)
    assert a != b or hash(a) == hash(b)


@pytest.mark.parametrize("index", range(12))
def test_an_earlier_field_outweighs_all_later_ones(index):
    low = [DType.FP16, 64, 64, 32, 4, False, False, False, 0, 0, 0, False, False]
    high = [DType.BF16, 128, 128, 64, 8, True, True, True, 2, 2, 2, True, True]
    smaller = FlashForwardKernelConfig(*low[: index + 1], *high[index + 1 :])
    larger = FlashForwardKernelConfig(*low[:index], high[index], *low[index + 1 :])
    assert smaller < larger


@given(configs)
def test_equal_configs_are_one_key(config):
    again = FlashForwardKernelConfig(*dataclasses.astuple(config))
    assert again is not config
    assert {config: 1}[again] == 1


@given(configs)
def test_json_and_pickle_round_trips(config):
    assert FlashForwardKernelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert pickle.loads(pickle.dumps(config)) == config


def test_from_dict_refuses_what_is_no_config():
    values = LADDER_BEST.to_dict()
    with pytest.raises(ValueError, match="'FP8'"):
        FlashForwardKernelConfig.from_dict(values | {"dtype": "FP8"})
    with pytest.raises(TypeError, match="stages"):
        FlashForwardKernelConfig.from_dict(values | {"stages": 2})


@pytest.mark.parametrize(
    ("changes", "canonical"),
    [
        # One stage of V that covers B_c is the whole block.
        ({"V_mma_load_K_tiles": 8}, {"V_mma_load_K_tiles": 0}),
        ({"V_mma_load_K_tiles": 4, "B_c": 32}, {"V_mma_load_K_tiles": 0, "B_c": 32}),
        ({"V_mma_load_K_tiles": 4}, {"V_mma_load_K_tiles": 4}),
        # So is one stage of K that covers d_head, but only where Q is not loaded beside it.
        ({"K_mma_load_K_tiles": 16}, {"K_mma_load_K_tiles": 0}),
        ({"K_mma_load_K_tiles": 8}, {"K_mma_load_K_tiles": 8}),
        ({"K_mma_load_K_tiles": 4, "d_head": 32}, {"K_mma_load_K_tiles": 0, "d_head": 32}),
        (
            {"Q_mma_load_K_tiles": 16, "K_mma_load_K_tiles": 16},
            {"Q_mma_load_K_tiles": 16, "K_mma_load_K_tiles": 16},
        ),
        # Nothing staged, nothing to double-buffer.
        (
            {"K_mma_load_K_tiles": 0, "V_mma_load_K_tiles": 0, "mma_double_buffer_loads": True},
            {"K_mma_load_K_tiles": 0, "V_mma_load_K_tiles": 0, "mma_double_buffer_loads": False},
        ),
        (
            {"K_mma_load_K_tiles": 0, "mma_double_buffer_loads": True},
            {"K_mma_load_K_tiles": 0, "mma_double_buffer_loads": True},
        ),
        # Two stages of a whole block are illegal, and stay so.
        (
            {"K_mma_load_K_tiles": 0, "V_mma_load_K_tiles": 8, "mma_double_buffer_loads": True},
            {"K_mma_load_K_tiles": 0, "V_mma_load_K_tiles": 8, "mma_double_buffer_loads": True},
        ),
        (
            {"K_mma_load_K_tiles": 16, "V_mma_load_K_tiles": 0, "mma_double_buffer_loads": True},
            {"K_mma_load_K_tiles": 16, "V_mma_load_K_tiles": 0, "mma_double_buffer_loads": True},
        ),
    ],
)
def test_canonical(changes, canonical):
    assert LADDER_BEST.replace(**changes).canonical() == LADDER_BEST.replace(**canonical)


@given(near_configs)
def test_canonical_is_idempotent_and_keeps_legality(config):
    canonical = config.canonical()
    assert canonical.canonical() == canonical
    for arch in ARCHS:
        assert bool(canonical.violations(arch)) == bool(config.violations(arch))
        assert canonical.resources(arch) == config.resources(arch)


def test_smem_and_threads():
    assert LADDER_BEST.smem_bytes == (64 + 2 * 64) * 128 * 2 == 49152
    assert LADDER_BEST.n_threads == 128
    assert LADDER_BEST.replace(B_r=128, n_warps=8).n_threads == 256


@pytest.mark.parametrize("arch", ["sm_90", "90", 90, Arch.of(90)])
def test_an_architecture_has_several_names(arch):
    assert Arch.of(arch).name == str(Arch.of(arch)) == "sm_90"
    assert LADDER_BEST.violations(arch) == []


@pytest.mark.parametrize("arch", ["sm_87", 110, "hopper"])
def test_an_unknown_architecture_lists_the_known_ones(arch):
    with pytest.raises(ValueError, match="sm_80, sm_86, sm_89, sm_90, sm_100, sm_120"):
        Arch.of(arch)


@pytest.mark.parametrize("arch", [(9, 0), 90.0, None, True])
def test_an_architecture_of_another_type_is_a_type_error(arch):
    with pytest.raises(TypeError, match="expected an Arch, 'sm_90', '90' or 90"):
        Arch.of(arch)


def test_architectures_hold_the_published_limits():
    """CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""
    limits = {
        arch.sm: (
            arch.smem_per_cta // 1024,
            arch.smem_per_sm // 1024,
            arch.max_warps_per_sm,
            arch.max_ctas_per_sm,
        )
        for arch in ARCHS
    }
    assert limits == {
        80: (163, 164, 64, 32),
        86: (99, 100, 48, 16),
        89: (99, 100, 48, 24),
        90: (227, 228, 64, 32),
        100: (227, 228, 64, 32),
        120: (99, 100, 48, 24),
    }


def test_targets_are_machine_code_and_the_newest_ptx():
    def of(*archs):
        return targets(map(Arch.of, archs))

    assert of(80) == Targets(machine_code=(80,), ptx=80)
    assert of(90, 80) == Targets(machine_code=(80, 90), ptx=90)
    assert of(80, 120) == Targets(machine_code=(80,), ptx=90)
    assert of(90, 100, 120) == of(90) == Targets(machine_code=(90,), ptx=90)
    assert of(120) == Targets(machine_code=(), ptx=90)


def test_ptx_is_of_an_older_architecture():
    by_number = {arch.sm: arch for arch in ARCHS}
    assert list(by_number) == sorted(by_number)
    for arch in ARCHS:
        if arch.ptx_of:
            assert arch.ptx_of < arch.sm
            assert not by_number[arch.ptx_of].ptx_of


def test_the_dsl_imports_neither_torch_nor_a_compiled_module():
    script = """if True:
        import sys
        import pyflash.config.space, pyflash.config.arch, pyflash.config
        modules = [sys.modules[name] for name in sys.modules if name.startswith("pyflash")]
        assert all(module.__file__.endswith(".py") for module in modules)
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", script], check=True)
