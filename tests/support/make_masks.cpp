// Runs the kernels that judge blocks of a mask and list them, with a thread of the host for each of theirs. A line of input is a
// problem:
//   n_queries n_keys B_r B_c warpgroups n_judged warps width
// whose tensor of bools has rows of `width`, and of which a CTA judges n_judged blocks, and `warps` write a list. A line of output
// says whether lists, spans and bits are those that the same code makes as one thread, the emulator's way.
#include <cstdint>
#include <cstring>
#include <iostream>
#include <random>
#include <vector>

#include "cta_on_host.h"
#include "cute_kernels/variant/makers.cuh"
#include "masks.h"

using namespace pyflash;
using namespace pyflash::variant;

namespace {

int load(int const* address) { return *address; }

template <class... Parameters, class... Arguments>
void launch(int64_t n_ctas, int n_threads, void (*kernel)(Parameters...),
            Arguments const&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(n_ctas));
  config.blockDim = dim3(unsigned(n_threads));
  launch_on_host(&config, kernel, arguments...);
}

struct Masks {
  std::vector<int> lists;
  std::vector<BlockSpan> spans;
  std::vector<uint32_t> bits;

  bool operator==(Masks const& other) const {
    return lists == other.lists && bits == other.bits &&
           std::memcmp(spans.data(), other.spans.data(), spans.size() * sizeof(BlockSpan)) == 0;
  }
};

template <class Variant>
Masks make(typename Variant::Params const& captured, ListedProblem problem, bool by_kernels,
           int n_judged, int warps) {
  BlockLists lists = problem.lists<Variant>();
  BlockSpans spans = block_spans<Variant>(problem);
  int const n_blocks = int(lists.n_lists()) * lists.blocks;
  Masks made{std::vector<int>(lists.size(), -1), std::vector<BlockSpan>(spans.size(lists)), {}};
  lists.data = made.lists.data();
  spans.data = made.spans.data();
  if (kTakesBits<Variant>) {
    problem.is_judged = true;
    made.bits.resize(n_blocks * words_of_block(problem.warpgroups, problem.B_c), 0xabababab);
    if (by_kernels) {
      launch(ceil_div(n_blocks, n_judged), kJudgingThreads, judge_blocks<Variant>, captured,
             PreparedTables<0>{}, problem, lists, made.bits.data(), n_judged);
    } else {
      JudgedBlock judged[kMostJudged];
      for (int i = 0; i < n_blocks; i += kMostJudged) {
        judge_blocks_from<Variant>(captured, {}, problem, lists, made.bits.data(), i,
                                   smaller(kMostJudged, n_blocks - i), HostCta{judged}, load);
      }
    }
  }
  int64_t const n_lists = lists.n_lists();
  if (by_kernels) {
    int const lists_of_cta = warps == 1 ? 4 : 1;
    launch(ceil_div(n_lists, int64_t(lists_of_cta)), 32 * warps * lists_of_cta,
           list_blocks<Variant>, captured, problem, lists, spans, warps);
  } else {
    for (int64_t i = 0; i < n_lists; ++i) {
      write_list<Variant>(captured, problem, lists, spans, i, OneLane{}, load);
    }
  }
  return made;
}

}  // namespace

int main() {
  int n_q, n_k, B_r, B_c, warpgroups, n_judged, warps, width;
  while (std::cin >> n_q >> n_k >> B_r >> B_c >> warpgroups >> n_judged >> warps >> width) {
    ListedProblem const problem{.q = Sequences::padded(n_q),
                                .k = Sequences::padded(n_k),
                                .mask = {},
                                .batch = 1,
                                .heads = 2,
                                .n_queries = B_r,
                                .B_c = B_c,
                                .group = 1,
                                .warpgroups = warpgroups};
    struct alignas(16) Vector {
      uint8_t bools[16];
    };
    std::vector<Vector> memory(int64_t(n_q) * width / 16 + 1);
    auto* const bools = &memory[0].bools[0];
    std::mt19937 random(n_q + n_k);
    for (int64_t i = 0; i < int64_t(n_q) * width; ++i) {
      int const kind =
          i % width / B_c % 3;  // of a block: empty, whole, cut in the rows of some warps
      bool const is_cut = kind == 2 && i / width % 64 >= 16;
      bools[i] = is_cut ? random() % 2 : kind != 0;
    }
    Bools::Params captured{};
    captured.p0.data = reinterpret_cast<bool const*>(bools);
    captured.p0.extents[0] = n_q;
    captured.p0.extents[1] = width;
    captured.p0.strides[0] = width;
    captured.p0.strides[1] = 1;
    auto is_same = [&]<class Variant>(typename Variant::Params const& of, Variant) {
      return make<Variant>(of, problem, true, n_judged, warps) ==
             make<Variant>(of, problem, false, n_judged, warps);
    };
    std::cout << is_same(captured, Bools{}) << ' ' << is_same({}, Computed{}) << ' '
              << is_same({}, Banded{}) << std::endl;
  }
}
