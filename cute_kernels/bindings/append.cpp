#include "cute_kernels/bindings/append.h"

#include <cstdint>
#include <optional>

#include "cute_kernels/append.h"
#include "cute_kernels/bindings/arguments.h"
#include "cute_kernels/bindings/gpu.h"
#include "cute_kernels/bindings/tensors.h"
#include "cute_kernels/bindings/vectors.h"
#include "cute_kernels/host/config_map.h"
#include "cute_kernels/host/errors.h"
#include "cute_kernels/slots.h"

namespace pyflash {
namespace {

constexpr int64_t kMostRows = 1 << 30;

AppendParams::Part part_of(TensorView const& rows, TensorView const& cache) {
  auto const vectors = [](int64_t stride) { return stride / kVectorElements; };
  return {.rows = static_cast<AppendedVector const*>(rows.data),
          .cache = static_cast<AppendedVector*>(const_cast<void*>(cache.data)),
          .of_rows = {.page = 0, .row = vectors(rows.strides[0]), .head = vectors(rows.strides[1])},
          .of_cache = {.page = vectors(cache.strides[0]),
                       .row = vectors(cache.strides[1]),
                       .head = vectors(cache.strides[2])}};
}

}  // namespace

void append_rows(StableIValue* stack) {
  Arguments arguments(stack);
  TensorView const k = arguments.take_tensor("k"), v = arguments.take_tensor("v"),
                   k_cache = arguments.take_tensor("k_cache"),
                   v_cache = arguments.take_tensor("v_cache"),
                   slots = arguments.take_tensor("slots");
  bool const on_gpu = k.device.kind == Device::Kind::kCuda;
  auto const append = on_gpu ? loaded_helpers().append_rows : nullptr;
  bool const is_apart = !may_share(k, k_cache) && !may_share(k, v_cache) &&
                        !may_share(v, k_cache) && !may_share(v, v_cache);
  bool const is_able = is_apart && is_of_vectors(k) && is_of_vectors(v) && is_of_vectors(k_cache) &&
                       is_of_vectors(v_cache) && slots.sizes[0] <= kMostRows &&
                       (!on_gpu || append != nullptr);
  if (!is_able) {
    put_results(stack, false);
    return;
  }
  AppendParams const params{
      .parts = {part_of(k, k_cache), part_of(v, v_cache)},
      .slots = slots.data,
      .slots_are_64_bits = slots.dtype == ElementType::kInt64,
      .slots_stride = slots.strides[0],
      .n_rows = static_cast<int>(slots.sizes[0]),
      .heads = static_cast<unsigned>(k.sizes[1]),
      .vectors = static_cast<unsigned>(k.sizes[2] / kVectorElements),
      .page_size = static_cast<int>(k_cache.sizes[1]),
      .n_slots = k_cache.sizes[0] * k_cache.sizes[1],
  };
  if (!on_gpu) {
    for (int row = 0; row < params.n_rows; ++row) {
      for (unsigned i = 0; i < params.vectors_of_row(); ++i) {
        params.copy(row, i);
      }
    }
  } else if (params.n_rows > 0 && params.vectors_of_row() > 0) {
    int32_t const device_index = arguments.tensor(0).get_device_index();
    torch::stable::accelerator::DeviceGuard const guard(device_index);
    int const error = append(&params, current_cuda_stream(device_index));
    require_able(error == 0, "rows were not appended: ", any_kernel_library()->error_string(error));
  }
  put_results(stack, true);
}

void find_slots(StableIValue* stack) {
  Arguments arguments(stack);
  TensorView const table = arguments.take_tensor("block_table"),
                   lengths = arguments.take_tensor("seqlens_k"),
                   starts = arguments.take_tensor("cu_seqlens_q");
  auto const page_size = arguments.take<int64_t>();
  auto const n_rows = arguments.take<int64_t>();
  bool const on_gpu = table.device.kind == Device::Kind::kCuda;
  auto const find = on_gpu ? loaded_helpers().find_slots : nullptr;
  bool const is_able = n_rows <= kMostRows && table.sizes[0] <= kMostRows &&
                       table.sizes[1] <= kMostRows && page_size <= kMostRows &&
                       (!on_gpu || find != nullptr);
  auto slots =
      allocate<1>("slots", arguments.tensor(0), {is_able ? n_rows : 0}, aoti_torch_dtype_int64());
  if (!is_able) {
    put_results(stack, slots);
    return;
  }
  auto const integers = [](TensorView const& x) {
    return SlotParams::Integers{
        .data = x.data, .are_64_bits = x.dtype == ElementType::kInt64, .stride = x.strides[0]};
  };
  SlotParams const params{.table = integers(table),
                          .table_column_stride = table.strides[1],
                          .lengths = integers(lengths),
                          .starts = integers(starts),
                          .batch = static_cast<int>(table.sizes[0]),
                          .max_pages = static_cast<int>(table.sizes[1]),
                          .page_size = static_cast<int>(page_size),
                          .n_rows = static_cast<int>(n_rows),
                          .slots = static_cast<int64_t*>(slots.mutable_data_ptr())};
  if (!on_gpu) {
    for (int row = 0; row < params.n_rows; ++row) {
      params.slots[row] = params.slot(row);
    }
  } else if (params.n_rows > 0) {
    int32_t const device_index = arguments.tensor(0).get_device_index();
    torch::stable::accelerator::DeviceGuard const guard(device_index);
    int const error = find(&params, current_cuda_stream(device_index));
    require_able(error == 0, "slots were not found: ", any_kernel_library()->error_string(error));
  }
  put_results(stack, slots);
}

}  // namespace pyflash
