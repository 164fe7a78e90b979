// Runs a generation, which a signal or the end of a service interrupts.
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

// A connection to a running coordinator, which is made on first use, or to services that this process
// started. Used by one thread at a time.
class Connection {
 public:
  Connection(std::string address, ChannelSecurity security)
      : address_(std::move(address)), security_(std::move(security)) {}
  Connection(Client client, std::unique_ptr<LocalServices> services)
      : client_(std::move(client)), services_(std::move(services)) {}

  // Errors are those of Client::Connect.
  absl::StatusOr<const Client*> client();
  LocalServices* services() { return services_.get(); }  // null if this process started none
  void EndServices() { services_.reset(); }

 private:
  std::string address_;
  ChannelSecurity security_;
  std::optional<Client> client_;
  std::unique_ptr<LocalServices> services_;
};

// Returns a connection to the coordinator that the flags name, or starts services and waits for them. Prints
// a note on the drafter if no draft model is named. CANCELLED with *stop_signal set if a signal came.
absl::StatusOr<Connection> Connect(const ChatFlags& flags, Signals& signals, int* stop_signal);

struct Answer {
  // An error is the call's, or says how a service ended.
  absl::StatusOr<std::vector<Completion>> samples;
  int signal = 0;       // the signal that ended it; 0: none
  bool unread = false;  // on_chunk ended it
};

// Callbacks for an answer, on the thread of the call. By default they do nothing.
struct AnswerReader {
  // Returns false once nobody reads the output any more.
  std::function<bool(const v1::GenerateResponse&)> on_chunk = [](const auto&) { return true; };
  std::function<void(const absl::StatusOr<std::vector<Completion>>&)> on_end = [](const auto&) {};
};

// Generates on a thread of its own. Ends the process if that thread still runs a second after a signal or the
// end of a service, as in a write that nobody reads.
Answer Ask(Connection& connection, const v1::GenerateRequest& request, Signals& signals,
           const AnswerReader& reader);

}  // namespace outrider
