"""The headers of the project, for tests that call a compiler themselves, and sources as one unit:
what a source takes the compiler is its headers.

Two sources of one unit must not have a name each for itself: such as a constant of an unnamed
namespace. The compiler says which two do, and one of them is then named in APART.
"""

from collections.abc import Collection
from pathlib import Path

from pyflash.codegen import config_header, ops_header

ROOT = Path(__file__).resolve().parents[2]


# The sources that have a name in common with others of their folder of cute_kernels.
APART = {
    "bindings": (),
    "host": ("cpu_forward", "grid", "tuned", "variant_program"),
}


def unite(room: str, root: Path, apart: Collection[str] = ()) -> None:
    """Makes one source of those of a folder of cute_kernels in a copy of the repository, but for
    those of APART and `apart`."""
    folder = root / "cute_kernels" / room
    kept = {*APART[room], *apart}
    sources = [path for path in sorted(folder.glob("*.cpp")) if path.stem not in kept]
    for path in sources:
        path.rename(path.with_suffix(".inc"))
    lines = [f'#include "cute_kernels/{room}/{path.stem}.inc"' for path in sources]
    (folder / f"all_{room}.cpp").write_text("\n".join(lines) + "\n")


def includes() -> list[str]:
    emitted = (config_header.include_dir(), *ops_header.include_dirs())
    return [f"-I{path}" for path in (ROOT, *emitted)]
