#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

namespace hdf5 {
class File;
}

// What was run, where and with which versions: attributes of the root group of
// every file that a program of ours leaves.
struct RunFacts {
  std::vector<std::pair<std::string, std::string>> texts;
  std::vector<std::pair<std::string, std::int64_t>> integers;
  std::vector<std::pair<std::string, double>> numbers;
  std::vector<std::string> hostnames;  // one a rank
  // /config: every option, by name
  std::vector<std::pair<std::string, std::string>> config;
};

// Writes them, with the time and the version of HDF5.
void write_facts(hdf5::File& file, const RunFacts& facts);

}  // namespace lockstep
