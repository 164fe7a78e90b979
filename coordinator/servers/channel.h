// The transport of a link: a gRPC stream to a draft or target server. No other file of the coordinator knows
// what carries the messages between the processes.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/rpc/outbox.h"
#include "coordinator/servers/grpc_context.h"
#include "outrider/v1/draft.pb.h"
#include "outrider/v1/target.pb.h"

namespace outrider {

struct DraftProtocol {
  using Request = v1::ProposeRequest;
  using Response = v1::ProposeResponse;
  using Item = v1::DraftItem;
  using Result = v1::ProposeResult;
  static constexpr const char* kName = "draft";
  static constexpr const char* kUnavailable = "DRAFT_UNAVAILABLE";
  // Whether the answer is still to come.
  static bool IsPartial(const Result& result) { return result.partial(); }
  // Rows that a server computes for an item; 0: the item has no answer.
  static int Rows(const Item& item) {
    if (!item.has_propose()) return 0;
    return item.propose().sequence().tokens_size() + static_cast<int>(item.propose().draft_tokens());
  }
};

struct TargetProtocol {
  using Request = v1::VerifyRequest;
  using Response = v1::VerifyResponse;
  using Item = v1::TargetItem;
  using Result = v1::VerifyResult;
  static constexpr const char* kName = "target";
  static constexpr const char* kUnavailable = "TARGET_UNAVAILABLE";
  static bool IsPartial(const Result& /*result*/) { return false; }
  static int Rows(const Item& item) {
    return item.verify().sequence().tokens_size() + item.verify().draft_size();
  }
};

// At most one stream is open. For one thread. Threads that poll the queue call the handlers, one at a time.
template <class Protocol>
class Channel {
 public:
  struct Handlers {
    std::function<void(typename Protocol::Response&&)> on_response;
    // The stream has ended with this status. Nothing follows.
    std::function<void(const absl::Status&)> on_end;
  };

  // `host` is the name in the server's certificate, if it is not in the address.
  Channel(GrpcContext& context, const std::string& address, const std::string& host,
          const std::shared_ptr<grpc::ChannelCredentials>& credentials);
  // Ends the stream. Its handlers may still be called, up to on_end.
  ~Channel();

  // Opens a stream. The previous one must have ended.
  void Open(Handlers handlers);
  // Sends items. Drops those posted after the stream has ended. Use it only after the first response.
  Outbox<typename Protocol::Request>& outbox();
  // Takes no more items, and ends the stream once the server has read those that were posted. Use it only
  // after the first response.
  void CloseAfterWrites();
  // Ends the stream at once. The server may not read items that were posted.
  void Cancel();
  // Without a stream: tries to connect at once, without gRPC's growing pause, and keeps trying for `within`.
  void ConnectAgain(Clock::duration within);

 private:
  class Stream;

  GrpcContext& context_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<Stream> stream_;  // the last one
};

extern template class Channel<DraftProtocol>;
extern template class Channel<TargetProtocol>;

}  // namespace outrider
