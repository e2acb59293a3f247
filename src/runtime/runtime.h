// The library under both front ends: what a driver or worker process does inside weft.
//
// One guarded state: every call locks, lets the pure Owner handle the event, performs its actions (writes frames into
// channels, queues messages to the daemon), unlocks, and only then makes system calls (wake-ups, sends).
//
// Threads: any number of the user's; the *background thread*, which takes replies and frees dropped objects while no
// user thread polls; the *link thread*, which reads the daemon's messages; and, with peers on other nodes, the thread
// that reads their sockets (StreamPoller). Our threads block all signals and never need the GIL. Of the user threads
// that wait, one polls for all; each of the others sleeps on a word of its own (waiters.h). DropReference may be called
// on any thread at any moment, even inside garbage collection: it only appends to a list.
//
// After a fork nothing here may be used in the child; front ends check forked().
//
// Nine files: runtime.cc (sessions, tasks, objects), runtime_actors.cc, runtime_waiting.cc (which thread sleeps or
// polls), runtime_frames.cc (channels), runtime_link.cc (the daemon), runtime_copies.cc (objects of other nodes),
// runtime_libraries.cc (C++ libraries), runtime_report.cc (for observers), runtime_explain.cc (what a wait waits for,
// and whether it can end).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "events/event_log.h"
#include "object_store/segment_reader.h"
#include "object_store/segment_writer.h"
#include "os/fd.h"
#include "runtime/copies.h"
#include "runtime/inquiries.h"
#include "runtime/long_waits.h"
#include "runtime/outbox.h"
#include "runtime/owner.h"
#include "runtime/peer_channel.h"
#include "runtime/questions.h"
#include "runtime/spin.h"
#include "runtime/waiters.h"
#include "transport/doorbell.h"
#include "transport/message_stream.h"
#include "transport/stream_poller.h"
#include "wire/messages.h"
#include "wire/peer_message.h"
#include "wire/task_frame.h"

namespace weft::core {

struct SessionOptions {
  std::string daemon_path;
  // A cluster to join through its node on this machine: "host:port" of its head, or "auto" for the only one on this
  // machine. Empty: a private session.
  std::string address;
  OpenSession open;
};

// When a wait of the executor's thread lends the CPU of its task. The default, never, is for what the runtime itself
// waits for: segments, copies, answers of the daemon.
struct Lends {
  enum class When : uint8_t {
    kNever,
    kAtOnce,
    kIfPending,  // once one of `objects` is known to be pending: a get of ready values lends nothing
    kForMemory,  // after a while, so that consumers can run; the daemon bounds how many do
  } when = When::kNever;
  std::span<Object* const> objects{};
};

// A resolved value, readable while the caller holds a local reference to the object.
struct ValueView {
  ValueKind kind = ValueKind::kPending;
  std::string_view bytes;
  bool stored = false;  // bytes lie in shared memory, 64-aligned, and may be read in place
};

// Room in the store that is being filled.
struct StoreRoom {
  uint8_t* data = nullptr;
  Location location;
  Allocation allocation;
};

// Which thread takes an event: that of the front end, or of a language that it hosts (C++ in a Python worker).
enum class Receiver : uint8_t { kFrontEnd, kHosted };

struct RuntimeEvent {
  enum Kind : uint8_t { kOutput, kReady, kStuck, kStopped } kind = kStopped;
  int32_t pid = 0;
  bool is_stderr = false;
  std::string text;
  std::string name;          // kOutput: the class of the actor that printed it
  Object* object = nullptr;  // kReady, kStuck: comes with a local reference for the receiver
  void* cookie = nullptr;    // kStuck: the object was awaited, and `text`, a system error, says why it never comes
};

// Which of several objects have been resolved, in that order. Shared by the runtime and one consumer; guarded by the
// runtime's lock.
struct Completions {
  std::vector<uint32_t> ready;  // the numbers that the consumer gave to the objects
  Waiter* waiter = nullptr;     // the consumer, while it waits
};

// Counters, for tests and figures.
struct RuntimeStats {
  size_t live_tasks = 0, live_objects = 0, ready_tasks = 0, leased_workers = 0;
  uint64_t tasks_submitted = 0, replies = 0, background_wakeups = 0, revoked = 0, handed_back = 0, messages_sent = 0;
  uint64_t store_allocated = 0;
};

class Executor;

class Runtime : private Inquiries::Host, private LongWaits::Host {
 public:
  static Result<std::unique_ptr<Runtime>> StartSession(SessionOptions options);
  static Result<std::unique_ptr<Runtime>> JoinAsWorker(UniqueFd socket);
  ~Runtime();
  // Ends the session of a driver; waiting threads return kStopped. Idempotent.
  void Stop();
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  // Why, if the driver did not end the session itself ("" if it ended normally).
  std::string why_stopped();
  ProcessId self() const { return welcome_.process; }
  const Welcome& welcome() const { return welcome_; }
  int daemon_pid() const { return daemon_pid_; }
  // The pid of the node daemon, in a driver and in a worker; 0 if it is not known.
  int node_pid() const;

  // ---- functions and tasks
  // A large body is put into the store, for as long as the session lasts. Fails as Allocate does. In a cluster this
  // first tells the daemon the files of a library, so that it can give them to other nodes.
  Result<const Function*> InternFunction(const FunctionKey& key, std::string name, std::string_view body);
  const TaskTemplate* InternTemplate(TaskTemplate what, const ResourceAmounts& shape);
  // `returns` has room for what->num_returns; each comes with one local reference.
  void Submit(const TaskTemplate* what, std::string_view arguments, std::span<Object* const> dependencies,
              std::span<Object* const> contained, Object** returns);

  // ---- actors
  struct ActorRequest {
    const TaskTemplate* constructor = nullptr;
    std::string_view arguments;
    std::span<Object* const> dependencies;
    std::span<Object* const> contained;
    ResourceAmounts to_place;
    ResourceAmounts to_hold;
    int32_t max_restarts = 0;
    bool detached = false;
    bool get_if_exists = false;
    bool out_of_order = false;
    std::string name;
    std::string name_space;
    std::string class_name;
    std::string metadata;
  };
  // Returns a handle with one local reference. If an actor of that name exists and may be taken instead, it is that
  // actor's handle, with its metadata. Waits for the daemon only if the actor has a name. kInvalid: the name is taken.
  // While this waits for the daemon, it calls `give_up` when a signal is to be handled, on the calling thread and
  // without the lock. If `give_up` returns true and no answer has come, returns kTimeout; an actor that was to be
  // created is dropped.
  using GiveUp = std::function<bool()>;
  struct FoundActor {
    Object* handle = nullptr;
    std::string metadata;  // empty: it is the actor that was to be created
  };
  Result<FoundActor> CreateActor(const ActorRequest& request, const GiveUp& give_up = {});
  Result<FoundActor> LookupActor(const std::string& name, const std::string& name_space, const GiveUp& give_up = {});
  Result<std::vector<std::pair<std::string, std::string>>> ListActors(bool all, const std::string& name_space,
                                                                      const GiveUp& give_up = {});
  void KillActor(Object* handle, bool no_restart);

  // ---- libraries of C++ functions, in a cluster (runtime_libraries.cc)
  bool in_cluster() const { return in_cluster_; }
  // Where the files of a library are on this node; the daemon fetches missing ones from the submitter's node or
  // another. An empty list: use them at their own paths. kInvalid: it cannot be had here; the message is a system error
  // (name of the exception class, newline, message). Any thread, without the lock.
  Result<std::vector<std::string>> FindLibrary(const std::vector<ProgramFile>& files, ProcessId submitter,
                                               const GiveUp& give_up = {});
  // Like Submit. False: `max_pending` calls (0: no limit) of this process to this actor are pending.
  bool SubmitCall(Object* handle, const TaskTemplate* what, std::string_view arguments,
                  std::span<Object* const> dependencies, std::span<Object* const> contained, size_t max_pending,
                  Object** returns);
  void Cancel(Object* object, bool force, bool recursive);
  bool IsCall(Object* object);  // the result of a pending actor call of this process
  // The run of a task or call that the thread executes, as the parent of what it submits; 0: none.
  static void SetCurrentExecution(uint64_t number);
  static uint64_t CurrentExecution();

  // ---- objects. Each Object* given out comes with one local reference.
  Object* PutInline(std::string_view bytes, std::span<Object* const> contained);
  Object* PutError(ValueKind kind, std::string_view error);  // kTaskError or kSystemError
  // Room of `size` bytes for a value that will belong to `id` (zero: an object of ours to be put). May wait for room.
  // Fails with kFull (message for the user), or kTimeout if a signal wants handling: then call again.
  Result<StoreRoom> Allocate(uint64_t size, ObjectId id, Populate populate);
  // Copies into the room, large pieces with several threads. For a caller that writes by itself, Allocate with
  // Populate::kNow.
  Status Fill(const StoreRoom& room, uint64_t offset, const void* source, uint64_t size) {
    return writer_.Fill(room.allocation, offset, source, size);
  }
  void Abandon(const StoreRoom& room);
  Object* PutStored(const StoreRoom& room, std::span<Object* const> contained);
  // The object that a value being decoded here refers to; nullptr if this process was never given it.
  Object* FindReference(ObjectId id);
  // The same for many at once, under one lock; each found comes with a local reference.
  void FindReferences(std::span<const ObjectId> ids, Object** found);
  static void AddReference(Object* object) { object->local_references.fetch_add(1, std::memory_order_relaxed); }
  void DropReference(Object* object);
  // Must be called before reading an object that came as an argument and whose owner is dead (Owner::MustBeRegistered):
  // the daemon then counts this process among its holders. Waits for the daemon.
  void HoldOrphan(ObjectId id);

  // Waits until at least `wanted` of the objects are ready (Object::ready). deadline_ns 0: looks once; negative: no
  // deadline. Without a report, it waits even for objects that can never come, and says nothing.
  WaitOutcome WaitFor(std::span<Object* const> objects, size_t wanted, int64_t deadline_ns,
                      WaitReport* report = nullptr, bool to_look = true);
  // `ends_at_failure`: also ends when one of several has failed (Object::failed), although others are still pending.
  WaitOutcome WaitForAll(std::span<Object* const> objects, int64_t deadline_ns, WaitReport* report = nullptr,
                         bool ends_at_failure = false);
  // What the object waits for: a text of several lines. Asks the processes that know, for two seconds at most.
  std::string Explain(Object* object);
  // After how long a get or wait says once what it waits for (kNotice). 0: never.
  void set_notice_after(int64_t ns) { long_waits_.set_notice_after(ns); }
  // The object must be resolved. May have to wait for a segment to be mapped; kTimeout as in Allocate.
  Result<ValueView> Read(Object* object);
  // Address of a stored location, mapped read-only. For a location on another node it waits for a copy, and keeps the
  // copy as long as this process lives; errors and kTimeout as in Read.
  Result<const uint8_t*> MapStored(const Location& location);

  // ---- for the front end's own thread
  bool NextEvent(RuntimeEvent* event, Receiver receiver = Receiver::kFrontEnd);  // blocks; false when stopped
  void EndEvents(Receiver receiver);                                             // as if stopped, for this one
  void CallWhenReady(Object* object, void* cookie, Receiver receiver = Receiver::kFrontEnd);
  // Waits for a condition of the front end's own, as for objects: a worker's resources are free meanwhile. `ready` is
  // called with the lock held; the code that makes it true calls WakeWaiters afterwards.
  WaitOutcome WaitUntilTold(const std::function<bool()>& ready);
  void WakeWaiters();
  // ---- coroutines of an actor's event loop (runtime_explain.cc)
  // Like CallWhenReady, for a coroutine that awaits the object. `execution`: the run of a call whose own asyncio task
  // waits only for this; 0: another task of the loop. Returns the number of the await, for EndAwait (0: nothing to
  // end). Either the callback comes, or kStuck instead, or EndAwait ends it.
  uint64_t Await(Object* object, void* cookie, uint64_t execution);
  void EndAwait(uint64_t number);
  // On the loop's thread. Somebody wants to know whether the loop rests: it is about to sleep without a timer, a file
  // or a task that waits for anything but objects.
  bool LoopIsAsked() const { return long_waits_.LoopIsAsked(); }
  void SetLoopRests(bool rests);
  // Puts each object's number into `to` once it is resolved, in constant time. The caller keeps the objects alive.
  struct Watched {
    Object* object;
    uint32_t number;
  };
  void Watch(const std::shared_ptr<Completions>& to, std::span<const Watched> objects);
  // Forgets those that are not resolved yet.
  void Unwatch(const std::shared_ptr<Completions>& to, std::span<const Watched> objects);
  // Waits until there is something, and takes all of it. Deadlines as in WaitFor.
  WaitOutcome TakeCompletions(Completions& from, int64_t deadline_ns, std::vector<uint32_t>& taken);

  RuntimeStats Stats();
  // How many calls of the front end are inside this object, which must not be deleted before they return. Counted by
  // the front end.
  std::atomic<int> users{0};
  SegmentWriter& writer() { return writer_; }
  // Marks every runtime of the parent as unusable; called in the child of a fork.
  static bool forked();

  class WorkerPort;  // the executor's way in (worker_port.h)
  // The other end of a channel: a worker we push tasks to, or (executor) a process that pushes tasks to us.
  struct Peer {
    ProcessId process;
    PeerChannel channel;
    std::atomic<bool> dead{false};  // written with the lock
    std::vector<bool> defined;      // by template number: sent on this channel
    LeaseId told_lease;             // the worker knows what the lease holds
    bool told_actor = false;
    bool to_notify = false;  // is in to_notify_
    int64_t lost_at_ns = 0;  // when its stream was found ended; 0: it is not
    // Threads that took it from to_notify_ use its channel after unlocking.
    uint32_t notices_begun = 0;              // written with the lock
    std::atomic<uint32_t> notices_ended{0};  // and without it
    // A stream: routed messages of the peer that must wait for replies which it sent before (kAfter).
    std::deque<PeerMessage> held_back;
  };

 private:
  Runtime();
  Status ConnectToNode(const std::string& address);
  Status Handshake(const Message& hello);
  std::optional<ReceivedMessage> NextMessage();
  void SendQueued();
  void StartThreads();
  void LinkLoop();
  void EndStreams(ProcessId dead);  // link thread
  void BackgroundLoop();

  // All below: lock held.
  Object* FindLocked(ObjectId id);
  void Handle(Message message, std::vector<UniqueFd> fds);
  std::string ReportState(uint32_t limit);  // for an observer
  void AnswerHeld(ProcessId owner);
  void FindOrphans(ProcessId dead);
  void NumberPeer(Peer* peer);
  // The process has died and the owner no longer has a record of it: its channel goes as soon as no thread uses it.
  void ForgetWorker(ProcessId process);
  void FreeForgotten();
  std::vector<Peer*> TakePeersToNotify();  // to be counted in notices_ended when they were
  void DropClosedSegments();
  void AddPeer(std::unique_ptr<Peer> peer, bool first_side);
  void HandlePeerMessages(ProcessId from, std::string_view payload);
  void HandlePeerMessage(ProcessId from, PeerMessage& message);
  void HandleHeldBack(Peer& peer);  // the messages that need not wait any more
  void Perform();
  // To the event log; right after the submission.
  void NoteSubmitted(const TaskTemplate* what, std::span<Object* const> dependencies);
  bool PushTask(int32_t worker, Task* task);
  const uint8_t* PushedAlong(const Object* object, uint32_t frame_bytes);
  bool IsElsewhere(const Location& location) const { return NodeOf(location.segment) != NodeOf(self()); }
  // Copies (runtime_copies.cc)
  void BringCopy(Object* object, const Location& location);
  void CopyArrived(uint64_t request, const Location& place);
  void CopyFailed(uint64_t request, const std::string& error, bool node_gone);
  bool CoresAreFree() const;  // for this process and each worker that is busy with its tasks
  static size_t DefinitionBytes(const Peer& peer, const TaskTemplate& what);
  bool Define(Peer& peer, const TaskTemplate* what);
  bool SendLease(Peer& peer, const LeasedWorker& worker);
  void Send(Message message, std::vector<UniqueFd> fds = {}) { outbox_.Send(std::move(message), std::move(fds)); }
  void Route(ProcessId to, const PeerMessage& message) { outbox_.Route(to, message); }
  void PutAfter(ProcessId to, std::string& payload);
  size_t Drain();  // replies of all workers, and drops; returns how many
  size_t DrainPeer(Peer& peer);
  size_t TakeRevokeOutcomes(Peer& peer);
  bool TakeReply(Peer& peer, std::string_view bytes);
  void DrainDrops();
  void SetWakeUps(bool any);  // tells each worker after which reply to wake this process
  bool AnyDue();
  void ArmBackground();
  void Raise(RuntimeEvent event, Receiver receiver = Receiver::kFrontEnd);
  void Fail(const std::string& why);
  class CpuLoan;  // runtime_waiting.cc
  class FailureWatch;
  // `ready` is asked whenever the waiter is woken.
  WaitOutcome WaitUntil(std::unique_lock<std::mutex>& lock, int64_t deadline_ns, Waiter& waiter,
                        const std::function<bool()>& ready, Lends lends = {}, Waiting* waiting = nullptr);
  WaitOutcome WaitForNews(std::unique_lock<std::mutex>& lock, int64_t deadline_ns, const std::function<bool()>& ready,
                          Lends lends = {});
  WaitOutcome WaitForEach(std::unique_lock<std::mutex>& lock, Waiting& waiting, bool to_look, bool ends_at_failure);
  WaitOutcome WaitForSome(std::unique_lock<std::mutex>& lock, Waiting& waiting, bool to_look);
  // What a wait knows of its own time: lists it once it has lasted a while. Says when it must be called again.
  int64_t ListIfLong(Waiting& waiting, bool by_executor);
  // A stream to a worker has ended before anybody has said that the worker has.
  void NoticeLost(Peer& peer);
  int64_t LookAtLost(int64_t now_ns);  // when to look again
  void AnswerWhy(ProcessId requester, ObjectId subject, uint64_t request);
  // Inquiries::Host and LongWaits::Host
  void TakeReplies() override { Drain(); }
  void AskShape(uint64_t number, const ResourceAmounts& shape) override;
  void AskWhy(uint64_t number, ObjectId subject) override;
  ProcessFact FactOfSelf() override;
  ObjectFact FactOfObject(ObjectId own) override;
  void InquiryEnded(Inquiry& inquiry) override { long_waits_.InquiryEnded(inquiry); }
  void Wake(Waiter& waiter) override { waiters_.Wake(waiter); }
  void WakeBackground() override { doorbell_->WakeBackground(); }
  void WakeLoop() override;
  void DescribeCall(WaitFact& fact, uint64_t execution) override;
  void Stuck(Object* object, void* cookie, uint64_t await, std::string text) override;
  // Hands a detached actor of this worker over to the driver, which keeps it.
  void HandOverToDriver(Object* handle);
  void KeepActor(ProcessId creator, ObjectId actor, std::string_view record);
  // In a cluster: hands a detached actor over to the head, for good.
  Result<FoundActor> CreateDetached(const ActorRequest& request, const GiveUp& give_up);
  static std::string WhyNotKept(std::span<Object* const> contained);
  void HandOverToHead(ObjectId actor, const TaskTemplate& what, std::string_view arguments,
                      std::span<Object* const> dependencies);
  bool StandInIsReady(ObjectId id);
  void HandOverReady();
  // What the daemon says to a question that was sent. kTimeout: `give_up` said so; an actor that is created all the
  // same is let go by its handle. kGone: the session has ended.
  template <class Answer>
  Result<Answer> AwaitAnswer(std::unique_lock<std::mutex>& lock, uint64_t question, const GiveUp& give_up,
                             Object* handle = nullptr);
  void ShareLibrary(std::string_view body);  // without the lock
  void LetGoOfUnwanted(Object* handle, const ActorAnswer& answer);
  Status Reserve(std::unique_lock<std::mutex>& lock, uint64_t bytes);
  Result<Location> CopyFor(const Location& location);  // without the lock
  Result<ValueView> ReadElsewhere(Object* object);     // without the lock

  // For the one poller, unlocked: sleeps until the doorbell rings or something arrives on a stream.
  template <class Condition>
  SleepOutcome SleepAsWaiter(WaiterState kind, int64_t deadline_ns, Condition&& something_to_do) {
    if (auto* poller = stream_poller_.load(std::memory_order_acquire)) {
      return poller->SleepAsWaiter(*doorbell_, kind, deadline_ns, something_to_do);
    }
    return doorbell_->SleepAsWaiter(kind, deadline_ns, something_to_do);
  }
  int64_t SpinLimitNs() const {
    auto* poller = stream_poller_.load(std::memory_order_relaxed);
    return poller && poller->WaiterReads() ? SpinGate::kRemoteSpinNs : SpinGate::kSpinNs;
  }
  bool ReadStreams() {
    auto* poller = stream_poller_.load(std::memory_order_relaxed);
    return poller && poller->ReadWhileSpinning();
  }
  // After unlocking: makes the system calls that were postponed.
  void Flush();
  void NotifyPeers(std::unique_lock<std::mutex>& lock);

  // constant after the handshake
  UniqueFd socket_;
  std::unique_ptr<MessageStream> incoming_;  // read by the link thread
  std::unique_ptr<MessageStream> outgoing_;  // guarded by send_mutex_
  Welcome welcome_;
  int daemon_pid_ = -1;
  std::unique_ptr<Doorbell> doorbell_;
  EventLog log_;  // written without the lock
  bool is_worker_ = false;
  bool in_cluster_ = false;
  uint32_t allowed_cpus_ = 1;

  std::mutex mutex_;
  // guarded by mutex_
  std::unique_ptr<Owner> owner_;
  Actions actions_;
  std::unordered_map<ProcessId, std::unique_ptr<Peer>> workers_;     // we submit to
  std::unordered_map<ProcessId, std::unique_ptr<Peer>> submitters_;  // submit to us
  std::vector<std::unique_ptr<Peer>> forgotten_;                     // workers; a thread may still use their channels
  std::vector<Peer*> peer_of_worker_;                                // by the owner's worker number
  std::vector<Peer*> to_notify_;
  std::vector<Peer*> due_list_;  // workers with tasks of ours; also read by the poller without the lock
  Outbox outbox_;
  std::vector<Peer*> holding_back_;                        // have something in held_back
  std::unordered_map<SegmentId, uint8_t> segment_states_;  // 1 asked for, 2 mapped, 3 does not exist
  std::set<SegmentId> closed_segments_;                    // to be unmapped
  Copies copies_{[this](Message message) { Send(std::move(message)); }};
  struct Reservation {
    uint64_t bytes = 0;
    bool awaited = true;  // false: the thread that asked was interrupted
  };
  std::unordered_map<uint64_t, Reservation> reserving_;      // by request
  std::unordered_map<uint64_t, Result<bool>> reservations_;  // answered
  uint64_t next_reservation_ = 1;
  Questions questions_;
  std::set<std::string> shared_libraries_;  // by the identity of the library: the daemon knows of it
  struct ActorToHandOver {
    ObjectId actor;
    const TaskTemplate* what = nullptr;
    std::string arguments;
    std::vector<Object*> dependencies;  // with a reference each
    std::string why, error;             // not empty: it cannot be constructed
  };
  std::map<ObjectId, ObjectId> stand_ins_;     // for detached actors that wait for arguments
  std::vector<ActorToHandOver> to_hand_over_;  // for the background thread
  struct Events {
    std::deque<RuntimeEvent> queue;
    bool ended = false;                // nothing more will come
    std::atomic<uint32_t> changed{0};  // futex word: NextEvent has something
  };
  std::array<Events, 2> events_;  // by receiver
  struct Callback {
    Receiver receiver = Receiver::kFrontEnd;
    void* cookie = nullptr;  // the receiver's, or:
    std::shared_ptr<Completions> completions;
    uint32_t number = 0;
    uint64_t await = 0;  // with a cookie: the number of the await (LongWaits)
  };
  std::unordered_map<Object*, std::vector<Callback>> callbacks_;
  std::string why_stopped_;
  Waiters waiters_;
  uint32_t eager_waits_ = 0;      // threads for which any reply may matter
  bool background_idle_ = false;  // sleeps without a deadline
  bool segment_announced_ = false;
  uint64_t submits_ = 0;
  RuntimeStats stats_;
  std::vector<ReturnedValue> values_scratch_;
  std::vector<const uint8_t*> pushed_scratch_;
  std::vector<Peer*> lost_peers_;  // not reported to the daemon yet
  SpinGate poller_spin_;           // of the polling thread
  std::vector<Object*> returns_scratch_;
  Inquiries inquiries_{*this};
  LongWaits long_waits_{*this, inquiries_};

  std::mutex send_mutex_;  // one sender at a time, taken without mutex_
  std::atomic<Object*> dropped_{nullptr};
  std::atomic<int64_t> last_drop_wake_ns_{0};
  std::atomic<bool> stopped_{false};
  std::atomic<int64_t> leave_by_ns_{0};  // not 0: until when the daemon is waited for, at the beginning and the end

  SegmentWriter writer_;
  SegmentReader reader_;
  // The link thread makes it with the first stream, with mutex_ held; then it is constant. The atomic is for the other
  // threads.
  std::unique_ptr<StreamPoller> streams_;
  std::atomic<StreamPoller*> stream_poller_{nullptr};
  int64_t late_end_ns_ = 0;  // link thread: when the stream of a dead process had not ended in time
  std::thread link_thread_;
  std::thread background_thread_;
  std::thread::id executor_thread_;
  Executor* executor_ = nullptr;
};

}  // namespace weft::core
