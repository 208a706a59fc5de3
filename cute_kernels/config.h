// The config types of all kernel families: FlashForwardKernelConfig, DType, AnyConfig. They are emitted from
// pyflash/config when something is built, see codegen/config_header.py.
#pragma once

#include "cute_kernels/generated/configs.h"
