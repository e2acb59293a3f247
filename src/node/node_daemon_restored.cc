// NodeDaemon: detached actors outlive the head.
//
// The head writes down what a detached actor is made of before it is placed, and each life before it begins
// (WriteDown); what is dead is deleted. A new head reads it (Restore), and waits until every node that was a member has
// said which of these actors it has (DetachedHeld, DetachedTold), or is dead: those that nobody has are started again,
// by the same rules as after the end of their worker, and never while the one before may still live. Callers go on
// meanwhile: they have their own connections to the workers, and hear nothing of it.
//
// What a head loses: an actor that is still being created when it dies, since its creator has not handed it over yet.
#include <algorithm>

#include "base/clock.h"
#include "control_store/tables.h"
#include "log/log.h"
#include "node/node_daemon.h"

namespace weft::core {
namespace {

uint32_t NumberOf(ProcessId lasting_job) { return static_cast<uint32_t>(lasting_job.value - kCluster.value); }

}  // namespace

// ---- writing ------------------------------------------------------------------------------------------------------

// Its present life, and with the first of its job how that one's workers are started. Nothing if it is dead.
void NodeDaemon::WriteDown(ObjectId actor, std::function<void()> then) {
  auto kept = kept_.find(actor);
  const auto life = directory_.LifeOf(actor);
  if (kept == kept_.end() || !life) return;
  WriteBatch batch;
  const ProcessId job = kept->second.job;
  if (written_jobs_.insert(job).second) {
    const JobDescribed* described = cluster_->FindJob(job);
    JobRecord record;
    record.number = NumberOf(job);
    if (described != nullptr) {
      record.driver = described->output_to;
      record.session = described->session;
    }
    Put(batch, record);
  }
  ActorRecord record = kept->second.record;
  record.id = actor;
  record.state = static_cast<uint8_t>(life->state);
  record.incarnation = life->incarnation;
  record.restarts_left = life->restarts_left;
  record.job = NumberOf(job);
  record.constructor = kept->second.recipe;
  Put(batch, record);
  kept->second.written = true;
  const ProcessId driver = kept->second.driver;
  cluster_->Persist(
      std::move(batch),
      [this, driver, then = std::move(then)] {
        told_of_store_.erase(driver);
        then();
      },
      [this, driver, name = record.name, class_name = record.class_name](const std::string& why) {
        // Once is enough, however many of its actors wait.
        if (!told_of_store_.insert(driver).second) return;
        Answer(driver, WorkerOutput{ProcessId{}, 0, 1,
                                    "weft: " + CalledActor(class_name, name) +
                                        " waits until the head can write it down: " + why + "\n",
                                    ""});
      });
}

void NodeDaemon::StrikeOut(ObjectId actor, bool was_written, ProcessId job, bool job_ends) {
  WriteBatch batch;
  if (was_written) DeleteActor(batch, actor);
  if (job_ends && written_jobs_.erase(job) > 0) DeleteJob(batch, NumberOf(job));
  if (!batch.writes.empty()) cluster_->Persist(std::move(batch), nullptr);
}

// ---- a new head ---------------------------------------------------------------------------------------------------

void NodeDaemon::Restore() {
  Head::Legacy legacy = cluster_->TakeLegacy();
  // Numbers of actors and jobs that are dead are not used again: who knows them may still ask.
  next_detached_ = (legacy.epoch << 32) + 1;
  next_lasting_job_ = ((legacy.epoch & 0x7fff) << 16) + 1;
  std::set<uint32_t> jobs;
  for (JobRecord& record : legacy.jobs) {
    const ProcessId job{kCluster.value + record.number};
    jobs.insert(record.number);
    next_lasting_job_ = std::max<uint64_t>(next_lasting_job_, record.number + 1);
    cluster_->KnowJob(JobDescribed{job, std::move(record.session), record.driver});
    told_jobs_.insert(job);
    written_jobs_.insert(job);
    if (record.driver) lasting_jobs_[record.driver] = job;
    if (EnsureJob(job) != nullptr && remote_clients_.emplace(job, job).second) {
      scheduler_->Handle(ProcessJoined{job, false, {job}}, scheduler_actions_);
    }
  }
  for (ActorRecord& record : legacy.actors) {
    if (record.id.owner != kCluster || !jobs.contains(record.job) || !IsValidShape(record.to_place) ||
        !IsValidShape(record.to_hold)) {
      LogError("actor", "a detached actor of class %s cannot be restored: its record is not whole",
               record.class_name.c_str());
      continue;
    }
    ActorRestored restored;
    restored.incarnation = record.incarnation;
    restored.restarts_left = record.restarts_left;
    CreateActor& message = restored.message;
    message.actor = record.id;
    message.detached = 1;
    message.depth = record.depth;
    message.to_place = record.to_place;
    message.to_hold = record.to_hold;
    message.name = record.name;
    message.name_space = record.name_space;
    message.class_name = record.class_name;
    message.metadata = record.metadata;
    if (!record.name.empty()) {
      names_.Take({record.name_space, record.name}, {record.id, cluster_->self(), record.class_name, record.metadata});
    }
    Kept& kept = kept_[record.id];
    kept.job = ProcessId{kCluster.value + record.job};
    if (const JobDescribed* described = cluster_->FindJob(kept.job)) kept.driver = described->output_to;
    kept.recipe = std::move(record.constructor);
    kept.record = std::move(record);
    kept.record.constructor.clear();
    kept.written = true;
    directory_.Handle(restored, directory_actions_);
  }
  // Jobs of which no actor is left.
  for (uint32_t number : jobs) {
    const ProcessId job{kCluster.value + number};
    if (std::none_of(kept_.begin(), kept_.end(), [&](const auto& entry) { return entry.second.job == job; })) {
      EndJobOfNobody(job, {}, false);
    }
  }
  for (const auto& [node, other] : cluster_->nodes()) {
    if (node != cluster_->self()) untold_.insert(node);
  }
  StartTheMissed();
  Settle();
}

void NodeDaemon::HandleNode(NodeNumber from, DetachedHeld& message) {
  if (!cluster_->is_head() || NodeOf(message.worker) != from) return;
  if (message.exiting != 0) {
    directory_.Handle(ActorKilled{kCluster, message.actor, true, false, "ended itself (exit_actor)", ""},
                      directory_actions_);
    return;
  }
  remote_peers_.insert(message.worker);
  directory_.Handle(
      ActorFound{message.actor, message.incarnation, message.worker, message.gpus, message.constructed != 0, NowNs()},
      directory_actions_);
}

void NodeDaemon::HandleNode(NodeNumber from, DetachedTold& message) {
  if (!cluster_->is_head()) return;
  for (ProcessId job : message.jobs) {
    if (NodeOf(job) == kClusterNode && cluster_->FindJob(job) == nullptr) cluster_->Send(from, JobEnded{job});
  }
  ToldOrGone(from);
}

void NodeDaemon::ToldOrGone(NodeNumber node) {
  if (untold_.erase(node) > 0) StartTheMissed();
}

// Once every node has spoken, or is dead.
void NodeDaemon::StartTheMissed() {
  if (!untold_.empty()) return;
  for (ObjectId actor : directory_.Awaited()) {
    directory_.Handle(ActorMissed{actor, "was lost with the node that it was on", NowNs()}, directory_actions_);
  }
}

// ---- a node that has a new head -----------------------------------------------------------------------------------

void NodeDaemon::TellOfDetached() {
  const NodeNumber head = cluster_->head();
  std::vector<ObjectId> unwanted;
  for (const auto& [actor, wanted] : far_wanted_) {
    if (actor.owner == kCluster) unwanted.push_back(actor);  // the new head wishes for it itself
  }
  for (ObjectId actor : unwanted) {
    far_wanted_.erase(actor);
    scheduler_->Handle(ActorUnwanted{actor}, scheduler_actions_);
  }
  for (auto& [id, far] : far_workers_) {
    if (far.actor.owner != kCluster) continue;
    far.home = head;
    auto* worker = Find(id);
    if (worker == nullptr) continue;
    if (far.incarnation == 0 || far.failed) {
      Kill(*worker, "its actor's home was lost before it was constructed");
      continue;
    }
    cluster_->SendToHead(DetachedHeld{far.actor, far.incarnation, id, far.gpus,
                                      static_cast<uint8_t>(far.constructed ? 1 : 0),
                                      static_cast<uint8_t>(far.exiting ? 1 : 0)});
  }
  for (const auto& [actor, worker] : std::exchange(exited_, {})) {
    if (Find(worker) == nullptr) cluster_->SendToHead(DetachedHeld{.actor = actor, .worker = worker, .exiting = 1});
  }
  DetachedTold told;
  for (const auto& [driver, job] : jobs_) {
    if (NodeOf(driver) == kClusterNode) told.jobs.push_back(driver);
  }
  cluster_->SendToHead(told);
  for (const auto& [actor, watchers] : watched_) {
    if (actor.owner != kCluster) continue;
    for (ProcessId watcher : watchers) {
      const auto* process = Find(watcher);
      if (process != nullptr) {
        cluster_->SendToHead(FromProcess{watcher, process->job, Encode(WatchActor{actor})});
      }
    }
  }
}

}  // namespace weft::core
