"""The commands of `pyflash` that belong to no tool's own room.

Modules with commands import torch, compilers and rich when a command runs, so that help is quick.
"""
