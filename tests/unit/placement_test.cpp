#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "files.h"
#include "mpi/cores.h"
#include "mpi/topology.h"
#include "trainer/placement_warnings.h"

namespace lockstep {
namespace {

using test::TemporaryFolder;

// --- what the kernel tells --------------------------------------------------

class Topology : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& line) {
    const std::filesystem::path path = folder_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << line << '\n';
  }
  void write_two_nodes() {
    write("devices/system/node/node0/cpulist", "0-3,8-11");
    write("devices/system/node/node1/cpulist", "4-7,12-15");
  }
  std::string sys() const { return folder_.path().string(); }

  TemporaryFolder folder_;
};

TEST(CoreMask, IsReadAsItIsWritten) {
  for (const char* text : {"", "0", "0-3,8", "1,3,5-7", "0-1023"}) {
    EXPECT_EQ(mask_text(mask_of(text)), text);
  }
  EXPECT_EQ(mask_text(mask_of("2\n")), "2");
}

int share(const std::string& mine, const std::vector<std::string>& local,
          double quota = 0) {
  std::vector<cpu_set_t> masks;
  for (const std::string& text : local) masks.push_back(mask_of(text));
  return core_share(mask_of(mine), masks, quota);
}

TEST(CoreShare, IsOfTheCoresThatARankMayRunOn) {
  EXPECT_EQ(share("0-7", {"0-7"}), 8);
  EXPECT_EQ(share("3", {"3"}), 1);
  EXPECT_EQ(share("0-7", {"0-7", "0-7"}), 4);
  EXPECT_EQ(share("4-7", {"0-3", "4-7"}), 4);
  EXPECT_EQ(share("0-7", {"0-7", "0-3"}), 6);
  EXPECT_EQ(share("0-1", std::vector<std::string>(8, "0-1")), 1);
}

TEST(CoreShare, IsNoMoreThanTheQuotaGrants) {
  EXPECT_EQ(share("0-7", {"0-7"}, 1), 1);
  EXPECT_EQ(share("0-7", {"0-7"}, 2.5), 2);
  EXPECT_EQ(share("0-7", {"0-7", "0-7"}, 6), 3);
  EXPECT_EQ(share("0-1", {"0-1"}, 16), 2);
  EXPECT_EQ(share("0-7", {"0-7"}, 0.5), 1);
}

TEST_F(Topology, CoresLieOnTheNodesThatListThem) {
  write_two_nodes();
  EXPECT_EQ(numa_nodes_of(mask_of("1-2"), sys()), std::vector{0});
  EXPECT_EQ(numa_nodes_of(mask_of("13"), sys()), std::vector{1});
  EXPECT_EQ(numa_nodes_of(mask_of("3-4"), sys()), (std::vector{0, 1}));
}

TEST_F(Topology, OneNodeIsNotWorthAWord) {
  write("devices/system/node/node0/cpulist", "0-3");
  write("bus/pci/devices/0000:01:00.0/numa_node", "0");
  EXPECT_TRUE(numa_nodes_of(mask_of("0-3"), sys()).empty());
  EXPECT_EQ(numa_node_of_pci("0000:01:00.0", sys()), -1);
}

TEST_F(Topology, APciDeviceHasANodeWhereTheKernelKnowsIt) {
  write_two_nodes();
  write("bus/pci/devices/0000:01:00.0/numa_node", "1");
  write("bus/pci/devices/0000:02:00.0/numa_node", "-1");
  EXPECT_EQ(numa_node_of_pci("0000:01:00.0", sys()), 1);
  EXPECT_EQ(numa_node_of_pci("0000:02:00.0", sys()), -1);
  EXPECT_EQ(numa_node_of_pci("0000:03:00.0", sys()), -1);
}

TEST_F(Topology, InfinibandIsThereOnceAPortIsActive) {
  EXPECT_FALSE(has_infiniband(sys()));
  write("class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
  EXPECT_FALSE(has_infiniband(sys()));
  write("class/infiniband/mlx5_1/ports/1/state", "4: ACTIVE");
  EXPECT_TRUE(has_infiniband(sys()));
}

TEST_F(Topology, AFastNetworkNeedsItsLibrary) {
  write("maps", "7f00-7f01 r-xp 0 fd:00 1 /usr/lib/libmpi.so.40");
  EXPECT_FALSE(mpi_uses_fast_network(sys() + "/maps"));
  write("maps", "7f00-7f01 r-xp 0 fd:00 1 /usr/lib/libucp.so.0.0.0");
  EXPECT_TRUE(mpi_uses_fast_network(sys() + "/maps"));
}

// --- what is wrong with it --------------------------------------------------

RankPlacement rank_on(int rank, const std::string& host,
                      const std::string& mask, int threads = 1) {
  RankPlacement it;
  it.rank = rank;
  it.host = host;
  it.mask = mask_of(mask);
  it.threads = threads;
  return it;
}

void expect_one_with(const std::vector<RankPlacement>& ranks,
                     const std::vector<std::string>& parts) {
  const auto warnings = placement_warnings(ranks);
  ASSERT_EQ(warnings.size(), 1u) << fmt::format("{}", warnings.size());
  for (const std::string& part : parts) {
    EXPECT_NE(warnings[0].find(part), std::string::npos)
        << part << " in " << warnings[0];
  }
}

TEST(PlacementWarnings, AreSilentWhereThreadsHaveCores) {
  EXPECT_TRUE(placement_warnings(std::vector{rank_on(0, "a", "0-3", 4),
                                             rank_on(1, "a", "4-7", 4),
                                             rank_on(2, "b", "0-3", 4)})
                  .empty());
  // Unbound ranks that share out the cores among them.
  EXPECT_TRUE(placement_warnings(std::vector{rank_on(0, "a", "0-7", 4),
                                             rank_on(1, "a", "0-7", 4)})
                  .empty());
}

TEST(PlacementWarnings, NameRanksThatShareTooFewCores) {
  std::vector<RankPlacement> ranks;
  for (int i = 0; i < 8; ++i) ranks.push_back(rank_on(i, "a", "0-1"));
  ranks.push_back(rank_on(8, "b", "0-1"));
  expect_one_with(ranks,
                  {"ranks 0-7 on a", "oversubscribed",
                   "8 threads take turns on 2 cores (0-1)", "fewer ranks"});
  // Two launches that both bind from the first core on.
  expect_one_with({rank_on(0, "a", "0"), rank_on(1, "a", "1"),
                   rank_on(2, "a", "0"), rank_on(3, "a", "3")},
                  {"ranks 0,2 on a", "2 threads take turns on 1 core (0)"});
}

TEST(PlacementWarnings, NameARankWithMoreThreadsThanCores) {
  expect_one_with({rank_on(0, "a", "5", 8)},
                  {"rank 0 runs 8 threads on 1 core (5)", "PE=8"});
}

TEST(PlacementWarnings, CountTheControlGroupsQuota) {
  RankPlacement rank = rank_on(0, "a", "0-7", 4);
  rank.quota = 1.5;
  expect_one_with({rank}, {"4 threads on 1.5 of 8 cores (0-7)"});
}

TEST(PlacementWarnings, NameGpusFarFromTheCores) {
  std::vector<RankPlacement> ranks = {rank_on(0, "a", "0-3"),
                                      rank_on(1, "a", "4-7")};
  ranks[0].core_nodes = {0}, ranks[1].core_nodes = {1};
  ranks[0].gpu = "0000:01:00.0", ranks[1].gpu = "0000:81:00.0";
  ranks[0].gpu_node = 0, ranks[1].gpu_node = 1;
  EXPECT_TRUE(placement_warnings(ranks).empty());
  ranks[1].core_nodes = {0};
  expect_one_with(
      ranks, {"rank 1 on a", "0000:81:00.0", "NUMA node 1", "cores 4-7 on 0"});
  ranks[1].gpu_node = -1;  // not known
  EXPECT_TRUE(placement_warnings(ranks).empty());
}

TEST(PlacementWarnings, NameGpusWithoutPeerAccess) {
  std::vector<RankPlacement> ranks = {rank_on(0, "a", "0"),
                                      rank_on(1, "a", "1")};
  ranks[0].gpu = "0000:01:00.0", ranks[1].gpu = "0000:02:00.0";
  ranks[0].not_peers = {"0000:03:00.0"};  // of no rank
  EXPECT_TRUE(placement_warnings(ranks).empty());
  ranks[1].not_peers = {"0000:01:00.0"};
  expect_one_with(ranks, {"0000:02:00.0 and 0000:01:00.0 on a", "peer"});
}

}  // namespace
}  // namespace lockstep
