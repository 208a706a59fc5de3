"""Kernels of every kind under compute-sanitizer: no stray access, no race in shared memory."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.gpu_calls import CONFIGS, built_for
from support.invariant import build_invariant

from pyflash.codegen.build import build_with_variants, nearest_archs
from pyflash.config import FAMILIES, DType, KernelConfig
from pyflash.config.backward import BackwardFeatures
from pyflash.op.variants.jit import default_config, default_gradient_config
from pyflash.variant import Variant, parse
from pyflash.variant.library import named
from pyflash.variant.needs import needs_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not shutil.which("compute-sanitizer"), reason="needs compute-sanitizer on the PATH"
    ),
]

ROOT = Path(__file__).resolve().parents[2]

HEAD = """
import sys
import torch
from pyflash import attention, attention_paged, attention_varlen
from pyflash.config import parse
from pyflash.op import reference
def randn(*size):
    return torch.randn(size, device="cuda", dtype=dtype)
# References are computed on the CPU, so that the tool watches pyflash's kernels alone.
def on_cpu(values):
    return [x.cpu() for x in values]
def check(out, *inputs, lse, **options):
    options = {n: x.cpu() if isinstance(x, torch.Tensor) else x for n, x in options.items()}
    reference.check(out.cpu(), *on_cpu(inputs), lse=lse.cpu(), **options)
def configs():
    global dtype
    for short_form in sys.argv[1:]:
        config = parse(short_form)
        dtype = getattr(torch, {"FP16": "float16", "BF16": "bfloat16"}[config.dtype.name])
        yield config
"""
# Ragged blocks on both sides, several of them, two CTAs and more.
PADDED = """
for config in configs():
    for seqlen_q, seqlen_k in ((131, 197), (1, 67), (64, 0)):
        q, k, v = (randn(2, seqlen, 2, config.d_head) for seqlen in (seqlen_q, seqlen_k, seqlen_k))
        out, lse = attention(q, k, v, config=config, return_lse=True)
        check(out, q, k, v, lse=lse)
print("checked", len(sys.argv) - 1, "configs")
"""
# Groups of heads and fewer columns than the kernel has, too; what a config is built for.
MASKED_AND_SPLIT = """
masks = ({"causal": True}, {"window_left": 40, "window_right": 3}, {"causal": True, "softcap": 3.0})
n_checked = 0
for config in configs():
    for seqlen_q, seqlen_k in ((131, 197), (197, 67), (1, 300)):
        q = randn(1, seqlen_q, 2, config.d_head - 8)
        k, v = randn(2, 1, seqlen_k, 1, config.d_head - 8)
        for mask in masks:
            for num_splits in (1, 3):
                options = {"config": config, "num_splits": num_splits}
                try:
                    out, lse = attention(q, k, v, return_lse=True, **options, **mask)
                except RuntimeError as error:
                    assert "is built without" in str(error), error
                    continue
                check(out, q, k, v, lse=lse, **mask)
                n_checked += 1
assert n_checked > len(sys.argv) - 1
print("checked", len(sys.argv) - 1, "configs")
"""
# Lengths of 0; lengths that lie, of which nothing is expected but that they do no harm.
PACKED = """
def lengths(*numbers):
    return torch.tensor(numbers, device="cuda", dtype=torch.int32)
wrong = (
    lengths(0, 1000, 2**31 - 1, -5),
    lengths(-(2**31), 2**31 - 1, -100, 300),
    lengths(200, 100, 50, 0),
)
for config in configs():
    q = randn(200, 2, config.d_head)
    k, v = randn(2, 150, 1, config.d_head)
    cu_q, cu_k = lengths(0, 131, 131, 200), lengths(0, 67, 150, 150)
    for num_splits in (1, 3):
        options = {"config": config, "causal": True, "num_splits": num_splits}
        out, lse = attention_varlen(q, k, v, cu_q, cu_k, 131, 83, return_lse=True, **options)
        expected = reference.expect_varlen(*on_cpu((q, k, v, cu_q, cu_k)), causal=True)
        expected.check(*on_cpu((out, lse)))
        for bad in wrong:
            for pair in ((bad, cu_k), (cu_q, bad), (bad, bad)):
                attention_varlen(q, k, v, *pair, 200, 150, **options)
                torch.cuda.synchronize()
print("checked", len(sys.argv) - 1, "configs")
"""
# Parts of tiles that CTAs hand each other, or leave to a kernel; lengths that lie, too.
SHARES = """
from support.paged import Cache
n_packing = 0
for config in configs():
    if not getattr(config, "pack_gqa", False):
        continue
    n_packing += 1
    for lengths in ((700, 0, 1, 64, 3000), (500,) * 3, (70,) * 300):
        for n_queries in (1, 8):
            cache = Cache(lengths, 16, 2, config.d_head, dtype)
            *pages, seqlens = (x.cuda() for x in cache.tensors)
            q = randn(len(lengths), n_queries, 8, config.d_head)
            options = {"config": config, "causal": True, "num_splits": -1}
            for _ in range(2):
                out, lse = attention_paged(q, *pages, seqlens, return_lse=True, **options)
                cache.check_padded(*on_cpu((q, out, lse)), causal=True)
            for lie in (-5, 2**31 - 1):
                seqlens[0] = lie
                attention_paged(q, *pages, seqlens, **options)
                torch.cuda.synchronize()
assert n_packing > 0, sys.argv
print("checked", len(sys.argv) - 1, "configs")
"""
# Numbers of pages that do not exist, of a whole sequence and of one page, and slots that are none.
# A page of a power of two of rows comes by TMA, others row by row. Last, what selection chooses.
IDS = """
import itertools
from pyflash import append_kv, attention_cached
from support.paged import Cache
n_of_page_size = dict.fromkeys((1, 5, 16, 64), 0)
masks = ({}, {"causal": True, "window_left": 40})
bad_ids = {1: (-1, 2**31 - 1), 3: (10**6, -(2**31))}
def problems(page_size, d_head):
    for n_queries in (1, 70):
        q = randn(3, n_queries, 4, d_head)
        yield q, Cache((130, 200, 70), page_size, 2, d_head, dtype, device="cuda")
def check_ids(q, cache, attend, **options):
    try:
        expected = attend(q, *cache.tensors, **options)
    except RuntimeError as error:
        assert "cannot run this problem" in str(error) or "is built without" in str(error), error
        return
    good = cache.table.clone()
    for bad in bad_ids[options["num_splits"]]:
        cache.table[1] = cache.table[2, 0] = bad
        out = attend(q, *cache.tensors, **options)
        assert torch.equal(out[0], expected[0])
        assert (out[1] == 0).all()
        assert out[2].isfinite().all()
        cache.table.copy_(good)
        n_of_page_size[cache.page_size] += 1
def attend_cached(q, k, v, table, lengths, **options):
    return attention_cached(q, k, v, lengths, table[:, 0].contiguous(), **options)
def check_config(config, d_head):
    for page_size in n_of_page_size:
        for q, cache in problems(page_size, d_head):
            for mask, num_splits in itertools.product(masks, bad_ids):
                options = {"config": config, "num_splits": num_splits, **mask}
                check_ids(q, cache, attention_paged, **options)
            cache.seqlens.clamp_(max=page_size)
            check_ids(q, cache, attend_cached, config=config, num_splits=1)
for config in configs():
    check_config(config, config.d_head)
check_config("", 128)
assert all(n_of_page_size.values()), n_of_page_size
for number in (torch.int32, torch.int64):
    for page_size in n_of_page_size:
        cache = Cache((130, 70), page_size, device="cuda")
        new = torch.randn(2, 6, 2, 64, device="cuda").half()
        last, limits = cache.num_pages * page_size - 1, torch.iinfo(number)
        slots = torch.tensor([5, -1, limits.max, last, limits.min, last + 1], device="cuda")
        before = [x.flatten(0, 1).clone() for x in (cache.k, cache.v)]
        append_kv(*new, cache.k, cache.v, slots.to(number))
        for x, old, rows in zip((cache.k, cache.v), before, new):
            old[[5, last]] = rows[[0, 3]]
            assert torch.equal(x.flatten(0, 1).nan_to_num(7), old.nan_to_num(7))
print("checked", len(sys.argv) - 1, "configs")
"""
# Splits at fixed keys, three of each tile: folded by its CTA where tiles fill the GPU, else shared.
FOLDED = """
from support.invariant import build_invariant
build_invariant()
n_checked = 0
for dtype in (torch.float16, torch.bfloat16):
    for d_head in (64, 128):
        for batch, seqlen_q in ((5, 300), (1, 150), (3, 5)):
            q = randn(batch, seqlen_q, 16, d_head)
            k, v = randn(2, batch, 2100, 2, d_head)
            for mask in ({}, {"window_left": 1500, "sinks": torch.zeros(16, device="cuda")}):
                options = {"causal": True, **mask}
                out, lse = attention(q, k, v, return_lse=True, batch_invariant=True, **options)
                check(out, q, k, v, lse=lse, **options)
                n_checked += 1
print("checked", n_checked)
"""
# A group of heads, heads narrower than the config's, empty sequences, and one order of the sums.
GRADIENTS = """
from pyflash.op.backward import kernels
from pyflash.op.reference_gradients import expect_gradients
def starts(lengths):
    return torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
lengths_q, lengths_k = (131, 0, 70, 1), (67, 130, 0, 197)
masks = ({}, {"causal": True}, {"window_left": 40, "window_right": 3}, {"softcap": 3.0})
# NOTE: racecheck takes the arrival of one lane at an mbarrier for that lane's alone, though its
# warp met before it: a ring that is filled again looks like a race. So each stage is filled once.
def limits(config):
    if not EACH_STAGE_ONCE or config.family.name != "sm90_backward":
        return 197, 4
    return config.B_r * min(config.stages, config.dO_stages), 1
def problems(config, d_head):
    most, heads = limits(config)
    for seqlen_q, seqlen_k in ((min(131, most), 197), (min(197, most), 67), (1, 300)):
        q, grad_out = randn(2, 2, seqlen_q, heads, d_head)
        yield q, *randn(2, 2, seqlen_k, 1, d_head), grad_out, ()
    lengths = [min(n, most) for n in lengths_q]
    q, grad_out = randn(2, sum(lengths), heads, d_head)
    packing = (starts(lengths), starts(lengths_k), max(lengths), max(lengths_k))
    yield q, *randn(2, sum(lengths_k), 1, d_head), grad_out, packing
n_checked = {short_form: 0 for short_form in sys.argv[1:]}
for config, short_form in zip(configs(), sys.argv[1:]):
    for d_head in (config.d_head, config.d_head - 8):
        for q, k, v, grad_out, packing in problems(config, d_head):
            for mask in masks:
                attend = attention_varlen if packing else attention
                out, lse = attend(q, k, v, *packing, return_lse=True, **mask)
                grad_lse = torch.randn_like(lse)
                *inputs, of_lse = on_cpu((q, k, v, grad_out, grad_lse))
                more = {"grad_lse": of_lse, "cu_seqlens": on_cpu(packing[:2]), **mask}
                expected = expect_gradients(*inputs, **more)
                for deterministic in (False, True):
                    options = {"config": short_form, "deterministic": deterministic, **mask}
                    try:
                        found = kernels.bwd(
                            grad_out, out, lse, q, k, v, packing=packing, grad_lse=grad_lse,
                            **options,
                        )
                    except RuntimeError as error:
                        assert "is not built with" in str(error), error
                        continue
                    expected.check(on_cpu(found))
                    n_checked[short_form] += 1
assert min(n_checked.values()) > 0, n_checked
print("checked", len(n_checked), "configs")
"""
# Slots of no page, of several kinds, behind rows and pages of several layouts. Merged states.
APPENDED = """
from pyflash import append_kv
dtype = torch.float16
slots = torch.tensor([5, -1, 2**31, 3, 2**40, -(2**40), 47, 48, 10**6], device="cuda")
n_checked = 0
for page_size in (1, 3, 16):
    for heads, d_head in ((1, 8), (2, 64), (3, 80), (8, 256)):
        for numbers in (slots, slots.clamp(-(2**31), 2**31 - 1).int()):
            k, v = randn(2, len(slots), heads, d_head)
            rows_first = [randn(48 // page_size, page_size, heads, d_head) for _ in "kv"]
            heads_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in rows_first]
            for k_cache, v_cache in (rows_first, heads_first):
                expected = [x.clone() for x in (k_cache, v_cache)]
                for new, x in zip((k, v), expected):
                    for i in (0, 3, 6):
                        x[int(slots[i]) // page_size, int(slots[i]) % page_size] = new[i]
                append_kv(k, v, k_cache, v_cache, numbers)
                assert torch.ops.pyflash.append_rows(k, v, k_cache, v_cache, numbers)
                assert torch.equal(k_cache, expected[0]) and torch.equal(v_cache, expected[1])
                n_checked += 1
for n in (1, 2, 8):
    for shape in ((1, 1, 8), (65, 3, 72), (2, 7, 4, 128)):
        outs = [randn(*shape) for _ in range(n)]
        lses = [randn(*shape[:-3], shape[-2], shape[-3]).float() for _ in range(n)]
        out, lse = torch.empty_like(outs[0]), torch.empty_like(lses[0])
        assert torch.ops.pyflash.merge_states(outs, lses, out, lse)
        torch.testing.assert_close(lse, torch.stack(lses).logsumexp(0), atol=1e-4, rtol=1e-4)
        n_checked += 1
print("checked", n_checked)
"""
# Masks as intervals, in lists and as bits, scores by tables and by tensors of pairs; and gradients.
VARIANTS = """
from pyflash.op import library
from pyflash.op.variants.reference import expect
from support.variants import values_of
from pyflash.variant.tiles import Problem
for path in sys.argv[1:]:
    library.load(path)
dtype = torch.float16
def given(name, at):
    if name == BOOLS:
        return {"m": torch.rand(at.q_len, at.k_len) < 0.6}
    return values_of(name, at)
for name in NAMES:
    for seqlen_q, seqlen_k in ((131, 197), (300, 131), (1, 500)):
        at = Problem(seqlen_q, seqlen_k, 2, 2)
        tensors = given(name, at)
        on_gpu = {n: x.cuda() if isinstance(x, torch.Tensor) else x for n, x in tensors.items()}
        q, k, v = (
            randn(2, n, heads, 64).requires_grad_()
            for n, heads in ((seqlen_q, 2), (seqlen_k, 1), (seqlen_k, 1))
        )
        out, lse = attention(q, k, v, variant=name, tensors=on_gpu, return_lse=True)
        alone = [x.detach().cpu() for x in (q, k, v)]
        expect(*alone, variant=name, tensors=tensors).check(out.detach().cpu(), lse.detach().cpu())
        for x in torch.autograd.grad(out, (q, k, v), torch.randn_like(out)):
            assert x.isfinite().all()
print("checked", len(NAMES), "variants")
"""
BOOLS = "bools(m: bool[2]): s where m[q, k]"
NAMES = ("alibi", "documents", "softcap", "t5_bias", "bias", "natten_2d", BOOLS)
# Part of the mangled names of op backward's kernels, and, by BackwardParams, of those that run
# before and after them.
OF_BACKWARD = "kns=ackward"
PROGRAMS = {
    "padded": PADDED,
    "masked_and_split": MASKED_AND_SPLIT,
    "packed": PACKED,
    "shares": SHARES,
    "ids": IDS,
}


def one_of_each_kind() -> list[KernelConfig]:
    """For each flag of each family and state a built config, as few as that takes."""
    chosen: list[KernelConfig] = []
    for family in FAMILIES:
        built = [config for config in CONFIGS if config.family is family]
        flags = [name for name, kind in family.config_type.field_types().items() if kind is bool]
        for flag, state in itertools.product(flags, (False, True)):
            of_kind = [config for config in built if getattr(config, flag) == state]
            if of_kind and not set(chosen) & set(of_kind):
                chosen.append(of_kind[0])
    return chosen


@pytest.mark.parametrize(
    ("tool", "program"),
    [
        ("memcheck", "padded"),
        ("memcheck", "masked_and_split"),
        ("memcheck", "packed"),
        ("memcheck", "shares"),
        ("memcheck", "ids"),
        ("racecheck", "shares"),
        ("synccheck", "shares"),
        ("racecheck", "padded"),
        ("synccheck", "padded"),
        ("synccheck", "masked_and_split"),
    ],
)
def test_compute_sanitizer_finds_nothing(tool, program):
    """Pitfall 12: lengths that are no multiple of the tile."""
    configs = [str(config) for config in one_of_each_kind()]
    assert len(configs) >= 2
    said = output_under(tool, PROGRAMS[program], *configs)
    assert f"checked {len(configs)} configs" in said


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_compute_sanitizer_finds_nothing_where_splits_are_folded(tool):
    build_invariant()
    assert "checked 24" in output_under(tool, FOLDED)


def test_compute_sanitizer_finds_nothing_in_append_and_merges():
    """Pitfalls 5 and 9 of serving."""
    assert "checked 57" in output_under("memcheck", APPENDED)


def backward_configs() -> list[KernelConfig]:
    """The built ones of both families, of d_head 64 and 128, in one dtype for each."""
    return [
        config
        for config in built_for(BackwardFeatures(right_window=True), "backward")
        if (config.d_head, config.dtype) in ((64, DType.FP16), (128, DType.BF16))
    ]


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
@pytest.mark.parametrize("family", ["sm80_backward", "sm90_backward"])
def test_compute_sanitizer_finds_nothing_in_gradients(family, tool):
    """Pitfall 12: lengths that are no multiple of the tile."""
    configs = [config for config in backward_configs() if config.family.name == family]
    if not configs:
        pytest.skip(f"no config of {family} is built")
    # NOTE: racecheck with a filter ends with an illegal access of its own.
    kernels = "" if tool == "racecheck" else OF_BACKWARD
    program = f"EACH_STAGE_ONCE = {tool == 'racecheck'}" + GRADIENTS
    said = output_under(tool, program, *map(str, configs), kernels=kernels)
    assert f"checked {len(configs)} configs" in said


@pytest.fixture(scope="module")
def variant_libraries() -> list[str]:
    """Kernels of NAMES at d_head 64, forward and backward."""
    major, minor = torch.cuda.get_device_capability()
    archs = nearest_archs([10 * major + minor])
    variants = [parse(name) if name == BOOLS else named(name).variant for name in NAMES]
    of_config: dict[KernelConfig, list[Variant]] = {
        default_gradient_config(DType.FP16, 64, archs[0]): variants
    }
    for variant in variants:
        config = default_config(DType.FP16, 64, archs[0], needs_of(variant))
        of_config.setdefault(config, []).append(variant)
    return [str(build_with_variants(found, [config], archs)) for config, found in of_config.items()]


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_compute_sanitizer_finds_nothing_in_variants(variant_libraries, tool):
    """Lists of blocks, bits, tables, and copies of tensors of pairs among them."""
    program = f"BOOLS, NAMES = {BOOLS!r}, {NAMES!r}" + VARIANTS
    said = output_under(tool, program, *variant_libraries)
    assert f"checked {len(NAMES)} variants" in said


def output_under(tool: str, program: str, *arguments: str, kernels: str = "") -> str:
    """kernels: which ones the tool checks, as --kernel-regex takes it; "": all."""
    result = subprocess.run(
        [
            *("compute-sanitizer", f"--tool={tool}", "--error-exitcode=9"),
            *(("--kernel-regex", kernels) if kernels else ()),
            *(sys.executable, "-c", HEAD + program, *arguments),
        ],
        cwd=ROOT,
        # Without torch's cache every tensor is an allocation of its own, with its own bounds.
        env={
            **os.environ,
            "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
            "PYTHONPATH": f"{ROOT / 'tests'}:{os.environ.get('PYTHONPATH', '')}",
        },
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    return result.stdout
