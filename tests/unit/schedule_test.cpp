#include "optim/schedule.h"

#include <gtest/gtest.h>

#include "core/hdf5.h"

namespace lockstep {
namespace {

TEST(Schedule, EqualsTheReferenceOfEveryTrainingCase) {
  const hdf5::File file(LOCKSTEP_REFERENCE, hdf5::Access::read);
  for (const char* name : {"test", "odd", "head80"}) {
    const auto group = file.group(std::string("training/") + name);
    const auto expected = group.dataset("lr").read<double>();
    const CosineSchedule schedule{
        group.attribute<double>("lr_max"), group.attribute<double>("lr_min"),
        static_cast<std::int64_t>(group.attribute<double>("warmup_steps")),
        static_cast<std::int64_t>(group.attribute<double>("cosine_steps"))};
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(schedule.at(static_cast<std::int64_t>(i) + 1), expected[i],
                  1e-15);
    }
  }
}

TEST(Schedule, WarmsUpPeaksDecaysAndStays) {
  const CosineSchedule schedule{1.0, 0.1, 4, 10};
  EXPECT_DOUBLE_EQ(schedule.at(1), 0.25);
  EXPECT_DOUBLE_EQ(schedule.at(3), 0.75);
  EXPECT_DOUBLE_EQ(schedule.at(4), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(7), 0.55);
  EXPECT_DOUBLE_EQ(schedule.at(10), 0.1);
  EXPECT_DOUBLE_EQ(schedule.at(1000), 0.1);
}

TEST(Schedule, TakesNoWarmUpAndAllWarmUp) {
  const CosineSchedule none{1.0, 0.0, 0, 2};
  EXPECT_DOUBLE_EQ(none.at(1), 0.5);
  const CosineSchedule all{1.0, 0.0, 3, 3};
  EXPECT_DOUBLE_EQ(all.at(2), 2.0 / 3.0);
  EXPECT_DOUBLE_EQ(all.at(3), 0.0);
}

}  // namespace
}  // namespace lockstep
