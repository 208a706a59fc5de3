// An emulated kernel's library as other languages see it: plain C, and everything by name.
#pragma once

#include <cstdint>

#define PYFLASH_EXPORT extern "C" __attribute__((visibility("default")))

// A run of the kernel. order: "ascending", "descending" or "random", of warps and lanes; seed: of the last.
// nullptr: no memory.
PYFLASH_EXPORT void* pyflash_emulator_new(char const* order, uint64_t seed);
PYFLASH_EXPORT void pyflash_emulator_delete(void* emulator);

// Global memory that the kernel may touch; the param of the same name becomes its address. Strides in elements.
// misalignment: bytes by which `data` misses what a GPU's allocator would return. Returns 0 for an unknown param, -1 where
// there is no memory.
PYFLASH_EXPORT int pyflash_emulator_add_tensor(void* emulator, char const* name, void* data,
                                               int rank, int64_t const* shape,
                                               int64_t const* strides, int element_bytes,
                                               int64_t misalignment, int is_output);

// A field of ForwardParams; 0: there is none of this name and type.
PYFLASH_EXPORT int pyflash_emulator_set_integer(void* emulator, char const* name, int64_t value);
PYFLASH_EXPORT int pyflash_emulator_set_float(void* emulator, char const* name, double value);

PYFLASH_EXPORT int64_t pyflash_emulator_n_ctas(void* emulator);
PYFLASH_EXPORT int pyflash_emulator_n_threads(void* emulator);
PYFLASH_EXPORT int pyflash_emulator_smem_bytes(void* emulator);

// 0: the CTA could not go on; no other is to be run, and no finish.
PYFLASH_EXPORT int pyflash_emulator_run_cta(void* emulator, int64_t cta);
// After the last CTA.
PYFLASH_EXPORT void pyflash_emulator_finish(void* emulator);

// JSON; valid until the next call for the same emulator.
PYFLASH_EXPORT char const* pyflash_emulator_report(void* emulator);
