// NodeDaemon of a cluster node: joining and leaving, and what its Cluster tells it. What follows for processes is
// NodeCore's business.
#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "log/log.h"
#include "node/node_daemon.h"
#include "os/abstract_socket.h"
#include "wire/peer_message.h"

namespace weft::core {

Result<std::unique_ptr<NodeDaemon>> NodeDaemon::CreateLasting(const LastingNodeOptions& options, Started started) {
  auto prepared = Prepare();
  if (!prepared) return prepared;
  NodeDaemon& daemon = **prepared;
  daemon.lasting_ = true;
  daemon.options_ = options;
  daemon.started_ = std::move(started);
  if (options.parent >= 0) {
    auto watch = daemon.loop_.Add(options.parent, EPOLLIN, [&daemon](uint32_t) { daemon.EndSession(0); });
    if (!watch) return watch.error();
  }
  auto cluster = Cluster::Create(daemon.loop_, options, daemon);
  if (!cluster) return cluster.error();
  daemon.cluster_ = std::move(*cluster);
  return prepared;
}

void NodeDaemon::ClusterJoined(NodeNumber self) {
  NumberLogNode(self.value);
  LogInfo("membership", "joined the cluster of %s as node %u", cluster_->head_address().c_str(), self.value);
  Open();
}

void NodeDaemon::ClusterAwaited() {
  // Its name can be found (weft stop), but nobody is served yet.
  auto listener = ListenAsDaemon(NodeSocketName(::geteuid(), ::getpid(), cluster_->head_address(), 0));
  if (listener) driver_listener_ = std::move(*listener);
  if (auto started = std::exchange(started_, nullptr)) started(cluster_->head_address());
}

void NodeDaemon::HeadForgot() {
  core_.HeadForgot(NowNs());
  Settle();
}

// The node has its number: processes can be named.
void NodeDaemon::Open() {
  const uint64_t self = cluster_->self().value;
  core_.StartNumbersAt((self << 32) + 1);
  SetUp(options_.resources, options_.object_store_bytes);
  exchange_ = std::make_unique<ObjectExchange>(*cluster_, *budget_, budget_actions_, segments_,
                                               static_cast<ObjectExchange::Host&>(*this));
  if (!options_.program_folder.empty()) {
    programs_ = std::make_unique<ProgramFiles>(static_cast<ProgramFiles::Host&>(*this),
                                               ProgramCache(options_.program_folder, {}),
                                               ProgramFiles::Machine::OfThisProcess(), cluster_->self());
  }
  auto fail = [&](const Error& error) {
    if (auto started = std::exchange(started_, nullptr)) started(error);
    EndSession(1);
  };
  auto listener =
      ListenAsDaemon(NodeSocketName(::geteuid(), ::getpid(), cluster_->head_address(), cluster_->self().value));
  if (!listener) return fail(listener.error());
  driver_listener_ = std::move(*listener);
  auto watch = loop_.Add(driver_listener_.get(), EPOLLIN, [this](uint32_t) { OnDriverConnected(); });
  if (!watch) return fail(watch.error());
  if (cluster_->is_head()) {
    Head::Legacy legacy = cluster_->TakeLegacy();
    core_.Restore(legacy.epoch, std::move(legacy.actors), std::move(legacy.jobs), NowNs());
  }
  if (auto started = std::exchange(started_, nullptr)) started(cluster_->head_address());
}

void NodeDaemon::ClusterRefused(const std::string& why) {
  LogError("membership", "%s", why.c_str());
  if (auto started = std::exchange(started_, nullptr)) started(Error{ErrorKind::kGone, why});
  refused_ = !ended_;
  EndSession(1);
}

void NodeDaemon::ClusterLeft(const std::string& why) {
  LogError("membership", "this node has lost its place in the cluster: %s", why.c_str());
  if (ended_) return;
  left_cluster_ = true;
  EndSession(1, "this machine was cut off from the cluster and is no longer the node that it was: " + why);
}

void NodeDaemon::OnDriverConnected() {
  for (;;) {
    UniqueFd socket = AcceptAbstract(driver_listener_.get());
    if (!socket) return;
    // The name can be known by anybody on this machine; only our own user and root come in.
    auto uid = PeerUid(socket.get());
    if (!uid || (*uid != ::geteuid() && *uid != 0)) continue;
    [[maybe_unused]] Status ignored = AddDriver(std::move(socket));  // if it cannot be watched, it sees the end
  }
}

// ---- what other nodes say -----------------------------------------------------------------------------------------

void NodeDaemon::NodeMessageCame(NodeNumber from, NodeMessage& message) {
  if (!core_.is_open() || ended_) return;
  if (!core_.NodeMessageCame(from, message, NowNs())) {
    std::visit(
        [&](auto& m) {
          if constexpr (requires { HandleNode(from, m); }) {
            HandleNode(from, m);
          } else if constexpr (requires { exchange_->Handle(from, m); }) {
            exchange_->Handle(from, m);
          }
        },
        message);
  }
  Settle();
}

void NodeDaemon::NodeIsGone(NodeNumber node, const std::string& why) {
  if (!core_.is_open()) return;
  core_.NodeIsGone(node, why, NowNs());
  orphans_.Handle(OrphanTable::HolderLeft{DaemonOf(node)}, orphan_actions_);
  FindOrphans(segments_.ObjectsOf(node));
  exchange_->NodeIsGone(node);
  if (programs_) programs_->NodeIsGone(node);
  ResumeSendersTo(DaemonOf(node));
  Settle();
}

void NodeDaemon::FreezeWork(const std::string& why) {
  if (!core_.is_open() || ended_) return;
  LogWarning("membership", "%s; %zu processes stand still until it is known whether they run elsewhere", why.c_str(),
             core_.FreezeWork());
}

void NodeDaemon::ThawWork() {
  core_.ThawWork();
  LogInfo("membership", "the head has confirmed that this node is a member; its work goes on");
}

// ---- objects ------------------------------------------------------------------------------------------------------

void NodeDaemon::Handle(Process& process, FetchObject& message) {
  if (!exchange_) return Refuse(process, "asked for an object of another node, and there is none");
  exchange_->Fetch(process.id, message);
}

void NodeDaemon::Handle(Process& process, ReleaseObject& message) {
  if (exchange_) exchange_->Release(process.id, message);
}

void NodeDaemon::TellProcess(ProcessId id, const Message& message) {
  if (auto* process = Find(id); process != nullptr && process->local.stage == LocalProcess::Stage::kReady)
    Send(*process, message);
}

void NodeDaemon::FreeNow(const std::vector<Location>& locations) {
  for (const Location& location : locations) FreeInSegment(location.segment, {location}, {});
}

uint8_t* NodeDaemon::ChunkBegan(NodeNumber from, const ChunkHead& head, size_t bytes) {
  return exchange_ && !ended_ ? exchange_->ChunkBegan(from, head, bytes) : nullptr;
}

void NodeDaemon::ChunkEnded(NodeNumber from, const ChunkHead& head, size_t bytes) {
  if (!exchange_ || ended_) return;
  exchange_->ChunkEnded(from, head, bytes);
  Settle();
}

void NodeDaemon::LinkBroken(NodeNumber node) {
  if (exchange_) exchange_->LinkBroken(node);
  if (programs_) programs_->LinkBroken(node);
}

void NodeDaemon::NodeHasRoom(NodeNumber node) {
  ResumeSendersTo(DaemonOf(node));
  Settle();
}

void NodeDaemon::ChannelConnected(ProcessId submitter, ProcessId worker, bool dialled, Result<UniqueFd> socket) {
  if (!core_.is_open()) return;
  core_.ChannelConnected(
      submitter, worker, dialled, socket.ok() ? "" : socket.error().message,
      [&](uint32_t slot) {
        Process& own = *Find(dialled ? submitter : worker);
        const ProcessId other = dialled ? worker : submitter;
        Send(own, StreamOpened{other, slot, static_cast<uint8_t>(dialled ? 1 : 0)}, {ShareFd(std::move(*socket))});
      },
      NowNs());
  Settle();
}

}  // namespace weft::core
