// The one thread of the C++ front end in a process: prints what workers print (in a driver) and calls back when objects
// are ready, for co_await and on_ready.
//
// Started when first needed. Stop from any thread; each callback that is still due is then made, once the runtime has
// stopped, and finds that the session has ended.
#pragma once

#include <mutex>
#include <thread>
#include <unordered_set>

#include "api_cpp/state.h"

namespace weft::detail {

class EventThread {
 public:
  explicit EventThread(Runtime& runtime);
  ~EventThread();  // the runtime has stopped
  void CallWhenReady(Object* object, void (*callback)(void* context), void* context);

 private:
  struct Callback {
    void (*function)(void* context);
    void* context;
  };
  void Loop();

  Runtime& runtime_;
  std::mutex mutex_;
  std::unordered_set<Callback*> due_;
  std::thread thread_;
};

void StartEvents(SessionState& state);  // if it does not run yet
void StopEvents(SessionState& state);

}  // namespace weft::detail
