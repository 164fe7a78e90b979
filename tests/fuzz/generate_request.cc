// Parses a GenerateRequest as it comes from the network, up to the coordinator's own Request.
#include "common/rpc/parse_message.h"
#include "coordinator/api/parse_request.h"
#include "tests/fuzz/target.h"

namespace outrider {
namespace {

v1::ServerInfo SmallTarget(int vocab_size) {
  v1::ServerInfo info;
  info.set_vocab_size(static_cast<uint32_t>(vocab_size));
  info.set_max_context(256);
  info.set_kv_blocks(64);
  info.set_block_size(16);
  info.set_max_draft_tokens(16);
  info.set_max_tree_nodes(12);
  info.add_eos_ids(0);
  for (const v1::Proposer proposer : {v1::PROPOSER_EAGLE, v1::PROPOSER_BLOCKWISE}) {
    info.add_proposers()->set_proposer(proposer);
    info.mutable_proposers()->rbegin()->set_max_draft_tokens(4);
  }
  return info;
}

RequestDefaults Defaults() {
  RequestDefaults defaults;
  defaults.max_samples = 4;
  defaults.chat_template =
      ChatTemplate::Parse("{% for m in messages %}{{ m.role + ':' + m.content | trim }}{% endfor %}", {})
          .value();
  return defaults;
}

}  // namespace

void FuzzTarget(std::string_view input) {
  static const auto tokenizer = Tokenizer::Load("tests/data/text/gpt2-small.tokenizer.json").value();
  static const v1::ServerInfo target = SmallTarget(tokenizer->vocab_size());
  static const RequestDefaults defaults = Defaults();
  const grpc::Slice slice(input.data(), input.size());
  v1::GenerateRequest message;
  if (!ParseMessage(grpc::ByteBuffer(&slice, 1), &message).ok()) return;
  const absl::StatusOr<Request> request = ParseRequest(message, defaults, *tokenizer, target);
  if (!request.ok()) {
    Require(request.status().code() == absl::StatusCode::kInvalidArgument, "what is wrong is the client's");
    return;
  }
  Require(!request->prompt.empty() && request->prompt.size() < 256, "a prompt leaves room for an answer");
  Require(request->max_tokens >= (request->beam ? 1 : 0), "only a prompt alone has no answer");
  Require(request->prompt.size() + static_cast<size_t>(request->max_tokens) <= 256,
          "an answer fits the context");
  Require(request->draft_tokens >= 0 && request->draft_tokens <= 16, "K is in range");
  const v1::Proposer proposer = request->params.proposer();
  Require(proposer == v1::PROPOSER_UNSPECIFIED || request->draft_tokens > 0,
          "who proposes is to propose something");
  if (!request->beam) return;
  Require(proposer == v1::PROPOSER_UNSPECIFIED, "a search asks the target for candidates");
  Require(request->beam->width() >= 1 && request->beam->width() <= 4, "the width is in range");
  Require(request->samples <= static_cast<int>(request->beam->width()), "so many texts can be found");
  Require(request->candidates >= 1 && request->candidates <= 256, "the target can report the candidates");
}

}  // namespace outrider
