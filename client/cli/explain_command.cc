// Shows speculative decoding token by token: which probabilities are compared, and which tokens are drawn.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/flags.h"
#include "client/cli/local_services.h"
#include "client/cli/render.h"
#include "common/engine/runner.h"
#include "common/gguf/model_path.h"
#include "common/spec/controls.h"
#include "common/spec/residual.h"
#include "common/spec/status.h"
#include "common/spec/verify.h"
#include "common/text/tokenizer.h"

namespace outrider {
namespace {

constexpr int kBars = 6;         // tokens of a distribution that are shown
constexpr int kBarColumns = 30;  // length of the bar for a probability of 1

// A model with one text in its cache.
class CachedModel {
 public:
  static absl::StatusOr<CachedModel> Load(const std::string& model, size_t most_tokens) {
    RunnerOptions options;
    options.model_dir = model;
    options.max_batch_rows = static_cast<int>(most_tokens);
    options.kv_blocks = static_cast<int>(most_tokens) / options.block_size + 1;
    return CachedModel(OUTRIDER_TRY(Runner::Load(options)));
  }

  // The logits after each of the last `rows` tokens of the text. Valid until the next call.
  absl::StatusOr<LogitsView> Logits(std::span<const TokenId> text, int rows) {
    const auto same = std::mismatch(cached_.begin(), cached_.end(), text.begin(), text.end());
    const size_t kept = std::min<size_t>(static_cast<size_t>(same.first - cached_.begin()),
                                         text.size() - static_cast<size_t>(rows));
    const SequenceRows batch = {.tokens = absl::MakeConstSpan(text.data() + kept, text.size() - kept),
                                .position = static_cast<int>(kept),
                                .blocks = blocks_,
                                .logit_rows = rows};
    const absl::StatusOr<LogitsView> logits = runner_->Forward({batch});
    if (logits.ok()) cached_.assign(text.begin(), text.end());
    return logits;
  }

  int vocab() const { return runner_->config().decoder.vocab_size; }

 private:
  explicit CachedModel(std::unique_ptr<Runner> runner)
      : runner_(std::move(runner)), blocks_(static_cast<size_t>(runner_->kv_blocks())) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
  }

  std::unique_ptr<Runner> runner_;
  std::vector<BlockId> blocks_;
  std::vector<TokenId> cached_;
};

class Explanation {
 public:
  Explanation(const ExplainFlags& flags, const Tokenizer& tokenizer, CachedModel target, CachedModel draft,
              Controls target_controls, Controls draft_controls)
      : flags_(flags),
        tokenizer_(tokenizer),
        target_(std::move(target)),
        draft_(std::move(draft)),
        target_controls_(std::move(target_controls)),
        draft_controls_(std::move(draft_controls)),
        key_{flags.seed, 0} {}

  // Runs and prints a round, and appends its tokens to `text`. Round 0, the prompt's, has no draft.
  absl::Status Round(int number, std::vector<TokenId>& text) {
    const size_t begun = text.size();
    const Proposal proposal = OUTRIDER_TRY(Draft(text, number == 0 ? 0 : flags_.draft_tokens));
    std::vector<TokenId> drafted = text;
    for (const ProposalNode& node : proposal) drafted.push_back(node.token);
    const LogitsView logits = OUTRIDER_TRY(target_.Logits(drafted, static_cast<int>(proposal.size()) + 1));
    std::vector<WeightRow> rows;
    for (int i = 0; i < logits.rows; ++i) {
      const std::span<const TokenId> context(drafted.data(), begun + static_cast<size_t>(i));
      const absl::Span<float> row = logits.row(i);
      rows.push_back(OUTRIDER_TRY(target_controls_.Apply(context, {row.data(), row.size()})));
    }
    const Verdict verdict = OUTRIDER_TRY(Verify(
        {}, proposal, [&](int i) { return absl::StatusOr<WeightRow>(rows[static_cast<size_t>(i)]); }, begun,
        key_));
    if (number == 0) {
      absl::PrintF("The prompt, a pass of the target of its own\n");
    } else {
      absl::PrintF("\nRound %d, after %s\n", number, Shown(text.back()));
      absl::PrintF("  drafted: %d; positions for which one pass of the target gives p: %d\n", proposal.size(),
                   rows.size());
    }
    for (size_t i = 0; i < verdict.path.size(); ++i) {
      Judge(i, proposal[i], rows[i], begun, /*stands=*/true);
      text.push_back(proposal[i].token);
    }
    const size_t accepted = verdict.path.size();
    if (accepted < proposal.size()) {
      Judge(accepted, proposal[accepted], rows[accepted], begun, /*stands=*/false);
      Correct(proposal[accepted], rows[accepted], begun + accepted, begun, verdict.token);
    } else {
      if (number > 0) absl::PrintF("  all of them stand, and p for the position behind them is there too\n");
      Bars("p", [&](TokenId token) { return rows[accepted](token); });
      Drawn(number > 0 ? "bonus" : "first token", Purpose::kBonus, rows[accepted].point_mass >= 0,
            begun + accepted, begun, verdict.token);
    }
    text.push_back(verdict.token);
    absl::PrintF("  this pass of the target gave %d: %s\n", text.size() - begun,
                 Quoted({text.data() + begun, text.size() - begun}));
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<Proposal> Draft(std::vector<TokenId> text, int tokens) {
    PhiloxNoise noise(key_, text.size());
    Proposal proposal;
    for (int i = 0; i < tokens; ++i) {
      const LogitsView logits = OUTRIDER_TRY(draft_.Logits(text, 1));
      const absl::Span<float> row = logits.row(0);
      const WeightRow q = OUTRIDER_TRY(draft_controls_.Apply(text, {row.data(), row.size()}));
      ProposalNode node = Propose(Rule::kToken, q, /*top_n=*/0, text.size(), noise);
      text.push_back(node.token);
      AppendToChain(node.token, std::move(node.q), proposal);
    }
    return proposal;
  }

  void Judge(size_t i, const ProposalNode& node, const WeightRow& p, size_t begun, bool stands) const {
    const double px = p(node.token), qx = node.q(node.token);
    absl::PrintF("  %d  x = %-14s q(x) = %.4f  p(x) = %.4f  ", i + 1, Shown(node.token), qx, px);
    if (p.point_mass >= 0) {
      absl::PrintF("%s\n",
                   stands ? "the target's own choice: accepted" : "not the target's choice: rejected");
      return;
    }
    const double u = Uniform(key_, begun + i, Purpose::kAccept, 0, begun);
    absl::PrintF("u = %.4f  u q(x) = %.4f %s p(x): %s", u, u * qx,
                 stands ? "<" : ">=", stands ? "accepted" : "rejected");
    absl::PrintF("  (alpha here: %.3f)\n", Overlap(p, node.q));
  }

  void Correct(const ProposalNode& node, const WeightRow& p, size_t position, size_t begun,
               TokenId token) const {
    Residual rest(p);
    rest.Subtract(node.q);
    absl::PrintF("  in its place comes a token of what q left of p: max(p - q, 0), made to sum to 1\n");
    Bars("rest", [&](TokenId each) { return rest.empty() ? p(each) : rest(each); });
    Drawn("correction", Purpose::kResidual, p.point_mass >= 0, position, begun, token);
  }

  void Drawn(const char* what, Purpose purpose, bool is_certain, size_t position, size_t begun,
             TokenId token) const {
    if (is_certain) return absl::PrintF("  %s: %s, which has all of it\n", what, Shown(token)), void();
    absl::PrintF("  %s: %s, drawn by u = %.4f\n", what, Shown(token),
                 Uniform(key_, position, purpose, 0, begun));
  }

  // Prints the largest probabilities of a distribution.
  template <typename Probability>
  void Bars(const char* name, const Probability& probability) const {
    std::vector<std::pair<double, TokenId>> tokens;
    for (TokenId token = 0; token < target_.vocab(); ++token) tokens.emplace_back(-probability(token), token);
    const auto end = tokens.begin() + std::min<ptrdiff_t>(kBars, std::ssize(tokens));
    std::partial_sort(tokens.begin(), end, tokens.end());
    for (const auto& [negative, token] : std::span(tokens.begin(), end)) {
      if (negative == 0) break;
      const auto length = static_cast<size_t>(std::max(1.0, -negative * kBarColumns));
      absl::PrintF("     %4s(%s)%s %.4f %s\n", name, Shown(token),
                   std::string(14 - std::min<size_t>(14, Shown(token).size()), ' '), -negative,
                   std::string(length, '#'));
    }
  }

  std::string Shown(TokenId token) const {
    return absl::StrCat("\"", WithoutControls(absl::Utf8SafeCEscape(tokenizer_.TokenText(token))), "\"");
  }
  std::string Quoted(std::span<const TokenId> tokens) const {
    std::string text;
    for (const TokenId token : tokens) absl::StrAppend(&text, Shown(token), " ");
    return text;
  }

  const ExplainFlags& flags_;
  const Tokenizer& tokenizer_;
  CachedModel target_, draft_;
  Controls target_controls_, draft_controls_;
  const RandomKey key_;
};

}  // namespace

absl::StatusOr<int> RunExplain(const ExplainFlags& flags) {
  const std::filesystem::path shipped = ShippedModels();
  const std::string target_model =
      OUTRIDER_TRY(ModelOr(shipped / "tiny-target", flags.target_model, "--model"));
  const std::string draft_model =
      OUTRIDER_TRY(ModelOr(shipped / "tiny-draft", flags.draft_model, "--draft-model"));
  const auto tokenizer = OUTRIDER_TRY(Tokenizer::Load(FileOf(target_model, "tokenizer.json")));
  std::vector<TokenId> text = OUTRIDER_TRY(tokenizer->Encode(flags.prompt, /*add_special_tokens=*/true));
  if (text.empty()) return Invalid("the prompt has no token");
  const size_t most = text.size() + 1 + static_cast<size_t>(flags.rounds * (flags.draft_tokens + 1));
  CachedModel target = OUTRIDER_TRY(CachedModel::Load(target_model, most));
  CachedModel draft = OUTRIDER_TRY(CachedModel::Load(draft_model, most));
  const SamplingParams sampling = {
      .temperature = flags.temperature, .top_k = flags.top_k, .top_p = flags.top_p};
  Controls of_target = OUTRIDER_TRY(Controls::Create(sampling, text.size(), target.vocab()));
  Controls of_draft = OUTRIDER_TRY(Controls::Create(sampling, text.size(), draft.vocab()));
  if (target.vocab() != draft.vocab()) {
    return Invalid("the models do not go together: ", target.vocab(), " and ", draft.vocab(), " tokens");
  }
  Explanation explanation(flags, *tokenizer, std::move(target), std::move(draft), std::move(of_target),
                          std::move(of_draft));
  const size_t prompt = text.size();
  for (int round = 0; round <= flags.rounds; ++round) OUTRIDER_TRY(explanation.Round(round, text));
  absl::PrintF("\n%s%s\ntokens: %d, passes of the target: %d\n", flags.prompt,
               WithoutControls(tokenizer->Decode({text.data() + prompt, text.size() - prompt}, true)),
               text.size() - prompt, flags.rounds + 1);
  return 0;
}

}  // namespace outrider
