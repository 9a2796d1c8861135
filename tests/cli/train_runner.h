#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

// What a command left behind.
struct Finished {
  int exit_code = 0;
  std::string out;
  std::string err;
};

// Runs `train` as a user does, in a folder of the test's own that goes when
// the test has passed.
class TrainTest : public testing::Test {
 protected:
  TrainTest();
  ~TrainTest() override;

  // A shell line, ended after `seconds`: exit code 124 then.
  Finished shell(const std::string& line, int seconds = 120) const;
  // mpirun -np ranks train arguments; without mpirun where ranks is 0.
  Finished train(int ranks, const std::string& arguments,
                 int seconds = 120) const;
  // The beginning of a command line for `ranks` ranks.
  static std::string launcher(int ranks);

  std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }
  void write(const std::string& name, const std::string& bytes) const;
  // seq.npy: 4097 uint16, token i = i(i + 1)/2 mod `vocabulary`.
  void write_sequence(int vocabulary = 64) const;

  std::filesystem::path folder_;
};

// The address sanitizer reserves more memory than any limit lets it.
#ifdef __SANITIZE_ADDRESS__
constexpr bool memory_can_be_limited = false;
#else
constexpr bool memory_can_be_limited = true;
#endif

// Options of a small fp32 run on seq.npy of 8 steps.
extern const char* const small_run;

// A column of a run record, and a saved tensor.
std::vector<double> column(const std::string& file, const std::string& name);
std::vector<float> tensor(const std::string& file, const std::string& name);
// ‖a − b‖ / ‖b‖
double relative_error(const std::vector<float>& a, const std::vector<float>& b);
// The largest |a − b| / |b|
double worst_ratio(const std::vector<double>& a, const std::vector<double>& b);

// An .npy of format 1.0 with the given header values and payload.
std::string npy(const std::string& descr, const std::string& shape,
                const std::string& payload);
template <class T>
std::string bytes_of_values(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()),
          values.size() * sizeof(T)};
}

}  // namespace lockstep
