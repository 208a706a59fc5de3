"""The headers of the project, for tests that call a compiler themselves."""

from pathlib import Path

from pyflash.codegen.config_header import include_dir

ROOT = Path(__file__).resolve().parents[2]


def includes() -> list[str]:
    return [f"-I{ROOT}", f"-I{include_dir()}"]
