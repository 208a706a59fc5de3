"""The headers of the project, for tests that call a compiler themselves."""

from pathlib import Path

from pyflash.codegen import config_header, ops_header

ROOT = Path(__file__).resolve().parents[2]


def includes() -> list[str]:
    emitted = (config_header.include_dir(), *ops_header.include_dirs())
    return [f"-I{path}" for path in (ROOT, *emitted)]
