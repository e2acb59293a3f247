// This node's place in a cluster: the links to other daemons, who the others are, and on the head the machines that
// decide for all (Membership, GlobalScheduler), written through to the control store (HeadLedger).
//
// Owned by the NodeDaemon of a lasting node, on its loop thread. Knows nodes and connections; what concerns processes,
// leases and objects is the NodeDaemon's business (Cluster::Host). Messages to one node arrive once and in the order in
// which they were sent, whatever happens to links, as long as both nodes live (MessageFlow); who lives is the head's
// judgement. Not so those of membership, which belong to a link, and chunks of objects, which are asked for again.
//
// Each node dials its own link for what it sends to another node; only the link to the head carries both directions.
// Chunks that a node sends to the head's node have a link of their own, so that beats do not wait behind them.
//
// A node that another cannot reach, though it lives, is complained of to the head, which makes one of the two leave
// (Membership): by its flow, or, between the head and a node, if connections for channels fail for a while.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "head/membership.h"
#include "head/node_lease.h"
#include "node/head_ledger.h"
#include "node/lasting_node.h"
#include "node/refusal_log.h"
#include "os/event_loop.h"
#include "scheduling/global_scheduler.h"
#include "transport/link.h"
#include "transport/link_listener.h"
#include "transport/message_flow.h"
#include "wire/node_messages.h"

namespace weft::core {

class Cluster final : private LinkListener::AcceptHandler, private HeadLedger::Host {
 public:
  class Host {
   public:
    // This node has its number: processes may be named from now on.
    virtual void ClusterJoined(NodeNumber self) = 0;
    virtual void ClusterRefused(const std::string& why) = 0;
    // A head that waits for the end of another.
    virtual void ClusterAwaited() = 0;
    // There is a new head, which knows nothing of what the former was told, and has no answers to what that was asked.
    virtual void HeadForgot() = 0;
    // This node is no longer a member, or cannot know that it is: everything that runs here must end.
    virtual void ClusterLeft(const std::string& why) = 0;
    // The head may take this node for dead, or not: what could be started elsewhere must stand still until it is known.
    virtual void FreezeWork(const std::string& why) = 0;
    virtual void ThawWork() = 0;
    virtual void NodeMessageCame(NodeNumber from, NodeMessage& message) = 0;
    // Its processes are dead, and what it held is lost.
    virtual void NodeIsGone(NodeNumber node, const std::string& why) = 0;
    // A connection for the channel of two processes; `dialled` on the submitter's node.
    virtual void ChannelConnected(ProcessId submitter, ProcessId worker, bool dialled, Result<UniqueFd> socket) = 0;
    // Where the payload of a chunk goes, and that it is there; see Link::Handler.
    virtual uint8_t* ChunkBegan(NodeNumber from, const ChunkHead& head, size_t bytes) = 0;
    virtual void ChunkEnded(NodeNumber from, const ChunkHead& head, size_t bytes) = 0;
    // Chunks of this node that were on their way may be lost. The node may be well.
    virtual void LinkBroken(NodeNumber node) = 0;
    // What was sent to it has been taken, after Crowded had been said of it.
    virtual void NodeHasRoom(NodeNumber node) = 0;

   protected:
    ~Host() = default;
  };

  // A head becomes one, and a node dials the head; the host hears of the outcome.
  static Result<std::unique_ptr<Cluster>> Create(EventLoop& loop, const LastingNodeOptions& options, Host& host);
  ~Cluster();

  bool is_head() const { return membership_ != nullptr; }
  NodeNumber self() const { return self_; }
  NodeNumber head() const { return is_head() ? self_ : head_; }
  const std::string& head_address() const { return head_address_; }
  struct OtherNode {
    std::string name;
    std::string address;
    ResourceAmounts resources;
    NodeLabels labels;
  };
  const std::map<NodeNumber, OtherNode>& nodes() const { return nodes_; }  // this one too
  bool Knows(NodeNumber node) const { return nodes_.contains(node); }
  // The head has not told of it yet, but of none that came later either: others may have heard of it before, and have
  // handed on what belongs to its processes. What is sent to it is kept until the head's word comes.
  bool MayAppear(NodeNumber node) const {
    return lease_ != nullptr && node.value > newest_.value && node != kClusterNode;
  }
  // In words, also of one that has gone: which, and why.
  std::string Describe(NodeNumber node) const;
  // Half of the cluster's id: the same on all its nodes, once this one has joined.
  uint64_t session() const;
  // All nodes, and the latest that have gone. Only the head knows what is available on them, and who has gone.
  std::vector<NodeListed> List() const;

  // To another node, or to the head (0). Arrives if that node lives long enough.
  void Send(NodeNumber to, const NodeMessage& message);
  void SendToHead(const NodeMessage& message) { Send({}, message); }
  void SendToAll(const NodeMessage& message);
  // Whoever sends more to it should be made to wait; NodeHasRoom follows, or NodeIsGone.
  bool Crowded(NodeNumber node);
  // What was sent and not yet taken.
  uint64_t KeptBytes(NodeNumber node) const;
  void SendChunk(NodeNumber to, const ChunkHead& head, std::span<const uint8_t> payload,
                 std::shared_ptr<const void> keeper);
  // Sends what was given to it since the last time: one system call for each link, at the end of each turn.
  void FlushLinks();
  // The chunk that is being received in answer to this request has no place any more (Link::DiscardChunk).
  void DiscardChunk(NodeNumber from, uint64_t request);
  // Begins to connect; the host hears of the outcome.
  void DialChannel(ProcessId submitter, ProcessId worker);
  void Leave();

  // On the head: how the workers of a job are started; nullptr: nobody has said it.
  const JobDescribed* FindJob(ProcessId job) const;
  void KnowJob(JobDescribed job) { jobs_[job.driver] = std::move(job); }
  void ForgetJob(ProcessId job);
  // On the head: what an earlier one has written of detached actors, for who asks first.
  struct Legacy {
    uint64_t epoch = 0;
    std::vector<ActorRecord> actors;
    std::vector<JobRecord> jobs;
  };
  Legacy TakeLegacy() { return std::exchange(legacy_, {}); }
  // On the head; see HeadLedger::Commit.
  void WriteDown(WriteBatch batch, std::function<void()> then, HeadLedger::Waits waits = nullptr) {
    ledger_->CommitSealed(std::move(batch), std::move(then), std::move(waits));
  }

  int64_t NextDeadline() const;
  void Tick(int64_t now_ns);

 private:
  class Peer;                                           // a link and what it is for (cluster_peer.h)
  class Dialled;                                        // one that becomes a channel
  static constexpr int64_t kDialAgainNs = 100'000'000;  // between attempts to reach the head
  struct Flow {
    MessageFlow machine;
    bool awaited = false;  // it was crowded, and somebody waits
    std::string why;       // its last link ended, or could not be made
  };
  struct Unconnected {  // connections for channels that failed, none in between that did not
    int64_t since_ns = 0;
    int64_t last_ns = 0;
  };
  struct Complaint {
    int64_t since_ns = 0;
    std::string why;
  };

  Cluster(EventLoop& loop, const LastingNodeOptions& options, Host& host);
  void LinkAccepted(std::unique_ptr<Link> link, std::string_view hello) override;
  void LinkRefused(const std::string& address, RefusalKind kind, const Error& why) override;
  Status Listen();
  Status DialHead();
  void Received(Peer& peer, std::string_view bytes);
  void Lost(Peer& peer, const Error& why);
  void Deliver(NodeNumber from, NodeMessage& message);
  void AtHead(NodeNumber from, NodeMessage& message);
  std::string Place(const ResourceAmounts& shape, WorkWished& wished) const;
  void Perform(std::vector<LeaseAction>& actions);
  void Perform(std::vector<MembershipAction>& actions);
  void Perform(std::vector<GlobalAction>& actions);
  void LedgerOpened(HeadLedger::Restored restored) override;
  void LedgerHeld() override;
  void LedgerLost(const std::string& why) override;
  void Accepted(NodeNumber node);  // the control store knows it
  void Welcome(Peer& peer, NodeNumber node);
  void Dead(const DeclareDead& news);
  void Vanish(NodeNumber node, const std::string& why);
  Peer* PeerFor(NodeNumber node);
  void SendDirectly(uint64_t link, const NodeMessage& message);
  Flow& FlowWith(NodeNumber node);
  void OpenFlow(Peer& peer, NodeNumber node, bool sends, bool takes);
  void OpenIncoming(Peer& peer);
  template <class Event>
  bool FeedFlow(NodeNumber node, Event event);  // true: TakeMessage
  void TickFlows(int64_t now_ns);
  void PassMessagesTo(NodeNumber node, uint64_t link);
  void BreakLink(uint64_t link, const std::string& why);
  void ComplainOf(NodeNumber node, int64_t since_ns, const std::string& why);
  void TakeBackComplaintOf(NodeNumber node);
  void TellOfComplaint(NodeNumber node, const Complaint& complaint);
  void ChannelFailed(NodeNumber node, int64_t begun_ns, const std::string& why);
  void ChannelMade(NodeNumber node);
  void WaitToJoin(const JoinLater& message);
  void Bury();
  NodeListed ListedAs(NodeNumber node, const OtherNode& known) const;

  EventLoop& loop_;
  const LastingNodeOptions options_;
  Host& host_;
  LinkSettings settings_;
  NodeIdentity identity_;
  std::unique_ptr<LinkListener> listener_;
  std::string own_address_;
  std::string head_address_;
  std::string leader_address_;  // of the one that has accepted us last
  NodeNumber self_;
  NodeNumber head_;    // on a node that has joined
  NodeNumber newest_;  // on a node that has joined: the highest number that the head has told of
  std::map<NodeNumber, OtherNode> nodes_;
  std::map<NodeNumber, std::string> gone_;  // in words; those of the highest numbers
  std::map<NodeNumber, Flow> flows_;
  std::map<NodeNumber, Unconnected> unconnected_;  // between the head and its members
  std::map<NodeNumber, Complaint> complaints_;     // that the head was told

  std::map<uint64_t, std::unique_ptr<Peer>> peers_;  // by number
  uint64_t next_peer_ = 1;
  size_t next_head_ = 0;                     // which of the head's addresses is tried next
  uint64_t head_link_ = 0;                   // of a node that is not the head
  std::set<std::string> head_is_away_;       // what the log says of that; empty: it is there
  std::map<NodeNumber, uint64_t> outgoing_;  // links for what we send
  std::vector<uint64_t> gathering_;          // links that have something to send
  std::map<uint64_t, std::unique_ptr<Dialled>> dialled_;
  std::vector<uint64_t> ended_;             // peers and dialled links to be destroyed outside of their callbacks
  std::map<ProcessId, JobDescribed> jobs_;  // on the head: how to start workers, by driver
  std::map<NodeNumber, std::set<ProcessId>> told_jobs_;
  std::map<NodeNumber, ResourceAmounts> available_;  // on the head: as each node said last
  std::deque<NodeListed> departed_;                  // on the head: the latest

  std::unique_ptr<NodeLease> lease_;        // of a node that is not the head
  std::unique_ptr<Membership> membership_;  // on the head
  std::unique_ptr<GlobalScheduler> scheduler_;
  uint64_t epoch_ = 0;  // on the head, its own
  Legacy legacy_;
  std::set<NodeNumber> here_;  // on the head: those that the scheduler knows
  std::map<NodeNumber, AcceptNode> accepted_;
  std::map<uint64_t, WishSent> wishes_;  // on the head, by asker and wish
  uint64_t own_link_ = 0;                // the head's own membership
  uint64_t own_beat_ = 0;
  int64_t dial_again_ns_ = INT64_MAX;
  int64_t join_by_ns_ = INT64_MAX;
  bool head_answers_ = false;  // a head that has the token has been heard
  RefusalLog refusals_;
  bool leaving_ = false;
  std::unique_ptr<HeadLedger> ledger_;  // of a head; last: its end calls back
};

}  // namespace weft::core
