#include "api_cpp/event_thread.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>

#include "weft/errors.h"

namespace weft::detail {
namespace {

// Each line with its origin before it.
void Print(const core::RuntimeEvent& event) {
  std::string prefix = "(";
  prefix.append(event.name.empty() ? "worker" : event.name).append(" pid=").append(std::to_string(event.pid));
  prefix += ") ";
  std::string text;
  for (size_t at = 0; at < event.text.size();) {
    size_t end = std::min(event.text.find('\n', at), event.text.size());
    text += prefix;
    text.append(event.text, at, end - at);
    text += '\n';
    at = end + 1;
  }
  std::FILE* stream = event.is_stderr ? stderr : stdout;
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

}  // namespace

SessionState::SessionState() = default;
SessionState::~SessionState() = default;

EventThread::EventThread(Runtime& runtime) : runtime_(runtime) {
  // Signals are for the program's own threads.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  thread_ = std::thread([this] { Loop(); });
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

EventThread::~EventThread() {
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();  // a callback has closed the session
  } else {
    thread_.join();
  }
  std::unordered_set<Callback*> due;
  {
    std::lock_guard lock(mutex_);
    due.swap(due_);
  }
  for (Callback* callback : due) {
    Callback taken = *callback;
    delete callback;
    taken.function(taken.context);
  }
}

void EventThread::CallWhenReady(Object* object, void (*function)(void* context), void* context) {
  auto* callback = new Callback{function, context};
  {
    std::lock_guard lock(mutex_);
    due_.insert(callback);
  }
  runtime_.CallWhenReady(object, callback);
}

void EventThread::Loop() {
  core::RuntimeEvent event;
  while (runtime_.NextEvent(&event)) {
    if (event.kind == core::RuntimeEvent::kOutput) Print(event);
    if (event.kind != core::RuntimeEvent::kReady) continue;
    runtime_.DropReference(event.object);  // whoever asked keeps it
    auto* callback = static_cast<Callback*>(event.cookie);
    {
      std::lock_guard lock(mutex_);
      if (due_.erase(callback) == 0) continue;
    }
    Callback taken = *callback;
    delete callback;
    taken.function(taken.context);
  }
}

void StartEvents(SessionState& state) {
  std::lock_guard lock(state.events_mutex);
  if (!state.events) state.events = std::make_unique<EventThread>(*state.runtime);
}

void StopEvents(SessionState& state) {
  std::unique_ptr<EventThread> events;
  {
    std::lock_guard lock(state.events_mutex);
    events = std::move(state.events);
  }
}

void CallWhenReady(Object* object, void (*callback)(void* context), void* context) {
  SessionState& state = NeedSession();
  if (state.hosted) {
    throw WeftError("co_await and on_ready do not work in a C++ task that runs in a Python worker: use get or wait");
  }
  StartEvents(state);
  state.events->CallWhenReady(object, callback, context);
}

}  // namespace weft::detail
