// The functions of the library that the API's templates call. Not for users: names and layouts may change at any time.
//
// Everything may be called on any thread while a session is open. Functions that fail throw what errors.h lists.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

namespace weft {

struct TaskOptions;
struct ActorOptions;
struct CallOptions;
struct InitOptions;

namespace core {
struct Object;
struct TaskTemplate;
struct TaskCall;
}  // namespace core

namespace detail {

class Encoder;

// ---- objects
void AddReference(core::Object* object, uint32_t epoch) noexcept;
void DropReference(core::Object* object, uint32_t epoch) noexcept;  // harmless after its session has ended
uint32_t CurrentEpoch();                                            // throws without a session
std::pair<uint64_t, uint64_t> IdOf(core::Object* object) noexcept;  // owner and index
core::Object* FindReference(uint64_t owner, uint64_t index);        // with a reference for the caller

// The layout of an array's elements: row after row, the last dimension without gaps.
inline constexpr uint32_t kMaxDimensions = 8;
struct Shape {
  uint32_t dimensions = 1;
  size_t lengths[kMaxDimensions] = {};
};

// Memory that several arrays may share: room in the store that is being filled, a stored object that is read in place,
// or plain memory. Counted; the count starts at one.
struct Block;
// In the store, with space before the data for the header of an array of this type.
Block* NewRoom(size_t bytes, const char* type, const Shape& shape, void** data);
Block* NewPlain(size_t bytes, void** data);
Block* PinObject(core::Object* object);
void RetainBlock(Block* block) noexcept;
void ReleaseBlock(Block* block) noexcept;

// The bytes of a value, good while the object is referenced.
struct ValueSource {
  const uint8_t* data = nullptr;
  size_t size = 0;
  bool stored = false;             // may be read in place while `object` is pinned
  core::Object* object = nullptr;  // if stored
};

// What an array's bytes say about it.
struct ArrayView {
  const uint8_t* data = nullptr;
  size_t count = 0;  // of elements, all dimensions together
  Shape shape = {};
  bool columns = false;  // stored column by column
};
// Throws if the elements are of another type: NumPy's name of it, or the layout of a struct without names.
ArrayView ReadArrayHead(const ValueSource& source, const char* type, size_t item_size);
// Row by row, however the array is stored.
void CopyRows(const ArrayView& array, size_t item_size, void* to);

// ---- values into objects. Native: the encoder holds one whole value, format byte included.
core::Object* PutNative(Encoder& value);
core::Object* PutArray(const char* type, size_t item_size, const void* data, size_t count, const Shape& shape);
core::Object* PutRoom(Block* room, const char* type, const Shape& shape);  // nullptr if it is not room of this session

// Values into the results of a task.
struct Returning;
void ReturnNative(Returning& out, Encoder& value);
void ReturnArray(Returning& out, const char* type, size_t item_size, const void* data, size_t count,
                 const Shape& shape);
bool ReturnRoom(Returning& out, Block* room, const char* type, const Shape& shape);

// ---- waiting. A deadline is in nanoseconds from now; negative: none.
struct Failure {
  std::string name = {};     // of the class of errors.h
  std::string message = {};  // TaskError: of the exception
  std::string type_name = {}, function_name = {};
  int pid = 0;
  std::string stack = {};               // of the exception, a line each
  std::vector<std::string> bases = {};  // classes that its class is derived from
};
[[noreturn]] void Throw(const Failure& failure);
void CheckEpoch(core::Object* object, uint32_t epoch);  // throws if null or of an ended session
bool IsResolved(core::Object* object) noexcept;
bool IsReady(core::Object* object, bool to_look) noexcept;  // in the sense of wait
// False if the time ran out. The objects must be of the present session.
bool WaitForAll(core::Object* const* objects, size_t count, int64_t timeout_ns);
void WaitForSome(core::Object* const* objects, size_t count, size_t wanted, int64_t timeout_ns, bool to_look);
// The value of a resolved object, or how it failed.
bool Read(core::Object* object, ValueSource& source, Failure& failure);
void ReadOrThrow(core::Object* object, ValueSource& source);
void FetchOrThrow(core::Object* object, uint32_t epoch, ValueSource& source);  // waits as long as it takes
[[noreturn]] void ThrowTimeout(core::Object* const* objects, size_t count, int64_t timeout_ns);

// ---- functions
// The arguments of a task as they arrived.
struct Arguments {
  const core::TaskCall* call;
  ValueSource Dependency(uint32_t number) const;
};

// The object behind an actor, in its process.
struct Instance {
  void* object = nullptr;
  const std::type_info* type = nullptr;
  void (*destroy)(void* object) = nullptr;
};

struct Bound;  // a function called without options, in one session

// One for each function, method and constructor that the program names, made before main begins.
struct FunctionRecord {
  enum Kind : uint8_t { kFunction, kConstructor, kMethod };
  // Makes the arguments in `storage`, from the bytes that follow.
  using Prepare = void (*)(void* storage, const Arguments& arguments, const uint8_t* begin, const uint8_t* end);
  // Calls the function. `again`: it may be called once more with the same arguments, which are then left as they are.
  using Run = void (*)(void* storage, Instance& instance, Returning& out, bool again);
  using Destroy = void (*)(void* storage) noexcept;

  FunctionRecord(Kind kind, const std::type_info* type, Prepare prepare, Run run, Destroy destroy, size_t storage_size,
                 size_t storage_alignment, uint32_t num_parameters, uint32_t num_returns, bool repeatable,
                 std::string_view name) noexcept;
  Kind kind;
  bool repeatable;             // the arguments can be copied
  const std::type_info* type;  // of the actor; nullptr for a function
  Prepare prepare;
  Run run;
  Destroy destroy;  // destroys the arguments; nullptr: nothing to do
  size_t storage_size, storage_alignment;
  uint32_t num_parameters, num_returns;
  std::string_view name;
  FunctionRecord* next;
  std::atomic<const Bound*> bound{nullptr};
};

// The encoded arguments are submitted; `returns` gets num_returns objects with a reference each.
void Submit(FunctionRecord& function, Encoder& arguments, core::Object** returns);
void Submit(const core::TaskTemplate* what, Encoder& arguments, core::Object** returns);
// The function with these options, in the present session.
const core::TaskTemplate* Bind(FunctionRecord& function, const TaskOptions& options);

// ---- actors
// What callers know about an actor beside its id; travels with every handle. Never freed.
struct ActorInfo;
const ActorInfo* FindInfo(std::string_view bytes, std::string_view class_name);  // throws if it is of another class
std::string_view BytesOf(const ActorInfo* info) noexcept;
// A handle, with a reference for the caller.
struct FoundActor {
  core::Object* handle = nullptr;
  const ActorInfo* info = nullptr;
};
FoundActor CreateActor(FunctionRecord& constructor, std::string_view class_name, const ActorOptions& options,
                       Encoder& arguments);
FoundActor LookupActor(const std::string& name, const std::string* name_space, std::string_view class_name);
FoundActor CurrentActor(std::string_view class_name);
// Like Submit.
void SubmitCall(FunctionRecord& method, core::Object* handle, const ActorInfo* info, const CallOptions* options,
                Encoder& arguments, core::Object** returns);
void KillActor(core::Object* handle, bool no_restart);
void Cancel(core::Object* object, bool force, bool recursive);
// Calls back once, on a thread of weft's, when the object is resolved (or the session has ended).
void CallWhenReady(core::Object* object, void (*callback)(void* context), void* context);
// In a task: waits until `done`, like get: other tasks may use its CPU, and it can be cancelled. False, at once: this
// thread runs no task. The thread that sets `done` calls WakeTasks afterwards.
bool WaitInTask(const std::atomic<bool>& done);
void WakeTasks() noexcept;

[[noreturn]] void ThrowNotOfType(const char* wanted, int tag);
[[noreturn]] void ThrowOutOfRange(const char* wanted);
[[noreturn]] void ThrowMalformed();
[[noreturn]] void ThrowWrongFormat(uint8_t format);
[[noreturn]] void ThrowWrongArray(std::string_view wanted, std::string_view found);
[[noreturn]] void ThrowWrongIndices(size_t wanted, size_t found);
[[noreturn]] void ThrowWrongLength(size_t wanted, size_t found);
[[noreturn]] void ThrowTooDeep(size_t limit);

// ---- sessions
uint32_t OpenSession(const InitOptions& options);
void CloseSession(uint32_t epoch) noexcept;
bool IsOpen(uint32_t epoch) noexcept;

}  // namespace detail
}  // namespace weft
