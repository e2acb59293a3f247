// co_await and on_ready, in sessions whose workers are this test program; also when one of them ends the session.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "weft/weft.h"

using namespace std::chrono_literals;  // NOLINT

namespace {

struct Sleeper {
  int sleep() {
    weft::this_task::sleep_for(60s);
    return 1;
  }
};
int Twice(int x) { return 2 * x; }
int Fails() { throw std::runtime_error("no"); }
std::vector<double> Large() { return std::vector<double>(100'000, 0.5); }

weft::Async<int> Add(weft::Ref<int> a, weft::Ref<int> b) { co_return co_await a + co_await b; }
weft::Async<int> Chain(weft::Ref<int> start, int steps) {
  int value = co_await start;
  for (int i = 0; i < steps; ++i) value = co_await weft::remote<Twice>(value);
  co_return value + co_await Add(weft::put(1), weft::put(2));
}
weft::Async<std::string> Catches() {
  try {
    co_await weft::remote<Fails>();
  } catch (const weft::TaskError& error) {
    co_return error.message();
  }
  co_return "nothing";
}
weft::Async<void> Rethrows() { co_await weft::remote<Fails>(); }

class Coroutines : public ::testing::Test {
 protected:
  weft::Session session_ = weft::init({.num_cpus = 2, .log_to_driver = false});
};

TEST_F(Coroutines, WaitForRefs) {
  EXPECT_EQ(Add(weft::remote<Twice>(1), weft::remote<Twice>(2)).get(), 6);
  EXPECT_EQ(Chain(weft::remote<Twice>(1), 5).get(), 67);
  EXPECT_EQ(Catches().get(), "no");
  EXPECT_THROW(Rethrows().get(), weft::TaskError);
  std::vector<weft::Async<int>> many;
  for (int i = 0; i < 100; ++i) many.push_back(Chain(weft::put(i), 3));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(many[static_cast<size_t>(i)].get(), 8 * i + 3);
}

int ChainInATask(int x, int depth) {
  if (depth > 0) return weft::get(weft::remote<ChainInATask>(x, depth - 1));
  return Chain(weft::put(x), 3).get();
}
weft::Async<int> Nested(int depth);
int NestedInATask(int depth) { return Nested(depth).get(); }
weft::Async<int> Nested(int depth) {
  if (depth == 0) co_return 0;
  co_return 1 + co_await weft::remote<NestedInATask>(depth - 1);
}
weft::Async<int> Forever(weft::Actor<Sleeper> sleeper) { co_return co_await sleeper.call<&Sleeper::sleep>(); }
int WaitsForever(weft::Actor<Sleeper> sleeper, std::string mark) {
  auto forever = Forever(sleeper);
  std::ofstream(mark) << "x";
  return forever.get();
}

// A task that waits for a coroutine leaves its CPU to what the coroutine waits for.
TEST(CoroutinesInTasks, LeaveTheCpuToOthers) {
  auto session = weft::init({.num_cpus = 1, .log_to_driver = false});
  std::vector<weft::Ref<int>> refs;
  for (int i = 0; i < 20; ++i) refs.push_back(weft::remote<ChainInATask>(i, i % 2));
  auto values = weft::get(refs);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(values[static_cast<size_t>(i)], 8 * i + 3);
  EXPECT_EQ(weft::get(weft::remote<NestedInATask>(6)), 6);
}

TEST(CoroutinesInTasks, AreCancelledWithThem) {
  auto session = weft::init({.num_cpus = 1, .log_to_driver = false});
  auto sleeper = weft::actor<Sleeper>();
  std::string mark = ::testing::TempDir() + "weft_coroutine_" + std::to_string(getpid());
  auto waits = weft::remote<WaitsForever>(sleeper, mark);
  auto deadline = std::chrono::steady_clock::now() + 20s;
  while (access(mark.c_str(), F_OK) != 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  weft::cancel(waits);
  EXPECT_THROW(weft::get(waits, 20s), weft::TaskCancelledError);
  unlink(mark.c_str());
}

TEST_F(Coroutines, AreToldOfTheEnd) {
  auto sleeper = weft::actor<Sleeper>();
  auto never = Add(sleeper.call<&Sleeper::sleep>(), weft::put(1));
  session_.shutdown();
  EXPECT_THROW(never.get(), weft::WeftError);
}

TEST_F(Coroutines, CallbacksGetResults) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> seen;
  auto note = [&](std::string text) {
    std::lock_guard lock(mutex);
    seen.push_back(std::move(text));
    changed.notify_all();
  };
  weft::on_ready(weft::remote<Twice>(4), [&](weft::Result<int> result) { note(std::to_string(*result)); });
  weft::on_ready(weft::remote<Fails>(), [&](weft::Result<int> result) { note(result.error_name()); });
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, 20s, [&] { return seen.size() == 2; }));
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, (std::vector<std::string>{"8", "TaskError"}));
}

TEST_F(Coroutines, CallbacksAreToldOfTheEnd) {
  auto never = weft::actor<Sleeper>().call<&Sleeper::sleep>();
  std::vector<std::string> seen;  // once shutdown has returned, no callback runs
  auto note = [&](weft::Result<int> result) { seen.push_back(result ? "a value" : result.error_name()); };
  for (int i = 0; i < 10; ++i) weft::on_ready(never, note);
  session_.shutdown();
  EXPECT_EQ(seen, std::vector<std::string>(10, "WeftError"));
  EXPECT_THROW(weft::on_ready(never, note), weft::WeftError);
}

// What the callback of the session's end leaves must be enough for the thread that called it, and for the next session.
TEST(EndOfSession, FromACallback) {
  for (int round = 0; round < 5; ++round) {
    weft::Session session = weft::init({.num_cpus = 2});
    auto never = weft::actor<Sleeper>().call<&Sleeper::sleep>();
    std::atomic<int> told{0};
    auto note = [&](weft::Result<int> result) { told += result.error_name() == "WeftError"; };
    for (int i = 0; i < 10; ++i) weft::on_ready(never, note);
    auto ended = std::make_shared<std::promise<int>>();  // whose thread may outlast what waits for it
    weft::on_ready(weft::remote<Twice>(round), [&session, ended](weft::Result<int> result) {
      session.shutdown();
      session.shutdown();
      ended->set_value(weft::is_initialized() ? -1 : *result);
    });
    auto future = ended->get_future();
    ASSERT_EQ(future.wait_for(30s), std::future_status::ready);
    EXPECT_EQ(future.get(), 2 * round);
    EXPECT_EQ(told.load(), 10);
    EXPECT_FALSE(session.is_open());
    EXPECT_THROW(weft::get(never), weft::WeftError);
  }
}

TEST(EndOfSession, FromACallbackThatBeginsTheNext) {
  weft::Session session = weft::init({.num_cpus = 2});
  auto done = std::make_shared<std::promise<std::string>>();
  // Its values are stored, and come while or after the session ends.
  std::atomic<int> told{0};
  for (int i = 0; i < 4; ++i) weft::on_ready(weft::remote<Large>(), [&](const auto&) { ++told; });
  weft::on_ready(weft::remote<Twice>(1), [&, done](weft::Result<int>) {
    session.shutdown();
    bool all = told == 4;
    session = weft::init({.num_cpus = 2});
    // The thread of the session that has ended may wait: nobody needs it any more.
    int value = weft::get(weft::remote<Twice>(21));
    weft::on_ready(weft::remote<Twice>(4), [done, all, value](weft::Result<int> result) {
      done->set_value((all ? "all " : "some ") + std::to_string(value) + " " + std::to_string(*result));
    });
  });
  auto future = done->get_future();
  ASSERT_EQ(future.wait_for(30s), std::future_status::ready);
  EXPECT_EQ(future.get(), "all 42 8");
  EXPECT_TRUE(session.is_open());
}

weft::Async<int> OwnsTheSession([[maybe_unused]] weft::Session session) {
  int value = co_await weft::remote<Twice>(4);
  value += co_await weft::remote<Twice>(5);
  co_return value;  // and its parameters are destroyed
}
weft::Async<std::string> EndsTheSession(weft::Session& session) {
  weft::Ref<int> never = weft::actor<Sleeper>().call<&Sleeper::sleep>();
  co_await weft::remote<Twice>(4);
  session.shutdown();
  try {
    co_await never;
  } catch (const weft::WeftError& error) {
    co_return error.what();
  }
  co_return "nothing";
}

TEST(EndOfSession, FromACoroutine) {
  for (int round = 0; round < 5; ++round) {
    EXPECT_EQ(OwnsTheSession(weft::init({.num_cpus = 2})).get(), 18);
    EXPECT_FALSE(weft::is_initialized());
    weft::Session session = weft::init({.num_cpus = 2});
    EXPECT_NE(EndsTheSession(session).get().find("no session is open"), std::string::npos);
    EXPECT_FALSE(weft::is_initialized());
  }
  auto session = weft::init({.num_cpus = 2});
  EXPECT_EQ(weft::get(weft::remote<Twice>(2)), 4);
}

// Told of the end, it ends the session once more and begins another.
weft::Async<int> GoesOn(weft::Session& session, weft::Ref<int> never) {
  try {
    co_return co_await never;
  } catch (const weft::WeftError&) {
    session.shutdown();
  }
  session = weft::init({.num_cpus = 2});
  co_return co_await weft::remote<Twice>(3);
}

TEST(EndOfSession, ToldToACoroutineThatBeginsTheNext) {
  weft::Session first = weft::init({.num_cpus = 2}), next;
  auto goes_on = GoesOn(next, weft::actor<Sleeper>().call<&Sleeper::sleep>());
  first.shutdown();
  EXPECT_EQ(goes_on.get(), 6);
  EXPECT_TRUE(next.is_open());
}

}  // namespace
