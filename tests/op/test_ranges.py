"""Which keys a row attends, which queries attend a key, and where sequences lie, in C++."""

import subprocess

from support.headers import ROOT, includes


def test_ranges_are_those_of_the_definition(tmp_path):
    program = tmp_path / "check_ranges"
    source = ROOT / "tests/support/check_ranges.cpp"
    command = ["g++", "-std=c++20", "-Wall", "-Werror", *includes(), source, "-o", program]
    subprocess.run(command, check=True)
    result = subprocess.run([program], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    assert int(result.stdout) > 100_000
