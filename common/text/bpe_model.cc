#include "common/text/bpe_model.h"

#include <algorithm>
#include <queue>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "common/spec/status.h"
#include "common/text/utf8.h"

namespace outrider {
namespace {

constexpr int kCodePoints = 0x100 + 68;  // 68 bytes don't stand for themselves.

struct Alphabet {
  std::array<uint16_t, 256> code_point{};
  std::array<int16_t, kCodePoints> byte{};  // -1 for code points outside the alphabet.
};

// Bytes that are printable in Latin-1 stand for themselves; the others become U+0100, U+0101, ... in order.
constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int16_t& byte : alphabet.byte) byte = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const int code_point = prints ? byte : next++;
    alphabet.code_point[byte] = static_cast<uint16_t>(code_point);
    alphabet.byte[code_point] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::string ByteLevelCharacter(uint8_t byte) {
  const int code_point = kAlphabet.code_point[byte];
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xC0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3F))};
}

std::string ByteToken(uint8_t byte) { return absl::StrFormat("<0x%02X>", byte); }

std::optional<uint8_t> ByteOfToken(std::string_view token) {
  uint32_t byte = 0;
  if (token.size() != 6 || !absl::SimpleHexAtoi(absl::string_view(token.data() + 3, 2), &byte))
    return std::nullopt;
  if (token != ByteToken(static_cast<uint8_t>(byte))) return std::nullopt;
  return static_cast<uint8_t>(byte);
}

std::optional<std::string> ByteLevelToBytes(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size(); ++i) {
    int code_point = static_cast<uint8_t>(token[i]);
    if (code_point >= 0xC0 && code_point < 0xE0 && i + 1 < token.size()) {
      code_point = ((code_point & 0x1F) << 6) | (static_cast<uint8_t>(token[++i]) & 0x3F);
    } else if (code_point >= 0x80) {
      return std::nullopt;
    }
    if (code_point >= kCodePoints || kAlphabet.byte[code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte[code_point]));
  }
  return bytes;
}

// The merging of one word: a linked list of symbols, and a queue of the pairs that can be merged.
class BpeModel::Word {
 public:
  Word(const BpeModel& model, std::string_view bytes) : model_(model) {
    std::vector<TokenId> tokens;
    model.Spell(bytes, &tokens);
    symbols_.reserve(tokens.size());
    for (const TokenId token : tokens) {
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
  const auto id_of = [&ids](std::string_view token) {
    const auto id = ids.find(token);
    return id == ids.end() ? kNoToken : id->second;
  };
  for (int byte = 0; byte < 256; ++byte) {
    const bool byte_level = spec.spelling.byte_level;
    TokenId& token = model->byte_tokens_[byte];
    token = kNoToken;
    if (byte_level) token = id_of(ByteLevelCharacter(static_cast<uint8_t>(byte)));
    if (!byte_level && spec.byte_fallback) token = id_of(ByteToken(static_cast<uint8_t>(byte)));
    if (byte_level && token == kNoToken && (spec.unknown_token || spec.byte_fallback)) {
      return Invalid("model.unk_token is not supported with a vocabulary that lacks byte ", byte);
    }
  }
  if (!spec.spelling.byte_level) {
    model->character_tokens_.emplace();
    for (const auto& [token, id] : spec.vocab) {
      if (!token.empty() && CharacterSize(token) == token.size())
        model->character_tokens_->emplace(token, id);
    }
    if (spec.unknown_token) {
      model->unknown_ = id_of(*spec.unknown_token);
      if (model->unknown_ == kNoToken) {
        return Invalid("model.unk_token \"", *spec.unknown_token, "\" is not in model.vocab");
      }
    }
    model->fuse_unknown_ = spec.fuse_unknown;
  }
  model->merges_.reserve(spec.merges.size());
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [left, right] = spec.merges[rank];
    const std::pair pair(id_of(left), id_of(right));
    const TokenId result = id_of(left + right);
    if (pair.first == kNoToken || pair.second == kNoToken || result == kNoToken) {
      return Invalid("model.merges[", rank, "] (\"", left, " ", right,
                     "\") uses a token that is not in model.vocab");
    }
    // A repeated pair replaces the earlier one, as in HF.
    model->merges_[pair] = {static_cast<int32_t>(rank), result};
  }
  if (spec.ignore_merges) {
    for (const auto& [token, id] : spec.vocab) {
      if (std::optional<std::string> bytes = spec.spelling.byte_level ? ByteLevelToBytes(token) : token) {
        model->whole_words_[*std::move(bytes)] = id;
      }
    }
  }
  return model;
}

void BpeModel::Spell(std::string_view word, std::vector<TokenId>* out) const {
  if (character_tokens_) {
    for (size_t size; !word.empty(); word.remove_prefix(size)) {
      size = CharacterSize(word);
      SpellCharacter(word.substr(0, size), out);
    }
    return;
  }
  for (const char byte : word) {
    if (const TokenId token = byte_tokens_[static_cast<uint8_t>(byte)]; token != kNoToken)
      out->push_back(token);
  }
}

void BpeModel::SpellCharacter(std::string_view character, std::vector<TokenId>* out) const {
  if (const auto token = character_tokens_->find(character); token != character_tokens_->end()) {
    out->push_back(token->second);
    return;
  }
  const auto has_token = [this](char byte) { return byte_tokens_[static_cast<uint8_t>(byte)] != kNoToken; };
  if (std::all_of(character.begin(), character.end(), has_token)) {
    for (const char byte : character) out->push_back(byte_tokens_[static_cast<uint8_t>(byte)]);
  } else if (unknown_ != kNoToken && !(fuse_unknown_ && !out->empty() && out->back() == unknown_)) {
    out->push_back(unknown_);
  }
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
