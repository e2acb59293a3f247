// What the C++ front end keeps for the whole process: the present session, and ended ones whose memory is still in use.
//
// Threads: any. Each call into weft notes which session it uses (session_use.h); closing one waits for its users.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/runtime.h"
#include "weft/detail/bridge.h"
#include "weft/detail/session_use.h"

namespace weft::detail {

using core::Object;
using core::Runtime;

class EventThread;

struct SessionState {
  std::unique_ptr<Runtime> runtime;
  uint32_t epoch = 0;
  std::string name_space;   // of actors' names
  bool hosted = false;      // in a worker of another language, whose front end takes the runtime's events
  std::mutex events_mutex;  // guards the next two
  std::shared_ptr<EventThread> events;
  bool events_ended = false;
};

extern std::atomic<SessionState*> g_session;  // nullptr while no session is open; read through Using
extern std::atomic<uint64_t> g_blocks;        // how many blocks use shared memory

// The path of the program `weft`; throws if it is not found.
std::string ProgramPath();
// In session_use.cc. Before the first session:
void PrepareUsing();
// Returns when no other thread uses the session, which g_session no longer names.
void AwaitUsers(SessionState* state);
bool IsUsed(SessionState* state);

[[noreturn]] void ThrowCoreError(const core::Error& error);
[[noreturn]] void ThrowSessionEnded(Runtime& runtime);
core::StoreRoom AllocateOrThrow(SessionState& state, uint64_t size, core::ObjectId id, core::Populate populate);
// An encoded value, moved to the store.
core::StoreRoom StoreBytes(SessionState& state, const void* bytes, size_t size, core::ObjectId id);
// An array's header and data, in the store or (small) in `bytes`.
core::StoreRoom StoreArray(SessionState& state, const char* type, size_t item_size, const void* data, size_t count,
                           const Shape& shape, core::ObjectId id, std::string& bytes);
// Takes the room out of the block, with the array's header written; false if the block is not room of this session.
bool TakeRoom(SessionState& state, Block* block, const char* type, const Shape& shape, core::StoreRoom& room);

}  // namespace weft::detail
