#include "core/hdf5.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/atomic_file.h"
#include "unit/files.h"

// The layer makes no links to other files; here HDF5 itself does.
extern "C" {
std::int64_t H5Fopen(const char* name, unsigned flags, std::int64_t access);
int H5Fclose(std::int64_t file);
int H5Lcreate_external(const char* file, const char* object, std::int64_t at,
                       const char* link, std::int64_t, std::int64_t);
int H5Lcreate_soft(const char* target, std::int64_t at, const char* link,
                   std::int64_t, std::int64_t);
}

namespace lockstep::hdf5 {
namespace {

using test::error_of;
using test::expect_parts;

class Hdf5 : public testing::Test {
 protected:
  test::TemporaryFolder folder_;
  const std::string path_ = folder_ / "file.h5";
};

template <class T>
void expect_round_trip(Group& file, const std::string& name,
                       const std::vector<T>& values) {
  file.create_dataset<T>(name, {2, std::ssize(values) / 2})
      .write(std::span<const T>(values));
  EXPECT_EQ(file.dataset(name).read<T>(), values) << name;
}

TEST_F(Hdf5, ReadsBackEveryTypeItWrites) {
  File file(path_, Access::create);
  expect_round_trip<double>(file, "a/b/f64", {1.5, -2e300, 0.1, 0});
  expect_round_trip<float>(file, "f32", {1.5f, -2e30f, 0.1f, 0});
  expect_round_trip<std::int64_t>(file, "i64", {1, -(1LL << 62), 0, 7});
  expect_round_trip<std::int32_t>(file, "i32", {1, -2'000'000'000, 0, 7});
  EXPECT_EQ(file.dataset("/a/b/f64").shape(),
            (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(file.dataset("i32").read<double>(),
            (std::vector<double>{1, -2e9, 0, 7}));
}

TEST_F(Hdf5, KeepsWhatItWroteInTheFile) {
  {
    File file(path_, Access::create);
    const std::vector<float> values = {1, 2, 3};
    file.create_dataset<float>("x", {3}).write(std::span<const float>(values));
  }
  EXPECT_EQ(File(path_, Access::read).dataset("x").read<float>(),
            (std::vector<float>{1, 2, 3}));
  File(path_, Access::create).create_group("new");  // replaces it
  EXPECT_FALSE(File(path_, Access::read).has("x"));
  EXPECT_TRUE(File(path_, Access::read).has("new"));
}

TEST_F(Hdf5, SaysHowValuesAreStored) {
  File file(path_, Access::create);
  const auto i32 = file.create_dataset<std::int32_t>("i32", {1}).storage();
  EXPECT_TRUE(i32.integer && i32.is_signed);
  EXPECT_EQ(i32.bytes, 4);
  EXPECT_EQ(i32.text, "int32");
  const auto f64 = file.create_dataset<double>("f64", {1}).storage();
  EXPECT_FALSE(f64.integer);
  EXPECT_EQ(f64.text, "float64");
}

TEST_F(Hdf5, ReadsBackAttributes) {
  File file(path_, Access::create);
  std::vector<std::string> several(9000, "host");  // more than 64 KiB
  several[1] = "";
  several[2] = "drei ü";
  file.set_attribute("text", "spam\neggs ü");
  file.set_attribute("empty", "");
  file.set_attribute("real", 0.1);
  file.set_attribute("integer", std::int64_t{1} << 53);
  file.set_attribute("texts", several);
  file.set_attribute("no texts", std::vector<std::string>{});
  EXPECT_EQ(file.attribute<std::string>("text"), "spam\neggs ü");
  EXPECT_EQ(file.attribute<std::string>("empty"), "");
  EXPECT_EQ(file.attribute<double>("real"), 0.1);
  EXPECT_EQ(file.attribute<std::int64_t>("integer"), std::int64_t{1} << 53);
  EXPECT_EQ(file.attribute<double>("integer"), 0x1p53);
  EXPECT_EQ(file.attribute<std::vector<std::string>>("texts"), several);
  EXPECT_TRUE(file.attribute<std::vector<std::string>>("no texts").empty());
  file.set_attribute("text", "shorter");
  EXPECT_EQ(file.attribute<std::string>("text"), "shorter");
  EXPECT_TRUE(file.has_attribute("real"));
  EXPECT_FALSE(file.has_attribute("unreal"));
}

TEST_F(Hdf5, RefusesAnAttributeOfAnotherKind) {
  File file(path_, Access::create);
  file.set_attribute("texts", std::vector<std::string>{"a", "b"});
  file.set_attribute("real", 1.5);
  file.set_attribute("text", "a");
  expect_parts(error_of([&] { file.attribute<std::string>("texts"); }),
               {path_, "'texts'", "not one text"});
  expect_parts(error_of([&] { file.attribute<std::string>("real"); }),
               {path_, "'real'", "not text"});
  EXPECT_EQ(file.attribute<std::vector<std::string>>("text"),
            (std::vector<std::string>{"a"}));
  expect_parts(error_of([&] { file.attribute<double>("text"); }),
               {path_, "'text'"});
  expect_parts(error_of([&] { file.attribute<double>("missing"); }),
               {path_, "'missing'"});
}

TEST_F(Hdf5, ReadsBooleansOfH5py) {
  const File file(LOCKSTEP_REFERENCE, Access::read);
  const Group cases = file.group("attention");
  int causal = 0, full = 0;
  for (const Child& child : cases.children()) {
    const Group group = cases.group(child.name);
    const auto value = group.attribute<std::int64_t>("causal");
    EXPECT_TRUE(value == 0 || value == 1) << child.name << ' ' << value;
    EXPECT_EQ(group.attribute<double>("causal"), double(value));
    ++(value != 0 ? causal : full);
  }
  EXPECT_GT(causal, 0);
  EXPECT_GT(full, 0);
}

TEST_F(Hdf5, GrowsAlongTheFirstAxis) {
  File file(path_, Access::create);
  auto line = file.create_extendible<std::int64_t>("line", {}, 4);
  auto rows = file.create_extendible<double>("a/rows", {3}, 2);
  EXPECT_EQ(line.shape(), (std::vector<std::int64_t>{0}));
  EXPECT_EQ(rows.shape(), (std::vector<std::int64_t>{0, 3}));
  std::vector<std::int64_t> numbers;
  std::vector<double> reals;
  for (int i = 0; i < 11; ++i) {
    const std::vector<std::int64_t> more = {2 * i, 2 * i + 1};
    const std::vector<double> row = {i + 0.1, i + 0.2, i + 0.3};
    line.append(std::span<const std::int64_t>(more));
    rows.append(std::span<const double>(row));
    numbers.insert(numbers.end(), more.begin(), more.end());
    reals.insert(reals.end(), row.begin(), row.end());
  }
  line.append(std::span<const std::int64_t>());
  EXPECT_EQ(line.read<std::int64_t>(), numbers);
  EXPECT_EQ(rows.read<double>(), reals);
  EXPECT_EQ(rows.shape(), (std::vector<std::int64_t>{11, 3}));
}

TEST_F(Hdf5, AppendsWholeRowsToWhatCanGrow) {
  File file(path_, Access::create);
  const std::vector<double> four = {1, 2, 3, 4};
  auto rows = file.create_extendible<double>("rows", {3}, 2);
  expect_parts(error_of([&] { rows.append(std::span<const double>(four)); }),
               {path_, "rows", "4 values", "no whole rows"});
  auto fixed = file.create_dataset<double>("fixed", {4});
  expect_parts(error_of([&] { fixed.append(std::span<const double>(four)); }),
               {path_, "fixed", "extend"});
  auto scalar = file.create_dataset<double>("scalar", {});
  expect_parts(error_of([&] { scalar.append(std::span<const double>(four)); }),
               {path_, "scalar", "no rows"});
  expect_parts(error_of([&] { rows.write(std::span<const double>(four)); }),
               {path_, "rows", "4 values"});
}

TEST_F(Hdf5, ReadsARangeOfOneAxis) {
  File file(path_, Access::create);
  std::vector<std::int32_t> numbers(1000);
  std::iota(numbers.begin(), numbers.end(), 0);
  auto dataset = file.create_extendible<std::int32_t>("x", {}, 64);
  dataset.append(std::span<const std::int32_t>(numbers));
  std::vector<std::int64_t> out(100);
  dataset.read(900, std::span(out));
  EXPECT_EQ(out.front(), 900);
  EXPECT_EQ(out.back(), 999);
  dataset.read(63, std::span(out).first(2));
  EXPECT_EQ(out[0], 63);
  EXPECT_EQ(out[1], 64);
  dataset.read(5, std::span(out).first(0));
  expect_parts(error_of([&] { dataset.read(901, std::span(out)); }),
               {path_, "x", "elements 901 to 1001 of 1000"});
  EXPECT_NE(error_of([&] { dataset.read(-1, std::span(out)); }), "");
  auto plane = file.create_dataset<std::int32_t>("plane", {10, 10});
  expect_parts(error_of([&] { plane.read(0, std::span(out)); }),
               {path_, "plane", "not one axis"});
}

TEST_F(Hdf5, ListsWhatAGroupHolds) {
  File file(path_, Access::create);
  file.create_group("b");
  file.create_dataset<float>("c", {1});
  file.create_dataset<float>("a/deeper", {1});
  const auto children = file.children();
  ASSERT_EQ(children.size(), 3u);
  EXPECT_EQ(children[0].name, "a");
  EXPECT_EQ(children[0].kind, Child::Kind::group);
  EXPECT_EQ(children[1].name, "b");
  EXPECT_EQ(children[2].name, "c");
  EXPECT_TRUE(children[2].is_dataset());
  EXPECT_TRUE(file.has("/a/deeper"));
  EXPECT_TRUE(file.has("a"));
  EXPECT_FALSE(file.has("a/shallower"));
  EXPECT_FALSE(file.has("x/y/z"));
}

TEST_F(Hdf5, NamesFileAndObjectThatAreMissing) {
  expect_parts(error_of([&] { File(path_, Access::read); }),
               {path_, "No such file"});
  File file(path_, Access::create);
  file.create_group("group");
  file.create_dataset<float>("data", {1});
  expect_parts(error_of([&] { file.dataset("group/x"); }), {path_, "group/x"});
  expect_parts(error_of([&] { file.group("none"); }), {path_, "none"});
  expect_parts(error_of([&] { file.group("group").dataset("y"); }),
               {path_ + ":/group/y"});
  expect_parts(error_of([&] { file.dataset("group"); }), {path_, "group"});
  expect_parts(error_of([&] { file.group("data"); }), {path_, "data"});
  expect_parts(error_of([&] { file.create_group("data"); }), {path_, "data"});
}

TEST_F(Hdf5, RefusesFilesThatAreNotHdf5) {
  for (const std::string& bytes :
       {std::string(), std::string("text\n"), std::string(5000, 'x'),
        "\x89HDF\r\n\x1a\n" + std::string(2000, '\xff')}) {
    test::write_file(path_, bytes);
    expect_parts(error_of([&] { File(path_, Access::read); }),
                 {"cannot open", path_});
  }
  expect_parts(error_of([&] { File(folder_.path().string(), Access::read); }),
               {"cannot open", folder_.path().string()});
  expect_parts(
      error_of([&] { File(folder_ / "none/file.h5", Access::create); }),
      {"cannot create", folder_ / "none/file.h5"});
}

TEST_F(Hdf5, RefusesAFileThatWasCutShort) {
  {
    File file(path_, Access::create);
    const std::vector<double> values(10'000, 1.0);
    file.create_dataset<double>("x", {10'000})
        .write(std::span<const double>(values));
  }
  std::filesystem::resize_file(path_, 5000);
  expect_parts(error_of([&] { File(path_, Access::read); }), {path_});
}

TEST_F(Hdf5, FollowsNoLinkOutOfTheFile) {
  const std::string other = folder_ / "other.h5";
  File(other, Access::create).create_dataset<float>("group/x", {1});
  File(path_, Access::create).create_group("inside");
  const std::int64_t file = H5Fopen(path_.c_str(), 1, 0);
  ASSERT_GE(H5Lcreate_external("other.h5", "/group", file, "out", 0, 0), 0);
  ASSERT_GE(H5Lcreate_external("other.h5", "/group/x", file, "data", 0, 0), 0);
  ASSERT_GE(H5Lcreate_soft("/out", file, "detour", 0, 0), 0);
  ASSERT_GE(H5Lcreate_soft("/inside", file, "shortcut", 0, 0), 0);
  H5Fclose(file);

  const File read(path_, Access::read);
  expect_parts(error_of([&] { read.group("out"); }),
               {path_ + ":/out", "other.h5", "to another file"});
  expect_parts(error_of([&] { read.dataset("out/x"); }),
               {path_ + ":/out", "other.h5", "to another file"});
  expect_parts(error_of([&] { read.dataset("data"); }),
               {path_ + ":/data", "to another file"});
  expect_parts(error_of([&] { read.group("detour"); }),
               {path_, "detour", "to another file"});
  expect_parts(error_of([&] { read.dataset("detour/x"); }),
               {path_, "detour", "to another file"});
  EXPECT_FALSE(read.has("out/x"));
  EXPECT_FALSE(read.has("detour/x"));
  EXPECT_NO_THROW(read.group("shortcut"));
  for (const Child& child : read.children()) {
    EXPECT_EQ(child.kind,
              child.name == "inside" ? Child::Kind::group : Child::Kind::other);
  }
}

TEST_F(Hdf5, TheBytesOfAFileInMemoryAreAFile) {
  test::write_file(path_, "not touched");
  File memory(path_, Access::in_memory);
  auto rows = memory.create_extendible<double>("rows", {}, 8);
  for (int flush = 1; flush <= 3; ++flush) {
    const double value = flush;
    rows.append(std::span(&value, 1));
    const std::string copy = folder_ / "copy.h5";
    test::write_file(copy, memory.bytes());
    EXPECT_EQ(File(copy, Access::read).dataset("rows").read<double>().size(),
              std::size_t(flush));
  }
  EXPECT_EQ(std::filesystem::file_size(path_), 11u);
  expect_parts(error_of([&] { memory.dataset("none"); }), {path_ + ":/none"});
}

TEST(AtomicFile, ReplacesAWholeFileOrNone) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "file";
  const std::vector<std::byte> bytes(100'000, std::byte{7});
  replace_file(path, bytes);
  EXPECT_EQ(std::filesystem::file_size(path), 100'000u);
  replace_file(path, std::span(bytes).first(5));
  EXPECT_EQ(std::filesystem::file_size(path), 5u);
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));

  std::filesystem::create_directory(folder / "taken");
  expect_parts(error_of([&] { replace_file(folder / "taken", bytes); }),
               {"cannot write", folder / "taken", "directory"});
  EXPECT_FALSE(
      std::filesystem::exists(std::string(folder / "taken") + ".partial"));
  expect_parts(error_of([&] { replace_file(folder / "none/file", bytes); }),
               {"cannot write", folder / "none/file", "No such file"});
}

TEST(AtomicFile, ChecksAPathWithoutLeavingATrace) {
  const test::TemporaryFolder folder;
  EXPECT_NO_THROW(check_writable(folder / "new", "notes"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  expect_parts(error_of([&] { check_writable(folder / "no/new", "notes"); }),
               {"cannot write notes to", folder / "no/new", "No such file"});
  for (const std::string& path :
       {std::string("/dev/null"), std::string("/dev/full"),
        folder.path().string()}) {
    expect_parts(error_of([&] { check_writable(path, "notes"); }),
                 {"cannot write notes to", path, "not a regular file"});
  }
}

}  // namespace
}  // namespace lockstep::hdf5
