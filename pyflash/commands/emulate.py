"""`pyflash emulate`."""

from __future__ import annotations

import dataclasses
import itertools
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from pyflash.config import FORWARD
from pyflash.ui.app import (
    ConfigArgument,
    JsonOption,
    check_writable,
    completed_from,
    console,
    examples,
    given_options,
    new_app,
    show,
    write_file,
)
from pyflash.ui.problems import Batch, Heads, HeadsKv, takes_attention_options, with_tensors
from pyflash.ui.variants import AskedVariant, ValueOption, VariantOption

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pyflash.config import KernelConfig
    from pyflash.emulator import Report
    from pyflash.op.reference import Expected

app = new_app()
# The product of an element of Q with one of K: 2 ms for a tile of 64 x 64 at d_head 128.
_SECONDS_PER_PRODUCT = 2e-3 / (64 * 64 * 128)
DHead = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Head dimension; as the config by default.")
]


def _orders() -> tuple[str, ...]:
    from pyflash.emulator import ORDERS

    return ORDERS


@dataclass(frozen=True)
class _Padded:
    """A problem of sequences of one length."""

    batch: int
    seqlen_q: int
    seqlen_k: int

    @property
    def products(self) -> int:
        """Pairs of a query and a key, in each head."""
        return self.batch * self.seqlen_q * self.seqlen_k

    @property
    def extents(self) -> dict[str, Any]:
        """As a Problem has them."""
        return dataclasses.asdict(self)

    def inputs(self, heads: int, heads_kv: int, d_head: int, dtype: Any) -> list[Tensor]:
        """q, k and v."""
        import torch

        lengths = ((self.seqlen_q, heads), (self.seqlen_k, heads_kv), (self.seqlen_k, heads_kv))
        return [torch.randn(self.batch, *size, d_head, dtype=dtype) for size in lengths]

    def emulate(self, inputs: list[Tensor], config: KernelConfig, **options: Any) -> Any:
        import pyflash

        return pyflash.emulate(*inputs, config, **options)

    def expect(self, inputs: list[Tensor], **options: Any) -> Expected:
        from pyflash.op.reference import expect

        return expect(*inputs, **options)

    @property
    def longest(self) -> tuple[int, int]:
        """The largest number of queries, and of keys."""
        return self.seqlen_q, self.seqlen_k


@dataclass(frozen=True)
class _Packed:
    """A problem of packed sequences, which begin where `cu_seqlens` say."""

    cu_seqlens_q: list[int]
    cu_seqlens_k: list[int]

    @classmethod
    def of(cls, cu_seqlens_q: list[int], cu_seqlens_k: list[int]) -> _Packed:
        """Raises BadParameter where they are of different numbers of sequences."""
        counts = len(cu_seqlens_q) - 1, len(cu_seqlens_k) - 1
        if counts[0] != counts[1]:
            raise typer.BadParameter(
                f"--cu-seqlens-q has {counts[0]} sequences, --cu-seqlens-k {counts[1]}: expected "
                "as many"
            )
        return cls(cu_seqlens_q, cu_seqlens_k)

    @property
    def products(self) -> int:
        """Pairs of a query and a key, in each head."""
        lengths = (_lengths(self.cu_seqlens_q), _lengths(self.cu_seqlens_k))
        return sum(q * k for q, k in zip(*lengths, strict=True))

    @property
    def batch(self) -> int:
        return len(self.cu_seqlens_q) - 1

    @property
    def longest(self) -> tuple[int, int]:
        """The largest number of queries, and of keys."""
        return max(_lengths(self.cu_seqlens_q)), max(_lengths(self.cu_seqlens_k))

    @property
    def extents(self) -> dict[str, Any]:
        """As a Problem has them."""
        seqlen_q, seqlen_k = self.longest
        return {
            "packed": True,
            "batch": self.batch,
            "seqlen_q": seqlen_q,
            "seqlen_k": seqlen_k,
            "total_q": self.cu_seqlens_q[-1],
            "total_k": self.cu_seqlens_k[-1],
        }

    def inputs(self, heads: int, heads_kv: int, d_head: int, dtype: Any) -> list[Tensor]:
        """q, k, v, cu_seqlens_q and cu_seqlens_k."""
        import torch

        total_q, total_k = self.cu_seqlens_q[-1], self.cu_seqlens_k[-1]
        sizes = ((total_q, heads), (total_k, heads_kv), (total_k, heads_kv))
        tensors = [torch.randn(*size, d_head, dtype=dtype) for size in sizes]
        both = (self.cu_seqlens_q, self.cu_seqlens_k)
        return tensors + [torch.tensor(starts, dtype=torch.int32) for starts in both]

    def emulate(self, inputs: list[Tensor], config: KernelConfig, **options: Any) -> Any:
        import pyflash

        return pyflash.emulate_varlen(*inputs, *self.longest, config, **options)

    def expect(self, inputs: list[Tensor], **options: Any) -> Expected:
        from pyflash.op.reference import expect_varlen

        return expect_varlen(*inputs, **options)


def _lengths(cu_seqlens: list[int]) -> list[int]:
    return [end - start for start, end in itertools.pairwise(cu_seqlens)]


def _cu_seqlens(text: str) -> list[int]:
    """A parser: where sequences begin, and the end of the last."""
    try:
        starts = [int(word) for word in text.split(",")]
    except ValueError:
        starts = []
    if len(starts) < 2 or starts[0] != 0 or min(_lengths(starts)) < 0:
        raise typer.BadParameter(
            f"{text!r}: expected where each sequence begins and the last ends, ascending from 0, "
            "such as 0,5,64"
        )
    return starts


@app.command(
    "emulate",
    epilog=examples(
        'pyflash emulate "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"',
        'pyflash emulate "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles" --causal --heads-kv 1',
        'pyflash emulate "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles" --cu-seqlens-q 0,5,200',
        'pyflash emulate "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles" --variant alibi',
        'pyflash emulate "(BF16, 128, 128, 128, 2): sm90+stages_2+overlap" --timeline timeline.svg',
    ),
)
@takes_attention_options
def emulate_command(
    ctx: typer.Context,
    config: ConfigArgument,
    *,
    batch: Batch = 1,
    heads: Heads = 2,
    heads_kv: HeadsKv = None,
    seqlen_q: Annotated[int, typer.Option(metavar="N", min=0, help="Queries.")] = 256,
    seqlen_k: Annotated[int, typer.Option(metavar="N", min=0, help="Keys.")] = 256,
    d_head: DHead = None,
    cu_seqlens_q: Annotated[
        Any,
        typer.Option(
            metavar="0,N,N",
            parser=_cu_seqlens,
            help="Packed sequences: where the queries of each begin, and the last end. As "
            "--cu-seqlens-k by default.",
        ),
    ] = None,
    cu_seqlens_k: Annotated[
        Any,
        typer.Option(
            metavar="0,N,N", parser=_cu_seqlens, help="The same of keys; as queries by default."
        ),
    ] = None,
    num_splits: Annotated[
        int, typer.Option(metavar="N", min=1, help="CTAs that share the keys.")
    ] = 1,
    variant: VariantOption = None,
    value: ValueOption = None,
    order: Annotated[
        str,
        typer.Option(
            metavar="ORDER",
            autocompletion=completed_from(_orders),
            help="The order of warps and lanes: ascending, descending, random.",
        ),
    ] = "ascending",
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seeds the inputs, and the order 'random'.")
    ] = 0,
    resident_ctas: Annotated[
        int, typer.Option(metavar="N", min=1, help="The most CTAs of a persistent kernel.")
    ] = 132,
    timeline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Writes an SM90 kernel's time line there, as SVG."),
    ] = None,
    json: JsonOption = False,
    **options: Any,
) -> None:
    """Runs a kernel on the CPU, thread by thread, and reports on it.

    Exits with 1 if it did anything wrong, or if the result of attention is wrong.
    """
    import torch

    import pyflash
    from pyflash.op.selection import TORCH_DTYPES

    check_writable(timeline)
    key = pyflash.config.parse(config)
    shape = _Heads(
        heads,
        heads if heads_kv is None else heads_kv,
        key.d_head if d_head is None else d_head,
    )
    problem = _Padded(batch, seqlen_q, seqlen_k)
    if packed := cu_seqlens_q or cu_seqlens_k:
        _check_packed(ctx, key)
        problem = _Packed.of(cu_seqlens_q or packed, cu_seqlens_k or packed)
    if num_splits != 1:
        _check_forward(key, "--num-splits")
    torch.manual_seed(seed)
    inputs = problem.inputs(*shape, TORCH_DTYPES[key.dtype])
    options = with_tensors(options, lambda: torch.randn(heads))
    given = _variant(AskedVariant.of(variant, value), key, problem, heads)
    _check_runs(key, problem, shape, options)
    numbers = {"order": order, "seed": seed, "resident_ctas": resident_ctas}
    with _emulating(key, heads * problem.products):
        if key.family.op is FORWARD:
            numbers["num_splits"] = num_splits
            check, report = _emulate_forward(problem, inputs, key, options, given, numbers)
        else:
            check, report = _emulate_gradients(inputs, key, options, numbers)
    _show(report, timeline, json, check)
    raise typer.Exit(0 if report.ok else 1)


class _Heads(NamedTuple):
    heads: int
    heads_kv: int
    d_head: int


def _check_packed(ctx: typer.Context, config: KernelConfig) -> None:
    """Raises BadParameter beside lengths of padded sequences, and for another op."""
    if wrong := given_options(ctx).keys() & {"batch", "seqlen_q", "seqlen_k"}:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(wrong))
        raise typer.BadParameter(f"{names}: the lengths are those of --cu-seqlens-q and -k")
    _check_forward(config, "--cu-seqlens-q and -k")


def _check_forward(config: KernelConfig, option: str) -> None:
    if config.family.op is not FORWARD:
        raise typer.BadParameter(f"{option}: kernels of op {config.family.op} take none")


def _check_runs(
    config: KernelConfig, problem: _Padded | _Packed, shape: _Heads, options: dict[str, Any]
) -> None:
    """Raises what attention would, before anything is compiled."""
    from pyflash.op.selection import Problem, features_needed

    if config.family.emulation_header is None:
        raise ValueError(f"the emulator does not run the family {config.family}")
    if config.family.op is FORWARD:
        sizes = {"heads_q": shape.heads, "heads_kv": shape.heads_kv, "d_head": shape.d_head}
        sizes |= {"dtype": config.dtype, **problem.extents}
        features_needed(Problem(**sizes, device="cpu", options=options), config)


def _show(report: Report, timeline: Path | None, json: bool, check: Callable[[], float]) -> None:
    """Raises RuntimeError where the result is wrong, after the report of how it came."""
    from pyflash.emulator.table import renderable
    from pyflash.emulator.timeline import as_svg

    if timeline is not None:
        write_file(timeline, as_svg(report))
    if json:
        typer.echo(report.to_json(indent=1))
    else:
        show(renderable(report))
    try:
        error = check()
    except AssertionError as failure:
        raise RuntimeError(f"wrong result: {failure}") from None
    if not json:
        typer.echo(f"max |error| {error:.2e}")


def _variant(
    asked: AskedVariant | None, config: KernelConfig, problem: _Padded | _Packed, heads: int
) -> dict[str, Any]:
    """The arguments `variant` and `tensors`, or none. Raises BadParameter where a config's kernels
    take none."""
    from pyflash.variant.tiles import Problem

    if asked is None:
        return {}
    asked.check_families([config])
    of_problem = Problem(*problem.longest, problem.batch, heads)
    return {"variant": asked.variant, "tensors": asked.tensors(of_problem)}


def _emulate_forward(
    problem: _Padded | _Packed,
    inputs: list[Tensor],
    config: KernelConfig,
    options: dict[str, Any],
    given: dict[str, Any],
    numbers: dict[str, Any],
) -> tuple[Callable[[], float], Report]:
    """Returns what checks out and lse, and the report."""
    out, lse, report = problem.emulate(inputs, config, **options, **given, **numbers)
    expect = _expect_variant if given else problem.expect
    return lambda: expect(inputs, **options, **given).check(out, lse), report


def _expect_variant(inputs: list[Tensor], **options: Any) -> Expected:
    from pyflash.op.variants.reference import expect

    return expect(*inputs, **options)


def _emulate_gradients(
    inputs: list[Tensor], config: KernelConfig, options: dict[str, Any], numbers: dict[str, Any]
) -> tuple[Callable[[], float], Report]:
    """The gradients for a random one of out. Returns what checks them, and the report."""
    import torch

    import pyflash
    from pyflash.op.reference_gradients import expect_gradients

    grad_out = torch.randn(inputs[0].shape).to(inputs[0].dtype)
    out, lse = torch.ops.pyflash.fwd(*inputs, **options)
    *gradients, report = pyflash.emulate_backward(
        grad_out, out, lse, *inputs, config, **options, **numbers
    )
    expected = expect_gradients(*inputs, grad_out, **options)
    return lambda: expected.check(gradients), report


def _emulating(config: KernelConfig, products: int) -> AbstractContextManager[object]:
    """Tells on stderr that a long run is under way, and about how long it takes."""
    seconds = _SECONDS_PER_PRODUCT * products * config.d_head
    text = f"emulating {config}, about {max(1, round(seconds))} s"
    err = console(stderr=True)
    if not err.is_terminal and seconds >= 2:
        err.print(text)
    return err.status(text)
