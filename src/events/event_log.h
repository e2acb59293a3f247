// A record of what a process did, in memory that outlives it: one memfd per process, made by the daemon, written by the
// process alone, read by observers that get the descriptor from the daemon. It survives a kill -9 of its writer.
//
// Three parts: the names of functions (append-only), the tasks that run now (a few lanes), and a ring of the last
// kEventRecords records. A record costs one cache line and, where the machine's TSC can be trusted, no clock call:
// times are written in ticks, and the reader turns them into CLOCK_MONOTONIC.
//
// Threads of the writer: any, without a lock. A record's words are written with release stores between sequence 0 and
// its own sequence, and read with acquire loads between two looks at the sequence; so a reader never takes a
// half-written record for a whole one. If the writer dies in the middle, the record keeps sequence 0 and is skipped. If
// a writer thread sleeps in the middle of a record while the others write a whole lap, that one record may be wrong:
// readers check everything and trust nothing.
//
// Does not decide what is worth recording. Old records are overwritten.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "os/fd.h"
#include "os/memfd.h"
#include "wire/ids.h"

namespace weft::core {

// 16,384 records take 1 MB once all were used, and last about ten seconds in a busy worker with ordinary tasks.
inline constexpr uint32_t kEventRecords = 16 * 1024;
// How many tasks that run at the same time can be seen running; more are recorded only when they end.
inline constexpr uint32_t kEventLanes = 32;
// All names of one process; functions beyond that have none.
inline constexpr uint32_t kEventNamesBytes = 64 * 1024;

enum class EventKind : uint8_t {
  kRan = 1,        // a task ran here: begin, end, submitter
  kSubmitted = 2,  // this process submitted a task
  kDepends = 3,    // a submitted task takes an object
  kReturns = 4,    // a submitted task's further return; the first is in kSubmitted
};

enum class EventOutcome : uint8_t { kOk = 0, kError = 1, kCancelled = 2, kHandedBack = 3 };

// The words of the memory, exactly. docs/formats.md has the table.
struct EventCell {
  std::atomic<uint64_t> sequence;  // number of the record plus one; 0 while it is written
  std::atomic<uint64_t> words[7];  // begin, end, process, task, object, about (name, attempt, kind, outcome), lane
};
struct EventLane {
  std::atomic<uint64_t> begin;  // 0: nothing runs
  std::atomic<uint64_t> words[7];
};
struct EventLogHeader {  // written by the daemon
  uint64_t magic;
  uint64_t process;
  uint64_t clock;                // 1: times are nanoseconds; 2: ticks of the TSC
  uint64_t base_ticks, base_ns;  // the same instant by both
};
struct EventLogMemory {
  EventLogHeader header;
  alignas(64) std::atomic<uint64_t> head;  // records ever written
  alignas(64) std::atomic<uint64_t> names_used;
  alignas(64) EventLane lanes[kEventLanes];
  alignas(4096) char names[kEventNamesBytes];  // each: u32 size, bytes, padded to 4; a name's id is its offset
  alignas(4096) EventCell cells[kEventRecords];
};
static_assert(sizeof(EventCell) == 64 && sizeof(EventLane) == 64);
static_assert(offsetof(EventLogMemory, names) == 4096);

// Made by the daemon, sealed, with its header in place.
Result<UniqueFd> CreateEventLog(ProcessId process);

// The writing side. Without memory (events are switched off) every call does nothing.
class EventLog {
 public:
  struct Running {
    uint64_t begin = 0, process = 0, task = 0, object = 0, about = 0;
    uint32_t lane = kEventLanes;  // kEventLanes: none was free
  };

  EventLog() = default;
  EventLog(const EventLog&) = delete;
  Status Open(int fd);
  bool on() const { return memory_ != nullptr; }

  // A number for a name, the same for the same name; 0 if there is no more room.
  uint32_t NameId(std::string_view name);

  // A task begins to run, and ends. `object` is its first return's index, 0 without one.
  Running Begin(ProcessId submitter, uint64_t task, uint64_t object, uint32_t name, uint32_t attempt) {
    Running running;
    if (!memory_) return running;
    running = {Ticks(), submitter.value, task, object, About(name, attempt, EventKind::kRan), TakeLane()};
    if (running.lane < kEventLanes) {
      EventLane& lane = memory_->lanes[running.lane];
      lane.words[0].store(running.process, std::memory_order_release);
      lane.words[1].store(running.task, std::memory_order_release);
      lane.words[2].store(running.object, std::memory_order_release);
      lane.words[3].store(running.about, std::memory_order_release);
      lane.begin.store(running.begin, std::memory_order_release);
    }
    return running;
  }
  // Returns how long it ran, in nanoseconds; 0 if that is not known (yet).
  uint32_t End(const Running& running, EventOutcome outcome) {
    if (!memory_) return 0;
    if (running.lane < kEventLanes) {
      memory_->lanes[running.lane].begin.store(0, std::memory_order_release);
      lanes_.fetch_and(~(1u << running.lane), std::memory_order_relaxed);
    }
    const uint64_t end = Ticks();
    Write(running.begin, end, running.process, running.task, running.object,
          running.about | uint64_t{static_cast<uint8_t>(outcome)} << 56, running.lane);
    return Nanoseconds(end - running.begin);
  }
  void Submitted(uint64_t task, uint64_t object, uint32_t name) {
    if (!memory_) return;
    Write(Ticks(), 0, 0, task, object, About(name, 0, EventKind::kSubmitted), 0);
  }
  void Depends(uint64_t task, ObjectId on) {
    if (!memory_) return;
    Write(0, 0, on.owner.value, task, on.index, About(0, 0, EventKind::kDepends), 0);
  }
  void Returns(uint64_t task, uint64_t object) {
    if (!memory_) return;
    Write(0, 0, 0, task, object, About(0, 0, EventKind::kReturns), 0);
  }

 private:
  static uint64_t About(uint32_t name, uint32_t attempt, EventKind kind) {
    return name | (uint64_t{attempt & 0xffff} << 32) | (uint64_t{static_cast<uint8_t>(kind)} << 48);
  }
  uint64_t Ticks() const {
#if defined(__x86_64__)
    if (use_tsc_) return __builtin_ia32_rdtsc();
#endif
    return static_cast<uint64_t>(NowNs());
  }
  uint32_t Nanoseconds(uint64_t ticks) {
    double per_tick = ns_per_tick_.load(std::memory_order_relaxed);
    if (per_tick == 0 && (per_tick = Calibrate()) == 0) return 0;
    const double ns = static_cast<double>(ticks) * per_tick;
    return ns < 1 ? 1 : ns > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(ns);
  }
  double Calibrate();  // 0: the log is too young
  uint32_t TakeLane() {
    uint32_t taken = lanes_.load(std::memory_order_relaxed);
    while (~taken != 0) {
      auto lane = static_cast<uint32_t>(__builtin_ctz(~taken));
      if (lanes_.compare_exchange_weak(taken, taken | 1u << lane, std::memory_order_relaxed)) return lane;
    }
    return kEventLanes;
  }
  void Write(uint64_t begin, uint64_t end, uint64_t process, uint64_t task, uint64_t object, uint64_t about,
             uint64_t lane) {
    uint64_t number = memory_->head.fetch_add(1, std::memory_order_relaxed);
    EventCell& cell = memory_->cells[number % kEventRecords];
    cell.sequence.store(0, std::memory_order_relaxed);
    // Each is a release after the zero above: a reader of one of these words then reads the zero, or something later.
    cell.words[0].store(begin, std::memory_order_release);
    cell.words[1].store(end, std::memory_order_release);
    cell.words[2].store(process, std::memory_order_release);
    cell.words[3].store(task, std::memory_order_release);
    cell.words[4].store(object, std::memory_order_release);
    cell.words[5].store(about, std::memory_order_release);
    cell.words[6].store(lane, std::memory_order_release);
    cell.sequence.store(number + 1, std::memory_order_release);
  }

  EventLogMemory* memory_ = nullptr;  // constant after Open
  bool use_tsc_ = false;
  std::atomic<double> ns_per_tick_{0};
  Mapping mapping_;
  std::atomic<uint32_t> lanes_{0};  // bit set: taken
  static_assert(kEventLanes == 32, "one bit each in lanes_");

  std::mutex names_mutex_;
  std::unordered_map<std::string, uint32_t> name_ids_;  // guarded by names_mutex_
};

// ---- reading

// True if its process neither ran nor submitted anything: such a log need not be kept.
bool IsUnusedEventLog(int fd);

struct RecordedEvent {
  EventKind kind = EventKind::kRan;
  EventOutcome outcome = EventOutcome::kOk;
  uint16_t attempt = 0;
  uint32_t name = 0;
  uint32_t lane = 0;
  int64_t begin_ns = 0, end_ns = 0;  // CLOCK_MONOTONIC; end 0: it runs now
  uint64_t process = 0, task = 0, object = 0;
};

struct EventLogCopy {
  ProcessId process;
  std::vector<RecordedEvent> events;   // in the order in which they were written
  std::vector<RecordedEvent> running;  // at the time of the copy
  std::map<uint32_t, std::string> names;
  uint64_t overwritten = 0;  // older records that are gone
};

// The one function that ran in this process between `since_ns` and now, or runs; the last one before that if there was
// none; empty if there were several. A few system calls and no mapping, for the daemon, which wants to know which
// function printed the output that it reads.
std::string RecentFunction(int fd, int64_t since_ns);

// Copies a log, even while it is written. Leaves out entries that make no sense.
Result<EventLogCopy> ReadEventLog(int fd);

}  // namespace weft::core
