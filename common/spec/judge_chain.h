// Draws, accepts, replaces and proposes tokens, and judges a chain under the token rule or the coupled rule.
// Host and device share this source. It alone fixes which rows and random numbers are used, in which order,
// and what is counted.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/spec/random.h"
#include "common/spec/team/exact_math.h"
#include "common/spec/types.h"

namespace outrider {

// Whether token x, sampled from q, is accepted where the target has p, for a uniform number u in [0, 1)
// (Leviathan et al., arXiv 2211.17192, Algorithm 1 and appendix A.1: with the correction from the residual,
// the emitted token has the law p). p and q give the probability of a token. The comparison is strict, so
// that a token with p(x) = 0 is never accepted, even for u = 0.
template <class P, class Q>
OUTRIDER_HD bool Accepts(double u, TokenId x, const P& p, const Q& q) {
  return u * q(x) < p(x);
}

// Draws a token by sample(u), unless one token has all of the row's mass.
template <class Sample, class Noise>
OUTRIDER_HD TokenId DrawToken(TokenId point_mass, Purpose purpose, uint64_t position, Noise& noise,
                              const Sample& sample) {
  if (point_mass >= 0) return point_mass;
  return noise.Decide(purpose, position, 0, sample);
}

// The coupled rule's token: the winner of the race, unless one token has all of the row's mass.
template <class Row, class Noise>
OUTRIDER_HD TokenId RaceForToken(const Row& row, TokenId point_mass, uint64_t position, Noise& noise) {
  return point_mass >= 0 ? point_mass : noise.Race(position, row);
}

// The token that a draft proposes at `position`.
//
// A Draft has one row, the draft's own distribution after the controls:
//   row()         the distribution
//   point_mass()  the token that has all mass; -1 if none has
//   MakeQ()       makes q from the row, exactly as it is sent to the target
//   Sample(u)     draws a token of q by inverse CDF, u in [0, 1); not for a point mass
template <class Draft, class Noise>
OUTRIDER_HD TokenId ProposeToken(Draft& draft, bool coupled, uint64_t position, Noise& noise) {
  if (coupled) return RaceForToken(draft.row(), draft.point_mass(), position, noise);
  draft.MakeQ();
  return DrawToken(draft.point_mass(), Purpose::kDraft, position, noise,
                   [&](double u) { return draft.Sample(u); });
}

// A Verdict (verdict.h) over a chain as plain data, without the log-probabilities of its tokens.
struct ChainVerdict {
  double expected_accepted = 0, expected_variance = 0;
  double surprisal = 0, entropy = 0;
  int32_t accepted = 0;  // nodes that are accepted
  TokenId token = 0;     // the token that follows them
  int32_t empty_residual = 0;

  // Counts an emitted token and the entropy of its row.
  OUTRIDER_HD void Emit(double log_probability, double row_entropy) {
    surprisal -= log_probability;
    entropy += row_entropy;
  }
};

// Whether the current node is accepted.
template <class Chain, class Noise>
OUTRIDER_HD bool NodeStands(Chain& chain, uint64_t position, Noise& noise) {
  if (chain.point_mass() >= 0) return chain.AcceptsWithoutNoise();
  return noise.Test(Purpose::kAccept, position, 0, [&](double u) { return chain.Accepts(u); });
}

// The token that replaces a rejected one.
template <class Chain, class Noise>
OUTRIDER_HD TokenId DrawCorrection(Chain& chain, uint64_t position, Noise& noise, ChainVerdict* verdict) {
  const auto rest = chain.Rest();
  verdict->empty_residual = rest.empty() ? 1 : 0;
  return DrawToken(chain.point_mass(), Purpose::kResidual, position, noise,
                   [&](double u) { return rest.Sample(u); });
}

// Judges a chain of `drafted` nodes, the first of which is at position `round_start`. Returns false, with
// `*verdict` unchanged, if a row that it reached is unusable.
//
// A Chain is at one row at a time: the target's distribution p at a node, or after the last one.
//   Reach(i)         goes to row i; false if that row is unusable
//   row()            p
//   point_mass()     the token that has all of p; -1 if none has
//   Probability(y)   p(y)
//   Entropy()        the entropy of p
//   Sample(u)        draws a token of p by inverse CDF, u in [0, 1)
//   Record(l)        takes log p(y) of the emitted token y
// At a node, whose token x was sampled from q, it also has
//   token()          x
//   Overlap()        sum over y of min(p(y), q(y)); 0 if it is not to be counted
//   Accepts(u)       the test of outrider::Accepts
//   AcceptsWithoutNoise()  replaces that test where p is a point mass
//   Rest()           norm(max(p - q, 0)): Sample(u), and empty() if rounding left nothing and p is sampled
// Noise is the class of verify.h, or has the same functions: Decide, Test, and Race over a row().
template <class Chain, class Noise>
OUTRIDER_HD bool JudgeChain(Chain& chain, int drafted, bool coupled, uint64_t round_start, Noise& noise,
                            ChainVerdict* verdict) {
  ChainVerdict v;
  bool stands = true;
  while (stands) {
    if (!chain.Reach(v.accepted)) return false;
    const uint64_t position = round_start + static_cast<uint64_t>(v.accepted);
    const bool last = v.accepted == drafted;
    if (coupled) {
      v.token = RaceForToken(chain.row(), chain.point_mass(), position, noise);
      stands = !last && v.token == chain.token();
    } else if (last) {
      v.token = DrawToken(chain.point_mass(), Purpose::kBonus, position, noise,
                          [&](double u) { return chain.Sample(u); });
      stands = false;
    } else {
      const double overlap = chain.Overlap();
      const double b = overlap < 1 ? overlap : 1.0;  // the chance that the node is accepted
      v.expected_accepted += b;
      v.expected_variance += team::Times(b, 1 - b);
      stands = NodeStands(chain, position, noise);
      v.token = stands ? chain.token() : DrawCorrection(chain, position, noise, &v);
    }
    const double log_probability = ::log(chain.Probability(v.token));
    chain.Record(log_probability);
    v.Emit(log_probability, chain.Entropy());
    if (stands) ++v.accepted;
  }
  *verdict = v;
  return true;
}

}  // namespace outrider
