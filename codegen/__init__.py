"""From configs to compiled kernels.

`codegen.emit` prints a config as one C++ translation unit, which instantiates the kernel and holds
no kernel code; `codegen.build` compiles such units into a library that the op loads. Neither needs
torch or a GPU.
"""
