#include "mpi/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "mpi/cores.h"

namespace lockstep {
namespace {

std::string first_line(const std::filesystem::path& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// Entries of a folder; none where there is no folder.
std::vector<std::filesystem::path> entries(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(path, error), end; at != end;
       at.increment(error)) {
    found.push_back(at->path());
  }
  return found;
}

std::string node_folder(const std::string& sys, int node) {
  return fmt::format("{}/devices/system/node/node{}", sys, node);
}

bool has_several_nodes(const std::string& sys) {
  return std::filesystem::exists(node_folder(sys, 1));
}

}  // namespace

std::vector<int> numa_nodes_of(const cpu_set_t& mask, const std::string& sys) {
  std::vector<int> nodes;
  if (!has_several_nodes(sys)) return nodes;
  for (int node = 0; std::filesystem::exists(node_folder(sys, node)); ++node) {
    const cpu_set_t cores =
        mask_of(first_line(node_folder(sys, node) + "/cpulist"));
    cpu_set_t both;
    CPU_AND(&both, &cores, &mask);
    if (CPU_COUNT(&both) > 0) nodes.push_back(node);
  }
  return nodes;
}

int numa_node_of_pci(const std::string& bus_id, const std::string& sys) {
  if (!has_several_nodes(sys)) return -1;
  const std::string line =
      first_line(fmt::format("{}/bus/pci/devices/{}/numa_node", sys, bus_id));
  return line.empty() ? -1 : std::atoi(line.c_str());
}

bool has_infiniband(const std::string& sys) {
  for (const auto& adapter : entries(sys + "/class/infiniband")) {
    for (const auto& port : entries(adapter / "ports")) {
      // "4: ACTIVE"
      if (first_line(port / "state").ends_with("ACTIVE")) return true;
    }
  }
  return false;
}

bool mpi_uses_fast_network(const std::string& maps) {
  std::ifstream file(maps);
  for (std::string line; std::getline(file, line);) {
    for (const char* library : {"/libucp.", "/libfabric.", "/libpsm2."}) {
      if (line.find(library) != std::string::npos) return true;
    }
  }
  return false;
}

}  // namespace lockstep
