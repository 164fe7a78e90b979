// The gRPC service of the draft.
#pragma once

#include "common/engine/worker.h"
#include "common/rpc/batch_server.h"
#include "common/serve/model_service.h"
#include "outrider/v1/draft.grpc.pb.h"

namespace outrider {

// Converts items to work and answers to results. Thread-safe. `worker` and `info` must outlive it. Keeps
// `default_top_n` tokens of a distribution unless the request says otherwise.
class DraftService final : public v1::Draft::WithRawMethod_Propose<v1::Draft::Service>, public StreamService {
 public:
  DraftService(Worker& worker, const v1::ServerInfo& info, int default_top_n)
      : worker_(worker), info_(info), default_top_n_(default_top_n) {}

  grpc::Service* service() override { return this; }
  void Serve(RpcServer& server) override {
    streams_.Serve(server, [this](auto* context, auto* stream, auto* queue, auto* tag) {
      RequestPropose(context, stream, queue, queue, tag);
    });
  }
  void HoldAnswers() override { streams_.Hold(); }
  void ReleaseAnswers() override { streams_.Release(); }
  void RefuseStreams() override { streams_.Close(); }
  void EndStreams() override { streams_.EndAll(); }

 private:
  void OnItem(v1::DraftItem&& item, const std::shared_ptr<Outbox<v1::ProposeResponse>>& results);

  Worker& worker_;
  const v1::ServerInfo& info_;
  const int default_top_n_;
  BatchServer<v1::ProposeRequest, v1::ProposeResponse> streams_{
      info_, [this](auto&& item, const auto& results) { OnItem(std::move(item), results); },
      [this] { return worker_.items(); }};
};

// What a program says of the draft that it serves.
ModelServiceSpec DraftSpec();

}  // namespace outrider
