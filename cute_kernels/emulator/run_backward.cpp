#include <cmath>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "cute_kernels/backward.h"
#include "cute_kernels/emulator/mapping.h"
#include "cute_kernels/emulator/params.h"
#include "cute_kernels/emulator/run.h"
#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/gradients.h"
#include "cute_kernels/variant/arguments.h"

namespace pyflash::emulator {
namespace {

enum Phase { kBefore, kOwn, kAfter };

// q, k, v or a tensor like one of them.
std::vector<Dim> dims_of(BackwardParams const& params, TensorStrides const& strides, bool of_keys) {
  Sequences const& sequences = of_keys ? params.k_sequences : params.q_sequences;
  return {{sequences.tensor_batches(params.batch), strides.batch},
          {sequences.tensor_rows(), strides.row},
          {of_keys ? params.heads_kv : params.heads, strides.head},
          {params.d_head, 1}};
}

class BackwardRun final : public Run {
 public:
  using Run::Run;

  void prepare(char const* config, DType dtype, int d_head) override {
    BackwardCall const asked{.forward = call(),
                             .out = view("out"),
                             .lse = view("lse"),
                             .grad_out = view("grad_out"),
                             .grad_lse = optional_view("grad_lse")};
    BackwardProblem const problem = backward_problem_of(asked);
    check_config_fits(config, dtype, d_head, problem_as_asked(asked.forward));
    params_ = problem.params;
    BackwardShape const shape =
        kernel_.has_variant ? with_variant(kernel_.backward->shape) : kernel_.backward->shape;
    params_.set_shape(shape);
    // NOTE: problems are small here: no memory is too much for L2.
    if (params_.recycles(shape)) {
      params_.set_heads_with_sums(n_resident(), 0);
    }
    params_.divide(shape, n_resident(), 0);
    if (char const* const reason = kernel_.backward->refusal(params_)) {
      refuse("config '", config, "' cannot run this problem: ", reason);
    }
    forward_ = problem_as_asked(asked.forward);
    set_workspace();
  }
  std::string problem() const override { return numbers_json(forward_.params); }

  // dq, dk and dv, contiguous.
  void set_outputs(void* const* outputs) override {
    params_.dq = outputs[0];
    params_.dk = outputs[1];
    params_.dv = outputs[2];
  }

  // Those of each slice of heads, one slice after another.
  int n_phases() const override { return EmulatedBackward::kPhases * params_.n_slices(); }
  int own_phase() const override { return kOwn; }
  char const* phase_name(int phase) const override {
    constexpr char const* kNames[] = {"preprocess", "main", "postprocess"};
    return kNames[phase % EmulatedBackward::kPhases];
  }

 private:
  bool takes_tensor(std::string_view name) const override {
    return name == "out" || name == "lse" || name == "grad_out" || name == "grad_lse" ||
           Run::takes_tensor(name);
  }
  EmulatedKernel const& kernel_of(int phase) const override {
    return *kernel_.backward->kernels[phase % EmulatedBackward::kPhases];
  }

  // NOTE: not zeros: the kernels find whatever memory held.
  void set_workspace() {
    for (auto const& buffer : Backward::workspace(params_)) {
      workspace_.emplace_back(buffer.n_elements, NAN);
      params_.*buffer.pointer = workspace_.back().data();
    }
  }

  Launch launch_of(int phase_of_all, Emulator& emulator) override {
    int const slice = phase_of_all / EmulatedBackward::kPhases;
    int const phase = phase_of_all % EmulatedBackward::kPhases;
    BackwardParams params = params_;
    BackwardParams const of_slice = params_.slice(slice);
    auto const in_use = Backward::workspace(of_slice);
    variant::Arguments arguments = captured();
    arguments.host_starts_q = params.q_sequences.starts;
    arguments.host_starts_k = params.k_sequences.starts;
    Mapping mapping(emulator);
    auto const role = [&](Phase writer) { return phase == writer ? Role::kOutput : Role::kInput; };
    auto const rows = [&](auto*& pointer, char const* name, TensorStrides const& strides,
                          bool of_keys, Role role) {
      mapping.map(name, pointer, 2, dims_of(params, strides, of_keys), role);
    };
    auto const numbers = [&](auto*& pointer, char const* name) {
      LseStrides const& strides = params.lse_strides;
      mapping.map(name, pointer, 4,
                  {{params.q_sequences.tensor_batches(params.batch), strides.batch},
                   {params.heads, strides.head},
                   {params.q_sequences.tensor_rows(), 1}},
                  Role::kInput);
    };
    BackwardParams const with_workspace = params_.with_workspace_of(slice);
    auto const workspace = [&](float* BackwardParams::* pointer, char const* name, size_t buffer,
                               Role role) {
      int64_t const before = with_workspace.*pointer - params_.*pointer;
      params.*pointer += before;
      mapping.map(name, params.*pointer, 4, {{in_use[buffer].n_elements, 1}}, role);
      params.*pointer -= before;
    };
    for (auto const& [name, starts] : {std::pair("cu_seqlens_q", &params.q_sequences.starts),
                                       std::pair("cu_seqlens_k", &params.k_sequences.starts)}) {
      mapping.map(name, *starts, 4, {{params.batch + 1, 1}}, Role::kInput);
    }
    if (params.deterministic && phase != kAfter) {
      workspace(&BackwardParams::turns, "turns", 3,
                phase == kOwn ? Role::kAccumulator : Role::kOutput);
      if (phase == kOwn) {
        emulator.expect_turns("dq_sum");
      }
    }
    bool const recycles = params.recycles_sums();
    Role const of_sums = recycles ? Role::kRecycledAccumulator : Role::kAccumulator;
    workspace(&BackwardParams::dq_sum, "dq_sum", 0, phase == kOwn ? of_sums : role(kBefore));
    if (recycles && phase != kAfter) {
      workspace(&BackwardParams::added, "added", 5,
                phase == kOwn ? Role::kAccumulator : Role::kOutput);
    }
    bool const is_packed = params.q_sequences.is_packed();
    // Role of what the sequences of a tensor have all rows of, and a slice all heads, or only some.
    auto const of_rows = [&](Sequences const& sequences) {
      bool const has_all = params_.n_slices() == 1 &&
                           (!is_packed || (sequences.starts[0] <= 0 &&
                                           sequences.starts[params.batch] >= sequences.total));
      return has_all && phase != kBefore ? Role::kOutput : Role::kPartialOutput;
    };
    if (params.sorts_key_blocks() && phase != kAfter) {
      workspace(&BackwardParams::order_of_keys, "order of keys", 6, role(kBefore));
    }
    if (phase == kAfter || (recycles && phase == kOwn) || (is_packed && phase == kBefore)) {
      rows(params.dq, "dq", params.dq_strides, false,
           recycles ? Role::kPartialOutput : of_rows(params_.q_sequences));
    }
    bool const divides = params.ctas_of_group > 1;
    if (divides) {
      workspace(&BackwardParams::dkv_sum, "dkv_sum", 4,
                phase == kOwn ? Role::kAccumulator : role(kBefore));
    }
    if (phase == (divides ? kAfter : kOwn) || (is_packed && phase == kBefore)) {
      Role const of_keys = of_rows(params_.k_sequences);
      rows(params.dk, "dk", params.dk_strides, true, of_keys);
      rows(params.dv, "dv", params.dv_strides, true, of_keys);
    }
    if (phase != kAfter) {
      workspace(&BackwardParams::lse2, "lse2", 1, role(kBefore));
      workspace(&BackwardParams::minus_delta, "delta", 2, role(kBefore));
      rows(params.grad_o, "grad_out", params.grad_o_strides, false, Role::kInput);
    }
    if (phase == kBefore) {
      rows(params.o, "out", params.o_strides, false, Role::kInput);
      numbers(params.lse, "lse");
      numbers(params.grad_lse, "grad_lse");
    } else if (phase == kOwn) {
      rows(params.q, "q", params.q_strides, false, Role::kInput);
      rows(params.k, "k", params.k_strides, true, Role::kInput);
      for (auto const& [name, member] : BackwardParams::kPerHead) {
        PerHead& numbers = params.*member;
        mapping.map(name, numbers.data, 4,
                    {{numbers.strides.batch != 0 ? params.batch : 1, numbers.strides.batch},
                     {params.heads, numbers.strides.head}},
                    Role::kInput);
      }
      mapping.map(Dropout::kStateName, params.dropout.state, 8, {{2, 1}}, Role::kInput);
      rows(params.v, "v", params.v_strides, true, Role::kInput);
      for (size_t i = 0; i < arguments.sums_of.size(); ++i) {
        variant::TensorArgument const& tensor = arguments.tensors[i];
        int64_t const size = std::accumulate(tensor.extents, tensor.extents + tensor.rank,
                                             int64_t(1), std::multiplies<>());
        mapping.map("captured", arguments.sums_of[i], 4, {{size, 1}}, Role::kAccumulator);
      }
    }
    return kernel_.backward->launch(phase, params.slice(slice), arguments, n_resident());
  }

  BackwardParams params_{};
  Problem forward_{};
  std::vector<std::vector<float>> workspace_;
};

}  // namespace

std::unique_ptr<Run> new_backward_run(EmulatedKernel const& kernel, Order order, uint64_t seed) {
  return std::make_unique<BackwardRun>(kernel, order, seed);
}

}  // namespace pyflash::emulator
