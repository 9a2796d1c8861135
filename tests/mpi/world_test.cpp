#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdlib>
#include <set>

#include "core/error.h"
#include "mpi_world.h"

namespace lockstep {
namespace {

TEST(World, GivesEachRankItsPlace) {
  const double rank = world().rank();
  const auto ranks = world().all_gather({&rank, 1});
  ASSERT_EQ(std::ssize(ranks), world().size());
  for (int i = 0; i < world().size(); ++i) EXPECT_EQ(ranks[i], i);
  // One machine runs this test: local and global ranks are the same.
  EXPECT_EQ(world().place().local_rank, world().rank());
  EXPECT_EQ(world().place().local_size, world().size());
  EXPECT_FALSE(world().place().host.empty());
  EXPECT_GE(world().place().cores, 1);
  EXPECT_FALSE(world().place().mask.empty());
}

// Open MPI's own word for it; mpirun says so only where it knows of more ranks
// than cores.
TEST(World, RanksThatWaitGiveTheirCoreAway) {
  int provided = 0, index = 0, count = 0, value = 0;
  ASSERT_EQ(MPI_T_init_thread(MPI_THREAD_MULTIPLE, &provided), MPI_SUCCESS);
  if (MPI_T_cvar_get_index("mpi_yield_when_idle", &index) != MPI_SUCCESS) {
    GTEST_SKIP() << "not an Open MPI that has this variable";
  }
  MPI_T_cvar_handle handle = nullptr;
  ASSERT_EQ(MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count),
            MPI_SUCCESS);
  ASSERT_EQ(count, 1);
  EXPECT_EQ(MPI_T_cvar_read(handle, &value), MPI_SUCCESS);
  EXPECT_EQ(value, 1);
  MPI_T_cvar_handle_free(&handle);
  MPI_T_finalize();
}

TEST(World, GathersTextsOfDifferentLengths) {
  const std::string mine(world().rank(), 'x');
  const auto texts = world().all_gather(mine);
  ASSERT_EQ(std::ssize(texts), world().size());
  for (int i = 0; i < world().size(); ++i) EXPECT_EQ(std::ssize(texts[i]), i);
}

TEST(World, BroadcastsTheRootsBytes) {
  std::int64_t value = 100 + world().rank();
  world().broadcast(&value, sizeof value);
  EXPECT_EQ(value, 100);
}

TEST(World, MakesAFailureOfOneRankEveryonesFailure) {
  const int failing = world().size() - 1;
  try {
    world().together([&] {
      if (world().rank() == failing) fail("the disk of this rank is gone");
    });
    FAIL() << "no error on rank " << world().rank();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("the disk of this rank is gone"), std::string::npos);
    if (world().size() > 1) {
      EXPECT_NE(text.find("on rank " + std::to_string(failing)),
                std::string::npos)
          << text;
    }
  }
}

TEST(World, LetsSuccessPass) {
  int ran = 0;
  world().together([&] { ++ran; });
  EXPECT_EQ(ran, 1);
}

TEST(World, NamesTheSettingThatDiffers) {
  const bool odd_one = world().rank() == world().size() - 1;
  const std::string mine = odd_one && world().size() > 1 ? "2" : "1";
  const World::Settings settings = {{"steps", "10"}, {"bucket-mb", mine}};
  if (world().size() == 1) {
    EXPECT_NO_THROW(world().require_same(settings));
    return;
  }
  try {
    world().require_same(settings);
    FAIL() << "no error on rank " << world().rank();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("bucket-mb=2"), std::string::npos) << text;
    EXPECT_NE(text.find("bucket-mb=1"), std::string::npos) << text;
  }
}

TEST(World, AcceptsEqualSettings) {
  EXPECT_NO_THROW(world().require_same({{"steps", "10"}, {"seed", "1"}}));
}

TEST(World, GuardReturnsTheProgramsExitCode) {
  EXPECT_EQ(world().guard([] { return 7; }), 7);
}

TEST(World, GuardTellsUsageFromOtherErrors) {
  const auto failing_with = [](auto error) {
    return world().guard([&]() -> int {
      world().together([&] { throw error; });
      return 0;
    });
  };
  EXPECT_EQ(failing_with(UsageError("usage (expected in this test)")), 2);
  EXPECT_EQ(failing_with(Error("error (expected in this test)")), 1);
}

TEST(World, GuardRefusesTasksThatSlurmStartedApart) {
  if (world().size() > 1) GTEST_SKIP() << "a matter of one rank";
  // As set by srun for four tasks; mpirun's own variables must be absent.
  const char* saved = std::getenv("OMPI_COMM_WORLD_SIZE");
  const std::string size = saved == nullptr ? "" : saved;
  unsetenv("OMPI_COMM_WORLD_SIZE");
  setenv("SLURM_STEP_ID", "0", 1);
  setenv("SLURM_NTASKS", "4", 1);
  EXPECT_EQ(world().guard([] { return 0; }), 2);
  // A shell inside an allocation is a special step, or none.
  setenv("SLURM_STEP_ID", "4294967290", 1);
  EXPECT_EQ(world().guard([] { return 0; }), 0);
  unsetenv("SLURM_STEP_ID");
  EXPECT_EQ(world().guard([] { return 0; }), 0);
  unsetenv("SLURM_NTASKS");
  if (saved != nullptr) setenv("OMPI_COMM_WORLD_SIZE", size.c_str(), 1);
}

}  // namespace
}  // namespace lockstep
