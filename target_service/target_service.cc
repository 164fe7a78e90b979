#include "target_service/target_service.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rpc/convert.h"
#include "common/rpc/drafters.h"
#include "common/rpc/error.h"
#include "common/serve/item_service.h"
#include "common/spec/status.h"
#include "outrider/v1/target.grpc.pb.h"
#include "target_service/rejection_sampler.h"

namespace outrider {
namespace {

// Tokens kept of a proposal's distributions if the request does not say. Of 64 to all 4096 of SmolLM2's
// EAGLE-3, 128 and 256 were fastest at temperature 1.
constexpr int kDefaultTopN = 128;

void FillResult(const Answer& answer, v1::VerifyResult* result) {
  result->set_prefix_hit(static_cast<uint32_t>(answer.prefix_hit));
  if (!answer.status.ok()) return;
  *result->mutable_candidates() = SerializeCandidates(answer.candidates);
  result->set_propose_us(static_cast<uint32_t>(absl::ToInt64Microseconds(answer.timing.propose)));
  if (answer.verdict != nullptr) {
    *result->mutable_verdict() = SerializeVerdict(*answer.verdict);
    SerializeProposal(answer.proposal, result->mutable_verdict()->mutable_proposal());
    for (const PositionLogProbabilities& position : answer.logprobs) {
      *result->mutable_verdict()->add_logprobs() = ToProto(position);
    }
    for (const PositionLogProbabilities& position : answer.prompt_logprobs) {
      *result->add_prompt_logprobs() = ToProto(position);
    }
  }
}

// Identifies the draft within this process, so that a repeated item can be told from a different one.
uint64_t ContentHash(const v1::VerifyItem& item) {
  uint64_t hash = item.candidates();
  for (const v1::DraftNode& node : item.draft()) hash = absl::HashOf(hash, node.SerializeAsString());
  return hash;
}

// The rule for parsing the draft: only the coupled rule allows absent distributions. The sequence's own rule
// is known, and checked, only in the worker.
Rule RuleOf(const v1::VerifyItem& item) {
  return item.draft().empty() || item.draft(0).has_q() ? Rule::kToken : Rule::kCoupled;
}

// `proposal` follows n committed tokens. The token after it must fit the context too.
absl::Status CheckSize(const Proposal& proposal, size_t n, const v1::ServerInfo& info) {
  const size_t room = n + 1 < info.max_context() ? info.max_context() - 1 - n : 0;
  const size_t allowed = std::min<size_t>(room, info.max_draft_tokens());
  if (const auto depth = static_cast<size_t>(Depth(proposal)); depth > allowed) {
    return InvalidFor("DRAFT_TOO_LONG", "draft: ", depth, " tokens; allowed: 0 to ", allowed);
  }
  if (!IsChain(proposal) && proposal.size() > info.max_tree_nodes()) {
    return InvalidFor("TREE_TOO_LARGE", "draft: a tree of ", proposal.size(), " nodes; allowed: 0 to ",
                      info.max_tree_nodes());
  }
  return absl::OkStatus();
}

// INVALID_ARGUMENT, reason PROPOSER_UNKNOWN, for a proposer that this target lacks.
absl::Status CheckProposer(const WorkItem& work, const v1::ServerInfo& info) {
  if (work.params == nullptr || !work.params->proposer) return absl::OkStatus();
  std::vector<std::string> names;
  for (const v1::ProposerInfo& proposer : info.proposers()) {
    names.push_back(NameOf(proposer.proposer()));
    if (proposer.proposer() == ProposerOf(*work.params->proposer)) return absl::OkStatus();
  }
  return InvalidFor("PROPOSER_UNKNOWN", "proposer: ", NameOf(*work.params->proposer), "; this target has ",
                    names.empty() ? "none" : absl::StrJoin(names, ", "));
}

// Parses the request that the target itself propose what follows its verdict.
absl::StatusOr<ProposalRequest> ParseRequest(const v1::VerifyItem& item, const v1::ServerInfo& info) {
  const v1::ProposalRequest& propose = item.propose();
  if (item.candidates() > 0 || item.has_prompt_logprobs()) {
    return InvalidFor("PROPOSE_UNSUPPORTED", "propose: not with candidates or prompt_logprobs");
  }
  if (propose.draft_tokens() < 1 || propose.draft_tokens() > info.max_draft_tokens()) {
    return InvalidFor("K_OUT_OF_RANGE", "propose.draft_tokens: ", propose.draft_tokens(), "; allowed: 1 to ",
                      info.max_draft_tokens());
  }
  ProposalRequest request{.draft_tokens = static_cast<int>(propose.draft_tokens())};
  if (!propose.has_tree()) return request;
  TreeShape shape = OUTRIDER_TRY(ParseShape(propose.tree()));
  OUTRIDER_TRY(ValidateTreeShape(shape, static_cast<int>(info.max_tree_nodes()), request.draft_tokens));
  request.tree = std::move(shape);
  return request;
}

// Fills in work.work: a verification of the item's proposal, or only the computation of its tokens.
absl::Status ParseVerify(const v1::VerifyItem& item, const v1::ServerInfo& info, WorkItem& work) {
  OUTRIDER_TRY(CheckProposer(work, info));
  if (item.append_only()) {
    return item.has_propose() ? InvalidFor("PROPOSE_UNSUPPORTED", "propose: not with append_only")
                              : absl::OkStatus();
  }
  VerifyWork verify;
  verify.proposal =
      OUTRIDER_TRY(ParseProposal(item.draft(), RuleOf(item), static_cast<int>(info.vocab_size())));
  OUTRIDER_TRY(CheckSize(verify.proposal, work.committed(), info));
  verify.content_hash = ContentHash(item);
  if (item.candidates() > kMaxCandidates) {
    return FieldError("candidates", absl::StrCat("0 to ", kMaxCandidates), absl::StrCat(item.candidates()));
  }
  verify.candidates = static_cast<int>(item.candidates());
  if (item.has_prompt_logprobs()) {
    OUTRIDER_TRY(CheckTopLogprobs("prompt_logprobs", item.prompt_logprobs()));
    verify.prompt_logprobs = static_cast<int>(item.prompt_logprobs());
  }
  if (item.has_propose()) verify.propose = OUTRIDER_TRY(ParseRequest(item, info));
  work.work = std::move(verify);
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<StreamService> MakeTargetService(Worker& worker, const v1::ServerInfo& info,
                                                 GrammarCache* grammars, Tracer* tracer) {
  using Raw = v1::Target::WithRawMethod_Verify<v1::Target::Service>;
  using Service = ItemService<Raw, v1::VerifyRequest, v1::VerifyResponse, &Raw::RequestVerify>;
  return std::make_unique<Service>(
      worker, info, std::make_unique<GrammarGate>(worker, grammars, UntilCompiled::kWait),
      [&info, tracer](const v1::TargetItem& item, const Service::Results& results, GrammarGate& gate) {
        const int vocab_size = static_cast<int>(info.vocab_size());
        SubmitItem(
            item.has_verify() ? &item.verify().sequence() : nullptr, vocab_size,
            std::min(kDefaultTopN, vocab_size),
            [&](WorkItem& work) { return ParseVerify(item.verify(), info, work); }, FillResult, results, gate,
            StartItemSpan(tracer, "verify", item.verify().sequence()));
      });
}

ModelServiceSpec TargetSpec() {
  const auto inexact_trees = std::make_shared<bool>(false);
  return {.name = "target",
          .listen = "127.0.0.1:7072",
          .role = ModelRole::kTarget,
          .define_flags =
              [inexact_trees](CLI::App& app, RunnerOptions& runner) {
                app.add_option("--heads", runner.heads,
                               "folder of heads with which the target proposes tokens itself; may be given "
                               "several times")
                    ->type_name("DIR")
                    ->default_str("");
                app.add_flag("--inexact-trees", *inexact_trees,
                             "with an engine that rounds a tree otherwise than a chain: take trees also for "
                             "greedy decoding and the coupled rule, whose tokens may then differ from plain "
                             "decoding's");
              },
          .complete_info = [inexact_trees](v1::ServerInfo& info) { info.set_inexact_trees(*inexact_trees); },
          .make_sampler =
              [](const v1::ServerInfo& info, const ModelConfig& /*model*/) {
                return std::make_unique<RejectionSampler>(info.tree_row_invariant() || info.inexact_trees());
              },
          .make_service = MakeTargetService};
}

}  // namespace outrider
