// Decides when a worker process is started and when one that is no longer needed goes. Pure: events in, actions out.
//
// Called by the node daemon on its loop thread. A worker is starting, idle, leased, taken (an actor's, for good) or
// dying; it is counted from the
// StartWorker action until WorkerEnded. Some are started before anybody asks (prestart), more when the local scheduler
// could use them; those beyond `keep` go after a while of idleness. A start that fails is tried again with growing
// pauses and given up after a few failures in a row, with the reason: a broken interpreter must not be started for
// ever, nor may anybody wait for it in silence. When workers can be made better than before (Renew), those that exist
// give way as soon as they have nothing to do; actors keep theirs.
//
// Does not know about resources, leases or processes' descriptors, and does not read the clock: `now_ns` comes in.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "wire/ids.h"

namespace weft::core {

struct StartWorker {  // `worker` is its number from now on
  ProcessId worker;
  WorkerKind kind;
};
struct RetireWorker {  // it has been idle for long, or is outdated: tell it to leave
  ProcessId worker;
};
struct AbandonStart {  // it has taken too long to become ready: kill it
  ProcessId worker;
};
struct GiveUpStarting {  // requests that wait for a worker must be refused
  std::string why;
  WorkerKind kind;
};
using PoolAction = std::variant<StartWorker, RetireWorker, AbandonStart, GiveUpStarting>;

class WorkerPool {
 public:
  struct Config {
    uint32_t prestart = 0;  // started before anybody asks, and replaced when they die
    uint32_t keep = 0;      // idle workers up to this number of workers stay
    WorkerKind kind;        // for what it says of them
  };

  // Numbers come from `next_number`, which the pools of a node share.
  WorkerPool(Config config, uint64_t* next_number) : config_(config), next_number_(next_number) {}

  // Prestarting begins. Until then only wanted workers are started.
  void SessionOpened(int64_t now_ns, std::vector<PoolAction>& out);
  // So many more workers than are ready would be put to use (LocalScheduler's WantWorkers).
  void WorkersWanted(uint32_t count, int64_t now_ns, std::vector<PoolAction>& out);
  // The caller says next how many are wanted now that this one is ready (WorkersWanted). False: it is outdated, and
  // must leave without having had work.
  bool WorkerBecameReady(ProcessId worker, int64_t now_ns);
  void WorkerWasLeased(ProcessId worker);
  // For good: it is an actor's. It counts no more as one of those that are kept ready.
  void WorkerWasTaken(ProcessId worker);
  // False: it is outdated and must leave.
  bool WorkerWasFreed(ProcessId worker, int64_t now_ns);
  // The workers of now are outdated: the idle leave at once, the others when they are ready or freed.
  void Renew(int64_t now_ns, std::vector<PoolAction>& out);
  // Its process is gone. Before it was ready, that is a failed start.
  void WorkerEnded(ProcessId worker, const std::string& how, int64_t now_ns, std::vector<PoolAction>& out);
  void TimePassed(int64_t now_ns, std::vector<PoolAction>& out);

  // When TimePassed would change something; INT64_MAX if never.
  int64_t next_wakeup_ns() const;
  uint32_t starting() const { return Count(State::kStarting); }
  uint32_t ready() const { return Count(State::kIdle) + Count(State::kLeased); }
  size_t size() const { return workers_.size(); }
  bool gave_up() const { return gave_up_; }

  void CheckInvariants() const;

 private:
  enum class State : uint8_t { kStarting, kIdle, kLeased, kTaken, kDying };
  struct Worker {
    State state = State::kStarting;
    int64_t since_ns = 0;
    bool was_leased = false;
    bool outdated = false;
  };

  uint32_t Count(State state) const { return counts_[static_cast<size_t>(state)]; }
  void SetState(Worker& worker, State state, int64_t now_ns);
  uint32_t MissingWorkers() const;
  void StartMissing(int64_t now_ns, std::vector<PoolAction>& out);
  void StartFailed(const std::string& how, int64_t now_ns, std::vector<PoolAction>& out);
  int64_t NextRetirement() const;

  const Config config_;
  std::map<ProcessId, Worker> workers_;
  uint32_t counts_[5] = {};
  uint64_t* const next_number_;
  uint32_t wanted_ = 0;
  bool open_ = false;
  bool ever_ready_ = false;
  bool gave_up_ = false;
  std::string why_gave_up_;
  uint32_t failures_ = 0;  // in a row
  int64_t last_failure_ns_ = 0;
  int64_t not_before_ns_ = 0;  // no start before
};

}  // namespace weft::core
