#include "record/run_facts.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

#include "core/hdf5.h"

namespace lockstep {

void write_facts(hdf5::File& file, const RunFacts& facts) {
  const std::time_t now = std::time(nullptr);
  file.set_attribute("created",
                     fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now)));
  for (const auto& [name, value] : facts.texts) {
    file.set_attribute(name, value);
  }
  for (const auto& [name, value] : facts.integers) {
    file.set_attribute(name, value);
  }
  for (const auto& [name, value] : facts.numbers) {
    file.set_attribute(name, value);
  }
  file.set_attribute("hdf5_version", hdf5::version());
  file.set_attribute("hostnames", facts.hostnames);
  // A record that is gone on with has those of its earlier start.
  if (file.has("config")) file.remove("config");
  hdf5::Group config = file.create_group("config");
  for (const auto& [name, value] : facts.config) {
    config.set_attribute(name, value);
  }
}

}  // namespace lockstep
