// Runtime: the link to the node daemon. Sends what was queued, and handles what the daemon says.
#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "os/futex.h"
#include "runtime/executor.h"
#include "runtime/runtime.h"

namespace weft::core {
namespace {

constexpr int64_t kMillisecondNs = 1'000'000;
// How long the bytes of a dead process may still be on their way. Longer than TCP takes to send a lost packet again.
constexpr int64_t kEndNs = 500 * kMillisecondNs;
constexpr int64_t kShortEndNs = 5 * kMillisecondNs;
constexpr int64_t kLateEndsTogetherNs = 10'000 * kMillisecondNs;

}  // namespace

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
    int64_t leave_by = leave_by_ns_.load();
    if (leave_by != 0 && NowNs() > leave_by) return;
    pollfd writable{outgoing_->fd(), POLLOUT, 0};
    ::poll(&writable, 1, leave_by != 0 ? 100 : -1);
  }
}

// Takes in what a dead process had sent before its death is handled. Its kernel has closed the connection by the time
// that its daemon hears of the death, so this waits only for bytes on their way. If its whole machine is gone, or a
// child of it still has the socket, it waits for a moment, and no longer than that for many at once.
void Runtime::EndStreams(ProcessId dead) {
  if (!streams_) return;
  std::vector<std::shared_ptr<SharedStream>> ending;
  {
    std::lock_guard lock(mutex_);
    for (auto* peers : {&workers_, &submitters_}) {
      auto it = peers->find(dead);
      if (it != peers->end() && it->second->channel.stream()) ending.push_back(it->second->channel.shared_stream());
    }
  }
  for (const auto& stream : ending) {
    const int64_t now = NowNs();
    const bool late = late_end_ns_ != 0 && now - late_end_ns_ < kLateEndsTogetherNs;
    if (!stream->AwaitEnd(now + (late ? kShortEndNs : kEndNs))) late_end_ns_ = NowNs();
  }
}

void Runtime::LinkLoop() {
  for (;;) {
    auto received = NextMessage();
    if (received) {
      if (auto* died = std::get_if<ProcessDied>(&received->message)) EndStreams(died->process);
    }
    std::unique_lock lock(mutex_);
    if (!received) {
      if (is_worker_ && !stopped()) ::_exit(0);  // the daemon is gone, and user code may hold the GIL for ever
      if (!stopped()) Fail("the node daemon has ended unexpectedly");
    } else if (!stopped() || std::holds_alternative<WorkerOutput>(received->message)) {
      Handle(std::move(received->message), std::move(received->fds));
      if (!actions_.empty()) Perform();
    }
    if (!forgotten_.empty()) FreeForgotten();
    waiters_.NewsCame();
    bool end = !received;
    lock.unlock();
    Flush();
    waiters_.TellPoller();
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
    peer->channel = PeerChannel(std::move(*channel));
    AddPeer(std::move(peer), m->first_side != 0);
  } else if (auto* m = std::get_if<StreamOpened>(&message)) {
    if (fds.size() != 1 || m->own_slot >= kDoorbellSlots) {
      return Fail("the node daemon announced a stream without its socket");
    }
    if (!streams_) {
      auto started = StreamPoller::Start(doorbell_->memory());
      if (!started) return Fail(started.error().message);
      streams_ = std::move(*started);
      stream_poller_.store(streams_.get(), std::memory_order_release);
    }
    auto peer = std::make_unique<Peer>();
    peer->process = m->peer;
    // A submitter receives replies, a worker tasks.
    auto stream = std::make_shared<SharedStream>(std::move(fds[0]), *streams_, m->own_slot,
                                                 m->first_side != 0 ? Audience::kAnyone : Audience::kExecutor);
    peer->channel = PeerChannel(stream);
    AddPeer(std::move(peer), m->first_side != 0);
    if (auto status = streams_->Add(stream); !status.ok()) return Fail(status.error().message);
  } else if (auto* m = std::get_if<LeaseGranted>(&message)) {
    auto it = workers_.find(m->worker);
    if (it == workers_.end() && !owner_->IsDead(m->worker)) {
      return Fail("the node daemon granted a lease without a channel");
    }
    uint32_t shape = owner_->InternShape(m->shape);
    owner_->LeaseGranted(shape, m->lease, m->worker, CoarseNowNs(), actions_, m->gpus);
    if (it != workers_.end()) NumberPeer(it->second.get());
    if (background_idle_) doorbell_->WakeBackground();
  } else if (auto* m = std::get_if<ActorChanged>(&message)) {
    auto state = static_cast<ActorState>(m->state);
    const bool has_worker = state == ActorState::kStarting || state == ActorState::kAlive;
    auto it = has_worker ? workers_.find(m->worker) : workers_.end();
    if (has_worker && it == workers_.end() && !owner_->IsDead(m->worker)) {
      // Nothing can be sent to it, so to this process it is dead; if this process must construct it, it is dead to all.
      if (m->construct != 0) Send(core::KillActor{.actor = m->actor, .no_restart = 1});
      m->state = static_cast<uint8_t>(ActorState::kDead);
      m->why = "it cannot be reached: this process has no channel to its worker, process " + ToString(m->worker);
      m->worker = ProcessId{};
    }
    owner_->ActorReported(*m, CoarseNowNs(), actions_);
    if (it != workers_.end()) NumberPeer(it->second.get());
  } else if (auto* m = std::get_if<ActorAnswer>(&message)) {
    const ActorAnswer answer = *m;
    auto unwanted = questions_.Answered(answer.request, std::move(message));
    if (unwanted && *unwanted) LetGoOfUnwanted(*unwanted, answer);
  } else if (auto* m = std::get_if<ActorList>(&message)) {
    questions_.Answered(m->request, std::move(message));
  } else if (auto* m = std::get_if<LibraryAnswer>(&message)) {
    questions_.Answered(m->request, std::move(message));
  } else if (auto* m = std::get_if<LeaseRecalled>(&message)) {
    owner_->LeaseRecalled(m->lease, actions_);
  } else if (auto* m = std::get_if<LeaseRefused>(&message)) {
    owner_->LeaseRefused(owner_->InternShape(m->shape), m->why, actions_);
  } else if (auto* m = std::get_if<ProcessDied>(&message)) {
    // The replies of the dead process still count.
    if (auto it = workers_.find(m->process); it != workers_.end()) {
      Peer& peer = *it->second;
      DrainPeer(peer);
      HandleHeldBack(peer);
      peer.dead = true;
    }
    if (auto it = submitters_.find(m->process); it != submitters_.end()) {
      it->second->dead = true;
      if (executor_) executor_->SubmitterEnded();
    }
    std::string how = m->how.rfind("killed", 0) == 0 ? "was " + m->how : m->how;
    if (m->pid != 0) how = "(pid " + std::to_string(m->pid) + ") " + how;
    owner_->ProcessDied(m->process, how, CoarseNowNs(), actions_);
    Perform();
    if (!owner_->FindWorker(m->process)) ForgetWorker(m->process);
    inquiries_.AbandonAll();
    FindOrphans(m->process);
  } else if (auto* m = std::get_if<SegmentOpened>(&message)) {
    uint8_t& state = segment_states_[m->segment];
    if (fds.size() == 1 && reader_.Open(m->segment, std::move(fds[0])).ok()) {
      state = 2;
    } else {
      state = 3;
    }
  } else if (auto* m = std::get_if<SegmentClosed>(&message)) {
    closed_segments_.insert(m->segment);
    DropClosedSegments();
  } else if (auto* m = std::get_if<ObjectFetched>(&message)) {
    CopyArrived(m->request, m->location);
  } else if (auto* m = std::get_if<ObjectUnfetchable>(&message)) {
    CopyFailed(m->request, m->error, m->node_gone != 0);
  } else if (auto* m = std::get_if<MemoryReserved>(&message)) {
    auto asked = reserving_.find(m->request);
    if (asked == reserving_.end()) return Fail("the node daemon answered what was not asked");
    if (m->granted) writer_.AddBudget(asked->second.bytes);
    if (asked->second.awaited) {
      reservations_.insert_or_assign(m->request, m->granted ? Result<bool>(true) : Error{ErrorKind::kFull, m->why_not});
    }
    reserving_.erase(asked);
  } else if (auto* m = std::get_if<TrimMemory>(&message)) {
    if (uint64_t released = writer_.Trim(m->bytes)) Send(ReleaseMemory{.bytes = released});
  } else if (auto* m = std::get_if<Routed>(&message)) {
    // A process's routed messages come after its replies: replies that it wrote before this message are in its ring. On
    // a stream some may still be on their way; then the message waits for them (kAfter).
    if (auto it = workers_.find(m->from); it != workers_.end()) DrainPeer(*it->second);
    HandlePeerMessages(m->from, m->payload);
  } else if (auto* m = std::get_if<ObjectsFreed>(&message)) {
    uint64_t freed = 0;
    for (const Location& location : m->locations) {
      writer_.Free(location);
      freed += location.size;
    }
    // While this process waits for room, the daemon asks all processes but this one (MemoryBudget), so it gives
    // unasked.
    if (uint64_t released = reserving_.empty() ? 0 : writer_.Trim(freed)) Send(ReleaseMemory{.bytes = released});
    if (background_idle_) doorbell_->WakeBackground();
  } else if (auto* m = std::get_if<AskHeld>(&message)) {
    AnswerHeld(m->owner);
  } else if (auto* m = std::get_if<OrphanHeld>(&message)) {
    questions_.Answered(m->request, std::move(message));
  } else if (auto* m = std::get_if<ResultsLeft>(&message)) {
    // After the writer's death, so all its replies were taken.
    owner_->ResultsLeft(m->objects, actions_);
  } else if (auto* m = std::get_if<WorkerOutput>(&message)) {
    Raise({.kind = RuntimeEvent::kOutput,
           .pid = m->pid,
           .is_stderr = m->is_stderr != 0,
           .text = std::move(m->text),
           .name = std::move(m->name)});
  } else if (auto* m = std::get_if<AskState>(&message)) {
    Send(StateReport{.request = m->request, .report = ReportState(m->limit)});
  } else if (auto* m = std::get_if<ShapeAnswer>(&message)) {
    inquiries_.ShapeAnswered(m->request, m->fact);
  } else if (auto* m = std::get_if<Exit>(&message)) {
    if (executor_) {
      executor_->ExitWhenIdle(m->now != 0);
    } else {
      Fail(m->why.empty() ? "the node daemon ended the session" : m->why);
    }
  }
}

// No process may be left to free what this one has written for a dead owner, or for all of a node. A result that is
// being written is not included: the thread that seals it checks afterwards whether its owner lives (Executor::Reply).
void Runtime::FindOrphans(ProcessId dead) {
  if (!writer_.created()) return;
  const bool is_node = dead == DaemonOf(NodeOf(dead));
  auto orphans =
      writer_.ObjectsOf([&](ProcessId owner) { return owner == dead || (is_node && NodeOf(owner) == NodeOf(dead)); });
  for (size_t at = 0; at < orphans.size(); at += kMaxOrphansListed) {
    const size_t end = std::min(orphans.size(), at + kMaxOrphansListed);
    Send(OrphansFound{
        .objects = {orphans.begin() + static_cast<ptrdiff_t>(at), orphans.begin() + static_cast<ptrdiff_t>(end)}});
  }
}

void Runtime::AnswerHeld(ProcessId owner) {
  DrainDrops();
  Perform();
  const std::vector<uint64_t> held = owner_->HeldOf(owner);
  size_t at = 0;
  do {
    const size_t end = std::min(held.size(), at + kMaxOrphansListed);
    Send(HeldObjects{.owner = owner,
                     .indexes = {held.begin() + static_cast<ptrdiff_t>(at), held.begin() + static_cast<ptrdiff_t>(end)},
                     .more = static_cast<uint8_t>(end < held.size() ? 1 : 0)});
    at = end;
  } while (at < held.size());
}

// The owner numbers workers as it meets them; it need not meet the worker of an actor that it has dropped.
void Runtime::NumberPeer(Peer* peer) {
  const LeasedWorker* worker = owner_->FindWorker(peer->process);
  if (!worker) return;
  const auto number = static_cast<size_t>(worker - owner_->workers().data());
  if (peer_of_worker_.size() <= number) peer_of_worker_.resize(number + 1);
  peer_of_worker_[number] = peer;
}

void Runtime::ForgetWorker(ProcessId process) {
  auto found = workers_.find(process);
  if (found == workers_.end()) return;
  Peer* peer = found->second.get();
  if (peer->to_notify) std::erase(to_notify_, peer);
  std::erase(lost_peers_, peer);
  std::erase(holding_back_, peer);
  forgotten_.push_back(std::move(found->second));
  workers_.erase(found);
}

// Not from within Perform, which draining such a channel may have called. A polling thread looks at the channels of
// due_list_ without the lock; once woken, it drains.
void Runtime::FreeForgotten() {
  if (waiters_.poller()) return waiters_.TellPoller();
  due_list_.clear();
  std::erase_if(forgotten_, [](const auto& peer) {
    return peer->notices_ended.load(std::memory_order_acquire) == peer->notices_begun;
  });
}

// The daemon does not close a segment while a process has a reference to an object in it. This function does not rely
// on that and checks. That takes a pass over all objects, so several segments share one.
void Runtime::DropClosedSegments() {
  constexpr size_t kObjectsForOne = 1000;
  if (closed_segments_.size() * kObjectsForOne < owner_->live_objects()) return;
  std::set<SegmentId> used;
  owner_->ForEachObject([&](Object* object) {
    if (object->value.kind() == ValueKind::kStored && closed_segments_.contains(object->value.location().segment)) {
      used.insert(object->value.location().segment);
    }
  });
  for (SegmentId segment : closed_segments_) {
    if (used.contains(segment)) continue;
    reader_.Drop(segment);
    segment_states_.erase(segment);
  }
  closed_segments_ = std::move(used);
}

void Runtime::AddPeer(std::unique_ptr<Peer> peer, bool first_side) {
  const ProcessId process = peer->process;
  if (first_side) {
    workers_[process] = std::move(peer);
  } else {
    if (executor_) executor_->Adopt(peer.get());
    submitters_[process] = std::move(peer);
  }
}

void Runtime::HandlePeerMessages(ProcessId from, std::string_view payload) {
  std::vector<PeerMessage> messages;
  if (!DecodePeerMessages(payload, messages)) return;
  auto worker = workers_.find(from);
  if (worker != workers_.end() && worker->second->channel.stream()) {
    Peer& peer = *worker->second;
    if (peer.held_back.empty()) holding_back_.push_back(&peer);
    for (PeerMessage& message : messages) peer.held_back.push_back(std::move(message));
    return HandleHeldBack(peer);
  }
  for (PeerMessage& message : messages) HandlePeerMessage(from, message);
}

void Runtime::HandleHeldBack(Peer& peer) {
  if (peer.held_back.empty()) return;
  SharedStream& stream = *peer.channel.stream();
  while (!peer.held_back.empty()) {
    PeerMessage& first = peer.held_back.front();
    if (first.kind == PeerMessageKind::kAfter) {
      const auto missing = static_cast<int32_t>(static_cast<uint32_t>(first.count) - stream.popped_frames());
      Frame frame;
      if (missing > 0 && !(stream.receive_ended() && !stream.Peek(&frame))) return;
    }
    PeerMessage message = std::move(first);
    peer.held_back.pop_front();
    HandlePeerMessage(peer.process, message);
  }
  std::erase(holding_back_, &peer);
}

void Runtime::HandlePeerMessage(ProcessId from, PeerMessage& m) {
  switch (m.kind) {
    case PeerMessageKind::kAfter:
      break;  // it is
    case PeerMessageKind::kAddBorrower:
      owner_->BorrowsChanged(m.id, m.process, static_cast<int64_t>(m.count), actions_);
      break;
    case PeerMessageKind::kRemoveBorrower:
      owner_->BorrowsChanged(m.id, m.process, -static_cast<int64_t>(m.count), actions_);
      break;
    case PeerMessageKind::kAskValue:
      owner_->ValueAsked(m.id, from, actions_);
      // A task lends its CPU only while it waits for something pending, and the borrower cannot know otherwise.
      if (Object* object = owner_->Find(m.id); object && !object->borrowed && !object->resolved()) {
        Route(from, {.kind = PeerMessageKind::kNotYet, .id = m.id});
      }
      break;
    case PeerMessageKind::kNotYet:
      if (Object* object = owner_->Find(m.id); object && object->borrowed && m.id.owner == from) {
        object->known_pending = true;
      }
      break;
    case PeerMessageKind::kAskAgain:
      owner_->ValueAskedAgain(m.id, from, m.location, actions_);
      break;
    case PeerMessageKind::kCancelObject:
      if (Object* object = owner_->Find(m.id); object && !object->borrowed) {
        owner_->Cancel(object, (m.count & 1) != 0, (m.count & 2) != 0, CoarseNowNs(), actions_);
      }
      break;
    case PeerMessageKind::kCancelTask:
      if (executor_) executor_->CancelRunning(from, m.id.index, (m.count & 1) != 0, (m.count & 2) != 0);
      break;
    case PeerMessageKind::kValue: {
      if (m.id.owner != from || m.value_kind == 0 || m.value_kind > 4) break;
      ReturnedValue value{.kind = static_cast<ValueKind>(m.value_kind),
                          .bytes = m.bytes,
                          .location = m.location,
                          .contained = std::move(m.contained)};
      owner_->ValueReceived(m.id, value, actions_);
      break;
    }
    case PeerMessageKind::kHandOver:
      if (m.id.owner == from) KeepActor(from, m.id, m.bytes);
      break;
    case PeerMessageKind::kAskWhy:
      AnswerWhy(from, m.id, m.count);
      break;
    case PeerMessageKind::kWhy:
      if (m.id.owner == from) inquiries_.WhyAnswered(m.count, m.id, m.bytes);
      break;
  }
  if (!actions_.empty()) Perform();
}

}  // namespace weft::core
