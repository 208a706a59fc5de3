// The config map of the process: the rows of every kernel library loaded so far.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cute_kernels/host/cubins.h"
#include "cute_kernels/registry.h"

namespace pyflash {

// Loads a kernel library and returns the number of its rows. A config that the map already holds from then on means the
// new library's kernel. Refuses a file that is not a kernel library of this version, and then changes nothing.
// Thread-safe, as are the readers below.
int64_t load_kernel_library(std::string const& path);

// Adds the kernels of a cubin to those of its config, which from then on runs on the cubin's architecture alone; those with
// the same features are replaced. Refuses a file that cannot be read, and where no kernel library is loaded: it is these
// that know CUDA.
void load_cubin(Cubin const& cubin);

// What a kernel library must have been built for: "3-0123456789abcdef", of kKernelLibraryAbi and kConfigsDigest.
std::string kernel_library_abi();

// Changes whenever the map does.
uint64_t config_map_generation();

std::optional<Kernel> find_kernel(AnyConfig const& config);

// In ascending order of config.
std::vector<Kernel> all_kernels();

// A loaded library, to ask about the GPU; nullptr: none is.
KernelLibrary const* any_kernel_library();

// Whether the row holds code for a device of compute capability sm_arch (major * 10 + minor): machine code of the same
// major version and no newer minor one (code for "90a" runs on 90 alone), or PTX that is not newer; and whether the config is legal there.
bool runs_on(ConfigMapRow const& row, int sm_arch);

// CTAs that run on an SM at a time. An architecture that the resource model does not know is taken for the next older one.
int ctas_per_sm(ConfigMapRow const& row, int sm_arch);

// Whether some built combination covers the features.
bool covers(ConfigMapRow const& row, ForwardFeatures needed);

// Why the row's kernels cannot run a problem of features that they cover; nullptr: they can.
char const* refusal(ConfigMapRow const& row, ForwardParams const& params);

// [{"config": "(FP16, ...", "features": ["plain", "right_window"], "sm_archs": [80, 90], "ptx_arch": 90, "n_threads": 128,
// "smem_bytes": 49152, "rank": 0}, ...]
std::string config_map_json();

// What is built, for a refusal: dtypes with their head dimensions; and for one such pair the short forms.
std::string built_head_dims();
std::string built_short_forms(DType dtype, int d_head);

}  // namespace pyflash
