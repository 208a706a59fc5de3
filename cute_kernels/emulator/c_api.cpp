#include "cute_kernels/emulator/c_api.h"

#include <algorithm>
#include <climits>
#include <iterator>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cute_kernels/emulator/emulator.h"
#include "cute_kernels/emulator/params.h"
#include "cute_kernels/emulator/report.h"
#include "cute_kernels/host/call.h"
#include "cute_kernels/host/errors.h"

namespace {

using namespace pyflash::emulator;
using pyflash::TensorView;

// NOTE: they stand for tensors of a GPU, where the values of cu_seqlens are not checked.
constexpr pyflash::Device kDevice{pyflash::Device::Kind::kCuda, 0};

bool takes_tensor(std::string_view name) {
  constexpr std::string_view kInputs[] = {"q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"};
  bool found = std::find(std::begin(kInputs), std::end(kInputs), name) != std::end(kInputs);
  pyflash::for_each_per_head_option(
      [&](pyflash::PerHeadOption const& option) { found = found || name == option.name; });
  return found;
}

struct Tensor {
  void const* data;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  pyflash::ElementType dtype;
};

struct Run {
  Emulator emulator;
  std::map<std::string, Tensor, std::less<>> tensors;
  int64_t max_seqlen_q = 0;
  int64_t max_seqlen_k = 0;
  pyflash::Options options;

  int64_t resident_ctas = 132;  // of an H100 or H200
  pyflash::Problem problem{};
  Launch launch;
  std::string text;  // returned last

  TensorView view(char const* name) const {
    Tensor const& tensor = tensors.at(name);
    return {.name = name,
            .data = tensor.data,
            .rank = static_cast<int>(tensor.shape.size()),
            .sizes = tensor.shape.data(),
            .strides = tensor.strides.data(),
            .dtype = tensor.dtype,
            .device = kDevice};
  }

  pyflash::Call call() const {
    pyflash::Call call{.q = view("q"), .k = view("k"), .v = view("v"), .options = options};
    if (tensors.contains("cu_seqlens_q")) {
      call.packing =
          pyflash::Packing{view("cu_seqlens_q"), view("cu_seqlens_k"), max_seqlen_q, max_seqlen_k};
    }
    pyflash::for_each_per_head_option([&](pyflash::PerHeadOption const& option) {
      if (tensors.contains(option.name)) {
        call.options.*option.member = view(option.name);
      }
    });
    return call;
  }
};

Run& run_of(void* emulator) { return *static_cast<Run*>(emulator); }

// The parts of O and lse that a kernel writes, to be merged by another.
int n_parts(pyflash::Problem const& problem) {
  return problem.params.num_splits / problem.params.cluster;
}

Order order_of(std::string_view name) {
  if (name == "ascending") {
    return Order::kAscending;
  }
  return name == "descending" ? Order::kDescending : Order::kRandom;
}

}  // namespace

void* pyflash_emulator_new(char const* order, uint64_t seed) try {
  return new Run{.emulator = Emulator(*pyflash_emulated_kernel(), order_of(order), seed)};
} catch (std::bad_alloc const&) {
  return nullptr;
}

void pyflash_emulator_delete(void* emulator) { delete &run_of(emulator); }

int pyflash_emulator_set_tensor(void* emulator, char const* name, void const* data, int rank,
                                int64_t const* shape, int64_t const* strides, char const* dtype) {
  run_of(emulator).tensors[name] = {.data = data,
                                    .shape = {shape, shape + rank},
                                    .strides = {strides, strides + rank},
                                    .dtype = pyflash::element_type(dtype)};
  return takes_tensor(name);
}

int pyflash_emulator_set_integer(void* emulator, char const* name, int64_t value) {
  Run& run = run_of(emulator);
  for (auto const& [length, member] : {std::pair("max_seqlen_q", &Run::max_seqlen_q),
                                       std::pair("max_seqlen_k", &Run::max_seqlen_k),
                                       std::pair("resident_ctas", &Run::resident_ctas)}) {
    if (std::string_view(name) == length) {
      run.*member = value;
      return 1;
    }
  }
  return pyflash::set_option(run.options, name, value);
}

int pyflash_emulator_set_float(void* emulator, char const* name, double value) {
  return pyflash::set_option(run_of(emulator).options, name, value);
}

char const* pyflash_emulator_prepare(void* emulator, char const* config, int dtype,
                                     int d_head) try {
  Run& run = run_of(emulator);
  run.problem = pyflash::problem_of(run.call());
  pyflash::check_config_fits(config, static_cast<DType>(dtype), d_head, run.problem);
  pyflash::require(run.resident_ctas > 0 && run.resident_ctas <= INT_MAX,
                   "resident_ctas = ", run.resident_ctas, ": expected a number from 1 to ",
                   INT_MAX);
  run.problem.params.num_splits = run.problem.num_splits;
  run.problem.params.cluster = 1;
  EmulatedKernel const& kernel = *pyflash_emulated_kernel();
  if (char const* const reason =
          kernel.refusal == nullptr ? nullptr : kernel.refusal(run.problem.params)) {
    pyflash::refuse("config '", config, "' cannot run this problem: ", reason);
  }
  if (kernel.cluster != nullptr) {
    run.problem.params.cluster =
        kernel.cluster(run.problem.params, static_cast<int>(run.resident_ctas));
  }
  return nullptr;
} catch (std::runtime_error const& refusal) {
  return (run_of(emulator).text = refusal.what()).c_str();
}

char const* pyflash_emulator_problem(void* emulator) {
  Run& run = run_of(emulator);
  return (run.text = numbers_json(run.problem.params)).c_str();
}

char const* pyflash_emulator_set_outputs(void* emulator, void* o, float* lse) try {
  Run& run = run_of(emulator);
  if (n_parts(run.problem) > 1) {
    run.problem.params.o_partial = static_cast<float*>(o);
    run.problem.params.lse_partial = lse;
  } else {
    run.problem.params.o = o;
    run.problem.params.lse = lse;
  }
  map_memory(run.problem.params, run.emulator);
  run.launch =
      pyflash_emulated_kernel()->launch(run.problem.params, static_cast<int>(run.resident_ctas));
  return run.launch.error;
} catch (std::bad_alloc const&) {
  return "no memory for the emulator's record of the tensors";
}

int pyflash_emulator_n_parts(void* emulator) { return n_parts(run_of(emulator).problem); }

int64_t pyflash_emulator_n_ctas(void* emulator) { return run_of(emulator).launch.n_ctas; }
int pyflash_emulator_cluster(void* emulator) { return run_of(emulator).launch.cluster; }
int pyflash_emulator_n_threads(void*) { return pyflash_emulated_kernel()->n_threads; }
int pyflash_emulator_smem_bytes(void*) { return pyflash_emulated_kernel()->smem_bytes; }

int pyflash_emulator_run_cluster(void* emulator, int64_t first_cta) {
  Run& run = run_of(emulator);
  return run.emulator.run_cluster(run.launch, first_cta);
}

void pyflash_emulator_finish(void* emulator) { run_of(emulator).emulator.finish(); }

char const* pyflash_emulator_report(void* emulator) {
  Run& run = run_of(emulator);
  return (run.text = report(run.emulator)).c_str();
}
