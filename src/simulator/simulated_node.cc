#include "simulator/simulated_node.h"

#include <algorithm>

#include "simulator/simulated_cluster.h"
#include "simulator/simulated_daemon.h"
#include "simulator/simulated_process.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr uint64_t kHeadPort = 1;

// An address is the number of a machine and a port.
std::string Address(size_t machine, uint64_t port) {
  return std::to_string(machine).append(":").append(std::to_string(port));
}

std::string NameOf(size_t machine) { return std::string("machine-").append(std::to_string(machine)); }

std::pair<size_t, uint64_t> ParseAddress(const std::string& address) {
  const size_t colon = address.find(':');
  return {std::stoull(address.substr(0, colon)), std::stoull(address.substr(colon + 1))};
}

// Its times are a tenth of the real ones, as the lease is.
Member::Config ConfigOf(World& world, const SimulatedMachine& machine, bool head) {
  Member::Config config;
  config.self.identity = {world.random.Next(), world.random.Next()};
  config.self.name = NameOf(machine.number);
  config.self.resources = {{"CPU", machine.cpus * kResourceUnit}};
  if (machine.gpus > 0) config.self.resources.emplace_back("gpu", machine.gpus * kResourceUnit);
  if (!head) config.heads = {Address(0, kHeadPort)};
  config.lease.freeze_after_link_loss_ns = 40 * kMs;
  config.dial_soon_ns = kMs;
  config.dial_again_ns = 10 * kMs;
  config.join_ns = 1'500 * kMs;
  config.complain_ns = 800 * kMs;
  config.same_story_ns = 2'000 * kMs;
  config.faults.lease = world.options.lease_faults;
  config.faults.flow = world.options.flow_faults;
  config.faults.take_the_unheard_of_for_dead = world.options.cluster_faults.take_the_unheard_of_for_dead;
  return config;
}

Head::Config HeadConfigOf(const World& world) {
  Head::Config config;
  config.ledger.candidate = {.name = "head", .lease_ms = 1000, .grace_ms = 100};
  config.ledger.node_name = NameOf(0);
  config.ledger.lease_ns = SimulatedCluster::kLeaseNs;
  config.ledger.renew_ns = 100 * kMs;
  config.ledger.again_ns = 20 * kMs;
  config.ledger.open_ns = 1'500 * kMs;
  config.membership.lease_ns = SimulatedCluster::kLeaseNs;
  config.membership.grace_ns = 100 * kMs;
  config.membership.first_pause_ns = 1'000 * kMs;
  config.membership.last_pause_ns = 4'000 * kMs;
  config.faults.membership = world.options.membership_faults;
  config.faults.scheduler = world.options.global_faults;
  config.faults.tell_before_writing = world.options.cluster_faults.tell_before_writing;
  return config;
}

}  // namespace

SimulatedNode::SimulatedNode(World& world, SimulatedMachine& machine, bool head, uint64_t port)
    : world_(world), machine_(machine), port_(port), member_(ConfigOf(world, machine, head), *this, *this) {
  if (!head) return;
  store_ = std::make_unique<SimulatedStore>(world.cluster->storage);
  store_->queued = [this] { PumpStore(); };
  Head::Host& host = *this;
  head_ = std::make_unique<Head>(HeadConfigOf(world), member_, *store_, host);
}

int64_t SimulatedNode::Now() const { return machine_.Clock(world_.now()); }

void SimulatedNode::Start() {
  if (head_) return Turn([this] { head_->Start(); });
  Turn([this] {
    if (!member_.Start(Now())) world_.Fail("a node cannot dial the head");
  });
}

void SimulatedNode::End() {
  if (std::exchange(ended_, true)) return;
  world_.Note("daemon ends", machine_.number, self().value);
  world_.cluster->Trouble(machine_.number, world_.now());
  world_.cluster->network.StopListening(machine_.number, port_);
  for (auto& [link, stream] : streams_) {
    if (stream.pointer) world_.cluster->network.Close(stream.pointer, stream.side, NetworkFault::kCrash);
  }
  if (daemon_) daemon_->End();
  if (head_) head_->Stop();
}

bool SimulatedNode::MayAppear(NodeNumber node) const {
  const bool may = member_.MayAppear(node);
  if (may) world_.node_coverage.Did("a message waited for word of its node");
  return may;
}

void SimulatedNode::Leave(const std::string& why) {
  if (ended_) return;
  world_.Note("leaves", machine_.number, self().value);
  world_.node_coverage.Did(self() ? "a node lost its place" : "a node was not taken in");
  Log(LogLevel::kWarning, "membership", why);
  End();
  world_.cluster->StartAgain(machine_, kMs + static_cast<int64_t>(world_.random.Below(100 * kMs)));
}

void SimulatedNode::Log(LogLevel, const char*, const std::string& line) {
  if (world_.options.print_trace) std::printf("%s: %s\n", NameOf(machine_.number).c_str(), line.c_str());
}

void SimulatedNode::Later(int64_t delay_ns, std::function<void()> what) {
  world_.queue.At(world_.now() + delay_ns, [this, what = std::move(what)] {
    if (ended_) return;
    const int64_t paused = world_.cluster->network.PausedUntil(machine_.number);
    if (paused > world_.now()) return Later(paused - world_.now(), what);
    Turn(what);
  });
}

void SimulatedNode::Turn(const std::function<void()>& what) {
  if (ended_) return;
  if (in_turn_) return what();
  in_turn_ = true;
  what();
  if (!ended_ && daemon_) daemon_->EndTurn();
  in_turn_ = false;
  if (ended_) return;
  member_.CheckInvariants();
  if (is_head()) WatchMembers();
  if (member_.kept_messages() > 1'000'000) world_.Fail("messages to other nodes are kept without bound");
  ScheduleTick();
}

void SimulatedNode::ScheduleTick() {
  const int64_t next = std::min(member_.next_wakeup_ns(), head_ ? head_->next_wakeup_ns() : INT64_MAX);
  if (next == INT64_MAX) return;
  const int64_t at = std::max(world_.now(), machine_.When(next) + 1'000);
  if (tick_at_ns_ <= at) return;
  tick_at_ns_ = at;
  Later(at - world_.now(), [this, at] {
    if (tick_at_ns_ == at) tick_at_ns_ = INT64_MAX;
    Tick();
  });
}

void SimulatedNode::Tick() {
  const int64_t now = Now();
  member_.Tick(now);
  if (ended_) return;
  if (head_) head_->Tick(now);
  if (!ended_) member_.TickFlows(now);
}

// ---- links --------------------------------------------------------------------------------------------------------

Status SimulatedNode::Dial(uint64_t link, const std::string& address, const std::string& hello, int64_t) {
  auto [machine, port] = ParseAddress(address);
  streams_[link].address = address;
  world_.cluster->network.Dial(machine_.number, machine, port, true, hello,
                               [this, link](StreamPointer stream, bool nobody_listens) {
                                 Later(0, [=, this] { Connected(link, stream, nobody_listens); });
                               });
  return {};
}

Result<std::string> SimulatedNode::Listen() {
  world_.cluster->network.Listen(machine_.number, port_, [this](const StreamPointer& stream, const std::string& hello) {
    return Accept(stream, hello);
  });
  return Address(machine_.number, port_);
}

void SimulatedNode::Connected(uint64_t link, StreamPointer stream, bool nobody_listens) {
  auto found = streams_.find(link);
  if (found == streams_.end()) {
    if (stream) world_.cluster->network.Close(stream, SimulatedStream::kDialler);
    return;
  }
  if (!stream) return Lost(link, ErrorKind::kUnavailable, nobody_listens);
  if (!stream->side[SimulatedStream::kDialler].open) return Lost(link, ErrorKind::kGone, false);
  Attach(link, stream, SimulatedStream::kDialler);
  member_.LinkReady(link, found->second.address, Now());
}

void SimulatedNode::Attach(uint64_t link, StreamPointer stream, int side) {
  streams_[link].pointer = stream;
  streams_[link].side = side;
  stream->side[side].closed = [this, link](bool by_peer) {
    Turn([&] { Lost(link, by_peer ? ErrorKind::kGone : ErrorKind::kTimeout, false); });
  };
  stream->side[side].message = [this, link](const std::string& bytes) {
    Turn([&] {
      world_.Note("node hears", self().value, member_.NodeBehind(link).value, static_cast<uint8_t>(bytes[0]));
      member_.LinkMessage(link, bytes, Now());
    });
  };
}

void SimulatedNode::Lost(uint64_t link, ErrorKind kind, bool nobody_listens) {
  auto found = streams_.find(link);
  if (found == streams_.end()) return;
  const std::string address = found->second.address;
  streams_.erase(found);
  if (nobody_listens && self() && member_.NodeBehind(link) == member_.head())
    world_.node_coverage.Did("a node saw that the head had ended");
  member_.LinkLost(link, {kind, "the link was lost", nobody_listens, address}, Now());
}

bool SimulatedNode::Accept(const StreamPointer& stream, const std::string& bytes) {
  NodeHello hello;
  if (ended_ || !DecodeHello(bytes, &hello)) return false;
  if (static_cast<LinkPurpose>(hello.purpose) == LinkPurpose::kChannel) {
    if (!daemon_) return false;
    Turn([&] { daemon_->ChannelConnected(hello.submitter, hello.worker, false, stream); });
    return true;
  }
  bool accepted = false;
  Turn([&] {
    const uint64_t link = member_.NewLink();
    Attach(link, stream, SimulatedStream::kListener);
    accepted = member_.LinkAccepted(link, hello, Now());
    if (!accepted) streams_.erase(link);
  });
  return accepted;
}

void SimulatedNode::Send(uint64_t link, std::string_view bytes) {
  auto found = streams_.find(link);
  if (ended_ || found == streams_.end() || !found->second.pointer) return;
  const int to = 1 - found->second.side;
  Parcel parcel;
  parcel.kind = static_cast<uint8_t>(bytes[0]);
  parcel.arrives = [stream = std::weak_ptr(found->second.pointer), to, bytes = std::string(bytes)] {
    if (auto alive = stream.lock(); alive && alive->side[to].message) alive->side[to].message(bytes);
  };
  world_.cluster->network.Send(found->second.pointer, found->second.side, std::move(parcel));
}

bool SimulatedNode::Pass(uint64_t link, std::string_view bytes) {
  if (world_.faulty() && world_.random.Chance(world_.refuse_percent)) {
    Later(world_.Delay(), [=, this] { member_.LinkDrained(link, Now()); });
    return false;
  }
  Send(link, bytes);
  return true;
}

void SimulatedNode::Close(uint64_t link, const std::string& breach) {
  if (!breach.empty() && !world_.faulty()) world_.Fail("a link was ended because " + breach);
  auto found = streams_.find(link);
  if (found == streams_.end()) return;
  if (found->second.pointer) world_.cluster->network.Close(found->second.pointer, found->second.side);
  streams_.erase(link);
}

void SimulatedNode::CloseWhenSent(uint64_t link) {
  if (!streams_.contains(link)) return;
  Close(link, "");
  Later(world_.Delay(), [=, this] { member_.LinkLost(link, {.why = "closed by us"}, Now()); });
}

// ---- messages -----------------------------------------------------------------------------------------------------

void SimulatedNode::Send(NodeNumber to, const NodeMessage& message) {
  if (ended_) return;
  if (auto* routed = std::get_if<RoutedAcross>(&message)) world_.MentionsSent(routed->payload);
  member_.Send(to, message, Now());
}

void SimulatedNode::SendToAll(const NodeMessage& message) {
  if (!ended_) member_.SendToAll(message, Now());
}

void SimulatedNode::DialChannel(ProcessId submitter, ProcessId worker) {
  const NodeNumber node = NodeOf(worker);
  auto address = member_.ChannelNeeded(node, Now());
  if (!address) return Later(0, [=, this] { daemon_->ChannelConnected(submitter, worker, true, nullptr); });
  auto [machine, port] = ParseAddress(*address);
  const NodeHello hello{
      .purpose = static_cast<uint8_t>(LinkPurpose::kChannel), .node = self(), .submitter = submitter, .worker = worker};
  world_.cluster->network.Dial(machine_.number, machine, port, false, EncodeHello(hello),
                               [=, this, begun = Now()](StreamPointer stream, bool) {
                                 if (ended_ && stream) world_.cluster->network.Close(stream, SimulatedStream::kDialler);
                                 Later(0, [=, this] {
                                   if (stream) {
                                     member_.ChannelMade(node, Now());
                                   } else {
                                     member_.ChannelFailed(node, begun, "no connection", Now());
                                   }
                                   daemon_->ChannelConnected(submitter, worker, true, stream);
                                 });
                               });
}

void SimulatedNode::ClusterJoined(NodeNumber self) {
  world_.cluster->NumberGiven(self, machine_.number);
  world_.Note("joined", machine_.number, self.value);
  auto& daemon = world_.daemons[self];
  daemon = std::make_unique<SimulatedDaemon>(world_, this);
  daemon_ = daemon.get();
  daemon_->Open();
}

void SimulatedNode::HeadForgot() {
  world_.node_coverage.Did("a node met a new head");
  if (!ended_) daemon_->HeadForgot();
}

void SimulatedNode::FreezeWork(const std::string&) {
  world_.node_coverage.Did("a node froze its work");
  world_.Note("freezes", self().value);
  if (daemon_) daemon_->FreezeWork();
}

void SimulatedNode::ThawWork() {
  world_.node_coverage.Did("a node thawed its work");
  world_.Note("thaws", self().value);
  if (daemon_) daemon_->ThawWork();
}

void SimulatedNode::NodeMessageCame(NodeNumber from, NodeMessage& message) {
  if (daemon_ && !ended_) daemon_->NodeMessageCame(from, message);
}

void SimulatedNode::NodeIsGone(NodeNumber node, const std::string& why) {
  if (is_head()) {
    world_.node_coverage.Did("a node was declared dead");
    world_.Note("declared dead", node.value);
    world_.cluster->DeclaredDead(node);
  }
  if (daemon_ && !ended_) daemon_->NodeIsGone(node, why);
}

// ---- the head -----------------------------------------------------------------------------------------------------

void SimulatedNode::HeadLeads(const std::string&) {
  if (++world_.cluster->heads > 1) world_.node_coverage.Did("the head was started again");
}

void SimulatedNode::WatchMembers() {
  head_->CheckInvariants();
  for (const auto& [node, member] : head_->membership()->members()) {
    if (member.state == Membership::State::kSuspected) suspected_.insert(node);
    if (member.state == Membership::State::kAlive && suspected_.erase(node) > 0) {
      world_.node_coverage.Did("a suspected node came back");
    }
    if (member.state == Membership::State::kExpelled && world_.cluster->Expelled(node)) {
      world_.node_coverage.Did("a node had to leave");
    }
  }
}

void SimulatedNode::PumpStore() {
  if (std::exchange(pumping_store_, true)) return;
  Later(world_.Delay() + 50'000, [this] {
    pumping_store_ = false;
    SimulatedStorage& storage = *world_.cluster->storage;
    storage.now_ns = world_.now();
    if (storage.away) world_.node_coverage.Did("the control store was away");
    if (!store_->Perform()) {
      if (storage.away) Later(5 * kMs, [this] { PumpStore(); });
      return;
    }
    Later(world_.Delay() + 50'000, [this] {
      if (store_->Deliver() && !ended_) PumpStore();
    });
  });
}

// ---- rest ---------------------------------------------------------------------------------------------------------

void SimulatedNode::CheckRest() const {
  const std::string node = "at rest, node " + std::to_string(self().value);
  if (member_.frozen()) world_.Fail(node + " stands still");
  if (member_.kept_messages() > 0) world_.Fail(node + " keeps messages to other nodes");
  if (!is_head()) return;
  if (scheduler()->request_count() != 0) world_.Fail("at rest, the head still knows requests");
  if (head_->waiting_changes() > 0) world_.Fail("at rest, changes wait for the control store");
  if (const size_t known = head_->membership()->members().size(); known != world_.cluster->machines.size()) {
    world_.Fail("at rest, the head knows " + std::to_string(known) + " nodes");
  }
}

std::string SimulatedNode::Describe() const {
  std::string text = "machine " + std::to_string(machine_.number) + ": node " + std::to_string(self().value) +
                     (is_head() ? " (head)" : "") + (member_.frozen() ? " frozen" : "") + ", knows";
  for (const auto& [node, other] : nodes()) text.append(" ").append(std::to_string(node.value));
  text += member_.linked_to_head() ? "" : ", no link to the head";
  for (const auto& [node, other] : nodes()) {
    if (member_.KeptBytes(node) == 0) continue;
    text += ", keeps " + std::to_string(member_.KeptBytes(node)) + " bytes for " + std::to_string(node.value);
  }
  if (is_head()) {
    text += ", requests " + std::to_string(scheduler()->request_count());
    text += ", changes " + std::to_string(head_->waiting_changes());
  }
  return text + "\n";
}

}  // namespace weft::core
