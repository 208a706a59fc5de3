"""What the site has beyond the Markdown: the reference, made from the modules and the command."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import typer
from mkdocs.structure.files import File
from typer.cli import get_docs_for_click

from pyflash.cli import app

MODULES = {
    "pyflash": "pyflash",
    "config": "pyflash.config",
    "distributed": "pyflash.distributed",
    "emulator": "pyflash.emulator",
    "layouts": "pyflash.layouts",
}
# A link to a file that is no page, such as a header of the kernels.
OUTSIDE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+(?:cute_kernels|tests|pyflash)/[^)]*\)")
# The end of a command's help, as `pyflash.ui.app.examples` writes it.
EXAMPLES = re.compile(r"\x08\nExamples:\n((?:  .*\n)+)")


def on_files(files, config):
    pages = {name: reference(module) for name, module in MODULES.items()}
    pages["command"] = command()
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown, **_):
    return OUTSIDE.sub(r"\1", markdown)


def reference(module_name: str) -> str:
    """The public functions and classes of a module, under the names by which users import them."""
    module = import_module(module_name)
    shown = []
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            place = f"{value.__module__}.{value.__qualname__}"
            heading = f"{module_name}.{name}"
            options = f"      heading: {heading}\n      toc_label: {name}\n"
            shown.append(f"::: {place}\n    options:\n{options}")
    purpose = inspect.getdoc(module).splitlines()[0]
    return "\n".join([f"# {module_name}\n", f"{purpose}\n", *shown])


def command() -> str:
    group = typer.main.get_command(app)
    for shown in commands_of(group):  # what typer shows of it is cut
        shown.short_help = inspect.cleandoc(shown.help).splitlines()[0]
    context = typer.Context(group, info_name="pyflash")
    text = get_docs_for_click(obj=group, ctx=context, name="pyflash", title="The command pyflash")
    return EXAMPLES.sub(as_block, text)


def commands_of(group):
    for found in getattr(group, "commands", {}).values():
        yield found
        yield from commands_of(found)


def as_block(examples: re.Match[str]) -> str:
    return f"**Examples**:\n\n```console\n{inspect.cleandoc(examples[1])}\n```\n"
