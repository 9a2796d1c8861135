#include <cmath>

#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/numeric.h"
#include "ops/cpu/parallel.h"

namespace lockstep {
namespace {

template <class T, class Term>
double sum_of_piece(const T* x, std::int64_t count, Term term) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) sum += term(double(load(x[i])));
  return sum;
}

// Sum of term(x[i]) in fp64: by pieces, and the pieces in order.
template <class T, class Term>
double sum_of(const T* x, std::int64_t count, double* parts, Term term) {
  parallel_pieces(count, [&](std::int64_t begin, std::int64_t end) {
    parts[begin / piece_elements] = sum_of_piece(x + begin, end - begin, term);
  });
  double total = 0;
  for (std::int64_t piece = 0; piece < pieces_of(count); ++piece) {
    total += parts[piece];
  }
  return total;
}

}  // namespace

void CpuOps::add_sum(const Tensor& total, const Tensor& x, double scale) {
  check_count(total, Dtype::f64, 1, "add_sum: total");
  check_count(x, Dtype::f32, x.elements(), "add_sum: x");
  auto* parts = reinterpret_cast<double*>(
      scratch(Scratch::partial_sums, 2 * pieces_of(x.elements())));
  *total.as<double>() += scale * sum_of(x.as<float>(), x.elements(), parts,
                                        [](double value) { return value; });
}

void CpuOps::add_sum_of_squares(const Tensor& total, const Tensor& x) {
  check_count(total, Dtype::f64, 1, "add_sum_of_squares: total");
  check_count(x, x.dtype, x.elements(), "add_sum_of_squares: x");
  auto* parts = reinterpret_cast<double*>(
      scratch(Scratch::partial_sums, 2 * pieces_of(x.elements())));
  with_element(x, "add_sum_of_squares: x", [&]<class T>(T) {
    *total.as<double>() += sum_of(x.as<T>(), x.elements(), parts,
                                  [](double value) { return value * value; });
  });
}

void CpuOps::clip_factor(const Tensor& factor, const Tensor& sum_of_squares,
                         double clip) {
  check_count(factor, Dtype::f32, 1, "clip_factor: factor");
  check_count(sum_of_squares, Dtype::f64, 1, "clip_factor: sum_of_squares");
  float& result = *factor.as<float>();
  const double squares = *sum_of_squares.as<double>();
  const double ratio = clip / (std::sqrt(squares) + 1e-6);
  result = clip == 0 || ratio > 1 ? 1.0f : static_cast<float>(ratio);
  if (!std::isfinite(squares)) result = NAN;
}

}  // namespace lockstep
