// The daemon with real processes: `weft node` as a driver starts it, and workers of node/test_worker_main.cc.
#include "node/node_daemon.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <deque>
#include <fstream>

#include "base/clock.h"
#include "os/child_process.h"
#include "os/socket.h"

extern char** environ;

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kPatienceNs = 10'000 * kMs;  // for what must come; a loaded machine is slow

// A zombie counts as gone: it is its parent's business.
bool IsRunning(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return false;
  size_t at = text.rfind(')');
  return at != std::string::npos && text[at + 2] != 'Z';
}

bool WaitUntilGone(pid_t pid, int64_t patience_ns) {
  for (int64_t deadline = NowNs() + patience_ns; NowNs() < deadline;) {
    if (!IsRunning(pid)) return true;
    ::poll(nullptr, 0, 1);
  }
  return !IsRunning(pid);
}

int CountDescriptors(pid_t pid) {
  int count = 0;
  std::string path = "/proc/" + std::to_string(pid) + "/fd/";
  for (int fd = 0; fd < 512; ++fd) {
    char buffer[8];
    count += ::readlink((path + std::to_string(fd)).c_str(), buffer, sizeof buffer) >= 0;
  }
  return count;
}

class TestDriver {
 public:
  struct Options {
    double cpus = 2;
    std::vector<std::string> command = {WEFT_TEST_WORKER};
    bool zygote = false;
    bool forward_output = true;
    ResourceAmounts more;  // beside the CPUs
    bool open = true;
  };

  explicit TestDriver(Options options) {
    auto pair = StreamSocketPair();
    ChildProgram program;
    program.command = {WEFT_PROGRAM, "node"};
    for (char** entry = environ; *entry != nullptr; ++entry) program.environment.push_back(*entry);
    int error = ::dup(2);
    program.descriptors = {{pair->second.get(), 3}, {error, 2}};
    daemon_ = *StartProgram(program);
    ::close(error);
    stream_ = std::make_unique<MessageStream>(std::move(pair->first));
    if (!options.open) return;
    OpenSession open;
    open.pid = ::getpid();
    open.resources = {{"CPU", static_cast<int64_t>(options.cpus * kResourceUnit)}};
    open.resources.insert(open.resources.end(), options.more.begin(), options.more.end());
    open.object_store_bytes = 64 << 20;
    open.python_workers = options.zygote;
    open.worker_command = options.command;
    open.environment = program.environment;
    open.forward_output = options.forward_output;
    Send(open);
    auto welcome = Expect<Welcome>();
    EXPECT_EQ(welcome.process.value, 1u);
    EXPECT_EQ(welcome.cpus, static_cast<uint32_t>(options.cpus));
  }
  ~TestDriver() {
    stream_.reset();
    if (daemon_ > 0) Join();
  }

  void Send(const Message& message) {
    stream_->Queue(message);
    for (int64_t deadline = NowNs() + kPatienceNs; stream_->queued_bytes() > 0 && NowNs() < deadline;) {
      if (!stream_->Flush()) return;
    }
  }
  void Request(uint32_t count, double cpus = 1) {
    Send(RequestLeases{{{"CPU", static_cast<int64_t>(cpus * kResourceUnit)}}, count, 0});
  }
  void Command(ProcessId worker, const std::string& text) { Send(RouteTo{worker, text}); }

  // The next message of this type that satisfies the condition. Others stay for later calls, in order.
  template <class M>
  M Expect(std::function<bool(const M&)> condition = nullptr, int64_t patience_ns = kPatienceNs) {
    for (int64_t deadline = NowNs() + patience_ns;;) {
      for (auto entry = kept_.begin(); entry != kept_.end(); ++entry) {
        auto* message = std::get_if<M>(&entry->message);
        if (message == nullptr || (condition && !condition(*message))) continue;
        M found = std::move(*message);
        kept_.erase(entry);
        return found;
      }
      if (!Receive(deadline)) {
        ADD_FAILURE() << "message " << Message(M{}).index() << " did not come; others: " << KeptTypes();
        return M{};
      }
    }
  }
  std::string ExpectReport(ProcessId from, const std::string& start) {
    return Expect<Routed>([&](const Routed& m) { return m.from == from && m.payload.starts_with(start); }).payload;
  }
  void Create(uint64_t index, int32_t max_restarts = 0, double cpus = 0, const std::string& name = "") {
    CreateActor create;
    create.actor = ObjectId{ProcessId{1}, index};
    if (cpus > 0) create.to_place = {{"CPU", static_cast<int64_t>(cpus * kResourceUnit)}};
    create.max_restarts = max_restarts;
    create.class_name = "Counter";
    create.name = name;
    create.request = name.empty() ? 0 : index;
    Send(create);
  }
  ActorChanged ExpectActor(uint64_t index, ActorState state) {
    return Expect<ActorChanged>(
        [&](const ActorChanged& m) { return m.actor.index == index && m.state == static_cast<uint8_t>(state); });
  }
  // Created, constructed and alive; its worker.
  ProcessId LivingActor(uint64_t index, int32_t max_restarts = 0, const std::string& name = "") {
    Create(index, max_restarts, 0, name);
    ProcessId worker = ExpectActor(index, ActorState::kStarting).worker;
    Command(worker, "constructed 1 " + std::to_string(index) + " 1");
    EXPECT_EQ(ExpectActor(index, ActorState::kAlive).worker, worker);
    return worker;
  }
  // Where in what was received and not yet expected.
  template <class M>
  size_t Position(std::function<bool(const M&)> condition) {
    for (size_t i = 0; i < kept_.size(); ++i) {
      auto* message = std::get_if<M>(&kept_[i].message);
      if (message != nullptr && condition(*message)) return i;
    }
    return SIZE_MAX;
  }
  ProcessDied ExpectDeath(ProcessId process) {
    return Expect<ProcessDied>([&](const ProcessDied& m) { return m.process == process; });
  }
  // A worker leased to the driver, and its number in the system.
  LeaseGranted Lease() {
    Request(1);
    auto granted = Expect<LeaseGranted>();
    EXPECT_NE(granted.worker.value, 0u);
    return granted;
  }
  bool Has(std::function<bool(const Message&)> condition) {
    for (const auto& received : kept_) {
      if (condition(received.message)) return true;
    }
    return false;
  }

  // Receives until something was received. False after the deadline or the end of the connection.
  bool Receive(int64_t deadline_ns) {
    for (;;) {
      stream_->Flush();
      bool any = false;
      while (auto received = stream_->Next()) {
        any = true;
        kept_.push_back(std::move(*received));
      }
      if (any) return true;
      if (stream_->Receive()) continue;
      if (stream_->state() != MessageStream::State::kOpen) return false;
      int64_t left = deadline_ns - NowNs();
      if (left <= 0) return false;
      pollfd waiting{stream_->fd(), POLLIN, 0};
      ::poll(&waiting, 1, static_cast<int>(left / kMs + 1));
    }
  }

  std::vector<pid_t> Children() {
    std::vector<pid_t> all;
    Collect(daemon_, all);
    return all;
  }

  // Waits for the daemon's end and returns its exit code.
  int Join() {
    int status = 0;
    int64_t deadline = NowNs() + kPatienceNs;
    while (::waitpid(daemon_, &status, WNOHANG) == 0) {
      if (NowNs() > deadline) {
        ADD_FAILURE() << "the daemon does not end";
        ::kill(daemon_, SIGKILL);
      }
      ::poll(nullptr, 0, 1);
    }
    daemon_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  void Hang() { stream_.reset(); }
  pid_t daemon() const { return daemon_; }
  MessageStream& stream() { return *stream_; }

 private:
  static void Collect(pid_t pid, std::vector<pid_t>& all) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
    for (pid_t child; file >> child;) {
      all.push_back(child);
      Collect(child, all);
    }
  }
  std::string KeptTypes() const {
    std::string text;
    for (const auto& received : kept_) {
      text += std::to_string(received.message.index());
      if (auto* routed = std::get_if<Routed>(&received.message))
        text.append("(").append(routed->payload, 0, 100).append(")");
      if (auto* refused = std::get_if<LeaseRefused>(&received.message))
        text.append("(").append(refused->why).append(")");
      if (auto* died = std::get_if<ProcessDied>(&received.message)) text.append("(").append(died->how).append(")");
      text += " ";
    }
    return text;
  }

  pid_t daemon_ = 0;
  std::unique_ptr<MessageStream> stream_;
  std::deque<ReceivedMessage> kept_;
};

// Everything below holds whether workers are executed or forked from a zygote.
class NodeDaemonTest : public testing::TestWithParam<bool> {
 protected:
  TestDriver::Options Options(double cpus = 2) {
    TestDriver::Options options;
    options.cpus = cpus;
    options.zygote = GetParam();
    if (GetParam()) options.command.push_back("zygote");
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Workers, NodeDaemonTest, testing::Values(false, true),
                         [](const auto& info) { return info.param ? "forked" : "executed"; });

TEST_P(NodeDaemonTest, GrantsLeasesWithAChannelOnce) {
  TestDriver driver(Options());
  driver.Request(2);
  auto first = driver.Expect<ChannelOpened>();
  EXPECT_EQ(first.first_side, 1);
  auto granted = driver.Expect<LeaseGranted>();
  auto second = driver.Expect<ChannelOpened>();
  EXPECT_NE(first.own_slot, second.own_slot);
  auto other = driver.Expect<LeaseGranted>();
  EXPECT_NE(granted.worker, other.worker);
  EXPECT_EQ(driver.ExpectReport(granted.worker, "channel"), "channel to 1 first 0 slots " +
                                                                std::to_string(first.peer_slot) + " " +
                                                                std::to_string(first.own_slot) + " with 2");
  // The same pair gets no second channel.
  driver.Send(ReturnLease{granted.lease});
  driver.Request(1);
  EXPECT_EQ(driver.Expect<LeaseGranted>().worker, granted.worker);
  EXPECT_FALSE(driver.Has([](const Message& m) { return std::holds_alternative<ChannelOpened>(m); }));
}

TEST_P(NodeDaemonTest, SaysWhyAShapeCanNeverBeHad) {
  TestDriver driver(Options());
  driver.Request(1, 64);
  auto refused = driver.Expect<LeaseRefused>();
  EXPECT_NE(refused.why.find("64 CPU"), std::string::npos) << refused.why;
  EXPECT_NE(refused.why.find("2 CPU"), std::string::npos) << refused.why;
}

TEST_P(NodeDaemonTest, DeathsAreAnnouncedWithTheReasonAndTheWorkerIsReplaced) {
  TestDriver driver(Options(1));
  struct Case {
    const char* command;
    const char* how;
  };
  for (const Case& test : {Case{"exit 3", "exited with code 3"}, Case{"raise 9", "killed by signal 9 (SIGKILL)"},
                           Case{"raise 11", "killed by signal 11 (SIGSEGV)"}, Case{"exit 0", "exited with code 0"}}) {
    auto lease = driver.Lease();
    int64_t start = NowNs();
    driver.Command(lease.worker, test.command);
    EXPECT_EQ(driver.ExpectDeath(lease.worker).how, test.how);
    EXPECT_LT(NowNs() - start, 1000 * kMs);
  }
  auto lease = driver.Lease();
  driver.Command(lease.worker, "hello");
  EXPECT_EQ(driver.ExpectReport(lease.worker, "echo"), "echo hello");
}

TEST_P(NodeDaemonTest, AWorkerThatClosedItsDescriptorsIsDead) {
  TestDriver driver(Options(1));
  auto lease = driver.Lease();
  driver.Command(lease.worker, "close");
  auto died = driver.ExpectDeath(lease.worker);
  EXPECT_NE(died.how.find("SIGKILL"), std::string::npos) << died.how;
  EXPECT_NE(died.how.find("closed its connection"), std::string::npos) << died.how;
  driver.Lease();
}

TEST_P(NodeDaemonTest, WhoeverRoutesToTheDeadHearsItAgain) {
  TestDriver driver(Options(1));
  auto lease = driver.Lease();
  driver.Command(lease.worker, "exit 4");
  driver.ExpectDeath(lease.worker);
  driver.Command(lease.worker, "are you there");
  EXPECT_EQ(driver.ExpectDeath(lease.worker).how, "exited with code 4");
  driver.Command(ProcessId{12345}, "nobody");
  EXPECT_EQ(driver.ExpectDeath(ProcessId{12345}).how, "it never existed");
}

TEST_P(NodeDaemonTest, LastWordsArriveBeforeTheDeath) {
  TestDriver driver(Options(1));
  auto lease = driver.Lease();
  driver.Command(lease.worker, "say last words without an end");
  int64_t deadline = NowNs() + kPatienceNs;
  auto is_death = [](const Message& m) { return std::holds_alternative<ProcessDied>(m); };
  auto is_output = [](const Message& m) { return std::holds_alternative<WorkerOutput>(m); };
  while (!driver.Has(is_death)) {
    bool had_output = driver.Has(is_output);
    ASSERT_TRUE(driver.Receive(deadline));
    if (driver.Has(is_death) && !had_output) {
      // Both in one piece: the order within it decides, which Expect keeps.
      break;
    }
  }
  auto output = driver.Expect<WorkerOutput>(nullptr, 0);
  EXPECT_EQ(output.text, "last words without an end");
  EXPECT_EQ(output.worker, lease.worker);
  EXPECT_EQ(output.is_stderr, 0);
  EXPECT_EQ(driver.ExpectDeath(lease.worker).how, "exited with code 7");
}

TEST_P(NodeDaemonTest, OutputWaitsForASlowDriverAndNothingIsLost) {
  TestDriver driver(Options(1));
  auto lease = driver.Lease();
  constexpr size_t kBytes = 8 << 20;
  driver.Command(lease.worker, "print " + std::to_string(kBytes));
  // The driver does not read; the daemon must stop taking, and the worker must stop printing.
  ::poll(nullptr, 0, 0);
  size_t got = 0;
  while (got < kBytes) {
    auto output = driver.Expect<WorkerOutput>();
    ASSERT_FALSE(output.text.empty());
    EXPECT_EQ(output.text.back(), '\n');
    got += output.text.size();
  }
  driver.ExpectReport(lease.worker, "printed");
}

TEST_P(NodeDaemonTest, TheDriversDeathEndsEverything) {
  auto driver = std::make_unique<TestDriver>(Options(2));
  driver->Request(2);
  auto one = driver->Expect<LeaseGranted>();
  driver->Expect<LeaseGranted>();
  driver->Command(one.worker, "detach");
  pid_t orphan = std::stoi(driver->ExpectReport(one.worker, "child").substr(6));
  std::vector<pid_t> all = driver->Children();
  ASSERT_GE(all.size(), 3u);
  EXPECT_TRUE(IsRunning(orphan));
  int64_t start = NowNs();
  pid_t daemon = driver->daemon();
  driver->Hang();
  EXPECT_EQ(driver->Join(), 0);
  all.push_back(daemon);
  all.push_back(orphan);
  for (pid_t pid : all) EXPECT_TRUE(WaitUntilGone(pid, 1000 * kMs)) << pid;
  EXPECT_LT(NowNs() - start, 1000 * kMs);
}

TEST_P(NodeDaemonTest, FarewellEndsEverything) {
  TestDriver driver(Options(2));
  driver.Lease();
  std::vector<pid_t> all = driver.Children();
  driver.Send(CloseSession{});
  EXPECT_EQ(driver.Join(), 0);
  for (pid_t pid : all) EXPECT_TRUE(WaitUntilGone(pid, 1000 * kMs)) << pid;
}

TEST_P(NodeDaemonTest, TheDaemonsDeathEndsTheWorkers) {
  TestDriver driver(Options(2));
  driver.Lease();
  std::vector<pid_t> all = driver.Children();
  ASSERT_GE(all.size(), 1u);
  ::kill(driver.daemon(), SIGKILL);
  EXPECT_EQ(driver.Join(), -SIGKILL);
  for (pid_t pid : all) EXPECT_TRUE(WaitUntilGone(pid, 1000 * kMs)) << pid;
}

TEST_P(NodeDaemonTest, ABlockedWorkerLendsItsCpu) {
  TestDriver driver(Options(1));
  auto lease = driver.Lease();
  // No demand: blocking is silent. The child's request then finds the flag.
  driver.Command(lease.worker, "block");
  EXPECT_EQ(driver.ExpectReport(lease.worker, "blocked"), "blocked");
  driver.Command(lease.worker, "request 1 1");
  std::string granted = driver.ExpectReport(lease.worker, "granted");
  EXPECT_FALSE(driver.Has([](const Message& m) { return std::holds_alternative<LeaseRecalled>(m); }));
  // It resumes: over-committed, so the driver gets nothing until the child's lease is back.
  driver.Command(lease.worker, "unblock");
  driver.ExpectReport(lease.worker, "unblocked");
  driver.Request(1);
  // With demand it says so.
  driver.Command(lease.worker, "block");
  EXPECT_EQ(driver.ExpectReport(lease.worker, "blocked"), "blocked and said so");
  driver.Command(lease.worker, "return " + granted.substr(8, granted.find(' ', 8) - 8));
  driver.Expect<LeaseGranted>();
}

TEST_P(NodeDaemonTest, RecallsALeaseForSomebodyWhoHasNone) {
  TestDriver driver(Options(2));
  driver.Request(2);
  auto one = driver.Expect<LeaseGranted>();
  auto two = driver.Expect<LeaseGranted>();
  driver.Command(one.worker, "request 1 1");
  auto recalled = driver.Expect<LeaseRecalled>();
  EXPECT_TRUE(recalled.lease == one.lease || recalled.lease == two.lease);
  if (recalled.lease == two.lease) {
    driver.Send(ReturnLease{two.lease});
    driver.ExpectReport(one.worker, "granted");
  }
}

TEST_P(NodeDaemonTest, TheWorkersOfADeadSubmitterAreReplaced) {
  TestDriver driver(Options(2));
  auto parent = driver.Lease();
  driver.Command(parent.worker, "request 1 1");
  std::string granted = driver.ExpectReport(parent.worker, "granted");
  ProcessId child{std::stoull(granted.substr(granted.rfind(' ') + 1))};
  driver.Command(child, "hello");  // from now on the driver hears of its death
  driver.ExpectReport(child, "echo");
  driver.Command(parent.worker, "raise 9");
  driver.ExpectDeath(parent.worker);
  auto died = driver.ExpectDeath(child);
  EXPECT_NE(died.how.find("the process whose tasks it ran has ended"), std::string::npos) << died.how;
  driver.Request(2);
  driver.Expect<LeaseGranted>();
  driver.Expect<LeaseGranted>();
}

TEST_P(NodeDaemonTest, NonsenseFromAWorkerEndsThatWorkerOnly) {
  TestDriver driver(Options(2));
  driver.Request(1);
  auto bystander = driver.Expect<LeaseGranted>();
  driver.Command(bystander.worker, "hello");
  driver.ExpectReport(bystander.worker, "echo");
  int descriptors = 0;
  std::vector<std::string> commands = {"garbage",
                                       "length 0",
                                       "length 1",
                                       "length 4194305",
                                       "length 2147483648",
                                       "length 4294967295",
                                       "type 0",
                                       "type 200",
                                       "type 13",
                                       "type 15",
                                       "fds",
                                       "nofd",
                                       "badsegment",
                                       "again",
                                       "badshape",
                                       "farewell",
                                       "hold 0 1",
                                       "hold 1 1",
                                       "hold 999999 1",
                                       "list 16385",
                                       "type 1",
                                       "length 100"};
  for (const auto& command : commands) {
    driver.Request(1);
    auto lease = driver.Expect<LeaseGranted>();
    driver.Command(lease.worker, "hello");
    driver.ExpectReport(lease.worker, "echo");
    if (descriptors == 0) descriptors = CountDescriptors(driver.daemon());
    driver.Command(lease.worker, command);
    if (command == "length 100") {  // promised and not sent: allowed, and costs nothing
      driver.Command(lease.worker, "exit 0");
    }
    auto died = driver.ExpectDeath(lease.worker);
    EXPECT_FALSE(died.how.empty()) << command;
    driver.Command(bystander.worker, "hello");
    driver.ExpectReport(bystander.worker, "echo");
  }
  driver.Request(1);
  auto lease = driver.Expect<LeaseGranted>();
  driver.Command(lease.worker, "hello");
  driver.ExpectReport(lease.worker, "echo");
  EXPECT_EQ(CountDescriptors(driver.daemon()), descriptors) << "descriptors leak";
}

TEST_P(NodeDaemonTest, MemoryIsCountedAndComesBack) {
  TestDriver driver(Options(1));
  driver.Send(ReserveMemory{uint64_t{1} << 40, 1});
  auto refused = driver.Expect<MemoryReserved>();
  EXPECT_EQ(refused.granted, 0);
  EXPECT_FALSE(refused.why_not.empty());
  auto lease = driver.Lease();
  driver.Command(lease.worker, "reserve " + std::to_string(40 << 20));
  driver.Command(lease.worker, "sync");
  driver.ExpectReport(lease.worker, "echo");
  driver.Send(ReserveMemory{30 << 20, 2});  // waits: 64 MB in all
  driver.Command(lease.worker, "exit 0");   // what it had not sealed comes back
  auto reserved = driver.Expect<MemoryReserved>();
  EXPECT_EQ(reserved.request, 2u);
  EXPECT_EQ(reserved.granted, 1) << reserved.why_not;
}

TEST_P(NodeDaemonTest, UnknownSegmentsAreAnsweredAndFreesOfThemIgnored) {
  TestDriver driver(Options(1));
  driver.Send(OpenSegment{SegmentId{77}});
  auto opened = driver.Expect<SegmentOpened>();
  EXPECT_EQ(opened.segment.value, 77u);
  EXPECT_EQ(opened.size, 0u);
  auto lease = driver.Lease();
  driver.Send(FreeObjects{{Location{SegmentId{77}, 0, 64, 1}, Location{SegmentId{lease.worker.value}, 0, 64, 1}}});
  EXPECT_EQ(driver.ExpectReport(lease.worker, "freed"), "freed 1");
}

TEST_P(NodeDaemonTest, ATargetThatDoesNotReadHoldsUpTheSenderAndNotTheMemory) {
  TestDriver driver(Options(1));
  auto lease = driver.Lease();
  driver.Command(lease.worker, "stop");
  std::string payload(1 << 20, 'p');
  // Far more than the daemon may buffer. Sent without waiting: our own queue takes what the socket does not.
  for (int i = 0; i < 200; ++i) driver.stream().Queue(RouteTo{lease.worker, payload});
  size_t before = driver.stream().queued_bytes();
  size_t after = before;
  for (int64_t quiet_since = NowNs(); NowNs() - quiet_since < 300 * kMs;) {
    driver.stream().Flush();
    if (size_t now = driver.stream().queued_bytes(); now != after) {
      after = now;
      quiet_since = NowNs();
    }
    ::poll(nullptr, 0, 1);
  }
  EXPECT_GT(after, size_t{100} << 20);
  EXPECT_LT(before - after, size_t{80} << 20);
  // When the target goes on, or dies, so does the sender.
  for (pid_t pid : driver.Children()) ::kill(pid, SIGKILL);
  driver.ExpectDeath(lease.worker);
}

// ---- actors -----------------------------------------------------------------------------------------------------

TEST_P(NodeDaemonTest, AnActorGetsAWorkerOfItsOwn) {
  TestDriver driver(Options(1));
  driver.Create(5, 0, 1);
  auto starting = driver.ExpectActor(5, ActorState::kStarting);
  EXPECT_EQ(starting.incarnation, 1u);
  // The channel came first, which the worker confirms.
  auto opened = driver.Expect<ChannelOpened>(nullptr, 0);
  EXPECT_EQ(opened.peer, starting.worker);
  EXPECT_EQ(opened.first_side, 1);
  driver.ExpectReport(starting.worker, "channel to 1");
  // While the constructor runs it has the only CPU; afterwards it holds nothing.
  driver.Request(1);
  driver.Command(starting.worker, "constructed 1 5 1");
  driver.ExpectActor(5, ActorState::kAlive);
  EXPECT_NE(driver.Expect<LeaseGranted>().worker, starting.worker);
  driver.Send(ReleaseActor{ObjectId{ProcessId{1}, 5}});
  auto dead = driver.ExpectActor(5, ActorState::kDead);
  EXPECT_NE(dead.why.find("actor Counter (pid "), std::string::npos) << dead.why;
  EXPECT_NE(dead.why.find("no handle to it was left"), std::string::npos) << dead.why;
  driver.ExpectDeath(starting.worker);
}

TEST_P(NodeDaemonTest, AnActorsDeathIsToldBeforeTheProcesss) {
  TestDriver driver(Options(1));
  ProcessId worker = driver.LivingActor(5);
  driver.Command(worker, "raise 9");
  auto of_actor = [&](const ActorChanged& m) { return m.state == static_cast<uint8_t>(ActorState::kDead); };
  auto of_process = [&](const ProcessDied& m) { return m.process == worker; };
  while (driver.Position<ProcessDied>(of_process) == SIZE_MAX) ASSERT_TRUE(driver.Receive(NowNs() + kPatienceNs));
  EXPECT_LT(driver.Position<ActorChanged>(of_actor), driver.Position<ProcessDied>(of_process));
  auto dead = driver.ExpectActor(5, ActorState::kDead);
  EXPECT_TRUE(dead.why.starts_with("actor Counter (pid ")) << dead.why;
  EXPECT_TRUE(dead.why.ends_with(") was killed by signal 9 (SIGKILL)")) << dead.why;
  driver.ExpectDeath(worker);
}

TEST_P(NodeDaemonTest, ACrashedActorComesBackOnAnotherWorker) {
  TestDriver driver(Options(1));
  ProcessId worker = driver.LivingActor(5, 1);
  driver.Command(worker, "exit 3");
  auto restarting = driver.ExpectActor(5, ActorState::kRestarting);
  EXPECT_TRUE(restarting.why.ends_with("exited with code 3")) << restarting.why;
  auto starting = driver.ExpectActor(5, ActorState::kStarting);
  EXPECT_NE(starting.worker, worker);
  EXPECT_EQ(starting.incarnation, 2u);
  driver.Send(KillActor{ObjectId{ProcessId{1}, 5}, 0});
  auto dead = driver.ExpectActor(5, ActorState::kDead);
  EXPECT_NE(dead.why.find("restarted 1 time,"), std::string::npos) << dead.why;
}

TEST_P(NodeDaemonTest, AFailedConstructorEndsTheActorAndTheWorkerLeaves) {
  TestDriver driver(Options(1));
  driver.Create(5, -1);
  ProcessId worker = driver.ExpectActor(5, ActorState::kStarting).worker;
  driver.Command(worker, "constructed 1 5 0");
  EXPECT_EQ(driver.ExpectActor(5, ActorState::kDead).error, "boom");
  EXPECT_EQ(driver.ExpectDeath(worker).how, "exited with code 0");
}

TEST_P(NodeDaemonTest, WatchersGetAChannelAndTheNews) {
  TestDriver driver(Options(2));
  auto other = driver.Lease();
  driver.Command(other.worker, "watch 1 5");  // before it is created
  driver.Command(other.worker, "hello");
  driver.ExpectReport(other.worker, "echo");
  ProcessId worker = driver.LivingActor(5);
  driver.ExpectReport(other.worker, "channel to " + ToString(worker) + " first 1");
  driver.ExpectReport(other.worker, "actor 5 state 2 on " + ToString(worker));
  driver.ExpectReport(other.worker, "actor 5 state 3 on " + ToString(worker));
  driver.ExpectReport(worker, "channel to " + ToString(other.worker) + " first 0");
  // It may call itself.
  driver.Command(worker, "watch 1 5");
  driver.ExpectReport(worker, "channel to " + ToString(worker) + " first 0");
  driver.ExpectReport(worker, "channel to " + ToString(worker) + " first 1");
  driver.ExpectReport(worker, "actor 5 state 3");
  driver.Command(worker, "exiting 1 5");
  driver.Command(worker, "hello");
  driver.ExpectReport(worker, "echo");  // it has sent what it had to say
  driver.Command(worker, "exit 0");
  EXPECT_NE(driver.ExpectReport(other.worker, "actor 5 state 5").find("ended itself"), std::string::npos);
  driver.Command(other.worker, "watch 77 1");
  EXPECT_NE(driver.ExpectReport(other.worker, "actor 1 state 5").find("no such actor"), std::string::npos);
}

TEST_P(NodeDaemonTest, OnlyObjectsOfDeadOwnersAreHeldAsOrphans) {
  TestDriver driver(Options(2));
  driver.Request(2);
  const ProcessId holder = driver.Expect<LeaseGranted>().worker, owner = driver.Expect<LeaseGranted>().worker;
  driver.Command(owner, "exit 0");
  driver.ExpectDeath(owner);
  driver.Command(holder, "hold " + ToString(owner) + " 1");
  driver.ExpectReport(holder, "held");
  driver.Command(holder, "list 16384");
  driver.Command(holder, "hold 1 1");
  const std::string how = driver.ExpectDeath(holder).how;
  EXPECT_NE(how.find("named an object of a living process an orphan"), std::string::npos) << how;
}

TEST_P(NodeDaemonTest, NamesAreAnsweredAndFreedByAKill) {
  TestDriver driver(Options(1));
  driver.LivingActor(5, 0, "counter");
  EXPECT_EQ(driver.Expect<ActorAnswer>().error, "");
  driver.Send(LookupActor{8, "counter", ""});
  EXPECT_EQ(driver.Expect<ActorAnswer>().actor.index, 5u);
  driver.Create(6, 0, 0, "counter");
  EXPECT_NE(driver.Expect<ActorAnswer>().error.find("is taken"), std::string::npos);
  driver.Send(ListActors{9, 1, ""});
  EXPECT_EQ(driver.Expect<ActorList>().actors.size(), 1u);
  driver.Send(KillActor{ObjectId{ProcessId{1}, 5}, 1});
  driver.LivingActor(7, 0, "counter");
  EXPECT_TRUE(driver.ExpectActor(5, ActorState::kDead).why.ends_with("was killed on request"));
}

TEST_P(NodeDaemonTest, ActorsEndWithTheirCreator) {
  TestDriver driver(Options(2));
  auto parent = driver.Lease();
  driver.Command(parent.worker, "create 9");
  std::string text = driver.ExpectReport(parent.worker, "actor 9 state 2");
  ProcessId child{std::stoull(text.substr(text.find(" on ") + 4))};
  driver.Command(child, "constructed " + ToString(parent.worker) + " 9 1");
  driver.ExpectReport(parent.worker, "actor 9 state 3");
  driver.Command(parent.worker, "raise 9");
  driver.ExpectDeath(parent.worker);
  auto died = driver.ExpectDeath(child);
  EXPECT_NE(died.how.find("its creator has ended"), std::string::npos) << died.how;
}

TEST_P(NodeDaemonTest, WhoSpeaksForAnothersActorIsEnded) {
  TestDriver driver(Options(1));
  driver.LivingActor(5);
  auto lease = driver.Lease();
  driver.Command(lease.worker, "constructed 1 5 1");
  EXPECT_NE(driver.ExpectDeath(lease.worker).how.find("spoke for an actor"), std::string::npos);
}

TEST_P(NodeDaemonTest, ManyActorsLiveOnOneCpu) {
  TestDriver driver(Options(1));
  constexpr uint64_t kActors = 60;
  for (uint64_t index = 1; index <= kActors; ++index) driver.Create(index, 0, 1);
  std::set<ProcessId> workers;
  for (uint64_t i = 0; i < kActors; ++i) {
    auto starting = driver.Expect<ActorChanged>(
        [](const ActorChanged& m) { return m.state == static_cast<uint8_t>(ActorState::kStarting); });
    workers.insert(starting.worker);
    driver.Command(starting.worker, "constructed 1 " + std::to_string(starting.actor.index) + " 1");
  }
  EXPECT_EQ(workers.size(), kActors);
  for (uint64_t index = 1; index <= kActors; ++index) driver.ExpectActor(index, ActorState::kAlive);
  driver.Lease();  // and the CPU is free
  for (uint64_t index = 1; index <= kActors; ++index) driver.Send(ReleaseActor{ObjectId{ProcessId{1}, index}});
  for (uint64_t index = 1; index <= kActors; ++index) driver.ExpectActor(index, ActorState::kDead);
}

TEST_P(NodeDaemonTest, GpusAreAssignedByNumber) {
  auto options = Options(2);
  options.more = {{"GPU", 2 * kResourceUnit}};
  TestDriver driver(options);
  CreateActor create;
  create.actor = ObjectId{ProcessId{1}, 5};
  create.to_place = create.to_hold = {{"GPU", kResourceUnit}};
  driver.Send(create);
  EXPECT_EQ(driver.ExpectActor(5, ActorState::kStarting).gpus, (AssignedGpus{{0, kResourceUnit}}));
  driver.Send(RequestLeases{{{"GPU", kResourceUnit / 2}}, 2, 0});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(driver.Expect<LeaseGranted>().gpus, (AssignedGpus{{1, kResourceUnit / 2}}));
  create.actor.index = 6;
  create.to_place = {{"GPU", 3 * kResourceUnit}};
  driver.Send(create);
  auto dead = driver.ExpectActor(6, ActorState::kDead);
  EXPECT_NE(dead.why.find("only 2 in all"), std::string::npos) << dead.why;
}

TEST(NodeDaemon, ABrokenInterpreterIsReportedWithItsOwnWords) {
  for (bool zygote : {true, false}) {
    TestDriver::Options options;
    options.command = {WEFT_TEST_WORKER, "broken"};
    options.zygote = zygote;
    TestDriver driver(options);
    driver.Request(1);
    auto refused = driver.Expect<LeaseRefused>();
    EXPECT_NE(refused.why.find("no module named weft"), std::string::npos) << refused.why;
    EXPECT_NE(refused.why.find("exited with code 1"), std::string::npos) << refused.why;
    options.command = {"/nonexistent/python"};
    TestDriver other(options);
    other.Request(1);
    refused = other.Expect<LeaseRefused>();
    EXPECT_NE(refused.why.find("/nonexistent/python"), std::string::npos) << refused.why;
  }
}

TEST(NodeDaemon, WorkersOutliveTheirZygoteAndANewOneTakesOver) {
  TestDriver::Options options;
  options.zygote = true;
  options.command.push_back("zygote");
  TestDriver driver(options);
  auto lease = driver.Lease();
  std::vector<pid_t> all = driver.Children();
  std::ifstream file("/proc/" + std::to_string(driver.daemon()) + "/task/" + std::to_string(driver.daemon()) +
                     "/children");
  pid_t zygote = 0;
  file >> zygote;
  ASSERT_GT(zygote, 0);
  ::kill(zygote, SIGKILL);
  ASSERT_TRUE(WaitUntilGone(zygote, kPatienceNs));
  driver.Command(lease.worker, "hello");
  driver.ExpectReport(lease.worker, "echo");
  // Its exit status now comes to the daemon itself.
  driver.Command(lease.worker, "exit 5");
  EXPECT_EQ(driver.ExpectDeath(lease.worker).how, "exited with code 5");
  driver.Request(2);
  driver.Expect<LeaseGranted>();
  driver.Expect<LeaseGranted>();
}

TEST(NodeDaemon, NonsenseFromTheDriverEndsTheSession) {
  for (const std::string& bytes :
       {std::string(100, '\xff'), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(6, '\0')}) {
    TestDriver::Options options;
    options.open = false;
    TestDriver driver(options);
    ASSERT_TRUE(SendWithFds(driver.stream().fd(), bytes, {}).ok());
    EXPECT_EQ(driver.Join(), 1);
  }
  // A session that cannot be: no program, resources out of order, another version.
  OpenSession good;
  good.resources = {{"CPU", kResourceUnit}};
  good.worker_command = {"/bin/true"};
  std::vector<OpenSession> bad(4, good);
  bad[0].worker_command.clear();
  bad[1].resources = {{"CPU", -1}};
  bad[2].protocol = 99;
  bad[3].environment = {std::string("A=\0B", 4)};
  for (const auto& session : bad) {
    TestDriver::Options options;
    options.open = false;
    TestDriver driver(options);
    driver.Send(session);
    EXPECT_EQ(driver.Join(), 1);
  }
}

TEST(NodeDaemon, AnIdleSessionSleeps) {
  TestDriver::Options options;
  TestDriver driver(options);
  driver.Request(2);
  driver.Expect<LeaseGranted>();
  driver.Expect<LeaseGranted>();
  auto switches = [&] {
    std::ifstream file("/proc/" + std::to_string(driver.daemon()) + "/status");
    std::string word;
    long count = 0;
    while (file >> word) {
      if (word == "voluntary_ctxt_switches:") file >> count;
    }
    return count;
  };
  // What happens in 300 ms, once all that the start left to do is done.
  long in_a_while = 0;
  for (int i = 0; i < 20; ++i) {
    const long before = switches();
    ::poll(nullptr, 0, 300);
    in_a_while = switches() - before;
    if (in_a_while <= 3) break;
  }
  EXPECT_LE(in_a_while, 3);
}

}  // namespace
}  // namespace weft::core
