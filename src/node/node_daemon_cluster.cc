// NodeDaemon of a lasting node: what it does for processes of other nodes, and what other nodes do for its own.
//
// A process of another node is a client here as long as it has leases or wishes here (remote_clients_). Its messages
// come as FromProcess, ours to it go as ForProcess. A channel between two nodes is a connection of its own: the
// submitter's node dials it when the worker's node says that it will be needed, and what follows from the daemon for
// that pair waits until it is there.
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

// All that the head should know is told anew (TellHead), and what the former one has not answered is asked again.
void NodeDaemon::HeadForgot() {
  placements_seen_ = 0;
  TellOfDetached();
  load_told_ = false;
  sent_wishes_.ForgetAll();
  told_jobs_.clear();
  WishAnew();
  told_decisions_ = UINT64_MAX;
  NameAnew();
  AskAnew();
  Settle();
}

// The node has its number: processes can be named.
void NodeDaemon::Open() {
  const uint64_t self = cluster_->self().value;
  next_number_ = (self << 32) + 1;
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
  if (cluster_->is_head()) Restore();
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

bool NodeDaemon::IsElsewhere(ProcessId process) const {
  return cluster_ && NodeOf(process) != cluster_->self() && (process.value & kObserverBit) == 0;
}

// Of processes of other nodes, what the head said before their node was gone may arrive after its word of that: the one
// waits for a link, the other is told anew with each.
bool NodeDaemon::HasDied(ProcessId process) const {
  if (deaths_.contains(process)) return true;
  if (!IsElsewhere(process)) return !processes_.contains(process);
  const NodeNumber node = NodeOf(process);
  return node != kClusterNode && !cluster_->Knows(node) && !cluster_->MayAppear(node);
}

void NodeDaemon::SendElsewhere(ProcessId process, const Message& message) {
  cluster_->Send(NodeOf(process), ForProcess{process, Encode(message)});
}

// ---- what other nodes say -----------------------------------------------------------------------------------------

void NodeDaemon::NodeMessageCame(NodeNumber from, NodeMessage& message) {
  if (!scheduler_ || ended_) return;
  std::visit(
      [&](auto& m) {
        if constexpr (requires { HandleNode(from, m); }) {
          HandleNode(from, m);
        } else if constexpr (requires { exchange_->Handle(from, m); }) {
          exchange_->Handle(from, m);
        }
      },
      message);
  Settle();
}

void NodeDaemon::HandleNode(NodeNumber, JobDescribed& message) {
  if (FindJob(message.driver) != nullptr || !IsElsewhere(message.driver)) return;
  if (HasDied(message.driver)) return;  // told by its own node, faster than this by the head
  auto decoded = Decode(message.session);
  auto* session = std::get_if<OpenSession>(&decoded);
  if (session == nullptr || session->worker_command.empty()) return;
  Job& job = OpenJob(message.driver, std::move(*session));
  if (message.output_to) job.output_to = message.output_to;
  if (NodeOf(message.driver) != kClusterNode && !LooksForProgram(job)) Prestart(job);
}

Job* NodeDaemon::EnsureJob(ProcessId driver) {
  if (Job* job = FindJob(driver)) return job;
  const JobDescribed* described = cluster_->is_head() ? cluster_->FindJob(driver) : nullptr;
  if (described == nullptr) return nullptr;
  JobDescribed copy = *described;
  HandleNode(cluster_->self(), copy);
  return FindJob(driver);
}

void NodeDaemon::TellHeadOfJob(ProcessId driver) {
  const Job* job = FindJob(driver);
  if (job == nullptr || !told_jobs_.insert(driver).second) return;
  cluster_->SendToHead(JobDescribed{driver, Encode(job->session), job->output_to});
}

void NodeDaemon::HandleNode(NodeNumber, WorkAssigned& message) {
  placements_seen_ = std::max(placements_seen_, message.placement);
  load_told_ = false;
  if (message.actor) return PlaceFarActor(message);
  // Whoever asked may have died meanwhile: its node tells us of that, the head places, and neither waits for the other.
  if (HasDied(message.process) || EnsureJob(message.job) == nullptr || !IsValidShape(message.shape)) return;
  if (Find(message.process) == nullptr && remote_clients_.emplace(message.process, message.job).second) {
    scheduler_->Handle(ProcessJoined{message.process, false, {message.job}}, scheduler_actions_);
  }
  if (Find(message.process) != nullptr && MayServe(message.shape)) {
    // Our own wish, which our own scheduler has had all the time: nothing is on its way.
    return sent_wishes_.PlacedHere(message.wish, message.count);
  }
  RereadBlockedFlags();
  scheduler_->Handle(LeasesPlaced{message.process, message.shape, message.count, message.depth}, scheduler_actions_);
}

void NodeDaemon::HandleNode(NodeNumber, WishServed& message) { sent_wishes_.Placed(message.wish, message.count); }

void NodeDaemon::HandleNode(NodeNumber, WishRefused& message) {
  if (ActorWishRefused(message)) return;
  const auto wish = sent_wishes_.Find(message.wish);
  if (!wish) return;
  const auto& key = *wish;
  auto* process = Find(key.first);
  if (message.for_ever != 0) sent_wishes_.Forget(message.wish);
  if (process == nullptr) return;
  if (message.for_ever != 0) {
    placed_wishes_.erase(key);
    scheduler_->Handle(LeasesRequested{key.first, key.second, 0, 0}, scheduler_actions_);
    return Send(*process, LeaseRefused{key.second, message.why});
  }
  // No node could ever serve it, as things are. Nothing is refused that a node which joins could serve; the user is
  // told, since most of the time nobody will.
  WorkerOutput words{ProcessId{}, 0, 1, "weft: " + message.why + "\n", ""};
  if (auto* driver = Find(process->job)) Send(*driver, words);
}

void NodeDaemon::HandleNode(NodeNumber from, ForProcess& message) {
  auto decoded = Decode(message.message);
  auto* process = Find(message.process);
  if (auto* granted = std::get_if<LeaseGranted>(&decoded)) {
    sent_wishes_.Arrived(message.process, granted->shape);
    if (process == nullptr || process->stage != Process::Stage::kReady) {
      cluster_->Send(from, FromProcess{message.process, {}, Encode(ReturnLease{granted->lease})});
      return;
    }
    const ChannelBroker::Pair pair{message.process, granted->worker};
    if (channels_.IsAwaited(pair) || !channels_.HasSubmitter(pair)) {
      // If it could not be connected before the grant came and cannot now, the lease is returned.
      if (!channels_.IsAwaited(pair) && deaths_.contains(pair.worker)) return;
      if (channels_.Await(pair, std::move(decoded))) cluster_->DialChannel(pair.submitter, pair.worker);
      return;
    }
    WishWasPlaced(message.process, granted->shape);
    CountGrant(*process, granted->shape);
    return Send(*process, decoded);
  }
  if (auto* refused = std::get_if<LeaseRefused>(&decoded)) {
    // As after WishRefused: the owner fails what waits, and asks again if more comes.
    sent_wishes_.Arrived(message.process, refused->shape, refused->count);
    placed_wishes_.erase({message.process, refused->shape});
    if (process != nullptr) {
      scheduler_->Handle(LeasesRequested{message.process, refused->shape, 0, 0}, scheduler_actions_);
    }
  }
  if (auto* change = std::get_if<ActorChanged>(&decoded)) {
    if (process == nullptr || process->stage != Process::Stage::kReady) return;
    return DeliverChange(*process, *change);
  }
  if (auto* answer = std::get_if<ActorAnswer>(&decoded)) asked_head_.erase({message.process, answer->request});
  if (auto* list = std::get_if<ActorList>(&decoded)) asked_head_.erase({message.process, list->request});
  const bool known = std::holds_alternative<LeaseRecalled>(decoded) || std::holds_alternative<LeaseRefused>(decoded) ||
                     std::holds_alternative<ProcessDied>(decoded) || std::holds_alternative<WorkerOutput>(decoded) ||
                     std::holds_alternative<ObjectsFreed>(decoded) || std::holds_alternative<ActorAnswer>(decoded) ||
                     std::holds_alternative<ActorList>(decoded) || std::holds_alternative<ResultsLeft>(decoded);
  if (std::holds_alternative<ResultsLeft>(decoded) && process == nullptr) {
    // It had died before the sender remembers, or was told.
    auto death = deaths_.find(message.process);
    return cluster_->Send(from,
                          ProcessVanished{message.process, 0, death != deaths_.end() ? death->second : "it has ended"});
  }
  if (known && process != nullptr && process->stage == Process::Stage::kReady) Send(*process, decoded);
}

void NodeDaemon::HandleNode(NodeNumber from, FromProcess& message) {
  if (NodeOf(message.process) != from) return;
  auto decoded = Decode(message.message);
  if (auto* returned = std::get_if<ReturnLease>(&decoded)) {
    EndLease(message.process, returned->lease);
  } else if (auto* freed = std::get_if<FreeObjects>(&decoded)) {
    FreeHere(freed->locations, nullptr);
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
                                               std::move(constructed->error), NowNs()},
                      directory_actions_);
  } else if (auto* exiting = std::get_if<ActorExiting>(&decoded)) {
    directory_.Handle(ActorExitingReported{message.process, exiting->actor}, directory_actions_);
  } else if (!cluster_->is_head()) {
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

void NodeDaemon::HandleNode(NodeNumber from, RoutedAcross& message) {
  if (NodeOf(message.from) != from) return;
  auto* target = Find(message.to);
  if (target == nullptr || target->stage != Process::Stage::kReady) {
    auto death = deaths_.find(message.to);
    return SendElsewhere(message.from,
                         ProcessDied{message.to, 0, death != deaths_.end() ? death->second : "it has ended"});
  }
  Send(*target, Routed{message.from, std::move(message.payload)});
}

void NodeDaemon::HandleNode(NodeNumber from, ProcessVanished& message) {
  if (NodeOf(message.process) == from) RemoteProcessDied(message.process, message.pid, message.how);
}

void NodeDaemon::RemoteProcessDied(ProcessId id, int32_t pid, const std::string& how) {
  RememberHow(id, how);
  remote_peers_.erase(id);
  channels_.EndedElsewhere(id);
  std::erase_if(far_wanted_, [&](const auto& wanted) { return wanted.second.creator == id; });
  // An actor there is dead or restarts, and its watchers hear it before the death of its worker.
  TellOfActorsThatEndWith(id, pid, how);
  for (auto& [other_id, other] : processes_) {
    if (other->stage != Process::Stage::kReady) continue;
    Send(*other, ProcessDied{id, pid, how});
    if (other->doorbell) other->doorbell->WakeAll();
  }
  FindOrphans(segments_.ObjectsOf(id));
  // What was granted there is void.
  if (remote_clients_.erase(id) > 0) scheduler_->Handle(ProcessLost{id}, scheduler_actions_);
  // A driver: all that was started for it ends.
  if (Job* job = FindJob(id); job != nullptr && !job->ending) EndProcessesOf(*job);
  Settle();
}

void NodeDaemon::NodeIsGone(NodeNumber node, const std::string& why) {
  if (!scheduler_) return;
  const std::string how = "was lost with its node (" + why + ")";
  names_.NodeLeft(node);
  EndFarWorkersOf(node, why);
  WishAnew();
  for (auto entry = watched_.begin(); entry != watched_.end();) {
    if (HomeOf(entry->first) != node) {
      ++entry;
      continue;
    }
    ActorChanged dead{entry->first, static_cast<uint8_t>(ActorState::kDead)};
    dead.incarnation = UINT32_MAX;  // whichever was known
    dead.why = "the node of its creator is gone (" + why + ")";
    const std::set<ProcessId> watchers = std::move(entry->second);
    entry = watched_.erase(entry);
    for (ProcessId watcher : watchers) {
      auto* process = Find(watcher);
      if (process != nullptr && process->stage == Process::Stage::kReady) DeliverChange(*process, dead);
    }
  }
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
  for (auto& [id, process] : processes_) {
    if (process->stage == Process::Stage::kReady) Send(*process, ProcessDied{DaemonOf(node), 0, how});
  }
  orphans_.Handle(OrphanTable::HolderLeft{DaemonOf(node)}, orphan_actions_);
  FindOrphans(segments_.ObjectsOf(node));
  ToldOrGone(node);
  exchange_->NodeIsGone(node);
  if (programs_) programs_->NodeIsGone(node);
  ResumeSendersTo(DaemonOf(node));
  Settle();
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
  if (auto* process = Find(id); process != nullptr && process->stage == Process::Stage::kReady) Send(*process, message);
}

void NodeDaemon::FreeNow(const std::vector<Location>& locations) {
  for (const Location& location : locations) FreeInSegment(location.segment, {location}, nullptr);
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

// A message that a process has caused. While too much of what was sent to that node has not been taken there, the
// process is not read from: as with one whose receiver does not read (Forward).
void NodeDaemon::SendFor(Process& process, NodeNumber node, const NodeMessage& message) {
  cluster_->Send(node, message);
  if (!cluster_->Crowded(node)) return;
  process.waits_for.insert(DaemonOf(node));
  UpdateInterest(process);
}

void NodeDaemon::NodeHasRoom(NodeNumber node) {
  ResumeSendersTo(DaemonOf(node));
  Settle();
}

// ---- channels -----------------------------------------------------------------------------------------------------

// To a process of another node that was granted a worker of ours: it connects before it hears of the grant.
void NodeDaemon::GrantElsewhere(const GrantLease& action) {
  auto* worker = Find(action.worker);
  WEFT_CHECK(worker != nullptr, "the scheduler knows the living only");
  PoolOf(action.worker).WorkerWasLeased(action.worker);
  worker->doorbell->demand().store(scheduler_->demand() ? 1 : 0);
  WantChannel(action.process, action.worker);
  SendElsewhere(action.process, LeaseGranted{action.shape, action.lease, action.worker, action.gpus});
}

void NodeDaemon::WantChannel(ProcessId submitter, ProcessId worker) {
  remote_peers_.insert(submitter);
  if (channels_.Want({submitter, worker})) cluster_->Send(NodeOf(submitter), ChannelWanted{submitter, worker});
}

void NodeDaemon::HandleNode(NodeNumber from, ChannelWanted& message) {
  if (NodeOf(message.worker) != from || Find(message.submitter) == nullptr) return;
  remote_peers_.insert(message.worker);
  if (channels_.Await({message.submitter, message.worker})) cluster_->DialChannel(message.submitter, message.worker);
}

// A connection between two processes has ended, and both live: reset by something on its way. A new one could not say
// what of the old one was received, so the worker ends, and all goes on as after its death.
void NodeDaemon::Handle(Process& process, ChannelLost& message) {
  if (!IsElsewhere(message.worker)) return EndUnreachable(message.worker, process.id);
  const NodeNumber node = NodeOf(message.worker);
  if (cluster_->Knows(node)) cluster_->Send(node, ChannelBroken{message.worker, process.id});
}

void NodeDaemon::HandleNode(NodeNumber from, ChannelBroken& message) {
  if (NodeOf(message.other) == from) EndUnreachable(message.worker, message.other);
}

void NodeDaemon::EndUnreachable(ProcessId worker, ProcessId other) {
  auto* process = Find(worker);
  if (process == nullptr || process->is_driver || process->kill_sent) return;
  if (process->stage == Process::Stage::kClosing) return;  // it has died by itself
  std::string where = "process " + ToString(other);
  if (IsElsewhere(other)) where += " on " + cluster_->Describe(NodeOf(other));
  LogWarning("worker", "%s ends: its connection with %s was lost", ToString(worker).c_str(), where.c_str());
  Kill(*process, "the node daemon ended it because its connection with " + where + " was lost");
}

void NodeDaemon::ChannelConnected(ProcessId submitter, ProcessId worker, bool dialled, Result<UniqueFd> socket) {
  auto* own = Find(dialled ? submitter : worker);
  const ProcessId other = dialled ? worker : submitter;
  const ChannelBroker::Pair pair{submitter, worker};
  std::optional<uint32_t> slot;
  if (own != nullptr && own->stage == Process::Stage::kReady && socket.ok()) {
    slot = channels_.OpenOne(pair, dialled ? ChannelBroker::Side::kSubmitter : ChannelBroker::Side::kWorker);
  }
  if (!slot) {
    std::vector<Message> refused;
    if (dialled) {
      refused = socket.ok() ? channels_.GivenUp(pair) : channels_.NotReached(pair, deaths_.contains(worker), NowNs());
    }
    if (!socket.ok()) {
      LogWarning("link", "no connection for a channel to process %s: %s", ToString(other).c_str(),
                 socket.error().message.c_str());
    }
    for (auto& message : refused) {
      if (auto* granted = std::get_if<LeaseGranted>(&message)) {
        cluster_->Send(NodeOf(worker), FromProcess{submitter, {}, Encode(ReturnLease{granted->lease})});
      } else if (auto* change = std::get_if<ActorChanged>(&message); change != nullptr && own != nullptr) {
        TellUnreachable(*own, *change,
                        socket.ok() ? "no channel slots are left in the calling process"
                                    : "there is no connection to its node: " + socket.error().message);
      }
    }
    return;
  }
  Send(*own, StreamOpened{other, *slot, static_cast<uint8_t>(dialled ? 1 : 0)}, {ShareFd(std::move(*socket))});
  for (auto& message : dialled ? channels_.Opened(pair) : std::vector<Message>{}) {
    if (auto* granted = std::get_if<LeaseGranted>(&message)) {
      WishWasPlaced(submitter, granted->shape);
      CountGrant(*own, granted->shape);
    }
    Send(*own, message);
  }
  Settle();
}

// ---- to the head --------------------------------------------------------------------------------------------------

// After each turn of the loop: what the head should know and does not.
void NodeDaemon::TellHead() {
  if (!cluster_ || !scheduler_ || ended_) return;
  NodeLoad load{.placements_seen = placements_seen_};
  const FreeResources& left = scheduler_->left();
  for (const auto& [name, amount] : left.amounts().amounts()) {
    if (amount > 0 && name != kPythonWorker) load.available.emplace_back(name, amount);
  }
  load.free_gpus = left.gpus();
  load.leases = static_cast<uint32_t>(scheduler_->lease_count());
  if (!load_told_ || load.available != told_load_.available || load.free_gpus != told_load_.free_gpus ||
      load.leases != told_load_.leases) {
    load_told_ = true;
    told_load_ = load;
    cluster_->SendToHead(load);
  }

  std::vector<WishSent> to_send =
      sent_wishes_.Tell(WishesForHead(), [this](ProcessId process) { return Find(process)->job; });
  for (WishSent& wish : to_send) {
    if (wish.withdrawn == 0) TellHeadOfJob(wish.job);  // how its workers are started there, before anything is placed
    cluster_->SendToHead(wish);
  }
  TellHeadOfActors();
}

}  // namespace weft::core
