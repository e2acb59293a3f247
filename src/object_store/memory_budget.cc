#include "object_store/memory_budget.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"

namespace weft::core {
namespace {

std::string Megabytes(uint64_t bytes) {
  char text[48];
  if (bytes < 10'000'000) {
    std::snprintf(text, sizeof text, "%.3g MB", static_cast<double>(bytes) / 1e6);
  } else {
    std::snprintf(text, sizeof text, "%llu MB", static_cast<unsigned long long>((bytes + 500'000) / 1'000'000));
  }
  return text;
}

// Takes up to `bytes` from an account and forgets it if nothing is left. Returns what was taken.
uint64_t Withdraw(std::map<ProcessId, uint64_t>& accounts, ProcessId process, uint64_t bytes) {
  auto it = accounts.find(process);
  if (it == accounts.end()) return 0;
  uint64_t taken = std::min(bytes, it->second);
  it->second -= taken;
  if (it->second == 0) accounts.erase(it);
  return taken;
}

}  // namespace

uint64_t MemoryBudget::FreeBytes() const {
  return used_bytes_ < options_.capacity_bytes ? options_.capacity_bytes - used_bytes_ : 0;
}

uint64_t MemoryBudget::reserved_by(ProcessId process) const {
  uint64_t sum = 0;
  if (auto it = reserved_.find(process); it != reserved_.end()) sum += it->second;
  if (auto it = dead_.find(process); it != dead_.end()) sum += it->second;
  return sum;
}

uint64_t MemoryBudget::Admit(ProcessId process, uint64_t wanted_bytes) {
  if (wanted_bytes == 0 || !waiting_.empty() || wanted_bytes > FreeBytes()) return 0;
  reserved_[process] += wanted_bytes;
  used_bytes_ += wanted_bytes;
  return wanted_bytes;
}

void MemoryBudget::Handle(const Reserved& event, std::vector<Action>& out) {
  if (event.bytes > options_.capacity_bytes) {
    out.push_back(Refuse{event.process, event.request,
                         "the object needs " + Megabytes(event.bytes) + " (" + std::to_string(event.bytes) +
                             " bytes), but the whole object store has " + Megabytes(options_.capacity_bytes) + " (" +
                             std::to_string(options_.capacity_bytes) +
                             " bytes); raise object_store_memory in init, or pass the data in smaller pieces"});
    return;
  }
  bool first = waiting_.empty();
  waiting_.push_back({event.process, event.request, event.bytes, event.now_ns + options_.wait_ns});
  GrantWhatFits(out);
  if (waiting_.empty()) return;
  // Others were asked already for earlier requests; for this one they are asked with the next tick.
  if (first) AskOthers(event.now_ns, out);
}

void MemoryBudget::Handle(const Released& event, std::vector<Action>& out) {
  used_bytes_ -= Withdraw(reserved_, event.process, event.bytes);
  GrantWhatFits(out);
}

void MemoryBudget::Handle(const Died& event, std::vector<Action>& out) {
  used_bytes_ -= Withdraw(reserved_, event.process, UINT64_MAX);
  std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.process == event.process; });
  if (event.surviving_bytes > 0) {
    dead_[event.process] += event.surviving_bytes;
    used_bytes_ += event.surviving_bytes;
  }
  GrantWhatFits(out);
}

void MemoryBudget::Handle(const DeadFreed& event, std::vector<Action>& out) {
  used_bytes_ -= Withdraw(dead_, event.process, event.bytes);
  GrantWhatFits(out);
}

void MemoryBudget::Handle(const Ticked& event, std::vector<Action>& out) {
  GrantWhatFits(out);
  while (!waiting_.empty() && waiting_.front().deadline_ns <= event.now_ns) {
    Waiting waiting = waiting_.front();
    waiting_.pop_front();
    out.push_back(Refuse{waiting.process, waiting.request, WhyFull(waiting)});
    GrantWhatFits(out);  // a smaller one may have waited behind it
  }
  if (!waiting_.empty() && event.now_ns >= asked_at_ns_ + options_.ask_again_ns) AskOthers(event.now_ns, out);
}

std::optional<int64_t> MemoryBudget::NextTickNs() const {
  if (waiting_.empty()) return std::nullopt;
  return std::min(waiting_.front().deadline_ns, asked_at_ns_ + options_.ask_again_ns);
}

void MemoryBudget::GrantWhatFits(std::vector<Action>& out) {
  while (!waiting_.empty() && waiting_.front().bytes <= FreeBytes()) {
    const Waiting& next = waiting_.front();
    if (next.bytes > 0) reserved_[next.process] += next.bytes;
    used_bytes_ += next.bytes;
    out.push_back(Grant{next.process, next.request, next.bytes});
    waiting_.pop_front();
  }
}

// Asks every process but the first in the queue: that one has already given up its idle memory, and gives back unasked
// what is freed in its own segment meanwhile (Runtime::Handle). Reservations do not tell which process has idle pages,
// so each is asked for all that is missing; what comes back too much is granted to the next.
void MemoryBudget::AskOthers(int64_t now_ns, std::vector<Action>& out) {
  asked_at_ns_ = now_ns;
  uint64_t wanted = 0;
  for (const Waiting& waiting : waiting_) wanted = std::min(wanted + waiting.bytes, options_.capacity_bytes);
  uint64_t free = FreeBytes();
  if (wanted <= free) return;
  uint64_t missing = wanted - free;
  for (const auto& [process, bytes] : reserved_) {
    if (process != waiting_.front().process) out.push_back(AskTrim{process, std::min(missing, bytes)});
  }
}

std::string MemoryBudget::WhyFull(const Waiting& waiting) const {
  std::string text = "the object store is full: " + Megabytes(waiting.bytes) + " were needed, but " +
                     Megabytes(used_bytes_) + " of " + Megabytes(options_.capacity_bytes) + " are in use by " +
                     std::to_string(reserved_.size()) + (reserved_.size() == 1 ? " process" : " processes");
  uint64_t dead_bytes = 0;
  for (const auto& [process, bytes] : dead_) dead_bytes += bytes;
  if (dead_bytes > 0) {
    text += " (" + Megabytes(dead_bytes) + " of it by objects of " + std::to_string(dead_.size()) + " that ended)";
  }
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g", static_cast<double>(options_.wait_ns) / 1e9);
  return text + " and nothing was freed within " + seconds +
         " s; drop references to objects that are no longer needed, or raise object_store_memory in init";
}

void MemoryBudget::CheckInvariants() const {
  uint64_t sum = 0;
  for (const auto& [process, bytes] : reserved_) {
    WEFT_CHECK(bytes > 0, "an empty reservation is kept");
    sum += bytes;
  }
  WEFT_CHECK(sum <= options_.capacity_bytes, "more was granted than there is");
  for (const auto& [process, bytes] : dead_) {
    WEFT_CHECK(bytes > 0, "an empty account of a dead process is kept");
    sum += bytes;
  }
  WEFT_CHECK(sum == used_bytes_, "the sum of reservations is wrong");
  WEFT_CHECK(waiting_.empty() || waiting_.front().bytes > FreeBytes(), "a request waits although there is room");
  for (size_t i = 1; i < waiting_.size(); ++i) {
    WEFT_CHECK(waiting_[i - 1].deadline_ns <= waiting_[i].deadline_ns, "the queue is out of order");
  }
}

}  // namespace weft::core
