#include "ops/ops.h"

#include <cmath>

namespace lockstep {

Heads row_heads(const Tensor& rows, std::int64_t batch, std::int64_t heads) {
  const std::int64_t tokens = rows[0] / batch;
  const std::int64_t head_dim = rows[1] / heads;
  return {rows.data, rows.dtype,       batch,   tokens,  heads,
          head_dim,  tokens * rows[1], rows[1], head_dim};
}

Heads packed_heads(const Tensor& qkv, int part, std::int64_t batch,
                   std::int64_t heads) {
  Heads view = row_heads(qkv, batch, 3 * heads);
  const std::int64_t offset = part * heads * view.head_dim;
  view.data = static_cast<std::byte*>(view.data) + offset * bytes_of(qkv.dtype);
  view.heads = heads;
  return view;
}

std::vector<float> rope_table(std::int64_t tokens, std::int64_t head_dim,
                              double theta) {
  const std::int64_t pairs = head_dim / 2;
  std::vector<float> table(tokens * pairs * 2);
  for (std::int64_t i = 0; i < pairs; ++i) {
    const double frequency =
        std::pow(theta, -2.0 * double(i) / double(head_dim));
    for (std::int64_t t = 0; t < tokens; ++t) {
      const double angle = double(t) * frequency;
      table[(t * pairs + i) * 2] = static_cast<float>(std::cos(angle));
      table[(t * pairs + i) * 2 + 1] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

}  // namespace lockstep
