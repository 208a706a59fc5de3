"""The headers of the project, for tests that call a compiler themselves, and sources as one unit:
what a source takes the compiler is its headers.

Two sources of one unit must not have a name each for itself: such as a constant of an unnamed
namespace. The compiler says which two do, and one of them is then named in APART.
"""

from collections.abc import Collection, Iterable
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
    sources = [path.rename(path.with_suffix(".inc")) for path in _together(room, root, apart)]
    (folder / f"all_{room}.cpp").write_text(_unit_of(sources, root))


def one_unit(room: str, root: Path) -> str:
    """The sources of a folder of cute_kernels as one, but for those of APART."""
    return _unit_of(_together(room, root), root)


def _together(room: str, root: Path, apart: Collection[str] = ()) -> list[Path]:
    sources = sorted((root / "cute_kernels" / room).glob("*.cpp"))
    return [path for path in sources if path.stem not in {*APART[room], *apart}]


def _unit_of(sources: Iterable[Path], root: Path) -> str:
    return "".join(f'#include "{path.relative_to(root)}"\n' for path in sources)


def includes() -> list[str]:
    emitted = (config_header.include_dir(), *ops_header.include_dirs())
    return [f"-I{path}" for path in (ROOT, *emitted)]
