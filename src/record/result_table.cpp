#include "record/result_table.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "core/atomic_file.h"
#include "core/error.h"
#include "core/hdf5.h"

namespace lockstep {
namespace {

std::string text_of(const Cell& cell, const ResultColumn& column) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* count = std::get_if<std::int64_t>(&cell)) {
    return fmt::format("{}", *count);
  }
  const double value = std::get<double>(cell);
  if (std::isnan(value)) return "-";
  return fmt::format("{:.{}f}", value, column.decimals);
}

// Texts to the left, numbers to the right.
std::string padded(const std::string& text, const ResultColumn& column) {
  return column.kind == ResultColumn::Kind::text
             ? fmt::format("{:<{}}", text, column.width)
             : fmt::format("{:>{}}", text, column.width);
}

template <class T>
std::vector<T> values_of(const std::vector<std::vector<Cell>>& rows,
                         std::size_t column) {
  std::vector<T> values;
  for (const auto& row : rows) values.push_back(std::get<T>(row[column]));
  return values;
}

}  // namespace

ResultTable::ResultTable(std::string name, std::vector<ResultColumn> columns,
                         std::string path, RunFacts facts, bool speaks,
                         std::FILE* out)
    : name_(std::move(name)),
      columns_(std::move(columns)),
      path_(std::move(path)),
      facts_(std::move(facts)),
      speaks_(speaks),
      out_(out) {
  if (!speaks_) return;
  check_writable(path_, "the results");
  std::string names, units;
  for (const ResultColumn& column : columns_) {
    names += padded(column.name, column) + " ";
    units += padded(column.units, column) + " ";
  }
  fmt::print(out_, "{}\n{}\n", names, units);
  std::fflush(out_);
  save();
}

void ResultTable::add(std::vector<Cell> cells, const std::string& note) {
  require(cells.size() == columns_.size(), "{} cells for {} columns",
          cells.size(), columns_.size());
  if (!speaks_) return;
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    line += padded(text_of(cells[i], columns_[i]), columns_[i]) + " ";
  }
  fmt::print(out_, "{}{}\n", line, note);
  std::fflush(out_);
  rows_.push_back(std::move(cells));
  notes_.push_back(note);
  save();
}

void ResultTable::save() const {
  hdf5::File file(path_, hdf5::Access::in_memory);
  write_facts(file, facts_);
  std::vector<hdf5::TableColumn> fields;
  std::vector<std::string> units;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    hdf5::TableColumn field{columns_[i].name, {}};
    switch (columns_[i].kind) {
      case ResultColumn::Kind::text:
        field.values = values_of<std::string>(rows_, i);
        break;
      case ResultColumn::Kind::whole:
        field.values = values_of<std::int64_t>(rows_, i);
        break;
      case ResultColumn::Kind::real:
        field.values = values_of<double>(rows_, i);
        break;
    }
    fields.push_back(std::move(field));
    units.push_back(columns_[i].units);
  }
  fields.push_back({"note", notes_});
  units.emplace_back();
  file.create_table(name_, fields).set_attribute("units", units);
  replace_file(path_, file.bytes());
}

}  // namespace lockstep
