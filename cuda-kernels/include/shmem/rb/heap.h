/* Room in the symmetric heap. The same calls give the same places, so that an address means the same on every PE. */
#ifndef RINGBELL_SHMEM_HEAP_H
#define RINGBELL_SHMEM_HEAP_H

#include <stddef.h>
#include <stdint.h>

#include <map>

namespace rb {
namespace shmem {

class heap {
 public:
  /* Alignment where none is asked for, and unit of lengths: a line of a GPU's cache. */
  static constexpr size_t GRAIN = 128;

  void begin(uint64_t bytes) {
    bytes_ = bytes;
    used_.clear();
  }

  /* The first place that is long enough. */
  bool take(uint64_t bytes, uint64_t alignment, uint64_t *at) {
    if (!bytes || bytes > bytes_ || (alignment & (alignment - 1))) return false;
    if (alignment < GRAIN) alignment = GRAIN;
    bytes = (bytes + GRAIN - 1) & ~uint64_t(GRAIN - 1);
    uint64_t begin = 0;
    for (const auto &used : used_) {
      if (begin + bytes <= used.first) break;
      begin = (used.first + used.second + alignment - 1) & ~(alignment - 1);
    }
    if (begin > bytes_ || bytes > bytes_ - begin) return false;
    used_[begin] = bytes;
    *at = begin;
    return true;
  }

  bool give(uint64_t at) { return used_.erase(at) == 1; }

 private:
  uint64_t bytes_ = 0;
  std::map<uint64_t, uint64_t> used_;
};

} // namespace shmem
} // namespace rb

#endif /* RINGBELL_SHMEM_HEAP_H */
