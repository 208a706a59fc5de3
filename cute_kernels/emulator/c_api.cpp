#include "cute_kernels/emulator/c_api.h"

#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "cute_kernels/emulator/emulator.h"
#include "cute_kernels/emulator/params.h"
#include "cute_kernels/emulator/report.h"

namespace {

using namespace pyflash::emulator;

struct Run {
  Emulator emulator;
  pyflash::ForwardParams params{};
  std::string report;
};

Run& run_of(void* emulator) { return *static_cast<Run*>(emulator); }

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

int pyflash_emulator_add_tensor(void* emulator, char const* name, void* data, int rank,
                                int64_t const* shape, int64_t const* strides, int element_bytes,
                                int64_t misalignment, int is_output) try {
  Run& run = run_of(emulator);
  uintptr_t const address = run.emulator.add_tensor({.name = name,
                                                     .data = static_cast<std::byte*>(data),
                                                     .shape = {shape, shape + rank},
                                                     .strides = {strides, strides + rank},
                                                     .element_bytes = element_bytes,
                                                     .misalignment = misalignment,
                                                     .output = is_output != 0});
  return set_param(run.params, name, static_cast<int64_t>(address));
} catch (std::bad_alloc const&) {
  return -1;
}

int pyflash_emulator_set_integer(void* emulator, char const* name, int64_t value) {
  return set_param(run_of(emulator).params, name, value);
}

int pyflash_emulator_set_float(void* emulator, char const* name, double value) {
  return set_param(run_of(emulator).params, name, value);
}

int64_t pyflash_emulator_n_ctas(void* emulator) {
  return pyflash_emulated_kernel()->n_ctas(run_of(emulator).params);
}
int pyflash_emulator_n_threads(void*) { return pyflash_emulated_kernel()->n_threads; }
int pyflash_emulator_smem_bytes(void*) { return pyflash_emulated_kernel()->smem_bytes; }

int pyflash_emulator_run_cta(void* emulator, int64_t cta) {
  Run& run = run_of(emulator);
  return run.emulator.run_cta(run.params, cta);
}

void pyflash_emulator_finish(void* emulator) { run_of(emulator).emulator.finish(); }

char const* pyflash_emulator_report(void* emulator) {
  Run& run = run_of(emulator);
  run.report = report(run.emulator);
  return run.report.c_str();
}
