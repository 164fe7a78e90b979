// Measures the acceptance of each drafter by kind of prompt and sampling, and what truncating q on the wire
// costs in acceptance. Nothing here depends on the machine's speed; bench_pair measures times.
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "absl/strings/str_format.h"
#include "bench/pair_helpers.h"
#include "bench/run_benchmark.h"
#include "bench/tally.h"
#include "bench/token_rows.h"
#include "common/kv/prefix_hash.h"
#include "common/rpc/convert.h"
#include "common/rpc/error.h"
#include "common/text/strings.h"
#include "common/text/tokenizer.h"
#include "outrider/v1/target.grpc.pb.h"

namespace outrider {
namespace {

// Enough to complete every draft, however busy the machine is.
constexpr double kDraftBudgetSeconds = 60;

struct Flags {
  LocalServicesOptions services;
  std::string prompts = "bench/prompts.json";
  std::vector<std::string> sets;  // empty: all sets of the file
  std::string corpus;             // text for unigrams and bigrams; empty: neither is measured
  int tokens = 10000;
  int max_tokens = 200;
  int k = 4;
};

struct Setting {
  const char* name;
  double temperature;
  uint32_t top_k;  // 0: all
};
constexpr std::array<Setting, 3> kSettings = {
    {{"temperature 0", 0, 0}, {"temperature 1", 1, 0}, {"temperature 1, top-k 40", 1, 40}}};

struct Cell {
  SpeculationTally tally;
  double bytes = 0;

  double bytes_per_token() const { return tally.drafted > 0 ? bytes / tally.drafted : 0; }
  nlohmann::ordered_json Json() const {
    return {{"tokens", tally.tokens},
            {"alpha", tally.alpha()},
            {"acceptance_rate", tally.acceptance_rate()},
            {"tokens_per_call", tally.tokens_per_call()},
            {"bytes_per_drafted_token", bytes_per_token()}};
  }
};

// Continues a prompt and adds its counts to the cell.
using Generate =
    std::function<absl::Status(const std::string& prompt, const Setting& setting, uint64_t seed, Cell& cell)>;

// The coordinator generates. `top_n`: tokens of q; 0: the draft service's default.
Generate WithDrafter(v1::DrafterKind drafter, const Client& client, const Flags& flags, uint32_t top_n = 0) {
  return [drafter, &client, &flags, top_n](const std::string& prompt, const Setting& setting, uint64_t seed,
                                           Cell& cell) {
    v1::GenerateRequest request = MakeRequest(prompt, setting.temperature, flags.k, seed, flags.max_tokens);
    request.set_trace(true);
    if (setting.top_k > 0) request.mutable_sampling()->set_top_k(setting.top_k);
    request.mutable_speculation()->set_drafter(drafter);
    request.mutable_speculation()->set_draft_top_n(top_n);
    auto answer = client.Generate(
        request, [&](const v1::GenerateResponse& chunk) { cell.bytes += chunk.trace().draft_bytes(); });
    if (answer.ok()) cell.tally.Add(answer->finish);
    return answer.status();
  };
}

// A direct stream to the running target, for proposals that no service makes.
class TargetStream {
 public:
  explicit TargetStream(const std::string& address)
      : stub_(v1::Target::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        stream_(stub_->Verify(&context_)) {
    v1::VerifyResponse first;
    if (stream_->Read(&first)) info_ = first.info();
  }
  ~TargetStream() {
    context_.TryCancel();
    stream_->Finish();
  }

  const v1::ServerInfo& info() const { return info_; }

  // Makes the rounds that the coordinator makes with a fixed K. The prompt's round is not counted.
  absl::Status Decode(std::vector<TokenId> tokens, const TokenRows& rows, const v1::SequenceParams& params,
                      const Flags& flags, Cell& cell) {
    const std::string id = absl::StrFormat("sequence%08d", ++sequences_);
    const RandomKey key{params.seed(), params.sample_index()};
    const bool greedy = params.sampling().temperature() == 0;
    const size_t end =
        std::min<size_t>(tokens.size() + static_cast<size_t>(flags.max_tokens), info_.max_context());
    for (uint64_t round = 1; tokens.size() < end; ++round) {
      const int room = static_cast<int>(end - tokens.size()) - 1;
      Proposal proposal;
      if (round > 1) proposal = DraftFromRows(rows, tokens, std::min(flags.k, room), key, greedy);
      v1::VerifyItem item;
      item.mutable_sequence()->set_sequence_id(id);
      item.mutable_sequence()->set_round(round);
      if (round == 1) *item.mutable_sequence()->mutable_params() = params;
      const auto verdict = Ask(std::move(item), tokens, proposal);
      if (!verdict.ok()) return verdict.status();
      for (int node : verdict->path) tokens.push_back(proposal[static_cast<size_t>(node)].token);
      tokens.push_back(verdict->token);
      if (round > 1) Count(proposal, *verdict, cell);
    }
    v1::VerifyRequest request;
    request.add_items()->mutable_release()->set_sequence_id(id);
    return stream_->Write(request) ? absl::OkStatus() : Ended();
  }

 private:
  static absl::Status Ended() { return absl::UnavailableError("the target ended the stream"); }

  static void Count(const Proposal& proposal, const Verdict& verdict, Cell& cell) {
    const auto accepted = static_cast<double>(verdict.path.size());
    cell.tally.tokens += accepted + 1;
    cell.tally.rounds += 1;
    cell.tally.drafted += static_cast<double>(proposal.size());
    cell.tally.accepted += accepted;
    cell.tally.judged += verdict.judged;
    cell.tally.overlap += verdict.expected_accepted;
    google::protobuf::RepeatedPtrField<v1::DraftNode> nodes;
    SerializeProposal(proposal, &nodes);
    for (const v1::DraftNode& node : nodes) cell.bytes += static_cast<double>(node.ByteSizeLong());
  }

  // The verdict on a proposal that follows `tokens`. An item with parameters carries all of them, any other
  // only the last.
  absl::StatusOr<Verdict> Ask(v1::VerifyItem item, std::span<const TokenId> tokens,
                              const Proposal& proposal) {
    v1::SequenceUpdate& update = *item.mutable_sequence();
    const size_t base = update.has_params() ? 0 : tokens.size() - 1;
    update.set_base(static_cast<uint32_t>(base));
    for (TokenId token : tokens.subspan(base)) update.add_tokens(static_cast<uint32_t>(token));
    update.set_prefix_hash(PrefixHash(tokens.first(base)));
    update.set_params_hash(1);
    SerializeProposal(proposal, item.mutable_draft());
    v1::VerifyRequest request;
    *request.add_items()->mutable_verify() = std::move(item);
    if (!stream_->Write(request)) return Ended();
    v1::VerifyResponse response;
    while (response.results().empty()) {
      if (!stream_->Read(&response)) return Ended();
    }
    const v1::VerifyResult& result = response.results(0);
    if (result.has_status()) return FromProto(result.status());
    return ParseVerdict(result.verdict(), proposal, static_cast<int>(info_.vocab_size()));
  }

  grpc::ClientContext context_;
  const std::unique_ptr<v1::Target::Stub> stub_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::VerifyRequest, v1::VerifyResponse>> stream_;
  v1::ServerInfo info_;
  int sequences_ = 0;
};

Generate WithRows(TokenRows rows, TargetStream& target, const Tokenizer& tokenizer, const Flags& flags) {
  return [rows = std::move(rows), &target, &tokenizer, &flags](
             const std::string& prompt, const Setting& setting, uint64_t seed, Cell& cell) {
    auto tokens = tokenizer.Encode(prompt, /*add_special_tokens=*/true);
    if (!tokens.ok()) return tokens.status();
    v1::SequenceParams params;
    params.mutable_sampling()->set_temperature(static_cast<float>(setting.temperature));
    params.mutable_sampling()->set_top_k(setting.top_k);
    params.set_seed(seed);
    params.set_rule(v1::RULE_TOKEN);
    params.set_prompt_length(static_cast<uint32_t>(tokens->size()));
    return target.Decode(*std::move(tokens), rows, params, flags, cell);
  };
}

using Drafters = std::vector<std::pair<std::string, Generate>>;

// `target` and `tokenizer` must outlive the drafters.
absl::StatusOr<Drafters> MakeDrafters(const Client& client, TargetStream& target, const Tokenizer& tokenizer,
                                      const Flags& flags) {
  const int vocab = static_cast<int>(target.info().vocab_size());
  if (vocab == 0) return absl::UnavailableError("the target does not answer");
  Drafters drafters;
  for (const auto& [name, kind] : {std::pair("model", v1::DRAFTER_KIND_MODEL),
                                   {"auto", v1::DRAFTER_KIND_AUTO},
                                   {"n-gram", v1::DRAFTER_KIND_NGRAM},
                                   {"copy", v1::DRAFTER_KIND_COPY}}) {
    drafters.emplace_back(name, WithDrafter(kind, client, flags));
  }
  const auto add = [&](const char* name, TokenRows rows) {
    drafters.emplace_back(name, WithRows(std::move(rows), target, tokenizer, flags));
  };
  add("random", [vocab](size_t position, TokenId /*previous*/) { return RandomRow(position, vocab); });
  if (flags.corpus.empty()) return drafters;
  const std::optional<std::string> text = ReadFile(flags.corpus);
  if (!text) return absl::NotFoundError(absl::StrCat(flags.corpus, ": cannot be read, or is empty"));
  const auto tokens = tokenizer.Encode(*text, /*add_special_tokens=*/false);
  if (!tokens.ok()) return tokens.status();
  const auto counts = std::make_shared<const CorpusCounts>(*tokens, vocab);
  add("bigram", [counts](size_t /*position*/, TokenId previous) { return counts->Bigrams(previous); });
  add("unigram", [row = counts->Unigrams()](size_t /*position*/, TokenId /*previous*/) { return row; });
  return drafters;
}

std::string DropLastWords(std::string text, int words) {
  for (; words > 0 && text.rfind(' ') != std::string::npos; --words) text.resize(text.rfind(' '));
  return text;
}

// Runs the prompts until the target has generated enough tokens. Each further pass drops one more word from
// the end of each prompt; otherwise greedy answers would repeat.
absl::StatusOr<Cell> Measure(const Flags& flags, const std::vector<std::string>& prompts,
                             const Setting& setting, const Generate& generate) {
  Cell cell;
  for (int pass = 0; cell.tally.tokens < flags.tokens; ++pass) {
    for (const std::string& prompt : prompts) {
      if (cell.tally.tokens >= flags.tokens) break;
      const uint64_t seed = static_cast<uint64_t>(pass) + 1;
      if (absl::Status status = generate(DropLastWords(prompt, pass), setting, seed, cell); !status.ok()) {
        return status;
      }
    }
  }
  return cell;
}

// Measures every drafter with every setting.
absl::StatusOr<nlohmann::ordered_json> MeasureSet(const Drafters& drafters, const Flags& flags,
                                                  const std::string& set) {
  auto prompts = LoadPrompts({.file = flags.prompts, .set = set});
  if (!prompts.ok()) return prompts.status();
  absl::PrintF("\n%s, K = %d; alpha, accepted of drafted, tokens a call\n%-8s", set, flags.k, "");
  for (const Setting& setting : kSettings) absl::PrintF(" %25s", setting.name);
  absl::PrintF("\n");
  nlohmann::ordered_json rows;
  for (const auto& [name, generate] : drafters) {
    absl::PrintF("%-8s", name);
    for (const Setting& setting : kSettings) {
      auto cell = Measure(flags, *prompts, setting, generate);
      if (!cell.ok()) return cell.status();
      absl::PrintF(" %11.3f %6.3f %6.2f", cell->tally.alpha(), cell->tally.acceptance_rate(),
                   cell->tally.tokens_per_call());
      std::fflush(stdout);
      nlohmann::ordered_json row = {
          {"set", set}, {"drafter", name}, {"temperature", setting.temperature}, {"top_k", setting.top_k}};
      row.update(cell->Json());
      rows.push_back(std::move(row));
    }
    absl::PrintF("\n");
  }
  return rows;
}

// Measures the model drafter at temperature 1 for several sizes of q.
absl::StatusOr<nlohmann::ordered_json> MeasureTopN(const Client& client, uint32_t vocab, const Flags& flags,
                                                   const std::string& set) {
  auto prompts = LoadPrompts({.file = flags.prompts, .set = set});
  if (!prompts.ok()) return prompts.status();
  absl::PrintF("\n%s, model, temperature 1, by tokens of q sent\n%-12s %7s %10s %12s %12s\n", set, "",
               "alpha", "accepted", "tokens/call", "bytes/token");
  nlohmann::ordered_json rows;
  for (const uint32_t n : {1U, 4U, 16U, 32U, 64U, 128U, 256U, 1024U, vocab}) {
    const std::string name = n == vocab ? "all (dense)" : absl::StrCat(n);
    auto cell = Measure(flags, *prompts, kSettings[1], WithDrafter(v1::DRAFTER_KIND_MODEL, client, flags, n));
    if (!cell.ok()) return cell.status();
    absl::PrintF("%-12s %7.3f %10.3f %12.2f %12.1f\n", name, cell->tally.alpha(),
                 cell->tally.acceptance_rate(), cell->tally.tokens_per_call(), cell->bytes_per_token());
    nlohmann::ordered_json row = {{"name", name}};
    row.update(cell->Json());
    rows.push_back(std::move(row));
  }
  return rows;
}

absl::StatusOr<nlohmann::ordered_json> Run(const RunningPair& pair, const Tokenizer& tokenizer,
                                           const Flags& flags) {
  const Client& client = pair.client;
  auto report = BeginReport(client);
  if (!report.ok()) return report.status();
  (*report)["k"] = flags.k;
  TargetStream target(pair.services->address(kTarget));
  const auto drafters = MakeDrafters(client, target, tokenizer, flags);
  if (!drafters.ok()) return drafters.status();
  for (const std::string& set : flags.sets) {
    auto rows = MeasureSet(*drafters, flags, set);
    if (!rows.ok()) return rows.status();
    for (nlohmann::ordered_json& row : *rows) (*report)["rows"].push_back(std::move(row));
  }
  auto rows = MeasureTopN(client, target.info().vocab_size(), flags, flags.sets[0]);
  if (!rows.ok()) return rows.status();
  (*report)["top_n"] = *rows;
  return report;
}

absl::StatusOr<nlohmann::ordered_json> Measure(Flags& flags) {
  if (flags.sets.empty()) {
    const auto file = JsonObjectIn<nlohmann::ordered_json>(flags.prompts);
    if (!file.ok()) return file.status();
    for (const auto& [set, unused] : file->items()) flags.sets.push_back(set);
  }
  for (const std::string& set : flags.sets) {
    const auto prompts = LoadPrompts({.file = flags.prompts, .set = set});
    if (!prompts.ok()) return prompts.status();
  }
  const std::string& model = flags.services.target_model;
  const auto tokenizer = Tokenizer::Load((model.empty() ? "models/tiny-target" : model) + "/tokenizer.json");
  if (!tokenizer.ok()) return tokenizer.status();
  flags.services.draft_budget_seconds = kDraftBudgetSeconds;
  auto pair = RunningPair::Start(flags.services);
  if (!pair.ok()) return pair.status();
  return Run(*pair, **tokenizer, flags);
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Measures the acceptance of each drafter.", "bench_alpha");
  AddPairFlags(app, flags.services);
  app.add_option("--prompts", flags.prompts, "JSON file with named sets of texts")
      ->check(CLI::ExistingFile)
      ->capture_default_str();
  app.add_option("--set", flags.sets, "the sets of prompts to use; default: all");
  app.add_option("--corpus", flags.corpus, "text for the unigram and bigram drafters, which need one");
  AddNumber(app, "--tokens", flags.tokens, "tokens generated per figure", 16, 1 << 30);
  AddNumber(app, "--max-tokens", flags.max_tokens, "tokens per generation", 16, 4096);
  AddNumber(app, "--draft-tokens", flags.k, "K", 1, 16);
  return RunBenchmark(app, argc, argv, [&] { return Measure(flags); });
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
