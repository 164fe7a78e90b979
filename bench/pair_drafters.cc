#include "bench/pair_drafters.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/far_services.h"
#include "bench/process_costs.h"
#include "bench/round_times.h"
#include "common/rpc/drafters.h"
#include "common/spec/analysis.h"

namespace outrider {
namespace {

// The modes of one drafter among all modes.
struct DrafterModes {
  v1::DrafterKind kind;
  std::vector<size_t> chains, trees;
  std::optional<size_t> policy;  // the coordinator chooses K

  std::string name() const { return NameOf(kind); }
};

struct AllModes {
  std::vector<TreeMode> modes = {{"plain", 0}};
  std::vector<DrafterModes> drafters;

  void Add(v1::DrafterKind kind, int max_k, const std::vector<TreeMode>& trees) {
    DrafterModes& drafter = drafters.emplace_back(DrafterModes{kind, {}, {}, {}});
    for (int k = 1; k <= max_k; ++k) drafter.chains.push_back(Add(drafter, {absl::StrCat("K = ", k), k}));
    for (const TreeMode& tree : trees) drafter.trees.push_back(Add(drafter, tree));
    drafter.policy = Add(drafter, {"policy", std::nullopt});
  }

 private:
  size_t Add(const DrafterModes& drafter, TreeMode mode) {
    mode.name = absl::StrCat(drafter.name(), ", ", mode.name);
    mode.drafter = drafter.kind;
    modes.push_back(std::move(mode));
    return modes.size() - 1;
  }
};

absl::StatusOr<AllModes> MakeModes(const Client& client, const DraftersFlags& flags) {
  const absl::StatusOr<v1::DescribeResponse> description = client.Describe();
  if (!description.ok()) return description.status();
  std::vector<TreeMode> trees;
  for (const std::string& text : flags.trees) {
    auto tree = ParseTreeMode(text);
    if (!tree.ok()) return tree.status();
    trees.push_back(*std::move(tree));
  }
  AllModes all;
  all.Add(v1::DRAFTER_KIND_MODEL, flags.max_k, trees);
  for (const OwnDrafter& own : kOwnDrafters) {
    const v1::ProposerInfo* proposer = FindProposer(description->target(), own.proposer);
    if (proposer == nullptr) continue;
    const int most = static_cast<int>(proposer->max_draft_tokens());
    std::vector<TreeMode> fitting = trees;
    std::erase_if(fitting, [&](const TreeMode& tree) { return *tree.k > most; });
    all.Add(own.drafter, std::min(most, flags.max_k), fitting);
  }
  all.Add(v1::DRAFTER_KIND_NGRAM, flags.max_k, {});
  all.Add(v1::DRAFTER_KIND_AUTO, 0, {});
  return all;
}

// The mode with the largest ratio to mode 0, plain decoding.
std::optional<size_t> Fastest(const Turns& turns, const std::vector<size_t>& modes) {
  const auto found = std::max_element(modes.begin(), modes.end(), [&](size_t a, size_t b) {
    return turns.Ratio(a, 0).median < turns.Ratio(b, 0).median;
  });
  return found == modes.end() ? std::nullopt : std::optional(*found);
}

std::vector<double> AcceptanceByPosition(const SpeculationTally& tally) {
  std::vector<double> shares;
  for (size_t i = 0; i < tally.drafted_at.size(); ++i) {
    shares.push_back(tally.accepted_at[i] / tally.drafted_at[i]);
  }
  return shares;
}

nlohmann::ordered_json PrintModes(const AllModes& all, const Turns& turns) {
  absl::PrintF("%-24s %18s %12s %7s\n", "", "vs plain", "tokens/call", "alpha");
  nlohmann::ordered_json rows;
  for (size_t i = 0; i < all.modes.size(); ++i) {
    const SpeculationTally& tally = turns.of(i).tally;
    const Spread ratio = turns.Ratio(i, 0);
    absl::PrintF("%-24s %18s %12.2f %7.3f\n", all.modes[i].name, ratio.Text(), tally.tokens_per_call(),
                 tally.alpha());
    rows.push_back({{"mode", all.modes[i].name},
                    {"ratio_to_plain", ratio.Json()},
                    {"tokens_per_call", tally.tokens_per_call()},
                    {"alpha", tally.alpha()}});
  }
  return rows;
}

// Measures what the turns do not show, one drafter at a time.
class DrafterReport {
 public:
  DrafterReport(const Client& client, const FarServices& far, const DraftersFlags& flags,
                const std::vector<std::string>& prompts, double temperature)
      : client_(client), far_(far), flags_(flags), prompts_(prompts), temperature_(temperature) {}

  absl::Status MeasurePlain() {
    auto times = Times({"plain", 0});
    if (times.ok()) plain_ = *std::move(times);
    return times.status();
  }

  absl::StatusOr<nlohmann::ordered_json> Print(const AllModes& all, const DrafterModes& drafter,
                                               const Turns& turns) const {
    nlohmann::ordered_json row = {{"drafter", drafter.name()}};
    absl::PrintF("\n%s:", drafter.name());
    if (drafter.policy) {
      row["policy"] = turns.Ratio(*drafter.policy, 0).Json();
      absl::PrintF(" policy %s", turns.Ratio(*drafter.policy, 0).Text());
    }
    if (const std::optional<size_t> tree = Fastest(turns, drafter.trees)) {
      row["tree"] = {{"mode", all.modes[*tree].name},
                     {"ratio_to_plain", turns.Ratio(*tree, 0).Json()},
                     {"tokens_per_call", turns.of(*tree).tally.tokens_per_call()}};
      absl::PrintF(", %s %s", all.modes[*tree].name, turns.Ratio(*tree, 0).Text());
    }
    absl::PrintF("\n");
    if (const std::optional<size_t> chain = Fastest(turns, drafter.chains)) {
      const std::vector<double> acceptance = AcceptanceByPosition(turns.of(drafter.chains.back()).tally);
      absl::PrintF("acceptance by position: %s\n",
                   absl::StrJoin(acceptance, " ", [](std::string* out, double share) {
                     absl::StrAppendFormat(out, "%.3f", share);
                   }));
      row["acceptance_by_position"] = acceptance;
      auto measured = PrintChain(all.modes[*chain], turns.of(*chain).tally, turns.Ratio(*chain, 0));
      if (!measured.ok()) return measured.status();
      row["chain"] = *std::move(measured);
    }
    return row;
  }

 private:
  absl::StatusOr<nlohmann::ordered_json> PrintChain(const TreeMode& mode, const SpeculationTally& tally,
                                                    const Spread& ratio) const {
    const absl::StatusOr<RoundTimes> times = Times(mode);
    if (!times.ok()) return times.status();
    const double c = times->draft_server / *mode.k / plain_.verify_server;
    const double expected = WalltimeGain(std::min(tally.alpha(), 0.999), *mode.k, c);
    absl::PrintF("%s: %s of plain, c = %.3f, Theorem 3.8 %.2f\n", mode.name, ratio.Text(), c, expected);
    nlohmann::ordered_json row = {{"k", *mode.k},
                                  {"ratio_to_plain", ratio.Json()},
                                  {"tokens_per_call", tally.tokens_per_call()},
                                  {"alpha", tally.alpha()},
                                  {"c", c},
                                  {"expected_ratio", expected},
                                  {"round_microseconds", PrintRoundTimes(*times)}};
    if (absl::Status status = CountBytes(mode, row); !status.ok()) return status;
    return row;
  }

  absl::Status CountBytes(const TreeMode& mode, nlohmann::ordered_json& row) const {
    const double target = far_.target_bytes(), draft = far_.draft_bytes();
    double tokens = 0;
    for (const std::string& prompt : prompts_) {
      const auto answer = far_.client().Generate(Request(mode, prompt), nullptr);
      if (!answer.ok()) return answer.status();
      tokens += answer->finish.usage().completion_tokens();
    }
    const double to_target = (far_.target_bytes() - target) / tokens;
    const double to_draft = (far_.draft_bytes() - draft) / tokens;
    absl::PrintF("  bytes on the wire a token: %.0f to and from the target, %.0f to and from the draft\n",
                 to_target, to_draft);
    row["bytes_per_token"] = {{"target", to_target}, {"draft", to_draft}};
    return absl::OkStatus();
  }

  absl::StatusOr<RoundTimes> Times(const TreeMode& mode) const {
    return MeasureRoundTimes(client_, prompts_, *mode.k,
                             [&](const std::string& prompt) { return Request(mode, prompt); });
  }
  v1::GenerateRequest Request(const TreeMode& mode, const std::string& prompt) const {
    return MakeRequest(mode, prompt, temperature_, 1, flags_.turns.max_tokens);
  }

  const Client& client_;
  const FarServices& far_;
  const DraftersFlags& flags_;
  const std::vector<std::string>& prompts_;
  const double temperature_;
  RoundTimes plain_;
};

std::vector<std::string> HeadsOf(const LocalServicesOptions& services) {
  if (!services.heads.empty() || !services.target_model.empty()) return services.heads;
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator("models/tiny-heads")) {
    folders.push_back(entry.path().string());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

}  // namespace

absl::StatusOr<nlohmann::ordered_json> CompareDrafters(const RunningPair& pair,
                                                       const LocalServicesOptions& services,
                                                       const DraftersFlags& flags,
                                                       const std::vector<std::string>& prompts,
                                                       double temperature) {
  const auto all = MakeModes(pair.client, flags);
  if (!all.ok()) return all.status();
  Turns turns(pair.client, flags.turns, prompts, all->modes);
  if (absl::Status status = turns.Run(temperature); !status.ok()) return status;
  absl::PrintF("\ntemperature %g, medians of %d turns (least-largest)\n", temperature, flags.turns.turns);
  nlohmann::ordered_json report = {{"temperature", temperature}, {"modes", PrintModes(*all, turns)}};

  const std::string& model = services.target_model;
  const auto far = FarServices::Start(*pair.services, model.empty() ? "models/tiny-target" : model,
                                      std::chrono::seconds(0));
  if (!far.ok()) return far.status();
  DrafterReport rest(pair.client, **far, flags, prompts, temperature);
  if (absl::Status status = rest.MeasurePlain(); !status.ok()) return status;
  for (const DrafterModes& drafter : all->drafters) {
    auto row = rest.Print(*all, drafter, turns);
    if (!row.ok()) return row.status();
    report["drafters"].push_back(*std::move(row));
  }
  return report;
}

absl::StatusOr<nlohmann::ordered_json> MeasureMemory(LocalServicesOptions services,
                                                     const std::string& prompt) {
  std::vector<std::string> folders = HeadsOf(services);
  folders.insert(folders.begin(), "");
  absl::PrintF("\nresident memory, MB\n");
  nlohmann::ordered_json report;
  for (const std::string& folder : folders) {
    services.heads = {folder};
    const auto pair = RunningPair::Start(services);
    if (!pair.ok()) return pair.status();
    const std::string name = std::filesystem::path(folder).filename().string();
    v1::GenerateRequest request = MakeRequest(prompt, 0, 3, 1, 200);
    if (!folder.empty()) request.mutable_speculation()->set_drafter(FromName<v1::DrafterKind>(name));
    const auto answer = pair->client.Generate(request, nullptr);
    if (!answer.ok()) return answer.status();
    const double target = ResidentBytesOfChildren("outrider-target");
    const double draft = ResidentBytesOfChildren("outrider-draft");
    absl::PrintF("%-24s %8.1f %8.1f\n", folder.empty() ? "target, draft" : "with " + name, target / 1e6,
                 draft / 1e6);
    report.push_back({{"heads", name}, {"target_bytes", target}, {"draft_bytes", draft}});
  }
  return report;
}

}  // namespace outrider
