#include "common/engine/self_test.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/spec/controls.h"
#include "common/spec/proposal.h"
#include "common/spec/status.h"
#include "common/spec/verify.h"

namespace outrider {
namespace {

constexpr int kMostDrafted = 4;
constexpr int kTopN = 24;

struct Setting {
  const char* name;
  Rule rule;
  double temperature;
  int top_k = 0;
  double top_p = 1;
  double min_p = 0;
};
constexpr Setting kSettings[] = {{"greedy", Rule::kToken, 0},
                                 {"temperature 1", Rule::kToken, 1},
                                 {"min_p .01", Rule::kToken, 1.7, 0, 1, .01},
                                 {"top_k 12", Rule::kToken, 1, 12},
                                 {"top_p .9", Rule::kToken, .8, 40, .9},
                                 {"the coupled rule", Rule::kCoupled, 1}};

struct Sequence {
  std::string name;
  SequenceParams params;
  std::vector<TokenId> tokens;
  std::vector<BlockId> blocks;
  int drafted = 0;       // K
  bool is_sure = false;  // whether its draft is certain of each token, instead of having a model's q
  Proposal draft = {};

  uint64_t round_start() const { return tokens.size(); }
};

// Makes two sequences for each setting, with prompts and K of different lengths.
std::vector<Sequence> MakeSequences(const SelfTestModel& small) {
  std::vector<Sequence> sequences;
  int first_block = 0;
  for (int s = 0; s < 2 * static_cast<int>(std::size(kSettings)); ++s) {
    const Setting& setting = kSettings[s % static_cast<int>(std::size(kSettings))];
    Sequence& sequence = sequences.emplace_back();
    sequence.name = setting.name;
    sequence.is_sure = s >= static_cast<int>(std::size(kSettings));
    for (int i = 0; i < 8 + 11 * s; ++i)
      sequence.tokens.push_back((i * 29 + s * 131 + 3) % small.spec().vocab_size);
    sequence.drafted = 1 + s % kMostDrafted;
    const int most_tokens = static_cast<int>(sequence.tokens.size()) + kMostDrafted;
    sequence.blocks = small.Blocks(first_block, most_tokens);
    first_block += small.BlocksFor(most_tokens);
    SequenceParams& params = sequence.params;
    params.sampling.temperature = setting.temperature;
    params.sampling.top_k = setting.top_k;
    params.sampling.top_p = setting.top_p;
    params.sampling.min_p = setting.min_p;
    params.key.seed = 40 + static_cast<uint64_t>(s);
    params.rule = setting.rule;
    params.prompt_length = static_cast<int>(sequence.tokens.size());
    params.draft_top_n = kTopN;
  }
  return sequences;
}

// The last 1 + `further` of the sequence's tokens, all with logits.
SequenceRows LastRows(const Sequence& sequence, absl::Span<const TokenId> tokens, int further,
                      DeviceTask* task) {
  const int rows = 1 + further;
  return {.tokens = tokens.last(static_cast<size_t>(rows)),
          .position = static_cast<int>(tokens.size()) - rows,
          .blocks = sequence.blocks,
          .logit_rows = rows,
          .task = task};
}

// Applies the controls to a copy of the logits in `row`, since the next pass overwrites the view.
absl::StatusOr<WeightRow> Shape(Controls& controls, absl::Span<const TokenId> context,
                                absl::Span<const float> logits, std::vector<float>& row) {
  row.assign(logits.begin(), logits.end());
  return controls.Apply(context, row);
}

// Drafts kMostDrafted tokens for each sequence.
absl::StatusOr<std::vector<Proposal>> ProposeOnHost(Model& model, const std::vector<Sequence>& sequences) {
  std::vector<Proposal> drafts(sequences.size());
  std::vector<std::vector<TokenId>> texts;
  for (const Sequence& sequence : sequences) texts.push_back(sequence.tokens);
  for (int k = 0; k < kMostDrafted; ++k) {
    std::vector<SequenceRows> batch;
    for (size_t s = 0; s < sequences.size(); ++s)
      batch.push_back(LastRows(sequences[s], texts[s], 0, nullptr));
    const LogitsView logits = OUTRIDER_TRY(model.Forward(batch, {}));
    for (size_t s = 0; s < sequences.size(); ++s) {
      const SequenceParams& params = sequences[s].params;
      Controls controls =
          OUTRIDER_TRY(Controls::Create(params.sampling, sequences[s].tokens.size(), logits.vocab));
      std::vector<float> row;
      const WeightRow shaped = OUTRIDER_TRY(Shape(controls, texts[s], logits.row(static_cast<int>(s)), row));
      PhiloxNoise noise(params.key, sequences[s].round_start());
      ProposalNode node = Propose(params.rule, shaped, params.draft_top_n, texts[s].size(), noise);
      texts[s].push_back(node.token);
      AppendToChain(node.token, std::move(node.q), drafts[s]);
    }
  }
  return drafts;
}

std::vector<TokenId> WithDraft(const Sequence& sequence) {
  std::vector<TokenId> text = sequence.tokens;
  for (const ProposalNode& node : sequence.draft) text.push_back(node.token);
  return text;
}

absl::StatusOr<std::vector<Verdict>> VerifyOnHost(Model& model, const std::vector<Sequence>& sequences) {
  std::vector<std::vector<TokenId>> texts;
  for (const Sequence& sequence : sequences) texts.push_back(WithDraft(sequence));
  std::vector<SequenceRows> batch;
  for (size_t s = 0; s < sequences.size(); ++s)
    batch.push_back(LastRows(sequences[s], texts[s], sequences[s].drafted, nullptr));
  const LogitsView logits = OUTRIDER_TRY(model.Forward(batch, {}));
  std::vector<Verdict> verdicts;
  int first_row = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const Sequence& sequence = sequences[s];
    Controls controls =
        OUTRIDER_TRY(Controls::Create(sequence.params.sampling, sequence.tokens.size(), logits.vocab));
    std::vector<std::vector<float>> rows(static_cast<size_t>(sequence.drafted) + 1);
    const auto shape = [&](int i) {
      const absl::Span<const TokenId> context =
          absl::MakeConstSpan(texts[s]).first(sequence.tokens.size() + static_cast<size_t>(i));
      return Shape(controls, context, logits.row(first_row + i), rows[static_cast<size_t>(i)]);
    };
    Verdict verdict = OUTRIDER_TRY(Verify({.rule = sequence.params.rule}, sequence.draft, shape,
                                          sequence.round_start(), sequence.params.key));
    verdicts.push_back(std::move(verdict));
    first_row += sequence.drafted + 1;
  }
  return verdicts;
}

// The first difference, in words: "token 2 is 17, the host's 18". Empty: none.
std::string Difference(const Proposal& host, const Proposal& device) {
  if (host.size() != device.size())
    return absl::StrCat("it has ", device.size(), " tokens, the host's has ", host.size());
  for (size_t i = 0; i < host.size(); ++i) {
    const std::string which = absl::StrCat("token ", i + 1);
    const Distribution &q = host[i].q, &other = device[i].q;
    if (q.form != other.form || q.ids != other.ids || q.weights != other.weights || q.total != other.total)
      return absl::StrCat(which, " is drawn from another distribution than the host's");
    if (host[i].token != device[i].token)
      return absl::StrCat(which, " is ", device[i].token, ", the host's ", host[i].token);
  }
  return "";
}

// Logarithms may differ in their last bit, and so may sums of them.
bool Near(double a, double b) { return std::abs(a - b) <= 1e-9 * (1 + std::abs(a)); }

std::string Difference(const Verdict& host, const Verdict& device) {
  if (host.path != device.path || host.judged != device.judged) {
    return absl::StrCat("of ", device.judged, " judged tokens it accepts ", device.path.size(),
                        ", the host of ", host.judged, " ", host.path.size());
  }
  if (host.token != device.token || host.kind != device.kind)
    return absl::StrCat("after ", host.path.size(), " tokens it emits ", device.token, ", the host ",
                        host.token);
  if (host.empty_residual != device.empty_residual)
    return "it does not say what the host does about an empty residual";
  if (!Near(host.expected_accepted, device.expected_accepted) ||
      !Near(host.expected_variance, device.expected_variance))
    return absl::StrCat("it expects to accept ", device.expected_accepted, " tokens, the host ",
                        host.expected_accepted);
  if (!Near(host.surprisal, device.surprisal) || !Near(host.entropy, device.entropy))
    return absl::StrCat("its surprisal and entropy are ", device.surprisal, " and ", device.entropy,
                        ", the host's ", host.surprisal, " and ", host.entropy);
  return "";
}

// Runs the tasks that the model supports, in one step and then again, and checks each result with
// `difference`. `what` names a task in errors. Returns how many tasks ran.
absl::StatusOr<int> RunTasks(Model& model, const std::vector<Sequence>& sequences,
                             const std::vector<DeviceTask>& tasks, absl::string_view what,
                             const std::function<std::string(size_t s, const DeviceTask& task)>& difference) {
  for (const char* const attempt : {"", " when repeated"}) {
    std::vector<DeviceTask> run = tasks;
    std::vector<std::vector<TokenId>> texts;
    std::vector<SequenceRows> batch;
    std::vector<size_t> which;
    for (const Sequence& sequence : sequences) texts.push_back(WithDraft(sequence));
    for (size_t s = 0; s < sequences.size(); ++s) {
      if (!model.CanRun(run[s])) continue;
      batch.push_back(LastRows(sequences[s], texts[s], static_cast<int>(sequences[s].draft.size()), &run[s]));
      which.push_back(s);
    }
    if (batch.empty()) return 0;
    OUTRIDER_TRY(model.Forward(batch, {}));
    for (const size_t s : which) {
      const std::string differs =
          run[s].status.ok() ? difference(s, run[s]) : std::string(run[s].status.message());
      if (differs.empty()) continue;
      return absl::FailedPreconditionError(absl::StrCat(what, " of ", sequences[s].drafted, " tokens with ",
                                                        sequences[s].name, attempt, ": ", differs));
    }
    if (*attempt != 0) return static_cast<int>(which.size());
  }
  return 0;
}

// Makes the drafts to verify from the host's proposals, and raises the temperature, so that p is not q.
absl::Status MakeDrafts(const std::vector<Proposal>& proposals, int vocab, std::vector<Sequence>& sequences) {
  for (size_t s = 0; s < sequences.size(); ++s) {
    Sequence& sequence = sequences[s];
    sequence.params.sampling.temperature *= 1.5;
    if (!sequence.is_sure) {
      sequence.draft.assign(proposals[s].begin(), proposals[s].begin() + sequence.drafted);
      continue;
    }
    const bool coupled = sequence.params.rule == Rule::kCoupled;
    for (int i = 0; i < sequence.drafted; ++i) {
      Distribution q;
      q.form = coupled ? Distribution::Form::kAbsent : Distribution::Form::kPointMass;
      const TokenId token = proposals[s][static_cast<size_t>(i)].token;
      OUTRIDER_TRY(Prepare(q, token, vocab, coupled));
      AppendToChain(token, std::move(q), sequence.draft);
    }
  }
  return absl::OkStatus();
}

DeviceTask Task(const Sequence& sequence, std::variant<ProposeTask, VerifyTask> work) {
  return {.params = &sequence.params, .round_start = sequence.round_start(), .work = std::move(work)};
}

}  // namespace

absl::StatusOr<std::string> CheckDecisions(Model& model, const SelfTestModel& small) {
  std::vector<Sequence> sequences = MakeSequences(small);
  const bool decides = std::any_of(sequences.begin(), sequences.end(), [&](const Sequence& sequence) {
    return model.CanRun(Task(sequence, ProposeTask{1})) || model.CanRun(Task(sequence, VerifyTask{}));
  });
  if (!decides) return std::string("the host makes them with this engine and device");
  for (const Sequence& sequence : sequences) {
    const SequenceRows prompt = {
        .tokens = absl::MakeConstSpan(sequence.tokens).first(sequence.tokens.size() - 1),
        .position = 0,
        .blocks = sequence.blocks,
        .logit_rows = 0};
    OUTRIDER_TRY(model.Forward({&prompt, 1}, {}));
  }
  const std::vector<Proposal> proposals = OUTRIDER_TRY(ProposeOnHost(model, sequences));
  std::vector<DeviceTask> tasks;
  for (const Sequence& sequence : sequences) tasks.push_back(Task(sequence, ProposeTask{sequence.drafted}));
  const int proposed =
      OUTRIDER_TRY(RunTasks(model, sequences, tasks, "a proposal", [&](size_t s, const DeviceTask& done) {
        const Proposal& all = proposals[s];
        return Difference(Proposal(all.begin(), all.begin() + sequences[s].drafted),
                          std::get<ProposeTask>(done.work).proposal);
      }));

  OUTRIDER_TRY(MakeDrafts(proposals, small.spec().vocab_size, sequences));
  const std::vector<Verdict> verdicts = OUTRIDER_TRY(VerifyOnHost(model, sequences));
  tasks.clear();
  for (const Sequence& sequence : sequences)
    tasks.push_back(Task(sequence, VerifyTask{.draft = sequence.draft}));
  const int verified =
      OUTRIDER_TRY(RunTasks(model, sequences, tasks, "a verdict", [&](size_t s, const DeviceTask& done) {
        return Difference(verdicts[s], std::get<VerifyTask>(done.work).verdict);
      }));
  return absl::StrCat(proposed, " proposals and ", verified, " verdicts, twice each: those of the host");
}

}  // namespace outrider
