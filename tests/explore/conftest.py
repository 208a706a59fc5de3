from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pyflash.config import FAMILIES, parse
from pyflash.explore import DEFAULT_PROBLEM
from pyflash.explore.measured import Measured
from pyflash.explore.server import Explorer
from pyflash.explore.state import State, default_config

START = {"config": str(default_config(FAMILIES[0])), "problem": DEFAULT_PROBLEM}


# Three configs of a tuning run, the fastest last; and a problem with one.
FASTEST = parse("(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax")
SECONDS = {FASTEST.replace(swizzled=False): 4e-3, FASTEST.replace(optimized_softmax=False): 2e-3}
SECONDS |= {FASTEST: 1e-3}
MEASURED = Measured(
    "tuned.jsonl",
    {
        f"fp16,{DEFAULT_PROBLEM.replace(',causal', '')},d_head=128,causal": SECONDS,
        "fp16,batch=1,heads=2,seqlen=64,d_head=128": {FASTEST: 1e-5},
    },
)


@pytest.fixture(scope="module")
def server() -> Iterator[Explorer]:
    with Explorer(State.of(START), 0, MEASURED) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()
