#include "node/cluster.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "log/log.h"
#include "node/cluster_peer.h"
#include "os/entropy.h"
#include "os/tcp.h"

namespace weft::core {
namespace {

// A link over which nothing is heard for so long has ended; well within a node's lease.
constexpr int64_t kIdleNs = 5'000'000'000;

LinkSettings SettingsOf(const LastingNodeOptions& options) {
  LinkSettings settings;
  settings.token = options.token;
  settings.idle_timeout_ns = kIdleNs;
  return settings;
}

Member::Config ConfigOf(const LastingNodeOptions& options, const LinkSettings& settings) {
  Member::Config config;
  FillWithEntropy({reinterpret_cast<uint8_t*>(&config.self.identity), sizeof config.self.identity});
  config.self.name = options.name;
  config.self.resources = options.resources;
  config.self.labels = options.labels;
  if (!options.head) config.heads = SplitAddresses(options.head_address);
  config.returns = options.returns;
  config.max_message_bytes = settings.max_message_bytes;
  return config;
}

// The renewals of a leader whose store was away come before a standby takes over, which needs until its next attempt to
// reach the store: WorkerStore pauses for up to a second, and TCP says what was lost again after pauses that grow while
// a cable is out. So long a standby must have seen the leader's lease free.
constexpr int64_t kLeaderGraceMs = 3'000;
constexpr int64_t kLeaderLeaseMs = 5'000;

Head::Config HeadConfigOf(const LastingNodeOptions& options) {
  Head::Config config;
  // The same after a restart, and no other's: two machines may both listen on 0.0.0.0. (A free port is another each
  // time, but then nothing is kept either.)
  char machine[256] = "";
  ::gethostname(machine, sizeof machine - 1);
  config.ledger.candidate = {.name = std::string(machine) + "/" + options.host + ":" + std::to_string(options.port),
                             .lease_ms = kLeaderLeaseMs,
                             .grace_ms = kLeaderGraceMs};
  config.ledger.node_name = options.name;
  config.ledger.token = options.token;
  FillWithEntropy(config.ledger.new_cluster);
  config.ledger.standby = options.standby;
  config.ledger.lease_ns = config.membership.lease_ns = NodeLeaseNs(options);
  return config;
}

}  // namespace

Cluster::Cluster(EventLoop& loop, const LastingNodeOptions& options, Host& host)
    : loop_(loop),
      options_(options),
      host_(host),
      settings_(SettingsOf(options)),
      member_(ConfigOf(options, settings_), *this, host) {}

Cluster::~Cluster() {
  // The end of the store still calls back for what it has written; the daemon is half gone by then.
  if (head_) head_->Stop();
}

Result<std::unique_ptr<Cluster>> Cluster::Create(EventLoop& loop, const LastingNodeOptions& options, Host& host) {
  std::unique_ptr<Cluster> cluster(new Cluster(loop, options, host));
  if (options.tls.enabled()) {
    auto tls = TlsContext::Load(options.tls);
    if (!tls) return tls.error();
    cluster->settings_.tls = std::move(*tls);
  }
  if (options.head) {
    cluster->head_address_ = HostPortText(options.host, options.port);
    auto store = HeadStore::Open(loop, options);
    if (!store) return store.error();
    cluster->store_ = std::move(*store);
    Head::Host& head_host = *cluster;
    cluster->head_ =
        std::make_unique<Head>(HeadConfigOf(options), cluster->member_, cluster->store_->store(), head_host);
    cluster->head_->Start();
  } else {
    cluster->head_address_ = options.head_address;
    if (Status status = cluster->member_.Start(NowNs()); !status) return status.error();
  }
  return cluster;
}

void Cluster::Leave() {
  member_.Leave(NowNs());
  if (head_) store_->End(head_->Resign());
}

// ---- links --------------------------------------------------------------------------------------------------------

Status Cluster::Dial(uint64_t link, const std::string& address, const std::string& hello, int64_t timeout_ns) {
  auto where = ParseHostPort(address);
  if (!where) return where.error();
  auto peer = std::make_unique<Peer>(*this, link);
  LinkSettings settings = settings_;
  if (timeout_ns > 0) settings.handshake_timeout_ns = timeout_ns;
  auto dialled = Link::Dial(loop_, where->first, where->second, settings, hello, *peer);
  if (!dialled) return dialled.error();
  peer->link = std::move(*dialled);
  peers_[link] = std::move(peer);
  return {};
}

Result<std::string> Cluster::Listen() {
  if (!listener_) {
    auto listener = LinkListener::Listen(loop_, options_.host, options_.port, settings_, "", *this);
    if (!listener) return listener.error();
    listener_ = std::move(*listener);
    LogInfo("link", "listens at %s", HostPortText(options_.host, listener_->port()).c_str());
  }
  const std::string address = HostPortText(options_.host, listener_->port());
  if (head_) head_address_ = address;
  return address;
}

void Cluster::LinkAccepted(std::unique_ptr<Link> link, std::string_view bytes) {
  NodeHello hello;
  if (!DecodeHello(bytes, &hello)) return;
  const uint64_t number = member_.NewLink();
  if (static_cast<LinkPurpose>(hello.purpose) == LinkPurpose::kChannel) {
    auto channel = std::make_unique<Channel>(*this, number, hello.submitter, hello.worker, false);
    link->set_handler(*channel);
    channel->link = std::move(link);
    Channel& accepted = *(channels_[number] = std::move(channel));
    return accepted.Release(*accepted.link);
  }
  auto peer = std::make_unique<Peer>(*this, number);
  link->set_handler(*peer);
  peer->link = std::move(link);
  peer->Accepted();
  peers_[number] = std::move(peer);
  if (!member_.LinkAccepted(number, hello, NowNs())) peers_.erase(number);
}

void Cluster::LinkRefused(const std::string& address, RefusalKind kind, const Error& why) {
  for (const std::string& text : refusals_.Refused(address, kind, why.message, NowNs())) {
    LogWarning("link", "%s", text.c_str());
  }
}

// A queue of 64 MB that nobody reads: the peer is as good as gone, and its beats will say so.
void Cluster::Send(uint64_t link, std::string_view bytes) { Pass(link, bytes); }

bool Cluster::Pass(uint64_t link, std::string_view bytes) {
  auto found = peers_.find(link);
  return found != peers_.end() && found->second->Send(bytes);
}

void Cluster::Close(uint64_t link, const std::string& breach) {
  auto found = peers_.find(link);
  if (found == peers_.end()) return;
  if (!breach.empty())
    Log(LogLevel::kWarning, "link", "a link with " + Describe(member_.NodeBehind(link)) + " was ended: " + breach);
  found->second->End();
}

void Cluster::CloseWhenSent(uint64_t link) {
  if (auto found = peers_.find(link); found != peers_.end()) found->second->link->CloseWhenSent();
}

void Cluster::Log(LogLevel level, const char* what, const std::string& text) { core::Log(level, what, text); }

void Cluster::FlushLinks() {
  for (uint64_t number : std::exchange(gathering_, {})) {
    auto found = peers_.find(number);
    if (found != peers_.end()) found->second->SendGathered();
  }
}

void Cluster::DropEnded() {
  for (uint64_t number : std::exchange(ended_, {})) {
    peers_.erase(number);
    channels_.erase(number);
  }
}

// ---- chunks and channels ------------------------------------------------------------------------------------------

void Cluster::SendChunk(NodeNumber to, const ChunkHead& head, std::span<const uint8_t> payload,
                        std::shared_ptr<const void> keeper) {
  auto found = peers_.find(member_.LinkForChunks(to, NowNs()));
  if (found == peers_.end()) return Send(to, ChunksCut{});
  found->second->SendChunk({reinterpret_cast<const char*>(&head), sizeof head}, payload, std::move(keeper));
}

void Cluster::DiscardChunk(NodeNumber from, uint64_t request) {
  for (auto& [number, peer] : peers_) {
    if (peer->chunk_request == request && member_.NodeBehind(number) == from) peer->link->DiscardChunk();
  }
}

void Cluster::DialChannel(ProcessId submitter, ProcessId worker) {
  auto dial = [&]() -> Status {
    auto address = member_.ChannelNeeded(NodeOf(worker), NowNs());
    if (!address) return address.error();
    auto where = ParseHostPort(*address);
    if (!where) return where.error();
    const uint64_t number = member_.NewLink();
    auto channel = std::make_unique<Channel>(*this, number, submitter, worker, true);
    LinkSettings settings = settings_;
    settings.handshake_timeout_ns = member_.config().reach_ns;
    const NodeHello hello{.purpose = static_cast<uint8_t>(LinkPurpose::kChannel),
                          .node = self(),
                          .submitter = submitter,
                          .worker = worker};
    auto link = Link::Dial(loop_, where->first, where->second, settings, EncodeHello(hello), *channel);
    if (!link) return link.error();
    channel->link = std::move(*link);
    channels_[number] = std::move(channel);
    return {};
  };
  if (Status status = dial(); !status) host_.ChannelConnected(submitter, worker, true, status.error());
}

// ---- looking ------------------------------------------------------------------------------------------------------

NodeListed Cluster::ListedAs(NodeNumber node, const NodeDescription& known) const {
  NodeListed listed{.node = node, .session = session()};
  listed.head = node == head() ? 1 : 0;
  listed.own = node == self() ? 1 : 0;
  listed.name = known.name;
  listed.address = known.address;
  listed.total = known.resources;
  listed.labels = known.labels;
  return listed;
}

std::vector<NodeListed> Cluster::List() const {
  std::vector<NodeListed> all;
  for (const auto& [node, known] : nodes()) {
    all.push_back(ListedAs(node, known));
    if (!head_) continue;
    if (auto free = head_->available().find(node); free != head_->available().end()) {
      all.back().available = free->second;
    }
  }
  if (!head_) return all;
  for (const Head::Departed& gone : head_->departed()) {
    all.push_back(ListedAs(gone.node, gone.description));
    all.back().available = gone.available;
    all.back().alive = 0;
    all.back().why = gone.why;
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.node < b.node; });
  return all;
}

int64_t Cluster::UnixMs() const {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

// ---- time ---------------------------------------------------------------------------------------------------------

int64_t Cluster::NextDeadline() const {
  int64_t next = std::min(listener_ ? listener_->NextDeadline() : INT64_MAX, member_.next_wakeup_ns());
  for (const auto& [number, peer] : peers_) next = std::min(next, peer->link->NextDeadline());
  for (const auto& [number, channel] : channels_) next = std::min(next, channel->link->NextDeadline());
  if (head_) next = std::min({next, head_->next_wakeup_ns(), store_->NextDeadline()});
  return next;
}

void Cluster::Tick(int64_t now_ns) {
  member_.Tick(now_ns);
  if (head_) {
    head_->Tick(now_ns);
    store_->Tick(now_ns);
  }
  if (listener_) listener_->Tick(now_ns);
  std::vector<Link*> links;
  for (const auto& [number, peer] : peers_) links.push_back(peer->link.get());
  for (const auto& [number, channel] : channels_) links.push_back(channel->link.get());
  for (Link* link : links) link->Tick(now_ns);
  member_.TickFlows(now_ns);
  DropEnded();
}

}  // namespace weft::core
