#include "cute_kernels/emulator/traffic.h"

#include <algorithm>
#include <bit>

namespace pyflash::emulator {

namespace {

constexpr int kBanks = 32;
constexpr int kWordBytes = 4;
constexpr int kSectorBytes = 32;

// Different addresses, in units, that `lanes` of a request touch with `bytes` each.
int n_different(Request const& request, uint32_t lanes, int bytes, int unit) {
  std::array<uint64_t, kLanes * 16 / kWordBytes> units;
  int n = 0;
  bool ascends = true;
  for (; lanes != 0; lanes &= lanes - 1) {
    uint64_t const address = request.addresses[std::countr_zero(lanes)];
    for (uint64_t u = address / unit; u <= (address + bytes - 1) / unit; ++u) {
      // Neighbours mostly follow each other.
      if (n == 0 || units[n - 1] != u) {
        ascends = ascends && (n == 0 || units[n - 1] < u);
        units[n++] = u;
      }
    }
  }
  if (ascends) {
    return n;
  }
  std::sort(units.begin(), units.begin() + n);
  return static_cast<int>(std::unique(units.begin(), units.begin() + n) - units.begin());
}

// The wavefronts of a part of a warp that is served at once: the most accesses, at different addresses, that need the
// same banks. Accesses are aligned to their size, a word at least, so that two of them need all of the same banks or
// none.
int n_wavefronts(Request const& request, uint32_t lanes, int bytes) {
  std::array<std::array<uint64_t, kLanes>, kBanks> units;  // by bank, or group of neighbours
  std::array<uint8_t, kBanks> n_units{};
  uint64_t const n_groups = kBanks * kWordBytes / bytes;
  int most = 0;
  for (; lanes != 0; lanes &= lanes - 1) {
    uint64_t const unit = request.addresses[std::countr_zero(lanes)] / bytes;
    auto& group = units[unit % n_groups];
    uint8_t& n = n_units[unit % n_groups];
    if (std::find(group.begin(), group.begin() + n, unit) == group.begin() + n) {
      group[n++] = unit;
      most = std::max<int>(most, n);
    }
  }
  return most;
}

}  // namespace

void Traffic::add_shared(Request const& request, int bytes) {
  int const unit = std::max(bytes, kWordBytes);
  int const different = n_different(request, request.lanes, unit, unit) * unit;
  add_parts(request, unit, unit == kWordBytes ? kLanes : kLanes / 2,
            (different + kBanks * kWordBytes - 1) / (kBanks * kWordBytes));
}

void Traffic::add_matrices(Request const& request, int bytes) {
  constexpr int kRows = 8;
  add_parts(request, bytes, kRows, (std::popcount(request.lanes) + kRows - 1) / kRows);
}

void Traffic::add_parts(Request const& request, int bytes, int lanes_at_once, int ideal) {
  auto const part = static_cast<uint32_t>((uint64_t{1} << lanes_at_once) - 1);
  int actual = 0;
  for (int first = 0; first < kLanes; first += lanes_at_once) {
    actual += n_wavefronts(request, request.lanes & part << first, bytes);
  }
  double const degree = static_cast<double>(actual) / ideal;
  min_degree = instructions == 0 ? degree : std::min(min_degree, degree);
  max_degree = std::max(max_degree, degree);
  sum_degree += degree;
  ++instructions;
  this->bytes += int64_t{std::popcount(request.lanes)} * bytes;
  wavefronts += actual;
  ideal_wavefronts += ideal;
}

void Traffic::add_global(Request const& request, int bytes) {
  int const different = n_different(request, request.lanes, bytes, kWordBytes) * kWordBytes;
  ++instructions;
  this->bytes += int64_t{std::popcount(request.lanes)} * bytes;
  sectors += n_different(request, request.lanes, bytes, kSectorBytes);
  ideal_sectors += (different + kSectorBytes - 1) / kSectorBytes;
}

bool TrafficTable::any(int site) const {
  return std::any_of(table_[site].begin(), table_[site].end(),
                     [](Traffic const& traffic) { return traffic.instructions > 0; });
}

void TrafficTable::add(int site, Path path, Request const& request, int bytes) {
  bool const shared = path == Path::kSharedLoad || path == Path::kSharedStore;
  Traffic& traffic = at(site, path);
  shared ? traffic.add_shared(request, bytes) : traffic.add_global(request, bytes);
}

void TrafficTable::add_matrices(int site, Path path, Request const& request, int bytes) {
  at(site, path).add_matrices(request, bytes);
}

void WarpTraffic::add(int site, Path path, int lane, void const* address, int bytes) {
  auto stream = std::find_if(streams_.begin(), streams_.end(), [&](Stream const& s) {
    return s.site == site && s.path == path && s.bytes == bytes;
  });
  if (stream == streams_.end()) {
    streams_.push_back({.site = site, .path = path, .bytes = bytes, .n_of_lane = left_out(site)});
    stream = streams_.end() - 1;
  }
  auto const n = static_cast<size_t>(stream->n_of_lane[lane]++);
  for (; stream->n_requests <= n; ++stream->n_requests) {
    if (stream->n_requests == stream->requests.size()) {
      stream->requests.emplace_back();
    }
    stream->requests[stream->n_requests].lanes = 0;
  }
  Request& request = stream->requests[n];
  request.lanes |= uint32_t{1} << lane;
  request.addresses[lane] = reinterpret_cast<uint64_t>(address);
  empty_ = false;
}

void WarpTraffic::leave_out(int site, int lane) {
  ++left_out(site)[lane];
  for (Stream& stream : streams_) {
    stream.n_of_lane[lane] += stream.site == site;
  }
  empty_ = false;
}

WarpTraffic::OfLane& WarpTraffic::left_out(int site) {
  if (left_out_.size() <= static_cast<size_t>(site)) {
    left_out_.resize(site + 1);
  }
  return left_out_[site];
}

void WarpTraffic::flush(TrafficTable& totals) {
  if (empty_) {
    return;
  }
  for (Stream& stream : streams_) {
    for (size_t n = 0; n < stream.n_requests; ++n) {
      if (stream.requests[n].lanes != 0) {
        totals.add(stream.site, stream.path, stream.requests[n], stream.bytes);
      }
    }
    stream.n_requests = 0;
    stream.n_of_lane.fill(0);
  }
  for (OfLane& lanes : left_out_) {
    lanes.fill(0);
  }
  empty_ = true;
}

}  // namespace pyflash::emulator
