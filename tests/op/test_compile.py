"""The ops under torch.compile and torch.export."""

import pytest
import torch
from support import aoti
from support.problems import NON_CONTIGUOUS, Packed, Shape, make_inputs, make_packed

from pyflash import FlashForwardKernelConfig, attention, attention_varlen

GQA = Shape("gqa", 2, 37, 71, 6, heads_kv=2)
PACKED = Packed("ragged", (31, 0, 67), (27, 9, 41), 4, 2)
OTHERS_PACKED = [
    Packed("b", (5, 40, 3, 0), (70, 6, 50, 9), 4, 2),
    Packed("c", (90, 7), (7, 60), 4, 2),
]


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch.compiler.reset()


def leaves_of(shape, d_head=16):
    return [x.detach().requires_grad_() for x in make_inputs(shape, torch.float16, d_head)]


def packed_leaves_of(packed, d_head=16):
    q, k, v, *lengths = make_packed(packed, torch.float16, d_head)
    return [x.detach().requires_grad_() for x in (q, k, v)], lengths


def check_with_gradients(actual, expected, leaves):
    """That two functions of `leaves` agree, and their gradients."""
    (a, *others_a), (b, *others_b) = actual(), expected()
    upstream = torch.randn_like(b)
    gradients = [torch.autograd.grad(x, leaves, upstream) for x in (a, b)]
    for x, y in zip((a, *others_a, *gradients[0]), (b, *others_b, *gradients[1]), strict=True):
        torch.testing.assert_close(x, y)


# torch.compile


def model(q, k, v):
    out, lse = attention(q * 2, k, v, causal=True, return_lse=True)
    return out + 1, lse


def packed_model(q, k, v, *lengths):
    out, lse = attention_varlen(q * 2, k, v, *lengths, causal=True, return_lse=True)
    return out + 1, lse


@pytest.mark.parametrize("shape", [GQA, *NON_CONTIGUOUS], ids=str)
def test_compiles_without_a_graph_break(shape):
    """Pitfall 17: graph break under torch.compile."""
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    leaves = leaves_of(shape)
    check_with_gradients(lambda: compiled(*leaves), lambda: model(*leaves), leaves)


def test_a_config_compiles_without_a_graph_break():
    """Pitfall 17: graph break under torch.compile."""
    config = FlashForwardKernelConfig.parse("(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles")

    def model(q, k, v):
        return attention(q * 2, k, v, config=config)

    inputs = make_inputs(GQA, torch.float16, 16)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*inputs), model(*inputs))


def test_inductor_compiles_without_a_graph_break():
    """Pitfall 17: graph break under torch.compile."""
    compiled = torch.compile(model, fullgraph=True, backend="inductor")
    for shape in (GQA, Shape("packed_qkv", 2, 31, 31, 3, "packed")):
        leaves = leaves_of(shape)
        check_with_gradients(
            lambda leaves=leaves: compiled(*leaves), lambda leaves=leaves: model(*leaves), leaves
        )


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_once_for_all_lengths(backend):
    """Pitfall 17: graph break under torch.compile. Lengths, batches and heads are symbols."""
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    compiled(*leaves_of(Shape("first", 2, 40, 50, 4, heads_kv=2)))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seqlen_q, seqlen_k in ((33, 97), (128, 128), (201, 7)):
            leaves = leaves_of(Shape("next", 3, seqlen_q, seqlen_k, 6, heads_kv=3))
            check_with_gradients(
                lambda leaves=leaves: compiled(*leaves),
                lambda leaves=leaves: model(*leaves),
                leaves,
            )


def test_compiles_once_for_all_packed_sequences():
    """Pitfall 17: graph break under torch.compile. Numbers of sequences and the largest lengths are
    symbols too."""
    compiled = torch.compile(packed_model, fullgraph=True, dynamic=True, backend="aot_eager")
    # No two sizes are the same: torch would take them for one.
    leaves, lengths = packed_leaves_of(Packed("first", (31, 0, 67, 5), (27, 9, 41, 3), 6, 2))
    compiled(*leaves, *lengths)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for packed in OTHERS_PACKED:
            leaves, lengths = packed_leaves_of(packed)
            check_with_gradients(
                lambda x=(*leaves, *lengths): compiled(*x),
                lambda x=(*leaves, *lengths): packed_model(*x),
                leaves,
            )


def test_largest_lengths_may_come_from_the_data():
    def longest(x):
        return x.diff().max().item()

    def data_dependent(q, k, v, starts_q, starts_k):
        return packed_model(q, k, v, starts_q, starts_k, longest(starts_q), longest(starts_k))

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(data_dependent, fullgraph=True, backend="aot_eager")
        for packed in (PACKED, OTHERS_PACKED[0]):
            leaves, lengths = packed_leaves_of(packed)
            check_with_gradients(
                lambda leaves=leaves, starts=lengths[:2]: compiled(*leaves, *starts),
                lambda leaves=leaves, lengths=lengths: packed_model(*leaves, *lengths),
                leaves,
            )


def test_refusals_reach_the_caller_of_a_compiled_function():
    def wrong(q, k, v):
        return attention(q, k, v, window_left=-7)

    compiled = torch.compile(wrong, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="pyflash: window_left = -7: expected"):
        compiled(*make_inputs(GQA, torch.float16, 16))


# torch.export


class Model(torch.nn.Module):
    def forward(self, q, k, v):
        return model(q, k, v)


class PackedModel(torch.nn.Module):
    def forward(self, q, k, v, starts_q, starts_k):
        return packed_model(q, k, v, starts_q, starts_k, 100, 100)


def check_export(module, inputs, dynamic_shapes, others):
    exported = torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes).module()
    for arguments in (inputs, *others):
        for a, b in zip(exported(*arguments), module(*arguments), strict=True):
            assert torch.equal(a, b)


def test_exports():
    check_export(Model(), make_inputs(GQA, torch.float16, 16), None, [])


def test_exports_with_dynamic_shapes():
    dim = torch.export.Dim
    of_q = {0: dim("batch", max=100), 1: dim("seqlen_q", max=1000)}
    of_kv = {0: of_q[0], 1: dim("seqlen_k", max=1000)}
    other = make_inputs(Shape("other", 3, 70, 31, 6, heads_kv=2), torch.float16, 16)
    inputs = make_inputs(GQA, torch.float16, 16)
    check_export(Model(), inputs, (of_q, of_kv, of_kv), [other])


def test_exports_packed_sequences():
    inputs, *others = (
        make_packed(packed, torch.float16, 16)[:5] for packed in (PACKED, *OTHERS_PACKED)
    )
    check_export(PackedModel(), inputs, ({0: torch.export.Dim.AUTO},) * 5, others)


# AOTInductor


def test_a_package_of_aotinductor_runs_in_another_process(tmp_path):
    for action in ("compile", "run"):
        result = aoti.run(action, tmp_path / "model.pt2")
        assert result.returncode == 0, result.stderr
    assert "seqlen 70: largest difference" in result.stdout
