"""Into how many splits the keys of a problem go; the kernels are those of a library without any."""

import re
import subprocess

import pytest
import torch
from support.fake_library import build_fake_library
from support.headers import ROOT, includes

import pyflash
from pyflash import DType

B_C = 64
CONFIG = f"(FP16, 512, 64, {B_C}, 4): async+load_0_0_0_tiles"
MAX_SPLITS = 128


@pytest.fixture(scope="module", autouse=True)
def fake_library(tmp_path_factory):
    pyflash.load(build_fake_library(tmp_path_factory.mktemp("library")))


def select(seqlen_k, heads=1, **changes):
    """(number of splits, blocks of keys)."""
    arguments = {
        "packed": False, "batch": 1, "heads_kv": heads, "seqlen_q": 1, "d_head": 512,
        "causal": False, "window_left": -1, "window_right": -1, "softcap": 0.0, "num_splits": 0,
        "sm_arch": 90, "n_sms": 132,
    }  # fmt: skip
    _, num_splits, reason = torch.ops.pyflash.select(
        dtype=int(DType.FP16), heads=heads, seqlen_k=seqlen_k, config=CONFIG, **arguments | changes
    )
    n_blocks = int(re.search(r"its (\d+) blocks of keys", reason)[1])
    return num_splits, n_blocks


def n_ctas(**problem):
    """The CTAs of one pass, half of those of two splits."""
    arguments = {"sm_arch": 90, "n_sms": 132, "seqlen_k": 64, "causal": False, "window_left": -1}
    reason = torch.ops.pyflash.select(
        dtype=int(DType.FP16), d_head=512, batch=1, window_right=-1, softcap=0.0, num_splits=2,
        config=CONFIG, **arguments | problem,
    )[2]  # fmt: skip
    return int(re.search(r"in 2 splits, (\d+) CTAs", reason)[1]) // 2


def cost(n, ctas, blocks, sms):
    """The kernels' d_head is 512, and the library says that two CTAs fit on an SM."""
    waves = -(-ctas * n // (2 * sms))
    merge = 3 + 0.35 * n + n * ctas * 256 / 375000
    return waves * (-(-blocks // n) + 2) + (merge if n > 1 else 0)


@pytest.mark.parametrize("sms", [84, 132])
@pytest.mark.parametrize("blocks", [0, 1, 7, 8, 9, 16, 40, 64, 129, 500, 511, 2048])
def test_the_cheapest_number_of_splits(blocks, sms):
    """All counts tried one by one find none that is cheaper, nor one as cheap that is smaller."""
    for ctas in range(1, 2 * sms + 2, 3):
        chosen, n_blocks = select(blocks * B_C, heads=ctas, d_head=256, n_sms=sms)
        assert n_blocks == blocks
        if ctas >= 0.8 * 2 * sms:
            assert chosen == 1, ctas
            continue
        allowed = range(1, max(1, min(MAX_SPLITS, blocks // 4)) + 1)
        assert chosen == min(allowed, key=lambda n: (cost(n, ctas, blocks, sms), n)), ctas


def test_decoding_fills_the_gpu():
    few = {"d_head": 128, "seqlen_k": 8192}
    assert select(heads=8, **few)[0] == 16  # 128 of 264 slots, 8 blocks each
    assert select(heads=32, **few)[0] == 8  # 256 of them
    assert select(heads=64, **few)[0] == 4
    assert select(heads=128, **few)[0] == 2
    assert select(heads=212, **few)[0] == 1
    assert select(seqlen_k=1 << 20)[0] == MAX_SPLITS
    assert select(seqlen_k=448)[0] == 1  # 7 blocks: too few
    assert select(seqlen_k=0)[0] == 1
    assert select(seqlen_k=8192, heads=0)[0] == 1


def test_many_rows_are_not_worth_merging():
    assert select(seqlen_k=512, seqlen_q=512, heads=8, d_head=128)[0] == 1


def test_a_number_that_is_asked_for_is_taken():
    for n in (1, 2, 7, 128):
        assert select(seqlen_k=8192, heads=8, num_splits=n)[0] == n
    assert select(seqlen_k=10, heads=1000, num_splits=3)[0] == 3


def test_heads_that_share_keys_are_rows_of_one_block_when_there_is_one_query():
    shapes = {"heads": 32, "heads_kv": 4}
    assert n_ctas(packed=False, seqlen_q=1, **shapes) == 4
    assert n_ctas(packed=False, seqlen_q=1, heads=320, heads_kv=4) == 8  # 80 rows a head
    assert n_ctas(packed=False, seqlen_q=2, **shapes) == 32
    assert n_ctas(packed=True, seqlen_q=1, **shapes) == 32
    assert n_ctas(packed=False, seqlen_q=1, causal=True, **shapes) == 4  # which cuts nothing
    assert n_ctas(packed=False, seqlen_q=1, seqlen_k=900, window_left=5, **shapes) == 4


def test_only_the_keys_in_the_window_count():
    assert select(seqlen_k=100_000, window_left=127) == (1, 2)  # one query: the last 128 keys
    window = {"seqlen_q": 64, "window_left": 100, "window_right": 27}
    assert select(seqlen_k=100_000, **window) == (1, 4)  # 191 keys, which may start in a block
    assert select(seqlen_k=130, **window)[1] == 3
    assert select(seqlen_k=100_000, seqlen_q=64, causal=True)[1] == 1563


# cudaOccupancyMaxActiveClusters of an H200, with one CTA to an SM and with two.
CLUSTERS = (
    (132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7),
    (264, 132, 79, 62, 47, 39, 32, 30, 23, 21, 16, 16, 14, 14, 14, 14),
)


def printed_by(tmp_path, program, *arguments, given=""):
    sources = [ROOT / f"tests/support/{program}.cpp", ROOT / "cute_kernels/host/splits.cpp"]
    compiled = tmp_path / program
    subprocess.run(["g++", "-std=c++20", *includes(), *sources, "-o", compiled], check=True)
    command = [compiled, *map(str, arguments)]
    run = subprocess.run(command, input=given, check=True, capture_output=True, text=True)
    return [tuple(map(int, line.split())) for line in run.stdout.splitlines()]


def test_clusters_that_fit_are_those_of_an_h200_in_proportion(tmp_path):
    sms = (*range(1, 8), 66, 78, 108, 114, *range(130, 135), 144, 148, 264)
    found = printed_by(tmp_path, "print_clusters", *sms)
    expected = [tuple(n * sm // 132 for n in known) for sm in sms for known in CLUSTERS]
    assert found == expected


# A batch, queries, heads, heads of K and V, keys, d_head, the rows and keys of a tile: splits, and
# CTAs of a cluster.
WITH_VARIANT = {
    (4, 1, 32, 8, 32768, 128, 64, 64): (8, 1),  # 32 clusters of 8 do not run at a time
    (1, 1, 32, 8, 65536, 128, 64, 64): (32, 1),  # more than a cluster has
    (1, 1, 32, 8, 4096, 128, 64, 64): (8, 8),
    (8, 1, 32, 8, 2048, 128, 64, 64): (2, 2),
    (4, 1, 32, 8, 8192, 128, 64, 64): (7, 7),
    (16, 1, 32, 8, 4096, 128, 64, 64): (1, 1),
    (8, 1, 32, 8, 8192, 64, 64, 128): (4, 1),  # 64 clusters of 4: 62 run at a time
    (2, 4, 8, 2, 32768, 64, 64, 128): (26, 1),
}


def test_with_a_variant_clusters_merge_splits_where_those_of_all_tiles_run_at_a_time(tmp_path):
    given = "\n".join(" ".join(map(str, problem)) for problem in WITH_VARIANT)
    found = printed_by(tmp_path, "print_variant_splits", given=given)
    assert found == [splits * 2 for splits in WITH_VARIANT.values()]  # whoever chose the number
