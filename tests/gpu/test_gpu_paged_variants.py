"""`attention_paged` with a variant on a GPU: kernels of both families beside fp64, with NaN in rows
that hold no key; compiled at a call; in graphs."""

from __future__ import annotations

import pytest
import torch
from support.paged_variants import OPTIONS, PROBLEMS, TEXTS, PagedCall

import pyflash
from pyflash.codegen.build import build_with_variants, nearest_archs
from pyflash.config import parse
from pyflash.op import library
from pyflash.variant import parse as parse_variant

pytestmark = pytest.mark.gpu

CONFIGS = {
    "sm80": "(FP16, 64, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    "sm90": "(FP16, 64, 128, 64, 2): sm90+stages_2+overlap+persistent+rescale_threshold",
    "sm90_packed_heads": "(FP16, 64, 64, 32, 1): sm90+stages_1+overlap+persistent"
    "+rescale_threshold+pack_gqa",
}
_EVERY = "right_window+left_window+predicated_head_dim+softcap+sinks+paged_kv"


class Kernels:
    """Those of a config, one for each variant: all in one kernel would compile for minutes."""

    def __init__(self, text: str) -> None:
        major, minor = torch.cuda.get_device_capability()
        archs = nearest_archs([10 * major + minor])
        config = parse(text)
        if reasons := config.violations(archs[0]):
            pytest.skip("; ".join(sentence for _, sentence in reasons))
        self.config = config.canonical().short_form()
        normals = [parse_variant(text).normal for text in TEXTS.values()]
        features = [f"{_EVERY}+gathered_kv", _EVERY]
        library.load(build_with_variants(normals, [config], archs, features))

    def check(self, name: str, problem: str, **options) -> None:
        call = PagedCall(name, PROBLEMS[problem], device="cuda", options=options)
        given = {n: x.cuda() if isinstance(x, torch.Tensor) else x for n, x in options.items()}
        results = pyflash.attention_paged(
            *call.inputs, **call.packing, variant=call.text, tensors=call.tensors, return_lse=True,
            config=self.config, **given,
        )  # fmt: skip
        call.check(*results, **options)


@pytest.fixture(scope="module", params=CONFIGS)
def kernels(request) -> Kernels:
    return Kernels(CONFIGS[request.param])


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", TEXTS)
def test_it_is_its_formula(kernels, name, problem):
    kernels.check(name, problem)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("problem", ["packed", "one_query", "pages_of_7"])
@pytest.mark.parametrize("name", TEXTS)
def test_it_composes_with_options(kernels, name, problem, option):
    kernels.check(name, problem, **OPTIONS[option])


@pytest.mark.parametrize("problem", ["one_query", "pages_of_7"])
def test_a_call_compiles_its_kernel(problem):
    call = PagedCall("causal", PROBLEMS[problem], device="cuda")
    options = {"variant": call.text, "return_lse": True}
    call.check(*pyflash.attention_paged(*call.inputs, **call.packing, compile=True, **options))


def test_a_graph_serves_other_lengths():
    call = PagedCall("sinks_and_window", PROBLEMS["one_query"], device="cuda")
    options = {"variant": call.text, "tensors": call.tensors, "compile": True}
    lengths = call.seqlens_k.clone()
    call.seqlens_k.fill_(1)  # so that a graph that kept lengths or lists would be wrong
    pyflash.attention_paged(*call.inputs, **options, return_lse=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = pyflash.attention_paged(*call.inputs, **options, return_lse=True)
    call.seqlens_k.copy_(lengths)
    graph.replay()
    call.check(*results)
