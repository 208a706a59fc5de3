// The faults of a kernel: each kind once per pair of sites, with the first example and the number of times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pyflash::emulator {

// One access of one thread: where in the kernel, by whom, what it did.
struct Access {
  int site = -1;          // of device::kSiteNames; -1: none
  int thread = -1;        // in its cluster
  char const* what = "";  // "read", "write", "cp.async"
};

struct Finding {
  char const* kind;    // as documented in docs/concepts/emulator-findings.md
  std::string memory;  // "shared", or the name of a global tensor; empty where none is concerned
  int64_t offset = 0;  // bytes from the start of that memory, of the first example
  int bytes = 0;
  Access access;       // what made it wrong
  Access other;        // what it met, if anything
  std::string detail;  // in words
  int64_t cta = 0;     // the first of the cluster
  int64_t count = 1;
};

class Findings {
 public:
  int64_t cta = 0;  // the first of the cluster that runs now

  void add(Finding finding);

  std::vector<Finding> const& all() const { return all_; }

 private:
  std::vector<Finding> all_;
};

}  // namespace pyflash::emulator
