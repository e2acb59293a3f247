// What only the head of a cluster does: it decides which nodes belong to it (Membership) and where work goes that its
// own node cannot serve (GlobalScheduler), has that persisted (HeadLedger), and tells the nodes.
//
// Lives beside the Member of its own node, on the daemon's loop thread (node/cluster.h), and in the simulator. It
// speaks to all nodes through that Member, to its own as to the others. No descriptor and no system call: what it needs
// of its surroundings it has from HeadIo and the ControlStore that it is given.
//
// Names of actors and detached actors are the NodeDaemon's business.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/member.h"
#include "head/head_ledger.h"
#include "head/membership.h"
#include "scheduling/global_scheduler.h"
#include "wire/node_messages.h"

namespace weft::core {

class Head final : private Member::HeadSide, private HeadLedger::Host {
 public:
  struct Config {
    HeadLedger::Config ledger;
    Membership::Config membership;  // the epoch is the control store's
    // Planted bugs, to show that the tests find them. All off outside tests.
    struct Faults {
      Membership::Faults membership;
      GlobalScheduler::Faults scheduler;
      bool tell_before_writing = false;  // a node is accepted before the control store knows it
    } faults;
  };
  class Host : public HeadIo {
   public:
    // It leads. Then its own node joins.
    virtual void HeadLeads(const std::string& cluster_id) = 0;
    // Another one leads, and this one waits for its end.
    virtual void HeadWaits() = 0;
    // It cannot lead, or does so no longer: its node must end.
    virtual void HeadEnded(const std::string& why) = 0;

   protected:
    ~Host() = default;
  };

  Head(Config config, Member& member, ControlStore& store, Host& host);

  // Begins to lead; the host hears of the outcome.
  void Start() { ledger_.Start(); }
  // Its node ends.
  void Stop() { ledger_.Stop(); }
  // For an orderly end: another may lead at once. False: it does not lead.
  bool Resign() { return ledger_.Resign(); }

  bool leads() const { return membership_ != nullptr; }
  // What each node has free, as it said last.
  const std::map<NodeNumber, ResourceAmounts>& available() const { return available_; }
  struct Departed {
    NodeNumber node;
    NodeDescription description;
    ResourceAmounts available;  // at last
    std::string why;
  };
  const std::deque<Departed>& departed() const { return departed_; }  // the latest
  // How the workers of a job are started; nullptr: nobody has said it.
  const JobDescribed* FindJob(ProcessId job) const;
  void KnowJob(JobDescribed job) { jobs_[job.driver] = std::move(job); }
  void ForgetJob(ProcessId job);
  // What an earlier head has persisted of detached actors, for its first caller.
  struct Legacy {
    uint64_t epoch = 0;
    std::vector<ActorRecord> actors;
    std::vector<JobRecord> jobs;
  };
  Legacy TakeLegacy() { return std::exchange(legacy_, {}); }
  // See HeadLedger::Commit.
  void Persist(WriteBatch batch, std::function<void()> then, HeadLedger::Waits waits) {
    ledger_.CommitSealed(std::move(batch), std::move(then), std::move(waits));
  }

  int64_t next_wakeup_ns() const;
  void Tick(int64_t now_ns);

  // For tests and the simulator.
  const Membership* membership() const { return membership_.get(); }
  const GlobalScheduler* scheduler() const { return scheduler_.get(); }
  size_t waiting_changes() const { return ledger_.waiting_changes(); }
  void CheckInvariants() const;

 private:
  // Member::HeadSide
  void JoinCame(uint64_t link, NodeJoins& joins) override;
  void HeadHeard(NodeNumber from, NodeMessage& message) override;
  void JoinLinkLost(uint64_t link, bool by_peer) override;
  NodeNumber MemberAt(uint64_t link) const override { return membership_->NodeOf(link); }
  // HeadLedger::Host
  void LedgerOpened(HeadLedger::Restored restored) override;
  void LedgerHeld() override { host_.HeadWaits(); }
  void LedgerLost(const std::string& why) override { host_.HeadEnded(why); }

  void Tell(uint64_t link, const NodeMessage& message) { member_.SayFromHead(link, message, host_.Now()); }
  void Send(NodeNumber to, const NodeMessage& message) { member_.Send(to, message, host_.Now()); }
  void TellAllBut(NodeNumber node, const NodeMessage& message);
  void JobCame(NodeNumber from, const JobDescribed& job);
  void RequestCame(NodeNumber from, const LeaseRequest& request);
  std::string Place(const ResourceAmounts& shape, WorkRequested& requested) const;
  template <class Event>
  void Decide(const Event& event);
  void Perform(std::vector<MembershipAction>& actions);
  void Perform(std::vector<GlobalAction>& actions);
  void Suspect(NodeNumber node, bool suspected);
  void Accepted(NodeNumber node);  // the control store knows it
  void Welcome(uint64_t link, NodeNumber node);
  void Dead(const DeclareDead& news);

  const Config config_;
  Member& member_;
  Host& host_;
  std::string cluster_id_;
  uint64_t epoch_ = 0;
  Legacy legacy_;
  std::unique_ptr<Membership> membership_;  // once it leads
  std::unique_ptr<GlobalScheduler> scheduler_;
  std::map<NodeNumber, NodeDescription> known_;  // that this head or an earlier one has accepted
  std::set<NodeNumber> here_;                    // those of them that the scheduler knows, and that hear of the others
  std::map<NodeNumber, AcceptNode> accepted_;
  std::map<NodeNumber, ResourceAmounts> available_;
  std::deque<Departed> departed_;
  std::map<std::pair<NodeNumber, uint64_t>, LeaseRequest> requests_;
  std::map<ProcessId, JobDescribed> jobs_;  // how to start workers, by driver
  std::map<NodeNumber, std::set<ProcessId>> told_jobs_;
  HeadLedger ledger_;
};

}  // namespace weft::core
