// Runtime: actors and cancelling, as the front ends ask for them.
#include "base/bytes.h"
#include "base/clock.h"
#include "runtime/runtime.h"

namespace weft::core {
namespace {

thread_local uint64_t t_execution = 0;

// What fits into one message beside everything else (kMaxMessageBytes).
constexpr size_t kMaxEntrusted = 3 << 20;
// How often somebody who waits for the daemon looks whether a signal wants handling.
constexpr int64_t kAskAgainNs = 100'000'000;

}  // namespace

void Runtime::SetCurrentExecution(uint64_t number) { t_execution = number; }
uint64_t Runtime::CurrentExecution() { return t_execution; }

Result<Runtime::FoundActor> Runtime::CreateActor(const ActorRequest& request, const GiveUp& give_up) {
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
  if (!request.name.empty()) question = message.request = next_question_++;
  Send(std::move(message));
  Perform();
  if (question != 0) {
    Result<ActorAnswer> answer = AwaitAnswer(lock, actor_answers_, question, give_up);
    if (!answer && answer.error().kind == ErrorKind::kTimeout) {
      // The daemon may have created it, or will: it is let go of when that is known.
      given_up_[question] = handle;
      return answer.error();
    }
    if (!answer || !answer->error.empty() || answer->actor != handle->id) {
      owner_->AbandonActor(handle, actions_);
      Perform();
      NotifyPeers(lock);
      if (!answer) return answer.error();
      if (!answer->error.empty()) return Error{ErrorKind::kInvalid, answer->error};
      return FoundActor{FindReference(answer->actor), std::move(answer->metadata)};
    }
  }
  if (request.detached && request.max_restarts != 0 && self() != welcome_.driver) EntrustActor(handle);
  NotifyPeers(lock);
  return FoundActor{handle, {}};
}

void Runtime::EntrustActor(Object* handle) {
  const Actor& actor = *owner_->ActorOf(handle);
  const TaskTemplate& what = *actor.creation;
  const Function& function = *what.function;
  if (actor.creation_arguments.size() + function.body.size() > kMaxEntrusted) return;
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
  // The driver borrows what it is told of.
  owner_->Mention(handle, welcome_.driver, actions_);
  for (const auto* objects : {&actor.creation_dependencies, &actor.creation_contained}) {
    out.Fixed(static_cast<uint32_t>(objects->size()));
    for (Object* object : *objects) {
      owner_->Mention(object, welcome_.driver, actions_);
      out.Fixed(object->id);
    }
  }
  Perform();
  Route(welcome_.driver, {.kind = PeerMessageKind::kEntrust, .id = handle->id, .bytes = out.Take()});
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
  uint64_t question = next_question_++;
  Send(core::LookupActor{.request = question, .name = name, .name_space = name_space});
  Result<ActorAnswer> answer = AwaitAnswer(lock, actor_answers_, question, give_up);
  if (!answer && answer.error().kind == ErrorKind::kTimeout) given_up_[question] = nullptr;
  NotifyPeers(lock);
  if (!answer) return answer.error();
  if (!answer->error.empty()) return Error{ErrorKind::kInvalid, answer->error};
  return FoundActor{FindReference(answer->actor), std::move(answer->metadata)};
}

Result<std::vector<std::pair<std::string, std::string>>> Runtime::ListActors(bool all, const std::string& name_space,
                                                                             const GiveUp& give_up) {
  std::unique_lock lock(mutex_);
  uint64_t question = next_question_++;
  Send(core::ListActors{.request = question, .all = all, .name_space = name_space});
  Result<ActorList> answer = AwaitAnswer(lock, actor_lists_, question, give_up);
  if (!answer && answer.error().kind == ErrorKind::kTimeout) given_up_[question] = nullptr;
  NotifyPeers(lock);
  if (!answer) return answer.error();
  return std::move(answer->actors);
}

// What the daemon says to question `question`, which was sent. kTimeout: the caller gave up, and must say in given_up_
// what is to become of the answer; kGone: the session has ended.
template <class Answer>
Result<Answer> Runtime::AwaitAnswer(std::unique_lock<std::mutex>& lock, std::unordered_map<uint64_t, Answer>& answers,
                                    uint64_t question, const GiveUp& give_up) {
  for (;;) {
    // A signal that came just before the sleep does not interrupt it, so it is asked for now and then.
    WaitOutcome outcome = WaitUntil(lock, NowNs() + kAskAgainNs, false, [&] { return answers.contains(question); });
    if (auto found = answers.find(question); found != answers.end()) {
      Answer answer = std::move(found->second);
      answers.erase(found);
      return answer;
    }
    if (outcome != WaitOutcome::kInterrupted && outcome != WaitOutcome::kTimedOut) {
      return Error{ErrorKind::kGone, "the session has ended"};
    }
    if (!give_up) continue;
    lock.unlock();
    const bool gives_up = give_up();
    lock.lock();
    // If the answer has come in between, it is taken: what is done is not to be undone.
    if (gives_up && !answers.contains(question)) return Error{ErrorKind::kTimeout, "interrupted"};
  }
}

bool Runtime::TakeUnwantedAnswer(uint64_t question, const ActorAnswer* answer) {
  auto found = given_up_.find(question);
  if (found == given_up_.end()) return false;
  Object* handle = found->second;
  given_up_.erase(found);
  if (!handle) return true;
  if (!answer->error.empty() || answer->actor != handle->id) {
    owner_->AbandonActor(handle, actions_);
    Perform();
  } else {
    DropReference(handle);  // as any handle that nobody wants; a detached actor lives on under its name
  }
  return true;
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
  Bump();
  NotifyPeers(lock);
}

bool Runtime::IsCall(Object* object) {
  std::lock_guard lock(mutex_);
  return object->producer != nullptr && object->producer->actor != nullptr;
}

}  // namespace weft::core
