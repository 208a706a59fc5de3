"""The expected cost of a call on n GPUs, and the method that is expected to be faster.

A ring: time of a step = max(compute, bytes / link) + latency + merge, and the steps add up; compute
is that of the rank with the most to do, from the same pieces that the ring computes. All-to-all:
compute / n, and before and after it exchanges that nothing hides. Needs no GPU.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable
from dataclasses import dataclass

from pyflash.distributed.head_parallel import why_not
from pyflash.distributed.pieces import Mask
from pyflash.distributed.renamed import renamed_attribute
from pyflash.distributed.schedule import Geometry

METHODS = ("ring", "all_to_all")

_FORWARD_FLOPS, _BACKWARD_FLOPS = 4, 10  # per query, key that it attends, head and column
_ELEMENT = 2  # bytes of FP16 and BF16
_SUM = 4  # bytes of fp32
# What torch reads and writes per element: a merge makes an fp32 copy of out and interpolates; a sum
# of gradients reads 16 bits and fp32 and writes fp32; all-to-all packs and puts rows in order.
_MERGE_BYTES, _ADD_BYTES, _REORDER_BYTES = 18, 10, 8
_LONGEST = 28  # power of two


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One GPU of the group and its link to the others."""

    name: str
    forward_flops: float  # per second, of attention on one GPU
    backward_flops: float
    link: float  # bytes per second and direction that a GPU sends while it receives as many
    latency: float  # seconds that a step or exchange takes with nothing to compute or send
    memory: float  # bytes per second


# Attention with d_head 128. H200: as `pyflash.distributed.bench` measured two of a host. The others
# are expected: the H100 as an H200 with its memory, the A100's link 80 % of the nominal figure.
MACHINES = (
    Machine(
        name="H200",
        forward_flops=690e12,
        backward_flops=517e12,
        link=317e9,
        latency=129e-6,
        memory=3.87e12,
    ),
    Machine(
        name="H100",
        forward_flops=690e12,
        backward_flops=517e12,
        link=317e9,
        latency=129e-6,
        memory=2.8e12,
    ),
    Machine(
        name="A100",
        forward_flops=180e12,
        backward_flops=150e12,
        link=240e9,
        latency=30e-6,
        memory=1.5e12,
    ),
    Machine(
        name="CPU",
        forward_flops=20e9,
        backward_flops=20e9,
        link=1e9,
        latency=1e-3,
        memory=5e9,
    ),
)


def machine_of(device_name: str) -> Machine:
    """The machine whose name is in that of a device, as torch.cuda.get_device_name gives it; for a
    GPU that is not known, the H100."""
    if device_name.lower() == "cpu":
        device_name = "CPU"
    found = [machine for machine in MACHINES if machine.name in device_name]
    return found[0] if found else next(m for m in MACHINES if m.name == "H100")


@dataclass(frozen=True, slots=True)
class Problem:
    """A call of attention over a group."""

    geometry: Geometry
    batch: int
    heads: int
    heads_kv: int
    d_head: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a ring, in seconds."""

    compute: float
    send: float  # the next block, and what belongs to the gradients
    others: float  # latency and merge

    @property
    def seconds(self) -> float:
        return max(self.compute, self.send) + self.others


def single_gpu_seconds(problem: Problem, machine: Machine, backward: bool = False) -> float:
    """The time of one GPU for the whole problem."""
    geometry = problem.geometry
    pairs = sum(_pairs(geometry, rank) for rank in range(geometry.n_ranks))
    return _compute_seconds(problem, pairs, machine, backward)


def ring_steps(problem: Problem, machine: Machine, backward: bool = False) -> tuple[Step, ...]:
    """The steps of the ring; backward: those of the backward pass."""
    geometry = problem.geometry
    n_ranks = geometry.n_ranks
    shifts = geometry.shifts()
    rows_k = max(geometry.rows_k(rank) for rank in range(n_ranks))
    block = 2 * problem.batch * rows_k * problem.heads_kv * problem.d_head  # elements of K and V
    steps = []
    for i, shift in enumerate(shifts):
        work = [_work(geometry, rank, shift) for rank in range(n_ranks)]
        compute = _compute_seconds(problem, max(pairs for pairs, _ in work), machine, backward)
        rows = max(rows for _, rows in work)
        merged = problem.batch * rows * problem.heads * problem.d_head
        moved = merged * _MERGE_BYTES
        sent = block * _ELEMENT if i + 1 < len(shifts) else 0
        if backward:
            moved = (merged + block) * _ADD_BYTES
            sent += block * _SUM if i > 0 else 0  # the sums of the block of the step before
        others = machine.latency + moved / machine.memory
        if backward and i + 1 == len(shifts) > 1:  # the last sums go home
            others += block * _SUM / machine.link + machine.latency
        steps.append(Step(compute, sent / machine.link, others))
    return tuple(steps)


def ring_seconds(problem: Problem, machine: Machine, backward: bool = False) -> float:
    return sum(step.seconds for step in ring_steps(problem, machine, backward))


def all_to_all_seconds(problem: Problem, machine: Machine, backward: bool = False) -> float:
    geometry = problem.geometry
    n_ranks = geometry.n_ranks
    rows_q, rows_k = (
        max(rows(rank) for rank in range(n_ranks)) for rows in (geometry.rows_q, geometry.rows_k)
    )
    heads_kv = max(problem.heads_kv, n_ranks)  # each as often as ranks attend it
    # q, out and k, v; backward: the gradients of the same.
    elements = 2 * problem.batch * problem.d_head * (rows_q * problem.heads + rows_k * heads_kv)
    sent = elements * _ELEMENT * (n_ranks - 1) / n_ranks
    moved = elements * _REORDER_BYTES
    compute = single_gpu_seconds(problem, machine, backward) / n_ranks
    return compute + sent / machine.link + moved / machine.memory + 5 * machine.latency


def _compute_seconds(problem: Problem, pairs: int, machine: Machine, backward: bool) -> float:
    per_pair = problem.batch * problem.heads * problem.d_head
    if backward:
        return _BACKWARD_FLOPS * per_pair * pairs / machine.backward_flops
    return _FORWARD_FLOPS * per_pair * pairs / machine.forward_flops


def _pairs(geometry: Geometry, rank: int) -> int:
    return sum(_work(geometry, rank, shift)[0] for shift in range(geometry.n_ranks))


@functools.lru_cache(maxsize=1 << 16)
def _work(geometry: Geometry, rank: int, shift: int) -> tuple[int, int]:
    """(pairs, rows of queries) that a rank has at a step."""
    found = geometry.pieces(rank, (rank - shift) % geometry.n_ranks)
    pieces = [piece for of_sequence in found for piece in of_sequence]
    return sum(piece.pairs for piece in pieces), sum(piece.seqlen_q for piece in pieces)


@functools.lru_cache(maxsize=1024)
def choose(problem: Problem, machine: Machine) -> str:
    """The method that "auto" stands for: all_to_all where the heads can be shared out and its
    forward pass is expected to take less time, else the ring."""
    if why_not(problem.heads, problem.heads_kv, problem.geometry.n_ranks):
        return "ring"
    if all_to_all_seconds(problem, machine) < ring_seconds(problem, machine):
        return "all_to_all"
    return "ring"


@dataclass(frozen=True, slots=True)
class Plan:
    """The expectation for a problem on a group; print it."""

    method: str
    reason: str
    seconds: float
    efficiency: float  # seconds of one GPU / (n_ranks * seconds)
    seconds_by_method: dict[str, float]
    # The least power of two from which no step of the ring waits for a block; None: there is none.
    hidden_from: int | None
    machine: Machine
    problem: Problem
    backward: bool

    variant = renamed_attribute("variant", "method")
    seconds_by_variant = renamed_attribute("seconds_by_variant", "seconds_by_method")

    def __str__(self) -> str:
        problem, geometry = self.problem, self.problem.geometry
        hidden = (
            f"from a sequence of {self.hidden_from} rows on, sending is hidden in every step"
            if self.hidden_from
            else "sending is hidden at no length"
        )
        times = ", ".join(f"{n} {_readable(s)}" for n, s in self.seconds_by_method.items())
        return "\n".join(
            (
                f"{geometry.n_ranks} x {self.machine.name}, {self.machine.link / 1e9:.0f} GB/s: "
                f"batch {problem.batch}, {geometry.seqlens_q[0]} rows, {problem.heads} heads "
                f"({problem.heads_kv} of k and v), d_head {problem.d_head}, "
                f"{'forward and backward' if self.backward else 'forward'}",
                f"method: {self.method}, because {self.reason}",
                f"expected: {times}; efficiency {self.efficiency:.2f}",
                f"ring: {hidden}",
            )
        )


def plan(
    *,
    seqlen: int,
    heads: int,
    n_ranks: int,
    heads_kv: int | None = None,
    d_head: int = 128,
    batch: int = 1,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    backward: bool = False,
    layout: str = "zigzag",
    machine: Machine | str = "H200",
) -> Plan:
    """Which method would run a problem on n_ranks GPUs, and what is expected of it.

    seqlen: of the whole sequence, all ranks together; backward: forward and backward pass together;
    machine: one of `MACHINES` by name, or your own figures. The other arguments are those of
    `pyflash.distributed.attention`. The method is the one that `method = "auto"` takes, by the
    time of the forward pass.
    """
    if isinstance(machine, str):
        machine = machine_of(machine)
    heads_kv = heads if heads_kv is None else heads_kv
    mask = Mask(window_left, 0 if causal else window_right)

    def problem_of(seqlen: int) -> Problem:
        geometry = Geometry((seqlen,), (seqlen,), mask, n_ranks, layout)
        return Problem(geometry, batch, heads, heads_kv, d_head)

    problem = problem_of(seqlen)
    passes = (False, True) if backward else (False,)
    seconds = {"ring": sum(ring_seconds(problem, machine, p) for p in passes)}
    refusal = why_not(heads, heads_kv, n_ranks)
    if not refusal:
        seconds["all_to_all"] = sum(all_to_all_seconds(problem, machine, p) for p in passes)
    method = choose(problem, machine)
    single = sum(single_gpu_seconds(problem, machine, p) for p in passes)
    return Plan(
        method=method,
        reason=refusal or "its forward pass is expected to take less time",
        seconds=seconds[method],
        efficiency=single / (n_ranks * seconds[method]),
        seconds_by_method=seconds,
        hidden_from=_hidden_from(problem_of, machine, passes, n_ranks),
        machine=machine,
        problem=problem,
        backward=backward,
    )


def _hidden_from(
    problem_of: Callable[[int], Problem], machine: Machine, passes: tuple[bool, ...], n_ranks: int
) -> int | None:
    """The least power of two of rows from which sending is hidden: compute grows at least as fast
    as the bytes."""

    def is_hidden(exponent: int) -> bool:
        problem = problem_of(1 << exponent)
        steps = (step for p in passes for step in ring_steps(problem, machine, p))
        return all(step.send <= step.compute for step in steps)

    least = (2 * n_ranks - 1).bit_length()  # a row for each chunk
    exponents = range(least, _LONGEST + 1)
    found = bisect.bisect_left(exponents, True, key=is_hidden)
    return 1 << exponents[found] if found < len(exponents) else None


def _readable(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
