#include "trainer/launch.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>

#include "mpi/communicator.h"
#include "mpi/cores.h"
#include "mpi/topology.h"
#include "trainer/build_info.h"
#include "trainer/placement_warnings.h"

namespace lockstep {
namespace {

// One text per rank, split at newlines.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// "0,1" → 0, 1
std::vector<int> numbers_of(const std::string& text) {
  std::vector<int> numbers;
  std::istringstream stream(text);
  for (std::string number; std::getline(stream, number, ',');) {
    numbers.push_back(std::stoi(number));
  }
  return numbers;
}

// " (NUMA 0,1)", or nothing on machines with one node.
std::string numa_text(const std::string& nodes) {
  return nodes.empty() ? "" : fmt::format(" (NUMA {})", nodes);
}

// Puts every rank's place and threads in rank order in `placement`. gpu: this
// rank's, or none.
void gather_places(const CudaDeviceInfo* gpu, World& world,
                   Placement& placement) {
  const Place& place = world.place();
  const std::vector<int> nodes = numa_nodes_of(mask_of(place.mask));
  const int gpu_node = gpu == nullptr ? -1 : numa_node_of_pci(gpu->bus_id);
  std::string device = "CPU";
  if (gpu != nullptr) {
    device =
        fmt::format("{} ({}{})", gpu->name, gpu->bus_id,
                    gpu_node < 0 ? "" : fmt::format(", NUMA {}", gpu_node));
  }
  const auto hosts = world.all_gather(place.host);
  const auto devices = world.all_gather(device);
  const auto masks = world.all_gather(place.mask);
  const auto core_nodes =
      world.all_gather(fmt::format("{}", fmt::join(nodes, ",")));
  const auto bus_ids = world.all_gather(gpu == nullptr ? "" : gpu->bus_id);
  const auto not_peers = world.all_gather(
      gpu == nullptr ? "" : fmt::format("{}", fmt::join(gpu->not_peers, "\n")));
  constexpr std::size_t count = 4;
  const double numbers[count] = {double(placement.threads), quota_cores(),
                                 double(place.local_rank), double(gpu_node)};
  const auto all_numbers = world.all_gather(numbers);

  std::vector<RankPlacement> ranks;
  for (int rank = 0; rank < world.size(); ++rank) {
    const double* of_rank = &all_numbers[rank * count];
    RankPlacement& it = ranks.emplace_back();
    it.rank = rank;
    it.host = hosts[rank];
    it.threads = static_cast<int>(of_rank[0]);
    it.mask = mask_of(masks[rank]);
    it.quota = of_rank[1];
    it.core_nodes = numbers_of(core_nodes[rank]);
    it.gpu = bus_ids[rank];
    it.gpu_node = static_cast<int>(of_rank[3]);
    it.not_peers = lines_of(not_peers[rank]);
    placement.rows.push_back({rank, hosts[rank], static_cast<int>(of_rank[2]),
                              devices[rank], it.threads,
                              masks[rank] + numa_text(core_nodes[rank])});
  }
  placement.warnings = placement_warnings(ranks);
}

// Hosts that talk over TCP although they have something faster.
void warn_of_slow_network(World& world, std::vector<std::string>& warnings) {
  const double slow = has_infiniband() && !mpi_uses_fast_network() ? 1 : 0;
  const auto all = world.all_gather({&slow, 1});
  const bool several = world.place().local_size < world.size();
  const auto first = std::find(all.begin(), all.end(), 1.0);
  if (!several || first == all.end()) return;
  warnings.push_back(fmt::format(
      "rank {} has InfiniBand, but its MPI talks over TCP between hosts; use "
      "an Open MPI with UCX (ompi_info | grep ucx)",
      first - all.begin()));
}

}  // namespace

int choose_gpu(const std::vector<CudaDeviceInfo>& mine, bool share,
               World& world) {
  std::string uuids;
  for (const CudaDeviceInfo& gpu : mine) uuids += gpu.uuid + '\n';
  const std::vector<std::string> hosts = world.all_gather(world.place().host);
  const std::vector<std::string> views = world.all_gather(uuids);

  int ordinal = 0;
  world.together([&] {
    require(!mine.empty(),
            "--device cuda, but this process sees no GPU: is there a driver, "
            "and is CUDA_VISIBLE_DEVICES empty?");
    // Every rank deals the host's GPUs out to its ranks in the same order.
    std::set<std::string> on_host;
    std::set<std::string> taken;
    std::vector<int> ranks;
    for (int rank = 0; rank < world.size(); ++rank) {
      if (hosts[rank] != world.place().host) continue;
      const auto view = lines_of(views[rank]);
      on_host.insert(view.begin(), view.end());
      ranks.push_back(rank);
    }
    require(share || ranks.size() <= on_host.size(),
            "{} ranks on {} ({}) see {} GPU{} between them; start at most {} "
            "there, or let ranks share one with --share-gpu",
            ranks.size(), world.place().host, fmt::join(ranks, ", "),
            on_host.size(), on_host.size() == 1 ? "" : "s", on_host.size());
    int local_rank = 0;
    for (int rank = 0; rank <= world.rank(); ++rank) {
      if (hosts[rank] != world.place().host) continue;
      const auto view = lines_of(views[rank]);
      auto choice = std::find_if(view.begin(), view.end(), [&](const auto& u) {
        return !taken.contains(u);
      });
      require(
          share || choice != view.end(),
          "rank {} sees only GPUs that other ranks of {} use; give each "
          "rank one of its own in CUDA_VISIBLE_DEVICES, or pass --share-gpu",
          rank, hosts[rank]);
      if (choice == view.end())
        choice = view.begin() + local_rank % std::ssize(view);
      taken.insert(*choice);
      ordinal = static_cast<int>(choice - view.begin());
      ++local_rank;
    }
  });
  return ordinal;
}

Placement place_rank(const Options& options, World& world) {
  Placement placement;
  placement.threads =
      options.threads > 0 ? options.threads : world.place().cores;

  const std::vector<CudaDeviceInfo> gpus = options.device == DeviceChoice::cpu
                                               ? std::vector<CudaDeviceInfo>{}
                                               : cuda_devices();
  // One kind of device for all: GPUs by default only if every rank sees some.
  bool cuda = options.device == DeviceChoice::cuda;
  if (options.device == DeviceChoice::automatic) {
    const double sees = gpus.empty() ? 0 : 1;
    const auto all = world.all_gather({&sees, 1});
    cuda = std::all_of(all.begin(), all.end(), [](double s) { return s > 0; });
  }

  const CudaDeviceInfo* gpu = nullptr;
  if (cuda) {
    world.together([&] {
      require(built_with_cuda(),
              "--device cuda, but this build has no CUDA backend; use --device "
              "cpu, or build with -DLOCKSTEP_CUDA=ON");
    });
    const int ordinal = choose_gpu(gpus, options.share_gpu, world);
    gpu = &gpus[ordinal];
    world.together([&] {
      placement.backend =
          make_cuda_backend(ordinal, options.precision, options.gemm_cache);
    });
  } else {
    world.together([&] {
      require(options.precision != Precision::tf32,
              "--precision tf32 needs a GPU; CPUs compute fp32 or bf16");
      placement.backend =
          make_cpu_backend(placement.threads, options.precision);
    });
  }

  gather_places(gpu, world, placement);
  warn_of_slow_network(world, placement.warnings);
  return placement;
}

Progress settled_progress(Progress progress) {
  if (progress != Progress::automatic) return progress;
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return progress;
  std::error_code error;
  const auto output = std::filesystem::read_symlink(
      fmt::format("/proc/{}/fd/1", getppid()), error);
  const bool terminal = !error && (output.string().starts_with("/dev/pts/") ||
                                   output.string().starts_with("/dev/tty"));
  return terminal ? progress : Progress::plain;
}

RunFacts machine_facts(const World& world, const Placement& placement, int argc,
                       char** argv) {
  const Device& device = *placement.backend.device;
  const bool cuda = device.kind() == Device::Kind::cuda;
  RunFacts facts;
  facts.texts = {
      {"command_line", fmt::format("{}", fmt::join(argv, argv + argc, " "))},
      {"version", build_version},
      {"git_revision", build_revision},
      {"device", cuda ? "cuda" : "cpu"},
      {"gpu_name", cuda ? device.name() : ""},
      {"cpu_name", cuda ? "" : device.name()},
      {"mpi_version", mpi_version()},
      {"cuda_version", cuda_version()},
      {"nccl_version", nccl_version()},
  };
  facts.integers = {{"world_size", world.size()},
                    {"threads", placement.threads}};
  for (const RankRow& row : placement.rows) facts.hostnames.push_back(row.host);
  return facts;
}

RunFacts run_facts(const Options& options, const World& world,
                   const Placement& placement, int argc, char** argv) {
  RunFacts facts = machine_facts(world, placement, argc, argv);
  facts.texts.emplace_back("sync", options.sync);
  facts.texts.emplace_back("precision", name_of(options.precision));
  facts.integers.emplace_back("parameters", options.model.parameters());
  facts.numbers = {
      {"flops_per_token", options.model.flops_per_token()},
      {"peak_flops", placement.backend.device->peak_flops(options.precision)}};
  facts.config = options.entries();
  return facts;
}

}  // namespace lockstep
