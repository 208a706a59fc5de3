#include "cute_kernels/emulator/c_api.h"

#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cute_kernels/emulator/report.h"
#include "cute_kernels/emulator/run.h"

namespace {

using namespace pyflash::emulator;

struct Handle {
  std::unique_ptr<Run> run;
  std::string text;  // returned last
};

Handle& handle_of(void* emulator) { return *static_cast<Handle*>(emulator); }
Run& run_of(void* emulator) { return *handle_of(emulator).run; }

Order order_of(std::string_view name) {
  if (name == "ascending") {
    return Order::kAscending;
  }
  return name == "descending" ? Order::kDescending : Order::kRandom;
}

}  // namespace

void* pyflash_emulator_new(char const* order, uint64_t seed) try {
  return new Handle{.run = new_run(*pyflash_emulated_kernel(), order_of(order), seed), .text = {}};
} catch (std::bad_alloc const&) {
  return nullptr;
}

void pyflash_emulator_delete(void* emulator) { delete &handle_of(emulator); }

int pyflash_emulator_set_tensor(void* emulator, char const* name, void const* data, int rank,
                                int64_t const* shape, int64_t const* strides, char const* dtype) {
  return run_of(emulator).set_tensor(name, data, rank, shape, strides,
                                     pyflash::element_type(dtype));
}

int pyflash_emulator_set_integer(void* emulator, char const* name, int64_t value) {
  return run_of(emulator).set_integer(name, value);
}

int pyflash_emulator_set_float(void* emulator, char const* name, double value) {
  return run_of(emulator).set_float(name, value);
}

char const* pyflash_emulator_prepare(void* emulator, char const* config, int dtype,
                                     int d_head) try {
  run_of(emulator).prepare(config, static_cast<DType>(dtype), d_head);
  return nullptr;
} catch (std::runtime_error const& refusal) {
  return (handle_of(emulator).text = refusal.what()).c_str();
}

char const* pyflash_emulator_problem(void* emulator) {
  return (handle_of(emulator).text = run_of(emulator).problem()).c_str();
}

void pyflash_emulator_set_outputs(void* emulator, void* const* outputs) {
  run_of(emulator).set_outputs(outputs);
}

int pyflash_emulator_n_parts(void* emulator) { return run_of(emulator).n_parts(); }
int pyflash_emulator_n_phases(void* emulator) { return run_of(emulator).n_phases(); }
int pyflash_emulator_own_phase(void* emulator) { return run_of(emulator).own_phase(); }
char const* pyflash_emulator_phase_name(void* emulator, int phase) {
  return run_of(emulator).phase_name(phase);
}

char const* pyflash_emulator_begin_phase(void* emulator, int phase) try {
  return run_of(emulator).begin_phase(phase);
} catch (std::bad_alloc const&) {
  return "no memory for the emulator's record of the tensors";
}

int64_t pyflash_emulator_n_ctas(void* emulator) { return run_of(emulator).launch().n_ctas; }
int pyflash_emulator_cluster(void* emulator) { return run_of(emulator).launch().cluster; }
int pyflash_emulator_n_threads(void* emulator) {
  return run_of(emulator).emulator().kernel().n_threads;
}
int pyflash_emulator_smem_bytes(void* emulator) {
  return run_of(emulator).emulator().kernel().smem_bytes;
}

int pyflash_emulator_run_cluster(void* emulator, int64_t first_cta) {
  Run& run = run_of(emulator);
  return run.emulator().run_cluster(run.launch(), first_cta);
}

void pyflash_emulator_finish(void* emulator) { run_of(emulator).finish_phase(); }

char const* pyflash_emulator_report(void* emulator) {
  return (handle_of(emulator).text = report(run_of(emulator).emulator())).c_str();
}
