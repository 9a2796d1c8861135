#include "record/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lockstep {
namespace {

// 1234567 → "1.23M"
std::string short_number(double value) {
  constexpr std::array units = {"", "k", "M", "G", "T", "P"};
  std::size_t unit = 0;
  // 999.5 would already round to 1e+03.
  while (std::abs(value) >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g}{}", value, units[unit]);
}

// 12.34 → "12.3", 1234.5 → "1234"
std::string milliseconds_text(double ms) {
  return ms < 999.5 ? fmt::format("{:.3g}", ms) : fmt::format("{:.0f}", ms);
}

// 75 s → "1:15"
std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  return whole < 3600 ? fmt::format("{}:{:02}", whole / 60, whole % 60)
                      : fmt::format("{}:{:02}:{:02}", whole / 3600,
                                    whole / 60 % 60, whole % 60);
}

// Of the terminal; 80 where it does not say.
int columns_of(std::FILE* out) {
  winsize size{};
  const bool known =
      ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

// Of the slowest rank.
double step_ms(const StepFigures& figures) {
  double most = 0;
  for (const RankFigures& rank : figures.ranks) {
    most = std::max(most, rank.phase_ms[static_cast<int>(Phase::step)]);
  }
  return most;
}

}  // namespace

std::string rank_table(const std::vector<RankRow>& rows, std::size_t most) {
  std::size_t host = 4, device = 6;
  for (const RankRow& row : rows) {
    host = std::max(host, row.host.size());
    device = std::max(device, row.device.size());
  }
  std::string text =
      fmt::format("{:>5}  {:<{}}  {:>5}  {:<{}}  {:>7}  {}\n", "rank", "host",
                  host, "local", "device", device, "threads", "cores");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i == most - 1 && rows.size() > most) {
      const std::size_t more = rows.size() - i - 1;
      text += fmt::format(
          "  ...  {} more rank{}; the run record names their hosts\n", more,
          more == 1 ? "" : "s");
      i = rows.size() - 1;
    }
    const RankRow& row = rows[i];
    text += fmt::format("{:>5}  {:<{}}  {:>5}  {:<{}}  {:>7}  {}\n", row.rank,
                        row.host, host, row.local_rank, row.device, device,
                        row.threads, row.cores);
  }
  return text;
}

std::string model_summary(const ModelConfig& config, const Options& options,
                          const MemoryFigures& memory, int world_size) {
  const std::int64_t sequences =
      options.batch_size * options.grad_accumulation * world_size;
  std::string held;
  for (int i = 0; i < category_count; ++i) {
    if (memory.bytes[i] == 0) continue;
    held += fmt::format("{}{} {}", held.empty() ? "" : ", ", category_names[i],
                        format_bytes(double(memory.bytes[i])));
  }
  return fmt::format(
      "\nmodel     {} layers, d_model {}, d_ff {}, {} heads, vocabulary {}: "
      "{} parameters, {}FLOP a token\n"
      "step      {} sequences of {} tokens, {} rank{}, {} precision, --sync "
      "{}\n"
      "memory    {} a rank: {}\n\n",
      config.num_layers, config.d_model, config.d_ff, config.num_heads,
      config.vocab_size, short_number(double(config.parameters())),
      short_number(config.flops_per_token()), sequences, config.context_length,
      world_size, world_size == 1 ? "" : "s", name_of(options.precision),
      options.sync, format_bytes(double(memory.total)), held);
}

std::string step_line(const StepFigures& figures, std::int64_t steps,
                      double flops_per_token, double peak_flops,
                      double seconds_left) {
  const double ms = step_ms(figures);
  const double rate = ms > 0 ? 1e3 * double(figures.tokens) / ms : 0;
  const auto width = std::to_string(steps).size();
  std::string text = fmt::format("step {:>{}}/{}  loss {:.4f}", figures.step,
                                 width, steps, figures.loss);
  if (figures.learning_rate > 0) {
    text += fmt::format("  lr {:.2e}", figures.learning_rate);
  }
  if (!std::isnan(figures.gradient_norm)) {
    text += fmt::format("  norm {:.3g}", figures.gradient_norm);
  }
  text += fmt::format("  {} tok/s  {} ms", short_number(rate),
                      milliseconds_text(ms));
  if (peak_flops > 0) {
    text +=
        fmt::format("  MFU {:.1f}%", 100 * rate * flops_per_token / peak_flops);
  }
  if (seconds_left >= 0) text += "  ETA " + clock_text(seconds_left);
  return text;
}

std::string progress_line(const std::string& line, std::int64_t step,
                          std::int64_t steps, int columns) {
  constexpr std::int64_t longest = 20, shortest = 5;
  // The last column stays free: writing there makes some terminals wrap.
  const std::int64_t free = columns - 1 - std::ssize(line) - 3;
  if (free < shortest) {
    return line.substr(0, static_cast<std::size_t>(std::max(columns - 1, 1)));
  }
  const std::int64_t width = std::min(longest, free);
  const std::int64_t filled = width * step / steps;
  return fmt::format("[{:=<{}}{: <{}}] {}", "", filled, "", width - filled,
                     line);
}

bool is_round(std::int64_t step, std::int64_t apart) {
  std::int64_t unit = 1;
  while (unit <= apart / 10) unit *= 10;
  const std::int64_t times = apart / unit;
  return step % (times >= 5 ? 5 * unit : times >= 2 ? 2 * unit : unit) == 0;
}

void PhaseTable::add(const StepFigures& figures) {
  Row row;
  row.tokens = figures.tokens;
  row.slowest_ms = step_ms(figures);
  ranks_ = figures.ranks.size();
  for (const RankFigures& rank : figures.ranks) {
    const auto book = [&](int column, double ms) {
      row.ms[column] += ms / double(ranks_);
    };
    for (int i = 0; i < phase_count; ++i) book(i, rank.phase_ms[i]);
    book(comm_busy, rank.comm_busy_ms);
    book(comm_exposed, rank.comm_exposed_ms);
  }
  rows_.push_back(row);
  ++added_;
  if (rows_.size() > most_steps) rows_.pop_front();
}

std::int64_t PhaseTable::left_out() const {
  if (warmup_iterations_ > 0) return std::min(warmup_iterations_, added_ - 1);
  return added_ > 2 ? 1 : 0;
}

std::deque<PhaseTable::Row>::const_iterator PhaseTable::measured() const {
  const std::int64_t dropped = added_ - std::ssize(rows_);
  return rows_.begin() + std::max<std::int64_t>(left_out() - dropped, 0);
}

double PhaseTable::tokens_per_second() const {
  double tokens = 0, ms = 0;
  for (auto row = measured(); row != rows_.end(); ++row) {
    tokens += double(row->tokens);
    ms += row->slowest_ms;
  }
  return ms > 0 ? 1e3 * tokens / ms : 0;
}

std::string PhaseTable::row_text(std::string_view name, int column,
                                 double mean_step_ms) const {
  std::vector<double> values;
  for (auto row = measured(); row != rows_.end(); ++row) {
    values.push_back(row->ms[column]);
  }
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double deviation = n > 1 ? std::sqrt(squares / (n - 1)) : 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  const double median = values.size() % 2 == 1
                            ? values[middle]
                            : (values[middle - 1] + values[middle]) / 2;
  return fmt::format(
      "  {:<13}{:>10.3f}{:>10.3f}{:>10.3f}{:>10.3f}{:>10.3f}"
      "{:>8.1f}%\n",
      name, mean, deviation, values.front(), median, values.back(),
      mean_step_ms > 0 ? 100 * mean / mean_step_ms : 0);
}

std::string PhaseTable::text() const {
  if (rows_.empty()) return "";
  double mean_step_ms = 0;
  for (auto row = measured(); row != rows_.end(); ++row) {
    mean_step_ms += row->ms[static_cast<int>(Phase::step)];
  }
  const std::int64_t steps = rows_.end() - measured();
  mean_step_ms /= double(steps);
  std::string text =
      fmt::format("  {:<13}{:>10}{:>10}{:>10}{:>10}{:>10}{:>9}\n", "phase (ms)",
                  "mean", "std", "min", "median", "max", "share");
  for (int i = 0; i < phase_count; ++i) {
    text += row_text(phase_names[i], i, mean_step_ms);
  }
  if (ranks_ > 1) {
    text += row_text("comm busy", comm_busy, mean_step_ms);
    text += row_text("comm exposed", comm_exposed, mean_step_ms);
  }
  std::string which = fmt::format("{} step{}", steps, steps == 1 ? "" : "s");
  if (added_ > std::ssize(rows_)) {
    which = fmt::format("the latest {} of {} steps", steps, added_);
  } else if (warmup_iterations_ > 0) {
    which += fmt::format(" after {} of warm-up", left_out());
  } else if (left_out() > 0) {
    which += " after the first";
  }
  if (ranks_ == 1) return text + fmt::format("  over {}\n", which);
  return text + fmt::format(
                    "  over {}, each the mean of {} ranks\n"
                    "  comm busy: collectives at work; comm exposed: computing "
                    "waited for them\n",
                    which, ranks_);
}

Console::Console(Progress progress, bool speaks, std::FILE* out)
    : speaks_(speaks),
      out_(out),
      terminal_(progress == Progress::automatic && isatty(fileno(out)) == 1),
      progress_(progress) {}

void Console::put(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), out_);
  std::fflush(out_);
}

void Console::line(const std::string& text) {
  if (!speaks_) return;
  put((unfinished_line_ ? "\n" : "") + text + "\n");
  unfinished_line_ = false;
}

void Console::ranks(const std::vector<RankRow>& rows) {
  if (!speaks_ || progress_ == Progress::off) return;
  put(rank_table(rows));
}

void Console::model(const ModelConfig& config, const Options& options,
                    const MemoryFigures& memory, int world_size) {
  if (!speaks_ || progress_ == Progress::off) return;
  put(model_summary(config, options, memory, world_size));
}

void Console::start_training(std::int64_t steps, double flops_per_token,
                             double peak_flops,
                             std::int64_t warmup_iterations) {
  phases_ = PhaseTable(warmup_iterations);
  steps_ = steps;
  flops_per_token_ = flops_per_token;
  peak_flops_ = peak_flops;
  started_ = Clock::now();
}

void Console::step(const StepFigures& figures) {
  if (!speaks_) return;
  phases_.add(figures);
  if (steps_seen_++ == 0) first_loss_ = figures.loss;
  last_loss_ = figures.loss;
  tokens_ += double(figures.tokens);
  if (progress_ != Progress::off && is_due(figures)) {
    draw(figures, figures.step == steps_);
  }
}

bool Console::is_due(const StepFigures& figures) const {
  if (steps_seen_ == 1 || figures.step == steps_) return true;
  if (!std::isfinite(figures.loss)) return true;
  const auto since = Clock::now() - drawn_;
  if (terminal_) return since >= std::chrono::milliseconds(100);
  if (since < std::chrono::seconds(1)) return false;
  // A few slow steps do not make lines denser, many do.
  std::int64_t apart = figures.step - drawn_step_;
  if (since < std::chrono::seconds(5)) apart = std::max(apart, lines_apart_);
  return is_round(figures.step, apart);
}

void Console::draw(const StepFigures& figures, bool last) {
  drawn_ = Clock::now();
  lines_apart_ = figures.step - drawn_step_;
  drawn_step_ = figures.step;
  const std::chrono::duration<double> passed = Clock::now() - started_;
  const double left = last || steps_seen_ < 2
                          ? -1
                          : passed.count() / double(steps_seen_) *
                                double(steps_ - figures.step);
  const std::string text =
      step_line(figures, steps_, flops_per_token_, peak_flops_, left);
  if (!terminal_) {
    line(text);
    return;
  }
  put("\r\033[K" + progress_line(text, figures.step, steps_, columns_of(out_)) +
      (last ? "\n" : ""));
  unfinished_line_ = !last;
}

void Console::validation(std::int64_t step, double loss) {
  if (progress_ == Progress::off) return;
  line(fmt::format("step {:>{}}/{}  validation loss {:.4f}", step,
                   std::to_string(steps_).size(), steps_, loss));
}

void Console::finish() {
  if (!speaks_ || steps_seen_ == 0) return;
  const std::chrono::duration<double> passed = Clock::now() - started_;
  line("");
  line(phases_.text());
  const double rate = phases_.tokens_per_second();
  line(fmt::format(
      "loss {:.4f} -> {:.4f} in {} step{}, {} tokens, {} ({} tok/s{})",
      first_loss_, last_loss_, steps_seen_, steps_seen_ == 1 ? "" : "s",
      short_number(tokens_), clock_text(passed.count()), short_number(rate),
      peak_flops_ > 0 ? fmt::format(", MFU {:.1f}%",
                                    100 * rate * flops_per_token_ / peak_flops_)
                      : ""));
}

void Console::note(const std::string& text) {
  line(text);
}

void Console::warn(const std::string& text) {
  if (!speaks_) return;
  if (unfinished_line_) put("\n");
  unfinished_line_ = false;
  const std::string warning = "warning: " + text + "\n";
  std::fwrite(warning.data(), 1, warning.size(), stderr);
}

}  // namespace lockstep
