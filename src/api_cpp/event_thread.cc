#include "api_cpp/event_thread.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "weft/errors.h"

namespace weft::detail {
namespace {

// Each line with its origin before it, unless it is weft's own.
void Print(const core::RuntimeEvent& event) {
  std::string prefix;
  if (event.pid != 0) {
    const std::string_view name = event.name.empty() ? "worker" : std::string_view(event.name);
    prefix.append("(").append(name).append(" pid=").append(std::to_string(event.pid)).append(") ");
  }
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

std::shared_ptr<EventThread> EventThread::Start(Runtime& runtime, core::Receiver receiver) {
  std::shared_ptr<EventThread> self(new EventThread(runtime, receiver));
  // Signals are for the program's own threads.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  self->thread_ = std::thread([self] { self->Loop(); });
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return self;
}

void EventThread::Stop() {
  if (thread_.get_id() == std::this_thread::get_id()) {
    Loop();  // a callback has closed the session: what came before the end is handled here, below it
    thread_.detach();
  } else {
    thread_.join();
  }
  std::unordered_set<Callback*> due;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    due.swap(due_);
  }
  for (Callback* callback : due) Call(callback);
}

void EventThread::Call(Callback* callback) {
  Callback taken = *callback;
  delete callback;
  taken.function(taken.context);
}

void EventThread::CallWhenReady(Object* object, void (*function)(void* context), void* context) {
  auto* callback = new Callback{function, context};
  {
    std::lock_guard lock(mutex_);
    if (stopped_) {
      delete callback;
      throw WeftError("the session has ended (it was shut down)");
    }
    due_.insert(callback);
  }
  runtime_.CallWhenReady(object, callback, receiver_);
}

void EventThread::Loop() {
  core::RuntimeEvent event;
  while (runtime_.NextEvent(&event, receiver_)) {
    if (event.kind == core::RuntimeEvent::kOutput) Print(event);
    if (event.kind != core::RuntimeEvent::kReady) continue;
    runtime_.DropReference(event.object);  // the requester keeps it
    auto* callback = static_cast<Callback*>(event.cookie);
    {
      std::lock_guard lock(mutex_);
      if (due_.erase(callback) == 0) continue;
    }
    Call(callback);
    std::lock_guard lock(mutex_);
    if (stopped_) return;  // by the callback: the runtime may be gone
  }
}

std::shared_ptr<EventThread> StartEvents(SessionState& state) {
  std::lock_guard lock(state.events_mutex);
  if (state.events_ended) throw WeftError("the session has ended (it was shut down)");
  if (!state.events) {
    auto receiver = state.hosted ? core::Receiver::kHosted : core::Receiver::kFrontEnd;
    state.events = EventThread::Start(*state.runtime, receiver);
  }
  return state.events;
}

void StopEvents(SessionState& state) {
  std::shared_ptr<EventThread> events;
  {
    std::lock_guard lock(state.events_mutex);
    state.events_ended = true;
    events = std::move(state.events);
  }
  if (events) events->Stop();
}

void CallWhenReady(Object* object, void (*callback)(void* context), void* context) {
  Using session;
  StartEvents(session.need())->CallWhenReady(object, callback, context);
}

}  // namespace weft::detail
