"""Attention beside the CUTLASS profiler: the time of its two GEMMs, and what fusing them saves.

    read(path)                          a CSV file of the profiler, row by row
    join(read(a), read(b))              any two of them
    compare(problem, gemms, fused)      attention beside QK^T and PV, with rooflines
    live.compare_on_gpu(problem, ...)   the same, measured here

Reading, joining and comparing need no GPU and no compiler.
"""

from pyflash.bench.gpus import GPUS, Gpu, find_gpu
from pyflash.bench.profiler_csv import (
    COLUMNS,
    Joined,
    Profile,
    ProfileError,
    Refused,
    Row,
    as_text,
    join,
    parse,
    read,
)
from pyflash.bench.work import Gemm, gemms_of
from pyflash.compare.profiler import ProfilerError, find_profiler, run_profiler
from pyflash.compare.report import Comparison, Line, Saving, compare

__all__ = [
    "COLUMNS",
    "GPUS",
    "Comparison",
    "Gemm",
    "Gpu",
    "Joined",
    "Line",
    "Profile",
    "ProfileError",
    "ProfilerError",
    "Refused",
    "Row",
    "Saving",
    "as_text",
    "compare",
    "find_gpu",
    "find_profiler",
    "gemms_of",
    "join",
    "parse",
    "read",
    "run_profiler",
]
