// Actors, cancelling and contexts of the C++ API, in sessions whose workers are this test program.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "weft/weft.h"

using namespace std::chrono_literals;  // NOLINT

namespace {

class Counter {
 public:
  explicit Counter(int start) : value_(start) {}
  Counter(int start, std::vector<int> steps) : value_(start) {
    for (int step : steps) value_ += step;
  }
  int increment(int by) { return value_ += by; }
  int value() const noexcept { return value_; }
  void reset() { value_ = 0; }
  weft::Returns<int, std::string> both() const { return {value_, std::to_string(value_)}; }
  int fail(const std::string& text) { throw std::out_of_range(text); }
  int pid() const { return getpid(); }
  int die() {
    ::kill(getpid(), SIGKILL);
    pause();
    return 0;
  }
  int leave() { weft::exit_actor(); }
  weft::Actor<Counter> self() { return weft::current_actor<Counter>(); }
  // Throws until it was called `times` times.
  int fails_at_first(int times) {
    if (++tries_ < times) throw std::runtime_error("not yet");
    return tries_;
  }
  weft::Context context() { return weft::context(); }

 private:
  int value_;
  int tries_ = 0;
};

struct Plain {  // an aggregate
  int a = 0;
  std::string text;
  std::string all() const { return std::to_string(a) + text; }
};

struct Base {
  virtual ~Base() = default;
  virtual std::string who() const { return "base"; }
  int inherited(int x) { return x + 1; }
};
struct Derived : Base {
  std::string who() const override { return "derived"; }
};

[[gnu::noinline]] void Refuse(const char* why) { throw std::invalid_argument(why); }
struct Throws {
  Throws() { Refuse("never made"); }
  int nothing() { return 0; }
};

struct Keeper {  // takes a reference as it is
  explicit Keeper(weft::Ref<int> ref) : ref(std::move(ref)) {}
  int value() { return weft::get(ref) + 1; }
  weft::Ref<int> ref;
};

struct Summer {
  explicit Summer(weft::Array<const float> data) : data(std::move(data)) {}
  double sum() const {
    double sum = 0;
    for (float x : data) sum += x;
    return sum;
  }
  weft::Array<const float> data;
};

struct Mover {
  std::unique_ptr<int> kept;
  std::string last;
  int take(std::vector<int>&& values) { return static_cast<int>(values.size()); }
};

struct SaysGoodbye {
  explicit SaysGoodbye(std::string path) : path(std::move(path)) {}
  ~SaysGoodbye() { std::ofstream(path) << "bye"; }
  int here() { return 1; }
  std::string path;
};

class Gate {  // threads meet here
 public:
  int arrive_and_wait(int parties) {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return arrived_ >= parties; });
    return arrived_;
  }
  int arrived() {
    std::lock_guard lock(mutex_);
    return arrived_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
};

struct Sleeper {
  int sleep(double seconds) {
    weft::this_task::sleep_for(std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)));
    return 1;
  }
  int quick() { return 2; }
};

int CallsCounter(weft::Actor<Counter> counter, int by) { return weft::get(counter.call<&Counter::increment>(by)); }
weft::Actor<Counter> MakesCounter(int start) { return weft::actor<Counter>(start); }
int Sleeps(std::string mark) {
  std::ofstream(mark) << "x";
  weft::this_task::sleep_for(60s);
  return 1;
}
int Spins(std::string mark) {
  std::ofstream(mark) << "x";
  while (!weft::this_task::is_cancelled()) std::this_thread::yield();
  weft::this_task::check_cancelled();
  return 1;
}
int NeverEnds(std::string mark) {
  std::ofstream(mark) << "x";
  for (;;) pause();
}
int WaitsForChild(std::string mark) { return weft::get(weft::remote<Sleeps>(mark)); }
int Twice(int x) { return 2 * x; }
double SeesDesks() { return weft::cluster_resources().at("desk"); }
std::string Gpus() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return std::to_string(weft::context().gpu_ids.size()) + ":" + (visible ? visible : "none");
}

std::string TemporaryPath(const std::string& name) {
  static std::atomic<int> number{0};
  return ::testing::TempDir() + "weft_actor_" + std::to_string(getpid()) + "_" + std::to_string(number++) + name;
}

template <class Condition>
bool Eventually(Condition condition) {
  auto deadline = std::chrono::steady_clock::now() + 20s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}
bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

class Actors : public ::testing::Test {
 protected:
  weft::Session session_ = weft::init({.num_cpus = 2, .log_to_driver = false});
};

TEST_F(Actors, KeepTheirStateAndOrder) {
  auto counter = weft::actor<Counter>(10);
  std::vector<weft::Ref<int>> refs;
  for (int i = 1; i <= 1000; ++i) refs.push_back(counter.call<&Counter::increment>(1));
  auto values = weft::get(refs);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(values[static_cast<size_t>(i)], 11 + i);
  EXPECT_EQ(weft::get(weft::remote<&Counter::value>(counter)), 1010);
  weft::get(counter.call<&Counter::reset>());
  auto [number, text] = counter.call<&Counter::both>();
  EXPECT_EQ(weft::get(number), 0);
  EXPECT_EQ(weft::get(text), "0");
  EXPECT_NE(weft::get(counter.call<&Counter::pid>()), getpid());
}

TEST_F(Actors, AreMadeFromWhatTheirConstructorsTake) {
  EXPECT_EQ(weft::get(weft::actor<Counter>(1, std::vector<int>{2, 3}).call<&Counter::value>()), 6);
  auto start = weft::remote<Twice>(21);
  EXPECT_EQ(weft::get(weft::actor<Counter>(start).call<&Counter::value>()), 42);
  EXPECT_EQ(weft::get(weft::actor<Keeper>(start).call<&Keeper::value>()), 43);
  EXPECT_EQ(weft::get(weft::actor<Plain>(7, "seven").call<&Plain::all>()), "7seven");
  EXPECT_EQ(weft::get(weft::actor<Plain>().call<&Plain::all>()), "0");
  auto data = weft::empty<float>(100'000);
  for (float& x : data) x = 0.5f;
  EXPECT_EQ(weft::get(weft::actor<Summer>(weft::put(std::move(data))).call<&Summer::sum>()), 50'000);
  EXPECT_EQ(weft::get(weft::actor<Mover>().call<&Mover::take>(std::vector<int>{1, 2})), 2);
}

TEST_F(Actors, OfDerivedClasses) {
  auto derived = weft::actor<Derived>();
  EXPECT_EQ(weft::get(derived.call<&Derived::who>()), "derived");
  EXPECT_EQ(weft::get(derived.call<&Base::who>()), "derived");
  EXPECT_EQ(weft::get(derived.call<&Derived::inherited>(1)), 2);
}

TEST_F(Actors, HandlesTravel) {
  auto counter = weft::actor<Counter>(0);
  EXPECT_EQ(weft::get(weft::remote<CallsCounter>(counter, 5)), 5);
  auto made = weft::get(weft::remote<MakesCounter>(100));
  EXPECT_EQ(weft::get(made.call<&Counter::increment>(1)), 101);
  auto again = weft::get(weft::put(std::vector<weft::Actor<Counter>>{counter, made}));
  EXPECT_EQ(weft::get(again[0].call<&Counter::increment>(1)), 6);
  EXPECT_TRUE(again[0] == counter);
  EXPECT_FALSE(again[0] == made);
  auto self = weft::get(counter.call<&Counter::self>());
  EXPECT_TRUE(self == counter);
}

TEST_F(Actors, ThrowToTheirCallers) {
  auto counter = weft::actor<Counter>(0);
  try {
    weft::get(counter.call<&Counter::fail>("no place"));
    FAIL();
  } catch (const weft::TaskError& error) {
    EXPECT_EQ(error.type_name(), "std::out_of_range");
    EXPECT_EQ(error.message(), "no place");
    EXPECT_NE(error.function_name().find("Counter::fail"), std::string::npos);
  }
  EXPECT_EQ(weft::get(counter.call<&Counter::increment>(1)), 1);
}

std::string WhyDead(const weft::Actor<Throws>& actor) {
  try {
    weft::get(actor.call<&Throws::nothing>());
  } catch (const weft::ActorDiedError& error) {
    return error.what();
  }
  return "it lives";
}

TEST_F(Actors, WhoseConstructorThrewTellEveryCallerWhatItWas) {
  auto never = weft::actor<Throws>();
  const std::string told[] = {WhyDead(never), WhyDead(never), weft::get(weft::remote<WhyDead>(never)),
                              weft::try_get(never.call<&Throws::nothing>()).error_message()};
  for (const std::string& why : told) {
    EXPECT_NE(why.find("the constructor of actor"), std::string::npos) << why;
    EXPECT_NE(why.find("std::invalid_argument: never made"), std::string::npos) << why;
    EXPECT_NE(why.find("Refuse"), std::string::npos) << "the stack: " << why;
    EXPECT_EQ(why.find('\0'), std::string::npos) << "bytes that are not text";
  }
}

TEST_F(Actors, DieAndAreRestarted) {
  auto mortal = weft::actor<Counter>(5);
  EXPECT_THROW(weft::get(mortal.call<&Counter::die>()), weft::ActorDiedError);
  EXPECT_THROW(weft::get(mortal.call<&Counter::value>()), weft::ActorDiedError);
  auto phoenix = weft::actor<Counter>.with({.max_restarts = 1, .max_task_retries = -1})(5);
  EXPECT_EQ(weft::get(phoenix.call<&Counter::increment>(1)), 6);
  auto kill = weft::remote<&Counter::die>.with({.max_task_retries = 0})(phoenix);
  EXPECT_THROW(weft::get(kill), weft::ActorError);
  EXPECT_EQ(weft::get(phoenix.call<&Counter::value>()), 5);
  EXPECT_TRUE(weft::get(phoenix.call<&Counter::context>()).was_reconstructed);
  weft::kill(phoenix);
  EXPECT_THROW(weft::get(phoenix.call<&Counter::value>()), weft::ActorDiedError);
  auto leaver = weft::actor<Counter>.with({.max_restarts = -1})(5);
  EXPECT_THROW(weft::get(leaver.call<&Counter::leave>()), weft::ActorDiedError);
  EXPECT_THROW(weft::get(leaver.call<&Counter::value>()), weft::ActorDiedError);
}

TEST_F(Actors, RetryWhatThrows) {
  auto counter = weft::actor<Counter>.with({.max_task_retries = 5, .retry_exceptions = true})(0);
  EXPECT_EQ(weft::get(counter.call<&Counter::fails_at_first>(3)), 3);
  auto other = weft::actor<Counter>(0);
  EXPECT_THROW(weft::get(other.call<&Counter::fails_at_first>(3)), weft::TaskError);
  auto retried = weft::remote<&Counter::fails_at_first>.with({.max_task_retries = 1, .retry_exceptions = true});
  EXPECT_EQ(weft::get(retried(other, 3)), 3);
}

TEST_F(Actors, OfOneClassKeepTheirOwnOptionsWhenCalledInTurn) {
  auto patient = weft::actor<Counter>.with({.max_task_retries = 5, .retry_exceptions = true})(0);
  auto strict = weft::actor<Counter>(0);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(weft::get(patient.call<&Counter::increment>(1)), i);
    EXPECT_EQ(weft::get(strict.call<&Counter::increment>(1)), i);
  }
  EXPECT_THROW(weft::get(strict.call<&Counter::fails_at_first>(3)), weft::TaskError);
  EXPECT_EQ(weft::get(patient.call<&Counter::fails_at_first>(3)), 3);
  EXPECT_THROW(weft::get(strict.call<&Counter::fails_at_first>(4)), weft::TaskError);
}

TEST_F(Actors, HaveNames) {
  auto counter = weft::actor<Counter>.with({.name = "c"})(1);
  auto found = weft::get_actor<Counter>("c");
  EXPECT_TRUE(found == counter);
  EXPECT_EQ(weft::get(found.call<&Counter::increment>(1)), 2);
  EXPECT_THROW((void)weft::get_actor<Counter>("d"), std::invalid_argument);
  EXPECT_THROW((void)weft::get_actor<Counter>("c", "elsewhere"), std::invalid_argument);
  EXPECT_THROW((void)weft::get_actor<Plain>("c"), weft::ValueTypeError);
  EXPECT_THROW(weft::actor<Counter>.with({.name = "c"})(1), std::invalid_argument);
  auto same = weft::actor<Counter>.with({.name = "c", .get_if_exists = true})(50);
  EXPECT_EQ(weft::get(same.call<&Counter::value>()), 2);
  auto other = weft::actor<Counter>.with({.name = "c", .name_space = "elsewhere"})(7);
  EXPECT_EQ(weft::get(weft::get_actor<Counter>("c", "elsewhere").call<&Counter::value>()), 7);
  EXPECT_EQ(weft::list_named_actors().size(), 1u);
  EXPECT_EQ(weft::list_named_actors(true).size(), 2u);
  weft::kill(counter);
  EXPECT_TRUE(Eventually([] { return weft::list_named_actors().empty(); }));
}

TEST_F(Actors, EndWithTheirLastHandle) {
  std::string path = TemporaryPath("bye");
  {
    auto actor = weft::actor<SaysGoodbye>(path);
    EXPECT_EQ(weft::get(actor.call<&SaysGoodbye::here>()), 1);
    EXPECT_FALSE(Exists(path));
  }
  EXPECT_TRUE(Eventually([&] { return Exists(path); }));
  weft::actor<Counter>.with({.name = "kept", .detached = true})(3);
  EXPECT_EQ(weft::get(weft::get_actor<Counter>("kept").call<&Counter::value>()), 3);
  weft::kill(weft::get_actor<Counter>("kept"));
}

TEST_F(Actors, RunCallsAtOnceIfTheyMay) {
  auto gate = weft::actor<Gate>.with({.max_concurrency = 4})();
  std::vector<weft::Ref<int>> refs;
  for (int i = 0; i < 4; ++i) refs.push_back(gate.call<&Gate::arrive_and_wait>(4));
  for (int arrived : weft::get(refs)) EXPECT_EQ(arrived, 4);
  auto grouped = weft::actor<Gate>.with({.concurrency_groups = {{"io", 1}}})();
  auto waiting = grouped.call<&Gate::arrive_and_wait>(2);
  auto other = weft::remote<&Gate::arrive_and_wait>.with({.concurrency_group = "io"})(grouped, 2);
  EXPECT_EQ(weft::get(waiting) + weft::get(other), 4);
}

TEST_F(Actors, RefuseTooManyPendingCalls) {
  auto sleeper = weft::actor<Sleeper>.with({.max_pending_calls = 2})();
  auto a = sleeper.call<&Sleeper::sleep>(60.0);
  auto b = sleeper.call<&Sleeper::quick>();
  EXPECT_THROW((void)sleeper.call<&Sleeper::quick>(), weft::PendingCallsLimitExceeded);
  weft::cancel(a);
  EXPECT_EQ(weft::get(b), 2);
  EXPECT_EQ(weft::get(sleeper.call<&Sleeper::quick>()), 2);
}

TEST_F(Actors, WrongOptionsAreRefused) {
  EXPECT_THROW(weft::actor<Counter>.with({.max_restarts = -2})(1), std::invalid_argument);
  EXPECT_THROW(weft::actor<Counter>.with({.max_concurrency = 0})(1), std::invalid_argument);
  EXPECT_THROW(weft::actor<Counter>.with({.get_if_exists = true})(1), std::invalid_argument);
  EXPECT_THROW(weft::actor<Counter>.with({.num_gpus = -1})(1), std::invalid_argument);
  auto nowhere = weft::actor<Counter>.with({.resources = {{"unicorn", 1}}})(1);
  EXPECT_THROW(weft::get(nowhere.call<&Counter::value>()), weft::WeftError);
  weft::Actor<Counter> nothing;
  EXPECT_THROW((void)nothing.call<&Counter::value>(), std::invalid_argument);
}

TEST_F(Actors, KnowWhereTheyAre) {
  auto counter = weft::actor<Counter>.with({.num_cpus = 1, .name = "here"})(0);
  weft::Context there = weft::get(counter.call<&Counter::context>());
  EXPECT_TRUE(there.is_worker);
  EXPECT_EQ(there.actor_name, "here");
  EXPECT_EQ(there.resources["CPU"], 1);
  EXPECT_EQ(there.actor_id.size(), 32u);
  EXPECT_NE(there.task_name.find("Counter::context"), std::string::npos);
  EXPECT_FALSE(there.was_reconstructed);
  weft::Context here = weft::context();
  EXPECT_FALSE(here.is_worker);
  EXPECT_EQ(here.node_id, there.node_id);
  EXPECT_TRUE(here.task_id.empty());
}

TEST_F(Actors, HoldWhatTheyAskedFor) {
  EXPECT_EQ(weft::cluster_resources()["CPU"], 2);
  EXPECT_TRUE(Eventually([] { return weft::available_resources()["CPU"] == 2; }));
  auto counter = weft::actor<Counter>.with({.num_cpus = 1})(0);
  weft::get(counter.call<&Counter::value>());
  EXPECT_TRUE(Eventually([] { return weft::available_resources()["CPU"] == 1; }));
}

TEST(Gpus, HaveNumbers) {
  auto session = weft::init({.num_cpus = 2, .num_gpus = 2, .log_to_driver = false});
  std::set<std::string> seen;
  EXPECT_EQ(weft::get(weft::remote<Gpus>.with({.num_gpus = 2})()), "2:0,1");
  EXPECT_EQ(weft::get(weft::remote<Gpus>()), "0:");
}

TEST(Resources, AreToldOf) {
  EXPECT_THROW(weft::cluster_resources(), weft::WeftError);
  auto session = weft::init({.num_cpus = 3, .num_gpus = 1, .resources = {{"desk", 2.5}}, .log_to_driver = false});
  std::map<std::string, double> all = weft::cluster_resources();
  EXPECT_EQ(all["CPU"], 3);
  EXPECT_EQ(all["GPU"], 1);
  EXPECT_EQ(all["desk"], 2.5);
  auto counter = weft::actor<Counter>.with({.num_cpus = 1, .num_gpus = 1, .resources = {{"desk", 1}}})(0);
  weft::get(counter.call<&Counter::value>());
  std::map<std::string, double> free = weft::available_resources();
  EXPECT_EQ(free["CPU"], 2);
  EXPECT_EQ(free.count("GPU"), 0u);
  EXPECT_EQ(free["desk"], 1.5);
  EXPECT_EQ(weft::get(weft::remote<SeesDesks>()), 2.5);
}

class Cancelling : public Actors {};

TEST_F(Cancelling, EndsWhatSleepsSpinsOrWaits) {
  std::string mark = TemporaryPath("sleeps");
  auto sleeps = weft::remote<Sleeps>(mark);
  ASSERT_TRUE(Eventually([&] { return Exists(mark); }));
  weft::cancel(sleeps);
  EXPECT_THROW(weft::get(sleeps), weft::TaskCancelledError);
  mark = TemporaryPath("spins");
  auto spins = weft::remote<Spins>(mark);
  ASSERT_TRUE(Eventually([&] { return Exists(mark); }));
  weft::cancel(spins);
  EXPECT_THROW(weft::get(spins), weft::TaskCancelledError);
  mark = TemporaryPath("waits");
  auto waits = weft::remote<WaitsForChild>(mark);
  ASSERT_TRUE(Eventually([&] { return Exists(mark); }));
  weft::cancel(waits);
  EXPECT_THROW(weft::get(waits), weft::TaskCancelledError);
  EXPECT_EQ(weft::get(weft::remote<Twice>(2)), 4);
}

TEST_F(Cancelling, ByForceEndsTheProcess) {
  std::string mark = TemporaryPath("never");
  auto never = weft::remote<NeverEnds>(mark);
  ASSERT_TRUE(Eventually([&] { return Exists(mark); }));
  weft::cancel(never, {.force = true});
  EXPECT_THROW(weft::get(never), weft::WeftError);
  EXPECT_EQ(weft::get(weft::remote<Twice>(2)), 4);
}

TEST_F(Cancelling, WhatIsQueuedNeverBegins) {
  auto sleeper = weft::actor<Sleeper>();
  auto first = sleeper.call<&Sleeper::sleep>(60.0);
  auto second = sleeper.call<&Sleeper::sleep>(60.0);
  auto third = sleeper.call<&Sleeper::quick>();
  weft::cancel(second);
  EXPECT_THROW(weft::get(second), weft::TaskCancelledError);
  EXPECT_THROW(weft::cancel(first, {.force = true}), std::invalid_argument);
  weft::cancel(first);
  EXPECT_THROW(weft::get(first), weft::TaskCancelledError);
  EXPECT_EQ(weft::get(third), 2);
}

}  // namespace
