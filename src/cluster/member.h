// One node's place in the cluster: its membership lease (NodeLease), its links to other daemons, the flows of messages
// over them (MessageFlow), and the nodes it knows. Pure but for what it does through Io: no descriptor, no clock.
//
// Runs on every cluster node, on the daemon's loop thread (node/cluster.h), and in the simulator. Each call that brings
// an event also brings the time. Io is called from inside these calls and never calls back before it returns.
//
// Messages to another node arrive once and in the order in which they were sent, whatever happens to links, as long as
// both nodes live; the head judges who lives. Not so the messages of membership, which belong to a link, and chunks of
// objects, which are requested again.
//
// Each node dials its own link for what it sends to another node; only the link to the head carries both directions.
//
// If a node cannot reach another that lives, it complains to the head, which makes one of the two leave (Membership).
// The flow of the pair notices it; between the head and a member, connections for channels that fail for a while do.
//
// The node that has the head reaches it through HeadSide in the same process, over a link that never closes; all else
// is the same there.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/log_level.h"
#include "base/result.h"
#include "cluster/message_flow.h"
#include "cluster/node_lease.h"
#include "wire/ids.h"
#include "wire/node_description.h"
#include "wire/node_messages.h"

namespace weft::core {

class Member {
 public:
  struct Config {
    NodeDescription self;  // but for the address, which Io::Listen tells
    // Where heads may listen. If there are several, one leads and the others do not listen. Empty: the head is here.
    std::vector<std::string> heads;
    bool returns = false;  // it was a node before and comes back, for which it waits as long as the head wants
    size_t max_message_bytes = 16 << 20;
    NodeLease::Config lease;
    MessageFlow::Config flow;
    // The first attempt to reach the head again comes soon, as most links that end do so by mishap.
    int64_t dial_soon_ns = 10'000'000;
    int64_t dial_again_ns = 100'000'000;  // between later attempts
    int64_t join_ns = 15'000'000'000;     // how long a node that starts may take to become a member
    // For a link to another node, all included. Shorter than by default, as there may be no way to it: then a new
    // attempt is better than one that has begun to wait for long between its packets.
    int64_t reach_ns = 3'000'000'000;
    // A head that hangs takes connections, as its kernel does that, and says nothing. If there are several, another may
    // lead meanwhile, and declares dead whatever node has not come to it within a lease.
    int64_t one_of_several_ns = 2'000'000'000;
    // The head and a node that cannot connect for channels for so long complain, as flows do of other pairs. If the
    // last failure is older than same_story_ns, it is another story.
    int64_t complain_ns = 8'000'000'000;
    int64_t same_story_ns = 20'000'000'000;
    // Planted bugs, to show that the tests find them. All off outside tests.
    struct Faults {
      NodeLease::Faults lease;
      MessageFlow::Faults flow;
      bool take_the_unheard_of_for_dead = false;  // processes of nodes that the head has not told of yet
    } faults;
  };

  // Why a link ended, or could not be made.
  struct LinkEnd {
    ErrorKind kind = ErrorKind::kGone;  // kGone: the peer has closed it, or its kernel has
    std::string why;
    bool nobody_listens = false;  // the machine answers, and no process listens at that port
    std::string peer_address;
  };

  class Io {
   public:
    // Begins to connect; LinkReady or LinkLost follows. An error: not even that, and neither follows. timeout_ns covers
    // all until LinkReady; 0: as usual.
    virtual Status Dial(uint64_t link, const std::string& address, const std::string& hello, int64_t timeout_ns) = 0;
    // Takes links from other nodes from now on, if it does not yet. Gives the address where they reach this one.
    virtual Result<std::string> Listen() = 0;
    // Lost with the link, and if too much waits to be sent over it already.
    virtual void Send(uint64_t link, std::string_view bytes) = 0;
    // False: the link has no room, and LinkDrained follows; or it is about to end.
    virtual bool Pass(uint64_t link, std::string_view bytes) = 0;
    // Nothing more is heard of it. A breach is what the peer did against the protocol; empty: nothing.
    virtual void Close(uint64_t link, const std::string& breach) = 0;
    // When all has been sent; LinkLost follows.
    virtual void CloseWhenSent(uint64_t link) = 0;
    virtual void Log(LogLevel level, const char* what, const std::string& text) = 0;

   protected:
    ~Io() = default;
  };

  // What the node does with its place.
  class Host {
   public:
    // This node has its number: processes may be named from now on.
    virtual void ClusterJoined(NodeNumber self) = 0;
    virtual void ClusterRefused(const std::string& why) = 0;
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
    // Chunks of this node that were on their way may be lost. The node may be well.
    virtual void LinkBroken(NodeNumber node) = 0;
    // What was sent to it has been taken, after Crowded had been said of it.
    virtual void NodeHasRoom(NodeNumber node) = 0;

   protected:
    ~Host() = default;
  };

  // The head, on the node that has it.
  class HeadSide {
   public:
    virtual void JoinCame(uint64_t link, NodeJoins& joins) = 0;
    virtual void HeadHeard(NodeNumber from, NodeMessage& message) = 0;
    virtual void JoinLinkLost(uint64_t link, bool by_peer) = 0;
    // Which member's link it is; 0: none's.
    virtual NodeNumber MemberAt(uint64_t link) const = 0;

   protected:
    ~HeadSide() = default;
  };
  // The link to the head of its own node.
  static constexpr uint64_t kOwnLink = 1;

  Member(Config config, Io& io, Host& host);

  // Begins to join, on the head's node when its head leads. An error: there is no way to.
  Status Start(int64_t now_ns, HeadSide* head = nullptr);
  void Leave(int64_t now_ns);

  const Config& config() const { return config_; }
  NodeNumber self() const { return self_; }
  NodeNumber head() const { return head_; }
  const std::map<NodeNumber, NodeDescription>& nodes() const { return nodes_; }  // this one too
  bool Knows(NodeNumber node) const { return nodes_.contains(node); }
  // The head has not told of it yet, but of none that came later either: others may have heard of it before, and have
  // handed on what belongs to its processes. What is sent to it is kept until the head's word comes.
  bool MayAppear(NodeNumber node) const {
    return head_side_ == nullptr && node.value > newest_.value && node != kClusterNode &&
           !config_.faults.take_the_unheard_of_for_dead;
  }
  // In words, also of one that has gone: which, and why.
  std::string Describe(NodeNumber node) const;
  bool frozen() const { return lease_.frozen(); }
  bool linked_to_head() const { return head_link_ != 0; }

  // To another node, or to the head (0). Arrives if that node lives long enough.
  void Send(NodeNumber to, const NodeMessage& message, int64_t now_ns);
  void SendToAll(const NodeMessage& message, int64_t now_ns);
  // Whatever sends more to it should be made to wait; NodeHasRoom follows, or NodeIsGone.
  bool Crowded(NodeNumber node);
  // What was sent and not yet taken.
  uint64_t KeptBytes(NodeNumber node) const;
  size_t kept_messages() const;

  // The link for chunks to this node, which is dialled if need be; 0: there is none. If it ends, the node is told that
  // chunks may be lost (ChunksCut).
  uint64_t LinkForChunks(NodeNumber node, int64_t now_ns);
  NodeNumber NodeBehind(uint64_t link) const;
  // A connection for a channel is about to be dialled: gives the address of the worker's node. What came of it is told.
  Result<std::string> ChannelNeeded(NodeNumber node, int64_t now_ns);
  void ChannelMade(NodeNumber node, int64_t now_ns);
  void ChannelFailed(NodeNumber node, int64_t begun_ns, const std::string& why, int64_t now_ns);

  // ---- what Io has to tell
  uint64_t NewLink() { return ++last_link_; }
  // Authenticated.
  void LinkReady(uint64_t link, const std::string& peer_address, int64_t now_ns);
  // Dialled by another daemon, for joining or for what a node sends; the number is from NewLink. False: close it.
  bool LinkAccepted(uint64_t link, const NodeHello& hello, int64_t now_ns);
  void LinkMessage(uint64_t link, std::string_view bytes, int64_t now_ns);
  void LinkDrained(uint64_t link, int64_t now_ns);
  void LinkLost(uint64_t link, const LinkEnd& end, int64_t now_ns);

  // ---- what the head says, on its own node
  void SayFromHead(uint64_t link, const NodeMessage& message, int64_t now_ns);
  void CloseWhenSent(uint64_t link) {
    if (link != kOwnLink) io_.CloseWhenSent(link);
  }
  // From now on this is the link between that member and this node.
  void Adopt(uint64_t link, NodeNumber node, int64_t now_ns);

  int64_t next_wakeup_ns() const;
  void Tick(int64_t now_ns);
  void TickFlows(int64_t now_ns);  // after the links have had their turn

  void CheckInvariants() const;

 private:
  enum class Purpose : uint8_t {
    kToHead,
    kOutgoing,  // to another node, for what we send
    kIncoming,  // of another node, for what it sends
    kJoining,   // at the head: of a node that is or wants to be a member
    kAstray,    // of one that wants to join, and we are not the head
  };
  struct LinkState {
    Purpose purpose = Purpose::kToHead;
    NodeNumber node;  // 0: not known yet, or the head
    bool ready = false;
    bool sends_chunks = false;
    NodeNumber flow_with;  // whose messages go over it; 0: none
    std::string peer_address;
  };
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

  Status DialHead();
  void LostHead(bool was_ready, const LinkEnd& end);
  std::string HeadsInWords() const;
  void WaitToJoin(const JoinLater& message);
  void Deliver(NodeNumber from, NodeMessage& message);
  bool HeardFromHead(NodeMessage& message);  // false: it is not of membership
  void Accepted(const NodeAccepted& accepted);
  void Appeared(const NodeAppeared& appeared);
  void Listed(const NodesListed& listed);
  void Vanish(NodeNumber node, const std::string& why);
  void Perform(const std::vector<LeaseAction>& actions);
  uint64_t LinkTo(NodeNumber node);
  void Drop(uint64_t link);
  void Break(uint64_t link, const std::string& why, bool breach);
  void SendNow(NodeNumber to, const NodeMessage& message);
  void SendToHead(const NodeMessage& message) { SendNow({}, message); }
  void SendOver(uint64_t link, const NodeMessage& message);
  Flow& FlowWith(NodeNumber node);
  void OpenFlow(uint64_t link, NodeNumber node, bool sends, bool takes);
  void OpenIncoming(uint64_t link);
  template <class Event>
  bool FeedFlow(NodeNumber node, Event event);  // true: TakeMessage
  void PassMessagesTo(NodeNumber node, uint64_t link);
  void ComplainOf(NodeNumber node, int64_t since_ns, const std::string& why);
  void TakeBackComplaintOf(NodeNumber node);
  void TellOfComplaint(NodeNumber node, const Complaint& complaint);

  const Config config_;
  Io& io_;
  Host& host_;
  HeadSide* head_side_ = nullptr;
  int64_t now_ns_ = 0;  // of the last event
  std::string own_address_;
  NodeNumber self_;
  NodeNumber head_;    // once it has joined
  NodeNumber newest_;  // the highest number that the head has told of
  std::map<NodeNumber, NodeDescription> nodes_;
  std::map<NodeNumber, std::string> gone_;  // in words; those of the highest numbers
  std::map<NodeNumber, Flow> flows_;
  std::map<NodeNumber, Unconnected> unconnected_;  // between the head and its members
  std::map<NodeNumber, Complaint> complaints_;     // that the head was told

  std::map<uint64_t, LinkState> links_;
  uint64_t last_link_ = kOwnLink;
  std::map<NodeNumber, uint64_t> outgoing_;  // links for what we send
  uint64_t head_link_ = 0;
  size_t next_head_ = 0;                // which of the head's addresses is tried next
  std::string leader_address_;          // of the one that has accepted us last
  bool head_answers_ = false;           // a head that has the token has been heard
  std::set<std::string> head_is_away_;  // what the log says of that; empty: it is there
  NodeLease lease_;
  int64_t dial_at_ns_ = INT64_MAX;
  int64_t join_by_ns_ = INT64_MAX;
  bool leaving_ = false;
};

}  // namespace weft::core
