#include "common/engine/library.h"

#include <dlfcn.h>

#include <system_error>

#include "absl/status/status.h"

namespace outrider {

absl::StatusOr<void*> FindInLibrary(const std::filesystem::path& library, const char* symbol,
                                    const char* if_missing) {
  std::error_code error;
  if (!std::filesystem::exists(library, error)) return absl::FailedPreconditionError(if_missing);
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return absl::FailedPreconditionError(dlerror());
  void* const found = dlsym(handle, symbol);
  if (found == nullptr) return absl::FailedPreconditionError(dlerror());
  return found;
}

}  // namespace outrider
