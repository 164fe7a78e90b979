// A function in a shared library that is loaded at run time.
#pragma once

#include <filesystem>

#include "absl/status/statusor.h"

namespace outrider {

// The address of `symbol` in the library, which is loaded if it is not yet, and never closed: the runtimes of
// CUDA and OpenMP, and libtorch's registered kernels, cannot be unloaded. FAILED_PRECONDITION, on one line,
// if the file is missing, which says `if_missing`, or cannot be loaded.
absl::StatusOr<void*> FindInLibrary(const std::filesystem::path& library, const char* symbol,
                                    const char* if_missing);

}  // namespace outrider
