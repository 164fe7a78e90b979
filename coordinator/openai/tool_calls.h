// Finds tool calls in an answer's text while it streams in.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// A part of a call.
struct ToolCallPart {
  size_t call = 0;        // its index among the answer's calls
  std::string name = {};  // in the first part of a call, else empty
  std::string arguments = {};
};

// A piece of an answer's text, with text held back before it, split into content and calls.
struct ToolText {
  std::string content = {};  // text that is no call
  std::vector<ToolCallPart> calls = {};
};

// Reads one JSON object, {"name": ..., "arguments": {...}}, character by character. `parameters` may stand
// for `arguments`, and there may be a `type` and an `id`. One thread.
class ToolCallReader {
 public:
  enum class State { kReading, kCall, kNoCall };

  // `names` are the functions that can be called, and must outlive this.
  explicit ToolCallReader(const absl::flat_hash_set<std::string>* names) : names_(names) {}

  // Takes a character, from '{' on, while the state is kReading. Once named() it is a call, whatever follows.
  State Take(char c);

  // Whether the function's name is known, and its arguments have begun or there are none.
  bool named() const { return named_; }
  const std::string& name() const { return name_; }
  // Returns the text of the arguments since the last TakeArguments. A whole call without arguments has "{}".
  // Arguments in the form of a JSON string are decoded.
  std::string TakeArguments();

 private:
  // What the next character belongs to.
  enum class Place { kBegin, kKey, kInKey, kColon, kValue, kInValue, kAfterValue };

  State EndValue();
  State EndObject();
  State Fail() const { return named_ ? State::kReading : State::kNoCall; }
  bool IsArguments() const { return key_ == "arguments" || key_ == "parameters"; }

  const absl::flat_hash_set<std::string>* const names_;
  Place place_ = Place::kBegin;
  std::string key_, value_;  // as written, without a key's quotes
  int depth_ = 0;            // of lists and objects in the value
  bool in_string_ = false;   // the next character is in a string of the value
  bool escaped_ = false;
  std::string name_, arguments_;
  bool has_arguments_ = false;
  bool named_ = false;
};

// Splits one answer. In every format a call at the answer's start may lack the mark, since a tokenizer may
// drop it as a special token. Anything that is not exactly a call of a known function is content. One thread.
class ToolCallParser {
 public:
  // `names` are the functions that can be called. Unless `several`, drops the calls after the first.
  ToolCallParser(v1::ToolFormat format, absl::flat_hash_set<std::string> names, bool several);

  ToolText Take(absl::string_view text);
  // Returns the text that was held back. Call at the end of the answer.
  ToolText End();

  size_t calls() const { return calls_; }

 private:
  enum class Mode { kText, kBefore, kCall, kAfter };

  void Take(char c, ToolText* out);
  void TakeText(char c, ToolText* out);
  void TakeBefore(char c, ToolText* out);
  void TakeCall(char c, ToolText* out);
  void TakeAfter(char c, ToolText* out);
  // Releases the held text as content: it is no call.
  void Release(ToolText* out);
  void AddParts(ToolText* out);

  const absl::flat_hash_set<std::string> names_;
  const std::string begin_, end_;  // the marks around a call, perhaps empty
  const bool several_;
  Mode mode_ = Mode::kBefore;
  std::string held_;  // text that may yet turn out to be a call
  bool in_list_ = false;
  std::optional<ToolCallReader> reader_;  // set in kCall
  bool announced_ = false;                // the current call has been in a part already
  size_t calls_ = 0;
};

}  // namespace outrider
