// The thread that reads the sockets of a process's streams ("weft-streams") and rings the process's own doorbell for
// them, so that everybody else sleeps and wakes as with rings. It also sends what a full socket did not take, and what
// was left for later.
//
// Made by Runtime with its first stream. Blocks all signals; needs no lock of the runtime and no GIL. It never
// allocates for a stream beyond the window that the stream gives its peer. In a forked child it does not exist, and
// nothing here may be used.
//
// Lingering. What may be late is put off: frames that are gathered (SharedStream::Gather) and wake-ups for replies that
// nobody asked for by number. The poller sees to both after kLingerNs; to gather while it lingers costs no system call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
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
  // How late a reply that nobody asked for by number, or a frame that was gathered, may be.
  static constexpr int64_t kLingerNs = 300'000;

  // `doorbell`: the page of this process itself.
  static Result<std::unique_ptr<StreamPoller>> Start(std::shared_ptr<Mapping> doorbell);
  ~StreamPoller();

  // From now on the stream is read. It must live until Stop.
  Status Add(SharedStream* stream);
  void Stop();

  // Sends what is gathered: the caller is about to sleep and has nothing to add. Any thread, without the runtime's
  // lock.
  void FlushGathered() {
    if (gathers_.load(std::memory_order_relaxed)) SendGathered();
  }

 private:
  friend class SharedStream;
  StreamPoller(UniqueFd epoll, UniqueFd wake, std::shared_ptr<Mapping> doorbell);

  // For SharedStream, which serialises them for its own socket.
  bool Watch(int fd, SharedStream* stream, bool writable, bool again);
  void Unwatch(int fd);
  void Ring(uint32_t slot, Audience audience) { bell_.Ring(slot, audience); }
  void Gather(SharedStream* stream);

  void SendGathered();
  void Wake();
  void Loop();

  UniqueFd epoll_;
  UniqueFd wake_;
  PeerDoorbell bell_;
  std::atomic<bool> lingers_{false};  // a round will come
  std::atomic<bool> gathers_{false};  // gathered_ may not be empty
  std::atomic<bool> ends_{false};
  std::mutex mutex_;  // nothing is locked while it is held
  std::vector<SharedStream*> gathered_;
  std::thread thread_;
};

}  // namespace weft::core
