#include "config/options.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "config/option_value.h"
#include "core/error.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 2> syncs = {"none", "naive"};
using Words = std::vector<std::string>;

CommandLine parse_exactly(Words words, int world_size = 1) {
  words.insert(words.begin(), "train");
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  return parse_command_line(static_cast<int>(argv.size()), argv.data(),
                            world_size, syncs);
}

// With random data, so that nothing required is missing.
Options parse(Words words, int world_size = 1) {
  words.insert(words.begin(), "--data=random");
  return parse_exactly(std::move(words), world_size).options;
}

// The text of the UsageError; "accepted" without one.
std::string error_of(const Words& words) {
  try {
    parse(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_error(const Words& words, const Words& parts) {
  const std::string error = error_of(words);
  EXPECT_NE(error, "accepted");
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  for (const std::string& part : parts) {
    EXPECT_NE(error.find(part), std::string::npos)
        << "'" << part << "' is not in: " << error;
  }
}

// A file that lives as long as the test.
class OptionsFile : public testing::Test {
 protected:
  std::string write(const std::string& content) {
    std::ofstream(path_) << content;
    return path_;
  }
  void TearDown() override { std::remove(path_.c_str()); }

  const std::string path_ =
      (std::filesystem::path(testing::TempDir()) /
       testing::UnitTest::GetInstance()->current_test_info()->name())
          .string() +
      ".cfg";
};

TEST(Options, DefaultsAreTheDocumentedOnes) {
  const Options o = parse({});
  EXPECT_EQ(o.model_size, "small");
  EXPECT_EQ(o.model.d_model, 768);
  EXPECT_EQ(o.model.vocab_size, 10000);
  EXPECT_EQ(o.model.context_length, 1024);
  EXPECT_EQ(o.model.rope_theta, 10000);
  EXPECT_EQ(o.steps, 100);
  EXPECT_EQ(o.lr, 3e-4);
  EXPECT_EQ(o.clip, 1);
  EXPECT_TRUE(o.decay_norms);
  EXPECT_FALSE(o.share_gpu);
  EXPECT_EQ(o.output, "run.h5");
  EXPECT_EQ(o.mode, Mode::train);
  EXPECT_EQ(o.precision, Precision::fp32);
}

TEST(Options, DecayStepsAreTheStepsUnlessGiven) {
  EXPECT_EQ(parse({"--steps", "70"}).decay_steps, 70);
  EXPECT_EQ(parse({"--steps", "70", "--decay-steps", "50"}).decay_steps, 50);
}

TEST(Options, WarmUpIterationsComeBeforeTheSteps) {
  const Options o = parse({"--steps", "10", "--warmup-iterations", "5"});
  EXPECT_EQ(o.last_step(), 15);
  EXPECT_EQ(o.decay_steps, 15);
  EXPECT_EQ(parse({"--steps", "10"}).last_step(), 10);
}

TEST(Options, StepsAreListedOneByOneOrAsRanges) {
  const StepSet steps = parse({"--trace", "1,5-8,20"}).trace;
  for (const int step : {1, 5, 6, 8, 20}) EXPECT_TRUE(steps.contains(step));
  for (const int step : {0, 2, 4, 9, 21}) EXPECT_FALSE(steps.contains(step));
  EXPECT_EQ(steps.text(), "1,5-8,20");
  EXPECT_TRUE(parse({}).trace.empty());
  EXPECT_TRUE(parse({"--memory-timeline", "3"}).memory_timeline.contains(3));
  for (const char* nonsense : {"0", "-1", "1-", "5-3", "1,,2", "1,", "x", "1 2",
                               "1-2-3", "99999999999999999999"}) {
    expect_error({"--memory-timeline", nonsense},
                 {"--memory-timeline", nonsense});
  }
}

TEST(Options, TheLowestLearningRateIsATenthUnlessGiven) {
  EXPECT_DOUBLE_EQ(parse({"--lr", "1e-2"}).min_lr, 1e-3);
  EXPECT_EQ(parse({"--lr", "1e-2", "--min-lr", "0"}).min_lr, 0);
}

TEST(Options, SyncIsNoneOnOneRankAndNaiveOnSeveralUnlessGiven) {
  EXPECT_EQ(parse({}, 1).sync, "none");
  EXPECT_EQ(parse({}, 4).sync, "naive");
  EXPECT_EQ(parse({"--sync=naive"}, 1).sync, "naive");
}

TEST(Options, GradientsTravelInTheDtypeTheyAreKeptInUnlessTold) {
  EXPECT_EQ(parse({}).reduce_dtype, Dtype::f32);
  EXPECT_EQ(parse({"--precision=bf16"}).grad_dtype, Dtype::f32);
  EXPECT_EQ(parse({"--precision=bf16"}).reduce_dtype, Dtype::f32);
  const Words half = {"--precision=bf16", "--grad-dtype=bf16"};
  EXPECT_EQ(parse(half).grad_dtype, Dtype::bf16);
  EXPECT_EQ(parse(half).reduce_dtype, Dtype::bf16);
  EXPECT_EQ(parse({half[0], half[1], "--reduce-dtype=fp32"}).reduce_dtype,
            Dtype::f32);
  EXPECT_EQ(parse({"--reduce-dtype=bf16"}).grad_dtype, Dtype::f32);
}

TEST(Options, TakesValuesAfterASpaceOrAnEqualsSign) {
  EXPECT_EQ(parse({"--batch-size", "3"}).batch_size, 3);
  EXPECT_EQ(parse({"--batch-size=3"}).batch_size, 3);
  EXPECT_EQ(parse({"--lr", "2.5e-3"}).lr, 2.5e-3);
  EXPECT_EQ(parse({"--mode=forward-backward"}).mode, Mode::forward_backward);
  EXPECT_EQ(parse({"--seed=18446744073709551615"}).seed, ~std::uint64_t{0});
}

TEST(Options, TheLastOfSeveralValuesCounts) {
  EXPECT_EQ(parse({"--steps=3", "--steps=5", "--steps=4"}).steps, 4);
}

TEST(Options, AFlagMayStandAloneOrSayTrueOrFalse) {
  EXPECT_TRUE(parse({"--share-gpu"}).share_gpu);
  EXPECT_TRUE(parse({"--share-gpu", "--steps=2"}).share_gpu);
  EXPECT_TRUE(parse({"--share-gpu=true"}).share_gpu);
  EXPECT_FALSE(parse({"--share-gpu=false"}).share_gpu);
  EXPECT_FALSE(parse({"--decay-norms=false"}).decay_norms);
}

TEST_F(OptionsFile, IsNotSwallowedByAFlagBeforeIt) {
  const Options o = parse({"--share-gpu", write("steps = 9\n")});
  EXPECT_TRUE(o.share_gpu);
  EXPECT_EQ(o.steps, 9);
}

TEST(Options, ANamedSizeGivesWayToShapeValuesInAnyOrder) {
  for (const Words& words :
       {Words{"--model-size=medium", "--num-layers=2", "--num-heads=8"},
        Words{"--num-layers=2", "--num-heads=8", "--model-size=medium"}}) {
    const Options o = parse(words);
    EXPECT_EQ(o.model_size, "medium");
    EXPECT_EQ(o.model.d_model, 1024);
    EXPECT_EQ(o.model.d_ff, 4096);
    EXPECT_EQ(o.model.num_layers, 2);
    EXPECT_EQ(o.model.num_heads, 8);
  }
}

TEST_F(OptionsFile, BeatsDefaultsAndLosesToTheCommandLine) {
  const std::string file = write(
      "# a comment\n"
      "steps = 7   # and another\n"
      "\n"
      "batch-size=2\r\n"
      "precision = bf16\n"
      "share-gpu = true\n");
  for (const Words& words :
       {Words{file, "--steps=9"}, Words{"--steps=9", file}}) {
    const Options o = parse(words);
    EXPECT_EQ(o.steps, 9);
    EXPECT_EQ(o.batch_size, 2);
    EXPECT_EQ(o.precision, Precision::bf16);
    EXPECT_TRUE(o.share_gpu);
    EXPECT_EQ(o.grad_accumulation, 1);
  }
}

TEST_F(OptionsFile, MayGiveTheData) {
  const std::string file = write("data = random\n");
  EXPECT_EQ(parse_exactly({file}).options.data, "random");
}

TEST_F(OptionsFile, LosesItsShapeToANamedSizeOfTheCommandLine) {
  const std::string file = write("d-model = 64\nnum-heads = 4\n");
  EXPECT_EQ(parse({file}).model.d_model, 64);
  const Options o = parse({file, "--model-size=small"});
  EXPECT_EQ(o.model.d_model, 768);
  EXPECT_EQ(o.model.num_heads, 12);
}

TEST_F(OptionsFile, NamesItselfInAnErrorAboutAValue) {
  const std::string file = write("steps = many\n");
  expect_error({file}, {file, "steps", "'many'", "whole number"});
}

TEST_F(OptionsFile, NamesTheNearestOfAnUnknownOption) {
  const std::string file = write("batch_size = 3\n");
  expect_error({file}, {file, "batch_size", "did you mean batch-size?"});
}

TEST_F(OptionsFile, RefusesSectionsBadLinesAndRepeatedOptions) {
  expect_error({write("[run]\nsteps = 3\n")}, {path_, "run.steps"});
  expect_error({write("just words\n")}, {path_, "just words"});
  expect_error({write("steps = 3\nsteps = 4\n")},
               {path_, "steps", "given twice"});
  expect_error({write("ste = 3\n")}, {"did you mean steps?"});
}

TEST_F(OptionsFile, GivenTwiceIsAnErrorThatNamesBoth) {
  const std::string file = write("steps = 3\n");
  expect_error({file, "other.cfg"}, {file, "other.cfg"});
}

TEST_F(OptionsFile, OfTheInputsFolderIsValid) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "inputs")) {
    if (entry.is_directory()) continue;
    const Words words = {entry.path().string(), "--data=a.txt",
                         "--validation-every=5", "--validation-data=b.txt"};
    EXPECT_NO_THROW(parse_exactly(words, 8)) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 3);
}

TEST(Options, AMissingConfigurationFileIsAnErrorThatNamesIt) {
  expect_error({"no/such.cfg"}, {"'no/such.cfg'", "no such file"});
  expect_error({testing::TempDir()}, {testing::TempDir(), "folder"});
  expect_error({""}, {"empty"});
}

TEST(Options, AnUnknownOptionSuggestsTheNearest) {
  expect_error({"--stpes", "3"}, {"--stpes", "did you mean --steps?"});
  expect_error({"--batch_size=3"}, {"--batch_size", "--batch-size?"});
  expect_error({"--prescision=fp32"}, {"did you mean --precision?"});
  expect_error({"--hlep"}, {"did you mean --help?"});
  expect_error({"-z"}, {"-z"});
}

TEST(Options, AnAbbreviationIsNotAccepted) {
  expect_error({"--step=3"}, {"--step:", "did you mean --steps?"});
  expect_error({"--valid=x"}, {"did you mean --validation-data?"});
}

TEST(Options, AnUnknownNameSuggestsTheNearestAndListsAll) {
  expect_error(
      {"--precision=fp23"},
      {"--precision", "'fp23'", "fp32, tf32 or bf16", "did you mean fp32?"});
  expect_error({"--model-size=mediun"}, {"did you mean medium?"});
  expect_error({"--sync=navie"}, {"none or naive", "did you mean naive?"});
  expect_error({"--mode=backward"}, {"train, forward or forward-backward"});
  expect_error({"--device=gpu"}, {"auto, cpu or cuda"});
  expect_error({"--decay-norms=maybe"}, {"true or false", "'maybe'"});
}

TEST(Options, CountsAreWholeNumbersInTheirRange) {
  for (const std::string option :
       {"--steps", "--batch-size", "--grad-accumulation", "--vocab-size",
        "--context-length", "--d-model", "--d-ff", "--num-layers",
        "--num-heads", "--decay-steps", "--validation-batches"}) {
    for (const std::string value :
         {"0", "-1", "2.5", "1e3", "x", "3x", " 3", "99999999999999999999"}) {
      expect_error({option + "=" + value},
                   {option, "'" + value + "'", "whole number from 1 to"});
    }
  }
  expect_error({"--local-steps=0"}, {"--local-steps", "from 1 to"});
  for (const char* text : {"--recompute=block:0", "--recompute=block:",
                           "--recompute=ffn:2", "--recompute=blocks"}) {
    expect_error({text}, {"--recompute", "block:K"});
  }
  expect_error({"--fsdp-prefetch=-1"}, {"--fsdp-prefetch", "from 0 to"});
  expect_error({"--seed=-1"}, {"--seed", "whole number from 0 to"});
  expect_error({"--threads=-1"}, {"--threads", "whole number from 0 to"});
  expect_error({"--generate=-1"}, {"--generate"});
}

TEST(Options, NumbersAreFiniteAndInTheirRange) {
  for (const std::string option :
       {"--lr", "--min-lr", "--weight-decay", "--beta1", "--beta2",
        "--adam-eps", "--clip", "--rope-theta", "--bucket-mb", "--timeout"}) {
    for (const std::string value :
         {"nan", "inf", "-inf", "-1", "1e999", "1e39", "x", "1x"}) {
      expect_error({option + "=" + value},
                   {option, "'" + value + "'", "a number"});
    }
  }
  expect_error({"--bucket-mb=0"}, {"--bucket-mb", "above 0"});
  expect_error({"--lr=0"}, {"--lr", "above 0"});
  expect_error({"--lr=1e-60"}, {"--lr", "above 0"});  // 0 in fp32
  expect_error({"--adam-eps=0"}, {"--adam-eps", "above 0"});
  expect_error({"--beta1=1"}, {"--beta1", "below 1"});
  expect_error({"--beta2=0.999999999999"}, {"--beta2", "below 1"});
  EXPECT_EQ(parse({"--beta1=0"}).beta1, 0);
  EXPECT_EQ(parse({"--clip=0"}).clip, 0);
}

TEST(Options, AMissingValueIsAnError) {
  expect_error({"--steps"}, {"--steps", "whole number", "nothing follows"});
  expect_error({"--steps="}, {"--steps", "nothing follows"});
  expect_error({"--lr", "--steps=3"}, {"--lr", "--steps=3 follows"});
  expect_error({"--output", ""}, {"--output", "file name"});
  expect_error({"--precision="}, {"--precision"});
  expect_error({"--step="}, {"--step:", "no such option", "--steps"});
  expect_error({"--help="}, {"--help takes no value"});
  expect_error({"--version=3"}, {"--version takes no value"});
}

// Boost puts what it was given into texts with placeholders, again and again
// while it finds any.
TEST_F(OptionsFile, PlaceholdersOfBoostsInInputAreText) {
  for (const std::string name :
       {"%canonical_option%", "%option%", "%value%", "%invalid_line%"}) {
    expect_error({"--" + name + "="}, {"--" + name, "no such option"});
    expect_error({"--" + name}, {"--" + name, "no such option"});
    expect_error({"--steps=" + name}, {"--steps", name});
    expect_error({write("a'" + name)}, {path_, "a'" + name});
    expect_error({write(name + "=3")}, {path_, name, "no such option"});
  }
}

TEST(Options, DataMustBeGiven) {
  for (const Words& words : {Words{}, Words{"--data", ""}}) {
    try {
      parse_exactly(words);
      FAIL() << "accepted";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("--data is missing"),
                std::string::npos);
    }
  }
}

TEST(Options, ContradictionsAreErrorsThatNameBothSides) {
  expect_error({"--num-heads=7"}, {"--num-heads 7", "--d-model 768"});
  expect_error({"--num-heads=256"}, {"head dimension 3", "odd"});
  expect_error({"--validation-every=5"}, {"needs --validation-data"});
  expect_error({"--validation-data=v.npy"}, {"needs --validation-every"});
  expect_error({"--lr=1e-4", "--min-lr=1e-3"},
               {"--min-lr 0.001", "--lr 0.0001"});
  expect_error({"--steps=10", "--warmup-steps=11"},
               {"--warmup-steps 11", "--decay-steps 10"});
  expect_error({"--sampler=sequential"}, {"--sampler sequential", "random"});
  expect_error({"--generate=5", "--mode=forward"},
               {"--generate 5", "--mode train", "--init"});
  expect_error({"--grad-dtype=bf16"},
               {"--grad-dtype bf16", "needs --precision bf16", "with fp32"});
  expect_error({"--grad-dtype=bf16", "--precision=tf32"}, {"with tf32"});
  expect_error({"--device=cpu", "--precision=tf32"}, {"tf32", "cpu"});
  expect_error({"--device=cpu", "--share-gpu"}, {"--share-gpu", "cpu"});
  expect_error({"--batch-size=1048576", "--context-length=1048576"},
               {"--batch-size 1048576", "--grad-accumulation"});
}

TEST(Options, AWorldSizeOfItsOwnIsForDryRuns) {
  expect_error({"--world-size=16"}, {"--world-size 16", "--dry-run"});
  const Options o = parse_exactly({"--dry-run", "--world-size=16"}).options;
  EXPECT_EQ(o.world_size, 16);
  EXPECT_EQ(o.sync, "naive");
  EXPECT_EQ(o.dry_run, DryRun::text);
  EXPECT_EQ(parse_exactly({"--dry-run=csv"}).options.dry_run, DryRun::csv);
  EXPECT_EQ(parse({}, 4).world_size, 4);
}

TEST(Options, WhatOnlyLooksLikeAContradictionIsAccepted) {
  EXPECT_EQ(parse({"--steps=10", "--warmup-steps=10"}).warmup_steps, 10);
  EXPECT_EQ(parse({"--lr=1e-5"}).lr, 1e-5);  // below the usual --min-lr
  EXPECT_EQ(parse({"--generate=5", "--mode=forward", "--init=w.h5"}).generate,
            5);
  EXPECT_TRUE(parse({"--share-gpu", "--precision=tf32"}).share_gpu);
}

TEST(Options, NoFileThatIsReadMayBeOverwritten) {
  expect_error({"--output=a.h5", "--save-weights=./a.h5"},
               {"--save-weights", "--output", "a.h5"});
  expect_error({"--output=a.h5", "--data=x/../a.h5:/tokens"},
               {"--output", "--data", "a.h5:/tokens"});
  expect_error({"--save-weights=t.npy", "--data=t.npy"},
               {"--save-weights", "--data"});
  expect_error({"--output=w.h5", "--init=w.h5:/start"}, {"--init"});
  EXPECT_EQ(parse({"--init=w.h5", "--save-weights=w.h5"}).init, "w.h5");
}

TEST_F(OptionsFile, IsNotOverwrittenByTheOutput) {
  const std::string file = write("steps = 3\n");
  expect_error({file, "--output=" + file}, {"--output", "configuration"});
}

Words as_arguments(const Options& options) {
  Words words;
  for (const auto& [name, value] : options.entries()) {
    if (value == "true" || value == "false") {
      words.push_back("--" + name + "=" + value);
    } else {
      words.insert(words.end(), {"--" + name, value});
    }
  }
  return words;
}

// Every option away from its default.
const Words everything = {"--model-size=xl",
                          "--vocab-size=50257",
                          "--context-length=96",
                          "--d-model=48",
                          "--d-ff=100",
                          "--num-layers=3",
                          "--num-heads=4",
                          "--rope-theta=500000.5",
                          "--data=a.h5:/tokens",
                          "--validation-data=b.bin",
                          "--validation-every=11",
                          "--validation-batches=2",
                          "--sampler=sequential",
                          "--steps=12345",
                          "--batch-size=6",
                          "--grad-accumulation=5",
                          "--seed=18446744073709551615",
                          "--mode=forward-backward",
                          "--lr=0.1234567890123",
                          "--min-lr=1e-17",
                          "--warmup-steps=17",
                          "--decay-steps=18",
                          "--weight-decay=0",
                          "--decay-norms=false",
                          "--beta1=0.1",
                          "--beta2=0.3",
                          "--adam-eps=1e-12",
                          "--clip=0.7",
                          "--device=cuda",
                          "--precision=bf16",
                          "--grad-dtype=bf16",
                          "--sync=naive",
                          "--bucket-mb=1.5",
                          "--reduce-dtype=bf16",
                          "--fsdp-prefetch=3",
                          "--gemm-cache=gemm.txt",
                          "--graph=off",
                          "--recompute=block:3",
                          "--attention=naive",
                          "--local-steps=4",
                          "--timeout=30",
                          "--checkpoint=ck",
                          "--checkpoint-every=7",
                          "--keep=2",
                          "--resume=auto",
                          "--on-nonfinite=skip",
                          "--verify-every=5",
                          "--on-drift=repair",
                          "--print-world",
                          "--dry-run",
                          "--world-size=16",
                          "--share-gpu",
                          "--threads=3",
                          "--output=o.h5",
                          "--timing=sync",
                          "--warmup-iterations=2",
                          "--memory-timeline=1,3-4",
                          "--trace=2",
                          "--save-weights=w.h5",
                          "--init=i.h5:/start",
                          "--generate=9",
                          "--progress=off"};

TEST(Options, EntriesParseBackToTheSameOptions) {
  for (const Words& words : {Words{}, everything}) {
    const Options first = parse(words);
    const Options second = parse_exactly(as_arguments(first)).options;
    EXPECT_EQ(first.entries(), second.entries());
  }
  const Options o = parse_exactly(as_arguments(parse(everything))).options;
  EXPECT_EQ(o.lr, 0.1234567890123);
  EXPECT_EQ(o.seed, ~std::uint64_t{0});
  EXPECT_EQ(o.init, "i.h5:/start");
  EXPECT_EQ(o.timing, Timing::sync);
  EXPECT_EQ(o.progress, Progress::off);
  EXPECT_EQ(o.model.d_ff, 100);
  EXPECT_FALSE(o.decay_norms);
}

TEST_F(OptionsFile, TakesEntriesBackToo) {
  const Options first = parse(everything);
  std::ostringstream content;
  for (const auto& [name, value] : first.entries()) {
    content << name << " = " << value << "\n";
  }
  EXPECT_EQ(parse_exactly({write(content.str())}).options.entries(),
            first.entries());
}

TEST(Options, ASourceWithoutAFileIsLeftToWhoOpensIt) {
  EXPECT_EQ(error_of({"--data=:/"}), "accepted");
}

TEST(Options, EveryOptionDiffersFromItsDefaultInTheTestAbove) {
  const auto defaults = parse({}).entries();
  const auto given = parse(everything).entries();
  ASSERT_EQ(defaults.size(), given.size());
  EXPECT_EQ(given.size(), everything.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    EXPECT_NE(given[i].second, defaults[i].second) << given[i].first;
  }
}

TEST(Options, HelpListsEveryEntryInOrderWithinEightyColumns) {
  const std::string help = help_text(syncs);
  std::size_t position = 0;
  for (const auto& [name, value] : parse({}).entries()) {
    const std::size_t found = help.find("\n  --" + name + " ", position);
    ASSERT_NE(found, std::string::npos) << name;
    position = found;
  }
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u + 2u) << line;  // "…" is three bytes
  }
}

TEST(Options, HelpShowsDefaultsNamesAndExamples) {
  const std::string help = help_text(syncs);
  for (const std::string part :
       {"Model:", "Data:", "Run:", "Optimizer:", "System:", "Output:",
        "(=small)", "(=the last step)", "(=lr/10)", "(=grad-dtype)",
        "none or naive", "mpirun -np 8 train"}) {
    EXPECT_NE(help.find(part), std::string::npos) << part;
  }
}

TEST(OptionValues, ListsAreNumbersAndDoublingRanges) {
  std::vector<std::int64_t> field = {5};
  const OptionValue value = whole_list(field, 1, 1000);
  const auto parsed = [&](const std::string& text) {
    EXPECT_TRUE(value.set(text)) << text;
    return field;
  };
  using List = std::vector<std::int64_t>;
  EXPECT_EQ(parsed("7"), List{7});
  EXPECT_EQ(parsed("7,3"), (List{7, 3}));
  EXPECT_EQ(parsed("1,16..100"), (List{1, 16, 32, 64}));
  EXPECT_EQ(parsed("8..8"), List{8});
  for (const char* text : {"", ",", "1,", "0", "1001", "a", "4..2", "..4",
                           "4..", "1..2..3", "1 2"}) {
    EXPECT_FALSE(value.set(text)) << text;
  }
  EXPECT_EQ(field, List{8});
  EXPECT_EQ(value.get(), "8");
}

TEST(Options, HelpAndVersionNeedNothingElse) {
  EXPECT_EQ(parse_exactly({"--help"}).action, Action::help);
  EXPECT_EQ(parse_exactly({"-h"}).action, Action::help);
  EXPECT_EQ(parse_exactly({"no.cfg", "--steps=x", "--help"}).action,
            Action::help);
  EXPECT_EQ(parse_exactly({"--version"}).action, Action::version);
  EXPECT_EQ(parse_exactly({"--data=random"}).action, Action::run);
}

TEST(Nearest, CountsInsertedDroppedReplacedAndSwappedLetters) {
  constexpr std::array<std::string_view, 3> names = {"steps", "seed", "lr"};
  EXPECT_EQ(nearest("stepss", names), "steps");
  EXPECT_EQ(nearest("seeds", names), "seed");
  EXPECT_EQ(nearest("sede", names), "seed");
  EXPECT_EQ(nearest("l", names), "lr");
  EXPECT_EQ(nearest("rl", names), "lr");
}

TEST(Nearest, PrefersWhatTheNameAbbreviates) {
  constexpr std::array<std::string_view, 3> names = {"lr", "validation-data",
                                                     "decay"};
  EXPECT_EQ(nearest("val", names), "validation-data");
}

}  // namespace
}  // namespace lockstep
