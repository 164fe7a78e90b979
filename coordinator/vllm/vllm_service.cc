#include "coordinator/vllm/vllm_service.h"

#include <atomic>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/obs/log.h"
#include "common/rpc/error.h"
#include "common/rpc/parse_message.h"
#include "common/rpc/server.h"
#include "coordinator/api/generate_call.h"
#include "coordinator/api/model_names.h"
#include "coordinator/api/request_context.h"
#include "coordinator/vllm/vllm_call.h"
#include "vllm/control.grpc.pb.h"
#include "vllm/inference.grpc.pb.h"

namespace outrider {
namespace {

// Generate. Holds the answer until it is complete.
class WholeCall final : public VllmCall, public grpc::ServerUnaryReactor {
 public:
  explicit WholeCall(grpc::ByteBuffer* bytes) : VllmCall(/*streams=*/false), bytes_(*bytes) {}

 private:
  void Send(vllm::GenerateResponse response) override {
    held_ += response.ByteSizeLong();
    if (held_ > kMaxMessageBytes) {
      return Stop(InvalidFor("ANSWER_TOO_LARGE", "the answer has more than ", kMaxMessageBytes >> 20,
                             " MiB; stream it, or ask for fewer log-probabilities"));
    }
    Join(response, &whole_);
    Continue();
  }
  void End(std::vector<vllm::GenerateResponse> last, const absl::Status& status) override {
    for (const vllm::GenerateResponse& response : last) Join(response, &whole_);
    if (status.ok()) bytes_ = SerializeMessage(whole_);
    Finish(ToGrpc(status));
  }
  void OnCancel() override { Cancel(); }
  void OnDone() override { Release(); }

  grpc::ByteBuffer& bytes_;
  vllm::GenerateResponse whole_;
  size_t held_ = 0;  // bytes of `whole_`, roughly
};

// GenerateStream.
class StreamedCall final : public VllmCall, public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  StreamedCall() : VllmCall(/*streams=*/true) {}

 private:
  void Send(vllm::GenerateResponse response) override {
    bytes_ = SerializeMessage(response);
    StartWrite(&bytes_);
  }
  void End(std::vector<vllm::GenerateResponse> last, const absl::Status& status) override {
    last_.assign(std::make_move_iterator(last.begin()), std::make_move_iterator(last.end()));
    end_ = ToGrpc(status);
    SendLast();
  }
  void SendLast() {
    if (last_.empty()) return Finish(*end_);
    vllm::GenerateResponse response = std::move(last_.front());
    last_.pop_front();
    Send(std::move(response));
  }
  void OnWriteDone(bool ok) override {
    if (end_) {
      if (!ok) last_.clear();
      SendLast();
    } else if (ok) {
      Continue();
    } else {
      Stop(absl::CancelledError("the client has gone"));
    }
  }
  void OnCancel() override { Cancel(); }
  void OnDone() override { Release(); }

  grpc::ByteBuffer bytes_;  // what is being written
  std::deque<vllm::GenerateResponse> last_;
  std::optional<grpc::Status> end_;  // set once only last_ is left to write
};

// Like ReadRequestContext, but `id`, if not empty, takes the place of x-request-id.
v1::RequestContext ContextOf(const grpc::CallbackServerContext& context, const std::string& id) {
  auto metadata = context.client_metadata();
  if (!id.empty()) {
    metadata.erase(kRequestIdKey);
    metadata.emplace(kRequestIdKey, id);
  }
  return ReadRequestContext(metadata);
}

}  // namespace

// The calls in progress. Thread-safe.
class VllmService::Calls {
 public:
  explicit Calls(VllmOptions options) : options_(std::move(options)) {}

  void Open(const std::shared_ptr<grpc::Channel>& channel) {
    service_ = v1::Inference::NewStub(channel);
    opened_.Notify();
  }
  v1::Inference::Stub* service() {
    opened_.WaitForNotification();
    return service_.get();
  }
  const VllmOptions& options() const { return options_; }
  int unfinished() const { return unfinished_; }

  std::string ClientOf(const grpc::CallbackServerContext& context) const {
    return ReadClient(context, options_.checks_tokens);
  }

  void Start(const std::shared_ptr<VllmCall>& call, grpc::CallbackServerContext* context,
             const grpc::ByteBuffer& bytes) {
    vllm::GenerateRequest request;
    const absl::Status readable = ParseMessage(bytes, &request, kMaxRequestObjects);
    const std::string client = ClientOf(*context);
    const v1::RequestContext named = ContextOf(*context, request.request_id());
    context->AddInitialMetadata(kRequestIdKey, named.request_id());
    CallMetadata metadata = {{kRequestIdKey, named.request_id()}, {kClientKey, client}};
    if (!named.traceparent().empty()) metadata.emplace_back(kTraceparentKey, named.traceparent());
    const std::string& id = request.request_id().empty() ? named.request_id() : request.request_id();
    const auto entry = Add({client, id}, call);
    ++unfinished_;
    call->Start({.service = service(),
                 .defaults = options_.defaults,
                 .served_model_names = options_.served_model_names,
                 .metadata = std::move(metadata),
                 .deadline = context->raw_deadline(),
                 .on_refused = [this, name = named.request_id()](
                                   const absl::Status& status) { OnRefused(name, status); },
                 .on_done = [this, call, entry] { Remove(entry); }},
                std::move(request), readable);
  }

  void Abort(const std::string& client, const google::protobuf::RepeatedPtrField<std::string>& ids) {
    std::vector<std::shared_ptr<VllmCall>> found;
    {
      absl::MutexLock lock(&mutex_);
      for (const std::string& id : ids) {
        const auto [begin, end] = by_name_.equal_range({client, id});
        for (auto entry = begin; entry != end; ++entry) found.push_back(entry->second.lock());
      }
    }
    // Aborts without the lock: a call's end takes it, and may come on this thread.
    for (const std::shared_ptr<VllmCall>& call : found) {
      if (call != nullptr) call->Abort();
    }
  }

 private:
  // Calls by client and request id. A client may use an id twice.
  using ByName = std::multimap<std::pair<std::string, std::string>, std::weak_ptr<VllmCall>>;

  ByName::iterator Add(std::pair<std::string, std::string> name, const std::shared_ptr<VllmCall>& call) {
    absl::MutexLock lock(&mutex_);
    return by_name_.emplace(std::move(name), call);
  }
  void Remove(ByName::iterator entry) {
    {
      absl::MutexLock lock(&mutex_);
      by_name_.erase(entry);
    }
    --unfinished_;
  }
  void OnRefused(const std::string& id, const absl::Status& status) const {
    const std::string code = absl::StatusCodeToString(status.code());
    if (options_.on_request_end) options_.on_request_end(code);
    LogDebug("vllm request refused", {{"request_id", id}, {"code", code}});
  }

  const VllmOptions options_;
  absl::Notification opened_;
  std::unique_ptr<v1::Inference::Stub> service_;
  std::atomic<int> unfinished_ = 0;
  absl::Mutex mutex_;
  ByName by_name_ ABSL_GUARDED_BY(mutex_);
};

class VllmService::Inference final
    : public vllm::Inference::WithRawCallbackMethod_Generate<
          vllm::Inference::WithRawCallbackMethod_GenerateStream<vllm::Inference::Service>> {
 public:
  explicit Inference(Calls* calls) : calls_(*calls) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    const auto call = std::make_shared<WholeCall>(response);
    calls_.Start(call, context, *request);
    return call.get();
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateStream(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer* request) override {
    const auto call = std::make_shared<StreamedCall>();
    calls_.Start(call, context, *request);
    return call.get();
  }

 private:
  Calls& calls_;
};

class VllmService::Control final
    : public vllm::Control::WithRawCallbackMethod_Abort<
          vllm::Control::WithRawCallbackMethod_GetModelInfo<vllm::Control::Service>> {
 public:
  explicit Control(Calls* calls) : calls_(*calls) {}

  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    vllm::AbortRequest abort;
    const absl::Status status = ParseMessage(*request, &abort, kMaxRequestObjects);
    if (status.ok()) {
      calls_.Abort(calls_.ClientOf(*context), abort.request_ids());
      *response = SerializeMessage(vllm::AbortResponse());
    }
    reactor->Finish(ToGrpc(status));
    return reactor;
  }

  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context, const grpc::ByteBuffer*,
                                         grpc::ByteBuffer* response) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    StartUnary<v1::DescribeRequest, v1::DescribeResponse>(
        calls_.service(), &v1::Inference::StubInterface::async_interface::Describe, {}, {},
        [this, reactor, response](const absl::StatusOr<v1::DescribeResponse>& description) {
          absl::Status status = description.status();
          if (status.ok() && !description->has_target()) status = NoTarget();
          if (status.ok()) *response = SerializeMessage(InfoOf(*description));
          reactor->Finish(ToGrpc(status));
        });
    return reactor;
  }

 private:
  vllm::ModelInfo InfoOf(const v1::DescribeResponse& description) const {
    vllm::ModelInfo info;
    info.set_model_id(description.target().model());
    info.set_supports_text_input(true);
    info.set_supports_token_ids_input(true);
    const auto names = ModelNames(calls_.options().served_model_names, description);
    info.set_served_model_name(names.front());
    info.mutable_served_model_aliases()->Assign(names.begin() + 1, names.end());
    return info;
  }

  Calls& calls_;
};

VllmService::VllmService(VllmOptions options)
    : calls_(std::make_unique<Calls>(std::move(options))),
      inference_(std::make_unique<Inference>(calls_.get())),
      control_(std::make_unique<Control>(calls_.get())) {}
VllmService::~VllmService() = default;

std::vector<grpc::Service*> VllmService::services() { return {inference_.get(), control_.get()}; }
void VllmService::Open(const std::shared_ptr<grpc::Channel>& channel) { calls_->Open(channel); }
int VllmService::unfinished() const { return calls_->unfinished(); }

}  // namespace outrider
