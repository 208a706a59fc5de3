// Kernels whose machine code lies in a kernel library as bytes: it is registered with CUDA's runtime, as the host code does that
// nvcc compiles beside kernels. Included by the emitted translation unit alone.
#pragma once

#include <cstddef>

// CUDA's runtime has these for what compilers emit.
extern "C" {
void** __cudaRegisterFatBinary(void const* wrapper);
void __cudaRegisterFatBinaryEnd(void** handle);
void __cudaUnregisterFatBinary(void** handle);
void __cudaRegisterFunction(void** handle, void const* kernel, char* device_name,
                            char const* symbol, int thread_limit, void* thread, void* block,
                            void* block_dim, void* grid_dim, int* warp_size);
}

namespace pyflash {

// What the runtime is given of a file by `nvcc -fatbin`.
struct MachineCode {
  int magic = 0x466243b1;
  int version = 1;
  void const* bytes;
  void* file_name = nullptr;
};

// As long as it lives, the address of the i-th of `kernels` is a kernel, the one with the i-th symbol.
class RegisteredKernels {
 public:
  template <size_t n>
  RegisteredKernels(MachineCode const& code, char const (&kernels)[n],
                    char const* const (&symbols)[n])
      : handle_(__cudaRegisterFatBinary(&code)) {
    for (size_t i = 0; i < n; ++i) {
      auto const name = const_cast<char*>(symbols[i]);
      __cudaRegisterFunction(handle_, &kernels[i], name, name, -1, nullptr, nullptr, nullptr,
                             nullptr, nullptr);
    }
    __cudaRegisterFatBinaryEnd(handle_);
  }
  RegisteredKernels(RegisteredKernels const&) = delete;
  ~RegisteredKernels() { __cudaUnregisterFatBinary(handle_); }

 private:
  void** handle_;
};

}  // namespace pyflash
