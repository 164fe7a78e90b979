#include "tests/unit/limited_memory.h"

#include <cstdlib>
#include <new>

// These are in a file of their own, so that no compiler sees a pointer from `new` go to `free`.
void* operator new(size_t size) {
  void* const memory = size <= outrider::largest_allocation ? std::malloc(size) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*size*/) noexcept { std::free(memory); }
