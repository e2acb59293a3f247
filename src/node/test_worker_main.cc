// A worker for the daemon's tests: speaks the control messages and does what the driver routes to it as text.
//
//   test_worker                 a worker, its socket named by WEFT_WORKER_FD
//   test_worker zygote          a zygote on descriptor 3 that forks such workers
//   test_worker broken          says so and exits
//
// What it receives it reports to the driver (process 1) as a routed text.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

#include "os/fd.h"
#include "os/memfd.h"
#include "os/socket.h"
#include "transport/doorbell.h"
#include "transport/message_stream.h"

namespace weft::core {
namespace {

class TestWorker {
 public:
  explicit TestWorker(int fd) : stream_(UniqueFd(fd)) {}

  int Run() {
    stream_.Queue(WorkerReady{kProtocolVersion, ::getpid()});
    for (;;) {
      stream_.Flush();
      while (auto received = stream_.Next()) {
        Handle(*received);
        if (leave_) return 0;
      }
      if (stream_.state() != MessageStream::State::kOpen) return 0;
      pollfd waiting{stream_.fd(), static_cast<short>(stream_.queued_bytes() > 0 ? POLLIN | POLLOUT : POLLIN), 0};
      ::poll(&waiting, 1, -1);
      stream_.Receive();
    }
  }

 private:
  void Report(const std::string& text) { stream_.Queue(RouteTo{ProcessId{1}, text}); }

  void Handle(ReceivedMessage& received) {
    if (auto* welcome = std::get_if<Welcome>(&received.message)) {
      self_ = welcome->process;
      doorbell_ = std::move(*Doorbell::Open(received.fds.at(0).get()));
    } else if (auto* routed = std::get_if<Routed>(&received.message)) {
      Do(routed->payload);
    } else if (auto* opened = std::get_if<ChannelOpened>(&received.message)) {
      Report("channel to " + ToString(opened->peer) + " first " + std::to_string(opened->first_side) + " slots " +
             std::to_string(opened->own_slot) + " " + std::to_string(opened->peer_slot) + " with " +
             std::to_string(received.fds.size()));
    } else if (auto* granted = std::get_if<LeaseGranted>(&received.message)) {
      Report("granted " + std::to_string(granted->lease.value) + " on " + ToString(granted->worker));
    } else if (auto* recalled = std::get_if<LeaseRecalled>(&received.message)) {
      Report("recalled " + std::to_string(recalled->lease.value));
    } else if (auto* died = std::get_if<ProcessDied>(&received.message)) {
      Report("died " + ToString(died->process) + ": " + died->how);
    } else if (auto* changed = std::get_if<ActorChanged>(&received.message)) {
      Report("actor " + std::to_string(changed->actor.index) + " state " + std::to_string(changed->state) + " on " +
             ToString(changed->worker) + " " + changed->why);
    } else if (auto* freed = std::get_if<ObjectsFreed>(&received.message)) {
      Report("freed " + std::to_string(freed->locations.size()));
    } else if (std::holds_alternative<OrphanHeld>(received.message)) {
      Report("held");
    } else if (std::holds_alternative<Exit>(received.message)) {
      leave_ = true;
    }
  }

  void Do(const std::string& command) {
    std::istringstream in(command);
    std::string verb;
    in >> verb;
    if (verb == "exit") {
      int code;
      in >> code;
      ::_exit(code);
    } else if (verb == "raise") {
      int signal;
      in >> signal;
      ::signal(signal, SIG_DFL);
      ::raise(signal);
    } else if (verb == "say") {  // and die: the words must arrive first
      std::string text;
      std::getline(in, text);
      std::printf("%s", text.c_str() + 1);
      std::fflush(stdout);
      ::_exit(7);
    } else if (verb == "print") {
      size_t bytes;
      in >> bytes;
      std::string line(99, 'x');
      line += '\n';
      for (size_t done = 0; done < bytes; done += line.size()) {
        [[maybe_unused]] auto ignored = ::write(1, line.data(), line.size());
      }
      Report("printed");
    } else if (verb == "request") {
      uint32_t count, depth;
      in >> count >> depth;
      stream_.Queue(RequestLeases{{{"CPU", kResourceUnit}}, count, depth});
    } else if (verb == "return") {
      uint64_t lease;
      in >> lease;
      stream_.Queue(ReturnLease{LeaseId{lease}});
    } else if (verb == "block") {
      doorbell_->blocked().store(BlockedState::kWaits);
      bool demand = doorbell_->demand().load() != 0;
      if (demand) stream_.Queue(Blocked{});
      Report(demand ? "blocked and said so" : "blocked");
    } else if (verb == "unblock") {
      bool lent = doorbell_->blocked().exchange(BlockedState::kNot) == BlockedState::kLends;
      if (lent) stream_.Queue(Unblocked{});
      Report("unblocked");
    } else if (verb == "route") {
      uint64_t to;
      in >> to;
      std::string text;
      std::getline(in, text);
      stream_.Queue(RouteTo{ProcessId{to}, text.substr(1)});
    } else if (verb == "descriptors") {
      int count = 0;
      for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0;
      Report("descriptors " + std::to_string(count));
    } else if (verb == "detach") {  // leaves a child behind that ignores everything
      if (pid_t child = ::fork(); child == 0) {
        ::setsid();
        for (;;) ::pause();
      } else {
        Report("child " + std::to_string(child));
      }
    } else if (verb == "close") {  // what a task does that closes all descriptors
      ::close(stream_.fd());
      for (;;) ::pause();
    } else if (verb == "stop") {
      ::raise(SIGSTOP);
    } else if (verb == "garbage") {
      std::string bytes(4096, '\xa5');
      SendRaw(bytes);
    } else if (verb == "length") {  // of a message that never comes
      uint32_t size;
      in >> size;
      std::string bytes(reinterpret_cast<char*>(&size), 4);
      SendRaw(bytes + std::string(2, '\1'));
    } else if (verb == "type") {  // an empty message of any type
      int type;
      in >> type;
      uint32_t size = 2;
      SendRaw(std::string(reinterpret_cast<char*>(&size), 4) + static_cast<char>(type) + '\0');
    } else if (verb == "fds") {  // more descriptors than the message says
      uint32_t size = 2;
      std::string bytes = std::string(reinterpret_cast<char*>(&size), 4) + static_cast<char>(5) + '\0';
      int fds[3] = {0, 1, 2};
      [[maybe_unused]] Status ignored = SendWithFds(stream_.fd(), bytes, fds);
    } else if (verb == "nofd") {  // a segment without its descriptor
      stream_.Queue(SegmentCreated{1 << 20});
    } else if (verb == "badsegment") {  // a descriptor that is no segment
      stream_.Queue(SegmentCreated{1 << 20}, {ShareFd(UniqueFd(::dup(0)))});
    } else if (verb == "again") {
      stream_.Queue(WorkerReady{kProtocolVersion, 1});
    } else if (verb == "badshape") {
      stream_.Queue(RequestLeases{{{"CPU", -5}}, 1, 0});
    } else if (verb == "farewell") {
      stream_.Queue(CloseSession{});
    } else if (verb == "reserve") {
      uint64_t bytes;
      in >> bytes;
      stream_.Queue(ReserveMemory{bytes, 1});
    } else if (verb == "create") {  // an actor of its own
      CreateActor create;
      create.actor = ObjectId{self_, 0};
      in >> create.actor.index;
      create.class_name = "Child";
      stream_.Queue(create);
    } else if (verb == "constructed") {
      ActorConstructed constructed;
      int ok;
      in >> constructed.actor.owner.value >> constructed.actor.index >> ok;
      constructed.ok = static_cast<uint8_t>(ok);
      constructed.error = ok != 0 ? "" : "boom";
      stream_.Queue(constructed);
    } else if (verb == "exiting") {
      ActorExiting exiting;
      in >> exiting.actor.owner.value >> exiting.actor.index;
      stream_.Queue(exiting);
    } else if (verb == "watch") {
      WatchActor watch;
      in >> watch.actor.owner.value >> watch.actor.index;
      stream_.Queue(watch);
    } else if (verb == "hold") {  // an object whose owner is said to be dead
      HoldOrphan hold{.request = 1};
      in >> hold.object.owner.value >> hold.object.index;
      stream_.Queue(hold);
    } else if (verb == "list") {  // so many objects of dead owners in one message
      size_t count;
      in >> count;
      stream_.Queue(HoldsEnded{.owner = ProcessId{1}, .indexes = std::vector<uint64_t>(count)});
    } else {
      Report("echo " + command);
    }
  }

  void SendRaw(const std::string& bytes) { [[maybe_unused]] Status ignored = SendWithFds(stream_.fd(), bytes, {}); }

  MessageStream stream_;
  ProcessId self_;
  std::unique_ptr<Doorbell> doorbell_;
  bool leave_ = false;
};

// The protocol of python/weft/_zygote.py.
int RunZygote() {
  auto send = [](const std::string& packet) { ::send(3, packet.data(), packet.size(), MSG_NOSIGNAL); };
  auto bytes = [](auto value) { return std::string(reinterpret_cast<char*>(&value), sizeof value); };
  auto answer = [&](char type, auto... fields) {
    std::string packet(1, type);
    (packet.append(bytes(fields)), ...);
    send(packet);
  };
  answer('R', static_cast<int32_t>(::getpid()));
  for (;;) {
    pollfd waiting{3, POLLIN, 0};
    ::poll(&waiting, 1, 20);
    int status;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      answer('X', static_cast<int32_t>(pid), static_cast<int32_t>(status));
    }
    if ((waiting.revents & (POLLIN | POLLHUP)) == 0) continue;
    uint8_t packet[64];
    std::vector<UniqueFd> fds;
    auto size = RecvWithFds(3, packet, sizeof packet, &fds);
    if (!size || *size == 0) return 0;
    uint64_t worker;
    std::memcpy(&worker, packet + 1, 8);
    pid_t pid = ::fork();
    if (pid == 0) {
      ::close(3);
      ::dup2(fds[1].get(), 1);
      ::dup2(fds[2].get(), 2);
      ::_exit(TestWorker(fds[0].Release()).Run());
    }
    answer('F', worker, static_cast<int32_t>(pid));
  }
}

int Main(int argc, char** argv) {
  std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "zygote") return RunZygote();
  if (mode == "broken") {
    std::fprintf(stderr, "Traceback: no module named weft\n");
    return 1;
  }
  const char* fd = std::getenv("WEFT_WORKER_FD");
  if (fd == nullptr) return 2;
  return TestWorker(std::atoi(fd)).Run();
}

}  // namespace
}  // namespace weft::core

int main(int argc, char** argv) { return weft::core::Main(argc, argv); }
