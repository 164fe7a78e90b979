// The engines of this program, whose hidden states are tested: the CPU's kernels.
#include "tests/unit/hidden_testing.h"

namespace outrider::testing {

std::vector<EngineUnderTest> EnginesUnderTest() {
  std::vector<EngineUnderTest> engines;
  for (const std::string& kernels : RunnableKernels()) {
    for (const auto& [dtype, tolerance] : {std::pair("float32", 1e-4), {"bfloat16", 0.03}, {"int8", 0.06}}) {
      engines.push_back({.engine = "native",
                         .kernels = kernels,
                         .dtype = dtype,
                         .tolerance = 0,
                         .tolerance_of_dtype = tolerance,
                         .models = {"gqa3-sharded", "dim128-odd-sizes", "mistral-window"}});
    }
  }
  return engines;
}

}  // namespace outrider::testing
