from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pyflash.config import FAMILIES
from pyflash.explore import DEFAULT_PROBLEM
from pyflash.explore.server import Explorer
from pyflash.explore.state import State, default_config

START = {"config": str(default_config(FAMILIES[0])), "problem": DEFAULT_PROBLEM}


@pytest.fixture(scope="module")
def server() -> Iterator[Explorer]:
    with Explorer(State.of(START), 0) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()
