"""A load of random prompts for the engine of serve.py, of which half share a prefix: tokens a
second, time to the first token and between tokens.

    python examples/serve_load.py                           # starts an engine of its own
    python examples/serve_load.py --port 8000 --users 64    # of one that runs
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import threading
import time

from serve import SHAPES, Server, engine_of, quantile


def load(port: int, users: int, requests: int, vocabulary: int, longest: int) -> dict[str, float]:
    todo, first, between = list(range(requests)), [], []
    common = [random.Random(0).randrange(vocabulary) for _ in range(longest // 4)]

    def user() -> None:
        while todo:
            rng = random.Random(todo.pop())
            n, limit = (int(rng.lognormvariate(3, 1.2)) + 1 for _ in range(2))
            prompt = common if rng.random() < 0.5 else []
            prompt = prompt + [rng.randrange(vocabulary) for _ in range(min(n, longest // 4))]
            asked = {"prompt": prompt, "max_tokens": min(limit, longest // 4)}
            connection = http.client.HTTPConnection("127.0.0.1", port)
            last = begin = time.perf_counter()
            connection.request("POST", "/generate", json.dumps(asked))
            for i, _ in enumerate(connection.getresponse()):
                now = time.perf_counter()
                (between if i else first).append(now - (last if i else begin))
                last = now
            connection.close()

    threads = [threading.Thread(target=user) for _ in range(users)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    of = {"time to first token": first, "time between tokens": between}
    return {"requests": requests, "tokens/s": (len(first) + len(between)) / seconds} | {
        f"{name}, {word}, ms": 1000 * quantile(times, part)
        for name, times in of.items()
        for word, part in (("median", 0.5), ("p99", 0.99))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, help="default: an engine of its own")
    parser.add_argument("--shape", choices=list(SHAPES), help="default: 8b on a GPU, else tiny")
    parser.add_argument("--users", type=int, default=8, help="how many ask at once")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--longest", type=int, default=256, help="of prompts and outputs together")
    asked = parser.parse_args()
    server = None
    if asked.port is None:
        server = Server(engine_of(asked.shape, None), 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        vocabulary = server.engine.model.shape.vocabulary
    else:
        vocabulary = SHAPES[asked.shape or "tiny"].vocabulary
    port = asked.port or server.server_address[1]
    found = load(port, asked.users, asked.requests, vocabulary, asked.longest)
    for name, x in found.items():
        print(f"{name}: {x:.1f}")
    if server:
        server.close()
        print(server.engine.metrics.page(server.engine.pages), end="")


if __name__ == "__main__":
    main()
