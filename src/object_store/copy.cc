#include "object_store/copy.h"

#include <pthread.h>
#include <signal.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

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
// Large enough that the two system calls per cold piece do not matter, small enough to share out.
constexpr uint64_t kLargestPieceBytes = 2u << 20;
// From here on a copy bypasses the cache: it would only evict what others need. memcpy does so by itself for
// large copies, but not piece by piece (measured: 9 GB/s in pieces against 14 GB/s).
constexpr uint64_t kStreamBytes = 16u << 20;

#if defined(__x86_64__)
void StreamCopy(uint8_t* to, const uint8_t* from, uint64_t size) {
  uint64_t lead = std::min(size, -reinterpret_cast<uintptr_t>(to) % 64);
  std::memcpy(to, from, lead);
  to += lead;
  from += lead;
  size -= lead;
  for (; size >= 64; to += 64, from += 64, size -= 64) {
    __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16));
    __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 32));
    __m128i d = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 48));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), a);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + 16), b);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + 32), c);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + 48), d);
  }
  _mm_sfence();  // streamed stores are not ordered by a later release store
  std::memcpy(to, from, size);
}
#else
void StreamCopy(uint8_t* to, const uint8_t* from, uint64_t size) { std::memcpy(to, from, size); }
#endif

struct CopyJob {
  uint8_t* destination;
  const uint8_t* source;
  uint64_t size;
  int fd = -1;  // -1: the pages exist
  uint64_t offset = 0;
  uint64_t piece_bytes = 0;
  uint64_t lead = 0;  // from the start of the destination's page: pieces end where pages end, so no two share a page
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex{};
  std::optional<Error> error{};  // guarded by mutex, the first one

  void Run() {
    while (!failed.load(std::memory_order_relaxed)) {
      uint64_t piece = next.fetch_add(1, std::memory_order_relaxed);
      uint64_t begin = piece == 0 ? 0 : piece * piece_bytes - lead;
      if (begin >= size) return;
      uint64_t bytes = std::min((piece + 1) * piece_bytes - lead, size) - begin;
      if (fd >= 0) {
        auto written = WriteShared(fd, offset + begin, source + begin, bytes);
        if (!written) {
          std::lock_guard lock(mutex);
          if (!error) error = written.error();
          failed.store(true, std::memory_order_relaxed);
          return;
        }
        MapExistingPages(destination + begin, bytes);
      } else if (size >= kStreamBytes) {
        StreamCopy(destination + begin, source + begin, bytes);
      } else {
        std::memcpy(destination + begin, source + begin, bytes);
      }
    }
  }
};

void* RunCopyJob(void* job) {
  static_cast<CopyJob*>(job)->Run();
  return nullptr;
}

Status RunWithHelpers(CopyJob& job, int threads) {
  threads = std::clamp(threads, 1, kMaxThreads);
  job.lead = reinterpret_cast<uintptr_t>(job.destination) % kPageBytes;
  // Four pieces for each thread, so that one that started late does not make the others wait for long.
  uint64_t fair = job.size / static_cast<uint64_t>(threads * 4) / kPageBytes * kPageBytes;
  job.piece_bytes = std::clamp<uint64_t>(fair, 64 * kPageBytes, kLargestPieceBytes);
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

}  // namespace

void CopyWarm(void* destination, const void* source, uint64_t size, int threads) {
  if (size == 0) return;
  if (threads <= 1) {
    std::memcpy(destination, source, size);
    return;
  }
  CopyJob job{
      .destination = static_cast<uint8_t*>(destination), .source = static_cast<const uint8_t*>(source), .size = size};
  WEFT_CHECK(RunWithHelpers(job, threads).ok(), "a copy in memory cannot fail");
}

Status CopyCold(ColdDestination destination, const void* source, uint64_t size, int threads) {
  if (size == 0) return {};
  CopyJob job{.destination = destination.mapped,
              .source = static_cast<const uint8_t*>(source),
              .size = size,
              .fd = destination.fd,
              .offset = destination.offset};
  return RunWithHelpers(job, threads);
}

int CopyThreads(uint64_t size) {
  if (size < kParallelCopyBytes) return 1;
  static const int allowed = AllowedCpus();
  int worthwhile = static_cast<int>(std::min<uint64_t>(size / (kParallelCopyBytes / 2), kMaxThreads));
  return std::min(IdleCpus(allowed), worthwhile);
}

}  // namespace weft::core
