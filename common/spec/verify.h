// Decides which drafted tokens are accepted and which token follows them, so that the text has the target's
// distribution: the heart of speculative decoding (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv
// 2302.01318).
//
// Pure functions of the rows, the proposal and the noise. Any thread. n, the round start, is the number of
// tokens of the sequence before the proposal. The position of a node is n + its depth. Row 0 is the target's
// distribution after the committed tokens, and row i + 1 the one after node i.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/spec/distribution.h"
#include "common/spec/judge_chain.h"
#include "common/spec/proposal.h"
#include "common/spec/random.h"
#include "common/spec/types.h"
#include "common/spec/verdict.h"

namespace outrider {

enum class Rule {
  kToken,    // accept x iff u q(x) < p(x) (judge_chain.h); Leviathan et al., Algorithm 1
  kBlock,    // accept the longest prefix that passes jointly; Sun et al., arXiv 2403.10444, Algorithm 2
  kCoupled,  // draft and target run the same exponential race; Daliri et al., arXiv 2408.07978
};

// The order in which the siblings of a tree are tried. Each is accepted if u q(x) < r(x), where r is p at
// first; a rejected one leaves r = norm(max(r - q, 0)), and the token is drawn from r when all are rejected.
enum class SiblingOrder {
  // In the order of their indices. Exact when each q is the law of its token given the siblings before it:
  // the same q for independent draws, and q without the tokens already drawn for draws without replacement.
  kGiven,
  // In a random order, which is SpecInfer's multi-step speculative sampling (Miao et al., arXiv 2305.09781,
  // Algorithm 2). Exact for independent draws, even from different q, if their number was fixed before the
  // first. Not exact for draws without replacement. Token rule only.
  kRandom,
};

struct VerifyOptions {
  Rule rule = Rule::kToken;
  // Leviathan et al., appendix A.5, in (0, 1]: q is compared as lenience * q. Below 1 the result is not
  // exact: P(x) <= p(x) / lenience. Token rule only, and chains only.
  double lenience = 1;
  SiblingOrder sibling_order = SiblingOrder::kGiven;
};

// InvalidArgument naming the field and its range.
absl::Status ValidateVerifyOptions(const VerifyOptions& options);

// Answers random questions. A question is a non-decreasing step function of one uniform number in [0, 1). In
// production the answer is the function's value at that number; the proofs in tests/unit integrate the same
// functions exactly.
class Noise {
 public:
  virtual ~Noise() = default;
  virtual int Decide(Purpose purpose, uint64_t position, uint64_t candidate,
                     absl::FunctionRef<int(double)> step) = 0;
  // Whether `holds` is true for the number. It must be true exactly for the numbers below some threshold.
  bool Test(Purpose purpose, uint64_t position, uint64_t candidate, absl::FunctionRef<bool(double)> holds) {
    return Decide(purpose, position, candidate, [&](double u) { return holds(u) ? 0 : 1; }) == 0;
  }
  // The winner of the exponential race at a position (see Race below).
  virtual TokenId Race(uint64_t position, const WeightRow& row) = 0;
};

// The noise of a round of one sequence.
class PhiloxNoise final : public Noise {
 public:
  PhiloxNoise(const RandomKey& key, uint64_t round_start) : numbers_{key, round_start} {}
  int Decide(Purpose purpose, uint64_t position, uint64_t candidate,
             absl::FunctionRef<int(double)> step) override {
    return numbers_.Decide(purpose, position, candidate, step);
  }
  TokenId Race(uint64_t position, const WeightRow& row) override;

 private:
  RoundNoise numbers_;
};

// Returns row i. Verify asks for rows in ascending order, each at most once and only when it reaches them. A
// row stays valid until Verify returns (the block rule goes back to the row after the accepted prefix). An
// error ends the verification.
using RowSource = absl::FunctionRef<absl::StatusOr<WeightRow>(int i)>;

// The verdict over a chain of `proposed` nodes.
Verdict VerdictOf(const ChainVerdict& chain, int proposed, std::vector<double> log_probabilities);

// Judges a proposal; an empty one is plain decoding. The walk goes from the root to a node with no accepted
// child. Under the coupled rule a child is accepted if its token is the target's own winner, and at
// temperature 0 if it is the argmax. Errors: those of `rows`; InvalidArgument if a node lacks a q that the
// rule needs; for a tree also if a parent is not an earlier node, and for the block rule or lenience.
absl::StatusOr<Verdict> Verify(const VerifyOptions& options, std::span<const ProposalNode> proposal,
                               RowSource rows, uint64_t round_start, Noise& noise);
absl::StatusOr<Verdict> Verify(const VerifyOptions& options, std::span<const ProposalNode> proposal,
                               RowSource rows, uint64_t round_start, const RandomKey& key);
// The part of Verify for a proposal that is not a chain.
absl::StatusOr<Verdict> VerifyTree(const VerifyOptions& options, std::span<const ProposalNode> tree,
                                   RowSource rows, uint64_t round_start, Noise& noise);

// The draft's side of a rule: the node to propose at `position`, from the draft's own row. Ratio rules draw
// the token from q, the row's `top_n` heaviest tokens as TruncateTopN gives them; the coupled rule runs the
// race over the row, and q is absent.
ProposalNode Propose(Rule rule, const WeightRow& row, int top_n, uint64_t position, Noise& noise);

// The same for a ratio rule where q is known already.
TokenId DraftSample(const Distribution& q, uint64_t position, Noise& noise);
TokenId DraftSample(const Distribution& q, const RandomKey& key, uint64_t position, uint64_t round_start);

// The coupled rule's choice: argmax over x of log w[x] + g(x), where g is Gumbel noise that is a function of
// the key, the position and the token only. It is computed as the winner of the exponential race argmin over
// x of E(x) / w[x] with E = -log(1 - U). U for token x is word x % 4 of Philox at counter (position, kGumbel,
// x / 4, 0). The winner is distributed as w / sum(w), and similar rows mostly have the same winner. Ties go
// to the lowest id; a point mass wins.
TokenId Race(const WeightRow& row, const RandomKey& key, uint64_t position);

// Returns the tokens that a draft would have proposed at `position` instead of `proposed`, best first: the
// first `count` tokens in the order of the race under the coupled rule, otherwise by weight, ties to the
// lowest id. For a point mass the order is that of the logits. Fewer if the row has no more.
std::vector<TokenId> Alternatives(Rule rule, const WeightRow& row, const RandomKey& key, uint64_t position,
                                  TokenId proposed, int count);

}  // namespace outrider
