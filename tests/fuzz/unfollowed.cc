// Empty coverage hooks, for programs that link to instrumented code without libFuzzer. They are weak, since
// the sanitizers may define them.

extern "C" [[gnu::weak]] void __sanitizer_cov_trace_pc() {}
extern "C" [[gnu::weak]] void __sanitizer_cov_trace_cmpf(float, float) {}
extern "C" [[gnu::weak]] void __sanitizer_cov_trace_cmpd(double, double) {}
