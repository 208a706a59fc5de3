"""Bugs for the emulator to find in what kernels do with caches of e4m3."""

from __future__ import annotations

from support.planted.planting import Bug, condition, found, without

from pyflash.config import parse

_KERNEL = "sm80/forward/fp8.h"

CONFIGS = {
    "decode": parse(
        "(BF16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax+stages_2"
        "+rescale_threshold"
    ),
    "wide": parse("(FP16, 96, 64, 128, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"),
}


def _bug(name: str, *edits, finds=(), problem="few") -> Bug:
    return Bug(name, edits, tuple(finds), configs=("decode",), problem=problem)


# A bug that finds nothing shows in the result.
BUGS = [
    _bug("no_scale_of_K", without("acc_S(i) *= k_scale;", _KERNEL)),
    _bug(
        "the_scale_of_another_head",
        condition(
            "scales.v + head_kv * scales.v_stride",
            "scales.v + (BUG ? 0 : head_kv) * scales.v_stride",
            _KERNEL,
        ),
    ),
    _bug(
        "Q_in_its_own_order",
        condition(
            "k * kMmaK + 4 * (lane % 4) + 2 * (i / 2);",
            "BUG ? k * kMmaK + 2 * (lane % 4) + 8 * (i / 2) : "
            "k * kMmaK + 4 * (lane % 4) + 2 * (i / 2);",
            _KERNEL,
        ),
    ),
    _bug(
        "bytes_of_V_in_their_order",
        condition(
            "device::swap_inner_bytes(words[i]);",
            "BUG ? words[i] : device::swap_inner_bytes(words[i]);",
            _KERNEL,
        ),
    ),
    _bug(
        "a_group_too_many_in_flight",
        condition(
            "device::async_wait<kStages - 2>();",
            "if (BUG) { device::async_wait<kStages - 1>(); } else { "
            "device::async_wait<kStages - 2>(); }",
            _KERNEL,
        ),
        finds=[found("in_flight_read", "K_s2r")],
    ),
    _bug(
        "no_barrier_before_a_stage_is_filled",
        without("sync();", _KERNEL),
        problem="many",
        finds=[found("race", "K_g2s", "K_s2r")],
    ),
    _bug(
        "parts_before_the_others_are_done",
        without("device::sync_threads();  // every warp has read Q, K and V", _KERNEL),
        finds=[found("race", "part_r2s")],
    ),
    _bug(
        "parts_before_they_are_there",
        without("device::sync_threads();  // the parts are visible", _KERNEL),
        finds=[found("race", "part_r2s", "part_s2r")],
    ),
    _bug(
        "entries_that_nobody_attends",
        condition(
            "n_block >= begin_block && keys.begin < key + kStep && key < keys.end",
            "BUG || (n_block >= begin_block && keys.begin < key + kStep && key < keys.end)",
            _KERNEL,
        ),
        finds=[found("out_of_bounds", "K_g2s", memory="block_table")],
    ),
    _bug(
        "keys_before_the_window",
        condition(
            "has_page && keys.begin <= key && key < keys.end",
            "has_page && (BUG || keys.begin <= key) && key < keys.end",
            _KERNEL,
        ),
    ),
    _bug(
        "warps_weigh_the_same",
        condition(
            "weights[w][r] *= inverse;",
            "weights[w][r] = BUG ? 1.f / kNWarps : weights[w][r] * inverse;",
            _KERNEL,
        ),
    ),
]
