"""Bugs for the emulator to find, planted in copies of the real kernels."""
