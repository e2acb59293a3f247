// What a worker's executor may do inside its runtime. It has no other access.
//
// The executor shares the runtime's lock and state, since a task's frame is read, its arguments are counted and its
// reply is written in one go. Each group says what must hold.
#pragma once

#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/runtime.h"

namespace weft::core {

class Runtime::WorkerPort {
 public:
  explicit WorkerPort(Runtime& runtime) : runtime_(runtime) {}

  // ---- any thread, without the lock
  std::mutex& mutex() { return runtime_.mutex_; }
  ProcessId self() const { return runtime_.self(); }
  bool stopped() const { return runtime_.stopped(); }
  bool in_cluster() const { return runtime_.in_cluster_; }
  bool IsElsewhere(const Location& location) const { return runtime_.IsElsewhere(location); }
  EventLog& log() { return runtime_.log_; }
  SegmentWriter& writer() { return runtime_.writer_; }
  Result<const uint8_t*> MapStored(const Location& location) { return runtime_.MapStored(location); }
  void HoldOrphan(ObjectId id) { runtime_.HoldOrphan(id); }
  void DropReference(Object* object) { runtime_.DropReference(object); }
  void SetLoopRests(bool rests) { runtime_.SetLoopRests(rests); }
  void Flush() { runtime_.Flush(); }
  void FlushIfAny() {
    if (runtime_.outbox_.any()) runtime_.Flush();
  }

  // ---- with the lock
  // This thread is the worker's main thread from now on.
  void Attach(Executor* executor) {
    runtime_.executor_ = executor;
    runtime_.executor_thread_ = std::this_thread::get_id();
  }
  void Detach() { runtime_.executor_ = nullptr; }
  template <class F>
  void ForEachSubmitter(F&& f) {
    for (auto& [process, peer] : runtime_.submitters_) f(peer.get());
  }
  void ForgetSubmitter(ProcessId process) { runtime_.submitters_.erase(process); }  // which the executor no longer uses
  Owner& owner() { return *runtime_.owner_; }
  Actions& actions() { return runtime_.actions_; }
  void Perform() { runtime_.Perform(); }
  void Drain() { runtime_.Drain(); }
  void DrainDrops() { runtime_.DrainDrops(); }
  Copies& copies() { return runtime_.copies_; }
  void Send(Message message) { runtime_.Send(std::move(message)); }
  Waiters& waiters() { return runtime_.waiters_; }
  void SetWakeUps() { runtime_.SetWakeUps(runtime_.eager_waits_ > 0); }
  void ArmBackground() { runtime_.ArmBackground(); }

  // ---- for the one poller, without the lock
  Doorbell& doorbell() { return *runtime_.doorbell_; }
  bool AnyDue() { return runtime_.AnyDue(); }
  bool ReadStreams() { return runtime_.ReadStreams(); }
  int64_t SpinLimitNs() const { return runtime_.SpinLimitNs(); }
  template <class Condition>
  SleepOutcome SleepAsWaiter(WaiterState kind, int64_t deadline_ns, Condition&& something_to_do) {
    return runtime_.SleepAsWaiter(kind, deadline_ns, something_to_do);
  }

 private:
  Runtime& runtime_;
};

}  // namespace weft::core
