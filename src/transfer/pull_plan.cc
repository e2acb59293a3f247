#include "transfer/pull_plan.h"

#include <algorithm>

#include "base/check.h"

namespace weft::core {
namespace {

// With more pulls than that, an idle source is not offered what others owe to each of them.
constexpr size_t kFewPulls = 64;

}  // namespace

void PullPlan::Pull::SetMissing(uint32_t chunk) {
  chunks[chunk] = Chunk::kMissing;
  (holders[chunk] == 0 ? fresh : held).insert(chunk);
}

void PullPlan::Pull::SetAsked(uint32_t chunk) {
  chunks[chunk] = Chunk::kAsked;
  (holders[chunk] == 0 ? fresh : held).erase(chunk);
}

const PullPlan::Request* PullPlan::Find(uint64_t request) const {
  auto found = requests_.find(request);
  return found == requests_.end() ? nullptr : &found->second;
}

uint64_t PullPlan::bytes_in_flight(NodeNumber node) const {
  auto found = links_.find(node);
  return found == links_.end() ? 0 : found->second.in_flight;
}

// ---- pulls and sources --------------------------------------------------------------------------------------------

void PullPlan::Handle(const PullWanted& event, std::vector<PullAction>& out) {
  WEFT_CHECK(event.size <= kMaxTransferBytes, "the caller checks the size before it makes room");
  auto [entry, added] = pulls_.try_emplace(event.object);
  if (!added) return;
  if (event.size == 0) {
    pulls_.erase(entry);
    out.emplace_back(FinishPull{event.object});
    return;
  }
  Pull& pull = entry->second;
  pull.size = event.size;
  uint32_t count = ChunkCount(event.size);
  pull.chunks.resize(count, Chunk::kMissing);
  pull.holders.resize(count);
  pull.asked_of.resize(count);
  for (uint32_t chunk = 0; chunk < count; ++chunk) pull.fresh.insert(pull.fresh.end(), chunk);
  EndIfStuck(event.object, out);
}

void PullPlan::Handle(const SourcesGiven& event, std::vector<PullAction>& out) {
  auto found = pulls_.find(event.object);
  if (found == pulls_.end()) return;
  Pull& pull = found->second;
  if (!pull.begun) {
    pull.cursor = static_cast<uint32_t>(uint64_t{event.start % 65'536} * pull.chunks.size() / 65'536);
  }
  if (event.answer && pull.asked_for_sources) pull.no_more_sources = true;
  for (NodeNumber node : event.complete) AddSource(event.object, pull, node, true);
  for (NodeNumber node : event.partial) AddSource(event.object, pull, node, false);
  Fill(out);
  EndIfStuck(event.object, out);
}

void PullPlan::AddSource(ObjectId object, Pull& pull, NodeNumber node, bool complete) {
  if (!node || pull.dropped.contains(node)) return;
  auto [entry, added] = pull.sources.try_emplace(node);
  Source& source = entry->second;
  links_[node].ready.insert(object);
  if (added && !complete) source.has.resize(pull.chunks.size());
  if (!complete || source.complete) return;
  // What it has is nothing special any more.
  for (uint32_t chunk = 0; chunk < source.has.size(); ++chunk) {
    if (!source.has[chunk]) continue;
    bool missing = pull.chunks[chunk] == Chunk::kMissing;
    if (missing) pull.held.erase(chunk);
    --pull.holders[chunk];
    if (missing) pull.SetMissing(chunk);
  }
  source = Source{.complete = true, .heard = true, .asked = source.asked};
  Wake(object, pull);  // what it has may now be asked from any complete one
}

void PullPlan::AddHolding(Pull& pull, Source& source, uint32_t chunk) {
  if (source.has[chunk]) return;
  source.has[chunk] = true;
  bool missing = pull.chunks[chunk] == Chunk::kMissing;
  if (missing && pull.holders[chunk] == 0) pull.fresh.erase(chunk);
  ++pull.holders[chunk];
  if (missing) pull.held.insert(chunk);
  if (pull.chunks[chunk] != Chunk::kHad) source.to_look.push_back(chunk);
}

void PullPlan::Handle(const SourceAnnounced& event, std::vector<PullAction>& out) {
  auto found = pulls_.find(event.object);
  if (found == pulls_.end() || found->second.dropped.contains(event.node)) return;
  Pull& pull = found->second;
  auto source = pull.sources.find(event.node);
  if (source == pull.sources.end()) return;  // it was not given as a source
  if (event.complete) {
    AddSource(event.object, pull, event.node, true);
  } else if (!source->second.complete) {
    source->second.heard = true;
    for (const auto& [first, count] : event.ranges) {
      uint64_t end = std::min<uint64_t>(uint64_t{first} + count, pull.chunks.size());
      for (uint64_t chunk = first; chunk < end; ++chunk) {
        AddHolding(pull, source->second, static_cast<uint32_t>(chunk));
      }
    }
    links_[event.node].ready.insert(event.object);
  }
  Fill(out);
  EndIfStuck(event.object, out);
}

// Its bytes are not wanted any more; the credit comes back with the answer.
void PullPlan::Kill(Request& request) {
  request.live = false;
  Pull& pull = pulls_.at(request.object);
  if (auto source = pull.sources.find(request.node); source != pull.sources.end()) --source->second.asked;
  if (--pull.asked_of[request.chunk] > 0 || pull.chunks[request.chunk] != Chunk::kAsked) return;
  pull.SetMissing(request.chunk);
  for (auto& [node, source] : pull.sources) {
    if (!source.complete && source.has[request.chunk]) source.to_look.push_front(request.chunk);
  }
  Wake(request.object, pull);
}

void PullPlan::DropSource(ObjectId object, NodeNumber node, bool for_good, std::vector<PullAction>& out) {
  Pull& pull = pulls_.at(object);
  auto found = pull.sources.find(node);
  if (found == pull.sources.end()) return;
  if (for_good) pull.dropped.insert(node);
  Source source = std::move(found->second);
  pull.sources.erase(found);
  Link& link = links_[node];
  link.ready.erase(object);
  for (uint32_t chunk = 0; chunk < source.has.size(); ++chunk) {
    if (!source.has[chunk]) continue;
    bool missing = pull.chunks[chunk] == Chunk::kMissing;
    if (missing) pull.held.erase(chunk);
    --pull.holders[chunk];
    if (missing) pull.SetMissing(chunk);
  }
  for (uint64_t number : link.requests) {
    Request& request = requests_.at(number);
    if (!request.live || request.object != object) continue;
    if (faults.forget_chunks_of_the_lost) {
      request.live = false;
      continue;
    }
    Kill(request);
    out.emplace_back(CancelChunk{number, node});
  }
  // The answer may be out of date: ask again.
  pull.asked_for_sources = pull.no_more_sources = false;
  Wake(object, pull);
}

void PullPlan::Handle(const SourceGone& event, std::vector<PullAction>& out) {
  if (!pulls_.contains(event.object)) return;
  DropSource(event.object, event.node, true, out);
  Fill(out);
  EndIfStuck(event.object, out);
}

void PullPlan::Handle(const SourceLinkLost& event, std::vector<PullAction>& out) {
  auto found = links_.find(event.node);
  if (found == links_.end()) return;
  std::vector<ObjectId> concerned;
  for (const auto& [object, pull] : pulls_) {
    if (pull.sources.contains(event.node)) concerned.push_back(object);
  }
  // Not for good: the node may be back over another link, and then the directory gives it again.
  std::vector<PullAction> cancelled;  // over a link that is gone
  for (ObjectId object : concerned) DropSource(object, event.node, false, cancelled);
  for (uint64_t number : found->second.requests) {
    in_flight_ -= requests_.at(number).size;
    requests_.erase(number);
  }
  links_.erase(found);
  Fill(out);
  for (ObjectId object : concerned) EndIfStuck(object, out);
}

void PullPlan::Handle(const PullCancelled& event, std::vector<PullAction>& out) {
  if (!pulls_.contains(event.object)) return;
  Remove(event.object, out);
  Fill(out);
}

// ---- chunks -------------------------------------------------------------------------------------------------------

void PullPlan::Handle(const ChunkArrived& event, std::vector<PullAction>& out) {
  auto found = requests_.find(event.request);
  if (found == requests_.end()) return;
  Request request = found->second;
  Link& link = links_.at(request.node);
  bool live = request.live;
  if (live && !event.intact && !faults.keep_what_is_corrupt) {
    // A source that sends one wrong chunk is not trusted with others of this object.
    pulls_.at(request.object).was_corrupt = true;
    DropSource(request.object, request.node, true, out);
    live = false;
    std::erase_if(out, [&](const PullAction& action) {
      const auto* cancel = std::get_if<CancelChunk>(&action);
      return cancel != nullptr && cancel->request == event.request;
    });
  }
  link.requests.erase(event.request);
  link.in_flight -= request.size;
  in_flight_ -= request.size;
  requests_.erase(found);
  auto entry = pulls_.find(request.object);
  if (live) {
    Pull& pull = entry->second;
    --pull.sources.at(request.node).asked;
    --pull.asked_of[request.chunk];
    pull.chunks[request.chunk] = Chunk::kHad;
    ++pull.had;
    // No other source need send it.
    for (auto& [number, other] : requests_) {
      if (pull.asked_of[request.chunk] == 0) break;
      if (!other.live || other.object != request.object || other.chunk != request.chunk) continue;
      Kill(other);
      out.emplace_back(CancelChunk{number, other.node});
    }
    out.emplace_back(KeepChunk{request.object, request.chunk});
    if (pull.had == pull.chunks.size()) {
      out.emplace_back(FinishPull{request.object});
      Remove(request.object, out);
      entry = pulls_.end();
    }
  }
  if (entry != pulls_.end() && entry->second.sources.contains(request.node)) link.ready.insert(request.object);
  if (link.requests.empty() && pulls_.size() <= kFewPulls) {
    for (const auto& [object, pull] : pulls_) {
      if (pull.all_asked() && pull.sources.contains(request.node)) link.ready.insert(object);
    }
  }
  Fill(out);
  EndIfStuck(request.object, out);
}

void PullPlan::Handle(const ChunkRefused& event, std::vector<PullAction>& out) {
  auto found = requests_.find(event.request);
  if (found == requests_.end()) return;
  Request request = found->second;
  if (request.live) {
    DropSource(request.object, request.node, true, out);
    std::erase_if(out, [&](const PullAction& action) {
      const auto* cancel = std::get_if<CancelChunk>(&action);
      return cancel != nullptr && cancel->request == event.request;
    });
  }
  Link& link = links_.at(request.node);
  link.requests.erase(event.request);
  if (!faults.forget_credit_of_the_cancelled || request.live) {
    link.in_flight -= request.size;
    in_flight_ -= request.size;
  }
  requests_.erase(event.request);
  Fill(out);
  EndIfStuck(request.object, out);
}

// ---- decisions ----------------------------------------------------------------------------------------------------

bool PullPlan::HasRoom(const Link& link, uint64_t size) const {
  return (link.in_flight == 0 || link.in_flight + size <= config_.link_credit) &&
         (in_flight_ == 0 || in_flight_ + size <= config_.total_credit);
}

uint32_t PullPlan::NextChunk(Pull& pull, Source& source) {
  if (!source.complete) {
    while (!source.to_look.empty()) {
      uint32_t chunk = source.to_look.front();
      source.to_look.pop_front();
      if (pull.chunks[chunk] == Chunk::kMissing) return chunk;
    }
    return kNone;
  }
  auto next_of = [&](const std::set<uint32_t>& chunks) {
    auto next = chunks.lower_bound(pull.cursor);
    return next == chunks.end() ? *chunks.begin() : *next;
  };
  if (!pull.fresh.empty()) {
    uint32_t chunk = next_of(pull.fresh);
    if (pull.begun && chunk != pull.cursor) {
      // It has reached a part that others work on and have already asked for: it goes on in the middle of what is left
      // there, as they do when they meet, so that no node asks for what another is just getting.
      uint32_t end = chunk;
      for (auto next = pull.fresh.find(chunk); next != pull.fresh.end() && *next == end; ++next) ++end;
      chunk += (end - chunk) / 2;
    }
    pull.cursor = chunk + 1;
    return chunk;
  }
  if (pull.held.empty()) return kNone;
  // A complete source has better things to send than what others have, unless these have their hands full.
  uint32_t chunk = next_of(pull.held);
  for (const auto& [node, other] : pull.sources) {
    if (!other.complete && other.has[chunk] && links_.at(node).in_flight < config_.link_credit) return kNone;
  }
  pull.cursor = chunk + 1;
  return chunk;
}

// What another source owes for longest, of the one that owes most.
uint32_t PullPlan::ChunkToDouble(ObjectId object, const Pull& pull, NodeNumber node, const Source& source) const {
  uint32_t best = kNone, most = 0;
  for (const auto& [other, owes] : pull.sources) {
    if (other == node || owes.asked <= most) continue;
    for (uint64_t number : links_.at(other).requests) {
      const Request& request = requests_.at(number);
      if (!request.live || request.object != object || pull.asked_of[request.chunk] > 1) continue;
      if (!source.complete && !source.has[request.chunk]) continue;
      best = request.chunk;
      most = owes.asked;
      break;
    }
  }
  return best;
}

bool PullPlan::AskOne(NodeNumber node, Link& link, std::vector<PullAction>& out) {
  while (!link.ready.empty() && HasRoom(link, kChunkBytes)) {
    auto turn = link.ready.upper_bound(link.last);
    if (turn == link.ready.end() || faults.first_pull_first) turn = link.ready.begin();
    ObjectId object = *turn;
    Pull& pull = pulls_.at(object);
    Source& source = pull.sources.at(node);
    uint32_t chunk = NextChunk(pull, source);
    if (chunk == kNone && pull.all_asked() && link.requests.empty()) chunk = ChunkToDouble(object, pull, node, source);
    if (chunk == kNone) {
      link.ready.erase(turn);
      continue;
    }
    link.last = object;
    pull.begun = true;
    if (pull.chunks[chunk] == Chunk::kMissing) pull.SetAsked(chunk);
    ++pull.asked_of[chunk];
    ++source.asked;
    auto size = static_cast<uint32_t>(ChunkSize(pull.size, chunk));
    uint64_t number = next_request_++;
    requests_.emplace(number, Request{node, object, chunk, size, true});
    link.requests.insert(number);
    link.in_flight += size;
    in_flight_ += size;
    out.emplace_back(AskChunk{number, node, object, chunk});
    // Now that all is asked, or this link is full, there may be something to ask from others.
    if (pull.all_asked() || !HasRoom(link, kChunkBytes)) Wake(object, pull);
    return true;
  }
  return false;
}

void PullPlan::Fill(std::vector<PullAction>& out) {
  // One chunk per link and round, so that no link takes all of the common credit.
  for (bool asked = true; asked;) {
    asked = false;
    auto link = links_.upper_bound(last_link_);
    for (size_t i = 0; i < links_.size(); ++i, ++link) {
      if (link == links_.end()) link = links_.begin();
      if (!AskOne(link->first, link->second, out)) continue;
      asked = true;
      last_link_ = link->first;
    }
  }
}

void PullPlan::Wake(ObjectId object, const Pull& pull) {
  for (const auto& [node, source] : pull.sources) links_[node].ready.insert(object);
}

void PullPlan::EndIfStuck(ObjectId object, std::vector<PullAction>& out) {
  auto found = pulls_.find(object);
  if (found == pulls_.end()) return;
  Pull& pull = found->second;
  if (!pull.held.empty() || pull.had == pull.chunks.size()) return;
  for (const auto& [node, source] : pull.sources) {
    if (source.complete || source.asked > 0 || !source.heard) return;
  }
  if (!pull.no_more_sources) {
    if (!pull.asked_for_sources) out.emplace_back(AskForSources{object});
    pull.asked_for_sources = true;
    return;
  }
  std::string why = "no node that can be reached has a copy of all of it";
  if (pull.was_corrupt) why += "; what one of them sent was corrupt";
  out.emplace_back(FailPull{object, std::move(why)});
  Remove(object, out);
}

void PullPlan::Remove(ObjectId object, std::vector<PullAction>& out) {
  auto found = pulls_.find(object);
  for (auto& [node, source] : found->second.sources) {
    Link& link = links_.at(node);
    link.ready.erase(object);
    if (source.asked == 0) continue;  // the rule: it is complete, and a thousand small ones may be on their way
    for (uint64_t number : link.requests) {
      Request& request = requests_.at(number);
      if (!request.live || request.object != object) continue;
      request.live = false;
      out.emplace_back(CancelChunk{number, node});
    }
  }
  pulls_.erase(found);
}

void PullPlan::CheckInvariants() const {
  uint64_t total = 0;
  std::map<std::pair<ObjectId, uint32_t>, uint32_t> asked;
  std::map<std::pair<ObjectId, NodeNumber>, uint32_t> asked_there;
  for (const auto& [node, link] : links_) {
    uint64_t bytes = 0;
    for (uint64_t number : link.requests) {
      const Request& request = requests_.at(number);
      WEFT_CHECK(request.node == node, "a request is its link's");
      bytes += request.size;
      if (!request.live) continue;
      ++asked[{request.object, request.chunk}];
      ++asked_there[{request.object, node}];
    }
    WEFT_CHECK(bytes == link.in_flight, "credit is what is not answered");
    WEFT_CHECK(bytes <= config_.link_credit || link.requests.size() == 1, "a link has its limit");
    total += bytes;
    for (ObjectId object : link.ready) {
      WEFT_CHECK(pulls_.contains(object) && pulls_.at(object).sources.contains(node), "a ready pull may ask");
    }
  }
  WEFT_CHECK(total == in_flight_ && total <= std::max(config_.total_credit, kChunkBytes), "all links have their limit");
  for (const auto& [object, pull] : pulls_) {
    uint32_t had = 0;
    for (uint32_t chunk = 0; chunk < pull.chunks.size(); ++chunk) {
      uint32_t holders = 0;
      for (const auto& [node, source] : pull.sources) holders += !source.complete && source.has[chunk] ? 1 : 0;
      WEFT_CHECK(holders == pull.holders[chunk], "holders are counted");
      auto there = asked.find({object, chunk});
      WEFT_CHECK(pull.asked_of[chunk] == (there == asked.end() ? 0 : there->second), "requests are counted");
      WEFT_CHECK((pull.chunks[chunk] == Chunk::kAsked) == (pull.asked_of[chunk] > 0),
                 "what is asked for is owed by a source");
      bool missing = pull.chunks[chunk] == Chunk::kMissing;
      WEFT_CHECK(pull.fresh.contains(chunk) == (missing && holders == 0), "chunks of complete sources only are listed");
      WEFT_CHECK(pull.held.contains(chunk) == (missing && holders > 0), "chunks of partial sources are listed");
      had += pull.chunks[chunk] == Chunk::kHad ? 1 : 0;
    }
    WEFT_CHECK(had == pull.had && had < pull.chunks.size(), "what is had is counted");
    bool owed = false, room = false;
    for (const auto& [node, source] : pull.sources) {
      WEFT_CHECK(!pull.dropped.contains(node), "a dropped node is no source");
      auto there = asked_there.find({object, node});
      WEFT_CHECK(source.asked == (there == asked_there.end() ? 0 : there->second), "requests are counted per source");
      owed = owed || source.asked > 0;
      room = room || (source.complete && HasRoom(links_.at(node), kChunkBytes));
    }
    WEFT_CHECK(pull.fresh.empty() || !room, "nothing waits that could be asked");
  }
}

}  // namespace weft::core
