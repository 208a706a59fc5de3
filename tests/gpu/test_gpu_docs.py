"""The blocks of the docs that need a GPU, after those above them."""

from __future__ import annotations

import pytest

pytest.importorskip("markdown_it")

from support.markdown import blocks_of, markdown_files, run_python, session

WITH_GPU = [path for path in markdown_files() if any(b.mark == "gpu" for b in blocks_of(path))]


@pytest.mark.gpu
@pytest.mark.parametrize("path", WITH_GPU, ids=str)
def test_python_runs_on_a_gpu(path, tmp_path):
    ran = run_python(session(path, gpu=True), path, tmp_path, environment={})
    assert ran.returncode == 0, ran.stderr
