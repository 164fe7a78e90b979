#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/call.h"
#include "client/cli/flags.h"
#include "client/cli/process.h"
#include "client/cli/render.h"
#include "client/cli/timeline.h"
#include "common/spec/status.h"
#include "common/text/utf8.h"

namespace outrider {
namespace {

absl::StatusOr<std::string> ReadPrompt(const GenerateFlags& flags) {
  std::string prompt;
  if (flags.prompt) {
    prompt = *flags.prompt;
  } else if (isatty(STDIN_FILENO) != 0) {
    return Invalid("no prompt: give PROMPT, or pipe a text into standard input");
  } else {
    prompt = ReadStandardInput();
  }
  if (!IsValidUtf8(prompt)) return Invalid("the prompt is not UTF-8");
  return prompt;
}

// Writes the answer as it comes, on the thread of the call.
class AnswerWriter {
 public:
  AnswerWriter(const GenerateFlags& flags, std::string prompt)
      : flags_(flags), prompt_(std::move(prompt)), style_(StyleOfStandardOutput()), renderer_(style_) {}

  // Returns false once nobody reads the output any more.
  bool Write(const v1::GenerateResponse& chunk) {
    if (flags_.json) return true;
    if (flags_.request.n() > 1) return WriteSample(chunk);
    if (!begun_) Put(flags_.request.trace() ? renderer_.RoundLegend() : Opening());
    begun_ = true;
    return Put(flags_.request.trace() ? renderer_.Round(chunk) : renderer_.Chunk(chunk));
  }

  void End(const std::vector<Completion>& samples) {
    if (flags_.json) {
      Put(ToJson(samples) + "\n");
      return;
    }
    const Completion& completion = samples.front();
    if (flags_.request.trace()) {
      Put("\n");
      if (style_.terminal && !flags_.chat) Put(renderer_.Prompt(prompt_));
      Put(style_.terminal ? WithoutControls(completion.text) : completion.text);
    }
    Put("\n");
    // Standard output carries the text and nothing else when a program reads it.
    if (style_.terminal) Put("\n");
    // The cost of a search is reported once.
    const size_t summaries = flags_.request.has_beam() ? 1 : samples.size();
    for (size_t i = 0; i < summaries; ++i) Note(Summary(samples[i].finish));
  }

  // Prints a line about the answer that is not part of it.
  void Note(const std::string& line) {
    std::fprintf(style_.terminal ? stdout : stderr, "%s\n", line.c_str());
  }

  void BreakOff() {
    if (begun_) Put("\n");
  }

 private:
  // Samples come interleaved; each is shown once it is whole.
  bool WriteSample(const v1::GenerateResponse& chunk) {
    std::string& text = unfinished_samples_[chunk.sample()];
    text += renderer_.Chunk(chunk);
    if (!chunk.has_finish()) return true;
    const std::string opening = begun_ ? "\n" : Opening();
    begun_ = true;
    const std::string name =
        chunk.finish().has_score()
            ? absl::StrFormat("text %d, score %.4f", chunk.sample(), chunk.finish().score())
            : absl::StrCat("sample ", chunk.sample());
    return Put(absl::StrCat(opening, "[", name, "]\n", text, "\n"));
  }

  std::string Opening() const {
    if (!style_.terminal) return "";
    const std::string legend = renderer_.Legend();
    // An answer does not continue its question, so the question is not shown.
    return absl::StrCat(legend, legend.empty() ? "" : "\n", flags_.chat ? "" : renderer_.Prompt(prompt_));
  }

  static bool Put(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  }

  const GenerateFlags& flags_;
  const std::string prompt_;
  const OutputStyle style_;
  const Renderer renderer_;
  bool begun_ = false;
  std::map<uint32_t, std::string> unfinished_samples_;
};

// OK if plain decoding can be expected to write the same text.
absl::Status CheckComparable(const v1::GenerateRequest& request) {
  const bool greedy = request.sampling().has_temperature() && request.sampling().temperature() == 0;
  const bool coupled = request.speculation().rule() == v1::RULE_COUPLED && request.has_seed();
  if (request.has_beam()) return Invalid("--compare-plain is not for --beam-width");
  if (greedy || coupled) return absl::OkStatus();
  return Invalid("--compare-plain needs --temperature 0, or --rule coupled with --seed: two samples differ");
}

// The same request, with the same random numbers, but without speculation.
v1::GenerateRequest WithoutSpeculation(v1::GenerateRequest request) {
  const v1::Rule rule = request.speculation().rule();
  request.clear_speculation();
  request.mutable_speculation()->set_rule(rule);
  request.mutable_speculation()->set_draft_tokens(0);
  return request;
}

}  // namespace

std::string ReadStandardInput() {
  std::string text(std::istreambuf_iterator<char>(std::cin), {});
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

void AddMessage(const std::string& role, const std::string& content, v1::GenerateRequest& request) {
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role(role);
  message.set_content(content);
}

absl::StatusOr<int> RunGenerate(const GenerateFlags& flags) {
  const bool draws = !flags.timeline.empty();
  if (draws && flags.request.has_beam()) return Invalid("--timeline is not for --beam-width");
  if (flags.compare_plain) OUTRIDER_TRY(CheckComparable(flags.request));
  const std::string prompt = OUTRIDER_TRY(ReadPrompt(flags));
  v1::GenerateRequest request = flags.request;
  request.set_trace(request.trace() || draws);
  if (flags.chat) {
    if (!flags.system.empty()) AddMessage("system", flags.system, request);
    AddMessage("user", prompt, request);
  } else {
    request.set_text(prompt);
  }
  Signals signals;
  int stop_signal = 0;
  absl::StatusOr<Connection> connection = Connect(flags, signals, &stop_signal);
  if (stop_signal != 0) return 128 + stop_signal;
  OUTRIDER_TRY(connection.status());
  AnswerWriter writer(flags, prompt);
  const auto on_end = [&writer](const absl::StatusOr<std::vector<Completion>>& samples) {
    samples.ok() ? writer.End(*samples) : writer.BreakOff();
  };
  std::vector<TracedAnswer> traced = {{.name = "with speculation", .rounds = {}}};
  const auto record = [&traced](const v1::GenerateResponse& chunk) {
    if (chunk.has_trace()) traced.back().rounds.push_back(chunk.trace());
    return true;
  };
  const auto on_chunk = [&](const v1::GenerateResponse& chunk) { return record(chunk) && writer.Write(chunk); };
  const Answer answer = Ask(*connection, request, signals, {on_chunk, on_end});
  if (answer.signal != 0) return 128 + answer.signal;
  if (answer.unread) return 128 + SIGPIPE;
  OUTRIDER_TRY(answer.samples.status());
  if (flags.compare_plain) {
    traced.push_back({.name = "plain decoding", .rounds = {}});
    const Answer plain = Ask(*connection, WithoutSpeculation(request), signals, {.on_chunk = record});
    if (plain.signal != 0) return 128 + plain.signal;
    OUTRIDER_TRY(plain.samples.status());
    writer.Note(Comparison(answer.samples->front(), plain.samples->front()));
  }
  if (draws) OUTRIDER_TRY(WriteTimeline(flags.timeline, traced));
  return 0;
}

}  // namespace outrider
