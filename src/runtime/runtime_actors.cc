// Runtime: actors and cancelling, for the front ends.
#include <algorithm>

#include "base/bytes.h"
#include "base/clock.h"
#include "runtime/runtime.h"
#include "wire/actor_recipe.h"
#include "wire/node_messages.h"

namespace weft::core {
namespace {

thread_local uint64_t t_execution = 0;

// What fits into one message together with the rest (kMaxMessageBytes).
constexpr size_t kMaxHandedOver = 3 << 20;
// The recipe that the home of a detached actor keeps must fit into frames of a ring.
constexpr size_t kMaxKept = 240'000;
// How often a thread that waits for the daemon checks whether a signal is to be handled.
constexpr int64_t kAskAgainNs = 100'000'000;

}  // namespace

void Runtime::SetCurrentExecution(uint64_t number) { t_execution = number; }
uint64_t Runtime::CurrentExecution() { return t_execution; }

Result<Runtime::FoundActor> Runtime::CreateActor(const ActorRequest& request, const GiveUp& give_up) {
  if (request.detached && NodeOf(self()).value != 0) return CreateDetached(request, give_up);
  std::unique_lock lock(mutex_);
  if (stopped()) return Error{ErrorKind::kGone, "the session has ended"};
  Object* handle = owner_->NewOwned();
  owner_->Resolve(handle, ValueKind::kInline, {}, {}, {}, actions_);
  core::CreateActor message{.actor = handle->id,
                            .to_place = request.to_place,
                            .to_hold = request.to_hold,
                            .max_restarts = request.max_restarts,
                            .detached = request.detached,
                            .get_if_exists = request.get_if_exists,
                            .depth = owner_->depth(),
                            .name = request.name,
                            .name_space = request.name_space,
                            .class_name = request.class_name,
                            .metadata = request.metadata};
  // The record exists before the daemon hears of the actor, which may answer before we look.
  Submission constructor{.what = request.constructor, .arguments = request.arguments};
  constructor.dependencies.assign(request.dependencies.begin(), request.dependencies.end());
  constructor.contained.assign(request.contained.begin(), request.contained.end());
  message.deferred = !owner_->CreateActor(handle, constructor,
                                          {.detached = request.detached,
                                           .out_of_order = request.out_of_order,
                                           .keep_for_restarts = request.max_restarts != 0,
                                           .class_name = request.class_name},
                                          CoarseNowNs(), actions_);
  uint64_t question = 0;
  if (!request.name.empty()) question = message.request = questions_.Begin();
  Send(std::move(message));
  Perform();
  if (question != 0) {
    // If we give up, the daemon may have created it, or will: it is let go of when that is known.
    auto answer = AwaitAnswer<ActorAnswer>(lock, question, give_up, handle);
    if (!answer && answer.error().kind == ErrorKind::kTimeout) return answer.error();
    if (!answer || !answer->error.empty() || answer->actor != handle->id) {
      owner_->AbandonActor(handle, actions_);
      Perform();
      NotifyPeers(lock);
      if (!answer) return answer.error();
      if (!answer->error.empty()) return Error{ErrorKind::kInvalid, answer->error};
      return FoundActor{FindReference(answer->actor), std::move(answer->metadata)};
    }
  }
  if (request.detached && request.max_restarts != 0 && self() != welcome_.driver) HandOverToDriver(handle);
  NotifyPeers(lock);
  return FoundActor{handle, {}};
}

// ---- detached actors in a cluster ---------------------------------------------------------------------------------

// The cluster owns it, and the head gives it its name and number. The recipe follows as soon as the arguments are
// there; from then on this process is a caller like any other.
Result<Runtime::FoundActor> Runtime::CreateDetached(const ActorRequest& request, const GiveUp& give_up) {
  std::string why = WhyNotKept(request.contained);
  for (const Object* object : request.dependencies) {
    if (why.empty() && object->resolved() && object->contained) why = WhyNotKept(*object->contained);
  }
  if (!why.empty()) return Error{ErrorKind::kInvalid, why};
  std::unique_lock lock(mutex_);
  if (stopped()) return Error{ErrorKind::kGone, "the session has ended"};
  const uint64_t question = questions_.Begin();
  Send(core::CreateActor{.request = question,
                         .actor = {},
                         .to_place = request.to_place,
                         .to_hold = request.to_hold,
                         .max_restarts = request.max_restarts,
                         .detached = 1,
                         .get_if_exists = request.get_if_exists,
                         .deferred = 1,
                         .depth = owner_->depth(),
                         .name = request.name,
                         .name_space = request.name_space,
                         .class_name = request.class_name,
                         .metadata = request.metadata});
  auto answer = AwaitAnswer<ActorAnswer>(lock, question, give_up);
  if (!answer) return answer.error();  // if we have given up, it is never handed over
  if (!answer->error.empty()) return Error{ErrorKind::kInvalid, answer->error};
  const ObjectId id = answer->actor;
  if (!answer->metadata.empty()) {
    lock.unlock();
    return FoundActor{FindReference(id), std::move(answer->metadata)};
  }
  Object* handle = FindLocked(id);
  const bool ready = std::all_of(request.dependencies.begin(), request.dependencies.end(),
                                 [](const Object* object) { return object->resolved(); });
  if (ready) {
    lock.unlock();
    HandOverToHead(id, *request.constructor, request.arguments, request.dependencies);
    Flush();
    return FoundActor{handle, {}};
  }
  // A stand-in waits for the arguments, as an ordinary actor that is created here would.
  Object* stand_in = owner_->NewOwned();
  owner_->Resolve(stand_in, ValueKind::kInline, {}, {}, {}, actions_);
  Submission constructor{.what = request.constructor, .arguments = request.arguments};
  constructor.dependencies.assign(request.dependencies.begin(), request.dependencies.end());
  constructor.contained.assign(request.contained.begin(), request.contained.end());
  stand_ins_[stand_in->id] = id;
  owner_->CreateActor(stand_in, constructor, {.class_name = request.class_name}, CoarseNowNs(), actions_);
  Perform();
  NotifyPeers(lock);
  return FoundActor{handle, {}};
}

// Why these references cannot be part of the recipe; empty if they can.
std::string Runtime::WhyNotKept(std::span<Object* const> contained) {
  for (const Object* object : contained) {
    if (object->id.owner == kCluster) continue;  // the handle of another detached actor
    return "an argument of a detached actor's constructor contains an object reference or the handle of an actor that "
           "is not detached; those end with their owner, and the actor outlives it. Pass the value itself, pass the "
           "reference as an argument of its own, or hand it over in a call";
  }
  return "";
}

// Without the lock. All dependencies are resolved.
void Runtime::HandOverToHead(ObjectId actor, const TaskTemplate& what, std::string_view arguments,
                             std::span<Object* const> dependencies) {
  core::HandOverActor message{.actor = actor, .recipe = "", .why = "", .error = ""};
  ActorRecipe recipe{.key = what.function->key,
                     .function_name = what.function->name,
                     .body = what.function->body,
                     .name = what.name,
                     .actor_options = what.actor_options,
                     .shape = {},
                     .depth = owner_->depth(),
                     .arguments = std::string(arguments),
                     .dependencies = {}};
  size_t bytes = arguments.size();
  auto read = [&](const Location& location) -> std::string {
    if (location.size > kMaxKept) {
      message.why =
          "has more than 240 kB in its class or its arguments, which is too much for a detached actor; hand "
          "large values over in a call";
      return "";
    }
    Result<const uint8_t*> data = MapStored(location);
    while (!data && data.error().kind == ErrorKind::kTimeout) data = MapStored(location);
    if (data) return {reinterpret_cast<const char*>(*data), location.size};
    message.why = "cannot be constructed: a value among its arguments cannot be read (" + data.error().message + ")";
    return "";
  };
  if (what.function->stored_body.size > 0) recipe.body = read(what.function->stored_body);
  for (const Object* object : dependencies) {
    ValueKind kind = object->value.kind();
    Location stored;
    if (kind == ValueKind::kStored) {
      // If it lies on another node, it may be lost there, and then changes.
      std::lock_guard lock(mutex_);
      kind = object->value.kind();
      if (kind == ValueKind::kStored) stored = object->value.location();
    }
    if (kind == ValueKind::kPending) {
      message.why = "cannot be constructed: a value among its arguments was lost with its node";
      break;
    }
    if (kind == ValueKind::kTaskError || kind == ValueKind::kSystemError) {
      message.why = "cannot be constructed: an argument of its constructor ended in an error";
      if (kind == ValueKind::kTaskError) message.error = object->value.bytes();
      break;
    }
    if (object->contained) {
      if (std::string why = WhyNotKept(*object->contained); !why.empty()) message.why = "cannot be constructed: " + why;
    }
    recipe.dependencies.emplace_back(kind == ValueKind::kStored ? read(stored) : std::string(object->value.bytes()));
    bytes += recipe.dependencies.back().size();
  }
  if (message.why.empty() && std::max(bytes, recipe.body.size()) > kMaxKept) {
    message.why =
        "has more than 240 kB in its class or its arguments, which is too much for a detached actor; hand "
        "large values over in a call";
  }
  std::lock_guard lock(mutex_);
  recipe.shape = owner_->shape(what.shape);
  if (message.why.empty()) message.recipe = EncodeRecipe(recipe);
  Send(std::move(message));
}

// The arguments of a detached actor are there, or have failed. Called by Perform; as reading them may take a wait, the
// background thread goes on with it.
bool Runtime::StandInIsReady(ObjectId id) {
  auto found = stand_ins_.find(id);
  if (found == stand_ins_.end()) return false;
  Object* stand_in = owner_->Find(id);
  const Actor& actor = *owner_->ActorOf(stand_in);
  ActorToHandOver hand_over{found->second, actor.creation, "", {}, actor.why, actor.error};
  stand_ins_.erase(found);
  if (actor.state != ActorState::kDead && actor.queue.first) {
    const Task& task = *actor.queue.first;
    hand_over.arguments = task.arguments.view();
    for (uint32_t i = 0; i < task.num_dependencies; ++i) {
      hand_over.dependencies.push_back(task.dependencies[i]);
      AddReference(task.dependencies[i]);
    }
  }
  to_hand_over_.push_back(std::move(hand_over));
  owner_->AbandonActor(stand_in, actions_);
  doorbell_->WakeBackground();
  return true;
}

void Runtime::HandOverReady() {
  std::vector<ActorToHandOver> ready;
  {
    std::lock_guard lock(mutex_);
    ready.swap(to_hand_over_);
  }
  for (ActorToHandOver& each : ready) {
    if (each.why.empty()) {
      HandOverToHead(each.actor, *each.what, each.arguments, each.dependencies);
    } else {
      std::lock_guard lock(mutex_);
      Send(core::HandOverActor{.actor = each.actor,
                               .recipe = "",
                               .why = "cannot be constructed: " + each.why,
                               .error = std::move(each.error)});
    }
    for (Object* object : each.dependencies) DropReference(object);
  }
}

void Runtime::HandOverToDriver(Object* handle) {
  const Actor& actor = *owner_->ActorOf(handle);
  const TaskTemplate& what = *actor.creation;
  const Function& function = *what.function;
  if (actor.creation_arguments.size() + function.body.size() > kMaxHandedOver) return;
  ByteWriter out;
  out.Fixed(function.key);
  out.Bytes(function.name);
  out.Bytes(function.body);
  out.Fixed(function.stored_body);
  out.Bytes(what.name);
  out.Bytes(what.actor_options);
  const ResourceAmounts& shape = owner_->shape(what.shape);
  out.Fixed(static_cast<uint32_t>(shape.size()));
  for (const auto& [name, amount] : shape) {
    out.Bytes(name);
    out.Fixed(amount);
  }
  out.Bytes(actor.class_name);
  out.Bytes(actor.creation_arguments);
  // The driver becomes a borrower of all that it is told about.
  owner_->AddBorrower(handle, welcome_.driver, actions_);
  for (const auto* objects : {&actor.creation_dependencies, &actor.creation_contained}) {
    out.Fixed(static_cast<uint32_t>(objects->size()));
    for (Object* object : *objects) {
      owner_->AddBorrower(object, welcome_.driver, actions_);
      out.Fixed(object->id);
    }
  }
  Perform();
  Route(welcome_.driver, {.kind = PeerMessageKind::kHandOver, .id = handle->id, .bytes = out.Take()});
}

void Runtime::KeepActor(ProcessId, ObjectId id, std::string_view record) {
  ByteReader in(record);
  Function function;
  function.key = in.Fixed<FunctionKey>();
  function.name = in.Bytes();
  function.body = in.Bytes();
  function.stored_body = in.Fixed<Location>();
  TaskTemplate what;
  what.kind = TemplateKind::kCreation;
  what.num_returns = 0;
  what.max_retries = 0;
  what.name = in.Bytes();
  what.actor_options = in.Bytes();
  ResourceAmounts shape;
  for (auto count = in.Fixed<uint32_t>(); count > 0 && in.ok(); --count) {
    std::string name(in.Bytes());
    shape.emplace_back(std::move(name), in.Fixed<int64_t>());
  }
  const std::string class_name(in.Bytes());
  Submission constructor;
  constructor.arguments = in.Bytes();
  std::vector<ObjectId> ids[2];
  for (auto& list : ids) {
    for (auto count = in.Fixed<uint32_t>(); count > 0 && in.ok(); --count) list.push_back(in.Fixed<ObjectId>());
  }
  if (!in.ok() || !in.AtEnd()) return;
  const Function* known = owner_->FindFunction(function.key);
  what.function = known ? known : owner_->InternFunction(std::move(function));
  what.shape = owner_->InternShape(shape);
  what.event_name = log_.NameId(what.name);
  constructor.what = owner_->InternTemplate(std::move(what));
  std::vector<Object*> received;
  auto receive = [&](ObjectId object) {
    Object* found = owner_->Receive(object, object.owner == self() ? 0 : 1);
    if (found) received.push_back(found);
    return found;
  };
  bool complete = true;
  Object* handle = receive(id);
  for (int i = 0; i < 2; ++i) {
    for (ObjectId object : ids[i]) {
      Object* found = receive(object);
      complete = complete && found;
      (i == 0 ? constructor.dependencies : constructor.contained).push_back(found);
    }
  }
  if (complete && handle) {
    owner_->KeepActor(handle, constructor, class_name, actions_);
    Perform();
    Send(core::KeepActor{.actor = id});
  }
  for (Object* object : received) DropReference(object);
}

Result<Runtime::FoundActor> Runtime::LookupActor(const std::string& name, const std::string& name_space,
                                                 const GiveUp& give_up) {
  std::unique_lock lock(mutex_);
  uint64_t question = questions_.Begin();
  Send(core::LookupActor{.request = question, .name = name, .name_space = name_space});
  auto answer = AwaitAnswer<ActorAnswer>(lock, question, give_up);
  NotifyPeers(lock);
  if (!answer) return answer.error();
  if (!answer->error.empty()) return Error{ErrorKind::kInvalid, answer->error};
  return FoundActor{FindReference(answer->actor), std::move(answer->metadata)};
}

Result<std::vector<std::pair<std::string, std::string>>> Runtime::ListActors(bool all, const std::string& name_space,
                                                                             const GiveUp& give_up) {
  std::unique_lock lock(mutex_);
  uint64_t question = questions_.Begin();
  Send(core::ListActors{.request = question, .all = all, .name_space = name_space});
  auto answer = AwaitAnswer<ActorList>(lock, question, give_up);
  NotifyPeers(lock);
  if (!answer) return answer.error();
  return std::move(answer->actors);
}

template <class Answer>
Result<Answer> Runtime::AwaitAnswer(std::unique_lock<std::mutex>& lock, uint64_t question, const GiveUp& give_up,
                                    Object* handle) {
  for (;;) {
    // A signal that came just before the sleep does not interrupt it, so it is asked for now and then.
    WaitOutcome outcome = WaitForNews(lock, NowNs() + kAskAgainNs, [&] { return questions_.IsAnswered(question); });
    if (questions_.IsAnswered(question)) {
      Message answer = questions_.Take(question);
      if (auto* expected = std::get_if<Answer>(&answer)) return std::move(*expected);
      return Error{ErrorKind::kGone, "the node daemon answered another question than was asked"};
    }
    if (outcome != WaitOutcome::kInterrupted && outcome != WaitOutcome::kTimedOut) {
      return Error{ErrorKind::kGone, "the session has ended"};
    }
    if (!give_up) continue;
    lock.unlock();
    const bool gives_up = give_up();
    lock.lock();
    // If the answer has come in between, it is taken: what is done is not to be undone.
    if (!gives_up || questions_.IsAnswered(question)) continue;
    questions_.GiveUp(question, handle);
    return Error{ErrorKind::kTimeout, "interrupted"};
  }
}

template Result<LibraryAnswer> Runtime::AwaitAnswer(std::unique_lock<std::mutex>&, uint64_t, const GiveUp&, Object*);
template Result<OrphanHeld> Runtime::AwaitAnswer(std::unique_lock<std::mutex>&, uint64_t, const GiveUp&, Object*);

// The thread that asked for this actor has given up.
void Runtime::LetGoOfUnwanted(Object* handle, const ActorAnswer& answer) {
  if (!answer.error.empty() || answer.actor != handle->id) {
    owner_->AbandonActor(handle, actions_);
    Perform();
  } else {
    DropReference(handle);  // like any unused handle; a detached actor lives on under its name
  }
}

void Runtime::KillActor(Object* handle, bool no_restart) {
  std::unique_lock lock(mutex_);
  owner_->ActorKillAsked(handle, no_restart);
  Send(core::KillActor{.actor = handle->id, .no_restart = no_restart});
  NotifyPeers(lock);
}

bool Runtime::SubmitCall(Object* handle, const TaskTemplate* what, std::string_view arguments,
                         std::span<Object* const> dependencies, std::span<Object* const> contained, size_t max_pending,
                         Object** returns) {
  std::unique_lock lock(mutex_);
  if (max_pending > 0 && owner_->ActorOf(handle)->pending_calls >= max_pending) {
    Drain();
    if (owner_->ActorOf(handle)->pending_calls >= max_pending) {
      NotifyPeers(lock);
      return false;
    }
  }
  Submission submission{.what = what, .arguments = arguments, .parent = t_execution};
  if (!dependencies.empty()) submission.dependencies.assign(dependencies.begin(), dependencies.end());
  if (!contained.empty()) submission.contained.assign(contained.begin(), contained.end());
  returns_scratch_.clear();
  owner_->SubmitCall(handle, submission, CoarseNowNs(), returns_scratch_, actions_);
  if (log_.on()) NoteSubmitted(what, dependencies);
  std::copy(returns_scratch_.begin(), returns_scratch_.end(), returns);
  Perform();
  stats_.tasks_submitted++;
  if ((++submits_ & 15) == 0) Drain();  // keeps the pipelines moving in a long loop of calls
  NotifyPeers(lock);
  return true;
}

void Runtime::Cancel(Object* object, bool force, bool recursive) {
  std::unique_lock lock(mutex_);
  Drain();
  owner_->Cancel(object, force, recursive, CoarseNowNs(), actions_);
  Perform();
  waiters_.TellPoller();
  NotifyPeers(lock);
}

bool Runtime::IsCall(Object* object) {
  std::lock_guard lock(mutex_);
  return object->producer != nullptr && object->producer->actor != nullptr;
}

}  // namespace weft::core
