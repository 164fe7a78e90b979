#include "common/grammar/grammar.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/grammar/json_schema.h"
#include "common/grammar/structural_tag.h"
#include "common/grammar/xgrammar_log.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

constexpr float kRemoved = -std::numeric_limits<float>::infinity();
constexpr int kWordBits = 32;

// Follows a text with XGrammar's matcher, which can roll tokens back.
class MatcherMask final : public GrammarMask {
 public:
  MatcherMask(const xgrammar::CompiledGrammar& grammar, int vocab)
      : matcher_(grammar), words_(static_cast<size_t>(xgrammar::GetBitmaskSize(vocab))) {}
  MatcherMask(const MatcherMask& other)
      : matcher_(other.matcher_.Fork()), followed_(other.followed_), words_(other.words_) {}

  void Apply(std::span<const TokenId> output, std::span<float> row) override {
    if (!Follow(output) || !FillWords()) return;
    for (size_t i = 0; i < row.size(); ++i) {
      if ((words_[i / kWordBits] >> (i % kWordBits) & 1) == 0) row[i] = kRemoved;
    }
  }

  std::unique_ptr<TokenMask> Copy() const override { return std::make_unique<MatcherMask>(*this); }

  std::string Forced(std::span<const TokenId> output) override {
    return Follow(output) ? matcher_.FindJumpForwardString() : "";
  }

  std::optional<TokenId> OnlyToken(std::span<const TokenId> output) override {
    if (!Follow(output) || !FillWords()) return std::nullopt;
    std::optional<TokenId> only;
    for (size_t i = 0; i < words_.size(); ++i) {
      if (words_[i] == 0) continue;
      if (only || !std::has_single_bit(words_[i])) return std::nullopt;
      only = static_cast<TokenId>(i * kWordBits + static_cast<size_t>(std::countr_zero(words_[i])));
    }
    return only;
  }

 private:
  // Sets words_ to the tokens that may come next. Returns false if all may.
  bool FillWords() {
    int64_t size = static_cast<int64_t>(words_.size());
    DLTensor words{.data = words_.data(),
                   .device = {kDLCPU, 0},
                   .ndim = 1,
                   .dtype = xgrammar::GetBitmaskDLType(),
                   .shape = &size,
                   .strides = nullptr,
                   .byte_offset = 0};
    return matcher_.FillNextTokenBitmask(&words);
  }

  // Brings the matcher to the end of `output`. Returns false if `output` is not allowed or ends the text.
  bool Follow(std::span<const TokenId> output) {
    const size_t shared = std::min(output.size(), followed_.size());
    const auto same = static_cast<size_t>(
        std::mismatch(output.begin(), output.begin() + static_cast<std::ptrdiff_t>(shared), followed_.begin())
            .first -
        output.begin());
    matcher_.Rollback(static_cast<int>(followed_.size() - same));
    followed_.resize(same);
    for (const TokenId token : output.subspan(same)) {
      if (matcher_.IsTerminated() || !matcher_.AcceptToken(token)) return false;
      followed_.push_back(token);
    }
    return !matcher_.IsTerminated();
  }

  xgrammar::GrammarMatcher matcher_;
  std::vector<TokenId> followed_;  // the tokens that the matcher has accepted
  std::vector<uint32_t> words_;    // one bit per token
};

}  // namespace

struct GrammarVocabulary::Info {
  xgrammar::TokenizerInfo tokens;
  xgrammar::TokenizerInfo json;  // with only the tokens that JSON may have
};

namespace {

xgrammar::TokenizerInfo TokenizerOf(const std::vector<std::string>& tokens,
                                    const std::vector<TokenId>& end_ids) {
  return {tokens, xgrammar::VocabType::RAW, static_cast<int>(tokens.size()), end_ids};
}

// Empties the tokens with control characters other than line ends, which may be between values.
std::vector<std::string> JsonTokens(std::vector<std::string> tokens) {
  for (std::string& token : tokens) {
    if (HasNonJsonControls(token)) token.clear();
  }
  return tokens;
}

bool HasUnicodeEscape(absl::string_view regex) {
  for (size_t i = 0; i + 1 < regex.size(); ++i) {
    if (regex[i] != '\\') continue;
    if (regex[++i] == 'u') return true;
  }
  return false;
}

// Returns whether all texts of the grammar are JSON, without control characters but line ends.
absl::StatusOr<bool> Check(const GrammarText& text) {
  if (text.text.size() > kMaxGrammarText) {
    return OutOfRange("grammar", absl::StrCat(text.text.size(), " bytes"),
                      absl::StrCat("[0, ", kMaxGrammarText, "]"));
  }
  if (text.syntax == GrammarSyntax::kStructuralTag) return CheckStructuralTag(text.text);
  if (text.syntax == GrammarSyntax::kJsonSchema) {
    OUTRIDER_TRY(CheckJsonSchema(text.text));
    return true;
  }
  // XGrammar takes \u in a class for other characters.
  if (text.syntax == GrammarSyntax::kRegex && HasUnicodeEscape(text.text)) {
    return FieldError("grammar", "the character itself", "\\u in a regular expression");
  }
  return false;
}

absl::Status CompileError(absl::string_view words) {
  return FieldError("grammar", "a grammar that XGrammar enforces", OneLine(words));
}

}  // namespace

GrammarVocabulary::GrammarVocabulary(const std::vector<std::string>& tokens,
                                     const std::vector<TokenId>& end_ids)
    : info_(std::make_shared<const Info>(
          Info{TokenizerOf(tokens, end_ids), TokenizerOf(JsonTokens(tokens), end_ids)})) {}

struct Grammar::Compiled {
  xgrammar::CompiledGrammar grammar;
  int vocab;
};

Grammar::Grammar(std::unique_ptr<const Compiled> compiled, size_t bytes)
    : compiled_(std::move(compiled)), bytes_(bytes) {}
Grammar::~Grammar() = default;

std::unique_ptr<GrammarMask> Grammar::NewGrammarMask() const {
  return std::make_unique<MatcherMask>(compiled_->grammar, compiled_->vocab);
}

absl::StatusOr<std::shared_ptr<const Grammar>> Grammar::Compile(const GrammarText& text,
                                                                const GrammarVocabulary& vocabulary) {
  const bool is_json = OUTRIDER_TRY(Check(text));
  const xgrammar::TokenizerInfo& tokens = is_json ? vocabulary.info_->json : vocabulary.info_->tokens;
  const XGrammarWarnings warnings;
  try {
    xgrammar::GrammarCompiler compiler(tokens, /*max_threads=*/1, /*cache_enabled=*/true);
    const auto compile = [&]() -> xgrammar::CompiledGrammar {
      switch (text.syntax) {
        case GrammarSyntax::kJsonSchema:
          return compiler.CompileJSONSchema(text.text, /*any_whitespace=*/true, /*indent=*/std::nullopt,
                                            /*separators=*/std::nullopt, /*strict_mode=*/true,
                                            kMaxJsonWhitespace);
        case GrammarSyntax::kRegex:
          return compiler.CompileRegex(text.text);
        case GrammarSyntax::kEbnf:
          return compiler.CompileGrammar(text.text);
        case GrammarSyntax::kStructuralTag:
          return compiler.CompileStructuralTag(text.text);
      }
      throw std::runtime_error("no such syntax");
    };
    const xgrammar::CompiledGrammar grammar = compile();
    if (warnings.first()) return CompileError(*warnings.first());
    auto compiled = std::make_unique<const Compiled>(Compiled{grammar, tokens.GetVocabSize()});
    return std::shared_ptr<const Grammar>(new Grammar(std::move(compiled), grammar.MemorySizeBytes()));
  } catch (const std::exception& exception) {
    return CompileError(exception.what());
  }
}

}  // namespace outrider
