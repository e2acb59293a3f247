// What a process knows about the objects it owns or borrows and the tasks it has submitted, and what it does about
// them. Pure: events in, actions out; no thread, clock, socket or shared memory inside.
//
// Called by Runtime under its one lock, and by the simulator. Actions are performed by the caller, in order, after
// the call. The records are plain structs that the caller may read; only this class changes them (exception:
// Object::local_references, which handles count up and down without the lock).
//
// Tasks. waiting (an argument is not there yet) -> ready (queued for its shape) -> pushed (in a worker's channel,
// claimable and revocable) -> finished. A pushed task becomes ready again when it was revoked or handed back, or when
// its worker died before claiming it; that costs no retry. A waiting task may be pushed behind the producer of its last
// missing arguments on the same worker ("behind"), so a chain does not pay a round trip per link.
//
// Objects. pending -> resolved (inline bytes, a stored location, or an error) -> freed when nothing holds it: no local
// reference, no hold by a task or by another object's value, no borrower.
//
// Lineage. A stored result is lost with the node that it lies on. The owner keeps what it needs to run the task again
// as long as a reference to the result exists (owner_lineage.cc). The first process that finds the result lost has the
// task run again, which costs a retry. Meanwhile the object is pending, and waiting threads get the new value. Of
// arguments only the records are kept: their values are freed when nothing else refers to them, and made again if
// needed. The same goes for results of actor calls with retries; the actor itself is not kept for them.
//
// Actors. An actor is named by its handle object, which its creator owns. This class keeps what this process, as a
// caller or the creator, knows about it (owner_actors.cc). A call is queued -> pushed -> finished. Calls leave the
// queue in the order in which they were made, and a call that must run again gets its old place. A call that the dead
// worker had not claimed did not run. A call that is made again for a lost result is a new one to the actor: it comes
// last, and it and the others do not wait for each other. The creator keeps what the constructor needs, and pushes the
// constructor to each new incarnation before anything else.
//
// Borrowing. A process that hands a reference to another one first registers the receiver as a borrower with the owner
// (AddBorrower). The receiver gives all its registrations back when its last local use ends. The owner keeps a signed
// count per borrower, so registrations and returns may arrive in any order, and it forgets a borrower that died.
// Nothing is acknowledged: a process keeps its own registration until after it has registered the receiver, and
// messages between two processes keep their order.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "runtime/dead_processes.h"
#include "runtime/slab.h"
#include "wire/ids.h"
#include "wire/messages.h"
#include "wire/wait_facts.h"

namespace weft::core {

struct Task;
struct TaskTemplate;
struct Object;
struct Actor;
struct Lineage;
struct Interest;

// How an object ended, or that it has not.
enum class ValueKind : uint8_t {
  kPending,
  kInline,       // bytes in the record
  kStored,       // bytes in a segment
  kTaskError,    // the user's exception; bytes in the front end's own format
  kSystemError,  // name of the exception class, newline, message
};

// The bytes or the place of a value. Small values need no allocation of their own.
class Value {
 public:
  Value() : small_{} {}
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;
  ~Value() { Clear(); }

  // May be called without the lock: the kind that it returns no longer changes, except that a value stored on another
  // node may be lost there.
  ValueKind kind() const { return kind_.load(std::memory_order_acquire); }
  void SetBytes(ValueKind kind, std::string_view bytes);
  void SetStored(const Location& location);
  void Clear();
  std::string_view bytes() const { return {size_ <= sizeof small_ ? small_ : large_, size_}; }
  const Location& location() const { return *location_; }

 private:
  union {
    char small_[24];
    char* large_;
    Location* location_;
  };
  uint32_t size_ = 0;
  std::atomic<ValueKind> kind_{ValueKind::kPending};
};

// Where the bytes of a stored value can be looked at.
enum class Place : uint8_t {
  kHere,    // on this node, or the value is not stored
  kAway,    // on another node
  kComing,  // there, and a copy was asked for
  kCopied,  // in a copy on this node
  kLost,    // no copy could be had; the next get asks again
  kRemade,  // on this node, or not stored, after it was on another node: read it with the lock
};

struct Object {
  uint64_t handle = 0;  // in the owner's slab; for a borrowed object the local record only
  ObjectId id;
  Value value;
  std::atomic<uint32_t> local_references{0};  // handles of the front ends, and views into the value
  uint32_t holds = 0;                         // pending tasks that take it, values that contain it
  Task* producer = nullptr;                   // while pending and owned
  std::vector<Task*>* dependents = nullptr;   // tasks that wait for it
  std::vector<Object*>* contained = nullptr;  // references inside the value; each is held
  std::map<ProcessId, int64_t>* borrowers = nullptr;
  std::vector<ProcessId>* requesters = nullptr;  // borrowers that asked for the value before it was there
  Actor* actor = nullptr;                        // the handle object of an actor that this process made or calls
  Object* next_dropped = nullptr;                // in the list of drops, which then holds the last local reference
  bool borrowed = false;
  bool fetching = false;       // borrowed: the owner was asked
  bool handed_on = false;      // borrowed: we registered another process with the owner, through the daemon
  bool known_pending = false;  // borrowed: its owner has said that it was pending
  uint32_t registrations = 0;  // borrowed: how often this process is registered as its borrower
  uint32_t waiters = 0;        // threads that want to be woken as soon as it resolves
  uint32_t callbacks = 0;
  Interest* interests = nullptr;           // the caller's (waiters.h): threads that wait for it
  uint32_t lineage_holds = 0;              // lineages that need it as an argument; they keep the record, not the value
  const TaskTemplate* made_by = nullptr;   // owned: a stored result in a cluster
  Lineage* lineage = nullptr;              // with it, the value can be made again
  std::atomic<Place> place{Place::kHere};  // written before value is, if that lies elsewhere
  bool wanted_here = false;                // a thread waits to read the value, not only for it to exist
  bool crossed = false;                    // owned: a process of another node has borrowed it
  bool dropped = false;                    // its value was freed; lineages have kept the record
  bool lineage_dropped = false;            // there was too much of it
  struct Copy {
    Location of;
    Location place;                      // kCopied
    const std::string* error = nullptr;  // kLost: a system error; lives as long as the runtime
  };
  Copy* copy = nullptr;  // this process uses it, or will
  // An earlier value that may still be looked at: the copy, and what the value contains.
  struct Former {
    Location of;
    std::vector<Object*>* contained = nullptr;
  };
  std::vector<Former>* former = nullptr;
  bool resolved() const { return value.kind() != ValueKind::kPending; }
  // The value can be read in this process. May be called without the lock, like settled.
  bool here() const {
    if (!resolved()) return false;
    const Place where = place.load(std::memory_order_acquire);
    return where == Place::kHere || where == Place::kCopied || where == Place::kRemade;
  }
  // The value can be read here, or it is known why it cannot.
  bool settled() const {
    if (!resolved()) return false;
    const Place where = place.load(std::memory_order_acquire);
    return where != Place::kAway && where != Place::kComing;
  }
  // What a wait waits for: that the value can be read here (`to_look`), or only that it exists somewhere.
  bool ready(bool to_look) const { return to_look ? settled() : resolved(); }
  // It has come to an end without a value, or its value cannot be had.
  bool failed() const {
    const ValueKind kind = value.kind();
    return kind == ValueKind::kTaskError || kind == ValueKind::kSystemError ||
           (kind == ValueKind::kStored && place.load(std::memory_order_acquire) == Place::kLost);
  }
  // Something in this process waits for it to resolve.
  bool awaited() const { return waiters > 0 || callbacks > 0 || interests; }
  ~Object();
};

// A function body, the same for all its calls; lives as long as the runtime.
struct Function {
  FunctionKey key;
  std::string name;
  std::string body;      // or, if it is large:
  Location stored_body;  // size 0: not stored
};

enum class TemplateKind : uint8_t { kTask = 0, kCreation = 1, kCall = 2 };

// What all calls of one remote function (or actor method) with one set of options share; lives as long as the runtime.
struct TaskTemplate {
  uint32_t number = 0;
  TemplateKind kind = TemplateKind::kTask;
  const Function* function = nullptr;  // of an actor: its class
  uint32_t shape = 0;
  uint32_t num_returns = 1;
  int32_t max_retries = 3;  // -1: for ever; of a call: max_task_retries
  std::string name;
  std::string retry_exceptions;  // empty: never; "*": any; otherwise the front end decides
  uint32_t event_name = 0;       // the name's number in the event log
  std::string method;            // kCall: its name
  std::string group;             // kCall: of which concurrency group
  std::string actor_options;     // kCreation: for the front end in the worker
  // The mean run time of its last tasks. Only the owner writes it; templates are constant otherwise.
  static constexpr uint32_t kUnknownNs = UINT32_MAX;
  mutable uint32_t typical_ns = kUnknownNs;
};

// The encoded arguments of a task. Those of a call with a few numbers need no allocation of their own.
class ArgumentBytes {
 public:
  ArgumentBytes() : small_{} {}
  ArgumentBytes(const ArgumentBytes&) = delete;
  ArgumentBytes& operator=(const ArgumentBytes&) = delete;
  ~ArgumentBytes() {
    if (size_ > sizeof small_) ::operator delete(large_);
  }
  // Once.
  void Set(std::string_view bytes);
  void TakeFrom(ArgumentBytes& other);
  uint32_t size() const { return size_; }
  std::string_view view() const { return {size_ <= sizeof small_ ? small_ : large_, size_}; }

 private:
  union {
    char small_[24];
    char* large_;
  };
  uint32_t size_ = 0;
};

enum class TaskState : uint8_t { kWaiting, kReady, kQueued, kPushed, kRevoking, kFinished };

struct Task {
  uint64_t handle = 0;
  const TaskTemplate* what = nullptr;
  ArgumentBytes arguments;
  uint32_t num_dependencies = 0;
  std::unique_ptr<Object*[]> dependencies;          // top-level references, in the order of the arguments; held
  std::unique_ptr<std::vector<Object*>> contained;  // references inside the arguments; held
  Object* first_return = nullptr;
  std::unique_ptr<Object*[]> more_returns;
  Task* next = nullptr;  // in the ready queue or the worker's list
  Task* previous = nullptr;
  uint32_t unresolved = 0;
  uint32_t attempt = 0;
  uint32_t ticket_offset = 0, ticket_sequence = 0;  // the caller's, while pushed
  uint32_t expected_ns = 0;                         // how long it is expected to occupy its worker, while pushed
  uint32_t shape = 0;                               // of the queue it is in, or of its worker's lease
  uint64_t push = 0;                                // the number of its last push; differs for each
  int32_t worker = -1;
  TaskState state = TaskState::kWaiting;
  bool cancelled = false;
  bool cancel_forced = false;
  bool cancel_recursive = false;
  bool consumer = false;       // of the kind in its ReadyList
  bool holds_handle = false;   // of its actor
  bool to_follow = false;      // taken back, to follow its actor's constructor once more
  Actor* actor = nullptr;      // whose call or creation it is
  uint64_t order = 0;          // among the calls to that actor
  uint64_t parent = 0;         // the execution in this worker that submitted it; 0 in a driver
  Lineage* lineage = nullptr;  // it makes lost results again
  std::unique_ptr<std::vector<Object*>> borrowed_by_worker;  // for these, its worker is registered as a borrower
  Object* Return(uint32_t i) const { return i == 0 ? first_return : more_returns[i - 1]; }
};

// What is needed to run a task again if its stored results are lost.
struct Lineage {
  struct Argument {
    ObjectId id;
    Object* record = nullptr;  // kept; nullptr: looked up by id when it is needed, and must still have its value
  };
  std::list<Lineage>::iterator place;  // among all, the oldest first
  const TaskTemplate* what = nullptr;
  ObjectId actor;  // of a call: its handle, by name
  ArgumentBytes arguments;
  std::vector<Argument> dependencies, contained;
  std::vector<Object*> returns;  // nullptr: not stored, or freed
  uint32_t living = 0;           // of them
  uint32_t attempt = 0;          // of the last run
  Task* task = nullptr;          // the run that makes them again now
  uint64_t bytes = 0;            // what this record costs
};

// Intrusive list of tasks, in order.
struct TaskList {
  Task* first = nullptr;
  Task* last = nullptr;
  size_t size = 0;
  void PushBack(Task* task);
  void PushFront(Task* task);
  void InsertBefore(Task* other, Task* task);
  void Remove(Task* task);
  Task* PopFront();
};

// Tasks that can run. Consumers, which take stored values, go before tasks that may store more, each kind in order: the
// store is bounded, and tasks that wait for room in it lend only so many CPUs. But a task that takes a large constant
// is a consumer too, so after a few of them one of the rest has its turn.
class ReadyList {
 public:
  // Many, so that tasks that empty the store get most of the CPUs; few enough that the rest moves on too.
  static constexpr uint32_t kConsumersInARow = 8;

  void Add(Task* task, bool consumer, bool at_front);  // of its kind
  void Remove(Task* task);
  Task* PopFront();
  Task* first() const { return next().first; }
  size_t size() const { return consumers_.size + rest_.size; }
  template <class F>
  void ForEach(F f) const {
    for (const TaskList* list : {&consumers_, &rest_}) {
      for (Task* task = list->first; task; task = task->next) f(task);
    }
  }

 private:
  const TaskList& next() const {
    return consumers_.first && (!rest_.first || in_a_row_ < kConsumersInARow) ? consumers_ : rest_;
  }

  TaskList consumers_, rest_;
  uint32_t in_a_row_ = 0;  // consumers that were taken while others waited
};

struct LeasedWorker {
  ProcessId process;
  LeaseId lease;
  uint32_t shape = 0;
  TaskList pushed;           // in the order of the channel
  uint64_t expected_ns = 0;  // until they are done, if all goes as usual
  int32_t busy_at = -1;      // its index in Owner::busy_workers
  bool leased = false;
  bool used = false;  // something was pushed since it was leased
  bool recalled = false;
  bool blocked = false;  // it handed tasks back because its own task waits; until its next result
  bool full = false;     // its channel refused a frame; until its next result, or Tick if it owes none
  bool dead = false;
  Actor* actor = nullptr;  // whose worker it is; such a worker is never leased
  AssignedGpus gpus;
  int64_t idle_since_ns = 0;
  int64_t full_since_ns = 0;
};

// An actor, as seen by a process that calls it. Belongs to its handle object and goes with it.
struct Actor {
  Object* handle = nullptr;
  ActorState state = ActorState::kPending;
  bool watched = false;       // the daemon tells us of changes
  bool created_here = false;  // this process pushes the constructor
  bool placed = false;        // created here: the daemon was told that the arguments are there
  bool kept = false;          // this process can push the constructor when the creator is dead
  bool detached = false;
  bool out_of_order = false;  // a call that is ready may pass one that is not
  uint32_t incarnation = 0;
  // This process has killed it and sends it nothing more: calls after kill() do not run in the killed incarnation.
  bool killed = false;
  bool refused = false;             // it is dead because it can never get a worker
  uint32_t killed_incarnation = 0;  // killed, but it may be restarted; 0: none
  int32_t worker = -1;              // of the present incarnation
  uint64_t next_order = 1;
  uint32_t to_follow = 0;   // calls that are being taken back; no other call is pushed before them
  uint32_t made_again = 0;  // calls that have not ended and make lost results again
  size_t pending_calls = 0;
  TaskList queue;  // not pushed, in order
  const TaskTemplate* creation = nullptr;
  std::string creation_arguments;              // kept for restarts, as are
  std::vector<Object*> creation_dependencies;  // held
  std::vector<Object*> creation_contained;     // held
  AssignedGpus gpus;
  std::string class_name;
  std::string why;    // it is dead or restarts
  std::string error;  // the exception of its constructor
  bool dirty = false;
};

enum class ActionKind : uint8_t {
  kPush,            // task into the channel of worker; PushRefused if there is no room
  kRevoke,          // task from worker; answer with RevokeResolved, unless its `push` is no longer id.index
  kRequestLeases,   // shape, number
  kReturnLease,     // lease
  kFreeStored,      // location; number 1: other nodes may have copies
  kAddBorrower,     // register process as a borrower of id with id.owner (number times)
  kRemoveBorrower,  // give number of its registrations back
  kFetch,           // ask id.owner for the value of the borrowed object
  kAskAgain,        // the same, since it no longer is at location
  // object's value to process, which asked; then Unhold it (nullptr: it no longer exists; number 1: WhyNotAgain
  // instead)
  kSendValue,
  kResolved,       // object has a value now (only if something waits)
  kPlaceActor,     // id: its constructor's arguments are there
  kWatchActor,     // id
  kReleaseActor,   // id: no handle is left
  kKillActor,      // id: it cannot be constructed
  kAskCancel,      // tell id.owner to cancel what makes id (number: flags as in kCancelRunning)
  kCancelRunning,  // tell process to cancel our task `id.index`, which it runs; number: 1 force, 2 recursive
  kBring,          // get a copy of object, which lies at location; answer with Brought or NotBrought, now or later
  kLetGo,          // release the copy of what lies at location; object names the record, which may be gone
  kEndHold,        // tell the daemon that this process no longer has id, whose owner is dead
  kForgetWorker,   // process is dead: from now on another worker may get its number
  kRunAgain,       // task runs again to replace lost results: only to be noted
};

struct Action {
  ActionKind kind;
  int32_t worker = -1;
  Task* task = nullptr;
  Object* object = nullptr;
  ProcessId process;
  uint64_t number = 0;
  ObjectId id;
  Location location{};
};
using Actions = std::vector<Action>;

// A return value as a worker sent it.
struct ReturnedValue {
  ValueKind kind = ValueKind::kInline;
  std::string_view bytes;
  Location location;
  std::vector<ObjectId> contained;  // the sender has registered us as their borrower
};

enum class ReplyKind : uint8_t {
  kValues,          // one per return
  kTaskError,       // the user's exception
  kRetryableError,  // the user's exception, and the task's options ask for a retry
  kHandedBack,      // did not run: the worker's present task waits, or an argument was missing
  kHandedBackBlocked,
  kCancelled,  // error: name of the exception class, newline, message; so of
  kExited,     // the actor has ended itself in this call; and of
  kRefused,    // the worker cannot run it
  // Did not run: arguments are lost with their nodes. `values` has their locations, `error` as above.
  kArgumentLost,
};

// What the submitter hands over. Objects in it must be alive; they are held until the task has finished.
struct Submission {
  const TaskTemplate* what = nullptr;
  std::string_view arguments;
  std::vector<Object*> dependencies;
  std::vector<Object*> contained;
  uint64_t parent = 0;
};

class Owner {
 public:
  // Planted bugs, to show that the simulator finds them. All off outside the simulator's own tests.
  struct Faults {
    bool free_one_borrower_early = false;
    bool retry_without_counting = false;
    bool forget_handed_back = false;
    bool accept_late_replies = false;
    bool skip_hold_on_dependency = false;
    bool forget_to_return_lease = false;
    // actors and cancelling
    bool requeue_calls_at_the_end = false;
    bool forget_calls_behind_a_failed_one = false;
    bool say_that_calls_did_not_run = false;
    bool keep_actors_without_handles = false;
    bool forget_lease_of_cancelled = false;
    bool retry_cancelled = false;
    // lineage
    bool make_again_without_counting = false;
    bool keep_values_for_lineage = false;
  };

  explicit Owner(ProcessId self) : self_(self) {}
  Owner(const Owner&) = delete;
  ~Owner();

  ProcessId self() const { return self_; }

  // ---- set-up: interned for the life of the owner
  uint32_t InternShape(const ResourceAmounts& amounts);
  const ResourceAmounts& shape(uint32_t number) const { return shapes_[number].amounts; }
  // Leases of this shape that it has heard of in all.
  uint64_t GrantsOf(uint32_t number) const { return shapes_[number].granted; }
  const Function* InternFunction(Function function);
  const Function* FindFunction(const FunctionKey& key) const;
  const TaskTemplate* InternTemplate(TaskTemplate what);

  // ---- objects
  Object* NewOwned();  // pending, with one local reference
  void Resolve(Object* object, ValueKind kind, std::string_view bytes, const Location& location,
               const std::vector<Object*>& contained, Actions& out);
  // A local reference to `id`, received with `registrations` of ours (0 for one of our own objects). nullptr if it is
  // an object of ours that no longer exists.
  Object* Receive(ObjectId id, uint32_t registrations);
  // Like Receive, but finds only.
  Object* Find(ObjectId id);
  void Hold(Object* object) { ++object->holds; }
  void Unhold(Object* object, Actions& out);
  // Frees the object if nothing needs it. Harmless to call at any time.
  void Consider(Object* object, Actions& out);
  // The value is wanted, on whatever node: asks the owner unless it is there or on its way, or has it made again.
  void Want(Object* object, Actions& out);
  // The value is wanted to be read in this process: if it lies on another node, asks for a copy as soon as that is
  // known.
  void WantHere(Object* object, Actions& out);
  // We are about to send the receiver a value that contains `object`: registers it as a borrower, with the owner or, if
  // that is this process, at once.
  void AddBorrower(Object* object, ProcessId receiver, Actions& out);
  void RemoveBorrower(Object* object, ProcessId receiver, Actions& out);

  // ---- events
  // Returns get one local reference each.
  void Submit(const Submission& submission, int64_t now_ns, std::vector<Object*>& returns, Actions& out);
  void LeaseGranted(uint32_t shape, LeaseId lease, ProcessId worker, int64_t now_ns, Actions& out,
                    const AssignedGpus& gpus = {});
  void LeaseRefused(uint32_t shape, const std::string& why, Actions& out);
  void LeaseRecalled(LeaseId lease, Actions& out);
  void PushRefused(uint64_t task_handle, int64_t now_ns, Actions& out);
  // The task cannot be pushed at all.
  void FailPushed(uint64_t task_handle, std::string_view error, int64_t now_ns, Actions& out);
  void RevokeResolved(uint64_t task_handle, bool revoked, int64_t now_ns, Actions& out);
  // `from` is the worker that replied; a reply that it does not owe is ignored.
  void Replied(ProcessId from, uint64_t task_handle, ReplyKind kind, std::string_view error,
               const std::vector<ReturnedValue>& values, int64_t now_ns, Actions& out, uint32_t run_ns = 0);
  // If `process` is a daemon's own number, its node is gone. The processes of that node that had to do with this one
  // were announced before; others may be known only as borrowers, from third processes.
  void ProcessDied(ProcessId process, const std::string& how, int64_t now_ns, Actions& out);
  // So many registrations more for the borrower of an object of ours; negative: it gave them back.
  void BorrowsChanged(ObjectId id, ProcessId borrower, int64_t count, Actions& out);
  void ValueAsked(ObjectId id, ProcessId requester, Actions& out);
  void ValueReceived(ObjectId id, const ReturnedValue& value, Actions& out);
  // The answer to kBring: the copy of what lies at `of`. If there is none because the node is gone, the value is made
  // again, or its owner is asked to do so; otherwise it is lost to this process for now.
  void Brought(Object* object, const Location& of, const Location& place, Actions& out);
  void NotBrought(Object* object, const Location& of, const std::string* error, bool node_gone, Actions& out);
  // A borrower could not get what lay at `lost`, since that node is gone.
  void ValueAskedAgain(ObjectId id, ProcessId requester, const Location& lost, Actions& out);
  // Why an object of ours is lost and cannot be made again; a system error.
  std::string WhyNotAgain(const Object* object, std::string_view how_lost);
  static std::string HowLost(const Location& where);
  // ---- objects of dead owners, whose references only the daemon can count (object_store/orphan_table.h)
  // Which of the owner's objects this process has; kEndHold follows for each. The answer binds: an object of this owner
  // that arrives later is registered with the daemon before this process reads it.
  std::vector<uint64_t> HeldOf(ProcessId owner);
  bool MustBeRegistered(ObjectId id) const;
  void Registered(ObjectId id) { held_of_dead_[id.owner].insert(id.index); }
  std::string WhyOrphaned(ObjectId id) const;  // a system error
  // Results of ours that a dead worker has left: frees those that no reply has announced.
  void ResultsLeft(const std::vector<SealedObject>& results, Actions& out);
  // The copy came with a task that takes the object, before anything asked for it.
  void CameWithTask(Object* object, const Location& of, const Location& place);
  void Tick(int64_t now_ns, Actions& out);  // returns idle leases, withdraws lease requests
  // The submitting thread goes to sleep until something is done: a core is free for one more worker.
  void SubmitterWaits(Actions& out);

  // ---- actors
  // `handle` is a resolved object of ours. False: an argument of the constructor is still awaited; kPlaceActor follows.
  struct ActorOptions {
    bool detached = false;
    bool out_of_order = false;
    bool keep_for_restarts = false;
    std::string class_name;
  };
  bool CreateActor(Object* handle, const Submission& constructor, const ActorOptions& options, int64_t now_ns,
                   Actions& out);
  void AbandonActor(Object* handle, Actions& out);  // it was not created after all; takes the local reference
  // A detached actor of another process, which may die: keeps what is needed to construct it again.
  void KeepActor(Object* handle, const Submission& constructor, const std::string& class_name, Actions& out);
  void SubmitCall(Object* handle, const Submission& submission, int64_t now_ns, std::vector<Object*>& returns,
                  Actions& out);
  void ActorReported(const ActorChanged& change, int64_t now_ns, Actions& out);
  void ActorKillAsked(Object* handle, bool no_restart);
  bool AnyActors() const;  // that this process made and that are not dead
  // Makes the record with the first call of the handle's actor.
  Actor* ActorOf(Object* handle);

  // ---- cancelling
  // Ends in TaskCancelledError, unless the task ends first.
  void Cancel(Object* object, bool force, bool recursive, int64_t now_ns, Actions& out);
  void CancelChildren(uint64_t parent, bool force, int64_t now_ns, Actions& out);

  // ---- questions
  // When Tick has something to do, or 0.
  int64_t NextTick() const;
  // The same for work that cannot wait long: tasks that lie behind others although a worker is idle.
  int64_t NextUrgentTick() const;
  // By number. Another process may get the number once the worker has died and owes nothing (kForgetWorker).
  const std::vector<LeasedWorker>& workers() const { return workers_; }
  // The numbers of workers that have tasks of ours, in no order. A loop that goes through it from the end while replies
  // are taken misses none: a removed one is replaced by the last one, and a new one comes last.
  const std::vector<int32_t>& busy_workers() const { return busy_workers_; }
  LeasedWorker* FindWorker(ProcessId process);
  Task* FindTask(uint64_t handle) { return tasks_.Find(handle); }
  // This process has heard that it has ended, or that its node is gone.
  bool IsDead(ProcessId process) const {
    return dead_.Contains(process) || (!dead_nodes_.empty() && dead_nodes_.contains(NodeOf(process)));
  }
  bool AnyBorrowed();  // does a process borrow an object of ours?
  bool AnyLeased() const { return !lease_workers_.empty(); }
  size_t ready_tasks() const;
  // The handle of the task that was submitted last; it may have ended by now.
  uint64_t last_task() const { return last_task_; }
  size_t live_tasks() const { return tasks_.alive(); }
  uint64_t finished_tasks() const { return finished_tasks_; }
  template <class F>
  void ForEachTask(F f) {
    tasks_.ForEach(f);
  }
  template <class F>
  void ForEachObject(F f) {
    objects_.ForEach(f);
  }
  size_t live_objects() const { return objects_.alive(); }
  size_t lineages() const { return lineages_.size(); }
  uint64_t lineage_bytes() const { return lineage_bytes_; }
  // How many tasks of the worker must end before this side has something to do: up to the first that a thread waits
  // for, or to where its queue needs refilling, or all.
  size_t RepliesUntilWanted(const LeasedWorker& worker) const;
  void CheckInvariants();
  // Why the object is pending (owner_explain.cc).
  ObjectFact Explain(ObjectId id);
  void set_depth(uint32_t depth) { depth_.store(depth, std::memory_order_relaxed); }  // any thread
  uint32_t depth() const { return depth_.load(std::memory_order_relaxed); }

  Faults faults;
  // A worker's channel holds at most this many tasks of ours: enough to hide the round trip, few enough to move.
  size_t max_pushed = 256;
  // An actor's calls can run nowhere else, and a thousand of them may run at once.
  size_t max_pushed_calls = 4096;
  int64_t lease_idle_ns = 100'000'000;
  // So many bytes are kept to run tasks again; beyond that the oldest lineage is dropped.
  uint64_t max_lineage_bytes = 64u << 20;
  // On how many cores this process and its workers may run.
  uint32_t cores = UINT32_MAX;

 private:
  struct Shape {
    ResourceAmounts amounts;
    ReadyList ready;
    std::vector<int32_t> workers;    // leased now
    uint32_t requested = 0;          // and not granted yet
    int64_t requested_since_ns = 0;  // the first of them
    uint64_t granted = 0;            // in all
    uint32_t revoking = 0;
    bool dirty = false;
    int64_t quiet_since_ns = 0;  // nothing to run since
    // A lease was recalled unused, because the tasks it was for lie behind others and cannot be taken back yet. Until
    // this time no other is requested, so that others get it; 0: not so.
    int64_t request_again_ns = 0;
    // Since then tasks have lain behind short ones although a worker is idle, and no result has come; 0: not so.
    int64_t gathering_since_ns = 0;
    std::map<NodeNumber, uint32_t> near;  // the variants of this shape near a node
    // Of such a variant: that node, and the plain shape, whose workers on that node are as good.
    NodeNumber node;
    uint32_t plain = 0;
  };

  // A task with its returns (one local reference each) and its arguments held. `failed`: an argument ended in an error.
  Task* NewTask(const Submission& submission, std::vector<Object*>& returns, bool* failed, Actions& out);
  bool AttachArguments(Task* task, const std::vector<Object*>& dependencies, const std::vector<Object*>& contained,
                       Actions& out);
  void Seek(Object* object, Actions& out);  // Want, in the middle of an event
  // ---- locality (owner_locality.cc)
  // The shape whose leases a ready task waits for: that of its template, or the same near the node that has its
  // arguments.
  uint32_t ShapeFor(const Task* task);
  // When an idle worker's lease is given back.
  int64_t IdleEnd(const LeasedWorker& worker) const;
  // ---- lineage (owner_lineage.cc)
  void Retain(Task* task, Actions& out);             // its results were stored
  void EndRunAgain(Task* task, Actions& out);        // it has ended, in whatever way
  void Detach(Object* object, Actions& out);         // it needs no lineage, or is freed
  void DropLineage(Lineage* lineage, Actions& out);  // nothing needs it
  // An object of ours, lost at `where`: has it made again. False: that is not possible, and WhyNotAgain says why; then
  // that error is its value now, unless this process has a copy.
  bool Lost(Object* object, const Location& where, std::string_view how_lost, Actions& out);
  bool AskAgain(Object* object, Actions& out);   // a borrowed one; false: its owner is dead
  void MakeAgain(Object* object, Actions& out);  // an object whose value was dropped
  bool CanRunAgain(const Lineage& lineage);
  std::string WhyNoActor(const Lineage& lineage);  // a call cannot be made again there; empty: it can
  void RunAgain(Lineage* lineage, NodeNumber lost, Actions& out);
  void ForgetValue(Object* object, Actions& out);                            // it is pending again
  void DropValue(Object* object, Actions& out);                              // only lineages refer to it
  void PutAside(Object* object);                                             // the copy, which may still be read
  void LetGoOfCopies(Object* object, Actions& out);                          // no view of them is left
  void ResolveWith(Object* object, ValueKind kind, std::string_view bytes);  // not stored
  static std::string OwnerDied(const std::string& how);
  void WaitAgain(Task* task);                 // for arguments that are pending again
  bool StillReady(Task* task, Actions& out);  // a ready one; if not, it waits or has ended
  static bool HasFailedArgument(const Task* task);
  // A task came back because these arguments are lost; it must not run before they are made again. Returns the error if
  // they cannot be.
  std::string ArgumentsLost(const Task* task, std::string_view error, const std::vector<ReturnedValue>& lost,
                            Actions& out);
  LeasedWorker& WorkerRecord(ProcessId process);
  void ForgetDeadWorkers(Actions& out);
  bool Usable(const LeasedWorker& worker) const;
  void MarkDirty(Actor* actor);
  void PumpActor(Actor* actor, Actions& out);
  void PushConstructor(Actor* actor, Actions& out);
  void QueueCall(Object* handle, Task* task, bool failed, Actions& out);   // the last one
  static bool WasOvertaken(const LeasedWorker& worker, const Task* call);  // by calls that were made after it
  void Requeue(Task* task, Actions& out);  // a call, to its place; or fails it if its actor is dead
  void FailCall(Task* task, bool may_have_run, Actions& out);
  void NodeDied(NodeNumber node, Actions& out);
  void RevokePushed(LeasedWorker& worker, Actions& out);
  void DeclareActorDead(Actor* actor, Actions& out);
  void ForgetActor(Actor* actor, Actions& out);
  void CancelTask(Task* task, bool force, bool recursive, Actions& out);
  void FailCancelled(Task* task, Actions& out);
  void Enqueue(Task* task, bool at_front);  // to ready, or to waiting if arguments are missing
  void MarkDirty(uint32_t shape);           // to be pumped by Settle
  void Pump(uint32_t shape, Actions& out);
  void PushTo(int32_t worker, Task* task, Actions& out);
  bool TryPushBehind(Task* task, Actions& out);
  void PushDependentsBehind(Task* task, Actions& out);
  uint64_t WorthWakingNs() const;  // so much work is worth waking an idle worker
  void StopGathering(uint32_t shape);
  int32_t WorkerFor(Shape& shape) const;  // the next ready task, or -1
  void Rebalance(Shape& shape, Actions& out);
  void Revoke(Task* task, Actions& out);
  void RevokeEnded(Task* task);
  size_t SpareTasks(const Shape& shape) const;  // that more workers could run now
  void RequestLeases(uint32_t shape, Actions& out);
  void DropLease(LeasedWorker& worker);
  void ReturnLease(LeasedWorker& worker, Actions& out);
  void AddArgumentBorrower(Task* task, ProcessId worker, Actions& out);
  void RemoveArgumentBorrower(Task* task, ProcessId worker, Actions& out);
  void TakeBack(Task* task, Actions& out);  // out of its worker's list; its worker no longer borrows its arguments
  void Unlist(LeasedWorker& worker, Task* task);  // out of the list of tasks pushed to it
  void Retry(Task* task, Actions& out);  // after TakeBack: queue it again, or fail it with its arguments' error
  void FailTask(Task* task, ValueKind kind, std::string_view error, Actions& out);
  void FailForGood(Task* task, std::string_view error, Actions& out);
  void Finish(Task* task, Actions& out);
  void ResolveReceived(Object* object, const ReturnedValue& value, Actions& out);
  void Resolved(Object* object);  // to be announced by Settle
  void Announce(Object* object, Actions& out);
  void SetStored(Object* object, const Location& location);
  void Bring(Object* object, Actions& out);
  void SendTo(Object* object, ProcessId requester, Actions& out);
  void Free(Object* object, Actions& out);
  void EndHold(ObjectId id, Actions& out);
  void ExplainQueued(const Task& task, ObjectFact& fact) const;
  void ExplainActor(const Actor& actor, ObjectFact& fact) const;
  void Settle(Actions& out);  // ends every event: announces what was resolved, pumps what may run

  const ProcessId self_;
  uint64_t last_task_ = 0;
  uint64_t finished_tasks_ = 0;
  std::atomic<uint32_t> depth_{0};
  Slab<Object> objects_;
  Slab<Task> tasks_;
  std::unordered_map<ObjectId, Object*> borrowed_;
  std::deque<Shape> shapes_;
  size_t near_shapes_ = 0;  // of them
  std::map<ResourceAmounts, uint32_t> shape_numbers_;
  std::unordered_map<FunctionKey, std::unique_ptr<Function>> functions_;
  std::deque<TaskTemplate> templates_;
  std::map<std::tuple<uint8_t, const Function*, uint32_t, uint32_t, int32_t, std::string, std::string, std::string,
                      std::string, std::string>,
           const TaskTemplate*>
      template_index_;
  std::vector<LeasedWorker> workers_;  // by number
  std::vector<int32_t> free_numbers_;  // of workers that were forgotten
  std::vector<int32_t> dead_workers_;  // not forgotten yet
  std::vector<int32_t> busy_workers_;
  std::unordered_map<ProcessId, int32_t> worker_numbers_;
  std::unordered_map<LeaseId, int32_t> lease_workers_;
  DeadProcesses dead_;
  std::set<NodeNumber> dead_nodes_;
  std::unordered_map<ProcessId, std::set<uint64_t>> held_of_dead_;  // what the daemon knows that we hold, by owner
  int64_t now_ns_ = 0;
  bool submitter_waits_ = true;
  uint64_t pushes_ = 0;
  // Work lists instead of recursion, so that a chain of a million tasks does not overflow the stack.
  std::vector<Object*> resolved_;  // held while listed
  std::vector<Object*> considered_;
  bool considering_ = false;
  std::vector<uint64_t> to_make_;  // handles of objects whose value was dropped and is wanted again
  std::list<Lineage> lineages_;    // the oldest first
  uint64_t lineage_bytes_ = 0;
  bool any_lost_ = false;  // ever: arguments that were there may be pending again
  std::vector<uint32_t> dirty_shapes_;
  std::vector<Actor*> dirty_actors_;
  std::unordered_map<ObjectId, std::unique_ptr<Actor>> actors_;  // ordered iteration is never needed
};

}  // namespace weft::core
