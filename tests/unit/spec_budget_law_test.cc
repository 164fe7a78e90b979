// Proves by exact enumeration that two requests that share the rows of a step keep their targets' joint law,
// over two rounds. Who gets a row depends on committed tokens, on drafted tokens that stay, and on
// confidences from before a draw. If a drawn token decides whether it is verified, the law is another: this
// mistake must be noticed.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "common/spec/proposal.h"
#include "common/spec/verify.h"
#include "tests/unit/spec_enumeration.h"
#include "tests/unit/spec_law.h"

namespace outrider {
namespace {

constexpr int kRequests = 2, kRounds = 2, kRows = 2;

struct SharedRows {
  Rule rule = Rule::kToken;
  // A mistake: of the tokens that both requests draw, only the likelier by q is verified.
  bool likelier_drawn_token = false;
};

// A request's text. Its numbers differ from the other's, as two seeds would make them.
struct Text {
  uint64_t first_position;
  Tokens tokens = {};
  int accepted = 0;
  Proposal draft = {};

  uint64_t size() const { return first_position + tokens.size(); }
  Tokens Drafted() const {
    Tokens all = tokens;
    for (const ProposalNode& node : draft) all.push_back(node.token);
    return all;
  }
};

class Step {
 public:
  Step(const SharedRows& scheme, const Pair& pair, Enumerator& noise)
      : scheme_(scheme), pair_(pair), noise_(noise) {}

  void Run(std::array<Text, kRequests>& texts) {
    for (Text& text : texts) text.draft.clear();
    if (scheme_.likelier_drawn_token) {
      for (Text& text : texts) Draw(text);
      const auto q = [](const Text& text) { return text.draft[0].q(text.draft[0].token); };
      (q(texts[0]) < q(texts[1]) ? texts[0] : texts[1]).draft.clear();
    } else {
      for (int row = 0; row < kRows; ++row) Draw(Chance(texts[0]) < Chance(texts[1]) ? texts[1] : texts[0]);
    }
    for (Text& text : texts) Judge(text);
  }

 private:
  // How likely the next token is to stand, by what was committed and by the draft's confidence before the
  // draw.
  double Chance(const Text& text) const {
    double chance =
        (1.0 + text.accepted) / (2.0 + text.accepted) * Confidence(pair_.draft.Row(text.Drafted()));
    for (const ProposalNode& node : text.draft) chance *= node.confidence;
    return chance;
  }
  void Draw(Text& text) {
    noise_.StartRound(text.size());
    const WeightRow row = pair_.draft.Row(text.Drafted());
    ProposalNode node = Propose(scheme_.rule, row, 0, text.size() + text.draft.size(), noise_);
    AppendToChain(node.token, std::move(node.q), text.draft);
    text.draft.back().confidence = Confidence(row);
  }
  void Judge(Text& text) {
    noise_.StartRound(text.size());
    const Tokens all = text.Drafted();
    const auto rows = [&](int i) -> absl::StatusOr<WeightRow> {
      return pair_.target.Row(Tokens(all.begin(), all.begin() + static_cast<int>(text.tokens.size()) + i));
    };
    const absl::StatusOr<Verdict> verdict =
        Verify({.rule = scheme_.rule}, text.draft, rows, text.size(), noise_);
    ASSERT_TRUE(verdict.ok());
    text.tokens.assign(all.begin(),
                       all.begin() + static_cast<int>(text.tokens.size() + verdict->path.size()));
    text.tokens.push_back(verdict->token);
    text.accepted += static_cast<int>(verdict->path.size());
  }

  const SharedRows& scheme_;
  const Pair& pair_;
  Enumerator& noise_;
};

// How far the joint law of both texts' first tokens, one for each round, is from the target's.
double JointDeviationOf(const SharedRows& scheme, const Pair& pair) {
  std::map<std::pair<Tokens, Tokens>, double> law;
  Enumerator noise;
  noise.ForEachPath([&] {
    std::array<Text, kRequests> texts = {Text{.first_position = 0}, Text{.first_position = 1000}};
    Step step(scheme, pair, noise);
    for (int round = 0; round < kRounds; ++round) step.Run(texts);
    for (Text& text : texts) text.tokens.resize(kRounds);
    law[{texts[0].tokens, texts[1].tokens}] += noise.probability();
  });
  double worst = 0;
  for (const Tokens& first : Sequences(kRounds)) {
    for (const Tokens& second : Sequences(kRounds)) {
      const auto found = law.find({first, second});
      const double target = TargetLaw(pair.target, {}, first) * TargetLaw(pair.target, {}, second);
      worst = std::max(worst, std::abs((found == law.end() ? 0 : found->second) - target));
    }
  }
  return worst;
}

double Worst(const SharedRows& scheme) {
  double worst = 0;
  for (const Pair& pair : Pairs(2)) worst = std::max(worst, JointDeviationOf(scheme, pair));
  return worst;
}

TEST(SharedRows, KeepTheJointLawOfTwoRequests) {
  for (const Rule rule : {Rule::kToken, Rule::kBlock}) EXPECT_LT(Worst({.rule = rule}), kExact);
}

TEST(SharedRows, ADrawnTokenMustNotDecideWhetherItIsVerified) {
  EXPECT_GT(Worst({.likelier_drawn_token = true}), kNoticed);
}

}  // namespace
}  // namespace outrider
