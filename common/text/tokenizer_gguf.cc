#include "common/text/tokenizer_gguf.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/spec/status.h"
#include "common/text/gguf_splits.h"
#include "common/text/strings.h"
#include "common/text/utf8.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr char kSpace[] = "\u2581";
// Limits beyond any vocabulary of SentencePiece. MakeMerges tries all ways to cut a token in two. Half a
// million of those of Gemma 3 are merges.
constexpr size_t kMaxPieceBytes = 256, kMaxMerges = 1 << 22;

// The values of tokenizer.ggml.token_type. The other values, of unused tokens, are treated as normal.
constexpr int kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6;

// Text from the file, shortened and escaped, for messages.
std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::CHexEscape(Excerpt(text, 64)), "\"");
}

// Converters pad a vocabulary to the size of the weights. The padding is in no tokenizer.json.
bool IsPadding(const std::string& token, TokenId id, int type) {
  return type != kNormal && token == absl::StrCat("[PAD", id, "]");
}

class Reader {
 public:
  explicit Reader(const GgufFile& file) : file_(file) {}

  absl::StatusOr<TokenizerSpec> Read() {
    const std::string model = OUTRIDER_TRY(String("model"));
    if (model == "gpt2") {
      OUTRIDER_TRY(ReadByteLevel());
    } else if (model == "llama" || model == "gemma4") {
      OUTRIDER_TRY(ReadSentencePiece(model == "llama"));
    } else {
      return Wrong("model", Quoted(model), " is not supported");
    }
    return std::move(spec_);
  }

 private:
  static std::string Key(const char* name) { return absl::StrCat("tokenizer.ggml.", name); }

  template <class... Parts>
  absl::Status Wrong(const char* name, const Parts&... parts) const {
    return Invalid(file_.path(), ": ", Key(name), ": ", parts...);
  }

  absl::StatusOr<std::string> String(const char* name) const {
    const Json value = file_.metadata().value(Key(name), Json(""));
    if (!value.is_string()) return Wrong(name, "not a string");
    return value.get<std::string>();
  }

  absl::StatusOr<bool> Bool(const char* name, bool otherwise) const {
    const Json value = file_.metadata().value(Key(name), Json(otherwise));
    if (!value.is_boolean()) return Wrong(name, "not true or false");
    return value.get<bool>();
  }

  // If `otherwise` is no id, the file must have the key.
  absl::StatusOr<TokenId> Id(const char* name, TokenId otherwise) const {
    const Json value = file_.metadata().value(Key(name), Json(otherwise));
    const auto id = value.is_number_integer() ? value.get<int64_t>() : -1;
    if (id < 0 || id >= static_cast<int64_t>(types_.size())) return Wrong(name, "no token's id, or missing");
    return static_cast<TokenId>(id);
  }

  // The elements of an array. Each must pass the check `is`.
  template <class T>
  absl::StatusOr<std::vector<T>> Array(const char* name, bool (Json::*is)() const noexcept) const {
    const Json value = file_.Value(Key(name));
    if (value.is_null()) return Wrong(name, "missing");
    if (!value.is_array()) return Wrong(name, "not an array");
    std::vector<T> elements;
    elements.reserve(value.size());
    for (const Json& element : value) {
      if (!(element.*is)()) return Wrong(name, "an array of another type");
      elements.push_back(element.get<T>());
    }
    return elements;
  }

  // The same for an array with one element per token.
  template <class T>
  absl::StatusOr<std::vector<T>> ArrayOfTokens(const char* name, size_t tokens,
                                               bool (Json::*is)() const noexcept) const {
    std::vector<T> elements = OUTRIDER_TRY(Array<T>(name, is));
    if (elements.size() == tokens) return elements;
    return Wrong(name, elements.size(), " elements for ", tokens, " tokens");
  }

  absl::Status ReadTokens() {
    auto tokens = OUTRIDER_TRY(Array<std::string>("tokens", &Json::is_string));
    types_ = OUTRIDER_TRY(ArrayOfTokens<int>("token_type", tokens.size(), &Json::is_number_integer));
    spec_.vocab.reserve(tokens.size());
    for (TokenId id = 0; id < static_cast<TokenId>(tokens.size()); ++id) {
      std::string& token = tokens[static_cast<size_t>(id)];
      const int type = TypeOf(id);
      if (token.empty() || IsPadding(token, id, type)) continue;
      if (!IsValidUtf8(token)) return Wrong("tokens", "token ", id, " is not UTF-8: ", Quoted(token));
      // Converters write plain spaces in these tokens.
      if (!spec_.spelling.byte_level && type == kUserDefined) absl::StrReplaceAll({{" ", kSpace}}, &token);
      if (const auto [other, is_new] = ids_.try_emplace(token, id); !is_new) {
        return Wrong("tokens", "tokens ", other->second, " and ", id, " are both ", Quoted(token));
      }
      const bool special = type == kControl || type == kUnknown;
      if (special || type == kUserDefined) {
        spec_.added.push_back({.id = id, .content = token, .special = special});
      }
      if (!special) spec_.vocab.emplace_back(std::move(token), id);
    }
    // No word of a text becomes a special token.
    for (const AddedToken& token : spec_.added) {
      if (token.special) ids_.erase(token.content);
    }
    return absl::OkStatus();
  }

  absl::Status ReadMerges() {
    const auto merges = OUTRIDER_TRY(Array<std::string>("merges", &Json::is_string));
    spec_.merges.reserve(merges.size());
    for (size_t i = 0; i < merges.size(); ++i) {
      const size_t space = merges[i].find(' ', 1);  // the left one may be a space
      const auto wrong = [&](const char* how) {
        return Wrong("merges", "element ", i, ", ", Quoted(merges[i]), ", ", how);
      };
      if (space == std::string::npos) return wrong("is not a pair of tokens");
      std::string left = merges[i].substr(0, space), right = merges[i].substr(space + 1);
      if (!ids_.contains(left) || !ids_.contains(right) || !ids_.contains(left + right)) {
        return wrong("uses a token that is not in the vocabulary");
      }
      spec_.merges.emplace_back(std::move(left), std::move(right));
    }
    return absl::OkStatus();
  }

  // Makes merges with the same effect as the scores, as transformers' converter does (4.57,
  // convert_slow_tokenizer.py, generate_merges). Those of tokens with a higher score come first, and then
  // those with a longer left part.
  absl::Status MakeMerges() {
    const auto scores = OUTRIDER_TRY(ArrayOfTokens<double>("scores", types_.size(), &Json::is_number));
    struct Merge {
      double score;
      size_t left, right;  // in characters
      const std::string* token;
      size_t left_bytes;
    };
    std::vector<Merge> merges;
    for (const auto& [token, id] : spec_.vocab) {
      if (TypeOf(id) == kByte) continue;
      if (token.size() > kMaxPieceBytes) {
        return Wrong("tokens", "token ", id, " has ", token.size(), " bytes, at most ", kMaxPieceBytes,
                     " are supported");
      }
      // Converters lose the scores of user-defined tokens, which are the highest in SentencePiece.
      const double score = TypeOf(id) == kUserDefined ? 0 : scores[static_cast<size_t>(id)];
      if (!std::isfinite(score)) return Wrong("scores", "the score of token ", id, " is not finite");
      const auto characters =
          static_cast<size_t>(std::ranges::count_if(token, [](char byte) { return !IsContinuation(byte); }));
      size_t left = 0;
      for (size_t i = CharacterSize(token); i < token.size(); i = CharacterAfter(token, i)) {
        ++left;
        const std::string_view text = token;
        if (!ids_.contains(text.substr(0, i)) || !ids_.contains(text.substr(i))) continue;
        merges.push_back({score, left, characters - left, &token, i});
      }
      if (merges.size() > kMaxMerges) return Wrong("tokens", "parts of each other in too many ways");
    }
    std::ranges::stable_sort(merges, std::ranges::greater(), [](const Merge& merge) {
      return std::tuple(merge.score, merge.left, merge.right);
    });
    spec_.merges.reserve(merges.size());
    for (const Merge& merge : merges) {
      spec_.merges.emplace_back(merge.token->substr(0, merge.left_bytes),
                                merge.token->substr(merge.left_bytes));
    }
    return absl::OkStatus();
  }

  absl::Status ReadByteLevel() {
    const std::string name = OUTRIDER_TRY(String("pre"));
    const GgufSplit* const split = FindGgufSplit(name);
    if (split == nullptr) return Wrong("pre", Quoted(name), " is not supported");
    OUTRIDER_TRY(ReadTokens());
    OUTRIDER_TRY(ReadMerges());
    spec_.ignore_merges = split->ignores_merges;
    if (split->composes) spec_.normalizer.push_back({NormalizeStep::Kind::kNfc, "", ""});
    for (const std::string_view pattern : split->patterns) spec_.steps.emplace_back().pattern = pattern;
    return ReadEnds(split->adds_bos, /*bos=*/-1, /*eos=*/-1);
  }

  absl::Status ReadSentencePiece(bool has_scores) {
    const bool adds_space = OUTRIDER_TRY(Bool("add_space_prefix", has_scores));
    spec_.spelling = {.byte_level = false, .space = kSpace, .drops_leading_space = adds_space};
    OUTRIDER_TRY(ReadTokens());
    OUTRIDER_TRY(has_scores ? MakeMerges() : ReadMerges());
    spec_.byte_fallback = true;
    spec_.fuse_unknown = true;
    const TokenId unknown = OUTRIDER_TRY(Id("unknown_token_id", 0));
    for (const AddedToken& token : spec_.added) {
      if (token.id != unknown || !token.special) continue;
      spec_.unknown_token = token.content;
      spec_.vocab.emplace(
          std::ranges::lower_bound(spec_.vocab, unknown, {}, [](const auto& t) { return t.second; }),
          token.content, unknown);
    }
    if (adds_space) spec_.normalizer.push_back({NormalizeStep::Kind::kPrepend, "", kSpace});
    spec_.normalizer.push_back({NormalizeStep::Kind::kReplace, " ", kSpace});
    return ReadEnds(/*adds_bos=*/true, has_scores ? 1 : -1, has_scores ? 2 : -1);
  }

  // Reads the tokens that come before and after a text. The defaults are those of llama.cpp.
  absl::Status ReadEnds(bool adds_bos, TokenId bos, TokenId eos) {
    if (OUTRIDER_TRY(Bool("add_bos_token", adds_bos))) {
      spec_.prefix = {OUTRIDER_TRY(Id("bos_token_id", bos))};
    }
    if (OUTRIDER_TRY(Bool("add_eos_token", false))) {
      spec_.suffix = {OUTRIDER_TRY(Id("eos_token_id", eos))};
    }
    return absl::OkStatus();
  }

  int TypeOf(TokenId id) const { return types_[static_cast<size_t>(id)]; }

  const GgufFile& file_;
  TokenizerSpec spec_;
  std::vector<int> types_;  // of all tokens
  StringMap<TokenId> ids_;  // of spec_.vocab
};

}  // namespace

absl::StatusOr<TokenizerSpec> ReadGgufTokenizer(const GgufFile& file) { return Reader(file).Read(); }

}  // namespace outrider
