// The results of a row depend bit for bit only on its own prefix: not on batch, chunking, threads, blocks or
// history.
#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "tests/unit/engine_helpers.h"

namespace outrider::testing {
namespace {

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void ExpectSameBits(const Logits& a, const Logits& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t r = 0; r < a.size(); ++r) ASSERT_TRUE(SameBits(a[r], b[r])) << what << ", row " << r;
}

class Invariance : public ::testing::TestWithParam<EngineCase> {
 protected:
  RunnerOptions TheOptions() const {
    RunnerOptions options = Options(std::get<0>(GetParam()));
    options.kernels = std::get<1>(GetParam());
    options.dtype = std::get<2>(GetParam());
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(All, Invariance, ::testing::ValuesIn(EngineCases()),
                         [](const auto& info) { return NameOf(info.param); });

// The reference for the paged cache: a contiguous cache, which is one block for the whole context.
Logits ContiguousLogits(RunnerOptions options, absl::Span<const TokenId> tokens, int chunk) {
  options.block_size = 512;
  options.kv_blocks = 1;
  return AllLogits(*LoadOrDie(options), tokens, chunk);
}

TEST_P(Invariance, ARowDoesNotDependOnTheNumberOfRowsInItsPass) {
  const auto runner = LoadOrDie(TheOptions());
  const std::vector<TokenId> tokens = SomeTokens(80, runner->config().decoder.vocab_size);
  const Logits one_by_one = AllLogits(*runner, tokens, 1);
  for (int rows = 2; rows <= 33; ++rows) {
    ExpectSameBits(AllLogits(*runner, tokens, rows), one_by_one, absl::StrCat(rows, " rows"));
  }
  ExpectSameBits(AllLogits(*runner, tokens, 80), one_by_one, "80 rows");
}

TEST_P(Invariance, ARowDoesNotDependOnTheOtherSequencesOfItsBatch) {
  const auto runner = LoadOrDie(TheOptions());
  const int vocab = runner->config().decoder.vocab_size;
  const std::vector<TokenId> tokens = SomeTokens(60, vocab);
  const Logits alone = AllLogits(*runner, tokens);
  std::mt19937 random(7);
  for (int repeat = 0; repeat < 5; ++repeat) {
    // The sequence advances by 1 to 8 tokens beside two others that advance at another pace and restart.
    const std::vector<BlockId> blocks = BlocksFor(*runner, 60);
    const std::vector<BlockId> other_blocks[2] = {BlocksFor(*runner, 60, 10), BlocksFor(*runner, 60, 20)};
    for (int position = 0; position < 60;) {
      const int count = std::min(60 - position, static_cast<int>(1 + random() % 8));
      const std::vector<TokenId> others[2] = {
          SomeTokens(1 + static_cast<int>(random() % 30), vocab, random()),
          SomeTokens(1 + static_cast<int>(random() % 5), vocab, random())};
      const absl::Span<const TokenId> part =
          absl::MakeConstSpan(tokens).subspan(static_cast<size_t>(position), static_cast<size_t>(count));
      std::vector<SequenceRows> batch = {{others[0], 0, other_blocks[0], 1},
                                         {part, position, blocks, count},
                                         {others[1], 0, other_blocks[1], 0}};
      if (random() % 2 == 0) std::swap(batch[0], batch[2]);
      const absl::StatusOr<LogitsView> view = runner->Forward(batch);
      ASSERT_TRUE(view.ok()) << view.status();
      ASSERT_EQ(view->rows, count + 1);
      const int first = batch[0].logit_rows;
      for (int r = 0; r < count; ++r) {
        ASSERT_TRUE(SameBits(RowOf(*view, first + r), alone[static_cast<size_t>(position + r)]));
      }
      position += count;
    }
  }
}

TEST_P(Invariance, WhichLogitsAreWantedDoesNotChangeThem) {
  const auto runner = LoadOrDie(TheOptions());
  const std::vector<TokenId> tokens = SomeTokens(40, runner->config().decoder.vocab_size);
  const std::vector<BlockId> blocks = BlocksFor(*runner, 40);
  const Logits all = AllLogits(*runner, tokens);
  for (const int logit_rows : {0, 1, 2, 5, 17, 39}) {
    const SequenceRows rows = {tokens, 0, blocks, logit_rows};
    const absl::StatusOr<LogitsView> view = runner->Forward({&rows, 1});
    ASSERT_TRUE(view.ok());
    ASSERT_EQ(view->rows, logit_rows);
    for (int r = 0; r < logit_rows; ++r) {
      ASSERT_TRUE(SameBits(RowOf(*view, r), all[static_cast<size_t>(40 - logit_rows + r)]));
    }
  }
}

TEST_P(Invariance, ThreadsDoNotMatter) {
  RunnerOptions options = TheOptions();
  const auto runner = LoadOrDie(options);
  const std::vector<TokenId> tokens = SomeTokens(50, runner->config().decoder.vocab_size);
  const Logits one_thread = AllLogits(*runner, tokens, 9);
  for (const int threads : {2, 3, 5}) {
    options.threads = threads;
    ExpectSameBits(AllLogits(*LoadOrDie(options), tokens, 9), one_thread, absl::StrCat(threads, " threads"));
  }
}

TEST_P(Invariance, PagedEqualsContiguousForAnyBlockSize) {
  RunnerOptions options = TheOptions();
  const std::vector<TokenId> tokens = SomeTokens(90, 200);
  const Logits contiguous = ContiguousLogits(options, tokens, 7);
  for (const int block_size : {1, 3, 7, 8, 16, 20, 64}) {
    options.block_size = block_size;
    options.kv_blocks = 100;
    ExpectSameBits(AllLogits(*LoadOrDie(options), tokens, 7), contiguous,
                   absl::StrCat("block size ", block_size));
  }
}

// Sequences that grow, are truncated and grow again, in random blocks, against the contiguous cache.
TEST_P(Invariance, ShuffledBlocksAndTruncationLeaveNoTrace) {
  for (const int block_size : {1, 3, 16}) {
    RunnerOptions options = TheOptions();
    options.block_size = block_size;
    options.kv_blocks = 128;
    const auto runner = LoadOrDie(options);
    options.block_size = 512;
    options.kv_blocks = 1;
    const auto reference = LoadOrDie(options);
    const int vocab = runner->config().decoder.vocab_size;
    std::mt19937 random(static_cast<uint32_t>(block_size));
    std::vector<BlockId> free(128);
    std::iota(free.begin(), free.end(), 0);
    std::vector<TokenId> tokens;
    std::vector<BlockId> blocks;
    for (int step = 0; step < 40; ++step) {
      const size_t kept = random() % 3 == 0 ? random() % (tokens.size() + 1) : tokens.size();
      const size_t grown = std::min<size_t>(100, kept + 1 + random() % 12);
      if (grown == kept) {
        tokens.clear();
        continue;
      }
      tokens.resize(kept);
      for (const TokenId token : SomeTokens(static_cast<int>(grown - kept), vocab, random()))
        tokens.push_back(token);
      const size_t needed = (grown + static_cast<size_t>(block_size) - 1) / static_cast<size_t>(block_size);
      const size_t still_used =
          (kept + static_cast<size_t>(block_size) - 1) / static_cast<size_t>(block_size);
      while (blocks.size() > still_used) {
        free.push_back(blocks.back());
        blocks.pop_back();
      }
      std::shuffle(free.begin(), free.end(), random);
      while (blocks.size() < needed) {
        blocks.push_back(free.back());
        free.pop_back();
      }
      const absl::Span<const TokenId> added = absl::MakeConstSpan(tokens).subspan(kept);
      const Logits logits =
          Append(*runner, added, static_cast<int>(kept), blocks, 1 + static_cast<int>(random() % 6));
      const Logits expected = AllLogits(*reference, tokens);
      ExpectSameBits(logits, Logits(expected.begin() + static_cast<ptrdiff_t>(kept), expected.end()),
                     absl::StrCat("block size ", block_size, ", step ", step));
    }
  }
}

TEST_P(Invariance, ACopiedBlockServesAsTheOriginal) {
  const auto runner = LoadOrDie(TheOptions());
  const std::vector<TokenId> tokens = SomeTokens(40, runner->config().decoder.vocab_size);
  const Logits expected = AllLogits(*runner, tokens);
  // The second sequence shares block 0 and continues in a copy of block 1, which the first then overwrites.
  std::vector<BlockId> blocks = BlocksFor(*runner, 40);
  std::vector<BlockId> forked = {blocks[0], 30, 31};
  runner->CopyBlock(blocks[1], 30);
  Append(*runner, SomeTokens(24, runner->config().decoder.vocab_size, 99), 16, blocks, 24);
  const Logits logits = Append(*runner, absl::MakeConstSpan(tokens).subspan(32), 32, forked, 8);
  ExpectSameBits(logits, Logits(expected.begin() + 32, expected.end()), "forked");
}

TEST(Kernels, Avx2AndAvx512GiveTheSameBits) {
  if (FindKernels("avx512") == nullptr) GTEST_SKIP() << "no AVX-512 here";
  for (const std::string& model : RandomModels()) {
    RunnerOptions options = Options(model);
    options.kernels = "avx512";
    const std::vector<TokenId> tokens = SomeTokens(60, 200);
    const Logits wide = AllLogits(*LoadOrDie(options), tokens);
    options.kernels = "avx2";
    ExpectSameBits(AllLogits(*LoadOrDie(options), tokens), wide, model);
  }
}

// A negative control: shows that the bits compared above can differ.
TEST(Prefix, AnotherTokenInThePrefixChangesTheBits) {
  const auto runner = LoadOrDie(Options("gqa3-sharded"));
  std::vector<TokenId> tokens = SomeTokens(40, runner->config().decoder.vocab_size);
  const Logits before = AllLogits(*runner, tokens);
  tokens[0] = (tokens[0] + 1) % runner->config().decoder.vocab_size;
  const Logits after = AllLogits(*runner, tokens);
  for (size_t r = 0; r < before.size(); ++r) EXPECT_FALSE(SameBits(before[r], after[r])) << r;
}

}  // namespace
}  // namespace outrider::testing
