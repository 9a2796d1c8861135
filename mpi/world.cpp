#include "mpi/world.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <optional>
#include <string_view>
#include <thread>

#include "mpi/cores.h"
#include "mpi/mpi_calls.h"

namespace lockstep {
namespace {

// A failure that every rank knows of.
class AgreedError : public Error {
 public:
  AgreedError(const std::string& text, int code)
      : Error(text), exit_code(code) {}
  int exit_code;
};

int exit_code_of(const std::exception& error) {
  return dynamic_cast<const UsageError*>(&error) != nullptr ? 2 : 1;
}

long environment_number(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? -1 : std::atol(text);
}

// srun without a PMI that this MPI speaks starts independent processes that
// each believe to be the only one. "" if this is none of them.
std::string why_slurm_singleton() {
  constexpr long first_special_step = 0xfffffff0L;  // batch, interactive shell
  const long step = environment_number("SLURM_STEP_ID");
  const long tasks = std::max(environment_number("SLURM_STEP_NUM_TASKS"),
                              environment_number("SLURM_NTASKS"));
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) return "";
  if (step < 0 || step >= first_special_step || tasks <= 1) return "";
  return fmt::format(
      "Slurm started {} tasks, MPI sees 1: each would train alone; use srun "
      "--mpi=pmix, or mpirun inside the allocation",
      tasks);
}

// Whether something has offered this process to introduce it to the others.
bool has_process_manager() {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.starts_with("PMIX_") || text.starts_with("PMI_")) return true;
  }
  return false;
}

// Open MPI ends processes that srun started and nothing introduces to others
// with a page of text about how it was built. So before MPI starts, several
// tasks are refused, and one alone becomes a process like any other.
void settle_singletons_of_slurm() {
  if (has_process_manager()) return;
  if (const std::string why = why_slurm_singleton(); !why.empty()) {
    fmt::print(stderr, "error: {}\n", why);
    std::exit(2);
  }
  unsetenv("SLURM_STEP_ID");
}

}  // namespace

struct World::Handles {
  OwnedComm all{MPI_COMM_WORLD};
};

// What this rank is waiting in, and since when, for a thread that looks.
struct World::Watch {
  using Clock = std::chrono::steady_clock;

  Watch(double seconds, std::function<void(const std::string&)> stuck)
      : limit(seconds),
        on_stuck(std::move(stuck)),
        thread([this](const std::stop_token& stop) { look(stop); }) {}

  void look(const std::stop_token& stop) {
    const auto pause = std::chrono::duration<double>(std::min(0.2, limit / 4));
    while (!stop.stop_requested()) {
      std::this_thread::sleep_for(pause);
      const std::lock_guard lock(mutex);
      if (call == nullptr ||
          Clock::now() - since < std::chrono::duration<double>(limit)) {
        continue;
      }
      on_stuck(fmt::format(
          "{} after step {} has not ended within {} s: another rank is gone or "
          "far behind (see --timeout)",
          call, step, limit));
      return;
    }
  }

  double limit;
  std::function<void(const std::string&)> on_stuck;
  std::mutex mutex;
  const char* call = nullptr;
  Clock::time_point since;
  std::int64_t step = 0;
  std::jthread thread;  // last: it uses the rest
};

// Makes an MPI call that waits for other ranks, watched.
template <class Call>
void World::wait_in(const char* name, Call call) {
  const auto note = [&](const char* now) {
    if (!watch_) return;
    const std::lock_guard lock(watch_->mutex);
    watch_->call = now;
    watch_->since = Watch::Clock::now();
  };
  note(name);
  const int code = call();
  note(nullptr);
  check_mpi(code, name);
}

void World::watch(double seconds) {
  watch_.reset();
  if (seconds == 0) return;
  watch_ = std::make_unique<Watch>(
      seconds, [this](const std::string& line) { abort(line); });
}

void World::begin_step(std::int64_t step) {
  if (!watch_) return;
  const std::lock_guard lock(watch_->mutex);
  watch_->step = step;
}

World::World(int& argc, char**& argv) {
  // Waiting ranks give their core away instead of spinning: on CPUs the
  // communication lane shares its cores with compute.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  settle_singletons_of_slurm();
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  handles_ = std::make_unique<Handles>();
  MPI_Comm_rank(handles_->all, &place_.rank);
  MPI_Comm_size(handles_->all, &size_);
  if (provided < MPI_THREAD_MULTIPLE) {
    abort("this MPI library does not offer MPI_THREAD_MULTIPLE");
  }

  char host[MPI_MAX_PROCESSOR_NAME];
  int length = 0;
  MPI_Get_processor_name(host, &length);
  place_.host.assign(host, length);

  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(handles_->all, MPI_COMM_TYPE_SHARED, place_.rank,
                      MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &place_.local_rank);
  MPI_Comm_size(node, &place_.local_size);
  const cpu_set_t mask = affinity_mask();
  std::vector<cpu_set_t> masks(place_.local_size);
  MPI_Allgather(&mask, sizeof mask, MPI_BYTE, masks.data(), sizeof mask,
                MPI_BYTE, node);
  MPI_Comm_free(&node);
  place_.mask = mask_text(mask);
  place_.cores = core_share(mask, masks, quota_cores());
}

World::~World() {
  watch_.reset();
  handles_.reset();
  MPI_Finalize();
}

int World::guard(const std::function<int()>& program) {
  try {
    together([&] {
      const std::string why = size_ == 1 ? why_slurm_singleton() : "";
      if (!why.empty()) throw UsageError(why);
    });
    return program();
  } catch (const AgreedError& error) {
    if (root()) fmt::print(stderr, "error: {}\n", error.what());
    return error.exit_code;
  } catch (const std::exception& error) {
    abort(error.what());
  }
}

void World::together(const std::function<void()>& work) {
  std::string text;
  int code = 0;
  try {
    work();
  } catch (const AgreedError&) {
    throw;  // every rank is here already
  } catch (const std::exception& error) {
    text = error.what();
    code = exit_code_of(error);
  }
  int worst = 0;
  wait_in("MPI_Allreduce", [&] {
    return MPI_Allreduce(&code, &worst, 1, MPI_INT, MPI_MAX, handles_->all);
  });
  if (worst == 0) return;

  const std::vector<std::string> texts = all_gather(text);
  const bool alike = std::all_of(texts.begin(), texts.end(),
                                 [&](const auto& t) { return t == texts[0]; });
  if (alike) throw AgreedError(text, worst);
  const auto first = std::find_if(texts.begin(), texts.end(),
                                  [](const auto& t) { return !t.empty(); });
  const std::vector<std::string> hosts = all_gather(place_.host);
  const auto rank = first - texts.begin();
  throw AgreedError(
      fmt::format("on rank {} ({}): {}", rank, hosts[rank], *first), worst);
}

void World::require_same(const Settings& settings) {
  // One text a rank, so that ranks may even have different settings.
  std::string mine;
  for (const auto& [name, value] : settings) {
    mine.append(name).append("=").append(value).append("\n");
  }
  std::string first = mine;
  std::int64_t length = std::ssize(first);
  broadcast(&length, sizeof length);
  first.resize(length);
  broadcast(first.data(), length);
  together([&] {
    if (mine == first) return;
    const auto different =
        std::mismatch(mine.begin(), mine.end(), first.begin(), first.end());
    const auto line_at = [](const std::string& text, std::int64_t position) {
      const auto begin = text.rfind('\n', position == 0 ? 0 : position - 1);
      const auto from = begin == std::string::npos ? 0 : begin + 1;
      return text.substr(from, text.find('\n', from) - from);
    };
    fail(
        "ranks disagree: --{} here, --{} on rank 0; give every rank the same "
        "options",
        line_at(mine, different.first - mine.begin()),
        line_at(first, different.second - first.begin()));
  });
}

std::vector<double> World::all_gather(std::span<const double> mine) {
  std::vector<double> all(mine.size() * size_);
  const int count = static_cast<int>(mine.size());
  wait_in("MPI_Allgather", [&] {
    return MPI_Allgather(mine.data(), count, MPI_DOUBLE, all.data(), count,
                         MPI_DOUBLE, handles_->all);
  });
  return all;
}

std::vector<std::string> World::all_gather(const std::string& mine) {
  const int length = static_cast<int>(mine.size());
  std::vector<int> lengths(size_), offsets(size_);
  wait_in("MPI_Allgather", [&] {
    return MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT,
                         handles_->all);
  });
  std::exclusive_scan(lengths.begin(), lengths.end(), offsets.begin(), 0);
  std::string all(offsets.back() + lengths.back(), '\0');
  wait_in("MPI_Allgatherv", [&] {
    return MPI_Allgatherv(mine.data(), length, MPI_CHAR, all.data(),
                          lengths.data(), offsets.data(), MPI_CHAR,
                          handles_->all);
  });
  std::vector<std::string> texts;
  for (int rank = 0; rank < size_; ++rank) {
    texts.push_back(all.substr(offsets[rank], lengths[rank]));
  }
  return texts;
}

void World::to_root(int from, std::span<float> values) {
  if (from == 0 || (rank() != 0 && rank() != from)) return;
  constexpr std::size_t piece = std::size_t{1} << 28;  // MPI counts are ints
  constexpr int tag = 0;
  while (!values.empty()) {
    const auto part = values.first(std::min(piece, values.size()));
    const int count = static_cast<int>(part.size());
    wait_in(root() ? "MPI_Recv" : "MPI_Send", [&] {
      return root() ? MPI_Recv(part.data(), count, MPI_FLOAT, from, tag,
                               handles_->all, MPI_STATUS_IGNORE)
                    : MPI_Send(part.data(), count, MPI_FLOAT, 0, tag,
                               handles_->all);
    });
    values = values.subspan(part.size());
  }
}

void World::broadcast(void* data, std::int64_t bytes) {
  constexpr std::int64_t piece = 1 << 30;  // MPI counts are ints
  for (std::int64_t done = 0; done < bytes; done += piece) {
    wait_in("MPI_Bcast", [&] {
      return MPI_Bcast(static_cast<char*>(data) + done,
                       static_cast<int>(std::min(piece, bytes - done)),
                       MPI_BYTE, 0, handles_->all);
    });
  }
}

void World::abort(const std::string& message) {
  fmt::print(stderr, "error on rank {} ({}): {}\n", place_.rank, place_.host,
             message);
  std::fflush(nullptr);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string version(text, length);
  // "Open MPI v4.1.4, package: …" and the multi-line texts of others.
  return version.substr(0, version.find_first_of(",\n"));
}

}  // namespace lockstep
