#include "log/log_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace weft::core {
namespace {

namespace fs = std::filesystem;

class LogFileTest : public testing::Test {
 protected:
  LogFileTest() {
    char name[] = "/tmp/weft-log-test-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~LogFileTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/logs/" + name; }
  static std::string Text(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  LogFile Open(uint64_t max_bytes = 1000) const { return {folder_ + "/logs", "node-1.log", max_bytes, false}; }

  std::string folder_;
};

TEST_F(LogFileTest, IsForItsOwnerAlone) {
  ::umask(0);
  LogFile log = Open();
  ASSERT_TRUE(log.Append("first\n").ok());
  ASSERT_TRUE(log.Append("second\n").ok());
  EXPECT_EQ(Text(Path("node-1.log")), "first\nsecond\n");
  struct stat info{};
  ASSERT_EQ(::stat(Path("node-1.log").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat((folder_ + "/logs").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(LogFileTest, IsReplacedAtItsSizeAndBoundedInAll) {
  LogFile log = Open(10);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(log.Append("line " + std::to_string(i % 10) + "\n").ok());
  EXPECT_EQ(Text(Path("node-1.log")), "line 9\n");
  EXPECT_EQ(Text(Path("node-1.log.1")), "line 8\n");
  EXPECT_EQ(Text(Path("node-1.log.3")), "line 6\n");
  EXPECT_FALSE(fs::exists(Path("node-1.log.4")));
  EXPECT_FALSE(log.TakeReplaced()) << "that was us";
  // A line that is larger than a file still comes whole.
  ASSERT_TRUE(log.Append("a long line indeed\n").ok());
  EXPECT_EQ(Text(Path("node-1.log")), "a long line indeed\n");
}

TEST_F(LogFileTest, GoesOnWithWhatADaemonOfThisNumberWrote) {
  ASSERT_TRUE(Open(10).Append("before\n").ok());
  LogFile log = Open(10);
  ASSERT_TRUE(log.Append("after\n").ok());
  EXPECT_EQ(Text(Path("node-1.log.1")), "before\n");
}

TEST_F(LogFileTest, ComesBackWhenItWasRemovedOrMoved) {
  LogFile log = Open();
  ASSERT_TRUE(log.Append("1\n").ok());
  fs::remove(Path("node-1.log"));
  ASSERT_TRUE(log.Append("2\n").ok());
  EXPECT_TRUE(log.TakeReplaced());
  EXPECT_FALSE(log.TakeReplaced());
  fs::rename(Path("node-1.log"), Path("elsewhere"));
  ASSERT_TRUE(log.Append("3\n").ok());
  EXPECT_TRUE(log.TakeReplaced());
  fs::remove_all(folder_ + "/logs");
  ASSERT_TRUE(log.Append("4\n").ok());
  EXPECT_TRUE(log.TakeReplaced());
  EXPECT_EQ(Text(Path("node-1.log")), "4\n");
}

TEST_F(LogFileTest, FollowsNoSymlinkAndTrustsNoStrangersFolder) {
  LogFile log = Open();
  ASSERT_TRUE(log.Append("1\n").ok());
  std::ofstream(folder_ + "/victim") << "precious";
  fs::remove(Path("node-1.log"));
  fs::create_symlink(folder_ + "/victim", Path("node-1.log"));
  EXPECT_FALSE(log.Append("2\n").ok());
  EXPECT_EQ(Text(folder_ + "/victim"), "precious");
  fs::remove(Path("node-1.log"));
  ASSERT_EQ(::mkfifo(Path("node-1.log").c_str(), 0600), 0);
  EXPECT_FALSE(log.Append("3\n").ok()) << "and it does not wait for a reader";
  fs::remove(Path("node-1.log"));
  ASSERT_EQ(::chmod((folder_ + "/logs").c_str(), 0755), 0);
  EXPECT_FALSE(log.Append("4\n").ok());
  ASSERT_EQ(::chmod((folder_ + "/logs").c_str(), 0700), 0);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown((folder_ + "/logs").c_str(), 12345, 12345), 0);
    EXPECT_FALSE(log.Append("5\n").ok());
    ASSERT_EQ(::chown((folder_ + "/logs").c_str(), 0, 0), 0);
  }
  ASSERT_TRUE(log.Append("6\n").ok());
  EXPECT_EQ(Text(Path("node-1.log")), "6\n");
}

TEST_F(LogFileTest, AFullDiskLeavesNoHalfLinesAndIsTriedAgain) {
  ::signal(SIGXFSZ, SIG_IGN);
  LogFile log = Open();
  ASSERT_TRUE(log.Append("first\n").ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit tight{9, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const bool full = !log.Append("second\n").ok() && !log.Append("third\n").ok();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(full);
  ASSERT_TRUE(log.Append("fourth\n").ok());
  EXPECT_EQ(Text(Path("node-1.log")), "first\nfourth\n");
}

TEST_F(LogFileTest, WithoutRotationItDoesNotGrowEither) {
  LogFile log = Open(10);
  ASSERT_TRUE(log.Append("line 0\n").ok());
  std::ofstream(Path("node-1.log.2")) << "older";
  fs::create_directories(Path("node-1.log.3/in the way"));
  EXPECT_FALSE(log.Append("line 1\n").ok());
  EXPECT_FALSE(log.Append("line 2\n").ok());
  EXPECT_LE(fs::file_size(Path("node-1.log")), 10u);
  fs::remove_all(Path("node-1.log.3"));
  ASSERT_TRUE(log.Append("line 3\n").ok());
  EXPECT_EQ(Text(Path("node-1.log")), "line 3\n");
}

TEST_F(LogFileTest, StandardErrorGoesWithIt) {
  const int before = ::dup(STDERR_FILENO);
  LogFile log(folder_ + "/logs", "node-1.log", 10, true);
  bool ok = log.Append("line 0\n").ok() && log.Append("line 1\n").ok();
  ok = ok && ::write(STDERR_FILENO, "crash\n", 6) == 6;
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  EXPECT_TRUE(ok);
  EXPECT_EQ(Text(Path("node-1.log")), "line 1\ncrash\n");
}

TEST_F(LogFileTest, OfDaemonsThatHaveEndedTheLatestAreKept) {
  LogFile running(folder_ + "/logs", "node-1.log", 10, false);
  ASSERT_TRUE(running.Append("it runs\n").ok());
  ASSERT_TRUE(running.Append("and on\n").ok());
  for (int i = 2; i < 7; ++i) {
    const std::string name = "node-" + std::to_string(i) + ".log";
    std::ofstream(Path(name)) << "ended";
    std::ofstream(Path(name + ".1")) << "older";
    fs::last_write_time(Path(name), fs::file_time_type::clock::now() - std::chrono::hours(10 - i));
  }
  std::ofstream(Path("notes")) << "not ours";
  LogFile::DeleteOld(folder_ + "/logs", 2);
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder_ + "/logs")) left.insert(entry.path().filename());
  EXPECT_EQ(left, (std::set<std::string>{"node-1.log", "node-1.log.1", "node-5.log", "node-5.log.1", "node-6.log",
                                         "node-6.log.1", "notes"}));
}

}  // namespace
}  // namespace weft::core
