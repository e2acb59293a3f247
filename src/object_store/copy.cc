#include "object_store/copy.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>

#include "os/cpu_count.h"
#include "os/shared_memory.h"

namespace weft::core {
namespace {

// A few threads saturate the memory of most machines, and more would only delay others.
constexpr int kMaxThreads = 8;
// Cold pieces stay in the second-level cache between being zeroed by the kernel and being copied to.
constexpr uint64_t kColdPieceBytes = 2u << 20;
constexpr uint64_t kWarmPieceBytes = 8u << 20;

struct CopyJob {
  uint8_t* destination;
  const uint8_t* source;
  uint64_t size;
  uint64_t piece_bytes;
  uint64_t lead;  // from the start of the destination's page: pieces end where pages end, so no two share a page
  Pages pages;
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::optional<Error> error;  // guarded by mutex, the first one

  void Run() {
    while (!failed.load(std::memory_order_relaxed)) {
      uint64_t piece = next.fetch_add(1, std::memory_order_relaxed);
      uint64_t begin = piece * piece_bytes, end = begin + piece_bytes;
      begin = begin < lead ? 0 : begin - lead;
      end = std::min(end - lead, size);
      if (begin >= size) return;
      if (pages == Pages::kCold) {
        auto populated = PopulatePages(destination + begin, end - begin);
        if (!populated) {
          std::lock_guard lock(mutex);
          if (!error) error = populated.error();
          failed.store(true, std::memory_order_relaxed);
          return;
        }
      }
      std::memcpy(destination + begin, source + begin, end - begin);
    }
  }
};

void* RunCopyJob(void* job) {
  static_cast<CopyJob*>(job)->Run();
  return nullptr;
}

}  // namespace

Status CopyLarge(void* destination, const void* source, uint64_t size, int threads, Pages pages) {
  if (size == 0) return {};
  if (threads <= 1 && pages == Pages::kWarm) {
    std::memcpy(destination, source, size);
    return {};
  }
  threads = std::clamp(threads, 1, kMaxThreads);
  CopyJob job{.destination = static_cast<uint8_t*>(destination), .source = static_cast<const uint8_t*>(source)};
  job.size = size;
  job.pages = pages;
  job.lead = reinterpret_cast<uintptr_t>(destination) % kPageBytes;
  uint64_t largest = pages == Pages::kCold ? kColdPieceBytes : kWarmPieceBytes;
  // Four pieces for each thread, so that one that started late does not make the others wait for long.
  uint64_t fair = size / static_cast<uint64_t>(threads * 4) / kPageBytes * kPageBytes;
  job.piece_bytes = std::clamp<uint64_t>(fair, 64 * kPageBytes, largest);

  pthread_t helpers[kMaxThreads];
  int started = 0;
  if (threads > 1) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started < threads - 1 && pthread_create(&helpers[started], nullptr, RunCopyJob, &job) == 0) ++started;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  job.Run();
  for (int i = 0; i < started; ++i) pthread_join(helpers[i], nullptr);
  if (job.error) return *job.error;
  return {};
}

int CopyThreads(uint64_t size) {
  if (size < kParallelCopyBytes) return 1;
  static const int allowed = AllowedCpus();
  int worthwhile = static_cast<int>(std::min<uint64_t>(size / (kParallelCopyBytes / 2), kMaxThreads));
  return std::min(IdleCpus(allowed), worthwhile);
}

}  // namespace weft::core
