// A target and a draft with a real model of random weights, as a coordinator sees them.
#pragma once

#include <gmock/gmock.h>
#include <grpc/grpc.h>

#include <map>
#include <memory>

#include "bench/polling_thread.h"
#include "common/kv/prefix_hash.h"
#include "common/rpc/error.h"
#include "common/rpc/server.h"
#include "draft_service/draft_sampler.h"
#include "draft_service/draft_service.h"
#include "outrider/v1/draft.grpc.pb.h"
#include "outrider/v1/target.grpc.pb.h"
#include "target_service/rejection_sampler.h"
#include "target_service/target_service.h"
#include "tests/unit/held_sampler.h"

namespace outrider {
inline constexpr int kVocab = 256;

inline const v1::ServerInfo& Info() {
  static const auto& info = *[] {
    auto* info = new v1::ServerInfo;
    info->set_vocab_size(kVocab);
    info->set_max_context(512);
    info->set_max_draft_tokens(8);
    return info;
  }();
  return info;
}

inline std::unique_ptr<Worker> StartWorker(std::unique_ptr<Sampler> sampler) {
  RunnerOptions load;
  load.model_dir = "tests/data/engine/mha-float32";
  load.dtype = "float32";
  load.threads = 1;
  load.kv_blocks = 1024;
  absl::StatusOr<std::unique_ptr<Runner>> runner = Runner::Load(load);
  EXPECT_TRUE(runner.ok()) << runner.status();
  return std::make_unique<Worker>(*std::move(runner), std::move(sampler), WorkerOptions{}, Worker::Hooks{});
}

// A service and one stream to it.
template <class Request, class Response>
class Connection {
 public:
  template <class MakeStub, class Open>
  Connection(StreamService* service, MakeStub make_stub, Open open) {
    server_ = RpcServer::Start("127.0.0.1:0", {}, {service->service()}, polling_.poller()).value();
    service->Serve(*server_);
    stream_ = open(*make_stub(server_->InProcessChannel()), &context_);
    Response first;
    EXPECT_TRUE(stream_->Read(&first) && first.has_info());
  }
  ~Connection() {
    context_.TryCancel();
    stream_->Finish();
    server_->Shutdown(absl::ZeroDuration());
  }

  template <class Item>
  void Send(Item item) {
    Request request;
    *request.add_items() = std::move(item);
    EXPECT_TRUE(stream_->Write(request));
  }
  auto Receive() {
    while (waiting_.results().empty()) EXPECT_TRUE(stream_->Read(&waiting_));
    auto result = waiting_.results(0);
    waiting_.mutable_results()->DeleteSubrange(0, 1);
    return result;
  }
  template <class Item>
  auto Ask(Item item) {
    Send(std::move(item));
    return Receive();
  }

 private:
  PollingThread polling_;
  std::unique_ptr<RpcServer> server_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<Request, Response>> stream_;
  Response waiting_;
};

template <class Service>
auto MakeStub(const std::shared_ptr<grpc::Channel>& channel) {
  return Service::NewStub(channel);
}

using TargetConnection = Connection<v1::VerifyRequest, v1::VerifyResponse>;
using DraftConnection = Connection<v1::ProposeRequest, v1::ProposeResponse>;

inline auto OpenStream(v1::Target::Stub& stub, grpc::ClientContext* context) { return stub.Verify(context); }
inline auto OpenDraftStream(v1::Draft::Stub& stub, grpc::ClientContext* context) {
  return stub.Propose(context);
}

class ModelServicesTest : public ::testing::Test {
 protected:
  // Keeps gRPC from ending itself with the last server of each test.
  static void SetUpTestSuite() { grpc_init(); }
  static void TearDownTestSuite() { grpc_shutdown(); }

  // A sequence of greedy tokens. Each update sends all of it.
  struct Sequence {
    std::vector<uint32_t> tokens = {5, 42, 79, 116, 153};
    v1::SequenceParams params = [] {
      v1::SequenceParams params;
      params.mutable_sampling()->set_temperature(0);
      params.set_rule(v1::RULE_TOKEN);
      params.set_prompt_length(5);
      return params;
    }();
    std::string id = std::string(16, 'a');
    uint64_t round = 0;
  };
  static void Fill(Sequence& sequence, v1::SequenceUpdate* update) {
    update->set_sequence_id(sequence.id);
    update->set_round(++sequence.round);
    update->mutable_tokens()->Add(sequence.tokens.begin(), sequence.tokens.end());
    update->set_prefix_hash(kEmptyPrefixHash);
    update->set_params_hash(std::hash<std::string>()(sequence.params.SerializeAsString()));
    *update->mutable_params() = sequence.params;
  }
  static v1::TargetItem Verify(Sequence& sequence, const std::vector<uint32_t>& draft = {}) {
    v1::TargetItem item;
    Fill(sequence, item.mutable_verify()->mutable_sequence());
    for (size_t i = 0; i < draft.size(); ++i) {
      v1::DraftNode* node = item.mutable_verify()->add_draft();
      node->set_token(draft[i]);
      node->set_parent(static_cast<int>(i) - 1);
      node->mutable_q()->mutable_point_mass();
    }
    return item;
  }
  static v1::DraftItem Propose(Sequence& sequence, uint32_t k) {
    v1::DraftItem item;
    Fill(sequence, item.mutable_propose()->mutable_sequence());
    item.mutable_propose()->set_draft_tokens(k);
    return item;
  }

  // The target's tokens, asked for one at a time.
  std::vector<uint32_t> Plain(Sequence sequence, int count) {
    sequence.id = std::string(16, 'p');
    sequence.round = next_plain_ += 100;
    std::vector<uint32_t> said;
    for (int i = 0; i < count; ++i) {
      said.push_back(target_.Ask(Verify(sequence)).verdict().token());
      sequence.tokens.push_back(said.back());
    }
    return said;
  }
  // Expects the target to accept its own tokens as a draft, in every row.
  void ExpectThatDraftedTokensCount(const Sequence& sequence) {
    const std::vector<uint32_t> said = Plain(sequence, 7);
    Sequence drafted = sequence;
    const v1::Verdict verdict = target_.Ask(Verify(drafted, {said.begin(), said.begin() + 6})).verdict();
    EXPECT_THAT(verdict.accepted(), ::testing::ElementsAre(0, 1, 2, 3, 4, 5))
        << ::testing::PrintToString(said);
    EXPECT_EQ(verdict.token(), said[6]);
  }

  uint64_t next_plain_ = 0;
  std::unique_ptr<Worker> target_worker_ = StartWorker(std::make_unique<RejectionSampler>());
  std::unique_ptr<Worker> draft_worker_ = StartWorker(std::make_unique<DraftSampler>());
  std::unique_ptr<StreamService> target_service_ =
      MakeTargetService(*target_worker_, Info(), /*grammars=*/nullptr, /*tracer=*/nullptr);
  std::unique_ptr<StreamService> draft_service_ =
      MakeDraftService(*draft_worker_, Info(), /*grammars=*/nullptr, /*tracer=*/nullptr, /*default_top_n=*/4);
  TargetConnection target_{target_service_.get(), MakeStub<v1::Target>, OpenStream};
  DraftConnection draft_{draft_service_.get(), MakeStub<v1::Draft>, OpenDraftStream};
};

}  // namespace outrider
