// Knows every actor of a session: its state, its worker, its name, who is told of its changes. Decides when one is
// placed, restarted, killed and forgotten. Pure: events in, actions out.
//
// Called by the node daemon on its loop thread, and by the simulator. The caller performs the actions in order. Time
// comes in with every event that needs it; next_wakeup_ns says when DirectoryTicked is needed.
//
// An actor is pending (no worker yet), starting (its creator is told the worker and sends the constructor), alive,
// restarting (its worker died, another will be wanted after a pause) or dead. A dead one is remembered for late
// watchers, as a small record, up to a limit. With its worker's end known, and not before, an actor is dead or
// restarts: so no two incarnations live at once. The constructor is sent by the creator, or, if that is dead and the
// actor detached, by its keeper. What is intended to end (kill, release, exit) gives its name up at
// once.
//
// Who may say what: only its owner creates and releases an actor; only its worker says that it was constructed or that
// it ends. Anybody may watch, look up and kill. Whoever oversteps is to be ended (RefuseSender).
//
// Does not choose workers (LocalScheduler), open channels, or read the clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "wire/ids.h"
#include "wire/messages.h"

namespace weft::core {

// ---- events -----------------------------------------------------------------------------------------------------
struct ActorCreated {  // the shapes are valid
  ProcessId from;
  CreateActor message;
};
// Instead of ActorCreated, in a cluster, where the head keeps the names: the name is another's.
struct ActorNameRefused {
  ActorCreated created;
  ObjectId existing;  // to be had instead, if that is asked for
  std::string metadata;
  std::string why;
};
struct ActorArgumentsCame {  // its creator has what the constructor needs
  ProcessId from;
  ObjectId actor;
};
struct ActorKept {  // `from` can construct it when its creator is dead
  ProcessId from;
  ObjectId actor;
};
// A detached actor that an earlier head has written down. It waits until ActorFound or ActorMissed says what became of
// it; meanwhile nobody is told anything of it.
struct ActorRestored {
  CreateActor message;  // its owner is the keeper
  uint32_t incarnation = 0;
  int32_t restarts_left = 0;
};
struct ActorFound {  // it lives, and has done so all the time
  ObjectId actor;
  uint32_t incarnation = 0;
  ProcessId worker;
  AssignedGpus gpus;
  bool constructed = false;  // or will be
  int64_t now_ns = 0;
};
struct ActorMissed {  // no worker has it
  ObjectId actor;
  std::string how;  // "was lost with ..."
  int64_t now_ns = 0;
};
struct ActorLookedUp {
  ProcessId from;
  LookupActor message;
};
struct ActorsListed {
  ProcessId from;
  ListActors message;
};
struct ActorWatched {
  ProcessId from;
  ObjectId actor;
  bool owner_lives = false;  // then the message that creates it may still be on its way
};
struct ActorReleased {
  ProcessId from;
  ObjectId actor;
};
struct ActorKilled {
  ProcessId from;
  ObjectId actor;
  bool no_restart = true;
  bool owner_lives = false;
  std::string why;    // instead of "was killed on request"
  std::string error;  // the exception that makes it impossible, packed
};
struct ActorPlaced {  // the scheduler has a worker for it
  ObjectId actor;
  ProcessId worker;
  AssignedGpus gpus;
};
struct ActorRefused {  // the scheduler will never have one
  ObjectId actor;
  std::string why;
};
struct ActorConstructedReported {
  ProcessId from;
  ObjectId actor;
  bool ok = false;
  std::string error;
  int64_t now_ns = 0;
};
struct ActorExitingReported {
  ProcessId from;
  ObjectId actor;
};
struct ProcessEnded {  // a driver or a worker; everything that it sent was handled before
  ProcessId process;
  int32_t pid = 0;  // 0: not known
  std::string how;  // "killed by signal 9 (SIGKILL)"
  int64_t now_ns = 0;
};
struct DirectoryTicked {
  int64_t now_ns = 0;
};

// ---- actions ----------------------------------------------------------------------------------------------------
struct WantActor {
  ObjectId actor;
  ProcessId by;  // who will construct it
  ResourceAmounts to_place;
  ResourceAmounts to_hold;
  uint32_t depth = 0;
};
struct UnwantActor {
  ObjectId actor;
};
struct SettleActor {
  ObjectId actor;
};
struct TellWatcher {
  ProcessId process;
  ActorChanged change;
  bool open_channel = false;  // from the process to change.worker, before it is told
};
struct AnswerCreator {
  ProcessId process;
  ActorAnswer answer;
};
struct AnswerList {
  ProcessId process;
  ActorList answer;
};
struct KillActorWorker {
  ProcessId worker;
  std::string why;
};
struct LetWorkerLeave {  // it may stay while others need what it owns
  ProcessId worker;
};
struct RefuseSender {
  ProcessId process;
  std::string why;  // "spoke for ..."
};
struct FreeName {  // in a cluster, where the head keeps the names
  ObjectId actor;
  std::string name_space, name;
};
using DirectoryAction = std::variant<WantActor, UnwantActor, SettleActor, TellWatcher, AnswerCreator, AnswerList,
                                     KillActorWorker, LetWorkerLeave, RefuseSender, FreeName>;

class ActorDirectory {
 public:
  struct Limits {
    size_t actors = 100'000;                    // that are not dead
    size_t metadata_bytes = size_t{256} << 20;  // of all together
    size_t remembered_dead = 10'000;
    size_t remembered_bytes = size_t{16} << 20;
    size_t early = 10'000;  // actors that were spoken of before they were created
  };

  // Planted bugs, to show that the simulator finds them. All off outside the simulator's own tests.
  struct Faults {
    bool restart_the_killed = false;
    bool keep_names_of_the_dead = false;
  };

  ActorDirectory() = default;
  explicit ActorDirectory(Limits limits) : limits_(limits) {}

  void Handle(const ActorCreated& event, std::vector<DirectoryAction>& out);
  void Handle(const ActorNameRefused& event, std::vector<DirectoryAction>& out);
  void Handle(const ActorArgumentsCame& event, std::vector<DirectoryAction>& out);
  void Handle(const ActorKept& event, std::vector<DirectoryAction>& out);
  void Handle(const ActorRestored& event, std::vector<DirectoryAction>& out);
  void Handle(const ActorFound& event, std::vector<DirectoryAction>& out);
  void Handle(const ActorMissed& event, std::vector<DirectoryAction>& out);
  void Handle(const ActorLookedUp& event, std::vector<DirectoryAction>& out);
  void Handle(const ActorsListed& event, std::vector<DirectoryAction>& out);
  void Handle(const ActorWatched& event, std::vector<DirectoryAction>& out);
  void Handle(const ActorReleased& event, std::vector<DirectoryAction>& out);
  void Handle(const ActorKilled& event, std::vector<DirectoryAction>& out);
  void Handle(const ActorPlaced& event, std::vector<DirectoryAction>& out);
  void Handle(const ActorRefused& event, std::vector<DirectoryAction>& out);
  void Handle(const ActorConstructedReported& event, std::vector<DirectoryAction>& out);
  void Handle(const ActorExitingReported& event, std::vector<DirectoryAction>& out);
  void Handle(const ProcessEnded& event, std::vector<DirectoryAction>& out);
  void Handle(const DirectoryTicked& event, std::vector<DirectoryAction>& out);

  // When DirectoryTicked would change something; INT64_MAX if never.
  int64_t next_wakeup_ns() const { return due_.empty() ? INT64_MAX : due_.begin()->first; }
  size_t living() const { return actors_.size(); }
  size_t remembered() const { return dead_.size(); }
  // kDead for one that is not known.
  ActorState StateOf(ObjectId actor) const;
  // The class of the actor that lives in this worker; empty if it serves none.
  std::string ClassOf(ProcessId worker) const;
  std::string ClassNameOf(ObjectId actor) const;
  // What is written down of a detached actor, beside what it was created with; nullopt for the dead.
  struct Life {
    uint32_t incarnation = 0;
    int32_t restarts_left = 0;
    ActorState state = ActorState::kPending;
  };
  std::optional<Life> LifeOf(ObjectId actor) const;
  std::vector<ObjectId> Awaited() const;
  // Every actor, the remembered dead first. For observers.
  std::vector<ActorInfo> Describe() const;

  void CheckInvariants() const;

  Faults faults;

  // Those that have a name and do not end: what a home tells a head that knows nothing of them.
  struct Named {
    ObjectId actor;
    std::string name_space, name, class_name, metadata;
  };
  std::vector<Named> NamedActors() const;

 private:
  using Name = std::pair<std::string, std::string>;  // namespace, name
  // Why an actor is meant to end. Its worker may take a while to do so.
  enum class Ending : uint8_t { kNo, kKilled, kReleased, kExiting, kCreatorEnded };
  struct Actor {
    ActorState state = ActorState::kPending;
    Ending ending = Ending::kNo;
    bool deferred = false;  // its creator will say when it can be placed
    bool awaited = false;   // restored, and whether it lives is not known yet
    bool creator_lives = true;
    ProcessId keeper;  // who can construct it when the creator is dead
    bool detached = false;
    bool has_name = false;      // still
    bool kill_asked = false;    // with restart
    uint32_t incarnation = 0;   // workers it has had
    int32_t restarts_left = 0;  // -1: any number
    uint32_t restarts = 0;
    uint32_t quick_deaths = 0;  // in a row
    int64_t alive_since_ns = 0;
    int64_t due_ns = 0;  // when another worker is to be wanted; restarting only, 0 once it is wanted
    uint32_t depth = 0;
    ProcessId worker;
    AssignedGpus gpus;
    ResourceAmounts to_place, to_hold;
    std::string name, name_space, class_name, metadata;
    std::string why_ending;
    std::string error_ending;  // the exception that makes it impossible, packed
    std::set<ProcessId> watchers;
  };
  struct DeadActor {
    uint32_t incarnation = 0;
    std::string why;
    std::string error;
    std::string class_name;
    bool refused = false;  // no worker could ever be had
    size_t bytes() const { return why.size() + error.size() + class_name.size(); }
  };
  struct Early {  // asked for before it was created
    std::set<ProcessId> watchers;
    bool killed = false;
    bool no_restart = false;
  };
  using Entry = std::pair<const ObjectId, Actor>;

  void Tell(const Entry& entry, ProcessId watcher, std::vector<DirectoryAction>& out) const;
  void TellAll(const Entry& entry, const std::string& why, std::vector<DirectoryAction>& out) const;
  // Who sends the constructor to the next incarnation; nobody if that can never be.
  static ProcessId ConstructorOf(ObjectId id, const Actor& actor) {
    return actor.creator_lives ? id.owner : actor.keeper;
  }
  void Want(const Entry& entry, std::vector<DirectoryAction>& out) const;
  // Its end, by no worker's end: it has none, or one that is let go.
  void Die(ObjectId id, const std::string& why, const std::string& error, std::vector<DirectoryAction>& out,
           bool refused = false);
  void WorkerEnded(ObjectId id, const ProcessEnded& event, std::vector<DirectoryAction>& out);
  void BeginEnding(Entry& entry, Ending ending, const std::string& why, std::vector<DirectoryAction>& out);
  void GiveNameUp(Entry& entry, std::vector<DirectoryAction>& out);
  void Remember(ObjectId id, uint32_t incarnation, std::string why, std::string error, std::string class_name,
                bool refused = false);
  void StopWatching(ObjectId id, const std::set<ProcessId>& watchers);
  // An actor that cannot be made: its creator is told, and whoever asks later.
  void RefuseCreation(const ActorCreated& event, const std::string& why, std::vector<DirectoryAction>& out);
  // Another actor has the name, and is what the creator wants.
  void TakeExisting(const ActorCreated& event, ObjectId existing, const std::string& metadata,
                    std::vector<DirectoryAction>& out);
  // True if an unknown actor may still be created; then the caller's interest is kept.
  bool MayStillCome(ObjectId id, bool owner_lives) const;
  // The actor that this process is the worker of, or null after the sender was refused.
  Entry* OfWorker(ProcessId from, ObjectId id, std::vector<DirectoryAction>& out);
  static std::string Called(const Actor& actor, int32_t pid = 0);

  const Limits limits_{};

  std::map<ObjectId, Actor> actors_;  // that are not dead
  std::map<Name, ObjectId> names_;
  std::map<ProcessId, ObjectId> workers_;
  std::set<ProcessId> let_go_;  // they had an actor that is dead, and may still say something of it
  std::map<ProcessId, std::set<ObjectId>> watching_;  // what a process watches, early ones included
  std::map<ObjectId, Early> early_;
  std::set<std::pair<int64_t, ObjectId>> due_;  // restarts
  size_t metadata_bytes_ = 0;

  std::map<ObjectId, DeadActor> dead_;
  std::deque<ObjectId> dead_in_order_;
  size_t dead_bytes_ = 0;
  std::map<ProcessId, uint64_t> forgotten_;  // of each living owner: the highest index that was dead and is forgotten
};

}  // namespace weft::core
