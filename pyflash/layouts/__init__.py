"""A playground of CuTe layouts: algebra, bank conflicts, pictures.

    from pyflash.layouts import *

    block = composition(Swizzle(3, 3, 3), Layout((8, 64), (64, 1)))
    K = tile_to_shape(block, (64, 128))
    conflicts(Access.ldmatrix(K))         # 4 wavefronts, 4 at best: no conflicts
    plot(K)                               # SVG, without and with the swizzle; notebooks show K so

Needs no compiler and no GPU. `pyflash.inspect` has the layouts of a config from its own C++ types.
"""

from pyflash.layouts.algebra import (
    Layout,
    Swizzle,
    composition,
    partition,
    thread_values,
    tile_to_shape,
    zipped_divide,
)
from pyflash.layouts.conflicts import Access, Conflicts, bank, conflicts
from pyflash.layouts.pictures import plot, plot_threads

__all__ = [
    "Access",
    "Conflicts",
    "Layout",
    "Swizzle",
    "bank",
    "composition",
    "conflicts",
    "partition",
    "plot",
    "plot_threads",
    "thread_values",
    "tile_to_shape",
    "zipped_divide",
]
