#include "cute_kernels/host/extents.h"

#include <algorithm>

#include "cute_kernels/host/config_map.h"
#include "cute_kernels/host/errors.h"

namespace pyflash {
namespace {

// NOTE: not the CPU, where what cu_seqlens hold would be checked.
constexpr Device kNowhere{Device::Kind::kOther, 0};

// An address that stays valid; nothing reads it.
void const* const kSomewhere = &kExtents;

// The sizes and strides that a view needs, (batch, seqlen, heads, d_head).
struct Contiguous {
  int64_t sizes[4];
  int64_t strides[4];

  Contiguous(int64_t batch, int64_t seqlen, int64_t heads, int64_t d_head)
      : sizes{batch, seqlen, heads, d_head}, strides{0, 0, 0, 1} {
    // NOTE: of four large extents the product may wrap around, but as a multiple of d_head. An extent of 0 counts as 1, as
    // in torch: a stride of 0 would be that of an expanded tensor.
    for (int axis = 2; axis >= 0; --axis) {
      auto const extent = uint64_t(std::max<int64_t>(sizes[axis + 1], 1));
      strides[axis] = static_cast<int64_t>(extent * uint64_t(strides[axis + 1]));
    }
  }

  // packed: without the first dimension.
  TensorView view(char const* name, ElementType dtype, bool packed) const {
    return {.name = name,
            .data = nullptr,
            .rank = packed ? 3 : 4,
            .sizes = sizes + packed,
            .strides = strides + packed,
            .dtype = dtype,
            .device = kNowhere};
  }
};

int64_t largest_head_dim() {
  int64_t largest = kMaxHeadDim;
  for (RowOfAnyOp const* row : built_rows<Forward>()) {
    largest = std::max<int64_t>(largest, row->d_head);
  }
  return largest;
}

}  // namespace

Problem problem_like(DType dtype, bool packed, Extents const& extents, Options options,
                     Problem (*make)(Call const& call, int64_t max_d_head)) {
  for (auto const& [name, extent] : kExtents) {
    require(extents.*extent >= 0 && extents.*extent <= kMaxExtent, name, " = ", extents.*extent,
            ": expected a number from 0 to ", kMaxExtent);
  }
  for (auto const& [name, total] : kTotals) {
    require(extents.*total >= 0 && extents.*total <= kMaxExtent, name, " = ", extents.*total,
            ": expected a number from 0 to ", kMaxExtent);
  }
  auto const& [batch, heads, heads_kv, seqlen_q, seqlen_k, d_head, total_q, total_k, page_size] =
      extents;
  auto const rows = [&](int64_t seqlen, int64_t total) {
    if (!packed || seqlen == 0) {
      return seqlen;
    }
    return total > 0 ? total : batch * std::min(seqlen, kMaxExtent / std::max<int64_t>(batch, 1));
  };
  Contiguous const q(batch, rows(seqlen_q, total_q), heads, d_head);
  int64_t const n_entries = page_size > 0 ? ceil_div(seqlen_k, page_size) : 0;
  // NOTE: of any number of pages.
  Contiguous const kv = page_size > 0
                            ? Contiguous(1, page_size, heads_kv, d_head)
                            : Contiguous(batch, rows(seqlen_k, total_k), heads_kv, d_head);
  ElementType const type = dtype == DType::FP16 ? ElementType::kFloat16 : ElementType::kBFloat16;
  for_each_option([&]<class Row>(Row const& option) {
    if constexpr (kIsTensor<Row>) {
      if (auto& tensor = options.*option.member) {
        tensor->device = kNowhere;
        tensor->data = kSomewhere;  // null of a tensor on the meta device, as where there are none
      }
    }
  });
  Call call{.q = q.view("q", type, packed),
            .k = kv.view("k", type, packed && page_size == 0),
            .v = kv.view("v", type, packed && page_size == 0),
            .options = std::move(options)};
  int64_t const n_cu_seqlens = batch + 1, stride = 1;
  auto const ints = [](char const* name, int rank, int64_t const* sizes, int64_t const* strides) {
    return TensorView{.name = name,
                      .data = kSomewhere,
                      .rank = rank,
                      .sizes = sizes,
                      .strides = strides,
                      .dtype = ElementType::kInt32,
                      .device = kNowhere};
  };
  TensorView const cu_seqlens = ints("cu_seqlens", 1, &n_cu_seqlens, &stride);
  int64_t const table_sizes[] = {batch, n_entries}, table_strides[] = {n_entries, 1};
  if (page_size > 0) {
    call.paging = Paging{ints("block_table", 2, table_sizes, table_strides),
                         ints("seqlens_k", 1, &batch, &stride), std::nullopt};
    if (packed) {
      call.paging->packed = PackedQueries{cu_seqlens, seqlen_q};
    }
  } else if (packed) {
    call.packing = Packing{cu_seqlens, cu_seqlens, seqlen_q, seqlen_k};
  }
  return make(call, largest_head_dim());
}

}  // namespace pyflash
