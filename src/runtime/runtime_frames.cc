// Runtime: frames. Takes replies out of channels, performs what the owner decides, and writes tasks into channels.
#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "os/futex.h"
#include "runtime/runtime.h"

namespace weft::core {
namespace {

// How long the news of a worker's death may take to arrive after its connection has ended.
constexpr size_t kMostOfAName = 80;
constexpr int64_t kLostNs = 1'000'000'000;

}  // namespace

// ---- draining -----------------------------------------------------------------------------------------------------

size_t Runtime::Drain() {
  size_t count = 0;
  doorbell_->TakeRung(Audience::kAnyone, [](uint32_t) {});  // every channel with tasks is looked at anyway
  const std::vector<int32_t>& busy = owner_->busy_workers();
  for (size_t i = busy.size(); i-- > 0;) {
    if (i < busy.size()) count += DrainPeer(*peer_of_worker_[static_cast<size_t>(busy[i])]);
  }
  for (size_t i = holding_back_.size(); i-- > 0;) {
    Peer* peer = i < holding_back_.size() ? holding_back_[i] : nullptr;
    if (!peer) continue;
    count += DrainPeer(*peer);
    HandleHeldBack(*peer);
    waiters_.NewsCame();
  }
  if (dropped_.load(std::memory_order_relaxed) != nullptr) {
    DrainDrops();
    ++count;
  }
  if (!actions_.empty()) Perform();
  if (!forgotten_.empty()) [[unlikely]]
    FreeForgotten();
  // Another thread took them while the poller sleeps: the poller may have something to do earlier now.
  if (count > 0 && waiters_.poller()) waiters_.TellPoller();
  return count;
}

size_t Runtime::DrainPeer(Peer& peer) {
  size_t count = 0;
  Frame frame;
  while (peer.channel.Peek(&frame)) {
    ++count;
    ++stats_.replies;
    if (static_cast<FrameType>(frame.type) != FrameType::kReply || !TakeReply(peer, frame.bytes)) {
      Fail("a worker sent something that no worker sends");
      return count;
    }
    peer.channel.Pop();
    if (!actions_.empty()) Perform();
  }
  if (peer.channel.stream()) {
    count += TakeRevokeOutcomes(peer);
    if (peer.channel.gone()) [[unlikely]]
      NoticeLost(peer);
  }
  return count;
}

// The worker is most likely dead, and its daemon says so in a moment. If not, only the connection is dead: the fate of
// what was sent cannot be known any more, and the worker has to end so that all goes on as after its death.
void Runtime::NoticeLost(Peer& peer) {
  if (peer.dead || peer.lost_at_ns != 0) return;
  peer.lost_at_ns = NowNs();
  lost_peers_.push_back(&peer);
  doorbell_->WakeBackground();
}

int64_t Runtime::LookAtLost(int64_t now_ns) {
  std::erase_if(lost_peers_, [&](Peer* peer) {
    if (peer->dead) return true;
    if (now_ns < peer->lost_at_ns + kLostNs) return false;
    Send(ChannelLost{.worker = peer->process});
    return true;
  });
  return lost_peers_.empty() ? kNoDeadline : now_ns + kLostNs;
}

size_t Runtime::TakeRevokeOutcomes(Peer& peer) {
  size_t count = 0;
  Ticket ticket;
  RevokeOutcome outcome;
  while (peer.channel.NextRevokeOutcome(&ticket, &outcome)) {
    ++count;
    // The answer counts for the ticket that was asked about, not for a later push of the same task.
    const LeasedWorker* worker = owner_->FindWorker(peer.process);
    for (Task* task = worker ? worker->pushed.first : nullptr; task; task = task->next) {
      if (task->ticket_sequence != ticket.sequence || task->state != TaskState::kRevoking) continue;
      stats_.revoked += outcome == RevokeOutcome::kRevoked;
      owner_->RevokeResolved(task->handle, outcome == RevokeOutcome::kRevoked, CoarseNowNs(), actions_);
      Perform();
      break;
    }
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
  // Before the reply is handled, which releases what the task held.
  auto given_back = in.Raw(head.num_given_back * sizeof(GivenBack));
  if (head.num_retained > in.remaining() / sizeof(uint64_t)) return false;
  for (uint32_t i = 0; i < head.num_retained; ++i) {
    owner_->BorrowsChanged({self(), in.Fixed<uint64_t>()}, peer.process, 1, actions_);
  }
  if (!in.ok() || !in.AtEnd()) return false;
  auto kind = static_cast<ReplyKind>(head.kind);
  if (kind == ReplyKind::kHandedBack || kind == ReplyKind::kHandedBackBlocked || kind == ReplyKind::kArgumentLost) {
    ++stats_.handed_back;
  }
  owner_->Replied(peer.process, head.task, kind, error, values, CoarseNowNs(), actions_, head.run_ns);
  ByteReader back(given_back);
  for (uint32_t i = 0; i < head.num_given_back; ++i) {
    auto item = back.Fixed<GivenBack>();
    owner_->BorrowsChanged({self(), item.index}, peer.process, -static_cast<int64_t>(item.count), actions_);
  }
  return true;
}

// ---- performing ---------------------------------------------------------------------------------------------------

void Runtime::Perform() {
  for (size_t i = 0; i < actions_.size(); ++i) {
    Action action = actions_[i];  // a copy: performing may add to the list
    switch (action.kind) {
      case ActionKind::kPush:
        // After a refused call no later one is tried: calls keep their order.
        if ((action.task->actor && owner_->workers()[action.worker].full) || !PushTask(action.worker, action.task)) {
          owner_->PushRefused(action.task->handle, CoarseNowNs(), actions_);
        }
        break;
      case ActionKind::kRevoke: {
        Task* task = owner_->FindTask(action.number);
        if (!task || task->state != TaskState::kRevoking || task->push != action.id.index) break;
        Peer* peer = peer_of_worker_[action.worker];
        auto outcome = peer->channel.Revoke({task->ticket_offset, task->ticket_sequence});
        if (outcome == RevokeOutcome::kPending) break;  // the answer comes with the replies
        stats_.revoked += outcome == RevokeOutcome::kRevoked;
        owner_->RevokeResolved(action.number, outcome == RevokeOutcome::kRevoked, CoarseNowNs(), actions_);
        break;
      }
      case ActionKind::kRequestLeases:
        Send(RequestLeases{.shape = owner_->shape(action.worker),
                           .count = static_cast<uint32_t>(action.number),
                           .depth = owner_->depth(),
                           .heard = owner_->GrantsOf(action.worker)});
        if (background_idle_) doorbell_->WakeBackground();  // it has leases to watch from now on
        break;
      case ActionKind::kReturnLease:
        Send(ReturnLease{.lease = {action.number}});
        break;
      case ActionKind::kFreeStored:
        if (writer_.created() && action.location.segment == writer_.segment() && action.number == 0) {
          writer_.Free(action.location);
          if (background_idle_) doorbell_->WakeBackground();  // it trims what stays unused
        } else {
          outbox_.Free(action.location);
        }
        break;
      case ActionKind::kEndHold:
        outbox_.EndHold(action.id);
        break;
      case ActionKind::kAddBorrower:
        Route(action.id.owner, {.kind = PeerMessageKind::kAddBorrower,
                                .id = action.id,
                                .process = action.process,
                                .count = action.number});
        break;
      case ActionKind::kRemoveBorrower:
        Route(action.id.owner, {.kind = PeerMessageKind::kRemoveBorrower,
                                .id = action.id,
                                .process = action.process,
                                .count = action.number});
        break;
      case ActionKind::kFetch:
        Route(action.id.owner, {.kind = PeerMessageKind::kAskValue, .id = action.id});
        break;
      case ActionKind::kAskAgain:
        Route(action.process, {.kind = PeerMessageKind::kAskAgain, .id = action.id, .location = action.location});
        break;
      case ActionKind::kForgetWorker:
        if (static_cast<size_t>(action.worker) < peer_of_worker_.size()) {
          peer_of_worker_[static_cast<size_t>(action.worker)] = nullptr;
        }
        ForgetWorker(action.process);
        break;
      case ActionKind::kRunAgain:
        if (Task* task = owner_->FindTask(action.number); task && log_.on()) {
          log_.Submitted(task->handle, task->Return(0)->id.index, task->what->event_name);
        }
        break;
      case ActionKind::kSendValue: {
        PeerMessage answer{.kind = PeerMessageKind::kValue, .id = action.id};
        if (action.object && action.number != 0) {
          answer.value_kind = static_cast<uint8_t>(ValueKind::kSystemError);
          answer.bytes = owner_->WhyNotAgain(action.object, Owner::HowLost(action.location));
        } else if (action.object) {
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
      case ActionKind::kPlaceActor:
        if (!StandInIsReady(action.id)) Send(PlaceActor{.actor = action.id});
        break;
      case ActionKind::kWatchActor:
        Send(WatchActor{.actor = action.id});
        break;
      case ActionKind::kReleaseActor:
        Send(ReleaseActor{.actor = action.id});
        break;
      case ActionKind::kKillActor:
        if (!StandInIsReady(action.id)) {
          core::KillActor message{.actor = action.id, .no_restart = 1, .why = "", .error = ""};
          // Without a handle, nothing asks why.
          if (Object* handle = owner_->Find(action.id); handle && handle->actor) {
            message.why = "cannot be constructed: " + handle->actor->why;
            message.error = handle->actor->error;
          }
          Send(std::move(message));
        }
        break;
      case ActionKind::kAskCancel:
        Route(action.process, {.kind = PeerMessageKind::kCancelObject, .id = action.id, .count = action.number});
        break;
      case ActionKind::kCancelRunning:
        Route(action.process, {.kind = PeerMessageKind::kCancelTask, .id = action.id, .count = action.number});
        break;
      case ActionKind::kBring:
        BringCopy(action.object, action.location);
        break;
      case ActionKind::kLetGo:
        copies_.LetGo(action.object, action.location);
        break;
      case ActionKind::kResolved: {
        waiters_.Resolved(action.object);
        auto it = action.object->callbacks > 0 && action.object->settled() ? callbacks_.find(action.object)
                                                                           : callbacks_.end();
        if (it != callbacks_.end()) {
          for (const Callback& call : it->second) {
            if (call.completions) {
              call.completions->ready.push_back(call.number);
              if (call.completions->waiter) waiters_.Wake(*call.completions->waiter);
              continue;
            }
            if (call.await != 0) long_waits_.EndAwait(call.await);
            AddReference(action.object);
            Raise({.kind = RuntimeEvent::kReady, .object = action.object, .cookie = call.cookie}, call.receiver);
          }
          action.object->callbacks = 0;
          callbacks_.erase(it);
        }
        break;
      }
    }
  }
  actions_.clear();
}

// About; 0 if the peer has it.
size_t Runtime::DefinitionBytes(const Peer& peer, const TaskTemplate& what) {
  if (what.number < peer.defined.size() && peer.defined[what.number]) return 0;
  constexpr size_t kOfFixedSize = 256;
  return kOfFixedSize + what.method.size() + what.group.size() + what.actor_options.size() + what.name.size() +
         what.function->name.size() + what.retry_exceptions.size() + what.function->body.size();
}

bool Runtime::Define(Peer& peer, const TaskTemplate* what) {
  if (what->number < peer.defined.size() && peer.defined[what->number]) return true;
  ByteWriter out;
  out.Fixed(what->number);
  out.Fixed(what->kind);
  out.Fixed(what->function->key);
  out.Fixed(what->num_returns);
  out.Fixed(what->max_retries);
  out.Bytes(what->method);
  out.Bytes(what->group);
  out.Bytes(what->actor_options);
  out.Bytes(what->name);
  out.Bytes(what->function->name);
  out.Bytes(what->retry_exceptions);
  out.Fixed(what->function->stored_body);
  out.Bytes(what->function->body);
  uint8_t* room = peer.channel.BeginSend(static_cast<uint32_t>(out.size()));
  if (!room) return false;
  std::memcpy(room, out.view().data(), out.size());
  peer.channel.CommitSend(static_cast<uint8_t>(FrameType::kDefine), false, static_cast<uint32_t>(out.size()));
  if (peer.defined.size() <= what->number) peer.defined.resize(what->number + 1);
  peer.defined[what->number] = true;
  return true;
}

bool Runtime::SendLease(Peer& peer, const LeasedWorker& worker) {
  if (peer.told_lease == worker.lease && !worker.actor) return true;
  if (worker.actor && peer.told_actor) return true;
  ByteWriter out;
  out.Fixed(worker.lease);
  out.Fixed(worker.actor ? worker.actor->handle->id : ObjectId{});
  out.Fixed(worker.actor ? worker.actor->incarnation : 0u);
  const ResourceAmounts& shape = owner_->shape(worker.actor ? worker.actor->creation->shape : worker.shape);
  out.Fixed(static_cast<uint32_t>(shape.size()));
  for (const auto& [name, amount] : shape) {
    out.Bytes(name);
    out.Fixed(amount);
  }
  out.Fixed(static_cast<uint32_t>(worker.gpus.size()));
  for (const auto& [number, amount] : worker.gpus) {
    out.Fixed(number);
    out.Fixed(amount);
  }
  uint8_t* room = peer.channel.BeginSend(static_cast<uint32_t>(out.size()));
  if (!room) return false;
  std::memcpy(room, out.view().data(), out.size());
  peer.channel.CommitSend(static_cast<uint8_t>(FrameType::kLease), false, static_cast<uint32_t>(out.size()));
  peer.told_lease = worker.lease;
  peer.told_actor = worker.actor != nullptr;
  return true;
}

bool Runtime::CoresAreFree() const {
  uint32_t running = 1;  // this process
  for (int32_t number : owner_->busy_workers()) running += !owner_->workers()[static_cast<size_t>(number)].blocked;
  return running <= allowed_cpus_;
}

// Whether this argument travels with a task to another node: its address in this process's memory, or nullptr. Sending
// it costs a copy; a later request for it costs three processes a wake-up each. Only values without references inside,
// since the worker learns about those like about everything it borrows.
const uint8_t* Runtime::PushedAlong(const Object* object, uint32_t frame_bytes) {
  const Location location = object->value.location();
  if (location.size > kMaxPushedBytes || frame_bytes + location.size > kMaxPushedBytesPerFrame) return nullptr;
  if (object->contained || IsElsewhere(location)) return nullptr;
  if (writer_.created() && location.segment == writer_.segment()) return writer_.ReadOnly(location);
  if (!reader_.IsOpen(location.segment)) return nullptr;
  auto data = reader_.Resolve(location);
  if (!data) return nullptr;
  reader_.ReleaseView(location.segment);  // the task's reference keeps the range
  return *data;
}

bool Runtime::PushTask(int32_t worker, Task* task) {
  Peer& peer = *peer_of_worker_[worker];
  if (peer.channel.gone()) [[unlikely]]
    NoticeLost(peer);
  if (peer.dead) return false;
  if (const size_t bytes = DefinitionBytes(peer, *task->what); bytes > peer.channel.MaxFrameBytes()) {
    owner_->FailPushed(task->handle,
                       "UnschedulableError\nwhat '" + task->what->name.substr(0, kMostOfAName) + "' is made of has " +
                           std::to_string(bytes) + " bytes and does not fit into one message of " +
                           std::to_string(peer.channel.MaxFrameBytes()) +
                           ": its name is too long, or its methods are "
                           "too many",
                       CoarseNowNs(), actions_);
    return true;
  }
  if (!Define(peer, task->what)) return false;
  const LeasedWorker& leased = owner_->workers()[worker];
  if (task->what->kind != TemplateKind::kCall && !SendLease(peer, leased)) return false;
  const uint32_t num_returns = task->what->num_returns;
  const uint32_t num_borrowed = task->borrowed_by_worker ? static_cast<uint32_t>(task->borrowed_by_worker->size()) : 0;
  uint32_t size =
      sizeof(TaskHead) + num_returns * sizeof(uint64_t) + num_borrowed * sizeof(ObjectId) + task->arguments.size();
  for (uint32_t i = 0; i < task->num_dependencies; ++i) {
    const Value& value = task->dependencies[i]->value;
    size += sizeof(DependencyHead);
    if (value.kind() == ValueKind::kInline) size += static_cast<uint32_t>(value.bytes().size());
    if (value.kind() == ValueKind::kStored) size += sizeof(Location);
  }
  pushed_scratch_.clear();
  if (peer.channel.stream()) {
    for (uint32_t i = 0; i < task->num_dependencies; ++i) {
      const Object* object = task->dependencies[i];
      const bool stored = object->value.kind() == ValueKind::kStored;
      pushed_scratch_.push_back(stored ? PushedAlong(object, size) : nullptr);
      if (pushed_scratch_.back()) size += static_cast<uint32_t>(object->value.location().size - sizeof(Location));
    }
  }
  if (size > peer.channel.MaxFrameBytes()) {
    // Submit stores such large arguments; only many small ones passed by reference come here.
    owner_->FailPushed(task->handle,
                       "UnschedulableError\nthe arguments of task '" + task->what->name +
                           "' do not fit into one message: they hold too many references, or there are too many of "
                           "them; put them into an object with put(), or pass fewer at a time",
                       CoarseNowNs(), actions_);
    return true;
  }
  uint8_t* room = peer.channel.BeginSend(size);
  if (!room) return false;
  FrameWriter out(room);
  out.Put(TaskHead{.task = task->handle,
                   .template_number = task->what->number,
                   .arguments_size = task->arguments.size(),
                   .num_returns = num_returns,
                   .num_dependencies = task->num_dependencies,
                   .num_borrowed = num_borrowed,
                   .attempt = task->attempt,
                   .depth = owner_->depth(),
                   .may_spin = CoresAreFree() ? 1u : 0u});
  for (uint32_t i = 0; i < num_returns; ++i) out.Put(task->Return(i)->handle);
  for (uint32_t i = 0; i < num_borrowed; ++i) out.Put((*task->borrowed_by_worker)[i]->id);
  for (uint32_t i = 0; i < task->num_dependencies; ++i) {
    const Object* object = task->dependencies[i];
    DependencyHead head{.id = object->id, .kind = static_cast<uint32_t>(DependencyKind::kEarlier), .size = 0};
    if (object->value.kind() == ValueKind::kInline) {
      head.kind = static_cast<uint32_t>(DependencyKind::kInline);
      head.size = static_cast<uint32_t>(object->value.bytes().size());
      out.Put(head);
      out.PutBytes(object->value.bytes());
    } else if (const uint8_t* pushed = i < pushed_scratch_.size() ? pushed_scratch_[i] : nullptr) {
      head.kind = static_cast<uint32_t>(DependencyKind::kInline);
      head.size = static_cast<uint32_t>(object->value.location().size);
      out.Put(head);
      out.PutBytes({reinterpret_cast<const char*>(pushed), head.size});
    } else if (object->value.kind() == ValueKind::kStored) {
      head.kind = static_cast<uint32_t>(DependencyKind::kStored);
      head.size = sizeof(Location);
      out.Put(head);
      out.Put(object->value.location());
    } else {
      out.Put(head);
    }
  }
  out.PutBytes(task->arguments.view());
  Ticket ticket = peer.channel.CommitSend(static_cast<uint8_t>(FrameType::kTask), true, size);
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
    ++peer->notices_begun;
    to_notify_.clear();
    lock.unlock();
    peer->channel.NotifySoon();
    peer->notices_ended.fetch_add(1, std::memory_order_release);
  } else if (to_notify_.empty()) {
    lock.unlock();
  } else {
    std::vector<Peer*> peers = TakePeersToNotify();
    lock.unlock();
    for (Peer* peer : peers) {
      peer->channel.NotifySoon();
      peer->notices_ended.fetch_add(1, std::memory_order_release);
    }
  }
  if (outbox_.any()) Flush();
}

std::vector<Runtime::Peer*> Runtime::TakePeersToNotify() {
  std::vector<Peer*> peers = std::exchange(to_notify_, {});
  for (Peer* peer : peers) {
    peer->to_notify = false;
    ++peer->notices_begun;
  }
  return peers;
}

// On a stream, replies and what the daemon routes go different ways, and nobody keeps their order but we: the receiver
// handles the payload only after the replies that were written before.
void Runtime::PutAfter(ProcessId to, std::string& payload) {
  auto it = submitters_.find(to);
  if (it == submitters_.end() || !it->second->channel.stream()) return;
  std::string after;
  EncodePeerMessage({.kind = PeerMessageKind::kAfter, .count = it->second->channel.stream()->committed_frames()},
                    after);
  payload.insert(0, after);
}

void Runtime::Flush() {
  std::lock_guard sending(send_mutex_);
  std::vector<Outbox::Entry> messages;
  std::vector<Peer*> peers;
  {
    std::lock_guard lock(mutex_);
    peers = TakePeersToNotify();
    if (streams_) outbox_.ForEachRouted([this](ProcessId to, std::string& payload) { PutAfter(to, payload); });
    messages = outbox_.Take();
    stats_.messages_sent += messages.size();
  }
  for (Peer* peer : peers) {
    peer->channel.Notify(Audience::kExecutor);
    peer->notices_ended.fetch_add(1, std::memory_order_release);
  }
  if (auto* poller = stream_poller_.load(std::memory_order_acquire)) poller->FlushGathered();
  for (auto& [message, fds] : messages) {
    std::vector<SharedFd> shared;
    for (UniqueFd& fd : fds) shared.push_back(ShareFd(std::move(fd)));
    outgoing_->Queue(message, std::move(shared));
  }
  // If the daemon is gone, the link thread learns it and ends the session.
  if (!messages.empty()) SendQueued();
}

}  // namespace weft::core
