#include "cute_kernels/emulator/report.h"

#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cute_kernels/sites.h"

namespace pyflash::emulator {

namespace {

// Members of an object or array, with the commas between them.
class Json {
 public:
  std::string text() const { return text_.str(); }

  void open(char bracket) {
    separate();
    text_ << bracket;
    first_ = true;
  }
  void close(char bracket) {
    text_ << bracket;
    first_ = false;
  }
  void key(std::string_view name) {
    separate();
    quote(name);
    text_ << ':';
    first_ = true;
  }
  void value(std::string_view text) {
    separate();
    quote(text);
  }
  template <class Number>
  void value(Number number) {
    separate();
    text_ << number;
  }
  void null() {
    separate();
    text_ << "null";
  }
  template <class Value>
  void member(std::string_view name, Value const& member_value) {
    key(name);
    value(member_value);
  }

 private:
  void separate() {
    if (!first_) {
      text_ << ',';
    }
    first_ = false;
  }
  void quote(std::string_view text) {
    text_ << '"';
    for (char c : text) {
      if (c == '"' || c == '\\') {
        text_ << '\\';
      }
      text_ << (c < ' ' ? ' ' : c);
    }
    text_ << '"';
  }

  std::ostringstream text_;
  bool first_ = true;
};

constexpr auto kNSites = static_cast<int>(std::size(device::kSiteNames));

std::string_view site_name(int site) {
  return site < kNSites ? device::kSiteNames[site] : "unlabelled";
}

// The CTA of a thread in its cluster.
int rank_of(Emulator const& emulator, Access const& access) {
  return access.thread < 0 ? 0 : access.thread / emulator.kernel().n_threads;
}

void write(Json& json, Emulator const& emulator, std::string_view name, Access const& access) {
  json.key(name);
  if (access.thread < 0) {
    json.null();
    return;
  }
  json.open('{');
  json.member("site", site_name(access.site));
  json.member("thread", access.thread % emulator.kernel().n_threads);
  json.key("rank");
  if (emulator.n_ranks() > 1) {
    json.value(rank_of(emulator, access));
  } else {
    json.null();
  }
  json.member("what", std::string_view(access.what));
  json.close('}');
}

void write(Json& json, Emulator const& emulator, Finding const& finding) {
  json.open('{');
  json.member("kind", std::string_view(finding.kind));
  json.member("memory", std::string_view(finding.memory));
  json.member("offset", finding.offset);
  json.member("bytes", finding.bytes);
  write(json, emulator, "access", finding.access);
  write(json, emulator, "other", finding.other);
  json.member("detail", std::string_view(finding.detail));
  json.member("cta", finding.cta + rank_of(emulator, finding.access));
  json.member("count", finding.count);
  json.close('}');
}

void write(Json& json, Traffic const& traffic, bool shared) {
  json.open('{');
  json.member("instructions", traffic.instructions);
  json.member("bytes", traffic.bytes);
  if (shared) {
    json.member("wavefronts", traffic.wavefronts);
    json.member("ideal_wavefronts", traffic.ideal_wavefronts);
    json.member("min_degree", traffic.min_degree);
    json.member("mean_degree", traffic.sum_degree / static_cast<double>(traffic.instructions));
    json.member("max_degree", traffic.max_degree);
  } else {
    json.member("sectors", traffic.sectors);
    json.member("ideal_sectors", traffic.ideal_sectors);
  }
  json.close('}');
}

void write_site(Json& json, TrafficTable const& table, int site) {
  json.key(site_name(site));
  json.open('{');
  for (int i = 0; i < kPaths; ++i) {
    auto const path = static_cast<Path>(i);
    Traffic const& traffic = table.at(site, path);
    if (traffic.instructions > 0) {
      json.key(kPathNames[i]);
      write(json, traffic, path == Path::kSharedLoad || path == Path::kSharedStore);
    }
  }
  json.close('}');
}

void write(Json& json, Counts const& counts) {
  json.open('{');
  json.member("mma", counts.mma);
  json.member("ldmatrix", counts.ldmatrix);
  json.member("shuffles", counts.shuffles);
  json.member("warp_syncs", counts.warp_syncs);
  json.member("barriers", counts.barriers);
  json.member("cp_async", counts.cp_async);
  json.member("cp_async_commits", counts.cp_async_commits);
  json.member("cp_async_waits", counts.cp_async_waits);
  json.member("exponentials", counts.exponentials);
  json.member("reciprocals", counts.reciprocals);
  json.member("wgmma_ss", counts.wgmma_ss);
  json.member("wgmma_rs", counts.wgmma_rs);
  json.member("wgmma_flops_ss", counts.wgmma_flops_ss);
  json.member("wgmma_flops_rs", counts.wgmma_flops_rs);
  json.member("wgmma_fences", counts.wgmma_fences);
  json.member("wgmma_commits", counts.wgmma_commits);
  json.member("wgmma_waits", counts.wgmma_waits);
  json.member("tma_boxes", counts.tma_boxes);
  json.member("tma_bytes", counts.tma_bytes);
  json.member("tma_stores", counts.tma_stores);
  json.member("tma_stored_bytes", counts.tma_stored_bytes);
  json.member("mbarrier_arrivals", counts.mbarrier_arrivals);
  json.member("mbarrier_expects", counts.mbarrier_expects);
  json.member("mbarrier_waits", counts.mbarrier_waits);
  json.member("proxy_fences", counts.proxy_fences);
  json.member("named_syncs", counts.named_syncs);
  json.member("named_arrivals", counts.named_arrivals);
  json.member("stmatrix", counts.stmatrix);
  json.member("cluster_syncs", counts.cluster_syncs);
  json.member("cluster_loads", counts.cluster_loads);
  json.member("cluster_bytes", counts.cluster_bytes);
  json.member("exponential_instructions", counts.exponential_instructions);
  json.close('}');
}

void write_names(Json& json, std::string_view key, std::vector<std::string> const& names) {
  json.key(key);
  json.open('[');
  for (std::string const& name : names) {
    json.value(std::string_view(name));
  }
  json.close(']');
}

// [warp, kind, site, a, b, c] for each event.
void write_timeline(Json& json, Emulator const& emulator) {
  std::vector<std::string> roles;
  for (int warp = 0; warp < emulator.kernel().n_threads / kLanes; ++warp) {
    roles.emplace_back(emulator.kernel().role(warp));
  }
  write_names(json, "roles", roles);
  write_names(json, "mbarriers", emulator.mbarrier_names());
  json.key("timeline");
  json.open('[');
  for (TimelineEvent const& event : emulator.timeline().events()) {
    json.open('[');
    json.value(event.warp);
    json.value(std::string_view(kTimelineKinds[event.kind]));
    json.value(site_name(event.site));
    json.value(event.a);
    json.value(event.b);
    json.value(event.c);
    json.close(']');
  }
  json.close(']');
}

}  // namespace

std::string report(Emulator const& emulator) {
  Json json;
  json.open('{');
  json.key("sites");
  json.open('{');
  for (int site = 0; site <= kNSites; ++site) {
    if (emulator.traffic().any(site)) {
      write_site(json, emulator.traffic(), site);
    }
  }
  json.close('}');
  json.key("counts");
  write(json, emulator.counts());
  json.key("findings");
  json.open('[');
  for (Finding const& finding : emulator.findings().all()) {
    write(json, emulator, finding);
  }
  json.close(']');
  write_timeline(json, emulator);
  json.close('}');
  return json.text();
}

}  // namespace pyflash::emulator
