"""The tuner: `pyflash.tune(space, problems, ...)`, and `pyflash tune` on the command line.

`pyflash.tune` is the function, so the package is `pyflash.tuner`; the typer app with the command
`tune` is `pyflash.tuner.cli:app`, to be mounted with `app.add_typer(app)` and no name.
"""
