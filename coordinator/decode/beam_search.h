// Beam search: which texts are followed, which are finished, and when to stop.
#pragma once

#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "common/spec/distribution.h"
#include "common/spec/proposal.h"
#include "common/spec/types.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

struct BeamSearchOptions {
  int width = 1;  // w
  double length_penalty = 1;
  v1::BeamStop stop = v1::BEAM_STOP_AUTO;
  std::vector<TokenId> end_ids = {};  // a text ends at the first of these ids
  int max_tokens = 1;
};

// The arithmetic of a search, without servers. It has the semantics of Hugging Face transformers, except that
// sums are in double precision. Equal scores are ordered by beam, best first, then by token. One thread.
class BeamSearch {
 public:
  // A text that the search follows. `log_probability` is the sum over its tokens.
  struct Live {
    std::vector<TokenId> tokens;
    double log_probability = 0;
    int parent = 0;  // index among the live texts before the last step
  };
  struct Finished {
    std::vector<TokenId> tokens;  // includes the end id, if one ended the text
    double score = 0;             // log-probability / tokens^length_penalty
  };

  explicit BeamSearch(BeamSearchOptions options) : options_(std::move(options)) {}

  const BeamSearchOptions& options() const { return options_; }

  // How many tokens of a row a step may need: `width` that go on, besides all that may end a text.
  static int RowSize(const BeamSearchOptions& options) {
    return options.width + static_cast<int>(options.end_ids.size());
  }

  // Appends a token to each live text. rows[i] follows live()[i]: RowSize tokens, or all. Only if not over().
  void Step(std::span<const CandidateRow* const> rows);

  bool over() const { return live_.empty() || over_; }
  // At most `width`, best first: the empty text before the first step, none once all have max_tokens.
  const std::vector<Live>& live() const { return live_; }
  // At most `width`, best first. Texts with equal scores are in the order in which they were finished.
  const std::vector<Finished>& finished() const { return finished_; }

 private:
  struct Candidate {
    int beam = 0;
    TokenId token = 0;
    double log_probability = 0;
  };

  std::vector<Candidate> Candidates(std::span<const CandidateRow* const> rows) const;
  double Score(double log_probability, size_t tokens) const {
    return log_probability / std::pow(static_cast<double>(tokens), options_.length_penalty);
  }
  void Finish(std::vector<TokenId> tokens, double log_probability);
  bool CanImprove() const;

  const BeamSearchOptions options_;
  std::vector<Live> live_{Live()};
  std::vector<Finished> finished_;
  bool over_ = false;
};

// The target's rows for one live text and for the tokens drafted after it.
struct BeamRows {
  const Proposal* proposal = nullptr;  // only tokens and parents matter
  std::span<const CandidateRow> rows;  // after the text, then after each node
};

// Returns the path of nodes, from the root down, that spells the longest possible prefix of `tokens`.
std::vector<int> PathAlong(const Proposal& proposal, std::span<const TokenId> tokens);

struct BeamProgress {
  int steps = 0;
  std::vector<int> origins;  // for each live text, the index of the old text that it extends
};

// Takes every step that the rows cover. `beams` are those of search.live(), in the same order. A step is
// covered if each live text before it is an old text or a drafted node, since the target returned a row after
// each of these. A call thus takes at least one step (Leviathan et al., arXiv 2211.17192, appendix A.4).
BeamProgress AdvanceBeams(std::span<const BeamRows> beams, BeamSearch& search);

}  // namespace outrider
