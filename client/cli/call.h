// A generation that signals and the end of a service interrupt.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/flags.h"
#include "client/cli/local_services.h"
#include "client/cli/process.h"
#include "client/sdk/client.h"
#include "common/rpc/credentials.h"

namespace outrider {

// To a coordinator that runs, for which it connects when it is first used, or to services of this process.
// Used by one thread at a time.
class Connection {
 public:
  Connection(std::string address, ChannelSecurity security)
      : address_(std::move(address)), security_(std::move(security)) {}
  Connection(Client client, std::unique_ptr<LocalServices> services)
      : client_(std::move(client)), services_(std::move(services)) {}

  // Errors are those of Client::Connect.
  absl::StatusOr<const Client*> client();
  LocalServices* services() { return services_.get(); }  // null: none are ours
  void EndServices() { services_.reset(); }

 private:
  std::string address_;
  ChannelSecurity security_;
  std::optional<Client> client_;
  std::unique_ptr<LocalServices> services_;
};

// Connects to the coordinator that the flags name, or starts services, with a word on what drafts where no
// draft model is named, and waits for them. CANCELLED with *stop_signal set if a signal came.
absl::StatusOr<Connection> Connect(const ChatFlags& flags, Signals& signals, int* stop_signal);

struct Answer {
  // An error is that of the call, or how a service ended.
  absl::StatusOr<std::vector<Completion>> samples;
  int signal = 0;       // that ended it, if any did
  bool unread = false;  // on_chunk ended it
};

// What to do with an answer, on the thread of the call; by default nothing before it is whole.
struct AnswerReader {
  // False once nobody reads any more.
  std::function<bool(const v1::GenerateResponse&)> on_chunk = [](const auto&) { return true; };
  std::function<void(const absl::StatusOr<std::vector<Completion>>&)> on_end = [](const auto&) {};
};

// Generates on a thread of its own. Ends the process if that thread hangs a second after a signal, as in a
// write that nobody reads.
Answer Ask(Connection& connection, const v1::GenerateRequest& request, Signals& signals,
           const AnswerReader& reader);

}  // namespace outrider
