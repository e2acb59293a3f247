// What one process (or the daemon) knows about why something waits: the answers to the questions of a WaitGraph
// (src/runtime/wait_graph.h), which also draws the conclusions.
//
// Facts are input to their receiver: decoding returns false for anything that is not exactly one fact.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "wire/ids.h"
#include "wire/messages.h"

namespace weft::core {

// Why an object is not there, by its owner.
enum class ObjectState : uint8_t {
  kUnknown = 0,    // no such object here, or it is not known what makes it
  kThere = 1,      // it has a value, or an error
  kArguments = 2,  // its task waits for `objects`
  kReady = 3,      // its task waits for a worker with `shape`
  kPushed = 4,     // its task was given to `worker`
  kBehind = 5,     // its task is an actor call that must wait until `front`, an earlier one, has got `objects`
  kForActor = 6,   // its task is an actor call, and objects[0], the actor, is not there
  kPlacing = 7,    // it is an actor's handle, and the actor waits for a worker with `shape`
};

struct ObjectFact {
  ObjectId id;
  ObjectState state = ObjectState::kUnknown;
  int32_t pid = 0;     // of the owner
  uint64_t task = 0;   // the owner's handle of it
  uint64_t stamp = 0;  // changes whenever the task is pushed to a worker
  std::string name;    // of the task
  std::vector<ObjectId> objects;
  uint32_t more_objects = 0;  // that are not listed
  ResourceAmounts shape;
  ProcessId worker;
  uint8_t is_call = 0;   // to an actor: it stays in the worker's queue while the actor is busy
  uint8_t is_actor = 0;  // it is an actor's handle, and `name` the class
  std::string group;     // kPushed, is_call: the concurrency group
  uint32_t ahead = 0;    // kPushed: this owner's earlier tasks in that worker that have not ended
  // kPushed: the name of the first of those; kBehind: the call that it waits behind; kThere: how it failed, empty if it
  // did not.
  std::string front;
};

// A thread that waits in get or wait, or a coroutine that awaits.
struct WaitFact {
  uint64_t wait = 0;              // never the same twice in one process
  uint64_t execution = 0;         // the run of a task that waits; never the same twice; 0: not a task's thread
  ProcessId submitter;            // of that task
  uint64_t task = 0;              // the submitter's handle of it
  std::string name;               // of the task
  std::string group;              // whose slot it occupies
  uint8_t has_deadline = 0;       // 1: ends at a deadline; 2: a coroutine that others of its event loop may end
  uint32_t wanted = 0;            // how many of the objects it needs at least
  uint32_t more_objects = 0;      // not listed; it waits for all of them if it waits for all listed ones
  int64_t for_ns = 0;             // how long it has waited
  std::vector<ObjectId> objects;  // without a value when this was written
};

// How many tasks or calls a process runs at once. A plain worker has one slot, for all groups.
inline const std::string kAllGroups = "*";
struct SlotFact {
  std::string group;
  uint32_t slots = 0;
};

struct ProcessFact {
  ProcessId process;
  int32_t pid = 0;
  std::vector<SlotFact> slots;
  std::vector<WaitFact> waits;  // those that have lasted a while; others count as running
};

// Which processes hold resources of a shape.
struct HolderFact {
  LeaseId lease;
  ProcessId worker;
  int32_t pid = 0;
  ResourceAmounts kept;  // what it keeps while its task waits: CPUs are lent
  std::string actor;     // "actor Counter", if it is one
};

struct ShapeFact {
  ResourceAmounts shape;
  ResourceAmounts total;  // of the resources in the shape
  ResourceAmounts free;   // of them; what is over-committed is left out
  uint32_t starting = 0;  // workers that are being started
  std::vector<HolderFact> holders;
};

std::string EncodeFact(const ObjectFact& fact);
std::string EncodeFact(const ProcessFact& fact);
std::string EncodeFact(const ShapeFact& fact);
bool DecodeFact(std::string_view bytes, ObjectFact& fact);
bool DecodeFact(std::string_view bytes, ProcessFact& fact);
bool DecodeFact(std::string_view bytes, ShapeFact& fact);

}  // namespace weft::core
