// The thread that reads the sockets of a process's streams ("weft-streams") and rings the process's own doorbell for
// them, so that all other threads sleep and wake as with rings. It also sends what a full socket did not take, and what
// was left for later.
//
// Made by Runtime with its first stream. Blocks all signals; needs no lock of the runtime and no GIL. It never
// allocates for a stream beyond the window that the stream gives its peer. In a forked child it does not exist, and
// nothing here may be used.
//
// A waiter may read in its place. A separate reading thread costs two wake-ups for each awaited message, one more than
// needed. So when the thread has woken a waiter, it *parks*: the next thread that sleeps as the waiter, if it comes
// soon, waits for the sockets itself (SleepAsWaiter). Meanwhile the parked thread sleeps on the doorbell's word in its
// place and passes wake-ups by rings on to it. If no waiter has come for kTickNs, the thread reads again. The roles
// change under role_mutex_, so a thread watches sockets and doorbell at any moment, at worst kTickNs late.
//
// Lingering. What may be late is postponed: gathered frames (SharedStream::Gather) and wake-ups for replies that were
// not asked for by number. The poller handles both after kLingerNs; gathering while it lingers costs no system call.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "os/fd.h"
#include "os/memfd.h"
#include "transport/channel.h"
#include "transport/doorbell.h"

namespace weft::core {

class SharedStream;

class StreamPoller {
 public:
  // How late a gathered frame, or a reply that was not asked for by number, may be.
  static constexpr int64_t kLingerNs = 300'000;
  // How long a parked thread waits for a waiter. A process that calls less often pays the wake-ups.
  static constexpr int64_t kTickNs = 500'000;

  // `doorbell`: the page of this process itself.
  static Result<std::unique_ptr<StreamPoller>> Start(std::shared_ptr<Mapping> doorbell);
  ~StreamPoller();

  // Reads the stream from now on, until it has ended (SharedStream::AwaitEnd).
  Status Add(const std::shared_ptr<SharedStream>& stream);
  void Stop();

  // Like Doorbell::SleepAsWaiter on this process's doorbell, and reads the streams meanwhile. `waiter` is the same
  // page.
  template <class Condition>
  SleepOutcome SleepAsWaiter(Doorbell& waiter, WaiterState kind, int64_t deadline_ns, Condition&& something_to_do) {
    if (!Enter()) return waiter.SleepAsWaiter(kind, deadline_ns, something_to_do);
    if (!waiter.BeginSleep(kind, something_to_do)) {
      Leave();
      return SleepOutcome::kWoken;
    }
    return WaitInside(waiter, deadline_ns);
  }
  // Streams are in use, and the waiting thread reads them. Any thread; may be out of date at once.
  bool WaiterReads() const { return parked_.load(std::memory_order_relaxed); }
  // For a waiter that spins: reads what is there, if no other thread does. True if there was something.
  bool ReadWhileSpinning();

  // Sends gathered frames: the caller is about to sleep and has nothing to add. Any thread, without the runtime's lock.
  void FlushGathered() {
    if (gathers_.load(std::memory_order_relaxed)) SendGathered();
  }

 private:
  friend class SharedStream;
  StreamPoller(UniqueFd epoll, UniqueFd wake, std::shared_ptr<Mapping> doorbell);

  // For SharedStream, which serialises them for its own socket.
  bool Watch(int fd, uint64_t number, bool writable, bool again);
  void Unwatch(int fd, uint64_t number);
  void Ring(uint32_t slot, Audience audience) {
    if (bell_.waiter_state() != WaiterState::kAwake) woke_waiter_.store(true, std::memory_order_relaxed);
    bell_.Ring(slot, audience);
  }
  void Gather(std::shared_ptr<SharedStream> stream);

  bool Enter();
  void Leave();
  SleepOutcome WaitInside(Doorbell& waiter, int64_t deadline_ns);
  void SendGathered();
  void Wake();
  void Loop();
  void Park();
  // Reads what epoll has named. True if a round is asked for.
  bool Handle(const epoll_event* events, int count);
  void Round();

  UniqueFd epoll_;
  UniqueFd wake_;
  PeerDoorbell bell_;
  std::atomic<bool> lingers_{false};  // a round will come
  std::atomic<bool> gathers_{false};  // gathered_ may not be empty
  std::atomic<bool> ends_{false};
  std::atomic<bool> woke_waiter_{false};
  Doorbell own_;

  std::mutex role_mutex_;  // nothing is locked while it is held
  std::atomic<bool> parked_{false};
  bool inside_ = false;  // a waiter waits for the sockets
  bool deep_ = false;    // the parked thread sleeps until it is woken, as the waiter has stayed for a while
  std::atomic<uint32_t> entered_{0};

  std::mutex mutex_;  // nothing is locked while it is held
  uint64_t last_number_ = 0;
  std::unordered_map<uint64_t, std::shared_ptr<SharedStream>> watched_;  // by what epoll calls them
  std::vector<std::shared_ptr<SharedStream>> gathered_;
  std::vector<std::shared_ptr<SharedStream>> late_;  // that want RingLate
  std::thread thread_;
};

}  // namespace weft::core
