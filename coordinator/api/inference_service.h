// The public gRPC service.
#pragma once

#include <asio/any_io_executor.hpp>
#include <memory>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "common/text/tokenizer.h"
#include "coordinator/api/parse_request.h"
#include "coordinator/drafters/make_drafter.h"
#include "coordinator/link/link.h"
#include "coordinator/rounds/draft_length_policy.h"
#include "coordinator/rounds/metrics.h"
#include "coordinator/rounds/round_observer.h"
#include "outrider/v1/inference.grpc.pb.h"

namespace outrider {

class GenerateCall;

// gRPC calls in from its threads; everything else happens on the executor, which has one.
class InferenceService final : public v1::Inference::CallbackService {
 public:
  struct Parts {
    asio::any_io_executor executor;
    const Tokenizer* tokenizer;
    std::shared_ptr<TargetLink> target;
    DrafterParts drafters;
    Metrics* metrics;
    RequestDefaults defaults;
    int max_requests;  // in progress at once; each sample counts
  };
  explicit InferenceService(Parts parts) : parts_(std::move(parts)) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                           const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context, const v1::DescribeRequest* request,
                                     v1::DescribeResponse* response) override;

  // Executor. From now on requests are refused with UNAVAILABLE, reason DRAINING.
  void Drain() { draining_ = true; }
  // Executor. Ends what is still running with UNAVAILABLE; its clients can resume elsewhere.
  void EndAll();
  // Executor.
  size_t running() const { return running_.size(); }

 private:
  friend class GenerateCall;

  Parts parts_;
  DraftLengthPolicy policy_;
  RoundObserver observer_{parts_.metrics, &policy_};
  bool draining_ = false;
  int running_samples_ = 0;
  absl::flat_hash_set<GenerateCall*> running_;
};

}  // namespace outrider
