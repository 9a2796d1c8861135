#include "mpi/cores.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>

namespace lockstep {

cpu_set_t affinity_mask() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) CPU_SET(0, &mask);
  return mask;
}

std::string mask_text(const cpu_set_t& mask) {
  std::string text;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &mask)) continue;
    int last = core;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &mask)) ++last;
    text += fmt::format("{}{}{}", text.empty() ? "" : ",", core,
                        last > core ? fmt::format("-{}", last) : "");
    core = last;
  }
  return text;
}

cpu_set_t mask_of(const std::string& text) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::istringstream ranges(text);
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = 0, last = 0;
    const int read = std::sscanf(range.c_str(), "%d-%d", &first, &last);
    if (read < 1) continue;
    if (read == 1) last = first;
    for (int core = first; core <= last && core < CPU_SETSIZE; ++core) {
      CPU_SET(core, &mask);
    }
  }
  return mask;
}

double quota_cores() {
  // cgroup v2: every level from this process's group up may limit.
  std::string line, path;
  for (std::ifstream groups("/proc/self/cgroup"); std::getline(groups, line);) {
    if (line.starts_with("0::")) path = line.substr(3);
  }
  double limit = std::numeric_limits<double>::infinity();
  while (true) {
    std::ifstream file("/sys/fs/cgroup" + path + "/cpu.max");
    double quota = 0, period = 0;
    if (file >> quota >> period && period > 0) {
      limit = std::min(limit, quota / period);
    }
    if (path.empty() || path == "/") break;
    path.erase(path.rfind('/'));
  }
  // cgroup v1, as seen from inside a container.
  double quota = 0, period = 0;
  std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> quota;
  std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  if (quota > 0 && period > 0) limit = std::min(limit, quota / period);
  return std::isinf(limit) ? 0 : limit;
}

int core_share(const cpu_set_t& mine, const std::vector<cpu_set_t>& local,
               double quota) {
  double share = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &mine)) continue;
    share += 1.0 / double(std::count_if(local.begin(), local.end(),
                                        [&](const cpu_set_t& mask) {
                                          return CPU_ISSET(core, &mask);
                                        }));
  }
  if (quota > 0) share = std::min(share, quota / double(local.size()));
  return std::max(1, static_cast<int>(share + 1e-9));
}

}  // namespace lockstep
