#include "node/sent_wishes.h"

#include <algorithm>
#include <set>
#include <utility>

namespace weft::core {
namespace {

constexpr uint32_t kMostWished = 1000;  // beyond this the exact number tells the head nothing

}  // namespace

std::vector<WishSent> SentWishes::Tell(const std::vector<LocalScheduler::UnmetWish>& wanted, const JobOf& job_of) {
  std::set<Key> present;
  std::vector<WishSent> to_send = std::exchange(withdrawn_, {});
  for (const auto& unmet : wanted) {
    Key key{unmet.process, unmet.shape};
    auto [entry, fresh] = wishes_.try_emplace(key);
    Wish& wish = entry->second;
    if (fresh) {
      wish.number = (*next_number_)++;
      keys_[wish.number] = key;
    }
    present.insert(std::move(key));
    const int64_t rest = std::max<int64_t>(0, std::min(unmet.count, kMostWished) - wish.on_the_way);
    if (!fresh && rest == wish.count && wish.heard == wish.told_heard) continue;
    wish.count = static_cast<uint32_t>(rest);
    wish.told_heard = wish.heard;
    if (fresh && rest == 0) continue;
    wish.sent = true;
    to_send.push_back(
        {wish.number, unmet.process, job_of(unmet.process), unmet.shape, wish.count, unmet.depth, wish.heard});
  }
  for (auto entry = wishes_.begin(); entry != wishes_.end();) {
    if (present.contains(entry->first)) {
      ++entry;
      continue;
    }
    if (entry->second.sent) {
      to_send.push_back({.wish = entry->second.number, .process = entry->first.first, .withdrawn = 1});
    }
    keys_.erase(entry->second.number);
    entry = wishes_.erase(entry);
  }
  return to_send;
}

SentWishes::Wish* SentWishes::Known(uint64_t wish) {
  auto key = keys_.find(wish);
  return key == keys_.end() ? nullptr : &wishes_.at(key->second);
}

void SentWishes::Placed(uint64_t number, int64_t count) {
  Wish* wish = Known(number);
  if (wish == nullptr) return;
  wish->heard += count;
  wish->on_the_way += count;
}

void SentWishes::Arrived(ProcessId process, const ResourceAmounts& shape, uint32_t count) {
  auto found = wishes_.find({process, shape});
  if (found == wishes_.end() || (faults.forget_early_leases && found->second.on_the_way <= 0)) return;
  found->second.on_the_way -= count;
}

void SentWishes::PlacedHere(uint64_t number, uint32_t count) {
  if (Wish* wish = Known(number)) wish->on_the_way -= count;
}

std::optional<SentWishes::Key> SentWishes::Find(uint64_t wish) const {
  auto key = keys_.find(wish);
  return key == keys_.end() ? std::nullopt : std::optional(key->second);
}

void SentWishes::Forget(uint64_t wish) {
  auto key = keys_.find(wish);
  if (key == keys_.end()) return;
  wishes_.erase(key->second);
  keys_.erase(key);
}

void SentWishes::WishAnew() {
  if (faults.await_the_gone) return;
  std::erase_if(wishes_, [&](const auto& entry) {
    const auto& [key, wish] = entry;
    if (wish.on_the_way <= 0) return false;
    withdrawn_.push_back({.wish = wish.number, .process = key.first, .withdrawn = 1});
    keys_.erase(wish.number);
    return true;
  });
}

void SentWishes::ForgetAll() {
  withdrawn_.clear();
  wishes_.clear();
  keys_.clear();
}

}  // namespace weft::core
