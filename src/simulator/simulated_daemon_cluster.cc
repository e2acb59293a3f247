// SimulatedDaemon of a cluster: what it does for processes of other nodes, and what other nodes do for its own, as
// node_daemon_cluster.cc and node_daemon_frozen.cc do.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "simulator/simulated_cluster.h"
#include "simulator/simulated_daemon.h"
#include "simulator/simulated_process.h"

namespace weft::core {

// ---- life ---------------------------------------------------------------------------------------------------------

void SimulatedDaemon::Open() {
  if (!node_->machine().has_driver || world_.driver) return;
  world_.driver = ProcessId{next_number_++};
  world_.processes[world_.driver] = std::make_unique<SimulatedProcess>(world_, world_.driver, true);
  job_ = world_.driver;
  processes_[job_].stage = Stage::kReady;
  scheduler.Handle(ProcessJoined{job_, false, {job_}}, scheduler_actions_);
  pool.SessionOpened(world_.now(), pool_actions_);
  Settle();
  TellHeadOfJob();
  world_.Find(job_)->StartDriver();
}

void SimulatedDaemon::End() {
  ended_ = true;
  for (auto& [id, process] : processes_) {
    if (auto* simulated = world_.Find(id); simulated != nullptr && simulated->alive) simulated->Die();
  }
}

void SimulatedDaemon::HeadForgot() {
  placements_seen_ = 0;
  load_told_ = false;
  if (world_.options.cluster_faults.forget_to_wish_anew) return;
  sent_wishes_.ForgetAll();
  told_job_ = false;
  Settle();
}

size_t SimulatedDaemon::machine() const { return node_->machine().number; }

void SimulatedDaemon::EndTurn() {
  Settle();
  TellHead();
}

bool SimulatedDaemon::HasDied(ProcessId process) const {
  if (deaths_.contains(process)) return true;
  if (!IsElsewhere(process)) return !processes_.contains(process);
  return !node_->Knows(NodeOf(process)) && !node_->MayAppear(NodeOf(process));
}

void SimulatedDaemon::SendElsewhere(ProcessId process, const Message& message) {
  node_->Send(NodeOf(process), ForProcess{process, Encode(message)});
}

// ---- standing still -----------------------------------------------------------------------------------------------

bool SimulatedDaemon::CouldRunElsewhere(ProcessId id) const {
  if (id == job_) return false;
  if (IsElsewhere(job_)) return true;
  const ProcessId holder = scheduler.HolderOf(id);
  return holder && IsElsewhere(holder);
}

void SimulatedDaemon::FreezeWork() {
  frozen_ = true;
  for (auto& [id, process] : processes_) {
    if (process.stage == Stage::kConnecting || !CouldRunElsewhere(id)) continue;
    if (auto* simulated = world_.Find(id)) simulated->frozen = true;
  }
}

void SimulatedDaemon::ThawWork() {
  frozen_ = false;
  for (auto& [id, process] : processes_) {
    auto* simulated = world_.Find(id);
    if (!simulated || !std::exchange(simulated->frozen, false)) continue;
    for (auto& what : std::exchange(simulated->held_back, {})) world_.queue.At(world_.now(), std::move(what));
  }
}

void SimulatedDaemon::FreezeIfNeeded(ProcessId id) {
  if (!frozen_ || world_.options.cluster_faults.freeze_only_the_present || !CouldRunElsewhere(id)) return;
  world_.node_coverage.Did("a process was frozen from its beginning");
  if (auto* simulated = world_.Find(id)) simulated->frozen = true;
}

// ---- what other nodes say -----------------------------------------------------------------------------------------

void SimulatedDaemon::NodeMessageCame(NodeNumber from, NodeMessage& message) {
  std::visit(
      [&](auto& m) {
        if constexpr (requires { HandleNode(from, m); }) HandleNode(from, m);
      },
      message);
  Settle();
}

void SimulatedDaemon::HandleNode(NodeNumber, JobDescribed& message) {
  if (job_ || !IsElsewhere(message.driver)) return;
  if (HasDied(message.driver)) return;
  job_ = message.driver;
  pool.SessionOpened(world_.now(), pool_actions_);
}

bool SimulatedDaemon::EnsureJob(ProcessId driver) {
  if (job_ == driver) return true;
  const JobDescribed* described = node_->is_head() ? node_->FindJob(driver) : nullptr;
  if (described == nullptr) return false;
  JobDescribed copy = *described;
  HandleNode(self_, copy);
  return job_ == driver;
}

void SimulatedDaemon::TellHeadOfJob() {
  if (!job_ || std::exchange(told_job_, true)) return;
  node_->SendToHead(JobDescribed{job_, "", {}});
}

void SimulatedDaemon::HandleNode(NodeNumber, WorkAssigned& message) {
  world_.Note("assigned", message.process.value, message.wish, message.count);
  placements_seen_ = std::max(placements_seen_, message.placement);
  load_told_ = false;
  const bool died = HasDied(message.process) && !world_.options.cluster_faults.serve_the_dead;
  if (died || !EnsureJob(message.job)) return;
  if (!processes_.contains(message.process) && remote_clients_.insert(message.process).second) {
    scheduler.Handle(ProcessJoined{message.process, false, {message.job}}, scheduler_actions_);
  }
  if (processes_.contains(message.process)) {
    return sent_wishes_.PlacedHere(message.wish, message.count);
  }
  RereadBlockedFlags();
  scheduler.Handle(TimePassed{world_.now()}, scheduler_actions_);
  scheduler.Handle(LeasesPlaced{message.process, message.shape, message.count, message.depth}, scheduler_actions_);
}

void SimulatedDaemon::HandleNode(NodeNumber, WishServed& message) {
  world_.Note("served", self_.value, message.wish, static_cast<uint64_t>(message.count));
  sent_wishes_.Placed(message.wish, message.count);
}

void SimulatedDaemon::HandleNode(NodeNumber, WishRefused& message) {
  if (message.for_ever != 0) world_.Fail("the head refused a wish that has no place of its own");
}

void SimulatedDaemon::HandleNode(NodeNumber from, ForProcess& message) {
  auto decoded = Decode(message.message);
  auto process = processes_.find(message.process);
  const bool ready = process != processes_.end() && process->second.stage == Stage::kReady;
  if (auto* granted = std::get_if<LeaseGranted>(&decoded)) {
    world_.Note("granted there", message.process.value, granted->worker.value, granted->lease.value);
    sent_wishes_.Arrived(message.process, granted->shape);
    if (!ready) {
      node_->Send(from, FromProcess{message.process, {}, Encode(ReturnLease{granted->lease})});
      return;
    }
    const ChannelBroker::Pair pair{message.process, granted->worker};
    if (channels_.IsAwaited(pair) || !channels_.HasSubmitter(pair)) {
      if (!channels_.IsAwaited(pair) && deaths_.contains(pair.worker)) return;
      if (channels_.Await(pair, std::move(decoded))) node_->DialChannel(pair.submitter, pair.worker);
      return;
    }
    scheduler.Handle(LeaseHadElsewhere{message.process, granted->shape}, scheduler_actions_);
    ++process->second.granted[granted->shape];
    return Tell(message.process, decoded);
  }
  if (auto* refused = std::get_if<LeaseRefused>(&decoded)) {
    sent_wishes_.Arrived(message.process, refused->shape, refused->count);
    if (process != processes_.end()) {
      scheduler.Handle(LeasesRequested{message.process, refused->shape, 0, 0}, scheduler_actions_);
    }
  }
  if (ready) Tell(message.process, decoded);
}

void SimulatedDaemon::HandleNode(NodeNumber from, FromProcess& message) {
  if (NodeOf(message.process) != from) return;
  auto decoded = Decode(message.message);
  if (auto* returned = std::get_if<ReturnLease>(&decoded)) {
    RereadBlockedFlags();
    if (ProcessId worker = scheduler.WorkerOf(returned->lease, message.process)) {
      pool.WorkerWasFreed(worker, world_.now());
    }
    scheduler.Handle(LeaseReturned{message.process, returned->lease}, scheduler_actions_);
  }
}

void SimulatedDaemon::HandleNode(NodeNumber from, RoutedAcross& message) {
  if (NodeOf(message.from) != from) return;
  world_.MentionsCame(message.payload);
  auto target = processes_.find(message.to);
  if (target == processes_.end() || target->second.stage != Stage::kReady) {
    return SendElsewhere(message.from, ProcessDied{message.to, 0, "it has ended"});
  }
  Tell(message.to, Routed{message.from, std::move(message.payload)});
}

void SimulatedDaemon::RouteElsewhere(ProcessId from, RouteTo& message) {
  const NodeNumber node = NodeOf(message.to);
  if ((node_->Knows(node) || node_->MayAppear(node)) && !deaths_.contains(message.to)) {
    remote_peers_.insert(message.to);
    world_.MentionsSent(message.payload);
    return node_->Send(NodeOf(message.to), RoutedAcross{from, message.to, std::move(message.payload)});
  }
  Tell(from, ProcessDied{message.to, 0, "it has ended"});
}

void SimulatedDaemon::HandleNode(NodeNumber from, ProcessVanished& message) {
  if (NodeOf(message.process) == from) RemoteProcessDied(message.process, message.how);
}

void SimulatedDaemon::RemoteProcessDied(ProcessId id, const std::string& how) {
  deaths_[id] = how;
  remote_peers_.erase(id);
  channels_.EndedElsewhere(id);
  for (auto& [other, process] : processes_) Tell(other, ProcessDied{id, 0, how});
  if (remote_clients_.erase(id) > 0 && !world_.options.cluster_faults.keep_leases_of_the_gone) {
    scheduler.Handle(ProcessLost{id}, scheduler_actions_);
  }
  if (id == job_) EndProcessesOfJob();
  Settle();
}

void SimulatedDaemon::EndProcessesOfJob() {
  job_ending_ = true;
  for (auto& [id, process] : processes_) {
    if (id != job_) Kill(id);
  }
}

void SimulatedDaemon::NodeIsGone(NodeNumber node, const std::string& why) {
  std::set<ProcessId> lost;
  for (ProcessId id : remote_clients_) {
    if (NodeOf(id) == node) lost.insert(id);
  }
  if (job_ && NodeOf(job_) == node) lost.insert(job_);
  for (ProcessId id : remote_peers_) {
    if (NodeOf(id) == node) lost.insert(id);
  }
  sent_wishes_.WishAnew();
  const std::string how = "was lost with its node (" + why + ")";
  for (ProcessId id : lost) RemoteProcessDied(id, how);
  if (!world_.options.cluster_faults.bury_only_acquaintances) {
    for (auto& [id, process] : processes_) Tell(id, ProcessDied{DaemonOf(node), 0, how});
  }
  Settle();
}

// ---- channels -----------------------------------------------------------------------------------------------------

void SimulatedDaemon::GrantElsewhere(const GrantLease& action) {
  pool.WorkerWasLeased(action.worker);
  world_.node_coverage.Did("a lease was granted to another node");
  world_.Note("grant", action.process.value, action.worker.value, action.lease.value);
  if (auto* process = world_.Find(action.worker)) process->demand = scheduler.demand();
  FreezeIfNeeded(action.worker);
  remote_peers_.insert(action.process);
  if (channels_.Want({action.process, action.worker})) {
    node_->Send(NodeOf(action.process), ChannelWanted{action.process, action.worker});
  }
  SendElsewhere(action.process, LeaseGranted{action.shape, action.lease, action.worker, action.gpus});
}

void SimulatedDaemon::HandleNode(NodeNumber from, ChannelWanted& message) {
  if (NodeOf(message.worker) != from || !processes_.contains(message.submitter)) return;
  remote_peers_.insert(message.worker);
  if (channels_.Await({message.submitter, message.worker})) node_->DialChannel(message.submitter, message.worker);
}

void SimulatedDaemon::HandleNode(NodeNumber from, ChannelBroken& message) {
  if (NodeOf(message.other) == from) EndUnreachable(message.worker);
}

void SimulatedDaemon::EndUnreachable(ProcessId worker) {
  auto found = processes_.find(worker);
  if (found == processes_.end() || worker == job_ || found->second.stage == Stage::kClosing) return;
  world_.node_coverage.Did("a worker ended with its connection");
  Kill(worker);
}

void SimulatedDaemon::ChannelConnected(ProcessId submitter, ProcessId worker, bool dialled, StreamPointer stream) {
  const ProcessId own = dialled ? submitter : worker;
  const int side = dialled ? SimulatedStream::kDialler : SimulatedStream::kListener;
  const ChannelBroker::Pair pair{submitter, worker};
  auto process = processes_.find(own);
  if (process == processes_.end() || process->second.stage != Stage::kReady || !stream || !world_.Alive(own)) {
    if (stream) world_.cluster->network.Close(stream, side);
    std::vector<Message> refused;
    if (dialled) {
      refused = stream ? channels_.GivenUp(pair) : channels_.NotReached(pair, deaths_.contains(worker), world_.now());
    }
    for (auto& message : refused) {
      if (auto* granted = std::get_if<LeaseGranted>(&message)) {
        world_.node_coverage.Did("a lease was returned because there was no connection");
        node_->Send(NodeOf(worker), FromProcess{submitter, {}, Encode(ReturnLease{granted->lease})});
      }
    }
    return;
  }
  const auto here = dialled ? ChannelBroker::Side::kSubmitter : ChannelBroker::Side::kWorker;
  if (!channels_.OpenOne(pair, here)) world_.Fail("a process has no slot left for a channel");
  SimulatedChannel* channel = world_.OpenChannel(submitter, worker);
  if (channel->stream != stream) {
    channel->stream = stream;
    channel->tasks.clear();
    channel->replies.clear();
    channel->asked.clear();
  }
  if (dialled) {
    stream->side[side].closed = [this, submitter, channel, stream](bool) {
      SimulatedProcess* simulated = world_.Find(submitter);
      if (simulated->alive && channel->stream == stream) simulated->ChannelEnded(*channel);
    };
  }
  Tell(own, ChannelOpened{.peer = dialled ? worker : submitter, .first_side = static_cast<uint8_t>(dialled ? 1 : 0)});
  for (auto& message : dialled ? channels_.Opened(pair) : std::vector<Message>{}) {
    if (auto* granted = std::get_if<LeaseGranted>(&message)) {
      scheduler.Handle(LeaseHadElsewhere{submitter, granted->shape}, scheduler_actions_);
      ++process->second.granted[granted->shape];
    }
    Tell(own, message);
  }
  Settle();
}

// ---- to the head --------------------------------------------------------------------------------------------------

void SimulatedDaemon::TellHead() {
  NodeLoad load{.placements_seen = placements_seen_};
  const FreeResources& left = scheduler.left();
  for (const auto& [name, amount] : left.amounts().amounts()) {
    if (amount > 0 && name != kPythonWorker) load.available.emplace_back(name, amount);
  }
  load.free_gpus = left.gpus();
  load.leases = static_cast<uint32_t>(scheduler.lease_count());
  if (!load_told_ || load.available != told_load_.available || load.free_gpus != told_load_.free_gpus ||
      load.leases != told_load_.leases) {
    load_told_ = true;
    told_load_ = load;
    node_->SendToHead(load);
  }
  std::vector<LocalScheduler::UnmetWish> wanted;
  for (const auto& unmet : scheduler.Unmet()) {
    if (processes_.contains(unmet.process) && node_->nodes().size() >= 2) wanted.push_back(unmet);
  }
  std::vector<WishSent> to_send = sent_wishes_.Tell(wanted, [this](ProcessId) { return job_; });
  for (WishSent& wish : to_send) {
    world_.Note(wish.withdrawn != 0 ? "withdraws" : "wishes", wish.process.value, wish.wish, wish.count);
    if (wish.withdrawn == 0) TellHeadOfJob();
    node_->SendToHead(wish);
  }
}

}  // namespace weft::core
