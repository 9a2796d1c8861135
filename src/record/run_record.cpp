#include "record/run_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <set>
#include <utility>

#include "core/atomic_file.h"
#include "core/error.h"
#include "core/hdf5.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::int64_t schema_version = 1;

// A dataset that grows by a row a step, there already or new, and its rows
// since the last flush.
template <class T>
class Column {
 public:
  Column(hdf5::Group& file, const std::string& path,
         const std::vector<std::int64_t>& row_shape, const char* units,
         const char* description)
      : dataset_(file.has(path)
                     ? file.dataset(path)
                     : file.create_extendible<T>(path, row_shape,
                                                 rows_a_chunk(row_shape))) {
    dataset_.set_attribute("units", units);
    dataset_.set_attribute("description", description);
  }
  std::vector<T> read() const { return dataset_.template read<T>(); }
  void keep_rows(std::int64_t rows) { dataset_.keep_rows(rows); }
  void add(T value) { pending_.push_back(value); }
  void flush() {
    if (pending_.empty()) return;
    dataset_.append(std::span<const T>(pending_));
    pending_.clear();
  }

 private:
  // Chunks of at most 64 KiB: a chunk is in the file as a whole once it holds
  // a row, which on thousands of ranks must not make the first steps large.
  static std::int64_t rows_a_chunk(const std::vector<std::int64_t>& row_shape) {
    const std::int64_t width = row_shape.empty() ? 1 : row_shape.front();
    return std::clamp<std::int64_t>((std::int64_t{64} << 10) / (8 * width), 1,
                                    256);
  }
  hdf5::Dataset dataset_;
  std::vector<T> pending_;
};
using Reals = Column<double>;
using Integers = Column<std::int64_t>;

constexpr std::array<const char*, phase_count> phase_descriptions = {
    "until the batch is on the device",
    "gradients set to zero",
    "forward pass of the embedding and the blocks",
    "final norm, head and cross-entropy with their backward pass",
    "backward pass of the blocks and the embedding",
    "waiting for the gradients to be averaged over ranks",
    "gradient norm, clipping and AdamW",
    "the whole step"};

constexpr std::array<const char*, category_count> category_descriptions = {
    "weights in the compute dtype",
    "gradients of weights, whole or sharded",
    "moments, and what bf16 weights lack of fp32 ones",
    "activations and their gradients",
    "staging buffers of collectives",
    "scratch of kernels and libraries, token batches"};

}  // namespace

struct RunRecord::State {
  // In a file that is new, or holds a record of as many ranks.
  State(std::string file_path, const RunFacts& facts, std::int64_t world_size,
        hdf5::Access access)
      : path(std::move(file_path)), ranks(world_size), file(path, access) {
    if (access == hdf5::Access::copy_in_memory) check_continues();
    file.set_attribute("schema_version", schema_version);
    file.set_attribute("status", "running");
    file.set_attribute("error", "");
    write_facts(file, facts);
    file.group("validation")
        .set_attribute("description",
                       "empty unless --validation-every is above 0");
    const auto per_rank = [&](const std::string& name, auto& columns,
                              const char* units, const char* description) {
      columns.emplace_back(file, name, std::vector<std::int64_t>{ranks}, units,
                           description);
    };
    for (int i = 0; i < phase_count; ++i) {
      per_rank(fmt::format("timings/{}", phase_names[i]), phases, "ms",
               phase_descriptions[i]);
    }
    per_rank("timings/comm_busy", comm_times, "ms",
             "the communication lane worked");
    per_rank("timings/comm_exposed", comm_times, "ms",
             "the compute lane stood still for communication");
    per_rank(
        "comm/bytes", comm_counts, "bytes",
        "payload: an all-reduce of n bytes counts 2n, other collectives n");
    per_rank("comm/calls", comm_counts, "1", "collectives");
    for (int i = 0; i < category_count; ++i) {
      per_rank(fmt::format("memory/{}", category_names[i]), memory, "bytes",
               category_descriptions[i]);
    }
    per_rank("memory/total", memory, "bytes", "held at the end of the step");
    per_rank("memory/peak", memory, "bytes", "most held at once so far");
  }

  void check_continues() const {
    const auto version = file.attribute<std::int64_t>("schema_version");
    require(version == schema_version, "it has schema version {}, not {}",
            version, schema_version);
    const auto size = file.attribute<std::int64_t>("world_size");
    require(size == ranks, "it is of {} ranks, not {}", size, ranks);
  }

  void drop_after(std::int64_t done) {
    const auto rows_up_to_it = [done](const Integers& steps) {
      const auto all = steps.read();
      return std::count_if(all.begin(), all.end(),
                           [done](std::int64_t each) { return each <= done; });
    };
    const auto rows = rows_up_to_it(step);
    const auto validations = rows_up_to_it(validation_step);
    for_each_step_column([rows](auto& column) { column.keep_rows(rows); });
    validation_step.keep_rows(validations);
    validation_loss.keep_rows(validations);
    for (const char* kind : {"memory/timeline", "trace"}) {
      if (!file.has(kind)) continue;
      hdf5::Group tables = file.group(kind);
      for (const hdf5::Child& child : tables.children()) {
        std::int64_t of_step = 0;
        const bool known =
            std::sscanf(child.name.c_str(), "step_%" SCNd64, &of_step) == 1;
        if (known && of_step > done) tables.remove(child.name);
      }
    }
  }

  template <class Visit>
  void for_each_column(Visit visit) {
    for_each_step_column(visit);
    visit(validation_step), visit(validation_loss);
  }
  template <class Visit>
  void for_each_step_column(Visit visit) {
    visit(step), visit(loss), visit(learning_rate), visit(gradient_norm);
    visit(tokens);
    for (auto& column : phases) visit(column);
    for (auto& column : comm_times) visit(column);
    for (auto& column : comm_counts) visit(column);
    for (auto& column : memory) visit(column);
  }

  std::string path;
  std::int64_t ranks;
  hdf5::File file;
  Integers step{file, "steps/step", {}, "1", "counts from 1"};
  Reals loss{file,
             "steps/loss",
             {},
             "nats/token",
             "mean over the global batch, before the update"};
  Reals learning_rate{
      file, "steps/learning_rate", {}, "1", "used in this step's update"};
  Reals gradient_norm{
      file, "steps/gradient_norm", {}, "1", "global L2 norm before clipping"};
  Integers tokens{file, "steps/tokens", {}, "tokens", "of the global batch"};
  Integers validation_step{
      file, "validation/step", {}, "1", "the step after which it was computed"};
  Reals validation_loss{
      file, "validation/loss", {}, "nats/token", "mean over ranks and batches"};
  std::vector<Reals> phases, comm_times;
  std::vector<Integers> comm_counts, memory;

  bool all_written = false;
  Clock::time_point next_flush;
  std::set<std::string> causes_said;
  std::vector<std::string> warnings;
};

namespace {

// "run.h5" becomes "run.until-step-8.h5", or "run.until-step-8-2.h5".
std::string rename_old_record(const std::filesystem::path& path,
                              std::int64_t done) {
  std::filesystem::path name = path;
  for (int i = 1; i == 1 || std::filesystem::exists(name); ++i) {
    name.replace_filename(fmt::format(
        "{}.until-step-{}{}{}", path.stem().string(), done,
        i == 1 ? "" : fmt::format("-{}", i), path.extension().string()));
  }
  std::filesystem::rename(path, name);
  return name.string();
}

}  // namespace

RunRecord::RunRecord(std::string path, const RunFacts& facts, int world_size,
                     std::int64_t done) {
  check_writable(path, "the run record");
  std::vector<std::string> notes;
  if (done > 0 && std::filesystem::exists(path)) {
    try {
      state_ = std::make_unique<State>(path, facts, world_size,
                                       hdf5::Access::copy_in_memory);
      state_->drop_after(done);
    } catch (const Error& error) {
      state_.reset();
      notes.push_back(
          fmt::format("{} cannot be gone on with, and is now {}: {}", path,
                      rename_old_record(path, done), error.what()));
    }
  }
  if (!state_) {
    state_ = std::make_unique<State>(std::move(path), facts, world_size,
                                     hdf5::Access::in_memory);
  }
  flush();
  require(state_->warnings.empty(), "{}", fmt::join(state_->warnings, "; "));
  state_->warnings = std::move(notes);
}

RunRecord::~RunRecord() {
  try {
    if (!state_->all_written) flush();
  } catch (const std::exception&) {
    // An earlier error is on its way out already, or nobody is left to tell.
  }
}

void RunRecord::add_step(const StepFigures& figures) {
  State& s = *state_;
  require(std::ssize(figures.ranks) == s.ranks,
          "step {} has figures of {} ranks; the record is of {}", figures.step,
          figures.ranks.size(), s.ranks);
  s.all_written = false;
  s.step.add(figures.step);
  s.loss.add(figures.loss);
  s.learning_rate.add(figures.learning_rate);
  s.gradient_norm.add(figures.gradient_norm);
  s.tokens.add(figures.tokens);
  for (const RankFigures& rank : figures.ranks) {
    for (int i = 0; i < phase_count; ++i) s.phases[i].add(rank.phase_ms[i]);
    s.comm_times[0].add(rank.comm_busy_ms);
    s.comm_times[1].add(rank.comm_exposed_ms);
    s.comm_counts[0].add(rank.comm_bytes);
    s.comm_counts[1].add(rank.comm_calls);
    for (int i = 0; i < category_count; ++i) {
      s.memory[i].add(rank.memory.bytes[i]);
    }
    s.memory[category_count].add(rank.memory.total);
    s.memory[category_count + 1].add(rank.memory.peak);
  }
}

void RunRecord::add_validation(std::int64_t step, double loss) {
  state_->all_written = false;
  state_->validation_step.add(step);
  state_->validation_loss.add(loss);
}

void RunRecord::add_memory_timeline(std::int64_t step, int rank,
                                    const MemoryTimeline& timeline) {
  std::vector<double> times;
  std::vector<std::int64_t> deltas;
  std::vector<std::string> categories, names;
  for (const MemoryEvent& event : timeline.events) {
    times.push_back(event.time_us);
    deltas.push_back(event.delta_bytes);
    categories.emplace_back(name_of(event.category));
    names.push_back(event.name);
  }
  hdf5::Dataset table = state_->file.create_table(
      fmt::format("memory/timeline/step_{}/rank_{}", step, rank),
      {{"time_us", times},
       {"delta_bytes", deltas},
       {"category", categories},
       {"name", names}});
  table.set_attribute("description",
                      "allocations (> 0) and frees (< 0), from those held at "
                      "the step's beginning on");
  table.set_attribute("begin_us", timeline.begin_us);
  table.set_attribute("end_us", timeline.end_us);
  state_->all_written = false;
}

void RunRecord::add_trace(std::int64_t step, int rank,
                          std::span<const TraceRow> rows) {
  std::vector<double> begins, durations;
  std::vector<std::int64_t> depths, bytes;
  std::vector<std::string> lanes, names;
  for (const TraceRow& row : rows) {
    begins.push_back(row.begin_us);
    durations.push_back(row.duration_us);
    depths.push_back(row.depth);
    bytes.push_back(row.bytes);
    lanes.push_back(row.lane);
    names.push_back(row.name);
  }
  state_->file
      .create_table(fmt::format("trace/step_{}/rank_{}", step, rank),
                    {{"begin_us", begins},
                     {"duration_us", durations},
                     {"lane", lanes},
                     {"name", names},
                     {"depth", depths},
                     {"bytes", bytes}})
      .set_attribute("description",
                     "stretches of work, from the step's beginning on");
  state_->all_written = false;
}

void RunRecord::set_status(std::string_view status, std::string_view error) {
  state_->file.set_attribute("status", status);
  state_->file.set_attribute("error", error);
  state_->all_written = false;
}

void RunRecord::flush_if_due() {
  if (Clock::now() >= state_->next_flush) flush();
}

void RunRecord::flush() {
  State& s = *state_;
  const auto begin = Clock::now();
  try {
    s.for_each_column([](auto& column) { column.flush(); });
    replace_file(s.path, s.file.bytes());
    s.all_written = true;
  } catch (const std::exception& error) {
    if (s.causes_said.insert(error.what()).second) {
      s.warnings.push_back(fmt::format(
          "{}; training goes on and the record is tried again", error.what()));
    }
  }
  // Writing takes at most 1/50 of the time.
  const auto end = Clock::now();
  s.next_flush = end + std::max<Clock::duration>(std::chrono::seconds(1),
                                                 50 * (end - begin));
}

std::vector<std::string> RunRecord::take_warnings() {
  return std::exchange(state_->warnings, {});
}

bool RunRecord::is_whole() const {
  return state_->all_written;
}

const std::string& RunRecord::path() const {
  return state_->path;
}

}  // namespace lockstep
