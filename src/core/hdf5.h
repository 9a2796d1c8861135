#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

// A thin layer over HDF5's C API: identifiers that close themselves, and every
// failure as an Error that names the file, the object and the reason. HDF5
// itself is not thread-safe everywhere, so each call here takes one lock; an
// object and those opened from it are one thread's at a time.
namespace lockstep::hdf5 {

// An open HDF5 identifier, closed with its last owner. Moves only.
class Id {
 public:
  using Close = int (*)(std::int64_t);
  Id() = default;
  Id(std::int64_t id, Close close) : id_(id), close_(close) {}
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  Id(Id&& other) noexcept { swap(other); }
  Id& operator=(Id&& other) noexcept {
    Id(std::move(other)).swap(*this);
    return *this;
  }
  ~Id();
  operator std::int64_t() const { return id_; }

 private:
  void swap(Id& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
  }
  std::int64_t id_ = -1;
  Close close_ = nullptr;
};

// What attributes hang on: a group (the root is one) or a dataset.
class Object {
 public:
  Object(Id id, std::string name)
      : id_(std::move(id)), name_(std::move(name)) {}

  void set_attribute(const std::string& name, std::string_view value);
  void set_attribute(const std::string& name, double value);
  void set_attribute(const std::string& name, std::int64_t value);
  void set_attribute(const std::string& name,
                     const std::vector<std::string>& values);
  bool has_attribute(const std::string& name) const;
  std::vector<std::string> attributes() const;  // their names
  // T: double (also of integers and of booleans as h5py writes them),
  // std::int64_t, std::string, std::vector<std::string>.
  template <class T>
  T attribute(const std::string& name) const;

 protected:
  Id id_;
  std::string name_;  // "file.h5:/a/b", for messages
};

class Dataset : public Object {
 public:
  using Object::Object;

  std::vector<std::int64_t> shape() const;
  // What is stored: integers of `bytes` bytes, or anything else.
  struct Storage {
    bool integer = false;
    bool is_signed = false;
    int bytes = 0;
    std::string text;  // "uint16", "float32", "other"
  };
  Storage storage() const;

  // T: double, float, std::int64_t, std::int32_t; HDF5 converts.
  // Everything, or `out.size()` elements from `begin` on along one axis.
  template <class T>
  std::vector<T> read() const;
  template <class T>
  void read(std::int64_t begin, std::span<T> out) const;
  // A column of a table, T: double or std::int64_t.
  template <class T>
  std::vector<T> read_column(const std::string& name) const;
  template <class T>
  void write(std::span<const T> values);
  // Adds whole rows along the first axis of an extendible dataset.
  template <class T>
  void append(std::span<const T> rows);
  // Drops what an extendible dataset has after its first rows.
  void keep_rows(std::int64_t rows);
};

// A named column of a table.
struct TableColumn {
  std::string name;
  std::variant<std::vector<double>, std::vector<std::int64_t>,
               std::vector<std::string>>
      values;
};

struct Child {
  std::string name;
  enum class Kind { group, dataset, other } kind = Kind::other;
  bool is_dataset() const { return kind == Kind::dataset; }
};

class Group : public Object {
 public:
  using Object::Object;

  // Paths are relative and may have several parts; leading '/' is allowed.
  // Links that lead out of the file are refused.
  bool has(const std::string& path) const;
  Group group(const std::string& path) const;
  Dataset dataset(const std::string& path) const;
  std::vector<Child> children() const;  // by name

  Group create_group(const std::string& path);  // with those above it
  void remove(const std::string& path);
  template <class T>
  Dataset create_dataset(const std::string& path,
                         const std::vector<std::int64_t>& shape);
  // Zero rows of `row_shape` at first, growing by append(); chunks of
  // `rows_a_chunk` rows, each with a checksum that any reader verifies.
  template <class T>
  Dataset create_extendible(const std::string& path,
                            const std::vector<std::int64_t>& row_shape,
                            std::int64_t rows_a_chunk);
  // One axis of rows of a compound type; texts have a fixed length. Columns
  // are equally long.
  Dataset create_table(const std::string& path,
                       const std::vector<TableColumn>& columns);
};

enum class Access {
  read,            // an existing file
  create,          // a new file; one of the same name is replaced
  in_memory,       // a new file that stays in memory, see File::bytes()
  copy_in_memory,  // what an existing file holds, likewise
};

class File : public Group {
 public:
  // A new file leaves its first `user_block` bytes alone, which is 0 or a power
  // of two from 512 on: they are the caller's, and any reader skips them.
  File(const std::string& path, Access access, std::size_t user_block = 0);

  // Writes what is still in memory; an Error if that fails. To be called
  // before a file that was written is closed, which cannot fail any more then.
  void flush();
  // The bytes that a file in memory would have on disk, until it is next used.
  std::span<const std::byte> bytes() const;
};

// Of the library in use: "1.10.8".
std::string version();

}  // namespace lockstep::hdf5
