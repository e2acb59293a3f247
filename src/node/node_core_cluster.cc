// NodeCore in a cluster: what it does for processes of other nodes, and what other nodes do for its own. Work that
// stands still while this node is cut off; what the head is told and asked.
//
// A node that is cut off from the head may be taken for dead there, or not; it cannot know (cluster/node_lease.h). What
// others would then start elsewhere (all that runs for programs of other nodes, actors whose home is another node,
// tasks of processes of other nodes) is stopped before that can happen, and goes on when the head has confirmed that
// the node is a member. Otherwise the node ends, and all its processes with it. What belongs to programs of this node
// nobody else starts: it runs on.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "node/node_core.h"
#include "wire/placement.h"

namespace weft::core {

// Of processes of other nodes, what the head said before their node was gone may arrive after its word of that: the one
// waits for a link, the other is told again with each.
bool NodeCore::HasDied(ProcessId process) const {
  if (processes_.RemembersDeath(process)) return true;
  if (!IsElsewhere(process)) return !processes_.Contains(process);
  const NodeNumber node = NodeOf(process);
  return node != kClusterNode && !links_->Knows(node) && !links_->MayAppear(node);
}

void NodeCore::SendElsewhere(ProcessId process, const Message& message) {
  links_->Send(NodeOf(process), ForProcess{process, Encode(message)});
}

void NodeCore::Answer(ProcessId process, const Message& message) {
  if (IsElsewhere(process)) return SendElsewhere(process, message);
  if (Find(process) != nullptr) io_.Send(process, message);
}

// A message that a process has caused. While too much of what was sent to that node has not been taken there, the
// process is not read from: as with one whose receiver does not read.
void NodeCore::SendFor(const LocalProcess& process, NodeNumber node, const NodeMessage& message) {
  links_->Send(node, message);
  io_.HoldBackFor(node, process.id);
}

// Whoever asks the head for leases here: the scheduler serves it like a process of this node.
void NodeCore::JoinAsClient(ProcessId process, ProcessId job) {
  if (Find(process) != nullptr || !remote_clients_.emplace(process, job).second) return;
  scheduler_->Handle(ProcessJoined{process, false, {job}}, scheduler_actions_);
}

// ---- a new head, lost nodes ---------------------------------------------------------------------------------------

// All that the head should know is told again (TellHead), and what the former one has not answered is asked again.
void NodeCore::HeadForgot(int64_t now_ns) {
  now_ns_ = now_ns;
  TellOfDetached();
  router_->TellLoadAgain();
  if (faults.forget_to_request_again) return;
  router_->HeadForgot();
  told_jobs_.clear();
  RequestActorsAgain();
  remote_.told_decisions = UINT64_MAX;
  AskForNamesAgain();
  AskAgain();
  SettleNow();
}

void NodeCore::NodeIsGone(NodeNumber node, const std::string& why, int64_t now_ns) {
  now_ns_ = now_ns;
  const std::string how = "was lost with its node (" + why + ")";
  names_.NodeLeft(node);
  EndRemoteWorkersOf(node, why);
  RequestActorsAgain();
  router_->NodeIsGone();
  TellWatchersOfLostHome(node, why);
  std::set<ProcessId> lost;
  for (const auto& [id, job] : remote_clients_) {
    if (NodeOf(id) == node) lost.insert(id);
  }
  for (const auto& [driver, job] : jobs_) {
    if (NodeOf(driver) == node) lost.insert(driver);
  }
  for (ProcessId id : remote_peers_) {
    if (NodeOf(id) == node) lost.insert(id);
  }
  for (ProcessId id : lost) RemoteProcessDied(id, 0, how);
  // Others of its processes may be known to ours as borrowers, by the word of third ones.
  if (!faults.declare_only_known_processes) AnnounceDeath(DaemonOf(node), 0, how);
  ToldOrGone(node);
  SettleNow();
}

void NodeCore::RemoteProcessDied(ProcessId id, int32_t pid, const std::string& how) {
  processes_.RememberDeath(id, how);
  remote_peers_.erase(id);
  channels_.EndedElsewhere(id);
  std::erase_if(remote_.wanted, [&](const auto& wanted) { return wanted.second.creator == id; });
  // An actor there is dead or restarts, and its watchers hear it before the death of its worker.
  TellOfActorsThatEndWith(id, pid, how);
  AnnounceDeath(id, pid, how);
  io_.RemoteOwnerDied(id);
  // What was granted there is void.
  if (remote_clients_.erase(id) > 0 && !faults.keep_leases_of_the_gone) {
    scheduler_->Handle(ProcessLost{id}, scheduler_actions_);
  }
  // A driver: all that was started for it ends.
  if (NodeJob* job = FindJob(id); job != nullptr && !job->ending) EndJob(*job);
  SettleNow();
}

// ---- work that stands still ---------------------------------------------------------------------------------------

bool NodeCore::CouldRunElsewhere(const LocalProcess& process) const {
  if (process.is_driver) return false;
  if (IsElsewhere(process.job) || remote_.workers.contains(process.id)) return true;
  const ProcessId holder = scheduler_->HolderOf(process.id);
  return holder && IsElsewhere(holder);
}

size_t NodeCore::FreezeWork() {
  frozen_ = true;
  return FreezeWhatIsNew();
}

// At the end of each turn as well, before anybody hears of what was decided in it: workers are forked, and leased to
// processes of other nodes, also while the head is away.
size_t NodeCore::FreezeWhatIsNew() {
  size_t stopped = 0;
  for (auto& [id, process] : processes_.all()) {
    // One that is starting has nothing to do before it is ready.
    if (process.stage == LocalProcess::Stage::kConnecting || process.stopped || !CouldRunElsewhere(process)) continue;
    process.stopped = io_.Stop(id);
    if (process.stopped) ++stopped;
  }
  return stopped;
}

void NodeCore::ThawWork() {
  frozen_ = false;
  for (auto& [id, process] : processes_.all()) {
    if (std::exchange(process.stopped, false)) io_.Continue(id);
  }
}

// ---- what other nodes say -----------------------------------------------------------------------------------------

bool NodeCore::NodeMessageCame(NodeNumber from, NodeMessage& message, int64_t now_ns) {
  now_ns_ = now_ns;
  return std::visit(
      [&](auto& m) {
        if constexpr (requires { HandleNode(from, m); }) {
          HandleNode(from, m);
          SettleNow();
          return true;
        } else {
          return false;
        }
      },
      message);
}

void NodeCore::HandleNode(NodeNumber, JobDescribed& message) {
  if (FindJob(message.driver) != nullptr || !IsElsewhere(message.driver)) return;
  if (HasDied(message.driver)) return;  // told by its own node, faster than this by the head
  io_.OpenJob(message);
}

NodeJob* NodeCore::EnsureJob(ProcessId driver) {
  if (NodeJob* job = FindJob(driver)) return job;
  const JobDescribed* described = links_->is_head() ? links_->FindJob(driver) : nullptr;
  if (described == nullptr) return nullptr;
  JobDescribed copy = *described;
  HandleNode(links_->self(), copy);
  return FindJob(driver);
}

void NodeCore::HandleNode(NodeNumber, WorkAssigned& message) {
  router_->PlacementSeen(message.placement);
  if (message.actor) return PlaceRemoteActor(message);
  // The requester may have died meanwhile: its node tells us of that, the head places, and neither waits for the other.
  if (HasDied(message.process) && !faults.serve_the_dead) return;
  if (EnsureJob(message.job) == nullptr || !IsValidShape(message.shape)) return;
  JoinAsClient(message.process, message.job);
  if (Find(message.process) != nullptr && router_->MayServe(message.shape)) {
    // Our own request, which our own scheduler has had all the time: nothing is on its way.
    return router_->AssignedHere(message.request, message.count);
  }
  RereadBlockedFlags();
  scheduler_->Handle(LeasesPlaced{message.process, message.shape, message.count, message.depth}, scheduler_actions_);
}

void NodeCore::HandleNode(NodeNumber, RequestAssigned& message) { router_->Assigned(message.request, message.count); }

void NodeCore::HandleNode(NodeNumber, RequestRefused& message) {
  if (ActorRequestRefused(message)) return;
  const bool for_ever = message.for_ever != 0;
  const auto key = router_->Refused(message.request, for_ever);
  const LocalProcess* process = key ? Find(key->process) : nullptr;
  if (process == nullptr) return;
  if (for_ever) {
    scheduler_->Handle(LeasesRequested{key->process, key->shape, 0, 0}, scheduler_actions_);
    return Send(*process, LeaseRefused{key->shape, message.why});
  }
  // No node could ever serve it, as things are. Nothing is refused that a node which joins could serve; the user is
  // told, since most of the time nobody will.
  if (Find(process->job) == nullptr) return;
  io_.Send(process->job, WorkerOutput{ProcessId{}, 0, 1, "weft: " + message.why + "\n", ""});
}

void NodeCore::HandleNode(NodeNumber from, ForProcess& message) {
  auto decoded = Decode(message.message);
  if (std::holds_alternative<LeaseGranted>(decoded)) return GrantCame(from, message.process, std::move(decoded));
  const LocalProcess* process = Find(message.process);
  const bool ready = process != nullptr && process->ready();
  if (auto* refused = std::get_if<LeaseRefused>(&decoded)) {
    // As after RequestRefused: the owner fails what waits, and asks again if more comes.
    router_->RefusedThere({message.process, refused->shape}, refused->count);
    if (process != nullptr) {
      scheduler_->Handle(LeasesRequested{message.process, refused->shape, 0, 0}, scheduler_actions_);
    }
  }
  if (auto* change = std::get_if<ActorChanged>(&decoded)) {
    if (ready) DeliverChange(*process, *change);
    return;
  }
  if (auto* answer = std::get_if<ActorAnswer>(&decoded)) asked_head_.erase({message.process, answer->request});
  if (auto* list = std::get_if<ActorList>(&decoded)) asked_head_.erase({message.process, list->request});
  const bool known = std::holds_alternative<LeaseRecalled>(decoded) || std::holds_alternative<LeaseRefused>(decoded) ||
                     std::holds_alternative<ProcessDied>(decoded) || std::holds_alternative<WorkerOutput>(decoded) ||
                     std::holds_alternative<ObjectsFreed>(decoded) || std::holds_alternative<ActorAnswer>(decoded) ||
                     std::holds_alternative<ActorList>(decoded) || std::holds_alternative<ResultsLeft>(decoded);
  if (std::holds_alternative<ResultsLeft>(decoded) && process == nullptr) {
    // It had died before the sender remembers, or was told.
    return links_->Send(from, ProcessVanished{message.process, 0, processes_.HowItDied(message.process)});
  }
  if (known && ready) Send(*process, decoded);
}

// A worker of another node, for one of ours.
void NodeCore::GrantCame(NodeNumber from, ProcessId id, Message message) {
  const auto& granted = std::get<LeaseGranted>(message);
  router_->Arrived({id, granted.shape});
  LocalProcess* process = Find(id);
  if (process == nullptr || !process->ready()) {
    return links_->Send(from, FromProcess{id, {}, Encode(ReturnLease{granted.lease})});
  }
  const ChannelBroker::Pair pair{id, granted.worker};
  if (channels_.IsAwaited(pair) || !channels_.HasSubmitter(pair)) {
    // If it could not be connected before the grant came and cannot now, the lease is returned.
    if (!channels_.IsAwaited(pair) && processes_.RemembersDeath(pair.worker)) return;
    if (channels_.Await(pair, std::move(message))) links_->DialChannel(pair.submitter, pair.worker);
    return;
  }
  LeaseWasGranted(id, granted.shape);
  CountGrant(*process, granted.shape);
  Send(*process, message);
}

void NodeCore::LeaseWasGranted(ProcessId process, const ResourceAmounts& shape) {
  if (router_->Granted({process, shape})) scheduler_->Handle(LeaseHadElsewhere{process, shape}, scheduler_actions_);
}

void NodeCore::HandleNode(NodeNumber from, FromProcess& message) {
  if (NodeOf(message.process) != from) return;
  auto decoded = Decode(message.message);
  if (auto* returned = std::get_if<ReturnLease>(&decoded)) {
    EndLease(message.process, returned->lease);
  } else if (auto* freed = std::get_if<FreeObjects>(&decoded)) {
    FreeRanges(freed->locations, {});
  } else if (auto* watch = std::get_if<WatchActor>(&decoded)) {
    remote_peers_.insert(message.process);
    const bool owner_lives = Find(watch->actor.owner) != nullptr;
    directory_.Handle(ActorWatched{message.process, watch->actor, owner_lives}, directory_actions_);
  } else if (auto* kill = std::get_if<KillActor>(&decoded)) {
    const bool owner_lives = Find(kill->actor.owner) != nullptr;
    directory_.Handle(ActorKilled{message.process, kill->actor, kill->no_restart != 0, owner_lives,
                                  std::move(kill->why), std::move(kill->error)},
                      directory_actions_);
  } else if (auto* constructed = std::get_if<ActorConstructed>(&decoded)) {
    directory_.Handle(ActorConstructedReported{message.process, constructed->actor, constructed->ok != 0,
                                               std::move(constructed->error), now_ns_},
                      directory_actions_);
  } else if (auto* exiting = std::get_if<ActorExiting>(&decoded)) {
    directory_.Handle(ActorExitingReported{message.process, exiting->actor}, directory_actions_);
  } else if (!links_->is_head()) {
    return;
  } else if (auto* lookup = std::get_if<LookupActor>(&decoded)) {
    LookUp(message.process, *lookup);
  } else if (auto* list = std::get_if<ListActors>(&decoded)) {
    ListNames(message.process, *list);
  } else if (auto* create = std::get_if<CreateActor>(&decoded)) {
    if (create->detached != 0) CreateDetached(message.process, message.job, *create);
  } else if (auto* handed_over = std::get_if<HandOverActor>(&decoded)) {
    ActorHandedOver(message.process, *handed_over);
  }
}

void NodeCore::HandleNode(NodeNumber from, RoutedAcross& message) {
  if (NodeOf(message.from) != from) return;
  const LocalProcess* target = Find(message.to);
  if (target == nullptr || !target->ready()) {
    return SendElsewhere(message.from, ProcessDied{message.to, 0, processes_.HowItDied(message.to)});
  }
  Send(*target, Routed{message.from, std::move(message.payload)});
}

void NodeCore::HandleNode(NodeNumber from, ProcessVanished& message) {
  if (NodeOf(message.process) == from) RemoteProcessDied(message.process, message.pid, message.how);
}

// ---- channels -----------------------------------------------------------------------------------------------------

// To a process of another node that was granted a worker of ours: it connects before it hears of the grant.
void NodeCore::GrantElsewhere(const GrantLease& action) {
  io_.SetDemand(action.worker, scheduler_->demand());
  WantChannel(action.process, action.worker);
  SendElsewhere(action.process, LeaseGranted{action.shape, action.lease, action.worker, action.gpus});
}

void NodeCore::WantChannel(ProcessId submitter, ProcessId worker) {
  remote_peers_.insert(submitter);
  if (channels_.Want({submitter, worker})) links_->Send(NodeOf(submitter), ChannelWanted{submitter, worker});
}

void NodeCore::HandleNode(NodeNumber from, ChannelWanted& message) {
  if (NodeOf(message.worker) != from || Find(message.submitter) == nullptr) return;
  remote_peers_.insert(message.worker);
  if (channels_.Await({message.submitter, message.worker})) links_->DialChannel(message.submitter, message.worker);
}

// A connection between two processes has ended, and both live: reset by something on its way. A new one could not say
// what of the old one was received, so the worker ends, and all goes on as after its death.
void NodeCore::Handle(LocalProcess& process, ChannelLost& message) {
  if (!IsElsewhere(message.worker)) return EndUnreachable(message.worker, process.id);
  const NodeNumber node = NodeOf(message.worker);
  if (links_->Knows(node)) links_->Send(node, ChannelBroken{message.worker, process.id});
}

void NodeCore::HandleNode(NodeNumber from, ChannelBroken& message) {
  if (NodeOf(message.other) == from) EndUnreachable(message.worker, message.other);
}

void NodeCore::EndUnreachable(ProcessId worker, ProcessId other) {
  const LocalProcess* process = Find(worker);
  if (process == nullptr || process->is_driver || process->killed) return;
  if (process->stage == LocalProcess::Stage::kClosing) return;  // it has died by itself
  std::string where = "process " + ToString(other);
  if (IsElsewhere(other)) where += " on " + links_->Describe(NodeOf(other));
  io_.Log(LogLevel::kWarning, "worker", ToString(worker) + " ends: its connection with " + where + " was lost");
  io_.Happened("a worker ended with its connection");
  Kill(worker, "the node daemon ended it because its connection with " + where + " was lost");
}

void NodeCore::ChannelConnected(ProcessId submitter, ProcessId worker, bool dialled, const std::string& why_not,
                                const std::function<void(uint32_t slot)>& use, int64_t now_ns) {
  now_ns_ = now_ns;
  LocalProcess* own = Find(dialled ? submitter : worker);
  const ChannelBroker::Pair pair{submitter, worker};
  std::optional<uint32_t> slot;
  if (own != nullptr && own->ready() && why_not.empty()) {
    slot = channels_.OpenOne(pair, dialled ? ChannelBroker::Side::kSubmitter : ChannelBroker::Side::kWorker);
  }
  if (!why_not.empty()) {
    io_.Log(LogLevel::kWarning, "link",
            "no connection for a channel to process " + ToString(dialled ? worker : submitter) + ": " + why_not);
  }
  if (!slot) {
    if (dialled) NotConnected(pair, why_not);
    return;
  }
  use(*slot);
  for (auto& message : dialled ? channels_.Opened(pair) : std::vector<Message>{}) {
    if (auto* granted = std::get_if<LeaseGranted>(&message)) {
      LeaseWasGranted(submitter, granted->shape);
      CountGrant(*own, granted->shape);
    }
    Send(*own, message);
  }
  SettleNow();
}

// Or the connection cannot be used: `why_not` is empty then.
void NodeCore::NotConnected(ChannelBroker::Pair pair, const std::string& why_not) {
  const LocalProcess* own = Find(pair.submitter);
  std::vector<Message> refused = why_not.empty()
                                     ? channels_.GivenUp(pair)
                                     : channels_.NotReached(pair, processes_.RemembersDeath(pair.worker), now_ns_);
  for (auto& message : refused) {
    if (auto* granted = std::get_if<LeaseGranted>(&message)) {
      io_.Happened("a lease was returned because there was no connection");
      links_->Send(NodeOf(pair.worker), FromProcess{pair.submitter, {}, Encode(ReturnLease{granted->lease})});
    } else if (auto* change = std::get_if<ActorChanged>(&message); change != nullptr && own != nullptr) {
      TellUnreachable(*own, *change,
                      why_not.empty() ? "no channel slots are left in the calling process"
                                      : "there is no connection to its node: " + why_not);
    }
  }
}

// ---- to the head --------------------------------------------------------------------------------------------------

void NodeCore::TellHead() {
  if (const auto load = router_->LoadToTell(*scheduler_)) SendToHead(*load);
  const std::vector<LeaseRequest> requests = router_->ToTell(
      scheduler_->Unmet(), links_->nodes().size() < 2, [this](ProcessId process) { return Find(process) != nullptr; },
      [this](ProcessId process) { return Find(process)->job; });
  for (const LeaseRequest& request : requests) {
    // How its workers are started there, before anything is placed.
    if (request.withdrawn == 0) TellHeadOfJob(request.job);
    SendToHead(request);
  }
  TellHeadOfActors();
}

void NodeCore::TellHeadOfJob(ProcessId driver) {
  if (FindJob(driver) == nullptr || !told_jobs_.insert(driver).second) return;
  SendToHead(io_.DescribeJob(driver));
}

// On behalf of a process.
void NodeCore::AskHead(LocalProcess& process, const Message& message) {
  TellHeadOfJob(process.job);
  FromProcess asked{process.id, process.job, Encode(message)};
  RememberQuestion(process, message, asked.message);
  SendToHead(asked);
}

void NodeCore::RememberQuestion(const LocalProcess& process, const Message& message, const std::string& encoded) {
  if (links_->is_head()) return;  // it ends with us
  uint64_t request = 0;
  if (const auto* lookup = std::get_if<LookupActor>(&message)) request = lookup->request;
  if (const auto* list = std::get_if<ListActors>(&message)) request = list->request;
  if (const auto* create = std::get_if<CreateActor>(&message)) request = create->request;
  if (request != 0) asked_head_[{process.id, request}] = encoded;
}

// Of a new head: what the former one has not answered.
void NodeCore::AskAgain() {
  for (auto asked = asked_head_.begin(); asked != asked_head_.end();) {
    const LocalProcess* process = Find(asked->first.first);
    if (process == nullptr) {
      asked = asked_head_.erase(asked);
      continue;
    }
    TellHeadOfJob(process->job);
    SendToHead(FromProcess{process->id, process->job, asked->second});
    ++asked;
  }
}

}  // namespace weft::core
