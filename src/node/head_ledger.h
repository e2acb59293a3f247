// The head's way to the control store: leadership at the start, what an earlier head has written, and every change
// since, written before anybody hears of it.
//
// Owned by the Cluster of a head, on its loop thread. Knows the tables and the store; what the records mean is the
// Cluster's business. While the store is away, what must be written waits, in order; everything else goes on.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "control_store/control_store.h"
#include "control_store/record_sealer.h"
#include "control_store/redis_server.h"
#include "control_store/tables.h"
#include "head/membership.h"
#include "node/lasting_node.h"
#include "os/event_loop.h"
#include "os/fd.h"

namespace weft::core {

class HeadLedger {
 public:
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

  // Begins to lead; the host hears of the outcome.
  static Result<std::unique_ptr<HeadLedger>> Create(EventLoop& loop, const LastingNodeOptions& options, Host& host);
  ~HeadLedger();

  // Then is called when the change is in the store; not at all if this head leads no longer. Waits is called, once at
  // most and maybe at once, if the store takes no changes for the time being, with the reason.
  using Waits = std::function<void(const std::string& why)>;
  void Commit(WriteBatch batch, std::function<void()> then, Waits waits = nullptr);
  void NodeAccepted(NodeNumber node, const NodeDescription& description, NodeNumber next, std::function<void()> then);
  void NodeDied(NodeNumber node, std::function<void()> then);
  // Records from which code is run: they are sealed.
  void CommitSealed(WriteBatch batch, std::function<void()> then, Waits waits = nullptr);

  // For an orderly end: another may lead at once. Blocks for a moment at most.
  void Resign();

  int64_t NextDeadline() const;
  void Tick(int64_t now_ns);

 private:
  HeadLedger(EventLoop& loop, const LastingNodeOptions& options, Host& host)
      : loop_(loop), options_(options), host_(host) {}
  Status OpenStore();
  void Acquire();
  void Acquired(StoreResult<Leadership> outcome);
  Restored Read(Leadership& leadership);
  void Submit();
  void Committed(const StoreStatus& outcome);
  void TakesNone(const std::string& why);
  void TakesAgain();
  void Lose(const std::string& why);

  EventLoop& loop_;
  const LastingNodeOptions options_;
  Host& host_;
  UniqueFd lock_;  // on this machine, no other head of this address
  std::vector<std::unique_ptr<RedisServer>> servers_;
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
  std::unique_ptr<ControlStore> store_;  // last: its end calls back
};

}  // namespace weft::core
