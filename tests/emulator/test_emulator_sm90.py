"""The SM90 kernels on the emulator: right, nothing found, and counted exactly."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import pytest
import torch

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from support.cases import CASES, CAUSAL, Case
from support.emulated import emulate
from support.emulated_sm90 import BEST, CONFIGS, RESIDENT_CTAS, libraries, n_wgmma
from support.problems import (
    Mask,
    Packed,
    Shape,
    far_below_a_cap,
    growing,
    growing_below_zero,
    leaping,
    make_inputs,
    make_packed,
    near_a_cap,
    rising,
)
from typer.testing import CliRunner

import pyflash
from pyflash.cli import app
from pyflash.codegen import emit, toolchain
from pyflash.codegen.compilation import included_headers
from pyflash.codegen.emulated import build_emulated
from pyflash.config import parse
from pyflash.emulator import ORDERS, Report, timeline
from pyflash.op.reference import expect, expect_varlen
from pyflash.op.selection import TORCH_DTYPES

__all__ = ["libraries"]

SM90_CASES = [
    Case("two_blocks", Shape("", 1, 128, 128, 1)),
    Case("prime_lengths", Shape("", 2, 113, 127, 2)),
    Case("one_of_everything", Shape("", 1, 1, 1, 1)),
    Case("past_tile_edges", Shape("", 1, 129, 65, 1)),
    Case("nothing_to_attend", Shape("", 1, 33, 0, 2)),
    Case("nan_past_the_end", Shape("", 1, 67, 131, 2, "nan_around")),
    Case("packed_qkv", Shape("", 1, 131, 131, 2, "packed")),
    Case("heads_first", Shape("", 2, 67, 35, 2, "heads_first")),
    Case("columns_of_wider_rows", Shape("", 1, 67, 67, 2, "sliced")),
    Case("many_tiles", Shape("", 2, 333, 100, 2), CAUSAL),
    Case("chunks", Shape("", 1, 150, 200, 2), Mask("", attention_chunk=60)),
    Case("causal_chunks_of_packed", Packed("", (70, 0, 90), (65, 9, 150), 2, 1),
         Mask("", causal=True, attention_chunk=48)),
    Case("many_tiles_of_a_group", Shape("", 1, 200, 150, 6, heads_kv=2), CAUSAL),
    Case("packed_of_many_tiles", Packed("", (300, 0, 150), (65, 9, 200), 2, 1), CAUSAL),
]  # fmt: skip


def run(libraries, config, case, order):
    inputs, expected = case.problem(config)
    options = case.options(config)
    out, lse, report = emulate(
        libraries, config, inputs, order=order, seed=5, resident_ctas=RESIDENT_CTAS, **options
    )
    report.check()
    assert report.completed
    expected.check(out, lse)
    if report.problem["num_splits"] == 1:
        counts = report.counts
        assert (counts.wgmma_ss, counts.wgmma_rs) == n_wgmma(config, report, inputs)
    return out, lse


def refused(case: Case) -> bool:
    return bool(case.sinks) and case.shape.seqlen_k == 0 if isinstance(case.shape, Shape) else False


@pytest.mark.parametrize("case", [*SM90_CASES, *CASES], ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_kernels_are_right_and_nothing_is_found(libraries, config, case):
    """In an order that is another for the next config, and for the next case."""
    if refused(case):
        with pytest.raises(ValueError, match="cannot run this problem: it has sinks and no keys"):
            run(libraries, config, case, ORDERS[0])
        return
    n = CONFIGS.index(config) + [*SM90_CASES, *CASES].index(case)
    run(libraries, config, case, ORDERS[n % len(ORDERS)])


@pytest.fixture(scope="module")
def three_ctas():
    text = "(BF16, 64, 64, 48, 1): sm90+stages_2+overlap+persistent+rescale_threshold+three_ctas"
    return build_emulated([parse(text)])


@pytest.mark.parametrize("case", SM90_CASES, ids=str)
def test_three_ctas_that_share_an_sm(three_ctas, case):
    """With fewer registers each, which the emulator sees handed over."""
    (config,) = three_ctas
    run(three_ctas, config, case, ORDERS[SM90_CASES.index(case) % len(ORDERS)])


@pytest.mark.parametrize("grow", [growing, growing_below_zero, rising, leaping])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_maxima_that_grow_from_block_to_block(libraries, config, grow):
    dtype = TORCH_DTYPES[config.dtype]
    inputs = grow(make_inputs(Shape("", 1, 67, 300, 2), dtype, config.d_head))
    out, lse, report = emulate(libraries, config, inputs, resident_ctas=RESIDENT_CTAS)
    report.check()
    expect(*inputs).check(out, lse)


@pytest.mark.parametrize("mask", [{}, {"causal": True}, {"window_left": 200}], ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_scores_that_overflow_are_computed_once_more(libraries, config, mask):
    """Grouped heads narrower than the config's, padded, and a packed sequence that begins in the
    middle: where a score leaps above all that came before it by 2^128, and nowhere else.
    Without a threshold, or where a mask cuts the block of the leap, maxima come first."""
    dtype, d_head = TORCH_DTYPES[config.dtype], config.d_head - 24
    tame = make_inputs(Shape("", 2, 150, 400, 4, heads_kv=2), dtype, d_head)
    packed = make_packed(Packed("", (70, 150), (33, 400), 4, 2), dtype, d_head)
    batched = [x[None] for x in packed[:3]]
    wild = [x[0] for x in leaping((batched[0], batched[1], batched[2]))]
    for inputs, leaps in (
        (tame, False),
        (leaping(tame), True),
        ((*wild, *packed[3:]), True),
    ):
        out, lse, report = emulate(libraries, config, inputs, resident_ctas=RESIDENT_CTAS, **mask)
        report.check()
        (expect_varlen(*inputs[:5], **mask) if len(inputs) > 3 else expect(*inputs, **mask)).check(
            out, lse
        )
        may, again = leaps and config.rescale_threshold, "QK_g2r" in report.sites
        is_listed = len(inputs) > 3  # by a kernel with masks
        assert again == may or ((mask or is_listed) and not again)


@pytest.fixture(scope="module")
def wide_block():
    config = parse("(FP16, 64, 64, 176, 1): sm90+stages_1").canonical()
    return config, build_emulated([config])


@pytest.mark.parametrize(
    "mask",
    [{}, {"causal": True}, {"window_left": 133}, {"window_left": 40, "window_right": 90}],
    ids=str,
)
def test_masks_of_blocks_wider_than_a_word_of_columns(wide_block, mask):
    """A thread has a quarter of a row's columns; 44 of 176, where a word has 32 bits."""
    config, library = wide_block
    inputs = make_inputs(Shape("", 1, 150, 371, 1), torch.float16, config.d_head)
    out, lse, report = emulate(library, config, inputs, **mask)
    report.check()
    expect(*inputs, **mask).check(out, lse)


@pytest.mark.parametrize(
    ("n_ctas", "heads"),
    [
        (4, 5),  # a section of 4 heads; the 2 tiles of the last, half a round, join it
        (2, 3),  # one of 2, and a round's tiles of another
        (4, 13),  # three of 4, which begin at other CTAs under a window
    ],
)
@pytest.mark.parametrize(
    "mask", [{"causal": True}, {"window_left": 40, "window_right": 9}], ids=str
)
@pytest.mark.parametrize("config", [c for c in CONFIGS if c.persistent], ids=str)
def test_every_tile_of_every_section_is_taken(libraries, config, mask, n_ctas, heads):
    n_rows = 2 * config.B_r - 5
    inputs = make_inputs(
        Shape("", 1, n_rows, n_rows, heads), TORCH_DTYPES[config.dtype], config.d_head
    )
    out, lse, report = emulate(libraries, config, inputs, resident_ctas=n_ctas, **mask)
    report.check()
    expect(*inputs, **mask).check(out, lse)


def test_tiles_that_are_short_by_place_are_dealt_out_to_all_ctas(libraries):
    """The first and the last tile of queries of each head have fewer keys. Sections of two heads,
    which are two rounds of CTAs, would all give those tiles to the same two of four."""
    inputs = make_inputs(Shape("", 2, 512, 512, 8), torch.float16, BEST.d_head)
    mask = {"window_left": 120, "window_right": 120}
    out, lse, report = emulate(libraries, BEST, inputs, resident_ctas=4, **mask)
    report.check()
    expect(*inputs, **mask).check(out, lse)
    counts = report.counts
    # Columns of WGMMAs, of 64 rows and a depth of 16.
    of_all = (counts.wgmma_flops_ss + counts.wgmma_flops_rs) / (2 * 64 * 16)
    of_first = sum(event.a for event in report.timeline if event.kind == "mma")
    assert 0.95 < of_first / (of_all / 4) < 1.05


@pytest.mark.parametrize("softcap", [0.0, 50.0])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_bits_do_not_depend_on_what_nothing_wrote(libraries, config, softcap):
    """A group of 3 heads leaves a row of a packed tile of 64 that no load writes. What it holds,
    NaN or in a random order numbers, must not decide whether the rows beside it are rescaled, or
    how they are capped."""
    inputs = make_inputs(Shape("", 1, 50, 200, 6, heads_kv=2), TORCH_DTYPES[config.dtype], 64)
    options = {"softcap": softcap, "resident_ctas": RESIDENT_CTAS}
    runs = [
        emulate(libraries, config, inputs, order=order, seed=seed, **options)
        for order, seed in (("ascending", 0), ("random", 1), ("random", 2))
    ]
    for out, lse, report in runs:
        report.check()
        assert torch.equal(out, runs[0][0])
        assert torch.equal(lse, runs[0][1])


@pytest.mark.parametrize("softcap", [0.0, 50.0])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_bits_of_a_packed_sequence_do_not_depend_on_its_neighbours(libraries, config, softcap):
    """Whose queries are rows of its last tile."""
    packed = Packed("", (70, 60), (200, 90), 2, 1)
    q, *others = make_packed(packed, TORCH_DTYPES[config.dtype], config.d_head)
    louder, broken = q.clone(), q.clone()
    louder[70:] *= 30
    broken[70:] = torch.nan
    options = {"softcap": softcap, "resident_ctas": RESIDENT_CTAS}
    first, *others = (
        emulate(libraries, config, (x, *others), **options) for x in (q, louder, broken)
    )
    for again in others:
        assert torch.equal(first[0][:70], again[0][:70])
        assert torch.equal(first[1][:, :70], again[1][:, :70])
        assert not torch.equal(first[0][70:], again[0][70:])


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_scores_from_far_below_a_cap_to_far_above(libraries, config):
    """The series, tanh, and rows whose largest score is among the lowest."""
    inputs = near_a_cap(make_inputs(Shape("", 1, 131, 200, 2), TORCH_DTYPES[config.dtype], 64))
    for options in ({}, {"causal": True}):
        options = {"softcap": 30.0, **options}
        out, lse, report = emulate(
            libraries, config, inputs, resident_ctas=RESIDENT_CTAS, **options
        )
        report.check()
        expect(*inputs, **options).check(out, lse)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_scores_far_below_a_cap_under_small_ones(libraries, config):
    """Where only the magnitude tells that the series does not do."""
    shape, dtype = Shape("", 1, 70, 320, 1), TORCH_DTYPES[config.dtype]
    inputs = far_below_a_cap(make_inputs(shape, dtype, config.d_head))
    out, lse, report = emulate(libraries, config, inputs, resident_ctas=RESIDENT_CTAS, softcap=30.0)
    report.check()
    expect(*inputs, softcap=30.0).check(out, lse)


@pytest.mark.parametrize("cap", [2.0, 10.0, 30.0, 50.0, 120.0, 200.0, 1000.0])
def test_exponents_far_below_a_cap_are_precise(libraries, cap):
    """Those of each magnitude, next to as many keys whose scores are 0."""
    config, n_keys = BEST, 2 * BEST.B_c
    scores = torch.linspace(-0.14, 0.14, 141, dtype=torch.float64) * cap
    q, k, v = (torch.zeros(1, n, 1, config.d_head) for n in (len(scores), n_keys, n_keys))
    q[0, :, 0, 0] = scores
    k[0, : n_keys // 2, 0, 0] = 1
    inputs = tuple(x.to(TORCH_DTYPES[config.dtype]) for x in (q, k, v))
    _, lse, report = emulate(libraries, config, inputs, softcap=cap, softmax_scale=1.0)
    report.check()
    capped = cap * (inputs[0][0, :, 0, 0].double() / cap).tanh()
    exact = torch.log(n_keys / 2 * (1 + capped.exp()))
    assert ((lse[0, 0].double() - exact).abs() < 2.1e-5 + 1.3e-6 * capped.abs()).all()


@pytest.mark.parametrize("infinite", [slice(128), slice(128, 256)], ids=["first", "last"])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_keys_whose_scores_are_minus_infinity_count_nothing(libraries, config, infinite):
    """By value, not by a mask."""
    inputs = make_inputs(Shape("", 1, 64, 256, 1), TORCH_DTYPES[config.dtype], config.d_head)
    q, k, v = (x.abs() + 0.1 for x in inputs)
    finite = torch.ones(256, dtype=torch.bool)
    finite[infinite] = False
    k[:, infinite] = -torch.inf
    out, lse, report = emulate(libraries, config, (q, k, v), resident_ctas=RESIDENT_CTAS)
    assert not report.findings
    expect(q, k[:, finite], v[:, finite]).check(out, lse)


@pytest.mark.parametrize("case", SM90_CASES, ids=str)
def test_the_order_of_warps_changes_no_bit(libraries, case):
    results = [run(libraries, BEST, case, order) for order in ORDERS]
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_counts_follow_from_the_tiles(libraries, config):
    heads, n_blocks = 2, 3
    shape = Shape("", 1, 2 * config.B_r, n_blocks * config.B_c, heads)
    inputs = make_inputs(shape, TORCH_DTYPES[config.dtype], config.d_head)
    _, _, report = emulate(libraries, config, inputs, resident_ctas=RESIDENT_CTAS)
    report.check()
    n_tiles, counts = 2 * heads, report.counts
    assert report.n_ctas == (RESIDENT_CTAS if config.persistent else n_tiles)
    assert (report.n_threads, report.smem_bytes) == (config.n_threads, config.smem_bytes)

    flops = n_tiles * n_blocks * 2 * config.B_r * config.B_c * config.d_head
    assert counts.wgmma_flops_ss == counts.wgmma_flops_rs == flops
    loads = config.n_consumers + 2 * n_blocks  # of a tile: a warpgroup's Q, a block of K or V
    assert counts.mbarrier_expects == n_tiles * loads
    assert counts.tma_boxes == n_tiles * loads * config.d_head // (
        32 if config.d_head == 96 else 64
    )
    rows = config.B_r + 2 * n_blocks * config.B_c
    assert counts.tma_bytes == n_tiles * rows * config.d_head * 2
    for site, rows in (("Q_g2s", config.B_r), ("K_g2s", n_blocks * config.B_c)):
        traffic = report.sites[site]["global_load"]
        assert traffic.sectors == traffic.ideal_sectors == n_tiles * rows * config.d_head * 2 // 32
    # Each warp of a consumer releases its Q, and every block of K and of V.
    releases = 4 * config.n_consumers * (1 + 2 * n_blocks)
    assert counts.mbarrier_arrivals == n_tiles * releases
    # A score each, and corrections of rows, the first block's left out.
    scores = n_tiles * n_blocks * config.B_r * config.B_c
    corrections = counts.exponentials - scores
    assert 0 <= corrections <= n_tiles * (n_blocks - 1) * 4 * config.B_r


def _timeline_report(libraries):
    inputs, _ = SM90_CASES[-3].problem(BEST)
    return emulate(libraries, BEST, inputs, resident_ctas=1)[2]


def test_a_time_line_shows_what_overlaps(libraries):
    report = _timeline_report(libraries)
    spans = timeline.spans(report)
    assert len(spans) > 100
    assert all(span.start <= span.end for span in spans)
    mmas = sorted((s for s in spans if s.row == timeline.TENSOR_CORES), key=lambda s: s.start)
    assert all(a.end <= b.start for a, b in itertools.pairwise(mmas))
    n_columns = sum(s.end - s.start for s in mmas) * 2
    per_cta = [e.a for e in report.timeline if e.kind == "mma"]
    assert n_columns == sum(per_cta)
    # While one consumer works on its softmax, the tensor cores work for the other.
    softmax = [s for s in spans if s.row == "consumer 0" and s.kind == "exponentials"]
    others = [s for s in mmas if s.what.endswith("consumer 1")]
    assert any(a.start < b.end and b.start < a.end for a in softmax for b in others)
    waits = {s.what for s in spans if s.row.startswith("consumer") and s.kind == "wait"}
    assert any("full" in what for what in waits)
    assert any("named barrier" in what for what in waits)


def test_a_time_line_is_text_and_svg(libraries):
    report = _timeline_report(libraries)
    lines = timeline.as_text(report, width=60).splitlines()
    rows = {line[:12].strip(): line[13:] for line in lines[2:]}
    assert {*rows} == {
        "Q producer", "K producer", "V producer", "consumer 0", "consumer 1", "tensor cores",
    }  # fmt: skip
    assert {*rows["tensor cores"]} == {" ", "0", "1"}
    assert "s" in rows["consumer 1"]
    assert all(len(row) <= 60 for row in rows.values())
    svg = ElementTree.fromstring(timeline.as_svg(report))
    assert len(svg.findall("{*}rect")) == len(timeline.spans(report))
    assert "time line of the first CTA" in str(report)


def test_a_report_goes_through_json(libraries):
    report = _timeline_report(libraries)
    assert report.roles[:3] == ("Q producer", "K producer", "V producer")
    assert "K full[0]" in report.mbarriers
    assert Report.from_json(report.to_json()) == report


def test_what_tma_cannot_load_is_refused_in_the_words_of_the_op(libraries):
    inputs = make_inputs(Shape("", 2, 67, 35, 2, "expanded"), torch.float16, BEST.d_head)
    with pytest.raises(ValueError, match=r"cannot run this problem: .*stride of 0"):
        emulate(libraries, BEST, inputs)
    with pytest.raises(ValueError, match="resident_ctas = 0: expected at least 1"):
        pyflash.emulate(*inputs, BEST, resident_ctas=0)


def test_the_command_prints_the_report_and_writes_the_time_line(libraries, tmp_path):
    svg = tmp_path / "timeline.svg"
    arguments = ["emulate", str(BEST), "--seqlen-q", "130", "--seqlen-k", "100", "--heads", "1"]
    result = CliRunner().invoke(app, [*arguments, "--resident-ctas", "1", "--timeline", str(svg)])
    assert result.exit_code == 0, result.output
    assert "nothing wrong found" in result.output
    assert "with A in registers" in " ".join(result.output.split())
    assert "tensor cores" in result.output
    assert svg.read_text().startswith("<svg")


def test_kernels_for_gpus_do_not_know_of_the_emulator():
    include_dirs = toolchain.cpp_compiler().include_dirs
    headers = included_headers(emit.emit_config(BEST), include_dirs=include_dirs)
    assert any(path.name == "forward_kernel.cuh" for path in headers)
    assert not [path for path in headers if path.parent.name == "emulator"]
