// Decides which process may run tasks on which local worker. Pure: events in, actions out.
//
// Called by the node daemon on its loop thread, and by the simulator. The caller performs the actions in order. Time
// comes in with TimePassed; next_wakeup_ns says when the next one is needed.
//
// Several jobs may share the node. A process gets workers of its own job only; resources and turns are common to all.
//
// A process states its request (so many leases of one shape); a request stands until it is granted, replaced or its
// process is gone. A worker is leased to one process at a time. A grant takes the shape's resources, the lease's end
// gives them back. A worker whose task waits ("blocked") lends the CPUs of its own lease and takes them again when it
// resumes; the CPUs are then over-committed by at most what was lent, nothing that needs CPUs is granted, and after a
// moment leases are recalled until the debt is paid. Tasks that wait for memory lend too, but no more of them than
// there are CPUs, or twice as many while no task runs at all: what was lent first may have gone to tasks that make
// more. No other resource is ever over-committed (CheckInvariants).
//
// Who comes first: deeper requests, so that waiting parents can end; then those that were passed over too often; then
// whoever holds fewest leases of that shape; then whoever was served longest ago. A request that does not fit is passed
// over a few times at most, then what it needs is kept free for it. If nothing is free, leases are recalled from the
// richest; from an equal only after a while, so that two submitters on one CPU take turns.
//
// An actor is placed like a lease, in the same order, but its worker is its own until the worker is dead: no other
// lease, no recall. It holds one shape while its constructor runs and another from then on (ActorSettled); only the
// first time counts as a turn of its creator. Actors that hold nothing are limited by max_workers alone.
//
// Does not start processes (WorkerPool), read flags of other processes, or read the clock.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "scheduling/free_resources.h"
#include "scheduling/resources.h"
#include "wire/ids.h"
#include "wire/messages.h"
#include "wire/wait_facts.h"

namespace weft::core {

// ---- events -----------------------------------------------------------------------------------------------------
struct ProcessJoined {  // a driver or a worker is ready; a worker is idle at first
  ProcessId process;
  bool runs_tasks = false;
  // Whose workers it may have; of a worker also what it is itself: guests are for shapes that want one (resources.h),
  // and for no others.
  WorkerKind kind;
};
struct LeasesRequested {  // the shape is valid (IsValidShape)
  ProcessId process;
  ResourceAmounts shape;
  uint32_t count = 0;
  uint32_t depth = 0;
};
struct LeasesPlaced {  // by the global scheduler, for a process of another node: so many more are requested
  ProcessId process;
  ResourceAmounts shape;
  uint32_t count = 0;
  uint32_t depth = 0;
};
struct LeaseHadElsewhere {  // one of those that are requested was granted by another node
  ProcessId process;
  ResourceAmounts shape;
};
struct LeaseReturned {
  ProcessId process;
  LeaseId lease;
};
struct WorkerBlocked {
  ProcessId worker;
  bool for_memory = false;    // its task waits for room in the store; only so many of these lend at once
  bool nothing_runs = false;  // every leased worker waits: then twice as many may
};
struct WorkerUnblocked {
  ProcessId worker;
};
struct BlockedFlagsRead {};  // answers SetDemand: every leased worker that is blocked has been reported
struct WorkerRetired {       // it gets no more leases, but keeps the one it has; it may still ask for some
  ProcessId worker;
};
struct ProcessLost {
  ProcessId process;
};
struct StartingGivenUp {  // no worker can be started at present; requests that wait for one are refused
  std::string why;
  WorkerKind kind;
};
struct TimePassed {
  int64_t now_ns = 0;
};
struct ActorWanted {  // the shapes are valid; the actor has no worker and is not wanted already
  ObjectId actor;
  ProcessId creator;
  ResourceAmounts to_place;  // while its constructor runs
  ResourceAmounts to_hold;   // from then on
  uint32_t depth = 0;
};
struct ActorSettled {  // its constructor has run
  ObjectId actor;
};
struct WorkerLetGo {  // its actor has ended; it only stays for what it owns, and needs no CPU for that
  ProcessId worker;
};
struct ActorUnwanted {  // withdrawn, if it has not been granted yet
  ObjectId actor;
};
struct ActorsHeld {  // actors of this job get no workers, until it is said with `on` false
  ProcessId job;
  bool on = false;
};

// ---- actions ----------------------------------------------------------------------------------------------------
struct GrantLease {
  ProcessId process;
  ProcessId worker;
  LeaseId lease;
  ResourceAmounts shape;
  AssignedGpus gpus;
};
struct RecallLease {
  ProcessId process;
  LeaseId lease;
};
struct RefuseLeases {
  ProcessId process;
  ResourceAmounts shape;
  std::string why;
  uint32_t count = 0;  // so many were requested, or placed here by the head
};
struct WantWorkers {  // so many more workers than are ready now would be put to use; replaces the number said before
  uint32_t count = 0;
  WorkerKind kind;
};
struct SetDemand {  // somebody waits for resources: workers that block must say so; when on, BlockedFlagsRead follows
  bool on = false;
};
struct KillWorker {  // its submitter is dead, so nobody wants what it computes
  ProcessId worker;
};
struct GrantActor {  // the worker is the actor's until it is dead
  ObjectId actor;
  ProcessId worker;
  AssignedGpus gpus;
};
struct RefuseActor {
  ObjectId actor;
  std::string why;
};
using SchedulerAction =
    std::variant<GrantLease, RecallLease, RefuseLeases, WantWorkers, SetDemand, KillWorker, GrantActor, RefuseActor>;

class LocalScheduler {
 public:
  struct Config {
    ResourceAmounts resources;
    // Workers that exist at once, the blocked ones included: what the daemon's descriptors allow.
    uint32_t max_workers = 1024;
    // Of a cluster: what can never be had here may be had elsewhere, so it is not refused but waits (Unmet).
    bool in_cluster = false;
    uint64_t first_lease = 1;
  };

  // Planted bugs, to show that the simulator finds them. All off outside the simulator's own tests.
  struct Faults {
    bool keep_resources_of_dead_workers = false;
    bool spare_workers_of_the_dead = false;
    bool keep_cpus_of_who_stays = false;
  };

  explicit LocalScheduler(Config config);

  void Handle(const ProcessJoined& event, std::vector<SchedulerAction>& out);
  void Handle(const LeasesRequested& event, std::vector<SchedulerAction>& out);
  void Handle(const LeasesPlaced& event, std::vector<SchedulerAction>& out);
  void Handle(const LeaseHadElsewhere& event, std::vector<SchedulerAction>& out);
  void Handle(const LeaseReturned& event, std::vector<SchedulerAction>& out);
  void Handle(const WorkerBlocked& event, std::vector<SchedulerAction>& out);
  void Handle(const WorkerUnblocked& event, std::vector<SchedulerAction>& out);
  void Handle(const BlockedFlagsRead& event, std::vector<SchedulerAction>& out);
  void Handle(const WorkerRetired& event, std::vector<SchedulerAction>& out);
  void Handle(const ProcessLost& event, std::vector<SchedulerAction>& out);
  void Handle(const StartingGivenUp& event, std::vector<SchedulerAction>& out);
  void Handle(const TimePassed& event, std::vector<SchedulerAction>& out);
  void Handle(const ActorWanted& event, std::vector<SchedulerAction>& out);
  void Handle(const ActorSettled& event, std::vector<SchedulerAction>& out);
  void Handle(const ActorUnwanted& event, std::vector<SchedulerAction>& out);
  void Handle(const ActorsHeld& event, std::vector<SchedulerAction>& out);
  void Handle(const WorkerLetGo& event, std::vector<SchedulerAction>& out);

  // When TimePassed would change a decision; INT64_MAX if never.
  int64_t next_wakeup_ns() const { return next_wakeup_ns_; }
  bool demand() const { return demand_; }
  bool IsIdle(ProcessId worker) const;
  bool IsLeased(ProcessId worker) const;
  bool IsLending(ProcessId worker) const { return lending_.contains(worker); }
  bool HasActor(ProcessId worker) const;
  // Workers whose task waits: when they go on, WorkerUnblocked is due.
  const std::set<ProcessId>& lending() const { return lending_; }
  // The worker of a lease that this process holds; 0 if it holds no such lease.
  ProcessId WorkerOf(LeaseId lease, ProcessId holder) const;
  // Who has leased this worker, or has its actor constructed; 0 if nobody, and once the actor is settled.
  ProcessId HolderOf(ProcessId worker) const;
  // Different shapes a process has requests or leases for. The daemon bounds it.
  size_t ShapesOf(ProcessId process) const;
  // Actors that are wanted or have a worker.
  size_t actor_count() const { return actors_.size() + wanted_actors_.size(); }
  uint32_t max_unblocked_workers() const { return max_unblocked_workers_; }
  const ResourceLedger& free() const { return free_.amounts(); }
  // What is free and not spoken for by requests that only lack a worker.
  const FreeResources& left() const { return left_; }
  struct UnmetRequest {
    ProcessId process;
    ResourceAmounts shape;
    uint32_t count = 0;
    uint32_t depth = 0;
  };
  // Requests for leases that lack resources here, not workers.
  const std::vector<UnmetRequest>& Unmet() const { return unmet_; }
  struct UnmetActor {
    ObjectId actor;
    ProcessId creator;
    ResourceAmounts shape;
    ResourceAmounts to_hold;
    uint32_t depth = 0;
  };
  // Wanted actors that lack resources here, not workers; none outside a cluster. Changes with `decisions` only.
  std::vector<UnmetActor> UnmetActors() const;
  bool IsUnmet(ObjectId actor) const;
  uint64_t decisions() const { return decisions_; }
  // True if one of our workers is the actor's, though it may have ended already.
  bool HasWorkerOf(ObjectId actor) const { return actors_.contains(actor); }
  size_t lease_count() const { return leases_.size(); }
  // Who holds what of the resources in a shape; without the pids (scheduler_explain.cc).
  ShapeFact Explain(const ResourceAmounts& shape) const;

  void CheckInvariants() const;

  Faults faults;

 private:
  // One process's interest in one shape: what it requests and what it holds. Leases and actors are counted apart, and
  // so are actors that will hold different shapes.
  struct ClaimKey {
    ProcessId process;
    ResourceAmounts shape;
    bool of_actors = false;
    ResourceAmounts to_hold;  // of each actor, once it is settled
    auto operator<=>(const ClaimKey&) const = default;
  };
  struct Claim {
    uint32_t request = 0;
    uint32_t depth = 0;
    uint32_t held = 0;             // leases, or actors that are not settled
    uint32_t recalled = 0;         // of those held
    uint32_t passed_over = 0;      // grants to others since it first did not fit
    uint64_t last_served = 0;      // by grant number
    int64_t waiting_since_ns = 0;  // since the request began or a lease was last had
    std::deque<ObjectId> actors;   // those requested, in order
  };
  struct Lease {
    ProcessId worker;
    ClaimKey claim;  // the process is 0 once the holder is dead, or the actor settled: it then lasts as its worker does
    ResourceAmounts holds;
    AssignedGpus gpus;
    ObjectId actor;  // if it is an actor's
    bool lending = false;
    bool for_memory = false;  // why it lends
    bool recalled = false;
    int64_t recalled_at_ns = 0;
  };
  struct Worker {
    LeaseId lease;  // 0: idle
    bool retired = false;
    WorkerKind kind;
    std::set<ProcessId> earlier_holders;  // they share a channel with it already
  };
  using ClaimEntry = std::pair<const ClaimKey, Claim>;

  void Decide(std::vector<SchedulerAction>& out);
  void Grant(ClaimEntry& entry, ProcessId worker, std::vector<SchedulerAction>& out);
  using WorkerCounts = std::map<WorkerKind, uint32_t>;
  WorkerKind KindFor(const ClaimKey& claim) const;
  size_t IdleOf(const WorkerKind& kind) const;
  // Adds to `wanted` the workers that actors could use as soon as constructors that run now have ended; they take a
  // while to start.
  void AddWorkersForLater(const FreeResources& left, const std::vector<ClaimEntry*>& waiting,
                          const std::map<const ClaimKey*, uint32_t>& on_paper, WorkerCounts& wanted) const;
  void Recall(FreeResources expected, std::vector<std::pair<ClaimEntry*, uint32_t>> unmet,
              std::vector<SchedulerAction>& out);
  // More CPUs are in use than there are, since tasks that lent theirs go on; and leases are asked back for that.
  bool IsOverCommitted();
  void RecallOverCommitted(std::vector<SchedulerAction>& out);
  void RecallOne(LeaseId id, Lease& lease, std::vector<SchedulerAction>& out);
  // The worker that suits it best, or 0.
  ProcessId IdleWorkerFor(const ClaimKey& claim) const;
  void EndLease(LeaseId id);
  void LeaveClaim(Lease& lease);
  void Settle(Lease& lease, ResourceAmounts to_hold);
  void SetLending(Lease& lease, bool lending);
  void DropIfEmpty(const ClaimKey& key);
  // True if the shape could be had by waiting for tasks that run: what blocked tasks and actors keep may never come
  // back.
  bool Obtainable(const ResourceAmounts& shape) const;
  // Why a shape can never be had; empty if it can.
  std::string WhyNever(const ResourceAmounts& shape, const std::string& who) const;
  static bool GoesBefore(const ClaimEntry& a, const ClaimEntry& b);

  // Constant after construction.
  ResourceAmounts total_;
  uint32_t max_workers_;
  uint32_t max_unblocked_workers_;
  size_t max_memory_lenders_;
  bool in_cluster_;

  FreeResources free_;
  FreeResources left_;
  std::vector<UnmetRequest> unmet_;
  std::map<ClaimKey, uint32_t> unmet_actors_;  // of each claim, the last so many
  uint64_t decisions_ = 0;
  std::map<ProcessId, ProcessId> processes_;  // and the job that each belongs to
  std::map<ProcessId, Worker> workers_;
  std::set<ProcessId> idle_;     // workers without a lease that are not retired
  std::set<ProcessId> lending_;  // workers
  std::map<LeaseId, Lease> leases_;
  std::map<ClaimKey, Claim> claims_;
  std::map<ObjectId, LeaseId> actors_;  // those that have a worker
  std::set<LeaseId> unsettled_;         // leases of actors whose constructor has not run
  std::map<ObjectId, ClaimKey> wanted_actors_;
  std::set<ProcessId> held_jobs_;  // ActorsHeld
  uint64_t next_lease_;
  int64_t now_ns_ = 0;
  int64_t next_wakeup_ns_ = INT64_MAX;
  int64_t over_committed_since_ns_ = -1;  // CPUs; -1: they are not
  WorkerCounts wanted_workers_;           // as they were said last
  bool demand_ = false;
  bool flags_known_ = false;  // before that, no lease is recalled: a blocked worker may have something to lend
};

}  // namespace weft::core
