// What the head has persisted: leadership at the start, what an earlier head has written, and every change since,
// written before anybody hears of it.
//
// Owned by the Head, on its loop thread, and by the simulator's. Knows the tables and the store; what the records mean
// is the Head's business. While the store is away, what must be written waits, in order; everything else goes on.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log_level.h"
#include "control_store/control_store.h"
#include "control_store/record_sealer.h"
#include "control_store/tables.h"
#include "wire/ids.h"
#include "wire/node_description.h"

namespace weft::core {

// What the head needs of its surroundings. The control store's answers bring no time along, so it is asked for.
class HeadIo {
 public:
  virtual int64_t Now() const = 0;     // the monotonic clock
  virtual int64_t UnixMs() const = 0;  // for people
  virtual void Log(LogLevel level, const char* what, const std::string& text) = 0;

 protected:
  ~HeadIo() = default;
};

class HeadLedger {
 public:
  struct Config {
    Candidate candidate;
    std::string node_name;  // of the head's own node: what is known under that name was an earlier life of it
    std::string token;      // of the cluster
    Identity new_cluster;   // its id, if this is the first head
    bool standby = false;   // wait until the head that leads is gone
    int64_t lease_ns = 0;   // that this head gives to members
    int64_t renew_ns = 1'500'000'000;
    int64_t again_ns = 200'000'000;
    // How long a head that starts waits for a store that does not answer yet, such as a Redis that is being started.
    int64_t open_ns = 15'000'000'000;
  };
  struct Restored {
    uint64_t epoch = 0;
    std::string cluster_id;
    std::vector<std::pair<NodeNumber, NodeDescription>> members;  // that lived, this machine's own former life excepted
    std::vector<NodeNumber> former_selves;
    NodeNumber next_node{1};
    int64_t lease_ns = 0;             // the longest that earlier heads have given to members
    std::vector<ActorRecord> actors;  // detached ones
    std::vector<JobRecord> jobs;      // that last for them
    bool found = false;               // there was an earlier head
  };
  class Host {
   public:
    // Once: this head leads.
    virtual void LedgerOpened(Restored restored) = 0;
    // Another leads, and a standby waits; once.
    virtual void LedgerHeld() = 0;
    // It leads no longer, or cannot; it must stop deciding at once.
    virtual void LedgerLost(const std::string& why) = 0;

   protected:
    ~Host() = default;
  };

  HeadLedger(Config config, ControlStore& store, HeadIo& io, Host& host)
      : config_(std::move(config)), store_(store), io_(io), host_(host) {}

  // Begins to lead; the host hears of the outcome.
  void Start();

  // Then is called when the change is in the store; not at all if this head leads no longer. Waits is called, once at
  // most and maybe at once, if the store takes no changes for the time being, with the reason.
  using Waits = std::function<void(const std::string& why)>;
  void Commit(WriteBatch batch, std::function<void()> then, Waits waits = nullptr);
  void NodeAccepted(NodeNumber node, const NodeDescription& description, NodeNumber next, std::function<void()> then);
  void NodeDied(NodeNumber node, std::function<void()> then);
  // Records from which code is run: they are sealed.
  void CommitSealed(WriteBatch batch, std::function<void()> then, Waits waits = nullptr);

  // From now on nothing is written, and the store's answers are ignored: the host ends.
  void Stop() { lost_ = true; }
  // For an orderly end: another may lead at once. False: there is nothing to resign from.
  bool Resign();

  size_t waiting_changes() const { return changes_.size(); }
  int64_t next_wakeup_ns() const;
  void Tick(int64_t now_ns);

 private:
  void Acquire();
  void Acquired(StoreResult<Leadership> outcome);
  Restored Read(Leadership& leadership);
  void Submit();
  void Committed(const StoreStatus& outcome);
  void Renew(int64_t now_ns);
  void TakesNone(const std::string& why);
  void TakesAgain();
  void Lose(const std::string& why);

  const Config config_;
  ControlStore& store_;
  HeadIo& io_;
  Host& host_;
  ClusterRecord cluster_;
  std::unique_ptr<RecordSealer> sealer_;  // once the cluster is known
  bool open_ = false;
  bool lost_ = false;
  bool told_held_ = false;
  std::string takes_none_;  // why, while the store takes no changes
  int64_t acquire_at_ns_ = INT64_MAX;
  int64_t give_up_ns_ = INT64_MAX;
  int64_t renew_at_ns_ = INT64_MAX;
  int64_t retry_at_ns_ = INT64_MAX;
  struct Change {
    WriteBatch batch;
    std::function<void()> then;
    Waits waits;  // until it was called
  };
  std::deque<Change> changes_;  // the first is with the store, or is tried again
  bool submitted_ = false;
};

}  // namespace weft::core
