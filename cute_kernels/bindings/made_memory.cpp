#include "cute_kernels/bindings/made_memory.h"

namespace pyflash {
namespace {

// In a stream that captures a graph nothing is kept: the graph makes all anew whenever it runs.
MadeStore::Use kept(std::optional<MadeKey> key, int64_t bytes, LastingMemoryCalls const& calls,
                    int32_t device, void* stream) {
  if (!key || calls.number_of(stream, &key->stream) != 0) {
    return {};
  }
  key->device = device;
  return made_store().use(*key, bytes, calls, stream);
}

}  // namespace

MadeMemory::MadeMemory(void const* row, bool makes_of_tensors, MadeBefore const& made,
                       LastingMemoryCalls const& calls, variant::Arguments const& captured,
                       Promise const& promise, torch::stable::Tensor const& q, void* stream)
    : kept_(made.n_ints > 0
                ? kept(made_key(row, makes_of_tensors, made, captured, promise),
                       made.n_ints * int64_t(sizeof(int)), calls, q.get_device_index(), stream)
                : MadeStore::Use()) {
  if (kept_) {
    data_ = static_cast<int*>(kept_.data());
  } else if (made.n_ints > 0) {
    own_ = allocate<1>("what the variant has made before its kernel", q, {made.n_ints},
                       aoti_torch_dtype_float32());
    data_ = static_cast<int*>(own_->mutable_data_ptr());
  }
}

}  // namespace pyflash
