// Grammars that constrain the output. XGrammar (Dong et al. 2024, "XGrammar: Flexible and Efficient
// Structured Generation Engine for Large Language Models", arXiv 2411.15100) compiles and follows them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/spec/token_mask.h"
#include "common/spec/types.h"

namespace outrider {

// The syntax of a grammar's text.
enum class GrammarSyntax : uint8_t {
  kJsonSchema,     // JSON Schema, as far as json_schema.h allows it
  kRegex,          // a regular expression that the whole text matches
  kEbnf,           // GBNF, as in llama.cpp; it starts at the rule "root"
  kStructuralTag,  // XGrammar's: free text between tags, and grammars within them
};

struct GrammarText {
  GrammarSyntax syntax = GrammarSyntax::kJsonSchema;
  std::string text;

  friend bool operator==(const GrammarText&, const GrammarText&) = default;
};

// The most bytes that a grammar's text may have.
inline constexpr size_t kMaxGrammarText = size_t{64} << 10;

// The most consecutive white space in JSON. Without a limit small models go on with it for ever. llama.cpp
// has the same limit.
inline constexpr int kMaxJsonWhitespace = 20;

// The tokens that a text consists of. Immutable; thread-safe; copies share the content.
class GrammarVocabulary {
 public:
  // The bytes of each token. Tokens without any, such as special ones, are in no text; `end_ids` end a text.
  GrammarVocabulary(const std::vector<std::string>& tokens, const std::vector<TokenId>& end_ids);

 private:
  friend class Grammar;
  struct Info;
  std::shared_ptr<const Info> info_;
};

// A mask that also tells where the grammar leaves no choice.
class GrammarMask : public TokenMask {
 public:
  // The bytes that come next in every text that begins with `output`. Empty where texts differ, or one may
  // end.
  virtual std::string Forced(std::span<const TokenId> output) = 0;
  // The only token that may come next; nullopt if there is not exactly one.
  virtual std::optional<TokenId> OnlyToken(std::span<const TokenId> output) = 0;
};

// A grammar for one vocabulary. Immutable; thread-safe.
class Grammar final : public TokenMaskSource {
 public:
  // Takes milliseconds to seconds, and megabytes. INVALID_ARGUMENT, with a message of one line, if the text
  // is malformed, if XGrammar cannot express it, or if XGrammar would not enforce all of it. Texts of a JSON
  // schema have no control characters but line ends.
  static absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const GrammarText& text,
                                                                const GrammarVocabulary& vocabulary);
  ~Grammar() override;

  std::unique_ptr<TokenMask> NewMask() const override { return NewGrammarMask(); }
  std::unique_ptr<GrammarMask> NewGrammarMask() const;
  size_t bytes() const { return bytes_; }

 private:
  struct Compiled;
  Grammar(std::unique_ptr<const Compiled> compiled, size_t bytes);

  const std::unique_ptr<const Compiled> compiled_;
  const size_t bytes_;
};

}  // namespace outrider
