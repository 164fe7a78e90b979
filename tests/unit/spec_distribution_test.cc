#include "common/spec/distribution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "tests/unit/spec_testing.h"

namespace outrider {
namespace {

constexpr int kTokens = 8;

// Why Prepare refuses q for a drafted token, or "ok".
std::string Reason(Distribution q, TokenId drafted = 1, bool allow_absent = false) {
  const absl::Status status = Prepare(q, drafted, kTokens, allow_absent);
  if (status.ok()) return "ok";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::string message(status.message());
  return message.substr(0, message.find(':'));
}

TEST(Prepare, RefusesWhatCouldNotHaveProducedTheToken) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Reason(Sparse({1, 3}, {1, 2})), "ok");
  EXPECT_EQ(Reason(Sparse({1, 3}, {1, 2}), -1), "draft_token_out_of_range");
  EXPECT_EQ(Reason(Sparse({1, 3}, {1, 2}), kTokens), "draft_token_out_of_range");
  EXPECT_EQ(Reason(Distribution{}), "q_missing");
  EXPECT_EQ(Reason(Distribution{}, 1, true), "ok");
  EXPECT_EQ(Reason(Sparse({1, 3}, {1})), "q_size_mismatch");
  EXPECT_EQ(Reason(Sparse({}, {})), "q_sum_not_positive");
  EXPECT_EQ(Reason(Sparse({1, kTokens}, {1, 1})), "q_id_out_of_range");
  EXPECT_EQ(Reason(Sparse({-1, 1}, {1, 1})), "q_id_out_of_range");
  EXPECT_EQ(Reason(Sparse({1, 1}, {1, 1})), "q_ids_not_ascending");
  EXPECT_EQ(Reason(Sparse({3, 1}, {1, 1})), "q_ids_not_ascending");
  EXPECT_EQ(Reason(Sparse({1, 3}, {1, nan})), "q_not_finite");
  EXPECT_EQ(Reason(Sparse({1, 3}, {1, inf})), "q_not_finite");
  EXPECT_EQ(Reason(Sparse({1, 3}, {1, -inf})), "q_not_finite");
  EXPECT_EQ(Reason(Sparse({1, 3}, {2, -1})), "q_negative");
  EXPECT_EQ(Reason(Sparse({1, 3}, {0, 0})), "q_sum_not_positive");
  EXPECT_EQ(Reason(Sparse({1, 3}, {0, 1})), "q_zero_for_drafted_token");
  EXPECT_EQ(Reason(Sparse({2, 3}, {1, 1})), "q_zero_for_drafted_token");
  EXPECT_EQ(Reason(Dense({1, 1, 1, 1, 1, 1, 1, 1})), "ok");
  EXPECT_EQ(Reason(Dense({1, 1, 1, 1})), "ok");
  EXPECT_EQ(Reason(Dense({1, 1, 1, 1}), 4), "q_zero_for_drafted_token");
  EXPECT_EQ(Reason(Dense({1, 1, 1, 1, 1, 1, 1, 1, 0})), "q_size_mismatch");
  EXPECT_EQ(Reason(Dense({1, 0, 1, 1, 1, 1, 1, 1})), "q_zero_for_drafted_token");
  EXPECT_EQ(Reason(PointMass(1)), "ok");
  EXPECT_EQ(Reason(PointMass(2)), "q_zero_for_drafted_token");
  EXPECT_EQ(Reason(PointMass(kTokens)), "q_id_out_of_range");
}

TEST(Prepare, GivesTokensBeyondADraftsVocabularyWeightZeroAndTheSameSum) {
  constexpr size_t kMore = 128;
  std::mt19937 random(1);
  for (const size_t size : {7, 64, 1000, 4096}) {
    std::vector<float> weights(size);
    for (float& weight : weights) weight = std::uniform_real_distribution<float>(0.1f, 1)(random);
    const double total = SumWeights(weights);
    Distribution q = Dense(weights);
    ASSERT_TRUE(Prepare(q, 1, static_cast<int>(size + kMore)).ok());
    EXPECT_EQ(q.total, total);
    EXPECT_EQ(SumWeights(q.weights), total) << "what a draft with the larger vocabulary would have summed";
    EXPECT_EQ(q.weights.size(), size + kMore);
    EXPECT_EQ(q(static_cast<TokenId>(size)), 0);
    EXPECT_GT(q(static_cast<TokenId>(size) - 1), 0);
  }
}

TEST(Prepare, TakesAPointMassWithoutIdAsTheDraftedToken) {
  Distribution q = PointMass(0);
  q.ids.clear();
  ASSERT_TRUE(Prepare(q, 5, kTokens).ok());
  EXPECT_EQ(q(5), 1);
  EXPECT_EQ(q(0), 0);
}

TEST(Distribution, SparseAndDenseFormsOfTheSameWeightsAgree) {
  const Distribution dense = Dense({0, 3, 0, 1, 0, 0, 4, 0});
  const Distribution sparse = Sparse({1, 3, 6}, {3, 1, 4});
  for (TokenId token = 0; token < kTokens; ++token) EXPECT_EQ(dense(token), sparse(token)) << token;
  for (double u = 0; u < 1; u += 0.01) EXPECT_EQ(Sample(dense, u), Sample(sparse, u));
  const TestRow p = {1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_DOUBLE_EQ(Overlap(p, dense), Overlap(p, sparse));
  EXPECT_DOUBLE_EQ(Overlap(p, sparse), 3.0 / 8);
  EXPECT_DOUBLE_EQ(Overlap(p, sparse, 0.5), 3.0 / 16);
}

TEST(TruncateTopN, KeepsTheHeaviestWithTiesToTheLowestIds) {
  const TestRow row = {1, 5, 2, 5, 2, 0, 7, 2};
  const Distribution q = TruncateTopN(row, 4);
  EXPECT_EQ(q.form, Distribution::Form::kSparse);
  EXPECT_EQ(q.ids, (std::vector<TokenId>{1, 2, 3, 6}));
  EXPECT_EQ(q.weights, (std::vector<float>{5, 2, 5, 7}));
  EXPECT_EQ(q.total, 19);
}

TEST(TruncateTopN, LeavesOutTokensWithoutWeight) {
  const TestRow row = {0, 5, 0, 0, 2, 0, 0, 0};
  EXPECT_EQ(TruncateTopN(row, 4).ids, (std::vector<TokenId>{1, 4}));
}

TEST(TruncateTopN, OfAGreedyRowIsAPointMass) {
  const std::vector<float> logits = {1, 3, 3};
  const Distribution q = TruncateTopN(Greedy(logits), 4);
  EXPECT_EQ(q.form, Distribution::Form::kPointMass);
  EXPECT_EQ(q.ids, (std::vector<TokenId>{1}));
}

TEST(TruncateTopN, WithoutALimitIsTheRowItself) {
  const TestRow row = {1, 2, 3};
  for (int n : {0, 3, 64}) {
    const Distribution q = TruncateTopN(row, n);
    EXPECT_EQ(q.form, Distribution::Form::kDense);
    EXPECT_EQ(q(2), row.row()(2));
  }
}

TEST(TruncateTopN, SurvivesTheWire) {
  // Only ids and weights are sent. The receiver computes the same total from them, bit for bit.
  std::mt19937 random(1);
  std::vector<float> weights(5000);
  for (float& w : weights) w = std::exp(std::normal_distribution<float>(0, 4)(random));
  const Distribution sent = TruncateTopN(TestRow(weights), 64);
  Distribution received = Sparse(sent.ids, sent.weights);
  received.total = 0;
  ASSERT_TRUE(Prepare(received, sent.ids[0], 5000).ok());
  EXPECT_EQ(received.total, sent.total);
}

}  // namespace
}  // namespace outrider
