#include "core/tensor.h"

#include <fmt/ranges.h>

namespace lockstep {

Shape::Shape(std::initializer_list<std::int64_t> extents) {
  require(extents.size() <= extents_.size(), "a tensor has at most {} axes",
          extents_.size());
  for (const std::int64_t extent : extents) extents_[rank_++] = extent;
}

std::int64_t Shape::elements() const {
  std::int64_t product = 1;
  for (int axis = 0; axis < rank_; ++axis) product *= extents_[axis];
  return product;
}

Shape Shape::with_first(std::int64_t extent) const {
  Shape changed = *this;
  changed.extents_[0] = extent;
  return changed;
}

std::string Shape::text() const {
  return fmt::format("[{}]", fmt::join(begin(), end(), ", "));
}

Tensor Tensor::reshaped(Shape extents) const {
  require(extents.elements() == elements(), "cannot view {} as {}",
          shape.text(), extents.text());
  return {data, dtype, extents};
}

Tensor Tensor::range(std::int64_t begin, std::int64_t count) const {
  require(begin >= 0 && count >= 0 && begin + count <= elements(),
          "elements {}..{} are outside a tensor of {}", begin, begin + count,
          elements());
  return {static_cast<std::byte*>(data) + begin * bytes_of(dtype), dtype,
          Shape{count}};
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t count) const {
  const std::int64_t width = shape[0] == 0 ? 0 : elements() / shape[0];
  Tensor part = range(begin * width, count * width);
  part.shape = shape.with_first(count);
  return part;
}

}  // namespace lockstep
