#include "runtime/runtime.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "os/futex.h"
#include "os/socket.h"
#include "os/spawn.h"
#include "runtime/executor.h"

namespace weft::core {
namespace {

constexpr int64_t kMillisecondNs = 1'000'000;
// While anything is leased or wished for, the background thread looks this often whether leases lie idle.
constexpr int64_t kTickNs = 50 * kMillisecondNs;
// After draining, the background thread stays unarmed for this long, so that a stream of replies does not cost a
// wake-up each; longer while replies keep coming.
constexpr int64_t kLingerNs = 100'000;
constexpr int64_t kMaxLingerNs = 1'000'000;
// Dropped references wake the background thread at most this often.
constexpr int64_t kDropWakeNs = 20 * kMillisecondNs;
// A worker whose task waits this long hands back what is queued behind it.
constexpr int64_t kHandBackAfterNs = kMillisecondNs;
// The daemon ends a session well within this; if it does not, it is killed.
constexpr int64_t kLeaveNs = 3'000 * kMillisecondNs;

std::atomic<bool> g_forked{false};
void MarkForked() { g_forked.store(true); }

void SleepNs(int64_t ns) {
  timespec t{ns / 1'000'000'000, ns % 1'000'000'000};
  nanosleep(&t, nullptr);
}

int64_t AbsoluteOrNever(int64_t deadline_ns) { return deadline_ns < 0 ? kNoDeadline : deadline_ns; }

}  // namespace

bool Runtime::forked() { return g_forked.load(std::memory_order_relaxed); }

Runtime::Runtime() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, MarkForked); });
}

// ---- beginning and end --------------------------------------------------------------------------------------------

Result<std::unique_ptr<Runtime>> Runtime::StartSession(SessionOptions options) {
  std::unique_ptr<Runtime> runtime(new Runtime());
  auto pair = StreamSocketPair();
  if (!pair) return pair.error();
  runtime->socket_ = std::move(pair->first);
  auto pid = SpawnWithSocket({options.daemon_path, "node"}, pair->second.get());
  if (!pid) return pid.error();
  runtime->daemon_pid_ = *pid;
  pair->second.Reset();
  if (auto status = runtime->Handshake(options.open); !status.ok()) {
    runtime->Stop();
    return status.error();
  }
  runtime->StartThreads();
  return runtime;
}

Result<std::unique_ptr<Runtime>> Runtime::JoinAsWorker(UniqueFd socket) {
  g_forked.store(false);  // the zygote's child is a process of its own
  std::unique_ptr<Runtime> runtime(new Runtime());
  runtime->socket_ = std::move(socket);
  runtime->is_worker_ = true;
  if (auto status = runtime->Handshake(WorkerReady{.pid = getpid()}); !status.ok()) return status.error();
  runtime->StartThreads();
  return runtime;
}

Status Runtime::Handshake(const Message& hello) {
  incoming_ = std::make_unique<MessageStream>(UniqueFd(::fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0)));
  outgoing_ = std::make_unique<MessageStream>(UniqueFd(::fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0)));
  if (incoming_->fd() < 0 || outgoing_->fd() < 0) return Error{ErrorKind::kUnavailable, "no descriptors left"};
  outgoing_->Queue(hello);
  SendQueued();
  auto received = NextMessage();
  if (!received) return Error{ErrorKind::kGone, "the node daemon ended before it was ready"};
  auto* welcome = std::get_if<Welcome>(&received->message);
  if (!welcome || received->fds.size() != 1) {
    return Error{ErrorKind::kGone, "the node daemon answered with something else"};
  }
  welcome_ = *welcome;
  auto doorbell = Doorbell::Open(received->fds[0].get());
  if (!doorbell) return doorbell.error();
  doorbell_ = std::move(*doorbell);
  owner_ = std::make_unique<Owner>(welcome_.process);
  writer_.AddBudget(welcome_.reserved_bytes);
  return {};
}

// Blocks until a whole message is there; nothing if the daemon is gone. Link thread (and handshake).
std::optional<ReceivedMessage> Runtime::NextMessage() {
  for (;;) {
    if (auto received = incoming_->Next()) return received;
    if (incoming_->state() != MessageStream::State::kOpen) return std::nullopt;
    if (incoming_->Receive()) continue;
    if (incoming_->state() != MessageStream::State::kOpen) continue;
    int64_t leave_by = leave_by_ns_.load();
    if (leave_by != 0 && NowNs() > leave_by) return std::nullopt;
    pollfd readable{incoming_->fd(), POLLIN, 0};
    ::poll(&readable, 1, leave_by != 0 ? 100 : -1);
  }
}

// Sends all that is queued, waiting for the daemon to take it. send_mutex_ held (or handshake).
void Runtime::SendQueued() {
  while (outgoing_->queued_bytes() > 0 && outgoing_->Flush() && outgoing_->queued_bytes() > 0) {
    pollfd writable{outgoing_->fd(), POLLOUT, 0};
    ::poll(&writable, 1, -1);
  }
}

void Runtime::StartThreads() {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  link_thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "weft-link");
    LinkLoop();
  });
  background_thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "weft-background");
    BackgroundLoop();
  });
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

void Runtime::Stop() {
  if (forked()) return;  // the session is the parent's
  bool running = link_thread_.joinable();
  {
    std::lock_guard lock(mutex_);
    if (running && !stopped() && !is_worker_) {
      Send(Farewell{});
      leave_by_ns_ = NowNs() + kLeaveNs;
    }
    stopped_.store(true, std::memory_order_release);
  }
  if (running) {
    Flush();
    doorbell_->WakeWaiter();
    doorbell_->WakeBackground();
    Bump();
    background_thread_.join();
    // The daemon sends the workers' last output and closes; the link thread reads until then.
    if (is_worker_) ::shutdown(socket_.get(), SHUT_RDWR);
    link_thread_.join();
  }
  if (socket_.valid()) ::shutdown(socket_.get(), SHUT_RDWR);
  {
    std::lock_guard lock(mutex_);
    finished_ = true;
  }
  front_events_.fetch_add(1);
  FutexWake(&front_events_, INT32_MAX);
  if (daemon_pid_ > 0) {
    // It ends by itself within moments; wait, so that nothing of the session is left when Stop returns.
    WaitForChild(daemon_pid_, NowNs() + kLeaveNs);
    daemon_pid_ = -1;
  }
}

Runtime::~Runtime() { Stop(); }

std::string Runtime::why_stopped() {
  std::lock_guard lock(mutex_);
  return why_stopped_;
}

void Runtime::Fail(const std::string& why) {
  if (!stopped() && why_stopped_.empty()) why_stopped_ = why;
  stopped_.store(true, std::memory_order_release);
  front_events_.fetch_add(1);
  FutexWake(&front_events_, INT32_MAX);
}

// ---- functions and tasks ------------------------------------------------------------------------------------------

Result<const Function*> Runtime::InternFunction(const FunctionKey& key, std::string name, std::string_view body) {
  {
    std::lock_guard lock(mutex_);
    if (const Function* known = owner_->FindFunction(key)) return known;
  }
  Function function{.key = key, .name = std::move(name)};
  if (body.size() <= kMaxInlineBytes) {
    function.body = body;
  } else {
    auto room = Allocate(body.size(), {}, Populate::kWhileCopying);
    if (!room) return room.error();
    if (auto filled = Fill(*room, 0, body.data(), body.size()); !filled.ok()) {
      Abandon(*room);
      return filled.error();
    }
    writer_.Seal(room->location);
    function.stored_body = room->location;
  }
  std::lock_guard lock(mutex_);
  return owner_->InternFunction(std::move(function));
}

const TaskTemplate* Runtime::InternTemplate(TaskTemplate what, const ResourceAmounts& shape) {
  std::lock_guard lock(mutex_);
  what.shape = owner_->InternShape(shape);
  return owner_->InternTemplate(std::move(what));
}

void Runtime::Submit(const TaskTemplate* what, std::string_view arguments, std::span<Object* const> dependencies,
                     std::span<Object* const> contained, Object** returns) {
  std::unique_lock lock(mutex_);
  Submission submission{.what = what, .arguments = arguments};
  if (!dependencies.empty()) submission.dependencies.assign(dependencies.begin(), dependencies.end());
  if (!contained.empty()) submission.contained.assign(contained.begin(), contained.end());
  // The clock is read for lease bookkeeping only, so the cheap one does.
  returns_scratch_.clear();
  owner_->Submit(submission, CoarseNowNs(), returns_scratch_, actions_);
  std::copy(returns_scratch_.begin(), returns_scratch_.end(), returns);
  Perform();
  stats_.tasks_submitted++;
  if ((++submits_ & 15) == 0) Drain();  // keeps the pipelines moving in a long loop of submissions
  NotifyPeers(lock);
}

// ---- objects ------------------------------------------------------------------------------------------------------

Object* Runtime::PutInline(std::string_view bytes, std::span<Object* const> contained) {
  std::unique_lock lock(mutex_);
  DrainDrops();
  Object* object = owner_->NewOwned();
  owner_->Resolve(object, ValueKind::kInline, bytes, {}, {contained.begin(), contained.end()}, actions_);
  Perform();
  NotifyPeers(lock);
  return object;
}

Status Runtime::Reserve(std::unique_lock<std::mutex>& lock, uint64_t bytes) {
  uint64_t request = next_reservation_++;
  reserving_[request] = bytes;
  Send(ReserveMemory{.bytes = bytes, .request = request});
  auto outcome = WaitUntil(lock, -1, false, [&] { return reservations_.contains(request); });
  if (outcome == WaitOutcome::kStopped) return Error{ErrorKind::kGone, "the session has ended"};
  if (outcome == WaitOutcome::kInterrupted) {
    // The answer, when it comes, is budget that is simply ours.
    return Error{ErrorKind::kTimeout, "interrupted"};
  }
  Result<bool> answer = std::move(reservations_.at(request));
  reservations_.erase(request);
  if (!answer) return answer.error();
  return {};
}

Result<StoreRoom> Runtime::Allocate(uint64_t size, ObjectId id, Populate populate) {
  std::unique_lock lock(mutex_);
  DrainDrops();
  Perform();
  if (stopped()) return Error{ErrorKind::kGone, "the session has ended"};
  if (!segment_announced_) {
    // Address space is cheap and fragmentation is not: four times what may ever be held.
    uint64_t virtual_size = std::max<uint64_t>(welcome_.object_store_bytes * 4, 64ull << 20);
    auto fd = writer_.Create(welcome_.process, virtual_size);
    if (!fd) return fd.error();
    segment_announced_ = true;
    std::vector<UniqueFd> fds;
    fds.emplace_back(::dup(*fd));
    Send(SegmentCreated{.size = writer_.size()}, std::move(fds));
    // Its answer says that the daemon knows the segment, so a location may travel.
    while (true) {
      auto reserved = Reserve(lock, 0);
      if (reserved.ok()) break;
      if (reserved.error().kind != ErrorKind::kTimeout) return reserved.error();
      segment_announced_ = true;
    }
  }
  lock.unlock();
  for (;;) {
    uint64_t missing = 0;
    auto allocation = writer_.Allocate(id ? id : ObjectId{self(), ~0ull}, size, populate, &missing);
    if (allocation) return StoreRoom{allocation->data, allocation->location, *allocation};
    if (allocation.error().kind != ErrorKind::kFull || missing == 0) return allocation.error();
    lock.lock();
    Drain();
    auto reserved = Reserve(lock, missing);
    lock.unlock();
    Flush();
    if (!reserved.ok()) return reserved.error();
  }
}

void Runtime::Abandon(const StoreRoom& room) { writer_.Abort(room.location); }

Object* Runtime::PutStored(const StoreRoom& room, std::span<Object* const> contained) {
  writer_.Seal(room.location);
  std::unique_lock lock(mutex_);
  Object* object = owner_->NewOwned();
  owner_->Resolve(object, ValueKind::kStored, {}, room.location, {contained.begin(), contained.end()}, actions_);
  Perform();
  NotifyPeers(lock);
  return object;
}

Object* Runtime::FindReference(ObjectId id) {
  std::unique_lock lock(mutex_);
  Object* object = owner_->Find(id);
  if (object) {
    AddReference(object);
    return object;
  }
  if (id.owner == self() || !id) return nullptr;
  // A reference captured by a function, which its definer holds for good: register with the owner ourselves.
  object = owner_->Receive(id, 1);
  if (!object->resolved()) {
    Route(id.owner, {.kind = PeerMessageKind::kMention, .id = id, .process = self(), .count = 1});
  }
  NotifyPeers(lock);
  return object;
}

void Runtime::DropReference(Object* object) {
  uint32_t count = object->local_references.load(std::memory_order_relaxed);
  while (count > 1) {
    if (object->local_references.compare_exchange_weak(count, count - 1, std::memory_order_release)) return;
  }
  // The last one is not counted down but handed to the list, so the record stays until the list was drained.
  Object* head = dropped_.load(std::memory_order_relaxed);
  do {
    object->next_dropped = head;
  } while (!dropped_.compare_exchange_weak(head, object, std::memory_order_release, std::memory_order_relaxed));
  if (head == nullptr) {
    int64_t now = CoarseNowNs();
    int64_t last = last_drop_wake_ns_.load(std::memory_order_relaxed);
    if (now - last > kDropWakeNs && last_drop_wake_ns_.compare_exchange_strong(last, now)) doorbell_->WakeBackground();
  }
}

void Runtime::DrainDrops() {
  if (dropped_.load(std::memory_order_relaxed) == nullptr) return;
  Object* object = dropped_.exchange(nullptr, std::memory_order_acquire);
  while (object) {
    Object* next = object->next_dropped;
    object->next_dropped = nullptr;
    if (object->local_references.fetch_sub(1, std::memory_order_acq_rel) == 1) owner_->Consider(object, actions_);
    object = next;
  }
}

Result<const uint8_t*> Runtime::MapStored(const Location& location) {
  if (writer_.created() && location.segment == writer_.segment()) {
    const uint8_t* data = writer_.ReadOnly(location);
    if (!data) return Error{ErrorKind::kGone, "the object's memory was given to another object"};
    return data;
  }
  if (!reader_.IsOpen(location.segment)) {
    std::unique_lock lock(mutex_);
    uint8_t& state = segment_states_[location.segment];
    if (state == 0) {
      state = 1;
      Send(OpenSegment{.segment = location.segment});
    }
    auto outcome = WaitUntil(lock, -1, false, [&] { return segment_states_[location.segment] != 1; });
    if (outcome == WaitOutcome::kStopped) return Error{ErrorKind::kGone, "the session has ended"};
    if (outcome == WaitOutcome::kInterrupted) return Error{ErrorKind::kTimeout, "interrupted"};
    if (segment_states_[location.segment] == 3) {
      return Error{ErrorKind::kGone, "the memory that held the object no longer exists"};
    }
  }
  auto data = reader_.Resolve(location);
  if (data) reader_.ReleaseView(location.segment);  // the object's reference keeps the range; segments stay mapped
  return data;
}

Result<ValueView> Runtime::Read(Object* object) {
  ValueView view;
  view.kind = object->value.kind();
  if (view.kind != ValueKind::kStored) {
    view.bytes = object->value.bytes();  // does not change once resolved
    return view;
  }
  const Location location = object->value.location();
  auto data = MapStored(location);
  if (!data) return data.error();
  view.stored = true;
  view.bytes = {reinterpret_cast<const char*>(*data), location.size};
  return view;
}

// ---- waiting ------------------------------------------------------------------------------------------------------

template <class Ready>
WaitOutcome Runtime::WaitUntil(std::unique_lock<std::mutex>& lock, int64_t deadline_ns, bool any, Ready ready) {
  bool polled = false;
  bool blocked = false;
  bool handed_back = false;
  bool by_executor = executor_ != nullptr && std::this_thread::get_id() == executor_thread_;
  int64_t hand_back_at = 0;
  WaitOutcome outcome;
  if (any) ++any_waiters_;
  for (;;) {
    Drain();
    if (ready()) {
      outcome = WaitOutcome::kReady;
      break;
    }
    if (stopped()) {
      outcome = WaitOutcome::kStopped;
      break;
    }
    if (deadline_ns == 0 || (deadline_ns > 0 && NowNs() >= deadline_ns)) {
      outcome = WaitOutcome::kTimedOut;
      break;
    }
    if (forked()) {
      outcome = WaitOutcome::kStopped;
      break;
    }
    if (by_executor && !blocked) {
      blocked = true;
      hand_back_at = NowNs() + kHandBackAfterNs;
      // Sequentially consistent with the daemon, which sets demand and then reads blocked: one of us sees the other.
      doorbell_->blocked().store(1);
      if (doorbell_->demand().load() != 0) Send(Blocked{});
    }
    if (by_executor && !handed_back && NowNs() >= hand_back_at) handed_back = true;
    if (handed_back) executor_->HandBackQueued();
    int64_t until = AbsoluteOrNever(deadline_ns);
    if (by_executor && !handed_back) until = std::min(until, hand_back_at);
    SleepOutcome slept = SleepOutcome::kWoken;
    if (!polling_) {
      polling_ = polled = true;
      doorbell_->DisarmBackground();
      SetWakeUps(any_waiters_ > 0);
      lock.unlock();
      Flush();
      auto kind = handed_back ? WaiterState::kAsleepBlocked : WaiterState::kAsleepInGet;
      slept = doorbell_->SleepAsWaiter(kind, until, [this] { return AnyDue() || stopped(); });
      lock.lock();
      polling_ = false;
      if (others_waiting_ > 0) Bump();  // one of them polls from now on, or sees what it waited for
    } else {
      ++others_waiting_;
      uint32_t seen = event_.load();
      lock.unlock();
      Flush();
      if (FutexWait(&event_, seen, until) == FutexOutcome::kInterrupted) slept = SleepOutcome::kInterrupted;
      lock.lock();
      --others_waiting_;
    }
    if (slept == SleepOutcome::kInterrupted) {
      Drain();
      outcome = ready() ? WaitOutcome::kReady : WaitOutcome::kInterrupted;
      break;
    }
  }
  if (any) --any_waiters_;
  if (blocked) doorbell_->blocked().store(0);
  if (polled && !polling_) ArmBackground();
  return outcome;
}

WaitOutcome Runtime::WaitForAll(std::span<Object* const> objects, int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  WaitOutcome outcome = WaitOutcome::kReady;
  // From the end: the last one is likely to be ready last, and then all others need no wake-up of their own.
  for (size_t i = objects.size(); i-- > 0;) {
    Object* object = objects[i];
    if (object->resolved()) continue;
    owner_->Want(object, actions_);
    Perform();
    ++object->waiters;
    outcome = WaitUntil(lock, deadline_ns, false, [object] { return object->resolved(); });
    --object->waiters;
    if (outcome != WaitOutcome::kReady) break;
  }
  NotifyPeers(lock);
  return outcome;
}

WaitOutcome Runtime::WaitFor(std::span<Object* const> objects, size_t wanted, int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  auto enough = [&] {
    size_t count = 0;
    for (Object* object : objects) {
      if (object->resolved() && ++count >= wanted) return true;
    }
    return count >= wanted;
  };
  if (enough()) return WaitOutcome::kReady;
  for (Object* object : objects) owner_->Want(object, actions_);
  Perform();
  auto outcome = WaitUntil(lock, deadline_ns, true, enough);
  NotifyPeers(lock);
  return outcome;
}

void Runtime::SetWakeUps(bool any) {
  const auto& workers = owner_->workers();
  due_list_.clear();
  for (size_t i = 0; i < peer_of_worker_.size(); ++i) {
    if (workers[i].pushed.size == 0) continue;
    due_list_.push_back(peer_of_worker_[i]);
    size_t wanted = any ? 1 : owner_->RepliesUntilWanted(workers[i]);
    peer_of_worker_[i]->channel->AskWakeAfter(wanted);
  }
}

bool Runtime::AnyDue() {
  // Called without the lock by the one poller, which made the list (SetWakeUps) before it unlocked; nobody else makes
  // one while somebody polls. Channels live as long as the runtime.
  for (Peer* peer : due_list_) {
    if (peer->channel->WakeIsDue()) return true;
  }
  return false;
}

void Runtime::ArmBackground() {
  while (!stopped()) {
    SetWakeUps(any_waiters_ > 0);
    bool rung = doorbell_->ArmBackground();
    if (!rung && !AnyDue()) return;
    Drain();
  }
}

void Runtime::Bump() {
  event_.fetch_add(1);
  FutexWake(&event_, INT32_MAX);
}

// ---- draining -----------------------------------------------------------------------------------------------------

size_t Runtime::Drain() {
  size_t count = 0;
  doorbell_->TakeRung(Audience::kAnyone, [](uint32_t) {});  // every channel with tasks is looked at anyway
  for (size_t i = 0; i < peer_of_worker_.size(); ++i) {
    Peer* peer = peer_of_worker_[i];
    if (peer && owner_->workers()[i].pushed.size > 0) count += DrainPeer(*peer);
  }
  if (dropped_.load(std::memory_order_relaxed) != nullptr) {
    DrainDrops();
    ++count;
  }
  if (!actions_.empty()) Perform();
  return count;
}

size_t Runtime::DrainPeer(Peer& peer) {
  size_t count = 0;
  Frame frame;
  while (peer.channel->Peek(&frame)) {
    ++count;
    ++stats_.replies;
    if (static_cast<FrameType>(frame.type) != FrameType::kReply || !TakeReply(peer, frame.bytes)) {
      Fail("a worker sent something that no worker sends");
      return count;
    }
    peer.channel->Pop();
    if (!actions_.empty()) Perform();
  }
  return count;
}

bool Runtime::TakeReply(Peer& peer, std::string_view bytes) {
  ByteReader in(bytes);
  auto head = in.Fixed<ReplyHead>();
  if (!in.ok() || head.num_values > in.remaining() / sizeof(ValueHead)) return false;
  auto& values = values_scratch_;
  if (values.size() < head.num_values) values.resize(head.num_values);
  if (values.size() > head.num_values) values.resize(head.num_values);
  for (auto& value : values) {
    auto value_head = in.Fixed<ValueHead>();
    value.kind = static_cast<ValueKind>(value_head.kind);
    value.contained.clear();
    value.bytes = {};
    if (value.kind == ValueKind::kStored) {
      value.location = in.Fixed<Location>();
    } else if (value.kind == ValueKind::kInline) {
      value.bytes = in.Raw(value_head.size);
    } else {
      return false;
    }
    if (value_head.num_contained > in.remaining() / sizeof(ObjectId)) return false;
    for (uint32_t i = 0; i < value_head.num_contained; ++i) value.contained.push_back(in.Fixed<ObjectId>());
  }
  std::string_view error = in.Raw(head.error_size);
  if (!in.ok() || head.num_given_back > in.remaining() / sizeof(GivenBack)) return false;
  // Before the reply is handled, which lets go of what the task held.
  auto given_back = in.Raw(head.num_given_back * sizeof(GivenBack));
  if (head.num_retained > in.remaining() / sizeof(uint64_t)) return false;
  for (uint32_t i = 0; i < head.num_retained; ++i) {
    owner_->BorrowerMentioned({self(), in.Fixed<uint64_t>()}, peer.process, 1, actions_);
  }
  if (!in.ok() || !in.AtEnd()) return false;
  auto kind = static_cast<ReplyKind>(head.kind);
  if (kind == ReplyKind::kHandedBack || kind == ReplyKind::kHandedBackBlocked) ++stats_.handed_back;
  owner_->Replied(peer.process, head.task, kind, error, values, CoarseNowNs(), actions_);
  ByteReader back(given_back);
  for (uint32_t i = 0; i < head.num_given_back; ++i) {
    auto item = back.Fixed<GivenBack>();
    owner_->BorrowerMentioned({self(), item.index}, peer.process, -static_cast<int64_t>(item.count), actions_);
  }
  return true;
}

// ---- performing ---------------------------------------------------------------------------------------------------

void Runtime::Perform() {
  for (size_t i = 0; i < actions_.size(); ++i) {
    Action action = actions_[i];  // a copy: performing may add to the list
    switch (action.kind) {
      case ActionKind::kPush:
        if (!PushTask(action.worker, action.task)) owner_->PushRefused(action.task->handle, CoarseNowNs(), actions_);
        break;
      case ActionKind::kRevoke: {
        Task* task = owner_->FindTask(action.number);
        if (!task) break;
        Peer* peer = peer_of_worker_[action.worker];
        auto outcome = peer->channel->Revoke({task->ticket_offset, task->ticket_sequence});
        stats_.revoked += outcome == RevokeOutcome::kRevoked;
        owner_->RevokeResolved(action.number, outcome == RevokeOutcome::kRevoked, CoarseNowNs(), actions_);
        break;
      }
      case ActionKind::kRequestLeases:
        Send(RequestLeases{.shape = owner_->shape(action.worker),
                           .count = static_cast<uint32_t>(action.number),
                           .depth = owner_->depth()});
        if (background_idle_) doorbell_->WakeBackground();  // it has leases to watch from now on
        break;
      case ActionKind::kReturnLease:
        Send(ReturnLease{.lease = {action.number}});
        break;
      case ActionKind::kFreeStored:
        if (writer_.created() && action.location.segment == writer_.segment()) {
          writer_.Free(action.location);
          if (background_idle_) doorbell_->WakeBackground();  // it trims what stays unused
        } else {
          free_outbox_.push_back(action.location);
          has_outgoing_.store(true, std::memory_order_relaxed);
        }
        break;
      case ActionKind::kMention:
        Route(action.id.owner, {.kind = PeerMessageKind::kMention, .id = action.id, .process = action.process,
                                .count = action.number});
        break;
      case ActionKind::kGiveBack:
        Route(action.id.owner, {.kind = PeerMessageKind::kGiveBack, .id = action.id, .process = action.process,
                                .count = action.number});
        break;
      case ActionKind::kFetch:
        Route(action.id.owner, {.kind = PeerMessageKind::kAskValue, .id = action.id});
        break;
      case ActionKind::kSendValue: {
        PeerMessage answer{.kind = PeerMessageKind::kValue, .id = action.id};
        if (action.object) {
          const Value& value = action.object->value;
          answer.value_kind = static_cast<uint8_t>(value.kind());
          if (value.kind() == ValueKind::kStored) {
            answer.location = value.location();
          } else {
            answer.bytes = value.bytes();
          }
          if (action.object->contained) {
            for (Object* inner : *action.object->contained) answer.contained.push_back(inner->id);
          }
        } else {
          answer.value_kind = static_cast<uint8_t>(ValueKind::kSystemError);
          answer.bytes = "ObjectLostError\nits owner no longer has the object";
        }
        Route(action.process, answer);
        if (action.object) owner_->Unhold(action.object, actions_);
        break;
      }
      case ActionKind::kResolved: {
        auto it = callbacks_.find(action.object);
        if (it != callbacks_.end()) {
          for (void* cookie : it->second) {
            AddReference(action.object);
            events_.push_back({.kind = RuntimeEvent::kReady, .object = action.object, .cookie = cookie});
          }
          action.object->callbacks = 0;
          callbacks_.erase(it);
          front_events_.fetch_add(1);
          FutexWake(&front_events_);
        }
        if (others_waiting_ > 0) Bump();
        break;
      }
    }
  }
  actions_.clear();
}

bool Runtime::Define(Peer& peer, const TaskTemplate* what) {
  if (what->number < peer.defined.size() && peer.defined[what->number]) return true;
  ByteWriter out;
  out.Fixed(what->number);
  out.Fixed(what->function->key);
  out.Fixed(what->num_returns);
  out.Bytes(what->name);
  out.Bytes(what->function->name);
  out.Bytes(what->retry_exceptions);
  out.Fixed(what->function->stored_body);
  out.Bytes(what->function->body);
  uint8_t* room = peer.channel->BeginSend(static_cast<uint32_t>(out.size()));
  if (!room) return false;
  std::memcpy(room, out.view().data(), out.size());
  peer.channel->CommitSend(static_cast<uint8_t>(FrameType::kDefine), false, static_cast<uint32_t>(out.size()));
  if (peer.defined.size() <= what->number) peer.defined.resize(what->number + 1);
  peer.defined[what->number] = true;
  return true;
}

bool Runtime::PushTask(int32_t worker, Task* task) {
  Peer& peer = *peer_of_worker_[worker];
  if (peer.dead || !Define(peer, task->what)) return false;
  const uint32_t num_returns = task->what->num_returns;
  const uint32_t num_mentioned = task->mentioned ? static_cast<uint32_t>(task->mentioned->size()) : 0;
  uint32_t size = sizeof(TaskHead) + num_returns * sizeof(uint64_t) + num_mentioned * sizeof(ObjectId) +
                  task->arguments_size;
  for (uint32_t i = 0; i < task->num_dependencies; ++i) {
    const Value& value = task->dependencies[i]->value;
    size += sizeof(DependencyHead);
    if (value.kind() == ValueKind::kInline) size += static_cast<uint32_t>(value.bytes().size());
    if (value.kind() == ValueKind::kStored) size += sizeof(Location);
  }
  if (size > peer.channel->MaxFrameBytes()) {
    // Submit stores arguments that large; only a crowd of small ones passed by reference comes here.
    owner_->FailPushed(task->handle,
                       "UnschedulableError\nthe values passed by reference to task '" + task->what->name +
                           "' are together too large for one message; put them into one object with put()",
                       CoarseNowNs(), actions_);
    return true;
  }
  uint8_t* room = peer.channel->BeginSend(size);
  if (!room) return false;
  FrameWriter out(room);
  out.Put(TaskHead{.task = task->handle,
                   .template_number = task->what->number,
                   .arguments_size = task->arguments_size,
                   .num_returns = num_returns,
                   .num_dependencies = task->num_dependencies,
                   .num_mentioned = num_mentioned,
                   .attempt = task->attempt,
                   .depth = owner_->depth(),
                   .arguments_stored = 0});
  for (uint32_t i = 0; i < num_returns; ++i) out.Put(task->Return(i)->handle);
  for (uint32_t i = 0; i < num_mentioned; ++i) out.Put((*task->mentioned)[i]->id);
  for (uint32_t i = 0; i < task->num_dependencies; ++i) {
    const Object* object = task->dependencies[i];
    DependencyHead head{.id = object->id, .kind = static_cast<uint32_t>(DependencyKind::kEarlier), .size = 0};
    if (object->value.kind() == ValueKind::kInline) {
      head.kind = static_cast<uint32_t>(DependencyKind::kInline);
      head.size = static_cast<uint32_t>(object->value.bytes().size());
      out.Put(head);
      out.PutBytes(object->value.bytes());
    } else if (object->value.kind() == ValueKind::kStored) {
      head.kind = static_cast<uint32_t>(DependencyKind::kStored);
      head.size = sizeof(Location);
      out.Put(head);
      out.Put(object->value.location());
    } else {
      out.Put(head);
    }
  }
  out.PutBytes({task->arguments.get(), task->arguments_size});
  Ticket ticket = peer.channel->CommitSend(static_cast<uint8_t>(FrameType::kTask), true, size);
  task->ticket_offset = ticket.offset;
  task->ticket_sequence = ticket.sequence;
  if (!peer.to_notify) {
    peer.to_notify = true;
    to_notify_.push_back(&peer);
  }
  return true;
}

void Runtime::NotifyPeers(std::unique_lock<std::mutex>& lock) {
  // Ringing is a few loads and one atomic operation unless the worker sleeps, and then it is a system call: done after
  // unlocking. Most calls have one peer to ring.
  if (to_notify_.size() == 1) {
    Peer* peer = to_notify_[0];
    peer->to_notify = false;
    to_notify_.clear();
    lock.unlock();
    peer->channel->Notify(Audience::kExecutor);
  } else {
    std::vector<Peer*> peers;
    peers.swap(to_notify_);
    for (Peer* peer : peers) peer->to_notify = false;
    lock.unlock();
    for (Peer* peer : peers) peer->channel->Notify(Audience::kExecutor);
  }
  if (has_outgoing_.load(std::memory_order_relaxed)) Flush();
}

void Runtime::Send(Message message, std::vector<UniqueFd> fds) {
  outbox_.emplace_back(std::move(message), std::move(fds));
  has_outgoing_.store(true, std::memory_order_relaxed);
}

void Runtime::Route(ProcessId to, const PeerMessage& message) {
  if (peer_outbox_.empty() || peer_outbox_.back().first != to || peer_outbox_.back().second.size() > 64 * 1024) {
    peer_outbox_.emplace_back(to, std::string());
  }
  EncodePeerMessage(message, peer_outbox_.back().second);
  has_outgoing_.store(true, std::memory_order_relaxed);
}

void Runtime::Flush() {
  std::lock_guard sending(send_mutex_);
  std::vector<std::pair<Message, std::vector<UniqueFd>>> messages;
  std::vector<Peer*> peers;
  {
    std::lock_guard lock(mutex_);
    peers.swap(to_notify_);
    for (Peer* peer : peers) peer->to_notify = false;
    // Routed messages first: who borrows what must be told before the lease of the worker concerned is returned. Should
    // we die in between, it dies with us and is forgotten; after the return nobody would take it back.
    for (auto& [to, payload] : peer_outbox_) {
      messages.emplace_back(RouteTo{.to = to, .payload = std::move(payload)}, std::vector<UniqueFd>());
    }
    peer_outbox_.clear();
    for (auto& message : outbox_) messages.push_back(std::move(message));
    outbox_.clear();
    if (!free_outbox_.empty()) {
      messages.emplace_back(FreeObjects{.locations = std::move(free_outbox_)}, std::vector<UniqueFd>());
      free_outbox_.clear();
    }
    has_outgoing_.store(false, std::memory_order_relaxed);
    stats_.messages_sent += messages.size();
  }
  for (Peer* peer : peers) peer->channel->Notify(Audience::kExecutor);
  for (auto& [message, fds] : messages) {
    std::vector<SharedFd> shared;
    for (UniqueFd& fd : fds) shared.push_back(ShareFd(std::move(fd)));
    outgoing_->Queue(message, std::move(shared));
  }
  // If the daemon is gone, the link thread learns it and ends the session.
  if (!messages.empty()) SendQueued();
}

// ---- the link thread ----------------------------------------------------------------------------------------------

void Runtime::LinkLoop() {
  for (;;) {
    auto received = NextMessage();
    std::unique_lock lock(mutex_);
    if (!received) {
      if (is_worker_ && !stopped()) ::_exit(0);  // the daemon is gone, and user code may hold the GIL for ever
      if (!stopped()) Fail("the node daemon has ended unexpectedly");
    } else if (!stopped() || std::holds_alternative<WorkerOutput>(received->message)) {
      Handle(std::move(received->message), std::move(received->fds));
      if (!actions_.empty()) Perform();
    }
    bool end = !received;
    lock.unlock();
    Flush();
    doorbell_->WakeWaiter();
    Bump();
    if (end) return;
  }
}

void Runtime::Handle(Message message, std::vector<UniqueFd> fds) {
  if (auto* m = std::get_if<ChannelOpened>(&message)) {
    if (fds.size() != 2) return Fail("the node daemon announced a channel without its memory");
    auto bell = PeerDoorbell::Open(fds[1].get());
    if (!bell) return Fail(bell.error().message);
    auto channel = RingChannel::Open(fds[0].get(), m->first_side != 0, *bell, m->peer_slot);
    if (!channel) return Fail(channel.error().message);
    auto peer = std::make_unique<Peer>();
    peer->process = m->peer;
    peer->channel = std::move(*channel);
    peer->slot = m->own_slot;
    peer->submitter = m->first_side != 0;
    if (m->first_side != 0) {
      workers_[m->peer] = std::move(peer);
    } else {
      if (executor_) executor_->Adopt(peer.get());
      submitters_[m->peer] = std::move(peer);
    }
  } else if (auto* m = std::get_if<LeaseGranted>(&message)) {
    auto it = workers_.find(m->worker);
    if (it == workers_.end()) return Fail("the node daemon granted a lease without a channel");
    uint32_t shape = owner_->InternShape(m->shape);
    // The owner numbers workers in the order of their first lease.
    if (!owner_->FindWorker(m->worker)) peer_of_worker_.push_back(it->second.get());
    owner_->LeaseGranted(shape, m->lease, m->worker, CoarseNowNs(), actions_);
    if (background_idle_) doorbell_->WakeBackground();
  } else if (auto* m = std::get_if<LeaseRecalled>(&message)) {
    owner_->LeaseRecalled(m->lease, actions_);
  } else if (auto* m = std::get_if<LeaseRefused>(&message)) {
    owner_->LeaseRefused(owner_->InternShape(m->shape), m->why, actions_);
  } else if (auto* m = std::get_if<ProcessDied>(&message)) {
    // What the dead had replied still counts.
    if (auto it = workers_.find(m->process); it != workers_.end()) {
      DrainPeer(*it->second);
      it->second->dead = true;
    }
    if (auto it = submitters_.find(m->process); it != submitters_.end()) it->second->dead = true;
    std::string how = m->how.rfind("killed", 0) == 0 ? "was " + m->how : m->how;
    if (m->pid != 0) how = "(pid " + std::to_string(m->pid) + ") " + how;
    owner_->ProcessDied(m->process, how, CoarseNowNs(), actions_);
  } else if (auto* m = std::get_if<SegmentOpened>(&message)) {
    uint8_t& state = segment_states_[m->segment];
    if (fds.size() == 1 && reader_.Open(m->segment, OwnedFd(fds[0].Release())).ok()) {
      state = 2;
    } else {
      state = 3;
    }
  } else if (auto* m = std::get_if<MemoryReserved>(&message)) {
    auto asked = reserving_.find(m->request);
    if (asked == reserving_.end()) return Fail("the node daemon answered what was not asked");
    if (m->granted) {
      writer_.AddBudget(asked->second);
      reservations_.insert_or_assign(m->request, Result<bool>(true));
    } else {
      reservations_.insert_or_assign(m->request, Result<bool>(Error{ErrorKind::kFull, m->why_not}));
    }
    reserving_.erase(asked);
  } else if (auto* m = std::get_if<TrimMemory>(&message)) {
    if (uint64_t released = writer_.Trim(m->bytes)) Send(ReleaseMemory{.bytes = released});
  } else if (auto* m = std::get_if<Routed>(&message)) {
    // A process's routed messages come after its replies: what it replied before it sent this is in its ring.
    if (auto it = workers_.find(m->from); it != workers_.end()) DrainPeer(*it->second);
    HandlePeerMessages(m->from, m->payload);
  } else if (auto* m = std::get_if<ObjectsFreed>(&message)) {
    for (const Location& location : m->locations) writer_.Free(location);
    if (background_idle_) doorbell_->WakeBackground();
  } else if (auto* m = std::get_if<WorkerOutput>(&message)) {
    events_.push_back({.kind = RuntimeEvent::kOutput, .pid = m->pid, .is_stderr = m->is_stderr != 0,
                       .text = std::move(m->text)});
    front_events_.fetch_add(1);
    FutexWake(&front_events_);
  } else if (auto* m = std::get_if<Exit>(&message)) {
    if (executor_) {
      executor_->ExitWhenIdle(m->now != 0);
    } else {
      Fail("the node daemon ended the session");
    }
  }
}

void Runtime::HandlePeerMessages(ProcessId from, std::string_view payload) {
  std::vector<PeerMessage> messages;
  if (!DecodePeerMessages(payload, messages)) return;
  for (PeerMessage& m : messages) {
    switch (m.kind) {
      case PeerMessageKind::kMention:
        owner_->BorrowerMentioned(m.id, m.process, static_cast<int64_t>(m.count), actions_);
        break;
      case PeerMessageKind::kGiveBack:
        owner_->BorrowerMentioned(m.id, m.process, -static_cast<int64_t>(m.count), actions_);
        break;
      case PeerMessageKind::kAskValue:
        owner_->ValueAsked(m.id, from, actions_);
        break;
      case PeerMessageKind::kValue: {
        if (m.id.owner != from || m.value_kind == 0 || m.value_kind > 4) break;
        ReturnedValue value{.kind = static_cast<ValueKind>(m.value_kind), .bytes = m.bytes, .location = m.location,
                            .contained = std::move(m.contained)};
        owner_->ValueReceived(m.id, value, actions_);
        break;
      }
    }
    if (!actions_.empty()) Perform();
  }
}

// ---- the background thread ----------------------------------------------------------------------------------------

void Runtime::BackgroundLoop() {
  std::unique_lock lock(mutex_);
  bool followed_up = false;
  for (;;) {
    if (stopped()) return;
    // Leases and wishes must be watched; freed memory is given back after a while; otherwise sleep for good.
    int64_t deadline = kNoDeadline;
    if (owner_->NextTick() != 0 || owner_->AnyLeased()) {
      deadline = NowNs() + kTickNs;
    } else if (!followed_up) {
      deadline = NowNs() + kDropWakeNs + 5 * kMillisecondNs;  // drops that did not wake us
      followed_up = true;
    } else if (writer_.created() && writer_.HasIdleMemory(welcome_.reserved_bytes)) {
      deadline = NowNs() + 1'000 * kMillisecondNs;
    }
    background_idle_ = deadline == kNoDeadline;
    if (!polling_) ArmBackground();
    lock.unlock();
    Flush();
    auto slept = doorbell_->SleepAsBackground(deadline);
    lock.lock();
    background_idle_ = false;
    ++stats_.background_wakeups;
    if (stopped()) return;
    size_t taken = polling_ ? 0 : Drain();
    if (taken > 0 || slept == SleepOutcome::kWoken) followed_up = false;
    owner_->Tick(NowNs(), actions_);
    Perform();
    if (writer_.created()) {
      if (uint64_t released = writer_.TrimIdle(NowNs(), welcome_.reserved_bytes)) {
        Send(ReleaseMemory{.bytes = released});
      }
    }
    int64_t linger = kLingerNs;
    while (taken > 0 && !polling_ && !stopped()) {
      lock.unlock();
      Flush();
      SleepNs(linger);
      lock.lock();
      if (polling_) break;
      taken = Drain();
      linger = std::min(linger * 2, kMaxLingerNs);
    }
  }
}

// ---- for the front end --------------------------------------------------------------------------------------------

bool Runtime::NextEvent(RuntimeEvent* event) {
  for (;;) {
    uint32_t seen = front_events_.load();
    {
      std::lock_guard lock(mutex_);
      if (!events_.empty()) {
        *event = std::move(events_.front());
        events_.pop_front();
        return true;
      }
      if (finished_) return false;
    }
    FutexWait(&front_events_, seen, kNoDeadline);
  }
}

void Runtime::CallWhenReady(Object* object, void* cookie) {
  std::unique_lock lock(mutex_);
  if (object->resolved()) {
    AddReference(object);
    events_.push_back({.kind = RuntimeEvent::kReady, .object = object, .cookie = cookie});
    front_events_.fetch_add(1);
    FutexWake(&front_events_);
    return;
  }
  ++object->callbacks;
  callbacks_[object].push_back(cookie);
  owner_->Want(object, actions_);
  Perform();
  if (!polling_) ArmBackground();
  NotifyPeers(lock);
}

RuntimeStats Runtime::Stats() {
  std::lock_guard lock(mutex_);
  Drain();
  RuntimeStats stats = stats_;
  stats.live_tasks = owner_->live_tasks();
  stats.live_objects = owner_->live_objects();
  stats.ready_tasks = owner_->ready_tasks();
  for (const auto& worker : owner_->workers()) stats.leased_workers += worker.leased;
  if (writer_.created()) stats.store_allocated = writer_.counters().used_bytes;
  return stats;
}

}  // namespace weft::core
