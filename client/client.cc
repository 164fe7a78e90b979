#include "client/client.h"

#include <algorithm>
#include <utility>

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

absl::StatusOr<std::vector<Completion>> Client::GenerateSamples(const v1::GenerateRequest& request,
                                                                const OnChunk& on_chunk,
                                                                Cancellation* cancellation) const {
  grpc::ClientContext context;
  SetDeadline(context, options_.generate_timeout);
  if (cancellation != nullptr && !cancellation->Attach(&context)) return absl::CancelledError("cancelled");

  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader = stub_->Generate(&context, request);
  std::vector<Completion> completions(1);
  v1::GenerateResponse chunk;
  while (reader->Read(&chunk)) {
    if (chunk.sample() >= completions.size()) completions.resize(chunk.sample() + 1);
    Completion& completion = completions[chunk.sample()];
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
  const bool whole = std::all_of(completions.begin(), completions.end(), [](const Completion& completion) {
    return completion.finish.reason() != v1::FINISH_REASON_UNSPECIFIED;
  });
  if (!whole || completions.size() != std::max<uint32_t>(request.n(), 1)) {
    return MakeError(absl::StatusCode::kDataLoss, "ANSWER_INCOMPLETE",
                     "the answer ended without its last chunk");
  }
  return completions;
}

absl::StatusOr<Completion> Client::Generate(const v1::GenerateRequest& request, const OnChunk& on_chunk,
                                            Cancellation* cancellation) const {
  if (request.n() > 1) return FieldError("n", "1", absl::StrCat(request.n()));
  absl::StatusOr<std::vector<Completion>> completions = GenerateSamples(request, on_chunk, cancellation);
  if (!completions.ok()) return completions.status();
  return std::move(completions->front());
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
