// The engines of this program, whose hidden states are tested: libtorch on the CPU.
#include "tests/unit/hidden_testing.h"

namespace outrider::testing {

std::vector<EngineUnderTest> EnginesUnderTest() {
  std::vector<std::string> models = RandomModels();
  models.insert(models.end(), GemmaModels().begin(), GemmaModels().end());
  return {{.engine = "torch",
           .kernels = "",
           .dtype = "float32",
           .tolerance = 1e-4,
           .tolerance_of_dtype = 1e-4,
           .models = models},
          // Other models have weights so large that rounding to bfloat16 hides what is compared.
          {.engine = "torch",
           .kernels = "",
           .dtype = "bfloat16",
           .tolerance = 0.05,
           .tolerance_of_dtype = 0.05,
           .models = {"gemma2"}}};
}

}  // namespace outrider::testing
