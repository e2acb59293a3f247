// Errors and crashes of tasks: what of them arrives where the result is asked for.
#include "api_cpp/stack.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>

#include "api_cpp/symbols.h"
#include "weft/weft.h"

namespace {

__attribute__((noinline)) static int ThrowingHelper(const std::vector<int>& values, size_t place) {
  return values.at(place) + 1;
}
struct Sequence {
  std::vector<int> values;
  __attribute__((noinline)) int Nth(size_t n) const { return ThrowingHelper(values, n) + 1; }
};
int ThrowsDeepInside(int n) { return Sequence{{1, 2, 3}}.Nth(static_cast<size_t>(n)) + 1; }
int CatchesItself(int n) {
  try {
    return ThrowsDeepInside(n);
  } catch (const std::out_of_range&) {
    return -1;
  }
}
int PassesOn(int n) { return weft::get(weft::remote<ThrowsDeepInside>(n)); }
int ThrowsNested() {
  try {
    throw std::invalid_argument("the first");
  } catch (...) {
    std::throw_with_nested(std::runtime_error("the second"));
  }
}
class OwnError : public std::system_error, public std::nested_exception {
 public:
  using std::system_error::system_error;
};
int ThrowsOwn() { throw OwnError(std::make_error_code(std::errc::no_such_file_or_directory), "opening"); }
int ThrowsText() { throw std::string("only text"); }
int ThrowsNumber() { throw 42; }
int ThrowsMuch() { throw std::runtime_error(std::string(3'000'000, 'x')); }
int RecursesAndThrows(int depth) {
  if (depth == 0) throw std::runtime_error("the bottom");
  volatile int below = RecursesAndThrows(depth - 1);
  return below + 1;
}

template <auto F, class... A>
std::unique_ptr<weft::TaskError> ErrorOf(A... arguments) {
  try {
    weft::get(weft::remote<F>(arguments...));
  } catch (const weft::TaskError& error) {
    return std::make_unique<weft::TaskError>(error);
  }
  return nullptr;
}

class Errors : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { session_ = new weft::Session(weft::init({.num_cpus = 2, .log_to_driver = false})); }
  static void TearDownTestSuite() {
    delete session_;
    session_ = nullptr;
  }
  static weft::Session* session_;
};
weft::Session* Errors::session_ = nullptr;

size_t Place(const std::string& text, const std::string& of) { return text.find(of); }
constexpr size_t kNowhere = std::string::npos;

TEST_F(Errors, TheStackIsThatOfTheThrow) {
  auto error = ErrorOf<ThrowsDeepInside>(7);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->type_name(), "std::out_of_range");
  const std::string& stack = error->stack();
  // The user's frames, innermost first, static and anonymous ones too.
  EXPECT_NE(Place(stack, "ThrowingHelper"), kNowhere) << stack;
  EXPECT_LT(Place(stack, "ThrowingHelper"), Place(stack, "Sequence::Nth")) << stack;
  EXPECT_LT(Place(stack, "Sequence::Nth"), Place(stack, "ThrowsDeepInside(int)")) << stack;
  EXPECT_NE(Place(stack, "ThrowsDeepInside(int)"), kNowhere) << stack;
  // Nothing of what throws and of what called the task.
  EXPECT_EQ(Place(stack, "__cxa"), kNowhere) << stack;
  EXPECT_EQ(Place(stack, "weft::detail"), kNowhere) << stack;
  EXPECT_EQ(Place(stack, "main"), kNowhere) << stack;
  EXPECT_NE(Place(error->what(), stack), kNowhere);
}

TEST_F(Errors, WhatATaskCatchesItselfLeavesNothing) {
  EXPECT_EQ(weft::get(weft::remote<CatchesItself>(7)), -1);
  auto error = ErrorOf<ThrowsNumber>();
  EXPECT_EQ(Place(error->stack(), "ThrowingHelper"), kNowhere) << error->stack();
  EXPECT_NE(Place(error->stack(), "ThrowsNumber"), kNowhere) << error->stack();
}

TEST_F(Errors, AnErrorThatPassesThroughATaskStaysTheFirst) {
  auto error = ErrorOf<PassesOn>(7);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->type_name(), "std::out_of_range");
  EXPECT_NE(Place(error->function_name(), "ThrowsDeepInside"), kNowhere);
  EXPECT_TRUE(error->is<std::out_of_range>());
  const std::string& stack = error->stack();
  EXPECT_LT(Place(stack, "ThrowingHelper"), Place(stack, "which came through task")) << stack;
  EXPECT_LT(Place(stack, "which came through task"), stack.rfind("PassesOn(int)")) << stack;
  EXPECT_NE(stack.rfind("PassesOn(int)"), kNowhere) << stack;
}

TEST_F(Errors, ErrorsAreKnownByTheirClassAndThoseAbove) {
  auto error = ErrorOf<ThrowsDeepInside>(7);
  EXPECT_TRUE(error->is<std::out_of_range>());
  EXPECT_TRUE(error->is<std::logic_error>());
  EXPECT_TRUE(error->is<std::exception>());
  EXPECT_TRUE(error->is("std::logic_error"));
  EXPECT_FALSE(error->is<std::runtime_error>());
  error = ErrorOf<ThrowsOwn>();
  EXPECT_TRUE(error->is<OwnError>());
  EXPECT_TRUE(error->is<std::system_error>());
  EXPECT_TRUE(error->is<std::nested_exception>());
  EXPECT_TRUE(error->is<std::runtime_error>());
  EXPECT_FALSE(error->is<std::logic_error>());
}

TEST_F(Errors, EverythingThatCanBeThrownArrives) {
  EXPECT_EQ(ErrorOf<ThrowsText>()->message(), "only text");
  EXPECT_EQ(ErrorOf<ThrowsNumber>()->message(), "42");
  EXPECT_EQ(ErrorOf<ThrowsNumber>()->type_name(), "int");
  auto nested = ErrorOf<ThrowsNested>();
  EXPECT_EQ(nested->message(), "the second");
  EXPECT_TRUE(nested->is<std::runtime_error>());
  EXPECT_NE(Place(nested->stack(), "caused by std::invalid_argument: the first"), kNowhere) << nested->stack();
}

TEST_F(Errors, LargeErrorsArriveShortened) {
  auto error = ErrorOf<ThrowsMuch>();
  ASSERT_TRUE(error);
  EXPECT_LT(error->message().size(), 30'000u);
  EXPECT_NE(Place(error->message(), "bytes left out"), kNowhere);
  error = ErrorOf<RecursesAndThrows>(1000);
  EXPECT_EQ(error->message(), "the bottom");
  EXPECT_NE(Place(error->stack(), "or more calls below"), kNowhere) << error->stack();
}

TEST_F(Errors, TryGetSaysItToo) {
  auto result = weft::try_get(weft::remote<ThrowsDeepInside>(7));
  try {
    result.value();
    FAIL();
  } catch (const weft::TaskError& error) {
    EXPECT_NE(Place(error.stack(), "ThrowingHelper"), kNowhere);
    EXPECT_TRUE(error.is<std::out_of_range>());
  }
}

// ---- the report of a crash, in a process of its own

struct Ending {
  std::string said;
  int status = 0;
};
Ending RunInChild(const std::function<void()>& body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    for (int number : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL}) signal(number, SIG_DFL);  // sanitizers have theirs
    body();
    _exit(0);
  }
  close(ends[1]);
  Ending ending;
  char bytes[4096];
  for (ssize_t size; (size = read(ends[0], bytes, sizeof bytes)) > 0;)
    ending.said.append(bytes, static_cast<size_t>(size));
  close(ends[0]);
  waitpid(child, &ending.status, 0);
  return ending;
}

__attribute__((noinline)) int RunsOutOfStack(int n) {
  volatile char room[4000];
  room[n % 4000] = 1;
  if (n < 0) return 0;
  return RunsOutOfStack(n + 1) + room[7];
}
__attribute__((noinline)) void Aborts() { std::abort(); }

TEST(CrashReport, SaysWhatRanAndWhere) {
  Ending ending = RunInChild([] {
    weft::detail::InstallCrashReport();
    weft::detail::SetRunningTask("the task");
    Aborts();
  });
  ASSERT_TRUE(WIFSIGNALED(ending.status));
  EXPECT_EQ(WTERMSIG(ending.status), SIGABRT);
  EXPECT_NE(Place(ending.said, "SIGABRT in task 'the task'"), kNowhere) << ending.said;
  EXPECT_NE(Place(ending.said, "at (anonymous namespace)::Aborts"), kNowhere) << ending.said;
}

#ifndef __SANITIZE_ADDRESS__
TEST(CrashReport, WorksWhenTheStackHasRunOut) {
  Ending ending = RunInChild([] {
    weft::detail::InstallCrashReport();
    RunsOutOfStack(0);
  });
  ASSERT_TRUE(WIFSIGNALED(ending.status));
  EXPECT_EQ(WTERMSIG(ending.status), SIGSEGV);
  EXPECT_NE(Place(ending.said, "SIGSEGV:"), kNowhere) << ending.said;
  EXPECT_NE(Place(ending.said, "RunsOutOfStack"), kNowhere) << ending.said;
}
#endif

TEST(CrashReport, LeavesHandlersOfTheProgramAlone) {
  Ending ending = RunInChild([] {
    signal(SIGABRT, [](int) { _exit(17); });
    weft::detail::InstallCrashReport();
    Aborts();
  });
  EXPECT_EQ(WEXITSTATUS(ending.status), 17);
  EXPECT_EQ(ending.said, "");
}

TEST(Symbols, UnknownAddressesAreNoTrouble) {
  EXPECT_EQ(weft::detail::DescribeAddress(16).function, "");
  EXPECT_NE(Place(weft::detail::DescribeAddress(reinterpret_cast<uintptr_t>(&Aborts)).function, "Aborts()"), kNowhere);
}

}  // namespace
