"""The engine of examples/serve.py on a GPU: a simulated load, each request beside a reference run;
steps of one token each are CUDA graphs."""

from __future__ import annotations

import pytest
import torch
from support.serving_load import Simulation, serve_compare

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("seed", range(4))
def test_a_simulated_load(seed):
    page_size = (8, 4, 1, 2)[seed]
    num_pages = max(40, 160 // page_size)  # room for the longest request
    simulation = Simulation(seed, num_pages, page_size, device="cuda")
    engine = simulation.engine
    engine.use_schedule &= torch.cuda.get_device_capability()[0] == 9
    assert simulation.run(300) == 300
    counts = engine.metrics.counts
    assert counts["graph_replays"] > 20
    assert counts["finished"] > 20
    assert len(engine.graphs) > 1


def test_a_simulated_load_on_sdpa():
    simulation = Simulation(0, page_size=8, device="cuda", kind=serve_compare.SdpaEngine)
    assert simulation.run(150) == 150
    assert simulation.engine.metrics.counts["graph_replays"] > 10
    assert len(simulation.engine.graphs_of_width) > 1
