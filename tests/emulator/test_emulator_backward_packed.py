"""The SM90 backward of packed sequences on the emulated machine: gradients beside fp64, zeros where
nothing is attended, and nothing of a neighbour's rows."""

import pytest
import torch
from support.emulated_backward import CONFIGS, LIMITS, Shape, make_call, wrong
from support.emulated_packed import Packed, make_packed_call, wrong_packed

import pyflash
from pyflash.emulator import ORDERS

PROBLEMS = {
    "whole_blocks": Packed(1, 1, (128, 256), (128, 256)),
    "ragged": Packed(2, 1, (70, 1, 133, 64), (150, 40, 133, 129)),
    "causal": Packed(2, 2, (70, 1, 133), (150, 40, 133), options={"causal": True}),
    "one_after_a_block": Packed(1, 1, (65, 129, 127, 1), (129, 65, 1, 127)),
    "empty_ones": Packed(2, 1, (0, 60, 0, 37, 90, 0), (30, 0, 0, 37, 140, 50)),
    "narrow_windows": Packed(2, 2, (100, 90), (140, 90), 8, {"window_left": 30, "window_right": 4}),
    "chunks": Packed(1, 1, (100, 90), (140, 90), options={"attention_chunk": 48}),
    "softcap": Packed(2, 1, (100, 90), (140, 90), options={"softcap": 1.5, "causal": True}),
    # Tiles of many lengths, so that none starts at its place.
    "shortest_first": Packed(2, 1, (1, 40, 90, 200), (10, 130, 150, 260), options={"causal": True}),
    "rows_of_none": Packed(4, 2, (70, 33), (40, 129), 8, before=5, behind=70),
    # More heads than have sums of dQ at a time.
    "many_heads": Packed(5, 5, (70, 0, 133), (150, 40, 129)),
    "many_groups": Packed(10, 5, (70, 1, 133), (150, 40, 129), options={"causal": True}),
    "slopes_of_sequences": Packed(
        2, 2, (100, 90), (140, 90), options={"alibi_slopes": torch.tensor([[0.5, 0.1], [0.2, 0.7]])}
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("config", CONFIGS)
def test_gradients(config: str, name: str) -> None:
    key = CONFIGS[config]
    order = ORDERS[(list(PROBLEMS).index(name) + list(CONFIGS).index(config)) % len(ORDERS)]
    call = make_packed_call(key, PROBLEMS[name])
    # A CTA for all heads of a group; below, a cluster that divides them.
    *gradients, report = pyflash.emulate_backward_varlen(
        *call.inputs, key, grad_lse=call.grad_lse, order=order, resident_ctas=1,
        **PROBLEMS[name].options,
    )  # fmt: skip
    report.check()
    assert report.completed
    assert wrong_packed(call, tuple(gradients), LIMITS[key.dtype]) == {}


# With whether dQ is summed in one order.
SLICED = {
    "packed": (Packed(5, 5, (70, 0, 133), (150, 40, 129)), False),
    "packed_in_order": (Packed(5, 5, (70, 0, 133), (150, 40, 129), options={"causal": True}), True),
    "slopes": (PROBLEMS["slopes_of_sequences"], False),
    "rows_of_none": (Packed(3, 3, (70, 33), (40, 129), 8, before=5, behind=70), True),
    "groups": (Packed(6, 3, (70, 33), (40, 129), 8), True),
    "batches": (Shape(2, 3, 3, 97, 130), True),
    "batches_causal": (Shape(3, 2, 2, 97, 130, options={"causal": True}), True),
    "batches_capped": (Shape(2, 3, 3, 97, 130, options={"softcap": 5.0}), True),
    "window": (
        Packed(3, 3, (70, 33), (40, 129), options={"window_left": 30, "window_right": 5}),
        False,
    ),
    "batches_of_groups": (
        Shape(2, 4, 2, 97, 130, options={"alibi_slopes": torch.tensor([0.1, 0.5, 0.2, 0.7])}),
        True,
    ),
}


@pytest.mark.parametrize("name", SLICED)
@pytest.mark.parametrize("config", ["wide", "narrow_in_order", "column_parts"])
def test_slices_of_heads_are_problems_in_two_places_by_turns(config: str, name: str) -> None:
    problem, in_order = SLICED[name]
    key = CONFIGS[config]
    packed = isinstance(problem, Packed)
    call = (make_packed_call if packed else make_call)(key, problem)
    emulate = pyflash.emulate_backward_varlen if packed else pyflash.emulate_backward
    found = []
    for resident_ctas in (1, 1000):
        *gradients, report = emulate(
            *call.inputs, key, grad_lse=call.grad_lse, order=ORDERS[2], deterministic=in_order,
            resident_ctas=resident_ctas, **problem.options,
        )  # fmt: skip
        report.check()
        assert report.completed
        if packed:
            assert wrong_packed(call, tuple(gradients), LIMITS[key.dtype]) == {}
        else:
            assert wrong(key, problem, call, tuple(gradients)) == {}
        found.append((gradients, report))
    (of_slices, first), (of_all, whole) = found
    # The report is that of the first slice, which has one head of K and V of each batch.
    group = problem.heads // problem.heads_kv
    assert whole.n_ctas in (first.n_ctas * problem.heads_kv * n for n in (1, group))
    if in_order and group == 1:  # CTAs that are a cluster add in an order of their own
        assert all(torch.equal(a, b) for a, b in zip(of_slices, of_all, strict=True))


# Problems in which several heads share keys: the CTAs of a cluster divide these heads.
OF_GROUPS = [name for name, packed in PROBLEMS.items() if packed.heads > packed.heads_kv]


@pytest.mark.parametrize("deterministic", [False, True], ids=["any_order", "deterministic"])
@pytest.mark.parametrize("name", OF_GROUPS)
@pytest.mark.parametrize("config", CONFIGS)
def test_clusters_that_divide_the_heads_of_a_group(
    config: str, name: str, deterministic: bool
) -> None:
    key = CONFIGS[config]
    call = make_packed_call(key, PROBLEMS[name])
    at = OF_GROUPS.index(name) + list(CONFIGS).index(config)
    *gradients, report = pyflash.emulate_backward_varlen(
        *call.inputs, key, grad_lse=call.grad_lse, order=ORDERS[at % len(ORDERS)],
        deterministic=deterministic, **PROBLEMS[name].options,
    )  # fmt: skip
    report.check()
    assert wrong_packed(call, tuple(gradients), LIMITS[key.dtype]) == {}


@pytest.mark.parametrize("name", PROBLEMS)
def test_deterministic_gradients(name: str) -> None:
    key = list(CONFIGS.values())[list(PROBLEMS).index(name) % len(CONFIGS)]
    call = make_packed_call(key, PROBLEMS[name])
    found = []
    for order in ORDERS:
        *gradients, report = pyflash.emulate_backward_varlen(
            *call.inputs, key, grad_lse=call.grad_lse, order=order, deterministic=True,
            **PROBLEMS[name].options,
        )  # fmt: skip
        report.check()
        assert wrong_packed(call, tuple(gradients), LIMITS[key.dtype]) == {}
        found.append(gradients)
    for gradients in found[1:]:
        for a, b in zip(gradients, found[0], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("nan_sequence", range(3))
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("config", CONFIGS)
def test_a_neighbour_of_nan_changes_nothing(config: str, causal: bool, nan_sequence: int) -> None:
    """Its rows lie in the same blocks of memory, before and behind; sums of the next heads in those
    of the ones before."""
    key = CONFIGS[config]
    heads = (2, 1) if causal else (3, 3)
    packed = Packed(
        *heads, (70, 90, 133), (150, 70, 133), 0, {"causal": causal}, nan_sequence=nan_sequence
    )
    call = make_packed_call(key, packed)
    *gradients, report = pyflash.emulate_backward_varlen(
        *call.inputs, key, grad_lse=call.grad_lse, resident_ctas=1, causal=causal
    )
    report.check()
    assert wrong_packed(call, tuple(gradients), LIMITS[key.dtype]) == {}


@pytest.mark.parametrize("deterministic", [False, True], ids=["any_order", "deterministic"])
@pytest.mark.parametrize("kv", [False, True], ids=["of_q", "of_k"])
def test_starts_that_do_not_ascend_stay_within_the_tensors(kv: bool, deterministic: bool) -> None:
    """As on a GPU, where their values are not checked: gradients are wrong, accesses are not, and
    nobody waits for ever."""
    key = CONFIGS["narrow"]
    call = make_packed_call(key, Packed(1, 1, (70, 90, 133), (150, 70, 133)))
    inputs = list(call.inputs)
    for starts in ([0, 200, 100, 293], [-5, 500, 3, 1 << 30], [293, 100, 50, 0]):
        inputs[6 + kv] = torch.tensor(starts, dtype=torch.int32)
        *_, report = pyflash.emulate_backward_varlen(
            *inputs, key, grad_lse=call.grad_lse, deterministic=deterministic
        )
        kinds = {finding.kind for finding in report.findings}
        assert kinds <= {"not_written", "written_twice"}, report.findings
        assert report.completed


def test_results_of_another_call_are_refused_in_words() -> None:
    key = CONFIGS["narrow"]
    call = make_packed_call(key, Packed(2, 1, (70, 90), (150, 70)))
    grad_out, out, lse, *rest = call.inputs
    for inputs, says in (
        ((grad_out, out, lse[None]), r"lse has shape \(1, 2, 160\): expected \(2, 160\), \(heads"),
        ((grad_out[1:], out, lse), "grad_out has shape .* expected .* as q"),
        ((grad_out, out[None], lse), r"out has shape .*: expected 3 dimensions, \(total, heads"),
    ):
        with pytest.raises(ValueError, match=says):
            pyflash.emulate_backward_varlen(*inputs, *rest, key)
