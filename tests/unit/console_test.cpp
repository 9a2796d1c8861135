#include "record/console.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "unit/files.h"

namespace lockstep {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Two ranks, the second of which is slower in all but `forward`.
StepFigures figures_of(std::int64_t step, double step_ms) {
  StepFigures figures{.step = step,
                      .loss = 4.5,
                      .learning_rate = 3e-4,
                      .gradient_norm = 1.25,
                      .tokens = 1000,
                      .ranks = {}};
  figures.ranks.resize(2);
  for (int rank = 0; rank < 2; ++rank) {
    RankFigures& mine = figures.ranks[rank];
    const double ms = rank == 0 ? step_ms / 2 : step_ms;
    mine.phase_ms[int(Phase::step)] = ms;
    mine.phase_ms[int(Phase::backward)] = ms / 4;
    mine.phase_ms[int(Phase::forward)] = rank == 0 ? step_ms / 2 : 0;
    mine.comm_busy_ms = ms / 5;
    mine.comm_exposed_ms = ms / 10;
  }
  return figures;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The numbers after a name in a table: mean, std, min, median, max, share.
std::vector<double> row_of(const std::string& table, const std::string& name) {
  for (const std::string& line : lines_of(table)) {
    if (!line.starts_with("  " + name + ' ')) continue;
    std::istringstream stream(line.substr(2 + name.size()));
    std::vector<double> numbers;
    for (double number = 0; stream >> number;) numbers.push_back(number);
    return numbers;
  }
  return {};
}

// What a table of several ranks says it is over.
std::string caption_of(const std::string& table) {
  return lines_of(table).end()[-2];
}

using Numbers = std::vector<double>;

// --- the line of a step -----------------------------------------------------

TEST(StepLine, SaysAllThereIsToSay) {
  // 1000 tokens in 250 ms, 1e6 FLOP each, of 1e10: 40%.
  EXPECT_EQ(step_line(figures_of(7, 250), 1000, 1e6, 1e10, 75),
            "step    7/1000  loss 4.5000  lr 3.00e-04  norm 1.25  4k tok/s  "
            "250 ms  MFU 40.0%  ETA 1:15");
}

TEST(StepLine, LeavesOutWhatIsNotKnown) {
  StepFigures figures = figures_of(7, 250);
  figures.learning_rate = 0;
  figures.gradient_norm = nan;
  EXPECT_EQ(step_line(figures, 9, 1e6, 0, -1),
            "step 7/9  loss 4.5000  4k tok/s  250 ms");
}

TEST(StepLine, ShowsALossThatIsNoNumber) {
  StepFigures figures = figures_of(7, 250);
  figures.loss = nan;
  figures.gradient_norm = INFINITY;
  const std::string line = step_line(figures, 9, 1e6, 0, -1);
  EXPECT_NE(line.find("loss nan"), std::string::npos) << line;
  EXPECT_NE(line.find("norm inf"), std::string::npos) << line;
}

TEST(StepLine, WritesNumbersOfAnySizeWithoutExponent) {
  const auto line = [](double ms, std::int64_t tokens, double left) {
    StepFigures figures = figures_of(1, ms);
    figures.tokens = tokens;
    const std::string text = step_line(figures, 1, 1, 0, left);
    return text.substr(text.find("norm 1.25  ") + 11);
  };
  EXPECT_EQ(line(1234.4, 1, 0), "0.81 tok/s  1234 ms  ETA 0:00");
  EXPECT_EQ(line(999.6, 1000, 59.6), "1k tok/s  1000 ms  ETA 1:00");
  EXPECT_EQ(line(0.01234, 1, 3599), "81k tok/s  0.0123 ms  ETA 59:59");
  EXPECT_EQ(line(1000, 999'600, 3600), "1M tok/s  1000 ms  ETA 1:00:00");
  EXPECT_EQ(line(1000, 1'234'567, 90'061),
            "1.23M tok/s  1000 ms  ETA 25:01:01");
  EXPECT_EQ(line(0, 1000, -1), "0 tok/s  0 ms");
}

TEST(RoundSteps, AreMultiplesOfOneTwoOrFiveTimesAPowerOfTen) {
  const auto round_ones = [](std::int64_t apart) {
    std::vector<std::int64_t> steps;
    for (std::int64_t step = 1; steps.size() < 3; ++step) {
      if (is_round(step, apart)) steps.push_back(step);
    }
    return steps;
  };
  using Steps = std::vector<std::int64_t>;
  EXPECT_EQ(round_ones(1), (Steps{1, 2, 3}));
  EXPECT_EQ(round_ones(2), (Steps{2, 4, 6}));
  EXPECT_EQ(round_ones(4), (Steps{2, 4, 6}));
  EXPECT_EQ(round_ones(5), (Steps{5, 10, 15}));
  EXPECT_EQ(round_ones(9), (Steps{5, 10, 15}));
  EXPECT_EQ(round_ones(10), (Steps{10, 20, 30}));
  EXPECT_EQ(round_ones(37), (Steps{20, 40, 60}));
  EXPECT_EQ(round_ones(999), (Steps{500, 1000, 1500}));
}

// --- the table of phases ----------------------------------------------------

TEST(PhaseTableText, IsEmptyBeforeTheFirstStep) {
  EXPECT_EQ(PhaseTable().text(), "");
  EXPECT_EQ(PhaseTable().tokens_per_second(), 0);
}

TEST(PhaseTableText, OfOneStepHasNoSpread) {
  PhaseTable table;
  table.add(figures_of(1, 40));
  const std::string text = table.text();
  // The ranks' steps take 20 and 40 ms, their forward passes 20 and 0.
  EXPECT_EQ(row_of(text, "step"), (Numbers{30, 0, 30, 30, 30, 100}));
  EXPECT_EQ(row_of(text, "forward"), (Numbers{10, 0, 10, 10, 10, 33.3}));
  EXPECT_EQ(row_of(text, "backward"), (Numbers{7.5, 0, 7.5, 7.5, 7.5, 25}));
  EXPECT_EQ(row_of(text, "data"), (Numbers{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(row_of(text, "comm busy"), (Numbers{6, 0, 6, 6, 6, 20}));
  EXPECT_EQ(row_of(text, "comm exposed"), (Numbers{3, 0, 3, 3, 3, 10}));
  EXPECT_EQ(text.find("nan"), std::string::npos) << text;
  EXPECT_EQ(caption_of(text), "  over 1 step, each the mean of 2 ranks");
  // Tokens are done when the slowest rank is.
  EXPECT_DOUBLE_EQ(table.tokens_per_second(), 1000 / 0.040);
}

TEST(PhaseTableText, OfTwoStepsCountsBoth) {
  PhaseTable table;
  table.add(figures_of(1, 40));
  table.add(figures_of(2, 20));
  // Deviation of a sample: √((7.5² + 7.5²) / 1).
  EXPECT_EQ(row_of(table.text(), "step"),
            (Numbers{22.5, 10.607, 15, 22.5, 30, 100}));
  EXPECT_EQ(caption_of(table.text()),
            "  over 2 steps, each the mean of 2 ranks");
  EXPECT_DOUBLE_EQ(table.tokens_per_second(), 2000 / 0.060);
}

TEST(PhaseTableText, OfMoreLeavesTheFirstOut) {
  PhaseTable table;
  for (const double ms : {4000.0, 20.0, 40.0, 90.0}) {
    table.add(figures_of(1, ms));
  }
  // Of 15, 30 and 67.5: mean 37.5, √((22.5² + 7.5² + 30²) / 2).
  const std::string text = table.text();
  EXPECT_EQ(row_of(text, "step"), (Numbers{37.5, 27.042, 15, 30, 67.5, 100}));
  EXPECT_EQ(row_of(text, "backward"),
            (Numbers{9.375, 6.760, 3.75, 7.5, 16.875, 25}));
  EXPECT_EQ(caption_of(text),
            "  over 3 steps after the first, each the mean of 2 ranks");
  EXPECT_DOUBLE_EQ(table.tokens_per_second(), 3000 / 0.150);
}

TEST(PhaseTableText, LeavesOutTheWarmUp) {
  PhaseTable table(2);
  for (const double ms : {4000.0, 2000.0, 20.0, 40.0}) {
    table.add(figures_of(1, ms));
  }
  EXPECT_EQ(row_of(table.text(), "step"),
            (Numbers{22.5, 10.607, 15, 22.5, 30, 100}));
  EXPECT_EQ(caption_of(table.text()),
            "  over 2 steps after 2 of warm-up, each the mean of 2 ranks");
  EXPECT_DOUBLE_EQ(table.tokens_per_second(), 2000 / 0.060);
}

TEST(PhaseTableText, OfOneStepAfterTheWarmUpHasNoSpread) {
  PhaseTable table(3);
  for (const double ms : {90.0, 80.0, 70.0, 20.0}) {
    table.add(figures_of(1, ms));
  }
  EXPECT_EQ(row_of(table.text(), "step"), (Numbers{15, 0, 15, 15, 15, 100}));
}

TEST(PhaseTableText, PhasesMakeUpTheStep) {
  // Both ranks take 100 ms; what one waits, the other computes.
  StepFigures figures = figures_of(1, 100);
  for (int rank = 0; rank < 2; ++rank) {
    auto& ms = figures.ranks[rank].phase_ms;
    ms = {};
    ms[int(Phase::step)] = 100;
    ms[int(Phase::backward)] = rank == 0 ? 90 : 30;
    ms[int(Phase::grad_sync)] = rank == 0 ? 10 : 70;
  }
  PhaseTable table;
  table.add(figures);
  EXPECT_EQ(row_of(table.text(), "backward"), (Numbers{60, 0, 60, 60, 60, 60}));
  EXPECT_EQ(row_of(table.text(), "grad_sync"),
            (Numbers{40, 0, 40, 40, 40, 40}));
}

TEST(PhaseTableText, OfOneRankHasNoCommunication) {
  StepFigures figures = figures_of(1, 40);
  figures.ranks.resize(1);
  PhaseTable table;
  table.add(figures);
  EXPECT_TRUE(row_of(table.text(), "comm busy").empty());
  EXPECT_EQ(lines_of(table.text()).back(), "  over 1 step");
  EXPECT_EQ(row_of(table.text(), "step"), (Numbers{20, 0, 20, 20, 20, 100}));
}

TEST(PhaseTableText, KeepsTheLatestStepsAndSaysSo) {
  PhaseTable table;
  const auto most = std::int64_t(PhaseTable::most_steps);
  for (std::int64_t i = 0; i < most; ++i) table.add(figures_of(1, 50));
  EXPECT_EQ(caption_of(table.text()),
            "  over 9999 steps after the first, each the mean of 2 ranks");
  for (std::int64_t i = 0; i < most - 1; ++i) table.add(figures_of(1, 10));
  const std::string text = table.text();
  EXPECT_EQ(caption_of(text),
            "  over the latest 10000 of 19999 steps, each the mean of 2 ranks");
  const auto row = row_of(text, "step");
  ASSERT_EQ(row.size(), 6u);
  EXPECT_EQ(row[4], 37.5) << "one of the slow ones is left";
  EXPECT_EQ(row[3], 7.5);
  EXPECT_NEAR(row[0], 7.503, 1e-9);
}

// --- the tables at the start ------------------------------------------------

std::vector<RankRow> rows_of(int ranks) {
  std::vector<RankRow> rows;
  for (int rank = 0; rank < ranks; ++rank) {
    rows.push_back({rank, rank == 0 ? "a-long-host-name" : "b", rank, "CPU", 4,
                    fmt::format("{}-{}", 4 * rank, 4 * rank + 3)});
  }
  return rows;
}

TEST(RankTable, HasALineForEachRank) {
  const auto lines = lines_of(rank_table(rows_of(2)));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], " rank  host              local  device  threads  cores");
  EXPECT_EQ(lines[1], "    0  a-long-host-name      0  CPU           4  0-3");
  EXPECT_EQ(lines[2], "    1  b                     1  CPU           4  4-7");
}

TEST(RankTable, FoldsAboveSixteen) {
  EXPECT_EQ(lines_of(rank_table(rows_of(16))).size(), 17u);
  EXPECT_EQ(rank_table(rows_of(16)).find("..."), std::string::npos);
  for (const int ranks : {17, 18, 1000}) {
    const auto lines = lines_of(rank_table(rows_of(ranks)));
    ASSERT_EQ(lines.size(), 18u) << ranks;  // title, 15, fold, the last
    EXPECT_TRUE(lines[15].starts_with("   14  ")) << lines[15];
    EXPECT_TRUE(lines[16].starts_with(fmt::format(
        "  ...  {} more rank{};", ranks - 16, ranks == 17 ? "" : "s")))
        << lines[16];
    EXPECT_TRUE(lines[17].starts_with(fmt::format("{:>5}  b", ranks - 1)))
        << lines[17];
  }
}

TEST(ModelSummary, SaysModelStepAndMemory) {
  ModelConfig config;
  config.vocab_size = 64;
  config.context_length = 16;
  config.d_model = 8;
  config.d_ff = 32;
  config.num_layers = 2;
  config.num_heads = 2;
  Options options;
  options.model = config;
  options.batch_size = 3;
  options.grad_accumulation = 2;
  options.sync = "naive";
  MemoryFigures memory;
  memory.bytes[int(Category::parameters)] = 3 << 20;
  memory.bytes[int(Category::workspace)] = 1 << 10;
  memory.total = (3 << 20) + (1 << 10);
  const std::string text = model_summary(config, options, memory, 4);
  // Two tables of 64 · 8, and per block 4 · 8 · 8 + 3 · 8 · 32 + 2 · 8, and 8.
  EXPECT_EQ(config.parameters(), 2 * 512 + 2 * (256 + 768 + 16) + 8);
  for (const char* part :
       {"2 layers", "d_model 8", "d_ff 32", "2 heads", "vocabulary 64",
        "3.11k parameters", "24 sequences of 16 tokens", "4 ranks",
        "fp32 precision", "--sync naive", "3.00 MiB a rank",
        "parameters 3.00 MiB, workspace 1.00 KiB\n"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  EXPECT_EQ(text.find("gradients"), std::string::npos) << "holds none";
  EXPECT_NE(model_summary(config, options, memory, 1).find(" 1 rank,"),
            std::string::npos);
}

// --- what a run prints where its output is no terminal ----------------------

class Piped : public testing::Test {
 protected:
  // What a Console writes to a pipe.
  template <class Work>
  std::string said(Progress progress, bool speaks, Work work) {
    const test::TemporaryFolder folder;
    const std::string path = folder / "out";
    std::FILE* const out = std::fopen(path.c_str(), "w");
    {
      Console console(progress, speaks, out);
      work(console);
    }
    std::fclose(out);
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  static void train(Console& console, std::int64_t steps) {
    console.start_training(steps, 1, 0);
    for (std::int64_t step = 1; step <= steps; ++step) {
      StepFigures figures = figures_of(step, 10);
      figures.loss = 5 - double(step) / double(steps);
      console.step(figures);
    }
    console.finish();
  }
  static std::int64_t count(const std::string& text, const std::string& begin) {
    std::int64_t lines = 0;
    for (const std::string& line : lines_of(text)) {
      lines += line.starts_with(begin) ? 1 : 0;
    }
    return lines;
  }
};

TEST_F(Piped, AFastRunSaysItsFirstAndLastStep) {
  for (const Progress progress : {Progress::automatic, Progress::plain}) {
    const std::string text =
        said(progress, true, [](Console& c) { train(c, 200); });
    EXPECT_EQ(count(text, "step "), 2) << text;
    EXPECT_EQ(count(text, "step   1/200  loss 4.995"), 1) << text;
    EXPECT_EQ(count(text, "step 200/200  loss 4.000"), 1) << text;
    EXPECT_EQ(text.find_first_of("\r\033"), std::string::npos);
  }
}

TEST_F(Piped, ARunOfOneStepSaysItOnce) {
  const std::string text =
      said(Progress::automatic, true, [](Console& c) { train(c, 1); });
  EXPECT_EQ(count(text, "step "), 1) << text;
  EXPECT_EQ(count(text, "loss 4.0000 -> 4.0000 in 1 step, 1k tokens"), 1)
      << text;
  EXPECT_EQ(text.find("nan"), std::string::npos) << text;
}

TEST_F(Piped, ASlowRunSaysARoundStepASecond) {
  const std::string text = said(Progress::automatic, true, [](Console& c) {
    c.start_training(9, 1, 0);
    c.step(figures_of(1, 10));
    c.step(figures_of(2, 10));
    usleep(1'100'000);
    c.step(figures_of(3, 10));  // two steps since the last: the next even one
    c.step(figures_of(4, 10));
    c.step(figures_of(5, 10));
  });
  EXPECT_EQ(count(text, "step "), 2) << text;
  EXPECT_EQ(count(text, "step 4/9"), 1) << text;
  EXPECT_NE(text.find("ETA"), std::string::npos) << text;
}

TEST_F(Piped, ALossThatIsNoNumberIsAlwaysSaid) {
  const std::string text = said(Progress::automatic, true, [](Console& c) {
    c.start_training(100, 1, 0);
    for (int step = 1; step <= 3; ++step) {
      StepFigures figures = figures_of(step, 10);
      if (step == 2) figures.loss = nan;
      c.step(figures);
    }
  });
  EXPECT_EQ(count(text, "step   2/100  loss nan"), 1) << text;
}

TEST_F(Piped, TheSummaryHasTheTableAndTheLosses) {
  const std::string text =
      said(Progress::automatic, true, [](Console& c) { train(c, 10); });
  EXPECT_EQ(row_of(text, "step"), (Numbers{7.5, 0, 7.5, 7.5, 7.5, 100}))
      << text;
  // 1000 tokens in 10 ms, whatever the time of this test.
  EXPECT_EQ(count(text,
                  "loss 4.9000 -> 4.0000 in 10 steps, 10k tokens, 0:00 "
                  "(100k tok/s)"),
            1)
      << text;
}

TEST_F(Piped, ProgressOffSaysTheSummaryAlone) {
  const std::string text = said(Progress::off, true, [](Console& c) {
    c.ranks(rows_of(2));
    c.model(ModelConfig(), Options(), MemoryFigures(), 2);
    c.start_training(2, 1, 0);
    c.step(figures_of(1, 10));
    c.validation(1, 4);
    c.step(figures_of(2, 10));
    c.finish();
  });
  EXPECT_EQ(count(text, "step "), 0) << text;
  EXPECT_EQ(text.find("validation"), std::string::npos);
  EXPECT_EQ(text.find("host"), std::string::npos);
  EXPECT_EQ(text.find("model"), std::string::npos);
  EXPECT_FALSE(row_of(text, "step").empty()) << text;
  EXPECT_EQ(count(text, "loss 4.5000 -> 4.5000"), 1) << text;
}

TEST_F(Piped, ValidationIsSaid) {
  const std::string text = said(Progress::automatic, true, [](Console& c) {
    c.start_training(100, 1, 0);
    c.validation(5, 3.25);
  });
  EXPECT_EQ(text, "step   5/100  validation loss 3.2500\n");
}

TEST_F(Piped, OtherRanksSayNothing) {
  const std::string text = said(Progress::automatic, false, [](Console& c) {
    c.ranks(rows_of(2));
    c.model(ModelConfig(), Options(), MemoryFigures(), 2);
    train(c, 3);
    c.validation(1, 4);
    c.note("note");
    c.warn("warning");
  });
  EXPECT_EQ(text, "");
}

TEST_F(Piped, ARunWithoutStepsHasNoSummary) {
  EXPECT_EQ(said(Progress::automatic, true,
                 [](Console& c) {
                   c.start_training(3, 1, 0);
                   c.finish();
                 }),
            "");
}

}  // namespace
}  // namespace lockstep
