#include "node/object_exchange.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "transfer/checksum.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
// A link that broke is acted upon after this: connecting anew to who is just dying must not become a busy loop.
constexpr int64_t kBrokenNs = 50 * kMs;
// A source that owes chunks and says nothing for so long is asked no more for now. Well above what a chunk takes on a
// slow link; that a node is dead is the head's to say, and much faster.
constexpr int64_t kSilentNs = 10'000 * kMs;
constexpr int64_t kLookNs = 1'000 * kMs;
// A node that does not say in that time whether it has a copy of what was lost is not waited for: it may hang, and most
// objects can be made again.
constexpr int64_t kSearchNs = 2'000 * kMs;
// So long those who have lost an object may find a copy of it that nobody uses.
constexpr int64_t kOrphanNs = 60'000 * kMs;
// In a larger cluster not all nodes are asked; each costs a message, and may cost a link.
constexpr size_t kMaxAsked = 128;

// A segment's generations name its objects, so this names the object in the whole cluster.
ObjectId KeyOf(const Location& object) { return {ProcessId{object.segment.value}, object.generation}; }

}  // namespace

ObjectExchange::ObjectExchange(Cluster& cluster, MemoryBudget& budget,
                               std::vector<MemoryBudget::Action>& budget_actions, SegmentKeeper& segments, Host& host)
    : cluster_(cluster),
      budget_(budget),
      budget_actions_(budget_actions),
      segments_(segments),
      host_(host),
      account_(DaemonOf(cluster.self())) {}

ObjectExchange::~ObjectExchange() = default;

template <class Event>
void ObjectExchange::FeedTable(const Event& event) {
  std::vector<CopyAction> actions;
  table_.Handle(event, actions);
  for (const auto& action : actions) std::visit([&](const auto& a) { Perform(a); }, action);
}

template <class Event>
void ObjectExchange::FeedSearch(const Event& event) {
  std::vector<SearchAction> actions;
  search_.Handle(event, actions);
  for (const auto& action : actions) std::visit([&](const auto& a) { Perform(a); }, action);
}

template <class Event>
void ObjectExchange::FeedPlan(const Event& event) {
  std::vector<PullAction> actions;
  plan_.Handle(event, actions);
  for (const auto& action : actions) std::visit([&](const auto& a) { Perform(a); }, action);
}

template <class Event>
void ObjectExchange::FeedServer(const Event& event) {
  std::vector<ServeAction> actions;
  server_.Handle(event, actions);
  for (const auto& action : actions) std::visit([&](const auto& a) { Perform(a); }, action);
}

template <class Event>
void ObjectExchange::FeedDirectory(const Event& event) {
  std::vector<HolderAction> actions;
  directory_.Handle(event, actions);
  for (const auto& action : actions) std::visit([&](const auto& a) { Perform(a); }, action);
}

// ---- this node's processes ----------------------------------------------------------------------------------------

void ObjectExchange::Fetch(ProcessId process, const FetchObject& message) {
  const Location& object = message.location;
  const NodeNumber home = NodeOf(object.segment);
  if (home == cluster_.self() || !home || object.size == 0 || object.size > kMaxTransferBytes ||
      object.generation == 0) {
    return host_.TellProcess(process,
                             ObjectUnfetchable{message.request, "ObjectLostError\nthere is no object of that place"});
  }
  // Before room is made: most of what is lost has no copies.
  if (!cluster_.Knows(home) && !table_.Has(object)) return Search(process, message.request, object);
  FeedTable(CopyWanted{process, message.request, object});
}

void ObjectExchange::Search(ProcessId process, uint64_t request, const Location& object) {
  CopySought sought{process, request, object, {}};
  for (const auto& [node, other] : cluster_.nodes()) {
    if (node != cluster_.self() && sought.nodes.size() < kMaxAsked) sought.nodes.push_back(node);
  }
  searched_.try_emplace(object, NowNs() + kSearchNs);
  FeedSearch(sought);
}

void ObjectExchange::Perform(const AskHolder& action) { cluster_.Send(action.node, HoldingsWanted{action.object}); }

void ObjectExchange::Perform(const EndSearch& action) {
  searched_.erase(action.object);
  const ObjectId key = KeyOf(action.object);
  if (action.holder && !action.seekers.empty()) found_[key] = action.holder;
  for (const auto& [process, request] : action.seekers) {
    if (action.holder) {
      FeedTable(CopyWanted{process, request, action.object});
    } else {
      host_.TellProcess(process, ObjectUnfetchable{request, WhyLost(action.object, ""), 1});
    }
  }
  if (!action.for_pull) return;
  SourcesGiven given{.object = key, .answer = true};
  if (action.holder) given.complete.push_back(action.holder);
  FeedPlan(given);
}

// Copies of its objects: those that are there now, or will be soon.
void ObjectExchange::KeepOrphans(NodeNumber home) { orphaned_[home] = NowNs() + kOrphanNs; }

void ObjectExchange::Release(ProcessId process, const ReleaseObject& message) {
  FeedSearch(SeekerLeft{process, message.request});
  FeedTable(CopyUnwanted{process, message.request});
}

void ObjectExchange::ProcessEnded(ProcessId process) {
  FeedSearch(SeekerDied{process});
  FeedTable(CopyUserDied{process});
}

void ObjectExchange::LastProcessEnded() {
  // Whose they were has most likely ended, too; and if not, what was lost can be made again.
  for (const auto& [home, when] : std::exchange(orphaned_, {})) FeedTable(HomeLost{home});
  // Processes that come later map the next one, which has the same number; none is left that has mapped this one.
  if (!writer_ || !table_.empty() || !reserving_.empty()) return;
  segments_.WriterDied(writer_->segment());
  writer_.reset();
  budget_.Handle(MemoryBudget::Died{account_, 0, NowNs()}, budget_actions_);
}

void ObjectExchange::Perform(const TellFetched& action) {
  host_.TellProcess(action.process, ObjectFetched{action.request, action.place});
}

void ObjectExchange::Perform(const TellUnfetchable& action) {
  // If there was no room for it here, others may have copies of it yet.
  const bool gone = !cluster_.Knows(NodeOf(action.object.segment)) && action.error.starts_with("ObjectLostError");
  found_.erase(KeyOf(action.object));
  host_.TellProcess(action.process,
                    ObjectUnfetchable{action.request, action.error, static_cast<uint8_t>(gone ? 1 : 0)});
}

std::string ObjectExchange::WhyLost(const Location& object, const std::string& why) const {
  const NodeNumber home = NodeOf(object.segment);
  std::string text =
      "ObjectLostError\nan object of " + std::to_string(object.size) + " bytes lay on " + cluster_.Describe(home);
  if (cluster_.Knows(home)) return text + " and cannot be had from there: " + why;
  return text + ", and no other node has all of it";
}

// ---- memory -------------------------------------------------------------------------------------------------------

Status ObjectExchange::MakeSegment() {
  if (writer_) return {};
  auto writer = std::make_unique<SegmentWriter>();
  auto fd = writer->Create(account_, SegmentSizeFor(budget_.capacity_bytes()));
  if (!fd) return fd.error();
  UniqueFd kept(::dup(*fd));
  if (!kept) return Error{ErrorKind::kUnavailable, "no descriptors are left"};
  if (Status status = segments_.Adopt(writer->segment(), std::move(kept), writer->size()); !status) return status;
  writer_ = std::move(writer);
  return {};
}

void ObjectExchange::Perform(const MakeRoom& action) { TryRoom(action.object); }

void ObjectExchange::TryRoom(const Location& object) {
  // A process may ask for anything; of two places with one name at most one can be right.
  if (copies_.contains(KeyOf(object))) {
    return FeedTable(RoomRefused{object, "ObjectLostError\nthere is no object of that place"});
  }
  if (Status status = MakeSegment(); !status) {
    return FeedTable(RoomRefused{object, "ObjectStoreFullError\n" + status.error().message});
  }
  for (;;) {
    uint64_t missing = 0;
    auto room = writer_->Allocate(KeyOf(object), object.size, Populate::kWhileCopying, &missing);
    if (room) {
      copies_[KeyOf(object)] = Copy{.object = object, .room = *room};
      return FeedTable(RoomMade{object, room->location});
    }
    const size_t unused = table_.unused();
    if (missing == 0) {
      // The address space is fragmented, or the system has no memory: less in it may help.
      if (room.error().kind == ErrorKind::kFull && unused > 0) {
        FeedTable(RoomNeeded{object.size});
        continue;
      }
      return FeedTable(RoomRefused{object, "ObjectStoreFullError\n" + room.error().message});
    }
    if (missing > budget_.capacity_bytes() - std::min(budget_.used_bytes(), budget_.capacity_bytes()) && unused > 0) {
      FeedTable(RoomNeeded{missing});
      continue;
    }
    const uint64_t request = next_request_++;
    reserving_.emplace(request, object);
    budget_.Handle(MemoryBudget::Reserved{account_, request, missing, NowNs()}, budget_actions_);
    return;
  }
}

void ObjectExchange::MemoryGranted(uint64_t request, uint64_t bytes) {
  auto found = reserving_.find(request);
  WEFT_CHECK(found != reserving_.end() && writer_, "the budget answers once");
  const Location object = found->second;
  reserving_.erase(found);
  writer_->AddBudget(bytes);
  TryRoom(object);
}

void ObjectExchange::MemoryRefused(uint64_t request, const std::string& why) {
  auto found = reserving_.find(request);
  WEFT_CHECK(found != reserving_.end(), "the budget answers once");
  const Location object = found->second;
  reserving_.erase(found);
  FeedTable(RoomRefused{object, "ObjectStoreFullError\n" + cluster_.Describe(cluster_.self()) +
                                    " has no room for a copy of an object of " +
                                    cluster_.Describe(NodeOf(object.segment)) + ": " + why});
}

void ObjectExchange::Trim(uint64_t bytes) {
  if (!writer_) return;
  uint64_t released = writer_->Trim(bytes);
  if (released < bytes && table_.unused() > 0) {
    FeedTable(RoomNeeded{bytes - released});
    released += writer_->Trim(bytes - released);
  }
  if (released > 0) budget_.Handle(MemoryBudget::Released{account_, released, NowNs()}, budget_actions_);
}

void ObjectExchange::Perform(const FreePlace& action) {
  auto found = copies_.find(KeyOf(action.object));
  WEFT_CHECK(found != copies_.end(), "what is freed has a place");
  found->second.sealed ? writer_->Free(action.place) : writer_->Abort(action.place);
  copies_.erase(found);
  trim_at_ns_ = std::min(trim_at_ns_, NowNs() + SegmentWriter::kIdleBucketNs);
}

// ---- pulling ------------------------------------------------------------------------------------------------------

void ObjectExchange::Perform(const BeginPull& action) {
  const ObjectId key = KeyOf(action.object);
  copies_.at(key).offered = true;
  const NodeNumber home = NodeOf(action.object.segment);
  if (!cluster_.Knows(home)) KeepOrphans(home);
  FeedServer(ObjectOffered{key, action.object.size, false});
  FeedPlan(PullWanted{key, action.object.size});
  look_at_ns_ = std::min(look_at_ns_, NowNs() + kLookNs);
}

void ObjectExchange::Perform(const WithdrawCopy& action) {
  const ObjectId key = KeyOf(action.object);
  copies_.at(key).offered = false;
  found_.erase(key);
  FeedPlan(PullCancelled{key});
  FeedServer(ObjectWithdrawn{key});
  cluster_.Send(NodeOf(action.object.segment), CopyChanged{action.object, 0});
}

void ObjectExchange::Perform(const AskForSources& action) {
  auto found = copies_.find(action.object);
  if (found == copies_.end()) return;
  Copy& copy = found->second;
  const NodeNumber home = NodeOf(copy.object.segment);
  const Location object = copy.object;
  if (!cluster_.Knows(home)) {
    copy.asked_ns = 0;
    auto holder = found_.find(action.object);
    if (holder == found_.end()) return Search({}, 0, object);
    SourcesGiven given{.object = action.object, .complete = {holder->second}, .answer = true};
    found_.erase(holder);
    return FeedPlan(given);
  }
  copy.asked_ns = NowNs();
  cluster_.Send(home, SourcesWanted{object});
  // A small one need not be shared out: its home, which reads this first, is asked at once.
  if (object.size <= kChunkBytes) FeedPlan(SourcesGiven{.object = action.object, .complete = {home}});
}

void ObjectExchange::Perform(const AskChunk& action) {
  auto found = copies_.find(action.object);
  if (found == copies_.end()) return;
  heard_.try_emplace(action.node, NowNs());
  cluster_.Send(action.node, ChunkWanted{action.request, found->second.object, action.chunk});
}

void ObjectExchange::Perform(const CancelChunk& action) {
  Discard(action.node, action.request);
  cluster_.Send(action.node, ChunkUnwanted{action.request});
}

void ObjectExchange::Discard(NodeNumber from, uint64_t request) {
  auto found = receiving_.find({from, request});
  if (found == receiving_.end() || found->second.target == nullptr) return;
  cluster_.DiscardChunk(from, request);
  found->second.target = nullptr;
  found->second.elsewhere.reset();
}

void ObjectExchange::Perform(const KeepChunk& action) { FeedServer(ChunkGained{action.object, action.chunk}); }

void ObjectExchange::Perform(const FinishPull& action) {
  Copy& copy = copies_.at(action.object);
  WEFT_CHECK(writer_->Seal(copy.room.location), "what was pulled was being written");
  copy.sealed = true;
  const Location object = copy.object;
  cluster_.Send(NodeOf(object.segment), CopyChanged{object, 1});
  FeedTable(CopyCompleted{object});
}

void ObjectExchange::Perform(const FailPull& action) {
  auto found = copies_.find(action.object);
  if (found == copies_.end()) return;
  const Location object = found->second.object;
  FeedTable(CopyFailed{object, WhyLost(object, action.why)});
}

void ObjectExchange::Handle(NodeNumber from, SourcesTold& message) {
  const ObjectId key = KeyOf(message.location);
  auto found = copies_.find(key);
  if (NodeOf(message.location.segment) != from || found == copies_.end() || !plan_.IsPulling(key)) return;
  if (message.answer != 0) found->second.asked_ns = 0;
  SourcesGiven given{key, {}, {}, message.start, message.answer != 0};
  auto reachable = [&](NodeNumber node) { return node != cluster_.self() && cluster_.Knows(node); };
  std::copy_if(message.complete.begin(), message.complete.end(), std::back_inserter(given.complete), reachable);
  std::copy_if(message.partial.begin(), message.partial.end(), std::back_inserter(given.partial), reachable);
  const Location object = found->second.object;
  FeedPlan(given);
  for (NodeNumber node : given.partial) {
    heard_.try_emplace(node, NowNs());
    cluster_.Send(node, HoldingsWanted{object});
  }
}

void ObjectExchange::Handle(NodeNumber from, HoldingsTold& message) {
  const ObjectId key = KeyOf(message.location);
  heard_[from] = NowNs();
  FeedSearch(HolderAnswered{message.location, from, message.complete != 0, message.gone != 0});
  if (message.gone != 0) {
    FeedPlan(SourceGone{key, from});
  } else {
    FeedPlan(SourceAnnounced{key, from, std::move(message.ranges), message.complete != 0});
  }
}

void ObjectExchange::Handle(NodeNumber from, ChunkDenied& message) {
  heard_[from] = NowNs();
  const PullPlan::Request* request = plan_.Find(message.request);
  if (request != nullptr && request->node == from) FeedPlan(ChunkRefused{message.request});
}

uint8_t* ObjectExchange::ChunkBegan(NodeNumber from, const ChunkHead& head, size_t bytes) {
  const PullPlan::Request* request = plan_.Find(head.request);
  if (request == nullptr || request->node != from) return nullptr;
  Receiving receiving{.object = request->object, .chunk = request->chunk};
  if (request->live && request->size == bytes) {
    const Copy& copy = copies_.at(request->object);
    const bool taken = std::any_of(receiving_.begin(), receiving_.end(), [&](const auto& other) {
      return other.second.object == receiving.object && other.second.chunk == receiving.chunk &&
             other.second.target != nullptr;
    });
    const uint64_t offset = ChunkOffset(request->chunk);
    if (taken) {
      receiving.elsewhere = std::make_unique_for_overwrite<uint8_t[]>(bytes);
      receiving.target = receiving.elsewhere.get();
    } else {
      receiving.target = copy.room.data + offset;
      // The budget has the pages; made one at a time, in the middle of reading, they would cost more. If the system has
      // none after all, reading fails, and with it the link.
      if (offset < copy.room.cold_end && offset + bytes > copy.room.cold_begin) {
        (void)PopulatePages(receiving.target, bytes);
      }
    }
  }
  uint8_t* target = receiving.target;
  receiving_[{from, head.request}] = std::move(receiving);
  return target;
}

void ObjectExchange::ChunkEnded(NodeNumber from, const ChunkHead& head, size_t bytes) {
  heard_[from] = NowNs();
  auto found = receiving_.find({from, head.request});
  if (found == receiving_.end()) return;
  const Receiving received = std::move(found->second);
  receiving_.erase(found);
  const bool intact = received.target != nullptr && Checksum({received.target, bytes}) == head.checksum;
  if (intact && received.elsewhere) {
    // It has overtaken the one that is being received into its place, whose rest is of no use now.
    std::vector<std::pair<NodeNumber, uint64_t>> slower;
    for (const auto& [name, other] : receiving_) {
      if (other.object == received.object && other.chunk == received.chunk) slower.push_back(name);
    }
    for (const auto& [node, request] : slower) Discard(node, request);
    std::memcpy(copies_.at(received.object).room.data + ChunkOffset(received.chunk), received.target, bytes);
  }
  FeedPlan(ChunkArrived{head.request, intact});
}

// ---- serving ------------------------------------------------------------------------------------------------------

// Nullptr: there is no such object (any more).
ObjectExchange::Home* ObjectExchange::OpenHome(const Location& object) {
  const ObjectId key = KeyOf(object);
  if (auto found = homes_.find(key); found != homes_.end()) {
    return found->second.object == object && !found->second.freed ? &found->second : nullptr;
  }
  if (object.size == 0 || object.size > kMaxTransferBytes || ProcessId{object.segment.value} == account_) {
    return nullptr;
  }
  if (!reader_.IsOpen(object.segment)) {
    auto fd = segments_.OpenReadOnly(object.segment);
    if (!fd || !reader_.Open(object.segment, std::move(*fd))) return nullptr;
  }
  auto data = reader_.Resolve(object);  // with a view, which CloseHome gives back
  if (!data) return nullptr;
  Home& home = homes_[key];
  home.object = object;
  home.data = *data;
  FeedDirectory(CopyHeld{key, cluster_.self()});
  FeedServer(ObjectOffered{key, object.size, true});
  return &home;
}

void ObjectExchange::CloseHome(std::map<ObjectId, Home>::iterator home) {
  const SegmentId segment = home->second.object.segment;
  homes_.erase(home);
  reader_.ReleaseView(segment);
}

void ObjectExchange::Handle(NodeNumber from, SourcesWanted& message) {
  if (NodeOf(message.location.segment) != cluster_.self()) return;
  Home* home = OpenHome(message.location);
  if (home == nullptr) {
    return cluster_.Send(from, SourcesTold{.location = message.location, .answer = 1});
  }
  home->others.insert(from);
  FeedDirectory(SourcesAsked{KeyOf(message.location), from});
}

void ObjectExchange::Perform(const GiveSources& action) {
  auto found = homes_.find(action.object);
  if (found == homes_.end()) return;
  cluster_.Send(action.to, SourcesTold{found->second.object, action.complete, action.partial, action.start,
                                       static_cast<uint8_t>(action.answer ? 1 : 0)});
}

void ObjectExchange::Handle(NodeNumber from, CopyChanged& message) {
  const ObjectId key = KeyOf(message.location);
  auto found = homes_.find(key);
  // If it is not known any more, it was freed, and the sender was told so.
  if (found == homes_.end() || !found->second.others.contains(from)) return;
  if (message.held != 0) return FeedDirectory(CopyHeld{key, from});
  FeedDirectory(CopyGone{key, from});
  found->second.others.erase(from);
  ForgetIfAlone(found);
}

// Nobody else has it or pulls it.
void ObjectExchange::ForgetIfAlone(std::map<ObjectId, Home>::iterator home) {
  if (!home->second.others.empty() || home->second.sending > 0 || home->second.freed) return;
  const ObjectId key = home->first;
  FeedDirectory(ObjectForgotten{key});
  FeedServer(ObjectWithdrawn{key});
  CloseHome(home);
}

std::vector<Location> ObjectExchange::Freed(std::vector<Location> locations) {
  std::map<NodeNumber, std::vector<Location>> dropped;
  std::erase_if(locations, [&](const Location& object) {
    auto found = homes_.find(KeyOf(object));
    if (found == homes_.end() || found->second.object != object) return false;
    Home& home = found->second;
    if (home.freed) return home.sending > 0;  // once is enough
    for (NodeNumber node : home.others) dropped[node].push_back(object);
    FeedDirectory(ObjectForgotten{found->first});
    FeedServer(ObjectWithdrawn{found->first});
    if (home.sending == 0) {
      CloseHome(found);
      return false;
    }
    home.freed = home.to_free = true;
    return true;
  });
  for (auto& [node, objects] : dropped) cluster_.Send(node, CopiesDropped{std::move(objects)});
  return locations;
}

void ObjectExchange::SegmentChanged(SegmentId segment) {
  if (segments_.SizeOf(segment) != 0) return;
  std::vector<Location> lost;
  for (auto home = homes_.lower_bound({ProcessId{segment.value}, 0});
       home != homes_.end() && home->first.owner.value == segment.value; ++home) {
    if (!home->second.freed) lost.push_back(home->second.object);
  }
  Freed(std::move(lost));
  for (auto home = homes_.lower_bound({ProcessId{segment.value}, 0});
       home != homes_.end() && home->first.owner.value == segment.value; ++home) {
    home->second.to_free = false;
  }
  reader_.Drop(segment);
}

void ObjectExchange::Handle(NodeNumber from, CopiesDropped& message) {
  for (const Location& object : message.locations) {
    if (NodeOf(object.segment) == from) FeedTable(OriginFreed{object});
  }
}

void ObjectExchange::Handle(NodeNumber from, HoldingsWanted& message) {
  FeedServer(HoldingsAsked{from, KeyOf(message.location)});
}

void ObjectExchange::Handle(NodeNumber from, ChunkWanted& message) {
  FeedServer(ChunkAsked{from, message.request, KeyOf(message.location), message.chunk});
}

void ObjectExchange::Handle(NodeNumber from, ChunkUnwanted& message) {
  FeedServer(ChunkCancelled{from, message.request});
}

void ObjectExchange::Perform(const SendChunk& action) {
  const uint8_t* data = nullptr;
  uint64_t size = 0;
  if (auto home = homes_.find(action.object); home != homes_.end()) {
    data = home->second.data;
    size = home->second.object.size;
    ++home->second.sending;
  } else {
    Copy& copy = copies_.at(action.object);
    data = copy.room.data;
    size = copy.object.size;
    FeedTable(SendingBegan{copy.object});
  }
  const std::span<const uint8_t> payload(data + ChunkOffset(action.chunk), ChunkSize(size, action.chunk));
  // Its end is when the link has taken all of it, or is gone. That is told in the middle of anything; see TakeSent.
  const std::shared_ptr<const void> keeper(
      data, [sent = sent_, node = action.node, request = action.request, object = action.object](const void*) {
        sent->chunks.push_back({node, {request, object}});
      });
  cluster_.SendChunk(action.node, ChunkHead{action.request, Checksum(payload)}, payload, keeper);
}

void ObjectExchange::TakeSent() {
  while (!sent_->chunks.empty()) {
    for (const auto& [node, what] : std::exchange(sent_->chunks, {})) {
      const auto& [request, object] = what;
      if (auto found = homes_.find(object); found != homes_.end()) {
        Home& home = found->second;
        --home.sending;
        if (home.sending == 0 && home.freed) {
          const Location location = home.object;
          const bool to_free = home.to_free;
          CloseHome(found);
          if (to_free) host_.FreeNow({location});
        } else {
          ForgetIfAlone(found);
        }
      } else {
        FeedTable(SendingEnded{copies_.at(object).object});
      }
      FeedServer(ChunkSent{node, request});
    }
  }
}

void ObjectExchange::Perform(const RefuseChunk& action) { cluster_.Send(action.node, ChunkDenied{action.request}); }

void ObjectExchange::Perform(const TellHoldings& action) {
  auto found = copies_.find(action.object);
  auto home = homes_.find(action.object);
  if (found == copies_.end() && home == homes_.end()) return;
  cluster_.Send(action.node, HoldingsTold{found != copies_.end() ? found->second.object : home->second.object,
                                          action.ranges, static_cast<uint8_t>(action.complete ? 1 : 0), 0});
}

void ObjectExchange::Perform(const TellGone& action) {
  // The key is all that is left of it, and all that the receiver looks at.
  const Location gone{{action.object.owner.value}, 0, 0, action.object.index};
  cluster_.Send(action.node, HoldingsTold{.location = gone, .gone = 1});
}

// ---- links and nodes ----------------------------------------------------------------------------------------------

void ObjectExchange::LinkBroken(NodeNumber node) { broken_.try_emplace(node, NowNs() + kBrokenNs); }

void ObjectExchange::LinkLost(NodeNumber node) {
  broken_.erase(node);
  heard_.erase(node);
  // The other direction may still be open, and a chunk on its way into a place that is no longer its own.
  std::vector<uint64_t> cut;
  for (const auto& [name, receiving] : receiving_) {
    if (name.first == node) cut.push_back(name.second);
  }
  for (uint64_t request : cut) {
    Discard(node, request);
    receiving_.erase({node, request});
  }
  // What it has asked of us it has not asked in vain: only chunks can be lost.
  FeedPlan(SourceLinkLost{node});
  // What was asked over it may not have arrived.
  std::vector<Location> unanswered;
  for (const auto& [key, copy] : copies_) {
    if (copy.asked_ns != 0 && NodeOf(copy.object.segment) == node && plan_.IsPulling(key)) {
      unanswered.push_back(copy.object);
    }
  }
  for (const Location& object : unanswered) Perform(AskForSources{KeyOf(object)});
}

void ObjectExchange::NodeIsGone(NodeNumber node) {
  FeedDirectory(HolderLost{node});
  std::vector<ObjectId> alone;
  for (auto& [key, home] : homes_) {
    if (home.others.erase(node) > 0) alone.push_back(key);
  }
  for (ObjectId key : alone) ForgetIfAlone(homes_.find(key));
  FeedServer(RequesterLinkLost{node});
  FeedSearch(AskedNodeLost{node});
  LinkLost(node);
  KeepOrphans(node);
}

int64_t ObjectExchange::NextDeadline() const {
  if (!sent_->chunks.empty()) return 0;
  int64_t next = std::min(look_at_ns_, trim_at_ns_);
  for (const auto& [node, when] : broken_) next = std::min(next, when);
  for (const auto& [object, when] : searched_) next = std::min(next, when);
  for (const auto& [node, when] : orphaned_) next = std::min(next, when);
  return next;
}

void ObjectExchange::Tick(int64_t now_ns) {
  TakeSent();
  std::vector<NodeNumber> lost;
  for (const auto& [node, when] : broken_) {
    if (when <= now_ns) lost.push_back(node);
  }
  if (look_at_ns_ <= now_ns) {
    look_at_ns_ = plan_.pull_count() > 0 ? now_ns + kLookNs : INT64_MAX;
    for (const auto& [node, when] : heard_) {
      if (now_ns - when > kSilentNs && plan_.bytes_in_flight(node) > 0) lost.push_back(node);
    }
    for (const auto& [key, copy] : copies_) {
      if (copy.asked_ns != 0 && now_ns - copy.asked_ns > kSilentNs) lost.push_back(NodeOf(copy.object.segment));
    }
    if (plan_.pull_count() == 0) heard_.clear();
  }
  for (NodeNumber node : lost) LinkLost(node);
  std::vector<Location> in_vain;
  for (const auto& [object, when] : searched_) {
    if (when <= now_ns) in_vain.push_back(object);
  }
  for (const Location& object : in_vain) FeedSearch(SearchTimedOut{object});
  for (auto next = orphaned_.begin(); next != orphaned_.end();) {
    const auto [node, when] = *next;
    next = when <= now_ns ? orphaned_.erase(next) : std::next(next);
    if (when <= now_ns) FeedTable(HomeLost{node});
  }
  if (trim_at_ns_ <= now_ns) {
    trim_at_ns_ = INT64_MAX;
    if (!writer_) return;
    if (uint64_t released = writer_->TrimIdle(now_ns, 0)) {
      budget_.Handle(MemoryBudget::Released{account_, released, now_ns}, budget_actions_);
    }
    if (writer_->HasIdleMemory(0)) trim_at_ns_ = now_ns + SegmentWriter::kIdleBucketNs;
  }
  TakeSent();
}

}  // namespace weft::core
