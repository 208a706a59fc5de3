#include "cute_kernels/host/checks.h"

#include <algorithm>

#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/problem.h"

namespace pyflash {
namespace {

constexpr int kVectorBytes = 16;  // kernels read 16 bytes at a time
constexpr int kVectorElements = kVectorBytes / 2;

// The bytes of an element of q, k or v.
int element_bytes(TensorView const& tensor) {
  return tensor.dtype == ElementType::kFloat8E4M3 ? 1 : 2;
}

void check_address(TensorView const& tensor, size_t multiple) {
  auto const address = reinterpret_cast<uintptr_t>(tensor.data);
  require(address % multiple == 0, tensor.name, " starts ", address % multiple,
          " bytes after a multiple of ", multiple, " bytes: expected a multiple, call .clone()");
}

// NOTE: the stride of a dimension of size 1 says nothing and can be anything.
void check_last_stride(TensorView const& tensor) {
  int const last = tensor.rank - 1;
  require(tensor.sizes[last] <= 1 || tensor.strides[last] == 1, tensor.name, " has stride ",
          tensor.strides[last], last > 0 ? " in its last dimension" : "",
          ": expected 1, call .contiguous()");
}

void check_per_head(TensorView const& tensor, PerHeadRule rule, int64_t batch, Input const& q) {
  bool const is_fp32 = tensor.dtype == ElementType::kFloat32;
  bool const is_as_q = rule.takes_q_dtype && tensor.dtype == q.view.dtype;
  require(is_fp32 || is_as_q, tensor.name, " is ", tensor.dtype, ": expected float32",
          rule.takes_q_dtype ? sentence(", or ", q.view.dtype, " as q") : "");
  int64_t const heads = q.extents[kHead];
  int64_t const* const sizes = tensor.sizes;
  bool const of_heads = tensor.rank == 1 && sizes[0] == heads;
  bool const of_batches =
      rule.takes_batches && tensor.rank == 2 && sizes[0] == batch && sizes[1] == heads;
  require(of_heads || of_batches, tensor.name, " has shape ", ShapeOf{tensor}, ": expected (",
          heads, ",), the heads of q",
          rule.takes_batches ? sentence(", or (", batch, ", ", heads, ") of each batch") : "");
  check_last_stride(tensor);
  check_address(tensor, is_fp32 ? 4 : 2);
}

// The lengths of q, or of k and v.
struct Lengths {
  TensorView const& cu_seqlens;
  char const* max_name;
  int64_t max_seqlen;
  Input const& rows;
};

void check_cu_seqlens(TensorView const& cu_seqlens) {
  char const* const name = cu_seqlens.name;
  require(cu_seqlens.dtype == ElementType::kInt32, name, " is ", cu_seqlens.dtype,
          ": expected int32");
  require(cu_seqlens.rank == 1 && cu_seqlens.sizes[0] > 0, name, " has shape ", ShapeOf{cu_seqlens},
          ": expected (batch + 1,)");
  check_last_stride(cu_seqlens);
  int64_t const batch = cu_seqlens.sizes[0] - 1;
  require(batch <= kMaxExtent, name, " is for ", batch, " sequences: expected at most ",
          kMaxExtent);
  check_address(cu_seqlens, sizeof(int));
}

void check_max_seqlen(Lengths const& lengths) {
  auto const& [cu_seqlens, max_name, max_seqlen, rows] = lengths;
  require(max_seqlen >= 0 && max_seqlen <= kMaxExtent, max_name, " = ", max_seqlen,
          ": expected a number from 0 to ", kMaxExtent);
  int64_t const batch = cu_seqlens.sizes[0] - 1;
  require(batch * max_seqlen >= rows.extents[kRow], max_name, " = ", max_seqlen, " for ", batch,
          " sequences: expected room for the ", rows.extents[kRow], " rows of ", rows.view.name);
}

void check_values(Lengths const& lengths) {
  auto const& [cu_seqlens, max_name, max_seqlen, rows] = lengths;
  char const* const name = cu_seqlens.name;
  auto const values = static_cast<int const*>(cu_seqlens.data);
  int64_t const batch = cu_seqlens.sizes[0] - 1;
  require(values[0] == 0, name, " starts with ", values[0], ": expected 0");
  for (int64_t b = 0; b < batch; ++b) {
    int64_t const seqlen = int64_t(values[b + 1]) - values[b];
    require(seqlen >= 0, name, " goes down from ", values[b], " to ", values[b + 1],
            ": expected ascending numbers");
    require(seqlen <= max_seqlen, name, " has a sequence of ", seqlen, " rows: expected at most ",
            max_name, " = ", max_seqlen);
  }
  require(values[batch] == rows.extents[kRow], name, " ends with ", values[batch], ": expected ",
          rows.extents[kRow], ", the rows of ", rows.view.name);
}

}  // namespace

Input::Input(TensorView const& view, DimensionNames const& dims)
    : view(view), dims(dims), extents{1, 1, 1, 1}, strides{} {
  require(view.rank == dims.rank, view.name, " has shape ", ShapeOf{view}, ": expected ", dims.rank,
          " dimensions, ", dims.dims);
  std::copy_n(view.sizes, dims.rank, extents + kNAxes - dims.rank);
  std::copy_n(view.strides, dims.rank, strides + kNAxes - dims.rank);
}

void check_devices(Call const& call) {
  auto const check = [&](TensorView const& tensor) {
    require(tensor.device == call.q.device, tensor.name, " is on ", tensor.device, ": expected ",
            call.q.device, ", where q is");
  };
  check(call.k);
  check(call.v);
  if (call.packing) {
    check(call.packing->cu_seqlens_q);
    check(call.packing->cu_seqlens_k);
  }
  if (call.paging) {
    check(call.paging->block_table);
    check(call.paging->seqlens_k);
    if (auto const& packed = call.paging->packed) {
      check(packed->cu_seqlens_q);
    }
    for (auto const& scale : {call.paging->k_scale, call.paging->v_scale}) {
      if (scale) {
        check(*scale);
      }
    }
  }
  for_each_option([&]<class Row>(Row const& option) {
    if constexpr (kIsTensor<Row>) {
      if (auto const& tensor = call.options.*option.member) {
        check(*tensor);
      }
    }
  });
}

DType check_dtypes(Call const& call) {
  TensorView const& q = call.q;
  bool const is_half = q.dtype == ElementType::kFloat16;
  require(is_half || q.dtype == ElementType::kBFloat16, "q is ", q.dtype,
          ": expected float16 or bfloat16");
  for (TensorView const* tensor : {&call.k, &call.v}) {
    if (call.paging && call.paging->has_fp8()) {
      require(tensor->dtype == ElementType::kFloat8E4M3, "k_scale and v_scale came with a ",
              tensor->name, " of ", tensor->dtype, ": expected them with float8_e4m3fn alone");
      continue;
    }
    require(tensor->dtype == q.dtype, tensor->name, " is ", tensor->dtype, ": expected ", q.dtype,
            " as q");
  }
  return is_half ? DType::FP16 : DType::BF16;
}

void check_shapes(Input const& q, Input const& k, Input const& v, int64_t max_d_head) {
  int64_t const d_head = q.extents[kColumn];
  require(d_head > 0 && d_head <= max_d_head && d_head % kVectorElements == 0, "q has d_head ",
          d_head, ": expected a multiple of ", kVectorElements, " from ", kVectorElements, " to ",
          max_d_head);
  for (int axis : {kBatch, kColumn}) {
    bool const is_page = axis == kBatch && &k.dims == &kPageDims;
    require(is_page || k.extents[axis] == q.extents[axis], k.view.name, " has shape ",
            ShapeOf{k.view}, ": expected ", q.dims.axes[axis], " ", q.extents[axis], " as q");
  }
  int64_t const heads = q.extents[kHead], heads_kv = k.extents[kHead];
  require(heads == 0 || (heads_kv > 0 && heads % heads_kv == 0), k.view.name, " has shape ",
          ShapeOf{k.view}, ": expected a number of heads that divides the ", heads, " of q");
  for (int axis : {kBatch, kRow, kHead, kColumn}) {
    require(v.extents[axis] == k.extents[axis], v.view.name, " has shape ", ShapeOf{v.view},
            ": expected ", k.dims.axes[axis], " ", k.extents[axis], " as ", k.view.name);
  }
  for (Input const* input : {&q, &k, &v}) {
    for (int axis : {kBatch, kRow, kHead}) {
      require(input->extents[axis] <= kMaxExtent, input->view.name, " has ", input->dims.axes[axis],
              " ", input->extents[axis], ": expected at most ", kMaxExtent);
    }
  }
}

void check_batch_times_heads(int64_t batch, Input const& q) {
  require(batch * q.extents[kHead] <= kMaxExtent, "q has ", q.extents[kHead], " heads in ", batch,
          " batches: expected at most ", kMaxExtent, " for batch times heads");
}

// NOTE: the stride of a dimension of size 1 says nothing and can be anything.
void check_memory(Input const& input) {
  char const* const name = input.view.name;
  require(input.extents[kColumn] <= 1 || input.strides[kColumn] == 1, name, " has stride ",
          input.strides[kColumn], " in its last dimension: expected 1, call .contiguous()");
  check_address(input.view, kVectorBytes);
  char const* const strides[] = {"batch", "row", "head"};
  int const multiple = kVectorBytes / element_bytes(input.view);
  for (int axis : {kBatch, kRow, kHead}) {
    require(input.extents[axis] <= 1 || input.strides[axis] % multiple == 0, name, " has a ",
            strides[axis], " stride of ", input.strides[axis], " elements: expected a multiple of ",
            multiple, " (", kVectorBytes, " bytes), call .contiguous()");
  }
}

int64_t check_packing(Packing const& packing, Input const& q, Input const& k) {
  auto const& [cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k] = packing;
  check_cu_seqlens(cu_seqlens_q);
  check_cu_seqlens(cu_seqlens_k);
  require(cu_seqlens_k.sizes[0] == cu_seqlens_q.sizes[0], "cu_seqlens_k has shape ",
          ShapeOf{cu_seqlens_k}, ": expected ", ShapeOf{cu_seqlens_q}, " as cu_seqlens_q");
  for (Lengths const& lengths : {Lengths{cu_seqlens_q, "max_seqlen_q", max_seqlen_q, q},
                                 Lengths{cu_seqlens_k, "max_seqlen_k", max_seqlen_k, k}}) {
    check_max_seqlen(lengths);
    if (q.view.device.kind == Device::Kind::kCpu) {
      check_values(lengths);
    }
  }
  return cu_seqlens_q.sizes[0] - 1;
}

int64_t check_packed_queries(PackedQueries const& packed, Input const& q) {
  check_cu_seqlens(packed.cu_seqlens_q);
  Lengths const lengths{packed.cu_seqlens_q, "max_seqlen_q", packed.max_seqlen_q, q};
  check_max_seqlen(lengths);
  if (q.view.device.kind == Device::Kind::kCpu) {
    check_values(lengths);
  }
  return packed.cu_seqlens_q.sizes[0] - 1;
}

void check_kv_scales(Paging const& paging, Input const& k) {
  if (!paging.has_fp8()) {
    return;
  }
  require(paging.k_scale.has_value(), "v_scale came without k_scale: expected both, or neither");
  require(paging.v_scale.has_value(), "k_scale came without v_scale: expected both, or neither");
  int64_t const heads_kv = k.extents[kHead];
  for (TensorView const* scale : {&*paging.k_scale, &*paging.v_scale}) {
    bool const fits = scale->rank == 0 || (scale->rank == 1 && scale->sizes[0] == heads_kv);
    require(scale->dtype == ElementType::kFloat32 && fits, scale->name, " is ", scale->dtype,
            " of shape ", ShapeOf{*scale}, ": expected float32, () or (", heads_kv, ",)");
    check_address(*scale, sizeof(float));
    require(scale->rank == 0 || (0 <= scale->strides[0] && scale->strides[0] <= kMaxExtent),
            scale->name, " has stride ", scale->strides[0], ": expected one from 0 to ",
            kMaxExtent);
  }
  int64_t const d_head = k.extents[kColumn];
  require(d_head % kVectorBytes == 0, "q has d_head ", d_head, ": expected a multiple of ",
          kVectorBytes, " with caches of float8_e4m3fn");
}

void check_pages(Paging const& paging, int64_t batch, Input const& k) {
  TensorView const &table = paging.block_table, &seqlens_k = paging.seqlens_k;
  for (TensorView const* tensor : {&table, &seqlens_k}) {
    require(tensor->dtype == ElementType::kInt32, tensor->name, " is ", tensor->dtype,
            ": expected int32");
    check_address(*tensor, sizeof(int));
  }
  require(table.rank == 2 && table.sizes[0] == batch, table.name, " has shape ", ShapeOf{table},
          ": expected (", batch, ", max_pages), a row for each sequence of q");
  require(seqlens_k.rank == 1 && seqlens_k.sizes[0] == batch, seqlens_k.name, " has shape ",
          ShapeOf{seqlens_k}, ": expected (", batch, ",), a length for each sequence of q");
  check_last_stride(table);
  check_last_stride(seqlens_k);
  int64_t const page_size = k.extents[kRow];
  require(page_size > 0, k.view.name, " has page_size 0: expected at least 1");
  require(table.sizes[1] <= kMaxExtent / page_size, table.name, " has room for ", table.sizes[1],
          " pages of ", page_size, " keys: expected at most ", kMaxExtent, " keys of a sequence");
}

void check_per_head_options(Options const& options, int64_t batch, Input const& q) {
  for_each_per_head_option([&](PerHeadOption const& option) {
    if (auto const& tensor = options.*option.member) {
      check_per_head(*tensor, option.rule, batch, q);
    }
  });
}

}  // namespace pyflash
