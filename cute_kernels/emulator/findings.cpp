#include "cute_kernels/emulator/findings.h"

#include <cstring>
#include <utility>

namespace pyflash::emulator {

namespace {

bool same_place(Access const& a, Access const& b) {
  return a.site == b.site && std::strcmp(a.what, b.what) == 0;
}

}  // namespace

void Findings::add(Finding finding) {
  for (Finding& known : all_) {
    if (std::strcmp(known.kind, finding.kind) == 0 && known.memory == finding.memory &&
        same_place(known.access, finding.access) && same_place(known.other, finding.other)) {
      ++known.count;
      return;
    }
  }
  finding.cta = cta;
  all_.push_back(std::move(finding));
}

}  // namespace pyflash::emulator
