// The memory of what a variant has made before its kernel: kept from calls before, or of this call alone.
#pragma once

#include <cstdint>
#include <optional>

#include "cute_kernels/bindings/tensors.h"
#include "cute_kernels/host/made_key.h"
#include "cute_kernels/host/made_store.h"
#include "cute_kernels/host/variant_map.h"

namespace pyflash {

class MadeMemory {
 public:
  // stream: of the current device, where q is.
  template <class Op>
  MadeMemory(VariantKernelOf<Op> const& kernel, typename Op::Params const& params,
             variant::Arguments const& captured, Promise const& promise,
             torch::stable::Tensor const& q, void* stream)
      : MadeMemory(kernel.row, kernel.row->makes_of_tensors, kernel.row->made(params),
                   kernel.library->lasting_memory, captured, promise, q, stream) {}

  int* data() const { return data_; }
  bool is_made() const { return kept_ && kept_.is_made(); }
  // All launches are in the stream.
  void launched() { kept_.launched(); }

 private:
  MadeMemory(void const* row, bool makes_of_tensors, MadeBefore const& made,
             LastingMemoryCalls const& calls, variant::Arguments const& captured,
             Promise const& promise, torch::stable::Tensor const& q, void* stream);

  MadeStore::Use kept_;
  std::optional<torch::stable::Tensor> own_;
  int* data_ = nullptr;
};

}  // namespace pyflash
