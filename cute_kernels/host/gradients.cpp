#include "cute_kernels/host/gradients.h"

#include <algorithm>

#include "cute_kernels/host/checks.h"
#include "cute_kernels/host/errors.h"

namespace pyflash {
namespace {

// As `like`: out and grad_out are as q.
Input checked_like(TensorView const& tensor, TensorView const& like) {
  Input const input(tensor, like.rank == kPackedDims.rank ? kPackedDims : kPaddedDims);
  require(tensor.device == like.device, tensor.name, " is on ", tensor.device, ": expected ",
          like.device, ", where ", like.name, " is");
  require(tensor.dtype == like.dtype, tensor.name, " is ", tensor.dtype, ": expected ", like.dtype,
          " as ", like.name);
  require(std::equal(tensor.sizes, tensor.sizes + tensor.rank, like.sizes), tensor.name,
          " has shape ", ShapeOf{tensor}, ": expected ", ShapeOf{like}, " as ", like.name);
  check_memory(input);
  return input;
}

// lse, or its gradient.
LseStrides checked_lse(TensorView const& lse, Input const& q) {
  bool const packed = q.dims.rank == kPackedDims.rank;
  int64_t const extents[] = {q.extents[kBatch], q.extents[kHead], q.extents[kRow]};
  int64_t const* const sizes = extents + packed;
  int const rank = 3 - packed;
  require(lse.device == q.view.device, lse.name, " is on ", lse.device, ": expected ",
          q.view.device, ", where q is");
  require(lse.dtype == ElementType::kFloat32, lse.name, " is ", lse.dtype, ": expected float32");
  if (lse.rank != rank || !std::equal(sizes, sizes + rank, lse.sizes)) {
    refuse(lse.name, " has shape ", ShapeOf{lse}, ": expected ",
           packed ? sentence("(", sizes[0], ", ", sizes[1], "), (heads, total) of q")
                  : sentence("(", sizes[0], ", ", sizes[1], ", ", sizes[2],
                             "), (batch, heads, seqlen) of q"));
  }
  require(sizes[rank - 1] <= 1 || lse.strides[rank - 1] == 1, lse.name, " has stride ",
          lse.strides[rank - 1], " in its last dimension: expected 1, call .contiguous()");
  return {.batch = packed ? 0 : lse.strides[0], .head = lse.strides[rank - 2], .split = 0};
}

TensorStrides contiguous(Sequences const& sequences, int64_t heads, int64_t d_head) {
  return {.batch = sequences.is_packed() ? 0 : sequences.longest * heads * d_head,
          .row = heads * d_head,
          .head = d_head};
}

}  // namespace

BackwardParams backward_params(Problem const& problem) {
  auto const& forward = problem.params;
  KvSource const kv = forward.kv();
  BackwardParams params{};
  params.q = forward.q;
  params.k = kv.k.data;
  params.v = kv.v.data;
  params.q_strides = forward.q_strides;
  params.k_strides = kv.k.strides;
  params.v_strides = kv.v.strides;
  params.batch = forward.batch;
  params.heads = forward.heads;
  params.heads_kv = kv.heads;
  params.q_sequences = forward.q_sequences();
  params.k_sequences = kv.sequences;
  params.d_head = forward.d_head;
  params.mask = forward.mask();
  params.softmax_scale = forward.softmax_scale;
  params.inverse_scale_log2 = forward.inverse_scale_log2;
  params.softcap = forward.softcap;
  params.alibi_slopes = forward.alibi_slopes;
  params.dropout = forward.dropout;
  TensorStrides const of_queries = contiguous(params.q_sequences, params.heads, params.d_head);
  TensorStrides const of_keys = contiguous(params.k_sequences, params.heads_kv, params.d_head);
  params.o_strides = params.grad_o_strides = params.dq_strides = of_queries;
  params.dk_strides = params.dv_strides = of_keys;
  return params;
}

BackwardProblem backward_problem_of(BackwardCall const& call) {
  Problem const forward = problem_as_asked(call.forward);
  BackwardProblem problem{forward.dtype, backward_params(forward)};
  BackwardParams& params = problem.params;
  params.deterministic = call.forward.options.deterministic;
  TensorView const& q = call.forward.q;
  params.o = call.out.data;
  params.o_strides = checked_like(call.out, q).tensor_strides();
  params.grad_o = call.grad_out.data;
  params.grad_o_strides = checked_like(call.grad_out, q).tensor_strides();
  Input const of_q(q, call.forward.packing ? kPackedDims : kPaddedDims);
  params.lse = static_cast<float const*>(call.lse.data);
  params.lse_strides = checked_lse(call.lse, of_q);
  if (call.grad_lse) {
    LseStrides const strides = checked_lse(*call.grad_lse, of_q);
    require(strides.batch == params.lse_strides.batch && strides.head == params.lse_strides.head,
            "grad_lse has other strides than lse: expected the same, call .contiguous()");
    params.grad_lse = static_cast<float const*>(call.grad_lse->data);
  }
  return problem;
}

TensorStrides strides_of_gradient(TensorView const& gradient, TensorView const& like) {
  return checked_like(gradient, like).tensor_strides();
}

}  // namespace pyflash
