#include "coordinator/openai/tool_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/text/json.h"

namespace outrider {
namespace {

constexpr size_t kMaxSpaceBeforeCall = 256;

// The decoded JSON string; empty if it is malformed.
std::string DecodedString(const std::string& text) {
  const absl::StatusOr<nlohmann::json> json = ParseJson(text);
  return json.ok() && json->is_string() ? json->get<std::string>() : "";
}

// The length of the longest suffix of `text` that may begin white space and then `mark`.
size_t HeldBackSize(absl::string_view text, absl::string_view mark) {
  size_t part = std::min(text.size(), mark.size() - 1);
  while (part > 0 && !absl::EndsWith(text, mark.substr(0, part))) --part;
  const absl::string_view before = text.substr(0, text.size() - part);
  return text.size() - absl::StripTrailingAsciiWhitespace(before).size();
}

}  // namespace

ToolCallReader::State ToolCallReader::Take(char c) {
  const bool is_space = absl::ascii_isspace(static_cast<unsigned char>(c));
  switch (place_) {
    case Place::kBegin:
      place_ = Place::kKey;
      return c == '{' ? State::kReading : State::kNoCall;
    case Place::kKey:
      if (is_space || c == ',') return State::kReading;
      if (c == '}') return EndObject();
      key_.clear();
      place_ = Place::kInKey;
      return c == '"' ? State::kReading : Fail();
    case Place::kInKey:
      if (c != '"') {
        key_ += c;
        return State::kReading;
      }
      place_ = Place::kColon;
      return IsArguments() || key_ == "name" || key_ == "type" || key_ == "id" ? State::kReading : Fail();
    case Place::kColon:
      if (is_space) return State::kReading;
      place_ = Place::kValue;
      return c == ':' ? State::kReading : Fail();
    case Place::kValue:
      if (is_space) return State::kReading;
      place_ = Place::kInValue;
      value_.clear();
      depth_ = 0;
      in_string_ = escaped_ = false;
      break;
    case Place::kInValue:
      break;
    case Place::kAfterValue:
      if (c == '}') return EndObject();
      if (c == ',') place_ = Place::kKey;
      return is_space || c == ',' ? State::kReading : Fail();
  }
  // A number or a word ends before the character that follows it.
  const bool is_word = !in_string_ && depth_ == 0 && !value_.empty();
  if (is_word && (is_space || c == ',' || c == '}')) {
    if (const State state = EndValue(); state != State::kReading) return state;
    return Take(c);
  }
  const bool streams = IsArguments() && (value_.empty() ? c == '{' : value_[0] == '{');
  value_ += c;
  if (streams) {
    value_.resize(1);  // the first character tells its type
    arguments_ += c;
    has_arguments_ = true;
    named_ = named_ || !name_.empty();
  }
  if (in_string_) {
    if (!std::exchange(escaped_, !escaped_ && c == '\\') && c == '"') in_string_ = false;
  } else if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if (c == '}' || c == ']') {
    --depth_;
  }
  const bool is_whole = !in_string_ && depth_ == 0 && (c == '"' || c == '}' || c == ']');
  return is_whole ? EndValue() : State::kReading;
}

ToolCallReader::State ToolCallReader::EndValue() {
  place_ = Place::kAfterValue;
  if (named_) return State::kReading;
  if (key_ == "name") {
    name_ = DecodedString(value_);
    if (!names_->contains(name_)) return State::kNoCall;
    named_ = has_arguments_;
  } else if (IsArguments() && value_[0] != '{') {
    if (value_ != "null" && value_[0] != '"') return State::kNoCall;
    arguments_ = DecodedString(value_);
  }
  return State::kReading;
}

ToolCallReader::State ToolCallReader::EndObject() {
  if (name_.empty()) return State::kNoCall;
  if (!has_arguments_ && arguments_.empty()) arguments_ = "{}";
  named_ = true;
  return State::kCall;
}

std::string ToolCallReader::TakeArguments() { return std::exchange(arguments_, ""); }

ToolCallParser::ToolCallParser(v1::ToolFormat format, absl::flat_hash_set<std::string> names, bool several)
    : names_(std::move(names)),
      begin_(format == v1::TOOL_FORMAT_HERMES    ? "<tool_call>"
             : format == v1::TOOL_FORMAT_MISTRAL ? "[TOOL_CALLS]"
             : format == v1::TOOL_FORMAT_LLAMA   ? "<|python_tag|>"
                                                 : ""),
      end_(format == v1::TOOL_FORMAT_HERMES ? "</tool_call>" : ""),
      several_(several) {}

ToolText ToolCallParser::Take(absl::string_view text) {
  ToolText out;
  for (const char c : text) Take(c, &out);
  if (mode_ == Mode::kCall) AddParts(&out);
  return out;
}

ToolText ToolCallParser::End() {
  ToolText out;
  const bool is_rest = mode_ == Mode::kAfter || (mode_ == Mode::kCall && announced_);
  const bool is_blank = calls_ > 0 && held_.find_first_not_of(" \t\r\n,;") == std::string::npos;
  if (!is_rest && !is_blank) out.content = std::exchange(held_, "");
  held_.clear();
  return out;
}

void ToolCallParser::Take(char c, ToolText* out) {
  switch (mode_) {
    case Mode::kText:
      return TakeText(c, out);
    case Mode::kBefore:
      return TakeBefore(c, out);
    case Mode::kCall:
      return TakeCall(c, out);
    case Mode::kAfter:
      return TakeAfter(c, out);
  }
}

void ToolCallParser::TakeText(char c, ToolText* out) {
  held_ += c;
  if (begin_.empty()) {
    out->content += std::exchange(held_, "");
  } else if (absl::EndsWith(held_, begin_)) {
    const absl::string_view text = absl::string_view(held_).substr(0, held_.size() - begin_.size());
    const size_t size = absl::StripTrailingAsciiWhitespace(text).size();
    out->content += held_.substr(0, size);
    held_.erase(0, size);
    in_list_ = false;
    mode_ = Mode::kBefore;
  } else {
    // White space before a call is dropped, but only up to a limit.
    const size_t text =
        held_.size() > kMaxSpaceBeforeCall ? held_.size() : held_.size() - HeldBackSize(held_, begin_);
    out->content += held_.substr(0, text);
    held_.erase(0, text);
  }
}

void ToolCallParser::TakeBefore(char c, ToolText* out) {
  held_ += c;
  if (c == '{') {
    reader_.emplace(&names_).Take(c);
    announced_ = false;
    mode_ = Mode::kCall;
  } else if (c == '[' && !in_list_) {
    in_list_ = true;
  } else if (!absl::ascii_isspace(static_cast<unsigned char>(c))) {
    Release(out);
  }
}

void ToolCallParser::TakeCall(char c, ToolText* out) {
  if (!announced_) held_ += c;
  const ToolCallReader::State state = reader_->Take(c);
  if (state == ToolCallReader::State::kNoCall) return Release(out);
  if (state == ToolCallReader::State::kReading) return;
  AddParts(out);
  ++calls_;
  held_.clear();
  mode_ = Mode::kAfter;
}

void ToolCallParser::TakeAfter(char c, ToolText* out) {
  held_ += c;
  const absl::string_view held = absl::StripAsciiWhitespace(held_);
  if (held.empty()) return;
  if (!end_.empty() && absl::StartsWith(end_, held)) {
    if (held == end_) held_.clear();
  } else if (held == "]" && in_list_) {
    in_list_ = false;
    held_.clear();
  } else if (held == (in_list_ ? "," : ";")) {
    mode_ = Mode::kBefore;
  } else if (held == "{") {
    held_.clear();
    mode_ = Mode::kBefore;
    TakeBefore(c, out);
  } else {
    Release(out);
  }
}

void ToolCallParser::Release(ToolText* out) {
  const std::string text = std::exchange(held_, "");
  mode_ = Mode::kText;
  in_list_ = false;
  // A mark that no call follows is content. The text after the mark may have another mark and is read again.
  const absl::string_view marked = absl::StripLeadingAsciiWhitespace(text);
  const bool has_mark = !begin_.empty() && absl::StartsWith(marked, begin_);
  const size_t first = has_mark ? text.size() - marked.size() + begin_.size() : 0;
  out->content += text.substr(0, first);
  for (const char c : absl::string_view(text).substr(first)) Take(c, out);
}

void ToolCallParser::AddParts(ToolText* out) {
  if (!reader_->named()) return;
  std::string arguments = reader_->TakeArguments();
  const bool is_wanted = calls_ == 0 || several_;
  if (is_wanted && (!announced_ || !arguments.empty())) {
    out->calls.push_back(
        {.call = calls_, .name = announced_ ? "" : reader_->name(), .arguments = std::move(arguments)});
  }
  held_.clear();
  announced_ = true;
}

}  // namespace outrider
