#include "runtime/wait_graph.h"

#include <algorithm>
#include <cstdio>

#include "wire/languages.h"
#include "wire/placement.h"

namespace weft::core {
namespace {

constexpr size_t kMaxLines = 60;        // of Text
constexpr size_t kMaxStepsInLine = 12;  // of Sentence
constexpr size_t kMaxChildrenShown = 8;

int64_t AmountIn(const ResourceAmounts& amounts, const std::string& name) {
  for (const auto& [other, amount] : amounts) {
    if (other == name) return amount;
  }
  return 0;
}

std::string Amount(int64_t amount) {
  std::string text = std::to_string(amount / kResourceUnit);
  int64_t rest = amount % kResourceUnit;
  if (rest == 0) return text;
  char digits[8];
  std::snprintf(digits, sizeof digits, ".%04d", static_cast<int>(rest));
  text += digits;
  while (text.back() == '0') text.pop_back();
  return text;
}

// Entries of a shape that are no resources have names of our own.
bool IsResource(std::string_view name) { return name != kPythonWorker && !IsPlacement(name); }

std::string Amounts(const ResourceAmounts& amounts) {
  std::string text;
  for (const auto& [name, amount] : amounts) {
    if (name == kPythonWorker) continue;
    text += (text.empty() ? "" : ", ") + (IsPlacement(name) ? FormatPlacement(name) : Amount(amount) + " " + name);
  }
  return text.empty() ? "nothing" : text;
}

std::string Seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ns) / 1e9);
  return text;
}

}  // namespace

// ---- asking -------------------------------------------------------------------------------------------------------

WaitGraph::WaitGraph(ProcessId process, WaitFact wait, bool from_outside)
    : has_wait_(true), process_(process), wait_(std::move(wait)), from_outside_(from_outside) {
  if (from_outside) AskProcess(process);  // for its pid
  for (ObjectId object : wait_.objects) Ask(object);
}

WaitGraph::WaitGraph(ObjectId object) : has_wait_(false), from_outside_(false), object_(object) { Ask(object); }

void WaitGraph::Ask(ObjectId object) {
  if (!asked_objects_.insert(object).second) return;
  to_ask_.push_back({.kind = WaitQuestion::Kind::kObject, .object = object, .shape = {}});
}

void WaitGraph::AskProcess(ProcessId process) {
  if (!process || !asked_processes_.insert(process).second) return;
  to_ask_.push_back({.kind = WaitQuestion::Kind::kProcess, .object = {process, 0}, .shape = {}});
}

void WaitGraph::AskShape(const ResourceAmounts& shape) {
  if (!asked_shapes_.insert(shape).second) return;
  to_ask_.push_back({.kind = WaitQuestion::Kind::kShape, .object = {}, .shape = shape});
}

bool WaitGraph::NextQuestion(WaitQuestion* question) {
  if (to_ask_.empty() || asked_ >= max_questions) return false;
  *question = std::move(to_ask_.front());
  to_ask_.pop_front();
  ++asked_;
  return true;
}

void WaitGraph::Answer(ObjectFact fact) {
  if (!asked_objects_.contains(fact.id) || objects_.contains(fact.id)) return;
  if (fact.state == ObjectState::kArguments || fact.state == ObjectState::kBehind ||
      fact.state == ObjectState::kForActor) {
    for (ObjectId object : fact.objects) Ask(object);
  }
  if (fact.state == ObjectState::kReady || fact.state == ObjectState::kPlacing) AskShape(fact.shape);
  if (fact.state == ObjectState::kPushed) AskProcess(fact.worker);
  objects_.emplace(fact.id, std::move(fact));
}

void WaitGraph::Answer(ProcessFact fact) {
  if (!asked_processes_.contains(fact.process) || processes_.contains(fact.process)) return;
  for (const WaitFact& wait : fact.waits) {
    // Only waits of tasks matter: they hold what others wait for.
    if (wait.execution == 0) continue;
    for (ObjectId object : wait.objects) Ask(object);
  }
  processes_.emplace(fact.process, std::move(fact));
}

void WaitGraph::Answer(ShapeFact fact) {
  if (!asked_shapes_.contains(fact.shape) || shapes_.contains(fact.shape)) return;
  for (const HolderFact& holder : fact.holders) AskProcess(holder.worker);
  shapes_.emplace(fact.shape, std::move(fact));
}

// ---- judging ------------------------------------------------------------------------------------------------------

const WaitFact* WaitGraph::FindWait(ProcessId process, uint64_t number) const {
  if (has_wait_ && process == process_ && number == wait_.wait) return &wait_;
  auto found = processes_.find(process);
  if (found == processes_.end()) return nullptr;
  for (const WaitFact& wait : found->second.waits) {
    if (wait.wait == number) return &wait;
  }
  return nullptr;
}

const WaitFact* WaitGraph::FindRun(ProcessId worker, ProcessId submitter, uint64_t task) const {
  auto found = processes_.find(worker);
  if (found == processes_.end()) return nullptr;
  for (const WaitFact& wait : found->second.waits) {
    if (wait.execution != 0 && wait.submitter == submitter && wait.task == task) return &wait;
  }
  return nullptr;
}

int WaitGraph::NodeOf(NodeKind kind, ObjectId object, ProcessId process, uint64_t wait, const std::string& group,
                      const ResourceAmounts& shape) {
  auto number = static_cast<int>(nodes_.size());
  int known = number;
  switch (kind) {
    case NodeKind::kObject:
      known = object_nodes_.try_emplace(object, number).first->second;
      break;
    case NodeKind::kWait:
      known = wait_nodes_.try_emplace({process, wait}, number).first->second;
      break;
    case NodeKind::kSlots:
      known = slot_nodes_.try_emplace({process, group}, number).first->second;
      break;
    case NodeKind::kShape:
      known = shape_nodes_.try_emplace(shape, number).first->second;
      break;
  }
  if (known != number) return known;
  Node& node = nodes_.emplace_back();
  node.kind = kind;
  node.object = object;
  node.process = process;
  node.wait = wait;
  node.group = group;
  node.shape = shape;
  return number;
}

std::array<uint64_t, 5> WaitGraph::IdentityOf(const Node& node) const {
  switch (node.kind) {
    case NodeKind::kObject: {
      const ObjectFact& fact = objects_.at(node.object);
      return {1, node.object.owner.value, node.object.index, fact.task,
              fact.stamp << 3 | static_cast<uint64_t>(fact.state)};
    }
    case NodeKind::kWait:
      return {2, node.process.value, node.wait, FindWait(node.process, node.wait)->execution, 0};
    default:
      return {};  // follows from others, and has no fact of its own
  }
}

// Finds out what the node needs; children are made, and built later.
void WaitGraph::Build(int number, const WaitProof* earlier) {
  auto link = [&](int child) {
    nodes_[number].children.push_back(child);
    nodes_[child].parents.push_back(number);
  };
  // nodes_ may grow and move while children are made, so the node is looked up again where it is used.
  const NodeKind kind = nodes_[number].kind;
  auto may_go_on = [&] { nodes_[number].free = true; };
  if (kind == NodeKind::kObject) {
    auto found = objects_.find(nodes_[number].object);
    if (found == objects_.end()) return may_go_on();
    const ObjectFact& fact = found->second;
    switch (fact.state) {
      case ObjectState::kArguments:
      case ObjectState::kBehind:
      case ObjectState::kForActor:
        if (fact.objects.empty()) return may_go_on();
        for (ObjectId object : fact.objects) link(NodeOf(NodeKind::kObject, object, {}, 0, {}, {}));
        nodes_[number].required = static_cast<int64_t>(fact.objects.size());
        break;
      case ObjectState::kReady:
      case ObjectState::kPlacing:
        link(NodeOf(NodeKind::kShape, {}, {}, 0, {}, fact.shape));
        nodes_[number].required = 1;
        break;
      case ObjectState::kPushed:
        if (const WaitFact* run = FindRun(fact.worker, fact.id.owner, fact.task)) {
          link(NodeOf(NodeKind::kWait, {}, fact.worker, run->wait, {}, {}));
        } else if (fact.is_call) {
          link(NodeOf(NodeKind::kSlots, {}, fact.worker, 0, fact.group, {}));
        } else {
          return may_go_on();  // it runs and does not wait; or it is on its way, there or back
        }
        nodes_[number].required = 1;
        break;
      default:
        return may_go_on();
    }
    if (earlier && !earlier->contains(IdentityOf(nodes_[number]))) may_go_on();
  } else if (kind == NodeKind::kWait) {
    const WaitFact* wait = FindWait(nodes_[number].process, nodes_[number].wait);
    if (!wait) return may_go_on();
    for (ObjectId object : wait->objects) link(NodeOf(NodeKind::kObject, object, {}, 0, {}, {}));
    bool all = wait->wanted >= wait->objects.size() + wait->more_objects;
    nodes_[number].required = all ? static_cast<int64_t>(wait->objects.size()) : static_cast<int64_t>(wait->wanted);
    if (wait->has_deadline || (!all && wait->more_objects > 0)) may_go_on();
    if (earlier && !earlier->contains(IdentityOf(nodes_[number]))) may_go_on();
  } else if (kind == NodeKind::kSlots) {
    auto found = processes_.find(nodes_[number].process);
    if (found == processes_.end()) return may_go_on();
    const ProcessFact& fact = found->second;
    const std::string group = nodes_[number].group;
    // A thread that blocks everything: the main thread of a worker, or the event loop of an actor.
    for (const WaitFact& wait : fact.waits) {
      if (wait.execution == 0 || wait.group != kAllGroups) continue;
      link(NodeOf(NodeKind::kWait, {}, fact.process, wait.wait, {}, {}));
      nodes_[number].required = 1;
      return;
    }
    int64_t slots = 0;
    for (const SlotFact& slot : fact.slots) {
      if (group == kAllGroups || slot.group == kAllGroups || group == slot.group) slots += slot.slots;
    }
    if (slots == 0) return may_go_on();  // not known
    std::set<uint64_t> occupants;
    for (const WaitFact& wait : fact.waits) {
      if (wait.execution == 0) continue;
      if (group != kAllGroups && group != wait.group) continue;
      if (!occupants.insert(wait.execution).second) continue;
      link(NodeOf(NodeKind::kWait, {}, fact.process, wait.wait, {}, {}));
    }
    // Stuck if no slot is free and none becomes free.
    nodes_[number].required = static_cast<int64_t>(occupants.size()) - slots + 1;
  } else {
    auto found = shapes_.find(nodes_[number].shape);
    if (found == shapes_.end()) return may_go_on();
    const ShapeFact& fact = found->second;
    std::vector<int64_t> lacking;
    for (const auto& [name, amount] : fact.shape) lacking.push_back(amount - AmountIn(fact.total, name));
    for (size_t i = 0; i < fact.holders.size(); ++i) {
      const HolderFact& holder = fact.holders[i];
      // It must have held it in the first traversal too; the lease's number is never used again.
      if (earlier && !earlier->contains({3, holder.lease.value, holder.worker.value, 0, 0})) continue;
      link(NodeOf(NodeKind::kSlots, {}, holder.worker, 0, kAllGroups, {}));
      nodes_[number].holders.push_back(static_cast<int>(i));
      for (size_t r = 0; r < fact.shape.size(); ++r) lacking[r] += AmountIn(holder.kept, fact.shape[r].first);
    }
    nodes_[number].free = std::all_of(lacking.begin(), lacking.end(), [](int64_t lack) { return lack <= 0; });
    nodes_[number].lacking = std::move(lacking);
    return;
  }
  Node& node = nodes_[number];
  if (node.required <= 0) node.free = true;
}

WaitVerdict WaitGraph::Judge(const WaitProof* earlier) {
  nodes_.clear();
  object_nodes_.clear();
  wait_nodes_.clear();
  slot_nodes_.clear();
  shape_nodes_.clear();
  root_ = has_wait_ ? NodeOf(NodeKind::kWait, {}, process_, wait_.wait, {}, {})
                    : NodeOf(NodeKind::kObject, object_, {}, 0, {}, {});
  for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) Build(i, earlier);
  std::vector<int> work;
  for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) {
    if (nodes_[i].free) work.push_back(i);
  }
  while (!work.empty()) {
    int child = work.back();
    work.pop_back();
    for (int number : nodes_[child].parents) {
      Node& parent = nodes_[number];
      if (parent.free) continue;
      if (parent.kind == NodeKind::kShape) {
        const ShapeFact& fact = shapes_.at(parent.shape);
        bool enough = true;
        for (size_t r = 0; r < parent.lacking.size(); ++r) {
          // Each edge once: a holder of two leases is two children, and listed twice among the parents.
          for (size_t c = 0; c < parent.children.size(); ++c) {
            if (parent.children[c] != child || parent.holders[c] < 0) continue;
            parent.lacking[r] -= AmountIn(fact.holders[parent.holders[c]].kept, fact.shape[r].first);
            if (r + 1 == parent.lacking.size()) parent.holders[c] = -1 - parent.holders[c];
          }
          enough = enough && parent.lacking[r] <= 0;
        }
        parent.free = enough;
      } else {
        parent.free = ++parent.able >= parent.required;
      }
      if (parent.free) work.push_back(number);
    }
  }

  WaitVerdict verdict;
  if (nodes_[root_].free) return verdict;
  verdict.kind = WaitVerdict::Kind::kStuck;
  for (const Node& node : nodes_) {
    if (node.free) continue;
    if (node.kind == NodeKind::kObject || node.kind == NodeKind::kWait) verdict.proof.insert(IdentityOf(node));
    if (node.kind == NodeKind::kShape) {
      const ShapeFact& fact = shapes_.at(node.shape);
      for (const HolderFact& holder : fact.holders) {
        verdict.proof.insert({3, holder.lease.value, holder.worker.value, 0, 0});
      }
      for (const auto& [name, amount] : fact.shape) {
        if (amount > AmountIn(fact.total, name)) verdict.kind = WaitVerdict::Kind::kUnschedulable;
      }
    }
  }
  auto path = PathFromRoot(true, &verdict.in_circle);
  verdict.chain = Sentence(path, true);
  return verdict;
}

// ---- words --------------------------------------------------------------------------------------------------------

// Nodes from the root on, each needing the next one: the shortest circle through the root if there is one, otherwise
// until a node would come twice. With `stuck`, only stuck ones.
std::vector<int> WaitGraph::PathFromRoot(bool stuck, bool* circle) const {
  auto passable = [&](int number) {
    if (stuck) return !nodes_[number].free;
    if (nodes_[number].kind != NodeKind::kObject) return true;
    auto fact = objects_.find(nodes_[number].object);
    return fact == objects_.end() || fact->second.state != ObjectState::kThere;
  };
  if (stuck) {
    std::map<int, int> came_from;
    std::deque<int> work{root_};
    while (!work.empty()) {
      int number = work.front();
      work.pop_front();
      for (int child : nodes_[number].children) {
        if (!passable(child)) continue;
        if (child == root_) {
          *circle = true;
          std::vector<int> path;
          for (int at = number; at != root_; at = came_from.at(at)) path.push_back(at);
          path.push_back(root_);
          std::reverse(path.begin(), path.end());
          return path;
        }
        if (came_from.try_emplace(child, number).second) work.push_back(child);
      }
    }
  }
  std::vector<int> path;
  std::set<int> seen;
  for (int number = root_; number >= 0 && seen.insert(number).second;) {
    path.push_back(number);
    int next = -1;
    for (int child : nodes_[number].children) {
      if (!passable(child)) continue;
      next = child;
      break;
    }
    number = next;
  }
  return path;
}

std::string WaitGraph::NameOf(ObjectId object) const {
  auto found = objects_.find(object);
  if (found == objects_.end() || found->second.name.empty()) return "object " + ToString(object);
  if (found->second.is_actor) return "actor " + found->second.name;
  return found->second.is_call ? "the result of " + found->second.name
                               : "the result of task '" + found->second.name + "'";
}

std::string WaitGraph::PidOf(ProcessId process) const {
  auto found = processes_.find(process);
  if (found == processes_.end() || found->second.pid == 0) return "process " + ToString(process);
  return "pid " + std::to_string(found->second.pid);
}

std::string WaitGraph::Place(const ObjectFact& fact) const {
  const std::string pid = " (" + PidOf(fact.worker) + ")";
  if (fact.ahead == 0) return "runs" + pid;
  std::string text = "is queued behind '" + fact.front + "'" + pid;
  return fact.ahead == 1 ? text : text + " and " + std::to_string(fact.ahead - 1) + " more";
}

std::string WaitGraph::WhoWaits(const Node& node) const {
  const WaitFact* wait = FindWait(node.process, node.wait);
  if (wait && wait->execution != 0) return "'" + wait->name + "' (" + PidOf(node.process) + ")";
  const bool asks = has_wait_ && !from_outside_ && node.process == process_ && node.wait == wait_.wait;
  return asks ? "this get" : "a thread of " + PidOf(node.process);
}

std::string WaitGraph::Sentence(const std::vector<int>& path, bool repeats) const {
  std::string text;
  // What the last one needs, if it was named before.
  const Node* again = nullptr;
  if (repeats && !path.empty()) {
    for (int child : nodes_[path.back()].children) {
      if (!nodes_[child].free && !again) again = &nodes_[child];
    }
  }
  for (size_t i = 0; i < path.size(); ++i) {
    if (i >= kMaxStepsInLine * 2) return text + ", and so on";
    const Node& node = nodes_[path[i]];
    const Node* next = i + 1 < path.size() ? &nodes_[path[i + 1]] : again;
    const Node* before = i > 0 ? &nodes_[path[i - 1]] : nullptr;
    switch (node.kind) {
      case NodeKind::kWait:
        if (!before) {
          text += WhoWaits(node) + " waits for ";
        } else if (before->kind == NodeKind::kObject) {
          text += ", which runs (" + PidOf(node.process) + ") and waits for ";
        } else {
          text += WhoWaits(node) + ", which waits for ";
        }
        break;
      case NodeKind::kObject: {
        text += NameOf(node.object);
        auto found = objects_.find(node.object);
        if (found == objects_.end()) break;
        const ObjectFact& fact = found->second;
        switch (fact.state) {
          case ObjectState::kArguments:
            text += ", which waits for its argument";
            if (next) text += ", ";
            break;
          case ObjectState::kBehind:
            text += ", which is to be sent after " + fact.front + ", which waits for its argument";
            if (next) text += ", ";
            break;
          case ObjectState::kForActor:
            text += ", which waits for ";
            if (!next) text += "its actor";
            break;
          case ObjectState::kPlacing:
            text += ", which waits for a process with " + Amounts(fact.shape);
            break;
          case ObjectState::kReady:
            text += ", which waits for a worker with " + Amounts(fact.shape);
            break;
          case ObjectState::kPushed:
            if (next && next->kind == NodeKind::kSlots) {
              text += ", which is queued behind ";
            } else if (!next) {
              text += ", which " + Place(fact);
            }
            break;
          default:
            break;
        }
        break;
      }
      case NodeKind::kSlots:
        if (!next) text += "what runs in " + PidOf(node.process);
        break;
      case NodeKind::kShape: {
        auto found = shapes_.find(node.shape);
        if (found == shapes_.end()) break;
        const ShapeFact& fact = found->second;
        std::string lacking;
        for (const auto& [name, amount] : fact.shape) {
          if (AmountIn(fact.total, name) < amount) {
            lacking += (lacking.empty() ? "" : ", ") + Amount(AmountIn(fact.total, name)) + " " + name + " exist";
          } else if (AmountIn(fact.free, name) < amount) {
            lacking += (lacking.empty() ? "" : ", ") + Amount(AmountIn(fact.free, name)) + " of " +
                       Amount(AmountIn(fact.total, name)) + " " + name + " free";
          }
        }
        if (!lacking.empty()) text += " (" + lacking + ")";
        if (next) text += ", held by ";
        break;
      }
    }
  }
  if (!again) return text;
  switch (again->kind) {
    case NodeKind::kObject:
      text += NameOf(again->object);
      break;
    case NodeKind::kWait:
      if (nodes_[path.back()].kind == NodeKind::kObject) text += ", which is ";
      text += has_wait_ && !from_outside_ && again->wait == wait_.wait && again->process == process_
                  ? "the one that asks"
                  : WhoWaits(*again);
      break;
    case NodeKind::kSlots:
      text += "what runs in " + PidOf(again->process);
      break;
    case NodeKind::kShape:
      break;
  }
  return text;
}

std::string WaitGraph::Line() const {
  bool circle = false;
  std::string text = Sentence(PathFromRoot(false, &circle), false);
  if (has_wait_ && wait_.objects.size() + wait_.more_objects > 1) {
    const size_t others = wait_.objects.size() + wait_.more_objects - 1;
    text += " (and " + std::to_string(others) + (others == 1 ? " other object)" : " other objects)");
  }
  return text;
}

std::string WaitGraph::Text() const {
  std::string out;
  std::set<int> written;
  size_t lines = 0;
  Write(root_, 0, written, out, lines);
  if (!out.empty()) out.pop_back();  // the last end of line
  return out;
}

void WaitGraph::Write(int number, int depth, std::set<int>& written, std::string& out, size_t& lines) const {
  if (lines > kMaxLines) return;
  auto write = [&](const std::string& text) {
    if (++lines > kMaxLines) {
      if (lines == kMaxLines + 1) out += "...\n";
      return;
    }
    out += std::string(static_cast<size_t>(depth) * 2, ' ') + text + "\n";
  };
  const Node& node = nodes_[number];
  const bool again = !written.insert(number).second;
  std::vector<int> below = node.children;
  switch (node.kind) {
    case NodeKind::kObject: {
      auto found = objects_.find(node.object);
      if (found == objects_.end()) {
        write(NameOf(node.object) + ": its owner, process " + ToString(node.object.owner) +
              ", was not asked or did not answer");
        break;
      }
      const ObjectFact& fact = found->second;
      const std::string name = NameOf(node.object);
      if (again) {
        write(name + " (see above)");
        return;
      }
      switch (fact.state) {
        case ObjectState::kUnknown:
          write(name + ": its owner (pid " + std::to_string(fact.pid) + ") does not know what makes it");
          break;
        case ObjectState::kThere:
          write(fact.front.empty() ? name + " is there" : name + " failed: " + fact.front);
          break;
        case ObjectState::kArguments:
          write(name + " waits for " + std::to_string(fact.objects.size() + fact.more_objects) +
                (fact.objects.size() + fact.more_objects == 1 ? " argument:" : " arguments:"));
          break;
        case ObjectState::kReady:
          write(name + " waits for a worker with " + Amounts(fact.shape) + ":");
          break;
        case ObjectState::kForActor:
          write(name + " waits for its actor:");
          break;
        case ObjectState::kPlacing:
          write(name + " waits for a process with " + Amounts(fact.shape) + ":");
          break;
        case ObjectState::kBehind:
          write(name + " is to be sent after " + fact.front + ", which waits for:");
          break;
        case ObjectState::kPushed:
          if (below.empty()) {
            write(name + " " + Place(fact));
          } else if (nodes_[below[0]].kind == NodeKind::kWait) {
            write(name + " runs (" + PidOf(fact.worker) + ") and waits:");
          } else {
            write(name + " was sent to the actor (" + PidOf(fact.worker) + "), where it is its turn after:");
          }
          break;
      }
      break;
    }
    case NodeKind::kWait: {
      const WaitFact* wait = FindWait(node.process, node.wait);
      if (again || !wait) {
        write(WhoWaits(node) + " (see above)");
        return;
      }
      std::string text = WhoWaits(node) + " has waited " + Seconds(wait->for_ns) + " for ";
      size_t count = wait->objects.size() + wait->more_objects;
      text += wait->wanted >= count ? std::to_string(count) + (count == 1 ? " object" : " objects")
                                    : std::to_string(wait->wanted) + " of " + std::to_string(count) + " objects";
      if (wait->has_deadline == 1) text += ", with a timeout";
      write(text + ":");
      break;
    }
    case NodeKind::kSlots:
      if (below.empty()) {
        write("the task that runs in " + PidOf(node.process) + ", which does not wait");
        return;
      }
      if (again) return;
      --depth;  // says nothing of its own
      break;
    case NodeKind::kShape: {
      auto found = shapes_.find(node.shape);
      if (again || found == shapes_.end()) return;
      const ShapeFact& fact = found->second;
      for (const auto& [name, amount] : fact.shape) {
        if (!IsResource(name)) continue;
        write(Amount(AmountIn(fact.free, name)) + " of " + Amount(AmountIn(fact.total, name)) + " " + name + " free");
      }
      if (fact.starting > 0) write(std::to_string(fact.starting) + " workers are being started");
      for (const HolderFact& holder : fact.holders) {
        if (holder.kept.empty()) continue;
        std::string text = Amounts(holder.kept) + " held by pid " + std::to_string(holder.pid);
        if (!holder.actor.empty()) text += ", " + holder.actor;
        write(text);
      }
      // Only those of them that wait themselves have more to say.
      std::erase_if(below, [&](int child) { return nodes_[child].children.empty(); });
      break;
    }
  }
  size_t shown = 0;
  for (int child : below) {
    if (nodes_[child].kind == NodeKind::kObject) {
      auto fact = objects_.find(nodes_[child].object);
      if (below.size() > kMaxChildrenShown && fact != objects_.end() && fact->second.state == ObjectState::kThere)
        continue;
    }
    if (++shown > kMaxChildrenShown) {
      depth += 1;
      write("... and " + std::to_string(below.size() - kMaxChildrenShown) + " more");
      return;
    }
    Write(child, depth + 1, written, out, lines);
  }
}

}  // namespace weft::core
