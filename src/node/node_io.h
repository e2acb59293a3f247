// What NodeCore acts through: the processes of its node, and its node's place in a cluster. NodeDaemon implements them
// with sockets, signals, shared memory and the Cluster; the simulator with its own processes and network.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "actors/actor_directory.h"
#include "base/log_level.h"
#include "base/result.h"
#include "control_store/tables.h"
#include "node/channel_broker.h"
#include "node/worker_pool.h"
#include "scheduling/local_scheduler.h"
#include "wire/messages.h"
#include "wire/node_description.h"
#include "wire/node_messages.h"

namespace weft::core {

// What a worker lends whose task waits.
enum class Loan : uint8_t { kNone, kForValue, kForMemory };

class NodeIo {
 public:
  // ---- processes that live here

  // Nothing happens if it is closing. `because_of`: a process of this node that is not read from while the receiver is
  // far behind.
  virtual void Send(ProcessId to, const Message& message, ProcessId because_of = {}) = 0;
  // While too much of what was sent to this node has not been taken there, the process is not read from.
  virtual void HoldBackFor(NodeNumber node, ProcessId process) = 0;
  // Makes a ring between two processes and tells both, with the slots that `channels` gives them. False: no descriptors
  // or slots are left.
  virtual bool OpenRing(ChannelBroker::Pair pair, ChannelBroker& channels) = 0;
  // Pushes the constructor of a detached actor to its worker, as a creator would: over a channel with this slot. Gives
  // why that cannot be, or nothing.
  virtual std::string Construct(uint32_t slot, const ConstructActor& construct) = 0;
  // It will be ready, or end. What it was started for is forgotten if its job has ended.
  virtual Status Launch(const StartWorker& start) = 0;
  virtual void Kill(ProcessId process, const std::string& why) = 0;
  // It sent what no correct process sends; it ends.
  virtual void Refuse(ProcessId process, const std::string& why) = 0;
  // Stands still until it is told to go on. False: it does not run yet, or no longer.
  virtual bool Stop(ProcessId process) = 0;
  virtual void Continue(ProcessId process) = 0;
  virtual int32_t PidOf(ProcessId process) const = 0;  // 0: not known

  // ---- the flags that a worker shares with its daemon (BlockedState)

  virtual void SetDemand(ProcessId worker, bool on) = 0;
  // Its task waits: what it waits for, and from now on it tells us when it goes on.
  virtual Loan TakeLoan(ProcessId worker) = 0;
  virtual void ReturnLoan(ProcessId worker, Loan loan) = 0;  // nobody wants it
  virtual bool Lends(ProcessId worker) const = 0;
  virtual bool RunsTask(ProcessId worker) const = 0;

  // ---- jobs

  // Calls NodeCore::OpenJob if the description makes sense.
  virtual void OpenJob(const JobDescribed& described) = 0;
  virtual JobDescribed DescribeJob(ProcessId driver) const = 0;
  // No more workers are to be forked for it. Its processes are killed one by one.
  virtual void EndJob(ProcessId driver) = 0;

  // Ranges in one segment of this node. `because_of`: as with Send.
  virtual void FreeHere(SegmentId segment, std::vector<Location> locations, ProcessId because_of) = 0;
  // A process of another node has died, and may own what lies here.
  virtual void RemoteOwnerDied(ProcessId process) = 0;
  virtual void Log(LogLevel level, const char* what, const std::string& text) = 0;

  // ---- for those that watch; after each decision was carried out

  virtual void Decided(const SchedulerAction&) {}
  virtual void Decided(const DirectoryAction&) {}
  virtual void Decided(const PoolAction&) {}
  virtual void Happened(const char*) {}

 protected:
  ~NodeIo() = default;
};

// The node's place in a cluster. Messages to another node arrive once and in order as long as both live.
class NodeLinks {
 public:
  virtual NodeNumber self() const = 0;
  virtual NodeNumber head() const = 0;
  virtual bool is_head() const = 0;
  virtual bool Knows(NodeNumber node) const = 0;
  // The head has not told of it yet, but of none that came later either.
  virtual bool MayAppear(NodeNumber node) const = 0;
  virtual const std::map<NodeNumber, NodeDescription>& nodes() const = 0;  // this one too
  virtual std::string Describe(NodeNumber node) const = 0;

  virtual void Send(NodeNumber to, const NodeMessage& message) = 0;  // 0: the head
  virtual void SendToAll(const NodeMessage& message) = 0;
  // NodeCore::ChannelConnected follows.
  virtual void DialChannel(ProcessId submitter, ProcessId worker) = 0;

  // ---- on the head

  virtual const JobDescribed* FindJob(ProcessId job) const = 0;
  virtual void KnowJob(JobDescribed job) = 0;
  virtual void ForgetJob(ProcessId job) = 0;
  // `then` is called when it is in the control store; `waits`, once at most, if that takes a while, with the reason.
  virtual void Persist(WriteBatch batch, std::function<void()> then,
                       std::function<void(const std::string& why)> waits) = 0;

 protected:
  ~NodeLinks() = default;
};

}  // namespace weft::core
