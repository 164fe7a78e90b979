#include "draft_service/draft_service.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <utility>

#include "common/rpc/convert.h"
#include "common/serve/item_service.h"
#include "common/spec/status.h"
#include "draft_service/draft_sampler.h"
#include "outrider/v1/draft.grpc.pb.h"

namespace outrider {
namespace {

void SetNext(TokenId token, v1::ProposeResult* result) {
  result->mutable_next()->set_token(static_cast<uint32_t>(token));
  result->mutable_next()->set_parent(-1);
}

void FillResult(const Answer& answer, v1::ProposeResult* result) {
  if (!answer.status.ok()) return;
  SerializeProposal(answer.proposal, result->mutable_nodes());
  if (answer.next) SetNext(*answer.next, result);
  // A node has no alternatives where only one token is allowed.
  const bool any = std::any_of(answer.proposal.begin(), answer.proposal.end(),
                               [](const ProposalNode& node) { return !node.alternatives.empty(); });
  for (const ProposalNode& node : answer.proposal) {
    if (node.confidence > 0) result->add_confidence(node.confidence);
    if (any)
      result->add_alternatives()->mutable_ids()->Add(node.alternatives.begin(), node.alternatives.end());
  }
}

// Makes `work` post its first drawn token before the proposal is drafted.
void PostNext(const v1::SequenceUpdate& update, const std::shared_ptr<Outbox<v1::ProposeResponse>>& results,
              WorkItem& work) {
  work.on_next = [results, id = update.sequence_id(), round = update.round()](TokenId next) {
    v1::ProposeResult result;
    result.set_sequence_id(id);
    result.set_round(round);
    SetNext(next, &result);
    result.set_partial(true);
    results->Post(std::move(result));
  };
}

// More bins than anybody needs to tell confidences apart.
constexpr size_t kMaxBins = 256;
// More alternatives than anybody drafts branches for.
constexpr size_t kMaxAlternatives = 16;

absl::Status CheckRanges(const v1::ProposeItem& item, const v1::ServerInfo& info, size_t committed) {
  absl::Status status;
  const auto check = [&status](absl::string_view reason, absl::string_view field, size_t value, size_t most,
                               absl::string_view unit = "") {
    if (value <= most) return;
    status.Update(InvalidFor(reason, field, ": ", value, unit, "; allowed: 0 to ", most));
  };
  check("K_OUT_OF_RANGE", "draft_tokens", item.draft_tokens(), info.max_draft_tokens());
  check("STOP_OUT_OF_RANGE", "stop.acceptance", static_cast<size_t>(item.stop().acceptance_size()), kMaxBins,
        " entries");
  check("ASSUMED_OUT_OF_RANGE", "assumed_tokens", item.assumed_tokens(), committed);
  check("ALTERNATIVES_OUT_OF_RANGE", "alternatives", item.alternatives(), kMaxAlternatives);
  return status;
}

absl::StatusOr<TreeShape> ParseTree(const v1::ProposeItem& item, const v1::ServerInfo& info) {
  TreeShape shape = OUTRIDER_TRY(ParseShape(item.tree()));
  const int nodes = MaxNodes(shape, static_cast<int>(item.draft_tokens()));
  if (nodes > static_cast<int>(info.max_tree_nodes())) {
    return InvalidFor("TREE_OUT_OF_RANGE", "tree: ", nodes, " nodes; allowed: 0 to ", info.max_tree_nodes());
  }
  if (item.has_stop() || item.draw_next() || item.alternatives() > 0) {
    return InvalidFor("TREE_OUT_OF_RANGE", "tree: not with stop, draw_next or alternatives");
  }
  return shape;
}

// Fills in work.work: K tokens to draft, or as many as fit the context.
absl::Status ParsePropose(const v1::ProposeItem& item, const v1::ServerInfo& info, WorkItem& work) {
  if (work.params != nullptr && work.params->draft_temperature) {
    auto params = std::make_shared<SequenceParams>(*work.params);
    params->sampling.temperature = *params->draft_temperature;
    work.params = std::move(params);
  }
  const size_t n = work.committed();
  OUTRIDER_TRY(CheckRanges(item, info, n));
  work.branch = item.assumed_tokens() > 0 || item.draw_next();
  // The last drafted token is never computed, so the cache ends up with n + K - 1 tokens.
  // A token that is drawn first takes room too.
  const size_t room = n < info.max_context() ? info.max_context() - n : 0;
  const bool draw_next = item.draw_next() && room > 0;
  const size_t k = std::min<size_t>(item.draft_tokens(), draw_next ? room - 1 : room);
  if (k > 0 || draw_next) {
    ProposeWork propose{.draft_tokens = static_cast<int>(k),
                        .draw_next = draw_next,
                        .alternatives = static_cast<int>(item.alternatives())};
    if (item.has_stop()) {
      const auto& acceptance = item.stop().acceptance();
      propose.stop =
          DraftStop{.acceptance = {acceptance.begin(), acceptance.end()}, .least = item.stop().least()};
    }
    if (item.has_tree()) propose.tree = OUTRIDER_TRY(ParseTree(item, info));
    work.work = std::move(propose);
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<StreamService> MakeDraftService(Worker& worker, const v1::ServerInfo& info,
                                                GrammarCache* grammars, Tracer* tracer, int default_top_n) {
  using Raw = v1::Draft::WithRawMethod_Propose<v1::Draft::Service>;
  using Service = ItemService<Raw, v1::ProposeRequest, v1::ProposeResponse, &Raw::RequestPropose>;
  return std::make_unique<Service>(
      worker, info, std::make_unique<GrammarGate>(worker, grammars, UntilCompiled::kGoWithout),
      [&worker, &info, tracer, default_top_n](const v1::DraftItem& item, const Service::Results& results,
                                              GrammarGate& gate) {
        if (item.has_promote()) {
          const auto id = ParseSequenceId(item.promote().sequence_id());
          if (id.ok()) worker.Promote(*id, DeadlineOf(item.promote().budget()));
          return;
        }
        const v1::ProposeItem& propose = item.propose();
        SubmitItem(
            item.has_propose() ? &propose.sequence() : nullptr, static_cast<int>(info.vocab_size()),
            default_top_n,
            [&](WorkItem& work) {
              if (propose.draw_next()) PostNext(propose.sequence(), results, work);
              return ParsePropose(propose, info, work);
            },
            FillResult, results, gate, StartItemSpan(tracer, "draft", propose.sequence()));
      });
}

ModelServiceSpec DraftSpec() {
  // At most 600 bytes per drafted token. docs/performance.md says what the truncation costs in acceptance.
  const auto top_n = std::make_shared<int>(64);
  const auto draft = std::make_shared<DraftOptions>();
  return {
      .name = "draft",
      .listen = "127.0.0.1:7071",
      .role = ModelRole::kDraft,
      .define_flags =
          [top_n, draft](CLI::App& app, RunnerOptions& runner) {
            app.add_option("--top-n", *top_n,
                           "tokens kept of a distribution unless a request says otherwise; as many as the "
                           "vocabulary or more: all")
                ->check(CLI::Range(1, 1 << 30));
            app.add_option("--frequent-tokens", runner.frequent_tokens,
                           "propose only so many tokens, the first of frequent_tokens.json in the model's "
                           "folder, and those of the text, which makes the head smaller; 0: all")
                ->check(CLI::Range(0, 1 << 24));
            app.add_option(
                   "--lookup-tokens", draft->lookup_tokens,
                   "compute up to so many tokens of a proposal at once, as guessed from the text; changes "
                   "no proposal; 0: one at a time")
                ->check(CLI::Range(0, 16));
            app.add_option("--parallel-draft", draft->parallel_tokens,
                           "draft so many tokens in one forward pass, with a model that was trained to and "
                           "names its mask_token_id; above 1 it guesses nothing")
                ->check(CLI::Range(1, 64));
          },
      .make_sampler = [draft](const v1::ServerInfo& info,
                              const ModelConfig& model) -> absl::StatusOr<std::unique_ptr<Sampler>> {
        DraftOptions options = *draft;
        if (options.parallel_tokens > 1) {
          if (!model.mask_token_id) {
            return Invalid("--parallel-draft ", options.parallel_tokens, ": ", info.model(),
                           " names no mask_token_id");
          }
          options.mask = *model.mask_token_id;
        }
        return std::make_unique<DraftSampler>(options);
      },
      .make_service =
          [top_n](Worker& worker, const v1::ServerInfo& info, GrammarCache* grammars, Tracer* tracer) {
            return MakeDraftService(worker, info, grammars, tracer, *top_n);
          }};
}

}  // namespace outrider
