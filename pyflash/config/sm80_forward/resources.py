"""The resource model of the SM80 forward family: what a config takes, before any compiler runs.

Registers are counted as fragments: a GEMM operand or accumulator spread over the threads that own
it, as the m16n8k16 mma of SM80 lays it out (PTX ISA, "Matrix Fragments for mma.m16n8k16"). What a
compiler adds to the fragments is in `Calibration`, the only fitted numbers here.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyflash.config.arch import Arch
from pyflash.config.resources import Resources, occupancy
from pyflash.config.sm80_forward.config import FlashForwardKernelConfig


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants of the model that turn fragments into ptxas's figure, in registers per thread
    unless said otherwise.

    Fitted to nvcc 13.0 for sm_90 over 37 configs: all but 2 within 30 registers of ptxas's figure,
    which itself spreads over 60 among configs that hold the same fragments.
    """

    base: int = 40  # addresses, lengths, loop counters, scale
    loads_ahead: int = 16  # where Q is kept: loads of K move ahead of the mma that needs them
    per_row: int = 3  # of softmax state for each row a thread owns: m, l, rescale factor
    sunk_tiles: int = 2  # a block loaded whole is not held whole: tiles of 8 columns alive at once
    copy_vectors: int = 8  # 16-byte loads that a copy through registers keeps in flight
    near_limit: int = 8  # with fewer left below the limit, ptxas spills


CALIBRATION = Calibration()


@dataclass(frozen=True, slots=True)
class RegisterDemand:
    """Registers per thread by what they hold, without the limit of 255."""

    S: int  # fp32 accumulator of Q K^T
    O: int  # fp32 accumulator of P V  # noqa: E741
    P: int  # 16-bit A operand of P V, made of S
    Q_kept: int  # all of Q, for the whole kernel
    Q_stage: int
    K_stage: int
    V_stage: int
    copy: int  # gmem to smem through registers
    base: int

    @property
    def phases(self) -> dict[str, int]:
        """What is alive in each phase of an iteration: in Q K^T, while V, whose loads ptxas moves
        before the softmax, is copied beside S, and in P V."""
        always = self.base + self.O + self.Q_kept
        return {
            "Q K^T": always + self.S + self.Q_stage + self.K_stage,
            "softmax": always + self.S + self.copy,
            "P V": always + self.P + self.V_stage,
        }

    @property
    def peak(self) -> int:
        return max(self.phases.values())


def register_demand(
    config: FlashForwardKernelConfig, calibration: Calibration = CALIBRATION
) -> RegisterDemand:
    """The registers of the threads of `config`: elements of a tile / its owners, two 16-bit ones to
    a register. K and V fragments are held by every warp, all others by the warp that owns the rows.
    """
    config = config.canonical()
    stages = 2 if config.mma_double_buffer_loads else 1

    def stage(rows: int, count: int) -> int:
        """`rows` x `count` tiles of 8 columns in one warp, or what is left of a whole block."""
        tiles = count * stages if count else calibration.sunk_tiles
        return rows * 8 * tiles // 64

    rows_per_warp = config.B_r // config.n_warps
    Q_count = config.Q_mma_load_K_tiles
    vectors = config.B_c * config.d_head // 8 // config.n_threads
    return RegisterDemand(
        S=config.B_r * config.B_c // config.n_threads,
        O=config.B_r * config.d_head // config.n_threads,
        P=config.B_r * config.B_c // config.n_threads // 2,
        Q_kept=0 if Q_count else config.B_r * config.d_head // config.n_threads // 2,
        Q_stage=stage(rows_per_warp, Q_count) if Q_count else 0,
        K_stage=stage(config.B_c, config.K_mma_load_K_tiles),
        V_stage=stage(config.d_head, config.V_mma_load_K_tiles),
        copy=0 if config.async_copy else 4 * min(vectors, calibration.copy_vectors),
        base=calibration.base
        + calibration.per_row * rows_per_warp // 8
        + (0 if Q_count else calibration.loads_ahead),
    )


def resources(config: FlashForwardKernelConfig, arch: Arch) -> Resources:
    """Occupancy from the modelled registers."""
    return occupancy(
        register_demand(config).peak,
        config.smem_bytes,
        config.n_warps,
        arch,
        spill_margin=CALIBRATION.near_limit,
    )
