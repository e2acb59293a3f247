// The cluster as this daemon sees it: the TCP links, listener and channels behind its Member, and on the head the Head
// and its control store.
//
// Owned by the NodeDaemon of a cluster node, on its loop thread. Member decides what is sent over which link; what
// concerns processes, leases and objects is the NodeDaemon's business (Cluster::Host). What is here stays out of the
// simulator: descriptors, the clock, and chunks of objects.
//
// Chunks that a node sends to the head's node have a link of their own, so that beats do not wait behind them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "cluster/member.h"
#include "head/head.h"
#include "node/head_store.h"
#include "node/lasting_node.h"
#include "node/node_io.h"
#include "node/refusal_log.h"
#include "os/event_loop.h"
#include "transport/link.h"
#include "transport/link_listener.h"
#include "wire/node_messages.h"
#include "wire/placement.h"

namespace weft::core {

class Cluster final : public NodeLinks, private LinkListener::AcceptHandler, private Member::Io, private Head::Host {
 public:
  class Host : public Member::Host {
   public:
    // A head that waits for the end of another.
    virtual void ClusterAwaited() = 0;
    // A connection for the channel of two processes; `dialled` on the submitter's node.
    virtual void ChannelConnected(ProcessId submitter, ProcessId worker, bool dialled, Result<UniqueFd> socket) = 0;
    // Where the payload of a chunk goes, and that it is there; see Link::Handler.
    virtual uint8_t* ChunkBegan(NodeNumber from, const ChunkHead& head, size_t bytes) = 0;
    virtual void ChunkEnded(NodeNumber from, const ChunkHead& head, size_t bytes) = 0;

   protected:
    ~Host() = default;
  };

  // A head becomes one, and a node dials the head; the host hears of the outcome.
  static Result<std::unique_ptr<Cluster>> Create(EventLoop& loop, const LastingNodeOptions& options, Host& host);
  ~Cluster();

  bool is_head() const override { return head_ && head_->leads(); }
  NodeNumber self() const override { return member_.self(); }
  NodeNumber head() const override { return member_.head(); }
  const std::string& head_address() const { return head_address_; }
  const std::map<NodeNumber, NodeDescription>& nodes() const override { return member_.nodes(); }
  bool Knows(NodeNumber node) const override { return member_.Knows(node); }
  bool MayAppear(NodeNumber node) const override { return member_.MayAppear(node); }
  std::string Describe(NodeNumber node) const override { return member_.Describe(node); }
  // Half of the cluster's id: the same on all its nodes, once this one has joined.
  uint64_t session() const { return SessionOf(settings_.cluster_id); }
  // All nodes, and the latest that have gone. Only the head knows what is available on them, and which have gone.
  std::vector<NodeListed> List() const;

  // See Member.
  void Send(NodeNumber to, const NodeMessage& message) override { member_.Send(to, message, NowNs()); }
  void SendToHead(const NodeMessage& message) { Send({}, message); }
  void SendToAll(const NodeMessage& message) override { member_.SendToAll(message, NowNs()); }
  bool Crowded(NodeNumber node) { return member_.Crowded(node); }
  uint64_t KeptBytes(NodeNumber node) const { return member_.KeptBytes(node); }
  void SendChunk(NodeNumber to, const ChunkHead& head, std::span<const uint8_t> payload,
                 std::shared_ptr<const void> keeper);
  // Sends what was given to it since the last time: one system call for each link, at the end of each turn.
  void FlushLinks();
  // The chunk that is being received in answer to this request has no place any more (Link::DiscardChunk).
  void DiscardChunk(NodeNumber from, uint64_t request);
  // Begins to connect; the host hears of the outcome.
  void DialChannel(ProcessId submitter, ProcessId worker) override;
  void Leave();

  // See Head; there only.
  const JobDescribed* FindJob(ProcessId job) const override { return head_ ? head_->FindJob(job) : nullptr; }
  void KnowJob(JobDescribed job) override {
    if (head_) head_->KnowJob(std::move(job));
  }
  void ForgetJob(ProcessId job) override {
    if (head_) head_->ForgetJob(job);
  }
  Head::Legacy TakeLegacy() { return head_->TakeLegacy(); }
  void Persist(WriteBatch batch, std::function<void()> then, HeadLedger::Waits waits) override {
    if (head_) head_->Persist(std::move(batch), std::move(then), std::move(waits));
  }

  int64_t NextDeadline() const;
  void Tick(int64_t now_ns);

 private:
  class Peer;     // a link of Member's (cluster_peer.h)
  class Channel;  // one that becomes a channel

  Cluster(EventLoop& loop, const LastingNodeOptions& options, Host& host);

  // Member::Io
  Status Dial(uint64_t link, const std::string& address, const std::string& hello, int64_t timeout_ns) override;
  Result<std::string> Listen() override;
  void Send(uint64_t link, std::string_view bytes) override;
  bool Pass(uint64_t link, std::string_view bytes) override;
  void Close(uint64_t link, const std::string& breach) override;
  void CloseWhenSent(uint64_t link) override;
  void Log(LogLevel level, const char* what, const std::string& text) override;
  // LinkListener::AcceptHandler
  void LinkAccepted(std::unique_ptr<Link> link, std::string_view hello) override;
  void LinkRefused(const std::string& address, RefusalKind kind, const Error& why) override;
  // Head::Host
  void HeadLeads(const std::string& cluster_id) override { settings_.cluster_id = cluster_id; }
  void HeadWaits() override { host_.ClusterAwaited(); }
  void HeadEnded(const std::string& why) override { host_.ClusterRefused(why); }
  int64_t Now() const override { return NowNs(); }
  int64_t UnixMs() const override;

  void DropEnded();
  NodeListed ListedAs(NodeNumber node, const NodeDescription& known) const;

  EventLoop& loop_;
  const LastingNodeOptions options_;
  Host& host_;
  LinkSettings settings_;
  std::unique_ptr<LinkListener> listener_;
  std::string head_address_;
  Member member_;
  std::map<uint64_t, std::unique_ptr<Peer>> peers_;  // by number
  std::map<uint64_t, std::unique_ptr<Channel>> channels_;
  std::vector<uint64_t> gathering_;  // links that have something to send
  std::vector<uint64_t> ended_;      // peers and channels to be destroyed outside of their callbacks
  RefusalLog refusals_;
  // On the head. The store comes last: its end calls back.
  std::unique_ptr<Head> head_;
  std::unique_ptr<HeadStore> store_;
};

}  // namespace weft::core
