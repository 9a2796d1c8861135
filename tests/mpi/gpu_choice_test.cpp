#include <gtest/gtest.h>

#include "core/error.h"
#include "mpi_world.h"
#include "trainer/launch.h"
#include "unit/files.h"

// Which GPU a rank takes follows from what all ranks see; there need be none.
namespace lockstep {
namespace {

using test::error_of;
using test::expect_parts;

std::vector<CudaDeviceInfo> gpus(const std::vector<int>& numbers) {
  std::vector<CudaDeviceInfo> all;
  for (const int number : numbers) {
    all.push_back({.name = "a GPU",
                   .uuid = "GPU-" + std::to_string(number),
                   .bus_id = "",
                   .not_peers = {}});
  }
  return all;
}
int choose(const std::vector<int>& seen, bool share = false) {
  return choose_gpu(gpus(seen), share, world());
}
std::vector<int> from(int first, int end) {
  std::vector<int> numbers;
  for (int i = first; i < end; ++i) numbers.push_back(i);
  return numbers;
}

TEST(GpuChoice, ARankThatSeesOneTakesThat) {
  EXPECT_EQ(choose({world().rank()}), 0);
}

TEST(GpuChoice, RanksThatSeeAllTakeOneEach) {
  EXPECT_EQ(choose(from(0, world().size() + 1)), world().rank());
}

TEST(GpuChoice, WhatAnEarlierRankTookIsLeftAlone) {
  // Rank r sees GPUs 0 … r, in that order.
  EXPECT_EQ(choose(from(0, world().rank() + 1)), world().rank());
}

TEST(GpuChoice, OneGpuForAllIsAnErrorThatNamesThem) {
  if (world().size() < 2) GTEST_SKIP() << "takes several ranks";
  expect_parts(error_of([] { choose({7}); }),
               {std::to_string(world().size()) + " ranks on ", "(0, 1",
                "see 1 GPU between them", "--share-gpu"});
  EXPECT_EQ(choose({7}, /*share=*/true), 0);
}

TEST(GpuChoice, ARankWhoseGpusAreTakenIsNamed) {
  if (world().size() < 2) GTEST_SKIP() << "takes several ranks";
  // Enough for all, but rank 1 sees none but rank 0's.
  const int rank = world().rank();
  expect_parts(
      error_of([&] {
        choose(rank == 0   ? from(0, world().size())
               : rank == 1 ? std::vector<int>{0}
                           : std::vector<int>{rank});
      }),
      {"rank 1 sees only GPUs that other ranks of", "CUDA_VISIBLE_DEVICES"});
}

TEST(GpuChoice, ARankWithoutAnyIsAnErrorOnAll) {
  const bool blind = world().rank() == world().size() - 1;
  expect_parts(
      error_of([&] { choose(blind ? std::vector<int>{} : from(0, 8)); }),
      {"this process sees no GPU"});
}

}  // namespace
}  // namespace lockstep
