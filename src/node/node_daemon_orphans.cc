// NodeDaemon: objects of dead owners. Finds them, asks every process for its references to them, and frees them when
// none has any.
//
// What if a process dies here, step by step in the life of a stored object:
//
// - Allocated, not sealed. The writer dies: the entry was never visible, and its range goes when the daemon reads the
//   index (SegmentKeeper::WriterDied). The owner dies: the writer sees that after it has sealed the object, and frees
//   it (Executor::Reply).
// - Sealed, reply not sent. The writer dies: the owner is sent ResultsLeft, does not know the place, and frees it. The
//   owner dies: the writer finds the object (OrphansFound), and nobody holds it.
// - Reply sent, not taken. The writer dies: the owner takes the reply when it handles ProcessDied, which comes before
//   ResultsLeft, and keeps the object. The owner dies: as above.
// - Taken. The writer dies: nothing happens until the owner frees the object. The owner dies: the borrowers say that
//   they hold it (HeldObjects), and later let go of it (HoldsEnded) or die.
// - Passed on by a borrower. The owner is dead, and the borrower may die too: the receiver registers (HoldOrphan)
//   before it looks. When the daemon has answered, either the object exists and stays, or it was freed before, which
//   the receiver sees by the generation in its entry.
// - Being freed. The writer dies before it handles ObjectsFreed: the entry of an orphan was hidden, so its range goes
//   with all that is not sealed (SegmentKeeper::WriterDied). One that its living owner has freed is still sealed: that
//   one is sent ResultsLeft, no longer knows it, and frees it anew. Freeing twice is harmless, because a place has a
//   generation.
//
// The entry of an orphan is hidden (SegmentKeeper::Hide) as soon as nobody is known to hold it, before anything is
// freed: only then may the table forget it, since a receiver that registers from then on sees that it is gone. Its
// living writer, or the nodes that have copies, may take their time. If the writer and the owner both die, the daemon
// handles one death first; at the second the object is an orphan.
#include <algorithm>

#include "base/clock.h"
#include "node/node_daemon.h"

namespace weft::core {
namespace {

constexpr char kTooManyListed[] = "listed more objects of dead owners than fit in one message";

// As many messages as it takes.
template <class T, class F>
void InParts(const std::vector<T>& list, F send) {
  for (size_t at = 0; at == 0 || at < list.size(); at += kMaxOrphansListed) {
    const size_t end = std::min(list.size(), at + kMaxOrphansListed);
    send({list.begin() + static_cast<ptrdiff_t>(at), list.begin() + static_cast<ptrdiff_t>(end)}, end < list.size());
  }
}

}  // namespace

void NodeDaemon::FindOrphans(std::vector<SealedObject> objects) {
  if (objects.empty()) return;
  if (cluster_) {
    for (const auto& [node, description] : cluster_->nodes()) {
      if (node != cluster_->self()) orphans_.Handle(OrphanTable::HolderJoined{DaemonOf(node)}, orphan_actions_);
    }
  }
  orphans_.Handle(OrphanTable::Found{std::move(objects)}, orphan_actions_);
}

void NodeDaemon::FindOrphansOf(ProcessId dead, const std::vector<SealedObject>& written) {
  orphans_.Handle(OrphanTable::HolderLeft{dead}, orphan_actions_);
  std::vector<SealedObject> orphans = segments_.ObjectsOf(dead);
  std::map<ProcessId, std::vector<SealedObject>> of_the_living;
  for (const SealedObject& object : written) {
    const ProcessId owner = object.object.owner;
    if (owner == dead || NodeOf(owner) == kClusterNode) continue;
    core_.HasDied(owner) ? orphans.push_back(object) : of_the_living[owner].push_back(object);
  }
  FindOrphans(std::move(orphans));
  // ProcessDied was sent to them before, so they have taken all that the dead had replied.
  for (const auto& [owner, objects] : of_the_living) {
    InParts(objects, [&, to = owner](std::vector<SealedObject> part, bool) {
      const ResultsLeft left{std::move(part)};
      core_.Answer(to, left);
    });
  }
}

void NodeDaemon::ForgetSegment(SegmentId segment) {
  const uint64_t freed = segments_.Forget(segment);
  orphans_.Handle(OrphanTable::SegmentForgotten{segment}, orphan_actions_);
  SegmentChanged(segment);
  if (freed > 0) budget_->Handle(MemoryBudget::DeadFreed{ProcessId{segment.value}, freed, NowNs()}, budget_actions_);
}

void NodeDaemon::SegmentChanged(SegmentId segment) {
  if (exchange_) exchange_->SegmentChanged(segment);
  if (segments_.SizeOf(segment) != 0) return;
  for (auto& [driver, job] : jobs_) job->segments.erase(segment);
  orphan_segments_.erase(segment);
  for (auto& [id, process] : processes_) {
    if (process->opened.erase(segment) > 0) Send(*process, SegmentClosed{segment});
  }
}

// A process may have heard of a death before us: of one that is closing (RouteTo), or from another node. The numbers of
// this node's processes are known, so none can be invented: what is registered for an owner stays in the table.
bool NodeDaemon::MayHaveDied(ProcessId owner) const {
  if (!owner || IsElsewhere(owner)) return static_cast<bool>(owner);
  const LocalProcess* process = core_.processes().Find(owner);
  return process != nullptr ? !process->ready() : core_.processes().WasGiven(owner);
}

// ---- what processes say -------------------------------------------------------------------------------------------

void NodeDaemon::Handle(Process& process, OrphansFound& message) {
  if (message.objects.size() > kMaxOrphansListed) return Refuse(process, kTooManyListed);
  // It may speak of its own segment only, and what has an owner that lives is left to that one.
  std::erase_if(message.objects, [&](const SealedObject& object) {
    return object.location.segment.value != process.id.value || !core_.HasDied(object.object.owner);
  });
  FindOrphans(std::move(message.objects));
}

void NodeDaemon::Handle(Process& process, HeldObjects& message) {
  if (message.indexes.size() > kMaxOrphansListed) return Refuse(process, kTooManyListed);
  orphans_.Handle(OrphanTable::Answered{process.id, message.owner, std::move(message.indexes), message.more != 0},
                  orphan_actions_);
}

void NodeDaemon::Handle(Process& process, HoldsEnded& message) {
  if (message.indexes.size() > kMaxOrphansListed) return Refuse(process, kTooManyListed);
  orphans_.Handle(OrphanTable::HoldsEnded{process.id, message.owner, std::move(message.indexes)}, orphan_actions_);
}

void NodeDaemon::Handle(Process& process, HoldOrphan& message) {
  if (!MayHaveDied(message.object.owner)) return Refuse(process, "named an object of a living process an orphan");
  orphans_.Handle(OrphanTable::HoldBegan{process.id, message.object}, orphan_actions_);
  Send(process, OrphanHeld{message.request});
}

// ---- what other nodes say -----------------------------------------------------------------------------------------

void NodeDaemon::HandleNode(NodeNumber from, HeldAsked& message) {
  orphans_.Handle(OrphanTable::NodeAsked{DaemonOf(from), message.owner}, orphan_actions_);
}

void NodeDaemon::HandleNode(NodeNumber from, HeldTold& message) {
  orphans_.Handle(OrphanTable::Answered{DaemonOf(from), message.owner, std::move(message.indexes), message.more != 0},
                  orphan_actions_);
}

void NodeDaemon::HandleNode(NodeNumber from, HoldsOver& message) {
  orphans_.Handle(OrphanTable::HoldsEnded{DaemonOf(from), message.owner, std::move(message.indexes)}, orphan_actions_);
}

// ---- what follows -------------------------------------------------------------------------------------------------

void NodeDaemon::Perform(const OrphanTable::Ask& action) {
  if (IsElsewhere(action.holder)) return cluster_->Send(NodeOf(action.holder), HeldAsked{action.owner});
  TellProcess(action.holder, AskHeld{action.owner});  // one that is closing answers with its death
}

void NodeDaemon::Perform(const OrphanTable::Free& action) {
  std::vector<Location> hidden;
  for (const Location& location : action.locations) {
    if (segments_.Hide(location)) hidden.push_back(location);
  }
  core_.FreeRanges(hidden, {});
}

void NodeDaemon::Perform(const OrphanTable::AnswerNode& action) {
  InParts(action.indexes, [&](std::vector<uint64_t> part, bool more) {
    cluster_->Send(NodeOf(action.node), HeldTold{action.owner, std::move(part), static_cast<uint8_t>(more ? 1 : 0)});
  });
}

void NodeDaemon::Perform(const OrphanTable::TellNodeEnded& action) {
  InParts(action.indexes, [&](std::vector<uint64_t> part, bool) {
    cluster_->Send(NodeOf(action.node), HoldsOver{action.owner, std::move(part)});
  });
}

}  // namespace weft::core
