"""python -m codegen: lists, emits and builds configs."""

import sys

from pyflash.codegen.cli import main

sys.exit(main(prog="python -m codegen"))
