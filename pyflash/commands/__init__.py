"""The commands of `pyflash` that belong to no tool's own room, and what all commands share.

Modules with commands import torch, compilers and rich when a command runs, so that help is quick.
"""
