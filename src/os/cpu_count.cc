#include "os/cpu_count.h"

#include <errno.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "os/cgroup.h"

namespace weft::core {
namespace {

int AffinityCpus() {
  // The kernel refuses a mask that is too small for it with EINVAL, so the mask grows until it fits.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(cpus));
    size_t size = CPU_ALLOC_SIZE(static_cast<size_t>(cpus));
    CPU_ZERO_S(size, set);
    bool ok = sched_getaffinity(0, size, set) == 0;
    int count = ok ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (ok) return count;
    if (errno != EINVAL) break;
  }
  return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

std::optional<double> QuotaOf(const std::string& directory) {
  double quota = 0, period = 0;
  if (auto content = ReadSmallFile(directory + "/cpu.max")) {
    // "max 100000" has no number in front and is no limit.
    if (std::sscanf(content->c_str(), "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0) {
      return quota / period;
    }
    return std::nullopt;
  }
  auto quota_text = ReadSmallFile(directory + "/cpu.cfs_quota_us");
  auto period_text = ReadSmallFile(directory + "/cpu.cfs_period_us");
  if (quota_text && period_text && std::sscanf(quota_text->c_str(), "%lf", &quota) == 1 &&
      std::sscanf(period_text->c_str(), "%lf", &period) == 1 && quota > 0 && period > 0) {
    return quota / period;
  }
  return std::nullopt;
}

}  // namespace

int AllowedCpus(const std::string& root) {
  int cpus = AffinityCpus();
  for (const std::string& directory : CgroupDirectories("cpu", root)) {
    if (auto quota = QuotaOf(directory); quota && *quota < cpus) cpus = static_cast<int>(*quota);
  }
  return std::max(cpus, 1);
}

int IdleCpus(int allowed) {
  if (allowed <= 1) return 1;
  // The fourth field of /proc/loadavg is "runnable/all" threads at this instant, ours among them.
  auto content = ReadSmallFile("/proc/loadavg");
  int running = 0;
  if (!content || std::sscanf(content->c_str(), "%*s %*s %*s %d/", &running) != 1) return 1;
  int online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  return std::clamp(online - running + 1, 1, allowed);
}

}  // namespace weft::core
