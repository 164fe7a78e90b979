// Connects GCC to libFuzzer, which is made for Clang. libFuzzer takes GCC's calls at comparisons as they are,
// and reads counters of executed code from a section of its own.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/target.h"

extern const char __executable_start;  // defined by the linker

namespace {

constexpr size_t kCounters = 1 << 15;
[[gnu::section("__libfuzzer_extra_counters")]] uint8_t g_counters[kCounters];

}  // namespace

// Called in every basic block of code that is compiled with -fsanitize-coverage=trace-pc.
extern "C" [[gnu::no_sanitize("all")]] void __sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<uintptr_t>(__builtin_return_address(0)) -
                     reinterpret_cast<uintptr_t>(&__executable_start);
  uint8_t& counter = g_counters[place * 0x9E3779B97F4A7C15 >> (64 - 15)];
  if (counter != UINT8_MAX) ++counter;
}

// Ignores comparisons of floating-point numbers.
extern "C" void __sanitizer_cov_trace_cmpf(float, float) {}
extern "C" void __sanitizer_cov_trace_cmpd(double, double) {}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // An empty input may come as a null pointer, which targets need not handle.
  outrider::FuzzTarget(size == 0 ? std::string_view("")
                                 : std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
