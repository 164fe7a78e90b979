#include "coordinator/decode/beam_loop.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace outrider {

// One text that the search follows: its sequences on draft and target.
struct BeamLoop::LiveText final : Decoding {
  // The text begins as the prompt, followed by `tokens`.
  LiveText(const DecodeParts& the_parts, const Request& request, std::span<const TokenId> tokens,
           Clock::time_point received, Clock::time_point deadline, const Fork& fork)
      : Decoding(the_parts, request, received, deadline, fork) {
    generation.Extend(tokens);
    parts.policy->Begin();
  }
  ~LiveText() { parts.policy->End(); }

  // Lets the draft propose tokens unless `length` is 0. Then asks the target for the likeliest tokens after
  // the text and after each drafted node. Errors are those of TargetClient::Verify.
  asio::awaitable<absl::Status> Verify(DraftLength length) {
    if (stopped) co_return absl::CancelledError("cancelled");
    proposal.clear();
    if (length.most > 0) {
      v1::ItemTiming ignored;
      drafter->Begin(length);
      proposal = co_await drafter->Take(&ignored);
    }
    absl::StatusOr<TargetAnswer> found = co_await target.Verify(proposal);
    if (!found.ok()) co_return found.status();
    answer = *std::move(found);
    co_return absl::OkStatus();
  }

  // Appends `tokens` to the text. The first of them may be on a path of the last Verify's proposal.
  void Extend(std::span<const TokenId> tokens) {
    const size_t n = generation.size();
    Verdict verdict;
    verdict.path = PathAlong(proposal, tokens);
    drafter->OnVerdict(n, verdict);
    target.OnExtended(n, verdict.path.size());
    generation.Extend(tokens);
  }

  Proposal proposal;    // of the last Verify
  TargetAnswer answer;  // of the last Verify, if it was OK
};

BeamLoop::BeamLoop(const DecodeParts& parts, BeamChoices* choices, Request request,
                   Clock::time_point received, Clock::time_point deadline)
    : parts_(parts),
      choices_(choices),
      request_(std::move(request)),
      received_(received),
      deadline_(deadline),
      search_({.width = static_cast<int>(request_.beam->width()),
               .length_penalty = request_.beam->length_penalty(),
               .stop = request_.beam->stop(),
               .end_ids = request_.end_ids,
               .max_tokens = request_.max_tokens}),
      verifying_(parts.executor) {
  stats_.set_exact(true);
}

BeamLoop::~BeamLoop() = default;

std::unique_ptr<BeamLoop::LiveText> BeamLoop::MakeText(std::span<const TokenId> tokens,
                                                       const Fork& fork) const {
  return std::make_unique<LiveText>(parts_, request_, tokens, received_, deadline_, fork);
}

asio::awaitable<absl::Status> BeamLoop::Run() {
  texts_.push_back(MakeText({}, Fork()));
  if (request_.draft_tokens > 0) texts_[0]->drafter->Begin({});
  const std::vector<DraftLength> nothing(1);
  absl::Status status = co_await VerifyAll(nothing);
  if (status.ok()) cached_prompt_tokens_ = texts_[0]->answer.prefix_hit;
  if (status.ok()) Advance();
  while (status.ok() && !search_.over()) status = co_await Round();
  texts_.clear();
  co_return status;
}

asio::awaitable<absl::Status> BeamLoop::Round() {
  const Clock::time_point start = Clock::now();
  MeasuredChoice& plain = (*choices_)[search_.options().width];
  const bool drafts = request_.draft_tokens > 0 && (!request_.adaptive || !plain.Next());
  const std::vector<DraftLength> lengths = Lengths(drafts);
  if (absl::Status status = co_await VerifyAll(lengths); !status.ok()) co_return status;
  const int steps = Advance();
  if (request_.adaptive) plain.Observe(!drafts, Seconds(Clock::now() - start), steps);
  co_return absl::OkStatus();
}

std::vector<DraftLength> BeamLoop::Lengths(bool drafts) const {
  std::vector<DraftLength> lengths(texts_.size());
  // The target's rows allow one step beyond what was drafted.
  const int k = std::min(request_.draft_tokens, request_.max_tokens - steps() - 1);
  if (!drafts || k <= 0) return lengths;
  // More of the next texts continue likely ones, so each text gets nodes in proportion to its probability.
  const std::vector<BeamSearch::Live>& live = search_.live();
  double sum = 0;
  for (const BeamSearch::Live& text : live) sum += std::exp(text.log_probability - live[0].log_probability);
  const double nodes = static_cast<double>(request_.beam->draft_width()) * k;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const double share = std::exp(live[i].log_probability - live[0].log_probability) / sum;
    lengths[i].most = k;
    if (request_.max_tree_nodes == 0) continue;
    const int own = static_cast<int>(std::lround(nodes * share));
    lengths[i].tree = NodeBudget{std::clamp(own, 1, request_.max_tree_nodes)};
  }
  return lengths;
}

asio::awaitable<absl::Status> BeamLoop::VerifyAll(const std::vector<DraftLength>& lengths) {
  if (stopped_) co_return absl::CancelledError("cancelled");
  const auto on_verified = [this](const std::exception_ptr& exception, absl::Status status) {
    if (exception && !exception_) exception_ = exception;
    if (failure_.ok()) failure_ = std::move(status);
    // If one fails, the others are of no use.
    if (exception_ || !failure_.ok()) Stop();
  };
  try {
    for (size_t i = 0; i < texts_.size(); ++i) verifying_.Spawn(texts_[i]->Verify(lengths[i]), on_verified);
  } catch (...) {
    on_verified(std::current_exception(), absl::OkStatus());
  }
  co_await verifying_.Wait();
  if (exception_) std::rethrow_exception(exception_);
  co_return failure_;
}

int BeamLoop::Advance() {
  std::vector<BeamRows> rows;
  for (const auto& text : texts_) rows.push_back({&text->proposal, text->answer.candidates});
  const BeamProgress progress = AdvanceBeams(rows, search_);
  Count(rows, progress.steps);
  if (search_.over()) return progress.steps;

  std::vector<Fork> forks;
  for (const auto& text : texts_) forks.push_back({text->generation.sequence_id(), text->generation.size()});
  std::vector<std::unique_ptr<LiveText>> next;
  const auto new_tokens = static_cast<size_t>(progress.steps);
  for (size_t i = 0; i < search_.live().size(); ++i) {
    const std::vector<TokenId>& tokens = search_.live()[i].tokens;
    const auto origin = static_cast<size_t>(progress.origins[i]);
    // The likeliest continuation of an old text keeps its sequences. The others begin as copies of them.
    if (texts_[origin] != nullptr) {
      texts_[origin]->Extend(std::span(tokens).last(new_tokens));
      next.push_back(std::move(texts_[origin]));
    } else {
      next.push_back(MakeText(tokens, forks[origin]));
    }
  }
  texts_ = std::move(next);
  return progress.steps;
}

void BeamLoop::Count(const std::vector<BeamRows>& rows, int steps) {
  int depth = 0;
  bool is_tree = false;
  for (const BeamRows& text : rows) {
    depth = std::max(depth, Depth(*text.proposal));
    is_tree = is_tree || !IsChain(*text.proposal);
  }
  stats_.set_rounds(stats_.rounds() + 1);
  // The last step is the one that the target's rows would have allowed without a draft.
  const int covered = steps - 1;
  kinds_.insert(kinds_.end(), static_cast<size_t>(covered), v1::TOKEN_KIND_ACCEPTED);
  kinds_.push_back(depth == 0         ? v1::TOKEN_KIND_PLAIN
                   : covered == depth ? v1::TOKEN_KIND_BONUS
                                      : v1::TOKEN_KIND_CORRECTED);
  if (depth == 0) return;
  RoundTally tally{.is_tree = is_tree, .accepted = covered};
  for (int level = 0; level < depth; ++level) tally.depths.push_back(level);
  AddTally(tally, &stats_);
}

std::vector<BeamLoop::Text> BeamLoop::Found() const {
  std::vector<Text> found;
  v1::SpeculationStats stats = stats_;
  for (const BeamSearch::Finished& text : search_.finished()) {
    if (found.size() == static_cast<size_t>(request_.samples)) break;
    Request request = request_;
    request.echo = request.echo && found.empty();
    Generation generation(std::move(request), parts_.tokenizer, received_);
    generation.OnPromptCached(cached_prompt_tokens_);
    v1::GenerateResponse chunk = generation.CommitFound(text.tokens, kinds_, text.score, stats);
    chunk.set_sample(static_cast<uint32_t>(found.size()));
    found.push_back({std::move(chunk), generation.progress()});
    // The statistics are those of the whole search, so only its first text reports them.
    stats = v1::SpeculationStats();
    stats.set_exact(true);
  }
  return found;
}

void BeamLoop::Stop() {
  stopped_ = true;
  for (const auto& text : texts_) {
    if (text != nullptr) text->Stop();
  }
}

}  // namespace outrider
