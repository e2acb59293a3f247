#include "events/event_log.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace weft::core {
namespace {

constexpr uint64_t kMagic = 0x31676f6c74666577;  // "weftlog1"
constexpr uint64_t kClockNs = 1, kClockTsc = 2;
constexpr size_t kMaxNameBytes = 512;  // qualified names of generated functions can be absurd

// The kernel's own clock runs on the TSC only if it found it constant and the same on all cores.
bool TscIsTrusted() {
#if defined(__x86_64__)
  UniqueFd file(::open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC));
  char text[8] = {};
  return file && ::read(file.get(), text, sizeof text - 1) > 0 && std::strcmp(text, "tsc\n") == 0;
#else
  return false;
#endif
}

uint64_t TicksNow(uint64_t clock) {
#if defined(__x86_64__)
  if (clock == kClockTsc) return __builtin_ia32_rdtsc();
#endif
  return static_cast<uint64_t>(NowNs());
}

// Turns ticks into nanoseconds by two instants of which both are known: the log's beginning, and now. The TSC is the
// same for every process of the machine, so the reader's own will do.
class TickConversion {
 public:
  explicit TickConversion(const EventLogHeader& header)
      : tsc_(header.clock == kClockTsc), base_ticks_(header.base_ticks), base_ns_(header.base_ns) {
    if (!tsc_) return;
    double ticks = static_cast<double>(TicksNow(kClockTsc)) - static_cast<double>(base_ticks_);
    double ns = static_cast<double>(NowNs()) - static_cast<double>(base_ns_);
    ns_per_tick_ = ticks > 0 && ns > 0 ? ns / ticks : 0;
  }
  int64_t operator()(uint64_t ticks) const {
    if (!tsc_) return static_cast<int64_t>(std::min<uint64_t>(ticks, INT64_MAX));
    double since = static_cast<double>(static_cast<int64_t>(ticks - base_ticks_)) * ns_per_tick_;
    if (since < -1e18 || since > 1e18) return INT64_MAX;
    return static_cast<int64_t>(base_ns_) + static_cast<int64_t>(since);
  }
  double ns_per_tick() const { return ns_per_tick_; }

 private:
  bool tsc_;
  uint64_t base_ticks_, base_ns_;
  double ns_per_tick_ = 0;
};

}  // namespace

Result<UniqueFd> CreateEventLog(ProcessId process) {
  static const uint64_t clock = TscIsTrusted() ? kClockTsc : kClockNs;
  auto fd = CreateMemfd("events", sizeof(EventLogMemory));
  if (!fd) return fd;
  EventLogHeader head{.magic = kMagic, .process = process.value, .clock = clock, .base_ticks = 0, .base_ns = 0};
  // The shortest of a few readings: an interruption between the two clocks would spoil the conversion.
  uint64_t shortest = ~0ull;
  for (int i = 0; i < 3; ++i) {
    uint64_t before = TicksNow(clock);
    auto ns = static_cast<uint64_t>(NowNs());
    uint64_t after = TicksNow(clock);
    if (after - before >= shortest) continue;
    shortest = after - before;
    head.base_ticks = before + (after - before) / 2;
    head.base_ns = ns;
  }
  if (::pwrite(fd->get(), &head, sizeof head, 0) != sizeof head) {
    return Error{ErrorKind::kUnavailable, "cannot write the head of an event log"};
  }
  return fd;
}

Status EventLog::Open(int fd) {
  if (Status status = CheckSealedMemfd(fd, sizeof(EventLogMemory)); !status) return status;
  auto mapping = Mapping::Map(fd, sizeof(EventLogMemory), Mapping::Access::kReadWrite);
  if (!mapping) return mapping.error();
  auto* memory = reinterpret_cast<EventLogMemory*>(mapping->data());
  if (memory->header.magic != kMagic) return Error{ErrorKind::kInvalid, "this memory is not an event log"};
  mapping_ = std::move(*mapping);
  PreferSmallPages(mapping_.data(), mapping_.size());
  use_tsc_ = memory->header.clock == kClockTsc;
  if (!use_tsc_) ns_per_tick_.store(1);
  memory_ = memory;
  return {};
}

double EventLog::Calibrate() {
  const TickConversion clock(memory_->header);
  constexpr int64_t kLongEnoughNs = 1'000'000;  // that reading both clocks, one after the other, does not matter
  if (NowNs() - static_cast<int64_t>(memory_->header.base_ns) < kLongEnoughNs) return 0;
  ns_per_tick_.store(clock.ns_per_tick(), std::memory_order_relaxed);
  return clock.ns_per_tick();
}

uint32_t EventLog::NameId(std::string_view name) {
  if (!memory_ || name.empty()) return 0;
  name = name.substr(0, kMaxNameBytes);
  std::lock_guard lock(names_mutex_);
  auto [known, is_new] = name_ids_.try_emplace(std::string(name), 0);
  if (!is_new) return known->second;
  // 0 means no name, so the first one is not there.
  uint64_t at = std::max<uint64_t>(memory_->names_used.load(std::memory_order_relaxed), 4);
  auto size = static_cast<uint32_t>(name.size());
  if (at + sizeof size + size > kEventNamesBytes) return 0;
  std::memcpy(memory_->names + at, &size, sizeof size);
  std::memcpy(memory_->names + at + sizeof size, name.data(), size);
  memory_->names_used.store((at + sizeof size + size + 3) / 4 * 4, std::memory_order_release);
  known->second = static_cast<uint32_t>(at);
  return known->second;
}

bool IsUnusedEventLog(int fd) {
  // A name is needed before anything can happen, and whatever happens counts from then on, also what never ended.
  uint64_t words[2] = {1, 1};
  const off_t offsets[2] = {offsetof(EventLogMemory, head), offsetof(EventLogMemory, names_used)};
  for (int i = 0; i < 2; ++i) {
    if (::pread(fd, &words[i], sizeof words[i], offsets[i]) != sizeof words[i]) return false;
  }
  return words[0] == 0 && words[1] == 0;
}

std::string RecentFunction(int fd, int64_t since_ns) {
  // What is read may change meanwhile: then the answer is that of a moment ago, or none.
  constexpr size_t kLook = 16;  // records; more than that end within a moment only if tasks are tiny
  struct Page {
    EventLogHeader header;
    alignas(64) uint64_t head;
    alignas(64) uint64_t names_used;
    alignas(64) uint64_t lanes[kEventLanes][8];
  };
  static_assert(offsetof(Page, lanes) == offsetof(EventLogMemory, lanes));
  Page page;
  if (::pread(fd, &page, sizeof page, 0) != sizeof page || page.header.magic != kMagic) return {};
  const TickConversion to_ns(page.header);
  uint32_t name = 0;
  auto add = [&](uint64_t about) {
    auto found = static_cast<uint32_t>(about);
    if (name != 0 && found != name) return false;
    name = found;
    return name != 0;
  };
  for (const auto& lane : page.lanes) {
    if (lane[0] != 0 && !add(lane[4])) return {};
  }
  uint64_t cells[kLook][8];
  const uint64_t last = page.head % kEventRecords;
  const uint64_t count = std::min<uint64_t>({kLook, page.head, last == 0 ? kLook : last});
  const uint64_t first = (last + kEventRecords - count) % kEventRecords;
  const auto size = static_cast<ssize_t>(count * sizeof cells[0]);
  if (::pread(fd, cells, static_cast<size_t>(size), static_cast<off_t>(offsetof(EventLogMemory, cells) + first * 64)) !=
      size) {
    return {};
  }
  for (uint64_t i = count; i-- > 0;) {
    if (cells[i][0] != page.head - count + i + 1) continue;
    const uint64_t about = cells[i][6];
    if (static_cast<uint8_t>(about >> 48) != static_cast<uint8_t>(EventKind::kRan)) continue;
    // If none has run since, it is the last one: output may be read late, or be of what that one has left behind.
    const bool long_ago = to_ns(cells[i][2]) < since_ns;
    if (long_ago && name != 0) break;
    if (!add(about)) return {};
    if (long_ago) break;
  }
  uint32_t length = 0;
  char text[kMaxNameBytes];
  const auto at = static_cast<off_t>(offsetof(EventLogMemory, names) + name);
  if (name == 0 || name >= kEventNamesBytes || ::pread(fd, &length, sizeof length, at) != sizeof length) return {};
  if (length > kMaxNameBytes || ::pread(fd, text, length, at + static_cast<off_t>(sizeof length)) != length) return {};
  return std::string(text, length);
}

Result<EventLogCopy> ReadEventLog(int fd) {
  if (Status status = CheckSealedMemfd(fd, sizeof(EventLogMemory)); !status) return status.error();
  auto mapping = Mapping::Map(fd, sizeof(EventLogMemory), Mapping::Access::kReadOnly);
  if (!mapping) return mapping.error();
  const auto& memory = *reinterpret_cast<const EventLogMemory*>(mapping->data());
  if (memory.header.magic != kMagic) return Error{ErrorKind::kInvalid, "this memory is not an event log"};
  const TickConversion to_ns(memory.header);
  // Events have stamps of before now; anything later is nonsense. Allows a moment for the error of the conversion.
  const int64_t latest = NowNs() + 1'000'000;

  EventLogCopy copy;
  copy.process = {memory.header.process};
  const uint64_t names_used = std::min<uint64_t>(memory.names_used.load(std::memory_order_acquire), kEventNamesBytes);
  auto note_name = [&](uint32_t id) {
    if (id == 0 || id % 4 != 0 || copy.names.contains(id) || id + sizeof(uint32_t) > names_used) return;
    uint32_t size;
    std::memcpy(&size, memory.names + id, sizeof size);
    if (size > kMaxNameBytes || id + sizeof size + size > names_used) return;
    copy.names[id] = std::string(memory.names + id + sizeof size, size);
  };
  auto decode = [&](uint64_t begin, uint64_t end, const uint64_t* words, RecordedEvent& event) {
    const uint64_t about = words[3];
    event.process = words[0];
    event.task = words[1];
    event.object = words[2];
    event.name = static_cast<uint32_t>(about);
    event.attempt = static_cast<uint16_t>(about >> 32);
    event.kind = static_cast<EventKind>(static_cast<uint8_t>(about >> 48));
    event.outcome = static_cast<EventOutcome>(static_cast<uint8_t>(about >> 56));
    if (event.kind < EventKind::kRan || event.kind > EventKind::kReturns) return false;
    if (event.outcome > EventOutcome::kHandedBack) return false;
    if (begin != 0 && (event.begin_ns = to_ns(begin)) > latest) return false;
    if (end != 0 && ((event.end_ns = to_ns(end)) > latest || event.end_ns < event.begin_ns)) return false;
    note_name(event.name);
    return true;
  };

  const uint64_t head = memory.head.load(std::memory_order_acquire);
  copy.overwritten = head > kEventRecords ? head - kEventRecords : 0;
  copy.events.reserve(static_cast<size_t>(head - copy.overwritten));
  for (uint64_t number = copy.overwritten; number < head; ++number) {
    const EventCell& cell = memory.cells[number % kEventRecords];
    uint64_t before = cell.sequence.load(std::memory_order_acquire);
    uint64_t words[7];
    for (int i = 0; i < 7; ++i) words[i] = cell.words[i].load(std::memory_order_acquire);
    if (before != number + 1 || cell.sequence.load(std::memory_order_relaxed) != before) continue;
    RecordedEvent event;
    event.lane = static_cast<uint32_t>(std::min<uint64_t>(words[6], kEventLanes));
    if (decode(words[0], words[1], words + 2, event)) copy.events.push_back(event);
  }
  for (uint32_t lane = 0; lane < kEventLanes; ++lane) {
    const EventLane& cell = memory.lanes[lane];
    uint64_t begin = cell.begin.load(std::memory_order_acquire);
    uint64_t words[4];
    for (int i = 0; i < 4; ++i) words[i] = cell.words[i].load(std::memory_order_acquire);
    if (begin == 0 || cell.begin.load(std::memory_order_relaxed) != begin) continue;
    RecordedEvent event;
    event.lane = lane;
    if (decode(begin, 0, words, event)) copy.running.push_back(event);
  }
  return copy;
}

}  // namespace weft::core
