#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/cli/call.h"
#include "client/cli/flags.h"
#include "client/cli/line_editor.h"
#include "client/cli/render.h"
#include "common/rpc/drafters.h"
#include "common/spec/status.h"
#include "common/text/utf8.h"

namespace outrider {
namespace {

constexpr char kHelp[] =
    "/system TEXT       what the model is told first; nothing without TEXT\n"
    "/clear             forget the conversation\n"
    "/temperature T     0 takes the most probable token\n"
    "/drafter NAME      who guesses\n"
    "/stats             what the last answer took\n"
    "/help              this\n"
    "Ctrl-C ends an answer, Ctrl-D the conversation.\n";

void Say(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void Complain(const std::string& what) { std::fprintf(stderr, "error: %s\n", what.c_str()); }

// The history file, by the XDG base directory specification; empty if there is none.
std::string HistoryFile() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state == '/') {
    return absl::StrCat(state, "/outrider/history");
  }
  const char* const home = std::getenv("HOME");
  return home == nullptr || *home != '/' ? "" : absl::StrCat(home, "/.local/state/outrider/history");
}

class Conversation {
 public:
  Conversation(const ChatFlags& flags, Connection connection, Signals& signals)
      : connection_(std::move(connection)),
        signals_(signals),
        request_(flags.request),
        system_(flags.system),
        style_(StyleOfStandardOutput()),
        renderer_(style_) {}

  // Answers `question`. Returns the signal that interrupted the answer, 0 if none. An interrupted answer
  // stays in the conversation. A question whose answer failed does not.
  absl::StatusOr<int> Turn(const std::string& question) {
    if (!IsValidUtf8(question)) return Invalid("that is not UTF-8");
    messages_.emplace_back("user", question);
    request_.clear_chat();
    if (!system_.empty()) AddMessage("system", system_, request_);
    for (const auto& [role, content] : messages_) AddMessage(role, content, request_);
    std::string text;
    const auto on_chunk = [&](const v1::GenerateResponse& chunk) {
      for (const v1::GeneratedToken& token : chunk.tokens()) text += token.text();
      Say(renderer_.Chunk(chunk));
      return std::ferror(stdout) == 0;
    };
    const Answer answer = Ask(connection_, request_, signals_, {on_chunk, [](const auto&) { Say("\n"); }});
    if (answer.unread) return SIGPIPE;
    if (answer.samples.ok()) {
      finish_ = answer.samples->front().finish;
    } else if (answer.signal == 0) {
      messages_.pop_back();
      return answer.samples.status();
    }
    messages_.emplace_back("assistant", text);
    return answer.signal;
  }

  // Runs a line that begins with a slash.
  void Command(absl::string_view line) {
    const size_t space = line.find(' ');
    const absl::string_view name = line.substr(0, space);
    const std::string argument(
        absl::StripAsciiWhitespace(space == absl::string_view::npos ? "" : line.substr(space)));
    if (name == "/system") {
      system_ = argument;
    } else if (name == "/clear") {
      messages_.clear();
    } else if (name == "/temperature") {
      SetTemperature(argument);
    } else if (name == "/drafter") {
      SetDrafter(argument);
    } else if (name == "/stats") {
      Say(finish_ ? Summary(*finish_) + "\n" : "there is no answer yet\n");
    } else if (name == "/help") {
      Say(kHelp);
    } else {
      Complain(absl::StrCat("no command ", name, "; /help lists them"));
    }
  }

  // Whether `error` means that no service is left to answer the next question.
  bool IsOver(const absl::Status& error) {
    return connection_.services() != nullptr && absl::IsUnavailable(error);
  }

  std::string Legend() const { return renderer_.Legend(); }

 private:
  void SetTemperature(const std::string& argument) {
    double temperature = 0;
    if (!absl::SimpleAtod(argument, &temperature)) {
      Complain(absl::StrCat("'", argument, "' is not a temperature: a number from 0 on"));
      return;
    }
    request_.mutable_sampling()->set_temperature(temperature);
  }

  void SetDrafter(const std::string& name) {
    const std::vector<std::string> names = DrafterNames();
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      Complain(absl::StrCat("'", name, "' is no drafter; there are: ", absl::StrJoin(names, ", ")));
      return;
    }
    request_.mutable_speculation()->set_drafter(FromName<v1::DrafterKind>(name));
  }

  Connection connection_;
  Signals& signals_;
  v1::GenerateRequest request_;
  std::string system_;
  std::vector<std::pair<std::string, std::string>> messages_;  // role and content
  std::optional<v1::Finish> finish_;                           // of the last whole answer
  const OutputStyle style_;
  const Renderer renderer_;
};

// Returns the exit status.
absl::StatusOr<int> TalkInTerminal(Conversation& conversation, Signals& signals) {
  Say(absl::StrCat(conversation.Legend(), "/help lists commands\n"));
  LineEditor editor(">>> ", HistoryFile(), signals);
  while (true) {
    const LineEditor::Input input = editor.Read();
    if (input.signal == SIGINT) {
      Say("\n");
      continue;
    }
    if (input.signal != 0) return 128 + input.signal;
    if (input.end) {
      Say("\n");
      return 0;
    }
    if (absl::StripAsciiWhitespace(input.text).empty()) continue;
    if (input.text.front() == '/') {
      conversation.Command(input.text);
      continue;
    }
    const absl::StatusOr<int> signal = conversation.Turn(input.text);
    if (!signal.ok()) {
      if (conversation.IsOver(signal.status())) return signal.status();
      Complain(std::string(signal.status().message()));
    } else if (*signal != 0 && *signal != SIGINT) {
      return 128 + *signal;
    }
  }
}

}  // namespace

absl::StatusOr<int> RunChat(const ChatFlags& flags) {
  Signals signals;
  int stop_signal = 0;
  absl::StatusOr<Connection> connection = Connect(flags, signals, &stop_signal);
  if (stop_signal != 0) return 128 + stop_signal;
  OUTRIDER_TRY(connection.status());
  Conversation conversation(flags, *std::move(connection), signals);
  if (isatty(STDIN_FILENO) != 0) return TalkInTerminal(conversation, signals);
  // A text that is piped in is one question.
  const int signal = OUTRIDER_TRY(conversation.Turn(ReadStandardInput()));
  return signal == 0 ? 0 : 128 + signal;
}

}  // namespace outrider
