#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/hdf5.h"
#include "data/token_source.h"
#include "unit/files.h"

// Files as other programs make them, with what the layer itself never writes;
// here HDF5 itself does.
extern "C" {
extern std::int64_t H5P_CLS_DATASET_CREATE_ID_g;
extern std::int64_t H5T_STD_U16LE_g, H5T_STD_U32BE_g, H5T_STD_U64LE_g;
extern std::int64_t H5T_NATIVE_LLONG_g;
int H5open();
std::int64_t H5Fopen(const char* name, unsigned flags, std::int64_t access);
int H5Fclose(std::int64_t file);
std::int64_t H5Pcreate(std::int64_t property_class);
int H5Pset_external(std::int64_t properties, const char* file, off_t offset,
                    unsigned long long bytes);
int H5Pset_virtual(std::int64_t properties, std::int64_t space,
                   const char* file, const char* dataset, std::int64_t from);
std::int64_t H5Screate_simple(int rank, const unsigned long long* extents,
                              const unsigned long long* limits);
std::int64_t H5Dcreate2(std::int64_t at, const char* name, std::int64_t type,
                        std::int64_t space, std::int64_t, std::int64_t creation,
                        std::int64_t access);
int H5Dwrite(std::int64_t dataset, std::int64_t type, std::int64_t memory,
             std::int64_t space, std::int64_t transfer, const void* values);
int H5Dclose(std::int64_t dataset);
}

namespace lockstep {
namespace {

using test::error_of;
using test::expect_parts;
using Tokens = std::vector<std::int64_t>;

class ForeignHdf5 : public testing::Test {
 protected:
  ForeignHdf5() {
    hdf5::File(path_, hdf5::Access::create);
    H5open();
    constexpr unsigned for_writing = 1;
    file_ = H5Fopen(path_.c_str(), for_writing, 0);
  }
  // A dataset of four values.
  void create(const char* name, std::int64_t type, std::int64_t properties = 0,
              const Tokens& values = {}) {
    const std::int64_t dataset =
        H5Dcreate2(file_, name, type, space_, 0, properties, 0);
    ASSERT_GE(dataset, 0) << name;
    if (!values.empty()) {
      ASSERT_GE(H5Dwrite(dataset, H5T_NATIVE_LLONG_g, 0, 0, 0, values.data()),
                0);
    }
    H5Dclose(dataset);
  }
  Tokens tokens_of(const std::string& name) {
    const auto source = open_token_source(path_ + ":/" + name);
    Tokens values(source->size());
    source->read(0, values);
    return values;
  }

  test::TemporaryFolder folder_;
  const std::string path_ = folder_ / "file.h5";
  std::int64_t file_ = -1;
  const unsigned long long four_ = 4;
  std::int64_t space_ = H5Screate_simple(1, &four_, nullptr);
};

TEST_F(ForeignHdf5, IntegersOfAnyByteOrderAreRead) {
  create("u2", H5T_STD_U16LE_g, 0, {1, 2, 3, 65535});
  create("big", H5T_STD_U32BE_g, 0, {1, 2, 3, 4294967295});
  H5Fclose(file_);
  EXPECT_EQ(tokens_of("u2"), (Tokens{1, 2, 3, 65535}));
  EXPECT_EQ(tokens_of("big"), (Tokens{1, 2, 3, 4294967295}));
  const hdf5::File file(path_, hdf5::Access::read);
  EXPECT_EQ(file.dataset("u2").storage().text, "uint16");
  EXPECT_EQ(file.dataset("big").storage().bytes, 4);
  EXPECT_FALSE(file.dataset("big").storage().is_signed);
}

TEST_F(ForeignHdf5, ValuesBeyondInt64AreNoTokens) {
  create("u8", H5T_STD_U64LE_g, 0, {1, 2, 3, 4});
  const std::int64_t dataset =
      H5Dcreate2(file_, "large", H5T_STD_U64LE_g, space_, 0, 0, 0);
  const std::uint64_t values[] = {1, 2, ~std::uint64_t{0}, 4};
  H5Dwrite(dataset, H5T_STD_U64LE_g, 0, 0, 0, values);
  H5Dclose(dataset);
  H5Fclose(file_);
  EXPECT_EQ(tokens_of("u8"), (Tokens{1, 2, 3, 4}));
  const auto large = open_token_source(path_ + ":/large");
  expect_parts(error_of([&] { check_tokens(*large, 0, 4, 100); }),
               {path_ + ":/large", "token 2 is"});
}

TEST_F(ForeignHdf5, ValuesThatLieInOtherFilesAreRefused) {
  test::write_file(folder_ / "secret", "12345678");
  const std::int64_t elsewhere = H5Pcreate(H5P_CLS_DATASET_CREATE_ID_g);
  ASSERT_GE(H5Pset_external(elsewhere, (folder_ / "secret").c_str(), 0, 8), 0);
  create("external", H5T_STD_U16LE_g, elsewhere);

  hdf5::File(folder_ / "other.h5", hdf5::Access::create)
      .create_dataset<std::int32_t>("x", {4});
  const std::int64_t view = H5Pcreate(H5P_CLS_DATASET_CREATE_ID_g);
  ASSERT_GE(H5Pset_virtual(view, space_, "other.h5", "x", space_), 0);
  create("virtual", H5T_STD_U16LE_g, view);
  H5Fclose(file_);

  const hdf5::File file(path_, hdf5::Access::read);
  for (const char* name : {"external", "virtual"}) {
    expect_parts(error_of([&] { file.dataset(name); }),
                 {path_, name, "other files"});
  }
}

TEST_F(ForeignHdf5, ADatasetLargerThanMemoryIsAnErrorAndNoCrash) {
  const unsigned long long elements = 1ull << 60;
  // Without values it takes no room in the file.
  space_ = H5Screate_simple(1, &elements, nullptr);
  create("huge", H5T_STD_U16LE_g);
  H5Fclose(file_);
  const hdf5::File file(path_, hdf5::Access::read);
  expect_parts(error_of([&] { file.dataset("huge").read<double>(); }),
               {path_, "huge", "1152921504606846976", "memory"});
}

TEST_F(ForeignHdf5, APipeIsRefusedAndNotWaitedFor) {
  H5Fclose(file_);
  const std::string pipe = folder_ / "pipe.h5";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_parts(error_of([&] { hdf5::File(pipe, hdf5::Access::read); }),
               {"cannot open", pipe, "not a regular file"});
}

TEST_F(ForeignHdf5, AFileThatSomeoneWritesIsRefusedWithThatReason) {
  H5Fclose(file_);
  const int writer = open(path_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(writer, LOCK_EX), 0);  // as HDF5 does for a writer
  expect_parts(error_of([&] { hdf5::File(path_, hdf5::Access::read); }),
               {"cannot open", path_, "open for writing"});
  close(writer);
  EXPECT_NO_THROW(hdf5::File(path_, hdf5::Access::read));
}

}  // namespace
}  // namespace lockstep
