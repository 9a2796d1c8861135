#include <gtest/gtest.h>

#include <random>

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/tensors.h"
#include "core/digest.h"
#include "unit/files.h"

namespace lockstep {
namespace {

using test::error_of;
using test::expect_parts;

ModelConfig tiny() {
  ModelConfig config;
  config.vocab_size = 7;
  config.d_model = 4;
  config.d_ff = 6;
  config.num_layers = 2;
  config.num_heads = 2;
  return config;
}

class Checkpoint : public testing::Test {
 protected:
  // Every number of the state is another.
  std::vector<UnitState> numbered() const {
    std::vector<UnitState> state(store_.units().size());
    float next = 0.5f;
    for (const Unit& unit : store_.units()) {
      for (auto& values : state[unit.index]) {
        values.assign(unit.elements, 0);
        for (const Parameter& parameter : unit.members) {
          for (int i = 0; i < parameter.elements(); ++i) {
            values[parameter.offset + i] = next++;
          }
        }
      }
    }
    return state;
  }
  void write() const {
    write_checkpoint(path_, {{12, 345}, {{"lr", "0.1"}}, {{"version", "x"}}},
                     store_, numbered());
  }

  const test::TemporaryFolder folder_;
  const std::string path_ = folder_ / "a.h5";
  const ParameterStore store_{tiny(), 3};
};

TEST_F(Checkpoint, HoldsWhatWasWritten) {
  write();
  verify_checkpoint(path_);
  const CheckpointFacts facts = read_facts(path_);
  EXPECT_EQ(facts.position.step, 12);
  EXPECT_EQ(facts.position.samples, 345);
  EXPECT_EQ(facts.options, (CheckpointFacts::Texts{{"lr", "0.1"}}));
  const auto expected = numbered();
  const hdf5::File file(path_, hdf5::Access::read);
  EXPECT_EQ(file.attribute<std::string>("version"), "x");
  for (const StatePart part : all_state) {
    const auto group = file.group(std::string(state_part_names[int(part)]));
    check_tensors(group, path_, store_);
    for (const Unit& unit : store_.units()) {
      std::vector<float> values(unit.elements);
      read_tensors(group, unit, values);
      EXPECT_EQ(values, expected[unit.index][int(part)]);
    }
  }
}

// Where a tensor lies in its unit depends on the world size; the file doesn't.
TEST_F(Checkpoint, IsReadOnAnyNumberOfRanks) {
  write();
  const auto expected = numbered();
  const ParameterStore wide(tiny(), 7);
  const auto weights = hdf5::File(path_, hdf5::Access::read).group("weights");
  check_tensors(weights, path_, wide);
  for (const Unit& unit : wide.units()) {
    std::vector<float> values(unit.elements, -1);
    read_tensors(weights, unit, values);
    EXPECT_EQ(values.back(), -1) << "padding";
    for (const Parameter& parameter : unit.members) {
      const float* mine = expected[unit.index][0].data() + parameter.offset;
      EXPECT_TRUE(std::equal(mine, mine + parameter.elements(),
                             values.data() + parameter.offset))
          << parameter.name;
    }
  }
}

TEST_F(Checkpoint, AnyFlippedBitIsDetected) {
  write();
  const std::string whole = test::read_file(path_);
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::string flipped = whole;
    const std::size_t at = random() % flipped.size();
    const auto bit = static_cast<char>(1 << random() % 8);
    flipped[at] = static_cast<char>(flipped[at] ^ bit);
    test::write_file(path_, flipped);
    expect_parts(error_of([&] { verify_checkpoint(path_); }), {"is damaged"});
  }
  test::write_file(path_, whole);
  EXPECT_NO_THROW(verify_checkpoint(path_));
}

TEST_F(Checkpoint, AnyTruncationIsDetected) {
  write();
  const std::string whole = test::read_file(path_);
  std::mt19937 random(2);
  std::vector<std::size_t> sizes = {0, 1, 511, 512, 513, whole.size() - 1};
  for (int i = 0; i < 200; ++i) sizes.push_back(random() % whole.size());
  for (const std::size_t size : sizes) {
    test::write_file(path_, whole.substr(0, size));
    expect_parts(error_of([&] { verify_checkpoint(path_); }), {"is damaged"});
  }
  test::write_file(path_, whole + '\0');
  expect_parts(error_of([&] { verify_checkpoint(path_); }), {"is damaged"});
}

// Whoever reads a file without its seal has HDF5's own checksums.
TEST_F(Checkpoint, ADatasetThatChangedIsRefusedByHdf5Alone) {
  write();
  const std::vector<float> first = {0.5f, 1.5f, 2.5f};
  std::string bytes = test::read_file(path_);
  const std::size_t at = bytes.find(test::bytes_of_values(first));
  ASSERT_NE(at, std::string::npos);
  bytes[at + 1] ^= 1;
  test::write_file(path_, bytes);
  const auto weights = hdf5::File(path_, hdf5::Access::read).group("weights");
  const Unit& unit = store_.units()[0];
  std::vector<float> values(unit.elements);
  expect_parts(error_of([&] { read_tensors(weights, unit, values); }),
               {path_, unit.members[0].name, "read"});
}

TEST_F(Checkpoint, TensorsOfAnotherModelAreRefused) {
  write();
  ModelConfig other = tiny();
  other.d_ff = 8;
  const ParameterStore wide(other, 1);
  const auto weights = hdf5::File(path_, hdf5::Access::read).group("weights");
  expect_parts(error_of([&] { check_tensors(weights, path_, wide); }),
               {"layers.0.ffn.w1.weight", "[6, 4]", "[8, 4]"});
  other = tiny();
  other.num_layers = 1;
  const ParameterStore shallow(other, 1);
  expect_parts(error_of([&] { check_tensors(weights, path_, shallow); }),
               {"layers.1.", "not one of this model's"});
}

TEST(CheckpointFolder, KnowsItsFilesFromOthers) {
  const test::TemporaryFolder folder;
  for (const char* name :
       {"step-00000007.h5", "step-00000010.h5", "step-123456789.h5",
        "step-7.h5", "step-00000012.h5.aside", "step--0000001.h5", "other.h5",
        "step-00000099.h5.partial"}) {
    test::write_file(folder / name, "x");
  }
  const CheckpointFolder checkpoints(folder.path());
  std::vector<std::int64_t> steps;
  for (const auto& entry : checkpoints.entries()) steps.push_back(entry.step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{123456789, 10, 7}));
  EXPECT_FALSE(std::filesystem::exists(folder / "step-00000099.h5.partial"));
}

TEST(Sha256, IsTheStandards) {
  // FIPS 180-4's examples: "abc", and the empty message.
  Sha256 abc;
  abc.add(std::as_bytes(std::span("ab", 2)));
  abc.add(std::as_bytes(std::span("c", 1)));
  EXPECT_EQ(abc.hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256().hex(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

}  // namespace
}  // namespace lockstep
