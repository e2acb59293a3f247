// The connections of a Cluster with other daemons: one link each, with what it is for. Private to Cluster.
#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "node/cluster.h"

namespace weft::core {

// One link. Destroyed by Bury, outside of its callbacks.
class Cluster::Peer final : public Link::Handler {
 public:
  Peer(Cluster& cluster, uint64_t number, NodeNumber node) : cluster_(cluster), number(number), node(node) {}

  void LinkReady(Link&, std::string_view) override {
    ready = true;
    if (to_head) {
      cluster_.head_answers_ = true;
      // Only now the cluster is known that others must name when they come to us.
      cluster_.settings_.cluster_id = link->peer_cluster_id();
      if (Status status = cluster_.Listen(); !status) return cluster_.host_.ClusterRefused(status.error().message);
      std::vector<LeaseAction> actions;
      cluster_.lease_->Handle(HeadLinked{NowNs()}, actions);
      cluster_.Perform(actions);
    }
    // Between the head and its members the link for joining has the flow.
    if (!to_head && node != cluster_.head_) cluster_.OpenFlow(*this, node, true, false);
    for (auto& queued : std::exchange(waiting, {})) SendChunk(queued.bytes, queued.payload, std::move(queued.keeper));
  }
  void LinkMessage(Link&, std::string_view bytes) override { cluster_.Received(*this, bytes); }
  uint8_t* LinkChunkBegan(Link&, std::string_view header, size_t bytes) override {
    ChunkHead head;
    if (header.size() != sizeof head || !Other()) return nullptr;
    std::memcpy(&head, header.data(), sizeof head);
    chunk_bytes_ = bytes;
    chunk_request = head.request;
    return cluster_.host_.ChunkBegan(Other(), head, bytes);
  }
  void LinkChunkEnded(Link&, std::string_view header) override {
    ChunkHead head;
    chunk_request = 0;
    if (header.size() != sizeof head || !Other()) return;
    std::memcpy(&head, header.data(), sizeof head);
    cluster_.host_.ChunkEnded(Other(), head, chunk_bytes_);
  }
  void LinkDrained(Link&) override;
  void LinkClosed(Link&, const Error& why) override { cluster_.Lost(*this, why); }
  // What belongs to this link: not numbered, and lost with it.
  void Send(std::string_view bytes) {
    // A queue of 64 MB that nobody reads: the peer is as good as gone, and its beats will say so.
    if (!ready) return;
    Gather();
    [[maybe_unused]] auto outcome = link->Send(bytes);
    SendIfMuch();
  }
  void SendChunk(std::string_view header, std::span<const uint8_t> payload, std::shared_ptr<const void> keeper) {
    sends_chunks = true;
    if (!ready) {
      waiting.push_back({std::string(header), payload, std::move(keeper)});
      return;
    }
    Gather();
    const bool sent = link->SendChunk(header, payload, std::move(keeper)) == Link::SendOutcome::kSent;
    SendIfMuch();
    if (!sent) cluster_.Send(Other(), ChunksCut{});
  }
  // What is sent from here on leaves with FlushLinks, or when it is much.
  void Gather() {
    if (std::exchange(gathers_, true)) return;
    link->Cork(true);
    cluster_.gathering_.push_back(number);
  }
  void SendIfMuch() {
    // Does not wait for the end of the turn.
    if (gathers_ && link->queued_bytes() >= kMostGathered) SendGathered();
  }
  void SendGathered() {
    gathers_ = false;
    link->Cork(false);
  }
  NodeNumber Other() const { return to_head ? cluster_.head_ : node; }

  struct Waiting {  // a chunk with its header
    std::string bytes;
    std::span<const uint8_t> payload;
    std::shared_ptr<const void> keeper;
  };

  Cluster& cluster_;
  const uint64_t number;
  NodeNumber node;  // 0: not known yet
  std::unique_ptr<Link> link;
  bool ready = false;
  bool to_head = false;
  bool joining = false;   // on the head: of a node that is or wants to be a member
  bool accepted = false;  // another node's for what it sends
  bool astray = false;    // of one that wants to join, and we are not the head
  NodeNumber flow_with;   // whose messages go over it; 0: none
  bool sends_chunks = false;
  std::deque<Waiting> waiting;  // until it is ready
  uint64_t chunk_request = 0;   // of the chunk that is being received; 0: none

 private:
  static constexpr size_t kMostGathered = 256 * 1024;

  size_t chunk_bytes_ = 0;
  bool gathers_ = false;
};

// A connection that becomes a channel.
class Cluster::Dialled final : public Link::Handler {
 public:
  Dialled(Cluster& cluster, uint64_t number, ProcessId submitter, ProcessId worker, bool dialled)
      : cluster_(cluster), number_(number), submitter_(submitter), worker_(worker), dialled_(dialled) {}
  void LinkReady(Link& ready, std::string_view) override { Release(ready); }
  void LinkMessage(Link&, std::string_view) override {}
  void LinkClosed(Link&, const Error& why) override {
    cluster_.ended_.push_back(number_);
    if (released_) return;
    if (dialled_) cluster_.ChannelFailed(NodeOf(worker_), begun_ns_, why.message);
    cluster_.host_.ChannelConnected(submitter_, worker_, dialled_, why);
  }
  void Release(Link& ready) {
    auto socket = ready.ReleaseSocket();
    released_ = true;
    if (dialled_) cluster_.ChannelMade(NodeOf(worker_));
    if (!cluster_.settings_.tls) cluster_.ended_.push_back(number_);  // nothing is relayed
    cluster_.host_.ChannelConnected(submitter_, worker_, dialled_, std::move(socket));
  }

  std::unique_ptr<Link> link;

 private:
  Cluster& cluster_;
  const uint64_t number_;
  const ProcessId submitter_, worker_;
  const bool dialled_;
  const int64_t begun_ns_ = NowNs();
  bool released_ = false;
};

}  // namespace weft::core
