#pragma once

#include <sched.h>

#include <string>
#include <vector>

namespace lockstep {

// The cores this process may run on.
cpu_set_t affinity_mask();
// "0-3,8", and back.
std::string mask_text(const cpu_set_t& mask);
cpu_set_t mask_of(const std::string& text);

// Cores' worth of time the control group grants this process and those beside
// it, or 0 where there is no limit.
double quota_cores();

// This process's share: each core of its mask divided by how many of the
// host's ranks may use it, and no more than its part of the quota. At least 1.
int core_share(const cpu_set_t& mine, const std::vector<cpu_set_t>& local,
               double quota);

}  // namespace lockstep
