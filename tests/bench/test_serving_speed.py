"""The program that times serving runs on the CPU, with stand-ins for a GPU."""

from __future__ import annotations

import pytest
from support import serving_speed


@pytest.mark.parametrize("part", list(serving_speed.PARTS))
def test_cells_print_ratios_and_no_error(part, capsys):
    serving_speed.main(["--dry", "--rounds", "1", part])
    said = capsys.readouterr().out.splitlines()
    assert len(said) > 2
    assert all(line.startswith(f"{part}: ") for line in said[1:])
    assert not [line for line in said if "Error" in line]


def test_a_cell_that_fails_prints_its_error(capsys):
    def fails():
        yield "before"
        raise ValueError("of this cell\nand more")

    serving_speed.print_cell("cell", fails)
    assert capsys.readouterr().out == "cell: before\ncell: ValueError: of this cell\n"


def test_unknown_parts_are_refused(capsys):
    with pytest.raises(SystemExit):
        serving_speed.main(["mixd"])
    assert "no part mixd" in capsys.readouterr().err
