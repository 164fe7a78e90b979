// What only an emulated GPU shows: which graphs there are, and what is done where one cannot be made or an
// algorithm will not do.
#include <gmock/gmock.h>

#include <filesystem>
#include <random>
#include <utility>

#include "algorithms.h"
#include "bench/temporary_folder.h"
#include "common/engine/cuda/layer_kernels.h"
#include "common/engine/self_test.h"
#include "tests/gpu/gpu_model.h"
#include "tests/gpu/gpu_testing.h"
#include "tests/unit/device_worker_testing.h"
#include "tests/unit/layer_testing.h"
#include "work.h"

namespace outrider::testing {
namespace {

using emulation::Algorithm;
using ::testing::HasSubstr;

RunnerOptions ModelOnGpu() { return OnGpu(Options(""), "bfloat16"); }

std::unique_ptr<Runner> LoadOnGpu(const RunnerOptions& options) {
  return Runner::Load(options, Gpu()).value();
}

// Steps of several sequences, with tasks and without, and what they say.
class Steps {
 public:
  explicit Steps(Runner& runner) : runner_(runner) {}

  // A step of `sequences`, each `length` long with `rows` of them new. Returns logits and drafted tokens.
  std::vector<float> Run(int sequences, int rows, int length, int draft_tokens) {
    const auto params = Params({.name = ""}, /*seed=*/1);
    std::vector<DeviceTask> tasks(draft_tokens > 0 ? static_cast<size_t>(sequences) : 0);
    for (DeviceTask& task : tasks) {
      task = {.params = params.get(),
              .round_start = static_cast<uint64_t>(length),
              .work = ProposeTask{draft_tokens}};
    }
    const int blocks = (length + draft_tokens) / runner_.block_size() + 1;
    std::vector<std::vector<TokenId>> tokens;
    std::vector<std::vector<BlockId>> tables;
    std::vector<SequenceRows> batch;
    for (int s = 0; s < sequences; ++s) {
      tokens.push_back(SomeTokens(length, runner_.config().decoder.vocab_size, static_cast<uint32_t>(s + 1)));
      for (std::vector<BlockId>& table = tables.emplace_back(); static_cast<int>(table.size()) < blocks;) {
        table.push_back(s * blocks + static_cast<int>(table.size()));
      }
    }
    for (size_t s = 0; s < tokens.size(); ++s) {
      const absl::Span<const TokenId> all = tokens[s];
      const size_t cached = static_cast<size_t>(length - rows);
      if (cached > 0) {
        const SequenceRows prompt{all.first(cached), 0, tables[s], 0};
        EXPECT_TRUE(runner_.Forward({&prompt, 1}).ok());
      }
      batch.push_back(
          {all.subspan(cached), length - rows, tables[s], 1, tasks.empty() ? nullptr : &tasks[s]});
    }
    const absl::StatusOr<LogitsView> logits = runner_.Forward(batch);
    EXPECT_TRUE(logits.ok()) << logits.status();
    std::vector<float> found;
    for (int r = 0; logits.ok() && r < logits->rows; ++r) {
      found.insert(found.end(), logits->row(r).begin(), logits->row(r).end());
    }
    for (const DeviceTask& task : tasks) {
      for (const ProposalNode& node : std::get<ProposeTask>(task.work).proposal) {
        found.push_back(static_cast<float>(node.token));
      }
    }
    return found;
  }

 private:
  Runner& runner_;
};

// A graph that was captured for one step serves others of its shape: with other tokens, lengths and blocks.
TEST(EmulatedGraphs, ServeStepsThatTheyWereNotCapturedFor) {
  const std::unique_ptr<Runner> captured = LoadOnGpu(ModelOnGpu());
  emulation::AllowGraphs(false);
  const std::unique_ptr<Runner> direct = LoadOnGpu(ModelOnGpu());
  emulation::AllowGraphs(true);
  Steps with(*captured), without(*direct);
  const emulation::GraphCounts before = emulation::Graphs();
  std::mt19937 random;
  constexpr int kSteps = 30;
  for (int i = 0; i < 2 * kSteps; ++i) {
    if (i % kSteps == 0) random.seed(1);  // all shapes once more, now with graphs
    const int sequences = 1 + static_cast<int>(random() % 5), rows = 1 + static_cast<int>(random() % 5);
    const int length = rows + static_cast<int>(random() % 120), draft_tokens = static_cast<int>(random() % 4);
    SCOPED_TRACE(::testing::Message() << sequences << " sequences of " << length << ", " << rows << " rows, "
                                      << draft_tokens << " drafted");
    ASSERT_EQ(with.Run(sequences, rows, length, draft_tokens),
              without.Run(sequences, rows, length, draft_tokens));
  }
  const emulation::GraphCounts after = emulation::Graphs();
  EXPECT_GE(after.launched - before.launched, kSteps);
  EXPECT_LT(after.made - before.made, after.launched - before.launched);
}

TEST(EmulatedGraphs, OneCopyUploadsThePlansOfAllPasses) {
  const std::unique_ptr<Runner> runner = LoadOnGpu(ModelOnGpu());
  Steps steps(*runner);
  for (const int draft_tokens : {1, 8}) {
    const int copies = emulation::CopiesToDevice(), launched = emulation::Graphs().launched;
    steps.Run(/*sequences=*/1, /*rows=*/1, /*length=*/1, draft_tokens);
    EXPECT_EQ(emulation::Graphs().launched - launched, 1);
    EXPECT_EQ(emulation::CopiesToDevice() - copies, 1) << draft_tokens << " drafted";
  }
}

// A product writes whole tiles of rows, those of idle tasks included.
TEST(EmulatedGraphs, DraftPassesLeaveTheLogitsOfTheHostAlone) {
  const std::unique_ptr<Runner> runner = LoadOnGpu(ModelOnGpu());
  const auto params = Params({.name = ""}, /*seed=*/1);
  const int vocab = runner->config().decoder.vocab_size;
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::vector<BlockId>> blocks;
  for (int s = 0; s < 5; ++s) {
    tokens.push_back(SomeTokens(6, vocab, static_cast<uint32_t>(s + 1)));
    blocks.push_back({s});
  }
  for (const size_t drafting : {1, 3}) {
    std::vector<DeviceTask> tasks(drafting);
    std::vector<SequenceRows> batch, alone;
    for (size_t s = 0; s < tokens.size(); ++s) {
      if (s < drafting) tasks[s] = {.params = params.get(), .round_start = 6, .work = ProposeTask{3}};
      batch.push_back({tokens[s], 0, blocks[s], 1, s < drafting ? &tasks[s] : nullptr});
      if (s >= drafting) alone.push_back(batch.back());
    }
    ASSERT_TRUE(runner->Forward(batch).ok());
    const absl::StatusOr<LogitsView> found = runner->Forward(batch);  // by a graph
    ASSERT_TRUE(found.ok()) << found.status();
    Logits beside;
    for (int r = 0; r < found->rows; ++r) beside.push_back(RowOf(*found, r));
    ASSERT_EQ(beside.size(), alone.size());
    const absl::StatusOr<LogitsView> expected = runner->Forward(alone);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (size_t r = 0; r < beside.size(); ++r) {
      EXPECT_EQ(beside[r], RowOf(*expected, static_cast<int>(r))) << drafting << " draft, row " << r;
    }
  }
}

// CUDA keeps the error of a call until it is asked for, and the next launch is.
TEST(EmulatedGraphs, WhereNoneCanBeMadeStepsAreLaunchedDirectly) {
  const std::unique_ptr<Runner> runner = LoadOnGpu(ModelOnGpu());
  Steps steps(*runner);
  const auto of_three = [&] {
    return steps.Run(/*sequences=*/3, /*rows=*/4, /*length=*/4, /*draft_tokens=*/0);
  };
  const std::vector<float> first = of_three();
  EXPECT_EQ(of_three(), first);  // captured
  EXPECT_TRUE(runner->graph_captures().failure.ok());
  const emulation::GraphCounts before = emulation::Graphs();
  emulation::AllowGraphs(false);
  std::vector<float> of_five[3];
  for (std::vector<float>& found : of_five)
    found = steps.Run(/*sequences=*/5, /*rows=*/4, /*length=*/4, /*draft_tokens=*/2);
  EXPECT_FALSE(of_five[0].empty());
  EXPECT_EQ(of_five[1], of_five[0]);
  EXPECT_EQ(of_five[2], of_five[0]);
  EXPECT_EQ(emulation::Graphs().launched, before.launched);
  // The graphs that there are stay in use.
  EXPECT_EQ(of_three(), first);
  emulation::AllowGraphs(true);
  EXPECT_EQ(emulation::Graphs().launched, before.launched + 1);
  EXPECT_EQ(emulation::Graphs().made, before.made);
  EXPECT_EQ(runner->graph_captures().failure,
            absl::ResourceExhaustedError("CUDA: out of memory while capturing a step"));
}

TEST(EmulatedGraphs, OfOneStreamAreThereOnceAModelIsLoaded) {
  const std::unique_ptr<Runner> runner = LoadOnGpu(ModelOnGpu());
  const emulation::GraphCounts before = emulation::Graphs();
  EXPECT_GT(before.made, 10);
  Steps steps(*runner);
  for (int draft_tokens = 1; draft_tokens <= 8; ++draft_tokens) {
    steps.Run(/*sequences=*/1, /*rows=*/1, /*length=*/1, draft_tokens);
  }
  const emulation::GraphCounts after = emulation::Graphs();
  EXPECT_EQ(after.made, before.made);
  EXPECT_EQ(after.launched, before.launched + 8);
  EXPECT_EQ(after.uploaded, after.made);  // or the first launch would do it
}

TEST(EmulatedGraphs, AModelHasThoseOfItsRoleOnceItIsLoaded) {
  const auto captures = [](ModelRole role) {
    RunnerOptions options = ModelOnGpu();
    options.role = role;
    return LoadOnGpu(options)->graph_captures().count;
  };
  const int64_t of_draft = captures(ModelRole::kDraft), of_target = captures(ModelRole::kTarget);
  EXPECT_GT(of_draft, 0);
  EXPECT_GT(of_target, 0);
  EXPECT_EQ(of_draft + of_target, captures(ModelRole::kAny));
}

TEST(EmulatedGraphs, GoWithTheirModel) {
  const auto kept = [] { return emulation::Graphs().made - emulation::Graphs().destroyed; };
  const int before = kept();
  {
    const std::unique_ptr<Runner> runner = LoadOnGpu(ModelOnGpu());
    EXPECT_GT(kept(), before);
  }
  EXPECT_EQ(kept(), before);
}

// A row of AddNorm and what its reductions keep do not fit into a thread block's memory.
TEST(EmulatedMemory, OfAThreadBlockHoldsNoWiderRow) {
  const DecoderConfig spec = {
      .vocab_size = 256, .hidden_size = 12288, .intermediate_size = 96, .head_dim = 64};
  MadeUpWeights weights;
  EXPECT_EQ(
      cuda::CudaModel::Create(spec, weights, /*device=*/0, ModelOnGpu()).status(),
      absl::InvalidArgumentError(DataDir("gqa4-llama3-rope") +
                                 "/config.json: hidden_size: 12288: must be at most 12272 with --device "
                                 "cuda"));
  cuda::LaunchAddNorm({}, nullptr, nullptr, 1e-5f, {}, /*rows=*/0, spec.hidden_size, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  cuda::LaunchAddNorm({}, nullptr, nullptr, 1e-5f, {}, /*rows=*/0, cuda::kMaxNormed, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(EmulatedMemory, ThePoolLeavesRoomForGraphs) {
  RunnerOptions options = ModelOnGpu();
  options.kv_blocks = 0;
  options.kv_memory_fraction = 1;
  options.max_sequences = 1 << 20;
  const std::unique_ptr<Runner> runner = LoadOnGpu(options);
  size_t free_bytes = 0, all_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &all_bytes), cudaSuccess);
  EXPECT_GT(runner->kv_blocks(), 1000);
  // The common ones are made already; 128 are kept.
  EXPECT_GT(free_bytes, 30 * emulation::kGraphBytes);
  EXPECT_LT(free_bytes, 128 * emulation::kGraphBytes);
}

// Lets other algorithms be recommended until its end.
class Recommended {
 public:
  Recommended(std::vector<Algorithm> few_rows, std::vector<Algorithm> many_rows) {
    emulation::Recommend({.few_rows = std::move(few_rows), .many_rows = std::move(many_rows)});
  }
  ~Recommended() { emulation::Recommend({}); }
  Recommended(const Recommended&) = delete;
  Recommended& operator=(const Recommended&) = delete;
};

constexpr int kColumns = 32, kDepth = 64;

std::unique_ptr<cuda::Matmul> NewMatmul(const std::string& choices_file = "") {
  return cuda::Matmul::Create(cuda::Operand::kBFloat16, choices_file, /*stream=*/nullptr).value();
}

// With one plan.
std::unique_ptr<cuda::Matmul> Planned(const std::string& choices_file = "") {
  std::unique_ptr<cuda::Matmul> matmul = NewMatmul(choices_file);
  EXPECT_EQ(matmul->Plan(kColumns, kDepth).value(), 0);
  return matmul;
}

cuda::MatmulChoice ChoiceOf(const cuda::Matmul& matmul) { return *matmul.choices().Find(kColumns, kDepth); }

// The algorithms for few rows and for many.
std::pair<Algorithm, Algorithm> Chosen() {
  const cuda::MatmulChoice choice = ChoiceOf(*Planned());
  return {static_cast<Algorithm>(choice.few_rows.words[0]),
          static_cast<Algorithm>(choice.many_rows.words[0])};
}

void ExpectRowsAreTheSameInAnyCompany(const cuda::Matmul& matmul) {
  constexpr int kRows = 112;
  MadeUp made_up(1);
  const DeviceArray<uint16_t> x(made_up.NormalHalves((kRows + cuda::kRowTile) * kDepth));
  const DeviceArray<uint16_t> w(made_up.NormalHalves(kColumns * kDepth));
  const DeviceArray<float> y(kRows * kColumns);
  const auto product = [&](int first, int rows) {
    EXPECT_TRUE(matmul.Run(/*plan=*/0, x.data() + first * kDepth, w.data(), y.data(), rows).ok());
    return y.Read(static_cast<size_t>(rows * kColumns));
  };
  Floats alone;
  for (int r = 0; r < kRows; ++r) {
    const Floats row = product(r, 1);
    alone.insert(alone.end(), row.begin(), row.end());
  }
  for (const int rows : {2, 16, 17, 48, 50, 64, 100, kRows}) {
    EXPECT_EQ(product(0, rows), Floats(alone.begin(), alone.begin() + rows * kColumns)) << rows << " rows";
  }
}

TEST(EmulatedProducts, AreComputedByTheFirstAlgorithmsWhoseRowsDoNotDependOnTheBatch) {
  const auto matmul = Planned();
  EXPECT_EQ(Chosen(), std::pair(Algorithm::kForwards, Algorithm::kForwardsToo));
  EXPECT_EQ(ChoiceOf(*matmul).launches, cuda::MatmulLaunches::kPair);
  EXPECT_THAT(InWords(matmul->choices()), HasSubstr("32x64: id 2"));
  ExpectRowsAreTheSameInAnyCompany(*matmul);
}

TEST(EmulatedProducts, AreComputedByTheFirstAlgorithmForFewRowsThatHasAPartner) {
  {
    const Recommended only_the_second_has_one({Algorithm::kBackwards, Algorithm::kForwards},
                                              {Algorithm::kForwardsToo});
    EXPECT_EQ(Chosen(), std::pair(Algorithm::kForwards, Algorithm::kForwardsToo));
  }
  {
    const Recommended both_have_one({Algorithm::kForwards, Algorithm::kBackwards},
                                    {Algorithm::kBackwards, Algorithm::kForwardsToo});
    EXPECT_EQ(Chosen(), std::pair(Algorithm::kForwards, Algorithm::kForwardsToo));
  }
}

TEST(EmulatedProducts, OfManyRowsUseTheAlgorithmForFewWhereNoneHasItsBits) {
  const Recommended no_pair({Algorithm::kByBatch, Algorithm::kForwards}, {Algorithm::kBackwards});
  EXPECT_EQ(Chosen(), std::pair(Algorithm::kForwards, Algorithm::kForwards));
  const auto matmul = Planned();
  EXPECT_THAT(InWords(matmul->choices()), HasSubstr("of many rows too, as none for these has the same bits"));
  ExpectRowsAreTheSameInAnyCompany(*matmul);
}

// 192 rows are 24 streams with 7 drafted tokens each.
TEST(EmulatedProducts, UseNoAlgorithmInLaunchesOfASizeForWhichItHasOtherBits) {
  {
    const Recommended for_many({Algorithm::kForwards}, {Algorithm::kBut192, Algorithm::kForwardsToo});
    EXPECT_EQ(Chosen(), std::pair(Algorithm::kForwards, Algorithm::kForwardsToo));
  }
  {
    const Recommended for_few({Algorithm::kBut192, Algorithm::kForwards}, {Algorithm::kBackwards});
    EXPECT_EQ(Chosen(), std::pair(Algorithm::kForwards, Algorithm::kForwards));
  }
}

// 50 rows are padded to 64.
TEST(EmulatedProducts, UseTheAlgorithmForFewRowsOnlyInLaunchesOfSizesForWhichItWasTried) {
  const Recommended not_for_64({Algorithm::kBut64}, {Algorithm::kForwardsToo});
  EXPECT_EQ(Chosen(), std::pair(Algorithm::kBut64, Algorithm::kForwardsToo));
  ExpectRowsAreTheSameInAnyCompany(*Planned());
}

TEST(EmulatedProducts, AreLaunchedInTilesWhereNoAlgorithmHasTheSameBitsInLargerLaunches) {
  const Recommended no_better({Algorithm::kByPlace, Algorithm::kByBatch}, {Algorithm::kBackwards});
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/algorithms.json";
  const auto matmul = Planned(file);
  EXPECT_EQ(Chosen(), std::pair(Algorithm::kByBatch, Algorithm::kByBatch));
  EXPECT_THAT(InWords(matmul->choices()), HasSubstr("32x64: id 1"));
  EXPECT_THAT(InWords(matmul->choices()), HasSubstr("16 rows at a time, as none gives"));
  ExpectRowsAreTheSameInAnyCompany(*matmul);

  ASSERT_TRUE(matmul->Store().ok());
  const auto later = Planned(file);
  EXPECT_EQ(ChoiceOf(*later), ChoiceOf(*matmul));
  ExpectRowsAreTheSameInAnyCompany(*later);
}

TEST(EmulatedProducts, InTilesAModelComputesWhatItDoesInLargerLaunches) {
  const std::unique_ptr<Runner> usual = LoadOnGpu(ModelOnGpu());
  const Recommended no_better({Algorithm::kByBatch}, {Algorithm::kBackwards});
  const std::unique_ptr<Runner> tiles = LoadOnGpu(ModelOnGpu());
  EXPECT_THAT(tiles->algorithms(), HasSubstr("16 rows at a time"));
  for (const int rows : {1, 9, 30}) {
    for (const int draft_tokens : {0, 2}) {
      EXPECT_EQ(Steps(*tiles).Run(/*sequences=*/5, rows, /*length=*/30, draft_tokens),
                Steps(*usual).Run(/*sequences=*/5, rows, /*length=*/30, draft_tokens));
    }
  }
}

TEST(EmulatedProducts, AreRefusedWhereARowDependsOnItsPlaceAmongSixteen) {
  const Recommended none({Algorithm::kByPlace}, {Algorithm::kByPlace});
  EXPECT_THAT(NewMatmul()->Plan(kColumns, kDepth).status().message(),
              HasSubstr("none of its algorithms for 32 x 64 gives a row the same bits in every batch"));
}

TEST(EmulatedProducts, OfAnEarlierStartAreRefusedIfRowsNoLongerHaveTheSameBits) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/algorithms.json";
  const cuda::MatmulChoices choices = Planned()->choices();
  const auto planned_with = [&](Algorithm few_rows, Algorithm many_rows) {
    cuda::MatmulChoices changed = choices;
    changed.products[0].few_rows.words[0] = static_cast<uint64_t>(few_rows);
    changed.products[0].many_rows.words[0] = static_cast<uint64_t>(many_rows);
    EXPECT_TRUE(WriteMatmulChoices(file, changed).ok());
    return NewMatmul(file)->Plan(kColumns, kDepth).status();
  };
  EXPECT_TRUE(planned_with(Algorithm::kForwards, Algorithm::kForwardsToo).ok());
  for (const auto& [few_rows, many_rows] : {std::pair(Algorithm::kByBatch, Algorithm::kForwardsToo),
                                            std::pair(Algorithm::kByPlace, Algorithm::kForwardsToo),
                                            std::pair(Algorithm::kForwards, Algorithm::kBackwards)}) {
    const absl::Status status = planned_with(few_rows, many_rows);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_EQ(status.message(),
              file +
                  ": a row's bits depend on its batch with the algorithms for products of 32 x 64; remove "
                  "the file to choose algorithms anew");
  }
}

TEST(EmulatedProducts, AreComputedByTheAlgorithmsOfAnEarlierStart) {
  RunnerOptions options = ModelOnGpu();
  const TemporaryFolder folder;
  options.matmul_algorithms = folder.path() + "/algorithms.json";
  const std::string chosen = LoadOnGpu(options)->algorithms();
  ASSERT_TRUE(std::filesystem::exists(options.matmul_algorithms));
  EXPECT_EQ(LoadOnGpu(options)->algorithms(), chosen);
  options.dtype = "fp8";
  EXPECT_THAT(Runner::Load(options, Gpu()).status().message(), HasSubstr("--dtype was bfloat16"));

  std::filesystem::remove(options.matmul_algorithms);
  const auto other =
      cuda::Matmul::Create(cuda::Operand::kFp8, options.matmul_algorithms, /*stream=*/nullptr).value();
  ASSERT_TRUE(other->Plan(32, 64).ok());
  ASSERT_TRUE(other->Store().ok());
  EXPECT_THAT(Runner::Load(options, Gpu()).status().message(), HasSubstr("was written for another model"));
}

}  // namespace
}  // namespace outrider::testing
