#include "cute_kernels/emulator/params.h"

#include <cstddef>
#include <cstring>

namespace pyflash::emulator {

namespace {

struct Field {
  char const* name;
  size_t offset;
  size_t bytes;
};

#define PYFLASH_FIELD(name) {#name, offsetof(ForwardParams, name), sizeof(ForwardParams{}.name)}
#define PYFLASH_STRIDES(name) \
  PYFLASH_FIELD(name.batch), PYFLASH_FIELD(name.row), PYFLASH_FIELD(name.head)

constexpr Field kIntegers[] = {
    PYFLASH_FIELD(q),
    PYFLASH_FIELD(k),
    PYFLASH_FIELD(v),
    PYFLASH_FIELD(o),
    PYFLASH_FIELD(lse),
    PYFLASH_FIELD(cu_seqlens_q),
    PYFLASH_FIELD(cu_seqlens_k),
    PYFLASH_FIELD(o_partial),
    PYFLASH_FIELD(lse_partial),
    PYFLASH_STRIDES(q_strides),
    PYFLASH_STRIDES(k_strides),
    PYFLASH_STRIDES(v_strides),
    PYFLASH_STRIDES(o_strides),
    PYFLASH_FIELD(lse_strides.batch),
    PYFLASH_FIELD(lse_strides.head),
    PYFLASH_FIELD(lse_strides.split),
    PYFLASH_FIELD(batch),
    PYFLASH_FIELD(heads),
    PYFLASH_FIELD(heads_kv),
    PYFLASH_FIELD(seqlen_q),
    PYFLASH_FIELD(seqlen_k),
    PYFLASH_FIELD(total_q),
    PYFLASH_FIELD(total_k),
    PYFLASH_FIELD(d_head),
    PYFLASH_FIELD(window_left),
    PYFLASH_FIELD(window_right),
    PYFLASH_FIELD(num_splits),
    PYFLASH_FIELD(sinks),
    PYFLASH_FIELD(sinks_are_fp32),
    PYFLASH_FIELD(sink_strides.head),
    PYFLASH_FIELD(sink_strides.row),
};

constexpr Field kFloats[] = {PYFLASH_FIELD(softmax_scale), PYFLASH_FIELD(softcap)};

constexpr size_t total_bytes() {
  size_t total = 0;
  for (Field const& field : kIntegers) {
    total += field.bytes;
  }
  for (Field const& field : kFloats) {
    total += field.bytes;
  }
  return total;
}
static_assert((total_bytes() + 7) / 8 * 8 == sizeof(ForwardParams),
              "a field of ForwardParams is not listed");

// NOTE: little-endian, as everything that runs kernels: the low bytes of a number come first.
template <class Value, size_t n>
bool set(ForwardParams& params, Field const (&fields)[n], std::string_view name, Value value) {
  for (Field const& field : fields) {
    if (name == field.name) {
      std::memcpy(reinterpret_cast<std::byte*>(&params) + field.offset, &value, field.bytes);
      return true;
    }
  }
  return false;
}

}  // namespace

bool set_param(ForwardParams& params, std::string_view name, int64_t value) {
  return set(params, kIntegers, name, value);
}

bool set_param(ForwardParams& params, std::string_view name, double value) {
  return set(params, kFloats, name, static_cast<float>(value));
}

}  // namespace pyflash::emulator
