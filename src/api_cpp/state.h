// What the C++ front end keeps for the whole process: the present session and those that ended while something still
// looks into their memory.
//
// Threads: any. A call that waits counts itself (Using), so that closing the session waits until it has returned.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/runtime.h"
#include "weft/detail/bridge.h"

namespace weft::detail {

using core::Object;
using core::Runtime;

class EventThread;

struct SessionState {
  std::unique_ptr<Runtime> runtime;
  uint32_t epoch = 0;
  std::string name_space;   // of actors' names
  bool hosted = false;      // in a worker of another language, whose front end takes the runtime's events
  std::mutex events_mutex;  // guards the two that follow
  std::shared_ptr<EventThread> events;
  bool events_ended = false;
  std::atomic<uint32_t> waiting{0};  // calls that may sleep in the runtime
};

extern std::atomic<SessionState*> g_session;  // nullptr while no session is open
extern std::atomic<uint64_t> g_blocks;        // that look into shared memory

// The present session; throws, and says what to do, if there is none or it cannot be used.
SessionState& NeedSession();
// Of the program `weft`; throws if it is not found.
std::string ProgramPath();
inline Runtime& NeedRuntime() { return *NeedSession().runtime; }

// Keeps a session's runtime while a call waits in it.
class Using {
 public:
  explicit Using(SessionState& state) : state_(state) { state_.waiting.fetch_add(1); }
  ~Using() { state_.waiting.fetch_sub(1); }
  Using(const Using&) = delete;

 private:
  SessionState& state_;
};

[[noreturn]] void ThrowCoreError(const core::Error& error);
[[noreturn]] void ThrowSessionEnded(Runtime& runtime);
core::StoreRoom AllocateOrThrow(SessionState& state, uint64_t size, core::ObjectId id, core::Populate populate);
// An encoded value, moved to the store.
core::StoreRoom StoreBytes(SessionState& state, const void* bytes, size_t size, core::ObjectId id);
// An array's header and data, in the store or (small) in `bytes`.
core::StoreRoom StoreArray(SessionState& state, const char* type, size_t item_size, const void* data, size_t count,
                           const Shape& shape, core::ObjectId id, std::string& bytes);
// Takes the room out of the block, with the array's header written; false if the block is no room of this session.
bool TakeRoom(SessionState& state, Block* block, const char* type, const Shape& shape, core::StoreRoom& room);

}  // namespace weft::detail
