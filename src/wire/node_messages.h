// What node daemons tell each other over links (transport/link.h). The first byte says which; docs/formats.md.
//
// A peer is authenticated, but its bytes are input all the same: what does not decode exactly ends the link.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "wire/ids.h"
#include "wire/labels.h"
#include "wire/messages.h"

namespace weft::core {

inline constexpr uint32_t kNodeProtocolVersion = 5;

// Of a file: small beside what a link lets through at once, large beside a round trip.
inline constexpr size_t kProgramPieceBytes = 1 << 20;

// What belongs to no process but to the cluster itself, wherever its head is. It owns the detached actors, and a job
// that lasts beyond its driver has a number as if it were a process of this node.
inline constexpr NodeNumber kClusterNode{0x7fffffff};
inline constexpr ProcessId kCluster{uint64_t{kClusterNode.value} << 32};

// ---- the hello of a link: what the connection is for, said by who dials; the listener's is empty
enum class LinkPurpose : uint8_t {
  kJoin = 1,     // a node to the head, for as long as it is a member; both ways
  kNode = 2,     // a node to another, one way
  kChannel = 3,  // becomes the channel of two processes
};
struct NodeHello {
  uint8_t purpose = 0;  // LinkPurpose
  NodeNumber node;      // the dialler's; of kJoin: 0
  NodeNumber to;        // kNode: whom it means. At its address there may be another by now
  // kChannel: who submits and who runs
  ProcessId submitter;
  ProcessId worker;
};
std::string EncodeHello(const NodeHello& hello);
bool DecodeHello(std::string_view bytes, NodeHello* hello);

// ---- membership
struct NodeJoins {  // to the head, first of all
  NodeNumber was;   // the number that it had, or 0
  uint64_t epoch = 0;
  uint64_t beat = 0;
  uint32_t protocol = kNodeProtocolVersion;
  NodeIdentity identity;
  std::string name;
  std::string address;  // where others reach it
  ResourceAmounts resources;
  NodeLabels labels;
};
struct NodeAccepted {
  NodeNumber node;
  NodeNumber head;  // the head's own
  uint64_t epoch = 0;
  uint64_t beat = 0;
  int64_t lease_ns = 0;
};
struct NodeRefused {
  uint8_t dead = 0;  // 1: it was declared dead, and may join again as a new one
  std::string why;
};
struct NodeBeat {
  uint64_t beat = 0;
  uint64_t epoch = 0;
};
struct BeatConfirmed {
  uint64_t beat = 0;
  uint64_t epoch = 0;
};
struct NodeAppeared {  // from the head, to all
  NodeNumber node;
  std::string name;
  std::string address;
  ResourceAmounts resources;
  NodeLabels labels;
};
struct NodeVanished {  // its processes are dead
  NodeNumber node;
  std::string why;
};
struct NodesListed {  // from the head, to one that was accepted: whoever is not among these is gone
  std::vector<NodeNumber> nodes;
};
struct NodeGoodbye {};
struct JoinLater {  // from the head, to one that wants to join: not yet
  int64_t wait_ns = 0;
  std::string why;
};

// ---- scheduling
struct NodeLoad {  // to the head, when it has changed (NodeReported)
  uint64_t placements_seen = 0;
  ResourceAmounts available;
  std::vector<int64_t> free_gpus;
  uint32_t leases = 0;
};
struct LeaseRequest {  // to the head: what this node cannot serve itself (WorkRequested)
  uint64_t request = 0;
  ProcessId process;
  ProcessId job;
  ResourceAmounts shape;
  uint32_t count = 0;  // besides what was heard; 0: all of it is on its way
  uint32_t depth = 0;
  int64_t assigned_heard = 0;
  // Of one actor that wants a worker; the shape is what it needs to start.
  ObjectId actor;
  ResourceAmounts to_hold;
  std::string class_name;
  uint8_t withdrawn = 0;
};
struct WorkAssigned {  // from the head to the node that is to grant (PlaceWork)
  NodeNumber requester;
  uint64_t request = 0;
  uint64_t placement = 0;
  ProcessId process;
  ProcessId job;
  ResourceAmounts shape;
  uint32_t count = 0;
  uint32_t depth = 0;
  ObjectId actor;  // as in LeaseRequest; its home is the requester
  ResourceAmounts to_hold;
  std::string class_name;
};
struct RequestAssigned {  // from the head to the requester: so many leases are on their way (negative: no longer)
  uint64_t request = 0;
  int64_t count = 0;
};
struct RequestRefused {  // from the head to the requester
  uint64_t request = 0;
  uint8_t for_ever = 0;  // 0: it goes on waiting, as a node that can serve it may join
  std::string why;
};
struct JobDescribed {  // how to start workers for this driver's processes
  ProcessId driver;
  std::string session;  // an encoded OpenSession
  ProcessId output_to;  // who gets what its workers print; 0: the driver
};

// ---- between processes
struct ForProcess {  // a message of a daemon to a process of the receiver
  ProcessId process;
  std::string message;
};
struct FromProcess {  // a message of a process of the sender
  ProcessId process;
  ProcessId job;
  std::string message;
};
struct RoutedAcross {
  ProcessId from;
  ProcessId to;
  std::string payload;
};
struct ProcessVanished {  // of the sender's
  ProcessId process;
  int32_t pid = 0;
  std::string how;
};
struct ChannelWanted {  // dial for a channel of these two, of which the first is the receiver's
  ProcessId submitter;
  ProcessId worker;
};

// ---- objects, named by where they lie on their own node (HolderDirectory, PullPlan, ChunkServer)
struct SourcesWanted {  // to the object's node, which keeps count of its copies: the sender pulls it
  Location location;
};
struct SourcesTold {  // the answer (GiveSources), and later ones that were not asked for
  Location location;
  std::vector<NodeNumber> complete;
  std::vector<NodeNumber> partial;
  uint32_t start = 0;
  uint8_t answer = 0;
};
struct CopiesDropped {  // the objects are freed; so are copies of them
  std::vector<Location> locations;
};
struct CopyChanged {  // to the object's node
  Location location;
  uint8_t held = 0;  // 1: the sender has all of it; 0: nothing any more
};
struct HoldingsWanted {  // to one that pulls the object too: what do you have of it?
  Location location;
};
struct HoldingsTold {  // and again with each chunk that comes
  Location location;
  std::vector<std::pair<uint32_t, uint32_t>> ranges;  // chunks: first and count
  uint8_t complete = 0;
  uint8_t gone = 0;
};
struct ChunkWanted {  // answered by the chunk, with a ChunkHead as header, or by ChunkDenied
  uint64_t request = 0;
  Location location;
  uint32_t chunk = 0;
};
struct ChunkUnwanted {  // answered all the same
  uint64_t request = 0;
};
struct ChunkDenied {
  uint64_t request = 0;
};
struct ChunkHead {
  uint64_t request = 0;
  uint64_t checksum = 0;  // transfer/checksum.h
};

// ---- actors: between the home of an actor, which knows its state, and the node of its worker
struct ActorOffered {  // to the home: this worker of the sender is the actor's
  ObjectId actor;
  ProcessId worker;
  AssignedGpus gpus;
};
struct ActorNotPlaced {  // to the home: the sender cannot start workers
  ObjectId actor;
  std::string why;
};
struct EndActorWorker {  // from the home
  ProcessId worker;
  uint8_t leave = 0;  // 1: when nobody needs what it owns
  std::string why;
};
struct ConstructActor {  // from the home of a detached actor, which has what its constructor needs
  ProcessId worker;
  ObjectId actor;
  uint32_t incarnation = 0;
  AssignedGpus gpus;
  std::string recipe;
};
struct WorkDeclined {  // to the head: what it assigned does not fit here any more (PlacementRefused)
  NodeNumber requester;
  uint64_t request = 0;
  uint64_t placement = 0;
  uint32_t count = 0;
};
struct NameAsked {  // to the head: may this actor have this name?
  ObjectId actor;
  uint8_t get_if_exists = 0;
  std::string name_space, name, class_name, metadata;
};
struct NameAnswered {
  ObjectId actor;  // that was asked for
  ObjectId existing;
  std::string metadata;  // of the existing one
  std::string error;     // with no existing one and no error, the name is given
};
struct NameReleased {  // to the head
  ObjectId actor;
  std::string name_space, name;
};
struct JobEnded {  // from the head: a job that had lasted beyond its driver
  ProcessId job;
};

// To a new head, from a node that was a member before: each detached actor that it has, then DetachedTold.
struct DetachedHeld {
  ObjectId actor;
  uint32_t incarnation = 0;
  ProcessId worker;
  AssignedGpus gpus;
  uint8_t constructed = 0;  // or it is being constructed
  uint8_t exiting = 0;      // it has said so, and may have ended by now
};
struct DetachedTold {
  std::vector<ProcessId> jobs;  // lasting ones that it knows
};

// ---- looking
struct AskNodes {  // to the head: all nodes, please
  uint64_t request = 0;
};
struct NodesTold {
  uint64_t request = 0;
  std::vector<std::string> nodes;  // encoded NodeListed
};

// ---- the files that workers of a C++ driver are made of (OpenSession::files), or that a process shares (ShareLibrary)
struct ProgramPieceWanted {  // to a node that may have it: the piece from this offset on
  uint64_t request = 0;
  ProcessId job;
  std::string identity;
  uint64_t offset = 0;
};
struct ProgramPiece {  // at most kProgramPieceBytes
  uint64_t request = 0;
  uint64_t offset = 0;
  uint64_t checksum = 0;  // transfer/checksum.h
  std::string bytes;
};
struct ProgramDenied {
  uint64_t request = 0;
  std::string why;
};

// ---- of the flow itself (cluster/message_flow.h)
struct FlowTaken {  // the first message over a link by who takes messages over it, and again from time to time
  uint64_t through = 0;
};
struct ChunksCut {  // a link of the sender has ended, and chunks that it had sent over it may be lost
};

// ---- a channel that has ended before its two processes
struct ChannelBroken {  // to the worker's node
  ProcessId worker;
  ProcessId other;  // who submits to it
};

// ---- to the head: a node that lives, and that the sender cannot reach (Membership)
struct NodeUnreachable {
  NodeNumber node;
  int64_t for_ns = 0;
  std::string why;
};
struct NodeReachable {  // again
  NodeNumber node;
};

// ---- instead of ProgramDenied
struct ProgramReplaced {  // another build lies at its path by now
  uint64_t request = 0;
  std::string why;
};

// ---- objects of dead owners (object_store/orphan_table.h)
struct HeldAsked {  // some lie on the sender's node: what of this owner's do your processes have?
  ProcessId owner;
};
struct HeldTold {
  ProcessId owner;
  std::vector<uint64_t> indexes;
  uint8_t more = 0;  // 1: the next message goes on
};
struct HoldsOver {  // of what was told: no longer
  ProcessId owner;
  std::vector<uint64_t> indexes;
};

using NodeMessage =
    std::variant<std::monostate, NodeJoins, NodeAccepted, NodeRefused, NodeBeat, BeatConfirmed, NodeAppeared,
                 NodeVanished, NodeGoodbye, NodeLoad, LeaseRequest, WorkAssigned, RequestAssigned, RequestRefused,
                 JobDescribed, ForProcess, FromProcess, RoutedAcross, ProcessVanished, ChannelWanted, SourcesWanted,
                 SourcesTold, CopiesDropped, CopyChanged, HoldingsWanted, HoldingsTold, ChunkWanted, ChunkUnwanted,
                 ChunkDenied, ActorOffered, ActorNotPlaced, EndActorWorker, ConstructActor, WorkDeclined, NameAsked,
                 NameAnswered, NameReleased, JobEnded, AskNodes, NodesTold, NodesListed, DetachedHeld, DetachedTold,
                 FlowTaken, ChunksCut, ProgramPieceWanted, ProgramPiece, ProgramDenied, ChannelBroken, JoinLater,
                 NodeUnreachable, NodeReachable, ProgramReplaced, HeldAsked, HeldTold, HoldsOver>;

std::string EncodeNodeMessage(const NodeMessage& message);
NodeMessage DecodeNodeMessage(std::string_view bytes);

// Whether the message is one of the flow between two nodes, numbered and never lost. Those of membership are not: they
// belong to one link, and all that matters of them is said anew over the next.
bool IsInFlow(const NodeMessage& message);

}  // namespace weft::core
