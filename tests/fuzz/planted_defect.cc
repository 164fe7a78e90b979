// The control of all the others: a defect that must be found. Only a fuzzer that sees comparisons and
// branches finds it within seconds.
#include <cstring>
#include <vector>

#include "tests/fuzz/target.h"

namespace outrider {

void FuzzTarget(std::string_view input) {
  if (input.size() < 8 || !input.starts_with("{\"")) return;
  uint32_t magic;
  std::memcpy(&magic, input.data() + 2, sizeof(magic));
  if (magic != 0x5eed1e55) return;
  const std::vector<char> rest(input.begin() + 6, input.end());
  const volatile char behind_the_end = rest.data()[rest.size()];
  (void)behind_the_end;
}

}  // namespace outrider
