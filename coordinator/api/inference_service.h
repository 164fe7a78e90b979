// The public gRPC service.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <utility>

#include "coordinator/api/generate_call.h"
#include "outrider/v1/inference.grpc.pb.h"

namespace outrider {

// gRPC calls the methods on its threads. The executor does the work; parser threads parse long requests.
class InferenceService final
    : public v1::Inference::WithRawCallbackMethod_Generate<
          v1::Inference::WithRawCallbackMethod_Describe<v1::Inference::WithRawCallbackMethod_Tokenize<
              v1::Inference::WithRawCallbackMethod_Detokenize<v1::Inference::Service>>>> {
 public:
  explicit InferenceService(ServiceParts parts) : parts_(std::move(parts)) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;

  // Generations whose end has not been sent yet. Thread-safe.
  int unfinished() const { return unfinished_; }

 private:
  // Answers a call with the result of `answer` for its request. Runs `answer` on the executor, or if the
  // request is long, on a parser thread.
  template <typename Request, typename Answer>
  grpc::ServerUnaryReactor* AnswerWith(grpc::CallbackServerContext* context, const grpc::ByteBuffer& request,
                                       grpc::ByteBuffer* response, Answer answer);

  // Call on the executor.
  v1::DescribeResponse Description() const;
  // Any thread. The model has `vocab_size` tokens.
  absl::StatusOr<v1::TokenizeResponse> TokenizePrompt(const v1::TokenizeRequest& request,
                                                      uint32_t vocab_size) const;
  absl::StatusOr<v1::DetokenizeResponse> DetokenizeIds(const v1::DetokenizeRequest& request,
                                                       uint32_t vocab_size) const;

  std::atomic<int> unfinished_ = 0;
  const ServiceParts parts_;
};

}  // namespace outrider
