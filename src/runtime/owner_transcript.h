// For tests of the owner: events in, and the actions that they led to as text.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/owner.h"

namespace weft::core {

inline constexpr ProcessId kSelf{1}, kWorker{2}, kOther{3}, kThird{4};
inline constexpr int64_t kMs = 1'000'000;

// Events in, actions out as text. Pushes are accepted and revokes answered by hand.
class Transcript {
 public:
  Transcript() : owner(kSelf) {
    function_ = owner.InternFunction(Function{.key = {1, 1}, .name = "f"});
    shape_ = owner.InternShape({{"CPU", kResourceUnit}});
  }
  ~Transcript() { owner.CheckInvariants(); }

  const TaskTemplate* What(int32_t max_retries = 3, uint32_t num_returns = 1) {
    TaskTemplate what;
    what.function = function_;
    what.shape = shape_;
    what.num_returns = num_returns;
    what.max_retries = max_retries;
    what.name = "f";
    return owner.InternTemplate(what);
  }

  // Submits and names the task by the letter in `name`.
  Object* Submit(const std::string& name, std::vector<Object*> dependencies = {}, std::vector<Object*> contained = {},
                 int32_t max_retries = 3) {
    std::vector<Object*> returns;
    owner.Submit({.what = What(max_retries), .arguments = name, .dependencies = dependencies, .contained = contained},
                 now, returns, actions);
    return returns.at(0);
  }
  Object* Put(const std::string& bytes, std::vector<Object*> contained = {}) {
    Object* object = owner.NewOwned();
    owner.Resolve(object, ValueKind::kInline, bytes, {}, contained, actions);
    return object;
  }
  // An actor of ours, in the worker and constructed.
  Object* Actor(ProcessId worker, bool constructed = true) {
    Object* handle = Put("");
    TaskTemplate what = *What(0, 0);
    what.kind = TemplateKind::kCreation;
    owner.CreateActor(handle, {.what = owner.InternTemplate(what), .arguments = "new"}, {.keep_for_restarts = true},
                      now, actions);
    Report(handle, ActorState::kStarting, 1, worker);
    if (!constructed) return handle;
    EXPECT_EQ(Actions(), "push new to " + std::to_string(worker.value));
    owner.Replied(worker, handles.at("new"), ReplyKind::kValues, "", {}, now, actions);
    Report(handle, ActorState::kAlive, 1, worker);
    EXPECT_EQ(Actions(), "");
    return handle;
  }
  void Report(Object* handle, ActorState state, uint32_t incarnation, ProcessId worker, const std::string& why = "") {
    owner.ActorReported({handle->id, static_cast<uint8_t>(state), incarnation, worker, {}, why}, now, actions);
  }
  Object* Call(Object* handle, const std::string& name, std::vector<Object*> dependencies = {},
               int32_t max_retries = 0) {
    TaskTemplate what = *What(max_retries);
    what.kind = TemplateKind::kCall;
    what.method = "method";
    std::vector<Object*> returns;
    owner.SubmitCall(handle, {.what = owner.InternTemplate(what), .arguments = name, .dependencies = dependencies}, now,
                     returns, actions);
    return returns.at(0);
  }
  void Grant(ProcessId worker, uint64_t lease) { owner.LeaseGranted(shape_, LeaseId{lease}, worker, now, actions); }
  void Drop(Object* object) {
    if (object->local_references.fetch_sub(1) == 1) owner.Consider(object, actions);
  }
  void Reply(ProcessId worker, const std::string& name, ReplyKind kind = ReplyKind::kValues,
             std::vector<ObjectId> contained = {}, uint32_t run_ns = 0) {
    std::vector<ReturnedValue> values;
    const std::string bytes = "result of " + name, error = "error of " + name;
    if (kind == ReplyKind::kValues) values.push_back({.bytes = bytes, .contained = std::move(contained)});
    owner.Replied(worker, handles.at(name), kind, error, values, now, actions, run_ns);
  }
  void Revoked(const std::string& name, bool revoked) { owner.RevokeResolved(handles.at(name), revoked, now, actions); }
  void Tick(int64_t later_ns) {
    now += later_ns;
    owner.Tick(now, actions);
  }

  // What was to be done since the last call.
  std::string Actions() {
    std::string text;
    for (const Action& action : std::exchange(actions, {})) {
      if (action.kind == ActionKind::kForgetWorker) {
        forgotten.push_back(action.process);
        continue;
      }
      if (!text.empty()) text += "; ";
      auto process = [](ProcessId id) { return std::to_string(id.value); };
      switch (action.kind) {
        case ActionKind::kPush: {
          std::string name(action.task->arguments.view());
          handles[name] = action.task->handle;
          text.append("push ").append(name).append(" to ").append(process(owner.workers()[action.worker].process));
          break;
        }
        case ActionKind::kPlaceActor:
          text += "place actor";
          break;
        case ActionKind::kWatchActor:
          text += "watch actor";
          break;
        case ActionKind::kReleaseActor:
          text += "release actor";
          break;
        case ActionKind::kKillActor:
          text += "kill actor";
          break;
        case ActionKind::kAskCancel:
          text += "ask " + process(action.process) + " to cancel";
          break;
        case ActionKind::kCancelRunning:
          text += "tell " + process(action.process) + " to cancel";
          break;
        case ActionKind::kRevoke:
          text += "revoke";
          for (const auto& [name, handle] : handles) {
            if (handle == action.number) text.append(" ").append(name);
          }
          break;
        case ActionKind::kRequestLeases:
          text.append("request ").append(std::to_string(action.number));
          break;
        case ActionKind::kReturnLease:
          text.append("return lease ").append(std::to_string(action.number));
          break;
        case ActionKind::kFreeStored:
          text.append("free at ").append(std::to_string(action.location.offset));
          if (action.number != 0) text += " everywhere";
          break;
        case ActionKind::kBring:
          text.append("bring ").append(std::to_string(action.location.offset));
          break;
        case ActionKind::kLetGo:
          text.append("let go of ").append(std::to_string(action.location.offset));
          break;
        case ActionKind::kEndHold:
          text.append("end hold of ").append(std::to_string(action.id.index));
          text.append(" of ").append(process(action.id.owner));
          break;
        case ActionKind::kAddBorrower:
          text.append("register ").append(process(action.process)).append(" at ").append(process(action.id.owner));
          break;
        case ActionKind::kRemoveBorrower:
          text.append("give back ")
              .append(std::to_string(action.number))
              .append(" of ")
              .append(process(action.process));
          text.append(" to ").append(process(action.id.owner));
          break;
        case ActionKind::kFetch:
          text.append("fetch from ").append(process(action.process));
          break;
        case ActionKind::kAskAgain:
          text.append("ask ").append(process(action.process)).append(" again");
          break;
        case ActionKind::kRunAgain:
          if (const Task* task = owner.FindTask(action.number)) {
            text.append("run ").append(task->arguments.view()).append(" again");
          } else {
            text += "run something again, which has failed already";
          }
          break;
        case ActionKind::kSendValue:
          text.append(action.object && action.number == 0 ? "send value to " : "send loss to ");
          text.append(process(action.process));
          if (action.object) owner.Unhold(action.object, actions);
          break;
        case ActionKind::kResolved:
          text += "resolved";
          break;
        case ActionKind::kForgetWorker:
          break;
      }
    }
    return text;
  }

  Owner owner;
  weft::core::Actions actions;
  std::map<std::string, uint64_t> handles;
  std::vector<ProcessId> forgotten;  // told by kForgetWorker
  int64_t now = kMs;

 private:
  const Function* function_;
  uint32_t shape_;
};

inline std::string Text(const Object* object) { return std::string(object->value.bytes()); }

// Processes are on no node in particular, the number 0; these are elsewhere.
inline constexpr ProcessId kRemoteWorker{uint64_t{2} << 32 | 1}, kRemoteOther{uint64_t{2} << 32 | 2};
inline constexpr Location kRemotePlace{{kRemoteWorker.value}, 640, 100'000, 77};
inline constexpr Location kCopy{{9}, 1280, 100'000, 5};

inline void ReplyStored(Transcript& t, ProcessId worker, const std::string& name, const Location& location) {
  t.owner.Replied(worker, t.handles.at(name), ReplyKind::kValues, "",
                  {{.kind = ValueKind::kStored, .bytes = {}, .location = location, .contained = {}}}, t.now, t.actions);
}

}  // namespace weft::core
