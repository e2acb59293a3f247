#include "os/spawn.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "os/fd.h"

namespace weft::core {
namespace {

TEST(Spawn, AProgramThatIsNotThereIsAnErrorAtOnce) {
  auto program = SpawnProgram({"/no/such/program"}, 1, false);
  ASSERT_FALSE(program.ok());
  EXPECT_NE(program.error().message.find("/no/such/program"), std::string::npos);
  EXPECT_FALSE(SpawnProgram({"no_such_program_in_the_path"}, 1, true).ok());
  auto daemon = SpawnWithSocket({"/no/such/program"}, 1);
  EXPECT_FALSE(daemon.ok());
}

TEST(Spawn, AProgramHasItsOutputAndNothingElse) {
  int ends[2];
  ASSERT_EQ(0, ::pipe(ends));
  UniqueFd reader(ends[0]), writer(ends[1]);
  auto program = SpawnProgram({"sh", "-c", "ls /proc/$$/fd; cat; echo to stderr >&2"}, writer.get(), true);
  ASSERT_TRUE(program.ok()) << program.error().message;
  writer.Reset();
  std::string text;
  char bytes[256];
  for (ssize_t size; (size = ::read(reader.get(), bytes, sizeof bytes)) > 0;)
    text.append(bytes, static_cast<size_t>(size));
  int status = 0;
  EXPECT_EQ(*program, ::waitpid(*program, &status, 0));
  EXPECT_EQ(0, status);
  EXPECT_EQ("0\n1\n2\nto stderr\n", text);
}

TEST(Spawn, AProgramHearsSignalsThatWeHaveBlocked) {
  sigset_t term, old;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &term, &old), 0);
  UniqueFd output(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  auto pid = SpawnProgram({"sleep", "60"}, output.get(), true);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  ASSERT_TRUE(pid.ok());
  ::kill(*pid, SIGTERM);
  int status = 0;
  ASSERT_EQ(::waitpid(*pid, &status, 0), *pid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

}  // namespace
}  // namespace weft::core
