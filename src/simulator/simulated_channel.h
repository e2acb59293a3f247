// The channel between a submitter and a worker, as transport/channel.h describes it, without bytes: task frames that
// are claimed or revoked, and replies. Revoking is answered at once (ring) or by a message (socket). What one side has
// written the other can read at once; when it looks is up to the simulation. Survives the death of either side.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "runtime/owner.h"
#include "simulator/coverage.h"
#include "wire/task_frame.h"

namespace weft::core {

struct SimulatedStream;

struct SimulatedDependency {
  ObjectId id;
  DependencyKind kind = DependencyKind::kInline;
  std::string bytes;
  Location location;
};

struct SimulatedTask {
  uint32_t ticket = 0;
  enum State : uint8_t { kQueued, kClaimed, kRevoked } state = kQueued;
  int64_t sent_ns = 0;
  uint64_t task = 0;      // the submitter's handle
  uint64_t instance = 0;  // which submission this is, in the whole simulation
  TemplateKind kind = TemplateKind::kTask;
  ObjectId actor;  // of a call or a constructor
  uint32_t incarnation = 0;
  uint32_t attempt = 0;
  uint32_t depth = 0;
  std::vector<uint64_t> returns;
  std::vector<ObjectId> mentioned;
  std::vector<SimulatedDependency> dependencies;
  std::vector<ObjectId> contained;  // references inside the arguments
};

struct SimulatedValue {
  ValueKind kind = ValueKind::kInline;
  std::string bytes;
  Location location;
  std::vector<ObjectId> contained;
};

struct SimulatedReply {
  bool is_revoke_answer = false;
  uint32_t ticket = 0;  // answers only
  bool revoked = false;
  int64_t sent_ns = 0;
  uint64_t task = 0;
  uint64_t instance = 0;
  ReplyKind kind = ReplyKind::kValues;
  std::string error;
  std::vector<SimulatedValue> values;
  std::vector<GivenBack> given_back;
  std::vector<uint64_t> retained;
  uint32_t run_ns = 0;

  Happening happening() const {
    if (is_revoke_answer) return Happening::kRevokeAnswered;
    switch (kind) {
      case ReplyKind::kValues:
        return Happening::kValues;
      case ReplyKind::kTaskError:
      case ReplyKind::kRefused:  // never: simulated workers know every function
        return Happening::kTaskError;
      case ReplyKind::kRetryableError:
        return Happening::kRetryableError;
      case ReplyKind::kHandedBack:
      case ReplyKind::kArgumentLost:  // never: all simulated processes are on one node
        return Happening::kHandedBack;
      case ReplyKind::kCancelled:
        return Happening::kCancelled;
      case ReplyKind::kExited:
        return Happening::kExited;
      case ReplyKind::kHandedBackBlocked:
        break;
    }
    return Happening::kHandedBackBlocked;
  }
};

struct SimulatedChannel {
  ProcessId submitter, worker;
  bool asynchronous = false;
  std::shared_ptr<SimulatedStream> stream;  // of two nodes; nullptr: memory that both share
  size_t task_room = 0, reply_room = 0;     // frames
  uint32_t next_ticket = 1;
  std::deque<SimulatedTask> tasks;
  std::deque<SimulatedReply> replies;
  struct RevokeAsked {
    uint32_t ticket = 0;
    int64_t sent_ns = 0;
  };
  std::deque<RevokeAsked> asked;  // asynchronous: not yet seen by the worker

  bool Claim(uint32_t ticket) {
    SimulatedTask& frame = tasks.front();
    if (frame.ticket != ticket || frame.state == SimulatedTask::kRevoked) return false;
    frame.state = SimulatedTask::kClaimed;
    return true;
  }
  // True: it counts as never sent.
  bool Revoke(uint32_t ticket) {
    for (SimulatedTask& frame : tasks) {
      if (frame.ticket != ticket) continue;
      if (frame.state != SimulatedTask::kQueued) return false;
      frame.state = SimulatedTask::kRevoked;
      return true;
    }
    return false;
  }
};

}  // namespace weft::core
