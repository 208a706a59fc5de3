"""What every command shares: one line for an error, exit statuses, options, output."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from pyflash.config import Arch

T = TypeVar("T")
EXIT_STATUSES = (
    "Exit status: 0; 1 for an error, or where a command finds something wrong, as its help says; 2 "
    "for a command line that does not parse; 130 after Ctrl-C. An error is one line on stderr, "
    "where notes and progress go too: stdout has results alone."
)


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\b\nExamples:\n" + "".join(f"  {line}\n" for line in lines)


def completed_from(
    words: Sequence[str] | Callable[[], Sequence[str]],
) -> Callable[[str], list[str]]:
    """For `autocompletion`: those that begin with what is typed, or with what follows its last
    comma."""

    def complete(incomplete: str) -> list[str]:
        known = words() if callable(words) else words
        before, comma, last = incomplete.rpartition(",")
        whole = [word for word in known if word.startswith(incomplete)]
        return whole or [before + comma + word for word in known if word.startswith(last)]

    return complete


def _arch_names() -> list[str]:
    from pyflash.config import ARCHS

    return [arch.name for arch in ARCHS]


def _ranked() -> list[str]:
    from pyflash.config import FAMILIES

    return [str(config) for family in FAMILIES for config in family.ranked]


def _set_names() -> Sequence[str]:
    from pyflash.config import SET_NAMES

    return SET_NAMES


known_archs = completed_from(_arch_names)
known_configs = completed_from(_ranked)
known_sets = completed_from(_set_names)
SHORT_FORM = "'(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles'"

JsonOption = Annotated[bool, typer.Option("--json", help="As JSON.")]
HtmlOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Writes a self-contained page.")
]
ArchOption = Annotated[
    str | None,
    typer.Option(
        metavar="ARCH",
        autocompletion=known_archs,
        help="Such as sm_90; that of this machine's GPU by default.",
    ),
]
ConfigArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        autocompletion=known_configs,
        help=f"Short form: {SHORT_FORM}.",
    ),
]

# What a command reports in a line. Any other exception is a fault of pyflash: a traceback.
ERRORS = (ValueError, RuntimeError, OSError, ImportError)


class _Reporting:
    """Reports errors in one line on stderr, wherever they come from."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            try:
                return super().main(*args, **kwargs)  # type: ignore[misc]
            finally:
                _flush_stdout()  # while a closed pipe can still be told
        except BrokenPipeError:
            sys.exit(1)
        except ERRORS as error:
            typer.echo(f"error: {one_line(error)}", err=True)
            sys.exit(1)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)  # type: ignore[misc]
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None


class Commands(_Reporting, TyperGroup):
    pass


class Command(_Reporting, TyperCommand):
    """For a command that is also run by itself."""


def new_app(**options: Any) -> typer.Typer:
    """A Typer app whose commands follow these rules. Help is plain text: rich's takes as long to
    import as all the rest."""
    return typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        **{"add_completion": False} | options,
    )


_MORE_SPACE = (
    "; free some, in the cache by `pyflash cache --prune --older-than 30d`, or set "
    "PYFLASH_CACHE_DIR or TMPDIR, where compilers write, to a folder of another disk"
)


def one_line(error: BaseException) -> str:
    """An exception's message in a line."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        text = f"{where}{error.strerror}"
    else:
        lines = (line.strip() for line in str(error).splitlines())
        text = "; ".join(filter(None, lines)).replace(":; ", ": ") or type(error).__name__
    return text + (_MORE_SPACE if os.strerror(errno.ENOSPC) in text else "")


def console(*, stderr: bool = False) -> Console:
    """Where results are shown; notes and progress go to stderr."""
    from rich.console import Console

    return Console(highlight=False, stderr=stderr)


# Seconds of silence before a note says what is being done, and between that and further ones.
_PATIENCE = 2.0
_PATIENCE_AFTER = 10.0


@contextmanager
def working(text: str) -> Iterator[None]:
    """Tells on stderr what is being done, where it takes more than two seconds, and every ten
    seconds how long it has taken."""
    done = threading.Event()
    teller = threading.Thread(target=_tell, args=(text, done), daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()  # so that no note comes after the result


def _tell(text: str, done: threading.Event) -> None:
    began = time.monotonic()
    if done.wait(_PATIENCE):
        return
    typer.echo(text, err=True)
    while not done.wait(_PATIENCE_AFTER):
        typer.echo(f"{text}: {time.monotonic() - began:.0f} s", err=True)


def tracked(items: Iterable[T], total: int, text: str) -> Iterator[T]:
    """The items one by one, how many are done being shown on stderr: by a bar on a terminal, else
    in a line every few seconds."""
    err = console(stderr=True)
    if err.is_terminal:
        from rich.progress import track

        yield from track(items, text, total, console=err, transient=True)
        return
    said = time.monotonic()
    for done, item in enumerate(items):
        if done % 256 == 0 and time.monotonic() - said > _PATIENCE:
            said = time.monotonic()
            err.print(f"{text}: {done:,} of {total:,}", markup=False, soft_wrap=True)
        yield item


def show(*renderables: RenderableType) -> None:
    """Prints tables and texts. What a narrow terminal has no room for continues on its next line:
    numbers are never cut."""
    out = console()
    for renderable in renderables:
        out.print(renderable, crop=False)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1))


def write_file(path: Path, text: str) -> None:
    """The file appears whole or not at all. Raises OSError where it cannot be written."""
    from pyflash.codegen.cache_dir import replacing

    with replacing(path) as partial:
        partial.write_text(text)


def check_writable(*paths: Path | None) -> None:
    """Raises OSError for a file that cannot be written, before minutes of work."""
    for path in filter(None, paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        try:
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None


def check_alone(option: str, value: object, others: Mapping[str, object]) -> None:
    """Raises ValueError if another option has no effect beside one that measures nothing."""
    for other, given in others.items():
        if value and given:
            raise ValueError(f"{option} measures nothing: expected no {other} beside it")


def given_options(ctx: typer.Context) -> dict[str, str]:
    """The parameters that are on the command line, as they are written there."""
    given = {}
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name or "")
        if param.name and source is not None and source.name == "COMMANDLINE":
            given[param.name] = next(
                (opt for opt in param.opts if opt[0] == "-"), param.metavar or ""
            )
    return given


def chosen_arch(arch: str | None) -> Arch:
    """The one named, else the newest of this machine's GPUs. Raises ValueError without either."""
    from pyflash.codegen.build import default_archs
    from pyflash.config import Arch

    if arch is not None:
        return Arch.of(arch)
    here = default_archs()
    if not here:
        raise ValueError("no GPU on this machine: pass --arch, such as --arch sm_90")
    return here[-1]


def _flush_stdout() -> None:
    """Raises OSError if the reader has closed the pipe or the disk is full."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
