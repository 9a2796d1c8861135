#pragma once

// The model's computations in double, written for clarity alone: what the
// backends are compared with.

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

namespace lockstep::test::exact {

using Values = std::vector<double>;

// y[n, out] = Σ_in x[n, in] · w[out, in]
inline Values linear(const Values& x, const Values& w, std::int64_t rows,
                     std::int64_t out, std::int64_t in) {
  Values y(rows * out);
  for (std::int64_t n = 0; n < rows; ++n) {
    for (std::int64_t o = 0; o < out; ++o) {
      for (std::int64_t i = 0; i < in; ++i) {
        y[n * out + o] += x[n * in + i] * w[o * in + i];
      }
    }
  }
  return y;
}

// x [rows, columns] → [columns, rows]
inline Values transposed(const Values& x, std::int64_t rows,
                         std::int64_t columns) {
  Values y(x.size());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      y[j * rows + i] = x[i * columns + j];
    }
  }
  return y;
}

inline Values rmsnorm(const Values& x, const Values& weight) {
  const std::size_t width = weight.size();
  Values y(x.size());
  for (std::size_t row = 0; row < x.size(); row += width) {
    double squares = 0;
    for (std::size_t i = 0; i < width; ++i) squares += x[row + i] * x[row + i];
    const double inverse = 1 / std::sqrt(squares / double(width) + 1e-5);
    for (std::size_t i = 0; i < width; ++i) {
      y[row + i] = x[row + i] * inverse * weight[i];
    }
  }
  return y;
}

// gate_up [rows, 2·width] → [rows, width]
inline Values swiglu(const Values& gate_up, std::int64_t width) {
  Values y;
  for (std::size_t row = 0; row < gate_up.size(); row += 2 * width) {
    for (std::int64_t i = 0; i < width; ++i) {
      const double g = gate_up[row + i];
      y.push_back(g / (1 + std::exp(-g)) * gate_up[row + width + i]);
    }
  }
  return y;
}

// Losses of rows [vocabulary].
inline Values cross_entropy(const Values& logits,
                            const std::vector<std::int32_t>& targets) {
  const std::size_t vocabulary = logits.size() / targets.size();
  Values losses;
  for (std::size_t n = 0; n < targets.size(); ++n) {
    const double* row = logits.data() + n * vocabulary;
    double largest = row[0], sum = 0;
    for (std::size_t i = 0; i < vocabulary; ++i) {
      largest = std::max(largest, row[i]);
    }
    for (std::size_t i = 0; i < vocabulary; ++i) {
      sum += std::exp(row[i] - largest);
    }
    losses.push_back(largest - row[targets[n]] + std::log(sum));
  }
  return losses;
}

// Attention of heads [heads, tokens, dim], batch and heads in one.
struct Attention {
  std::int64_t heads, queries, keys, dim;
  bool causal = true;
  Values o, lse, dq, dk, dv;
  // What happens to scores, probabilities, their gradients and results where
  // they are stored.
  double (*stored)(double) = [](double x) { return x; };

  void run(const Values& q, const Values& k, const Values& v,
           const Values& dout) {
    o.assign(q.size(), 0);
    dq.assign(q.size(), 0);
    dk.assign(k.size(), 0);
    dv.assign(k.size(), 0);
    lse.assign(heads * queries, 0);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t t = 0; t < queries; ++t) {
        const std::int64_t q_row = (h * queries + t) * dim;
        run_row(h * queries + t, &q[q_row], h * keys * dim,
                causal ? t + 1 : keys, k, v, &dout[q_row]);
      }
    }
    for (Values* values : {&o, &dq, &dk, &dv}) {
      for (double& value : *values) value = stored(value);
    }
  }

 private:
  void run_row(std::int64_t row, const double* q, std::int64_t first_key,
               std::int64_t visible, const Values& k, const Values& v,
               const double* dout) {
    const double scale = 1 / std::sqrt(double(dim));
    Values p(visible), dp(visible);
    double largest = -INFINITY, sum = 0, delta = 0;
    for (std::int64_t j = 0; j < visible; ++j) {
      for (std::int64_t i = 0; i < dim; ++i) {
        p[j] += scale * q[i] * k[first_key + j * dim + i];
      }
      largest = std::max(largest, p[j] = stored(p[j]));
    }
    for (double& score : p) sum += score = std::exp(score - largest);
    for (std::int64_t j = 0; j < visible; ++j) {
      p[j] = stored(p[j] / sum);
      for (std::int64_t i = 0; i < dim; ++i) {
        const std::int64_t at = first_key + j * dim + i;
        o[row * dim + i] += p[j] * v[at];
        dp[j] += dout[i] * v[at];
        dv[at] += p[j] * dout[i];
      }
      dp[j] = stored(dp[j]);
      delta += p[j] * dp[j];
    }
    for (std::int64_t j = 0; j < visible; ++j) {
      const double ds = scale * stored(p[j] * (dp[j] - delta));
      for (std::int64_t i = 0; i < dim; ++i) {
        dq[row * dim + i] += ds * k[first_key + j * dim + i];
        dk[first_key + j * dim + i] += ds * q[i];
      }
    }
    lse[row] = largest + std::log(sum);
  }
};

// Gradient at x of Σ dy · f(x), by central differences.
inline Values gradient(const std::function<Values(const Values&)>& f, Values x,
                       const Values& dy) {
  constexpr double h = 1e-5;
  const auto objective = [&] {
    const Values y = f(x);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  Values result(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double value = x[i];
    x[i] = value + h;
    const double above = objective();
    x[i] = value - h;
    result[i] = (above - objective()) / (2 * h);
    x[i] = value;
  }
  return result;
}

}  // namespace lockstep::test::exact
