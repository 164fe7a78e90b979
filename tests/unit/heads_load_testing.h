// Helpers for tests that load heads.
#pragma once

#include <nlohmann/json.hpp>

#include "common/engine/decoder/safetensors.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/engine/runner.h"
#include "heads_testing.h"
#include "worker_trees_testing.h"

namespace outrider::testing {

inline absl::StatusOr<std::unique_ptr<Runner>> LoadHeads(const std::vector<std::string>& folders) {
  RunnerOptions options = TreeModel(64, 16, 64);
  options.heads = folders;
  return Runner::Load(options);
}

// The proposals that follow the verdicts of some texts, as chains, at temperatures 0 and 1. `texts` receives
// the tokens before each.
inline std::vector<Proposal> ProposalsOf(const HeadFiles& files, ProposerKind kind,
                                         const SamplingParams& sampling = {},
                                         std::vector<std::vector<TokenId>>* texts = nullptr) {
  const HeadFolders folders({files});
  absl::StatusOr<std::unique_ptr<Runner>> runner = LoadHeads(folders.paths());
  EXPECT_TRUE(runner.ok()) << runner.status();
  if (!runner.ok()) return {};
  Worker worker(*std::move(runner), std::make_unique<RejectionSampler>(), WorkerOptions(), Worker::Hooks());
  std::vector<Proposal> proposals;
  for (const double temperature : {0.0, 1.0}) {
    SequenceParams params{.prompt_length = 1, .draft_top_n = 8, .proposer = kind};
    params.sampling = sampling;
    params.sampling.temperature = temperature;
    params.key.seed = temperature > 0 ? 1 : 0;
    for (int text = 0; text < 3; ++text) {
      VerifyWork verify;
      verify.propose = ProposalRequest{.draft_tokens = 3};
      const TreeReply reply =
          AskTree(worker, TreeItem(proposals.size() + 1, 1, Text(5 + 20 * text, text), 0,
                                   std::make_shared<SequenceParams>(params), std::move(verify)));
      EXPECT_TRUE(reply.status.ok()) << reply.status;
      EXPECT_FALSE(reply.proposal.empty());
      proposals.push_back(reply.proposal);
      if (texts == nullptr) continue;
      texts->push_back(Text(5 + 20 * text, text));
      texts->back().push_back(reply.verdict->token);
    }
  }
  return proposals;
}

// Whether the proposals are the same, bit by bit.
inline bool Same(const std::vector<Proposal>& a, const std::vector<Proposal>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Proposal& x, const Proposal& y) {
    return x.size() == y.size() && BeginsWith(x, y);
  });
}

// The target's own head, which is its embedding.
inline HeadTensor TargetHead() {
  const absl::StatusOr<SafeTensors> tensors = SafeTensors::Open(kTreeModel);
  EXPECT_TRUE(tensors.ok()) << tensors.status();
  const auto view = tensors->Get("model.embed_tokens.weight", {kHeadVocab, kHeadHidden});
  EXPECT_TRUE(view.ok()) << view.status();
  HeadTensor head = Filled({kHeadVocab, kHeadHidden}, 0);
  ReadElements(*view, 0, static_cast<int>(head.values.size()), head.values.data());
  return head;
}

// The error for the last of these folders, which must be one line. PATH replaces the folder.
inline std::string ErrorOf(const std::vector<std::string>& paths,
                           absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const absl::Status status = LoadHeads(paths).status();
  EXPECT_EQ(status.code(), code) << status;
  std::string message(status.message());
  EXPECT_EQ(message.find('\n'), std::string::npos);
  const size_t at = message.find(paths.back());
  EXPECT_NE(at, std::string::npos) << message;
  if (at != std::string::npos) message.replace(at, paths.back().size(), "PATH");
  return message;
}
inline std::string ErrorOf(const std::vector<HeadFiles>& all) {
  const HeadFolders folders(all);
  return ErrorOf(folders.paths());
}
inline HeadFiles With(HeadFiles files, const char* field, const nlohmann::json& value) {
  files.config[field] = value;
  return files;
}

}  // namespace outrider::testing
