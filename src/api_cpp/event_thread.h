// The one thread of the C++ front end in a process: prints what workers print (in a driver) and calls back when objects
// are ready, for co_await and on_ready.
//
// Started when first needed. Stop may be called from any thread, even from a callback; each callback that is still due
// is then made once the runtime has stopped, and finds that the session has ended. The thread keeps this object, and
// after Stop uses nothing else: what a callback has ended may be freed when it returns.
//
// In a worker of another language, whose front end takes the runtime's events, it takes only those for C++.
#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "api_cpp/state.h"

namespace weft::detail {

class EventThread {
 public:
  static std::shared_ptr<EventThread> Start(Runtime& runtime, core::Receiver receiver);
  void Stop();  // once; the runtime has stopped, or ended these events, and is still there
  // Throws WeftError if it was stopped.
  void CallWhenReady(Object* object, void (*function)(void* context), void* context);

 private:
  struct Callback {
    void (*function)(void* context);
    void* context;
  };
  EventThread(Runtime& runtime, core::Receiver receiver) : runtime_(runtime), receiver_(receiver) {}
  void Loop();
  static void Call(Callback* callback);

  Runtime& runtime_;  // not used after Stop
  const core::Receiver receiver_;
  std::mutex mutex_;
  std::unordered_set<Callback*> due_;
  bool stopped_ = false;
  std::thread thread_;
};

// Starts it if it does not run yet; throws WeftError after StopEvents.
std::shared_ptr<EventThread> StartEvents(SessionState& state);
void StopEvents(SessionState& state);

}  // namespace weft::detail
