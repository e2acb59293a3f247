#include "simulator/simulated_node.h"

#include <algorithm>
#include <cstring>

#include "simulator/simulated_cluster.h"
#include "simulator/simulated_daemon.h"
#include "simulator/simulated_process.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
// A tenth of those in node/head_ledger.cc, as the lease is, too.
constexpr int64_t kGraceNs = 100 * kMs;
constexpr int64_t kStoreAgainNs = 20 * kMs;
constexpr int64_t kRenewNs = 100 * kMs;
constexpr uint64_t kHeadPort = 1;

Identity ToIdentity(const NodeIdentity& identity) {
  Identity bytes;
  std::memcpy(bytes.data(), &identity, sizeof identity);
  return bytes;
}

NodeIdentity FromIdentity(const Identity& bytes) {
  NodeIdentity identity;
  std::memcpy(&identity, bytes.data(), sizeof identity);
  return identity;
}

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

// Of the head's own node; see node/cluster_head.cc.
constexpr int64_t kOwnLeaseNs = int64_t{24} * 3600 * 1'000 * kMs;

NodeAppeared News(NodeNumber node, const NodeDescription& description) {
  return {node, description.name, description.address, description.resources, description.labels};
}

}  // namespace

SimulatedNode::SimulatedNode(World& world, SimulatedMachine& machine, bool head, uint64_t port)
    : world_(world),
      machine_(machine),
      head_options_(head),
      port_(port),
      member_(ConfigOf(world, machine, head), *this, *this, head ? this : nullptr) {}

int64_t SimulatedNode::Now() const { return machine_.Clock(world_.now()); }

void SimulatedNode::Start() {
  if (head_options_) {
    store_ = std::make_unique<SimulatedStore>(world_.cluster->storage);
    return Acquire();
  }
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
  store_.reset();
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
  Log(why);
  End();
  world_.cluster->StartAgain(machine_, kMs + static_cast<int64_t>(world_.random.Below(100 * kMs)));
}

void SimulatedNode::Log(const std::string& line) {
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
  if (membership_) membership_->CheckInvariants();
  if (scheduler_) scheduler_->CheckInvariants();
  if (member_.kept_messages() > 1'000'000) world_.Fail("messages to other nodes are kept without bound");
  ScheduleTick();
}

void SimulatedNode::ScheduleTick() {
  int64_t next = std::min(member_.next_wakeup_ns(), renew_at_ns_);
  if (membership_) next = std::min(next, membership_->next_wakeup_ns());
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
  if (membership_) {
    std::vector<MembershipAction> actions;
    if (self()) membership_->Handle(BeatCame{Member::kOwnLink, 0, epoch_, now}, actions);
    membership_->Handle(MembershipTicked{now}, actions);
    Perform(std::move(actions));
  }
  if (store_ && renew_at_ns_ <= now) {
    renew_at_ns_ = now + kRenewNs;
    [[maybe_unused]] StoreStatus status = store_->Renew([this](StoreStatus outcome) {
      if (outcome.code() == StoreCode::kFenced) Leave("another head has taken over this cluster");
    });
    PumpStore();
  }
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
  if (!ended_) member_.Send(to, message, Now());
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
  if (daemon_ && !ended_) daemon_->NodeIsGone(node, why);
}

// ---- what the head hears ------------------------------------------------------------------------------------------

const JobDescribed* SimulatedNode::FindJob(ProcessId job) const {
  auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

void SimulatedNode::JoinCame(uint64_t link, NodeJoins& joins) {
  std::vector<MembershipAction> actions;
  membership_->Handle(JoinAsked{.link = link,
                                .was = joins.was,
                                .epoch = joins.epoch,
                                .beat = joins.beat,
                                .protocol = joins.protocol,
                                .node = {joins.identity, joins.name, joins.address, joins.resources, joins.labels},
                                .now_ns = Now(),
                                .own = link == Member::kOwnLink},
                      actions);
  Perform(std::move(actions));
}

void SimulatedNode::JoinLinkLost(uint64_t link, bool by_peer) {
  std::vector<MembershipAction> actions;
  membership_->Handle(MemberLinkClosed{link, by_peer, Now()}, actions);
  Perform(std::move(actions));
}

void SimulatedNode::HeadHeard(NodeNumber from, NodeMessage& message) {
  std::vector<GlobalAction> actions;
  if (auto* beat = std::get_if<NodeBeat>(&message)) {
    auto member = membership_->members().find(from);
    if (member == membership_->members().end()) return;
    std::vector<MembershipAction> decided;
    membership_->Handle(BeatCame{member->second.link, beat->beat, beat->epoch, Now()}, decided);
    return Perform(std::move(decided));
  }
  if (auto* unreachable = std::get_if<NodeUnreachable>(&message)) {
    world_.node_coverage.Did("a node complained of another");
    std::vector<MembershipAction> decided;
    membership_->Handle(UnreachableSaid{from, unreachable->node, unreachable->for_ns, unreachable->why, Now()},
                        decided);
    return Perform(std::move(decided));
  }
  if (auto* reachable = std::get_if<NodeReachable>(&message)) {
    std::vector<MembershipAction> decided;
    membership_->Handle(ReachableSaid{from, reachable->node, Now()}, decided);
    return Perform(std::move(decided));
  }
  if (auto* load = std::get_if<NodeLoad>(&message)) {
    scheduler_->Handle(NodeReported{from, load->placements_seen, load->available, load->free_gpus, load->leases, {}},
                       actions);
  } else if (auto* wish = std::get_if<WishSent>(&message)) {
    const std::pair key{from, wish->wish};
    const WishId id{from, wish->wish};
    if (wish->withdrawn != 0) {
      wishes_.erase(key);
      scheduler_->Handle(WishWithdrawn{id}, actions);
    } else if (wishes_.contains(key)) {
      scheduler_->Handle(WishChanged{id, wish->count, wish->placed_heard}, actions);
    } else {
      WorkWished wished{.wish = id,
                        .process = wish->process,
                        .job = wish->job.value,
                        .shape = wish->shape,
                        .count = wish->count,
                        .depth = wish->depth};
      wishes_[key] = *wish;
      wished.actor = static_cast<bool>(wish->actor);
      scheduler_->Handle(wished, actions);
    }
  } else if (auto* job = std::get_if<JobDescribed>(&message)) {
    jobs_[job->driver] = *job;
    for (const auto& [node, other] : std::map(nodes())) {
      if (node == from || node == self()) continue;
      if (told_jobs_[node].insert(job->driver).second) Send(node, *job);
    }
    if (from != self() && daemon_) daemon_->NodeMessageCame(from, message);
  } else if (auto* declined = std::get_if<WorkDeclined>(&message)) {
    scheduler_->Handle(
        PlacementRefused{from, declined->placement, WishId{declined->asker, declined->wish}, declined->count}, actions);
  } else if (std::holds_alternative<NodeFarewell>(message)) {
    auto member = membership_->members().find(from);
    if (member == membership_->members().end()) return;
    std::vector<MembershipAction> decided;
    membership_->Handle(FarewellCame{member->second.link, Now()}, decided);
    return Perform(std::move(decided));
  }
  Perform(std::move(actions));
}

// ---- decisions ----------------------------------------------------------------------------------------------------

void SimulatedNode::Perform(std::vector<MembershipAction> actions) {
  for (auto& action : actions) {
    if (ended_) return;
    if (auto* accept = std::get_if<AcceptNode>(&action)) {
      const NodeDescription& description = membership_->members().at(accept->node).description;
      accepted_[accept->node] = *accept;
      if (accept->again) {
        if (known_.contains(accept->node)) Accepted(accept->node);
        continue;
      }
      WriteBatch batch;
      NodeRecord record;
      record.number = accept->node.value;
      record.identity = ToIdentity(description.identity);
      record.name = description.name;
      record.address = description.address;
      record.resources = description.resources;
      Put(batch, record);
      cluster_.next_node = std::max(cluster_.next_node, membership_->next_number().value);
      Put(batch, cluster_);
      if (world_.options.cluster_faults.tell_before_writing) {
        Accepted(accept->node);
        Commit(std::move(batch), nullptr);
      } else {
        Commit(std::move(batch), [this, node = accept->node] { Accepted(node); });
      }
    } else if (auto* refuse = std::get_if<RefuseNode>(&action)) {
      world_.Note("refuses", static_cast<uint64_t>(refuse->kind));
      if (refuse->kind == RefuseNode::Kind::kTryAgain) {
        Tell(refuse->link, JoinLater{refuse->wait_ns, refuse->why});
      } else {
        Tell(refuse->link, NodeRefused{refuse->kind == RefuseNode::Kind::kDeclaredDead, refuse->why});
      }
      CloseWhenSent(refuse->link);
    } else if (auto* confirm = std::get_if<ConfirmLease>(&action)) {
      Tell(confirm->link, BeatConfirmed{confirm->beat, confirm->epoch});
    } else if (auto* close = std::get_if<CloseMemberLink>(&action)) {
      CloseWhenSent(close->link);
    } else if (auto* suspect = std::get_if<SuspectNode>(&action)) {
      std::vector<GlobalAction> decided;
      if (here_.contains(suspect->node)) scheduler_->Handle(NodeSuspected{suspect->node, true}, decided);
      Perform(std::move(decided));
    } else if (auto* trust = std::get_if<TrustNode>(&action)) {
      world_.node_coverage.Did("a suspected node came back");
      std::vector<GlobalAction> decided;
      if (here_.contains(trust->node)) scheduler_->Handle(NodeSuspected{trust->node, false}, decided);
      Perform(std::move(decided));
    } else if (auto* expel = std::get_if<ExpelNode>(&action)) {
      world_.node_coverage.Did("a node had to leave");
      world_.cluster->Expelled(expel->node);
      Tell(expel->link, NodeRefused{1, expel->why});
    } else if (auto* dead = std::get_if<DeclareDead>(&action)) {
      WriteBatch batch;
      DeleteNode(batch, dead->node.value);
      Commit(std::move(batch), [this, news = *dead] { Dead(news); });
    } else if (std::holds_alternative<StepDown>(action)) {
      return Leave("another head has taken over this cluster");
    }
  }
}

void SimulatedNode::TellAllBut(NodeNumber but, const NodeMessage& news) {
  for (NodeNumber node : here_) {
    auto member = membership_->members().find(node);
    if (node == but || member == membership_->members().end() || member->second.own) continue;
    if (member->second.link != 0) Tell(member->second.link, news);
  }
  Tell(Member::kOwnLink, news);
}

void SimulatedNode::Accepted(NodeNumber node) {
  auto member = membership_->members().find(node);
  if (member == membership_->members().end()) return;
  const NodeDescription description = member->second.description;
  const uint64_t link = member->second.link;
  const bool own = member->second.own;
  if (known_.emplace(node, description).second) TellAllBut(node, News(node, description));
  if (own) {
    std::vector<MembershipAction> none;
    membership_->Handle(JoiningBegan{Now()}, none);
  }
  if (link != 0) {
    const AcceptNode& accept = accepted_.at(node);
    Tell(link, NodeAccepted{node, own ? node : self(), accept.epoch, accept.beat, own ? kOwnLeaseNs : accept.lease_ns});
    NodesListed listed;
    for (const auto& [other, other_description] : known_) {
      Tell(link, News(other, other_description));
      listed.nodes.push_back(other);
    }
    Tell(link, listed);
    member_.Adopt(link, node, Now());
  }
  std::vector<GlobalAction> decided;
  if (here_.insert(node).second) {
    scheduler_->Handle(NodeJoined{node, description.resources, description.resources, {}, description.labels}, decided);
  }
  Perform(std::move(decided));
}

void SimulatedNode::Dead(const DeclareDead& news) {
  world_.node_coverage.Did("a node was declared dead");
  world_.Note("declared dead", news.node.value);
  world_.cluster->DeclaredDead(news.node);
  std::vector<GlobalAction> decided;
  accepted_.erase(news.node);
  if (here_.erase(news.node) > 0) scheduler_->Handle(NodeLeft{news.node}, decided);
  std::erase_if(wishes_, [&](const auto& wish) { return wish.first.first == news.node; });
  known_.erase(news.node);
  told_jobs_.erase(news.node);
  TellAllBut(news.node, NodeVanished{news.node, news.why});
  Perform(std::move(decided));
}

void SimulatedNode::Perform(std::vector<GlobalAction> actions) {
  for (auto& action : actions) {
    if (auto* place = std::get_if<PlaceWork>(&action)) {
      auto wish = wishes_.find({place->wish.asker, place->wish.number});
      if (wish == wishes_.end()) continue;
      const WishSent wished = wish->second;
      if (told_jobs_[place->node].insert(wished.job).second) {
        if (const JobDescribed* described = FindJob(wished.job)) Send(place->node, *described);
      }
      Send(place->wish.asker, WishServed{place->wish.number, place->count});
      Send(place->node,
           WorkAssigned{place->wish.asker, place->wish.number, place->placement, place->process, wished.job,
                        wished.shape, place->count, place->depth, wished.actor, wished.to_hold, wished.class_name});
    } else if (auto* unplace = std::get_if<UnplaceWork>(&action)) {
      Send(unplace->wish.asker, WishServed{unplace->wish.number, -static_cast<int64_t>(unplace->count)});
    } else if (auto* refuse = std::get_if<RefuseWork>(&action)) {
      wishes_.erase({refuse->wish.asker, refuse->wish.number});
      Send(refuse->wish.asker, WishRefused{refuse->wish.number, 1, refuse->why});
    } else if (auto* warn = std::get_if<WarnInfeasible>(&action)) {
      Send(warn->wish.asker, WishRefused{warn->wish.number, 0, warn->why});
    }
  }
}

// ---- the control store --------------------------------------------------------------------------------------------

void SimulatedNode::Acquire() {
  store_->AcquireLeadership({.name = "head", .lease_ms = 1000, .grace_ms = 100},
                            [this](StoreResult<Leadership> outcome) { Acquired(std::move(outcome)); });
  PumpStore();
}

void SimulatedNode::Acquired(StoreResult<Leadership> outcome) {
  if (ended_) return;
  if (!outcome.ok()) return Later(kStoreAgainNs, [this] { Acquire(); });
  renew_at_ns_ = Now() + kRenewNs;
  std::vector<std::pair<NodeNumber, NodeDescription>> members;
  std::vector<uint32_t> former;
  NodeNumber next{1};
  for (const StoredRecord& record : outcome->snapshot) {
    if (record.table == Table::kCluster) cluster_ = Decode<ClusterRecord>(record).value();
    if (record.table != Table::kNodes) continue;
    const NodeRecord node = Decode<NodeRecord>(record).value();
    next.value = std::max(next.value, node.number + 1);
    if (node.name == "machine-0") {
      former.push_back(node.number);
    } else {
      members.emplace_back(NodeNumber{node.number}, NodeDescription{FromIdentity(node.identity), node.name,
                                                                    node.address, node.resources, node.labels});
    }
  }
  cluster_.next_node = std::max(cluster_.next_node, next.value);
  next.value = cluster_.next_node;
  WriteBatch batch;
  Put(batch, cluster_);
  for (uint32_t node : former) DeleteNode(batch, node);
  Commit(std::move(batch), [this, epoch = outcome->epoch, members = std::move(members), next]() mutable {
    Opened(epoch, std::move(members), next);
  });
}

void SimulatedNode::Opened(uint64_t epoch, std::vector<std::pair<NodeNumber, NodeDescription>> members,
                           NodeNumber next) {
  epoch_ = epoch;
  if (epoch > 1) world_.node_coverage.Did("the head was started again");
  membership_ = std::make_unique<Membership>(Membership::Config{.epoch = epoch,
                                                                .protocol = kNodeProtocolVersion,
                                                                .lease_ns = SimulatedCluster::kLeaseNs,
                                                                .grace_ns = kGraceNs,
                                                                .first_pause_ns = 1'000 * kMs,
                                                                .last_pause_ns = 4'000 * kMs});
  membership_->faults = world_.options.membership_faults;
  scheduler_ = std::make_unique<GlobalScheduler>();
  scheduler_->faults = world_.options.global_faults;
  known_ = {members.begin(), members.end()};
  for (const auto& [node, description] : known_) Tell(Member::kOwnLink, News(node, description));
  std::vector<MembershipAction> actions;
  membership_->Handle(MembersRestored{std::move(members), next, 0, Now()}, actions);
  Perform(std::move(actions));
  if (!member_.Start(Now())) world_.Fail("the head's own node cannot listen");
}

void SimulatedNode::Commit(WriteBatch batch, std::function<void()> then) {
  changes_.push_back({std::move(batch), std::move(then)});
  Submit();
}

void SimulatedNode::Submit() {
  if (ended_ || submitted_ || changes_.empty()) return;
  submitted_ = true;
  StoreStatus status =
      store_->Commit(changes_.front().batch, [this](StoreStatus outcome) { Committed(std::move(outcome)); });
  if (!status.ok()) return Committed(status);
  PumpStore();
}

void SimulatedNode::Committed(const StoreStatus& outcome) {
  submitted_ = false;
  if (ended_ || outcome.code() == StoreCode::kClosed) return;
  if (outcome.code() == StoreCode::kFenced) return Leave("another head has taken over this cluster");
  if (!outcome.ok()) {
    world_.node_coverage.Did("the control store took no change");
    return Later(kStoreAgainNs, [this] { Submit(); });
  }
  auto then = std::move(changes_.front().then);
  changes_.pop_front();
  if (then) then();
  Submit();
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
  if (scheduler_->wish_count() != 0) world_.Fail("at rest, the head still knows wishes");
  if (!changes_.empty()) world_.Fail("at rest, changes wait for the control store");
  if (membership_->members().size() != world_.cluster->machines.size()) {
    world_.Fail("at rest, the head knows " + std::to_string(membership_->members().size()) + " nodes");
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
  if (scheduler_) {
    text.append(", wishes ").append(std::to_string(scheduler_->wish_count()));
    for (const auto& [key, wish] : wishes_) {
      text.append(" ").append(std::to_string(key.first.value)).append("/").append(std::to_string(key.second));
    }
  }
  if (!changes_.empty()) text += ", changes " + std::to_string(changes_.size());
  return text + "\n";
}

}  // namespace weft::core
