// The network of a simulated cluster: streams between machines. What is sent over a stream arrives in order, or is lost
// with all that follows it; either side may close it, something on the way may reset it, and a direction between two
// machines may be cut for a while. A cut holds up what is on its way, as TCP would; a link over which nothing was heard
// for long ends on the side that has not heard.
//
// A machine may stand still (its kernel, too), or be without power: then it is silent until it is switched on again.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "simulator/coverage.h"

namespace weft::core {

class World;

struct Parcel {
  std::function<void()> arrives;
  size_t kind = 0;  // of a message between daemons; 0: anything else
  int64_t sent_ns = 0;
};

struct SimulatedStream {
  static constexpr int kDialler = 0, kListener = 1;
  struct Side {
    size_t machine = 0;
    bool open = true;
    bool ended = false;  // the other side has closed it: the end follows what is on its way to this one
    std::deque<Parcel> coming;
    int64_t pump_at_ns = INT64_MAX;
    // Once, unless this side closes it. By the peer: its kernel has said so, as against our own judgement.
    std::function<void(bool by_peer)> closed;
    std::function<void(const std::string& bytes)> message;  // of a link
  };
  Side side[2];
  bool idles = false;   // it ends when nothing is heard for long
  bool broken = false;  // by something on the way: nothing arrives any more
};
using StreamPointer = std::shared_ptr<SimulatedStream>;

class SimulatedNetwork {
 public:
  // False: the connection is closed at once.
  using Listener = std::function<bool(const StreamPointer& stream, const std::string& hello)>;
  // Without a stream it has failed; then whether a machine answered that nobody listens there.
  using Dialled = std::function<void(StreamPointer stream, bool nobody_listens)>;

  SimulatedNetwork(World& world, size_t machines);

  void Listen(size_t machine, uint64_t port, Listener listener) { listeners_[{machine, port}] = std::move(listener); }
  void StopListening(size_t machine, uint64_t port) { listeners_.erase({machine, port}); }
  void Dial(size_t from, size_t to, uint64_t port, bool idles, std::string hello, Dialled dialled);
  void Send(const StreamPointer& stream, int from, Parcel parcel);
  void Close(const StreamPointer& stream, int side, NetworkFault lost_by = NetworkFault::kLost);
  // Something on the way ends it: what is on its way is lost, and both sides are told, each in its own time.
  void Reset(const StreamPointer& stream);
  void ResetSome();
  void ResetAll(size_t a, size_t b);  // between these machines

  void Cut(size_t from, size_t to, int64_t until_ns);
  void Pause(size_t machine, int64_t until_ns);
  void SetPower(size_t machine, bool on);
  int64_t PausedUntil(size_t machine) const { return machines_[machine].paused_until_ns; }
  bool Reaches(size_t from, size_t to) const;

  // When so many messages of this kind have been sent, the next meets with this.
  struct Planned {
    size_t kind = 0;
    NetworkFault fault = NetworkFault::kCount;
    uint32_t after = 0;
  };
  std::vector<Planned> planned;
  std::function<void(size_t machine)> crash;  // of a machine

 private:
  struct Machine {
    bool powered = true;
    int64_t paused_until_ns = 0;
  };
  int64_t Latency();
  int64_t Strike(const StreamPointer& stream, int from, size_t kind);
  void Schedule(const StreamPointer& stream, int to, int64_t at_ns);
  void Pump(const StreamPointer& stream, int to);
  void Lose(SimulatedStream::Side& side, NetworkFault fault);
  void TellClosed(const StreamPointer& stream, int side, bool by_peer, int64_t delay_ns);
  void LookForSilence(size_t from, size_t to);
  void TryDial(size_t from, size_t to, uint64_t port, bool idles, std::string hello, Dialled dialled,
               int64_t give_up_ns);

  World& world_;
  std::vector<Machine> machines_;
  std::map<std::pair<size_t, size_t>, int64_t> cut_until_ns_;
  std::map<std::pair<size_t, size_t>, int64_t> silent_since_ns_;
  std::map<std::pair<size_t, uint64_t>, Listener> listeners_;
  std::vector<std::weak_ptr<SimulatedStream>> streams_;
};

}  // namespace weft::core
