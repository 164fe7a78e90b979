// What code that libFuzzer can follow calls in a program without libFuzzer, where the sanitizers do not
// define it.

extern "C" [[gnu::weak]] void __sanitizer_cov_trace_pc() {}
extern "C" [[gnu::weak]] void __sanitizer_cov_trace_cmpf(float, float) {}
extern "C" [[gnu::weak]] void __sanitizer_cov_trace_cmpd(double, double) {}
