"""The work of an attention problem: its two GEMMs, and the traffic of a fused kernel.

    S = Q K^T    (seqlen_q x d_head) (d_head x seqlen_k), S written to memory
    O = P V      (seqlen_q x seqlen_k) (seqlen_k x d_head), P read back

Both are batched over batch and heads. The query heads that share a head of k and v are rows of one
GEMM. FLOPs and bytes of a GEMM are counted as the CUTLASS profiler counts them with beta = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyflash.config import DType
from pyflash.op.options import OPTIONS, given

if TYPE_CHECKING:
    from pyflash.op.selection import Problem

ELEMENT_BYTES = 2
LSE_BYTES = 4
DTYPE_NAMES = {DType.FP16: "f16", DType.BF16: "bf16"}  # as CUTLASS names them


@dataclass(frozen=True, slots=True)
class Gemm:
    """D (m x n) = A (m x k) B (k x n), batch_count times, elements of 16 bits."""

    name: str
    m: int
    n: int
    k: int
    batch_count: int
    dtype: DType
    B_layout: str  # "row" or "column"; A is row-major

    @property
    def A(self) -> str:
        return f"{DTYPE_NAMES[self.dtype]}:row"

    @property
    def B(self) -> str:
        return f"{DTYPE_NAMES[self.dtype]}:{self.B_layout}"

    @property
    def flops(self) -> int:
        """2 m n k, and 2 m n of the epilogue."""
        return 2 * (self.m * self.n * self.k + self.m * self.n) * self.batch_count

    @property
    def bytes(self) -> int:
        """A and B read once, D written once."""
        elements = self.m * self.k + self.k * self.n + self.m * self.n
        return ELEMENT_BYTES * elements * self.batch_count


def gemms_of(problem: Problem) -> tuple[Gemm, Gemm]:
    """QK^T and PV of a padded problem, without the mask: both compute every score.

    Raises ValueError for packed sequences, which have no one GEMM.
    """
    if problem.packed:
        raise ValueError("packed sequences: the GEMMs of padded ones only can be compared")
    rows = problem.seqlen_q * (problem.heads_q // problem.heads_kv)
    batch_count = problem.batch * problem.heads_kv
    qk = Gemm("QK^T", rows, problem.seqlen_k, problem.d_head, batch_count, problem.dtype, "column")
    pv = Gemm("PV", rows, problem.d_head, problem.seqlen_k, batch_count, problem.dtype, "row")
    return qk, pv


def is_causal(problem: Problem) -> bool:
    """Raises ValueError for a window and the like, whose FLOPs are not those of full or causal
    attention."""
    causal = bool(problem.options.get("causal"))
    for name in given(problem.options):
        if OPTIONS[name].is_positional and name != "causal":
            raise ValueError(f"{name}: only full and causal attention can be compared with GEMMs")
    return causal


def softmax_bytes(problem: Problem) -> int:
    """The bytes of the pass between the two GEMMs: S read, P written, both of 16 bits."""
    scores = problem.batch * problem.heads_q * problem.seqlen_q * problem.seqlen_k
    return 2 * ELEMENT_BYTES * scores


def fused_bytes(problem: Problem) -> int:
    """Q, K and V read once, O and lse written once."""
    q_rows = problem.batch * problem.heads_q * problem.seqlen_q
    kv_rows = problem.batch * problem.heads_kv * problem.seqlen_k
    return 2 * ELEMENT_BYTES * (q_rows + kv_rows) * problem.d_head + LSE_BYTES * q_rows


def attention_flops(problem: Problem) -> int:
    """4 * batch * heads * seqlen_q * seqlen_k * d_head, halved for causal."""
    rows = problem.batch * problem.heads_q * problem.seqlen_q
    return (2 if is_causal(problem) else 4) * rows * problem.seqlen_k * problem.d_head
