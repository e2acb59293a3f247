// NodeDaemon: the lives of processes. Starts workers, itself or through a job's zygote, learns of every end, tells it
// to those whom it concerns, and leaves nothing behind.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "log/log.h"
#include "node/node_daemon.h"
#include "os/child_process.h"
#include "os/socket.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
// A zygote that dies without a request is replaced at once, but not more often than this.
constexpr int64_t kZygotePauseNs = 1000 * kMs;
// A warm zygote that dies while it serves is an accident. After so many, the plain one goes on alone.
constexpr uint32_t kMaxWarmStarts = 4;
// Tells a zygote that it is warm, and what to import (python/weft/_preload.py).
constexpr char kWarmVariable[] = "WEFT_WARM_MODULES=";

std::string Joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

}  // namespace

// ---- lives ------------------------------------------------------------------------------------------------------

Status NodeDaemon::Launch(const StartWorker& start) {
  if (AwaitsProgram(*FindJob(start.kind.job), start)) return Status();
  return StartProcess(start);
}

Status NodeDaemon::StartProcess(const StartWorker& start) {
  const auto& [worker, kind] = start;
  Job& job = *FindJob(kind.job);
  auto sockets = StreamSocketPair();
  if (!sockets) return sockets.error();
  SharedFd theirs = ShareFd(std::move(sockets->second));
  SharedFd outputs[2];
  UniqueFd read_ends[2];
  for (int i = 0; i < 2; ++i) {
    if (job.session.forward_output == 0) {
      outputs[i] = ShareFd(UniqueFd(::fcntl(null_.get(), F_DUPFD_CLOEXEC, 3)));
      if (outputs[i]->get() < 0) return Error{ErrorKind::kUnavailable, "no descriptors are left"};
      continue;
    }
    int pipe[2];
    if (::pipe2(pipe, O_CLOEXEC) != 0) {
      return Error{ErrorKind::kUnavailable, std::string("cannot create a pipe: ") + strerror(errno)};
    }
    read_ends[i] = UniqueFd(pipe[0]);
    outputs[i] = ShareFd(UniqueFd(pipe[1]));
    if (Status status = SetNonblocking(pipe[0], true); !status) return status;
  }

  pid_t pid = 0;
  if (job.ForksWorkers(kind.python_of_cpp_job)) {
    JobZygote& zygote = job.ServingZygote();
    if (Status status = EnsureZygote(job, zygote); !status) return status;
    zygote.process->RequestFork(worker, theirs, outputs[0], outputs[1]);
    bool full = zygote.process->Flush();
    loop_.Modify(zygote.watch, full ? EPOLLIN | EPOLLOUT : uint32_t{EPOLLIN});
  } else {
    ChildProgram program;
    program.command = job.session.worker_command;
    program.environment = job.session.environment;
    std::erase_if(program.environment, [](const std::string& entry) { return entry.starts_with("WEFT_WORKER_FD="); });
    program.environment.push_back("WEFT_WORKER_FD=3");
    program.working_directory = job.session.working_directory;
    AdaptToThisNode(job, program);
    program.descriptors = {{theirs->get(), 3}, {outputs[0]->get(), 1}, {outputs[1]->get(), 2}};
    program.new_process_group = true;
    program.die_with_parent = true;
    auto started = StartProgram(program);
    if (!started) return started.error();
    pid = *started;
  }

  auto stream = std::make_unique<MessageStream>(std::move(sockets->first));
  auto watch = loop_.Add(stream->fd(), EPOLLIN, [this, id = worker](uint32_t events) { OnProcessEvent(id, events); });
  if (!watch) return watch.error();  // the worker ends when its socket closes
  core_.WorkerStarted(worker, kind);
  auto process = std::make_unique<Process>(*core_.Find(worker));
  process->warm = job.ServingZygote().warm;
  process->pid = pid;
  process->stream = std::move(stream);
  process->watch = *watch;
  if (pid != 0) pids_[pid] = worker;
  processes_[worker] = std::move(process);
  for (int i = 0; i < 2; ++i) {
    if (read_ends[i]) job.outputs->Watch(worker, i == 1, std::move(read_ends[i]));
  }
  return Status();
}

Status NodeDaemon::EnsureZygote(Job& job, JobZygote& zygote) {
  if (zygote.process) {
    if (zygote.watch != 0) return Status();
    return Error{ErrorKind::kGone, "the Python program that starts workers has just ended"};
  }
  ChildProgram program;
  program.command = job.ZygoteCommand();
  program.environment = job.session.environment;
  if (zygote.warm) program.environment.push_back(kWarmVariable + Joined(job.session.preload));
  program.working_directory = job.session.working_directory;
  program.die_with_parent = true;
  auto process = Zygote::Start(std::move(program));
  if (!process) return process.error();
  auto watch = loop_.Add((*process)->fd(), EPOLLIN, [this, &job, &zygote](uint32_t) { OnZygoteEvent(job, zygote); });
  if (!watch) return watch.error();  // it ends when its socket closes
  auto output = loop_.Add((*process)->output_fd(), EPOLLIN, [this, &zygote](uint32_t) {
    if (zygote.process->ReadOutput()) return;
    loop_.Remove(zygote.output_watch);
    zygote.output_watch = 0;
  });
  zygote.process = std::move(*process);
  zygote.started_ns = NowNs();
  zygote.watch = *watch;
  zygote.output_watch = output ? *output : 0;
  return Status();
}

// ---- preloading: a second, warm zygote

void NodeDaemon::StartWarmZygote(Job& job) {
  ++job.warm_starts;
  if (!EnsureZygote(job, job.warm_zygote)) return PreloadSettled(job, Preload::kNone);  // the plain one will say why
  job.preload = Preload::kImporting;
  core_.HoldActors(job.driver, true, NowNs());
}

void NodeDaemon::PreloadSettled(Job& job, Preload preload) {
  Settle();  // what was decided for the workers of now holds
  job.preload = preload;
  const bool wanted = !job.core.ending && job.leaving_until_ns == 0;
  if (preload == Preload::kServing && wanted) core_.RenewWorkers(job.driver, NowNs());
  core_.HoldActors(job.driver, false, NowNs());
  if (!wanted) return;
  if (std::exchange(job.prestart_later, false)) core_.Prestart(job.driver, NowNs());
}

// Starts workers before anybody asks, once there is a zygote that should fork them.
void NodeDaemon::Prestart(Job& job) {
  job.prestart_later = job.preload == Preload::kImporting;
  if (!job.prestart_later) core_.Prestart(job.driver, NowNs());
}

void NodeDaemon::WarmZygoteEnded(Job& job, int status, const std::string& how) {
  const bool wanted = !job.core.ending && job.leaving_until_ns == 0;
  if (wanted && job.preload == Preload::kServing && job.warm_starts < kMaxWarmStarts) return StartWarmZygote(job);
  // One that finds nothing to preload has said why, and exits with code 0.
  if (wanted && status != 0) {
    Warn(job, "preload: workers import " + Joined(job.session.preload) + " themselves, since " + how);
  }
  PreloadSettled(job, Preload::kNone);
}

void NodeDaemon::Warn(const Job& job, const std::string& text) {
  const std::string where = IsElsewhere(job.core.output_to) ? "on " + cluster_->Describe(cluster_->self()) + ": " : "";
  core_.Answer(job.core.output_to, WorkerOutput{ProcessId{}, 0, 1, "weft: " + where + text + "\n", ""});
}

void NodeDaemon::AdoptClaimedPid(Process& process) {
  // Its zygote has died before it could tell the number. Believed only if it is really our child: we might kill it.
  pid_t pid = process.claimed_pid;
  if (process.pid != 0 || pid <= 0 || pids_.contains(pid)) return;
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return;
  process.pid = pid;
  pids_[pid] = process.id;
  if (process.local.killed) ::kill(pid, SIGKILL);  // which had nobody to go to before
}

void NodeDaemon::OnZygoteEvent(Job& job, JobZygote& zygote) {
  bool full = zygote.process->Flush();
  while (auto event = zygote.process->Next()) {
    if (auto* forked = std::get_if<WorkerForked>(&*event)) {
      auto* process = Find(forked->worker);
      if (forked->pid > 0) {
        pids_[forked->pid] = forked->worker;
        if (process == nullptr) {
          ::kill(forked->pid, SIGKILL);  // nobody waits for it any more
        } else {
          process->pid = forked->pid;
          if (process->local.killed) ::kill(process->pid, SIGKILL);
        }
      } else if (process != nullptr) {
        process->note = std::string("the zygote cannot fork: ") + strerror(-forked->pid);
        BeginClosing(*process);
      }
    } else if (auto* exited = std::get_if<WorkerExited>(&*event)) {
      OnExit(exited->pid, exited->status);
    } else if (auto* warning = std::get_if<ZygoteWarning>(&*event)) {
      Warn(job, warning->text);
    } else if (zygote.warm) {  // it is ready
      PreloadSettled(job, Preload::kServing);
    }
    if (ended_) return;
  }
  if (zygote.process->closed()) {
    // Its exit status follows; until then it is neither used nor replaced.
    loop_.Remove(zygote.watch);
    zygote.watch = 0;
    ::kill(zygote.process->pid(), SIGKILL);
    return;
  }
  loop_.Modify(zygote.watch, full ? EPOLLIN | EPOLLOUT : uint32_t{EPOLLIN});
}

void NodeDaemon::ZygoteEnded(Job& job, JobZygote& zygote, int status) {
  if (zygote.watch != 0) OnZygoteEvent(job, zygote);  // its last reports
  zygote.process->ReadOutput();
  std::string how = "the Python program that starts workers (" + job.ZygoteCommand()[0] + ") " + DescribeExit(status);
  std::string words = zygote.process->last_output();
  while (!words.empty() && words.back() == '\n') words.pop_back();
  if (!words.empty()) how.append("; it said:\n").append(words);
  for (auto& [id, process] : processes_) {
    if (process->local.job != job.driver || process->local.is_driver || process->pid != 0) continue;
    if (process->warm != zygote.warm) continue;
    process->zygote_end = how;
    AdoptClaimedPid(*process);
  }
  if (zygote.watch != 0) loop_.Remove(zygote.watch);
  if (zygote.output_watch != 0) loop_.Remove(zygote.output_watch);
  zygote.watch = zygote.output_watch = 0;
  LogInfo("worker", "%s", how.c_str());
  bool restart = NowNs() - zygote.started_ns > kZygotePauseNs;
  zygote.process.reset();
  CheckClosing();
  if (ended_) return;
  if (zygote.warm) return WarmZygoteEnded(job, status, how);
  if (restart && !job.core.ending && !zygote.process) {
    [[maybe_unused]] Status ignored = EnsureZygote(job, zygote);  // if that fails, the next start of a worker says so
  }
}

void NodeDaemon::OnSignal() {
  signalfd_siginfo info;
  bool terminate = false;
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) terminate |= info.ssi_signo == SIGTERM;
  if (terminate) {
    LogInfo("node", "SIGTERM: it ends");
    if (cluster_) cluster_->Leave();
    return EndSession(0, "the node daemon was told to end, by `weft stop` or by SIGTERM");
  }
  ReapChildren();
}

void NodeDaemon::ReapChildren() {
  int status;
  for (pid_t pid; !ended_ && (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    Job* of_job = nullptr;
    JobZygote* ended = nullptr;
    for (auto& [driver, job] : jobs_) {
      for (JobZygote* zygote : job->Zygotes()) {
        if (!zygote->process || zygote->process->pid() != pid) continue;
        of_job = job.get();
        ended = zygote;
      }
    }
    if (ended != nullptr) {
      ZygoteEnded(*of_job, *ended, status);
    } else {
      OnExit(pid, status);
    }
  }
}

void NodeDaemon::OnExit(pid_t pid, int status) {
  auto found = pids_.find(pid);
  if (found == pids_.end()) return;  // an orphan of a worker
  ProcessId id = found->second;
  pids_.erase(found);
  auto* process = Find(id);
  if (process == nullptr) return;
  process->exit_status = status;
  DeclareDead(id);
}

void NodeDaemon::BeginClosing(Process& process) {
  if (process.local.is_driver) return EndJobOf(process.id, 0);
  if (process.local.stage == LocalProcess::Stage::kClosing) return;
  process.closing_since_ns = NowNs();
  closing_.insert(process.id);
  loop_.Remove(process.watch);
  process.watch = 0;
  core_.ProcessClosing(process.id, NowNs());
}

void NodeDaemon::CheckClosing() {
  if (closing_.empty() || ended_) return;
  int64_t now = NowNs();
  for (ProcessId id : std::set<ProcessId>(closing_)) {
    auto* process = Find(id);
    if (process == nullptr) continue;
    // It was never forked: the zygote is gone, and its end explains it.
    bool never_was = process->pid == 0 && process->claimed_pid == 0 && !process->zygote_end.empty();
    int64_t age = now - process->closing_since_ns;
    if (never_was || age >= kStatusWaitNs + kKillWaitNs) {
      DeclareDead(id);
      Settle();
    } else if (age >= kStatusWaitNs && !process->local.killed) {
      core_.Kill(id, "it had closed its connection to the node daemon");
    }
    if (ended_) return;
  }
}

std::string NodeDaemon::DescribeDeath(const Process& process) const {
  std::string how;
  if (process.exit_status) {
    how = DescribeExit(*process.exit_status);
  } else if (process.pid == 0 && !process.zygote_end.empty()) {
    how = process.zygote_end;
  } else {
    how = "lost its connection to the node daemon";
  }
  if (!process.note.empty()) how += " (" + process.note + ")";
  return how;
}

void NodeDaemon::DeclareDead(ProcessId id) {
  auto* process = Find(id);
  // What it sent and printed before it died counts. Its messages may make others die, so look again after each step.
  if (process->local.stage != LocalProcess::Stage::kClosing) ReadFrom(*process, true);
  // Decisions that name it are carried out while it can still be found: a grant on it must be heard of before its
  // death.
  Settle();
  if (ended_ || (process = Find(id)) == nullptr) return;
  Job* job = FindJob(process->local.job);
  if (job != nullptr) job->outputs->Drain(id);
  const std::string how = DescribeDeath(*process);
  std::string why_not_started = how;
  std::string words = process->last_stderr;
  while (!words.empty() && words.back() == '\n') words.pop_back();
  if (!words.empty()) why_not_started += "; it said:\n" + words;

  LogInfo(process->local.is_driver ? "driver" : "worker", "%s of job %s with pid %d %s", ToString(id).c_str(),
          ToString(process->local.job).c_str(), process->pid, why_not_started.c_str());
  if (process->watch != 0) loop_.Remove(process->watch);
  if (process->pid != 0) pids_.erase(process->pid);
  closing_.erase(id);
  unflushed_.erase(id);
  RememberDead(*process, how);
  core_.ProcessIsGone(id, PidOf(id), how, why_not_started, NowNs());
  processes_.erase(id);

  const SegmentKeeper::Estate estate = segments_.WriterDied(SegmentId{id.value});
  if (exchange_) exchange_->ProcessEnded(id);
  SegmentChanged(SegmentId{id.value});
  if (programs_) programs_->ForgetLibraries(id);
  budget_->Handle(MemoryBudget::Died{id, estate.surviving_bytes, NowNs()}, budget_actions_);
  FindOrphansOf(id, estate.objects);
  Settle();
  ResumeSendersTo(id);
}

void NodeDaemon::EndSession(int exit_code, const std::string& why) {
  if (ended_) return;
  LogInfo("node", "ends: %s", why.empty() ? "its driver or its parent has ended" : why.c_str());
  for (auto& [id, process] : processes_) {
    if (why.empty() || !process->local.is_driver || process->local.stage == LocalProcess::Stage::kClosing) continue;
    process->stream->Queue(Exit{.now = 1, .why = why});
    process->stream->Flush();  // as far as it goes: a driver that reads nothing will see no more than that we have gone
  }
  ended_ = true;
  core_.End();
  exit_code_ = exit_code;
}

void NodeDaemon::KillEverything() {
  // The zygotes first, so that they fork no more. Their children become ours.
  for (auto& [driver, job] : jobs_) {
    for (JobZygote* zygote : job->Zygotes()) {
      if (zygote->process) ::kill(zygote->process->pid(), SIGKILL);
    }
  }
  for (auto& [id, process] : processes_) {
    if (process->pid > 0 && !process->exit_status) ::kill(process->pid, SIGKILL);
  }
  // Whatever is left has us as its parent sooner or later: workers whose number we never learned, and what user code
  // has started. The list is read again until it is empty, as each death may hand us more.
  int64_t deadline = NowNs() + 2000 * kMs;
  std::string path = "/proc/self/task/" + std::to_string(::getpid()) + "/children";
  for (;;) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    UniqueFd list(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (list) {
      std::string text;
      char buffer[4096];
      for (ssize_t size; (size = ::read(list.get(), buffer, sizeof buffer)) > 0;)
        text.append(buffer, static_cast<size_t>(size));
      for (const char* at = text.c_str(); *at != '\0';) {
        char* end;
        long pid = strtol(at, &end, 10);
        if (end == at) break;
        if (pid > 1) ::kill(static_cast<pid_t>(pid), SIGKILL);
        at = end;
      }
    }
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0) return;  // no child is left
    if (NowNs() > deadline) return;
    if (info.si_pid != 0) continue;  // a zombie waits to be reaped
    // Until the next child ends, or a moment has passed.
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGCHLD);
    timespec moment{0, 5 * kMs};
    ::sigtimedwait(&set, nullptr, &moment);
  }
}

}  // namespace weft::core
