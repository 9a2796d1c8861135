#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include "record/console.h"

namespace lockstep {
namespace {

TEST(ProgressLine, ShowsHowFarItIs) {
  EXPECT_EQ(progress_line("text", 1, 4, 120), "[=====               ] text");
  EXPECT_EQ(progress_line("text", 4, 4, 120), "[====================] text");
  EXPECT_EQ(progress_line("text", 1, 1'000'000, 120),
            "[                    ] text");
}

TEST(ProgressLine, ShrinksItsBarAndThenEndsEarly) {
  const std::string line(60, 'x');
  EXPECT_EQ(progress_line(line, 1, 2, 80), "[========        ] " + line);
  EXPECT_EQ(progress_line(line, 1, 2, 69), "[==   ] " + line);
  EXPECT_EQ(progress_line(line, 1, 2, 68), line);
  EXPECT_EQ(progress_line(line, 1, 2, 61), line);
  EXPECT_EQ(progress_line(line, 1, 2, 40), std::string(39, 'x'));
  EXPECT_EQ(progress_line(line, 1, 2, 1), "x");
  for (int columns = 2; columns < 200; ++columns) {
    EXPECT_LT(std::ssize(progress_line(line, 1, 2, columns)), columns);
  }
}

StepFigures figures_of(std::int64_t step) {
  StepFigures figures{.step = step,
                      .loss = 4.5,
                      .learning_rate = 3e-4,
                      .gradient_norm = 1.25,
                      .tokens = 1000,
                      .ranks = {}};
  figures.ranks.resize(1);
  figures.ranks[0].phase_ms[int(Phase::step)] = 10;
  return figures;
}

// A terminal of so many columns, and what a Console writes to it.
class Terminal : public testing::Test {
 protected:
  ~Terminal() override {
    if (out_ != nullptr) std::fclose(out_);
    if (screen_ >= 0) close(screen_);
  }
  void open(unsigned short columns) {
    int terminal = -1;
    winsize size{
        .ws_row = 25, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    if (openpty(&screen_, &terminal, nullptr, nullptr, &size) != 0) {
      GTEST_SKIP() << "no pseudo-terminal to be had";
    }
    out_ = fdopen(terminal, "w");
  }
  std::string seen() {
    char text[4096];
    const ssize_t bytes = read(screen_, text, sizeof text);
    return {text, static_cast<std::size_t>(std::max<ssize_t>(bytes, 0))};
  }
  std::FILE* out_ = nullptr;
  int screen_ = -1;
};

TEST_F(Terminal, ALineIsRedrawnInPlaceAtMostTenTimesASecond) {
  open(100);
  if (IsSkipped()) return;
  Console console(Progress::automatic, true, out_);
  console.start_training(50, 1, 0);
  for (std::int64_t step = 1; step <= 20; ++step)
    console.step(figures_of(step));
  const std::string first = seen();
  EXPECT_TRUE(first.starts_with("\r\033[K[")) << first;
  EXPECT_NE(first.find("] step  1/50"), std::string::npos) << first;
  EXPECT_EQ(first.find("step", first.find("step") + 1), std::string::npos)
      << "20 steps in no time are one line";
  EXPECT_EQ(first.find('\n'), std::string::npos);
  EXPECT_LT(first.size() - 4, 100u);

  usleep(110'000);
  console.step(figures_of(21));
  EXPECT_NE(seen().find("step 21/50"), std::string::npos);
}

TEST_F(Terminal, OtherLinesBeginBelowTheProgress) {
  open(100);
  if (IsSkipped()) return;
  Console console(Progress::automatic, true, out_);
  console.start_training(50, 1, 0);
  console.step(figures_of(1));
  seen();
  console.validation(1, 2.5);
  EXPECT_EQ(seen(), "\r\nstep  1/50  validation loss 2.5000\r\n");
  console.step(figures_of(50));
  EXPECT_TRUE(seen().ends_with(" ms\r\n")) << "the last one stays";
  console.note("sample");
  EXPECT_EQ(seen(), "sample\r\n");
}

TEST_F(Terminal, NothingWrapsInANarrowOne) {
  open(40);
  if (IsSkipped()) return;
  Console console(Progress::automatic, true, out_);
  console.start_training(50, 1, 0);
  console.step(figures_of(1));
  EXPECT_EQ(seen(), "\r\033[Kstep  1/50  loss 4.5000  lr 3.00e-04  n");
}

TEST_F(Terminal, PlainProgressDrawsNoBar) {
  open(100);
  if (IsSkipped()) return;
  Console console(Progress::plain, true, out_);
  console.start_training(50, 1, 0);
  console.step(figures_of(1));
  EXPECT_TRUE(seen().starts_with("step  1/50"));
}

TEST(FullDisk, DoesNotEndARunThatIsLoggedThere) {
  std::FILE* const full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  {
    Console console(Progress::plain, true, full);
    console.start_training(1, 1, 0);
    EXPECT_NO_THROW(console.step(figures_of(1)));
    EXPECT_NO_THROW(console.finish());
    EXPECT_NO_THROW(console.note(std::string(100'000, 'x')));
  }
  std::fclose(full);
}

}  // namespace
}  // namespace lockstep
