#include "runtime/runtime.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "os/abstract_socket.h"
#include "os/cpu_count.h"
#include "os/futex.h"
#include "os/process_facts.h"
#include "os/socket.h"
#include "os/spawn.h"
#include "runtime/observation.h"
#include "wire/library_body.h"

namespace weft::core {
namespace {

constexpr int64_t kMillisecondNs = 1'000'000;
// Dropped references wake the background thread at most this often.
constexpr int64_t kDropWakeNs = 20 * kMillisecondNs;
// The daemon ends a session well within this; if it does not, it is killed.
constexpr int64_t kLeaveNs = 3'000 * kMillisecondNs;
// How long the daemon of a node may take to answer a driver, if it is not stopped: it may wait for a slow disk.
constexpr int64_t kWelcomeNs = 10'000 * kMillisecondNs;

std::atomic<bool> g_forked{false};
void MarkForked() { g_forked.store(true); }

}  // namespace

bool Runtime::forked() { return g_forked.load(std::memory_order_relaxed); }

Runtime::Runtime() {
  // Not std::call_once: it uses thread-local variables of libstdc++, which code that is compiled for the initial-exec
  // model (CMakeLists.txt) may not if libweft.so is loaded late.
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, MarkForked);
}

// ---- beginning and end --------------------------------------------------------------------------------------------

Result<std::unique_ptr<Runtime>> Runtime::StartSession(SessionOptions options) {
  std::unique_ptr<Runtime> runtime(new Runtime());
  if (!options.address.empty()) {
    if (Status status = runtime->ConnectToNode(options.address); !status) return status.error();
    runtime->leave_by_ns_ = NowNs() + kAnswerNs;
  } else {
    auto pair = StreamSocketPair();
    if (!pair) return pair.error();
    runtime->socket_ = std::move(pair->first);
    auto pid = SpawnWithSocket({options.daemon_path, "node"}, pair->second.get());
    if (!pid) return pid.error();
    runtime->daemon_pid_ = *pid;
    pair->second.Reset();
  }
  if (auto status = runtime->Handshake(options.open); !status.ok()) {
    runtime->Stop();
    return status.error();
  }
  runtime->StartThreads();
  return runtime;
}

Status Runtime::ConnectToNode(const std::string& address) {
  std::string wanted = address;
  if (wanted.rfind("localhost:", 0) == 0) wanted.replace(0, 9, "127.0.0.1");
  std::vector<NodeSocket> nodes = FindNodeSockets(::geteuid());
  std::erase_if(nodes, [](const NodeSocket& node) { return node.number == 0; });  // they look for their head, or wait
  std::vector<std::string> clusters;
  for (const NodeSocket& node : nodes) {
    auto same = [&](const std::string& cluster) { return NamesSameCluster(cluster, node.cluster); };
    if (std::none_of(clusters.begin(), clusters.end(), same)) clusters.push_back(node.cluster);
  }
  std::string list;
  for (const std::string& cluster : clusters) list += (list.empty() ? "" : ", ") + cluster;
  if (wanted == "auto" && clusters.size() > 1) {
    return Error{ErrorKind::kInvalid, "this machine belongs to several clusters (" + list +
                                          "); give the address of one of them instead of \"auto\""};
  }
  // Chooses one of several nodes on one machine by its daemon's pid: for tests that simulate many machines.
  const char* chosen = std::getenv("WEFT_NODE");
  std::erase_if(nodes, [&](const NodeSocket& node) {
    return (wanted != "auto" && !NamesSameCluster(wanted, node.cluster)) ||
           (chosen != nullptr && std::to_string(node.daemon) != chosen);
  });
  // Among several nodes on one machine, a stopped one is the last choice.
  std::stable_partition(nodes.begin(), nodes.end(), [](const NodeSocket& node) { return !IsStopped(node.listener); });
  const int64_t deadline_ns = NowNs() + kAnswerNs;
  for (const NodeSocket& node : nodes) {
    auto socket = ConnectToDaemon(node.name, ::geteuid(), node.daemon, deadline_ns);
    if (socket) {
      socket_ = std::move(*socket);
      return {};
    }
    if (socket.error().kind == ErrorKind::kTimeout && &node == &nodes.back()) {
      return Error{ErrorKind::kTimeout, DescribeSilence(node.daemon, kAnswerNs)};
    }
  }
  std::string why = wanted == "auto" ? "no node of a cluster runs on this machine"
                                     : "no node of the cluster " + address + " runs on this machine";
  if (!list.empty()) why += " (there are nodes of " + list + ")";
  return Error{ErrorKind::kGone, why +
                                     "; start one with `weft start --head`, or join the cluster with `weft start "
                                     "--address=" +
                                     (wanted == "auto" ? "HOST:PORT" : address) + "`"};
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
  if (!received && leave_by_ns_ != 0 && incoming_->state() == MessageStream::State::kOpen) {
    auto peer = PeerPid(socket_.get());
    const pid_t daemon = peer ? *peer : 0;
    if (IsStopped(daemon)) return Error{ErrorKind::kTimeout, DescribeSilence(daemon, kAnswerNs)};
    leave_by_ns_ = NowNs() + kWelcomeNs - kAnswerNs;
    SendQueued();
    received = NextMessage();
    if (!received && incoming_->state() == MessageStream::State::kOpen) {
      return Error{ErrorKind::kTimeout, DescribeSilence(daemon, kWelcomeNs)};
    }
  }
  leave_by_ns_ = 0;
  if (!received) return Error{ErrorKind::kGone, "the node daemon ended before it was ready"};
  if (auto* refused = std::get_if<SessionRefused>(&received->message)) return Error{ErrorKind::kInvalid, refused->why};
  auto* welcome = std::get_if<Welcome>(&received->message);
  if (!welcome || received->fds.empty() || received->fds.size() > 2) {
    return Error{ErrorKind::kGone, "the node daemon answered with something else"};
  }
  welcome_ = *welcome;
  inquiries_.set_self(welcome_.process);
  long_waits_.set_self(welcome_.process);
  auto doorbell = Doorbell::Open(received->fds[0].get());
  if (!doorbell) return doorbell.error();
  doorbell_ = std::move(*doorbell);
  // The second descriptor is the event log, unless events are switched off.
  if (received->fds.size() == 2) {
    if (auto status = log_.Open(received->fds[1].get()); !status.ok()) return status;
  }
  waiters_.set_doorbell(doorbell_.get());
  owner_ = std::make_unique<Owner>(welcome_.process);
  in_cluster_ = static_cast<bool>(NodeOf(welcome_.process));
  allowed_cpus_ = static_cast<uint32_t>(std::max(1, static_cast<int>(AllowedCpus())));
  owner_->cores = allowed_cpus_;
  writer_.AddBudget(welcome_.reserved_bytes);
  return {};
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
      Send(CloseSession{});
      leave_by_ns_ = NowNs() + kLeaveNs;
    }
    stopped_.store(true, std::memory_order_release);
  }
  if (daemon_pid_ > 0) ::kill(daemon_pid_, SIGCONT);  // if it is stopped: it must end the session normally
  if (running) {
    Flush();
    {
      std::lock_guard lock(mutex_);
      waiters_.WakeAll();
    }
    doorbell_->WakeBackground();
    background_thread_.join();
    // The daemon sends the workers' last output and closes; the link thread reads until then.
    if (is_worker_) ::shutdown(socket_.get(), SHUT_RDWR);
    // A daemon that does not end is killed, and then the link thread reads the end.
    if (daemon_pid_ > 0) {
      WaitForChild(daemon_pid_, NowNs() + kLeaveNs);
      daemon_pid_ = -1;
    }
    link_thread_.join();
    if (streams_) streams_->Stop();  // the link thread may have started it until now
  }
  if (socket_.valid()) ::shutdown(socket_.get(), SHUT_RDWR);
  EndEvents(Receiver::kFrontEnd);
  EndEvents(Receiver::kHosted);
  if (daemon_pid_ > 0) {
    // It ends on its own within moments; wait, so that nothing of the session is left when Stop returns.
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
  waiters_.WakeAll();
}

// ---- functions and tasks ------------------------------------------------------------------------------------------

Result<const Function*> Runtime::InternFunction(const FunctionKey& key, std::string name, std::string_view body) {
  {
    std::lock_guard lock(mutex_);
    if (const Function* known = owner_->FindFunction(key)) return known;
  }
  const bool in_library = IsLibraryBody(body);
  if (in_library && in_cluster_) ShareLibrary(body);
  Function function{.key = key, .name = std::move(name)};
  if (body.size() <= kMaxInlineBytes || in_library) {
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
  what.event_name = log_.NameId(what.name);
  return owner_->InternTemplate(std::move(what));
}

void Runtime::Submit(const TaskTemplate* what, std::string_view arguments, std::span<Object* const> dependencies,
                     std::span<Object* const> contained, Object** returns) {
  std::unique_lock lock(mutex_);
  Submission submission{.what = what, .arguments = arguments, .parent = CurrentExecution()};
  if (!dependencies.empty()) submission.dependencies.assign(dependencies.begin(), dependencies.end());
  if (!contained.empty()) submission.contained.assign(contained.begin(), contained.end());
  // The clock is read for lease bookkeeping only, so the cheap one does.
  returns_scratch_.clear();
  owner_->Submit(submission, CoarseNowNs(), returns_scratch_, actions_);
  if (log_.on()) NoteSubmitted(what, dependencies);
  std::copy(returns_scratch_.begin(), returns_scratch_.end(), returns);
  Perform();
  stats_.tasks_submitted++;
  if ((++submits_ & 15) == 0) Drain();  // keeps the pipelines moving in a long loop of submissions
  NotifyPeers(lock);
}

void Runtime::NoteSubmitted(const TaskTemplate* what, std::span<Object* const> dependencies) {
  const uint64_t task = owner_->last_task();
  log_.Submitted(task, returns_scratch_.empty() ? 0 : returns_scratch_[0]->id.index, what->event_name);
  for (size_t i = 1; i < returns_scratch_.size(); ++i) log_.Returns(task, returns_scratch_[i]->id.index);
  for (const Object* object : dependencies) log_.Depends(task, object->id);
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

Object* Runtime::PutError(ValueKind kind, std::string_view error) {
  std::unique_lock lock(mutex_);
  Object* object = owner_->NewOwned();
  owner_->Resolve(object, kind, error, {}, {}, actions_);
  NotifyPeers(lock);
  return object;
}

Status Runtime::Reserve(std::unique_lock<std::mutex>& lock, uint64_t bytes) {
  uint64_t request = next_reservation_++;
  reserving_[request] = {.bytes = bytes};
  Send(ReserveMemory{.bytes = bytes, .request = request});
  auto outcome =
      WaitForNews(lock, -1, [&] { return reservations_.contains(request); }, {.when = Lends::When::kForMemory});
  if (outcome == WaitOutcome::kStopped) return Error{ErrorKind::kGone, "the session has ended"};
  if (outcome == WaitOutcome::kInterrupted) {
    // The answer, when it comes, is simply more budget.
    if (auto asked = reserving_.find(request); asked != reserving_.end()) asked->second.awaited = false;
    reservations_.erase(request);
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
  const bool announces = !segment_announced_;
  if (announces) {
    auto fd = writer_.Create(welcome_.process, SegmentSizeFor(welcome_.object_store_bytes));
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
  if (announces) Flush();  // it may have waited and lent its CPU, which is in use again
  for (;;) {
    uint64_t missing = 0;
    // The id of an object that is put is known when it is sealed; the body of a function is no object.
    auto allocation = writer_.Allocate(id ? id : ObjectId{self(), kForSession}, size, populate, &missing);
    if (allocation) return StoreRoom{allocation->data, allocation->location, *allocation};
    if (allocation.error().kind != ErrorKind::kFull || missing == 0) return allocation.error();
    // For something that can never fit, ask for the whole size: our budget does not make it fit, and the refusal names
    // it.
    if (size > welcome_.object_store_bytes) missing = size;
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
  std::unique_lock lock(mutex_);
  Object* object = owner_->NewOwned();
  writer_.Seal(room.location, object->id.index);
  owner_->Resolve(object, ValueKind::kStored, {}, room.location, {contained.begin(), contained.end()}, actions_);
  Perform();
  NotifyPeers(lock);
  return object;
}

Object* Runtime::FindReference(ObjectId id) {
  Object* object = nullptr;
  FindReferences({&id, 1}, &object);
  return object;
}

void Runtime::FindReferences(std::span<const ObjectId> ids, Object** found) {
  std::unique_lock lock(mutex_);
  for (size_t i = 0; i < ids.size(); ++i) found[i] = FindLocked(ids[i]);
  NotifyPeers(lock);
}

Object* Runtime::FindLocked(ObjectId id) {
  Object* object = owner_->Find(id);
  if (object) {
    AddReference(object);
    return object;
  }
  if (id.owner == self() || !id) return nullptr;
  // A reference captured by a function, which its definer holds for good: this process registers itself with the owner.
  object = owner_->Receive(id, 1);
  if (!object->resolved()) {
    Route(id.owner, {.kind = PeerMessageKind::kAddBorrower, .id = id, .process = self(), .count = 1});
  }
  return object;
}

void Runtime::HoldOrphan(ObjectId id) {
  std::unique_lock lock(mutex_);
  if (!owner_->MustBeRegistered(id)) return;
  const uint64_t question = questions_.Begin();
  owner_->Registered(id);
  Send(core::HoldOrphan{.request = question, .object = id});
  // Nothing is to be done if the session has ended instead.
  static_cast<void>(AwaitAnswer<OrphanHeld>(lock, question, {}));
}

void Runtime::DropReference(Object* object) {
  uint32_t count = object->local_references.load(std::memory_order_acquire);
  while (count > 1) {
    if (object->local_references.compare_exchange_weak(count, count - 1, std::memory_order_release,
                                                       std::memory_order_acquire)) {
      return;
    }
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
  if (in_cluster_ && IsElsewhere(location)) {
    auto copy = CopyFor(location);
    if (!copy) return copy.error();
    return MapStored(*copy);
  }
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
    auto outcome = WaitForNews(lock, -1, [&] { return segment_states_[location.segment] != 1; });
    if (outcome == WaitOutcome::kStopped) return Error{ErrorKind::kGone, "the session has ended"};
    if (outcome == WaitOutcome::kInterrupted) return Error{ErrorKind::kTimeout, "interrupted"};
    if (!reader_.IsOpen(location.segment)) {
      return Error{ErrorKind::kGone, "the memory that held the object no longer exists"};
    }
  }
  auto data = reader_.Resolve(location);
  if (data) reader_.ReleaseView(location.segment);  // the object's reference keeps the range, and the segment mapped
  return data;
}

Result<ValueView> Runtime::Read(Object* object) {
  ValueView view;
  view.kind = object->value.kind();
  if (view.kind == ValueKind::kPending) return ReadElsewhere(object);  // it was resolved, and is being made again
  if (view.kind != ValueKind::kStored) {
    view.bytes = object->value.bytes();  // does not change once resolved
    return view;
  }
  if (object->place.load(std::memory_order_acquire) != Place::kHere) return ReadElsewhere(object);
  const Location location = object->value.location();
  auto data = MapStored(location);
  if (!data) return data.error();
  view.stored = true;
  view.bytes = {reinterpret_cast<const char*>(*data), location.size};
  return view;
}

// ---- for the front end --------------------------------------------------------------------------------------------

bool Runtime::NextEvent(RuntimeEvent* event, Receiver receiver) {
  Events& events = events_[static_cast<size_t>(receiver)];
  for (;;) {
    uint32_t seen = events.changed.load();
    {
      std::lock_guard lock(mutex_);
      if (!events.queue.empty()) {
        *event = std::move(events.queue.front());
        events.queue.pop_front();
        return true;
      }
      if (events.ended) return false;
    }
    FutexWait(&events.changed, seen, kNoDeadline);
  }
}

void Runtime::EndEvents(Receiver receiver) {
  Events& events = events_[static_cast<size_t>(receiver)];
  {
    std::lock_guard lock(mutex_);
    events.ended = true;
  }
  events.changed.fetch_add(1);
  FutexWake(&events.changed, INT32_MAX);
}

void Runtime::Raise(RuntimeEvent event, Receiver receiver) {
  Events& events = events_[static_cast<size_t>(receiver)];
  events.queue.push_back(std::move(event));
  events.changed.fetch_add(1);
  // Its one thread sleeps only if it has found the queue empty.
  if (events.queue.size() == 1) FutexWake(&events.changed);
}

void Runtime::CallWhenReady(Object* object, void* cookie, Receiver receiver) {
  std::unique_lock lock(mutex_);
  if (object->settled()) {
    AddReference(object);
    Raise({.kind = RuntimeEvent::kReady, .object = object, .cookie = cookie}, receiver);
    return;
  }
  ++object->callbacks;
  callbacks_[object].push_back({.receiver = receiver, .cookie = cookie});
  owner_->WantHere(object, actions_);
  Perform();
  if (!waiters_.poller()) ArmBackground();
  NotifyPeers(lock);
}

void Runtime::Watch(const std::shared_ptr<Completions>& to, std::span<const Watched> objects) {
  std::unique_lock lock(mutex_);
  for (const Watched& watched : objects) {
    if (watched.object->settled()) {
      to->ready.push_back(watched.number);
      continue;
    }
    ++watched.object->callbacks;
    callbacks_[watched.object].push_back({.completions = to, .number = watched.number});
    owner_->WantHere(watched.object, actions_);
  }
  Perform();
  NotifyPeers(lock);
}

void Runtime::Unwatch(const std::shared_ptr<Completions>& to, std::span<const Watched> objects) {
  std::unique_lock lock(mutex_);
  for (const Watched& watched : objects) {
    auto it = callbacks_.find(watched.object);
    if (it == callbacks_.end()) continue;
    watched.object->callbacks -=
        static_cast<uint32_t>(std::erase_if(it->second, [&](const Callback& call) { return call.completions == to; }));
    if (it->second.empty()) callbacks_.erase(it);
  }
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
