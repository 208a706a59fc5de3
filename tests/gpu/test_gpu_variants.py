"""Kernels with a variant on a GPU: every named one, in both forward families, against fp64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.variants import values_of
from torch.nn.attention.flex_attention import create_block_mask

import pyflash
from pyflash.codegen.build import build_with_variants, nearest_archs
from pyflash.config import DType, parse
from pyflash.config.variant_needs import VariantNeeds
from pyflash.op import library
from pyflash.op.variants.jit import default_config
from pyflash.op.variants.reference import expect
from pyflash.op.variants.selection import select
from pyflash.variant import parse as parse_variant
from pyflash.variant.library import named, names
from pyflash.variant.needs import needs_of
from pyflash.variant.tiles import Problem

pytestmark = pytest.mark.gpu

SM80 = "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
# Equal lengths, more keys than queries, fewer, one query.
PROBLEMS = {
    "square": Problem(300, 300, 2, 4),
    "more keys": Problem(130, 517, 1, 4),
    "fewer keys": Problem(390, 140, 2, 2),
    "one query": Problem(1, 700, 3, 4),
}
BITS = VariantNeeds(bits=True)
OF_BITS = [name for name in names() if needs_of(named(name).variant) == BITS]


@pytest.fixture(scope="module")
def configs() -> dict[str, str]:
    """By family, a config that is built with every named variant."""
    major, minor = torch.cuda.get_device_capability()
    archs = nearest_archs([10 * major + minor])
    own = default_config(DType.FP16, 64, archs[0])
    chosen = {str(config.family): config for config in (own, parse(SM80))}
    variants = [named(name).variant for name in names()]
    library.load(build_with_variants(variants, chosen.values(), archs))
    return {family: config.canonical().short_form() for family, config in chosen.items()}


LONG = Problem(400, 25000, 1, 2)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("family", ["sm80_forward", "sm90_forward"])
@pytest.mark.parametrize("name", names())
def test_it_is_its_formula(configs, name, family, problem):
    check_formula(configs, name, family, PROBLEMS[problem])


@pytest.fixture(scope="module")
def config_for_few_keys() -> dict[str, str]:
    """By family, that of masks as bits in short sequences, which is built with all of these."""
    major, minor = torch.cuda.get_device_capability()
    archs = nearest_archs([10 * major + minor])
    own = default_config(DType.FP16, 64, archs[0], BITS, few_keys=True)
    library.load(build_with_variants([named(name).variant for name in OF_BITS], [own], archs))
    return {str(own.family): own.canonical().short_form()}


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", OF_BITS)
def test_masks_as_bits_are_their_formulas_in_tiles_for_few_keys(config_for_few_keys, name, problem):
    check_formula(config_for_few_keys, name, "sm90_forward", PROBLEMS[problem])


FEW = PROBLEMS | {"few queries": Problem(7, 700, 2, 4), "many keys": Problem(1, 25000, 1, 2)}


@pytest.fixture(scope="module")
def config_for_few_queries() -> dict[str, str]:
    major, minor = torch.cuda.get_device_capability()
    archs = nearest_archs([10 * major + minor])
    own = default_config(DType.FP16, 64, archs[0], few_queries=True)
    library.load(build_with_variants([named(name).variant for name in names()], [own], archs))
    return {str(own.family): own.canonical().short_form()}


@pytest.mark.parametrize("problem", FEW)
@pytest.mark.parametrize("name", names())
def test_it_is_its_formula_where_queries_are_few(config_for_few_queries, name, problem):
    check_formula(config_for_few_queries, name, "sm90_forward", FEW[problem])


@pytest.mark.parametrize(
    "variant", ["causal", "of_end: s + sin(0.1 * (k_len - k)) where k % 7 < 5"]
)
def test_few_queries_of_many_keys_are_split(variant):
    """Into as many parts as `select` says."""
    q = torch.randn(1, 1, 8, 64, device="cuda").half()
    k, v = torch.randn(2, 1, 20000, 2, 64, device="cuda").half()
    out, lse = pyflash.attention(q, k, v, variant=variant, return_lse=True, compile=True)
    expect(q, k, v, variant=variant).check(out, lse)
    problem = pyflash.Problem(
        batch=1, heads_q=8, heads_kv=2, seqlen_q=1, seqlen_k=20000, d_head=64, dtype="FP16"
    )
    selection = select(problem, variant)
    assert selection.num_splits > 1
    if torch.cuda.get_device_capability()[0] == 9:
        assert selection.config.pack_gqa
    options = {"config": str(selection.config), "num_splits": selection.num_splits}
    assert torch.equal(out, pyflash.attention(q, k, v, variant=variant, **options))


def check_formula(configs, name, family, at):
    if family not in configs:
        pytest.skip(f"no default config is of {family} here")
    if name == "tree":  # whose ancestors are the bits of a number
        at = replace(at, q_len=min(at.q_len, 60), k_len=min(at.k_len, 62))
    torch.manual_seed(len(name))
    heads_kv = at.heads // 2
    sizes = ((at.q_len, at.heads), (at.k_len, heads_kv), (at.k_len, heads_kv))
    inputs = [torch.randn(at.batch, *size, 64, device="cuda").half() for size in sizes]
    tensors = {
        name: x.cuda() if isinstance(x, torch.Tensor) else x
        for name, x in values_of(name, at).items()
    }
    out, lse = pyflash.attention(
        *inputs, variant=name, tensors=tensors, config=configs[family], return_lse=True
    )
    expect(*inputs, variant=name, tensors=tensors).check(out, lse)
    again = pyflash.attention(*inputs, variant=name, tensors=tensors, config=configs[family])
    assert torch.equal(out, again)


@pytest.mark.parametrize("family", ["sm80_forward", "sm90_forward"])
@pytest.mark.parametrize("name", ["causal", "window", "documents", "global_window", "chunked"])
def test_long_lists(configs, name, family):
    """Lists of more blocks than a warp writes alone, of tiles with neighbouring ones and others."""
    check_formula(configs, name, family, LONG)


OPAQUE = {
    "bools": "bools(m: bool[2]): s where m[q, k]",
    "bools_of_batches": "bools_of_batches(m: bool[3]): s where m[b, q, k] & (k <= q + 40)",
    "bools_of_heads": "bools_of_heads(m: bool[3]): s where m[h, q, k]",
    "computed": "computed: s where (q * 31 + k * 5) % 7 < 3",
    "biased": "biased(a: bf16[4], m: bool[2]): s + a[b, h, q, k] where m[q, k]",
}
LENGTHS = [(128, 128), (300, 333), (130, 517), (1, 700), (1000, 1024), (515, 3000), (200, 25000)]


@pytest.fixture(scope="module", params=[64, 128])
def opaque_config(request):
    """A config of SM90 that is built with all opaque masks."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("bits of masks are of kernels of sm_90")
    archs = nearest_archs([90])
    config = default_config(DType.FP16, request.param, archs[0])
    variants = [parse_variant(text) for text in OPAQUE.values()]
    library.load(build_with_variants(variants, [config], archs))
    return config


def opaque_problem(text: str, q_len: int, k_len: int, d_head: int):
    """Of 2 batches and 4 heads: q, k, v, and what is captured. Nothing is shown to the first 64
    queries, nor of keys 128 to 255; of keys 256 to 383 everything is to the others."""
    torch.manual_seed(q_len + k_len)
    sizes = ((q_len, 4), (k_len, 2), (k_len, 2))
    qkv = [torch.randn(2, *size, d_head, device="cuda").half() for size in sizes]
    tensors = {}
    for param in parse_variant(text).params:
        if param.name == "a":
            tensors["a"] = torch.randn(2, 4, q_len, k_len, device="cuda").bfloat16()
            continue
        shape = {"b": (2,), "h": (4,), "q": ()}[text.partition("m[")[2][0]]
        mask = torch.rand(*shape, q_len, k_len, device="cuda") < 0.6
        mask[..., 256:384] = True
        mask[..., :64, :] = mask[..., 128:256] = False
        tensors["m"] = mask
    return qkv, tensors


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", OPAQUE)
def test_opaque_masks_are_bits(opaque_config, name, lengths):
    variant = parse_variant(OPAQUE[name])
    qkv, tensors = opaque_problem(OPAQUE[name], *lengths, opaque_config.d_head)
    config = opaque_config.canonical().short_form()
    given = {"variant": variant, "tensors": tensors}
    out, lse = pyflash.attention(*qkv, **given, config=config, return_lse=True)
    expect(*qkv, **given).check(out, lse)


@pytest.mark.parametrize("name", ["bools", "computed"])
def test_bits_are_what_kernels_evaluate(opaque_config, name):
    """A single head has no bits, since they would serve once."""
    variant = parse_variant(OPAQUE[name])
    qkv, tensors = opaque_problem(OPAQUE[name], 1000, 1024, opaque_config.d_head)
    config = opaque_config.canonical().short_form()
    given = {"variant": variant, "tensors": tensors, "config": config, "num_splits": 1}
    q, k, v = qkv
    out = pyflash.attention(q, k, v, **given)
    of_one = pyflash.attention(q[1:, :, 2:3], k[1:, :, 1:], v[1:, :, 1:], **given)
    assert torch.equal(of_one, out[1:, :, 2:3])


def test_flex_attention_compiles_what_it_needs():
    q, k, v = torch.randn(3, 1, 4, 333, 64, device="cuda").half()
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], device="cuda")

    def score_mod(score, b, h, i, j):
        return score + slopes[h] * (j - i)

    out = pyflash.flex_attention(q, k, v, score_mod)
    inputs = [x.transpose(1, 2) for x in (q, k, v)]
    tensors = {"slope": slopes}
    variant = "alibi(slope: f32[1]): s + slope[h] * (k - q)"
    expected = expect(*inputs, variant=variant, tensors=tensors)
    assert ((out.transpose(1, 2).double() - expected.out).abs() <= expected.bound).all()


def test_flex_attention_with_an_opaque_mask_that_all_heads_share():
    q, k, v = torch.randn(3, 2, 4, 700, 64, device="cuda").half()

    def near(b, h, i, j):
        return ((i // 28 - j // 28).abs() <= 3) & ((i % 28 - j % 28).abs() <= 3)

    mask = create_block_mask(near, None, None, 700, 700, "cuda")
    out = pyflash.flex_attention(q, k, v, block_mask=mask)
    i = torch.arange(700, device="cuda")
    shown = near(0, 0, i[:, None], i[None, :])
    wide = (x.float() for x in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=shown)
    torch.testing.assert_close(out.float(), expected, rtol=4e-3, atol=4e-3)
