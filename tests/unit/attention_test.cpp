#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "unit/backends.h"
#include "unit/exact.h"
#include "unit/reference.h"

namespace lockstep::test {
namespace {

// The tensors of one attention and its backward pass, [B, H, T, D] or packed.
class Attention : public BackendTest {
 protected:
  struct Case {
    std::int64_t batch = 1, heads = 1, queries = 1, keys = 1, dim = 64;
    bool causal = true;
  };
  struct Result {
    Floats o, lse, dq, dk, dv;
  };

  // [B, H, T, D]
  static Heads separate(const Tensor& tensor) {
    return {tensor.data,
            tensor.dtype,
            tensor[0],
            tensor[2],
            tensor[1],
            tensor[3],
            tensor[1] * tensor[2] * tensor[3],
            tensor[3],
            tensor[2] * tensor[3]};
  }

  Result run(const Case& c, const Floats& q, const Floats& k, const Floats& v,
             const Floats& dout) {
    const Shape of_queries{c.batch, c.heads, c.queries, c.dim};
    const Shape of_keys{c.batch, c.heads, c.keys, c.dim};
    const Tensor qt = activations(q, of_queries), kt = activations(k, of_keys);
    const Tensor vt = activations(v, of_keys);
    const Tensor dot = activations(dout, of_queries);
    const Tensor o = zeros(dtype(), of_queries);
    const Tensor lse = zeros(Dtype::f32, {c.batch, c.heads, c.queries});
    const Tensor dq = zeros(dtype(), of_queries), dk = zeros(dtype(), of_keys);
    const Tensor dv = zeros(dtype(), of_keys);
    ops().attention(separate(o), lse, separate(qt), separate(kt), separate(vt),
                    c.causal);
    ops().attention_backward(separate(dq), separate(dk), separate(dv),
                             separate(dot), separate(o), lse, separate(qt),
                             separate(kt), separate(vt), c.causal);
    return {get(o), get(lse), get(dq), get(dk), get(dv)};
  }

  struct Inputs {
    Floats q, k, v, dout;
  };
  Inputs random_inputs(const Case& c) const {
    const std::int64_t heads = c.batch * c.heads;
    const auto random = [&](std::int64_t tokens, unsigned seed) {
      return multiplied(test::random_floats(heads * tokens * c.dim, seed));
    };
    return {random(c.queries, 1), random(c.keys, 2), random(c.keys, 3),
            random(c.queries, 4)};
  }
  // Inputs as products round them: to bf16, or to TF32's 10 bits.
  Floats multiplied(Floats values) const {
    if (precision() == Precision::tf32) {
      for (float& value : values) {
        const auto bits = std::bit_cast<std::uint32_t>(value);
        value = std::bit_cast<float>((bits + 0x1000) & 0xffffe000);
      }
    }
    return rounded(std::move(values));
  }

  static std::vector<std::string> reference_cases() {
    std::vector<std::string> names = {"cross_d64", "peaky_d64"};
    for (const int dim : {16, 32, 64, 80, 128}) {
      for (const char* rest : {"n128_full", "n130_causal", "n77_causal"}) {
        names.push_back(fmt::format("d{}_{}", dim, rest));
      }
    }
    return names;
  }
  static Case reference_case(const std::string& name) {
    const std::string group = "attention/" + name;
    const auto q = reference_shape(group + "/q");
    const auto k = reference_shape(group + "/k");
    return {q[0], q[1], q[2], k[2], q[3], reference_flag(group, "causal")};
  }

  static exact::Attention exact_result(
      const Case& c, const Inputs& in,
      double (*stored)(double) = [](double x) { return x; }) {
    exact::Attention wanted{c.batch * c.heads,
                            c.queries,
                            c.keys,
                            c.dim,
                            c.causal,
                            {},
                            {},
                            {},
                            {},
                            {},
                            stored};
    wanted.run({in.q.begin(), in.q.end()}, {in.k.begin(), in.k.end()},
               {in.v.begin(), in.v.end()}, {in.dout.begin(), in.dout.end()});
    return wanted;
  }

  void expect_close(const Result& got, const exact::Attention& wanted,
                    const std::string& what) {
    EXPECT_LE(relative_error(got.o, wanted.o), tolerance()) << what;
    EXPECT_LE(relative_error(got.lse, wanted.lse), tolerance()) << what;
    EXPECT_LE(relative_error(got.dv, wanted.dv), tolerance()) << what;
    if (wanted.keys == 1) return;  // dq and dk are zero: see its own test
    EXPECT_LE(relative_error(got.dq, wanted.dq), tolerance()) << what;
    EXPECT_LE(relative_error(got.dk, wanted.dk), tolerance()) << what;
  }

  void expect_exact(const Case& c) {
    const Inputs in = random_inputs(c);
    expect_close(run(c, in.q, in.k, in.v, in.dout), exact_result(c, in),
                 fmt::format("queries {} keys {} dim {} causal {}", c.queries,
                             c.keys, c.dim, c.causal));
  }

  // At most twice the error of an attention that stores everything in bf16.
  void expect_errs_little(const Case& c) {
    const Inputs in = random_inputs(c);
    const exact::Attention wanted = exact_result(c, in);
    const exact::Attention stored = exact_result(
        c, in, [](double x) { return double(bfloat16(float(x))); });
    const Result got = run(c, in.q, in.k, in.v, in.dout);
    const std::string what = fmt::format("queries {} keys {} dim {} causal {}",
                                         c.queries, c.keys, c.dim, c.causal);
    const auto expect = [&](const Floats& values, const exact::Values& right,
                            const exact::Values& rival, const char* name) {
      EXPECT_LE(relative_error(values, right), 2 * relative_error(rival, right))
          << name << " " << what;
    };
    expect(got.o, wanted.o, stored.o, "o");
    expect(got.dq, wanted.dq, stored.dq, "dq");
    expect(got.dk, wanted.dk, stored.dk, "dk");
    expect(got.dv, wanted.dv, stored.dv, "dv");
  }

  // As many keys as queries, packed; everything but the last head is zeros.
  void expect_last_head_alone(const Case& c) {
    const std::int64_t rows = c.batch * c.queries, d = c.heads * c.dim;
    const Case alone{.queries = c.queries, .keys = c.queries, .dim = c.dim};
    const Inputs in = random_inputs(alone);
    const Result wanted = run(alone, in.q, in.k, in.v, in.dout);
    const Tensor qkv = zeros(dtype(), {rows, 3 * d});
    const Tensor dqkv = zeros(dtype(), {rows, 3 * d});
    const Tensor o = zeros(dtype(), {rows, d}),
                 dout = zeros(dtype(), {rows, d});
    const Tensor lse = zeros(Dtype::f32, {c.batch, c.heads, c.queries});
    for (const Tensor* tensor : {&qkv, &dqkv, &o, &dout}) {
      device().zero(*tensor);
    }
    // Part `part` of the last head's rows, of `parts` parts of d columns.
    const auto each_row = [&](const Tensor& tensor, int part, int parts,
                              const auto& visit) {
      for (std::int64_t t = 0; t < c.queries; ++t) {
        const std::int64_t row = rows - c.queries + t;
        const std::int64_t end = (row * parts + part + 1) * d;
        visit(tensor.range(end - c.dim, c.dim), t * c.dim);
      }
    };
    const auto write = [&](const Tensor& tensor, int part, int parts,
                           const Floats& values) {
      each_row(tensor, part, parts, [&](const Tensor& row, std::int64_t at) {
        upload(device(), row, std::span(values).subspan(at, c.dim));
      });
    };
    const auto expect = [&](const Tensor& tensor, int part, int parts,
                            const Floats& values, const char* name) {
      Floats got(values.size());
      each_row(tensor, part, parts, [&](const Tensor& row, std::int64_t at) {
        download(device(), std::span(got).subspan(at, c.dim), row);
      });
      EXPECT_EQ(got, values) << name << " batch " << c.batch;
    };
    write(qkv, 0, 3, in.q);
    write(qkv, 1, 3, in.k);
    write(qkv, 2, 3, in.v);
    write(dout, 0, 1, in.dout);
    run_packed(c, o, lse, qkv, dqkv, dout);
    expect(o, 0, 1, wanted.o, "o");
    expect(dqkv, 0, 3, wanted.dq, "dq");
    expect(dqkv, 1, 3, wanted.dk, "dk");
    expect(dqkv, 2, 3, wanted.dv, "dv");
  }

  // As many keys as queries. dout is there only just before it is needed.
  void expect_same_bits(const Case& c, int repeats) {
    const std::int64_t rows = c.batch * c.queries, d = c.heads * c.dim;
    const Tensor qkv =
        activations(random_activations(rows * 3 * d, 1), {rows, 3 * d});
    const Tensor source =
        activations(random_activations(rows * d, 2), {rows, d});
    const Tensor dout = zeros(dtype(), {rows, d}),
                 o = zeros(dtype(), {rows, d});
    const Tensor dqkv = zeros(dtype(), {rows, 3 * d});
    const Tensor lse = zeros(Dtype::f32, {c.batch, c.heads, c.queries});
    Floats first_o, first_gradients;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      device().zero(dout);
      device().zero(dqkv);
      device().copy(dout, source);
      run_packed(c, o, lse, qkv, dqkv, dout);
      if (repeat == 0) {
        first_o = get(o);
        first_gradients = get(dqkv);
        continue;
      }
      ASSERT_EQ(get(o), first_o) << repeat << " dim " << c.dim;
      ASSERT_EQ(get(dqkv), first_gradients) << repeat << " dim " << c.dim;
    }
  }

  // Causal.
  void run_packed(const Case& c, const Tensor& o, const Tensor& lse,
                  const Tensor& qkv, const Tensor& dqkv, const Tensor& dout) {
    const auto part = [&](const Tensor& tensor, int index) {
      return packed_heads(tensor, index, c.batch, c.heads);
    };
    const Heads o_heads = row_heads(o, c.batch, c.heads);
    ops().attention(o_heads, lse, part(qkv, 0), part(qkv, 1), part(qkv, 2),
                    true);
    ops().attention_backward(part(dqkv, 0), part(dqkv, 1), part(dqkv, 2),
                             row_heads(dout, c.batch, c.heads), o_heads, lse,
                             part(qkv, 0), part(qkv, 1), part(qkv, 2), true);
  }

  void expect_same_packed(const Case& c) {
    const std::int64_t rows = c.batch * c.queries, d = c.heads * c.dim;
    const Inputs in = random_inputs(c);
    const auto pack = [&](const Floats& values, int part, std::int64_t parts,
                          Floats& packed) {
      for (std::int64_t i = 0; i < std::ssize(values); ++i) {
        const std::int64_t x = i % c.dim, t = i / c.dim % c.queries;
        const std::int64_t h = i / c.dim / c.queries % c.heads;
        const std::int64_t b = i / c.dim / c.queries / c.heads;
        packed[((b * c.queries + t) * parts + part) * d + h * c.dim + x] =
            values[i];
      }
    };
    Floats packed_in(rows * 3 * d), packed_dout(rows * d);
    pack(in.q, 0, 3, packed_in);
    pack(in.k, 1, 3, packed_in);
    pack(in.v, 2, 3, packed_in);
    pack(in.dout, 0, 1, packed_dout);
    const Tensor qkv = activations(packed_in, {rows, 3 * d});
    const Tensor dout = activations(packed_dout, {rows, d});
    const Tensor o = zeros(dtype(), {rows, d});
    const Tensor dqkv = zeros(dtype(), {rows, 3 * d});
    const Tensor lse = zeros(Dtype::f32, {c.batch, c.heads, c.queries});
    run_packed(c, o, lse, qkv, dqkv, dout);

    const Result wanted = run(c, in.q, in.k, in.v, in.dout);
    Floats packed_o(rows * d), packed_gradients(rows * 3 * d);
    pack(wanted.o, 0, 1, packed_o);
    pack(wanted.dq, 0, 3, packed_gradients);
    pack(wanted.dk, 1, 3, packed_gradients);
    pack(wanted.dv, 2, 3, packed_gradients);
    EXPECT_EQ(get(o), packed_o);
    EXPECT_EQ(get(dqkv), packed_gradients);
    EXPECT_EQ(get(lse), wanted.lse);
  }
};
INSTANTIATE_BACKENDS(Attention);

TEST_P(Attention, MatchesPyTorchInDoublePrecision) {
  for (const std::string& name : reference_cases()) {
    const Case c = reference_case(name);
    const std::string group = "attention/" + name + "/";
    const Inputs in{multiplied(reference(group + "q")),
                    multiplied(reference(group + "k")),
                    multiplied(reference(group + "v")),
                    multiplied(reference(group + "do"))};
    const Result got = run(c, in.q, in.k, in.v, in.dout);
    if (precision() != Precision::fp32) {
      // Peaked scores make much of how the inputs were rounded.
      expect_close(got, exact_result(c, in), name);
      continue;
    }
    const double limit = tolerance();
    EXPECT_LE(relative_error(got.o, reference(group + "o")), limit) << name;
    EXPECT_LE(relative_error(got.lse, reference(group + "lse")), limit) << name;
    EXPECT_LE(relative_error(got.dq, reference(group + "dq")), limit) << name;
    EXPECT_LE(relative_error(got.dk, reference(group + "dk")), limit) << name;
    EXPECT_LE(relative_error(got.dv, reference(group + "dv")), limit) << name;
  }
}

TEST_P(Attention, IsRightAtEveryLength) {
  for (const std::int64_t tokens :
       {1, 2, 3, 7, 63, 64, 65, 77, 127, 129, 193}) {
    expect_exact({.batch = 2, .heads = 2, .queries = tokens, .keys = tokens});
    expect_exact({.heads = 2,
                  .queries = tokens,
                  .keys = tokens,
                  .dim = 32,
                  .causal = false});
  }
}

TEST_P(Attention, IsRightForLongSequences) {
  expect_exact({.queries = 1000, .keys = 1000});
}

// Queries of zeros see all their keys alike, so that everything is known from
// sums over the tokens before or after.
TEST_P(Attention, IsRightForVeryLongSequences) {
  const std::int64_t tokens = on_cpu() ? 1500 : 8200, dim = 64;
  const Case c{.queries = tokens, .keys = tokens, .dim = dim};
  Inputs in = random_inputs(c);
  std::fill(in.q.begin(), in.q.end(), 0.0f);
  exact::Values o, dq, dv(tokens * dim), values(dim), keys(dim), kv(dim * dim);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const double p = 1.0 / double(t + 1);
    const float* const row = &in.dout[t * dim];
    double delta = 0;
    for (std::int64_t i = 0; i < dim; ++i) {
      values[i] += in.v[t * dim + i];
      keys[i] += in.k[t * dim + i];
      o.push_back(p * values[i]);
      delta += row[i] * o.back();
      for (std::int64_t j = 0; j < dim; ++j) {
        kv[i * dim + j] += in.k[t * dim + i] * in.v[t * dim + j];
      }
    }
    for (std::int64_t i = 0; i < dim; ++i) {
      double sum = -delta * keys[i];
      for (std::int64_t j = 0; j < dim; ++j) sum += kv[i * dim + j] * row[j];
      dq.push_back(p * sum / std::sqrt(double(dim)));
    }
  }
  for (std::int64_t t = tokens - 1; t >= 0; --t) {
    for (std::int64_t i = 0; i < dim; ++i) {
      dv[t * dim + i] = in.dout[t * dim + i] / double(t + 1) +
                        (t + 1 < tokens ? dv[(t + 1) * dim + i] : 0);
    }
  }
  const Result got = run(c, in.q, in.k, in.v, in.dout);
  EXPECT_LE(relative_error(got.o, o), tolerance());
  EXPECT_LE(relative_error(got.dq, dq), tolerance());
  EXPECT_LE(relative_error(got.dv, dv), tolerance());
  EXPECT_EQ(got.dk, Floats(in.k.size()));
}

TEST_P(Attention, TakesMoreQueriesThanKeysAndTheReverse) {
  for (const auto& [queries, keys] :
       {std::pair{256, 3}, {1, 1000}, {256, 1}, {65, 129}, {2, 2}}) {
    expect_exact(
        {.heads = 2, .queries = queries, .keys = keys, .causal = false});
  }
}

TEST_P(Attention, TakesEveryEvenHeadDimension) {
  for (const std::int64_t dim : {2, 6, 8, 20, 40, 66, 72, 100, 128, 130, 256}) {
    expect_exact({.heads = 2, .queries = 70, .keys = 70, .dim = dim});
  }
}

TEST_P(Attention, ReadsAndWritesPackedRows) {
  for (const std::int64_t dim : {32, 64, 80, 96, 128}) {
    expect_same_packed(
        {.batch = 2, .heads = 3, .queries = 67, .keys = 67, .dim = dim});
  }
}

TEST_P(Attention, ErrsLittleMoreThanStoringItsScoresWould) {
  if (dtype() != Dtype::bf16) GTEST_SKIP() << "a rule for bf16";
  for (const std::int64_t dim : {64, 80, 96, 128}) {
    for (const std::int64_t tokens : {2, 63, 64, 65, 127, 128, 129, 193}) {
      for (const bool causal : {false, true}) {
        expect_errs_little({.heads = 2,
                            .queries = tokens,
                            .keys = tokens,
                            .dim = dim,
                            .causal = causal});
      }
    }
    expect_errs_little(
        {.heads = 2, .queries = 65, .keys = 129, .dim = dim, .causal = false});
    expect_errs_little({.queries = 1000, .keys = 1000, .dim = dim});
  }
  if (on_cpu()) return;
  expect_errs_little({.queries = 4097, .keys = 4097, .dim = 64});
}

TEST_P(Attention, OfOneTokenIsItsValueExactly) {
  for (const std::int64_t dim : {20, 64, 128}) {
    const Case c{.batch = 3, .heads = 2, .dim = dim};
    const Inputs in = random_inputs(c);
    const Result got = run(c, in.q, in.k, in.v, in.dout);
    EXPECT_EQ(got.o, in.v);
    EXPECT_EQ(got.dv, in.dout);
    EXPECT_EQ(got.dq, Floats(in.q.size()));
    EXPECT_EQ(got.dk, Floats(in.k.size()));
  }
}

TEST_P(Attention, SurvivesScoresThatWouldOverflow) {
  for (const std::int64_t dim : {64, 80, 96, 128}) {
    const Case c{.queries = 70, .keys = 70, .dim = dim};
    Inputs in = random_inputs(c);
    for (float& value : in.q) value *= 64;
    for (float& value : in.k) value *= 64;
    const exact::Attention wanted = exact_result(c, in);
    const Result got = run(c, in.q, in.k, in.v, in.dout);
    for (const Floats* values : {&got.o, &got.lse, &got.dq, &got.dk, &got.dv}) {
      for (const float value : *values) ASSERT_TRUE(std::isfinite(value));
    }
    // A score of 1e4 is known to 1e-3 in fp32, and so is its exponential.
    EXPECT_LE(relative_error(got.o, wanted.o), 100 * tolerance());
    EXPECT_LE(relative_error(got.lse, wanted.lse), tolerance());
  }
}

// More heads than a grid has rows, and offsets past the reach of 32 bits.
TEST_P(Attention, TakesMoreThanFitsIn16Or32Bits) {
  if (on_cpu()) {
    expect_last_head_alone({.batch = 8192, .heads = 8, .queries = 4, .dim = 8});
    return;
  }
  expect_last_head_alone({.batch = 80000, .queries = 16, .dim = 64});
  expect_last_head_alone({.batch = 8192, .heads = 8, .queries = 16, .dim = 64});
  expect_last_head_alone(
      {.batch = 8300, .heads = 16, .queries = 1, .dim = 128});
  if (dtype() != Dtype::bf16) return;  // twice the memory
  expect_last_head_alone(
      {.batch = 700, .heads = 16, .queries = 1024, .dim = 64});
}

TEST_P(Attention, GivesTheSameBitsEveryTime) {
  if (on_cpu()) {
    expect_same_bits({.batch = 2, .heads = 3, .queries = 193, .dim = 64}, 5);
    return;
  }
  for (const std::int64_t dim : {32, 64, 80, 96, 128}) {
    expect_same_bits({.batch = 2, .heads = 3, .queries = 193, .dim = dim}, 100);
  }
  expect_same_bits({.heads = 8, .queries = 8200, .dim = 64}, 20);
  expect_same_bits({.batch = 2, .heads = 12, .queries = 1024, .dim = 64}, 100);
  expect_same_bits({.batch = 2, .heads = 16, .queries = 2048, .dim = 128}, 10);
}

TEST_P(Attention, RefusesWhatItCannotDo) {
  const auto attempt = [&](const Case& c) {
    const Inputs in = random_inputs(c);
    run(c, in.q, in.k, in.v, in.dout);
  };
  EXPECT_THROW(attempt({.queries = 5, .keys = 3}), Error);
  EXPECT_THROW(attempt({.queries = 0, .keys = 0}), Error);
  EXPECT_THROW(attempt({.queries = 0, .keys = 3, .causal = false}), Error);
  EXPECT_THROW(attempt({.queries = 3, .keys = 0, .causal = false}), Error);
  EXPECT_THROW(attempt({.batch = 0, .queries = 3, .keys = 3}), Error);
  const Tensor q = zeros(dtype(), {1, 2, 4, 8}),
               k = zeros(dtype(), {1, 1, 4, 8});
  const Tensor lse = zeros(Dtype::f32, {1, 2, 4});
  EXPECT_THROW(ops().attention(separate(q), lse, separate(q), separate(k),
                               separate(k), false),
               Error);
  EXPECT_THROW(ops().attention(separate(q), lse.reshaped({1, 4, 2}),
                               separate(q), separate(q), separate(q), false),
               Error);
  const Tensor ints = zeros(Dtype::i32, {1, 2, 4, 8});
  EXPECT_THROW(ops().attention(separate(q), lse, separate(ints), separate(q),
                               separate(q), false),
               Error);
}

}  // namespace
}  // namespace lockstep::test
