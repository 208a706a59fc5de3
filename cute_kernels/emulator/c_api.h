// The interface of an emulated kernel's library: plain C, everything by name.
#pragma once

#include <cstdint>

#define PYFLASH_EXPORT extern "C" __attribute__((visibility("default")))

// A run of the kernel. order: "ascending", "descending" or "random", of warps and lanes; seed: of the last.
// nullptr: no memory.
PYFLASH_EXPORT void* pyflash_emulator_new(char const* order, uint64_t seed);
PYFLASH_EXPORT void pyflash_emulator_delete(void* emulator);

// The arguments of the op, each by its name. Strides in elements, dtype as torch names it. 0: the op takes nothing of this
// name and type.
PYFLASH_EXPORT int pyflash_emulator_set_tensor(void* emulator, char const* name, void const* data,
                                               int rank, int64_t const* shape,
                                               int64_t const* strides, char const* dtype);
PYFLASH_EXPORT int pyflash_emulator_set_integer(void* emulator, char const* name, int64_t value);
PYFLASH_EXPORT int pyflash_emulator_set_float(void* emulator, char const* name, double value);

// After the arguments: checks and normalises them as the op does. config, dtype and d_head are those of the kernel. Returns
// nullptr, or why the op refuses the call.
PYFLASH_EXPORT char const* pyflash_emulator_prepare(void* emulator, char const* config, int dtype,
                                                    int d_head);
// What the kernel gets, as JSON: extents, windows (-1: none) and other numbers. Valid until the next call of this.
PYFLASH_EXPORT char const* pyflash_emulator_problem(void* emulator);
// Parts of O and lse that the kernel writes: its splits, or 1 where it merges them itself.
PYFLASH_EXPORT int pyflash_emulator_n_parts(void* emulator);
// Where the kernels write: out and lse, or, with n_parts > 1, those of each part, (n_parts, elements of lse, d_head)
// and (n_parts, elements of lse). Of op backward: dq, dk and dv.
PYFLASH_EXPORT void pyflash_emulator_set_outputs(void* emulator, void* const* outputs);

// The op's kernels in a row: how many, which is the config's own, and the name of each, "" of the only one.
PYFLASH_EXPORT int pyflash_emulator_n_phases(void* emulator);
PYFLASH_EXPORT int pyflash_emulator_own_phase(void* emulator);
PYFLASH_EXPORT char const* pyflash_emulator_phase_name(void* emulator, int phase);
// What follows is of this phase. Returns nullptr, or why there is nothing to run.
PYFLASH_EXPORT char const* pyflash_emulator_begin_phase(void* emulator, int phase);

PYFLASH_EXPORT int64_t pyflash_emulator_n_ctas(void* emulator);
// CTAs that run together, as a cluster.
PYFLASH_EXPORT int pyflash_emulator_cluster(void* emulator);
PYFLASH_EXPORT int pyflash_emulator_n_threads(void* emulator);
PYFLASH_EXPORT int pyflash_emulator_smem_bytes(void* emulator);

// The cluster from this CTA on. 0: it could not go on; no other is to be run, and no finish.
PYFLASH_EXPORT int pyflash_emulator_run_cluster(void* emulator, int64_t first_cta);
// After the last cluster.
PYFLASH_EXPORT void pyflash_emulator_finish(void* emulator);

// JSON; valid until the next call for the same emulator.
PYFLASH_EXPORT char const* pyflash_emulator_report(void* emulator);
