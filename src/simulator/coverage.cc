#include "simulator/coverage.h"

#include "base/check.h"
#include "wire/peer_message.h"

namespace weft::core {
namespace {

std::string Join(std::string_view a, std::string_view b, std::string_view c = {}) {
  std::string text(a);
  text.append(b).append(c);
  return text;
}

constexpr std::string_view kHappenings[] = {"Task",         "Values",         "TaskError",        "RetryableError",
                                            "Cancelled",    "Exited",         "HandedBack",       "HandedBackBlocked",
                                            "RevokeAsked",  "RevokeAnswered", "WorkerReady",      "RequestLeases",
                                            "ReturnLease",  "Blocked",        "Unblocked",        "FreeObjects",
                                            "CreateActor",  "PlaceActor",     "LookupActor",      "WatchActor",
                                            "ReleaseActor", "KillActor",      "ActorConstructed", "ActorExiting",
                                            "AskShape",     "AddBorrower",    "RemoveBorrower",   "AskValue",
                                            "Value",        "CancelObject",   "CancelTask",       "AskWhy",
                                            "Why",          "ChannelOpened",  "LeaseGranted",     "LeaseRecalled",
                                            "LeaseRefused", "ProcessDied",    "ObjectsFreed",     "Exit",
                                            "ActorAnswer",  "ActorChanged",   "ShapeAnswer",      "ChannelLost"};
static_assert(std::size(kHappenings) == static_cast<size_t>(Happening::kCount));
constexpr std::string_view kFaults[] = {"crash", "delay", "pause", "full", "hand back", "storm", "untimely"};
static_assert(std::size(kFaults) == static_cast<size_t>(FaultKind::kCount));
constexpr std::string_view kPoints[] = {"starting",    "idle",       "on a message", "on a reply",  "between actions",
                                        "before send", "after send", "before claim", "after claim", "in the body",
                                        "in get",      "after body", "before reply", "after reply"};
static_assert(std::size(kPoints) == static_cast<size_t>(CrashPoint::kCount));
constexpr std::string_view kDeeds[] = {"actor created",
                                       "actor restarted",
                                       "actor killed",
                                       "actor killed to restart",
                                       "actor ended with its last handle",
                                       "actor ended itself",
                                       "actor ended with its creator",
                                       "actor refused",
                                       "actor outlived its creator",
                                       "constructor raised",
                                       "constructor waited for arguments",
                                       "name taken",
                                       "name found",
                                       "name not found",
                                       "name used again",
                                       "handle received",
                                       "call to itself",
                                       "call requeued",
                                       "call retried",
                                       "call lost",
                                       "cancelled while queued",
                                       "cancelled while pushed",
                                       "cancelled while running",
                                       "cancelled by force",
                                       "cancelled children",
                                       "cancelled too late",
                                       "get timed out",
                                       "found stuck",
                                       "stuck confirmed",
                                       "found stuck outside of the circle",
                                       "found unschedulable",
                                       "second look differed"};
static_assert(std::size(kDeeds) == static_cast<size_t>(Deed::kCount));

}  // namespace

std::string_view NameOf(Happening happening) { return kHappenings[static_cast<size_t>(happening)]; }
std::string_view NameOf(FaultKind fault) { return kFaults[static_cast<size_t>(fault)]; }
std::string_view NameOf(CrashPoint point) { return kPoints[static_cast<size_t>(point)]; }
std::string_view NameOf(Deed deed) { return kDeeds[static_cast<size_t>(deed)]; }

uint64_t Coverage::crashes() const {
  uint64_t sum = 0;
  for (uint64_t count : crashes_) sum += count;
  return sum;
}

void Coverage::Add(const Coverage& other) {
  for (size_t i = 0; i < seen_.size(); ++i) {
    seen_[i] += other.seen_[i];
    for (size_t j = 0; j < met_[i].size(); ++j) met_[i][j] += other.met_[i][j];
  }
  for (size_t i = 0; i < crashes_.size(); ++i) crashes_[i] += other.crashes_[i];
  for (size_t i = 0; i < deeds_.size(); ++i) deeds_[i] += other.deeds_[i];
}

bool Coverage::Applies(Happening happening, FaultKind fault) {
  bool framed = happening <= Happening::kHandedBackBlocked;
  // Few actors end themselves, and few of what is cancelled meets a full channel.
  bool rare = happening == Happening::kExited || happening == Happening::kActorExiting;
  if (happening == Happening::kCancelled && fault == FaultKind::kFull) return false;
  switch (fault) {
    case FaultKind::kCrash:
    case FaultKind::kDelay:
    case FaultKind::kPause:
      return !rare;
    case FaultKind::kFull:
      return framed && !rare;
    case FaultKind::kHandBack:
      return happening == Happening::kTask;
    case FaultKind::kStorm:
      return happening == Happening::kLeaseRecalled;
    case FaultKind::kUntimely:
      return happening == Happening::kTask || happening == Happening::kValues;
    case FaultKind::kCount:
      break;
  }
  return false;
}

std::vector<std::string> Coverage::Missing() const {
  std::vector<std::string> missing;
  for (size_t i = 0; i < seen_.size(); ++i) {
    if (static_cast<Happening>(i) == Happening::kChannelLost) continue;
    if (seen_[i] == 0) missing.push_back(Join(kHappenings[i], " never happened"));
    for (size_t j = 0; j < met_[i].size(); ++j) {
      if (met_[i][j] == 0 && Applies(static_cast<Happening>(i), static_cast<FaultKind>(j))) {
        missing.push_back(Join(kHappenings[i], " never met ", kFaults[j]));
      }
    }
  }
  for (size_t i = 0; i < crashes_.size(); ++i) {
    if (crashes_[i] == 0) missing.push_back(Join("no crash ", kPoints[i]));
  }
  for (size_t i = 0; i < deeds_.size(); ++i) {
    // A refusal mostly comes before anybody asks.
    if (static_cast<Deed>(i) == Deed::kFoundUnschedulable) continue;
    if (deeds_[i] == 0) missing.push_back(Join("never: ", kDeeds[i]));
  }
  return missing;
}

std::string Coverage::Table() const {
  std::string text;
  for (size_t i = 0; i < seen_.size(); ++i) {
    text += Join(kHappenings[i], " ", std::to_string(seen_[i])) + ":";
    for (size_t j = 0; j < met_[i].size(); ++j) {
      if (!Applies(static_cast<Happening>(i), static_cast<FaultKind>(j))) continue;
      text += Join(" ", kFaults[j], " ") + std::to_string(met_[i][j]);
    }
    text += "\n";
  }
  for (size_t i = 0; i < crashes_.size(); ++i) {
    text += Join("crash ", kPoints[i], ": ") + std::to_string(crashes_[i]) + "\n";
  }
  for (size_t i = 0; i < deeds_.size(); ++i) text += Join(kDeeds[i], ": ", std::to_string(deeds_[i])) + "\n";
  return text;
}

// ---- between daemons ----------------------------------------------------------------------------------------------

std::string_view NameOf(NetworkFault fault) {
  constexpr std::string_view kNames[] = {"a crash", "a delay", "a pause", "a cut", "a loss"};
  return kNames[static_cast<size_t>(fault)];
}

void NodeCoverage::Add(const NodeCoverage& other) {
  for (size_t i = 0; i < kMostKinds; ++i) {
    seen_[i] += other.seen_[i];
    for (size_t j = 0; j < met_[i].size(); ++j) met_[i][j] += other.met_[i][j];
  }
  for (const auto& [deed, count] : other.deeds_) deeds_[deed] += count;
}

std::vector<std::string> NodeCoverage::Missing(const std::vector<std::pair<size_t, const char*>>& kinds,
                                               const std::vector<const char*>& deeds) const {
  std::vector<std::string> missing;
  for (const auto& [kind, name] : kinds) {
    if (seen_[kind] == 0) missing.push_back(Join(name, " was never sent"));
    for (size_t j = 0; j < met_[kind].size(); ++j) {
      if (met_[kind][j] == 0) missing.push_back(Join(name, " never met ", NameOf(static_cast<NetworkFault>(j))));
    }
  }
  for (const char* deed : deeds) {
    if (!deeds_.contains(deed)) missing.push_back(Join("never: ", deed));
  }
  return missing;
}

std::string NodeCoverage::Table(const std::vector<std::pair<size_t, const char*>>& kinds) const {
  std::string text;
  for (const auto& [kind, name] : kinds) {
    text += Join(name, " ", std::to_string(seen_[kind])) + ":";
    for (size_t j = 0; j < met_[kind].size(); ++j) {
      text += Join(" ", NameOf(static_cast<NetworkFault>(j)), " ") + std::to_string(met_[kind][j]);
    }
    text += "\n";
  }
  for (const auto& [deed, count] : deeds_) text += Join(deed, ": ", std::to_string(count)) + "\n";
  return text;
}

Happening HappeningOf(const Message& message) {
  const std::string* payload = nullptr;
  if (auto* m = std::get_if<RouteTo>(&message)) payload = &m->payload;
  if (auto* m = std::get_if<Routed>(&message)) payload = &m->payload;
  if (payload) {
    switch (static_cast<PeerMessageKind>((*payload)[0])) {
      case PeerMessageKind::kAddBorrower:
        return Happening::kAddBorrower;
      case PeerMessageKind::kRemoveBorrower:
        return Happening::kRemoveBorrower;
      case PeerMessageKind::kAskValue:
        return Happening::kAskValue;
      case PeerMessageKind::kValue:
        return Happening::kValue;
      case PeerMessageKind::kCancelObject:
        return Happening::kCancelObject;
      case PeerMessageKind::kCancelTask:
        return Happening::kCancelTask;
      case PeerMessageKind::kAskWhy:
        return Happening::kAskWhy;
      case PeerMessageKind::kWhy:
        return Happening::kWhy;
      case PeerMessageKind::kHandOver:
        break;  // no actor is kept for its creator in the simulator
      case PeerMessageKind::kAskAgain:
      case PeerMessageKind::kAfter:
      case PeerMessageKind::kNotYet:
        break;
    }
  }
  if (std::holds_alternative<WorkerReady>(message)) return Happening::kWorkerReady;
  if (std::holds_alternative<RequestLeases>(message)) return Happening::kRequestLeases;
  if (std::holds_alternative<ReturnLease>(message)) return Happening::kReturnLease;
  if (std::holds_alternative<Blocked>(message)) return Happening::kBlocked;
  if (std::holds_alternative<Unblocked>(message)) return Happening::kUnblocked;
  if (std::holds_alternative<FreeObjects>(message)) return Happening::kFreeObjects;
  if (std::holds_alternative<ChannelOpened>(message)) return Happening::kChannelOpened;
  if (std::holds_alternative<LeaseGranted>(message)) return Happening::kLeaseGranted;
  if (std::holds_alternative<LeaseRecalled>(message)) return Happening::kLeaseRecalled;
  if (std::holds_alternative<LeaseRefused>(message)) return Happening::kLeaseRefused;
  if (std::holds_alternative<ProcessDied>(message)) return Happening::kProcessDied;
  if (std::holds_alternative<ObjectsFreed>(message)) return Happening::kObjectsFreed;
  if (std::holds_alternative<Exit>(message)) return Happening::kExit;
  if (std::holds_alternative<CreateActor>(message)) return Happening::kCreateActor;
  if (std::holds_alternative<PlaceActor>(message)) return Happening::kPlaceActor;
  if (std::holds_alternative<LookupActor>(message)) return Happening::kLookupActor;
  if (std::holds_alternative<WatchActor>(message)) return Happening::kWatchActor;
  if (std::holds_alternative<ReleaseActor>(message)) return Happening::kReleaseActor;
  if (std::holds_alternative<KillActor>(message)) return Happening::kKillActor;
  if (std::holds_alternative<ActorConstructed>(message)) return Happening::kActorConstructed;
  if (std::holds_alternative<ActorExiting>(message)) return Happening::kActorExiting;
  if (std::holds_alternative<AskShape>(message)) return Happening::kAskShape;
  if (std::holds_alternative<ChannelLost>(message)) return Happening::kChannelLost;
  if (std::holds_alternative<ActorAnswer>(message)) return Happening::kActorAnswer;
  if (std::holds_alternative<ActorChanged>(message)) return Happening::kActorChanged;
  if (std::holds_alternative<ShapeAnswer>(message)) return Happening::kShapeAnswer;
  WEFT_CHECK(false, "a message that the simulator does not know");
  return Happening::kCount;
}

}  // namespace weft::core
