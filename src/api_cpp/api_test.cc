// The whole of the C++ API in a session of two workers, which are this test program once more.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <thread>

#include "weft/weft.h"

using namespace std::chrono_literals;  // NOLINT

int FromTheOtherFile(int x);  // calls its own `Step` as a task

namespace {

std::atomic<int> g_before_main{0};

// ---- functions that become tasks

int Plus(int a, int b) { return a + b; }
static int Step(int x) { return x + 1; }  // the other file has one too
int Noexcept(int x) noexcept { return -x; }
double Scale(double x) { return 2 * x; }
void Nothing() {}
std::string Join(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : std::string(between)) + word;
  return text;
}
weft::Returns<int, std::string> DivMod(int a, int b) { return {a / b, std::to_string(a % b)}; }
std::tuple<int, int> Both(int a, int b) { return {a, b}; }
inline constexpr auto kSquare = [](int x) { return x * x; };
struct Math {
  static int Twice(int x) { return 2 * x; }
};
template <class T>
T Identity(T x) {
  return x;
}
int Pid() { return getpid(); }
struct Person {
  std::string name;
  int age = 0;
  std::vector<double> marks;
  bool operator==(const Person&) const = default;
};
Person Older(Person person, int years) {
  person.age += years;
  return person;
}
int TakesRvalue(std::vector<int>&& values) { return static_cast<int>(values.size()); }

int FollowRef(weft::Ref<int> ref) { return weft::get(ref) + 1; }
int SumRefs(std::vector<weft::Ref<int>> refs) {
  int sum = 0;
  for (int value : weft::get(refs)) sum += value;
  return sum;
}
weft::Ref<int> MakeRef(int x) { return weft::put(x); }
int Fibonacci(int n) {
  if (n < 2) return n;
  auto a = weft::remote<Fibonacci>(n - 1), b = weft::remote<Fibonacci>(n - 2);
  auto [x, y] = weft::get(a, b);
  return x + y;
}

float Sum(std::span<const float> values) { return std::accumulate(values.begin(), values.end(), 0.0f); }
uint64_t AddressOf(std::span<const float> values) { return reinterpret_cast<uint64_t>(values.data()); }
std::pair<uint64_t, uint64_t> AddressesOf(weft::Array<const float> a, std::span<const float> b) {
  return {reinterpret_cast<uint64_t>(a.data()), reinterpret_cast<uint64_t>(b.data())};
}
weft::Array<int> Iota(int count) {
  auto array = weft::empty<int>(static_cast<size_t>(count));
  std::iota(array.begin(), array.end(), 0);
  return array;
}
std::vector<double> Vector(int count) { return std::vector<double>(static_cast<size_t>(count), 0.5); }
size_t CountVector(const std::vector<double>& values) { return values.size(); }
std::string Text(int size) { return std::string(static_cast<size_t>(size), 'x'); }
size_t Length(const std::string& text) { return text.size(); }

int ThrowsStandard(int x) { throw std::out_of_range("no place " + std::to_string(x)); }
struct OwnError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
int ThrowsOwn() { throw OwnError("mine"); }
int ThrowsInt() { throw 42; }
int CallsThrower() { return weft::get(weft::remote<ThrowsOwn>()); }

int Aborts() {
  signal(SIGABRT, SIG_DFL);
  std::abort();
}
int Segfaults() {
  signal(SIGSEGV, SIG_DFL);  // sanitizers have their own
  raise(SIGSEGV);
  return 0;
}
int KillsItself() {
  kill(getpid(), SIGKILL);
  pause();
  return 0;
}
int Exits(int code) { std::_Exit(code); }
// Leaves a mark for each run; crashes until there are `until` of them.
int CrashesAtFirst(std::string marks, int until) {
  int seen = 0;
  while (access((marks + std::to_string(seen)).c_str(), F_OK) == 0) ++seen;
  std::ofstream(marks + std::to_string(seen)) << "x";
  if (seen + 1 < until) kill(getpid(), SIGKILL);
  return seen + 1;
}
int ThrowsAtFirst(std::string marks, int until) {
  int seen = 0;
  while (access((marks + std::to_string(seen)).c_str(), F_OK) == 0) ++seen;
  std::ofstream(marks + std::to_string(seen)) << "x";
  if (seen + 1 < until) throw std::runtime_error("not yet");
  return seen + 1;
}
// Runs until the file is there.
int WaitsForFile(const std::string& path) {
  for (;;) {
    if (access(path.c_str(), F_OK) == 0) return 1;
    std::this_thread::sleep_for(1ms);
  }
}
std::string Environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? value : "(unset)";
}
int BeforeMain() { return g_before_main.load(); }

std::string TemporaryPath(const std::string& name) {
  static std::string folder = [] {
    std::string text = ::testing::TempDir() + "weft-api-XXXXXX";
    return std::string(mkdtemp(text.data()));
  }();
  static int number = 0;
  return folder + "/" + name + std::to_string(++number) + "-";
}
void Touch(const std::string& path) { std::ofstream(path) << "x"; }

class Api : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { session_ = new weft::Session(weft::init({.num_cpus = 2, .log_to_driver = true})); }
  static void TearDownTestSuite() {
    delete session_;
    session_ = nullptr;
  }
  static weft::Session* session_;
};
weft::Session* Api::session_ = nullptr;

// ---- calls

TEST_F(Api, FunctionsOfEveryKindRun) {
  EXPECT_EQ(weft::get(weft::remote<Plus>(1, 2)), 3);
  EXPECT_EQ(weft::get(weft::remote<Noexcept>(4)), -4);
  EXPECT_EQ(weft::get(weft::remote<kSquare>(7)), 49);
  EXPECT_EQ(weft::get(weft::remote<Math::Twice>(4)), 8);
  EXPECT_EQ(weft::get(weft::remote<Identity<std::string>>("text")), "text");
  EXPECT_EQ(weft::get(weft::remote<static_cast<double (*)(double)>(std::floor)>(2.5)), 2.0);
  weft::Ref<void> nothing = weft::remote<Nothing>();
  weft::get(nothing);
  EXPECT_EQ(weft::get(weft::remote<TakesRvalue>(std::vector<int>{1, 2, 3})), 3);
}

TEST_F(Api, TasksRunInOtherProcesses) { EXPECT_NE(weft::get(weft::remote<Pid>()), getpid()); }

TEST_F(Api, FunctionsOfTheSameNameInOtherFilesAreOthers) {
  EXPECT_EQ(weft::get(weft::remote<Step>(10)), 11);
  EXPECT_EQ(FromTheOtherFile(10), 110);
}

TEST_F(Api, ArgumentsConvertAsInACall) {
  EXPECT_EQ(weft::get(weft::remote<Scale>(3)), 6.0);
  EXPECT_EQ(weft::get(weft::remote<Scale>(weft::remote<Plus>(1, 2))), 6.0);
  EXPECT_EQ(weft::get(weft::remote<Join>(std::vector<std::string>{"a", "b"}, ", ")), "a, b");
  Person ada{"Ada", 36, {1.5, 2}};
  EXPECT_EQ(weft::get(weft::remote<Older>(ada, 2)), (Person{"Ada", 38, {1.5, 2}}));
  auto stored = weft::put(ada);
  EXPECT_EQ(weft::get(weft::remote<Older>(stored, 1)).age, 37);
}

TEST_F(Api, RefsAreAcceptedWhereverTheirValuesAre) {
  weft::Ref<int> sum = weft::put(0);
  for (int i = 1; i <= 100; ++i) sum = weft::remote<Plus>(sum, i);
  EXPECT_EQ(weft::get(sum), 5050);
}

TEST_F(Api, ParametersOfTypeRefAskForTheReference) {
  EXPECT_EQ(weft::get(weft::remote<FollowRef>(weft::put(41))), 42);
  EXPECT_EQ(weft::get(weft::remote<FollowRef>(weft::remote<Plus>(1, 2))), 4);
  std::vector<weft::Ref<int>> refs;
  for (int i = 0; i < 20; ++i) refs.push_back(i % 2 ? weft::put(i) : weft::remote<Plus>(i, 0));
  EXPECT_EQ(weft::get(weft::remote<SumRefs>(refs)), 190);
}

TEST_F(Api, ReferencesCanBeReturned) {
  weft::Ref<weft::Ref<int>> outer = weft::remote<MakeRef>(5);
  EXPECT_EQ(weft::get(weft::get(outer)), 5);
  EXPECT_EQ(weft::get(weft::remote<FollowRef>(weft::get(outer))), 6);
}

TEST_F(Api, SeveralReturnsAreSeveralObjects) {
  auto [quotient, remainder] = weft::remote<DivMod>(17, 5);
  static_assert(std::is_same_v<decltype(remainder), weft::Ref<std::string>>);
  EXPECT_EQ(weft::get(quotient), 3);
  EXPECT_EQ(weft::get(remainder), "2");
  weft::Ref<std::tuple<int, int>> one = weft::remote<Both>(1, 2);
  EXPECT_EQ(weft::get(one), (std::tuple{1, 2}));
}

TEST_F(Api, TasksCallTasks) { EXPECT_EQ(weft::get(weft::remote<Fibonacci>(10)), 55); }

TEST_F(Api, ManyTasksFromManyThreads) {
  std::vector<std::thread> threads;
  std::atomic<long> total{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      std::vector<weft::Ref<int>> refs;
      for (int i = 0; i < 500; ++i) refs.push_back(weft::remote<kSquare>(i % 10));
      for (int value : weft::get(refs)) total += value;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(total, 4 * 50 * 285);
}

TEST_F(Api, OptionsAreTaken) {
  EXPECT_EQ(weft::get(weft::remote<Plus>.with({.num_cpus = 2, .max_retries = 0, .name = "adding"})(1, 2)), 3);
  auto half = weft::remote<Plus>.with({.num_cpus = 0.5});
  EXPECT_EQ(weft::get(half(1, half(2, 3))), 6);
  EXPECT_THROW(weft::remote<Plus>.with({.num_cpus = -1})(1, 2), std::invalid_argument);
  EXPECT_THROW(weft::remote<Plus>.with({.max_retries = -2})(1, 2), std::invalid_argument);
  EXPECT_THROW(weft::remote<Plus>.with({.resources = {{"CPU", 1}}})(1, 2), std::invalid_argument);
  EXPECT_THROW(weft::remote<Plus>.with({.resources = {{std::string(257, 'x'), 1}}})(1, 2), std::invalid_argument);
  std::vector<std::pair<std::string, double>> many;
  for (int i = 0; i < 51; ++i) many.emplace_back(std::string("r").append(std::to_string(i)), 1);
  EXPECT_THROW(weft::remote<Plus>.with({.resources = many})(1, 2), std::invalid_argument);
  EXPECT_THROW(weft::get(weft::remote<Plus>.with({.num_cpus = 1000})(1, 2)), weft::UnschedulableError);
}

// ---- values of every size

TEST_F(Api, ValuesOfEverySizePass) {
  for (int size : {0, 1, 100, 16'000, 17'000, 300'000, 5'000'000}) {
    weft::Ref<std::string> text = weft::remote<Text>(size);
    EXPECT_EQ(weft::get(text).size(), size);
    EXPECT_EQ(weft::get(weft::remote<Length>(text)), size);
    EXPECT_EQ(weft::get(weft::remote<Length>(std::string(size, 'y'))), size);
    EXPECT_EQ(weft::get(weft::put(std::string(size, 'z'))).size(), size);
  }
  for (int count : {0, 1, 64, 65, 1'000, 3'000, 1'000'000}) {
    weft::Ref<std::vector<double>> vector = weft::remote<Vector>(count);
    EXPECT_EQ(weft::get(vector), std::vector<double>(count, 0.5));
    EXPECT_EQ(weft::get(weft::remote<CountVector>(vector)), count);
    EXPECT_EQ(weft::get(weft::remote<CountVector>(std::vector<double>(count))), count);
  }
}

// ---- arrays

TEST_F(Api, ArraysArePutWithoutACopy) {
  constexpr size_t kCount = 1'000'000;
  weft::Array<float> x = weft::empty<float>(kCount);
  std::fill(x.begin(), x.end(), 0.5f);
  weft::Ref<weft::Array<float>> ref = weft::put(std::move(x));
  EXPECT_EQ(x.size(), 0u);  // NOLINT: moved from, on purpose
  weft::Array<const float> one = weft::get(ref), two = weft::get(ref);
  EXPECT_EQ(one.data(), two.data());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(one.data()) % 64, 0u);
  std::span<const float> span = one;
  EXPECT_EQ(span.size(), kCount);
  EXPECT_EQ(weft::get(weft::remote<Sum>(ref)), 500'000.0f);
  // Both parameters look at the same memory.
  auto [a, b] = weft::get(weft::remote<AddressesOf>(ref, ref));
  EXPECT_EQ(a, b);
  EXPECT_EQ(a % 64, 0u);
}

TEST_F(Api, AViewOutlivesItsReference) {
  weft::Array<const int> view;
  {
    weft::Ref<weft::Array<int>> ref = weft::remote<Iota>(100'000);
    view = weft::get(ref);
  }
  // Others come and go in the same memory, if it were free.
  for (int i = 0; i < 20; ++i) weft::get(weft::remote<Iota>(100'000 - i));
  for (int i = 0; i < 100'000; ++i) ASSERT_EQ(view[static_cast<size_t>(i)], i);
}

TEST_F(Api, RowsOfNumbersPassForEachOther) {
  std::vector<float> few{1, 2, 3}, many(1000, 1.0f);
  EXPECT_EQ(weft::get(weft::remote<Sum>(few)), 6);
  EXPECT_EQ(weft::get(weft::remote<Sum>(many)), 1000);
  EXPECT_EQ(weft::get(weft::remote<Sum>(weft::put(few))), 6);
  EXPECT_EQ(weft::get(weft::remote<Sum>(weft::put(many))), 1000);
  EXPECT_EQ(weft::get(weft::remote<Sum>(std::span<const float>(many))), 1000);
  auto room = weft::empty<float>(10);
  std::fill(room.begin(), room.end(), 2.0f);
  EXPECT_EQ(weft::get(weft::remote<Sum>(std::move(room))), 20);
  auto view = weft::get(weft::put(weft::empty<float>(0)));
  EXPECT_TRUE(view.empty());
  EXPECT_NE(weft::get(weft::remote<AddressOf>(many)), 0u);
  // An array can be read as a vector, with a copy.
  weft::Ref<weft::Array<double>> doubles = weft::put(weft::empty<double>(100));
  EXPECT_EQ(weft::get(weft::remote<CountVector>(doubles)), 100u);
}

TEST_F(Api, RoomThatIsNotPutIsGivenBack) {
  for (int i = 0; i < 200; ++i) {
    auto room = weft::empty<double>(10'000'000);
    ASSERT_EQ(room.size(), 10'000'000u);
  }
}

// ---- failures

TEST_F(Api, ExceptionsCross) {
  try {
    weft::get(weft::remote<ThrowsStandard>(7));
    FAIL();
  } catch (const weft::TaskError& error) {
    EXPECT_EQ(error.type_name(), "std::out_of_range");
    EXPECT_EQ(error.message(), "no place 7");
    EXPECT_NE(error.function_name().find("ThrowsStandard"), std::string::npos) << error.function_name();
    EXPECT_NE(error.pid(), getpid());
    EXPECT_NE(std::string(error.what()).find("no place 7"), std::string::npos);
  }
  EXPECT_THROW(weft::get(weft::remote<ThrowsInt>()), weft::TaskError);
  EXPECT_THROW(weft::get(weft::remote<ThrowsInt>()), std::runtime_error);
}

TEST_F(Api, AnExceptionFailsWhatDependsOnIt) {
  auto failed = weft::remote<Plus>(weft::remote<ThrowsStandard>(1), 2);
  EXPECT_THROW(weft::get(failed), weft::TaskError);
  try {
    weft::get(weft::remote<CallsThrower>());
    FAIL();
  } catch (const weft::TaskError& error) {
    EXPECT_NE(error.type_name().find("OwnError"), std::string::npos);
    EXPECT_EQ(error.message(), "mine");
  }
}

template <auto F, class... A>
std::string CrashMessage(A... arguments) {
  try {
    weft::get(weft::remote<F>.with({.max_retries = 0})(arguments...));
  } catch (const weft::WorkerCrashedError& error) {
    return error.what();
  }
  return "";
}

TEST_F(Api, ACrashNamesTheFunction) {
  std::string message = CrashMessage<Aborts>();
  EXPECT_NE(message.find("Aborts"), std::string::npos) << message;
  EXPECT_NE(message.find("SIGABRT"), std::string::npos) << message;
  message = CrashMessage<Segfaults>();
  EXPECT_NE(message.find("Segfaults"), std::string::npos) << message;
  EXPECT_NE(message.find("SIGSEGV"), std::string::npos) << message;
  message = CrashMessage<KillsItself>();
  EXPECT_NE(message.find("SIGKILL"), std::string::npos) << message;
  message = CrashMessage<Exits>(3);
  EXPECT_NE(message.find("exited with code 3"), std::string::npos) << message;
  EXPECT_EQ(weft::get(weft::remote<Plus>(1, 2)), 3);
}

TEST_F(Api, CrashesAreRetried) {
  EXPECT_EQ(weft::get(weft::remote<CrashesAtFirst>(TemporaryPath("crash"), 3)), 3);
  EXPECT_THROW(weft::get(weft::remote<CrashesAtFirst>.with({.max_retries = 1})(TemporaryPath("crash"), 3)),
               weft::WorkerCrashedError);
}

TEST_F(Api, ExceptionsAreRetriedIfAsked) {
  EXPECT_EQ(weft::get(weft::remote<ThrowsAtFirst>.with({.retry_exceptions = true})(TemporaryPath("throw"), 3)), 3);
  EXPECT_THROW(weft::get(weft::remote<ThrowsAtFirst>(TemporaryPath("throw"), 3)), weft::TaskError);
}

TEST_F(Api, TimeoutsEndTheWaitAndNotTheTask) {
  std::string path = TemporaryPath("go");
  auto slow = weft::remote<WaitsForFile>(path);
  EXPECT_THROW(weft::get(slow, 20ms), weft::GetTimeoutError);
  weft::Result<int> result = weft::try_get(slow, 1ms);
  EXPECT_FALSE(result);
  EXPECT_TRUE(result.timed_out());
  EXPECT_FALSE(slow.ready());
  EXPECT_THROW(weft::get(slow, -1ms), std::invalid_argument);
  Touch(path);
  EXPECT_EQ(weft::get(slow, 60s), 1);
  EXPECT_TRUE(slow.ready());
}

TEST_F(Api, TryGetGivesValuesAndFailures) {
  EXPECT_EQ(*weft::try_get(weft::remote<Plus>(1, 2)), 3);
  auto failed = weft::try_get(weft::remote<ThrowsOwn>());
  EXPECT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error_name(), "TaskError");
  EXPECT_EQ(failed.error_message(), "mine");
  EXPECT_THROW(failed.value(), weft::TaskError);
  EXPECT_TRUE(weft::try_get(weft::remote<Nothing>()).has_value());
}

TEST_F(Api, WaitKeepsOrderAndRefusesNonsense) {
  std::string path = TemporaryPath("go");
  auto slow = weft::remote<WaitsForFile>(path);
  auto one = weft::put(1), two = weft::put(2);
  std::vector<weft::Ref<int>> refs{slow, one, two};
  {
    auto [ready, rest] = weft::wait(refs);
    EXPECT_EQ(ready, (std::vector{one}));
    EXPECT_EQ(rest, (std::vector{slow, two}));
  }
  {
    auto [ready, rest] = weft::wait(refs, {.num_returns = 3, .timeout = 10ms});
    EXPECT_EQ(ready, (std::vector{one, two}));
    EXPECT_EQ(rest, (std::vector{slow}));
  }
  EXPECT_THROW(weft::wait(refs, {.num_returns = 4}), std::invalid_argument);
  EXPECT_THROW(weft::wait(refs, {.num_returns = 0}), std::invalid_argument);
  EXPECT_THROW(weft::wait(std::vector{one, one}), std::invalid_argument);
  Touch(path);
  EXPECT_EQ(weft::wait(refs, {.num_returns = 3}).ready.size(), 3u);
}

TEST_F(Api, GetOfSeveralThrowsWhenOneHasFailed) {
  std::string path = TemporaryPath("go");
  auto slow = weft::remote<WaitsForFile>(path);
  auto failed = weft::remote<ThrowsOwn>();
  EXPECT_THROW(weft::get(std::vector<weft::Ref<int>>{slow, failed}), weft::TaskError);
  EXPECT_THROW(weft::get(slow, failed), weft::TaskError);
  EXPECT_FALSE(slow.ready());
  Touch(path);
  EXPECT_EQ(weft::get(slow), 1);
}

TEST_F(Api, ThreadsThatWaitAreAllWoken) {
  std::string path = TemporaryPath("go");
  auto slow = weft::remote<WaitsForFile>(path);
  std::atomic<int> sum{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 200; ++i) {
    auto ref = i % 2 == 0 ? slow : weft::remote<Plus>(slow, 0);
    threads.emplace_back([ref, &sum] { sum += weft::get(ref); });
  }
  Touch(path);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sum, 200);
}

TEST_F(Api, GetOfSeveral) {
  auto [sum, text] = weft::get(weft::remote<Plus>(1, 2), weft::remote<Text>(3));
  EXPECT_EQ(sum, 3);
  EXPECT_EQ(text, "xxx");
  EXPECT_TRUE(weft::get(std::vector<weft::Ref<int>>{}).empty());
}

TEST_F(Api, AnEmptyRefIsRefused) {
  weft::Ref<int> none;
  EXPECT_FALSE(none);
  EXPECT_THROW(weft::get(none), std::invalid_argument);
  EXPECT_THROW(weft::remote<Plus>(none, 1), std::invalid_argument);
}

TEST_F(Api, ASecondSessionIsRefused) {
  EXPECT_THROW((void)weft::init({.num_cpus = 1}), weft::WeftError);
  EXPECT_EQ(weft::get(weft::remote<Plus>(1, 2)), 3);
}

TEST_F(Api, WorkersAreNotWorkersToTheirChildren) {
  EXPECT_EQ(weft::get(weft::remote<Environment>("WEFT_WORKER_FD")), "(unset)");
}

TEST_F(Api, CodeBeforeInitRunsInEveryWorker) { EXPECT_EQ(weft::get(weft::remote<BeforeMain>()), 1); }

TEST_F(Api, AForkedChildIsTold) {
  pid_t child = fork();
  if (child == 0) {
    try {
      weft::remote<Plus>(1, 2);
    } catch (const weft::WeftError& error) {
      _exit(std::string(error.what()).find("forked") != std::string::npos ? 17 : 1);
    }
    _exit(2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 17);
}

// ---- sessions

TEST(Sessions, BeginAndEndManyTimes) {
  weft::Ref<int> old;
  weft::Array<const int> view;
  for (int i = 0; i < 5; ++i) {
    auto session = weft::init({.num_cpus = 1, .log_to_driver = false});
    EXPECT_TRUE(weft::is_initialized());
    EXPECT_EQ(weft::get(weft::remote<Plus>(i, 1)), i + 1);
    if (i > 0) {
      EXPECT_THROW(weft::get(old), weft::WeftError);
      EXPECT_THROW(weft::remote<Plus>(old, 1), weft::WeftError);
    }
    old = weft::put(i);
    view = weft::get(weft::remote<Iota>(50'000));
    auto other = std::move(session);
    EXPECT_FALSE(session.is_open());  // NOLINT: moved from, on purpose
    EXPECT_TRUE(other.is_open());
  }
  EXPECT_FALSE(weft::is_initialized());
  EXPECT_EQ(view[49'999], 49'999);  // what a view looks at stays
  weft::Ref<int> copy = old;        // harmless
  EXPECT_THROW(weft::get(copy), weft::WeftError);
}

TEST(Sessions, NothingWorksWithoutOne) {
  EXPECT_THROW(weft::remote<Plus>(1, 2), weft::WeftError);
  EXPECT_THROW(weft::put(1), weft::WeftError);
  EXPECT_THROW(weft::empty<int>(10), weft::WeftError);
}

TEST(Sessions, WrongOptionsAreRefused) {
  EXPECT_THROW((void)weft::init({.num_cpus = -1}), std::invalid_argument);
  EXPECT_THROW((void)weft::init({.num_cpus = 1.5}), std::invalid_argument);
  EXPECT_THROW((void)weft::init({.resources = {{"a", 1}, {"a", 2}}}), std::invalid_argument);
  EXPECT_THROW((void)weft::init({.program = "/nowhere/weft"}), std::invalid_argument);
  EXPECT_FALSE(weft::is_initialized());
}

TEST(Sessions, AThreadThatWaitsIsToldOfTheEnd) {
  auto session = weft::init({.num_cpus = 1, .log_to_driver = false});
  std::string path = TemporaryPath("never");
  auto never = weft::remote<WaitsForFile>(path);
  std::atomic<bool> told{false};
  std::thread waiter([&] {
    try {
      weft::get(never);
    } catch (const weft::WeftError&) {
      told = true;
    }
  });
  EXPECT_FALSE(weft::try_get(never, 20ms));
  session.shutdown();
  waiter.join();
  EXPECT_TRUE(told);
}

TEST(Sessions, ThreadsMayUseWeftWhileSessionsEnd) {
  std::atomic<bool> done{false};
  std::atomic<int> good{0};
  auto work = [&] {
    std::vector<weft::Ref<std::string>> kept;
    while (!done) {
      try {
        kept.push_back(weft::put(std::string(100, 'x')));
        weft::Ref<std::string> copy = kept.back();
        if (weft::get(copy).size() == 100 && weft::get(weft::remote<Plus>(1, 2)) == 3) ++good;
      } catch (const weft::WeftError&) {  // none is open, or it ended meanwhile
      }
      if (kept.size() > 20) kept.clear();
    }
  };
  std::thread one(work), two(work);
  for (int i = 0; i < 10; ++i) {
    auto session = weft::init({.num_cpus = 1, .log_to_driver = false});
    const int before = good;
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    while (good < before + 10 && std::chrono::steady_clock::now() < deadline) weft::get(weft::remote<Plus>(i, 1));
    EXPECT_GE(good, before + 10);
  }
  done = true;
  one.join();
  two.join();
}

TEST(Sessions, WhatDoesNotFitIntoTheStoreIsRefused) {
  auto session = weft::init({.num_cpus = 1, .object_store_memory = 100 << 20, .log_to_driver = false});
  EXPECT_THROW(weft::put(std::vector<double>(20'000'000)), weft::ObjectStoreFullError);
  EXPECT_THROW(weft::empty<double>(20'000'000), weft::ObjectStoreFullError);
  EXPECT_EQ(weft::get(weft::remote<Plus>(1, 2)), 3);
}

TEST(Sessions, OwnResourcesBound) {
  auto session = weft::init({.num_cpus = 2, .resources = {{"licence", 1}}, .log_to_driver = false});
  EXPECT_EQ(weft::get(weft::remote<Plus>.with({.resources = {{"licence", 1}}})(1, 2)), 3);
  auto result = weft::try_get(weft::remote<Plus>.with({.resources = {{"licence", 2}}})(1, 2));
  EXPECT_EQ(result.error_name(), "UnschedulableError");
  EXPECT_TRUE(result.error_message().starts_with("the task '")) << result.error_message();
  EXPECT_TRUE(result.error_message().ends_with(
      "Plus' asks for 2 licence, but this session has only 1 in all (it has 2 CPU, 1 licence); ask for less, or "
      "start it with more (resources of init)"))
      << result.error_message();
}

}  // namespace

// The workers of these tests are this program, so it becomes one before the test framework sees it.
int main(int argc, char** argv) {
  ++g_before_main;
  weft::serve_if_worker();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
