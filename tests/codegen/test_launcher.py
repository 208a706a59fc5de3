"""What kernel libraries ask of the CUDA runtime, for their own kernels and those of cubins: grids,
clusters, tensor maps. The runtime is played by fake_cudart.cpp."""

import itertools
import subprocess
from pathlib import Path

import pytest
from support.headers import ROOT, includes

from pyflash.third_party import cuda, cutlass

SM80 = "(BF16, 64, 128, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
PERSISTENT = "(FP16, 128, 128, 64, 2): sm90+stages_2+overlap+persistent"
PACKED = "(BF16, 96, 64, 160, 1): sm90+stages_2+overlap+pack_gqa"


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    try:
        folders = [cutlass.include_dir(), *cuda.include_dirs()]
    except (cuda.CudaError, cutlass.CutlassError) as error:
        pytest.skip(str(error))
    path = tmp_path_factory.mktemp("launcher") / "launcher"
    system = [option for folder in folders for option in ("-isystem", str(folder))]
    sources = [ROOT / "tests/support/fake_cudart.cpp", ROOT / "cute_kernels/host/short_form.cpp"]
    launcher = ["-x", "c++", ROOT / "cute_kernels/kernel_library.cu"]
    command = ["g++", "-std=c++20", *includes(), *system, *sources, *launcher, "-o", path]
    subprocess.run(command, check=True)
    return path


def asked(program: Path, config: str, *problem: int) -> list[str]:
    """`problem`: batch, heads, heads_kv, seqlen_q, seqlen_k, num_splits."""
    command = [str(program), config, *map(str, problem)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_sm80(program):
    assert asked(program, SM80, 2, 8, 4, 1000, 500, 3) == [
        "row 0 1",
        "set smem 1024",
        "launch 384 x 384, 1024 bytes, stream 0x77",  # 8 blocks x 3 splits x 8 heads x 2
        "merge 3 splits, stream 0x77",
        "returned 0",
    ]


def test_an_op_runs_its_phases_in_order_and_those_alone_that_a_problem_needs(program):
    """One split leaves nothing to merge, nor do those of a cluster."""
    for config, num_splits, merges in (
        (SM80, 1, False),
        (SM80, 2, True),
        (PACKED, 16, False),
        (PACKED, 17, True),
    ):
        lines = asked(program, config, 1, 4, 1, 1, 4096, num_splits)
        (launch,) = (i for i, line in enumerate(lines) if line.startswith("launch"))
        merge = [f"merge {num_splits} splits, stream 0x77"] if merges else []
        assert lines[launch + 1 :] == [*merge, "returned 0"], config


def test_the_workspace_has_a_part_of_o_and_lse_for_each_split_that_is_merged_apart(tmp_path):
    source = tmp_path / "workspace.cpp"
    cases = [(1, 1, 0), (4, 4, 0), (4, 1, 4), (17, 1, 17)]  # splits, cluster, parts
    source.write_text(
        '#include "cute_kernels/forward.h"\nusing namespace pyflash;\n'
        "constexpr auto of(int num_splits, int cluster) {\n"
        "  ListedForwardParams params{};\n"
        "  params.lse_strides.split = 10;\n"
        "  params.d_head = 64;\n"
        "  params.num_splits = num_splits;\n"
        "  params.cluster = cluster;\n"
        "  return Forward::workspace(params);\n"
        "}\n"
        + "".join(
            f"static_assert(of({splits}, {cluster})[2].n_elements == {640 * n});\n"
            f"static_assert(of({splits}, {cluster})[3].n_elements == {10 * n});\n"
            for splits, cluster, n in cases
        )
        + "static_assert(of(2, 1)[0].pointer == &ListedForwardParams::tile_list);\n"
        "static_assert(of(2, 1)[0].n_elements == 0);\n"
        "static_assert(of(2, 1)[1].pointer == &ListedForwardParams::share_list);\n"
        "static_assert(of(2, 1)[1].n_elements == 0);\n"
        "static_assert(of(2, 1)[2].pointer == &ForwardParams::o_partial);\n"
        "static_assert(of(2, 1)[3].pointer == &ForwardParams::lse_partial);\n"
    )
    subprocess.run(["g++", "-std=c++20", "-fsyntax-only", *includes(), source], check=True)


def test_persistent_ctas_take_the_tiles_in_rounds(program):
    row, *maps, smem, launch, end = asked(program, PERSISTENT, 2, 8, 4, 10000, 500, 1)
    assert row == "row 0 1"
    # Columns, then group, rows, heads, batch of Q; rows, heads, batch of K and V.
    assert maps == [
        "map of Q, FP16, swizzle 128B: 64 of 128 by 2 1 of 1 by 16 64 of 10000 by 2048 "
        "1 of 8 by 256 1 of 2 by 20480000",
        *[f"map of {x}, FP16, swizzle 128B: 64 of 128 by 2 64 of 500 by 1024 1 of 4 by 256 "
          "1 of 2 by 512000" for x in "KV"],
    ]  # fmt: skip
    assert (smem, end) == ("set smem 1024", "returned 0")
    assert launch == "launch 264 x 384, 1024 bytes, stream 0x77, early 1"
    assert "launch 16 x 384" in asked(program, PERSISTENT, 1, 8, 4, 200, 500, 1)[-2]


def test_k_and_v_have_maps_of_their_own(program, monkeypatch):
    monkeypatch.setenv("HEADS_OF_V_FIRST", "1")
    maps = asked(program, PERSISTENT, 2, 8, 4, 1000, 500, 1)[1:4]
    assert maps[1:] == [
        "map of K, FP16, swizzle 128B: 64 of 128 by 2 64 of 500 by 1024 1 of 4 by 256 "
        "1 of 2 by 512000",
        "map of V, FP16, swizzle 128B: 64 of 128 by 2 64 of 500 by 256 1 of 4 by 128000 "
        "1 of 2 by 512000",
    ]


@pytest.mark.parametrize("config", [PERSISTENT, PACKED])
@pytest.mark.parametrize("seqlen_k", [0, 500])
def test_packed_sequences_are_one_batch_of_all_rows(program, monkeypatch, config, seqlen_k):
    """The stride of an extent of 1 is one that the encoder takes; an extent of no keys is 1."""
    monkeypatch.setenv("PACKED", "1")
    maps = asked(program, config, 3, 8, 4, 100, seqlen_k, 1)[1:4]
    assert [line.split(",")[0] for line in maps] == ["map of Q", "map of K", "map of V"]
    assert all(line.endswith(" 1 of 1 by 16") for line in maps)
    assert f" of {3 * 100} by " in maps[0]
    assert all(f" of {max(3 * seqlen_k, 1)} by " in line for line in maps[1:])


@pytest.mark.parametrize("config", [SM80, PERSISTENT, PACKED])
def test_uneven_sequences_have_a_list_first_and_no_more_ctas_than_tiles(
    program, monkeypatch, config
):
    """Whatever the longest may have. 16 heads of Q, 4 of K and V; 3 splits."""
    monkeypatch.setenv("PACKED", "1")
    monkeypatch.setenv("TOTAL", "700")
    for longest, num_splits in itertools.product((400, 700), (1, 3)):
        lines = asked(program, config, 5, 16, 4, longest, longest, num_splits)
        (listing,) = (i for i, line in enumerate(lines) if line.startswith("list"))
        (launch,) = (i for i, line in enumerate(lines) if line.startswith("launch"))
        n_queries = 16 if config is PACKED else 128
        assert lines[listing] == f"list tiles of {n_queries} queries, stream 0x77"
        assert listing < launch
        most = (700 + 5 * (n_queries - 1)) // n_queries * (4 if config is PACKED else 16)
        n_ctas = min(most * num_splits, 264 if config is PERSISTENT else 1 << 30)
        assert lines[launch].startswith(f"launch {n_ctas} x ")
        assert lines[-1] == "returned 0"
    monkeypatch.setenv("TOTAL", "2000")  # as many as 5 of the longest: there is nothing to list
    assert not any(
        line.startswith("list") for line in asked(program, config, 5, 16, 4, 400, 400, 1)
    )


def test_a_thread_that_has_not_used_cuda_gets_a_context_first(program, monkeypatch):
    """Pitfall 27: the first CUDA call of a thread.
    One that has a context keeps it, whoever made it current."""
    problem = (2, 8, 4, 10000, 500, 1)
    with_context = asked(program, PERSISTENT, *problem)
    monkeypatch.setenv("NO_CONTEXT", "1")
    row, first, *others = asked(program, PERSISTENT, *problem)
    assert first == "set device 0"
    assert [row, *others] == with_context
    assert others[-1] == "returned 0"


@pytest.mark.parametrize(("num_splits", "clusters"), [(1, 1), (4, 4), (16, 16), (17, 1)])
def test_a_cluster_merges_the_splits_of_a_tile(program, num_splits, clusters):
    """With packed heads: 16 of them and 4 queries are a tile of 64 rows."""
    lines = asked(program, PACKED, 3, 32, 2, 5, 4096, num_splits)
    row, *maps, launch, end = (line for line in lines if not line.startswith("merge"))
    assert row == "row 1 16"
    assert maps[0] == (
        "map of Q, BF16, swizzle 64B: 32 of 96 by 2 16 of 16 by 192 4 of 5 by 6144 1 of 2 by 3072 "
        "1 of 3 by 30720"
    )
    assert ("set non-portable clusters 1" in maps) == (clusters == 16)
    n_ctas = 2 * 2 * 3 * num_splits
    clustered = f", clusters of {clusters}" if clusters > 1 else ""
    assert launch == f"launch {n_ctas} x 384, 1024 bytes, stream 0x77, early 1{clustered}"
    assert end == "returned 0"


def test_drivers_without_early_launch_in_graphs(program, monkeypatch):
    monkeypatch.setenv("DRIVER_VERSION", "12020")
    launch = asked(program, PACKED, 3, 32, 2, 5, 4096, 4)[-2]
    assert launch.endswith("stream 0x77, clusters of 4")


def test_what_a_kernel_cannot_run_is_refused_by_its_row(program):
    refusal = asked(program, PACKED, 1, 65, 1, 1, 4096, 1)[-1]
    assert refusal.startswith("refused: its warpgroups pack the query heads of a head of k and v")
    assert asked(program, PERSISTENT, 1, 65, 1, 1, 4096, 1)[-1] == "returned 0"
    assert asked(program, PERSISTENT, 0, 8, 8, 100, 100, 1) == ["row 0 1", "returned 0"]


@pytest.mark.parametrize("config", [PERSISTENT, PACKED])
def test_without_rows_of_queries_nothing_is_launched(program, config):
    for batch, heads, heads_kv, seqlen_q, seqlen_k in itertools.product(
        (0, 2), (0, 4), (1, 2), (0, 5), (0, 9)
    ):
        lines = asked(program, config, batch, heads, heads_kv, seqlen_q, seqlen_k, 1)
        launched = [line for line in lines if line.startswith("launch")]
        assert lines[-1] == "returned 0"
        assert len(launched) == (batch * heads * seqlen_q > 0)


NUMBER = ["is it captured", "its number", "stream 1234"]
TAKE = ["640 bytes, stream 0x77: allocate", "timing 0: make an event"]
USE = ["event 0x55, stream 0x77: record"]
GIVE_BACK = ["event 0x55, stream 0x88: wait", "it, stream 0x88: free", "event 0x55: destroy"]


def relaxed(calls: list[str]) -> list[str]:
    return ["relaxed", *calls, "as before"]


def test_memory_that_lasts_is_freed_after_its_last_use(program):
    lines = asked(program, "lasting memory")
    assert lines == [*NUMBER, *relaxed(TAKE), *USE, *USE, *relaxed(GIVE_BACK)]


def test_no_memory_lasts_in_a_stream_that_captures(program, monkeypatch):
    monkeypatch.setenv("CAPTURED", "1")
    assert asked(program, "lasting memory") == NUMBER[:1]


def test_errors_of_lasting_memory_are_forgotten(program, monkeypatch):
    """A launch that follows would return them."""
    forget = ["forget the error"]
    for call, expected in {
        "its number": [NUMBER[0], "its number fails", *forget],
        "allocate": [*NUMBER, *relaxed([f"{TAKE[0]} fails", *forget])],
        "make an event": [
            *NUMBER,
            *relaxed([TAKE[0], f"{TAKE[1]} fails", "it, stream 0x77: free", *forget]),
        ],
    }.items():
        monkeypatch.setenv("FAILS", call)
        assert asked(program, "lasting memory") == expected


MADE = [
    "timing 0: make an event",
    "timing 0: make an event",
    "waits for the default stream 0: make a stream",
]
BESIDE = [
    "event 0x55, stream 0x77: record",
    "event 0x55, stream 0x44: wait",
    "work in 0x44",
    "event 0x55, stream 0x44: record",
    "event 0x55, stream 0x77: wait",
]
DESTROYED = ["event 0x55: destroy", "event 0x55: destroy", "stream 0x44: destroy"]


@pytest.mark.parametrize("first", ["", "5", "6"])
@pytest.mark.parametrize("second", ["", "5"])
def test_work_beside_a_stream_is_part_of_its_graph_alone(program, monkeypatch, first, second):
    """While the other stream is part of another graph, the work is in the caller's."""
    for name, graph in (("FIRST_IN", first), ("SECOND_IN", second)):
        if graph:
            monkeypatch.setenv(name, graph)
    work = BESIDE if second in ("", first) else ["work in 0x77"]
    lines = asked(program, "second stream")
    assert lines == [*relaxed(MADE), *work, *work, *DESTROYED]


def test_a_second_stream_that_is_not_made_is_an_error_of_the_call(program, monkeypatch):
    monkeypatch.setenv("FAILS", "make a stream")
    lines = asked(program, "second stream")
    assert lines == [*relaxed([*MADE[:2], f"{MADE[2]} fails"]), *DESTROYED[:2]]
