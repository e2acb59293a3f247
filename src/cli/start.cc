#include "cli/start.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "log/log.h"
#include "node/node_daemon.h"
#include "os/abstract_socket.h"
#include "os/cpu_count.h"
#include "os/fd.h"
#include "os/tcp.h"
#include "os/token_file.h"
#include "scheduling/resources.h"
#include "wire/placement.h"
#include "wire/resource_names.h"

namespace weft::core {
namespace {

constexpr const char* kStartHelp =
    "usage: weft start --head [options]             begin a cluster with this machine as its first node\n"
    "       weft start --address=HOST:PORT [options]  add this machine to the cluster of that head (with a standby:\n"
    "                                                 HOST:PORT,HOST:PORT)\n"
    "\n"
    "options:\n"
    "  --port=N            where the head listens (default 6380; 0: any free port)\n"
    "  --host=ADDRESS      where this node listens: the address that other machines reach this one by (default\n"
    "                      127.0.0.1: only this machine can reach it)\n"
    "  --num-cpus=N        CPUs that tasks may use (default: those this process may use)\n"
    "  --num-gpus=N        GPUs (default 0)\n"
    "  --resource=NAME=N   a resource of your own; may be given several times\n"
    "  --object-store-memory=BYTES\n"
    "  --name=NAME         of the node (default: the machine's)\n"
    "  --labels=K=V,...    what tasks can choose the node by (label_selector)\n"
    "  --token-file=FILE   the secret that nodes know each other by (default ~/.weft/token; made if it is missing)\n"
    "  --tls-cert=FILE --tls-key=FILE --tls-ca=FILE\n"
    "                      links with TLS: this node's certificate and key, and the CA for the others (PEM)\n"
    "  --log-level=LEVEL   of the node's log: debug, info, warning or error (default WEFT_LOG_LEVEL, else info);\n"
    "                      `weft logs --daemon` shows it\n"
    "  --log-size=BYTES    at which its file is replaced (default 1048576); three older ones are kept\n"
    "  --block             stay in the foreground until stopped; warnings and errors come here too\n"
    "  --json              say what was started as one line of JSON\n"
    "\n"
    "for programs that start nodes:\n"
    "  --token-fd=N        read the token from this descriptor instead of a file\n"
    "  --log-fd=N          write the node's log to this descriptor\n"
    "  --end-with-parent   end the node when the process that runs `weft start` has ended, however it ends\n"
    "\n"
    "of a head, where what must outlive it is kept:\n"
    "  --state=FOLDER      (default ~/.weft/head-PORT; with --port=0 and no --state nothing is kept)\n"
    "  --redis=URL         in Redis instead of a file there: redis://[USER[:PASSWORD]@]HOST[:PORT] or unix://PATH; "
    "several\n"
    "                      servers share the tables\n"
    "  --redis-password-file=FILE  better than a password in the URL, which others may see\n"
    "  --redis-cluster=NAME        tells clusters apart that share a server (default weft)\n"
    "  --allow-open-redis  also a server on another machine without a password\n"
    "  --with-redis[=N]    in N Redis servers (default 1) that the head starts and watches itself\n"
    "  --standby           wait until the head that leads is gone, then take over (with --redis)\n"
    "\n"
    "of a head, how long it waits:\n"
    "  --node-timeout=SECONDS  a node that is silent for so long counts as lost (default 10)\n";

constexpr const char* kStopHelp =
    "usage: weft stop [--address=HOST:PORT]\n"
    "Ends the cluster nodes that this user has started on this machine, or those of one cluster.\n";

constexpr int kStopWaitMs = 5'000;
// How long a node that has lost its head tries to reach it.
constexpr int64_t kRejoinNs = 600'000'000'000;

constexpr const char* kWithRedis = "--with-redis";  // its value may be left out

struct Mistake {
  std::string what;
};

// "--name=value", "--name value" or "--name" (a flag); each at most once, except those in `several`.
class Arguments {
 public:
  Arguments(int count, char** arguments, const std::vector<std::string>& valued,
            const std::vector<std::string>& flags) {
    auto known = [](const std::vector<std::string>& list, const std::string& name) {
      return std::find(list.begin(), list.end(), name) != list.end();
    };
    for (int i = 0; i < count; ++i) {
      std::string text = arguments[i], name = text.substr(0, text.find('='));
      const bool has_value = name.size() < text.size();
      if (known(flags, name)) {
        if (has_value && name != kWithRedis) throw Mistake{name + " takes no value"};
        values_[name].push_back(has_value ? text.substr(name.size() + 1) : "");
      } else if (known(valued, name)) {
        if (!has_value && i + 1 >= count) throw Mistake{name + " needs a value"};
        values_[name].push_back(has_value ? text.substr(name.size() + 1) : arguments[++i]);
      } else {
        throw Mistake{"there is no option '" + text + "'"};
      }
    }
  }
  bool Has(const std::string& name) const { return values_.contains(name); }
  std::string Get(const std::string& name, const std::string& otherwise = "") const {
    auto found = values_.find(name);
    if (found == values_.end()) return otherwise;
    if (found->second.size() > 1) throw Mistake{name + " is given twice"};
    return found->second[0];
  }
  std::vector<std::string> All(const std::string& name) const {
    auto found = values_.find(name);
    return found == values_.end() ? std::vector<std::string>() : found->second;
  }
  std::optional<double> Number(const std::string& name, bool whole) const {
    return Has(name) ? std::optional(Parse(name, Get(name), whole)) : std::nullopt;
  }
  static double Parse(const std::string& name, const std::string& text, bool whole) {
    char* end;
    const double value = std::strtod(text.c_str(), &end);
    const bool valid = !text.empty() && *end == '\0' && std::isfinite(value) && value >= 0 && value <= 1e15;
    if (!valid || (whole && value != std::floor(value))) {
      throw Mistake{name + " must be a " + (whole ? "whole " : "") + "number that is not negative, not '" + text + "'"};
    }
    return value;
  }

 private:
  std::map<std::string, std::vector<std::string>> values_;
};

ResourceAmounts Resources(const Arguments& arguments) {
  std::map<std::string, double> amounts;
  amounts[std::string(kCpu)] = arguments.Number("--num-cpus", true).value_or(AllowedCpus());
  amounts[std::string(kGpu)] = arguments.Number("--num-gpus", true).value_or(0);
  for (const std::string& text : arguments.All("--resource")) {
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    if (equals == std::string::npos || name.empty()) throw Mistake{"--resource wants NAME=N, not '" + text + "'"};
    if (name.size() > kMaxResourceNameBytes) {
      throw Mistake{"the name of the resource '" + name.substr(0, 40) + "...' has more than " +
                    std::to_string(kMaxResourceNameBytes) + " bytes"};
    }
    if (name == kCpu || name == kGpu) throw Mistake{name + " is given by --num-cpus or --num-gpus"};
    if (!amounts.emplace(name, Arguments::Parse("--resource=" + name, text.substr(equals + 1), false)).second) {
      throw Mistake{"resource '" + name + "' is given twice"};
    }
  }
  if (amounts.size() > kMaxOwnResources + 2) {
    throw Mistake{"a node has at most " + std::to_string(kMaxOwnResources) + " resources beside CPUs and GPUs"};
  }
  ResourceAmounts result;
  for (const auto& [name, amount] : amounts) {
    const auto units = static_cast<int64_t>(std::llround(amount * static_cast<double>(kResourceUnit)));
    if (units > 0) result.emplace_back(name, units);
  }
  if (!IsValidShape(result)) throw Mistake{"these are more resources than any machine has"};
  return result;
}

NodeLabels Labels(const Arguments& arguments) {
  NodeLabels labels;
  for (const std::string& list : arguments.All("--labels")) {
    for (size_t at = 0; at <= list.size();) {
      const size_t comma = std::min(list.find(',', at), list.size());
      const std::string text = list.substr(at, comma - at);
      const size_t equals = text.find('=');
      if (equals == std::string::npos) throw Mistake{"--labels wants KEY=VALUE,..., not '" + text + "'"};
      labels.emplace_back(text.substr(0, equals), text.substr(equals + 1));
      if (const std::string why = WhyNoLabel(labels.back().first, labels.back().second); !why.empty()) {
        throw Mistake{"--labels: " + why};
      }
      at = comma + 1;
    }
  }
  std::sort(labels.begin(), labels.end());
  for (size_t i = 1; i < labels.size(); ++i) {
    if (labels[i - 1].first == labels[i].first) throw Mistake{"the label '" + labels[i].first + "' is given twice"};
  }
  return labels;
}

// An open descriptor that the caller of this program has given us.
std::optional<int> Descriptor(const Arguments& arguments, const std::string& name) {
  auto number = arguments.Number(name, true);
  if (!number) return std::nullopt;
  if (*number < 3 || *number > 1e9 || ::fcntl(static_cast<int>(*number), F_GETFD) < 0) {
    throw Mistake{name + " must be an open descriptor of at least 3"};
  }
  return static_cast<int>(*number);
}

Result<std::string> Token(const Arguments& arguments, bool head, const std::string& file) {
  if (auto descriptor = Descriptor(arguments, "--token-fd")) {
    if (arguments.Has("--token-file")) throw Mistake{"say either --token-file or --token-fd"};
    return ReadToken(*descriptor, "the token that was handed over");
  }
  return head ? ReadOrCreateTokenFile(file) : ReadTokenFile(file);
}

// A pidfd of the process that runs us.
Result<UniqueFd> Parent() {
  const pid_t parent = ::getppid();
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, parent, 0)));
  if (!fd) return Error{ErrorKind::kUnavailable, std::string("--end-with-parent: no pidfd: ") + strerror(errno)};
  // No other process can have its number while it is still our parent.
  if (::getppid() != parent) return Error{ErrorKind::kGone, "--end-with-parent: the parent has ended already"};
  return fd;
}

std::string Json(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < ' ') {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      quoted += escaped;
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string HomeFolder() {
  if (const char* home = std::getenv("HOME"); home && *home) return home;
  const passwd* entry = ::getpwuid(::geteuid());
  return entry && entry->pw_dir ? entry->pw_dir : "/";
}

// The daemon does not stay in our folder. No shell replaces a tilde behind "--option=".
std::string Absolute(const std::string& path) {
  if (path.starts_with("~/")) return HomeFolder() + path.substr(1);
  char folder[PATH_MAX];
  if (path.empty() || path[0] == '/' || ::getcwd(folder, sizeof folder) == nullptr) return path;
  return std::string(folder) + "/" + path;
}

TlsSettings Tls(const Arguments& arguments) {
  TlsSettings tls{Absolute(arguments.Get("--tls-cert")), Absolute(arguments.Get("--tls-key")),
                  Absolute(arguments.Get("--tls-ca"))};
  if (tls.enabled() && (tls.certificate_file.empty() || tls.key_file.empty() || tls.ca_file.empty())) {
    throw Mistake{"TLS needs all three: --tls-cert, --tls-key and --tls-ca"};
  }
  return tls;
}

std::string MachineName() {
  char name[256] = "";
  return ::gethostname(name, sizeof name - 1) == 0 && *name ? name : "node";
}

// In the daemon: says once that it runs, or why it does not.
void Report(int pipe, const std::string& text) {
  [[maybe_unused]] ssize_t ignored = ::write(pipe, text.data(), text.size());
}

int Serve(const LastingNodeOptions& options, int ready) {
  auto daemon = NodeDaemon::CreateLasting(options, [ready](Result<std::string> outcome) {
    Report(ready, outcome ? std::to_string(::getpid()) + " " + *outcome : "!" + outcome.error().message);
    ::close(ready);
  });
  if (!daemon) {
    Report(ready, "!" + daemon.error().message);
    return 1;
  }
  int code = (*daemon)->Run();
  // Cut off, or paused for too long: what ran here has ended, since others run it by now. It joins again as a new node.
  int64_t give_up_ns = NowNs() + kRejoinNs;
  bool again = (*daemon)->left_cluster();
  LastingNodeOptions returning = options;
  returning.returns = true;
  while (again) {
    daemon->reset();
    // So that `weft stop` finds it meanwhile; programs do not look at number 0.
    auto name = ListenAsDaemon(NodeSocketName(::geteuid(), ::getpid(), options.head_address, 0));
    NumberLogNode(0);
    auto next = NodeDaemon::CreateLasting(returning, [&name](Result<std::string> outcome) {
      if (!outcome) return;
      LogWarning("membership", "it is a node of %s again", outcome->c_str());
      if (name) name->Reset();
    });
    again = NowNs() < give_up_ns;
    if (next) {
      code = (*next)->Run();
      if ((*next)->left_cluster()) give_up_ns = NowNs() + kRejoinNs;  // it had been a node again
      again = (*next)->left_cluster() || ((*next)->never_joined() && NowNs() < give_up_ns);
    }
    if (again) {
      timespec pause{0, 500'000'000};
      ::nanosleep(&pause, nullptr);
    }
  }
  return code;
}

// Until the node has ended, or `parent` (a pidfd, or nothing) has: then the node ends with us.
int Await(pid_t child, const UniqueFd& parent) {
  if (parent) {
    UniqueFd node(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
    pollfd ends[] = {{node.get(), POLLIN, 0}, {parent.get(), POLLIN, 0}};
    while (node && ::poll(ends, 2, -1) < 0 && errno == EINTR) {
    }
    if (node && ends[0].revents == 0) return 1;
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// Where a head keeps what must outlive it, and how long it waits.
void ReadHeadOptions(const Arguments& arguments, LastingNodeOptions& options) {
  static const char* const kOfHeads[] = {
      "--state",  "--redis",   "--redis-password-file", "--redis-cluster", "--allow-open-redis",
      kWithRedis, "--standby", "--node-timeout"};
  for (const char* name : kOfHeads) {
    if (!options.head && arguments.Has(name)) throw Mistake{std::string(name) + " is for --head"};
  }
  if (!options.head) return;
  options.state_folder = Absolute(arguments.Get("--state"));
  options.redis = arguments.All("--redis");
  options.redis_cluster = arguments.Get("--redis-cluster", "weft");
  options.allow_open_redis = arguments.Has("--allow-open-redis");
  options.standby = arguments.Has("--standby");
  if (auto seconds = arguments.Number("--node-timeout", false)) {
    if (*seconds < 2 || *seconds > 3600) throw Mistake{"--node-timeout takes 2 to 3600 seconds"};
    options.node_timeout_ns = static_cast<int64_t>(*seconds * 1e9);
  }
  if (arguments.Has(kWithRedis)) {
    if (!options.redis.empty()) throw Mistake{"say either --redis=URL or --with-redis"};
    const std::string count = arguments.Get(kWithRedis);
    const double number = count.empty() ? 1 : Arguments::Parse(kWithRedis, count, true);
    if (number < 1 || number > 16) throw Mistake{"--with-redis takes 1 to 16 servers"};
    options.own_redis = static_cast<uint32_t>(number);
  }
  if (options.standby && options.redis.empty()) {
    throw Mistake{"--standby needs --redis=URL: the heads meet there"};
  }
  if (options.standby && options.port == 0) throw Mistake{"--standby needs a --port that the nodes know"};
  const bool in_redis = !options.redis.empty() || options.own_redis > 0;
  if (options.state_folder.empty() && (options.port != 0 || in_redis)) {
    const std::string ours = HomeFolder() + "/.weft";
    if (Status status = EnsurePrivateDirectory(ours); !status) throw Mistake{status.error().message};
    options.state_folder = ours + "/head-" + std::to_string(options.port);
  }
  if (arguments.Has("--redis-password-file")) {
    if (options.redis.empty()) throw Mistake{"--redis-password-file needs --redis=URL"};
    auto password = ReadSecretFile(Absolute(arguments.Get("--redis-password-file")), "password", 1);
    if (!password) throw Mistake{password.error().message};
    options.redis_password = *password;
  }
}

// Everybody who lists processes would see a password in an argument, as long as the daemon runs.
void HidePasswords(int count, char** arguments) {
  for (int i = 0; i < count; ++i) {
    char* at = std::strrchr(arguments[i], '@');
    char* scheme = std::strstr(arguments[i], "://");
    if (at == nullptr || scheme == nullptr || scheme > at) continue;
    char* colon = std::strchr(scheme + 3, ':');
    if (colon != nullptr && colon < at) std::fill(colon + 1, at, '*');
  }
}

// Where the node listens, and what it tells the others of that.
std::string Host(const Arguments& arguments, const std::vector<std::string>& heads) {
  std::string host = arguments.Get("--host", "127.0.0.1");
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host.empty() || host == "0.0.0.0" || host == "::" || host == "*") {
    throw Mistake{"--host is the address that others reach this node by, such as 10.0.0.2; '" + host + "' is none"};
  }
  if (arguments.Has("--host")) return host;
  // A node that joins another machine's cluster must be reachable from its machines, so it has to name an address.
  for (const std::string& head : heads) {
    auto parsed = ParseHostPort(head);
    auto addresses = parsed ? ResolveTcp(parsed->first, parsed->second) : parsed.error();
    if (!addresses || addresses->front().is_loopback()) continue;
    auto own = LocalHostTowards(addresses->front());
    throw Mistake{"the other nodes must reach this one, too: say --host=" + (own ? *own : "ADDRESS") +
                  (own ? ", or another address of this machine" : ", with an address of this machine")};
  }
  return host;
}

LogSettings Log(const Arguments& arguments) {
  LogSettings log;
  const char* usual = std::getenv("WEFT_LOG_LEVEL");
  const bool given = arguments.Has("--log-level");
  if (given || (usual != nullptr && *usual != '\0')) {
    auto level =
        ReadLogLevel(given ? "--log-level" : "WEFT_LOG_LEVEL", arguments.Get("--log-level", usual ? usual : ""));
    if (!level) throw Mistake{level.error().message};
    log.level = *level;
  }
  if (auto bytes = arguments.Number("--log-size", true)) {
    if (*bytes < 2 * kMaxLogLineBytes || *bytes > 1e12) throw Mistake{"--log-size takes 8192 bytes to 10^12"};
    log.max_bytes = static_cast<uint64_t>(*bytes);
  }
  log.node = arguments.Get("--name", MachineName());
  return log;
}

// What the log's first line says of the node.
std::string Facts(const LastingNodeOptions& options) {
  std::string text = options.standby ? "as a standby head at " : options.head ? "as the head at " : "at ";
  text += HostPortText(options.host, options.port) + (options.head ? "" : ", to join " + options.head_address);
  text += ", with " + FormatShape(options.resources);
  for (const auto& [key, value] : options.labels) text += ", " + key + "=" + value;
  return text;
}

// In the daemon. If its log cannot be written from the beginning, it says so on the terminal of `weft start`.
void KeepLog(const LogSettings& log, const std::string& first_line) {
  const UniqueFd terminal(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 5));
  if (log.takes_stderr && log.descriptor < 0) ::dup2(STDOUT_FILENO, STDERR_FILENO);  // /dev/null, until there is a file
  if (Status status = OpenLog(log, first_line); !status && log.takes_stderr) {
    ::dprintf(terminal.get(), "weft start: the node's log is not written, and it goes on without: %s\n",
              status.error().message.c_str());
  }
}

int Start(const Arguments& arguments) {
  const bool head = arguments.Has("--head");
  const bool block = arguments.Has("--block");
  if (head == arguments.Has("--address")) throw Mistake{"say either --head or --address=HOST:PORT"};
  if (!head && arguments.Has("--port")) throw Mistake{"--port is for --head; a node that joins takes a free one"};
  LastingNodeOptions options;
  options.resources = Resources(arguments);
  options.object_store_bytes = static_cast<uint64_t>(arguments.Number("--object-store-memory", true).value_or(0));
  options.head = head;
  options.name = arguments.Get("--name", MachineName());
  options.labels = Labels(arguments);
  options.tls = Tls(arguments);
  const auto log_descriptor = Descriptor(arguments, "--log-fd");
  LogSettings log = Log(arguments);
  if (head) {
    const double port = arguments.Number("--port", true).value_or(6380);
    if (port > 65535) throw Mistake{"--port must be at most 65535"};
    options.port = static_cast<uint16_t>(port);
  } else {
    options.head_address = arguments.Get("--address");
    for (const std::string& part : SplitAddresses(options.head_address)) {
      if (auto parsed = ParseHostPort(part); !parsed) throw Mistake{parsed.error().message};
    }
  }
  options.host = Host(arguments, head ? std::vector<std::string>() : SplitAddresses(options.head_address));
  ReadHeadOptions(arguments, options);
  const std::string token_file = Absolute(arguments.Get("--token-file", HomeFolder() + "/.weft/token"));
  auto token = Token(arguments, head, token_file);
  if (!token) {
    std::fprintf(stderr, "weft start: %s\n", token.error().message.c_str());
    if (!head && token.error().kind == ErrorKind::kGone) {
      std::fprintf(stderr,
                   "weft start: the head's first start has made one. Copy it from there:\n"
                   "    mkdir -p ~/.weft && chmod 700 ~/.weft && scp -p HEAD:.weft/token ~/.weft/token\n"
                   "  or name its file with --token-file\n");
    }
    return 1;
  }
  options.token = *token;
  options.program_folder = Absolute(HomeFolder()) + "/.weft/programs";

  auto folder = log_descriptor && !block ? Result<std::string>("") : LogFolder();
  auto parent = arguments.Has("--end-with-parent") ? Parent() : Result<UniqueFd>(UniqueFd());
  if (!folder || !parent) {
    std::fprintf(stderr, "weft start: %s\n", (folder ? parent.error() : folder.error()).message.c_str());
    return 1;
  }
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) {
    std::fprintf(stderr, "weft start: no pipe: %s\n", strerror(errno));
    return 1;
  }
  // The node ends with this process, if that stays.
  const UniqueFd self(block ? static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)) : -1);
  const UniqueFd& watched = block ? self : *parent;
  const pid_t child = ::fork();
  if (child < 0) {
    std::fprintf(stderr, "weft start: no process: %s\n", strerror(errno));
    return 1;
  }
  if (child == 0) {
    if (block) {
      ::prctl(PR_SET_PDEATHSIG, SIGCONT);  // it sees the end of this process, unless it is stopped
    } else {
      ::setsid();
      if (::fork() != 0) ::_exit(0);  // not our child, so that nothing has to wait for it
    }
    ::prctl(PR_SET_NAME, "weft-node");
    ::umask(077);
    log.directory = *folder;
    log.takes_stderr = !block;
    if (!block) {
      if (log_descriptor) ::dup2(*log_descriptor, log.descriptor = STDERR_FILENO);
      const int null = ::open("/dev/null", O_RDWR);
      ::dup2(null, 0);
      ::dup2(null, 1);
      if (::chdir("/") != 0) return 1;
    }
    // What is to stay comes to 3 and 4, by way of numbers at which neither can be.
    const int kept_pipe = ::fcntl(pipe[1], F_DUPFD, 5),
              kept_watched = watched ? ::fcntl(watched.get(), F_DUPFD, 5) : -1;
    ::dup3(kept_pipe, 3, O_CLOEXEC);
    if (watched) options.parent = ::dup3(kept_watched, 4, O_CLOEXEC);
    ::syscall(SYS_close_range, watched ? 5u : 4u, ~0u, 0);
    KeepLog(log, "weft " WEFT_VERSION " starts " + Facts(options));
    ::_exit(Serve(options, 3));
  }
  ::close(pipe[1]);
  std::string answer;
  char buffer[4096];
  for (ssize_t size; (size = ::read(pipe[0], buffer, sizeof buffer)) > 0 || (size < 0 && errno == EINTR);) {
    if (size > 0) answer.append(buffer, static_cast<size_t>(size));
  }
  if (!block) ::waitpid(child, nullptr, 0);
  if (answer.empty() || answer[0] == '!') {
    std::fprintf(stderr, "weft start: %s\n", answer.empty() ? "the node daemon did not start" : answer.c_str() + 1);
    if (block) ::waitpid(child, nullptr, 0);
    return 1;
  }
  const std::string pid = answer.substr(0, answer.find(' '));
  answer.erase(0, pid.size() + 1);
  if (arguments.Has("--json")) {
    std::printf("{\"address\": %s, \"pid\": %s, \"name\": %s, \"head\": %s}\n", Json(answer).c_str(), pid.c_str(),
                Json(options.name).c_str(), head ? "true" : "false");
    std::fflush(stdout);
    return block ? Await(child, *parent) : 0;
  }
  std::printf("weft: this machine is %s the cluster %s\n",
              options.standby ? "a head, or waits to be one, of"
              : head          ? "the head of"
                              : "a node of",
              answer.c_str());
  auto reached = ResolveTcp(options.host, options.port);
  if (options.standby) {
    std::printf("  nodes find either head with  weft start --address=THE-OTHER-HEAD:PORT,%s --host=ITS-ADDRESS\n",
                answer.c_str());
  } else if (head && reached && reached->front().is_loopback()) {
    std::printf(
        "  another node here joins with weft start --address=%s --name=NAME\n"
        "  no other machine can reach it; for them it must be started with --host=ADDRESS, by which they reach this "
        "one\n",
        answer.c_str());
  } else if (head) {
    std::printf("  another machine joins with   weft start --address=%s --host=ITS-ADDRESS   (and a copy of %s)\n",
                answer.c_str(), token_file.c_str());
  }
  std::printf(
      "  a program on it says         weft.init(address=\"auto\")  or  weft::init({.address = \"auto\"})\n"
      "  it is ended by               weft stop\n");
  std::fflush(stdout);
  return block ? Await(child, *parent) : 0;
}

bool Listens(const NodeSocket& node) {
  const auto nodes = FindNodeSockets(::geteuid());
  return std::any_of(nodes.begin(), nodes.end(), [&](const NodeSocket& other) {
    return other.daemon == node.daemon && other.listener == node.daemon;
  });
}

int Stop(const Arguments& arguments) {
  const std::string address = arguments.Get("--address");
  std::vector<pid_t> stopped;
  int failures = 0;
  auto nodes = FindNodeSockets(::geteuid());
  // Heads last, so that no node is left that looks for its head.
  std::reverse(nodes.begin(), nodes.end());
  for (const NodeSocket& node : nodes) {
    if (!address.empty() && !NamesSameCluster(address, node.cluster)) continue;
    // The name gives a pid; the kernel gives the real one.
    const pid_t pid = node.daemon;
    if (node.listener != pid) continue;
    // A pidfd tells its end even where no process reaps orphans, as in some containers. If it ends on its own, no later
    // process with its number gets the signals: it still listened after this was opened.
    UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!process || !Listens(node)) continue;
    if (::syscall(SYS_pidfd_send_signal, process.get(), SIGTERM, nullptr, 0) != 0) continue;
    ::syscall(SYS_pidfd_send_signal, process.get(), SIGCONT, nullptr, 0);  // one that is stopped is to end, too
    pollfd ended{process.get(), POLLIN, 0};
    if (::poll(&ended, 1, kStopWaitMs) != 1) {
      std::fprintf(stderr, "weft stop: the node daemon %d does not end\n", pid);
      ++failures;
    } else {
      std::printf("weft: the node of %s (pid %d) has ended\n", node.cluster.c_str(), pid);
      stopped.push_back(pid);
    }
  }
  if (stopped.empty() && failures == 0) {
    std::printf("weft: no cluster node of yours runs here%s\n", address.empty() ? "" : (" for " + address).c_str());
  }
  return failures > 0 ? 1 : 0;
}

int Run(const char* command, const char* help, int count, char** arguments, const std::function<int()>& run) {
  for (int i = 0; i < count; ++i) {
    const std::string_view text = arguments[i];
    if (text == "--help" || text == "-h") {
      std::fputs(help, stdout);
      return 0;
    }
  }
  try {
    return run();
  } catch (const Mistake& mistake) {
    std::fprintf(stderr, "weft %s: %s\n  weft %s --help lists the options\n", command, mistake.what.c_str(), command);
    return 2;
  }
}

}  // namespace

Result<std::string> LogFolder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  std::string folder = runtime && *runtime == '/' && ::access(runtime, W_OK) == 0
                           ? std::string(runtime) + "/weft"
                           : "/tmp/weft-" + std::to_string(::geteuid());
  if (Status status = EnsurePrivateDirectory(folder); !status) return status.error();
  return folder;
}

Result<LogLevel> ReadLogLevel(const std::string& source, const std::string& name) {
  if (auto level = ParseLogLevel(name)) return *level;
  return Error{ErrorKind::kInvalid, source + " is debug, info, warning or error, not '" + name + "'"};
}

int StartNode(int count, char** arguments) {
  return Run("start", kStartHelp, count, arguments, [&] {
    Arguments parsed(
        count, arguments,
        {"--port",
         "--host",
         "--address",
         "--num-cpus",
         "--num-gpus",
         "--resource",
         "--object-store-memory",
         "--name",
         "--labels",
         "--token-file",
         "--token-fd",
         "--log-fd",
         "--log-level",
         "--log-size",
         "--tls-cert",
         "--tls-key",
         "--tls-ca",
         "--state",
         "--redis",
         "--redis-password-file",
         "--redis-cluster",
         "--node-timeout"},
        {"--head", "--block", "--json", "--end-with-parent", "--standby", "--allow-open-redis", kWithRedis});
    HidePasswords(count, arguments);
    return Start(parsed);
  });
}

int StopNodes(int count, char** arguments) {
  return Run("stop", kStopHelp, count, arguments, [&] { return Stop(Arguments(count, arguments, {"--address"}, {})); });
}

}  // namespace weft::core
