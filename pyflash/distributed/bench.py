"""Attention over a group beside one GPU and beside the model's figures: correct first, then timed.

    torchrun --nproc-per-node 2 -m pyflash.distributed.bench

Every rank makes the same inputs. Correct: rows of each rank's output beside the formula in fp32,
output and gradients beside one GPU. Timed: the whole problem on one GPU, then each method; the
slowest rank counts. The model's figures are for the FLOP/s, link and latency measured in this run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import pyflash
from pyflash import distributed
from pyflash.bench.environment import environment
from pyflash.bench.timing import seconds_per_call
from pyflash.distributed.exchange import Transfer
from pyflash.distributed.model import METHODS, Machine, machine_of
from pyflash.op.reference import attention_ref, tolerance

_ROWS_CHECKED = 256
_D_HEAD = 128


def main() -> None:
    arguments = _arguments()
    device = _start(arguments.timeout)
    with torch.no_grad():
        machine = _measured_machine(device, arguments)
    _say(f"{dist.get_world_size()} x {machine.name}: {_figures(machine)}")
    _write({"machine": dataclasses.asdict(machine)} | environment(device), arguments.json)
    for causal in (False, True):
        _check(arguments.check, causal, device, arguments)
    for seqlen in arguments.seqlens:
        for causal in (False, True):
            for backward in (False, True) if seqlen <= arguments.backward_up_to else (False,):
                _time(seqlen, causal, backward, machine, device, arguments)
    dist.destroy_process_group()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="pyflash.distributed.bench", description=__doc__)
    lengths = [1 << 16, 1 << 18, 1 << 20]
    parser.add_argument("--seqlens", type=int, nargs="+", default=lengths, help="of all ranks")
    parser.add_argument("--check", type=int, default=1 << 16, help="seqlen that is checked")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--heads-kv", type=int, help="default: as many as heads")
    parser.add_argument("--samples", type=int, default=3, help="of calls shorter than a second")
    parser.add_argument("--backward-up-to", type=int, default=1 << 18, help="seqlen")
    parser.add_argument("--timeout", type=float, default=120, help="of the group, seconds")
    parser.add_argument("--json", help="file for JSON lines")
    arguments = parser.parse_args()
    arguments.heads_kv = arguments.heads_kv or arguments.heads
    return arguments


def _start(timeout: float) -> torch.device:
    options: dict[str, Any] = {"timeout": timedelta(seconds=timeout)}
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
        dist.init_process_group("gloo", **options)
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device, **options)
    return device


def _inputs(seqlen: int, device: torch.device, arguments: argparse.Namespace) -> tuple[Tensor, ...]:
    """q, k, v and the gradient of out: of the whole sequence, the same on every rank."""
    generator = torch.Generator(device).manual_seed(0)

    def randn(heads: int) -> Tensor:
        shape = (1, seqlen, heads, _D_HEAD)
        return torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)

    heads, heads_kv = arguments.heads, arguments.heads_kv
    return randn(heads), randn(heads_kv), randn(heads_kv), randn(heads)


def _check(seqlen: int, causal: bool, device: torch.device, arguments: argparse.Namespace) -> None:
    """Raises AssertionError where a rank is beyond the bound."""
    *whole, grad_out = _inputs(seqlen, device, arguments)
    leaves = [x.requires_grad_() for x in whole]
    single = pyflash.attention(*leaves, causal=causal)
    single.backward(grad_out)
    gradients = [distributed.shard(x.grad) for x in leaves]
    rows = distributed.positions(seqlen, device=device)
    n_checked = min(_ROWS_CHECKED, len(rows) // 2)
    last = rows[-n_checked:]  # consecutive, of the last chunk
    ref, pt16 = (_reference_rows(whole, last, causal, t) for t in (torch.float32, torch.bfloat16))
    bound = tolerance(ref, pt16)
    for method in METHODS:
        mine = [distributed.shard(x.detach()).requires_grad_() for x in leaves]
        out = distributed.attention(*mine, causal=causal, method=method)
        out.backward(distributed.shard(grad_out))
        error = (out[:, -n_checked:].float() - ref).abs().max().item()
        to_single = (out.float() - single.index_select(1, rows).float()).abs().max().item()
        to_gradients = max(
            ((x.grad.float() - y.float()).abs().max() / y.abs().max()).item()
            for x, y in zip(mine, gradients, strict=True)
        )
        record = {
            "check": method,
            "seqlen": seqlen,
            "causal": causal,
            "error": _slowest(error),
            "bound": bound,
            "to_one_gpu": _slowest(to_single),
            "gradients_to_one_gpu_relative": _slowest(to_gradients),
        }
        _say(
            f"{method:10} {seqlen:8} rows {_mask(causal)}: error {record['error']:.2e} (bound "
            f"{bound:.2e}); to one GPU {record['to_one_gpu']:.2e}, gradients "
            f"{record['gradients_to_one_gpu_relative']:.2e} of the largest"
        )
        _write(record, arguments.json)
        assert error <= bound, f"{method}: {error} beyond {bound}"
        # Two sums of values rounded to 8 bits each.
        assert to_gradients <= 2**-6, f"{method}: gradients are off by {to_gradients}"


def _reference_rows(whole: list[Tensor], rows: Tensor, causal: bool, dtype: torch.dtype) -> Tensor:
    """The formula for consecutive rows."""
    q, k, v = (x.detach() for x in whole)
    start, stop = rows[0].item(), rows[-1].item() + 1
    keys = slice(0, stop if causal else k.shape[1])
    out, _ = attention_ref(q[:, start:stop], k[:, keys], v[:, keys], causal=causal, dtype=dtype)
    return out


def _time(
    seqlen: int,
    causal: bool,
    backward: bool,
    machine: Machine,
    device: torch.device,
    arguments: argparse.Namespace,
) -> None:
    *whole, grad_out = _inputs(seqlen, device, arguments)
    mine = [distributed.shard(x) for x in whole]
    grad_mine = distributed.shard(grad_out)
    single = _seconds(
        _step(pyflash.attention, whole, grad_out if backward else None, causal=causal),
        device,
        arguments.samples,
    )
    del whole, grad_out
    expected = distributed.plan(
        seqlen=seqlen,
        heads=arguments.heads,
        heads_kv=arguments.heads_kv,
        n_ranks=dist.get_world_size(),
        causal=causal,
        backward=backward,
        machine=machine,
    )
    for method in METHODS:
        if method not in expected.seconds_by_method:
            continue
        step = _step(
            distributed.attention,
            mine,
            grad_mine if backward else None,
            causal=causal,
            method=method,
        )
        seconds = _seconds(step, device, arguments.samples)
        n_ranks = dist.get_world_size()
        modelled = expected.seconds_by_method[method]
        record = {
            "method": method,
            "seqlen": seqlen,
            "causal": causal,
            "backward": backward,
            "heads": arguments.heads,
            "heads_kv": arguments.heads_kv,
            "n_ranks": n_ranks,
            "one_gpu_seconds": single,
            "seconds": seconds,
            "efficiency": single / (n_ranks * seconds),
            "model_seconds": modelled,
            "model_efficiency": expected.efficiency * expected.seconds / modelled,
            "hidden_from": expected.hidden_from,
        }
        _say(
            f"{method:10} {seqlen:8} rows {_mask(causal)} {'fwd+bwd' if backward else 'fwd':7}: "
            f"one GPU {single * 1e3:9.2f} ms, {n_ranks} {seconds * 1e3:9.2f} ms (model "
            f"{modelled * 1e3:9.2f}), efficiency {record['efficiency']:.3f} (model "
            f"{record['model_efficiency']:.3f})"
        )
        _write(record, arguments.json)


def _step(
    attend: Callable[..., Tensor], inputs: list[Tensor], grad_out: Tensor | None, **options: Any
) -> Callable[[int], None]:
    """Calls so many times, forward or with grad_out both ways."""

    def calls(n: int) -> None:
        for _ in range(n):
            if grad_out is None:
                with torch.no_grad():
                    attend(*inputs, **options)
            else:
                leaves = [x.detach().requires_grad_() for x in inputs]
                torch.autograd.grad(attend(*leaves, **options), leaves, grad_out)

    return calls


def _seconds(calls: Callable[[int], None], device: torch.device, n_samples: int) -> float:
    """The seconds of a call on the slowest rank: the median, or the first where it takes over 1."""

    def sample() -> float:
        dist.barrier()
        return _slowest(seconds_per_call(calls, device, 1))

    first = sample()  # also warms up
    return first if first > 1 else median(sample() for _ in range(n_samples))


def _measured_machine(device: torch.device, arguments: argparse.Namespace) -> Machine:
    """The figures of the model, on this machine and in this run."""
    seqlen = 1 << 15 if device.type == "cuda" else 1 << 9
    *qkv, grad_out = _inputs(seqlen, device, arguments)
    pairs = arguments.heads * _D_HEAD * seqlen * seqlen
    with torch.enable_grad():
        forward = _seconds(_step(pyflash.attention, qkv, None), device, 5)
        both = _seconds(_step(pyflash.attention, qkv, grad_out), device, 5)
    n_bytes = 1 << 28 if device.type == "cuda" else 1 << 20
    small, large = (_hop_seconds(n, device) for n in (1 << 10, n_bytes))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    copied = torch.empty(n_bytes, dtype=torch.uint8, device=device)
    copy_seconds = _seconds(lambda n: [copied.clone() for _ in range(n)], device, 5)
    return Machine(
        name=machine_of(name).name,
        forward_flops=4 * pairs / forward,
        backward_flops=10 * pairs / (both - forward),
        link=n_bytes / (large - small) if dist.get_world_size() > 1 else machine_of(name).link,
        latency=small,
        memory=2 * n_bytes / copy_seconds,
    )


def _hop_seconds(n_bytes: int, device: torch.device) -> float:
    """The time to send so many bytes to the next rank while receiving as many from the previous
    one."""
    sent = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
    received = torch.empty_like(sent)
    if dist.get_world_size() == 1:
        return machine_of(device.type).latency

    def calls(n: int) -> None:
        for _ in range(n):
            Transfer(dist.group.WORLD, [sent], [received], 1).wait()

    return _seconds(calls, device, 9)


def _slowest(value: float) -> float:
    """The largest of all ranks."""
    values: list[float] = [0.0] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return max(values)


def _figures(machine: Machine) -> str:
    return (
        f"forward {machine.forward_flops / 1e12:.4g} TFLOP/s, backward "
        f"{machine.backward_flops / 1e12:.4g} TFLOP/s, link {machine.link / 1e9:.4g} GB/s, latency "
        f"{machine.latency * 1e6:.3g} us, memory {machine.memory / 1e12:.3g} TB/s"
    )


def _mask(causal: bool) -> str:
    return "causal" if causal else "full  "


def _say(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


def _write(record: dict[str, Any], path: str | None) -> None:
    if path and dist.get_rank() == 0:
        with open(path, "a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
