// The messages between a process (driver or worker) and its node daemon: exact bytes, in both directions.
//
// They travel over the stream socket that a process starts with, are rare (never one per task), and are
// length-prefixed: uint32 size, uint8 type, uint8 count of descriptors that come along, then the fields in order,
// little-endian, strings and lists with a uint32 count before them. docs/formats.md has the table.
// Decode checks every length before anything is allocated; a message that does not decode exactly is refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "wire/ids.h"
#include "wire/labels.h"

namespace weft::core {

inline constexpr uint32_t kProtocolVersion = 4;
inline constexpr uint32_t kMaxMessageBytes = 4u << 20;  // bounds what one peer can make the daemon buffer

// An amount of one resource in 1/10,000. "CPU" is a resource like any other.
inline constexpr int64_t kResourceUnit = 10'000;
using ResourceAmounts = std::vector<std::pair<std::string, int64_t>>;  // sorted by name, no zeros

enum class Role : uint8_t { kDriver = 1, kWorker = 2 };

// ---- from a process to its daemon -------------------------------------------------------------------------------

// A file that workers are made of: on nodes that do not have it, they are started from a copy.
enum class ProgramRole : uint8_t {
  kProgram = 1,      // the first of worker_command
  kTaskLibrary = 2,  // named in worker_command, and loaded by the program
  kLibrary = 3,      // found by the dynamic loader
};
struct ProgramFile {
  uint8_t role = 0;         // ProgramRole
  uint8_t bits = 0;         // 32 or 64
  uint16_t machine = 0;     // its ELF number; 0: not known
  uint8_t fixed_paths = 0;  // ElfFile::fixed_paths
  uint32_t glibc = 0;       // the version that it needs (os/elf.h)
  uint64_t size = 0;
  std::string path;         // on the driver's node
  std::string identity;     // BuildIdentity, or "sha256:..."
  std::string interpreter;  // needed to run it
  std::string name;         // of a library: what the loader looks for
};

// The driver's first message: what kind of session it wants.
struct OpenSession {
  uint32_t protocol = kProtocolVersion;
  int32_t pid = 0;
  ResourceAmounts resources;        // "CPU" included
  uint64_t object_store_bytes = 0;  // 0: the daemon decides (30 % of what the machine or cgroup allows)
  uint8_t python_workers = 0;       // 1: worker_command starts a zygote; 0: it starts a worker itself
  std::vector<std::string> worker_command;
  std::vector<std::string> python_worker_command;  // in a C++ session: starts a zygote for Python workers; empty: none
  std::vector<std::string> environment;            // NAME=VALUE, complete
  std::string working_directory;
  uint8_t forward_output = 1;      // send the workers' output to the driver
  std::vector<ProgramFile> files;  // of a C++ driver in a cluster: what worker_command needs beside the system's files
  std::vector<std::string> preload;  // Python modules that are imported before workers are forked
};
struct WorkerReady {  // a worker's first message
  uint32_t protocol = kProtocolVersion;
  int32_t pid = 0;
};
struct RequestLeases {  // all that is wanted of this shape now; a later message replaces it; count 0 withdraws it
  ResourceAmounts shape;
  uint32_t count = 0;
  uint32_t depth = 0;  // how deeply nested the asking task is: deeper goes first, so that parents can end
  // How many grants of this shape it has heard of in all, so that grants on their way are not granted again.
  static constexpr uint64_t kAllHeard = UINT64_MAX;
  uint64_t heard = kAllHeard;
};
struct ReturnLease {
  LeaseId lease;
};
struct Blocked {};       // sent only if the page's demand flag is set: this worker's task waits and may lend its CPU
struct SegmentCreated {  // with one descriptor, read-write; the segment has the sender's number
  uint64_t size = 0;
};
struct OpenSegment {
  SegmentId segment;
};
struct ReserveMemory {  // answered by MemoryReserved, perhaps after waiting for room
  uint64_t bytes = 0;
  uint64_t request = 0;
};
struct ReleaseMemory {
  uint64_t bytes = 0;
};
struct RouteTo {  // to a process without a channel to the sender, or for messages that no channel carries
  ProcessId to;
  std::string payload;
};
struct FreeObjects {  // the owner no longer needs these; the daemon tells the writer, or acts for a dead one
  std::vector<Location> locations;
};
struct CloseSession {};  // the driver ends the session normally

// An actor is named by the id of its handle object, which its creator owns.
struct CreateActor {
  uint64_t request = 0;  // answered by ActorAnswer; 0: no answer is wanted
  ObjectId actor;
  ResourceAmounts to_place;  // while its constructor runs
  ResourceAmounts to_hold;   // from then on
  int32_t max_restarts = 0;  // -1: for ever
  uint8_t detached = 0;
  uint8_t get_if_exists = 0;
  uint8_t deferred = 0;  // an argument of its constructor is not there yet: no worker before PlaceActor
  uint32_t depth = 0;
  std::string name;  // empty: none
  std::string name_space;
  std::string class_name;
  std::string metadata;  // what a front end needs to make a handle; opaque here
};
struct PlaceActor {
  ObjectId actor;
};
struct LookupActor {  // answered by ActorAnswer
  uint64_t request = 0;
  std::string name;
  std::string name_space;
};
struct ListActors {  // the named ones; answered by ActorList
  uint64_t request = 0;
  uint8_t all = 0;  // of every namespace
  std::string name_space;
};
struct WatchActor {  // answered by ActorChanged, and again after each change
  ObjectId actor;
};
struct ReleaseActor {  // from its creator: no handle is left and no call is pending
  ObjectId actor;
};
struct KillActor {
  ObjectId actor;
  uint8_t no_restart = 1;
  std::string why;    // from its creator: it cannot be constructed; empty: on request
  std::string error;  // then: the exception of an argument, as the front end packed it
};
struct ActorConstructed {  // from its worker
  ObjectId actor;
  uint8_t ok = 0;
  std::string error;  // the constructor's exception, as the front end packed it
};
struct ActorExiting {  // from its worker: it ends itself, on purpose
  ObjectId actor;
};
struct KeepActor {  // from the driver: it can construct this detached actor of a worker again if that worker dies
  ObjectId actor;
};
// To the home of a detached actor in a cluster: all that it takes to construct it, now and later, without its creator.
struct HandOverActor {
  ObjectId actor;
  std::string recipe;  // ActorRecipe (wire/actor_recipe.h)
  std::string why;     // not empty: it cannot be constructed
  std::string error;   // then: the exception of an argument, as the front end packed it
};
struct AskShape {  // which processes hold resources of this shape? answered by ShapeAnswer
  uint64_t request = 0;
  ResourceAmounts shape;
};

struct FetchObject {     // asks for a copy of bytes on another node; answered once, unless it is released before
  uint64_t request = 0;  // the sender's number; it uses the copy from the answer on
  Location location;     // on the other node
};
struct ReleaseObject {  // the copy is no longer wanted, or no longer used
  uint64_t request = 0;
};

// Objects whose owner is dead (object_store/orphan_table.h). No message has more than this many of them.
inline constexpr size_t kMaxOrphansListed = 16384;
struct OrphansFound {  // in the sender's segment
  std::vector<SealedObject> objects;
};
struct HeldObjects {  // the answer to AskHeld: the owner's objects that the sender has references to or views of
  ProcessId owner;
  std::vector<uint64_t> indexes;
  uint8_t more = 0;  // 1: the next message goes on
};
struct HoldsEnded {  // the sender no longer has these, which were in the answer or registered later
  ProcessId owner;
  std::vector<uint64_t> indexes;
};
struct HoldOrphan {  // the sender got it after its answer; it may read the object after OrphanHeld
  uint64_t request = 0;
  ObjectId object;
};

// ---- from the daemon to a process -------------------------------------------------------------------------------

struct Welcome {  // with two descriptors: the process's own doorbell page, and its event log if events are kept
  ProcessId process;
  ProcessId driver;
  uint64_t object_store_bytes = 0;
  uint64_t reserved_bytes = 0;  // of the store, granted without asking
  uint32_t cpus = 0;            // whole CPUs of the node
  uint64_t session = 0;         // random, the same for all processes of the session or cluster
  uint8_t python_workers = 0;   // as the driver said
};
struct ChannelOpened {  // with two descriptors: the channel's memory and the peer's doorbell page
  ProcessId peer;
  uint32_t own_slot = 0;   // bit in this process's doorbell bitmap
  uint32_t peer_slot = 0;  // bit in the peer's
  uint8_t first_side = 0;  // 1 for the submitter, which uses the first ring to send
};
struct StreamOpened {  // with one descriptor: a connected stream socket, instead of a channel in shared memory
  ProcessId peer;
  uint32_t own_slot = 0;   // bit in this process's doorbell bitmap
  uint8_t first_side = 0;  // 1 for the submitter
};
// GPUs by number, with the amount of each.
using AssignedGpus = std::vector<std::pair<uint32_t, int64_t>>;

struct LeaseGranted {
  ResourceAmounts shape;
  LeaseId lease;
  ProcessId worker;
  AssignedGpus gpus;
};
struct LeaseRecalled {  // the worker is wanted for other work: give the lease back after the running task
  LeaseId lease;
};
struct ProcessDied {  // if it is DaemonOf(node): that node is gone, with all its processes
  ProcessId process;
  int32_t pid = 0;  // 0 if it was never known
  std::string how;  // "killed by signal 9 (SIGKILL)", "exited with code 3"
};
struct SegmentOpened {  // with one descriptor, read-only; size 0 and no descriptor if there is no such segment
  SegmentId segment;
  uint64_t size = 0;
};
struct SegmentClosed {  // of a segment that this process has opened: its writer has ended, and all objects are freed
  SegmentId segment;
};
struct MemoryReserved {
  uint64_t request = 0;
  uint8_t granted = 0;
  std::string why_not;
};
struct TrimMemory {  // another process needs room: give free warm pages back (ReleaseMemory)
  uint64_t bytes = 0;
};
struct Routed {
  ProcessId from;
  std::string payload;
};
struct ObjectsFreed {  // to the writer: these ranges may be recycled
  std::vector<Location> locations;
};
struct WorkerOutput {
  ProcessId worker;
  int32_t pid = 0;
  uint8_t is_stderr = 0;
  std::string text;  // whole lines unless a line is longer than 64 kB
  std::string name;  // of the actor's class, or of the function if it is known; otherwise empty
};
struct SessionRefused {  // to a driver, instead of Welcome
  std::string why;
};
struct LeaseRefused {  // no worker will ever be available for this shape
  ResourceAmounts shape;
  std::string why;
  uint32_t count = 0;  // from another node: how many of the leases that the head has assigned there
};
struct Exit {       // exit normally
  uint8_t now = 0;  // 0: when no process borrows what you own; 1: after the running task, since the session ends
  std::string why;  // to a driver: why its session ends
};

enum class ActorState : uint8_t {
  kPending = 1,   // no worker yet
  kStarting = 2,  // its constructor runs, or will run
  kAlive = 3,
  kRestarting = 4,  // its worker died, and it waits for another
  kDead = 5,
};
struct ActorAnswer {
  uint64_t request = 0;
  ObjectId actor;
  std::string metadata;
  std::string error;  // empty: none
};
struct ActorList {
  uint64_t request = 0;
  std::vector<std::pair<std::string, std::string>> actors;  // namespace, name
};
struct ActorChanged {  // the channel to the worker was opened before
  ObjectId actor;
  uint8_t state = 0;  // ActorState
  uint32_t incarnation = 0;
  ProcessId worker;
  AssignedGpus gpus;      // for its creator
  std::string why;        // kRestarting, kDead
  std::string error;      // kDead: the constructor's exception, if that was the reason
  uint8_t construct = 0;  // kStarting: the receiver must send the constructor; it is the creator if that lives
  uint8_t refused = 0;    // kDead: it can never get a worker, as `why` says
};
struct ShapeAnswer {
  uint64_t request = 0;
  std::string fact;  // ShapeFact (wait_facts.h)
};
struct ObjectFetched {
  uint64_t request = 0;
  Location location;  // of the copy, in a segment of this node
};
struct ObjectUnfetchable {
  uint64_t request = 0;
  std::string error;      // a system error: name of the exception class, newline, message
  uint8_t node_gone = 0;  // 1: the node that it lay on no longer exists, so it can only be made again
};

// ---- observers: other programs of the same user that look at a session
// ------------------------------------------------

enum ObserveWhat : uint32_t {
  kObserveEvents = 1,  // each ProcessInfo comes with the process's event log
  kObserveOutput = 2,  // the last output of each worker
  kObserveState = 4,   // what each process knows of its tasks and objects
  kObserveNodes = 8,   // all nodes of the cluster, as its head sees them
};
struct Observe {  // from an observer; answered by the messages below, in this order
  uint32_t protocol = kProtocolVersion;
  uint32_t what = 0;   // bits of ObserveWhat: more than what is always told
  uint32_t limit = 0;  // tasks and objects per process
};
struct NodeInfo {
  int32_t daemon_pid = 0;
  int32_t driver_pid = 0;
  ResourceAmounts total, available;
  uint64_t store_bytes = 0, store_used_bytes = 0;
  int64_t started_ns = 0;  // CLOCK_MONOTONIC
  std::string working_directory;
};
struct NodeListed {  // for each node of the cluster, including dead ones, if kObserveNodes is asked for
  NodeNumber node;
  uint64_t session = 0;  // as in Welcome
  uint8_t alive = 1;
  uint8_t head = 0;
  uint8_t own = 0;  // the node that answers
  std::string name;
  std::string address;  // where other nodes reach it; empty: a private session
  ResourceAmounts total;
  ResourceAmounts available;  // as the head was told last
  NodeLabels labels;
  std::string why;  // if it is not alive, or does not answer
};
enum class ProcessStage : uint8_t { kStarting = 1, kIdle = 2, kLeased = 3, kBlocked = 4, kEnding = 5, kDead = 6 };
struct ProcessInfo {  // with one descriptor, read-only, if events are asked for and kept: its event log
  ProcessId process;
  int32_t pid = 0;
  uint8_t role = 0;   // Role
  uint8_t stage = 0;  // ProcessStage
  uint64_t store_bytes = 0;
  std::string actor;  // the class of the actor that lives in it
  std::string how;    // kDead: how it ended
};
struct ActorInfo {
  ObjectId actor;
  uint8_t state = 0;  // ActorState
  uint32_t incarnation = 0;
  ProcessId worker;
  uint8_t detached = 0;
  int32_t restarts_left = 0;  // -1: for ever
  std::string class_name, name, name_space, why;
};
// then WorkerOutput for each worker and stream
struct Observed {        // the end of the answer, except for the reports
  uint32_t reports = 0;  // StateReports that will follow as the processes answer
};
struct AskState {  // from the daemon to a process, for an observer
  uint64_t request = 0;
  uint32_t limit = 0;
};
struct StateReport {  // from a process, and on to the observer
  uint64_t request = 0;
  ProcessId process;   // filled in by the daemon
  std::string report;  // wire/state_report.h
};

struct AskHeld {  // this owner is dead: which of its objects do you have? answered by HeldObjects
  ProcessId owner;
};
struct OrphanHeld {
  uint64_t request = 0;
};
struct ResultsLeft {  // your objects in the segment of a dead process: free those that you have never heard of
  std::vector<SealedObject> objects;
};

struct ChannelLost {  // the stream to a worker on another node has ended, and the worker was not reported dead
  ProcessId worker;
};

// ---- libraries of C++ functions that a process has loaded, in a cluster (wire/library_body.h)
struct ShareLibrary {  // other nodes may ask for these files; answered by LibraryAnswer
  uint64_t request = 0;
  std::vector<ProgramFile> files;  // the library first, then what it needs, each after what it needs itself
};
struct FindLibrary {     // where are these files here? answered by LibraryAnswer, perhaps after they have been sent
  uint64_t request = 0;  // not 0
  ProcessId submitter;   // whose task needs it: its node is asked first
  std::vector<ProgramFile> files;
};
struct LibraryAnswer {
  uint64_t request = 0;
  std::vector<std::string> paths;  // of the files, in their order; empty: use them at their own paths
  std::string error;               // empty: none; otherwise name of the exception class, newline, message
};

struct Unblocked {};  // this worker's task goes on, and its CPU was lent (BlockedState)

using Message = std::variant<
    std::monostate, OpenSession, WorkerReady, RequestLeases, ReturnLease, Blocked, SegmentCreated, OpenSegment,
    ReserveMemory, ReleaseMemory, RouteTo, FreeObjects, CloseSession, Welcome, ChannelOpened, LeaseGranted,
    LeaseRecalled, ProcessDied, SegmentOpened, MemoryReserved, TrimMemory, Routed, ObjectsFreed, WorkerOutput,
    LeaseRefused, Exit, CreateActor, LookupActor, ListActors, WatchActor, ReleaseActor, KillActor, ActorConstructed,
    ActorExiting, ActorAnswer, ActorList, ActorChanged, PlaceActor, Observe, NodeInfo, ProcessInfo, ActorInfo, Observed,
    AskState, StateReport, AskShape, ShapeAnswer, KeepActor, SessionRefused, StreamOpened, FetchObject, ReleaseObject,
    ObjectFetched, ObjectUnfetchable, HandOverActor, NodeListed, ChannelLost, ShareLibrary, FindLibrary, LibraryAnswer,
    Unblocked, OrphansFound, HeldObjects, HoldsEnded, HoldOrphan, AskHeld, OrphanHeld, ResultsLeft, SegmentClosed>;

// The type byte and the fields (no length prefix).
std::string Encode(const Message& message);
// monostate if the bytes are not exactly one message.
Message Decode(std::string_view bytes);

// A list of files alone, as in messages.
std::string EncodeFiles(const std::vector<ProgramFile>& files);
bool DecodeFiles(std::string_view bytes, std::vector<ProgramFile>* files);

}  // namespace weft::core
