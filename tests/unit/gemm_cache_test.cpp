#include "cuda/gemm_cache.h"

#include <gtest/gtest.h>

#include "ops/ops.h"
#include "unit/backends.h"
#include "unit/files.h"

namespace lockstep::test {
namespace {

constexpr GemmCache::Algorithm some{1, 2, 3, 0xffffffffffffffff, 5, 6, 7, 8};

void expect_refused(const std::string& path, const std::string& part) {
  try {
    const GemmCache cache(path);
    FAIL() << "took " << path;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
        << error.what();
  }
}

TEST(GemmCacheFile, HasForTheNextRunWhatThisOnePut) {
  const TemporaryFolder folder;
  const std::string path = folder / "gemm.txt";
  {
    GemmCache cache(path);
    EXPECT_FALSE(cache.find("a GPU | 1 2 3"));
    cache.put("a GPU | 1 2 3", {});
    cache.put("another GPU | 1 2 3", {9});
    cache.put("a GPU | 1 2 3", some);
  }
  const GemmCache cache(path);
  EXPECT_EQ(cache.find("a GPU | 1 2 3"), some);
  EXPECT_EQ(cache.find("another GPU | 1 2 3"), GemmCache::Algorithm{9});
  EXPECT_FALSE(cache.find("a GPU | 1 2"));
}

TEST(GemmCacheFile, IsNotWrittenWithoutAPath) {
  GemmCache cache("");
  EXPECT_FALSE(cache.keeps());
  cache.put("a GPU | 1", some);
  EXPECT_EQ(cache.find("a GPU | 1"), some);
}

TEST(GemmCacheFile, RefusesOtherFiles) {
  const TemporaryFolder folder;
  const std::string path = folder / "gemm.txt";
  write_file(path, "steps = 3\n");
  expect_refused(path, "is not a GEMM cache");
  for (const char* line : {"", "a GPU", "a GPU = ", "a GPU = 1 2 3 4 5 6 7",
                           "a GPU = 1 2 3 4 5 6 7 8 9",
                           "a GPU = 1 2 3 4 5 6 7 10000000000000000", "= 1"}) {
    write_file(path, "lockstep gemm cache 1\nb = 1 2 3 4 5 6 7 8\n" +
                         std::string(line) + "\n");
    expect_refused(path, "line 3 of the GEMM cache");
  }
  expect_refused(folder / "no/such/folder/gemm.txt", "the GEMM cache");
}

TEST(GemmCacheFile, MakesCudaProductsRepeatableAfterTheFirstRun) {
  if (cuda_devices().empty()) GTEST_SKIP() << "there is no GPU here";
  const TemporaryFolder folder;
  const std::string path = folder / "gemm.txt";
  constexpr std::int64_t rows = 512, out = 768, in = 1024;
  std::vector<float> x(rows * in), weight(out * in);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = float(int(i % 7) - 3);
  for (std::size_t i = 0; i < weight.size(); ++i) {
    weight[i] = float(int(i % 5) - 2);
  }
  std::string first_file;
  for (int run = 0; run < 2; ++run) {
    const Backend backend = make_cuda_backend(0, Precision::bf16, path);
    Device& device = *backend.device;
    const auto make = [&](Shape shape) {
      return device.allocate(Dtype::bf16, shape, Category::activations, "test");
    };
    const Buffer x_memory = make({rows, in}), w_memory = make({out, in});
    const Buffer y_memory = make({rows, out});
    const Tensor xt = x_memory.tensor(Dtype::bf16, {rows, in});
    const Tensor wt = w_memory.tensor(Dtype::bf16, {out, in});
    const Tensor yt = y_memory.tensor(Dtype::bf16, {rows, out});
    upload(device, xt, x);
    upload(device, wt, weight);
    backend.ops->linear(yt, xt, wt);
    std::vector<float> y(rows * out);
    download(device, y, yt);
    // Sums of small whole numbers: exact but for the rounding to bf16.
    for (const std::int64_t at : {std::int64_t{0}, rows * out / 2 + 5}) {
      double sum = 0;
      for (std::int64_t i = 0; i < in; ++i) {
        sum += double(x[at / out * in + i]) * weight[at % out * in + i];
      }
      EXPECT_NEAR(y[at], sum, 0.004 * std::abs(sum)) << at;
    }
    const std::string file = read_file(path);
    EXPECT_NE(file.find("cuBLASLt"), std::string::npos) << file;
    if (run == 0) first_file = file;
    EXPECT_EQ(file, first_file);
  }
}

}  // namespace
}  // namespace lockstep::test
