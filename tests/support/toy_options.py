"""Two options that no kernel has, a number and a tensor: the lines that add them to a copy of the
repository, and what the copy then does with them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# By file: (what is there once, what comes before it).
EDITS: dict[str, list[tuple[str, str]]] = {
    "cute_kernels/host/options.h": [
        (
            "};\n\n// A number, a flag or a text.",
            "  int64_t toy_period = 0;\n  std::optional<TensorView> toy_slopes;\n",
        ),
        (
            "};\n\n// Calls visit(option) for each",
            '    Option{"toy_period", &Options::toy_period, check_num_splits,\n'
            "           [](ListedForwardParams const& params) -> double {\n"
            "             return params.toy_period; }},\n"
            '    PerHeadOption{"toy_slopes", &Options::toy_slopes, &ForwardParams::toy_slopes,\n'
            "                  {.takes_batches = true}},\n",
        ),
    ],
    "cute_kernels/params.h": [
        ("  PerHead sinks;", "  int toy_period;\n  PerHead toy_slopes;\n"),
    ],
    "cute_kernels/host/call.cpp": [
        (
            "  for_each_per_head_option(",
            "  params.toy_period = static_cast<int>(options.toy_period);\n",
        ),
    ],
    "pyflash/op/options.py": [
        (
            "\n\nOPTIONS: dict[str, Option]",
            '    toy_period: Annotated[int, Option(0, "a period.")]\n'
            '    toy_slopes: Annotated["Tensor | None", Option(None, "a slope of each head.", '
            'gradients_on=("cpu",))]\n',
        ),
    ],
}

CONFIG = "(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles"
TEXT = "fp16,batch=2,heads=4,heads_kv=2,seqlen=64,d_head=64,toy_slopes,toy_period=3"


def edit(root: Path) -> None:
    for name, edits in EDITS.items():
        text = (root / name).read_text()
        for before, inserted in edits:
            assert text.count(before) == 1, (name, before)
            text = text.replace(before, inserted + before)
        (root / name).write_text(text)


def raised(call: Callable[[], Any]) -> str:
    """The type and the words of what is raised."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def qkv(device: str = "cpu", requires_grad: bool = False) -> list[Any]:
    import torch

    sizes = ((2, 16, 4, 64), (2, 16, 2, 64), (2, 16, 2, 64))
    torch.manual_seed(0)
    make = torch.randn if device == "cpu" else torch.empty
    return [
        make(*size, dtype=torch.float16, device=device, requires_grad=requires_grad)
        for size in sizes
    ]


def calls() -> dict[str, Any]:
    import torch

    import pyflash
    from pyflash import attention

    slopes = torch.ones(4)
    both = {"toy_period": 3, "toy_slopes": slopes}
    starts = torch.tensor([0, 16, 32], dtype=torch.int32)

    def packed(**options: Any) -> Any:
        inputs = [x.flatten(0, 1) for x in qkv()]
        return pyflash.attention_varlen(*inputs, starts, starts, 16, 16, **options)

    def refused(**options: Any) -> str:
        return raised(lambda: attention(*qkv(), **options))

    plain = attention(*qkv())
    meta = {"toy_slopes": slopes.to("meta")}
    return {
        "schema": str(torch.ops.pyflash.fwd.default._schema),
        "backward's schema": str(torch.ops.pyflash.bwd.default._schema),
        "help": attention.__doc__,
        "same out": [
            torch.equal(plain, attention(*qkv(), **both)),
            torch.equal(plain, attention(*qkv(), toy_slopes=torch.ones(2, 4))),
            torch.equal(plain.flatten(0, 1), packed(**both)),
            torch.equal(plain.flatten(0, 1), packed(toy_slopes=torch.ones(2, 4))),
        ],
        "meta": list(attention(*qkv("meta"), toy_period=3, **meta).shape),
        "refused": {
            "type of a number": refused(toy_period=1.5),
            "value of a number": refused(toy_period=-3),
            "type of a tensor": refused(toy_slopes=3),
            "dtype": refused(toy_slopes=slopes.half()),
            "shape": refused(toy_slopes=torch.ones(3)),
            "stride": refused(toy_slopes=torch.ones(8)[::2]),
            "device": raised(lambda: attention(*qkv("meta"), toy_slopes=slopes)),
            "unknown": refused(toy_slope=slopes),
        },
    }


def gradients() -> dict[str, Any]:
    """The gradients of a call whose backward takes the tensor; the formula has no use for it."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from pyflash import attention
    from pyflash.op.autograd import TORCH_API
    from pyflash.op.options import BACKWARD_TENSORS

    def of(function: Callable[..., Any], **options: Any) -> list[Any]:
        leaves = qkv(requires_grad=True)
        return torch.autograd.grad(function(*leaves, **options).float().sum(), leaves)

    def same(function: Callable[..., Any], **options: Any) -> bool:
        return all(map(torch.equal, of(attention), of(function, **options)))

    class Seen(TorchDispatchMode):
        """What the backward gets behind the results and their gradients."""

        def __torch_dispatch__(self, op: Any, types: Any, inputs: Any, options: Any = None) -> Any:
            if op is torch.ops.pyflash.bwd.default:
                taken.append(torch.equal(inputs[4 + BACKWARD_TENSORS.index("toy_slopes")], slopes))
            return op(*inputs, **options or {})

    taken: list[bool] = []
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    slopes, trained = torch.ones(4), torch.ones(4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = attention(*qkv(), toy_slopes=slopes.bfloat16().float()).dtype
    with Seen():
        of(attention, toy_slopes=slopes)
    return {
        "taken": taken,
        "api": TORCH_API,
        "same": [same(attention, toy_slopes=slopes), same(compiled, toy_slopes=slopes)],
        "number": raised(lambda: of(attention, toy_period=3)),
        "tensor": raised(lambda: of(attention, toy_slopes=trained)),
        "tensor alone": raised(lambda: attention(*qkv(), toy_slopes=trained)),
        "autocast": str(cast),
    }


def problems() -> dict[str, Any]:
    import torch

    from pyflash.bench.work import is_causal
    from pyflash.op.on_demand import _features_needed
    from pyflash.op.selection import select
    from pyflash.tuner.problems import parse_problem, problem_text, problem_to_json
    from pyflash.tuner.workload import Contender, Workload

    problem = parse_problem(TEXT, "cpu")
    workload = Workload(problem)
    workload.check(Contender(""))
    drawn = workload._options["toy_slopes"]
    extents = (2, 4, 2, 64, 64, 64, 0, 0)
    return {
        "text": problem_text(problem),
        "json": problem_to_json(problem),
        "backward": select(problem).backward,
        "drawn": [list(drawn.shape), bool(torch.any(drawn != 0))],
        "features": _features_needed(CONFIG, False, extents, ("toy_slopes",), (("toy_period", 3),)),
        "bench": raised(lambda: is_causal(problem)),
    }


def ranks() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from pyflash import attention, distributed
    from pyflash.distributed import dtensor, head_parallel

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    slopes = torch.arange(8.0).view(2, 4)

    def grads(function: Callable[..., Any], **options: Any) -> list[Any]:
        leaves = qkv(requires_grad=True)
        return torch.autograd.grad(function(*leaves, **options).float().sum(), leaves)

    def by_heads(**options: Any) -> Any:
        return distributed.all_to_all_attention(*qkv(), **options)

    tensors = tuple(slopes if name == "toy_slopes" else None for name in head_parallel.TENSORS)
    part = head_parallel._of_heads(tensors, slice(1, 3))["toy_slopes"]
    found = {
        "ring": {
            name: raised(lambda o=o: distributed.ring_attention(*qkv(), **o))
            for name, o in (("number", {"toy_period": 3}), ("tensor", {"toy_slopes": slopes}))
        },
        "same": [
            torch.equal(attention(*qkv()), by_heads(toy_period=3, toy_slopes=slopes)),
            torch.equal(
                attention(*qkv()), distributed.attention(*qkv(), toy_slopes=slopes, sinks=None)
            ),
            all(
                map(
                    torch.equal,
                    grads(attention),
                    grads(distributed.all_to_all_attention, toy_slopes=slopes),
                )
            ),
        ],
        "shape": raised(lambda: by_heads(toy_slopes=torch.ones(3))),
        "number": raised(lambda: grads(distributed.all_to_all_attention, toy_period=3)),
        "sliced": part.tolist(),
        "axes": [dtensor._axes("toy_slopes", False, rank) for rank in (1, 2)],
    }
    dist.destroy_process_group()
    return found


def commands() -> dict[str, Any]:
    from typer.testing import CliRunner

    from pyflash.cli import app

    toys = ["--toy-period", "3", "--toy-slopes"]
    small = ["--batch", "1", "--seqlen-q", "33", "--seqlen-k", "40", "--json"]
    arguments = {
        "select": ["select", "--device", "cpu", "--json", *toys],
        "emulate": ["emulate", CONFIG, *small, *toys],
        "emulate one query": ["emulate", CONFIG, *small, *toys, "--seqlen-q", "1"],
        "emulate text": ["emulate", CONFIG, *small[:-1], *toys],
        "emulate packed heads": ["emulate", CONFIG, *small, "--heads", "4", "--heads-kv", "2"],
    }
    results = {name: CliRunner().invoke(app, words) for name, words in arguments.items()}
    return {
        name: [result.exit_code, result.stdout, str(result.exception)]
        for name, result in results.items()
    }


if __name__ == "__main__":
    found = {name: globals()[name]() for name in sys.argv[2:]}
    Path(sys.argv[1]).write_text(json.dumps(found))
