// Tests that only an emulated GPU allows: which algorithms are chosen for matrix products, and what happens
// if one is not usable.
#include <gmock/gmock.h>

#include <filesystem>
#include <utility>

#include "algorithms.h"
#include "bench/temporary_folder.h"
#include "emulated_model.h"
#include "tests/gpu/gpu_testing.h"
#include "tests/unit/layer_testing.h"

namespace outrider::testing {
namespace {

using emulation::Algorithm;
using ::testing::HasSubstr;

// Replaces the recommended algorithms during its lifetime.
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

// A Matmul with one plan.
std::unique_ptr<cuda::Matmul> Planned(const std::string& choices_file = "") {
  std::unique_ptr<cuda::Matmul> matmul = NewMatmul(choices_file);
  EXPECT_EQ(matmul->Plan(kColumns, kDepth).value(), 0);
  return matmul;
}

cuda::MatmulChoice ChoiceOf(const cuda::Matmul& matmul) { return *matmul.choices().Find(kColumns, kDepth); }

// The algorithms that are chosen for few rows and for many.
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
  for (const int rows : {1, 9, 25}) {
    for (const int draft_tokens : {0, 2}) {
      EXPECT_EQ(Steps(*tiles).Run(/*sequences=*/5, rows, /*length=*/25, draft_tokens),
                Steps(*usual).Run(/*sequences=*/5, rows, /*length=*/25, draft_tokens));
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
