"""Loading kernel libraries and choosing among their configs, with a library that has no kernels."""

import itertools
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.fake_library import build_fake_library

import pyflash
from pyflash import DType, Features, FlashForwardKernelConfig, Problem
from pyflash.config.sets import UNRANKED
from pyflash.op.library import LIB_DIR
from pyflash.op.options import OPTIONS
from pyflash.op.selection import class_of

LARGE_RANK_1 = "(FP16, 512, 128, 32, 4): async+load_0_0_0_tiles"
LARGE_RANK_2 = "(FP16, 512, 128, 64, 4): async+load_0_0_0_tiles"
SMALL_RANK_3 = "(FP16, 512, 64, 64, 4): async+load_0_0_0_tiles"
SMALL_RANK_0_SM80 = "(FP16, 512, 64, 32, 4): async+load_0_0_0_tiles"
FP16_640 = "(FP16, 640, 64, 64, 4): async+load_0_0_0_tiles"
BF16_576 = "(BF16, 576, 64, 64, 4): async+load_0_0_0_tiles"
FP16_8 = "(FP16, 8, 64, 64, 4): async+load_0_0_0_tiles"


@pytest.fixture(scope="module")
def fake_library(tmp_path_factory) -> Path:
    library = build_fake_library(tmp_path_factory.mktemp("library"))
    assert pyflash.load(library) == 11
    return library


def select(dtype=DType.FP16, heads=1, **changes):
    """(short form, num_splits, reason); of the H200 unless told otherwise."""
    arguments = {
        "packed": False, "batch": 1, "heads_kv": heads, "seqlen_q": 65, "seqlen_k": 1,
        "d_head": 512, "causal": False, "window_left": -1, "window_right": -1, "softcap": 0.0,
        "num_splits": 0, "sm_arch": 90, "n_sms": 132,
    }  # fmt: skip
    return torch.ops.pyflash.select(dtype=int(dtype), heads=heads, **arguments | changes)


# Loading.


def test_rows_appear_in_the_config_map(fake_library):
    built = pyflash.built_configs()
    config = FlashForwardKernelConfig.parse(LARGE_RANK_2)
    assert built[config] == pyflash.BuiltConfig(
        config,
        features=tuple(
            map(
                Features.parse,
                ("plain", "right_window", "right_window+left_window+predicated_head_dim"),
            )
        ),
        sm_archs=("80", "90"),
        ptx_arch=90,
        n_threads=128,
        smem_bytes=1024,
        rank=2,
    )
    assert built[FlashForwardKernelConfig.parse(SMALL_RANK_0_SM80)].sm_archs == ("80",)
    assert list(built) == sorted(built)


def test_the_library_loaded_last_wins(fake_library, tmp_path):
    config = FlashForwardKernelConfig.parse(LARGE_RANK_1)
    assert pyflash.built_configs()[config].rank == 1
    n_before = len(pyflash.built_configs())
    try:
        pyflash.load(build_fake_library(tmp_path, "later", "BASE_RANK=100"))
        assert pyflash.built_configs()[config].rank == 101
    finally:
        pyflash.load(fake_library)
    assert pyflash.built_configs()[config].rank == 1
    assert len(pyflash.built_configs()) == n_before


def test_many_threads_may_load_and_look(fake_library):
    def load_and_look(_):
        pyflash.load(fake_library)
        return len(pyflash.built_configs()), select(sm_arch=80)[0]

    with ThreadPoolExecutor(8) as pool:
        results = set(pool.map(load_and_look, range(200)))
    assert len(results) == 1


def test_pages(fake_library):
    for packed, page_size, causal in itertools.product((False, True), (1, 16, 100), (False, True)):
        problem = Problem(
            batch=3,
            heads_q=4,
            heads_kv=2,
            seqlen_q=5,
            seqlen_k=100,
            d_head=512,
            dtype="FP16",
            packed=packed,
            device="cpu",
            page_size=page_size,
            options={"causal": causal},
        )
        # Pages of a sequence that has one alone are boxes, of any size.
        features = "+".join(
            name
            for name, is_needed in (
                ("right_window", causal),
                ("paged_kv", True),
                ("gathered_kv", page_size == 1),
            )
            if is_needed
        )
        assert class_of(problem).features == features
        selection = pyflash.select(problem)
        assert selection.backward == "none: attention over pages has no gradients"
        with pytest.raises(RuntimeError, match=f"is built with {re.escape(features)}$"):
            select(seqlen_k=100, packed=packed, page_size=page_size, causal=causal)


# The rule.


@pytest.mark.parametrize(
    ("batch", "heads", "seqlen_q", "expected"),
    [
        (1, 132, 128, LARGE_RANK_1),  # 132 CTAs of 128 rows
        (1, 131, 128, SMALL_RANK_3),  # 131 of 128 rows, 262 of 64 rows
        (4, 33, 65, LARGE_RANK_1),
        (4, 33, 64, SMALL_RANK_3),  # all queries fit in a block of 64
        (4, 1000, 1, SMALL_RANK_3),
        (1, 1, 128 * 132, LARGE_RANK_1),
        (1, 1, 128 * 131 + 1, LARGE_RANK_1),
        (1, 1, 128 * 131, SMALL_RANK_3),
        (1, 1, 1, SMALL_RANK_3),  # nothing fills the GPU
        (0, 1, 1, SMALL_RANK_3),
    ],
)
@pytest.mark.usefixtures("fake_library")
def test_the_config_that_suits_the_number_of_queries(batch, heads, seqlen_q, expected):
    assert select(batch=batch, heads=heads, seqlen_q=seqlen_q)[0] == expected


@pytest.mark.parametrize(
    ("heads", "seqlen_q", "B_r"),
    [
        (132, 300, 192),  # 2 of 192 rows, 3 of 128
        (132, 250, 128),  # 2 of either
        (132, 100, 128),  # 1 of either, 2 of 64
        (132, 64, 64),
        (50, 350, 128),  # 100 of 192 do not fill the GPU, 150 of 128 do
        (20, 300, 64),
    ],
)
@pytest.mark.usefixtures("fake_library")
def test_rows_that_would_be_idle_are_left_out(heads, seqlen_q, B_r):
    chosen, _, reason = select(dtype=DType.BF16, d_head=568, heads=heads, seqlen_q=seqlen_q)
    assert chosen == f"(BF16, 568, {B_r}, 64, 4): async+load_0_0_0_tiles"
    idle = "with as few CTAs as a larger B_r, of which more rows would be idle: rank 2, "
    assert (idle in reason) == ((heads, B_r) == (132, 128))


def test_a_small_grid_stays_with_the_preferred_family(tmp_path):
    """In a process of its own, because kernels are never unloaded. On an H200 a grid of 128 CTAs of
    128 rows took 33.0 us in the SM90 kernel and 61.7 us in the SM80 kernel with 64 rows."""
    program = """
import sys, torch
torch.ops.load_library(sys.argv[1])
torch.ops.pyflash.load_kernels(sys.argv[2])
common = dict(dtype=5, packed=False, batch=1, d_head=512, n_sms=132)
for sm_arch, heads, seqlen in ((90, 8, 2048), (90, 1, 65), (90, 8, 64), (80, 8, 2048)):
    extents = dict(heads=heads, heads_kv=heads, seqlen_q=seqlen, seqlen_k=seqlen)
    print(torch.ops.pyflash.select(sm_arch=sm_arch, **extents, **common)[0])
"""
    library = build_fake_library(tmp_path, "hopper", "HOPPER")
    command = [sys.executable, "-c", program, str(LIB_DIR / "libpyflash_ops.so"), str(library)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    hopper = "(FP16, 512, 128, 64, 2): sm90+stages_2"
    assert result.stdout.splitlines() == [hopper, hopper, SMALL_RANK_3, SMALL_RANK_0_SM80]


@pytest.mark.parametrize(("rank", "chosen"), [(3, 64), (UNRANKED, 128)])
def test_rules_leave_out_what_has_no_rank(tmp_path, rank, chosen):
    """In a process of its own, as above. 65 rows fill no SM: the smallest B_r would be the rule."""
    program = """
import sys, torch
torch.ops.load_library(sys.argv[1])
torch.ops.pyflash.load_kernels(sys.argv[2])
extents = dict(batch=1, heads=1, heads_kv=1, seqlen_q=65, seqlen_k=65, d_head=568)
print(torch.ops.pyflash.select(dtype=15, packed=False, sm_arch=90, n_sms=132, **extents)[0])
"""
    library = build_fake_library(tmp_path, "ranks", f"LAST_RANK={rank}")
    command = [sys.executable, "-c", program, str(LIB_DIR / "libpyflash_ops.so"), str(library)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert result.stdout.startswith(f"(BF16, 568, {chosen}, 64, 4)")


@pytest.mark.usefixtures("fake_library")
def test_only_what_has_code_for_the_gpu():
    assert select(sm_arch=80, heads=1000)[0] == SMALL_RANK_0_SM80
    assert select(sm_arch=86, heads=1000)[0] == SMALL_RANK_0_SM80  # a newer minor version runs 80's
    assert select(sm_arch=90, heads=1000)[0] == LARGE_RANK_1  # not 80's, without its PTX
    assert select(sm_arch=100, heads=1000)[0] == LARGE_RANK_1  # through the PTX of 90
    assert select(dtype=DType.BF16, d_head=576, sm_arch=89)[0] == BF16_576
    assert select(dtype=DType.BF16, d_head=576, sm_arch=80)[0] == BF16_576  # 86's no, its PTX of 80
    with pytest.raises(
        RuntimeError,
        match=r"no config for FP16 with d_head 512 or more is built for this GPU, sm_70; "
        r"to build for it: pyflash build --arch 70$",
    ):
        select(sm_arch=70)


@pytest.mark.usefixtures("fake_library")
def test_the_smallest_head_dimension_that_is_large_enough():
    for d_head in (264, 504, 512):
        assert select(d_head=d_head, heads=1000)[0] == LARGE_RANK_1  # not 640's, of rank 0
    assert select(d_head=520, heads=1000)[0] == FP16_640
    assert select(d_head=512, sm_arch=75)[0] == FP16_640  # nothing smaller runs there
    assert select(d_head=576, dtype=DType.BF16)[0] == BF16_576
    reason = select(d_head=504)[2]
    assert reason.startswith("of 3 configs built for FP16 with d_head 512 that run on sm_90 ")


@pytest.mark.usefixtures("fake_library")
def test_no_kernel_image_is_a_refusal_that_lists_what_is_built():
    """A head dimension that is not supported fails at once, not deep inside.
    Pitfall 4: no kernel image."""
    with pytest.raises(
        RuntimeError, match="no config is built for BF16 with d_head 584 or more: built are "
    ) as refusal:
        select(dtype=DType.BF16, d_head=584)
    for built in ("FP16 with d_head 8", "FP16 with d_head 640", "BF16 with d_head 576"):
        assert built in str(refusal.value)
    assert "to build one" not in str(refusal.value)  # no family has that d_head


@pytest.mark.usefixtures("fake_library")
def test_a_feature_that_is_not_built_is_refused_by_name():
    with pytest.raises(
        RuntimeError,
        match=r"no config for FP16 with d_head 512 or more is built with softcap$",
    ):
        select(softcap=30.0)
    with pytest.raises(
        RuntimeError, match=r"is built with dropout; to build them: pyflash build --set dropout$"
    ):
        select(dropout_p=0.5)
    sentence = (
        f"config '{LARGE_RANK_1}' is built without left_window+softcap; "
        f"to build it: pyflash build '{LARGE_RANK_1}' --features left_window+softcap"
    )
    with pytest.raises(RuntimeError, match=re.escape(sentence)):
        select(config=LARGE_RANK_1, softcap=30.0, window_left=5, seqlen_k=100)


def test_a_config_that_refuses_the_problem_is_passed_over(fake_library, tmp_path):
    try:
        refusing = build_fake_library(tmp_path, "refusing", 'REFUSES="Tuesday"', "BASE_RANK=-9")
        pyflash.load(refusing)
        with pytest.raises(RuntimeError, match="cannot run this problem: it is Tuesday"):
            select(config=LARGE_RANK_1)
        with pytest.raises(RuntimeError, match="none of the configs built for FP16"):
            select()
    finally:
        pyflash.load(fake_library)


def test_packed_sequences_are_asked_about_as_such(fake_library, tmp_path):
    """A row that looks at cu_seqlens sees some, as it does in a call."""
    try:
        pyflash.load(build_fake_library(tmp_path, "packed", "REFUSES_PADDED", "BASE_RANK=-9"))
        with pytest.raises(RuntimeError, match="cannot run this problem: it is padded"):
            select(config=LARGE_RANK_1, batch=3)
        assert select(config=LARGE_RANK_1, batch=3, packed=True)[0] == LARGE_RANK_1
    finally:
        pyflash.load(fake_library)


def test_uneven_sequences_have_their_tiles_listed_and_few_rows_a_kernel_of_their_own(tmp_path):
    """As far as shapes say: in a process of its own, where nothing else is built."""
    library = build_fake_library(tmp_path, "listed", "LISTED", "HOPPER")
    script = f"""if True:
        import sys, torch, pyflash
        pyflash.load({str(library)!r})
        from pyflash.op.selection import Problem, select_on
        def reason(seqlen, total, batch=64, causal=True, config="", keys=8192):
            options = dict(causal=causal, config=config)
            problem = Problem(batch=batch, heads_q=32, heads_kv=8, seqlen_q=seqlen, total_q=total,
                              seqlen_k=8192, total_k=batch * keys, d_head=512, dtype="FP16",
                              packed=True, options=options)
            return select_on(problem, 90, 132).reason
        listed, few = "in a list that the device makes", "sequences of at most 16 queries by (FP16"
        for text, *expected in (
            (reason(2048, 2111), True, True),  # 63 decodes beside a chunk
            (reason(2048, 2048 + 63 * 16), True, True),
            (reason(2048, 2048 + 63 * 17), True, True),  # perhaps a chunk and 62 decodes beside it
            (reason(2048, 16 * 2047 + 64), True, True),  # as 16 chunks and 48 decodes have
            (reason(2048, 16 * 2047 + 65), True, False),
            (reason(1024, 1024 + 700 + 30, batch=32), True, True),
            (reason(2048, 2048 + 63 * 17, keys=1024), True, False),  # few keys
            (reason(2048, 20_000, keys=1200), True, False),  # as many as queries, about
            (reason(2048, 64 * 1000), True, False),  # documents
            (reason(2048, 64 * 2048), False, False),  # all are as long as the longest
            (reason(2048, 2111, causal=False), True, True),
            (reason(2048, 2111, config="{LARGE_RANK_2}"), True, False),  # it was named
        ):
            assert [listed in text, few in text] == expected, text
    """
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("merges", [False, True])
def test_keys_of_many_pages_are_in_equal_shares_where_a_kernel_has_just_what_they_need(
    tmp_path, merges
):
    """Where no number of splits is asked for; in a process of its own."""
    library = build_fake_library(
        tmp_path, "shared", "SHARED", *(["MERGES_SHARES"] if merges else [])
    )
    script = f"""if True:
        import sys, torch, pyflash
        pyflash.load({str(library)!r})
        from pyflash.op.selection import Problem, select_on
        def is_shared(batch=64, seqlen_q=1, seqlen_k=8192, page_size=64, heads_kv=8, **options):
            problem = Problem(batch=batch, heads_q=32, heads_kv=heads_kv, seqlen_q=seqlen_q,
                              seqlen_k=seqlen_k, d_head=512, dtype="FP16",
                              page_size=page_size, options=options)
            reason = select_on(problem, 90, 132).reason
            assert "as asked for" not in reason or "num_splits" in options
            # Where no SM has two tiles, a CTA has it alone.
            n_ctas = 132 if batch * min(heads_kv, 32) <= 132 else 264
            assert ("in equal shares" in reason) == (f"for {{n_ctas}} CTAs" in reason)
            return "in equal shares" in reason
        for seqlen_k in (1, 96, 512, 1000, 6400, 6500, 8192, 28_800, 28_900, 100_000):
            for batch in (1, 2, 5, 6, 8, 64, 256, 257, 1024, 1025):
                for heads_kv in (1, 2, 8, 32):
                    expected = 1 < batch <= 1024 and batch * heads_kv * seqlen_k >= 25_000 * 132
                    if {merges} and 1 < batch <= 256 and 32 // heads_kv <= 16:  # rows of a part
                        expected |= batch * heads_kv >= 48 and seqlen_k >= 512
                        expected |= batch * heads_kv * seqlen_k >= 3500 * 132
                    found = is_shared(batch, 1, seqlen_k, 16, heads_kv)
                    assert found == expected, (seqlen_k, batch, heads_kv)
        assert is_shared(causal=True)  # the only query attends all keys
        assert is_shared(seqlen_q=16)
        assert not is_shared(page_size=0)
        assert not is_shared(window_left=7000)  # only a kernel with sinks, too, shares its keys
        assert not is_shared(num_splits=1)
        assert is_shared(num_splits=-1, batch=1)
        assert is_shared(batch=2, seqlen_k=29_000) == {merges}
        assert not is_shared(batch=2, seqlen_k=28_000)
    """
    subprocess.run([sys.executable, "-c", script], check=True)


def test_packed_sequences_of_one_query_over_pages_are_of_the_class_of_padded_ones(tmp_path):
    """What was measured of these stands for them. In a process of its own."""
    library = build_fake_library(tmp_path, "shared", "SHARED")
    script = f"""if True:
        import torch, pyflash
        pyflash.load({str(library)!r})
        from pyflash.op import tables
        from pyflash.op.selection import Problem, class_of, select_on
        def problem(packed=True, batch=1, seqlen_q=1, page_size=64, heads_kv=8, **options):
            return Problem(batch=batch, heads_q=32, heads_kv=heads_kv, seqlen_q=seqlen_q,
                           seqlen_k=8192, d_head=512, dtype="FP16", packed=packed,
                           page_size=page_size, options=options)
        for changes in (
            dict(), dict(batch=3), dict(heads_kv=32), dict(causal=True), dict(window_left=50),
            dict(alibi_slopes=torch.zeros(32)), dict(softcap=2.0), dict(heads_kv=1),
        ):
            assert class_of(problem(**changes)) == class_of(problem(False, **changes)), changes
        for changes in (dict(seqlen_q=2), dict(page_size=0)):
            assert class_of(problem(**changes)).pairs == 32, changes
        config = str(select_on(problem(), 90, 132).config)
        one = dict(dtype="FP16", d_head=512, features="plain", packed=False, pairs=[8, 32],
                   rows=[1, 4], keys=[8192, 8192])
        choice = {{"class": one, "config": config, "num_splits": 5}}
        table = dict(format=1, name="a table", sm=90, n_sms=132, choices=[choice], costs=[])
        tables.use_tables([table])
        splits = lambda **changes: select_on(problem(**changes), 90, 132).num_splits
        assert splits() == splits(packed=False) == 5
        assert splits(packed=False, page_size=0) == 5
        assert splits(seqlen_q=2) != 5
        assert splits(page_size=0) != 5
    """
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("packed", [False, True])
def test_problems_without_rows_or_heads_are_asked_about_as_contiguous(
    fake_library, tmp_path, packed
):
    """A tensor with an extent of 0 has the strides of torch's, none of which is 0."""
    try:
        pyflash.load(build_fake_library(tmp_path, "strides", "REFUSES_STRIDE_0"))
        for batch, heads, seqlen_q, seqlen_k in itertools.product((0, 2), (0, 3), (0, 5), (0, 5)):
            extents = {"batch": batch, "heads": heads, "seqlen_q": seqlen_q, "seqlen_k": seqlen_k}
            assert select(config=LARGE_RANK_1, packed=packed, **extents)[0] == LARGE_RANK_1
    finally:
        pyflash.load(fake_library)


@pytest.mark.usefixtures("fake_library")
def test_the_reason_is_told():
    candidates = "of 3 configs built for FP16 with d_head 512 that run on sm_90"
    assert select(heads=132, seqlen_q=128, seqlen_k=100)[2] == (
        f"{candidates} the first in rank whose grid fills the 132 SMs: rank 1, 132 CTAs; "
        "its 4 blocks of keys in one pass"
    )
    smallest = (
        f"{candidates} none has a grid that fills the 132 SMs; "
        "the first in rank of those with the smallest B_r in its family: rank 3, 4 CTAs; "
    )
    assert select(heads=2, seqlen_k=65)[2] == f"{smallest}its 2 blocks of keys in one pass"
    assert select(heads=2, seqlen_k=4096)[2] == (
        f"{smallest}its 64 blocks of keys in 11 splits, 44 CTAs"
    )
    assert select(heads=2, seqlen_k=4096, num_splits=5)[2] == (
        f"{smallest}its 64 blocks of keys in 5 splits, 20 CTAs, as asked for"
    )
    assert select(heads=2, seqlen_q=64, seqlen_k=65)[2] == (
        f"{candidates} the first in rank of those with the smallest B_r, which holds all queries: "
        "rank 3, 2 CTAs; its 2 blocks of keys in one pass"
    )


@pytest.mark.usefixtures("fake_library")
def test_a_config_that_is_named_is_used():
    named = "it was named; its 1 blocks of keys in one pass"
    assert select(config=LARGE_RANK_2) == (LARGE_RANK_2, 1, named)
    assert select(config=SMALL_RANK_0_SM80, sm_arch=86) == (SMALL_RANK_0_SM80, 1, named)
    assert select(config=FP16_640, d_head=8)[0] == FP16_640
    assert select(config=BF16_576, dtype=DType.BF16, d_head=576, sm_arch=0) == (
        BF16_576, 1, "it was named",
    )  # fmt: skip


@pytest.mark.usefixtures("fake_library")
def test_a_config_that_is_named_is_refused_never_replaced():
    """Pitfall 20: silent fallback to another kernel."""
    other = LARGE_RANK_1.replace("128, 32", "192, 32")
    with pytest.raises(
        RuntimeError, match=re.escape(f"config '{other}' is not built: ")
    ) as refusal:
        select(config=other)
    assert f"built for FP16 with d_head 512 are '{SMALL_RANK_0_SM80}', " in str(refusal.value)
    assert f"to build it: pyflash build '{other}'" in str(refusal.value)
    sentence = (
        f"config '{SMALL_RANK_0_SM80}' is not built for this GPU, sm_90: "
        "it has machine code for sm_80; to build it: pyflash build"
    )
    with pytest.raises(RuntimeError, match=re.escape(sentence)):
        select(config=SMALL_RANK_0_SM80)
    with pytest.raises(RuntimeError, match="is for FP16, q is BF16"):
        select(config=LARGE_RANK_1, dtype=DType.BF16)
    with pytest.raises(RuntimeError, match="is for d_head up to 512, q has d_head 520"):
        select(config=LARGE_RANK_1, d_head=520)


@pytest.mark.usefixtures("fake_library")
def test_what_is_loaded_later_is_chosen_from_then_on(fake_library, tmp_path):
    """Candidates are kept from call to call, but not past a load."""
    assert select(heads=132, seqlen_q=128)[0] == LARGE_RANK_1
    try:
        pyflash.load(build_fake_library(tmp_path, "reversed", "BASE_RANK=10", "SIGN=-"))
        assert select(heads=132, seqlen_q=128)[0] == SMALL_RANK_3
    finally:
        pyflash.load(fake_library)
    assert select(heads=132, seqlen_q=128)[0] == LARGE_RANK_1


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 128])
def test_few_rows_are_a_tile_of_the_smallest_kernels(n):
    """Rows are the queries of a sequence, or the heads that share keys of one query."""
    extents = {"batch": 3, "seqlen_k": 500, "d_head": 64, "dtype": DType.FP16}
    expected = "few" if n <= 64 else "many"
    for packed in (False, True):
        found = class_of(Problem(**extents, heads_q=2, heads_kv=2, seqlen_q=n, packed=packed))
        assert (found.rows, found.kind) == (n, expected)
    found = class_of(Problem(**extents, heads_q=2 * n, heads_kv=2, seqlen_q=1))
    assert (found.rows, found.kind) == (n, expected)


# On the CPU.


def problem(**changes):
    right = {
        "batch": 1, "heads_q": 2, "heads_kv": 2, "seqlen_q": 100, "seqlen_k": 100, "d_head": 64,
        "dtype": DType.FP16, "device": "cpu",
    }  # fmt: skip
    options = {name: changes.pop(name) for name in list(changes) if name in OPTIONS}
    return Problem(**right | changes, options=options)


@pytest.mark.usefixtures("fake_library")
def test_on_the_cpu_the_first_in_rank():
    selection = pyflash.select(problem(d_head=8))
    assert str(selection.config) == FP16_8
    assert selection.num_splits == 1
    q = torch.randn(1, 100, 2, 8, dtype=torch.float16)
    assert torch.equal(pyflash.attention(q, q, q), torch.ops.pyflash.fwd(q, q, q, config=FP16_8)[0])


def test_on_the_cpu_without_kernels_any_head_dimension():
    """In a process of its own: what others have loaded would be chosen."""
    program = """
import sys, torch
torch.ops.load_library(sys.argv[1])
common = dict(dtype=15, packed=False, batch=1, heads=1, heads_kv=1, seqlen_q=1, seqlen_k=1,
              causal=False, window_left=-1, window_right=-1, softcap=0.0, num_splits=0, sm_arch=0,
              n_sms=0)
for d_head in range(8, 257, 8):
    print(d_head, *torch.ops.pyflash.select(d_head=d_head, **common)[:2], sep=";")
"""
    command = [sys.executable, "-c", program, str(LIB_DIR / "libpyflash_ops.so")]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = [line.split(";") for line in result.stdout.splitlines()]
    assert [int(d_head) for d_head, _, _ in lines] == list(range(8, 257, 8))
    for d_head, short_form, num_splits in lines:
        config = FlashForwardKernelConfig.parse(short_form)
        assert config.d_head == min(n for n in (32, 64, 96, 128, 192, 256) if n >= int(d_head))
        assert config.dtype == DType.BF16
        assert config.violations("sm_90") == []  # what a refusal on a GPU tells to build
        assert num_splits == "1"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"heads_q": 3}, "expected a number of heads that divides the 3 of q"),
        ({"causal": True, "window_right": 2}, "causal = True sets window_right = 0, which came as"),
        ({"window_left": -5}, "window_left = -5: expected a number of keys"),
        ({"softcap": -1.0}, "softcap = -1: expected a finite number above 0"),
        ({"d_head": 84}, "q has d_head 84: expected a multiple of 8"),
        ({"packed": True, "d_head": 84}, "q has d_head 84: expected a multiple of 8"),
        ({"packed": True, "heads_q": 3}, "k has shape (100, 2, 64): expected a number of heads"),
        ({"sinks": torch.zeros(3)}, "sinks has shape (3,): expected (2,), the heads of q"),
        ({"device": "meta"}, "device is meta: expected a CUDA device or cpu"),
    ],
)
def test_select_refuses_what_attention_refuses(changes, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        pyflash.select(problem(**changes))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seqlen_q": -1}, "seqlen_q = -1: expected a number from 0 to 536870912"),
        ({"batch": 2**29 + 1}, "batch = 536870913: expected a number from 0 to 536870912"),
        ({"batch": 2**16, "heads": 2**16}, "q has 65536 heads in 65536 batches: expected at most"),
        ({"heads": 4, "heads_kv": 0}, "k has shape (1, 1, 0, 512): expected a number of heads"),
        ({"heads": 4, "heads_kv": 3}, "k has shape (1, 1, 3, 512): expected a number of heads"),
        ({"d_head": 12}, "q has d_head 12: expected a multiple of 8 from 8 to 640"),
        ({"num_splits": 129}, "num_splits = 129: expected a number from 1 to 128"),
        ({"sinks": torch.zeros(2)}, "sinks has shape (2,): expected (1,), the heads of q"),
    ],
)
@pytest.mark.usefixtures("fake_library")
def test_the_op_refuses_what_no_call_of_attention_has(changes, sentence):
    with pytest.raises(RuntimeError, match=re.escape(sentence)):
        select(**changes)


def test_an_option_that_does_not_exist_is_refused():
    with pytest.raises(TypeError, match="Problem got an unexpected keyword argument 'casual'"):
        pyflash.select(replace(problem(), options={"casual": True}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_select_without_a_gpu_says_so():
    with pytest.raises(RuntimeError, match="torch finds no CUDA GPU: expected device 'cpu'"):
        pyflash.select(problem(device="cuda"))


def test_options_of_a_problem():
    """An explicit config and num_splits are used."""
    config = "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles"
    options = {"config": config, "num_splits": 3, "causal": False}
    selection = pyflash.select(problem(d_head=8, **options))
    assert (str(selection.config), selection.reason) == (config, "it was named")
