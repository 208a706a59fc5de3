// What a config's kernels take of a multiprocessor.
#pragma once

#include <cstddef>

namespace pyflash {

template <class T>
struct Span {
  T const* data;
  size_t size;

  constexpr T const* begin() const { return data; }
  constexpr T const* end() const { return data + size; }
};

// Per CTA.
struct KernelResources {
  int n_threads;
  int smem_bytes;  // dynamic

  friend constexpr bool operator==(KernelResources const&, KernelResources const&) = default;
};

// CTAs that fit on a multiprocessor by the resource model; 0 where the config is not legal.
struct ArchCtas {
  int sm_arch;  // major * 10 + minor
  int ctas;
};

// For __launch_bounds__, ascending by architecture. Specialised by the emitted translation unit.
template <auto kConfig>
inline constexpr Span<ArchCtas> kCtasPerSm{};

// 0 where the architecture is not listed.
constexpr int of_arch(Span<ArchCtas> ctas_per_sm, int sm_arch) {
  for (ArchCtas const& entry : ctas_per_sm) {
    if (entry.sm_arch == sm_arch) {
      return entry.ctas;
    }
  }
  return 0;
}

// For the architecture being compiled; 0, where it is not listed, leaves the choice to the compiler.
constexpr int of_this_arch([[maybe_unused]] Span<ArchCtas> ctas_per_sm) {
#if defined(__CUDA_ARCH__)
  return of_arch(ctas_per_sm, __CUDA_ARCH__ / 10);
#else
  return 0;
#endif
}

}  // namespace pyflash
