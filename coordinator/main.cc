// The coordinator's process: flags, connections, the public services, and an orderly shutdown.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/gguf/model_path.h"
#include "common/net/asio.h"
#include "common/obs/log.h"
#include "common/obs/version.h"
#include "common/rpc/address.h"
#include "common/rpc/credentials.h"
#include "common/rpc/drafters.h"
#include "common/rpc/fresh_bits.h"
#include "common/serve/server_process.h"
#include "common/serve/stall_watch.h"
#include "common/spec/status.h"
#include "common/text/strings.h"
#include "coordinator/admission/parser_threads.h"
#include "coordinator/api/chat_template.h"
#include "coordinator/api/inference_service.h"
#include "coordinator/api/parse_request.h"
#include "coordinator/flags.h"
#include "coordinator/openai/gateway.h"
#include "coordinator/pools.h"
#include "coordinator/servers/grpc_context.h"
#include "coordinator/vllm/vllm_service.h"

namespace outrider {
namespace {

constexpr Clock::duration kUnread = std::chrono::seconds(1);  // how long clients may take to read answers
constexpr int kMaxSamples = 64;                               // most samples of one request
constexpr size_t kResolverThreads = 2;  // so that a slow name server does not hold up all names
// Threads that parse long requests. With only one, each such request would hold up the next.
constexpr int kParserThreads = 2;
// The executor only moves messages. If it makes no progress for this long, it is stuck.
constexpr absl::Duration kStallTimeout = absl::Minutes(1);

constexpr size_t kMinKeyBytes = 16;  // of --cache-key-file
constexpr char kTokenizerFile[] = "tokenizer.json";

Clock::duration ToDuration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Everything that is loaded before any connection is made.
struct Loaded {
  std::unique_ptr<Tokenizer> tokenizer;
  RequestDefaults defaults;
  std::optional<std::string> cache_key;
};

absl::StatusOr<std::optional<std::string>> CacheKey(const Flags& flags) {
  if (flags.share_prefix_cache) return std::nullopt;
  const std::string& path = flags.cache_key_file;
  if (path.empty()) return absl::StrCat(absl::Hex(FreshBits()), absl::Hex(FreshBits()));
  std::optional<std::string> key = ReadFile(path);
  if (!key) return absl::NotFoundError(absl::StrCat("--cache-key-file: ", path, ": cannot be read"));
  if (key->size() < kMinKeyBytes) {
    return Invalid("--cache-key-file: ", path, ": ", key->size(), " bytes; a key has at least ",
                   kMinKeyBytes);
  }
  return key;
}

absl::StatusOr<Loaded> Load(const Flags& flags) {
  std::string path = flags.tokenizer;
  std::error_code none;
  if (IsGguf(path) || !std::filesystem::is_regular_file(path, none)) {
    path = FileOf(OUTRIDER_TRY(FindModel(path, kTokenizerFile)), kTokenizerFile);
  }
  std::unique_ptr<Tokenizer> tokenizer = OUTRIDER_TRY(Tokenizer::Load(path));
  // The folder that also holds the model's other files, or the GGUF file.
  const std::string model = IsGguf(path) ? path : std::filesystem::path(path).parent_path().string();
  auto chat_template = ChatTemplate::Load(model);
  const bool adaptive = flags.draft_tokens == "auto";
  RequestDefaults defaults{.draft_tokens = adaptive ? 5 : std::stoi(flags.draft_tokens),
                           .adaptive = adaptive,
                           .rule = FromName<v1::Rule>(flags.rule),
                           .schedule = FromName<v1::Schedule>(flags.schedule),
                           .tree = flags.tree,
                           .drafter = FromName<v1::DrafterKind>(flags.drafter),
                           .has_draft_service = !flags.drafts.empty(),
                           .has_second_draft_service = !flags.drafts.empty() && !flags.second_drafts.empty(),
                           .max_samples = std::min(kMaxSamples, flags.admission.max_samples),
                           .control_tokens_in_chat = flags.control_tokens_in_chat};
  if (flags.generation_config == "auto") {
    defaults.sampling = OUTRIDER_TRY(ReadSamplingDefaults(model));
    if (defaults.sampling.ByteSizeLong() > 0) {
      LogInfo("sampling defaults", {{"values", defaults.sampling.ShortDebugString()}});
    }
  }
  if (chat_template.ok()) {
    defaults.chat_template = *std::move(chat_template);
  } else if (!absl::IsUnimplemented(chat_template.status())) {
    return chat_template.status();
  } else {
    // Completions need no chat template.
    defaults.no_chat = std::string(chat_template.status().message());
    LogWarning("no conversations", {{"error", defaults.no_chat}});
  }
  if (absl::Status status = CheckDrafter(DefaultDrafter(defaults), defaults, nullptr); !status.ok()) {
    return Invalid("--drafter: ", status.message());
  }
  std::optional<std::string> cache_key = OUTRIDER_TRY(CacheKey(flags));
  return Loaded{std::move(tokenizer), std::move(defaults), std::move(cache_key)};
}

// Null if every client of the HTTP listener is let in.
absl::StatusOr<std::shared_ptr<TokenFile>> OpenHttpTokens(const Flags& flags) {
  const ServerSecurity& security = flags.process.server.security;
  const std::string& path = flags.http_token_file.empty() ? security.token_file : flags.http_token_file;
  if (path.empty()) return nullptr;
  if (security.cert.empty() && !flags.http_tls_terminated) {
    return Invalid(
        "--http-token-file: API keys need TLS; give --tls-cert and --tls-key, or --http-tls-terminated if a "
        "proxy in front of --http-listen terminates it");
  }
  return TokenFile::Open(path);
}

// Null if --http-listen is empty.
absl::StatusOr<std::unique_ptr<Gateway>> StartGateway(const Flags& flags, ServerProcess& process,
                                                      Metrics& metrics) {
  if (flags.http_listen.empty()) return nullptr;
  const ServerSecurity& security = flags.process.server.security;
  const bool is_secured = flags.http_tls_terminated || !security.cert.empty();
  OUTRIDER_TRY(CheckExposure("--http-listen", flags.http_listen, is_secured, flags.process.insecure));
  const std::shared_ptr<TokenFile> tokens = OUTRIDER_TRY(OpenHttpTokens(flags));
  GatewayOptions options{
      .listen = flags.http_listen,
      .local = !is_secured && IsLocalAddress(flags.http_listen),
      .allowed_origins = flags.allowed_origins,
      .served_model_names = flags.served_model_names,
      .metrics = [&process] { return process.Metrics(); },
      .ready = [&process] { return process.serving(); },
      .authorize = nullptr,
      .on_refused = [&metrics](int status) { metrics.OnHttpRefused(status); },
      .on_request_end = [&metrics](const std::string& code) { metrics.OnRequestEnd(code); }};
  if (tokens != nullptr) {
    options.authorize = [tokens](absl::string_view header) { return tokens->Check(header); };
  }
  if (!flags.http_tls_terminated) {
    options.cert = security.cert;
    options.key = security.key;
    options.client_ca = security.client_ca;
  }
  options.limits.max_body_bytes = static_cast<size_t>(flags.process.server.max_receive_bytes);
  // Leaves room for idle connections, so that the service decides who must wait, not the listener.
  options.limits.max_connections =
      std::min(std::max(options.limits.max_connections,
                        2 * (flags.admission.max_samples + flags.admission.max_waiting)),
               MaxConnections());
  return Gateway::Start(std::move(options), process.rpc().InProcessChannel());
}

VllmOptions MakeVllmOptions(const Flags& flags, const RequestDefaults& defaults, Metrics& metrics) {
  return {.defaults = {.model_has_temperature = defaults.sampling.has_temperature(),
                       .max_samples = static_cast<uint32_t>(defaults.max_samples)},
          .served_model_names = flags.served_model_names,
          .checks_tokens = !flags.process.server.security.token_file.empty(),
          .on_request_end = [&metrics](const std::string& code) { metrics.OnRequestEnd(code); }};
}

// Call after Admission::Close. Lets calls in progress finish, then ends those that have not, and the links.
asio::awaitable<void> Drain(Admission& admission, Clock::duration patience, Pools& pools) {
  Event tick(co_await asio::this_coro::executor);
  const auto until = [&tick](Clock::time_point end, auto done) -> asio::awaitable<void> {
    while (!done() && Clock::now() < end) co_await tick.Wait(Clock::now() + std::chrono::milliseconds(5));
  };
  const auto idle = [&admission] { return admission.running() == 0; };
  co_await until(Clock::now() + patience, idle);
  admission.EndAll();
  co_await until(Clock::now() + std::chrono::seconds(2), idle);
  pools.targets->Stop();
  const std::vector<DraftPool*> drafts = pools.draft_pools();
  for (DraftPool* pool : drafts) pool->Stop();
  co_await until(Clock::now() + std::chrono::seconds(2), [&] {
    return pools.targets->stopped() && std::ranges::all_of(drafts, &DraftPool::stopped);
  });
}

// Returns only if the server cannot start, with the reason.
absl::Status Serve(const Flags& flags) {
  const Loaded loaded = OUTRIDER_TRY(Load(flags));
  const Tokenizer& tokenizer = *loaded.tokenizer;
  const auto credentials = OUTRIDER_TRY(MakeChannelCredentials(flags.backend));
  auto registry = std::make_shared<prometheus::Registry>();
  Metrics metrics(*registry, flags.admission.max_samples);
  const std::unique_ptr<Tracer> tracer = Tracer::FromEnvironment("outrider-coordinator");
  GrpcContext context(absl::Seconds(flags.process.busy_poll_seconds));
  asio::thread_pool resolvers(kResolverThreads);
  std::unique_ptr<Pools> pools;
  const auto pool_options = [&](const std::vector<std::string>& addresses, void (Metrics::*on_unexpected)()) {
    return PoolOptions{.link = {.credentials = credentials,
                                .patience = ToDuration(flags.target_wait_seconds),
                                .item_timeout = ToDuration(flags.item_timeout_seconds),
                                .on_unexpected = [&metrics, on_unexpected] { (metrics.*on_unexpected)(); },
                                .on_kv_used = [&] { ReportKvUsed(*pools->targets, metrics); }},
                       .addresses = addresses,
                       .resolve_interval = ToDuration(flags.resolve_seconds),
                       .resolvers = resolvers.get_executor()};
  };
  ServerProcess* process = nullptr;  // null until the service has started; links connect after that
  // Serving means that a target is up, or went down less than --target-wait ago. No draft is needed.
  bool was_present = false;
  const auto on_change = [&] {
    Report(*pools, metrics);
    const TargetPool& targets = *pools->targets;
    if (targets.info() != nullptr) process->SetModelName(targets.info()->model());
    const bool present = targets.present();
    if (std::exchange(was_present, present) != present) LogInfo(present ? "serving" : "not serving");
    process->SetServing(present);
  };
  pools = OUTRIDER_TRY(MakePools(context, pool_options(flags.targets, &Metrics::OnUnexpectedTarget),
                                 pool_options(flags.drafts, &Metrics::OnUnexpectedDraft),
                                 pool_options(flags.second_drafts, &Metrics::OnUnexpectedDraft),
                                 flags.mixed_numerics, tokenizer, on_change));
  Admission admission(context.get_executor(), flags.admission,
                      [&] { metrics.SetRequests(admission.running(), admission.waiting()); });
  ParserThreads parsers(context.get_executor(), kParserThreads);
  DraftChoice policy(flags.run_ahead_branches);
  InferenceService service({.decode = {.executor = context.get_executor(),
                                       .tokenizer = &tokenizer,
                                       .targets = pools->targets.get(),
                                       .drafts = pools->drafts.get(),
                                       .second_drafts = pools->second_drafts.get(),
                                       .draft_budget = ToDuration(flags.draft_budget_seconds),
                                       .ngram = flags.ngram,
                                       .policy = &policy,
                                       .metrics = &metrics,
                                       .tracer = tracer.get()},
                            .parsers = &parsers,
                            .mixed_numerics = flags.mixed_numerics,
                            .defaults = loaded.defaults,
                            .admission = &admission,
                            .checks_tokens = !flags.process.server.security.token_file.empty(),
                            .cache_key = loaded.cache_key,
                            .stream_interval = ToDuration(flags.stream_interval_seconds)});
  VllmService vllm(MakeVllmOptions(flags, loaded.defaults, metrics));
  std::vector<grpc::Service*> services = vllm.services();
  services.push_back(&service);
  const std::unique_ptr<ServerProcess> started = OUTRIDER_TRY(ServerProcess::Start(
      flags.process, {{.listen = flags.listen, .services = services, .registry = registry}}));
  process = started.get();
  vllm.Open(process->rpc().InProcessChannel());
  const std::unique_ptr<Gateway> gateway = OUTRIDER_TRY(StartGateway(flags, *process, metrics));
  on_change();  // before the log line, so that its readers find the metrics
  LogInfo("listening", {{"listen", process->rpc().address()},
                        {"metrics_listen", process->metrics_address()},
                        {"http_listen", gateway != nullptr ? gateway->address() : ""},
                        {"target", absl::StrJoin(flags.targets, ",")},
                        {"draft", absl::StrJoin(flags.drafts, ",")},
                        {"second_draft", absl::StrJoin(flags.second_drafts, ",")},
                        {"drafter", NameOf(DefaultDrafter(loaded.defaults))}});
  pools->targets->Connect();
  for (DraftPool* pool : pools->draft_pools()) pool->Connect();

  // The executor runs until the process ends, so that calls that arrive during shutdown are answered too.
  std::thread executor([&context] { context.Run(); });
  const StallWatch watch("executor", kStallTimeout, ExecutorIsStuck(context.get_executor()),
                         [process](bool hangs) { process->ReportStall(hangs); });
  process->AwaitEnd(
      [&] { asio::post(context.get_executor(), asio::use_future([&] { admission.Close(); })).wait(); });
  const Clock::duration patience = ToDuration(flags.process.drain_seconds);
  asio::co_spawn(context.get_executor(), Drain(admission, patience, *pools), asio::use_future).wait();
  if (gateway != nullptr) gateway->Finish(absl::Seconds(1));
  // Connections end with the process, and clients of the remaining calls see UNAVAILABLE. Shutting gRPC down
  // would cancel calls that arrive meanwhile, as if their clients had cancelled them.
  const Clock::time_point end = Clock::now() + kUnread;
  while (service.unfinished() + vllm.unfinished() > 0 && Clock::now() < end)
    std::this_thread::sleep_for(kUnread / 1000);
  if (tracer != nullptr) tracer->Flush();
  process->Exit(absl::ZeroDuration());
}

int Run(int argc, char** argv) {
  Flags flags;
  CLI::App app("Serves generations: drives a draft and a target service, and owns the text.",
               "outrider-coordinator");
  DefineFlags(app, flags);
  app.set_version_flag("--version", absl::StrCat(app.get_name(), " ", VersionAndCommit()));
  return RunProcess(app, argc, argv, "coordinator", flags.process, [&] {
    // Enough streams for a client to fill the queue, which refuses further requests with a reason.
    int& streams = flags.process.server.max_streams;
    streams = std::max(streams, flags.admission.max_samples + 2 * flags.admission.max_waiting);
    std::erase(flags.drafts, "");
    return Serve(flags);
  });
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Run(argc, argv); }
