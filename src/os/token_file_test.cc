#include "os/token_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace weft::core {
namespace {

class TokenFileTest : public testing::Test {
 protected:
  void SetUp() override {
    ::umask(022);
    char name[] = "/tmp/weft-token-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string Path(const std::string& name) const { return root_ + "/" + name; }
  void Write(const std::string& path, const std::string& text, mode_t mode = 0600) {
    std::ofstream(path) << text;
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
  }
  static mode_t ModeOf(const std::string& path) {
    struct stat info{};
    return ::lstat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
  }
  // The message of a refusal, which must have the given kind.
  static std::string Why(const Result<std::string>& result, ErrorKind kind = ErrorKind::kInvalid) {
    EXPECT_FALSE(result.ok());
    if (!result.ok()) {
      EXPECT_EQ(static_cast<int>(result.error().kind), static_cast<int>(kind)) << result.error().message;
    }
    return result.error().message;
  }

  std::string root_;
};

TEST_F(TokenFileTest, MadeAndRead) {
  const std::string path = Path("cluster/token");
  const auto made = CreateTokenFile(path);
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made.value().size(), 64u);
  EXPECT_EQ(made.value().find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(ModeOf(path), 0600u);
  EXPECT_EQ(ModeOf(Path("cluster")), 0700u);
  EXPECT_EQ(ReadTokenFile(path).value(), made.value());
  EXPECT_NE(CreateTokenFile(path).ok(), true) << "never overwritten";
  EXPECT_EQ(ReadTokenFile(path).value(), made.value());
  EXPECT_EQ(ReadOrCreateTokenFile(path).value(), made.value());
  size_t files = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(Path("cluster"))) ++files;
  EXPECT_EQ(files, 1u) << "nothing unfinished is left";
}

TEST_F(TokenFileTest, AnyUmask) {
  ::umask(0);
  ASSERT_TRUE(CreateTokenFile(Path("open/token")).ok());
  EXPECT_EQ(ModeOf(Path("open/token")), 0600u);
  EXPECT_EQ(ModeOf(Path("open")), 0700u);
  ::umask(0277);
  ASSERT_EQ(::mkdir(Path("closed").c_str(), 0700), 0);
  ASSERT_EQ(::chmod(Path("closed").c_str(), 0700), 0);
  ASSERT_TRUE(CreateTokenFile(Path("closed/token")).ok());
  EXPECT_EQ(ModeOf(Path("closed/token")), 0600u);
  ::umask(022);
}

TEST_F(TokenFileTest, TokensDiffer) {
  std::set<std::string> all;
  for (int i = 0; i < 100; ++i) all.insert(MakeToken());
  EXPECT_EQ(all.size(), 100u);
}

TEST_F(TokenFileTest, SeveralAtOnceGetTheSame) {
  const std::string path = Path("shared/token");
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  constexpr int kProcesses = 8;
  pid_t children[kProcesses];
  for (pid_t& child : children) {
    child = ::fork();
    if (child == 0) {
      const auto token = ReadOrCreateTokenFile(path);
      const std::string line = (token.ok() ? token.value() : std::string(64, '!'));
      const ssize_t written = ::write(pipes[1], line.data(), line.size());
      ::_exit(written == 64 ? 0 : 1);
    }
  }
  ::close(pipes[1]);
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  std::set<std::string> seen;
  char buffer[64];
  while (::read(pipes[0], buffer, sizeof buffer) == sizeof buffer) seen.insert(std::string(buffer, sizeof buffer));
  ::close(pipes[0]);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(*seen.begin(), ReadTokenFile(path).value());
}

TEST_F(TokenFileTest, RefusesFilesThatOthersCanRead) {
  const std::string token = MakeToken();
  for (const mode_t mode : {0640, 0604, 0644, 0620, 0602, 0666, 0610}) {
    Write(Path("token"), token, mode);
    const std::string why = Why(ReadTokenFile(Path("token")));
    EXPECT_NE(why.find("chmod 600"), std::string::npos) << why;
    EXPECT_EQ(why.find(token), std::string::npos) << "the token itself is never shown";
  }
  Write(Path("token"), token, 0400);
  EXPECT_EQ(ReadTokenFile(Path("token")).value(), token);
}

TEST_F(TokenFileTest, RefusesSymlinksAndOtherThings) {
  Write(Path("real"), MakeToken());
  ASSERT_EQ(::symlink(Path("real").c_str(), Path("link").c_str()), 0);
  EXPECT_NE(Why(ReadTokenFile(Path("link"))).find("symlink"), std::string::npos);
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_NE(Why(ReadTokenFile(Path("pipe"))).find("regular"), std::string::npos);
  ASSERT_EQ(::mkdir(Path("folder").c_str(), 0700), 0);
  EXPECT_NE(Why(ReadTokenFile(Path("folder"))).find("regular"), std::string::npos);
  Why(ReadTokenFile(Path("missing")), ErrorKind::kGone);
  // A name that waits for us is not written through.
  ASSERT_EQ(::mkdir(Path("private").c_str(), 0700), 0);
  ASSERT_EQ(::symlink(Path("target").c_str(), Path("private/token").c_str()), 0);
  EXPECT_NE(Why(CreateTokenFile(Path("private/token"))).find("exists"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(Path("target")));
  Why(ReadOrCreateTokenFile(Path("private/token")));
}

TEST_F(TokenFileTest, RefusesDirectoriesOfOthers) {
  ASSERT_EQ(::mkdir(Path("open").c_str(), 0755), 0);
  EXPECT_NE(Why(CreateTokenFile(Path("open/token"))).find("chmod 700"), std::string::npos);
  ASSERT_EQ(::mkdir(Path("private").c_str(), 0700), 0);
  ASSERT_EQ(::symlink(Path("private").c_str(), Path("link").c_str()), 0);
  EXPECT_NE(Why(CreateTokenFile(Path("link/token"))).find("symlink"), std::string::npos);
  Write(Path("file"), "x");
  EXPECT_NE(Why(CreateTokenFile(Path("file/token"))).find("file"), std::string::npos);
  Why(CreateTokenFile(Path("missing/deeper/token")), ErrorKind::kGone);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(Path("private").c_str(), 12345, 12345), 0);
    EXPECT_NE(Why(CreateTokenFile(Path("private/token"))).find("belongs to user 12345"), std::string::npos);
    Write(Path("foreign"), MakeToken());
    ASSERT_EQ(::chown(Path("foreign").c_str(), 12345, 12345), 0);
    EXPECT_NE(Why(ReadTokenFile(Path("foreign"))).find("belongs to user 12345"), std::string::npos);
  }
}

TEST_F(TokenFileTest, RefusesWhatIsNoToken) {
  const std::string contents[] = {"",
                                  "\n",
                                  "short",
                                  std::string(31, 'a'),
                                  std::string(1025, 'a'),
                                  std::string(100'000, 'a'),
                                  std::string(64, '\0'),
                                  "two words " + std::string(32, 'a'),
                                  std::string(32, 'a') + "\n" + std::string(32, 'b')};
  for (const std::string& content : contents) {
    Write(Path("token"), content);
    EXPECT_NE(Why(ReadTokenFile(Path("token"))).find("holds no token"), std::string::npos);
  }
  Write(Path("token"), std::string(1024, 'a') + "\r\n");
  EXPECT_EQ(ReadTokenFile(Path("token")).value(), std::string(1024, 'a'));
}

}  // namespace
}  // namespace weft::core
