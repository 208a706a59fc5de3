"""Shared by the tools: commands that follow one set of rules, tables, pages, pictures as SVG.

Modules with commands import torch, compilers and rich when a command runs, so that help is quick.
"""
