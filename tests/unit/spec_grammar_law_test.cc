// Where a grammar masks p and q, the emitted tokens have the law of a target that is masked and normalised
// anew at each position: by exact enumeration over several rounds, and mistakes that must be noticed.
#include <array>
#include <cmath>
#include <memory>

#include "common/spec/controls.h"
#include "common/spec/token_mask.h"
#include "common/spec/tree_shape.h"
#include "tests/unit/spec_law.h"
#include "tests/unit/spec_testing.h"

namespace outrider {
namespace {

constexpr int kLength = 3;  // of the texts whose law is checked
constexpr float kImpossible = -std::numeric_limits<float>::infinity();

// A language by its automaton: the state after each token in each state; -1: the token is not allowed.
class Automaton final : public TokenMaskSource {
 public:
  // The tokens that may follow a text. After a text that is not in the language, all of them may.
  static std::array<bool, kVocab> Allowed(std::span<const TokenId> text) {
    constexpr int kNext[][kVocab] = {{1, 2, -1}, {0, -1, 3}, {-1, 2, 0}, {0, -1, -1}};
    int state = 0;
    for (const TokenId token : text) {
      if (state >= 0) state = kNext[state][token];
    }
    if (state < 0) return {true, true, true};
    return {kNext[state][0] >= 0, kNext[state][1] >= 0, kNext[state][2] >= 0};
  }

  std::unique_ptr<TokenMask> NewMask() const override { return std::make_unique<Mask>(); }

 private:
  class Mask final : public TokenMask {
   public:
    void Apply(std::span<const TokenId> output, std::span<float> row) override {
      const std::array<bool, kVocab> allowed = Allowed(output);
      for (size_t x = 0; x < row.size(); ++x) {
        if (!allowed[x]) row[x] = kImpossible;
      }
    }
    std::unique_ptr<TokenMask> Copy() const override { return std::make_unique<Mask>(*this); }
  };
};

// How texts are made.
struct Masked {
  Rule rule = Rule::kToken;
  TreeShape shape = Branching{{1, 1}};
  double temperature = 1;
  bool draft_knows = true;  // that there is a grammar
  // A mistake: the mask of all rows is that of the first.
  bool wrong_context = false;
};

// A model's rows under the grammar.
class Rows {
 public:
  Rows(const Model& model, const Masked& masked, bool knows)
      : model_(model), wrong_(masked.wrong_context), controls_(Make(masked, knows)) {}

  // The row after `context` and then `path`. Valid as long as this.
  WeightRow After(const Tokens& context, const Tokens& path) {
    const Tokens all = Join(context, path);
    std::vector<float>& row = rows_.emplace_back();
    for (const float weight : model_.Row(all).weights) row.push_back(std::log(std::max(weight, 1e-30f)));
    absl::StatusOr<WeightRow> shaped = controls_.Apply(wrong_ ? context : all, row);
    EXPECT_TRUE(shaped.ok()) << shaped.status();
    return *shaped;
  }

 private:
  static Controls Make(const Masked& masked, bool knows) {
    SamplingParams params{.temperature = masked.temperature};
    if (knows) params.grammar = std::make_shared<Automaton>();
    return *Controls::Create(params, /*prompt_length=*/0, kVocab);
  }

  const Model& model_;
  const bool wrong_;
  Controls controls_;
  std::deque<std::vector<float>> rows_;
};

Tokens PathTo(const Proposal& tree, int node) {
  Tokens path;
  for (; node >= 0; node = tree[static_cast<size_t>(node)].parent) {
    path.insert(path.begin(), tree[static_cast<size_t>(node)].token);
  }
  return path;
}

Proposal Draft(const Masked& masked, Rows& rows, const Tokens& context, Noise& noise) {
  Proposal tree;
  std::vector<int> parents = {-1};
  for (const int count : std::get<Branching>(masked.shape).children) {
    std::vector<int> next;
    const uint64_t position = context.size() + PathTo(tree, parents[0]).size();
    for (const int parent : parents) {
      const WeightRow row = rows.After(context, PathTo(tree, parent));
      if (count == 1) {
        ProposalNode node = Propose(masked.rule, row, kVocab, position, noise);
        node.parent = parent;
        next.push_back(static_cast<int>(tree.size()));
        tree.push_back(std::move(node));
        continue;
      }
      const SiblingDraw draw{.rule = masked.rule, .top_n = 0, .count = count};
      for (ProposalNode& child : ProposeSiblings(draw, row, {}, position, tree.size(), noise)) {
        child.parent = parent;
        next.push_back(static_cast<int>(tree.size()));
        tree.push_back(std::move(child));
      }
    }
    parents = std::move(next);
  }
  return tree;
}

// The first tokens of an answer.
Tokens Text(const Masked& masked, const Pair& pair, Enumerator& noise) {
  Rows target(pair.target, masked, /*knows=*/true), draft(pair.draft, masked, masked.draft_knows);
  Tokens text;
  while (text.size() < kLength) {
    noise.StartRound(text.size());
    const Proposal tree = Draft(masked, draft, text, noise);
    const auto rows = [&](int i) -> absl::StatusOr<WeightRow> {
      return target.After(text, PathTo(tree, i - 1));
    };
    const absl::StatusOr<Verdict> verdict = Verify({.rule = masked.rule}, tree, rows, text.size(), noise);
    EXPECT_TRUE(verdict.ok()) << verdict.status();
    const Tokens path = PathTo(tree, verdict->path.empty() ? -1 : verdict->path.back());
    text = Join(Join(text, path), {verdict->token});
  }
  text.resize(kLength);
  return text;
}

double MaskedLaw(const Model& model, const Masked& masked, const Tokens& text) {
  double law = 1;
  for (size_t i = 0; i < text.size(); ++i) {
    const Tokens before(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(i));
    const WeightRow row = model.Row(before);
    const std::array<bool, kVocab> allowed = Automaton::Allowed(before);
    double sum = 0;
    TokenId best = -1;
    for (TokenId x = 0; x < kVocab; ++x) {
      if (!allowed[static_cast<size_t>(x)]) continue;
      sum += row.weights[x];
      if (best < 0 || row.weights[x] > row.weights[best]) best = x;
    }
    const bool possible = allowed[static_cast<size_t>(text[i])];
    if (masked.temperature == 0) {
      law *= text[i] == best ? 1 : 0;
    } else {
      law *= possible ? row.weights[text[i]] / sum : 0;
    }
  }
  return law;
}

// The largest deviation from the masked target's law. The law uses the model's weights as floats; the rows
// are made by exp from logits.
double WorstDeviation(const Masked& masked) {
  std::mt19937 random(29);
  double worst = 0;
  for (int i = 0; i < 2; ++i) {
    const Pair pair{Model(Model::Kind::kAnything, random), Model(Model::Kind::kAnything, random)};
    Law law;
    Enumerator noise;
    noise.ForEachPath([&] {
      const Tokens text = Text(masked, pair, noise);
      law[text] += noise.probability();
    });
    for (const Tokens& text : Sequences(kLength)) {
      const auto found = law.find(text);
      const double emitted = found == law.end() ? 0 : found->second;
      worst = std::max(worst, std::abs(emitted - MaskedLaw(pair.target, masked, text)));
    }
  }
  return worst;
}

constexpr double kRounded = 1e-6;
const Rule kRules[] = {Rule::kToken, Rule::kBlock, Rule::kCoupled};

TEST(ExactnessUnderAGrammar, OfChainsByEveryRule) {
  for (const Rule rule : kRules) {
    EXPECT_LT(WorstDeviation({.rule = rule}), kRounded) << static_cast<int>(rule);
  }
}

TEST(ExactnessUnderAGrammar, OfADraftThatKnowsNoGrammar) {
  for (const Rule rule : kRules) {
    EXPECT_LT(WorstDeviation({.rule = rule, .draft_knows = false}), kRounded) << static_cast<int>(rule);
  }
}

TEST(ExactnessUnderAGrammar, OfTrees) {
  for (const Rule rule : {Rule::kToken, Rule::kCoupled}) {
    for (const bool knows : {true, false}) {
      const Masked masked{.rule = rule, .shape = Branching{{2, 1}}, .draft_knows = knows};
      EXPECT_LT(WorstDeviation(masked), kRounded) << static_cast<int>(rule) << knows;
    }
  }
}

TEST(ExactnessUnderAGrammar, OfGreedyDecoding) {
  for (const Rule rule : kRules) {
    EXPECT_LT(WorstDeviation({.rule = rule, .temperature = 0}), kRounded) << static_cast<int>(rule);
  }
}

TEST(NegativeControlUnderAGrammar, TheMaskOfTheCommittedTextForAllRowsIsNoticed) {
  for (const Rule rule : kRules) {
    EXPECT_GT(WorstDeviation({.rule = rule, .wrong_context = true}), kNoticed) << static_cast<int>(rule);
  }
  EXPECT_GT(WorstDeviation({.shape = Branching{{2, 1}}, .wrong_context = true}), kNoticed);
}

}  // namespace
}  // namespace outrider
