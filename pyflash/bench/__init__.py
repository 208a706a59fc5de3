"""The benchmarks: `pyflash bench --help`, docs/guides/bench.md.

Correctness first, then timing: random inputs rotated through more memory than the L2 cache, warm
clocks, interleaved contenders, medians. The figures of a record come from one run on one machine:
compare ratios, not milliseconds, across machines.
"""
