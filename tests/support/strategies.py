"""Hypothesis strategies of configs, and the config that the DSL's tests vary."""

import hypothesis.strategies as st

from pyflash import DType, FlashForwardKernelConfig
from pyflash.config.sm80_forward.config import LOAD_COUNTS

FIELDS = FlashForwardKernelConfig.field_types()

LADDER_BEST = FlashForwardKernelConfig(
    dtype=DType.FP16,
    d_head=128,
    B_r=64,
    B_c=64,
    n_warps=4,
    async_copy=True,
    eager_load_blocks=True,
    swizzled=True,
    Q_mma_load_K_tiles=0,
    K_mma_load_K_tiles=2,
    V_mma_load_K_tiles=2,
    mma_double_buffer_loads=False,
    optimized_softmax=True,
)

_BY_KIND = {DType: st.sampled_from(DType), bool: st.booleans(), int: st.integers(1, 10**6)}

# Anything that can be written down.
configs = st.builds(
    FlashForwardKernelConfig,
    **{name: _BY_KIND[kind] for name, kind in FIELDS.items()}
    | dict.fromkeys(LOAD_COUNTS, st.integers(0, 1000)),
)

# Near the supported values: many are legal, most rules are broken by some.
near_configs = st.builds(
    FlashForwardKernelConfig,
    dtype=st.sampled_from(DType),
    d_head=st.sampled_from((32, 64, 80, 96, 128, 192, 256)),
    B_r=st.sampled_from((64, 128)),
    B_c=st.sampled_from((16, 32, 64, 128)),
    n_warps=st.sampled_from((4, 8)),
    **{name: st.booleans() for name, kind in FIELDS.items() if kind is bool},
    **dict.fromkeys(LOAD_COUNTS, st.sampled_from((0, 1, 2, 3, 4, 8, 16, 32))),
)
