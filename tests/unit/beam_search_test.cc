#include "coordinator/decode/beam_search.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "tests/unit/beam_tables.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

// Whether the search has found the golden's texts, in their order, with their scores.
bool Agrees(const BeamGolden& golden, const BeamSearch& search) {
  if (search.finished().size() < golden.n || golden.answers.size() != golden.n) return false;
  for (size_t i = 0; i < golden.n; ++i) {
    const BeamSearch::Finished& found = search.finished()[i];
    if (found.tokens != golden.answers[i].tokens) return false;
    if (std::abs(found.score - golden.answers[i].score) > 1e-5 * (1 + std::abs(found.score))) return false;
  }
  return true;
}

BeamSearch Search(const BeamGolden& golden, const BeamSearchOptions& options) {
  BeamSearch search(options);
  while (!search.over()) {
    std::vector<CandidateRow> rows;
    for (const BeamSearch::Live& live : search.live()) rows.push_back(golden.RowAfter(live.tokens));
    std::vector<const CandidateRow*> pointers;
    for (const CandidateRow& row : rows) pointers.push_back(&row);
    search.Step(pointers);
  }
  return search;
}

// How many goldens come out the same with options that `change` has changed.
template <class Change>
size_t Agreeing(Change change) {
  size_t agreeing = 0;
  for (const BeamGolden& golden : ReadBeamGoldens()) {
    BeamSearchOptions options = golden.options;
    change(options);
    agreeing += Agrees(golden, Search(golden, options)) ? 1 : 0;
  }
  return agreeing;
}

TEST(BeamSearch, FindsWhatTransformersFinds) {
  const std::vector<BeamGolden> goldens = ReadBeamGoldens();
  ASSERT_GE(goldens.size(), 100u);
  for (size_t i = 0; i < goldens.size(); ++i) {
    EXPECT_TRUE(Agrees(goldens[i], Search(goldens[i], goldens[i].options))) << "golden " << i;
  }
}

TEST(BeamSearch, OtherOptionsFindSomethingElse) {
  const size_t all = ReadBeamGoldens().size();
  EXPECT_LT(Agreeing([](BeamSearchOptions& options) { options.length_penalty += 0.5; }), all - 20);
  EXPECT_LT(Agreeing([](BeamSearchOptions& options) { options.end_ids.clear(); }), all - 20);
  EXPECT_LT(Agreeing([](BeamSearchOptions& options) { ++options.width; }), all - 10);
  EXPECT_LT(Agreeing([](BeamSearchOptions& options) { options.stop = v1::BEAM_STOP_FIRST; }), all);
  EXPECT_LT(Agreeing([](BeamSearchOptions& options) { options.stop = v1::BEAM_STOP_NEVER; }), all);
  EXPECT_LT(Agreeing([](BeamSearchOptions& options) { options.stop = v1::BEAM_STOP_AUTO; }), all);
}

// A forest after the live texts: some of the most probable tokens, at random depths.
Proposal RandomProposal(const BeamGolden& golden, const std::vector<TokenId>& text, std::mt19937& random) {
  Proposal proposal;
  std::vector<std::vector<TokenId>> paths;
  const size_t nodes = random() % 24;
  for (size_t i = 0; i < nodes; ++i) {
    const int parent = static_cast<int>(random() % (i + 1)) - 1;
    std::vector<TokenId> path = parent < 0 ? text : paths[static_cast<size_t>(parent)];
    const CandidateRow row = golden.RowAfter(path);
    const TokenId token = row[random() % row.size()].token;
    proposal.push_back({token, parent, {}});
    path.push_back(token);
    paths.push_back(std::move(path));
  }
  return proposal;
}

std::vector<CandidateRow> RowsOf(const BeamGolden& golden, const std::vector<TokenId>& text,
                                 const Proposal& proposal) {
  std::vector<std::vector<TokenId>> paths;
  std::vector<CandidateRow> rows{golden.RowAfter(text)};
  for (const ProposalNode& node : proposal) {
    paths.push_back(node.parent < 0 ? text : paths[static_cast<size_t>(node.parent)]);
    paths.back().push_back(node.token);
    rows.push_back(golden.RowAfter(paths.back()));
  }
  return rows;
}

TEST(BeamRows, AnyDraftFindsTheSameInFewerCalls) {
  std::mt19937 random(3);
  int calls = 0, steps = 0;
  for (const BeamGolden& golden : ReadBeamGoldens()) {
    BeamSearch search(golden.options);
    while (!search.over()) {
      std::vector<Proposal> proposals;
      for (const auto& live : search.live()) {
        proposals.push_back(RandomProposal(golden, live.tokens, random));
      }
      std::vector<std::vector<CandidateRow>> rows;
      std::vector<BeamRows> beams;
      for (size_t i = 0; i < proposals.size(); ++i) {
        rows.push_back(RowsOf(golden, search.live()[i].tokens, proposals[i]));
        beams.push_back({&proposals[i], rows.back()});
      }
      const std::vector<BeamSearch::Live> before = search.live();
      const BeamProgress progress = AdvanceBeams(beams, search);
      ASSERT_GE(progress.steps, 1);
      ASSERT_EQ(progress.origins.size(), search.live().size());
      for (size_t i = 0; i < search.live().size(); ++i) {
        const std::vector<TokenId>& origin = before[static_cast<size_t>(progress.origins[i])].tokens;
        ASSERT_EQ(search.live()[i].tokens.size(), origin.size() + static_cast<size_t>(progress.steps));
        ASSERT_TRUE(std::equal(origin.begin(), origin.end(), search.live()[i].tokens.begin()));
      }
      ++calls;
      steps += progress.steps;
    }
    EXPECT_TRUE(Agrees(golden, search));
  }
  EXPECT_LT(calls, steps);
}

TEST(BeamSearch, TiedTextsAreInTheOrderOfBeamsAndTokens) {
  BeamSearch search({.width = 2, .max_tokens = 2});
  const CandidateRow first = {{3, -1}, {5, -1}}, second = {{1, -1}, {2, -1}};
  search.Step(std::vector{&first});
  search.Step(std::vector{&second, &second});
  ASSERT_TRUE(search.over());
  ASSERT_EQ(search.finished().size(), 2u);
  EXPECT_THAT(search.finished()[0].tokens, ElementsAre(3, 1));
  EXPECT_THAT(search.finished()[1].tokens, ElementsAre(3, 2));
}

TEST(BeamSearch, AnEndAmongTheReserveDoesNotCount) {
  BeamSearch search({.width = 2, .end_ids = {7}, .max_tokens = 9});
  const CandidateRow row = {{3, -1}, {5, -2}, {7, -3}};
  search.Step(std::vector{&row});
  EXPECT_TRUE(search.finished().empty());
  EXPECT_EQ(search.live().size(), 2u);
}

}  // namespace
}  // namespace outrider
