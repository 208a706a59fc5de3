"""python -m pyflash.bench: the same as `pyflash bench`."""

import sys

from pyflash.bench.cli import app

app(["bench", *sys.argv[1:]], prog_name="pyflash")
