"""`pyflash tune --install`: a journal's winners become what selection takes, for this user."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pyflash.config import Features, first_covering
from pyflash.op import tables
from pyflash.op.library import built_configs, load
from pyflash.op.selection import features_in_config
from pyflash.tuner.tables import merged, table_of


def install(journal: Path) -> str:
    """Adds the journal's choices to the user's table of its GPU, where they replace those for the
    same classes, and makes this process use them; returns what was done, in a sentence or two.

    Winners that are not built for their problems are compiled, for every process of this user;
    where they cannot be, the sentence says how to. Raises ValueError for a journal without winners,
    OSError where nothing can be written.
    """
    table = table_of([journal], costs=False)
    path = table_path(table["gpu"])
    if path.exists():
        table = merged(table, tables.read_table(path))
    tables.write_table(path, table)
    tables.load_tables()
    text = f"{path}: {len(table['choices'])} classes of problems"
    if missing := _missing(table):
        try:
            _build(table)
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            configs = " ".join(f"'{config}'" for config in missing)
            text += (
                f"; not built, so that the rule decides there ({reason}): pyflash build {configs}"
            )
        else:
            text += f"; built {len(missing)} configs"
    return text


def _missing(table: tables.Table) -> list[str]:
    """The configs of choices that are not built with the features of their problems."""
    built = {str(config): row for config, row in built_configs().items()}
    return sorted(
        {
            row["config"]
            for row in table["choices"]
            if row["config"] not in built
            or first_covering(_features(row), built[row["config"]].features) is None
        }
    )


def _build(table: tables.Table) -> None:
    """The configs of all choices, because a library that is built replaces the one of its name."""
    from pyflash.codegen.build import build_kernels

    configs = sorted({row["config"] for row in table["choices"]})
    features = {_features(row) for row in table["choices"]}
    library = build_kernels(configs, [table["sm"]], name="tuned", more_features=sorted(features))
    load(library)


def _features(row: dict[str, Any]) -> Features:
    """That the config of a choice needs for it."""
    return features_in_config(row["class"]["features"], row["class"]["d_head"], row["config"])


def table_path(gpu: str) -> Path:
    """The user's table of a GPU: .../tuned/nvidia_h200.json."""
    name = re.sub(r"\W+", "_", gpu).strip("_").lower()
    return tables.user_dir() / f"{name}.json"
