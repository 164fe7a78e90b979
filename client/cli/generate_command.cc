#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/flags.h"
#include "client/cli/local_services.h"
#include "client/cli/process.h"
#include "client/cli/render.h"
#include "common/spec/status.h"
#include "common/text/utf8.h"

namespace outrider {
namespace {

// How long an answer may take to break off after a signal, before we leave without it.
constexpr absl::Duration kBreakOff = absl::Seconds(1);

absl::StatusOr<std::string> ReadPrompt(const GenerateFlags& flags) {
  std::string prompt;
  if (flags.prompt) {
    prompt = *flags.prompt;
  } else if (isatty(STDIN_FILENO) != 0) {
    return Invalid("no prompt: give PROMPT, or pipe a text into standard input");
  } else {
    prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
    if (!prompt.empty() && prompt.back() == '\n') prompt.pop_back();
  }
  if (!IsValidUtf8(prompt)) return Invalid("the prompt is not UTF-8");
  return prompt;
}

absl::StatusOr<LocalServicesOptions> ServicesFor(const GenerateFlags& flags) {
  LocalServicesOptions options = flags.services;
  OUTRIDER_TRY(SettleDraftModel(options));
  if (options.draft_model == kNoDraftModel &&
      flags.request.speculation().drafter() == v1::DRAFTER_KIND_MODEL) {
    return Invalid("--drafter model needs a draft model: name one with --draft-model");
  }
  return options;
}

// Writes the answer as it comes. The thread of the call.
class AnswerWriter {
 public:
  AnswerWriter(const GenerateFlags& flags, std::string prompt)
      : flags_(flags), prompt_(std::move(prompt)), style_(StyleOfStandardOutput()), renderer_(style_) {}

  // False once nobody reads it any more.
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
      if (style_.terminal) Put(renderer_.Prompt(prompt_));
      Put(style_.terminal ? WithoutControls(completion.text) : completion.text);
    }
    Put("\n");
    // Standard output carries the text and nothing else when a program reads it.
    if (style_.terminal) Put("\n");
    // The cost of a search is reported once.
    const size_t summaries = flags_.request.has_beam() ? 1 : samples.size();
    for (size_t i = 0; i < summaries; ++i) {
      std::fprintf(style_.terminal ? stdout : stderr, "%s\n", Summary(samples[i].finish).c_str());
    }
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
    return absl::StrCat(legend, legend.empty() ? "" : "\n", renderer_.Prompt(prompt_));
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

// A generation in a thread of its own, so that the first can watch signals and processes.
class Call {
 public:
  Call(std::optional<Client> client, const GenerateFlags& flags, const std::string& prompt, Signals& signals)
      : client_(std::move(client)), writer_(flags, prompt), thread_([this, &flags, prompt, &signals] {
          Run(flags, prompt);
          done_ = true;
          signals.Wake();
        }) {}
  ~Call() { thread_.join(); }

  void Cancel() { cancellation_.Cancel(); }
  bool done() const { return done_; }
  // Call once done.
  const absl::Status& status() const { return status_; }
  bool unread() const { return unread_; }

 private:
  void Run(const GenerateFlags& flags, const std::string& prompt) {
    if (!client_) {
      auto connected = Client::Connect(flags.address, {.security = flags.security});
      status_ = connected.status();
      if (!status_.ok()) return;
      client_ = *std::move(connected);
    }
    const auto on_chunk = [this](const v1::GenerateResponse& chunk) {
      if (writer_.Write(chunk)) return;
      unread_ = true;
      Cancel();
    };
    v1::GenerateRequest request = flags.request;
    request.set_text(prompt);
    const absl::StatusOr<std::vector<Completion>> samples =
        client_->GenerateSamples(request, on_chunk, &cancellation_);
    status_ = samples.status();
    if (samples.ok()) {
      writer_.End(*samples);
    } else {
      writer_.BreakOff();
    }
  }

  std::optional<Client> client_;
  AnswerWriter writer_;
  Cancellation cancellation_;
  absl::Status status_;
  bool unread_ = false;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

// What ended the wait for a call, other than the call itself.
struct Interruption {
  int signal = 0;
  absl::Status death;
};

// The error of a service that a generation cannot do without.
absl::Status FatalDeath(LocalServices& services) {
  const absl::Status target = services.Death(kTarget);
  return target.ok() ? services.Death(kCoordinator) : target;
}

Interruption WaitFor(Call& call, Signals& signals, LocalServices* services) {
  bool draft_lost = false;
  while (!call.done()) {
    const int signal = signals.Wait();
    if (Signals::IsStop(signal)) return {signal, absl::OkStatus()};
    if (services == nullptr) continue;
    if (absl::Status death = FatalDeath(*services); !death.ok()) return {0, death};
    if (absl::Status death = services->Death(kDraft); !death.ok() && !draft_lost) {
      draft_lost = true;
      std::fprintf(stderr, "note: %s; going on without it\n", std::string(death.message()).c_str());
    }
  }
  return {};
}

}  // namespace

absl::StatusOr<int> RunGenerate(const GenerateFlags& flags) {
  const std::string prompt = OUTRIDER_TRY(ReadPrompt(flags));
  Signals signals;
  std::unique_ptr<LocalServices> services;
  std::optional<Client> client;
  if (flags.address.empty()) {
    const LocalServicesOptions options = OUTRIDER_TRY(ServicesFor(flags));
    services = OUTRIDER_TRY(LocalServices::Start(options));
    if (!services->has_draft() && flags.services.draft_model.empty() &&
        flags.request.speculation().drafter() == v1::DRAFTER_KIND_UNSPECIFIED) {
      std::fprintf(stderr, "note: no --draft-model for %s: drafting with n-grams\n",
                   options.target_model.c_str());
    }
    int stop_signal = 0;
    absl::StatusOr<Client> serving = WaitUntilServing(*services, signals, &stop_signal);
    if (stop_signal != 0) return 128 + stop_signal;
    client = OUTRIDER_TRY(std::move(serving));
  }

  Call call(std::move(client), flags, prompt, signals);
  const Interruption interruption = WaitFor(call, signals, services.get());
  call.Cancel();
  const absl::Time patience = absl::Now() + kBreakOff;
  while (!call.done() && absl::Now() < patience && !Signals::IsStop(signals.Wait(absl::Milliseconds(50)))) {
  }
  const int interrupted_status = interruption.signal != 0 ? 128 + interruption.signal : 1;
  if (!call.done()) {
    // It may hang in a write that nobody reads: abandon it, but nothing else.
    services.reset();
    _exit(interrupted_status);
  }
  if (interruption.signal != 0) return interrupted_status;
  OUTRIDER_TRY(interruption.death);
  if (!call.status().ok() && services != nullptr) {
    // The connection breaks before the process is gone.
    signals.Wait(kBreakOff / 10);
    OUTRIDER_TRY(FatalDeath(*services));
  }
  if (call.unread()) return 128 + SIGPIPE;
  OUTRIDER_TRY(call.status());
  return 0;
}

}  // namespace outrider
