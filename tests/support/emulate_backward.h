// Runs the kernels of a backward on the emulated machine, one after the other, for tests/support/emulated_backward.py.
#pragma once

#include "cute_kernels/emulator/atoms_sm90.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cute_kernels/emulator/atoms.h"
#include "cute_kernels/emulator/emulator.h"
#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/emulator/tensor_map.h"
#include "cute_kernels/sites.h"
#include "cute_kernels/sm90/backward/backward_kernel.cuh"
#include "cute_kernels/sm90/backward/host.h"
#include "cute_kernels/sm90/backward/plan.h"
#include "cute_kernels/sm90/backward/postprocess.cuh"
#include "cute_kernels/sm90/backward/preprocess.cuh"

namespace pyflash::sm90::backward {

namespace em = pyflash::emulator;

struct Sizes {
  int batch, heads, heads_kv, seqlen_q, seqlen_k, d_head, window_left, window_right, order;
  float scale;
};

// Of a call whose tensors are contiguous.
inline BackwardParams params_of(Sizes const& sizes) {
  auto strides_of = [&](int64_t rows, int64_t heads) {
    return TensorStrides{
        .batch = rows * heads * sizes.d_head, .row = heads * sizes.d_head, .head = sizes.d_head};
  };
  BackwardParams params{};
  params.batch = sizes.batch;
  params.heads = sizes.heads;
  params.heads_kv = sizes.heads_kv;
  params.seqlen_q = sizes.seqlen_q;
  params.seqlen_k = sizes.seqlen_k;
  params.d_head = sizes.d_head;
  params.window_left = sizes.window_left;
  params.window_right = sizes.window_right;
  params.softmax_scale = sizes.scale;
  params.q_strides = params.o_strides = params.grad_o_strides = params.dq_strides =
      strides_of(sizes.seqlen_q, sizes.heads);
  params.k_strides = params.v_strides = params.dk_strides = params.dv_strides =
      strides_of(sizes.seqlen_k, sizes.heads_kv);
  params.lse_strides = {.batch = int64_t(sizes.heads) * sizes.seqlen_q, .head = sizes.seqlen_q};
  return params;
}

// The tensors of a call.
struct EmulatedCall {
  void *q, *k, *v, *o, *grad_o, *lse, *grad_lse, *dq, *dk, *dv;
};

enum class Kind { kInput, kOutput, kAccumulator };

template <FlashBackwardSm90Config kConfig, BackwardFeatures kFeatures>
class EmulatedBackward {
  using Traits = KernelTraits<kConfig>;
  using Element = typename Traits::Element;
  using Shape = std::vector<int64_t>;

 public:
  // tensors: as EmulatedCall has them.
  EmulatedBackward(Sizes const& sizes, void* const* tensors)
      : order_(static_cast<em::Order>(sizes.order)), problem_(params_of(sizes)) {
    std::memcpy(&call_, tensors, sizeof(call_));
    problem_.set_shape(tile_shape(kConfig));
    auto const workspace = Backward::workspace(problem_);
    // NOTE: not zeros: the sums are whatever memory held.
    sums_.assign(workspace[0].n_elements, NAN);
    lse2_.assign(workspace[1].n_elements, NAN);
    delta_.assign(workspace[2].n_elements, NAN);
  }

  // The findings of the three kernels, a line each.
  std::string run() {
    preprocess();
    main();
    postprocess();
    return findings_;
  }

 private:
  void preprocess() {
    em::EmulatedKernel const kernel = described(
        kPreprocessThreads, 0, 0, [](int) { return ""; },
        [](void const* params) {
          preprocess_cta<Element, kConfig.d_head>(*static_cast<BackwardParams const*>(params));
        });
    emulate("preprocess", kernel, n_query_pieces(problem_), [&](em::Emulator& emulator) {
      auto params = std::make_shared<BackwardParams>(problem_);
      params->o = queries(emulator, "o", call_.o, Kind::kInput);
      params->grad_o = queries(emulator, "grad_o", call_.grad_o, Kind::kInput);
      params->lse = numbers(emulator, "lse", call_.lse);
      params->grad_lse = numbers(emulator, "grad_lse", call_.grad_lse);
      params->dq_sum = workspace(emulator, "dq_sum", sums_, Kind::kOutput);
      params->lse2 = workspace(emulator, "lse2", lse2_, Kind::kOutput);
      params->delta = workspace(emulator, "delta", delta_, Kind::kOutput);
      return params;
    });
  }

  void main() {
    em::EmulatedKernel const kernel = described(
        Traits::kNThreads, sizeof(typename Traits::SharedStorage), 168,
        [](int warp) { return warp < 4   ? "producer"
                              : warp < 8 ? "consumer 0"
                                         : "consumer 1"; },
        [](void const* params) {
          backward_cta<Traits, kFeatures>(*static_cast<KernelParams const*>(params));
        });
    emulate("main", kernel, count_tiles(kConfig, problem_), [&](em::Emulator& emulator) {
      auto params = std::make_shared<KernelParams>();
      BackwardParams& problem = params->problem = problem_;
      problem.q = queries(emulator, "q", call_.q, Kind::kInput);
      problem.k = keys(emulator, "k", call_.k, Kind::kInput);
      problem.v = keys(emulator, "v", call_.v, Kind::kInput);
      problem.grad_o = queries(emulator, "grad_o", call_.grad_o, Kind::kInput);
      problem.dk = keys(emulator, "dk", call_.dk, Kind::kOutput);
      problem.dv = keys(emulator, "dv", call_.dv, Kind::kOutput);
      problem.dq_sum = workspace(emulator, "dq_sum", sums_, Kind::kAccumulator);
      problem.lse2 = workspace(emulator, "lse2", lse2_, Kind::kInput);
      problem.delta = workspace(emulator, "delta", delta_, Kind::kInput);
      set_order(*params, kConfig, 132);
      if (set_tensor_maps(*params, kConfig, em::encode_tensor_map) != cudaSuccess) {
        findings_ += "main: no tensor maps\n";
      }
      return params;
    });
  }

  void postprocess() {
    em::EmulatedKernel const kernel = described(
        kPostprocessThreads<kConfig.d_head>, sizeof(PostprocessStorage<Element, kConfig.d_head>), 0,
        [](int) { return ""; },
        [](void const* params) {
          postprocess_cta<Element, kConfig.d_head>(*static_cast<BackwardParams const*>(params));
        });
    emulate("postprocess", kernel, n_query_pieces(problem_), [&](em::Emulator& emulator) {
      auto params = std::make_shared<BackwardParams>(problem_);
      params->dq = queries(emulator, "dq", call_.dq, Kind::kOutput);
      params->dq_sum = workspace(emulator, "dq_sum", sums_, Kind::kInput);
      return params;
    });
  }

  // registers: of a thread at launch, where the machine watches them.
  static em::EmulatedKernel described(int n_threads, size_t smem_bytes, int registers,
                                      char const* (*role)(int), void (*run_thread)(void const*)) {
    em::EmulatedKernel kernel{};
    kernel.n_threads = n_threads;
    kernel.smem_bytes = int(smem_bytes > 0 ? smem_bytes : 1024);
    kernel.access_bytes = 4;
    kernel.starts_early = true;
    kernel.watches_registers = registers > 0;
    kernel.registers = registers;
    kernel.attach = [](em::Machine* machine) { em::machine = machine; };
    kernel.run_thread = run_thread;
    kernel.role = role;
    return kernel;
  }

  template <class Fill>
  void emulate(char const* what, em::EmulatedKernel const& kernel, int64_t n_ctas,
               Fill const& fill) {
    em::Emulator emulator(kernel, order_, 7);
    em::Launch const launch{.n_ctas = n_ctas, .params = fill(emulator)};
    for (int64_t cta = 0; cta < n_ctas; ++cta) {
      if (!emulator.run_cluster(launch, cta)) {
        findings_ += std::string(what) + ": stopped\n";
        break;
      }
    }
    emulator.finish();
    auto name_of = [](int site) { return site >= 0 ? device::kSiteNames[site] : "-"; };
    for (em::Finding const& finding : emulator.findings().all()) {
      findings_ += std::string(what) + ": " + finding.kind + " in " + finding.memory + " at " +
                   name_of(finding.access.site) + " and " + name_of(finding.other.site) + " " +
                   finding.detail + "\n";
    }
  }

  static void* add(em::Emulator& emulator, char const* name, void* data, Shape const& shape,
                   int element_bytes, Kind kind) {
    Shape strides(shape.size(), 1);
    for (int i = int(shape.size()) - 2; i >= 0; --i) {
      strides[i] = strides[i + 1] * shape[i + 1];
    }
    em::GlobalTensor tensor{.name = name,
                            .data = static_cast<std::byte*>(data),
                            .shape = shape,
                            .strides = strides,
                            .element_bytes = element_bytes,
                            .misalignment = 0,
                            .output = kind == Kind::kOutput};
    tensor.accumulator = kind == Kind::kAccumulator;
    return reinterpret_cast<void*>(emulator.add_tensor(tensor));
  }
  void* queries(em::Emulator& emulator, char const* name, void* data, Kind kind) const {
    return add(emulator, name, data,
               {problem_.batch, problem_.seqlen_q, problem_.heads, problem_.d_head}, 2, kind);
  }
  void* keys(em::Emulator& emulator, char const* name, void* data, Kind kind) const {
    return add(emulator, name, data,
               {problem_.batch, problem_.seqlen_k, problem_.heads_kv, problem_.d_head}, 2, kind);
  }
  float* numbers(em::Emulator& emulator, char const* name, void* data) const {
    return static_cast<float*>(add(emulator, name, data,
                                   {problem_.batch, problem_.heads, problem_.seqlen_q}, 4,
                                   Kind::kInput));
  }
  static float* workspace(em::Emulator& emulator, char const* name, std::vector<float>& data,
                          Kind kind) {
    return static_cast<float*>(add(emulator, name, data.data(), {int64_t(data.size())}, 4, kind));
  }

  em::Order const order_;
  EmulatedCall call_;
  BackwardParams problem_;
  std::vector<float> sums_, lse2_, delta_;
  std::string findings_;
};

}  // namespace pyflash::sm90::backward
