#include "ops/attention.h"
#include "unit/backends.h"
#include "unit/exact.h"

namespace lockstep::test {
namespace {

// Attention that keeps its scores, against doubles.
class NaiveAttention : public BackendTest {
 protected:
  struct Case {
    std::int64_t batch = 1, heads = 1, queries = 1, keys = 1, dim = 64;
    bool causal = true;
  };
  // Rows [B·T, H·D] as q, k and v of causal cases are in the model, and
  // separate ones otherwise.
  void expect_exact(const Case& c) {
    const std::int64_t of_queries = c.batch * c.queries, d = c.heads * c.dim;
    const std::int64_t of_keys = c.batch * c.keys;
    const Floats q = random_activations(of_queries * d, 1);
    const Floats k = random_activations(of_keys * d, 2);
    const Floats v = random_activations(of_keys * d, 3);
    const Floats dout = random_activations(of_queries * d, 4);
    const auto heads = [&](const Tensor& rows) {
      return row_heads(rows, c.batch, c.heads);
    };
    const auto fresh = [&](std::int64_t rows) {
      return zeros(dtype(), {rows, d});
    };
    const Tensor o = fresh(of_queries), dq = fresh(of_queries);
    const Tensor dk = fresh(of_keys), dv = fresh(of_keys);
    const Tensor lse = zeros(Dtype::f32, {c.batch, c.heads, c.queries});
    const Attention::Saved saved{heads(activations(q, {of_queries, d})),
                                 heads(activations(k, {of_keys, d})),
                                 heads(activations(v, {of_keys, d})), heads(o),
                                 lse};
    const auto attention = make_attention(AttentionKind::naive, backend());
    attention->forward(saved, c.causal);
    const Floats first_lse = get(lse);
    attention->backward({heads(dq), heads(dk), heads(dv),
                         heads(activations(dout, {of_queries, d}))},
                        saved, c.causal);
    EXPECT_EQ(get(lse), first_lse);

    exact::Attention wanted{c.batch * c.heads,
                            c.queries,
                            c.keys,
                            c.dim,
                            c.causal,
                            {},
                            {},
                            {},
                            {},
                            {}};
    wanted.run(by_heads(q, c, c.queries), by_heads(k, c, c.keys),
               by_heads(v, c, c.keys), by_heads(dout, c, c.queries));
    const auto expect = [&](const Floats& got, const exact::Values& right,
                            const char* name) {
      EXPECT_LE(relative_error(got, right), tolerance())
          << name << " queries " << c.queries << " keys " << c.keys << " dim "
          << c.dim << " causal " << c.causal;
    };
    const auto rows = [&](const Tensor& tensor, std::int64_t tokens) {
      const exact::Values values = by_heads(get(tensor), c, tokens);
      return Floats(values.begin(), values.end());
    };
    expect(rows(o, c.queries), wanted.o, "o");
    expect(first_lse, wanted.lse, "lse");
    expect(rows(dv, c.keys), wanted.dv, "dv");
    if (c.keys == 1) return;  // dq and dk are zero but for rounding
    expect(rows(dq, c.queries), wanted.dq, "dq");
    expect(rows(dk, c.keys), wanted.dk, "dk");
  }

  // Rows [B·T, H·D] as [B, H, T, D].
  static exact::Values by_heads(const Floats& rows, const Case& c,
                                std::int64_t tokens) {
    exact::Values values;
    for (std::int64_t b = 0; b < c.batch; ++b) {
      for (std::int64_t h = 0; h < c.heads; ++h) {
        for (std::int64_t t = 0; t < tokens; ++t) {
          const std::int64_t first =
              (b * tokens + t) * c.heads * c.dim + h * c.dim;
          values.insert(values.end(), rows.begin() + first,
                        rows.begin() + first + c.dim);
        }
      }
    }
    return values;
  }
};
INSTANTIATE_BACKENDS(NaiveAttention);

TEST_P(NaiveAttention, IsRightForAnyShape) {
  for (const std::int64_t tokens : {1, 2, 7, 64, 77, 129}) {
    expect_exact({.batch = 2, .heads = 3, .queries = tokens, .keys = tokens});
  }
  for (const std::int64_t dim : {8, 20, 80, 128}) {
    expect_exact({.heads = 2, .queries = 33, .keys = 33, .dim = dim});
  }
}

TEST_P(NaiveAttention, TakesMoreQueriesThanKeysAndTheReverse) {
  for (const auto& [queries, keys] : {std::pair{65, 3}, {1, 100}, {40, 1}}) {
    expect_exact({.batch = 2,
                  .heads = 2,
                  .queries = queries,
                  .keys = keys,
                  .causal = false});
  }
}

TEST_P(NaiveAttention, KeepsScoresOfItsLargestCall) {
  const auto attention = make_attention(AttentionKind::naive, backend());
  const auto activations_held = [&] {
    return device().ledger().figures().bytes[int(Category::activations)];
  };
  const auto forward = [&](std::int64_t tokens) {
    const Tensor rows = zeros(dtype(), {tokens, 2 * 8});
    const Tensor lse = zeros(Dtype::f32, {1, 2, tokens});
    const Heads heads = row_heads(rows, 1, 2);
    const std::int64_t before = activations_held();
    attention->forward({heads, heads, heads, heads, lse}, true);
    return activations_held() - before;
  };
  const std::int64_t element = bytes_of(dtype());
  EXPECT_EQ(forward(16), 2 * 16 * 16 * element);
  EXPECT_EQ(forward(8), 0);
  EXPECT_EQ(forward(32), 2 * (32 * 32 - 16 * 16) * element);
}

TEST_P(NaiveAttention, RefusesWhatItCannotDo) {
  const auto attention = make_attention(AttentionKind::naive, backend());
  const Tensor five = zeros(dtype(), {5, 8}), three = zeros(dtype(), {3, 8});
  const Tensor lse = zeros(Dtype::f32, {1, 1, 5});
  const auto heads = [](const Tensor& rows) { return row_heads(rows, 1, 1); };
  EXPECT_THROW(attention->forward(
                   {heads(five), heads(three), heads(three), heads(five), lse},
                   /*causal=*/true),
               Error);
  EXPECT_THROW(attention->forward(
                   {heads(five), heads(three), heads(five), heads(five), lse},
                   /*causal=*/false),
               Error);
}

}  // namespace
}  // namespace lockstep::test
