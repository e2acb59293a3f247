// What the head was told of leases that are wanted and cannot be had on this node, and what it has answered. Pure:
// events in, messages out.
//
// Owned by NodeDaemon, on its loop thread, and by the simulator's daemon. A wish is one process's want of leases of one
// shape; the head hears its number of leases again whenever that has changed, less what is on the way. What is on the
// way is what the head has said to have placed, less what has arrived. The two come over different links, so a lease
// may arrive before the head's word of it: then less than nothing is on the way, until the word comes.
//
// Does not send, and does not know what the local scheduler does.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "scheduling/local_scheduler.h"
#include "wire/ids.h"
#include "wire/node_messages.h"

namespace weft::core {

class SentWishes {
 public:
  using Key = std::pair<ProcessId, ResourceAmounts>;
  using JobOf = std::function<ProcessId(ProcessId)>;

  // Planted bugs, to show that the tests find them. All off outside tests.
  struct Faults {
    bool forget_early_leases = false;  // those that arrive before the head's word of them
    bool await_the_gone = false;       // what was on its way from a node that is gone
  };

  // Numbers of wishes come from `next_number`, which others share.
  explicit SentWishes(uint64_t* next_number) : next_number_(next_number) {}

  // All that is wanted now: what the head should hear of it. What is wanted no more is withdrawn.
  std::vector<WishSent> Tell(const std::vector<LocalScheduler::UnmetWish>& wanted, const JobOf& job_of);
  // The head's word: so many more leases are on their way; negative: so many fewer.
  void Placed(uint64_t wish, int64_t count);
  // Some of them have arrived, or could not be used, or their node has refused them.
  void Arrived(ProcessId process, const ResourceAmounts& shape, uint32_t count = 1);
  // The head has placed them here, where they are wanted: nothing is on the way.
  void PlacedHere(uint64_t wish, uint32_t count);
  // The head has forgotten the wish. Gives whose it was, if it is known.
  std::optional<Key> Find(uint64_t wish) const;
  void Forget(uint64_t wish);
  // A node is gone: what was on its way from there is not coming, and the head may have counted it as arrived. What
  // somebody may wait for so is wished for anew, under another number.
  void WishAnew();
  // There is a new head, which knows of nothing.
  void ForgetAll();
  size_t size() const { return wishes_.size(); }

  Faults faults;

 private:
  struct Wish {
    uint64_t number = 0;
    uint32_t count = 0;      // as it was told last
    int64_t heard = 0;       // leases that the head has placed, in all
    int64_t told_heard = 0;  // as the head was told last
    int64_t on_the_way = 0;
    bool sent = false;
  };
  Wish* Known(uint64_t wish);

  uint64_t* const next_number_;
  std::map<Key, Wish> wishes_;
  std::map<uint64_t, Key> keys_;
  std::vector<WishSent> withdrawn_;  // to be told
};

}  // namespace weft::core
