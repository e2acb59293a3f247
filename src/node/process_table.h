// The processes of a node as its core sees them, and how those that have ended died. Pure.
//
// A process's life: connecting (its first message is awaited), ready, closing (its socket has ended; its exit status
// is awaited for a moment, so that its death can be announced with the reason), gone. Everybody hears of its death; who
// routes to it later hears it again, as long as it is remembered.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "wire/ids.h"
#include "wire/messages.h"

namespace weft::core {

struct LocalProcess {
  enum class Stage : uint8_t { kConnecting, kReady, kClosing };
  ProcessId id;
  ProcessId job;  // its driver's number
  bool is_driver = false;
  bool python_of_cpp_job = false;  // see WorkerKind
  Stage stage = Stage::kConnecting;
  bool killed = false;
  bool stopped = false;                         // it stands still (NodeCore::FreezeWork)
  std::map<ResourceAmounts, uint64_t> granted;  // leases that it was told of, in all, by shape
  std::string actor_class;                      // of the actor that lives in it

  bool ready() const { return stage == Stage::kReady; }
};

class ProcessTable {
 public:
  static constexpr size_t kMaxRememberedDeaths = 4096;

  void StartNumbersAt(uint64_t number) { next_number_ = number; }
  ProcessId NextNumber() { return ProcessId{next_number_++}; }
  uint64_t* next_number() { return &next_number_; }
  // Of this node's numbers.
  bool WasGiven(ProcessId process) const { return process.value < next_number_; }

  LocalProcess& Add(LocalProcess process) {
    const ProcessId id = process.id;
    return processes_.insert_or_assign(id, std::move(process)).first->second;
  }
  void Remove(ProcessId process) { processes_.erase(process); }
  LocalProcess* Find(ProcessId process) {
    auto found = processes_.find(process);
    return found == processes_.end() ? nullptr : &found->second;
  }
  const LocalProcess* Find(ProcessId process) const { return const_cast<ProcessTable*>(this)->Find(process); }
  bool Contains(ProcessId process) const { return processes_.contains(process); }
  std::map<ProcessId, LocalProcess>& all() { return processes_; }
  const std::map<ProcessId, LocalProcess>& all() const { return processes_; }

  // Of this node or another.
  void RememberDeath(ProcessId process, std::string how) {
    if (!deaths_.insert_or_assign(process, std::move(how)).second) return;
    deaths_in_order_.push_back(process);
    if (deaths_in_order_.size() <= kMaxRememberedDeaths) return;
    deaths_.erase(deaths_in_order_.front());
    deaths_in_order_.pop_front();
  }
  bool RemembersDeath(ProcessId process) const { return deaths_.contains(process); }
  // In words, also if it is not known.
  std::string HowItDied(ProcessId process) const {
    auto death = deaths_.find(process);
    return death != deaths_.end() ? death->second : "it has ended";
  }

 private:
  std::map<ProcessId, LocalProcess> processes_;
  std::map<ProcessId, std::string> deaths_;  // the latest ones
  std::deque<ProcessId> deaths_in_order_;
  uint64_t next_number_ = 1;
};

}  // namespace weft::core
