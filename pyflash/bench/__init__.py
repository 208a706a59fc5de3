"""The forward benchmark: `python -m pyflash.bench --help`.

Correct first, then timed: random inputs rotated through more memory than the L2 cache holds, warm
clocks, contenders in turns, medians. All figures of a record come from one run on one machine:
compare its ratios, not its milliseconds, with those of another.
"""
