#pragma once

#include <sched.h>

#include <string>
#include <vector>

namespace lockstep {

// What the kernel tells of the machine, under `sys`, which tests replace.

// NUMA nodes that have cores of the mask, in order; empty where the kernel
// knows of one node or none.
std::vector<int> numa_nodes_of(const cpu_set_t& mask,
                               const std::string& sys = "/sys");
// The node of a PCI device, "0000:01:00.0"; -1 where the kernel doesn't know or
// there is one node.
int numa_node_of_pci(const std::string& bus_id,
                     const std::string& sys = "/sys");
// Whether an InfiniBand port (or one of RoCE) is up.
bool has_infiniband(const std::string& sys = "/sys");
// Whether this process has loaded a library by which MPI can talk over it: UCX,
// libfabric or PSM. Without, MPI surely uses TCP between hosts.
bool mpi_uses_fast_network(const std::string& maps = "/proc/self/maps");

}  // namespace lockstep
