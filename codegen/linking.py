"""Links objects into shared libraries, each of which appears whole and sealed, or not at all."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyflash.codegen import seal, toolchain
from pyflash.codegen.cache import library_problem, used
from pyflash.codegen.cache_dir import (
    PARTIAL,
    cache_dir,
    discard,
    in_cache,
    make_folder,
    replacing,
    write_text,
)
from pyflash.codegen.cache_locks import locked_for
from pyflash.codegen.compilation import Compilation, console, waiting
from pyflash.codegen.guard import guarded


def link(
    library: Path,
    objects: Sequence[Compilation],
    options: Sequence[str],
    record: Mapping[str, Any] | None = None,
) -> Path:
    """Links compiled objects into `library`, which is sealed with `record`; returns its path.

    Raises RuntimeError with the linker's first complaint."""
    with locked_for([library], waiting) as locks:
        make_folder(library.parent)
        for stray in library.parent.glob(f"{PARTIAL}*-{library.name}"):
            discard(stray)
        with replacing(library) as partial:
            files = [str(c.object) for c in objects]
            command = [*toolchain.cxx(), "-shared", "-o", str(partial), *files, *options]
            _run(command, locks, library, partial)
            seal.seal(partial, record)
    console.print(f"{library.name}: linked {len(objects)} objects into {library.parent}")
    return library


def reusable(library: Path) -> bool:
    """Whether a library is in the cache and as it was linked; what is damaged is removed."""
    if not library.exists():
        return False
    if problem := library_problem(library):
        console.print(f"{library}: {problem}; it is built again")
        discard(library)
        return False
    used(library.parent)
    return True


def _run(command: Sequence[str], locks: Sequence[int], library: Path, partial: Path) -> None:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with guarded(command, locks, partial, in_cache(library) is not None, **options) as process:
        printed, _ = process.communicate()
    if process.returncode == 0 and partial.exists():
        return
    log = cache_dir() / "link.log"
    write_text(log, printed)
    lines = [line for line in printed.splitlines() if line.strip()]
    words = ("error", "undefined reference", "link failed")
    complaints = [line for line in lines if any(word in line for word in words)]
    first = (complaints or lines or ["the linker did not run"])[0].strip()
    raise RuntimeError(f"linking {library.name} failed: {first}; all that was printed is in {log}")
