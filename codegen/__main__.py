"""python -m codegen: `pyflash build` that puts what it builds into a checkout's pyflash/lib."""

import typer

from pyflash.codegen.compilation import ROOT
from pyflash.codegen.kernel_libraries import LIB_DIR
from pyflash.commands.build import app

OUT = {"out": LIB_DIR} if (ROOT / "pyproject.toml").exists() else {}

if __name__ == "__main__":
    typer.main.get_command(app).main(prog_name="python -m codegen", default_map=OUT)
