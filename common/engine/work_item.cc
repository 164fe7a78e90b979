#include "common/engine/work_item.h"

#include "common/kv/prefix_hash.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// The numbers that define the shape.
std::vector<int> NumbersOf(const TreeShape& shape) {
  struct Visitor {
    std::vector<int> operator()(const Branching& tree) const { return tree.children; }
    std::vector<int> operator()(const Chains& tree) const { return {tree.count}; }
    std::vector<int> operator()(const NodeBudget& tree) const { return {tree.nodes}; }
  };
  std::vector<int> numbers = std::visit(Visitor(), shape);
  numbers.push_back(static_cast<int>(shape.index()));
  return numbers;
}

}  // namespace

absl::Status CheckLimits(const WorkItem& item, const SequenceLimits& limits) {
  const auto* verify = std::get_if<VerifyWork>(&item.work);
  const size_t n = item.committed();
  const size_t drafted = verify == nullptr ? 0 : verify->proposal.size();
  const size_t depth = verify == nullptr ? 0 : static_cast<size_t>(Depth(verify->proposal));
  if (n + depth > static_cast<size_t>(limits.context)) {
    return InvalidFor("CONTEXT_EXCEEDED", "context_exceeded: ", n, " tokens and ", depth,
                      " drafted; the context has ", limits.context);
  }
  const size_t room = static_cast<size_t>(limits.kv_blocks) * static_cast<size_t>(limits.block_size);
  if (n + drafted > room) {
    return InvalidFor("CACHE_TOO_SMALL", "cache_too_small: ", n, " tokens; the cache holds ", room);
  }
  if (verify != nullptr && verify->prompt_logprobs >= 0 && item.base != 0) {
    return InvalidFor("PROMPT_LOGPROBS_BASE", "prompt_logprobs_base: only with base 0");
  }
  return absl::OkStatus();
}

uint64_t DigestOf(const WorkItem& item) {
  const auto* propose = std::get_if<ProposeWork>(&item.work);
  const auto* verify = std::get_if<VerifyWork>(&item.work);
  const ProposalRequest* request = verify != nullptr && verify->propose ? &*verify->propose : nullptr;
  const std::optional<TreeShape> no_tree;
  const std::optional<TreeShape>& tree = propose != nullptr   ? propose->tree
                                         : request != nullptr ? request->tree
                                                              : no_tree;
  uint64_t hash = item.prefix_hash;
  for (TokenId token : item.tokens) hash = ExtendPrefixHash(hash, token);
  for (const uint64_t part :
       {item.params_hash, static_cast<uint64_t>(item.work.index()), static_cast<uint64_t>(item.committed()),
        static_cast<uint64_t>(propose == nullptr ? 0 : propose->draft_tokens),
        static_cast<uint64_t>(propose != nullptr && propose->draw_next),
        verify == nullptr ? 0 : verify->content_hash,
        static_cast<uint64_t>(request == nullptr ? 0 : request->draft_tokens),
        static_cast<uint64_t>(verify == nullptr ? -1 : verify->prompt_logprobs)}) {
    hash = ExtendPrefixHash(hash, static_cast<TokenId>(part));
    hash = ExtendPrefixHash(hash, static_cast<TokenId>(part >> 32));
  }
  if (tree) {
    for (int number : NumbersOf(*tree)) hash = ExtendPrefixHash(hash, number);
  }
  return hash | 1;
}

}  // namespace outrider
