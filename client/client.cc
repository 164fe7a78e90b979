#include "client/client.h"

#include "absl/strings/str_cat.h"
#include "common/rpc/error.h"
#include "common/rpc/server.h"

namespace outrider {
namespace {

void SetDeadline(grpc::ClientContext& context, absl::Duration timeout) {
  if (timeout < absl::InfiniteDuration()) context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
}

}  // namespace

void Cancellation::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  if (context_ != nullptr) context_->TryCancel();
}

bool Cancellation::Attach(grpc::ClientContext* context) {
  absl::MutexLock lock(&mutex_);
  if (!cancelled_) context_ = context;
  return !cancelled_;
}

void Cancellation::Detach() {
  absl::MutexLock lock(&mutex_);
  context_ = nullptr;
}

absl::StatusOr<Client> Client::Connect(const std::string& address, const ClientOptions& options) {
  const std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), ChannelArguments());
  const absl::Time deadline = absl::Now() + options.connect_timeout;
  if (!channel->WaitForConnected(absl::ToChronoTime(deadline))) {
    return MakeError(absl::StatusCode::kUnavailable, "UNREACHABLE",
                     absl::StrCat("no coordinator answers at ", address, " (waited ",
                                  absl::FormatDuration(options.connect_timeout), ")"));
  }
  return Client(channel, options);
}

absl::StatusOr<Completion> Client::Generate(const v1::GenerateRequest& request, const OnChunk& on_chunk,
                                            Cancellation* cancellation) const {
  grpc::ClientContext context;
  SetDeadline(context, options_.generate_timeout);
  if (cancellation != nullptr && !cancellation->Attach(&context)) return absl::CancelledError("cancelled");

  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader = stub_->Generate(&context, request);
  Completion completion;
  v1::GenerateResponse chunk;
  while (reader->Read(&chunk)) {
    completion.text += chunk.text();
    for (const v1::GeneratedToken& token : chunk.tokens()) completion.tokens.push_back(token);
    for (const v1::PositionLogprobs& position : chunk.prompt_logprobs()) {
      completion.prompt_logprobs.push_back(position);
    }
    if (chunk.has_finish()) completion.finish = chunk.finish();
    if (on_chunk) on_chunk(chunk);
  }
  const grpc::Status status = reader->Finish();
  if (cancellation != nullptr) cancellation->Detach();
  if (!status.ok()) return FromGrpc(status);
  if (completion.finish.reason() == v1::FINISH_REASON_UNSPECIFIED) {
    return MakeError(absl::StatusCode::kDataLoss, "ANSWER_INCOMPLETE",
                     "the answer ended without its last chunk");
  }
  return completion;
}

absl::StatusOr<v1::DescribeResponse> Client::Describe() const {
  grpc::ClientContext context;
  SetDeadline(context, options_.describe_timeout);
  v1::DescribeResponse response;
  const grpc::Status status = stub_->Describe(&context, v1::DescribeRequest(), &response);
  if (!status.ok()) return FromGrpc(status);
  return response;
}

}  // namespace outrider
