#include "data/token_source.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>

#include "core/hdf5.h"
#include "unit/files.h"
#include "unit/npy.h"

namespace lockstep {
namespace {

using test::bytes_of_value;
using test::bytes_of_values;
using test::error_of;
using test::expect_parts;
using test::npy_header;
using Tokens = std::vector<std::int64_t>;

class TokenFiles : public testing::Test {
 protected:
  std::string put(const std::string& name, const std::string& bytes) {
    test::write_file(folder_ / name, bytes);
    return folder_ / name;
  }
  // A file of `size` bytes that takes no room but for its first ones.
  std::string put_sparse(const std::string& name, const std::string& begin,
                         std::int64_t size) {
    put(name, begin);
    std::filesystem::resize_file(folder_ / name, std::uintmax_t(size));
    return folder_ / name;
  }
  static Tokens all_of(const std::string& source) {
    const auto tokens = open_token_source(source);
    EXPECT_EQ(tokens->name(), source);
    Tokens values(tokens->size());
    tokens->read(0, values);
    return values;
  }
  static std::string refusal_of(const std::string& source) {
    return error_of([&] { open_token_source(source); });
  }
  test::TemporaryFolder folder_;
};

std::string llmc_header(std::int32_t magic, std::int32_t version,
                        std::int32_t count) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return bytes_of_values(header);
}

template <class T>
std::string npy(const std::string& descr, const std::vector<T>& values,
                int format = 1, bool fortran_order = false) {
  return npy_header(descr, fmt::format("({},)", values.size()), format,
                    fortran_order) +
         bytes_of_values(values);
}

// --- what is accepted -------------------------------------------------------

TEST_F(TokenFiles, NpyOfEveryTokenTypeIsRead) {
  EXPECT_EQ(all_of(put("u1.npy", npy<std::uint8_t>("|u1", {0, 7, 255}))),
            (Tokens{0, 7, 255}));
  EXPECT_EQ(all_of(put("u2.npy", npy<std::uint16_t>("<u2", {0, 7, 65535}))),
            (Tokens{0, 7, 65535}));
  EXPECT_EQ(all_of(put("u4.npy", npy<std::uint32_t>("<u4", {7, 4294967295}))),
            (Tokens{7, 4294967295}));
  EXPECT_EQ(all_of(put("i4.npy", npy<std::int32_t>("<i4", {7, -1, 1 << 30}))),
            (Tokens{7, -1, 1 << 30}));
  EXPECT_EQ(all_of(put("i8.npy", npy<std::int64_t>("<i8", {7, 1LL << 40}))),
            (Tokens{7, 1LL << 40}));
}

TEST_F(TokenFiles, NpyOfEveryFormatAndOrderIsRead) {
  for (const int format : {1, 2, 3}) {
    for (const bool fortran_order : {false, true}) {
      EXPECT_EQ(all_of(put("x.npy", npy<std::uint16_t>("<u2", {3, 1, 2}, format,
                                                       fortran_order))),
                (Tokens{3, 1, 2}));
    }
  }
}

TEST_F(TokenFiles, BinWithoutHeaderIsUint16) {
  EXPECT_EQ(all_of(put("x.bin", bytes_of_values<std::uint16_t>({5, 65535}))),
            (Tokens{5, 65535}));
  std::vector<std::uint16_t> many(3000);
  for (int i = 0; i < 3000; ++i) many[i] = static_cast<std::uint16_t>(i);
  EXPECT_EQ(all_of(put("x.bin", bytes_of_values(many)))[2999], 2999);
}

TEST_F(TokenFiles, BinOfBothLlmcLayoutsIsRead) {
  EXPECT_EQ(all_of(put("x.bin", llmc_header(20240520, 1, 3) +
                                    bytes_of_values<std::uint16_t>({9, 8, 7}))),
            (Tokens{9, 8, 7}));
  EXPECT_EQ(
      all_of(put("x.bin", llmc_header(20240801, 7, 2) +
                              bytes_of_values<std::uint32_t>({1, 70000}))),
      (Tokens{1, 70000}));
}

TEST_F(TokenFiles, TextIsBytes) {
  EXPECT_EQ(all_of(put("x.txt", "a\n\xff")), (Tokens{97, 10, 255}));
}

TEST_F(TokenFiles, Hdf5DatasetsOfIntegersAreRead) {
  const std::string path = folder_ / "x.h5";
  {
    hdf5::File file(path, hdf5::Access::create);
    const std::vector<std::int32_t> narrow = {1, -2, 3};
    const std::vector<std::int64_t> wide = {1, 1LL << 40};
    file.create_dataset<std::int32_t>("a/narrow", {3})
        .write(std::span<const std::int32_t>(narrow));
    file.create_extendible<std::int64_t>("wide", {}, 16)
        .append(std::span<const std::int64_t>(wide));
  }
  EXPECT_EQ(all_of(path + ":/a/narrow"), (Tokens{1, -2, 3}));
  EXPECT_EQ(all_of(path + ":/wide"), (Tokens{1, 1LL << 40}));
  std::filesystem::copy_file(path, folder_ / "x.hdf5");
  EXPECT_EQ(all_of(folder_ / "x.hdf5:/a/narrow"), (Tokens{1, -2, 3}));
}

TEST_F(TokenFiles, ReadsAnyRange) {
  const auto source =
      open_token_source(put("x.npy", npy<std::uint16_t>("<u2", {5, 6, 7, 8})));
  Tokens two(2);
  source->read(2, two);
  EXPECT_EQ(two, (Tokens{7, 8}));
}

// --- what is refused --------------------------------------------------------

TEST_F(TokenFiles, NpyOfOtherTypesIsRefused) {
  expect_parts(refusal_of(put("x.npy", npy<std::uint16_t>(">u2", {1, 2}))),
               {folder_ / "x.npy", "big-endian", ">u2"});
  expect_parts(refusal_of(put("x.npy", npy<float>("<f4", {1, 2}))),
               {folder_ / "x.npy", "'f4'", "uint16"});
  expect_parts(refusal_of(put("x.npy", npy<std::uint8_t>("|b1", {1, 0}))),
               {folder_ / "x.npy", "'b1'"});
  // A type that is no token's is told first, whatever else is wrong.
  expect_parts(refusal_of(put(
                   "x.npy", npy_header("<U3", "(2,)") + std::string(24, '\0'))),
               {folder_ / "x.npy", "'U3'", "uint16"});
}

TEST_F(TokenFiles, NpyOfOtherShapesIsRefused) {
  for (const char* shape : {"()", "(2, 1)", "(1, 2)", "(-2,)"}) {
    expect_parts(refusal_of(put("x.npy", npy_header("<u2", shape) + "abcd")),
                 {folder_ / "x.npy", "shape", shape, "one axis"});
  }
}

TEST_F(TokenFiles, NpyWhoseCountIsNotItsSizeIsRefused) {
  for (const char* count :
       {"1", "3", "1000000", "4611686018427387906", "9223372036854775807"}) {
    const auto shape = fmt::format("({},)", count);
    expect_parts(refusal_of(put("x.npy", npy_header("<u2", shape) + "abcd")),
                 {folder_ / "x.npy", count, "2 bytes", "are 4 bytes"});
  }
  expect_parts(refusal_of(put("x.npy", npy_header("<u2", "(2,)") + "abc")),
               {"are 3 bytes"});
}

TEST_F(TokenFiles, NpyThatEndsEarlyIsRefused) {
  const std::string whole = npy<std::uint16_t>("<u2", {1, 2});
  expect_parts(refusal_of(put("x.npy", whole.substr(0, 40))),
               {folder_ / "x.npy", "ends inside its header"});
  expect_parts(refusal_of(put("x.npy", whole.substr(0, 8))),
               {folder_ / "x.npy", "not an .npy file"});
  expect_parts(refusal_of(put("x.npy", "")),
               {folder_ / "x.npy", "not an .npy file"});
}

TEST_F(TokenFiles, BinWithAnOddByteIsRefused) {
  expect_parts(refusal_of(put("x.bin", "abc")),
               {folder_ / "x.bin", "3 bytes", "odd", "uint16"});
  expect_parts(refusal_of(put("x.bin", std::string(4097, 'a'))),
               {folder_ / "x.bin", "4097 bytes", "odd"});
}

TEST_F(TokenFiles, BinOfUnknownLlmcVersionsIsRefused) {
  expect_parts(refusal_of(put("x.bin", llmc_header(20240520, 2, 1) + "ab")),
               {folder_ / "x.bin", "20240520", "version 2", "version 1"});
  expect_parts(refusal_of(put("x.bin", llmc_header(20240801, 1, 1) + "abcd")),
               {folder_ / "x.bin", "20240801", "version 1", "version 7"});
}

TEST_F(TokenFiles, BinWhoseLlmcCountIsNotItsSizeIsRefused) {
  for (const std::int32_t count : {0, 1, 3, -2, INT32_MAX, INT32_MIN}) {
    expect_parts(
        refusal_of(put("x.bin", llmc_header(20240520, 1, count) + "abcd")),
        {folder_ / "x.bin", fmt::format("{}", std::uint32_t(count)), "2 bytes",
         "are 4 bytes"});
  }
  expect_parts(refusal_of(put("x.bin", llmc_header(20240801, 7, 2) + "abcd")),
               {"2 tokens of 4 bytes", "are 4 bytes"});
}

TEST_F(TokenFiles, AnLlmcHeaderCutShortIsNeverTokens) {
  for (const std::int32_t magic : {20240520, 20240801}) {
    const std::string whole = llmc_header(magic, magic == 20240520 ? 1 : 7, 0);
    for (const int size : {4, 8, 12, 100, 1022}) {
      expect_parts(
          refusal_of(put("x.bin", whole.substr(0, size))),
          {folder_ / "x.bin", std::to_string(magic), "ends inside its header"});
    }
  }
}

TEST_F(TokenFiles, Uint32WithoutAHeaderIsNotReadAsUint16) {
  for (const std::uint32_t step : {7, 300}) {  // ids below and above 65536
    std::vector<std::uint32_t> ids(1000);
    for (std::uint32_t i = 0; i < 1000; ++i) ids[i] = i * step;
    expect_parts(refusal_of(put("x.bin", bytes_of_values(ids))),
                 {folder_ / "x.bin", "uint32", "uint16", "save it as .npy"});
  }
}

TEST_F(TokenFiles, Uint16WithManySmallValuesIsStillUint16) {
  std::vector<std::uint16_t> few(100), alternating(1000), sparse(1000);
  for (std::uint16_t i = 0; i < 1000; ++i) {
    if (i < 100) few[i] = i % 2 == 0 ? i : 0;  // too few to tell
    alternating[i] = i % 2 == 0 ? i % 50 : 0;  // too little varied
    sparse[i] = i == 501 ? 16 : i % 2 == 0 ? i : 0;
  }
  for (const auto& values : {few, alternating, sparse}) {
    EXPECT_EQ(all_of(put("x.bin", bytes_of_values(values))).size(),
              values.size());
  }
}

TEST_F(TokenFiles, FilesWithoutTokensAreRefused) {
  const std::string path = folder_ / "x.h5";
  hdf5::File(path, hdf5::Access::create)
      .create_extendible<std::int32_t>("none", {}, 16);
  for (const std::string& source :
       {put("x.bin", ""), put("x.txt", ""), path + ":/none",
        put("x.npy", npy<std::uint16_t>("<u2", {})),
        put("header.bin", llmc_header(20240520, 1, 0))}) {
    expect_parts(refusal_of(source), {source, "no tokens"});
  }
}

TEST_F(TokenFiles, Hdf5DatasetsOfOtherKindsAreRefused) {
  const std::string path = folder_ / "x.h5";
  {
    hdf5::File file(path, hdf5::Access::create);
    file.create_dataset<float>("real", {3});
    file.create_dataset<std::int32_t>("plane", {3, 1});
    file.create_dataset<std::int32_t>("scalar", {});
    file.create_group("group");
  }
  expect_parts(refusal_of(path + ":/real"), {path + ":/real", "float32"});
  expect_parts(refusal_of(path + ":/plane"), {path + ":/plane", "2 axes"});
  expect_parts(refusal_of(path + ":/scalar"), {path + ":/scalar", "0 axes"});
  expect_parts(refusal_of(path + ":/group"), {path + ":/group"});
  expect_parts(refusal_of(path + ":/none"), {path + ":/none"});
  expect_parts(refusal_of(folder_ / "none.h5:/x"),
               {folder_ / "none.h5", "No such file"});
  expect_parts(refusal_of(put("text.h5", "text") + ":/x"),
               {folder_ / "text.h5"});
}

TEST_F(TokenFiles, OtherNamesAreRefusedWithThoseKnown) {
  for (const char* name : {"x", "x.csv", "x.NPY", "x.npy.gz", "x.h5", ""}) {
    expect_parts(refusal_of(folder_ / name),
                 {folder_ / name, "FILE.npy", "FILE.bin", "FILE.txt",
                  "FILE.h5:/path/to/dataset"});
  }
}

TEST_F(TokenFiles, WhatIsNoRegularFileIsRefused) {
  for (const char* name : {"x.npy", "x.bin", "x.txt"}) {
    expect_parts(refusal_of(folder_ / name), {folder_ / name, "No such file"});
    std::filesystem::create_directory(folder_ / name);
    expect_parts(refusal_of(folder_ / name),
                 {folder_ / name, "not a regular file"});
  }
  std::filesystem::create_directory(folder_ / "x.h5");
  expect_parts(refusal_of(folder_ / "x.h5:/x"),
               {folder_ / "x.h5", "not a regular file"});
  const std::string pipe = folder_ / "pipe.bin";  // nobody ever writes to it
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_parts(refusal_of(pipe), {pipe, "not a regular file"});
}

// --- ids outside the vocabulary ---------------------------------------------

std::string check_of(const std::string& source, std::int64_t vocabulary) {
  const auto tokens = open_token_source(source);
  return error_of(
      [&] { check_tokens(*tokens, 0, tokens->size(), vocabulary); });
}

TEST_F(TokenFiles, ATokenOutsideTheVocabularyIsNamed) {
  const std::string i8 = put("x.npy", npy<std::int64_t>("<i8", {1, 2, -3, 99}));
  expect_parts(check_of(i8, 64), {i8, "token 2 is -3", "vocabulary of 64"});
  const std::string u4 = put("y.npy", npy<std::uint32_t>("<u4", {1, 70000}));
  expect_parts(check_of(u4, 65536), {u4, "token 1 is 70000"});
  expect_parts(check_of(u4, 70000), {u4, "token 1 is 70000"});
  EXPECT_EQ(check_of(u4, 70001), "");
  EXPECT_EQ(check_of(u4, 100000), "");
  const std::string u2 = put("z.bin", bytes_of_values<std::uint16_t>({64, 3}));
  expect_parts(check_of(u2, 64), {u2, "token 0 is 64"});
  EXPECT_EQ(check_of(u2, 65), "");
}

TEST_F(TokenFiles, OnlyTheRangeAskedForIsChecked) {
  const auto source =
      open_token_source(put("x.npy", npy<std::uint16_t>("<u2", {9, 1, 2, 9})));
  EXPECT_NO_THROW(check_tokens(*source, 1, 3, 5));
  EXPECT_NO_THROW(check_tokens(*source, 2, 2, 5));
  expect_parts(error_of([&] { check_tokens(*source, 1, 4, 5); }),
               {"token 3 is 9"});
  const Tokens read = {1, 2, 9};
  expect_parts(error_of([&] { check_tokens(*source, 1, read, 5); }),
               {"token 3 is 9"});
}

TEST_F(TokenFiles, OnlyTypesThatCanExceedTheVocabularyAreChecked) {
  const auto can = [&](const std::string& source, std::int64_t vocabulary) {
    return open_token_source(source)->can_exceed(vocabulary);
  };
  const std::string u1 = put("x.txt", "a"), u2 = put("x.bin", "ab");
  EXPECT_TRUE(can(u1, 255));
  EXPECT_FALSE(can(u1, 256));
  EXPECT_TRUE(can(u2, 65535));
  EXPECT_FALSE(can(u2, 65536));
  const std::string u4 = put("u4.npy", npy<std::uint32_t>("<u4", {1}));
  EXPECT_TRUE(can(u4, (1LL << 32) - 1));
  EXPECT_FALSE(can(u4, 1LL << 32));
  for (const auto& [type, bytes] : {std::pair("<i4", 4), std::pair("<i8", 8)}) {
    const std::string path =
        put("i.npy", npy_header(type, "(1,)") + std::string(bytes, '\0'));
    EXPECT_TRUE(can(path, INT64_MAX));
  }
  const std::string h5 = folder_ / "x.h5";
  hdf5::File(h5, hdf5::Access::create).create_dataset<std::int32_t>("x", {1});
  EXPECT_TRUE(can(h5 + ":/x", INT64_MAX));
}

// --- more than 2³¹ ----------------------------------------------------------

// Pages of this process in memory that belong to files or are its own, in MiB.
double resident_mib() {
  std::ifstream figures("/proc/self/statm");
  std::int64_t whole = 0, resident = 0;
  figures >> whole >> resident;
  return double(resident) * double(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

constexpr std::int64_t many = 2'200'000'000;

TEST_F(TokenFiles, ATokenIsFoundBeyondTwoToThe31) {
  const std::int64_t at = 2'199'999'000;
  const std::string header = npy_header("<u2", fmt::format("({},)", many));
  const std::string bin = put_sparse("x.bin", "", 2 * many);
  const std::string npy =
      put_sparse("x.npy", header, std::ssize(header) + 2 * many);
  test::write_at(bin, 2 * at, bytes_of_value(std::uint16_t{60000}));
  test::write_at(npy, std::ssize(header) + 2 * at,
                 bytes_of_value(std::uint16_t{60000}));
  for (const std::string& path : {bin, npy}) {
    const double before = resident_mib();
    const auto source = open_token_source(path);
    ASSERT_EQ(source->size(), many);
    EXPECT_LT(resident_mib() - before, 8) << "opening reads the file";
    // From just before 2³¹ on: 52 million tokens.
    expect_parts(
        error_of([&] { check_tokens(*source, (1LL << 31) - 1000, many, 64); }),
        {path, fmt::format("token {} is 60000", at)});
    EXPECT_LT(resident_mib() - before, 64) << "checking keeps the file";
    Tokens one(1);
    source->read(at, one);
    EXPECT_EQ(one[0], 60000);
  }
}

TEST_F(TokenFiles, CheckingALargeFileKeepsNoneOfIt) {
  const std::int64_t count = 1'200'000'000, at = 1'100'000'000;
  const std::string path = put_sparse(
      "x.bin", llmc_header(20240520, 1, std::int32_t(count)), 1024 + 2 * count);
  test::write_at(path, 1024 + 2 * at, bytes_of_value(std::uint16_t{60000}));
  const double before = resident_mib();
  const auto source = open_token_source(path);
  expect_parts(
      error_of([&] { check_tokens(*source, 1'000'000'000, count, 64); }),
      {path, "token 1100000000 is 60000"});
  EXPECT_LT(resident_mib() - before, 64);
}

TEST_F(TokenFiles, Hdf5IsReadBeyondTwoToThe31) {
  const std::string path = folder_ / "x.h5";
  hdf5::File(path, hdf5::Access::create)
      .create_dataset<std::int32_t>("x", {many});  // takes no room on disk
  const auto source = open_token_source(path + ":/x");
  EXPECT_EQ(source->size(), many);
  Tokens last(3, -1);
  source->read(many - 3, last);
  EXPECT_EQ(last, (Tokens{0, 0, 0}));
  EXPECT_NE(error_of([&] { source->read(many - 2, last); }), "");
}

}  // namespace
}  // namespace lockstep
