// Parses the answers of draft and target as a coordinator does.
#include "common/rpc/convert.h"
#include "outrider/v1/draft.pb.h"
#include "tests/fuzz/target.h"

namespace outrider {

void FuzzTarget(std::string_view bytes) {
  constexpr int kVocab = 8;
  Input input(bytes);
  const Rule rule = input.Byte() % 2 == 0 ? Rule::kToken : Rule::kCoupled;
  const size_t drafted = input.Byte();
  const std::string_view draft = input.rest().substr(0, drafted);
  const std::string_view target = input.rest().substr(draft.size());
  v1::ProposeResult proposed;
  v1::VerifyResult judged;
  if (!proposed.ParseFromArray(draft.data(), static_cast<int>(draft.size())) ||
      !judged.ParseFromArray(target.data(), static_cast<int>(target.size()))) {
    return;
  }
  const auto proposal = ParseUnpreparedProposal(proposed.nodes(), rule, kVocab);
  if (!proposal.ok()) return;
  const auto verdict = ParseVerdict(judged.verdict(), *proposal, kVocab);
  if (!verdict.ok()) return;
  Require(verdict->token >= 0 && verdict->token < kVocab, "a token is in the vocabulary");
  int parent = -1;
  for (const int node : verdict->path) {
    Require((*proposal)[static_cast<size_t>(node)].parent == parent, "a path follows the proposal");
    parent = node;
  }
  google::protobuf::RepeatedPtrField<v1::DraftNode> nodes;
  SerializeProposal(*proposal, &nodes);
  Require(ParseUnpreparedProposal(nodes, rule, kVocab).ok(), "a proposal survives the wire");
}

}  // namespace outrider
