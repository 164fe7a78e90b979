#include "common/rpc/convert.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"

namespace outrider {
namespace {

// Copies through pointers, so that many values move at a time; protobuf's iterators do not allow that.
template <class To, class From>
std::vector<To> Copy(const google::protobuf::RepeatedField<From>& values) {
  return std::vector<To>(values.data(), values.data() + values.size());
}

Distribution ParseDistribution(const v1::Distribution& proto) {
  using Form = Distribution::Form;
  if (proto.has_point_mass()) return {.form = Form::kPointMass};
  if (proto.has_dense()) return {.form = Form::kDense, .weights = Copy<float>(proto.dense().weights())};
  if (!proto.has_sparse()) return {.form = Form::kAbsent};
  return {.form = Form::kSparse,
          .ids = Copy<TokenId>(proto.sparse().ids()),
          .weights = Copy<float>(proto.sparse().weights())};
}

// `prepare` checks and completes each node.
absl::StatusOr<Proposal> ParseNodes(const DraftNodes& nodes, int vocab_size,
                                    absl::FunctionRef<absl::Status(ProposalNode&)> prepare) {
  Proposal proposal;
  proposal.reserve(static_cast<size_t>(nodes.size()));
  for (int i = 0; i < nodes.size(); ++i) {
    const v1::DraftNode& node = nodes[i];
    if (node.parent() < -1 || node.parent() >= i) {
      return InvalidFor("DRAFT_PARENT_OUT_OF_RANGE", "draft[", i, "].parent: ", node.parent(),
                        "; allowed: -1 to ", i - 1);
    }
    if (node.token() >= static_cast<uint32_t>(vocab_size)) {
      return InvalidFor("DRAFT_TOKEN_OUT_OF_RANGE", "draft[", i, "].token: ", node.token(),
                        "; allowed: 0 to ", vocab_size - 1);
    }
    ProposalNode parsed{static_cast<TokenId>(node.token()), node.parent(), ParseDistribution(node.q())};
    if (absl::Status status = prepare(parsed); !status.ok()) {
      return InvalidFor("DRAFT_DISTRIBUTION_INVALID", "draft[", i, "].q: ", std::string(status.message()));
    }
    proposal.push_back(std::move(parsed));
  }
  return proposal;
}

// Checks that q has what its form needs; the target checks that it is a distribution. A draft with a larger
// vocabulary has weight 0 where the target has no token.
absl::Status CheckForm(Distribution& q, bool may_be_absent, int vocab_size) {
  const auto size = static_cast<size_t>(vocab_size);
  if (q.form == Distribution::Form::kDense) {
    while (q.weights.size() > size && q.weights.back() == 0) q.weights.pop_back();
  }
  if (q.form == Distribution::Form::kAbsent && !may_be_absent) return QMissingError();
  if (q.form == Distribution::Form::kDense && q.weights.size() > size) {
    return Invalid(q.weights.size(), " weights; allowed: at most ", size);
  }
  if (q.form != Distribution::Form::kSparse) return absl::OkStatus();
  if (q.weights.size() != q.ids.size() || q.ids.size() > size) {
    return Invalid(q.ids.size(), " ids and ", q.weights.size(), " weights; allowed: as many, at most ", size);
  }
  return absl::OkStatus();
}

// No sum over the tokens of a round comes near kMaxCanary, or is below 0 except by rounding.
constexpr double kMaxCanary = 1e6;
constexpr double kRounding = 1e-3;

absl::Status CheckTop(const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& likeliest, int vocab_size) {
  absl::flat_hash_set<uint32_t> seen;
  double most = kRounding;
  for (const v1::TokenLogprob& top : likeliest) {
    if (top.id() >= static_cast<uint32_t>(vocab_size) || !seen.insert(top.id()).second) {
      return InvalidVerdict("candidate ", top.id(), " is not in the vocabulary, or twice");
    }
    // Written so that NaN fails.
    if (!(top.logprob() <= most)) {
      return InvalidVerdict("a candidate's log-probability is ", top.logprob());
    }
    most = top.logprob();
  }
  return absl::OkStatus();
}

// An EBNF grammar whose alternatives are these texts.
absl::StatusOr<std::string> ToRule(const v1::Grammar::Choices& choices) {
  if (choices.texts().empty()) return FieldError("grammar", "at least one choice", "none");
  std::string rule = "root ::= ";
  for (const std::string& text : choices.texts()) {
    if (text.empty()) return FieldError("grammar", "choices that are not empty", "an empty one");
    if (rule.back() == '"') rule += " | ";
    rule += '"';
    for (const char c : text) {
      if (c == '"' || c == '\\') {
        absl::StrAppend(&rule, "\\", std::string(1, c));
      } else if (static_cast<unsigned char>(c) < 0x20) {
        absl::StrAppend(&rule, "\\u", absl::Hex(c, absl::kZeroPad4));
      } else {
        rule += c;
      }
    }
    rule += '"';
  }
  return rule;
}

}  // namespace

absl::StatusOr<Proposal> ParseProposal(const DraftNodes& nodes, Rule rule, int vocab_size) {
  const bool may_be_absent = rule == Rule::kCoupled;
  return ParseNodes(nodes, vocab_size, [&](ProposalNode& node) {
    return Prepare(node.q, node.token, vocab_size, may_be_absent);
  });
}

absl::StatusOr<Proposal> ParseUnpreparedProposal(const DraftNodes& nodes, Rule rule, int vocab_size) {
  const bool may_be_absent = rule == Rule::kCoupled;
  return ParseNodes(nodes, vocab_size,
                    [&](ProposalNode& node) { return CheckForm(node.q, may_be_absent, vocab_size); });
}

void SerializeProposal(std::span<const ProposalNode> proposal, DraftNodes* nodes) {
  for (const ProposalNode& node : proposal) {
    v1::DraftNode* message = nodes->Add();
    message->set_token(static_cast<uint32_t>(node.token));
    message->set_parent(node.parent);
    const Distribution& q = node.q;
    if (q.form == Distribution::Form::kPointMass) {
      message->mutable_q()->mutable_point_mass();
    } else if (q.form == Distribution::Form::kSparse) {
      auto* const sparse = message->mutable_q()->mutable_sparse();
      sparse->mutable_ids()->Add(q.ids.begin(), q.ids.end());
      sparse->mutable_weights()->Add(q.weights.begin(), q.weights.end());
    } else if (q.form == Distribution::Form::kDense) {
      message->mutable_q()->mutable_dense()->mutable_weights()->Add(q.weights.begin(), q.weights.end());
    }
  }
}

absl::StatusOr<TreeShape> ParseShape(const v1::TreeShape& shape) {
  // More than any server takes, and small enough that nothing overflows.
  static constexpr uint32_t kMost = 1 << 16;
  const auto refuse = [](absl::string_view field, uint32_t value) {
    return InvalidFor("TREE_OUT_OF_RANGE", "tree.", field, ": ", value, "; allowed: 1 to ", kMost);
  };
  const auto out_of_range = [](uint32_t value) { return value < 1 || value > kMost; };
  switch (shape.form_case()) {
    case v1::TreeShape::kChains:
      if (out_of_range(shape.chains())) return refuse("chains", shape.chains());
      return Chains{static_cast<int>(shape.chains())};
    case v1::TreeShape::kBudget:
      if (out_of_range(shape.budget())) return refuse("budget", shape.budget());
      return NodeBudget{static_cast<int>(shape.budget())};
    case v1::TreeShape::kBranching: {
      const auto& children = shape.branching().children();
      if (children.empty() || children.size() > kMaxDraftTokens) {
        return InvalidFor("TREE_OUT_OF_RANGE", "tree.branching.children: ", children.size(),
                          " entries; allowed: 1 to ", kMaxDraftTokens);
      }
      for (const uint32_t count : children) {
        if (out_of_range(count)) return refuse("branching.children", count);
      }
      return Branching{{children.begin(), children.end()}};
    }
    case v1::TreeShape::FORM_NOT_SET:
      break;
  }
  return InvalidFor("TREE_OUT_OF_RANGE", "tree: empty; allowed: branching, chains, budget");
}

v1::TreeShape SerializeShape(const TreeShape& shape) {
  v1::TreeShape message;
  if (const auto* chains = std::get_if<Chains>(&shape)) {
    message.set_chains(static_cast<uint32_t>(chains->count));
  } else if (const auto* budget = std::get_if<NodeBudget>(&shape)) {
    message.set_budget(static_cast<uint32_t>(budget->nodes));
  } else {
    const std::vector<int>& children = std::get<Branching>(shape).children;
    message.mutable_branching()->mutable_children()->Add(children.begin(), children.end());
  }
  return message;
}

absl::StatusOr<Verdict> ParseVerdict(const v1::Verdict& message, std::span<const ProposalNode> proposal,
                                     int vocab_size) {
  Verdict verdict;
  int parent = -1;
  for (uint32_t node : message.accepted()) {
    if (node >= proposal.size() || proposal[node].parent != parent) {
      return InvalidVerdict("node ", node, " of ", proposal.size(), " does not follow ", parent);
    }
    parent = static_cast<int>(node);
    verdict.path.push_back(parent);
  }
  if (message.token() >= static_cast<uint32_t>(vocab_size)) {
    return InvalidVerdict("token ", message.token(), " is not in the vocabulary");
  }
  verdict.token = static_cast<TokenId>(message.token());
  // Corrected: a node follows the last accepted one. Bonus: none does. Plain: nothing was proposed.
  const bool was_refused =
      std::any_of(proposal.begin(), proposal.end(), [&](const auto& node) { return node.parent == parent; });
  verdict.kind = proposal.empty() ? Verdict::Kind::kPlain
                 : was_refused    ? Verdict::Kind::kCorrected
                                  : Verdict::Kind::kBonus;
  if (message.kind() != ToProto(verdict.kind)) {
    return InvalidVerdict("kind ", static_cast<int>(message.kind()), " after ", verdict.path.size(), " of ",
                          proposal.size(), " nodes");
  }
  const v1::Canary& canary = message.canary();
  for (const double sum : {canary.expected_accepted(), canary.expected_accepted_variance(),
                           canary.surprisal(), canary.entropy()}) {
    if (!(sum >= -kRounding && sum <= kMaxCanary)) return InvalidVerdict("canary ", sum);
  }
  if (canary.reached() > proposal.size()) {
    return InvalidVerdict("canary of ", canary.reached(), " nodes of ", proposal.size());
  }
  verdict.empty_residual = canary.residual_empty();
  verdict.expected_accepted = canary.expected_accepted();
  verdict.expected_variance = canary.expected_accepted_variance();
  verdict.judged = static_cast<int>(canary.reached());
  verdict.surprisal = canary.surprisal();
  verdict.entropy = canary.entropy();
  return verdict;
}

v1::Verdict SerializeVerdict(const Verdict& verdict) {
  v1::Verdict message;
  for (int node : verdict.path) message.add_accepted(static_cast<uint32_t>(node));
  message.set_token(static_cast<uint32_t>(verdict.token));
  message.set_kind(ToProto(verdict.kind));
  v1::Canary* canary = message.mutable_canary();
  canary->set_expected_accepted(verdict.expected_accepted);
  canary->set_expected_accepted_variance(verdict.expected_variance);
  canary->set_surprisal(verdict.surprisal);
  canary->set_entropy(verdict.entropy);
  canary->set_residual_empty(verdict.empty_residual);
  canary->set_reached(static_cast<uint32_t>(verdict.judged));
  return message;
}

v1::TokenKind ToProto(Verdict::Kind kind) {
  constexpr v1::TokenKind kKinds[] = {v1::TOKEN_KIND_PLAIN, v1::TOKEN_KIND_CORRECTED, v1::TOKEN_KIND_BONUS};
  return kKinds[static_cast<int>(kind)];
}

absl::StatusOr<std::vector<CandidateRow>> ParseCandidates(const v1::VerifyResult& message, size_t rows,
                                                          int size, int vocab_size) {
  if (static_cast<size_t>(message.candidates_size()) != rows) {
    return InvalidVerdict(message.candidates_size(), " rows of candidates for ", rows);
  }
  std::vector<CandidateRow> parsed;
  for (const v1::CandidateRow& row : message.candidates()) {
    if (row.top_size() != std::min(size, vocab_size)) {
      return InvalidVerdict("a row of ", row.top_size(), " candidates");
    }
    OUTRIDER_TRY(CheckTop(row.top(), vocab_size));
    CandidateRow& candidates = parsed.emplace_back();
    for (const v1::TokenLogprob& top : row.top()) {
      candidates.push_back({static_cast<TokenId>(top.id()), top.logprob()});
    }
  }
  return parsed;
}

absl::Status CheckLogprobs(const google::protobuf::RepeatedPtrField<v1::PositionLogprobs>& positions,
                           std::span<const TokenId> tokens, int most, int vocab_size) {
  if (static_cast<size_t>(positions.size()) != tokens.size()) {
    return InvalidVerdict("log-probabilities of ", positions.size(), " tokens");
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const v1::PositionLogprobs& position = positions[static_cast<int>(i)];
    const v1::TokenLogprob& own = position.token();
    if (own.id() != static_cast<uint32_t>(tokens[i]) || !(own.logprob() <= kRounding)) {
      return InvalidVerdict("log-probability ", own.logprob(), " of token ", own.id(), " at token ",
                            tokens[i]);
    }
    if (position.top_size() > most) return InvalidVerdict(position.top_size(), " likeliest tokens");
    OUTRIDER_TRY(CheckTop(position.top(), vocab_size));
  }
  return absl::OkStatus();
}

v1::TokenLogprob SerializeLogprob(const TokenLogProbability& token) {
  v1::TokenLogprob message;
  message.set_id(static_cast<uint32_t>(token.token));
  message.set_logprob(token.log_probability);
  return message;
}

google::protobuf::RepeatedPtrField<v1::CandidateRow> SerializeCandidates(std::span<const CandidateRow> rows) {
  google::protobuf::RepeatedPtrField<v1::CandidateRow> messages;
  for (const CandidateRow& row : rows) {
    v1::CandidateRow* const message = messages.Add();
    for (const TokenLogProbability& candidate : row) *message->add_top() = SerializeLogprob(candidate);
  }
  return messages;
}

absl::StatusOr<Rule> ParseRule(v1::Rule rule) {
  switch (rule) {
    case v1::RULE_TOKEN:
      return Rule::kToken;
    case v1::RULE_BLOCK:
      return Rule::kBlock;
    case v1::RULE_COUPLED:
      return Rule::kCoupled;
    default:
      return InvalidFor("RULE_UNKNOWN", "rule: ", static_cast<int>(rule), "; allowed: token, block, coupled");
  }
}

absl::Status CheckTokenIds(const google::protobuf::RepeatedField<uint32_t>& ids, uint32_t vocab_size,
                           absl::string_view field) {
  for (uint32_t id : ids) {
    if (id >= vocab_size) return FieldError(field, absl::StrCat("0 to ", vocab_size - 1), absl::StrCat(id));
  }
  return absl::OkStatus();
}

std::vector<TokenId> ToTokens(const google::protobuf::RepeatedField<uint32_t>& ids) {
  return std::vector<TokenId>(ids.begin(), ids.end());
}

SamplingParams ParseSampling(const v1::SamplingParams& proto,
                             const google::protobuf::RepeatedField<uint32_t>& end_ids) {
  SamplingParams params;
  if (proto.has_temperature()) params.temperature = proto.temperature();
  params.top_k = static_cast<int>(proto.top_k());
  if (proto.has_top_p()) params.top_p = proto.top_p();
  params.min_p = proto.min_p();
  if (proto.has_repetition_penalty()) params.repetition_penalty = proto.repetition_penalty();
  params.presence_penalty = proto.presence_penalty();
  params.frequency_penalty = proto.frequency_penalty();
  for (const v1::LogitBias& bias : proto.logit_bias()) {
    params.logit_bias.emplace_back(static_cast<TokenId>(bias.token()), bias.bias());
  }
  params.allowed_ids = ToTokens(proto.allowed_ids());
  params.bad_ids = ToTokens(proto.bad_ids());
  params.min_tokens = static_cast<int>(proto.min_tokens());
  params.eos_ids = ToTokens(end_ids);
  return params;
}

absl::StatusOr<GrammarText> ParseGrammar(const v1::Grammar& grammar) {
  GrammarText text;
  switch (grammar.form_case()) {
    case v1::Grammar::kJsonSchema:
      text = {GrammarSyntax::kJsonSchema, grammar.json_schema()};
      break;
    case v1::Grammar::kRegex:
      text = {GrammarSyntax::kRegex, grammar.regex()};
      break;
    case v1::Grammar::kEbnf:
      text = {GrammarSyntax::kEbnf, grammar.ebnf()};
      break;
    case v1::Grammar::kChoices:
      text = {GrammarSyntax::kEbnf, OUTRIDER_TRY(ToRule(grammar.choices()))};
      break;
    case v1::Grammar::kStructuralTag:
      text = {GrammarSyntax::kStructuralTag, grammar.structural_tag()};
      break;
    default:
      return FieldError("grammar", "json_schema, regex, ebnf, choices, structural_tag",
                        "none of them is set");
  }
  if (text.text.size() > kMaxGrammarText) {
    return FieldError("grammar", absl::StrCat("at most ", kMaxGrammarText, " bytes"),
                      absl::StrCat(text.text.size(), " bytes"));
  }
  return text;
}

}  // namespace outrider
