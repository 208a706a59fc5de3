// What the accesses of a kernel cost: lanes' accesses put together into the instructions of warps, and these counted as
// the memory pipeline counts them.
//
// Shared memory has 32 banks of 4 bytes. A wavefront serves one word of each bank; an instruction of 8 or 16 bytes a lane
// is served half of a warp after the other, an ldmatrix matrix by matrix. What needs more wavefronts than its bytes
// fill has bank conflicts; its degree is the wavefronts over those it would need without. Global memory moves in sectors of 32
// bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace pyflash::emulator {

enum class Path { kSharedLoad, kSharedStore, kGlobalLoad, kGlobalStore };
inline constexpr char const* kPathNames[] = {"shared_load", "shared_store", "global_load",
                                             "global_store"};
inline constexpr int kPaths = 4;
inline constexpr int kLanes = 32;

// One instruction of a warp: the addresses of the lanes that took part.
struct Request {
  uint32_t lanes = 0;
  std::array<uint64_t, kLanes> addresses;
};

// Totals of one site and path. Wavefronts and degrees of shared, sectors of global memory.
struct Traffic {
  int64_t instructions = 0;  // of warps
  int64_t bytes = 0;         // of lanes
  int64_t wavefronts = 0;
  int64_t ideal_wavefronts = 0;
  double min_degree = 0;
  double sum_degree = 0;
  double max_degree = 0;
  int64_t sectors = 0;
  int64_t ideal_sectors = 0;

  void add_shared(Request const& request, int bytes);
  void add_matrices(Request const& request, int bytes);  // 8 rows each
  void add_global(Request const& request, int bytes);

 private:
  void add_parts(Request const& request, int bytes, int lanes_at_once, int ideal);
};

// All sites and paths.
class TrafficTable {
 public:
  explicit TrafficTable(int n_sites) : table_(n_sites) {}

  Traffic& at(int site, Path path) { return table_[site][static_cast<int>(path)]; }
  Traffic const& at(int site, Path path) const { return table_[site][static_cast<int>(path)]; }
  bool any(int site) const;
  void add(int site, Path path, Request const& request, int bytes);
  void add_matrices(int site, Path path, Request const& request, int bytes);

 private:
  std::vector<std::array<Traffic, kPaths>> table_;
};

// Puts the accesses of a warp's lanes together: the n-th of each lane at one site, by one path and of one size is one
// instruction. Lanes that leave out some say so, or leave out the last ones.
class WarpTraffic {
 public:
  void add(int site, Path path, int lane, void const* address, int bytes);
  // The lane has no part in the next instruction of each stream of the site.
  void leave_out(int site, int lane);

  // At a point that all lanes have reached: nothing before it belongs together with anything behind.
  void flush(TrafficTable& totals);

 private:
  using OfLane = std::array<int, kLanes>;
  struct Stream {
    int site;
    Path path;
    int bytes;
    OfLane n_of_lane{};
    std::vector<Request> requests;
    size_t n_requests = 0;
  };

  OfLane& left_out(int site);

  std::vector<Stream> streams_;
  std::vector<OfLane> left_out_;  // by site
  bool empty_ = true;
};

}  // namespace pyflash::emulator
