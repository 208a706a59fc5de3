"""Runs the kernels on the CPU and reports races, bank conflicts and counts.

>>> out, lse, report = pyflash.emulate(q, k, v, config)
>>> report.check()           # raises KernelError: races, lost waits, out-of-bounds accesses
>>> print(report)            # a table: bank conflicts and sectors at each access site
"""

from pyflash.emulator.report import (
    Access,
    Counts,
    Finding,
    KernelError,
    Report,
)
from pyflash.emulator.run import (
    ORDERS,
    emulate,
    emulate_backward,
    emulate_backward_varlen,
    emulate_paged,
    emulate_varlen,
)
from pyflash.emulator.traffic import GlobalTraffic, SharedTraffic

__all__ = [
    "ORDERS",
    "Access",
    "Counts",
    "Finding",
    "GlobalTraffic",
    "KernelError",
    "Report",
    "SharedTraffic",
    "emulate",
    "emulate_backward",
    "emulate_backward_varlen",
    "emulate_paged",
    "emulate_varlen",
]
