#include "cute_kernels/emulator/params.h"

#include <charconv>
#include <initializer_list>
#include <iterator>
#include <utility>
#include <vector>

namespace pyflash::emulator {

namespace {

// As torch aligns tensors on the CPU: what an address is beside that is kept, so that sectors are those of a GPU.
constexpr uintptr_t kAlignment = 64;

struct Dim {
  int64_t extent;
  int64_t stride;
};

// Of q, k, v or o.
std::vector<Dim> matrix_dims(ForwardParams const& params, TensorStrides const& strides,
                             int64_t rows, int64_t heads) {
  std::vector<Dim> dims{{rows, strides.row}, {heads, strides.head}, {params.d_head, 1}};
  if (!params.q_sequences().is_packed()) {
    dims.insert(dims.begin(), {params.batch, strides.batch});
  }
  return dims;
}

class Mapping {
 public:
  explicit Mapping(Emulator& emulator) : emulator_(emulator) {}

  // NOTE: a tensor without elements may be nowhere.
  template <class T>
  void map(char const* name, T*& pointer, int element_bytes, std::vector<Dim> const& dims,
           bool output) {
    if (pointer == nullptr) {
      return;
    }
    GlobalTensor tensor{
        .name = name,
        .data = static_cast<std::byte*>(const_cast<void*>(static_cast<void const*>(pointer))),
        .element_bytes = element_bytes,
        .misalignment = static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer) % kAlignment),
        .output = output};
    for (Dim const& dim : dims) {
      tensor.shape.push_back(dim.extent);
      tensor.strides.push_back(dim.stride);
    }
    pointer = reinterpret_cast<T*>(emulator_.add_tensor(tensor));
  }

 private:
  Emulator& emulator_;
};

std::string text_of(float value) {
  char text[32];
  return {text, std::to_chars(text, std::end(text), value).ptr};
}

}  // namespace

void map_memory(ForwardParams& params, Emulator& emulator) {
  Sequences q_sequences = params.q_sequences(), k_sequences = params.k_sequences();
  int64_t const rows_q = q_sequences.tensor_rows(), rows_k = k_sequences.tensor_rows();
  auto const dims_q = matrix_dims(params, params.q_strides, rows_q, params.heads);
  auto const dims_k = matrix_dims(params, params.k_strides, rows_k, params.heads_kv);
  auto const dims_v = matrix_dims(params, params.v_strides, rows_k, params.heads_kv);
  auto const dims_o = matrix_dims(params, params.o_strides, rows_q, params.heads);
  std::vector<Dim> dims_lse{{params.heads, params.lse_strides.head}, {rows_q, 1}};
  if (!q_sequences.is_packed()) {
    dims_lse.insert(dims_lse.begin(), {params.batch, params.lse_strides.batch});
  }
  std::vector<Dim> dims_lse_partial = dims_lse;
  dims_lse_partial.insert(dims_lse_partial.begin(), {params.num_splits, params.lse_strides.split});
  std::vector<Dim> dims_o_partial = dims_lse_partial;
  for (Dim& dim : dims_o_partial) {
    dim.stride *= params.d_head;
  }
  dims_o_partial.push_back({params.d_head, 1});
  std::vector<Dim> const dims_cu_seqlens{{params.batch + 1, 1}};
  // One for each head: a row has its own where heads are rows.
  std::vector<Dim> const dims_sinks{
      {params.heads, params.sink_strides.head},
      {params.sink_strides.row == 0 ? 1 : q_sequences.longest, params.sink_strides.row}};

  Mapping mapping(emulator);
  mapping.map("q", params.q, 2, dims_q, false);
  mapping.map("k", params.k, 2, dims_k, false);
  mapping.map("v", params.v, 2, dims_v, false);
  mapping.map("o", params.o, 2, dims_o, true);
  mapping.map("lse", params.lse, 4, dims_lse, true);
  mapping.map("o_partial", params.o_partial, 4, dims_o_partial, true);
  mapping.map("lse_partial", params.lse_partial, 4, dims_lse_partial, true);
  mapping.map("cu_seqlens_q", q_sequences.starts, 4, dims_cu_seqlens, false);
  mapping.map("cu_seqlens_k", k_sequences.starts, 4, dims_cu_seqlens, false);
  mapping.map("sinks", params.sinks, params.sinks_are_fp32 ? 4 : 2, dims_sinks, false);
  params.set_q_sequences(q_sequences);
  params.set_k_sequences(k_sequences);
}

std::string numbers_json(ForwardParams const& params) {
  auto const window = [](int size) { return std::to_string(size == kNoWindow ? -1 : size); };
  std::string json;
  for (auto const& [name, value] : std::initializer_list<std::pair<char const*, std::string>>{
           {"batch", std::to_string(params.batch)},
           {"heads", std::to_string(params.heads)},
           {"heads_kv", std::to_string(params.heads_kv)},
           {"seqlen_q", std::to_string(params.q_sequences().longest)},
           {"seqlen_k", std::to_string(params.k_sequences().longest)},
           {"total_q", std::to_string(params.q_sequences().total)},
           {"total_k", std::to_string(params.k_sequences().total)},
           {"d_head", std::to_string(params.d_head)},
           {"window_left", window(params.mask.window_left)},
           {"window_right", window(params.mask.window_right)},
           {"softcap", text_of(params.softcap.cap)},
           {"softmax_scale", text_of(params.softmax_scale)},
           {"sinks", params.sinks != nullptr ? "true" : "false"},
           {"num_splits", std::to_string(params.num_splits)}}) {
    json += (json.empty() ? "{\"" : ", \"") + std::string(name) + "\": " + value;
  }
  return json + "}";
}

}  // namespace pyflash::emulator
