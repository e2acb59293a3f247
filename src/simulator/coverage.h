// What the simulated runs have met: each kind of message with each kind of fault, and each place to crash at. A set of
// runs that never saw some of it proves less than it seems to, and fails as blind.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire/messages.h"

namespace weft::core {

enum class Happening : uint8_t {
  // through channels
  kTask,
  kValues,
  kTaskError,
  kRetryableError,
  kCancelled,
  kExited,
  kHandedBack,
  kHandedBackBlocked,
  kRevokeAsked,
  kRevokeAnswered,
  // from a process to its daemon
  kWorkerReady,
  kRequestLeases,
  kReturnLease,
  kBlocked,
  kUnblocked,
  kFreeObjects,
  kCreateActor,
  kPlaceActor,
  kLookupActor,
  kWatchActor,
  kReleaseActor,
  kKillActor,
  kActorConstructed,
  kActorExiting,
  kAskShape,
  // between processes, through the daemon
  kAddBorrower,
  kRemoveBorrower,
  kAskValue,
  kValue,
  kCancelObject,
  kCancelTask,
  kAskWhy,
  kWhy,
  // from the daemon to a process
  kChannelOpened,
  kLeaseGranted,
  kLeaseRecalled,
  kLeaseRefused,
  kProcessDied,
  kObjectsFreed,
  kExit,
  kActorAnswer,
  kActorChanged,
  kShapeAnswer,
  // from a process to its daemon, of a cluster only; last, so that what is drawn for one node does not change
  kChannelLost,
  kCount,
};

enum class FaultKind : uint8_t {
  kCrash,     // one of its ends died while it was on its way or being handled
  kDelay,     // it took long
  kPause,     // its receiver stood still
  kFull,      // there was no room for it
  kHandBack,  // the worker handed the task back without need
  kStorm,     // while leases were recalled without need
  kUntimely,  // its sender had been declared dead and was not
  kCount,
};

// What programs do with actors, cancelling and waiting, and what becomes of it.
enum class Deed : uint8_t {
  kActorCreated,
  kActorRestarted,
  kActorKilled,
  kActorKilledToRestart,
  kActorEndedWithLastHandle,
  kActorEndedItself,
  kActorEndedWithCreator,
  kActorRefused,
  kActorOutlivedItsCreator,
  kConstructorRaised,
  kConstructorWaitedForArguments,
  kNameTaken,
  kNameFound,
  kNameNotFound,
  kNameUsedAgain,
  kHandleReceived,
  kCallMadeToItself,
  kCallRequeued,  // its worker died before it was begun
  kCallRetried,   // ... while it ran
  kCallLost,      // ... and it may not run again
  kCancelledWhileQueued,
  kCancelledWhilePushed,
  kCancelledWhileRunning,
  kCancelledByForce,
  kCancelledChildren,
  kCancelledTooLate,
  kGetTimedOut,
  kFoundStuck,
  kStuckConfirmed,  // and nothing helped it for a long time after
  kFoundStuckOutsideOfCircle,
  kFoundUnschedulable,
  kSecondLookDiffered,
  kCount,
};

// Where a process may die.
enum class CrashPoint : uint8_t {
  kStarting,
  kIdle,  // at any time
  kOnMessage,
  kOnReply,
  kBetweenActions,
  kBeforeSend,
  kAfterSend,
  kBeforeClaim,
  kAfterClaim,
  kInBody,
  kInGet,
  kAfterBody,
  kBeforeReply,
  kAfterReply,
  kCount,
};

std::string_view NameOf(Happening happening);
std::string_view NameOf(FaultKind fault);
std::string_view NameOf(CrashPoint point);
std::string_view NameOf(Deed deed);

class Coverage {
 public:
  void Met(Happening happening) { ++seen_[static_cast<size_t>(happening)]; }
  void Met(Happening happening, FaultKind fault) { ++met_[static_cast<size_t>(happening)][static_cast<size_t>(fault)]; }
  void Did(Deed deed) { ++deeds_[static_cast<size_t>(deed)]; }
  void Crashed(CrashPoint point) { ++crashes_[static_cast<size_t>(point)]; }
  uint64_t crashes() const;
  uint64_t Seen(Happening happening) const { return seen_[static_cast<size_t>(happening)]; }
  void Add(const Coverage& other);
  // What should have been met and was not.
  std::vector<std::string> Missing() const;
  std::string Table() const;

 private:
  static bool Applies(Happening happening, FaultKind fault);

  std::array<uint64_t, static_cast<size_t>(Happening::kCount)> seen_{};
  std::array<std::array<uint64_t, static_cast<size_t>(FaultKind::kCount)>, static_cast<size_t>(Happening::kCount)>
      met_{};
  std::array<uint64_t, static_cast<size_t>(CrashPoint::kCount)> crashes_{};
  std::array<uint64_t, static_cast<size_t>(Deed::kCount)> deeds_{};
};

// What can happen to a message between two daemons.
enum class NetworkFault : uint8_t {
  kCrash,  // one of its ends had died when it would have arrived
  kDelay,
  kPause,  // its receiver's machine stood still
  kCut,    // nothing came through
  kLost,   // its link was reset or closed
  kCount,
};
std::string_view NameOf(NetworkFault fault);

// The same for the messages of a cluster (wire/node_messages.h), by their place in the variant.
class NodeCoverage {
 public:
  static constexpr size_t kMostKinds = 64;
  void Met(size_t kind) { ++seen_[kind]; }
  void Met(size_t kind, NetworkFault fault) { ++met_[kind][static_cast<size_t>(fault)]; }
  void Did(const std::string& deed) { ++deeds_[deed]; }
  void Add(const NodeCoverage& other);
  // `kinds` should each have met every fault, and `deeds` have happened.
  std::vector<std::string> Missing(const std::vector<std::pair<size_t, const char*>>& kinds,
                                   const std::vector<const char*>& deeds) const;
  std::string Table(const std::vector<std::pair<size_t, const char*>>& kinds) const;

 private:
  std::array<uint64_t, kMostKinds> seen_{};
  std::array<std::array<uint64_t, static_cast<size_t>(NetworkFault::kCount)>, kMostKinds> met_{};
  std::map<std::string, uint64_t> deeds_;
};

// A message between a process and its daemon; a routed one is named by what it carries.
Happening HappeningOf(const Message& message);

}  // namespace weft::core
