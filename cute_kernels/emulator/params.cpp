#include "cute_kernels/emulator/params.h"

#include <charconv>
#include <climits>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

#include "cute_kernels/emulator/mapping.h"
#include "cute_kernels/host/options.h"

namespace pyflash::emulator {

namespace {

// The dimensions of q, k, v or o. batches: 0 where sequences are packed.
std::vector<Dim> matrix_dims(ForwardParams const& params, TensorStrides const& strides,
                             int64_t batches, int64_t rows, int64_t heads) {
  std::vector<Dim> dims{{rows, strides.row}, {heads, strides.head}, {params.d_head, 1}};
  if (batches > 0) {
    dims.insert(dims.begin(), {batches, strides.batch});
  }
  return dims;
}

// A row has its own number where heads are rows.
std::vector<Dim> per_head_dims(ForwardParams const& params, PerHead const& numbers) {
  TensorStrides const& strides = numbers.strides;
  std::vector<Dim> dims{{params.heads, strides.head},
                        {strides.row == 0 ? 1 : params.q_sequences().longest, strides.row}};
  if (strides.batch != 0) {
    dims.insert(dims.begin(), {params.batch, strides.batch});
  }
  return dims;
}

// An int, or a float, which kernels have of every other number.
std::string text_of(double value) {
  if (std::abs(value) <= INT_MAX && value == static_cast<int>(value)) {
    return std::to_string(static_cast<int>(value));
  }
  char text[32];
  return {text, std::to_chars(text, std::end(text), static_cast<float>(value)).ptr};
}

}  // namespace

void map_memory(ListedForwardParams& params, Emulator& emulator) {
  Sequences q_sequences = params.q_sequences();
  KvSource kv = params.kv();
  Pages const pages = kv.pages;
  int64_t const rows_q = q_sequences.tensor_rows();
  int64_t const rows_k = kv.is_paged() ? pages.size : kv.sequences.tensor_rows();
  int64_t const batches = q_sequences.is_packed() ? 0 : params.batch;
  int64_t const batches_k = kv.is_paged() ? pages.number : batches;
  auto const dims_q = matrix_dims(params, params.q_strides, batches, rows_q, params.heads);
  auto const dims_k = matrix_dims(params, kv.k.strides, batches_k, rows_k, kv.heads);
  auto const dims_v = matrix_dims(params, kv.v.strides, batches_k, rows_k, kv.heads);
  auto const dims_o = matrix_dims(params, params.o_strides, batches, rows_q, params.heads);
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

  Mapping mapping(emulator);
  mapping.map("q", params.q, 2, dims_q, Role::kInput);
  int const kv_bytes = params.has_fp8_kv() ? 1 : 2;
  mapping.map("k", kv.k.data, kv_bytes, dims_k, Role::kInput);
  mapping.map("v", kv.v.data, kv_bytes, dims_v, Role::kInput);
  KvScales& scales = params.kv_scales;
  auto const dims_of_scale = [&](int stride) {
    return std::vector<Dim>{{stride == 0 ? 1 : kv.heads, stride}};
  };
  mapping.map("k_scale", scales.k, 4, dims_of_scale(scales.k_stride), Role::kInput);
  mapping.map("v_scale", scales.v, 4, dims_of_scale(scales.v_stride), Role::kInput);
  // Where keys are shared, tiles of which shares have parts are written after they are merged.
  Role const role = params.has_shares() ? Role::kPartialOutput : Role::kOutput;
  if (params.has_shares()) {
    int64_t const n_rows = int64_t(2) * params.n_shares * params.rows_of_part();
    dims_lse_partial = {{n_rows, 1}};
    dims_o_partial = {{n_rows, params.d_head}, {params.d_head, 1}};
  }
  if (params.merges_shares) {
    dims_lse_partial = {{dims_lse_partial[0].extent * 4, 1}};
    dims_o_partial = {{dims_o_partial[0].extent * params.d_head * 2, 1}};
  }
  Role const role_of_outputs = params.merges_shares ? Role::kOutput : role;
  mapping.map("o", params.o, 2, dims_o, role_of_outputs);
  mapping.map("lse", params.lse, 4, dims_lse, role_of_outputs);
  Role const role_of_parts = params.has_fixed_splits ? Role::kPartialOutput : role;
  mapping.map("o_partial", params.o_partial, 4, dims_o_partial,
              params.merges_shares ? Role::kAccumulator : role_of_parts);
  mapping.map("lse_partial", params.lse_partial, 4, dims_lse_partial,
              params.merges_shares ? Role::kAccumulator : role);
  mapping.map("cu_seqlens_q", q_sequences.starts, 4, dims_cu_seqlens, Role::kInput);
  mapping.map("cu_seqlens_k", kv.sequences.starts, 4, dims_cu_seqlens, Role::kInput);
  if (kv.is_paged()) {
    int64_t const n_entries = kv.sequences.longest / pages.size;
    mapping.map("block_table", kv.pages.table, 4,
                {{params.batch, pages.table_stride}, {n_entries, 1}}, Role::kInput);
    mapping.map("seqlens_k", kv.pages.lengths, 4, {{params.batch, 1}}, Role::kInput);
  }
  mapping.map("tile_list", params.tile_list, 4,
              {{params.has_tile_list() ? params.tile_listing().size() : 0, 1}}, Role::kInput);
  mapping.map("share_list", params.share_list, 4,
              {{params.has_shares() ? params.share_listing().size() : 0, 1}}, Role::kInput);
  mapping.map(Dropout::kStateName, params.dropout.state, 8, {{2, 1}}, Role::kInput);
  params.set_q_sequences(q_sequences);
  params.set_kv(kv);
  for_each_per_head_option([&](PerHeadOption const& option) {
    PerHead& numbers = params.*option.values;
    mapping.map(option.name, numbers.data, numbers.is_fp32 ? 4 : 2, per_head_dims(params, numbers),
                Role::kInput);
  });
}

std::string numbers_json(ListedForwardParams const& params) {
  std::string json;
  auto const add = [&](char const* name, std::string const& value) {
    json += (json.empty() ? "{\"" : ", \"") + std::string(name) + "\": " + value;
  };
  for (auto const& [name, value] : std::initializer_list<std::pair<char const*, int>>{
           {"batch", params.batch},
           {"heads", params.heads},
           {"heads_kv", params.heads_kv},
           {"seqlen_q", params.q_sequences().longest},
           {"seqlen_k", params.kv().sequences.longest},
           {"total_q", params.q_sequences().total},
           {"total_k", params.kv().sequences.total},
           {"d_head", params.d_head}}) {
    add(name, std::to_string(value));
  }
  for_each_option([&]<class Row>(Row const& option) {
    if constexpr (std::is_same_v<Row, TensorOption>) {
      return;  // whose number is reported
    } else if constexpr (std::is_same_v<Row, PerHeadOption>) {
      add(option.name, (params.*option.values).data != nullptr ? "true" : "false");
    } else if (option.used != nullptr) {
      add(option.name, text_of(option.used(params)));
    }
  });
  return json + "}";
}

}  // namespace pyflash::emulator
