"""The resource model against counts made by hand."""

import pytest
from hypothesis import given
from support.strategies import LADDER_BEST, near_configs

from pyflash.config.arch import ARCHS, Arch
from pyflash.config.resources import allocated_registers, register_limit
from pyflash.config.sm80_forward.resources import CALIBRATION, Calibration, register_demand

EXACT = Calibration(base=0, per_row=0, loads_ahead=0, sunk_tiles=2, copy_vectors=8)
STAGED = LADDER_BEST.replace(Q_mma_load_K_tiles=2)


def held(config, *names):
    demand = register_demand(config, EXACT)
    return tuple(getattr(demand, name) for name in names)


def test_accumulators_are_the_tiles_spread_over_the_threads():
    assert held(LADDER_BEST, "S", "O", "P") == (64 * 64 / 128, 64 * 128 / 128, 64 * 64 / 128 / 2)
    assert held(LADDER_BEST.replace(B_r=128), "S", "O", "P") == (64, 128, 32)
    assert held(LADDER_BEST.replace(B_r=128, n_warps=8), "S", "O", "P") == (32, 64, 16)


def test_operands():
    names = ("Q_kept", "Q_stage", "K_stage", "V_stage")
    # 16 rows x 128 columns of Q; 64 x 16 of K; 16 x 128 of V; 16 bits each, over 32 lanes
    assert held(LADDER_BEST, *names) == (32, 0, 16, 32)
    assert held(STAGED, *names) == (0, 4, 16, 32)
    assert held(STAGED.replace(mma_double_buffer_loads=True), *names) == (0, 8, 32, 64)
    sunk = LADDER_BEST.replace(K_mma_load_K_tiles=0, V_mma_load_K_tiles=0)
    assert held(sunk, *names) == (32, 0, 16, 32)


def test_copies_through_registers():
    assert held(LADDER_BEST, "copy") == (0,)
    sync = LADDER_BEST.replace(async_copy=False, eager_load_blocks=False)
    assert held(sync, "copy") == (4 * 8,)  # 64 x 128 elements / 128 threads = 8 vectors of 16 bytes
    assert held(sync.replace(B_c=32), "copy") == (4 * 4,)


def test_peak_is_the_fullest_moment():
    demand = register_demand(LADDER_BEST, EXACT)
    assert demand.peak == 64 + 32 + max(32 + 16, 16 + 32)
    buffered = register_demand(LADDER_BEST.replace(mma_double_buffer_loads=True), EXACT)
    assert buffered.peak == 64 + 32 + max(32 + 32, 16 + 64)
    based = register_demand(LADDER_BEST, Calibration(base=20, per_row=3, loads_ahead=0))
    assert based.peak == demand.peak + 20 + 3 * 2  # each thread owns 2 of a warp's 16 rows


def test_what_is_alive_in_each_phase():
    """O and the kept Q are always; S and P never together."""
    always = 64 + 32
    assert register_demand(LADDER_BEST, EXACT).phases == {
        "Q K^T": always + 32 + 16, "softmax": always + 32, "P V": always + 16 + 32,
    }  # fmt: skip
    sync = LADDER_BEST.replace(async_copy=False, eager_load_blocks=False)
    assert register_demand(sync, EXACT).phases["softmax"] == always + 32 + 32


@pytest.mark.parametrize(("registers", "allocated"), [(1, 8), (168, 168), (169, 176), (255, 256)])
def test_registers_are_allocated_by_units(registers, allocated):
    assert allocated_registers(registers, Arch.of(80)) == allocated


@pytest.mark.parametrize(
    ("n_threads", "ctas", "limit"), [(128, 1, 255), (128, 2, 255), (128, 3, 168), (128, 4, 128)]
)
def test_register_limit(n_threads, ctas, limit):
    assert register_limit(n_threads, ctas, Arch.of(80)) == limit


WIDE = {"d_head": 256, "B_r": 128, "n_warps": 8}


@pytest.mark.parametrize(
    ("changes", "arch", "ctas"),
    [
        ({}, 86, 2),  # 48 + 1 KB, in 100 KB
        ({"B_r": 128, "B_c": 128, "n_warps": 8}, 89, 1),  # 96 + 1 KB, in 100 KB
        ({"B_r": 16, "B_c": 32, "n_warps": 1}, 86, 4),  # 20 + 1 KB, in 100 KB
        (WIDE, 80, 1),  # 128 + 1 KB, in 164 KB
        (WIDE, 86, 0),  # 128 + 1 KB, in 100 KB
    ],
)
def test_smem_bounds_the_ctas(changes, arch, ctas):
    resources = LADDER_BEST.replace(**changes).resources(arch)
    assert (resources.limiter, resources.num_ctas_per_sm) == ("smem", ctas)


@given(near_configs)
def test_what_the_model_promises_fits_the_sm(config):
    for arch in ARCHS:
        r = config.resources(arch)
        ctas = r.num_ctas_per_sm
        assert r.registers == min(r.register_demand, 255)
        assert ctas * (r.smem_bytes + 1024) <= arch.smem_per_sm
        assert ctas * config.n_warps <= arch.max_warps_per_sm
        assert ctas <= arch.max_ctas_per_sm
        assert ctas * r.n_threads * allocated_registers(r.registers, arch) <= 65536
        assert r.spill_predicted == (r.register_demand + CALIBRATION.near_limit > r.register_limit)
        assert (r.n_threads, r.smem_bytes) == (config.n_threads, config.smem_bytes)


@given(near_configs)
def test_one_cta_more_would_not_fit(config):
    for arch in ARCHS:
        r = config.resources(arch)
        more = r.num_ctas_per_sm + 1
        too_much = {
            "smem": more * (r.smem_bytes + 1024) > arch.smem_per_sm,
            "registers": more * r.n_threads * allocated_registers(r.registers, arch) > 65536,
            "warps": more * config.n_warps > arch.max_warps_per_sm,
            "ctas": more > arch.max_ctas_per_sm,
        }
        assert too_much[r.limiter]


def test_more_registers_never_mean_more_ctas():
    staged, buffered = STAGED, STAGED.replace(mma_double_buffer_loads=True)
    assert register_demand(buffered).peak > register_demand(staged).peak
    assert buffered.num_ctas_per_sm(80) <= staged.num_ctas_per_sm(80)
