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

constexpr std::string_view kHappenings[] = {
    "Task",         "Values",         "TaskError",    "RetryableError", "HandedBack",   "HandedBackBlocked",
    "RevokeAsked",  "RevokeAnswered", "WorkerReady",  "RequestLeases",  "ReturnLease",  "Blocked",
    "FreeObjects",  "Mention",        "GiveBack",     "AskValue",       "Value",        "ChannelOpened",
    "LeaseGranted", "LeaseRecalled",  "LeaseRefused", "ProcessDied",    "ObjectsFreed", "Exit"};
static_assert(std::size(kHappenings) == static_cast<size_t>(Happening::kCount));
constexpr std::string_view kFaults[] = {"crash", "delay", "pause", "full", "hand back", "storm", "untimely"};
static_assert(std::size(kFaults) == static_cast<size_t>(FaultKind::kCount));
constexpr std::string_view kPoints[] = {"starting",    "idle",       "on a message", "on a reply",  "between actions",
                                        "before send", "after send", "before claim", "after claim", "in the body",
                                        "in get",      "after body", "before reply", "after reply"};
static_assert(std::size(kPoints) == static_cast<size_t>(CrashPoint::kCount));

}  // namespace

std::string_view NameOf(Happening happening) { return kHappenings[static_cast<size_t>(happening)]; }
std::string_view NameOf(FaultKind fault) { return kFaults[static_cast<size_t>(fault)]; }
std::string_view NameOf(CrashPoint point) { return kPoints[static_cast<size_t>(point)]; }

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
}

bool Coverage::Applies(Happening happening, FaultKind fault) {
  bool framed = happening <= Happening::kHandedBackBlocked;
  switch (fault) {
    case FaultKind::kCrash:
    case FaultKind::kDelay:
    case FaultKind::kPause:
      return true;
    case FaultKind::kFull:
      return framed;
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
  return text;
}

Happening HappeningOf(const Message& message) {
  const std::string* payload = nullptr;
  if (auto* m = std::get_if<RouteTo>(&message)) payload = &m->payload;
  if (auto* m = std::get_if<Routed>(&message)) payload = &m->payload;
  if (payload) {
    switch (static_cast<PeerMessageKind>((*payload)[0])) {
      case PeerMessageKind::kMention:
        return Happening::kMention;
      case PeerMessageKind::kGiveBack:
        return Happening::kGiveBack;
      case PeerMessageKind::kAskValue:
        return Happening::kAskValue;
      case PeerMessageKind::kValue:
        return Happening::kValue;
      case PeerMessageKind::kCancelObject:
      case PeerMessageKind::kCancelTask:
        break;
      case PeerMessageKind::kAskWhy:
      case PeerMessageKind::kWhy:
        break;  // nobody asks in the simulator
    }
  }
  if (std::holds_alternative<WorkerReady>(message)) return Happening::kWorkerReady;
  if (std::holds_alternative<RequestLeases>(message)) return Happening::kRequestLeases;
  if (std::holds_alternative<ReturnLease>(message)) return Happening::kReturnLease;
  if (std::holds_alternative<Blocked>(message)) return Happening::kBlocked;
  if (std::holds_alternative<FreeObjects>(message)) return Happening::kFreeObjects;
  if (std::holds_alternative<ChannelOpened>(message)) return Happening::kChannelOpened;
  if (std::holds_alternative<LeaseGranted>(message)) return Happening::kLeaseGranted;
  if (std::holds_alternative<LeaseRecalled>(message)) return Happening::kLeaseRecalled;
  if (std::holds_alternative<LeaseRefused>(message)) return Happening::kLeaseRefused;
  if (std::holds_alternative<ProcessDied>(message)) return Happening::kProcessDied;
  if (std::holds_alternative<ObjectsFreed>(message)) return Happening::kObjectsFreed;
  if (std::holds_alternative<Exit>(message)) return Happening::kExit;
  WEFT_CHECK(false, "a message that the simulator does not know");
  return Happening::kCount;
}

}  // namespace weft::core
