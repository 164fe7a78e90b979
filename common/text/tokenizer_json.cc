#include "common/spec/status.h"
#include "common/text/tokenizer_spec.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/text/json.h"
#include "common/text/strings.h"
#include "common/text/utf8.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

// Throws an error about the file. The exception does not leave this translation unit.
template <typename... Parts>
[[noreturn]] void Fail(const Parts&... parts) {
  throw std::runtime_error(Concat(parts...));
}

// Beyond any real vocabulary, and small enough to allocate for.
constexpr int64_t kMaxTokenId = (1 << 24) - 1;

// A JSON value and its path, for messages.
struct Field {
  const Json& json;
  std::string path;

  bool Has(const char* key) const { return json.is_object() && json.contains(key) && !json[key].is_null(); }

  Field At(const char* key) const {
    if (!json.is_object()) Fail(path.empty() ? "the file" : path, " is not an object");
    std::string child = path.empty() ? key : Concat(path, ".", key);
    if (!json.contains(key)) Fail(child, " is missing");
    return {json[key], std::move(child)};
  }

  const std::string& String() const {
    if (!json.is_string()) Fail(path, " is not a string");
    return json.get_ref<const std::string&>();
  }

  bool Bool() const {
    if (!json.is_boolean()) Fail(path, " is not true or false");
    return json.get<bool>();
  }

  TokenId Id() const {
    if (!json.is_number_integer()) Fail(path, " is not an integer");
    const auto id = json.get<int64_t>();
    if (id < 0 || id > kMaxTokenId) Fail(path, " is not in [0, ", kMaxTokenId, "]");
    return static_cast<TokenId>(id);
  }

  std::vector<Field> Elements() const {
    if (!json.is_array()) Fail(path, " is not a list");
    std::vector<Field> elements;
    elements.reserve(json.size());
    for (size_t i = 0; i < json.size(); ++i) elements.push_back({json[i], Concat(path, "[", i, "]")});
    return elements;
  }

  bool BoolOr(const char* key, bool otherwise) const { return Has(key) ? At(key).Bool() : otherwise; }
  const std::string& Type() const { return At("type").String(); }
};

[[noreturn]] void FailUnsupported(const Field& field, std::string_view what) {
  Fail(field.path, ": ", what, " is not supported");
}

void ReadVocab(const Field& vocab, TokenizerSpec* spec) {
  if (!vocab.json.is_object()) Fail(vocab.path, " is not an object");
  spec->vocab.reserve(vocab.json.size());
  for (const auto& [token, id] : vocab.json.items()) {
    spec->vocab.emplace_back(token, Field{id, Concat(vocab.path, "[\"", token, "\"]")}.Id());
  }
  std::ranges::sort(spec->vocab, [](const auto& a, const auto& b) { return a.second < b.second; });
  for (size_t i = 1; i < spec->vocab.size(); ++i) {
    const auto& [token, id] = spec->vocab[i];
    if (spec->vocab[i - 1].second == id) {
      Fail(vocab.path, ": \"", spec->vocab[i - 1].first, "\" and \"", token, "\" have the same id ", id);
    }
  }
}

void ReadMerges(const Field& merges, TokenizerSpec* spec) {
  if (!merges.json.is_array()) Fail(merges.path, " is not a list");
  spec->merges.reserve(merges.json.size());
  for (size_t i = 0; i < merges.json.size(); ++i) {
    const Json& merge = merges.json[i];
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      spec->merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    // Files from before tokenizers 0.20 say "left right". The byte-level alphabet has no space.
    const std::string text = merge.is_string() ? merge.get<std::string>() : "";
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      Fail(merges.path, "[", i, "] is not a pair of tokens");
    }
    spec->merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
}

void ReadModel(const Field& model, TokenizerSpec* spec) {
  // Old files give the model no type. They hold BPE if they hold merges.
  const bool typed = model.Has("type");
  if (typed && model.Type() != "BPE") FailUnsupported(model, Concat("model type \"", model.Type(), "\""));
  ReadVocab(model.At("vocab"), spec);
  ReadMerges(model.At("merges"), spec);
  if (model.Has("dropout") && model.At("dropout").json != 0) FailUnsupported(model, "dropout");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.Has(affix) && !model.At(affix).String().empty()) FailUnsupported(model, affix);
  }
  spec->ignore_merges = model.BoolOr("ignore_merges", false);
  if (model.Has("unk_token")) spec->unknown_token = model.At("unk_token").String();
  spec->fuse_unknown = model.BoolOr("fuse_unk", false);
  spec->byte_fallback = model.BoolOr("byte_fallback", false);
}

void ReadAddedTokens(const Field& added, TokenizerSpec* spec) {
  StringViewMap<TokenId> vocab_ids(spec->vocab.begin(), spec->vocab.end());
  absl::flat_hash_map<TokenId, std::string_view> vocab_tokens;
  for (const auto& [token, id] : spec->vocab) vocab_tokens[id] = token;
  absl::flat_hash_set<TokenId> ids;
  absl::flat_hash_set<std::string> contents;
  for (const Field& field : added.Elements()) {
    AddedToken token{.id = field.At("id").Id(), .content = field.At("content").String()};
    if (token.content.empty()) continue;  // HF skips them too.
    token.special = field.At("special").Bool();
    token.single_word = field.At("single_word").Bool();
    token.lstrip = field.At("lstrip").Bool();
    token.rstrip = field.At("rstrip").Bool();
    token.normalized = field.At("normalized").Bool();
    const auto id = vocab_ids.find(token.content);
    if (id != vocab_ids.end() && id->second != token.id) {
      Fail(field.path, ": \"", token.content, "\" has id ", token.id, " here and ", id->second,
           " in model.vocab");
    }
    const auto other = vocab_tokens.find(token.id);
    if (other != vocab_tokens.end() && other->second != token.content) {
      Fail(field.path, ": id ", token.id, " is \"", token.content, "\" here and \"", other->second,
           "\" in model.vocab");
    }
    if (!ids.insert(token.id).second || !contents.insert(token.content).second) {
      Fail(field.path, ": id or content of \"", token.content, "\" is there twice");
    }
    spec->added.push_back(std::move(token));
  }
  std::ranges::sort(spec->added, {}, &AddedToken::id);
}

void ReadSplit(const Field& split, TokenizerSpec* spec) {
  SplitStep step;
  const Field pattern = split.At("pattern");
  if (pattern.Has("Regex")) {
    step.pattern = pattern.At("Regex").String();
  } else if (pattern.Has("String")) {
    step.kind = SplitStep::Kind::kString;
    step.pattern = pattern.At("String").String();
  } else {
    Fail(pattern.path, " has neither Regex nor String");
  }
  const std::string& behavior = split.At("behavior").String();
  const bool invert = split.BoolOr("invert", false);
  if (behavior == "Removed") {
    step.remove_matches = !invert;
    step.remove_between = invert;
  } else if (behavior == "MergedWithPrevious" && !invert) {
    step.join_previous = true;
  } else if (behavior != "Isolated") {
    FailUnsupported(split, Concat("behavior \"", behavior, "\""));
  }
  spec->steps.push_back(std::move(step));
}

void ReadByteLevel(const Field& byte_level, TokenizerSpec* spec) {
  if (byte_level.At("add_prefix_space").Bool()) {
    spec->steps.push_back({.kind = SplitStep::Kind::kPrefixSpace, .pattern = " "});
  }
  if (byte_level.BoolOr("use_regex", true)) spec->steps.emplace_back().pattern = kGpt2Pattern;
}

// The elements of a Sequence, flattened recursively, or the field itself.
std::vector<Field> Flatten(const Field& field, const char* list) {
  if (field.Type() != "Sequence") return {field};
  std::vector<Field> flat;
  for (const Field& element : field.At(list).Elements()) {
    for (Field& inner : Flatten(element, list)) flat.push_back(std::move(inner));
  }
  return flat;
}

// Replaces spaces by a symbol, as the normalizer does in other files, and begins a text with one.
void ReadMetaspace(const Field& metaspace, TokenizerSpec* spec) {
  if (metaspace.BoolOr("split", true)) FailUnsupported(metaspace, "split");
  const std::string& symbol = metaspace.At("replacement").String();
  if (symbol != spec->spelling.space) Fail(metaspace.path, ".replacement is not the decoder's");
  if (CharacterSize(symbol) != symbol.size()) Fail(metaspace.path, ".replacement is no single character");
  spec->normalizer.push_back({NormalizeStep::Kind::kReplace, " ", symbol});
  const std::string scheme =
      metaspace.Has("prepend_scheme") ? metaspace.At("prepend_scheme").String() : "always";
  if (scheme == "always") {
    spec->steps.push_back({.kind = SplitStep::Kind::kPrefixSpace, .pattern = symbol});
  } else if (scheme == "first") {
    spec->steps.push_back({.kind = SplitStep::Kind::kStartSpace, .pattern = symbol});
  } else if (scheme != "never") {
    FailUnsupported(metaspace, Concat("prepend_scheme \"", scheme, "\""));
  }
}

void ReadPreTokenizer(const Field& root, TokenizerSpec* spec) {
  if (!root.Has("pre_tokenizer")) {
    if (!spec->spelling.byte_level) return;
    Fail("pre_tokenizer: null is not supported, it must end in ByteLevel");
  }
  const std::vector<Field> fields = Flatten(root.At("pre_tokenizer"), "pretokenizers");
  for (size_t i = 0; i < fields.size(); ++i) {
    const std::string& type = fields[i].Type();
    const bool last = i + 1 == fields.size();
    if (type == "ByteLevel" && last && spec->spelling.byte_level) return ReadByteLevel(fields[i], spec);
    if (type == "Split") {
      ReadSplit(fields[i], spec);
    } else if (type == "Metaspace" && !spec->spelling.byte_level && fields.size() == 1) {
      ReadMetaspace(fields[i], spec);
    } else if (type == "Digits") {
      const bool individual = fields[i].At("individual_digits").Bool();
      spec->steps.push_back({.pattern = individual ? "\\p{N}" : "\\p{N}+"});
    } else {
      FailUnsupported(fields[i], Concat("\"", type, "\"", last ? " as the last step" : ""));
    }
  }
  if (spec->spelling.byte_level) Fail("pre_tokenizer does not end in ByteLevel, which is not supported");
}

void ReadTemplate(const Field& field, TokenizerSpec* spec) {
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
  bool seen_text = false;
  for (const Field& piece : field.At("single").Elements()) {
    if (piece.Has("Sequence")) {
      if (seen_text || piece.At("Sequence").At("id").String() != "A") FailUnsupported(piece, "this sequence");
      seen_text = true;
      continue;
    }
    const std::string& name = piece.At("SpecialToken").At("id").String();
    for (const Field& id : field.At("special_tokens").At(name.c_str()).At("ids").Elements()) {
      (seen_text ? suffix : prefix).push_back(id.Id());
    }
  }
  if (!seen_text) FailUnsupported(field, "a template without a sequence");
  // A later processor wraps around an earlier one.
  spec->prefix.insert(spec->prefix.begin(), prefix.begin(), prefix.end());
  spec->suffix.insert(spec->suffix.end(), suffix.begin(), suffix.end());
}

void ReadPostProcessor(const Field& root, TokenizerSpec* spec) {
  if (!root.Has("post_processor")) return;
  for (const Field& field : Flatten(root.At("post_processor"), "processors")) {
    const std::string& type = field.Type();
    if (type == "TemplateProcessing") {
      ReadTemplate(field, spec);
    } else if (type != "ByteLevel") {  // ByteLevel affects offsets only.
      FailUnsupported(field, Concat("\"", type, "\""));
    }
  }
}

// Limits on the number of steps, and on the growth by one step, so that a damaged file cannot make gigabytes
// of a short text.
constexpr size_t kMaxNormalizeSteps = 4, kMaxGrowth = 4;

void ReadNormalizer(const Field& root, TokenizerSpec* spec) {
  if (!root.Has("normalizer")) return;
  const std::vector<Field> fields = Flatten(root.At("normalizer"), "normalizers");
  if (fields.size() > kMaxNormalizeSteps) {
    Fail("normalizer: more than ", kMaxNormalizeSteps, " steps are not supported");
  }
  for (const Field& field : fields) {
    const std::string& type = field.Type();
    if (type == "NFC") {
      spec->normalizer.push_back({NormalizeStep::Kind::kNfc, "", ""});
    } else if (type == "Prepend") {
      spec->normalizer.push_back({NormalizeStep::Kind::kPrepend, "", field.At("prepend").String()});
    } else if (type == "Replace" && field.At("pattern").Has("String")) {
      const std::string& pattern = field.At("pattern").At("String").String();
      const std::string& content = field.At("content").String();
      if (pattern.empty()) Fail(field.path, ".pattern is empty");
      if (content.size() > kMaxGrowth * pattern.size())
        FailUnsupported(field, "a content that is so much longer");
      spec->normalizer.push_back({NormalizeStep::Kind::kReplace, pattern, content});
    } else {
      FailUnsupported(field, Concat("\"", type, "\""));
    }
  }
}

// Reads ByteLevel, or the decoders of SentencePiece's vocabularies: Replace, ByteFallback, Fuse and, at most,
// Strip.
void ReadDecoder(const Field& root, TokenizerSpec* spec) {
  if (!root.Has("decoder")) Fail("decoder: null is not supported");
  const std::vector<Field> fields = Flatten(root.At("decoder"), "decoders");
  if (fields.size() == 1 && fields[0].Type() == "ByteLevel") return;
  spec->spelling.byte_level = false;
  constexpr std::string_view kOrder[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i >= std::size(kOrder) || fields[i].Type() != kOrder[i]) {
      FailUnsupported(fields[i], Concat("\"", fields[i].Type(), "\" as step ", i + 1));
    }
  }
  if (fields.size() < 3) Fail("decoder is neither ByteLevel nor Replace, ByteFallback, Fuse");
  if (fields[0].At("content").String() != " ") FailUnsupported(fields[0], "what is put in place");
  spec->spelling.space = fields[0].At("pattern").At("String").String();
  if (spec->spelling.space.empty()) Fail(fields[0].path, ".pattern is empty");
  if (fields.size() == 3) return;
  const Field& strip = fields[3];
  if (strip.At("content").String() != " " || strip.At("start").Id() != 1 || strip.At("stop").Id() != 0) {
    FailUnsupported(strip, "this Strip");
  }
  spec->spelling.drops_leading_space = true;
}

TokenizerSpec Read(const Field& root) {
  TokenizerSpec spec;
  ReadModel(root.At("model"), &spec);
  if (root.Has("added_tokens")) ReadAddedTokens(root.At("added_tokens"), &spec);
  ReadDecoder(root, &spec);
  ReadNormalizer(root, &spec);
  ReadPreTokenizer(root, &spec);
  ReadPostProcessor(root, &spec);
  return spec;
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view json) {
  const Json root = OUTRIDER_TRY(ParseJson(json));
  try {
    return Read({root, ""});
  } catch (const std::exception& problem) {  // thrown by Fail or Json
    return absl::InvalidArgumentError(problem.what());
  }
}

}  // namespace outrider
