"""The engine of examples/serve.py: a simulated load with a reference run of each request, planted
faults that it finds, and clients and servers that are killed."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from support import serving_load
from support.markdown import ON_THE_CPU, ROOT
from support.serving_load import Simulation, serve, serve_compare
from torch.utils._python_dispatch import TorchDispatchMode

STEPS = int(os.environ.get("PYFLASH_SERVING_STEPS", "300"))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_simulated_load():
    """No leak, no wrong token, no crash; and each thing that can happen does."""
    simulation = Simulation(seed=0)
    assert simulation.run(STEPS) == STEPS
    counts = simulation.engine.metrics.counts
    never = [name for name, n in counts.items() if n == 0]
    assert never == ["graph_replays"]
    assert counts["finished"] + counts["cancelled"] > STEPS // 5
    assert counts["tokens"] >= simulation.n_tokens > 3 * STEPS


def test_a_simulated_load_on_sdpa():
    """The engine that the other is measured beside is right, too."""
    simulation = Simulation(seed=0, kind=serve_compare.SdpaEngine)
    assert simulation.run(100) == 100
    assert simulation.n_tokens > 300
    assert simulation.engine.metrics.counts["accepted"] > 0


def test_the_load_finds_a_key_that_sdpa_does_not_see(monkeypatch):
    padded = serve_compare.SdpaEngine._padded
    monkeypatch.setattr(
        serve_compare.SdpaEngine,
        "_padded",
        lambda self, group, table, lengths: padded(self, group, table, lengths - 1),
    )
    with pytest.raises(AssertionError):
        Simulation(seed=0, kind=serve_compare.SdpaEngine).run(100)


def test_sdpa_gathers_as_much_as_the_longest_needs():
    """And no more than a part of the context beyond it; a graph would be one for that width."""
    model = serve.Model(serve.SHAPES["tiny"], torch.device("cpu"))
    engine = serve_compare.SdpaEngine(model, 64, 16, max_draft=0)
    widths = []
    for n, limit in ((5, 30), (60, 3)):
        engine.submit(serve.Request([1] * n, limit))
    with torch.inference_mode():
        while engine.step():
            widths.append(engine.width)
    # The prompts; two steps with 62 keys; the other sequence alone, with up to 16 keys and more.
    assert widths == [32] + [4] * 2 + [1] * 9 + [2] * 16 + [3] * 2
    assert list(engine.graphs_of_width) == [4, 1, 2, 3]


def give_no_page_back(monkeypatch):
    monkeypatch.setattr(serve.Pages, "give_back", lambda self, page: None)


def share_without_counting(monkeypatch):
    monkeypatch.setattr(serve.Pages, "share", lambda self, digest: self.page_of.get(digest))


def find_prefixes_by_a_page_alone(monkeypatch):
    monkeypatch.setattr(serve, "digest_of", lambda before, tokens: bytes(tokens[:1]))


def take_guesses_for_granted(monkeypatch):
    accept = serve.Engine._accept

    def taken(self, work, following):
        n = work.n_drafted
        accept(self, work, [*work.tokens[len(work.tokens) - n :], *following[n:]])

    monkeypatch.setattr(serve.Engine, "_accept", taken)


def attend_without_the_last_key(monkeypatch):
    attend = serve.pyflash.attention_paged

    def shorter(q, k, v, table, lengths, **options):
        return attend(q, k, v, table, (lengths - 1).clamp(min=0), **options)

    monkeypatch.setattr(serve.pyflash, "attention_paged", shorter)


def forget_a_page(monkeypatch):
    monkeypatch.setattr(
        serve.Seats, "note_page", lambda self, request, page: request.pages.append(page)
    )


def leave_a_seat_without_telling(monkeypatch):
    leave = serve.Seats.leave

    def silent(self, request):
        place = self.number + len(self.taken) - 1
        leave(self, request)
        del self.notes[place]

    monkeypatch.setattr(serve.Seats, "leave", silent)


def send_notes_again(monkeypatch):
    """What a step sent stays in the buffer, and the next step receives it again."""
    send = serve.Seats.send

    def sent(self):
        if self.notes:
            send(self)

    monkeypatch.setattr(serve.Seats, "send", sent)


@pytest.mark.parametrize(
    "plant",
    [
        give_no_page_back,
        share_without_counting,
        find_prefixes_by_a_page_alone,
        take_guesses_for_granted,
        attend_without_the_last_key,
        forget_a_page,
        leave_a_seat_without_telling,
        send_notes_again,
    ],
)
def test_a_planted_fault_is_found(monkeypatch, plant):
    plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        Simulation(seed=0).run(300)


def test_notes_of_long_sequences_that_have_no_room():
    seats = serve.Seats(1, 64, torch.device("cpu"))
    assert seats.host.shape[1] < 30
    request = serve.Request([5], 9, pages=list(range(30, 60)))
    seats.take(request)
    seats.send()
    seats.receive()
    assert not seats.notes
    assert seats.table[0, :30].tolist() == request.pages
    assert (seats.tokens.item(), seats.n_keys.item()) == (5, 0)


class Ops(TorchDispatchMode):
    """Counts ops, and those that read one tensor."""

    def __init__(self, of: torch.Tensor | None = None):
        super().__init__()
        self.of, self.n, self.n_of = of, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += 1
        self.n_of += any(x is self.of for x in args)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("n", [64, 256])
def test_what_a_step_that_decodes_costs_the_host(monkeypatch, n):
    """No op and no tensor; it notes a page where a sequence got one; and the device reads the
    host's buffer once."""
    model = serve.Model(serve.SHAPES["tiny"], torch.device("cpu"))
    engine = serve.Engine(model, 8 * n, 16, max_running=n, max_tokens=17 * n, max_draft=0)
    for i in range(n):
        engine.submit(serve.Request([i % 97] * (1 + i % 16), 40))
    times, noted, n_ops = [], [], 0
    decoding = engine._decoding

    def measured(n):
        nonlocal n_ops
        noted.append(len(engine.seats.notes))
        with Ops() as ops:
            begin = time.perf_counter()
            run = decoding(n)
            times.append(time.perf_counter() - begin)
        n_ops += ops.n
        return run

    monkeypatch.setattr(engine, "_decoding", measured)
    with torch.inference_mode():
        engine.step()  # prompts
        engine.step()  # what that noted
        for _ in range(16):
            with Ops(engine.seats.host) as ops:
                engine.step()
            assert ops.n_of == 1
    assert len(times) == 17
    assert n_ops == 0
    assert noted[1:] == [n // 16] * 16
    assert sorted(times)[8] < 2e-4


def test_a_step_with_prompts_is_one_copy_of_one_buffer():
    model = serve.Model(serve.SHAPES["tiny"], torch.device("cpu"))
    engine = serve.Engine(model, 128, 16)
    for n in (30, 1, 7):
        engine.submit(serve.Request(list(range(n)), 3))
    while not engine.inbox.empty():
        engine.waiting.append(engine.inbox.get())
    work, longer = engine._plan()
    assert [len(w.tokens) for w in work] == [30, 1, 7]
    with Ops() as ops:
        engine._mixed(longer)
    assert ops.n == 1  # a slice, which a GPU copies
    tokens = [*range(30), *range(7)]
    starts, rows, seats = [3, 33, 40], [32, 39], [0, 2]  # behind a row of each seat
    sent = [*tokens, *starts, *rows, *seats]
    assert engine.host[: len(sent)].tolist() == sent
    assert not engine.seats.notes


def test_a_step_with_an_arrival_sends_what_is_new_alone():
    """As much beside a few sequences that run as beside many; who runs is where the device has
    it."""

    class Counted:
        def __init__(self, staging):
            self.staging, self.sizes = staging, []

        def __setitem__(self, where, sent):
            self.staging[where] = sent
            self.sizes.append(len(sent) // 4)

    model = serve.Model(serve.SHAPES["tiny"], torch.device("cpu"))
    for n in (3, 30):
        engine = serve.Engine(model, 128, 16, max_draft=0)
        for _ in range(n):
            engine.submit(serve.Request([1, 2, 3], 40))
        with torch.inference_mode():
            engine.step()
            engine.step()
            engine.submit(serve.Request([5] * 20, 2))
            engine.staging = counted = Counted(engine.staging)
            engine.step()
        # Tokens, two starts, one row, one seat; then where and what: token, keys, and two pages.
        assert counted.sizes == [20 + 2 + 1 + 1 + 2 * (2 + 2)]


def test_requests_that_can_never_be_served_are_refused():
    engine = Simulation(seed=0, num_pages=3, page_size=4).engine
    for prompt, limit in (([], 1), ([1], 0), ([1] * 6, 7), ([97], 1), ([-1], 1)):
        with pytest.raises(ValueError, match="expected"):
            engine.submit(serve.Request(prompt, limit))


def test_the_reference_refuses_another_token():
    model = Simulation(seed=0).model
    tokens = [3, 1, 4, 1, 5]
    wrong = [
        not serving_load.reference_is(model, [*tokens, token], len(tokens)) for token in range(97)
    ]
    assert sum(wrong) >= 95


def started(*arguments: str) -> tuple[subprocess.Popen, int]:
    """The server, and its port."""
    server = subprocess.Popen(
        [sys.executable, "examples/serve.py", *arguments],
        cwd=ROOT,
        env={**os.environ, **ON_THE_CPU, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    return server, int(re.search(r":(\d+)$", server.stdout.readline())[1])


def ask(port: int, prompt: list[int], n: int) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/generate", json.dumps({"prompt": prompt, "max_tokens": n}))
    return connection.getresponse()


def metrics(port: int) -> dict[str, float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


CLIENT = """
import http.client, json, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
connection.request("POST", "/generate", json.dumps({"prompt": [1, 2, 3], "max_tokens": 500}))
connection.getresponse().readline()
print("streams", flush=True)
input()
"""


def test_clients_and_servers_that_are_killed():
    server, port = started("--port", "0")
    try:
        tokens = [json.loads(line)["token"] for line in ask(port, [5, 6], 9)]
        assert len(tokens) == 9
        assert all(0 <= token < 97 for token in tokens)
        assert ask(port, [97], 9).status == 400
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert client.stdout.readline() == "streams\n"
        client.send_signal(signal.SIGKILL)
        client.wait()
        deadline = time.monotonic() + 60
        while True:
            told = metrics(port)
            # A request may end before its client is seen to be gone.
            ended = told["pyflash_cancelled_total"] + told["pyflash_finished_total"]
            if ended == 2 and told['pyflash_pages{state="used"}'] == 0:
                break
            assert time.monotonic() < deadline, told
            time.sleep(0.05)
        response = ask(port, [1, 2], 500)
        assert response.readline()
        server.send_signal(signal.SIGKILL)
        server.wait()
        try:
            n = 1 + len(response.readlines())
        except (ConnectionError, http.client.HTTPException):
            n = 0
        assert n < 500, "the stream ends"
        server.stdout.close()
        server, again = started("--port", str(port))
        assert again == port
        assert len(ask(port, [5, 6], 9).readlines()) == 9
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_serve_compare():
    ran = subprocess.run(
        [
            sys.executable,
            "examples/serve_compare.py",
            "--users",
            "1,3",
            "--seconds",
            "1",
            "--longest",
            "16",
        ],
        cwd=ROOT,
        env={**os.environ, **ON_THE_CPU, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = [line.split() for line in ran.stdout.splitlines()[2:]]
    each = [["pyflash", "1"], ["pyflash", "3"], ["SDPA", "1"], ["SDPA", "3"]]
    assert [line[:2] for line in lines] == each
    assert all(float(x) > 0 for line in lines for x in line[2:] if x != "/")


def test_serve_load():
    ran = subprocess.run(
        [sys.executable, "examples/serve_load.py", "--requests", "6", "--users", "3"],
        cwd=ROOT,
        env={**os.environ, **ON_THE_CPU, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "requests: 6.0" in ran.stdout
    assert "pyflash_finished_total 6\n" in ran.stdout
    assert 'pyflash_pages{state="used"} 0\n' in ran.stdout
