// For the tests of this folder: a folder that goes away, and Redis servers with any configuration.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/clock.h"
#include "control_store/redis_connection.h"
#include "os/fd.h"
#include "os/spawn.h"

namespace weft::core {

inline constexpr int64_t kPatienceNs = 30'000'000'000;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    char name[] = "/tmp/weft_store_XXXXXX";
    path = ::mkdtemp(name);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
  std::string path;
};

inline bool RedisIsInstalled() { return ::system("command -v redis-server >/dev/null") == 0; }

// True as soon as the condition is; it is asked every few milliseconds.
template <class Condition>
bool Eventually(Condition&& condition) {
  const int64_t deadline_ns = NowNs() + kPatienceNs;
  while (!condition()) {
    if (NowNs() > deadline_ns) return false;
    ::poll(nullptr, 0, 5);
  }
  return true;
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A redis-server on a unix socket, with the lines of configuration that are given.
class TestRedis {
 public:
  explicit TestRedis(std::string config = "", std::string password = "") : config_(std::move(config)) {
    address.unix_path = folder.path + "/redis.sock";
    address.password = std::move(password);
    Start();
  }
  ~TestRedis() { Kill(); }

  void Start() {
    std::ofstream(folder.path + "/redis.conf")
        << "dir " << folder.path << "\nunixsocket " << address.unix_path << "\nport 0\nsave \"\"\n"
        << config_ << "\n";
    UniqueFd log(::open((folder.path + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    auto started = SpawnProgram({"redis-server", folder.path + "/redis.conf"}, log.get(), true);
    ASSERT_TRUE(started.ok()) << started.error().message;
    pid = *started;
    ASSERT_TRUE(Eventually([&] {
      auto connection = RedisConnection::Connect(address, 1'000, stop.get());
      if (!connection.ok()) return false;
      auto answer = (*connection)->Ask({"PING"}, 1'000, stop.get());
      return answer.ok() || answer.code() == StoreCode::kRefused;  // it asks for a password
    })) << ReadFile(folder.path + "/log");
  }
  void Kill() {
    if (pid <= 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    pid = -1;
  }

  // As the administrator. What the server says, as text; fails the test if it refuses.
  std::string Say(std::vector<std::string> words) {
    auto connection = RedisConnection::Connect(address, 5'000, stop.get());
    EXPECT_TRUE(connection.ok()) << connection.status().message();
    if (!connection.ok()) return "";
    if (!address.password.empty()) {
      EXPECT_TRUE((*connection)->Ask({"AUTH", address.password}, 5'000, stop.get()).ok());
    }
    (*connection)->Send(std::vector<std::string_view>(words.begin(), words.end()));
    RedisConnection* raw = connection->get();
    EXPECT_TRUE(RedisConnection::Await({&raw, 1}, 5'000, stop.get()).ok());
    RedisReply reply = raw->Next();
    StoreStatus status = raw->Judge(reply);
    EXPECT_TRUE(status.ok()) << words[0] << ": " << status.message();
    return reply.type == RedisReply::kInteger ? std::to_string(reply.integer) : reply.text;
  }

  TemporaryFolder folder;
  RedisAddress address;
  pid_t pid = -1;
  UniqueFd stop{::eventfd(0, EFD_CLOEXEC)};

 private:
  std::string config_;
};

}  // namespace weft::core
