// The names of things. Each is a type of its own, so that one cannot be passed for another.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace weft::core {

// A node of a cluster. The head assigns it when the node joins, and never uses it again in the cluster's life. 0 is
// none: the one node of a private session.
struct NodeNumber {
  uint32_t value = 0;
  auto operator<=>(const NodeNumber&) const = default;
  explicit operator bool() const { return value != 0; }
};

// One life of a node daemon: 128 random bits, made when it starts.
struct NodeIdentity {
  uint64_t high = 0, low = 0;
  auto operator<=>(const NodeIdentity&) const = default;
};

// A driver or worker, unique within a session and never used again. 0 is none. Assigned by the node daemon.
struct ProcessId {
  uint64_t value = 0;
  auto operator<=>(const ProcessId&) const = default;
  explicit operator bool() const { return value != 0; }
};

// An object: its owner, and which of the owner's objects it is. An index is never used again.
// The i-th return of a task has the index of the task plus i, so a task is named by its first return.
struct ObjectId {
  ProcessId owner;
  uint64_t index = 0;
  auto operator<=>(const ObjectId&) const = default;
  explicit operator bool() const { return owner.value != 0; }
};

// The right to run tasks of one shape on one worker. Granted by the node daemon.
struct LeaseId {
  uint64_t value = 0;
  auto operator<=>(const LeaseId&) const = default;
};

// Workers that can replace each other: those of one job (named by its driver). A job of a C++ program has two kinds,
// its own C++ workers and Python workers.
struct WorkerKind {
  ProcessId job;
  bool python_of_cpp_job = false;
  auto operator<=>(const WorkerKind&) const = default;
};

// A block of shared memory. Each process writes into at most one segment, and the segment has the writer's number.
struct SegmentId {
  uint64_t value = 0;
  auto operator<=>(const SegmentId&) const = default;
};

// A function, by the hash of its body (128 bits), so that the same function defined twice is sent once.
struct FunctionKey {
  uint64_t high = 0, low = 0;
  auto operator<=>(const FunctionKey&) const = default;
};

// Where the bytes of an object are. The generation tells a reused range from the earlier use of it.
struct Location {
  SegmentId segment;
  uint64_t offset = 0;
  uint64_t size = 0;
  uint64_t generation = 0;
  auto operator<=>(const Location&) const = default;
};

// An object that lies in a segment, as the segment's index has it.
struct SealedObject {
  ObjectId object;
  Location location;
  auto operator<=>(const SealedObject&) const = default;
};
// The index of bytes in a segment that are no object: the body of a function, which stays as long as the session.
inline constexpr uint64_t kForSession = ~uint64_t{0};

// A process's number has its node's number in the upper half; a segment has its writer's number.
constexpr NodeNumber NodeOf(ProcessId process) { return {static_cast<uint32_t>(process.value >> 32)}; }
constexpr NodeNumber NodeOf(SegmentId segment) { return {static_cast<uint32_t>(segment.value >> 32)}; }
// The node daemon's own number, for the segment in which it keeps copies.
constexpr ProcessId DaemonOf(NodeNumber node) { return {uint64_t{node.value} << 32}; }

std::string ToString(ProcessId id);
std::string ToString(ObjectId id);  // 32 hexadecimal digits

}  // namespace weft::core

template <>
struct std::hash<weft::core::ProcessId> {
  size_t operator()(weft::core::ProcessId id) const { return id.value * 0x9e3779b97f4a7c15ull; }
};
template <>
struct std::hash<weft::core::ObjectId> {
  size_t operator()(weft::core::ObjectId id) const { return (id.owner.value * 0x9e3779b97f4a7c15ull) ^ id.index; }
};
template <>
struct std::hash<weft::core::LeaseId> {
  size_t operator()(weft::core::LeaseId id) const { return id.value; }
};
template <>
struct std::hash<weft::core::SegmentId> {
  size_t operator()(weft::core::SegmentId id) const { return id.value; }
};
template <>
struct std::hash<weft::core::FunctionKey> {
  size_t operator()(weft::core::FunctionKey key) const { return key.high ^ key.low; }
};
