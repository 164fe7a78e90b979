#include "common/engine/torch/try.h"

#include <c10/core/InferenceMode.h>

#include <exception>
#include <new>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace outrider::libtorch {

absl::Status Try(StepRunner& runner, absl::string_view what, absl::FunctionRef<absl::Status()> work) {
  const auto message = [&](absl::string_view error) {
    return absl::StrCat(what, ": ", error.substr(0, error.find('\n')));
  };
  try {
    const c10::InferenceMode no_gradients;
    absl::Status status;
    runner.InOrder([&] { status = work(); });
    return status;
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(message(error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    const absl::string_view why = error.what_without_backtrace();
    // What the CPU's allocator throws has no type of its own.
    return absl::StrContains(why, "DefaultCPUAllocator") ? absl::ResourceExhaustedError(message(why))
                                                         : absl::InternalError(message(why));
  } catch (const std::bad_alloc& error) {
    return absl::ResourceExhaustedError(message(error.what()));
  } catch (const std::exception& error) {
    return absl::InternalError(message(error.what()));
  }
}

}  // namespace outrider::libtorch
