"""Which keys a row attends, which queries attend a key, where sequences lie, in which order blocks
of keys add to the sums of dQ, and divisors that the host knows, in C++."""

import subprocess

import pytest
from support.headers import ROOT, includes


@pytest.mark.parametrize("what", ["ranges", "turns", "divisors"])
def test_it_is_as_by_definition(tmp_path, what):
    program = tmp_path / f"check_{what}"
    source = ROOT / f"tests/support/check_{what}.cpp"
    command = ["g++", "-std=c++20", "-Wall", "-Werror", *includes(), source, "-o", program]
    subprocess.run(command, check=True)
    result = subprocess.run([program], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    assert int(result.stdout) > 100_000
