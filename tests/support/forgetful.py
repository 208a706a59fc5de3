"""A memory of built kernels that holds none."""

from __future__ import annotations


class Forgetful(dict):
    """Every call asks for its own kernel."""

    def __contains__(self, key: object) -> bool:
        return False
