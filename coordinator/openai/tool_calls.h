// Finds the calls of tools in an answer's text while it comes.
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

// What a piece of text, with what was held back of those before it, turned out to be.
struct ToolText {
  std::string content = {};  // text that is no call
  std::vector<ToolCallPart> calls = {};
};

// Reads one JSON object, {"name": ..., "arguments": {...}}, character by character. `parameters` stands for
// `arguments`, and there may be a `type` and an `id`. One thread.
class ToolCallReader {
 public:
  enum class State { kReading, kCall, kNoCall };

  // `names` are the functions that can be called, and must outlive this.
  explicit ToolCallReader(const absl::flat_hash_set<std::string>* names) : names_(names) {}

  // The characters from '{' on, until the state is another. Once named() it is a call, whatever follows.
  State Take(char c);

  // Whether the function's name is known, and its arguments have begun or there are none.
  bool named() const { return named_; }
  const std::string& name() const { return name_; }
  // The arguments' text that has come since the last call of this. The arguments of a whole call are "{}" if
  // it had none, and what a text spells if they were one.
  std::string TakeArguments();

 private:
  // Where the next character is.
  enum class Place { kBegin, kKey, kInKey, kColon, kValue, kInValue, kAfterValue };

  State EndValue();
  State EndObject();
  State Fail() const { return named_ ? State::kReading : State::kNoCall; }
  bool IsArguments() const { return key_ == "arguments" || key_ == "parameters"; }

  const absl::flat_hash_set<std::string>* const names_;
  Place place_ = Place::kBegin;
  std::string key_, value_;  // as written, without a key's quotes
  int depth_ = 0;            // of the value's lists and objects
  bool in_string_ = false;   // of the value, or the key
  bool escaped_ = false;
  std::string name_, arguments_;
  bool has_arguments_ = false;
  bool named_ = false;
};

// Splits one answer. In every format a call may also begin the answer without what marks calls, since a
// tokenizer may keep that for itself. What is not quite a call of a known function is text. One thread.
class ToolCallParser {
 public:
  // For the functions `names`. Calls after the first are left out unless several are wanted.
  ToolCallParser(v1::ToolFormat format, absl::flat_hash_set<std::string> names, bool several);

  ToolText Take(absl::string_view text);
  // The rest, at the end of the answer.
  ToolText End();

  size_t calls() const { return calls_; }

 private:
  enum class Mode { kText, kBefore, kCall, kAfter };

  void Take(char c, ToolText* out);
  void TakeText(char c, ToolText* out);
  void TakeBefore(char c, ToolText* out);
  void TakeCall(char c, ToolText* out);
  void TakeAfter(char c, ToolText* out);
  // What was held is no call.
  void Release(ToolText* out);
  void AddParts(ToolText* out);

  const absl::flat_hash_set<std::string> names_;
  const std::string begin_, end_;  // what marks a call, perhaps empty
  const bool several_;
  Mode mode_ = Mode::kBefore;
  std::string held_;  // text of which it is not known yet what it is
  bool in_list_ = false;
  std::optional<ToolCallReader> reader_;  // of kCall
  bool announced_ = false;                // the call that is being read is in a part already
  size_t calls_ = 0;
};

}  // namespace outrider
