// Runtime: the link to the node daemon. Sends what was queued, and handles what the daemon says.
#include <poll.h>
#include <unistd.h>

#include "base/clock.h"
#include "os/futex.h"
#include "runtime/executor.h"
#include "runtime/runtime.h"

namespace weft::core {

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
    owner_->LeaseGranted(shape, m->lease, m->worker, CoarseNowNs(), actions_, m->gpus);
    NumberPeer(it->second.get());
    if (background_idle_) doorbell_->WakeBackground();
  } else if (auto* m = std::get_if<ActorChanged>(&message)) {
    auto state = static_cast<ActorState>(m->state);
    owner_->ActorReported(*m, CoarseNowNs(), actions_);
    if (state == ActorState::kStarting || state == ActorState::kAlive) {
      auto it = workers_.find(m->worker);
      if (it == workers_.end()) return Fail("the node daemon named an actor's worker without a channel");
      NumberPeer(it->second.get());
    }
  } else if (auto* m = std::get_if<ActorAnswer>(&message)) {
    if (!TakeUnwantedAnswer(m->request, m)) actor_answers_[m->request] = std::move(*m);
  } else if (auto* m = std::get_if<ActorList>(&message)) {
    if (!TakeUnwantedAnswer(m->request, nullptr)) actor_lists_[m->request] = std::move(*m);
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
    AbandonInquiries();
  } else if (auto* m = std::get_if<SegmentOpened>(&message)) {
    uint8_t& state = segment_states_[m->segment];
    if (fds.size() == 1 && reader_.Open(m->segment, std::move(fds[0])).ok()) {
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
    Raise({.kind = RuntimeEvent::kOutput,
           .pid = m->pid,
           .is_stderr = m->is_stderr != 0,
           .text = std::move(m->text),
           .name = std::move(m->name)});
  } else if (auto* m = std::get_if<AskState>(&message)) {
    Send(StateReport{.request = m->request, .report = ReportState(m->limit)});
  } else if (auto* m = std::get_if<ShapeAnswer>(&message)) {
    ShapeAnswered(m->request, m->fact);
  } else if (auto* m = std::get_if<Exit>(&message)) {
    if (executor_) {
      executor_->ExitWhenIdle(m->now != 0);
    } else {
      Fail("the node daemon ended the session");
    }
  }
}

// The owner numbers workers as it meets them; it need not meet the worker of an actor that it has let go.
void Runtime::NumberPeer(Peer* peer) {
  const LeasedWorker* worker = owner_->FindWorker(peer->process);
  if (!worker) return;
  const auto number = static_cast<size_t>(worker - owner_->workers().data());
  if (peer_of_worker_.size() <= number) peer_of_worker_.resize(number + 1);
  peer_of_worker_[number] = peer;
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
      case PeerMessageKind::kEntrust:
        if (m.id.owner == from) KeepActor(from, m.id, m.bytes);
        break;
      case PeerMessageKind::kAskWhy:
        AnswerWhy(from, m.id, m.count);
        break;
      case PeerMessageKind::kWhy:
        if (m.id.owner == from) WhyAnswered(m.count, m.id, m.bytes);
        break;
    }
    if (!actions_.empty()) Perform();
  }
}

}  // namespace weft::core
