// NodeCore: detached actors outlive the head.
//
// The head writes down what a detached actor is made of before it is placed, and each life before it begins
// (Persist); what is dead is deleted. A new head reads it (Restore), and waits until every node that was a member has
// said which of these actors it has (DetachedHeld, DetachedTold), or is dead: those that nobody has are started again,
// by the same rules as after the end of their worker, and never while the one before may still live. Callers go on
// meanwhile: they have their own connections to the workers, and hear nothing of it.
//
// What a head loses: an actor that is still being created when it dies, since its creator has not handed it over yet.
#include <algorithm>
#include <cstdio>

#include "control_store/tables.h"
#include "node/node_core.h"

namespace weft::core {
namespace {

uint32_t NumberOf(ProcessId cluster_job) { return static_cast<uint32_t>(cluster_job.value - kCluster.value); }

}  // namespace

// ---- writing ------------------------------------------------------------------------------------------------------

// Its present life, and with the first of its job how that one's workers are started. Nothing if it is dead.
void NodeCore::Persist(ObjectId actor, std::function<void()> then) {
  auto kept = detached_.kept.find(actor);
  const auto life = directory_.LifeOf(actor);
  if (kept == detached_.kept.end() || !life) return;
  WriteBatch batch;
  const ProcessId job = kept->second.job;
  if (detached_.persisted_jobs.insert(job).second) {
    const JobDescribed* described = links_->FindJob(job);
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
  kept->second.persisted = true;
  const ProcessId driver = kept->second.driver;
  links_->Persist(
      std::move(batch),
      [this, driver, then = std::move(then)] {
        detached_.told_of_store.erase(driver);
        then();
      },
      [this, driver, name = record.name, class_name = record.class_name](const std::string& why) {
        // Once is enough, however many of its actors wait.
        if (!detached_.told_of_store.insert(driver).second) return;
        Answer(driver, WorkerOutput{ProcessId{}, 0, 1,
                                    "weft: " + CalledActor(class_name, name) +
                                        " waits until the head can write it down: " + why + "\n",
                                    ""});
      });
}

void NodeCore::Delete(ObjectId actor, bool was_persisted, ProcessId job, bool job_ends) {
  WriteBatch batch;
  if (was_persisted) DeleteActor(batch, actor);
  if (job_ends && detached_.persisted_jobs.erase(job) > 0) DeleteJob(batch, NumberOf(job));
  if (!batch.writes.empty()) links_->Persist(std::move(batch), nullptr, nullptr);
}

// ---- a new head ---------------------------------------------------------------------------------------------------

void NodeCore::Restore(uint64_t epoch, std::vector<ActorRecord> actors, std::vector<JobRecord> jobs, int64_t now_ns) {
  now_ns_ = now_ns;
  // Numbers of actors and jobs that are dead are not used again: those that know them may still ask.
  detached_.next_actor = (epoch << 32) + 1;
  detached_.next_job = ((epoch & 0x7fff) << 16) + 1;
  std::set<uint32_t> numbers;
  for (JobRecord& record : jobs) {
    numbers.insert(record.number);
    RestoreJob(record);
  }
  for (ActorRecord& record : actors) {
    if (record.id.owner != kCluster || !numbers.contains(record.job) || !IsValidShape(record.to_place) ||
        !IsValidShape(record.to_hold)) {
      io_.Log(LogLevel::kError, "actor",
              "a detached actor of class " + record.class_name + " cannot be restored: its record is not whole");
      continue;
    }
    RestoreActor(record);
  }
  // Jobs of which no actor is left.
  for (uint32_t number : numbers) {
    const ProcessId job{kCluster.value + number};
    if (std::none_of(detached_.kept.begin(), detached_.kept.end(),
                     [&](const auto& entry) { return entry.second.job == job; })) {
      EndJobOfNobody(job, {}, false);
    }
  }
  for (const auto& [node, known] : links_->nodes()) {
    if (node != links_->self()) detached_.untold.insert(node);
  }
  StartTheMissed();
  SettleNow();
}

void NodeCore::RestoreJob(JobRecord& record) {
  const ProcessId job{kCluster.value + record.number};
  detached_.next_job = std::max<uint64_t>(detached_.next_job, record.number + 1);
  links_->KnowJob(JobDescribed{job, std::move(record.session), record.driver});
  told_jobs_.insert(job);
  detached_.persisted_jobs.insert(job);
  if (record.driver) detached_.cluster_jobs[record.driver] = job;
  if (EnsureJob(job) != nullptr) JoinAsClient(job, job);
}

void NodeCore::RestoreActor(ActorRecord& record) {
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
    names_.Take({record.name_space, record.name}, {record.id, links_->self(), record.class_name, record.metadata});
  }
  Kept& kept = detached_.kept[record.id];
  kept.job = ProcessId{kCluster.value + record.job};
  if (const JobDescribed* described = links_->FindJob(kept.job)) kept.driver = described->output_to;
  kept.recipe = std::move(record.constructor);
  kept.record = std::move(record);
  kept.record.constructor.clear();
  kept.persisted = true;
  directory_.Handle(restored, directory_actions_);
}

void NodeCore::HandleNode(NodeNumber from, DetachedHeld& message) {
  if (!links_->is_head() || NodeOf(message.worker) != from) return;
  if (message.exiting != 0) {
    directory_.Handle(ActorKilled{kCluster, message.actor, true, false, "ended itself (exit_actor)", ""},
                      directory_actions_);
    return;
  }
  remote_peers_.insert(message.worker);
  directory_.Handle(
      ActorFound{message.actor, message.incarnation, message.worker, message.gpus, message.constructed != 0, now_ns_},
      directory_actions_);
}

void NodeCore::HandleNode(NodeNumber from, DetachedTold& message) {
  if (!links_->is_head()) return;
  for (ProcessId job : message.jobs) {
    if (NodeOf(job) == kClusterNode && links_->FindJob(job) == nullptr) links_->Send(from, JobEnded{job});
  }
  ToldOrGone(from);
}

void NodeCore::ToldOrGone(NodeNumber node) {
  if (detached_.untold.erase(node) > 0) StartTheMissed();
}

// Once every node has spoken, or is dead.
void NodeCore::StartTheMissed() {
  if (!detached_.untold.empty()) return;
  for (ObjectId actor : directory_.Awaited()) {
    directory_.Handle(ActorMissed{actor, "was lost with the node that it was on", now_ns_}, directory_actions_);
  }
}

// ---- a node that has a new head -----------------------------------------------------------------------------------

void NodeCore::TellOfDetached() {
  const NodeNumber head = links_->head();
  std::vector<ObjectId> unwanted;
  for (const auto& [actor, wanted] : remote_.wanted) {
    if (actor.owner == kCluster) unwanted.push_back(actor);  // the new head requests it itself
  }
  for (ObjectId actor : unwanted) {
    remote_.wanted.erase(actor);
    scheduler_->Handle(ActorUnwanted{actor}, scheduler_actions_);
  }
  for (auto& [id, remote] : remote_.workers) {
    if (remote.actor.owner != kCluster) continue;
    remote.home = head;
    auto* worker = Find(id);
    if (worker == nullptr) continue;
    if (remote.incarnation == 0 || remote.failed) {
      Kill(worker->id, "its actor's home was lost before it was constructed");
      continue;
    }
    SendToHead(DetachedHeld{remote.actor, remote.incarnation, id, remote.gpus,
                            static_cast<uint8_t>(remote.constructed ? 1 : 0),
                            static_cast<uint8_t>(remote.exiting ? 1 : 0)});
  }
  for (const auto& [actor, worker] : std::exchange(remote_.exited, {})) {
    if (Find(worker) == nullptr) SendToHead(DetachedHeld{.actor = actor, .worker = worker, .exiting = 1});
  }
  DetachedTold told;
  for (const auto& [driver, job] : jobs_) {
    if (NodeOf(driver) == kClusterNode) told.jobs.push_back(driver);
  }
  SendToHead(told);
  for (const auto& [actor, watchers] : remote_.watched) {
    if (actor.owner != kCluster) continue;
    for (ProcessId watcher : watchers) {
      const auto* process = Find(watcher);
      if (process != nullptr) {
        SendToHead(FromProcess{watcher, process->job, Encode(WatchActor{actor})});
      }
    }
  }
}

}  // namespace weft::core
