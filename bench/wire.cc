// Measures the coordinator and the wire alone: a real coordinator process between a draft and a target that
// answer at once. The draft always proposes the same tokens and the target accepts all of them.
#include <atomic>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/load.h"
#include "bench/pair_helpers.h"
#include "bench/polling_thread.h"
#include "bench/run_benchmark.h"
#include "bench/temporary_folder.h"
#include "common/rpc/batch_server.h"
#include "common/rpc/server.h"
#include "common/text/tokenizer.h"
#include "outrider/v1/draft.grpc.pb.h"
#include "outrider/v1/target.grpc.pb.h"

namespace outrider {
namespace {

constexpr uint32_t kToken = 300;     // the token that is always drafted; any that has text
constexpr int kSparse = 64;          // tokens of a sparse q, as many as the draft service keeps by default
constexpr double kRampShare = 0.25;  // share of a slice that is not counted

struct Flags {
  std::string tokenizer = "models/tiny-target";
  std::vector<int> streams = {1, 16, 64};
  int k = 4;
  int vocab_size = 128256;
  double busy_poll_seconds = 0;
  SliceFlags slices{.turns = 2, .seconds = 1};
};

// The form in which a drafted token's distribution is sent.
struct Form {
  std::string name;
  int k = 0;
  v1::Rule rule = v1::RULE_TOKEN;
  v1::Distribution q = {};  // absent under the coupled rule
};

std::vector<Form> AllForms(int k, int vocab_size) {
  std::vector<Form> forms = {
      {"no draft", 0}, {"coupled", k, v1::RULE_COUPLED}, {"point mass", k}, {"sparse", k}, {"dense", k}};
  forms[2].q.mutable_point_mass();
  for (int i = 0; i < kSparse; ++i) {
    // Spread over the vocabulary, the drafted token included.
    const uint32_t step = (static_cast<uint32_t>(vocab_size) - kToken) / kSparse;
    forms[3].q.mutable_sparse()->add_ids(kToken + static_cast<uint32_t>(i) * step);
    forms[3].q.mutable_sparse()->add_weights(1.0F / static_cast<float>(i + 1));
  }
  for (int i = 0; i < vocab_size; ++i) forms[4].q.mutable_dense()->add_weights(1);
  return forms;
}

uint32_t CommittedTokens(const v1::SequenceUpdate& update) {
  return update.base() + static_cast<uint32_t>(update.tokens_size());
}

class InstantDraft final : public v1::Draft::WithRawMethod_Propose<v1::Draft::Service> {
 public:
  explicit InstantDraft(const v1::ServerInfo& info) : info_(info) {}
  // Sets the form of proposals from now on. `form` must outlive this object.
  void SetForm(const Form* form) { form_ = form; }

  void Serve(RpcServer& server) {
    streams_.Serve(server, [this](auto* context, auto* stream, auto* queue, auto* tag) {
      RequestPropose(context, stream, queue, queue, tag);
    });
  }

 private:
  using Results = Outbox<v1::ProposeResponse>;

  void OnItem(const v1::DraftItem& item, const std::shared_ptr<Results>& results) const {
    if (!item.has_propose()) return;
    const int k = static_cast<int>(item.propose().draft_tokens());
    v1::ProposeResult result;
    result.set_sequence_id(item.propose().sequence().sequence_id());
    result.set_round(item.propose().sequence().round());
    result.set_cached(CommittedTokens(item.propose().sequence()) + static_cast<uint32_t>(std::max(k - 1, 0)));
    for (int i = 0; i < k; ++i) {
      v1::DraftNode* node = result.add_nodes();
      node->set_token(kToken);
      node->set_parent(i - 1);
      const Form* form = form_;
      if (form->rule != v1::RULE_COUPLED) *node->mutable_q() = form->q;
    }
    results->Post(std::move(result));
  }

  const v1::ServerInfo info_;
  std::atomic<const Form*> form_ = nullptr;
  BatchServer<v1::ProposeRequest, v1::ProposeResponse> streams_{
      info_, [this](auto&& item, const auto& results) { OnItem(item, results); },
      [] { return ServerLoad(); }};
};

class InstantTarget final : public v1::Target::WithRawMethod_Verify<v1::Target::Service> {
 public:
  explicit InstantTarget(const v1::ServerInfo& info) : info_(info) {}

  void Serve(RpcServer& server) {
    streams_.Serve(server, [this](auto* context, auto* stream, auto* queue, auto* tag) {
      RequestVerify(context, stream, queue, queue, tag);
    });
  }

 private:
  using Results = Outbox<v1::VerifyResponse>;

  static void OnItem(const v1::TargetItem& item, const std::shared_ptr<Results>& results) {
    if (!item.has_verify()) return;
    const auto drafted = static_cast<uint32_t>(item.verify().draft_size());
    v1::VerifyResult result;
    result.set_sequence_id(item.verify().sequence().sequence_id());
    result.set_round(item.verify().sequence().round());
    result.set_cached(CommittedTokens(item.verify().sequence()) + drafted);
    for (uint32_t i = 0; i < drafted; ++i) result.mutable_verdict()->add_accepted(i);
    result.mutable_verdict()->set_token(kToken);
    result.mutable_verdict()->set_kind(drafted > 0 ? v1::TOKEN_KIND_BONUS : v1::TOKEN_KIND_PLAIN);
    results->Post(std::move(result));
  }

  const v1::ServerInfo info_;
  BatchServer<v1::VerifyRequest, v1::VerifyResponse> streams_{
      info_, [](auto&& item, const auto& results) { OnItem(item, results); }, [] { return ServerLoad(); }};
};

// Sums over the counted parts of slices.
struct Tally {
  double window = 0;
  double drafted = 0, bytes = 0;
  std::vector<double> rounds, draft_calls, verify_calls;  // microseconds

  void Add(const Tally& other) {
    drafted += other.drafted;
    bytes += other.bytes;
    for (auto list : {&Tally::rounds, &Tally::draft_calls, &Tally::verify_calls}) {
      (this->*list).insert((this->*list).end(), (other.*list).begin(), (other.*list).end());
    }
  }
};

absl::StatusOr<Tally> Slice(const Client& client, const Form& form, int streams, double seconds) {
  v1::GenerateRequest request;
  for (int i = 0; i < 16; ++i) request.mutable_tokens()->add_ids(kToken);
  request.set_seed(1);
  request.set_trace(true);
  request.mutable_speculation()->set_rule(form.rule);
  request.mutable_speculation()->set_draft_tokens(static_cast<uint32_t>(form.k));
  request.mutable_stop()->set_max_tokens(512);
  request.mutable_stop()->set_ignore_eos(true);

  const absl::Time start = absl::Now();
  std::vector<Tally> tallies(static_cast<size_t>(streams));
  const absl::Status status =
      RunClosedLoop(client, {.streams = streams,
                             .duration = absl::Seconds(seconds),
                             .request = [&](int, int) { return request; },
                             .on_chunk =
                                 [&](int stream, absl::Time, const v1::GenerateResponse& chunk) {
                                   const v1::RoundTrace& trace = chunk.trace();
                                   // Round 0 is the prompt's, round 1 includes the draft's prompt, and the
                                   // last rounds draft less.
                                   if (trace.round() < 2 || trace.drafted_size() < form.k) return;
                                   if (absl::Now() < start + absl::Seconds(kRampShare * seconds)) return;
                                   Tally& tally = tallies[stream];
                                   tally.drafted += trace.drafted_size();
                                   tally.bytes += trace.draft_bytes();
                                   tally.rounds.push_back(trace.round_us());
                                   tally.draft_calls.push_back(trace.draft_us());
                                   tally.verify_calls.push_back(trace.verify_us());
                                 }});
  if (!status.ok()) return status;
  Tally sum;
  for (const Tally& tally : tallies) sum.Add(tally);
  sum.window = (1 - kRampShare) * seconds;
  return sum;
}

absl::StatusOr<nlohmann::ordered_json> MeasureRows(const Client& client, InstantDraft& draft,
                                                   const Flags& flags) {
  const std::vector<Form> forms = AllForms(flags.k, flags.vocab_size);
  nlohmann::ordered_json rows;
  absl::PrintF("%7s %-10s %3s %22s %10s %10s %12s %13s\n", "streams", "q", "K", "round us 50/95/99",
               "draft us", "verify us", "rounds/s", "bytes/token");
  for (const int streams : flags.streams) {
    std::vector<Tally> tallies(forms.size());
    // Turn 0 warms up.
    for (int turn = 0; turn <= flags.slices.turns; ++turn) {
      for (size_t i = 0; i < forms.size(); ++i) {
        draft.SetForm(&forms[i]);
        auto tally =
            Slice(client, forms[i], streams, turn == 0 ? flags.slices.seconds / 4 : flags.slices.seconds);
        if (!tally.ok()) return tally.status();
        if (turn == 0) continue;
        tallies[i].Add(*tally);
        tallies[i].window += tally->window;
      }
    }
    for (size_t i = 0; i < forms.size(); ++i) {
      Tally& tally = tallies[i];
      const double rate = static_cast<double>(tally.rounds.size()) / tally.window;
      const double bytes = tally.drafted > 0 ? tally.bytes / tally.drafted : 0;
      absl::PrintF("%7d %-10s %3d %22s %10.0f %10.0f %12.0f %13.1f\n", streams, forms[i].name, forms[i].k,
                   absl::StrFormat("%.0f/%.0f/%.0f", Percentile(tally.rounds, .5),
                                   Percentile(tally.rounds, .95), Percentile(tally.rounds, .99)),
                   Percentile(tally.draft_calls, .5), Percentile(tally.verify_calls, .5), rate, bytes);
      rows.push_back({{"streams", streams},
                      {"q", forms[i].name},
                      {"k", forms[i].k},
                      {"round_microseconds", Percentiles(tally.rounds)},
                      {"draft_microseconds", Percentiles(tally.draft_calls)},
                      {"verify_microseconds", Percentiles(tally.verify_calls)},
                      {"rounds_per_second", rate},
                      {"bytes_per_drafted_token", bytes}});
    }
  }
  return rows;
}

absl::StatusOr<nlohmann::ordered_json> Measure(const Flags& flags) {
  GiveQueuesTheirConnections();  // as the services do
  auto tokenizer = Tokenizer::Load(flags.tokenizer + "/tokenizer.json");
  if (!tokenizer.ok()) return tokenizer.status();
  const TemporaryFolder folder;
  if (!folder.made()) return absl::UnavailableError("cannot make a temporary folder");
  const auto socket = [&](const char* service) { return absl::StrCat("unix:", folder.path(), "/", service); };
  const std::string programs = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  // Spawned before gRPC starts threads in this process.
  auto coordinator =
      ChildProcess::Spawn({programs + "/outrider-coordinator", "--listen=" + socket("coordinator"),
                           "--metrics-listen", "", "--http-listen", "", "--target=" + socket("target"),
                           "--draft=" + socket("draft"), "--tokenizer=" + flags.tokenizer,
                           "--draft-budget=60", absl::StrCat("--busy-poll=", flags.busy_poll_seconds)},
                          folder.path() + "/log");
  if (!coordinator.ok()) return coordinator.status();

  v1::ServerInfo info;
  info.set_boot_id(1);
  info.set_fingerprint(ModelFingerprint((*tokenizer)->Fingerprint(), flags.vocab_size, {}));
  info.set_model("at-once");
  info.set_vocab_size(static_cast<uint32_t>(flags.vocab_size));
  info.set_max_context(1 << 20);
  info.set_kv_blocks(1 << 20);
  info.set_block_size(16);
  info.set_max_draft_tokens(kMaxDraftTokens);
  info.set_max_message_bytes(kMaxMessageBytes);
  InstantDraft draft(info);
  InstantTarget target(info);
  const absl::Duration busy_poll = absl::Seconds(flags.busy_poll_seconds);
  PollingThread draft_thread(busy_poll), target_thread(busy_poll);
  auto draft_server = RpcServer::Start(socket("draft"), {}, {&draft}, draft_thread.poller());
  if (!draft_server.ok()) return draft_server.status();
  draft.Serve(**draft_server);
  auto target_server = RpcServer::Start(socket("target"), {}, {&target}, target_thread.poller());
  if (!target_server.ok()) return target_server.status();
  target.Serve(**target_server);

  auto client = ConnectWhenServing(**coordinator, socket("coordinator"));
  if (!client.ok()) return client.status();
  auto rows = MeasureRows(*client, draft, flags);
  if (!rows.ok()) return rows.status();
  nlohmann::ordered_json report = {
      {"machine", MachineName()}, {"vocab_size", flags.vocab_size}, {"rows", *rows}};
  return report;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Measures the coordinator and the wire, with servers that answer at once.", "bench_wire");
  app.add_option("--tokenizer", flags.tokenizer, "folder with a tokenizer.json")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  AddNumber(app, "--streams", flags.streams, "concurrent streams", 1, 256);
  AddNumber(app, "--draft-tokens", flags.k, "K", 1, kMaxDraftTokens);
  AddNumber(app, "--vocab-size", flags.vocab_size, "vocabulary of the simulated servers; default: Llama 3's",
            4096, 1 << 20);
  AddNumber(app, "--busy-poll", flags.busy_poll_seconds,
            "seconds that coordinator and servers look for a message before they sleep", 0.0, 0.001);
  AddSliceFlags(app, flags.slices);
  return RunBenchmark(app, argc, argv, [&] { return Measure(flags); });
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
