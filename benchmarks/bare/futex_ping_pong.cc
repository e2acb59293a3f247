// Bare limit of "task sync": two processes wake each other through a futex word each, unpinned and without spinning.
//
// usage: weft_bench_futex_ping_pong SECONDS   prints {"seconds": ...}, the mean duration of a round trip.
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace {

struct Words {
  alignas(64) std::atomic<uint32_t> ping{0};
  alignas(64) std::atomic<uint32_t> pong{0};
};
constexpr uint32_t kStop = 0xffffffff;

// The words are shared between processes, so the futexes must not be private.
void Wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

// Sleeps until the word differs from `old`. The kernel compares again before it sleeps, so no wake-up is lost.
uint32_t WaitUntilNot(std::atomic<uint32_t>& word, uint32_t old) {
  uint32_t now;
  while ((now = word.load(std::memory_order_acquire)) == old) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, old, nullptr, nullptr, 0);
  }
  return now;
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = argc > 1 ? std::atof(argv[1]) : 0.3;
  void* memory = mmap(nullptr, sizeof(Words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  Words& words = *new (memory) Words;
  pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // The child waits for the parent; it must not outlive a killed one.
    for (uint32_t seen = 0;;) {
      seen = WaitUntilNot(words.ping, seen);
      if (seen == kStop) _exit(0);
      words.pong.store(seen, std::memory_order_release);
      Wake(words.pong);
    }
  }
  auto begin = std::chrono::steady_clock::now();
  auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  uint32_t turn = 0;
  auto round_trip = [&] {
    words.ping.store(turn + 1, std::memory_order_release);
    Wake(words.ping);
    WaitUntilNot(words.pong, turn);
    ++turn;
  };
  for (int i = 0; i < 100; ++i) round_trip();
  uint32_t warm = turn;
  begin = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 20; ++i) round_trip();
  } while (elapsed() < seconds);
  double mean = elapsed() / (turn - warm);
  words.ping.store(kStop, std::memory_order_release);
  Wake(words.ping);
  waitpid(child, nullptr, 0);
  std::printf("{\"seconds\": %.9f, \"round_trips\": %u}\n", mean, turn - warm);
}
