// GlobalScheduler: why something waits, what is free, and whether all is in order.
#include <algorithm>

#include "base/check.h"
#include "scheduling/global_scheduler_records.h"
#include "scheduling/labels.h"

namespace weft::core {
namespace {

std::string OptionFor(std::string_view resource) {
  if (resource == kCpu) return "--num-cpus=...";
  if (resource == kGpu) return "--num-gpus=...";
  return "--resource=" + std::string(resource) + "=...";
}

}  // namespace

void GlobalScheduler::WarnIfInfeasible(Request& request, std::vector<GlobalAction>& out) {
  Class& c = *request.of;
  if (!c.has_tree() || c.possible_count > 0 || request.waiting == 0 || request.warned) return;
  request.warned = true;
  if (c.why_infeasible.empty()) c.why_infeasible = WhyInfeasible(c);
  out.emplace_back(
      WarnInfeasible{request.id, std::string("the ") + (request.actor ? "actor " : "task ") + c.why_infeasible});
}

std::string GlobalScheduler::WhyInfeasible(const Class& c) const {
  std::string among = "no node of the cluster";
  bool labelled = c.key.labels.empty();
  for (const auto& node : nodes_) labelled = labelled || (node != nullptr && Matches(c.key.labels, node->labels));
  if (!labelled) {
    return "asks for a node with the labels " + FormatSelector(c.key.labels) + ", but " + among +
           " has them; it waits for one that has: weft start --labels=...";
  }
  if (!c.key.labels.empty()) among = "no node with the labels " + FormatSelector(c.key.labels);
  for (const auto& [resource, amount] : c.needs) {
    int64_t most = 0;
    NodeNumber richest;
    for (const auto& node : nodes_) {
      if (node == nullptr || !Matches(c.key.labels, node->labels)) continue;
      int64_t there = node->TotalOf(resource);
      if (there <= most) continue;
      most = there;
      richest = node->number;
    }
    if (most >= amount) continue;
    const std::string& name = resources_[resource].name;
    std::string why = "asks for " + FormatAmount(amount) + " " + name + ", but " + among;
    why += most == 0 ? " has any"
                     : " has more than " + FormatAmount(most) + " (node " + std::to_string(richest.value) + ")";
    return why + "; it waits for one that has; ask for less, or start a node with more: weft start " + OptionFor(name);
  }
  return "asks for " + FormatShape(c.key.shape) + ", but " + among +
         " has all of it; it waits for one that has; ask for less, or start a larger node";
}

int64_t GlobalScheduler::FreeOf(NodeNumber node, std::string_view resource) const {
  auto known = resource_of_.find(resource);
  uint32_t slot = SlotOf(node);
  if (slot == kNoSlot || known == resource_of_.end()) return 0;
  const auto* amount = nodes_[slot]->Find(known->second);
  return amount == nullptr ? 0 : amount->free;
}

uint32_t GlobalScheduler::WaitingOf(RequestId request) const {
  const Request* found = Find(request);
  return found == nullptr ? 0 : found->waiting;
}

std::map<ResourceAmounts, uint64_t> GlobalScheduler::WaitingByShape() const {
  std::map<ResourceAmounts, uint64_t> waiting;
  for (const auto& [key, c] : classes_) {
    for (const auto& [depth, jobs] : c->queue) {
      for (const auto& [job, requests] : jobs) {
        for (const auto& [arrival, request] : requests) waiting[key.shape] += request->waiting;
      }
    }
  }
  return waiting;
}

void GlobalScheduler::CheckInvariants() const {
  WEFT_CHECK(placing_.empty() && touched_.empty(), "an event is handled to its end");
  std::map<const Class*, uint32_t> uses;
  std::map<const Class*, uint32_t> waiting;
  std::map<RequestId, std::vector<std::pair<uint32_t, uint64_t>>> in_flight;
  size_t count = 0;
  for (uint32_t slot = 0; slot < nodes_.size(); ++slot) {
    if (nodes_[slot] == nullptr) continue;
    ++count;
    const Node& node = *nodes_[slot];
    WEFT_CHECK(SlotOf(node.number) == slot && !node.touched, "a slot is its node's");
    std::map<uint32_t, int64_t> owed;
    uint64_t last = node.seen;
    uint32_t leases = 0;
    for (const auto& debit : node.debits) {
      WEFT_CHECK(debit.placement > last && debit.placement <= node.placements, "debits are what was not seen");
      last = debit.placement;
      ++uses[debit.of];
      leases += debit.count;
      for (const auto& [resource, amount] : debit.of->needs) owed[resource] += amount * debit.count;
      if (Find(debit.request) != nullptr) in_flight[debit.request].emplace_back(slot, debit.placement);
    }
    WEFT_CHECK(node.in_flight == leases, "leases on their way are counted");
    for (const auto& amount : node.amounts) {
      WEFT_CHECK(amount.free == amount.reported - owed[amount.resource], "what was placed is not free");
      WEFT_CHECK(amount.reported <= amount.total, "no more is free than there is");
    }
    WEFT_CHECK(node.kept_for == nullptr || node.kept_for->kept == slot, "a node is kept for one class");
    for (const Class* c : node.only_here) WEFT_CHECK(c->key.only == node.number, "a class waits for its own node");
  }
  uint64_t leases = 0;
  std::map<uint64_t, std::pair<uint32_t, uint32_t>> jobs;
  size_t request_count = 0;
  auto check_request = [&](RequestId id, const Request* request) {
    WEFT_CHECK(request->id == id, "a request is found by its name");
    ++request_count;
    ++uses[request->of];
    leases += request->waiting;
    auto& job = jobs[request->job];
    ++job.first;
    auto expected = in_flight[id];
    auto is = request->in_flight;
    std::sort(is.begin(), is.end());
    std::sort(expected.begin(), expected.end());
    WEFT_CHECK(is == expected, "a request knows what is on its way");
    if (request->waiting == 0) return;
    ++job.second;
    ++waiting[request->of];
    auto depth = request->of->queue.find(request->depth);
    WEFT_CHECK(depth != request->of->queue.end() && depth->second.contains(request->job) &&
                   depth->second.at(request->job).contains(request->arrival),
               "what waits is queued");
  };
  for (const auto& node : nodes_) {
    if (node == nullptr) continue;
    for (const auto& [number, request] : node->requests) check_request(RequestId{node->number, number}, request.get());
  }
  WEFT_CHECK(count == node_count_ && request_count == request_count_, "nodes and requests are counted");
  WEFT_CHECK(leases == waiting_leases_, "waiting leases are counted");
  WEFT_CHECK(jobs.size() == jobs_.size(), "jobs are those with requests");
  for (const auto& [id, job] : jobs_) {
    WEFT_CHECK(jobs.contains(id) && jobs.at(id) == std::pair(job.requests, job.waiting),
               "requests of jobs are counted");
  }
  size_t idle = 0;
  for (const auto& [key, c] : classes_) {
    WEFT_CHECK(c->uses == uses[c.get()] && c->waiting == waiting[c.get()], "uses of a class are counted");
    WEFT_CHECK(c->has_tree() || c->uses > 0, "a class of one node is not kept");
    WEFT_CHECK(c->kept == kNoSlot || (nodes_[c->kept]->kept_for == c.get() && c->waiting > 0), "kept for who waits");
    if (!c->has_tree()) {
      uint32_t slot = SlotOf(key.only);
      WEFT_CHECK(slot != kNoSlot && (c->waiting == 0 || RankOf(*c, slot) == kNever), "nothing waits that fits");
      continue;
    }
    if (c->uses == 0) ++idle;
    WEFT_CHECK(waiting_.contains(c->number) == (c->waiting > 0), "classes that wait are listed");
    uint32_t possible = 0;
    for (uint32_t slot = 0; slot < nodes_.size(); ++slot) {
      bool there = nodes_[slot] != nullptr;
      WEFT_CHECK(c->possible[slot] == (there && Possible(*c, *nodes_[slot])), "what is possible is known");
      possible += c->possible[slot];
      uint64_t rank = there ? RankOf(*c, slot) : kNever;
      WEFT_CHECK(c->is_dirty[slot] != 0 || c->leaf(slot) == rank, "a tree that is clean is right");
      WEFT_CHECK(c->waiting == 0 || rank == kNever, "nothing waits that fits");
    }
    WEFT_CHECK(possible == c->possible_count, "possible nodes are counted");
    for (uint32_t at = 1; at < c->leaves(); ++at) {
      WEFT_CHECK(c->tree[at] == std::min(c->tree[2 * at], c->tree[2 * at + 1]), "the root is the best");
    }
  }
  WEFT_CHECK(idle == idle_.size() && idle <= kMaxIdle, "few classes are kept for later");
}

}  // namespace weft::core
