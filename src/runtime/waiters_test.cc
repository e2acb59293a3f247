#include "runtime/waiters.h"

#include <gtest/gtest.h>

#include <memory>

#include "runtime/owner.h"
#include "transport/doorbell.h"

namespace weft::core {
namespace {

class WaitersTest : public testing::Test {
 protected:
  WaitersTest() {
    auto page = CreateDoorbellPage();
    doorbell_ = std::move(*Doorbell::Open(page->get()));
    waiters_.set_doorbell(doorbell_.get());
  }
  static void Resolve(Object& object) { object.value.SetBytes(ValueKind::kInline, "v"); }
  static void Fail(Object& object) { object.value.SetBytes(ValueKind::kTaskError, "e"); }
  static bool Woken(const Waiter& waiter) { return waiter.woken.load() != 0; }

  std::unique_ptr<Doorbell> doorbell_;
  Waiters waiters_;
};

TEST_F(WaitersTest, AThreadIsWokenByTheLastObjectThatItNeeds) {
  Object a, b, c;
  Waiter waiter;
  Interest in[3];
  waiters_.Enter(waiter);
  waiters_.Add(in[0], &a, waiter, true);
  waiters_.Add(in[1], &b, waiter, true);
  waiters_.Add(in[2], &c, waiter, true);
  waiter.missing = 2;  // any two of them
  Resolve(a);
  waiters_.Resolved(&a);
  EXPECT_FALSE(Woken(waiter));
  EXPECT_EQ(a.interests, nullptr);
  Resolve(c);
  waiters_.Resolved(&c);
  EXPECT_TRUE(Woken(waiter));
  EXPECT_EQ(waiter.missing, 0u);
  Resolve(b);  // one more than it needs
  waiters_.Resolved(&b);
  EXPECT_EQ(waiter.missing, 0u);
  waiters_.Leave(waiter);
}

TEST_F(WaitersTest, OthersSleepOn) {
  Object a, b;
  Waiter first, second;
  Interest of_first, of_second, also_of_second;
  waiters_.Enter(first);
  waiters_.Enter(second);
  waiters_.Add(of_first, &a, first, true);
  waiters_.Add(of_second, &b, second, true);
  waiters_.Add(also_of_second, &a, second, true);
  Resolve(a);
  waiters_.Resolved(&a);
  EXPECT_TRUE(Woken(first));
  EXPECT_FALSE(Woken(second));
  waiters_.NewsCame();
  EXPECT_FALSE(Woken(second));
  waiters_.WakeAll();
  EXPECT_TRUE(Woken(second));
  waiters_.Remove(of_second);
  EXPECT_EQ(b.interests, nullptr);
  waiters_.Leave(second);
  waiters_.Leave(first);
}

TEST_F(WaitersTest, AFailureWakesOnlyAThreadThatEndsAtOne) {
  Object awaited, failed;
  Waiter get, wait;
  get.ends_at_failure = true;
  Interest in[4];
  waiters_.Enter(get);
  waiters_.Enter(wait);
  waiters_.Add(in[0], &awaited, get, true);
  waiters_.Add(in[1], &failed, get, false);
  waiters_.Add(in[2], &awaited, wait, true);
  waiters_.Add(in[3], &failed, wait, false);
  Fail(failed);
  waiters_.Resolved(&failed);
  EXPECT_TRUE(Woken(get));
  EXPECT_TRUE(get.failed);
  EXPECT_FALSE(Woken(wait));
  for (Interest& interest : in) waiters_.Remove(interest);
  waiters_.Leave(get);
  waiters_.Leave(wait);
}

TEST_F(WaitersTest, AValueElsewhereWakesOnlyAThreadThatDoesNotLookAtIt) {
  Object away;
  Waiter looks, waits;
  waits.to_look = false;
  Interest of_looks, of_waits;
  waiters_.Enter(looks);
  waiters_.Enter(waits);
  waiters_.Add(of_looks, &away, looks, true);
  waiters_.Add(of_waits, &away, waits, true);
  away.place = Place::kAway;
  away.value.SetStored({});
  waiters_.Resolved(&away);
  EXPECT_FALSE(Woken(looks));
  EXPECT_TRUE(Woken(waits));
  away.place = Place::kCopied;
  waiters_.Resolved(&away);
  EXPECT_TRUE(Woken(looks));
  waiters_.Leave(looks);
  waiters_.Leave(waits);
}

TEST_F(WaitersTest, ThePollerHandsOverWhenItLeavesAndThatIsPassedOn) {
  Waiter poller, first, second;
  waiters_.Enter(poller);
  waiters_.BeginPolling(poller);
  waiters_.Enter(first);
  waiters_.Enter(second);
  EXPECT_FALSE(waiters_.may_poll());
  waiters_.HandOver();  // somebody polls: nothing to hand over
  EXPECT_FALSE(Woken(first) || Woken(second));
  waiters_.EndPolling();
  waiters_.Leave(poller);
  waiters_.HandOver();
  EXPECT_TRUE(Woken(second));
  EXPECT_FALSE(Woken(first));
  waiters_.Leave(second);  // it had what it needed, and did not poll
  EXPECT_TRUE(Woken(first));
  waiters_.BeginPolling(first);
  waiters_.EndPolling();
  waiters_.Leave(first);
}

TEST_F(WaitersTest, TheExecutorGetsTheDoorbellWhenThePollerLetsGo) {
  Waiter poller, executor, other;
  waiters_.Enter(poller);
  waiters_.BeginPolling(poller);
  waiters_.Enter(other);
  const uint32_t news = waiters_.news();
  waiters_.Claim(executor);
  waiters_.TellPoller();
  EXPECT_NE(waiters_.news(), news);
  waiters_.EndPolling();
  EXPECT_TRUE(Woken(executor));
  EXPECT_FALSE(waiters_.may_poll());
  waiters_.HandOver();
  EXPECT_FALSE(Woken(other));
  waiters_.BeginPolling(executor);
  waiters_.EndClaim();
  waiters_.EndPolling();
  waiters_.HandOver();
  EXPECT_TRUE(Woken(other));
  waiters_.Leave(other);
  waiters_.Leave(poller);
}

}  // namespace
}  // namespace weft::core
