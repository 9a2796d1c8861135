#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <variant>
#include <vector>

#include "record/run_record.h"

namespace lockstep {

// A cell is a name, a count or a measured number; NaN is one that could not be
// measured, shown as "-".
using Cell = std::variant<std::string, std::int64_t, double>;

struct ResultColumn {
  enum class Kind { text, whole, real };
  std::string name;   // of the field in the file, and the heading
  std::string units;  // "ms", or empty
  Kind kind = Kind::real;
  int width = 10;
  int decimals = 3;  // of a real
};

// A benchmark's results: a table that is printed line by line as it grows, and
// an HDF5 file with the same as one dataset of rows, whose columns' units are
// its attribute `units`. The file is replaced after every row, so that a
// benchmark that is stopped leaves what it had.
class ResultTable {
 public:
  // Prints the heading, and writes the file so that a path that cannot be
  // written is an Error before anything is measured. `name` is the dataset.
  // Facts go to the root's attributes, as in a run record. Only where `speaks`
  // is true is anything printed or written.
  ResultTable(std::string name, std::vector<ResultColumn> columns,
              std::string path, RunFacts facts, bool speaks,
              std::FILE* out = stdout);

  // As many cells as columns, of their kinds; `note` is printed after them and
  // is the last field in the file.
  void add(std::vector<Cell> cells, const std::string& note = "");

 private:
  void save() const;

  std::string name_;
  std::vector<ResultColumn> columns_;
  std::string path_;
  RunFacts facts_;
  bool speaks_;
  std::FILE* out_;
  std::vector<std::vector<Cell>> rows_;
  std::vector<std::string> notes_;
};

}  // namespace lockstep
