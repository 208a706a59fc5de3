#include "cute_kernels/host/gradients.h"

#include <algorithm>

#include "cute_kernels/host/checks.h"
#include "cute_kernels/host/errors.h"

namespace pyflash {
namespace {

// As `like`: out and grad_out are as q.
Input checked_like(TensorView const& tensor, TensorView const& like) {
  Input const input(tensor, kPaddedDims);
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
  int64_t const sizes[] = {q.extents[kBatch], q.extents[kHead], q.extents[kRow]};
  require(lse.device == q.view.device, lse.name, " is on ", lse.device, ": expected ",
          q.view.device, ", where q is");
  require(lse.dtype == ElementType::kFloat32, lse.name, " is ", lse.dtype, ": expected float32");
  require(lse.rank == 3 && std::equal(sizes, sizes + 3, lse.sizes), lse.name, " has shape ",
          ShapeOf{lse}, ": expected (", sizes[0], ", ", sizes[1], ", ", sizes[2],
          "), (batch, heads, seqlen) of q");
  require(sizes[2] <= 1 || lse.strides[2] == 1, lse.name, " has stride ", lse.strides[2],
          " in its last dimension: expected 1, call .contiguous()");
  return {.batch = lse.strides[0], .head = lse.strides[1], .split = 0};
}

TensorStrides contiguous(int64_t rows, int64_t heads, int64_t d_head) {
  return {.batch = rows * heads * d_head, .row = heads * d_head, .head = d_head};
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
  params.seqlen_q = forward.q_sequences().longest;
  params.seqlen_k = kv.sequences.longest;
  params.d_head = forward.d_head;
  params.window_left = forward.mask().window_left;
  params.window_right = forward.mask().window_right;
  params.softmax_scale = forward.softmax_scale;
  TensorStrides const of_queries = contiguous(params.seqlen_q, params.heads, params.d_head);
  TensorStrides const of_keys = contiguous(params.seqlen_k, params.heads_kv, params.d_head);
  params.o_strides = params.grad_o_strides = params.dq_strides = of_queries;
  params.dk_strides = params.dv_strides = of_keys;
  return params;
}

char const* refusal_of_gradients(Problem const& problem) {
  auto const& forward = problem.params;
  if (forward.q_sequences().is_packed()) {
    return "sequences are packed";
  }
  if (forward.mask().chunk != 0) {
    return "attention_chunk is set";
  }
  if (forward.softcap.cap != 0) {
    return "softcap is set";
  }
  if (forward.alibi_slopes.data != nullptr) {
    return "alibi_slopes is given";
  }
  return nullptr;
}

BackwardProblem backward_problem_of(BackwardCall const& call) {
  Problem const forward = problem_as_asked(call.forward);
  char const* const refusal = refusal_of_gradients(forward);
  require(refusal == nullptr, refusal, ", and no kernel of op backward takes that");
  BackwardProblem problem{forward.dtype, backward_params(forward)};
  BackwardParams& params = problem.params;
  TensorView const& q = call.forward.q;
  params.o = call.out.data;
  params.o_strides = checked_like(call.out, q).tensor_strides();
  params.grad_o = call.grad_out.data;
  params.grad_o_strides = checked_like(call.grad_out, q).tensor_strides();
  Input const of_q(q, kPaddedDims);
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
