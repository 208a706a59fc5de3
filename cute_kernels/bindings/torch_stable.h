// libtorch's stable ABI: all of torch that the op library knows. With it one binary serves every
// Python and every torch from 2.10 on, whatever version the headers it was compiled with are of.
#pragma once

// Keeps the headers of later versions from using functions that 2.10 does not have.
#define TORCH_TARGET_VERSION 0x020a000000000000

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

// The one function they use all the same, from 2.13 on: it takes an op library's registrations back
// when the process ends. They stay, as they do with earlier versions.
inline AOTITorchError keep_library_object(TorchLibraryHandle) { return 0; }
#define aoti_torch_delete_library_object keep_library_object
#include <torch/csrc/stable/library.h>
#undef aoti_torch_delete_library_object

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
