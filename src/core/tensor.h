#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/dtype.h"
#include "core/error.h"

namespace lockstep {

// Extents of a row-major tensor, up to five of them.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents);

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return extents_[axis]; }
  std::int64_t elements() const;
  const std::int64_t* begin() const { return extents_.data(); }
  const std::int64_t* end() const { return extents_.data() + rank_; }
  Shape with_first(std::int64_t extent) const;  // the same but for axis 0
  bool operator==(const Shape&) const = default;
  std::string text() const;  // "[4, 1024]"

 private:
  std::array<std::int64_t, 5> extents_{};
  int rank_ = 0;
};

// A non-owning typed view of contiguous row-major memory, on the host or on a
// device. Copying a Tensor copies the view. A default-made one is empty.
struct Tensor {
  void* data = nullptr;
  Dtype dtype = Dtype::f32;
  Shape shape;

  Tensor() = default;
  Tensor(void* memory, Dtype type, Shape extents)
      : data(memory), dtype(type), shape(extents) {}

  explicit operator bool() const { return data != nullptr; }
  std::int64_t elements() const { return shape.elements(); }
  std::int64_t bytes() const { return elements() * bytes_of(dtype); }
  std::int64_t operator[](int axis) const { return shape[axis]; }

  // The memory as T*; an error if T is not the tensor's dtype.
  template <class T>
  T* as() const {
    require(dtype == dtype_of<T>::value, "a {} tensor was read as {}",
            name_of(dtype), name_of(dtype_of<T>::value));
    return static_cast<T*>(data);
  }

  // The same elements under another shape.
  Tensor reshaped(Shape extents) const;
  // Elements [begin, begin + count) of the flattened tensor, shape [count].
  Tensor range(std::int64_t begin, std::int64_t count) const;
  // Rows [begin, begin + count) along the first axis; the other axes stay.
  Tensor rows(std::int64_t begin, std::int64_t count) const;
};

}  // namespace lockstep
