#include "scheduling/global_scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "scheduling/global_scheduler_records.h"
#include "scheduling/labels.h"

namespace weft::core {
namespace {

constexpr uint32_t kSlotBits = 24;  // of a rank, the lowest: they make ranks unique, and the root says who it is
constexpr uint64_t kSlotMask = (uint64_t{1} << kSlotBits) - 1;
// Leases on their way to one node. More than a node can start at once; few enough for one event, since work that needs
// no resources fits without end.
constexpr uint32_t kMaxInFlight = 1024;
// One event must not take long: 65,536 placements are some 20 ms. Whoever wants more asks again.
constexpr uint32_t kMaxCount = 65'536;
// After so many leases to others on nodes where it could run, a node is kept free. As in LocalScheduler, a few times
// more, since a whole node is what it costs.
constexpr uint32_t kMaxPassedOver = 32;
// Bytes that make a node better. Fetching a megabyte takes about a millisecond over the slowest links that are in use.
constexpr size_t kMaxArgumentNodes = 16;  // the richest: each is looked at in each decision
constexpr uint32_t kCpuId = 0, kGpuId = 1;

bool FitsGpus(const std::vector<int64_t>& gpus, int64_t amount) {
  if (amount == 0) return true;
  if (amount < kResourceUnit) {
    return std::any_of(gpus.begin(), gpus.end(), [&](int64_t free) { return free >= amount; });
  }
  return std::count(gpus.begin(), gpus.end(), kResourceUnit) >= amount / kResourceUnit;
}

// As FreeResources::Take does it on the node, so that the pictures agree: the fullest that has room.
void TakeGpus(std::vector<int64_t>& gpus, int64_t amount) {
  for (int64_t left = amount; left > 0; left -= kResourceUnit) {
    int64_t part = std::min(left, kResourceUnit);
    auto best = gpus.end();
    for (auto gpu = gpus.begin(); gpu != gpus.end(); ++gpu) {
      if (*gpu >= part && (best == gpus.end() || *gpu < *best)) best = gpu;
    }
    if (best == gpus.end()) return;  // the report has less than was placed; the node will refuse
    *best -= part;
  }
}

std::vector<int64_t> GpusOf(int64_t amount) {
  std::vector<int64_t> gpus;
  for (; amount > 0; amount -= kResourceUnit) gpus.push_back(std::min(amount, kResourceUnit));
  return gpus;
}

// What any node may have, in other amounts. Other names are the user's own.
bool IsCommon(std::string_view name) {
  return name == kCpu || name == kGpu || name == "memory" || name == kPythonWorker;
}

}  // namespace

GlobalScheduler::GlobalScheduler() {
  WEFT_CHECK(Intern(kCpu) == kCpuId && Intern(kGpu) == kGpuId, "these have fixed numbers");
}

GlobalScheduler::~GlobalScheduler() = default;

// ---- names ------------------------------------------------------------------------------------------------------

uint32_t GlobalScheduler::SlotOf(NodeNumber node) const {
  return node.value < slot_of_.size() ? slot_of_[node.value] : kNoSlot;
}

GlobalScheduler::Request* GlobalScheduler::Find(RequestId id) const {
  uint32_t slot = SlotOf(id.requester);
  if (slot == kNoSlot) return nullptr;
  auto found = nodes_[slot]->requests.find(id.number);
  return found == nodes_[slot]->requests.end() ? nullptr : found->second.get();
}

uint32_t GlobalScheduler::Intern(std::string_view name) {
  auto found = resource_of_.find(name);
  if (found == resource_of_.end()) {
    uint32_t number = static_cast<uint32_t>(resources_.size());
    if (free_resources_.empty()) {
      resources_.emplace_back();
    } else {
      number = free_resources_.back();
      free_resources_.pop_back();
    }
    resources_[number].name = name;
    found = resource_of_.emplace(std::string(name), number).first;
  }
  ++resources_[found->second].uses;
  return found->second;
}

void GlobalScheduler::Release(uint32_t resource) {
  if (--resources_[resource].uses > 0) return;
  resource_of_.erase(resources_[resource].name);
  resources_[resource].name.clear();
  free_resources_.push_back(resource);
}

// ---- classes ----------------------------------------------------------------------------------------------------

GlobalScheduler::Class& GlobalScheduler::ClassFor(const ClassKey& key) {
  auto& entry = classes_[key];
  if (entry != nullptr) {
    if (entry->uses == 0) idle_.erase(entry->idle_since);
    ++entry->uses;
    return *entry;
  }
  entry = std::make_unique<Class>();
  Class& c = *entry;
  c.key = key;
  c.number = next_class_++;
  c.uses = 1;
  for (const auto& [name, amount] : key.shape) {
    c.needs.emplace_back(Intern(name), amount);
    if (name == kGpu) c.gpus = amount;
  }
  std::sort(c.needs.begin(), c.needs.end());
  if (!c.has_tree()) {
    nodes_[SlotOf(key.only)]->only_here.push_back(&c);
    return c;
  }
  trees_.push_back(&c);
  Grow(c);
  for (uint32_t slot = 0; slot < nodes_.size(); ++slot) {
    if (nodes_[slot] == nullptr) continue;
    c.possible[slot] = Possible(c, *nodes_[slot]);
    c.possible_count += c.possible[slot];
    c.is_dirty[slot] = 1;
    c.dirty.push_back(slot);
  }
  return c;
}

void GlobalScheduler::Grow(Class& c) {
  size_t slots = nodes_.size();
  if (c.possible.size() >= slots && !c.tree.empty()) return;
  c.possible.resize(slots);
  c.is_dirty.resize(slots);
  if (c.key.spread) c.last_placed.resize(slots);
  uint32_t leaves = std::max<uint32_t>(c.leaves(), 1);
  while (leaves < slots) leaves *= 2;
  if (leaves == c.leaves()) return;
  std::vector<uint64_t> tree(size_t{2} * leaves, kNever);
  for (uint32_t slot = 0; slot < c.leaves(); ++slot) tree[leaves + slot] = c.leaf(slot);
  for (uint32_t at = leaves - 1; at > 0; --at) tree[at] = std::min(tree[2 * at], tree[2 * at + 1]);
  c.tree = std::move(tree);
}

void GlobalScheduler::DropUse(Class& c) {
  if (--c.uses > 0) return;
  if (!c.has_tree()) {
    Drop(c);
    return;
  }
  c.idle_since = stamp_++;
  idle_.emplace(c.idle_since, &c);
  if (idle_.size() > kMaxIdle) Drop(*idle_.begin()->second);
}

void GlobalScheduler::Drop(Class& c) {
  WEFT_CHECK(c.uses == 0 && c.waiting == 0 && c.kept == kNoSlot, "a class is dropped when nobody uses it");
  for (const auto& [resource, amount] : c.needs) Release(resource);
  if (c.has_tree()) {
    idle_.erase(c.idle_since);
    std::erase(trees_, &c);
  } else if (uint32_t slot = SlotOf(c.key.only); slot != kNoSlot) {
    std::erase(nodes_[slot]->only_here, &c);
  }
  classes_.erase(classes_.find(c.key));
}

// Whether the node could serve it if it were empty.
bool GlobalScheduler::Possible(const Class& c, const Node& node) const {
  for (const auto& [resource, amount] : c.needs) {
    if (node.TotalOf(resource) < amount) return false;
  }
  return Matches(c.key.labels, node.labels);
}

// The less the better; kNever if it does not fit there now.
uint64_t GlobalScheduler::RankOf(const Class& c, uint32_t slot) const {
  const Node& node = *nodes_[slot];
  if (c.has_tree() && c.possible[slot] == 0) return kNever;
  if (node.suspected || node.seen < node.refused || node.in_flight >= kMaxInFlight) return kNever;
  if (node.kept_for != nullptr && node.kept_for != &c) return kNever;
  uint64_t load = 0;  // of the scarcest resource it needs, in 1/1024
  for (const auto& [resource, amount] : c.needs) {
    const auto* has = node.Find(resource);
    if (has == nullptr || has->free < amount) return kNever;
    int64_t wanted = has->total - has->free + has->queued;
    if (wanted > 0) load = std::max(load, static_cast<uint64_t>(wanted / (has->total / 1024 + 1)));
  }
  if (!FitsGpus(node.gpus, c.gpus)) return kNever;
  if (c.key.spread) return c.last_placed[slot] << kSlotBits | slot;
  // What is rare is spared for work that needs it, GPUs most of all.
  uint64_t wasteful = c.gpus == 0 && !node.gpus.empty() ? 2 : 0;
  const bool needed = std::any_of(c.needs.begin(), c.needs.end(), [&](const auto& need) {
    return std::find(node.uncommon.begin(), node.uncommon.end(), need.first) != node.uncommon.end();
  });
  if (!node.uncommon.empty() && !needed) wasteful |= 1;
  load = std::min<uint64_t>(load, 0xffff);
  uint64_t busy = std::min<uint64_t>(uint64_t{node.leases} + node.in_flight, 0xffff);
  return (wasteful << 32 | load << 16 | busy) << kSlotBits | slot;
}

void GlobalScheduler::Refresh(Class& c) {
  for (uint32_t slot : c.dirty) {
    c.is_dirty[slot] = 0;
    c.SetLeaf(slot, nodes_[slot] == nullptr ? kNever : RankOf(c, slot));
  }
  c.dirty.clear();
}

void GlobalScheduler::Touch(uint32_t slot) {
  if (!faults.keep_trees) {
    for (Class* c : trees_) {
      if (c->is_dirty[slot] != 0) continue;
      c->is_dirty[slot] = 1;
      c->dirty.push_back(slot);
    }
  }
  if (Node* node = nodes_[slot].get(); node != nullptr && !node->touched && !node->only_here.empty()) {
    node->touched = true;
    touched_.push_back(slot);
  }
}

// ---- nodes ------------------------------------------------------------------------------------------------------

void GlobalScheduler::TakeFrom(Node& node, const Class& c, uint32_t count) {
  for (const auto& [resource, amount] : c.needs) {
    if (auto* has = node.Find(resource)) has->free -= amount * count;
  }
  for (uint32_t i = 0; c.gpus > 0 && i < count; ++i) TakeGpus(node.gpus, c.gpus);
}

void GlobalScheduler::Recount(Node& node) {
  for (auto& amount : node.amounts) amount.free = amount.reported;
  node.gpus = node.reported_gpus;
  node.in_flight = 0;
  for (const auto& debit : node.debits) {
    TakeFrom(node, *debit.of, debit.count);
    node.in_flight += debit.count;
  }
}

void GlobalScheduler::SetReported(Node& node, const ResourceAmounts& available, const std::vector<int64_t>& gpus) {
  for (auto& amount : node.amounts) {
    // Below zero is over-committed: CPUs that were lent and are in use again. More than that is nonsense.
    amount.reported = std::clamp(AmountOf(available, resources_[amount.resource].name), -amount.total, amount.total);
  }
  int64_t total_gpus = node.TotalOf(kGpuId);
  if (total_gpus == 0) return;
  node.reported_gpus = gpus.empty() ? GpusOf(std::min(AmountOf(available, kGpu), total_gpus)) : gpus;
  node.reported_gpus.resize(static_cast<size_t>((total_gpus + kResourceUnit - 1) / kResourceUnit));
  for (auto& gpu : node.reported_gpus) gpu = std::clamp<int64_t>(gpu, 0, kResourceUnit);
}

void GlobalScheduler::Handle(const NodeJoined& event, std::vector<GlobalAction>& out) {
  if (SlotOf(event.node) != kNoSlot) Handle(NodeLeft{event.node}, out);
  uint32_t slot = static_cast<uint32_t>(nodes_.size());
  if (free_slots_.empty()) {
    WEFT_CHECK(slot < kSlotMask, "more nodes than a rank can name");
    nodes_.emplace_back();
    for (Class* c : trees_) Grow(*c);
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  if (slot_of_.size() <= event.node.value) slot_of_.resize(size_t{event.node.value} + 1, kNoSlot);
  slot_of_[event.node.value] = slot;
  ++node_count_;
  nodes_[slot] = std::make_unique<Node>();
  Node& node = *nodes_[slot];
  node.number = event.node;
  node.labels = event.labels;
  node.amounts.reserve(event.total.size());
  for (const auto& [name, amount] : event.total) {
    node.amounts.push_back({.resource = Intern(name), .total = amount});
    if (!IsCommon(name)) node.uncommon.push_back(node.amounts.back().resource);
  }
  std::sort(node.amounts.begin(), node.amounts.end(),
            [](const auto& a, const auto& b) { return a.resource < b.resource; });
  SetReported(node, event.available, event.free_gpus);
  Recount(node);
  for (Class* c : trees_) {
    c->possible[slot] = Possible(*c, node);
    c->possible_count += c->possible[slot];
    if (c->key.spread) c->last_placed[slot] = 0;
    c->why_infeasible.clear();
    if (c->possible[slot] == 0 || c->waiting == 0) continue;
    for (auto& [depth, jobs] : c->queue) {
      for (auto& [job, requests] : jobs) {
        for (auto& [arrival, request] : requests) request->warned = false;
      }
    }
  }
  Touch(slot);
  if (!faults.forget_who_waits) Pump();
  Flush(out);
}

void GlobalScheduler::Handle(const NodeReported& event, std::vector<GlobalAction>& out) {
  uint32_t slot = SlotOf(event.node);
  if (slot == kNoSlot) return;
  Node& node = *nodes_[slot];
  uint64_t seen = std::clamp(event.placements_seen, node.seen, node.placements);
  if (faults.forget_debits) seen = node.placements;
  node.seen = seen;
  auto first = node.debits.begin();
  for (; first != node.debits.end() && first->placement <= seen; ++first) {
    if (Request* request = Find(first->request)) std::erase(request->in_flight, std::pair(slot, first->placement));
    DropUse(*first->of);
  }
  node.debits.erase(node.debits.begin(), first);
  node.leases = event.leases;
  for (auto& amount : node.amounts) amount.queued = 0;
  for (const auto& [shape, count] : event.queued) {
    for (const auto& [name, need] : shape) {
      auto resource = resource_of_.find(name);
      auto* amount = resource == resource_of_.end() ? nullptr : node.Find(resource->second);
      // What would fill the node many times over is as good as any more: it must not overflow.
      if (amount != nullptr && amount->queued < amount->total * 16) {
        amount->queued += std::min<int64_t>(count, 16) * std::clamp<int64_t>(need, 0, amount->total);
      }
    }
  }
  SetReported(node, event.available, event.free_gpus);
  Recount(node);
  Touch(slot);
  Pump();
  Flush(out);
}

void GlobalScheduler::Handle(const NodeSuspected& event, std::vector<GlobalAction>& out) {
  uint32_t slot = SlotOf(event.node);
  if (slot == kNoSlot || nodes_[slot]->suspected == event.suspected) return;
  nodes_[slot]->suspected = event.suspected;
  Touch(slot);
  Pump();
  Flush(out);
}

void GlobalScheduler::Handle(const NodeLeft& event, std::vector<GlobalAction>& out) {
  uint32_t slot = SlotOf(event.node);
  if (slot == kNoSlot) return;
  // What it asked for, nobody wants any more.
  Node& node = *nodes_[slot];
  while (!node.requests.empty()) Forget(*node.requests.begin()->second, out);
  if (node.kept_for != nullptr) StopKeeping(*node.kept_for);
  // What was on its way there is on its way nowhere.
  for (const auto& debit : node.debits) {
    if (Request* request = Find(debit.request)) {
      std::erase(request->in_flight, std::pair(slot, debit.placement));
      request->placed -= debit.count;
      if (debit.count > 0) out.emplace_back(UnplaceWork{debit.request, event.node, debit.placement, debit.count});
      if (!faults.lose_what_was_on_the_way) SetWaiting(*request, std::min(request->waiting + debit.count, kMaxCount));
    }
    DropUse(*debit.of);
  }
  node.debits.clear();
  // What may run there alone is refused; what only prefers it goes elsewhere.
  std::vector<Request*> homeless;
  if (!node.only_here.empty()) {
    for (const auto& requester : nodes_) {
      if (requester == nullptr) continue;
      for (auto& [number, request] : requester->requests) {
        if (request->of->key.only == event.node) homeless.push_back(request.get());
      }
    }
  }
  for (Request* request : homeless) {
    if (!request->strategy.soft) {
      out.emplace_back(RefuseWork{request->id, std::string("the ") + (request->actor ? "actor" : "task") +
                                                   " may run on node " + std::to_string(event.node.value) +
                                                   " only, and that node has left the cluster; use soft affinity if "
                                                   "another node will do"});
      Forget(*request, out);
      continue;
    }
    uint32_t waiting = request->waiting;
    SetWaiting(*request, 0);
    ClassKey key = request->of->key;
    key.only = NodeNumber{};
    DropUse(*request->of);
    request->of = &ClassFor(key);
    SetWaiting(*request, waiting);
  }
  WEFT_CHECK(node.only_here.empty(), "nobody waits for a node that has left");
  for (const auto& amount : node.amounts) Release(amount.resource);
  nodes_[slot].reset();
  slot_of_[event.node.value] = kNoSlot;
  --node_count_;
  free_slots_.push_back(slot);
  Touch(slot);
  for (Class* c : trees_) {
    if (c->nearest == slot) c->nearest = kNoSlot;
    c->why_infeasible.clear();
    c->possible_count -= c->possible[slot];
    c->possible[slot] = 0;
  }
  Pump();
  Flush(out);
  for (auto& [number, c] : waiting_) {
    if (c->possible_count > 0) continue;
    for (auto& [depth, jobs] : c->queue) {
      for (auto& [job, requests] : jobs) {
        for (auto& [arrival, request] : requests) WarnIfInfeasible(*request, out);
      }
    }
  }
}

void GlobalScheduler::Handle(const PlacementRefused& event, std::vector<GlobalAction>& out) {
  uint32_t slot = SlotOf(event.node);
  if (slot == kNoSlot) return;
  Node& node = *nodes_[slot];
  uint32_t count = std::min(event.count, kMaxCount);
  if (event.placement == 0 || event.placement > node.placements || count == 0) return;
  node.refused = std::max(node.refused, event.placement);
  auto debit = std::find_if(node.debits.begin(), node.debits.end(),
                            [&](const auto& d) { return d.placement == event.placement; });
  if (debit != node.debits.end()) {
    if (debit->request != event.request) return;
    count = std::min(count, debit->count);
    debit->count -= count;
    Recount(node);
  }
  Touch(slot);
  if (Request* request = Find(event.request)) {
    request->placed -= count;
    out.emplace_back(UnplaceWork{request->id, event.node, event.placement, count});
    SetWaiting(*request, std::min(request->waiting + count, kMaxCount));
  }
  Pump();
  Flush(out);
}

// ---- requests -----------------------------------------------------------------------------------------------------

void GlobalScheduler::Handle(const WorkRequested& event, std::vector<GlobalAction>& out) {
  if (Request* known = Find(event.request)) Forget(*known, out);
  Admit(event, out);
  Pump();
  Flush(out);
}

void GlobalScheduler::Admit(const WorkRequested& event, std::vector<GlobalAction>& out) {
  uint32_t requester = SlotOf(event.request.requester);
  if (requester == kNoSlot) return;  // it has left meanwhile
  std::string who = event.actor ? "actor" : "task";
  if (!IsValidShape(event.shape)) {
    out.emplace_back(RefuseWork{event.request, "the " + who + " asks for resources that are not valid"});
    return;
  }
  if (int64_t gpus = AmountOf(event.shape, kGpu); gpus > kResourceUnit && gpus % kResourceUnit != 0) {
    out.emplace_back(
        RefuseWork{event.request, "the " + who + " asks for " + FormatAmount(gpus) +
                                      " GPU, but only less than one GPU can be a fraction; ask for a whole "
                                      "number"});
    return;
  }
  ClassKey key{event.shape, event.labels, event.strategy.kind == PlacementStrategy::Kind::kSpread, {}};
  if (event.strategy.kind == PlacementStrategy::Kind::kAffinity) {
    uint32_t slot = SlotOf(event.strategy.node);
    std::string why = "it is not in the cluster";
    if (slot != kNoSlot) {
      why.clear();
      const Node& node = *nodes_[slot];
      if (!Matches(event.labels, node.labels)) why = "its labels are not " + FormatSelector(event.labels);
      for (const auto& [name, amount] : event.shape) {
        auto resource = resource_of_.find(name);
        int64_t there = resource == resource_of_.end() ? 0 : node.TotalOf(resource->second);
        if (amount <= there || !why.empty()) continue;
        why = "it has " + (there == 0 ? "no " : "only " + FormatAmount(there) + " ") + name + " in all, and " +
              FormatAmount(amount) + " is asked for";
      }
    }
    if (why.empty()) {
      key.only = event.strategy.node;
    } else if (!event.strategy.soft) {
      out.emplace_back(RefuseWork{event.request, "the " + who + " may run on node " +
                                                     std::to_string(event.strategy.node.value) + " only, but " + why +
                                                     "; choose another node, or use soft affinity if any will do"});
      return;
    }
  }
  auto& entry = nodes_[requester]->requests[event.request.number];
  entry = std::make_unique<Request>();
  Request& request = *entry;
  request.id = event.request;
  request.process = event.process;
  request.job = event.job;
  request.depth = event.depth;
  request.actor = event.actor;
  request.strategy = event.strategy;
  request.argument_bytes = event.argument_bytes;
  std::sort(request.argument_bytes.begin(), request.argument_bytes.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  if (request.argument_bytes.size() > kMaxArgumentNodes) request.argument_bytes.resize(kMaxArgumentNodes);
  request.of = &ClassFor(key);
  request.arrival = next_arrival_++;
  ++jobs_[request.job].requests;
  ++request_count_;
  SetWaiting(request, std::min(event.count, kMaxCount));
  WarnIfInfeasible(request, out);
  PlaceWhatFits(request);
}

void GlobalScheduler::Handle(const RequestChanged& event, std::vector<GlobalAction>& out) {
  Request* found = Find(event.request);
  if (found == nullptr) return;
  Request& request = *found;
  int64_t on_the_way = event.assigned_heard == RequestChanged::kAllHeard ? 0 : request.placed - event.assigned_heard;
  on_the_way = std::clamp<int64_t>(on_the_way, -int64_t{kMaxCount}, kMaxCount);
  SetWaiting(request, static_cast<uint32_t>(std::clamp<int64_t>(event.count - on_the_way, 0, kMaxCount)));
  WarnIfInfeasible(request, out);
  PlaceWhatFits(request);
  Pump();
  Flush(out);
}

void GlobalScheduler::Handle(const RequestWithdrawn& event, std::vector<GlobalAction>& out) {
  Request* request = Find(event.request);
  if (request == nullptr) return;
  Forget(*request, out);
  Pump();  // a node that was kept free may be free for others
  Flush(out);
}

void GlobalScheduler::Forget(Request& request, std::vector<GlobalAction>& out) {
  SetWaiting(request, 0);
  // The debits stay until the nodes have said what became of them.
  for (const auto& [slot, placement] : request.in_flight) {
    const Node& node = *nodes_[slot];
    auto debit = std::find_if(node.debits.begin(), node.debits.end(),
                              [&, number = placement](const auto& d) { return d.placement == number; });
    if (debit->count > 0) out.emplace_back(UnplaceWork{request.id, node.number, placement, debit->count});
  }
  auto job = jobs_.find(request.job);
  if (--job->second.requests == 0) jobs_.erase(job);
  Class& c = *request.of;
  --request_count_;
  auto& requests = nodes_[SlotOf(request.id.requester)]->requests;
  requests.erase(requests.find(request.id.number));
  DropUse(c);
}

void GlobalScheduler::SetWaiting(Request& request, uint32_t count) {
  Class& c = *request.of;
  if (request.waiting == 0 && count > 0) {
    c.queue[request.depth][request.job].emplace(request.arrival, &request);
    Job& job = jobs_.at(request.job);
    // Whoever comes back was not served because it wanted nothing: that gives no right to be served before others.
    if (job.waiting++ == 0) job.turn = std::max(job.turn, virtual_time_);
    if (c.waiting++ == 0 && c.has_tree()) waiting_.emplace(c.number, &c);
  } else if (request.waiting > 0 && count == 0) {
    auto depth = c.queue.find(request.depth);
    auto job = depth->second.find(request.job);
    job->second.erase(request.arrival);
    if (job->second.empty()) depth->second.erase(job);
    if (depth->second.empty()) c.queue.erase(depth);
    --jobs_.at(request.job).waiting;
    if (--c.waiting == 0) {
      if (c.has_tree()) waiting_.erase(c.number);
      StopKeeping(c);
    }
  }
  waiting_leases_ += count;
  waiting_leases_ -= request.waiting;
  request.waiting = count;
}

// ---- decisions --------------------------------------------------------------------------------------------------

uint32_t GlobalScheduler::Choose(const Request& request) {
  Class& c = *request.of;
  if (!c.has_tree()) {
    uint32_t slot = SlotOf(c.key.only);
    return RankOf(c, slot) == kNever ? kNoSlot : slot;
  }
  Refresh(c);
  if (c.best() == kNever) return kNoSlot;
  auto best = static_cast<uint32_t>(c.best() & kSlotMask);
  if (c.key.spread) return best;
  // Of the nodes without arguments the root is the best, so these few are all that can win.
  uint32_t requester = SlotOf(request.id.requester);
  struct Merit {
    uint64_t megabytes = 0;
    bool requester = false;
    uint64_t rank = kNever;
    bool Beats(const Merit& other) const {
      if (megabytes != other.megabytes) return megabytes > other.megabytes;
      if (requester != other.requester) return requester;
      return rank < other.rank;
    }
  };
  Merit most{0, best == requester, c.best()};
  auto consider = [&](uint32_t slot, uint64_t bytes) {
    if (slot == kNoSlot || c.leaf(slot) == kNever) return;
    Merit merit{bytes / kArgumentStep, slot == requester, c.leaf(slot)};
    if (!merit.Beats(most)) return;
    most = merit;
    best = slot;
  };
  consider(requester, 0);
  for (const auto& [node, bytes] : request.argument_bytes) consider(SlotOf(node), bytes);
  return best;
}

void GlobalScheduler::PlaceOne(Request& request, uint32_t slot) {
  Node& node = *nodes_[slot];
  Class& c = *request.of;
  Job& job = jobs_.at(request.job);
  virtual_time_ = std::max(virtual_time_, job.turn);
  job.turn += std::max(AmountOf(c.key.shape, kCpu), kResourceUnit / 8);  // what needs no CPU costs a little, too
  TakeFrom(node, c, 1);
  ++node.in_flight;
  ++request.placed;
  if (c.key.spread) c.last_placed[slot] = stamp_++;
  if (node.placing < placing_.size() && placing_[node.placing].slot == slot &&
      placing_[node.placing].request == request.id) {
    ++placing_[node.placing].count;
  } else {
    node.placing = static_cast<uint32_t>(placing_.size());
    placing_.push_back({request.id, slot, 1});
  }
  Touch(slot);
  c.passed_over = 0;
  c.nearest = kNoSlot;
  StopKeeping(c);
  SetWaiting(request, request.waiting - 1);
  for (auto& [number, other] : waiting_) {
    if (other != &c && other->possible[slot] != 0) PassOver(*other, slot, c);
  }
  for (Class* other : node.only_here) {
    if (other != &c && other->waiting > 0) PassOver(*other, slot, c);
  }
}

// Somebody else was given what it lacks there. What it lacks besides would not come by keeping the node free.
void GlobalScheduler::PassOver(Class& c, uint32_t slot, const Class& by) {
  const Node& node = *nodes_[slot];
  int64_t lack = 0;  // of what it lacks most, in 1/1024 of what the node has
  for (const auto& [resource, amount] : c.needs) {
    const auto* has = node.Find(resource);
    bool taken =
        std::any_of(by.needs.begin(), by.needs.end(), [&, r = resource](const auto& n) { return n.first == r; });
    if (has->free < amount && !taken) return;
    lack = std::max(lack, (amount - has->free + has->queued) / (has->total / 1024 + 1));
  }
  if (node.kept_for == nullptr && (c.nearest == kNoSlot || lack < c.least_lack)) {
    c.nearest = slot;
    c.least_lack = lack;
  }
  if (++c.passed_over <= kMaxPassedOver) return;
  StopKeeping(c);
  c.passed_over = 0;
  uint32_t nearest = std::exchange(c.nearest, kNoSlot);
  if (nearest == kNoSlot || nodes_[nearest]->kept_for != nullptr) return;
  c.kept = nearest;
  nodes_[nearest]->kept_for = &c;
  Touch(nearest);
}

void GlobalScheduler::PlaceWhatFits(Request& request) {
  while (request.waiting > 0) {
    uint32_t slot = Choose(request);
    if (slot == kNoSlot) return;
    PlaceOne(request, slot);
  }
}

bool GlobalScheduler::GoesBefore(const Request& a, const Request& b) const {
  if (a.depth != b.depth) return a.depth > b.depth;
  if (a.job != b.job && !faults.serve_in_order_of_arrival) {
    int64_t a_turn = jobs_.at(a.job).turn, b_turn = jobs_.at(b.job).turn;
    if (a_turn != b_turn) return a_turn < b_turn;
  }
  return a.arrival < b.arrival;
}

GlobalScheduler::Request* GlobalScheduler::Front(Class& c) {
  Request* front = nullptr;
  for (auto& [job, requests] : c.queue.begin()->second) {
    Request* first = requests.begin()->second;
    if (front == nullptr || GoesBefore(*first, *front)) front = first;
  }
  return front;
}

void GlobalScheduler::Pump() {
  while (true) {
    Request* next = nullptr;
    auto consider = [&](Class& c) {
      Request* front = Front(c);
      if (next == nullptr || GoesBefore(*front, *next)) next = front;
    };
    for (auto& [number, c] : waiting_) {
      Refresh(*c);
      if (c->best() != kNever) consider(*c);
    }
    for (uint32_t slot : touched_) {
      if (nodes_[slot] == nullptr) continue;
      for (Class* c : nodes_[slot]->only_here) {
        if (c->waiting > 0 && RankOf(*c, slot) != kNever) consider(*c);
      }
    }
    if (next == nullptr) break;
    PlaceOne(*next, Choose(*next));
  }
  for (uint32_t slot : touched_) {
    if (nodes_[slot] != nullptr) nodes_[slot]->touched = false;
  }
  touched_.clear();
}

void GlobalScheduler::StopKeeping(Class& c) {
  if (c.kept == kNoSlot) return;
  nodes_[c.kept]->kept_for = nullptr;
  Touch(c.kept);
  c.kept = kNoSlot;
}

void GlobalScheduler::Flush(std::vector<GlobalAction>& out) {
  for (const auto& placing : placing_) {
    Node& node = *nodes_[placing.slot];
    Request& request = *Find(placing.request);
    uint64_t placement = ++node.placements;
    node.debits.push_back({placement, placing.request, request.of, placing.count});
    ++request.of->uses;
    request.in_flight.emplace_back(placing.slot, placement);
    out.emplace_back(PlaceWork{request.id, node.number, placement, request.process, request.of->key.shape,
                               placing.count, request.depth});
  }
  placing_.clear();
}

}  // namespace weft::core
