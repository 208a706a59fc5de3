"""`pyflash tune --install`: a journal's winners become what selection takes, for this user."""

from __future__ import annotations

import re
from pathlib import Path

from pyflash.op import tables
from pyflash.op.library import built_configs
from pyflash.tuner.tables import merged, table_of


def install(journal: Path) -> str:
    """Adds the journal's choices to the user's table of its GPU, where they replace those for the
    same classes, and makes this process use them; returns what was done, in a sentence or two.

    Raises ValueError for a journal without winners, OSError where nothing can be written.
    """
    table = table_of([journal], costs=False)
    path = tables.user_dir() / f"{file_name(table['gpu'])}.json"
    if path.exists():
        table = merged(table, tables.read_table(path))
    tables.write_table(path, table)
    tables.load_tables()
    built = built_configs()
    missing = {row["config"] for row in table["choices"]} - {str(config) for config in built}
    text = f"{path}: {len(table['choices'])} classes of problems"
    if missing:
        commands = " ".join(f"'{config}'" for config in sorted(missing))
        text += f"; until they are built, the rule decides: pyflash build {commands}"
    return text


def file_name(gpu: str) -> str:
    """Of a GPU's table: nvidia_h200."""
    return re.sub(r"\W+", "_", gpu).strip("_").lower()
