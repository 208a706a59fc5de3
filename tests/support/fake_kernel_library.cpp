// A kernel library without kernels, for what surrounds them. Its head dimensions are built by nobody else: larger than
// what the ops take, and 8, which is smaller than what real kernels are built for.
#include <iterator>

#include "cute_kernels/registry.h"
#include "cute_kernels/variant_row.h"

#ifndef ABI
#define ABI pyflash::kKernelLibraryAbi
#endif
#ifndef DIGEST
#define DIGEST kConfigsDigest
#endif
#ifndef BASE_RANK
#define BASE_RANK 0
#endif
#ifndef LAST_RANK  // of the three with d_head 568
#define LAST_RANK 3
#endif
#ifndef SIGN
#define SIGN +
#endif
#ifndef FIRST_NAME
#define FIRST_NAME "(FP16, 512, 128, 64, 4): async+load_0_0_0_tiles"
#endif
#ifndef ENTRY
#define ENTRY pyflash_kernel_library
#endif

namespace {

using Row = pyflash::ConfigMapRow<pyflash::Forward>;

int run(void const*, Row const&, pyflash::ListedForwardParams const&, void*) { return 1; }

void describe(Row&) {}

int load_cubin(void const*, char const*, void const**) { return 1; }

int device_properties(int* sm_arch, int* n_sms) {
  *sm_arch = 90;
  *n_sms = 132;
  return 0;
}

char const* error_string(int) { return "fake"; }

constexpr FlashForwardKernelConfig config(DType dtype, int d_head, int B_r, int B_c) {
  return {
      .dtype = dtype, .d_head = d_head, .B_r = B_r, .B_c = B_c, .n_warps = 4, .async_copy = true};
}

constexpr ForwardFeatures kFeatures[] = {
    {},
    {.right_window = true},
    {.right_window = true, .left_window = true, .predicated_head_dim = true},
#ifdef LISTED
    {.right_window = true, .listed_tiles = true},
    {.right_window = true, .equal_shares = true},
#endif
#ifdef SHARED
    {.paged_kv = true},
    {.paged_kv = true, .equal_shares = true},
    {.right_window = true, .left_window = true, .paged_kv = true},
    {.right_window = true,
     .left_window = true,
     .sinks = true,
     .paged_kv = true,
     .equal_shares = true},
#endif
};
constexpr void const* kKernels[std::size(kFeatures)] = {};
constexpr pyflash::ArchCtas kCtas[] = {{80, 2}, {86, 1}, {89, 1}, {90, 2}};

#if defined(REFUSES_PADDED)
char const* refusal(Row const&, pyflash::ListedForwardParams const& params) {
  return params.q_sequences().is_packed() && params.kv().sequences.is_packed() ? nullptr
                                                                               : "it is padded";
}
#elif defined(REFUSES_STRIDE_0)
char const* refusal(Row const&, pyflash::ListedForwardParams const& params) {
  for (pyflash::TensorStrides const& strides :
       {params.q_strides, params.kv().k.strides, params.kv().v.strides}) {
    if (strides.row == 0 || strides.head == 0 ||
        (!params.q_sequences().is_packed() && strides.batch == 0)) {
      return "it has a stride of 0";
    }
  }
  return nullptr;
}
#elif defined(REFUSES)
char const* refusal(Row const&, pyflash::ListedForwardParams const&) { return "it is " REFUSES; }
#else
constexpr pyflash::ProblemRefusal<pyflash::Forward> refusal = nullptr;
#endif

template <class Config>
Row row(Config const& config, char const* short_form, char const* sm_archs, int ptx_arch,
        int rank) {
  return {{.short_form = short_form,
           .dtype = config.dtype,
           .d_head = config.d_head,
           .n_threads = 128,
           .smem_bytes = 1024,
           .kernels = {kKernels, std::size(kKernels)},
           .ctas_per_sm = {kCtas, std::size(kCtas)},
           .sm_archs = sm_archs,
           .ptx_arch = ptx_arch,
           .rank = BASE_RANK SIGN rank},
          config,
          {kFeatures, std::size(kFeatures)},
          {.B_r = config.B_r, .B_c = config.B_c},
          refusal};
}

// Those of op backward, if there are any.
using BackwardRow = pyflash::ConfigMapRow<pyflash::Backward>;

int run_backward(void const*, BackwardRow const&, pyflash::BackwardParams const&, void*) {
  return 1;
}
void describe_backward(BackwardRow&) {}

#if defined(BACKWARD)
constexpr BackwardFeatures kAllFeatures[] = {
    {}, {.right_window = true}, {.right_window = true, .left_window = true}};

char const* few_keys(BackwardRow const&, pyflash::BackwardParams const& params) {
  return params.k_sequences.longest < 100 ? "it has few keys" : nullptr;
}

BackwardRow backward_row(DType dtype, int d_head, int stages, char const* short_form,
                         size_t n_features, int rank) {
  FlashBackwardSm90Config const config{.dtype = dtype,
                                       .d_head = d_head,
                                       .B_r = 64 * 128 / d_head,
                                       .B_c = 128,
                                       .n_consumers = 2,
                                       .stages = stages};
  return {{.short_form = short_form,
           .dtype = dtype,
           .d_head = d_head,
           .n_threads = 384,
           .smem_bytes = 1024,
           .kernels = {kKernels, n_features},
           .ctas_per_sm = {kCtas, std::size(kCtas)},
           .sm_archs = "90a",
           .ptx_arch = 0,
           .rank = rank},
          config,
          {kAllFeatures, n_features},
          {.B_r = config.B_r, .B_c = config.B_c, .d_head = d_head},
          few_keys};
}

// Of the SM80 family, for a d_head between those of the others.
BackwardRow slow_row() {
  FlashBackwardKernelConfig const config{.dtype = DType::BF16,
                                         .d_head = 96,
                                         .B_r = 64,
                                         .B_c = 128,
                                         .n_warps = 8,
                                         .stages = 2,
                                         .warp_keys = 32};
  BackwardRow row = backward_row(DType::BF16, 96, 2,
                                 "(BF16, 96, 64, 128, 8): sm80_bwd+stages_2+warp_keys_32", 2, 0);
  row.config = config;
  row.shape = {.B_r = 64, .B_c = 128, .d_head = 96, .slowness = 2};
  return row;
}

BackwardRow const backward_rows[] = {
    slow_row(),
    backward_row(DType::BF16, 128, 3, "(BF16, 128, 64, 128, 2): sm90_bwd+stages_3", 2, 1),
    backward_row(DType::BF16, 128, 2, "(BF16, 128, 64, 128, 2): sm90_bwd+stages_2", 3, 2),
    backward_row(DType::BF16, 64, 2, "(BF16, 64, 128, 128, 2): sm90_bwd+stages_2", 3, 9),
};
constexpr size_t n_backward_rows = std::size(backward_rows);
#else
constexpr BackwardRow const* backward_rows = nullptr;
constexpr size_t n_backward_rows = 0;
#endif

}  // namespace

extern "C" __attribute__((visibility("default"))) pyflash::KernelLibrary const* ENTRY() {
  static Row const rows[] = {
#ifdef HOPPER
      row(FlashForwardSm90Config{.dtype = DType::FP16,
                                 .d_head = 512,
                                 .B_r = 128,
                                 .B_c = 64,
                                 .n_consumers = 2,
                                 .stages = 2},
          "(FP16, 512, 128, 64, 2): sm90+stages_2", "90a", 0, -9),
#endif
#if defined(LISTED) || defined(SHARED)
      [] {
        Row few = row(FlashForwardSm90Config{.dtype = DType::FP16,
                                             .d_head = 512,
                                             .B_r = 64,
                                             .B_c = 64,
                                             .n_consumers = 1,
                                             .stages = 2,
                                             .pack_gqa = true},
                      "(FP16, 512, 64, 64, 1): sm90+stages_2+pack_gqa", "90a", 0, 9);
        few.shape.packs_heads = true;
#ifdef MERGES_SHARES
        few.shape.merges_shares = true;
#endif
        return few;
      }(),
#endif
      row(config(DType::FP16, 512, 128, 64), FIRST_NAME, "80,90", 90, 2),
      row(config(DType::FP16, 512, 128, 32), "(FP16, 512, 128, 32, 4): async+load_0_0_0_tiles",
          "80,90", 90, 1),
      row(config(DType::FP16, 512, 64, 64), "(FP16, 512, 64, 64, 4): async+load_0_0_0_tiles",
          "80,90", 90, 3),
      row(config(DType::FP16, 512, 64, 32), "(FP16, 512, 64, 32, 4): async+load_0_0_0_tiles", "80",
          0, 0),
      row(config(DType::FP16, 640, 64, 64), "(FP16, 640, 64, 64, 4): async+load_0_0_0_tiles",
          "75,90", 90, 0),
      row(config(DType::BF16, 576, 64, 64), "(BF16, 576, 64, 64, 4): async+load_0_0_0_tiles", "86",
          80, 0),
      row(config(DType::BF16, 568, 192, 64), "(BF16, 568, 192, 64, 4): async+load_0_0_0_tiles",
          "90", 0, 1),
      row(config(DType::BF16, 568, 128, 64), "(BF16, 568, 128, 64, 4): async+load_0_0_0_tiles",
          "90", 0, 2),
      row(config(DType::BF16, 568, 64, 64), "(BF16, 568, 64, 64, 4): async+load_0_0_0_tiles", "90",
          0, LAST_RANK),
      row(config(DType::FP16, 8, 64, 32), "(FP16, 8, 64, 32, 4): async+load_0_0_0_tiles", "80", 0,
          1),
      row(config(DType::FP16, 8, 64, 64), "(FP16, 8, 64, 64, 4): async+load_0_0_0_tiles", "80", 0,
          0),
  };
  static pyflash::KernelLibrary const library{
      .abi = ABI,
      .configs_digest = DIGEST,
      .ops = {pyflash::OpKernels<pyflash::Forward>{{rows, std::size(rows)}, run, describe},
              pyflash::OpKernels<pyflash::Backward>{
                  {backward_rows, n_backward_rows}, run_backward, describe_backward}},
      .device_properties = device_properties,
      .error_string = error_string,
      .load_cubin = load_cubin,
  };
  return &library;
}

#ifdef VARIANT_KEY  // two kernels of a variant: the one for few queries has the rank OF_FEW, the other -50
namespace {

pyflash::VariantRow variant_row(int B_r, char const* short_form, int rank, bool packs_heads) {
  FlashForwardSm90Config const config{.dtype = DType::FP16,
                                      .d_head = 512,
                                      .B_r = B_r,
                                      .B_c = 64,
                                      .n_consumers = B_r / 64,
                                      .stages = 2,
                                      .pack_gqa = packs_heads};
  pyflash::VariantRow result{.key = VARIANT_KEY,
                             .most_positions = 1 << 20,
                             .row = row(config, short_form, "90a", 0, rank)};
  result.row.shape.packs_heads = packs_heads;
  return result;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) pyflash::Span<pyflash::VariantRow> const*
pyflash_variant_rows() {
  static pyflash::VariantRow const rows[] = {
      variant_row(64, "(FP16, 512, 64, 64, 1): sm90+stages_2+pack_gqa", OF_FEW, true),
      variant_row(128, "(FP16, 512, 128, 64, 2): sm90+stages_2", -50, false),
  };
  static pyflash::Span<pyflash::VariantRow> const span{rows, std::size(rows)};
  return &span;
}
#endif
