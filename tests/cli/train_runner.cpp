#include "train_runner.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/hdf5.h"

namespace lockstep {

const char* const small_run =
    "--model-size test --vocab-size 64 --context-length 16 --data seq.npy "
    "--sampler sequential --device cpu --precision fp32 --seed 1 --lr 1e-2 "
    "--min-lr 1e-3 --steps 8 ";

namespace {

std::string contents(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

}  // namespace

TrainTest::TrainTest() {
  // Test machines are often root's containers.
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  std::string pattern =
      (std::filesystem::temp_directory_path() / "lockstep-cli-XXXXXX").string();
  folder_ = mkdtemp(pattern.data());
}

TrainTest::~TrainTest() {
  if (HasFailure()) {
    fmt::print("files kept in {}\n", folder_.string());
    return;
  }
  std::filesystem::remove_all(folder_);
}

Finished TrainTest::shell(const std::string& line, int seconds) const {
  write("line.sh", line + "\n");
  const std::string command = fmt::format(
      "cd {} && timeout {} bash line.sh > stdout.txt 2> stderr.txt < /dev/null",
      folder_.string(), seconds);
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128,
          contents(folder_ / "stdout.txt"), contents(folder_ / "stderr.txt")};
}

std::string TrainTest::launcher(int ranks) {
  if (ranks == 0) return LOCKSTEP_TRAIN;
  return fmt::format("mpirun -np {} --oversubscribe --bind-to none {}", ranks,
                     LOCKSTEP_TRAIN);
}

Finished TrainTest::train(int ranks, const std::string& arguments,
                          int seconds) const {
  return shell(launcher(ranks) + " " + arguments, seconds);
}

void TrainTest::write(const std::string& name, const std::string& bytes) const {
  std::ofstream(folder_ / name, std::ios::binary) << bytes;
}

void TrainTest::write_sequence(int vocabulary) const {
  std::vector<std::uint16_t> tokens(4097);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::uint16_t>(i * (i + 1) / 2 % vocabulary);
  }
  write("seq.npy", npy("<u2", "(4097,)", bytes_of_values(tokens)));
}

std::vector<double> column(const std::string& file, const std::string& name) {
  return hdf5::File(file, hdf5::Access::read).dataset(name).read<double>();
}

std::vector<float> tensor(const std::string& file, const std::string& name) {
  return hdf5::File(file, hdf5::Access::read).dataset(name).read<float>();
}

double relative_error(const std::vector<float>& a,
                      const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += std::pow(double(a[i]) - b[i], 2);
    norm += std::pow(double(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

double worst_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double error = std::abs(a[i] - b[i]) / std::abs(b[i]);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

std::string npy(const std::string& descr, const std::string& shape,
                const std::string& payload) {
  std::string header = fmt::format(
      "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", descr, shape);
  header.append(63 - (header.size() + 10) % 64, ' ');
  header += '\n';
  const auto length = static_cast<std::uint16_t>(header.size());
  return std::string("\x93NUMPY\x01\x00", 8) +
         std::string(reinterpret_cast<const char*>(&length), 2) + header +
         payload;
}

}  // namespace lockstep
