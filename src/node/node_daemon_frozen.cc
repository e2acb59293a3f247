// NodeDaemon: work that stands still.
//
// A node that is cut off from the head may be taken for dead there, or not; it cannot know (cluster/node_lease.h). What
// others would then start elsewhere (all that runs for programs of other nodes, actors whose home is another node,
// tasks of processes of other nodes) is stopped before that can happen, and goes on when the head has confirmed that
// the node is a member. Otherwise the node ends, and all its processes with it. What belongs to programs of this node
// nobody else starts: it runs on.
#include <signal.h>

#include <utility>

#include "log/log.h"
#include "node/node_daemon.h"

namespace weft::core {

bool NodeDaemon::CouldRunElsewhere(const Process& process) const {
  if (process.is_driver) return false;
  if (IsElsewhere(process.job) || far_workers_.contains(process.id)) return true;
  const ProcessId holder = scheduler_->HolderOf(process.id);
  return holder && IsElsewhere(holder);
}

void NodeDaemon::FreezeWork(const std::string& why) {
  if (!scheduler_ || ended_) return;
  frozen_ = true;
  LogWarning("membership", "%s; %zu processes stand still until it is known whether they run elsewhere", why.c_str(),
             FreezeWhatIsNew());
}

// At the end of each turn as well, before anybody hears of what was decided in it: workers are forked, and leased to
// processes of other nodes, also while the head is away.
size_t NodeDaemon::FreezeWhatIsNew() {
  size_t frozen = 0;
  for (auto& [id, process] : processes_) {
    if (process->pid <= 0 || process->exit_status || process->frozen || !CouldRunElsewhere(*process)) continue;
    // One that is starting has nothing to do before it is ready.
    if (process->stage == Process::Stage::kConnecting || ::kill(process->pid, SIGSTOP) != 0) continue;
    process->frozen = true;
    ++frozen;
  }
  return frozen;
}

void NodeDaemon::ThawWork() {
  frozen_ = false;
  for (auto& [id, process] : processes_) {
    if (!std::exchange(process->frozen, false) || process->pid <= 0 || process->exit_status) continue;
    ::kill(process->pid, SIGCONT);
  }
  LogWarning("membership", "the head has confirmed that this node is a member; its work goes on");
}

}  // namespace weft::core
