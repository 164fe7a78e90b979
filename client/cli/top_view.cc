#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/cli/flags.h"
#include "client/cli/process.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// Removes labels, `a="b",c="d"}`, from the front of a line; false if the line does not begin with them.
bool ParseLabels(std::string_view* line, MetricLabels* labels) {
  while (!line->empty()) {
    if (line->front() == '}') {
      line->remove_prefix(1);
      return true;
    }
    if (line->front() == ',') line->remove_prefix(1);
    const size_t equals = line->find("=\"");
    if (equals == std::string_view::npos) return false;
    std::string& value = (*labels)[std::string(line->substr(0, equals))];
    line->remove_prefix(equals + 2);
    while (!line->empty() && line->front() != '"') {
      const bool escaped = line->front() == '\\' && line->size() > 1;
      if (escaped) line->remove_prefix(1);
      value += escaped && line->front() == 'n' ? '\n' : line->front();
      line->remove_prefix(1);
    }
    if (line->empty()) return false;
    line->remove_prefix(1);
  }
  return false;
}

bool Matches(const MetricLabels& labels, const MetricLabels& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const auto& want) {
    const auto found = labels.find(want.first);
    return found != labels.end() && found->second == want.second;
  });
}

constexpr int kBarWidth = 20;
constexpr char kStartTime[] = "process_start_time_seconds";

std::string Name(const char* metric) { return absl::StrCat("outrider_", metric); }

std::string Line(const char* subject, const std::string& text) {
  return absl::StrFormat("%-12s%s\n", subject, text);
}

// A dash stands for a value that was not observed.
std::string Number(std::optional<double> value, const char* unit, int decimals = 2) {
  return value && std::isfinite(*value) ? absl::StrFormat("%.*f%s", decimals, *value, unit)
                                        : absl::StrCat("-", unit);
}
std::string Percent(std::optional<double> share) {
  return Number(share ? std::optional(100 * *share) : std::nullopt, " %", 1);
}
std::string Milliseconds(std::optional<double> seconds) {
  return Number(seconds ? std::optional(1000 * *seconds) : std::nullopt, " ms");
}

std::string Bar(double share) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * kBarWidth * 8));
  std::string bar;
  for (int i = 0; i < eighths / 8; ++i) bar += "█";
  return bar + kEighths[eighths % 8];
}

// Whether the coordinator has a draft service, reachable or not.
bool HasDraft(const MetricsPage& coordinator) {
  return coordinator.Sum(Name("draft_up")) > 0 || coordinator.Sum(Name("degraded")) > 0;
}

std::string Requests(const MetricsChange& change, double seconds) {
  const MetricsPage& now = change.after;
  const double ended = change.Increase(Name("requests_total"));
  const double failed = ended - change.Increase(Name("requests_total"), {{"code", "OK"}});
  return Line("requests",
              absl::StrFormat("%.0f running of at most %.0f, %.0f waiting; ended %.1f/s, not OK %.1f/s",
                              now.Sum(Name("requests_running")), now.Sum(Name("requests_limit")),
                              now.Sum(Name("requests_waiting")), ended / seconds, failed / seconds)) +
         Line("servers", absl::StrCat("target ", now.Sum(Name("target_up")) > 0 ? "up" : "DOWN",
                                      now.Sum(Name("draft_up")) > 0 ? ", draft up"
                                      : HasDraft(now)               ? ", draft DOWN: decoding is plain"
                                                                    : "")) +
         Line("tokens", absl::StrFormat("%.1f/s out, prompts %.1f/s",
                                        change.Increase(Name("generation_tokens_total")) / seconds,
                                        change.Increase(Name("prompt_tokens_total")) / seconds)) +
         Line("latency",
              absl::StrCat(
                  "first token p50 ", Milliseconds(change.Quantile(Name("time_to_first_token_seconds"), 0.5)),
                  ", p95 ", Milliseconds(change.Quantile(Name("time_to_first_token_seconds"), 0.95)),
                  "; a token p50 ", Milliseconds(change.Quantile(Name("time_per_output_token_seconds"), 0.5)),
                  ", p95 ", Milliseconds(change.Quantile(Name("time_per_output_token_seconds"), 0.95))));
}

std::string Acceptance(const MetricsChange& change) {
  const auto accepted_a_draft =
      change.Ratio(Name("spec_decode_num_accepted_tokens_total"), Name("spec_decode_num_drafts_total"));
  const auto rate =
      change.Ratio(Name("spec_decode_num_accepted_tokens_total"), Name("spec_decode_num_draft_tokens_total"));
  // The canaries need many tokens, so they cover the time since the start of the process.
  const MetricsPage start;
  const MetricsChange all{start, change.after};
  std::string text = Line(
      "acceptance",
      absl::StrCat(
          Percent(rate), ", mean length ",
          Number(accepted_a_draft ? std::optional(1 + *accepted_a_draft) : std::nullopt, ""),
          "; since the start observed / expected ",
          Number(all.Ratio(Name("spec_decode_observed_accepted_tokens_total"),
                           Name("spec_decode_expected_accepted_tokens_total")),
                 "", 3),
          ", surprisal / entropy ",
          Number(all.Ratio(Name("spec_decode_surprisal_nats_total"), Name("spec_decode_entropy_nats_total")),
                 "", 3)));
  for (int position = 0;; ++position) {
    const MetricLabels at = {{"position", absl::StrCat(position)}};
    const auto here = change.Ratio(Name("spec_decode_num_accepted_tokens_per_pos_total"),
                                   Name("spec_decode_num_draft_tokens_per_pos_total"), at);
    if (!here) break;
    text += Line(position == 0 ? "  position" : "",
                 absl::StrFormat("%2d %s  %s", position, Percent(here), Bar(*here)));
  }
  return text;
}

// The K that rounds asked for, from a histogram with a bucket for each K.
std::string ChosenDraftTokens(const MetricsChange& change) {
  const std::string name = Name("spec_decode_chosen_draft_tokens");
  const double rounds = change.Increase(name + "_count");
  if (rounds <= 0) return Line("K chosen", "-");
  std::map<double, std::string> bounds;
  for (const auto& [bound, count] : change.after.By(name + "_bucket", "le")) {
    bounds[std::strtod(bound.c_str(), nullptr)] = bound;
  }
  std::string text;
  double below = 0;
  for (const auto& [value, bound] : bounds) {
    const double count = change.Increase(name + "_bucket", {{"le", bound}});
    if (count > below) {
      absl::StrAppendFormat(&text, "%s%s: %.0f %%", text.empty() ? "" : ", ", bound,
                            100 * (count - below) / rounds);
    }
    below = count;
  }
  return Line("K chosen", text);
}

std::string Rounds(const MetricsChange& change, double seconds) {
  const std::string name = Name("round_duration_seconds");
  const auto kind = [&](const char* label) {
    const MetricLabels labels = {{"kind", label}};
    return absl::StrFormat("%s %.1f/s of %s", label, change.Increase(name + "_count", labels) / seconds,
                           Milliseconds(change.Mean(name, labels)));
  };
  const std::string draft =
      HasDraft(change.after)
          ? absl::StrCat("draft ", Milliseconds(change.Mean(Name("round_draft_seconds"))), ", ")
          : "";
  return Line("rounds", absl::StrCat(kind("plain"), ", ", kind("speculative"), "; waiting for ", draft,
                                     "target ", Milliseconds(change.Mean(Name("round_verify_seconds"))),
                                     ", of it wire ", Milliseconds(change.Mean(Name("round_wire_seconds")))));
}

std::string Engine(const char* service, const MetricsChange& change, double seconds) {
  const std::string prefix = absl::StrCat("outrider_", service, "_");
  const auto now = [&](const char* metric) { return change.after.Sum(prefix + metric); };
  const double blocks = now("kv_blocks_used") + now("kv_blocks_cached") + now("kv_blocks_free");
  return Line(
      service,
      absl::StrFormat(
          "computes %s of the time, %.1f passes/s of %s sequences and %s rows; holds %.0f sequences; KV "
          "blocks %s used, %s cached; prefix hits %s; %.0f preempted",
          Percent(change.Increase(prefix + "step_duration_seconds_sum") / seconds),
          change.Increase(prefix + "step_duration_seconds_count") / seconds,
          Number(change.Mean(prefix + "batch_sequences"), "", 1),
          Number(change.Mean(prefix + "batch_rows"), "", 1), now("sequences"),
          Percent(now("kv_blocks_used") / blocks), Percent(now("kv_blocks_cached") / blocks),
          Percent(change.Ratio(prefix + "prefix_cache_hits_total", prefix + "prefix_cache_queries_total")),
          change.Increase(prefix + "preemptions_total")));
}

MetricsPages FetchAll(const TopFlags& flags) {
  MetricsPages pages;
  for (Service service : {kTarget, kDraft, kCoordinator}) {
    auto page = FetchMetrics(flags.metrics[service]);
    if (page.ok()) pages[service] = *std::move(page);
  }
  return pages;
}

}  // namespace

MetricsPage MetricsPage::Parse(std::string_view text) {
  MetricsPage page;
  for (const auto part : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    std::string_view line(part.data(), part.size());
    const size_t end = line.find_first_of("{ ");
    if (line.empty() || line.front() == '#' || end == std::string_view::npos) continue;
    Sample sample{std::string(line.substr(0, end)), {}, 0};
    line.remove_prefix(end);
    if (line.front() == '{') {
      line.remove_prefix(1);
      if (!ParseLabels(&line, &sample.labels)) continue;
    }
    while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
    const std::string_view value = line.substr(0, line.find(' '));
    if (absl::SimpleAtod(absl::string_view(value.data(), value.size()), &sample.value)) {
      page.samples_.push_back(std::move(sample));
    }
  }
  return page;
}

double MetricsPage::Sum(std::string_view name, const MetricLabels& labels) const {
  double sum = 0;
  for (const Sample& sample : samples_) {
    if (sample.name == name && Matches(sample.labels, labels)) sum += sample.value;
  }
  return sum;
}

std::map<std::string, double> MetricsPage::By(std::string_view name, const std::string& label) const {
  std::map<std::string, double> sums;
  for (const Sample& sample : samples_) {
    const auto found = sample.labels.find(label);
    if (sample.name == name && found != sample.labels.end()) sums[found->second] += sample.value;
  }
  return sums;
}

std::optional<double> MetricsChange::Ratio(std::string_view numerator, std::string_view denominator,
                                           const MetricLabels& labels) const {
  const double below = Increase(denominator, labels);
  if (below <= 0) return std::nullopt;
  return Increase(numerator, labels) / below;
}

std::optional<double> MetricsChange::Quantile(const std::string& histogram, double q) const {
  const std::string name = histogram + "_bucket";
  const std::map<std::string, double> old = before.By(name, "le");
  std::map<double, double> cumulative;
  for (const auto& [bound, count] : after.By(name, "le")) {
    const auto found = old.find(bound);
    cumulative[std::strtod(bound.c_str(), nullptr)] = count - (found == old.end() ? 0 : found->second);
  }
  if (cumulative.empty() || cumulative.rbegin()->second <= 0) return std::nullopt;
  const double rank = q * cumulative.rbegin()->second;
  double lower_bound = 0, lower_count = 0;
  for (const auto& [bound, count] : cumulative) {
    if (count >= rank) {
      if (std::isinf(bound)) return lower_bound;
      return count > lower_count
                 ? lower_bound + (bound - lower_bound) * (rank - lower_count) / (count - lower_count)
                 : bound;
    }
    lower_bound = bound;
    lower_count = count;
  }
  return lower_bound;
}

std::string TopView(const MetricsPages& before, const MetricsPages& after, double seconds) {
  std::string text;
  for (Service service : {kCoordinator, kTarget, kDraft}) {
    // A draft that answers here belongs to another coordinator.
    if (service == kDraft && after[kCoordinator] && !HasDraft(*after[kCoordinator])) continue;
    if (!before[service] || !after[service]) {
      text += Line(kServiceNames[service], "no answer");
      continue;
    }
    // Counters of a process that has started in between begin at 0.
    const MetricsPage start;
    const bool same = before[service]->Sum(kStartTime) == after[service]->Sum(kStartTime);
    const MetricsChange change{same ? *before[service] : start, *after[service]};
    if (service == kCoordinator) {
      text += Requests(change, seconds) + Acceptance(change) + ChosenDraftTokens(change) +
              Rounds(change, seconds);
    } else {
      text += Engine(kServiceNames[service], change, seconds);
    }
  }
  return text;
}

absl::StatusOr<int> RunTop(const TopFlags& flags) {
  Signals signals;
  // Without a terminal, prints one interval: for scripts.
  const bool live = isatty(STDOUT_FILENO) != 0 && !flags.once;
  MetricsPages before = FetchAll(flags);
  if (!before[kCoordinator]) before[kCoordinator] = OUTRIDER_TRY(FetchMetrics(flags.metrics[kCoordinator]));
  absl::Time then = absl::Now();
  if (live) std::printf("\033[2J\033[Hlooking for %g s ...", flags.interval_seconds);
  do {
    std::fflush(stdout);
    if (Signals::IsStop(signals.Wait(absl::Seconds(flags.interval_seconds)))) break;
    MetricsPages after = FetchAll(flags);
    const absl::Time now = absl::Now();
    const std::string view = TopView(before, after, absl::ToDoubleSeconds(now - then));
    const std::string title =
        absl::StrFormat("outrider top   %s   every %g s   %s\n\n", flags.metrics[kCoordinator],
                        flags.interval_seconds, absl::FormatTime("%H:%M:%S", now, absl::LocalTimeZone()));
    // Moves to the top left and clears from there to the end of the screen, so that nothing flickers.
    std::printf("%s%s%s%s", live ? "\033[H\033[J" : "", live ? title.c_str() : "", view.c_str(),
                live ? "\nCtrl-C ends this.\n" : "");
    before = std::move(after);
    then = now;
  } while (live);
  if (live) std::printf("\n");
  return 0;
}

}  // namespace outrider
