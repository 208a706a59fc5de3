// libtorch's stable ABI: all of torch that the op library knows. With it one binary serves every
// Python and every torch from 2.10 on, whatever version the headers it was compiled with are of.
#pragma once

// Restricts the headers of later versions to functions of 2.10.
#define TORCH_TARGET_VERSION 0x020a000000000000

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

// The one function of 2.13 that they use nevertheless: it removes an op library's registrations when the process ends.
// Here they stay, as with earlier versions.
inline AOTITorchError keep_library_object(TorchLibraryHandle) { return 0; }
#define aoti_torch_delete_library_object keep_library_object
#include <torch/csrc/stable/library.h>
#undef aoti_torch_delete_library_object

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
