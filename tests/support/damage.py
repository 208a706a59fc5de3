"""What may happen to a file between the build that wrote it and the process that reads it."""

from __future__ import annotations

import random
from pathlib import Path

KINDS = ("truncate", "flip", "delete", "replace")


def damage(files: list[Path], seed: int) -> str:
    """Damages one of `files` as the seed says; returns how, in words."""
    rng = random.Random(seed)
    path = rng.choice(sorted(files))
    kind = KINDS[seed % len(KINDS)]
    data = bytearray(path.read_bytes())
    if kind == "truncate":
        at = rng.choice([0, rng.randrange(len(data) + 1), max(0, len(data) - rng.randrange(1, 64))])
        path.write_bytes(data[:at])
        return f"{path.name} cut to {at} of {len(data)} bytes"
    if kind == "flip" and data:
        # Near the end as often as elsewhere: there the seal is.
        at = rng.choice(
            [rng.randrange(len(data)), len(data) - 1 - rng.randrange(min(300, len(data)))]
        )
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        return f"{path.name} with a bit of byte {at} flipped"
    path.unlink()
    if kind == "delete":
        return f"{path.name} deleted"
    contents = rng.choice([b"", b"\0" * len(data), rng.randbytes(max(1, len(data))), b"{}", b"x\n"])
    path.write_bytes(contents)
    return f"{path.name} replaced by {len(contents)} other bytes"
