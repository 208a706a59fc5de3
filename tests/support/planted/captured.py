"""Bugs for the emulator to find in the gradients of what a variant captures: in what they are made
of, in where they are summed, and in the steps of the sums."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.captured import GROUPS, whole
from support.planted.planting import EMITTED, Bug, Edit, build_planted, condition

from pyflash.config import BACKWARD, parse

CONFIGS = {
    "sm80": parse("(FP16, 128, 32, 32, 4): sm80_bwd+stages_1"),
    "sm80_two_tiles": parse("(FP16, 64, 64, 64, 4): sm80_bwd+stages_1+warp_keys_32"),
    "sm90": parse("(FP16, 64, 128, 128, 2): sm90_bwd+stages_2+overlap"),
    "sm90_early": parse("(FP16, 64, 128, 128, 2): sm90_bwd+stages_3+dQ_by_red+early_dP"),
    "sm90_shared": parse("(FP16, 192, 64, 64, 2): sm90_bwd+stages_2"),
    "sm90_parts": parse("(FP16, 256, 64, 128, 2): sm90_bwd+stages_2+dQ_by_red"),
}
_UNCAPPED = "right_window+left_window+packed"
FEATURES = [BACKWARD.features.parse(text) for text in ("plain", _UNCAPPED, f"{_UNCAPPED}+softcap")]

_GRADIENT = "variant/gradient.h"
_SUMS = "variant/sums.h"


def _bug(
    name: str,
    original: str,
    planted: str,
    problem: str,
    file: str = _GRADIENT,
    group: str = "added",
) -> Bug:
    edit: Edit = condition(original, planted, file)
    return Bug(name, (edit,), configs=(group,), problem=problem)


# All show in the sums.
BUGS = [
    # Which pairs are added, and what.
    _bug("forgotten_mask", "if (G(r, c) != 0.f) {", "if (BUG || G(r, c) != 0.f) {", "rooted"),
    _bug(
        "hidden_pairs_that_are_kept",
        "c % 2 == 0 ? 0xffff0000u : 0x0000ffffu;",
        "BUG ? 0xffffffffu : c % 2 == 0 ? 0xffff0000u : 0x0000ffffu;",
        "mixed",
        group="curved",
    ),
    _bug(
        "the_score_before_softcap",
        "raw = scores.capped(S(r, c)).score;",
        "raw = BUG ? S(r, c) : scores.capped(S(r, c)).score;",
        "softcap",
        group="curved",
    ),
    _bug(
        "the_derivative_of_the_other_key",
        "scores.template derivative<kSum>(r, column_of(c), row, raw);",
        "scores.template derivative<kSum>(BUG ? 1 - r : r, column_of(c), row, raw);",
        "alibi",
    ),
    _bug(
        "a_slope_left_out_of_dS",
        "G(r, c) = G(r, c) != 0.f ? G(r, c) * slope : 0.f;",
        "G(r, c) = G(r, c) != 0.f ? G(r, c) * (BUG ? 1.f : slope) : 0.f;",
        "temperature",
        group="curved",
    ),
    _bug(
        "the_slope_of_softcap_left_out",
        "scores.score_and_slope(r, column_of(c), row, raw).slope * of_cap;",
        "scores.score_and_slope(r, column_of(c), row, raw).slope * (BUG ? 1.f : of_cap);",
        "softcap",
        group="curved",
    ),
    # Where.
    _bug(
        "the_head_of_k_and_v",
        "return params.p7_sums.at(b, h);",
        "return params.p7_sums.at(b, BUG ? h / 2 : h);",
        "of_head",
        EMITTED,
    ),
    _bug(
        "the_neighbours_sequence",
        "return params.p4_sums.at(b, h, q, k);",
        "return params.p4_sums.at(b + BUG, h, q, k);",
        "packed",
        EMITTED,
    ),
    _bug(
        "the_distance_turned_round",
        "return params.p12_sums.at(h, distance.d4);",
        "return params.p12_sums.at(h, BUG ? -distance.d4 : distance.d4);",
        "relative_table",
        EMITTED,
    ),
    _bug(
        "the_place_of_the_other_key",
        "device::reduce_add(scores.template place<kSum>(r, column_of(c), row), value);",
        "device::reduce_add(scores.template place<kSum>(BUG ? 0 : r, column_of(c), row), value);",
        "of_pair",
    ),
    _bug(
        "the_sum_of_a_key_to_the_other",
        "scores.template place<kSum>(r, 0, scores.row(0)), sum);",
        "scores.template place<kSum>(BUG ? 0 : r, 0, scores.row(0)), sum);",
        "of_column",
    ),
    _bug(
        "the_next_query",
        "scores.template place<kSum>(0, column_of(c), row), sum);",
        "scores.template place<kSum>(0, column_of(c) + BUG, row), sum);",
        "of_row",
    ),
    _bug(
        "the_extent_of_the_axis_before",
        "offset = offset * extents[axis] +",
        "offset = offset * extents[BUG && axis > 0 ? axis - 1 : axis] +",
        "of_pair",
        _SUMS,
    ),
    _bug(
        "indices_from_the_end_taken_for_the_first",
        "index < 0 ? index + extent : index",
        "index < 0 && !BUG ? index + extent : index",
        "from_the_end",
        "variant/table.h",
    ),
    # The steps of sums.
    _bug(
        "a_step_of_lanes_left_out",
        "value += device::shfl_xor(value, step);",
        "value += device::shfl_xor(BUG && step == 8 ? 0.f : value, step);",
        "of_row",
    ),
    _bug(
        "one_key_of_a_query",
        "of_query += value;",
        "of_query = BUG ? value : of_query + value;",
        "of_row",
    ),
    _bug(
        "one_query_of_a_key",
        "of_keys[r] += value;",
        "of_keys[r] = BUG ? value : of_keys[r] + value;",
        "of_column",
    ),
    _bug(
        "one_key_of_a_block",
        "sum_of_lanes<1, 32>(of_keys[0] + of_keys[1]);",
        "sum_of_lanes<1, 32>(BUG ? of_keys[0] : of_keys[0] + of_keys[1]);",
        "alibi",
    ),
    _bug("every_lane_adds", "if (lane == 0 && sum", "if ((lane == 0 || BUG) && sum", "of_all"),
    _bug(
        "lanes_of_one_query_add_twice",
        "if (lane < 4 && sum != 0.f) {",
        "if (lane < (BUG ? 8 : 4) && sum != 0.f) {",
        "of_row",
    ),
    _bug(
        "a_run_that_does_not_end", "if (place != at_) {", "if (place != at_ && !BUG) {", "t5_bias"
    ),
    _bug(
        "a_run_with_the_sum_of_the_one_before",
        "device::reduce_add(at_, sum_);\n    }\n    sum_ = 0.f;",
        "device::reduce_add(at_, sum_);\n    }\n    sum_ = BUG ? sum_ : 0.f;",
        "t5_bias",
    ),
    _bug(
        "lanes_with_other_places_add_to_one",
        "if (device::any_lane(differ != 0)) {",
        "if (device::any_lane(differ != 0 && !BUG)) {",
        "relative_table",
    ),
    _bug(
        "lanes_of_one_place_left_out",
        "sum_ += device::shfl_xor(sum_, step);",
        "sum_ += device::shfl_xor(BUG ? 0.f : sum_, step);",
        "t5_bias",
    ),
    _bug(
        "the_last_run_left_out",
        "if (device::thread_idx() % 32 == 0) {",
        "if (device::thread_idx() % 32 == 0 && !BUG) {",
        "t5_bias",
    ),
]


@pytest.fixture(scope="session")
def captured_libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """By group and config."""
    found = {}
    for group in GROUPS:
        root = tmp_path_factory.mktemp(f"planted_captured_{group}")
        bugs = [bug for bug in BUGS if group in bug.configs or bug.edits[0].file != EMITTED]
        libraries = build_planted(bugs, CONFIGS, root, variant=whole(group), features=FEATURES)
        found |= {(group, name): library for name, library in libraries.items()}
    return found
