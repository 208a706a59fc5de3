"""Looks inside kernels: layouts, traffic, machine code, and predictions beside measurements."""
