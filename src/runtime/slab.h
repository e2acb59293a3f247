// Fixed-size records at stable addresses, named by handles that are never used twice.
//
// A handle is generation << 32 | slot. Handles travel to other processes and come back as input: Find() answers
// nullptr for anything that is not a live record. Memory of freed records is reused, never unmapped, so a late look
// at a freed record is harmless. One thread at a time (the runtime's lock).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "base/check.h"

namespace weft::core {

template <class T>
class Slab {
 public:
  ~Slab() {
    for (uint32_t slot = 0; slot < used_; ++slot) {
      if (At(slot)->generation & 1) At(slot)->get()->~T();
    }
  }

  // Constructs a record; T must have a member `handle` and initialise all its members.
  T* New() {
    uint32_t slot;
    if (!free_.empty()) {
      slot = free_.back();
      free_.pop_back();
    } else {
      slot = used_++;
      if ((slot >> kChunkBits) >= chunks_.size()) chunks_.push_back(std::make_unique<Cell[]>(kChunkSize));
    }
    Cell* cell = At(slot);
    ++cell->generation;               // odd: alive
    T* record = new (cell->bytes) T;  // its members say their values; T() would write zeros below them first
    record->handle = (uint64_t{cell->generation} << 32) | slot;
    ++alive_;
    return record;
  }

  void Delete(T* record) {
    auto slot = static_cast<uint32_t>(record->handle);
    Cell* cell = At(slot);
    WEFT_CHECK(cell->get() == record && (cell->generation & 1), "deleting a record that is not alive");
    record->~T();
    ++cell->generation;
    free_.push_back(slot);
    --alive_;
  }

  T* Find(uint64_t handle) {
    auto slot = static_cast<uint32_t>(handle);
    if (slot >= used_) return nullptr;
    Cell* cell = At(slot);
    if (cell->generation != static_cast<uint32_t>(handle >> 32) || !(cell->generation & 1)) return nullptr;
    return cell->get();
  }

  size_t alive() const { return alive_; }

  template <class F>
  void ForEach(F f) {
    for (uint32_t slot = 0; slot < used_; ++slot) {
      if (At(slot)->generation & 1) f(At(slot)->get());
    }
  }

 private:
  static constexpr uint32_t kChunkBits = 9,
                            kChunkSize = 1u << kChunkBits;  // about 50 kB a chunk: cheap for small sessions
  struct Cell {
    alignas(T) std::byte bytes[sizeof(T)];
    uint32_t generation = 0;
    T* get() { return std::launder(reinterpret_cast<T*>(bytes)); }
  };
  Cell* At(uint32_t slot) { return &chunks_[slot >> kChunkBits][slot & (kChunkSize - 1)]; }

  std::vector<std::unique_ptr<Cell[]>> chunks_;
  std::vector<uint32_t> free_;
  uint32_t used_ = 0;
  size_t alive_ = 0;
};

}  // namespace weft::core
