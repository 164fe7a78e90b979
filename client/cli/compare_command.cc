#include <algorithm>
#include <boost/math/special_functions/gamma.hpp>
#include <cmath>
#include <cstdio>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/call.h"
#include "client/cli/flags.h"
#include "client/cli/process.h"
#include "common/rpc/drafters.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// Sampled texts are compared by their first kLength tokens, each one of the kTopK likeliest.
constexpr int kTopK = 5;
constexpr int kLength = 2;
constexpr uint32_t kSamplesPerCall = 50;
// Room for a round of several drafted tokens, a tree included.
constexpr uint32_t kSampledTokens = kLength + 3;
// Expected counts below this are pooled, as Pearson's test asks for.
constexpr double kLeastExpected = 5;
// The p-value below which texts count as not having the target's distribution. With ten drafters, a correct
// one is accused once in a hundred thousand runs.
constexpr double kMinPValue = 1e-6;

constexpr const char* kPrompts[] = {"The best way to learn a language is",
                                    "Once upon a time, in a small village by the sea,",
                                    "A list of the largest cities of Europe:\n1.", "def add(a, b):\n"};

using Ids = std::vector<uint32_t>;
using Law = std::map<Ids, double>;  // the probability of each text

struct Row {
  v1::DrafterKind drafter;
  int equal = 0;         // greedy texts that equal those of plain decoding
  double seconds = 0;    // from the first token of a greedy text to the last
  uint64_t decoded = 0;  // tokens in that time
  uint64_t tokens = 0;
  uint64_t calls = 0;  // of the target, for `tokens`
  double p = 1;
};

// The probability that samples of this law differ from it at least as much as these counts do (Pearson's
// chi-square test). 0 if one of the texts is impossible under the law.
double PValue(const std::map<Ids, int>& counts, const Law& law) {
  int total = 0;
  for (const auto& [text, count] : counts) {
    if (!law.contains(text)) return 0;
    total += count;
  }
  double statistic = 0, pooled_expected = 0, pooled_count = 0;
  int cells = 0;
  const auto add = [&](double expected, double count) {
    statistic += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (const auto& [text, probability] : law) {
    const auto found = counts.find(text);
    const double expected = probability * total, count = found == counts.end() ? 0 : found->second;
    if (expected >= kLeastExpected) {
      add(expected, count);
    } else {
      pooled_expected += expected;
      pooled_count += count;
    }
  }
  if (pooled_expected > 0) add(pooled_expected, pooled_count);
  return cells < 2 ? 1 : boost::math::gamma_q((cells - 1) / 2.0, statistic / 2);
}

// The drafters that a coordinator has, plain decoding first.
std::vector<v1::DrafterKind> DraftersOf(const v1::DescribeResponse& description) {
  std::vector<v1::DrafterKind> drafters = {v1::DRAFTER_KIND_NONE};
  if (description.has_draft()) drafters.push_back(v1::DRAFTER_KIND_MODEL);
  drafters.insert(drafters.end(), {v1::DRAFTER_KIND_NGRAM, v1::DRAFTER_KIND_COPY, v1::DRAFTER_KIND_AUTO});
  for (const OwnDrafter& own : kOwnDrafters) {
    if (FindProposer(description.target(), own.proposer) != nullptr) drafters.push_back(own.drafter);
  }
  return drafters;
}

class DrafterComparison {
 public:
  DrafterComparison(const CompareFlags& flags, Connection& connection, const Client& client, Signals& signals)
      : flags_(flags), connection_(connection), client_(client), signals_(signals) {}

  // One row for each drafter.
  absl::StatusOr<std::vector<Row>> Run() {
    const v1::DescribeResponse description = OUTRIDER_TRY(client_.Describe());
    std::vector<Row> rows;
    for (v1::DrafterKind drafter : DraftersOf(description)) rows.push_back({drafter});
    for (const std::string& prompt : flags_.prompts) {
      Ids plain;
      for (Row& row : rows) {
        Ids text = OUTRIDER_TRY(Greedy(prompt, row));
        if (row.drafter == v1::DRAFTER_KIND_NONE) plain = text;
        row.equal += text == plain ? 1 : 0;
      }
    }
    const Law law = OUTRIDER_TRY(LawAfter(flags_.prompts.front()));
    for (Row& row : rows) row.p = OUTRIDER_TRY(Sampled(flags_.prompts.front(), row.drafter, law));
    return rows;
  }
  int signal() const { return signal_; }

 private:
  // CANCELLED with signal() set if one came.
  absl::StatusOr<std::vector<Completion>> Generate(const v1::GenerateRequest& request) {
    Answer answer = Ask(connection_, request, signals_, {});
    signal_ = answer.signal;
    if (signal_ != 0) return absl::CancelledError();
    return std::move(answer.samples);
  }

  static Ids IdsOf(const Completion& completion) {
    Ids ids;
    for (const v1::GeneratedToken& token : completion.tokens) ids.push_back(token.id());
    return ids;
  }

  absl::StatusOr<Ids> Greedy(const std::string& prompt, Row& row) {
    v1::GenerateRequest request;
    request.set_text(prompt);
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stop()->set_max_tokens(flags_.max_tokens);
    request.mutable_speculation()->set_drafter(row.drafter);
    const auto samples = OUTRIDER_TRY(Generate(request));
    const v1::Usage& usage = samples.front().finish.usage();
    // Without the prompt, which only the first drafter's request has to compute.
    row.seconds += usage.decode_seconds();
    row.decoded += std::max(usage.completion_tokens(), 1u) - 1;
    row.tokens += usage.completion_tokens();
    row.calls += samples.front().finish.speculation().rounds();
    return IdsOf(samples.front());
  }

  // The probability of each text of kLength tokens, from the target's log-probabilities of prompts.
  absl::StatusOr<Law> LawAfter(const std::string& prompt) {
    v1::TokenizeRequest tokenize;
    tokenize.set_text(prompt);
    const v1::TokenizeResponse tokens = OUTRIDER_TRY(client_.Tokenize(tokenize));
    const Ids ids(tokens.ids().begin(), tokens.ids().end());
    Law law = {{{}, 1.0}};
    for (int depth = 0; depth < kLength; ++depth) {
      Law longer;
      for (const auto& [path, probability] : law) {
        const v1::PositionLogprobs scores = OUTRIDER_TRY(ScoresAfter(ids, path));
        double sum = 0;
        for (const v1::TokenLogprob& token : scores.top()) sum += std::exp(token.logprob());
        for (const v1::TokenLogprob& token : scores.top()) {
          Ids text = path;
          text.push_back(token.id());
          longer[text] = probability * std::exp(token.logprob()) / sum;
        }
      }
      law = std::move(longer);
    }
    return law;
  }

  // The target's log-probabilities for the token after `path`.
  absl::StatusOr<v1::PositionLogprobs> ScoresAfter(const Ids& prompt, const Ids& path) {
    v1::GenerateRequest request;
    auto& ids = *request.mutable_tokens()->mutable_ids();
    ids.Add(prompt.begin(), prompt.end());
    ids.Add(path.begin(), path.end());
    ids.Add(0);  // any token: only the alternatives at its position are read
    request.mutable_logprobs()->set_prompt(kTopK);
    request.mutable_stop()->set_max_tokens(1);
    request.mutable_speculation()->set_drafter(v1::DRAFTER_KIND_NONE);
    const auto samples = OUTRIDER_TRY(Generate(request));
    if (samples.front().prompt_logprobs.empty()) return absl::InternalError("a prompt came without scores");
    return samples.front().prompt_logprobs.back();
  }

  absl::StatusOr<double> Sampled(const std::string& prompt, v1::DrafterKind drafter, const Law& law) {
    std::map<Ids, int> counts;
    for (uint64_t done = 0; done < flags_.samples; done += kSamplesPerCall) {
      v1::GenerateRequest request;
      request.set_text(prompt);
      request.set_seed(done);
      request.set_n(std::min<uint32_t>(kSamplesPerCall, flags_.samples - static_cast<uint32_t>(done)));
      request.mutable_sampling()->set_temperature(1);
      request.mutable_sampling()->set_top_k(kTopK);
      request.mutable_stop()->set_max_tokens(kSampledTokens);
      request.mutable_stop()->set_ignore_eos(true);
      request.mutable_speculation()->set_drafter(drafter);
      for (const Completion& sample : OUTRIDER_TRY(Generate(request))) {
        Ids ids = IdsOf(sample);
        ids.resize(kLength);
        ++counts[ids];
      }
    }
    return PValue(counts, law);
  }

  const CompareFlags& flags_;
  Connection& connection_;
  const Client& client_;
  Signals& signals_;
  int signal_ = 0;
};

// Prints the table. Returns whether every drafter gave what plain decoding gives.
bool Print(const std::vector<Row>& rows, size_t prompts, uint32_t samples) {
  const auto rate = [](const Row& row) { return static_cast<double>(row.decoded) / row.seconds; };
  std::printf("%-12s %14s %22s %10s %9s %14s\n", "drafter", "greedy texts", "sampled texts", "tokens/s",
              "of plain", "tokens a call");
  bool same = true;
  for (const Row& row : rows) {
    const bool equal = row.equal == static_cast<int>(prompts), fits = row.p >= kMinPValue;
    same = same && equal && fits;
    std::printf("%-12s %14s %22s %10.1f %9.2f %14.2f\n", NameOf(row.drafter).c_str(),
                absl::StrFormat("%d of %d equal", row.equal, prompts).c_str(),
                absl::StrFormat("p = %.3g%s", row.p, fits ? "" : ", DIFFER").c_str(), rate(row),
                rate(row) / rate(rows.front()),
                static_cast<double>(row.tokens) / static_cast<double>(std::max<uint64_t>(row.calls, 1)));
  }
  std::printf("%s\n",
              same ? absl::StrFormat("Every drafter gives the target's texts; p is of a chi-square test "
                                     "of the first %d tokens of %d texts against the target's exact "
                                     "distribution.",
                                     kLength, samples)
                         .c_str()
                   : "A drafter gives other texts than the target: please report it.");
  return same;
}

}  // namespace

absl::StatusOr<int> RunCompare(const CompareFlags& given) {
  CompareFlags flags = given;
  if (flags.prompts.empty()) flags.prompts.assign(std::begin(kPrompts), std::end(kPrompts));
  Signals signals;
  int stop_signal = 0;
  absl::StatusOr<Connection> connection = Connect(flags, signals, &stop_signal);
  if (stop_signal != 0) return 128 + stop_signal;
  OUTRIDER_TRY(connection.status());
  const Client* const client = OUTRIDER_TRY(connection->client());
  DrafterComparison comparison(flags, *connection, *client, signals);
  const absl::StatusOr<std::vector<Row>> rows = comparison.Run();
  if (comparison.signal() != 0) return 128 + comparison.signal();
  OUTRIDER_TRY(rows.status());
  return Print(*rows, flags.prompts.size(), flags.samples) ? 0 : 1;
}

}  // namespace outrider
