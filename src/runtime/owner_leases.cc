// Owner: leases, and the deaths of processes. Which leases are requested, granted and given back, and what has to be
// done again when a worker, or the owner of a borrowed object, has died.
#include <algorithm>
#include <utility>

#include "runtime/owner.h"

namespace weft::core {
namespace {

// A full channel whose worker owes nothing is being emptied; it is tried again after this time.
constexpr int64_t kPushAgainNs = 1'000'000;
// How long to request no lease after an unused one was recalled.
constexpr int64_t kRequestAgainNs = 20'000'000;
// Tasks may lie so long behind one that was expected to be short.
constexpr int64_t kGatherNs = 2'000'000;

}  // namespace

LeasedWorker* Owner::FindWorker(ProcessId process) {
  auto it = worker_numbers_.find(process);
  return it == worker_numbers_.end() ? nullptr : &workers_[it->second];
}

size_t Owner::SpareTasks(const Shape& shape) const {
  size_t spare = shape.ready.size();
  size_t idle = 0;
  for (int32_t number : shape.workers) {
    const LeasedWorker& worker = workers_[number];
    if (worker.pushed.size > 1) spare += worker.pushed.size - 1;
    if (Usable(worker) && worker.pushed.size == 0) ++idle;
  }
  return spare > idle ? spare - idle : 0;
}

void Owner::RequestLeases(uint32_t number, Actions& out) {
  Shape& shape = shapes_[number];
  if (shape.ready.first()) shape.request_again_ns = 0;
  size_t spare = shape.request_again_ns > 0 ? 0 : SpareTasks(shape);
  if (spare == 0) {
    if (shape.quiet_since_ns == 0) shape.quiet_since_ns = now_ns_;
    return;
  }
  shape.quiet_since_ns = 0;
  // Beyond a thousand the exact number tells the scheduler nothing; below, only a fourfold increase is news.
  auto wanted = static_cast<uint32_t>(std::min<size_t>(spare, 1000));
  if (shape.requested > 0 && wanted < 4 * shape.requested) return;
  if (shape.requested == 0) shape.requested_since_ns = now_ns_;
  shape.requested = wanted;
  out.push_back({.kind = ActionKind::kRequestLeases, .worker = static_cast<int32_t>(number), .number = wanted});
}

LeasedWorker& Owner::WorkerRecord(ProcessId process) {
  const bool reused = !free_numbers_.empty();
  const int32_t next = reused ? free_numbers_.back() : static_cast<int32_t>(workers_.size());
  auto [it, fresh] = worker_numbers_.try_emplace(process, next);
  if (fresh) {
    reused ? free_numbers_.pop_back() : static_cast<void>(workers_.emplace_back());
    workers_[next].process = process;
    workers_[next].dead = dead_.Contains(process);
    if (workers_[next].dead) dead_workers_.push_back(next);
  }
  return workers_[it->second];
}

// Once nothing refers to their numbers any more. The calls of an actor stay with its dead worker until its home has
// said whether it starts again.
void Owner::ForgetDeadWorkers(Actions& out) {
  std::erase_if(dead_workers_, [&](int32_t number) {
    LeasedWorker& worker = workers_[number];
    const bool owes = worker.pushed.size > 0 || (worker.actor && worker.actor->worker == number);
    if (worker.leased || owes) return false;
    out.push_back({.kind = ActionKind::kForgetWorker, .worker = number, .process = worker.process});
    worker_numbers_.erase(worker.process);
    worker = LeasedWorker{};
    free_numbers_.push_back(number);
    return true;
  });
}

void Owner::LeaseGranted(uint32_t number, LeaseId lease, ProcessId process, int64_t now_ns, Actions& out,
                         const AssignedGpus& gpus) {
  now_ns_ = now_ns;
  Shape& shape = shapes_[number];
  if (shape.requested > 0) --shape.requested;
  ++shape.granted;
  LeasedWorker& worker = WorkerRecord(process);
  if (worker.dead || worker.leased) {
    // We heard of its death first, from the answer to a message; the daemon ends the lease when it declares it dead.
    // The request was spent on it, so another one is due.
    MarkDirty(number);
    return Settle(out);
  }
  worker.lease = lease;
  worker.gpus = gpus;
  worker.leased = true;
  worker.used = false;
  worker.shape = number;
  worker.recalled = worker.blocked = worker.full = false;
  worker.idle_since_ns = now_ns;
  const auto index = static_cast<int32_t>(&worker - workers_.data());
  shape.workers.push_back(index);
  lease_workers_[lease] = index;
  MarkDirty(number);
  Settle(out);
}

void Owner::LeaseRefused(uint32_t number, const std::string& why, Actions& out) {
  Shape& shape = shapes_[number];
  shape.requested = 0;
  // A process with leases of the shape goes on with them, and asks again when they no longer suffice. Nothing is
  // remembered: a lease that is not available now may be later, and one that never will be is refused again.
  if (!shape.workers.empty()) return;
  while (Task* task = shape.ready.PopFront()) {
    // A message about all tasks of a shape begins like this.
    constexpr std::string_view kOfAll = "the task ";
    const bool of_all = why.starts_with(kOfAll);
    const std::string text = of_all ? "the task '" + task->what->name + "' " + why.substr(kOfAll.size()) : why;
    FailTask(task, ValueKind::kSystemError, "UnschedulableError\n" + text, out);
  }
  Settle(out);
}

void Owner::LeaseRecalled(LeaseId lease, Actions& out) {
  auto it = lease_workers_.find(lease);
  if (it == lease_workers_.end()) return;
  LeasedWorker& worker = workers_[it->second];
  worker.recalled = true;
  if (worker.pushed.size == 0) {
    if (!worker.used) shapes_[worker.shape].request_again_ns = now_ns_ + kRequestAgainNs;
    ReturnLease(worker, out);
  } else {
    for (Task* task = worker.pushed.first; task; task = task->next) {
      if (task->state == TaskState::kPushed) Revoke(task, out);
    }
  }
  Settle(out);
}

void Owner::DropLease(LeasedWorker& worker) {
  if (!worker.leased) return;
  worker.leased = false;
  Shape& shape = shapes_[worker.shape];
  std::erase_if(shape.workers, [&](int32_t number) { return &workers_[number] == &worker; });
  lease_workers_.erase(worker.lease);
  MarkDirty(worker.shape);
}

void Owner::ReturnLease(LeasedWorker& worker, Actions& out) {
  if (!worker.leased) return;
  if (!faults.forget_to_return_lease) out.push_back({.kind = ActionKind::kReturnLease, .number = worker.lease.value});
  DropLease(worker);
}

void Owner::ProcessDied(ProcessId process, const std::string& how, int64_t now_ns, Actions& out) {
  now_ns_ = now_ns;
  if (process && process == DaemonOf(NodeOf(process))) return NodeDied(NodeOf(process), out);
  if (!dead_.Insert(process, how)) return;
  if (LeasedWorker* worker = FindWorker(process)) {
    worker->dead = true;
    DropLease(*worker);
    dead_workers_.push_back(static_cast<int32_t>(worker - workers_.data()));
    // If the home of the actor is another node, this may be the first news of the death. Whether it restarts is not
    // known yet, and its calls wait for that (ActorReported).
    const bool untold = worker->actor && worker->actor->worker == static_cast<int32_t>(worker - workers_.data());
    if (!untold) RevokePushed(*worker, out);
  }
  std::vector<Object*> touched;
  objects_.ForEach([&](Object* object) {
    if (object->borrowed && object->id.owner == process) {
      if (!object->resolved()) {
        ResolveWith(object, ValueKind::kSystemError, OwnerDied(how));
      }
    } else if (object->borrowers && object->borrowers->erase(process) > 0) {
      touched.push_back(object);
    }
    if (object->requesters) std::erase(*object->requesters, process);
  });
  for (Object* object : touched) Consider(object, out);
  Settle(out);
}

// Its processes may be borrowers here, registered by others, and unknown to our daemon.
void Owner::NodeDied(NodeNumber node, Actions& out) {
  if (!dead_nodes_.insert(node).second) return;
  auto of_node = [node](ProcessId process) { return NodeOf(process) == node; };
  std::vector<Object*> touched;
  objects_.ForEach([&](Object* object) {
    if (object->borrowers &&
        std::erase_if(*object->borrowers, [&](const auto& borrower) { return of_node(borrower.first); }) > 0) {
      touched.push_back(object);
    }
    if (object->requesters) std::erase_if(*object->requesters, of_node);
  });
  for (Object* object : touched) Consider(object, out);
  Settle(out);
}

void Owner::RevokePushed(LeasedWorker& worker, Actions& out) {
  for (Task* task = worker.pushed.first; task; task = task->next) {
    if (task->state == TaskState::kPushed) Revoke(task, out);  // unclaimed tasks did not run
  }
}

void Owner::Tick(int64_t now_ns, Actions& out) {
  now_ns_ = now_ns;
  for (LeasedWorker& worker : workers_) {
    // Its calls may run for long; meanwhile it reads on.
    if (worker.actor && worker.full && now_ns - worker.full_since_ns >= kPushAgainNs) {
      worker.full = false;
      MarkDirty(worker.actor);
    }
    if (!worker.leased || worker.pushed.size > 0) continue;
    if (now_ns >= IdleEnd(worker)) {
      ReturnLease(worker, out);
    } else if (worker.full && now_ns - worker.idle_since_ns >= kPushAgainNs) {
      worker.full = false;
      MarkDirty(worker.shape);
    }
  }
  for (uint32_t number = 0; number < shapes_.size(); ++number) {
    Shape& shape = shapes_[number];
    if (shape.requested > 0 && shape.quiet_since_ns > 0 && now_ns - shape.quiet_since_ns >= lease_idle_ns / 10) {
      shape.requested = 0;
      out.push_back({.kind = ActionKind::kRequestLeases, .worker = static_cast<int32_t>(number), .number = 0});
    }
    if (shape.gathering_since_ns > 0 && now_ns - shape.gathering_since_ns >= kGatherNs) StopGathering(number);
    if (shape.request_again_ns > 0 && now_ns >= shape.request_again_ns) {
      shape.request_again_ns = 0;
      MarkDirty(number);
    }
  }
  Settle(out);
}

// A task took longer than expected: tasks behind it may go elsewhere, and its kind does not count as short for a while.
void Owner::StopGathering(uint32_t number) {
  Shape& shape = shapes_[number];
  shape.gathering_since_ns = 0;
  for (int32_t each : shape.workers) {
    LeasedWorker& worker = workers_[each];
    if (!worker.pushed.first) continue;
    Task* late = worker.pushed.first;
    late->what->typical_ns = TaskTemplate::kUnknownNs;
    worker.expected_ns += TaskTemplate::kUnknownNs - late->expected_ns;
    late->expected_ns = TaskTemplate::kUnknownNs;
  }
  MarkDirty(number);
}

int64_t Owner::NextUrgentTick() const {
  int64_t next = 0;
  auto consider = [&](int64_t at) {
    if (next == 0 || at < next) next = at;
  };
  bool wanting = false;
  for (const Shape& shape : shapes_) {
    if (shape.gathering_since_ns > 0) consider(shape.gathering_since_ns + kGatherNs);
    wanting = wanting || (shape.requested > 0 && shape.ready.first());
  }
  if (!wanting || !NodeOf(self_)) return next;
  for (const LeasedWorker& worker : workers_) {
    if (worker.leased && worker.pushed.size == 0) consider(IdleEnd(worker));
  }
  return next;
}

int64_t Owner::NextTick() const {
  int64_t next = 0;
  auto consider = [&](int64_t at) {
    if (next == 0 || at < next) next = at;
  };
  for (const LeasedWorker& worker : workers_) {
    if (worker.actor && worker.full) consider(worker.full_since_ns + kPushAgainNs);
    if (!worker.leased || worker.pushed.size > 0) continue;
    consider(IdleEnd(worker));
    if (worker.full) consider(worker.idle_since_ns + kPushAgainNs);
  }
  for (const Shape& shape : shapes_) {
    if (shape.requested > 0 && shape.quiet_since_ns > 0) consider(shape.quiet_since_ns + lease_idle_ns / 10);
    if (shape.gathering_since_ns > 0) consider(shape.gathering_since_ns + kGatherNs);
    if (shape.request_again_ns > 0) consider(shape.request_again_ns);
  }
  return next;
}

}  // namespace weft::core
