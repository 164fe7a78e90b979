#include "client/cli/call.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <utility>

#include "common/spec/status.h"

namespace outrider {
namespace {

// How long a cancelled call may take to end, before the process exits without its answer.
constexpr absl::Duration kBreakOff = absl::Seconds(1);

// Runs a generation on a thread of its own, so that the caller's thread can watch signals and processes.
class Call {
 public:
  Call(Connection& connection, const v1::GenerateRequest& request, Signals& signals,
       const AnswerReader& reader)
      : thread_([this, &connection, &request, &signals, &reader] {
          Run(connection, request, reader);
          done_ = true;
          signals.Wake();
        }) {}
  ~Call() { thread_.join(); }

  void Cancel() { cancellation_.Cancel(); }
  bool done() const { return done_; }
  // Call once done.
  Answer TakeAnswer() { return std::move(answer_); }

 private:
  void Run(Connection& connection, const v1::GenerateRequest& request, const AnswerReader& reader) {
    const auto client = connection.client();
    if (!client.ok()) {
      answer_.samples = client.status();
      return;
    }
    const auto on_chunk = [this, &reader](const v1::GenerateResponse& chunk) {
      if (reader.on_chunk(chunk)) return;
      answer_.unread = true;
      Cancel();
    };
    answer_.samples = (*client)->GenerateSamples(request, on_chunk, &cancellation_);
    reader.on_end(answer_.samples);
  }

  Cancellation cancellation_;
  Answer answer_;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

// How a service that generation needs has ended: the target or the coordinator. OK while both run.
absl::Status FatalDeath(LocalServices& services) {
  const absl::Status target = services.Death(kTarget);
  return target.ok() ? services.Death(kCoordinator) : target;
}

// The reason that a wait for a call ended early. Neither member is set if the call itself ended.
struct Interruption {
  int signal = 0;
  absl::Status death;
};

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

absl::StatusOr<const Client*> Connection::client() {
  if (!client_) client_ = OUTRIDER_TRY(Client::Connect(address_, {.security = security_}));
  return &*client_;
}

absl::StatusOr<Connection> Connect(const ChatFlags& flags, Signals& signals, int* stop_signal) {
  if (!flags.address.empty()) return Connection(flags.address, flags.security);
  LocalServicesOptions options = flags.services;
  OUTRIDER_TRY(SettleDraftModel(options));
  const v1::DrafterKind drafter = flags.request.speculation().drafter();
  if (options.draft_model == kNoDraftModel && drafter == v1::DRAFTER_KIND_MODEL) {
    return Invalid("--drafter model needs a draft model: name one with --draft-model");
  }
  auto started = OUTRIDER_TRY(LocalServices::Start(options));
  if (!started->has_draft() && flags.services.draft_model.empty() &&
      drafter == v1::DRAFTER_KIND_UNSPECIFIED) {
    std::fprintf(stderr, "note: no --draft-model for %s: drafting with %s\n", options.target_model.c_str(),
                 started->drafter());
  }
  OUTRIDER_TRY(WaitUntilServing(*started, signals, stop_signal));
  Client client = OUTRIDER_TRY(ConnectTo(*started));
  return Connection(std::move(client), std::move(started));
}

Answer Ask(Connection& connection, const v1::GenerateRequest& request, Signals& signals,
           const AnswerReader& reader) {
  Call call(connection, request, signals, reader);
  Interruption interruption = WaitFor(call, signals, connection.services());
  call.Cancel();
  const absl::Time patience = absl::Now() + kBreakOff;
  while (!call.done() && absl::Now() < patience && !Signals::IsStop(signals.Wait(absl::Milliseconds(50)))) {
  }
  if (!call.done()) {
    // Abandons the call, but still stops the services.
    connection.EndServices();
    _exit(interruption.signal != 0 ? 128 + interruption.signal : 1);
  }
  Answer answer = call.TakeAnswer();
  answer.signal = interruption.signal;
  if (answer.signal == 0 && !answer.samples.ok() && !answer.unread && connection.services() != nullptr &&
      interruption.death.ok()) {
    // A process that ends closes its connections first, so it may not be gone yet.
    signals.Wait(kBreakOff / 10);
    interruption.death = FatalDeath(*connection.services());
  }
  if (!interruption.death.ok()) answer.samples = interruption.death;
  return answer;
}

}  // namespace outrider
