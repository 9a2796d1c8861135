#include "checkpoint/checkpoint_file.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "checkpoint/tensors.h"
#include "core/atomic_file.h"
#include "core/digest.h"

namespace lockstep {
namespace {

constexpr std::size_t seal_bytes = 512;
constexpr std::string_view title = "Lockstep checkpoint\n";
constexpr std::int64_t format_version = 1;

// The user block of a file whose other bytes have this digest.
std::string seal(const std::string& digest) {
  std::string block = fmt::format(
      "{}sha256 {} of all bytes from {} on\n"
      "Read it as HDF5; see docs/checkpoints.md\n",
      title, digest, seal_bytes);
  block.resize(seal_bytes, '\n');
  return block;
}

void write_facts(hdf5::File& file, const CheckpointFacts& facts) {
  const std::time_t now = std::time(nullptr);
  file.set_attribute("format", "lockstep checkpoint");
  file.set_attribute("format_version", format_version);
  file.set_attribute("created",
                     fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now)));
  file.set_attribute("step", facts.position.step);
  file.set_attribute("samples", facts.position.samples);
  for (const auto& [name, value] : facts.versions) {
    file.set_attribute(name, value);
  }
  hdf5::Group options = file.create_group("options");
  for (const auto& [name, value] : facts.options) {
    options.set_attribute(name, value);
  }
}

}  // namespace

void write_checkpoint(const std::string& path, const CheckpointFacts& facts,
                      const ParameterStore& layout,
                      std::vector<UnitState> state) {
  hdf5::File file(path, hdf5::Access::in_memory, seal_bytes);
  write_facts(file, facts);
  for (const Unit& unit : layout.units()) {
    for (const StatePart part : all_state) {
      write_tensors(file, std::string(state_part_names[int(part)]), unit,
                    state[unit.index][int(part)]);
    }
    state[unit.index] = {};
  }
  const Bytes body = file.bytes().subspan(seal_bytes);
  Sha256 digest;
  digest.add(body);
  const std::string block = seal(digest.hex());
  replace_file(path, {std::as_bytes(std::span(block)), body});
}

bool is_checkpoint(const std::string& path) {
  std::string begin(title.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  return file.read(begin.data(), std::ssize(begin)) && begin == title;
}

void verify_checkpoint(const std::string& path) {
  require(std::filesystem::is_regular_file(path),
          "cannot read checkpoint {}: it is not a regular file", path);
  std::ifstream file(path, std::ios::binary);
  require(file.is_open(), "cannot read checkpoint {}", path);
  std::string found(seal_bytes, '\0');
  file.read(found.data(), seal_bytes);
  Sha256 digest;
  std::vector<char> piece(1 << 20);
  while (file) {
    file.read(piece.data(), std::ssize(piece));
    digest.add(std::as_bytes(
        std::span(piece).first(static_cast<std::size_t>(file.gcount()))));
  }
  require(
      !file.bad() && found == seal(digest.hex()),
      "checkpoint {} is damaged: it is not what was written, by its SHA-256",
      path);
}

CheckpointFacts read_facts(const std::string& path) {
  const hdf5::File file(path, hdf5::Access::read);
  const auto version = file.attribute<std::int64_t>("format_version");
  require(version == format_version,
          "checkpoint {} has format version {}; this program reads {}", path,
          version, format_version);
  CheckpointFacts facts;
  facts.position = {file.attribute<std::int64_t>("step"),
                    file.attribute<std::int64_t>("samples")};
  require(facts.position.step >= 0 && facts.position.samples >= 0,
          "checkpoint {} is at step {} and sample {}", path,
          facts.position.step, facts.position.samples);
  const hdf5::Group options = file.group("options");
  for (const std::string& name : options.attributes()) {
    facts.options.emplace_back(name, options.attribute<std::string>(name));
  }
  return facts;
}

}  // namespace lockstep
