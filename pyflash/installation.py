"""Which version is installed, and where. It imports nothing, so that every module may ask."""

from pathlib import Path

VERSION = "0.3.0"
FOLDER = Path(__file__).resolve().parent  # the package
