#include "common/text/bpe_model.h"

#include <functional>
#include <optional>
#include <queue>

#include "absl/status/status.h"
#include "common/text/byte_level.h"
#include "common/text/strings.h"

namespace outrider {

// The merging of one word: a linked list of symbols, and a queue of the pairs that can be merged.
class BpeModel::Word {
 public:
  Word(const BpeModel& model, std::string_view bytes) : model_(model) {
    symbols_.reserve(bytes.size());
    for (const char byte : bytes) {
      const TokenId token = model.byte_tokens_[static_cast<uint8_t>(byte)];
      if (token < 0) continue;
      const auto position = static_cast<int32_t>(symbols_.size());
      symbols_.push_back({.token = token, .previous = position - 1, .next = position + 1});
    }
    if (!symbols_.empty()) symbols_.back().next = kNone;
    std::vector<Candidate> candidates;
    for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols_.size()); ++i) {
      if (const Merge* merge = FindMerge(i)) candidates.push_back({merge->rank, i, merge->result});
    }
    queue_ = Queue(std::greater<>(), std::move(candidates));
  }

  void MergeAll() {
    while (!queue_.empty()) {
      const Candidate candidate = queue_.top();
      queue_.pop();
      // A candidate is stale once one of its symbols was merged with another.
      const Merge* merge = FindMerge(candidate.position);
      if (merge == nullptr || merge->result != candidate.result) continue;
      Symbol& left = symbols_[candidate.position];
      Symbol& right = symbols_[left.next];
      left.token = candidate.result;
      left.next = right.next;
      right.token = kMerged;
      if (left.next != kNone) symbols_[left.next].previous = candidate.position;
      if (left.previous != kNone) Push(left.previous);
      Push(candidate.position);
    }
  }

  void AppendTo(std::vector<TokenId>* out) const {
    for (int32_t i = symbols_.empty() ? kNone : 0; i != kNone; i = symbols_[i].next) {
      out->push_back(symbols_[i].token);
    }
  }

 private:
  static constexpr int32_t kNone = -1;
  static constexpr TokenId kMerged = -1;

  struct Symbol {
    TokenId token;
    int32_t previous;
    int32_t next;
  };
  // Ordered by rank, then from left to right.
  struct Candidate {
    int32_t rank;
    int32_t position;
    TokenId result;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  using Queue = std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>>;

  // The merge of the symbol at `position` with the next one, or null.
  const Merge* FindMerge(int32_t position) const {
    const Symbol& left = symbols_[position];
    if (left.token == kMerged || left.next == kNone) return nullptr;
    const auto merge = model_.merges_.find({left.token, symbols_[left.next].token});
    return merge == model_.merges_.end() ? nullptr : &merge->second;
  }

  void Push(int32_t position) {
    if (const Merge* merge = FindMerge(position)) queue_.push({merge->rank, position, merge->result});
  }

  const BpeModel& model_;
  std::vector<Symbol> symbols_;
  Queue queue_;
};

absl::StatusOr<std::unique_ptr<const BpeModel>> BpeModel::Create(const TokenizerSpec& spec) {
  std::unique_ptr<BpeModel> model(new BpeModel());
  StringViewMap<TokenId> ids(spec.vocab.begin(), spec.vocab.end());
  for (int byte = 0; byte < 256; ++byte) {
    const auto token = ids.find(ByteLevelCharacter(static_cast<uint8_t>(byte)));
    model->byte_tokens_[byte] = token == ids.end() ? -1 : token->second;
    if (token == ids.end() && spec.has_unknown_token) {
      return absl::InvalidArgumentError(
          Concat("model.unk_token is not supported with a vocabulary that lacks byte ", byte));
    }
  }
  model->merges_.reserve(spec.merges.size());
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [left, right] = spec.merges[rank];
    const auto left_id = ids.find(left);
    const auto right_id = ids.find(right);
    const auto result = ids.find(Concat(left, right));
    if (left_id == ids.end() || right_id == ids.end() || result == ids.end()) {
      return absl::InvalidArgumentError(Concat("model.merges[", rank, "] (\"", left, " ", right,
                                               "\") uses a token that is not in model.vocab"));
    }
    // A repeated pair replaces the earlier one, as in HF.
    model->merges_[{left_id->second, right_id->second}] = {static_cast<int32_t>(rank), result->second};
  }
  if (spec.ignore_merges) {
    for (const auto& [token, id] : spec.vocab) {
      if (std::optional<std::string> bytes = ByteLevelToBytes(token)) {
        model->whole_words_[*std::move(bytes)] = id;
      }
    }
  }
  return model;
}

void BpeModel::Encode(std::string_view word, std::vector<TokenId>* out) const {
  if (const auto whole = whole_words_.find(word); whole != whole_words_.end()) {
    out->push_back(whole->second);
    return;
  }
  if (cache_.Find(word, out)) return;
  Word symbols(*this, word);
  symbols.MergeAll();
  std::vector<TokenId> tokens;
  symbols.AppendTo(&tokens);
  out->insert(out->end(), tokens.begin(), tokens.end());
  cache_.Insert(word, tokens);
}

}  // namespace outrider
