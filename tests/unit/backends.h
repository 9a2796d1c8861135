#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace lockstep::test {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// ‖a − b‖ / ‖b‖, or ‖a‖ where b is zero; NaN where either has one.
template <class A, class B>
double relative_error(const A& a, const B& b) {
  if (std::size(a) != std::size(b)) return INFINITY;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < std::size(a); ++i) {
    difference += std::pow(double(a[i]) - double(b[i]), 2);
    norm += std::pow(double(b[i]), 2);
  }
  return std::sqrt(norm > 0 ? difference / norm : difference);
}

inline Floats random_floats(std::int64_t count, unsigned seed,
                            float deviation = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, deviation);
  Floats values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

inline std::vector<std::int32_t> random_ids(std::int64_t count,
                                            std::int32_t vocabulary,
                                            unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<std::int32_t> uniform(0, vocabulary - 1);
  std::vector<std::int32_t> ids(count);
  for (std::int32_t& id : ids) id = uniform(engine);
  return ids;
}

}  // namespace lockstep::test

namespace lockstep {

// A backend that a suite runs on; its name ends the names of the tests.
struct BackendCase {
  const char* name;
  Device::Kind kind;
  Precision precision;
};
inline void PrintTo(const BackendCase& backend, std::ostream* out) {
  *out << backend.name;
}

inline const std::vector<BackendCase> every_backend = {
    {"Cpu_fp32", Device::Kind::cpu, Precision::fp32},
    {"Cpu_bf16", Device::Kind::cpu, Precision::bf16},
    {"Cuda_fp32", Device::Kind::cuda, Precision::fp32},
    {"Cuda_tf32", Device::Kind::cuda, Precision::tf32},
    {"Cuda_bf16", Device::Kind::cuda, Precision::bf16},
};

// Runs every TEST_P of `suite`, a class derived from BackendTest, on all of
// them.
#define INSTANTIATE_BACKENDS(suite)                                   \
  INSTANTIATE_TEST_SUITE_P(                                           \
      On, suite, testing::ValuesIn(::lockstep::every_backend),        \
      [](const testing::TestParamInfo<::lockstep::BackendCase>& at) { \
        return std::string(at.param.name);                            \
      })

// A test on one backend, with tensors that live as long as the test.
class BackendTest : public testing::TestWithParam<BackendCase> {
 protected:
  using Floats = test::Floats;
  void SetUp() override {
    if (GetParam().kind == Device::Kind::cpu) {
      backend_ = make_cpu_backend(2, precision());
      return;
    }
    if (cuda_devices().empty()) GTEST_SKIP() << "there is no GPU here";
    backend_ = make_cuda_backend(0, precision());
  }

  Precision precision() const { return GetParam().precision; }
  Dtype dtype() const { return compute_dtype(precision()); }
  bool on_cpu() const { return GetParam().kind == Device::Kind::cpu; }
  Backend& backend() { return backend_; }
  Device& device() { return *backend_.device; }
  Ops& ops() { return *backend_.ops; }

  // How far results may be from exact ones: products may use TF32.
  double tolerance() const {
    switch (precision()) {
      case Precision::fp32:
        return 2e-5;
      case Precision::tf32:
        return 5e-3;
      default:
        return 3e-2;
    }
  }
  // The dtypes that gradients of weights may have, and how far they may be from
  // exact ones: a bf16 gradient is rounded once.
  std::vector<Dtype> gradient_dtypes() const {
    if (dtype() == Dtype::bf16) return {Dtype::f32, Dtype::bf16};
    return {Dtype::f32};
  }
  double gradient_tolerance(Dtype gradient) const {
    return gradient == Dtype::bf16 ? 0x1.02p-8 : tolerance();
  }
  // The same for losses and other statistics kept in fp32.
  double loss_tolerance() const { return dtype() == Dtype::bf16 ? 1e-2 : 1e-5; }

  // --- tensors --------------------------------------------------------------
  Tensor zeros(Dtype type, Shape shape) {
    memory_.push_back(
        device().allocate(type, shape, Category::activations, "test"));
    return memory_.back().tensor(type, shape);
  }
  Tensor put(Dtype type, std::span<const float> values, Shape shape) {
    Tensor tensor = zeros(type, shape);
    upload(device(), tensor, values);
    return tensor;
  }
  // In the dtype of activations and weights, and in fp32.
  Tensor activations(std::span<const float> values, Shape shape) {
    return put(dtype(), values, shape);
  }
  Tensor fp32(std::span<const float> values, Shape shape) {
    return put(Dtype::f32, values, shape);
  }
  Tensor ids(const std::vector<std::int32_t>& values) {
    Tensor tensor = zeros(Dtype::i32, {std::ssize(values)});
    device().copy_to_device(tensor, values.data());
    device().synchronize();
    return tensor;
  }
  Floats get(const Tensor& tensor) {
    Floats values(tensor.elements());
    download(device(), values, tensor);
    return values;
  }
  double get_double(const Tensor& tensor) {
    double value = 0;
    device().copy_to_host(&value, tensor);
    device().synchronize();
    return value;
  }

  // The values that a tensor of activations would hold: inputs of a backend
  // and of the reference are then the same.
  Floats rounded(Floats values) const {
    if (dtype() == Dtype::bf16) {
      for (float& value : values) value = bfloat16(value);
    }
    return values;
  }
  Floats random_activations(std::int64_t count, unsigned seed,
                            float deviation = 1) const {
    return rounded(test::random_floats(count, seed, deviation));
  }

  std::int64_t workspace_bytes() {
    return device().ledger().figures().bytes[static_cast<int>(
        Category::workspace)];
  }

 private:
  Backend backend_;
  std::vector<Buffer> memory_;
};

}  // namespace lockstep
