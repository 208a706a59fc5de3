#include "cute_kernels/bindings/packing_checks.h"

#include "cute_kernels/bindings/describe.h"
#include "cute_kernels/host/errors.h"

namespace pyflash {
namespace {

using torch::stable::Tensor;

// Of q, or of k and v.
struct Lengths {
  char const* name;
  Tensor const& cu_seqlens;
  char const* max_name;
  int64_t max_seqlen;
  Input const& rows;
};

void check_cu_seqlens(Lengths const& lengths) {
  auto const& [name, cu_seqlens, max_name, max_seqlen, rows] = lengths;
  require(dtype_of(cu_seqlens) == aoti_torch_dtype_int32(), name, " is ", DTypeOf{cu_seqlens},
          ": expected int32");
  require(cu_seqlens.dim() == 1 && cu_seqlens.size(0) > 0, name, " has shape ", ShapeOf{cu_seqlens},
          ": expected (batch + 1,)");
  int64_t const batch = cu_seqlens.size(0) - 1;
  require(batch == 0 || cu_seqlens.stride(0) == 1, name, " has stride ", cu_seqlens.stride(0),
          ": expected 1, call .contiguous()");
  require(batch <= kMaxExtent, name, " is for ", batch, " sequences: expected at most ",
          kMaxExtent);
  check_address(name, cu_seqlens.const_data_ptr(), sizeof(int));
}

void check_max_seqlen(Lengths const& lengths) {
  auto const& [name, cu_seqlens, max_name, max_seqlen, rows] = lengths;
  require(max_seqlen >= 0 && max_seqlen <= kMaxExtent, max_name, " = ", max_seqlen,
          ": expected a number from 0 to ", kMaxExtent);
  int64_t const batch = cu_seqlens.size(0) - 1;
  require(batch * max_seqlen >= rows.extents[kRow], max_name, " = ", max_seqlen, " for ", batch,
          " sequences: expected room for the ", rows.extents[kRow], " rows of ", rows.name);
}

void check_values(Lengths const& lengths) {
  auto const& [name, cu_seqlens, max_name, max_seqlen, rows] = lengths;
  auto const values = static_cast<int const*>(cu_seqlens.const_data_ptr());
  int64_t const batch = cu_seqlens.size(0) - 1;
  require(values[0] == 0, name, " starts with ", values[0], ": expected 0");
  for (int64_t b = 0; b < batch; ++b) {
    int64_t const seqlen = int64_t(values[b + 1]) - values[b];
    require(seqlen >= 0, name, " goes down from ", values[b], " to ", values[b + 1],
            ": expected ascending numbers");
    require(seqlen <= max_seqlen, name, " has a sequence of ", seqlen, " rows: expected at most ",
            max_name, " = ", max_seqlen);
  }
  require(values[batch] == rows.extents[kRow], name, " ends with ", values[batch], ": expected ",
          rows.extents[kRow], ", the rows of ", rows.name);
}

}  // namespace

int64_t check_packing(Packing const& packing, Input const& q, Input const& k) {
  Lengths const of_q{"cu_seqlens_q", packing.cu_seqlens_q, "max_seqlen_q", packing.max_seqlen_q, q};
  Lengths const of_k{"cu_seqlens_k", packing.cu_seqlens_k, "max_seqlen_k", packing.max_seqlen_k, k};
  check_cu_seqlens(of_q);
  check_cu_seqlens(of_k);
  require(packing.cu_seqlens_k.size(0) == packing.cu_seqlens_q.size(0), "cu_seqlens_k has shape ",
          ShapeOf{packing.cu_seqlens_k}, ": expected ", ShapeOf{packing.cu_seqlens_q},
          " as cu_seqlens_q");
  check_max_seqlen(of_q);
  check_max_seqlen(of_k);
  if (q.tensor.is_cpu()) {
    check_values(of_q);
    check_values(of_k);
  }
  return packing.cu_seqlens_q.size(0) - 1;
}

}  // namespace pyflash
