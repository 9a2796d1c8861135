#include "data/npy_header.h"

#include <gtest/gtest.h>

#include "unit/files.h"
#include "unit/npy.h"

namespace lockstep {
namespace {

using test::error_of;
using test::expect_parts;
using test::npy_header;

std::string refusal_of(const std::string& bytes) {
  return error_of([&] { parse_npy_header(bytes, "x.npy"); });
}
std::string dictionary(const std::string& descr, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape +
         ", }";
}

TEST(NpyHeader, ReadsEveryFormat) {
  for (const int format : {1, 2, 3}) {
    const std::string bytes = npy_header("<u2", "(123,)", format);
    ASSERT_EQ(bytes.size() % 64, 0u);
    const NpyHeader header = parse_npy_header(bytes + "data", "x.npy");
    EXPECT_EQ(header.type, "u2");
    EXPECT_EQ(header.item_bytes, 2);
    EXPECT_EQ(header.count, 123);
    EXPECT_EQ(header.data_offset, std::ssize(bytes));
  }
}

TEST(NpyHeader, ReadsEveryByteOrderButBig) {
  for (const char* descr : {"|u1", "<u1", "=u1"}) {
    EXPECT_EQ(parse_npy_header(npy_header(descr, "(1,)"), "x").type, "u1");
  }
  for (const char* descr : {">u2", ">i8"}) {
    expect_parts(refusal_of(npy_header(descr, "(1,)")),
                 {"x.npy", "big-endian", descr});
  }
}

TEST(NpyHeader, ReadsKeysInAnyOrder) {
  const NpyHeader header = parse_npy_header(
      test::npy_with("{'shape': (7,), 'fortran_order': True, 'descr':'<i8'}"),
      "x.npy");
  EXPECT_EQ(header.count, 7);
  EXPECT_EQ(header.type, "i8");
}

TEST(NpyHeader, CountsUpToTheLargestInteger) {
  EXPECT_EQ(
      parse_npy_header(npy_header("<u2", "(9223372036854775807,)"), "x").count,
      INT64_MAX);
  EXPECT_EQ(parse_npy_header(npy_header("<u2", "(0,)"), "x").count, 0);
}

TEST(NpyHeader, SaysWhichShapeIsNotOneAxis) {
  for (const char* shape : {"()", "(5, 1)", "(2, 3, 4)", "(-5,)", "(5)", "(x,)",
                            "(99999999999999999999,)", "(0x10,)", "(5.0,)"}) {
    expect_parts(refusal_of(npy_header("<u2", shape)),
                 {"x.npy", fmt::format("shape {}", shape), "one axis"});
  }
}

TEST(NpyHeader, SaysWhichTypeIsNone) {
  for (const char* descr : {"<M8[ns]", "u2", "<U10", "", "<"}) {
    expect_parts(refusal_of(npy_header(descr, "(1,)")),
                 {"x.npy", fmt::format("'{}'", descr)});
  }
  expect_parts(refusal_of(test::npy_with(
                   dictionary("[('a', '<i4'), ('b', '<f8')]", "(3,)"))),
               {"x.npy", "[('a'"});
}

TEST(NpyHeader, QuotesLittleOfWhatItFinds) {
  const std::string garbage = "a\nb\x1b[31m" + std::string(50'000, 'z');
  for (const std::string& bytes :
       {test::npy_with(dictionary("'" + garbage + "'", "(1,)"), 2),
        test::npy_with(dictionary("'<u2'", "(" + garbage + ")"), 2)}) {
    const std::string text = refusal_of(bytes);
    expect_parts(text, {"x.npy", "a?b?[31mzzz"});
    EXPECT_LT(text.size(), 200u);
  }
}

TEST(NpyHeader, RefusesWhatIsNotOne) {
  expect_parts(refusal_of(""), {"x.npy", "not an .npy file"});
  expect_parts(refusal_of("\x93NUMPY"), {"x.npy", "not an .npy file"});
  expect_parts(refusal_of(std::string(1000, 'x')),
               {"x.npy", "not an .npy file"});
  std::string bytes = npy_header("<u2", "(1,)");
  for (const int format : {0, 4, 255}) {
    bytes[6] = static_cast<char>(format);
    expect_parts(refusal_of(bytes), {"format " + std::to_string(format)});
  }
}

TEST(NpyHeader, RefusesAHeaderThatIsCutShort) {
  for (const int format : {1, 2}) {
    const std::string bytes = npy_header("<u2", "(123,)", format);
    for (std::size_t size = 10; size < bytes.size(); size += 7) {
      expect_parts(refusal_of(bytes.substr(0, size)),
                   {"x.npy", "ends inside its header"});
    }
  }
  std::string bytes = npy_header("<u2", "(123,)", 2);
  bytes.replace(8, 4, "\xff\xff\xff\xff");
  expect_parts(refusal_of(bytes), {"ends inside its header"});
}

TEST(NpyHeader, RefusesADictionaryThatDoesNotParse) {
  expect_parts(refusal_of(test::npy_with("{'descr': '<u2'}")), {"'shape'"});
  expect_parts(refusal_of(test::npy_with("{'shape': (1,)}")), {"'descr'"});
  for (const char* text : {"{'descr'", "{'descr':", "{'descr': '<u2",
                           "{'descr': '<u2', 'shape': (12"}) {
    expect_parts(refusal_of(test::npy_with(text)), {"does not parse"});
  }
}

}  // namespace
}  // namespace lockstep
