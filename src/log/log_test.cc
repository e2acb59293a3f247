#include "log/log.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>
#include <string>

#include "os/fd.h"

namespace weft::core {
namespace {

namespace fs = std::filesystem;

std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t size; (size = ::read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(size));
  return text;
}

// What a process of its own, which is the daemon then, writes to standard error.
std::string InDaemon(const std::function<void()>& body) {
  int pipe[2];
  EXPECT_EQ(::pipe(pipe), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(pipe[1], STDERR_FILENO);
    body();
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  ::close(pipe[1]);
  std::string text = ReadAll(pipe[0]);
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  return text;
}

class LogTest : public testing::Test {
 protected:
  LogTest() {
    char name[] = "/tmp/weft-log-test-XXXXXX";
    settings_.directory = ::mkdtemp(name);
    settings_.node = "my node";
  }
  ~LogTest() override { fs::remove_all(settings_.directory); }

  // Without times and pids.
  std::string Text() const {
    std::ostringstream text;
    for (const auto& entry : fs::directory_iterator(settings_.directory)) {
      text << std::ifstream(entry.path()).rdbuf();
    }
    return std::regex_replace(text.str(), std::regex(R"(\S+Z (\S+ \S+) \d+ )"), "$1 ");
  }

  LogSettings settings_;
};

TEST_F(LogTest, WithoutALogWarningsAreOnStandardError) {
  EXPECT_EQ(InDaemon([] {
              LogDebug("node", "debug");
              LogInfo("node", "info");
              LogWarning("link", "%s is %d\n", "warning", 1);
              LogError("link", "error");
            }),
            "weft node: warning is 1\\n\nweft node: error\n");
}

TEST_F(LogTest, TheLevelIsThatOfTheFile) {
  const std::string told = InDaemon([this] {
    settings_.level = LogLevel::kError;
    EXPECT_TRUE(OpenLog(settings_, "begins").ok());
    LogInfo("node", "info");
    NumberLogNode(7);
    LogWarning("node", "warning");
    LogError("node", "error");
  });
  EXPECT_EQ(told, "weft node: warning\nweft node: error\n") << "whatever the level";
  EXPECT_EQ(Text(), "info my\\x20node node: begins\nerror 7:my\\x20node node: error\n");
}

TEST_F(LogTest, StandardErrorMayBeTheFile) {
  EXPECT_EQ(InDaemon([this] {
              settings_.takes_stderr = true;
              EXPECT_TRUE(OpenLog(settings_, "begins").ok());
              LogWarning("node", "once");
            }),
            "");
  EXPECT_EQ(Text(), "info my\\x20node node: begins\nwarning my\\x20node node: once\n");
}

TEST_F(LogTest, WhatCannotBeWrittenIsToldOnceAndCounted) {
  const std::string moved = settings_.directory + ".moved";
  const std::string told = InDaemon([&] {
    EXPECT_TRUE(OpenLog(settings_, "begins").ok());
    fs::rename(settings_.directory, moved);
    std::ofstream(settings_.directory) << "in the way";
    for (int i = 0; i < 3; ++i) LogInfo("node", "lost %d", i);
    LogWarning("node", "lost, but told");
    fs::remove(settings_.directory);
    fs::rename(moved, settings_.directory);
    LogInfo("node", "kept");
  });
  const std::string why =
      "'" + settings_.directory + "' is a symlink or a file, where weft needs a directory of its own: remove it";
  EXPECT_EQ(told,
            "weft node: its log is not written, and it goes on without: " + why + "\nweft node: lost, but told\n");
  EXPECT_EQ(Text(), "info my\\x20node node: begins\nwarning my\\x20node log: 4 lines are missing here: " + why +
                        "\ninfo my\\x20node node: kept\n");
}

TEST_F(LogTest, APipeThatNobodyReadsStopsNobody) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const UniqueFd reader(pipe[0]);
  UniqueFd writer(pipe[1]);
  const std::string told = InDaemon([&] {
    settings_.descriptor = writer.get();
    settings_.takes_stderr = true;
    EXPECT_TRUE(OpenLog(settings_, "begins").ok());
    ::alarm(20);
    for (int i = 0; i < 10'000; ++i) LogInfo("node", "%s", std::string(1000, 'x').c_str());
    char buffer[65536];
    EXPECT_GT(::read(reader.get(), buffer, sizeof buffer), 0);
    LogInfo("node", "goes on");
  });
  writer.Reset();
  const std::string rest = ReadAll(reader.get());
  EXPECT_TRUE(
      std::regex_search(rest, std::regex("log: 9\\d\\d\\d lines are missing here: nobody reads it\n.* goes on\n$")))
      << rest.substr(rest.size() > 300 ? rest.size() - 300 : 0);
}

TEST_F(LogTest, AReaderThatHasGoneEndsNobody) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  ::close(pipe[0]);
  const UniqueFd writer(pipe[1]);
  InDaemon([&] {
    settings_.descriptor = writer.get();
    EXPECT_FALSE(OpenLog(settings_, "begins").ok());
    LogInfo("node", "more");
  });
}

}  // namespace
}  // namespace weft::core
