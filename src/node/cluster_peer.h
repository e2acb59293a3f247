// The connections of a Cluster with other daemons. Private to Cluster.
#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "node/cluster.h"

namespace weft::core {

// A link of Member's, and the chunks on it. Destroyed by DropEnded, outside of its callbacks.
class Cluster::Peer final : public Link::Handler {
 public:
  Peer(Cluster& cluster, uint64_t number) : cluster_(cluster), number_(number) {}

  void LinkReady(Link&, std::string_view) override {
    ready_ = true;
    // What a node learns from the head when it joins. Others must name it.
    cluster_.settings_.cluster_id = link->peer_cluster_id();
    cluster_.member_.LinkReady(number_, link->peer_address(), NowNs());
    for (auto& queued : std::exchange(waiting_, {})) SendChunk(queued.bytes, queued.payload, std::move(queued.keeper));
  }
  void LinkMessage(Link&, std::string_view bytes) override { cluster_.member_.LinkMessage(number_, bytes, NowNs()); }
  uint8_t* LinkChunkBegan(Link&, std::string_view header, size_t bytes) override {
    ChunkHead head;
    const NodeNumber from = cluster_.member_.NodeBehind(number_);
    if (header.size() != sizeof head || !from) return nullptr;
    std::memcpy(&head, header.data(), sizeof head);
    chunk_bytes_ = bytes;
    chunk_request = head.request;
    return cluster_.host_.ChunkBegan(from, head, bytes);
  }
  void LinkChunkEnded(Link&, std::string_view header) override {
    ChunkHead head;
    chunk_request = 0;
    const NodeNumber from = cluster_.member_.NodeBehind(number_);
    if (header.size() != sizeof head || !from) return;
    std::memcpy(&head, header.data(), sizeof head);
    cluster_.host_.ChunkEnded(from, head, chunk_bytes_);
  }
  void LinkDrained(Link&) override { cluster_.member_.LinkDrained(number_, NowNs()); }
  void LinkClosed(Link& closed, const Error& why) override {
    cluster_.ended_.push_back(number_);
    ready_ = false;
    waiting_.clear();
    cluster_.member_.LinkLost(number_, {why.kind, why.message, closed.nobody_listens(), closed.peer_address()},
                              NowNs());
  }
  bool Send(std::string_view bytes) {
    if (!ready_) return false;
    Gather();
    const bool sent = link->Send(bytes) == Link::SendOutcome::kSent;
    SendIfMuch();
    return sent;
  }
  void SendChunk(std::string_view header, std::span<const uint8_t> payload, std::shared_ptr<const void> keeper) {
    if (!ready_) {
      waiting_.push_back({std::string(header), payload, std::move(keeper)});
      return;
    }
    Gather();
    const bool sent = link->SendChunk(header, payload, std::move(keeper)) == Link::SendOutcome::kSent;
    SendIfMuch();
    if (!sent) cluster_.Send(cluster_.member_.NodeBehind(number_), ChunksCut{});
  }
  void SendGathered() {
    gathers_ = false;
    link->Cork(false);
  }
  void Accepted() { ready_ = true; }
  void End() {
    ready_ = false;
    link->Close();
    cluster_.ended_.push_back(number_);
  }

  std::unique_ptr<Link> link;
  uint64_t chunk_request = 0;  // of the chunk that is being received; 0: none

 private:
  static constexpr size_t kMostGathered = 256 * 1024;
  struct Waiting {  // a chunk with its header
    std::string bytes;
    std::span<const uint8_t> payload;
    std::shared_ptr<const void> keeper;
  };

  // What is sent from here on leaves with FlushLinks, or when it is much.
  void Gather() {
    if (std::exchange(gathers_, true)) return;
    link->Cork(true);
    cluster_.gathering_.push_back(number_);
  }
  void SendIfMuch() {
    // Does not wait for the end of the turn.
    if (gathers_ && link->queued_bytes() >= kMostGathered) SendGathered();
  }

  Cluster& cluster_;
  const uint64_t number_;
  bool ready_ = false;
  std::deque<Waiting> waiting_;  // until it is ready
  size_t chunk_bytes_ = 0;
  bool gathers_ = false;
};

// A connection that becomes a channel.
class Cluster::Channel final : public Link::Handler {
 public:
  Channel(Cluster& cluster, uint64_t number, ProcessId submitter, ProcessId worker, bool dialled)
      : cluster_(cluster), number_(number), submitter_(submitter), worker_(worker), dialled_(dialled) {}
  void LinkReady(Link& ready, std::string_view) override { Release(ready); }
  void LinkMessage(Link&, std::string_view) override {}
  void LinkClosed(Link&, const Error& why) override {
    cluster_.ended_.push_back(number_);
    if (released_) return;
    if (dialled_) cluster_.member_.ChannelFailed(NodeOf(worker_), begun_ns_, why.message, NowNs());
    cluster_.host_.ChannelConnected(submitter_, worker_, dialled_, why);
  }
  void Release(Link& ready) {
    auto socket = ready.ReleaseSocket();
    released_ = true;
    if (dialled_) cluster_.member_.ChannelMade(NodeOf(worker_), NowNs());
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
