// Objects of actors and tasks that have ended, in sessions whose workers are this test program.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "weft/weft.h"

namespace {

constexpr size_t kCount = 100'000;  // of doubles: 800 kB
using View = weft::Array<const double>;
using Numbers = weft::Ref<weft::Array<double>>;

Numbers Put(double value) {
  auto array = weft::empty<double>(kCount);
  std::fill(array.begin(), array.end(), value);
  return weft::put(std::move(array));
}

struct Owner {
  int put() {
    mine.push_back(Put(1));
    return getpid();
  }
  std::vector<Numbers> lend(double value) {
    mine.push_back(Put(value));
    return {mine.back()};
  }
  int crash() { _exit(3); }
  std::vector<Numbers> mine;
};

int PutAndCrash() {
  auto mine = Put(1);
  _exit(3);
}

bool AllAre(const View& view, double value) {
  return view.size() == kCount && std::all_of(view.begin(), view.end(), [&](double x) { return x == value; });
}

class Orphans : public ::testing::Test {
 protected:
  // At the end most of the store is there for one object.
  void TearDown() override { EXPECT_NO_THROW(weft::put(std::vector<double>(2'500'000))); }
  weft::Session session_ = weft::init({.num_cpus = 2, .object_store_memory = 30'000'000, .log_to_driver = false});
};

TEST_F(Orphans, OfActorsAreFreed) {
  for (int i = 0; i < 200; ++i) {
    auto owner = weft::actor<Owner>();
    const int pid = weft::get(owner.call<&Owner::put>());
    if (i % 4 == 1) weft::kill(owner);
    if (i % 4 == 2) owner.call<&Owner::crash>();
    if (i % 4 == 3) ::kill(pid, SIGKILL);
  }
}

TEST_F(Orphans, OfCrashedTasksAreFreed) {
  for (int i = 0; i < 50; ++i) {
    EXPECT_THROW(weft::get(weft::remote<PutAndCrash>.with({.max_retries = 0})()), weft::WorkerCrashedError);
  }
}

TEST_F(Orphans, StayWhileSomebodyLooksAtThem) {
  std::vector<View> views;
  for (int i = 0; i < 5; ++i) {
    auto owner = weft::actor<Owner>();
    auto lent = weft::get(owner.call<&Owner::lend>(i));
    views.push_back(weft::get(lent[0]));
    ::kill(weft::get(owner.call<&Owner::put>()), SIGKILL);
    EXPECT_THROW(weft::get(owner.call<&Owner::put>()), weft::ActorDiedError);
  }
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(AllAre(weft::get(Put(-1)), -1));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(AllAre(views[static_cast<size_t>(i)], i)) << i;
}

}  // namespace
