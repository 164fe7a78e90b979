#include "client/sdk/client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/address.h"
#include "common/rpc/error.h"
#include "common/rpc/fresh_bits.h"
#include "common/rpc/server.h"

namespace outrider {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(2);

// The reason that a channel does not connect, which only a call learns.
std::string WhyNot(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(1)));
  v1::DescribeResponse response;
  return v1::Inference::NewStub(channel)->Describe(&context, {}, &response).error_message();
}

// Makes a call with one answer, without retries.
template <typename Request, typename Response>
absl::StatusOr<Response> CallOnce(v1::Inference::Stub& stub,
                                  grpc::Status (v1::Inference::Stub::*method)(grpc::ClientContext*,
                                                                              const Request&, Response*),
                                  const Request& request, absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  Response response;
  const grpc::Status status = (stub.*method)(&context, request, &response);
  if (!status.ok()) return FromGrpc(status);
  return response;
}

}  // namespace

absl::StatusOr<Client> Client::Connect(const std::string& address, const ClientOptions& options) {
  OUTRIDER_TRY(CheckServerAddress(address));
  const auto credentials = OUTRIDER_TRY(MakeChannelCredentials(options.security));
  const std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel(address, credentials, ChannelArguments());
  const absl::Time deadline = absl::Now() + options.connect_timeout;
  if (!channel->WaitForConnected(absl::ToChronoTime(deadline))) {
    return MakeError(absl::StatusCode::kUnavailable, "UNREACHABLE",
                     absl::StrCat("no coordinator answers at ", address, " (waited ",
                                  absl::FormatDuration(options.connect_timeout), "): ", WhyNot(channel)));
  }
  return Client(channel, options);
}

absl::StatusOr<std::vector<Completion>> Client::GenerateSamples(const v1::GenerateRequest& request,
                                                                const OnChunk& on_chunk,
                                                                Cancellation* cancellation) const {
  const absl::Time deadline = absl::Now() + options_.generate_timeout;
  const absl::Time last_retry = absl::Now() + options_.retry_for;
  v1::GenerateRequest wanted = request;
  // One seed for all attempts, since the coupled rule's text follows from it. Under the other rules a seed
  // would only keep the coordinator from choosing K.
  const bool coupled = request.speculation().rule() == v1::RULE_COUPLED;
  if (options_.retry_for > absl::ZeroDuration() && coupled && !wanted.has_seed())
    wanted.set_seed(FreshBits());
  std::vector<Completion> completions(1);
  absl::Duration pause = kFirstPause;
  while (true) {
    const absl::Status status = Attempt(wanted, on_chunk, cancellation, deadline, completions);
    if (status.ok()) break;
    const bool one_sample = request.n() <= 1 && !request.has_beam();
    const bool resumable = completions.size() == 1 && (one_sample || completions[0].tokens.empty());
    if (status.code() != absl::StatusCode::kUnavailable || !resumable ||
        absl::Now() + pause > std::min(last_retry, deadline)) {
      return status;
    }
    if (cancellation == nullptr) {
      absl::SleepFor(pause);
    } else if (!cancellation->Pause(pause)) {
      return absl::CancelledError("cancelled");
    }
    pause = std::min(2 * pause, kLongestPause);
    *wanted.mutable_resume_from() = request.resume_from();
    for (const v1::GeneratedToken& token : completions[0].tokens) wanted.add_resume_from(token.id());
    if (!completions[0].tokens.empty()) {  // then all of the prompt has come
      wanted.mutable_logprobs()->clear_prompt();
      wanted.clear_echo();
    }
  }
  const bool whole = std::ranges::all_of(completions, [](const Completion& completion) {
    return completion.finish.reason() != v1::FINISH_REASON_UNSPECIFIED;
  });
  if (!whole || completions.size() != std::max<uint32_t>(request.n(), 1)) {
    return MakeError(absl::StatusCode::kDataLoss, "ANSWER_INCOMPLETE",
                     "the answer ended without its last chunk");
  }
  return completions;
}

absl::Status Client::Attempt(const v1::GenerateRequest& request, const OnChunk& on_chunk,
                             Cancellation* cancellation, absl::Time deadline,
                             std::vector<Completion>& completions) const {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  if (cancellation != nullptr && !cancellation->Attach(&context)) return absl::CancelledError("cancelled");
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader = stub_->Generate(&context, request);
  // Log-probabilities of the prompt that came before the last attempt broke off come again.
  int known = static_cast<int>(completions[0].prompt_logprobs.size());
  v1::GenerateResponse chunk;
  while (reader->Read(&chunk)) {
    const int again = std::min(known, chunk.prompt_logprobs_size());
    chunk.mutable_prompt_logprobs()->DeleteSubrange(0, again);
    known -= again;
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
  return status.ok() ? absl::OkStatus() : FromGrpc(status);
}

absl::StatusOr<Completion> Client::Generate(const v1::GenerateRequest& request, const OnChunk& on_chunk,
                                            Cancellation* cancellation) const {
  if (request.n() > 1) return FieldError("n", "1", absl::StrCat(request.n()));
  std::vector<Completion> completions = OUTRIDER_TRY(GenerateSamples(request, on_chunk, cancellation));
  return std::move(completions.front());
}

absl::StatusOr<v1::DescribeResponse> Client::Describe() const {
  return CallOnce(*stub_, &v1::Inference::Stub::Describe, v1::DescribeRequest(), options_.describe_timeout);
}

absl::StatusOr<v1::TokenizeResponse> Client::Tokenize(const v1::TokenizeRequest& request) const {
  return CallOnce(*stub_, &v1::Inference::Stub::Tokenize, request, options_.describe_timeout);
}

}  // namespace outrider
