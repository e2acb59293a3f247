// NodeDaemon: workers of C++ drivers of other nodes. Their program may not be here, or be another one (ProgramFiles);
// starts of workers wait until it is. Likewise libraries of tasks that a process here is to load, and one elsewhere has
// loaded. And for other nodes: the programs of our own drivers, and the libraries of our own processes.
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/clock.h"
#include "node/node_daemon.h"

namespace weft::core {
namespace {

constexpr std::string_view kLibraryPath = "LD_LIBRARY_PATH=";

bool IsFolder(const std::string& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace

void NodeDaemon::SendToNode(NodeNumber node, const NodeMessage& message) { cluster_->Send(node, message); }

std::string NodeDaemon::NameOf(NodeNumber node) const { return cluster_->Describe(node); }

bool NodeDaemon::AwaitsProgram(const Job& job, const StartWorker& action) {
  if (!programs_ || job.session.files.empty() || job.ForksWorkers(action.kind.python_of_cpp_job) ||
      !IsElsewhere(job.driver)) {
    return false;
  }
  if (Find(job.core.output_to) != nullptr) return false;  // a lasting job of a driver that is here
  if (programs_->Find(job.driver) != nullptr) return false;
  awaiting_program_[job.driver].push_back(action);
  programs_->Prepare(job.driver, job.session,
                     Others({NodeOf(job.driver), NodeOf(job.core.output_to), cluster_->head()}));
  return true;
}

std::vector<NodeNumber> NodeDaemon::Others(const std::vector<NodeNumber>& nodes) const {
  std::vector<NodeNumber> others;
  for (NodeNumber node : nodes) {
    const bool fresh = std::find(others.begin(), others.end(), node) == others.end();
    if (node != cluster_->self() && cluster_->Knows(node) && fresh) others.push_back(node);
  }
  return others;
}

bool NodeDaemon::LooksForProgram(const Job& job) {
  if (!programs_ || job.session.files.empty() || job.ForksWorkers(false)) return false;
  programs_->Prepare(job.driver, job.session, {});
  return true;
}

void NodeDaemon::ProgramSettled(ProcessId driver, const std::string& why_not) {
  auto waiting = awaiting_program_.extract(driver);
  Job* job = FindJob(driver);
  if (job == nullptr || job->core.ending) return;
  if (why_not.empty() && NodeOf(driver) != kClusterNode) Prestart(*job);
  if (waiting.empty()) return;
  for (const StartWorker& action : waiting.mapped()) {
    if (why_not.empty()) {
      core_.Start(action, NowNs());
    } else {
      core_.StartFailed(action, why_not, NowNs());
    }
  }
}

void NodeDaemon::ForgetProgram(ProcessId job) {
  awaiting_program_.erase(job);
  if (programs_) programs_->Forget(job);
}

void NodeDaemon::Handle(Process& process, ShareLibrary& message) {
  if (programs_ && !programs_->Share(message.files)) return Refuse(process, "shares a library that cannot be");
  Send(process, LibraryAnswer{message.request, {}, ""});
}

void NodeDaemon::Handle(Process& process, FindLibrary& message) {
  // Without a folder for copies there is only what lies at the paths.
  if (!programs_) return Send(process, LibraryAnswer{message.request, {}, ""});
  // Who submits has it; the driver probably; and anybody who was sent it once.
  std::vector<NodeNumber> nodes{NodeOf(message.submitter)};
  if (const Job* job = FindJob(process.local.job)) {
    nodes.push_back(NodeOf(job->driver));
    nodes.push_back(NodeOf(job->core.output_to));
  }
  nodes.push_back(cluster_->head());
  for (const auto& [node, known] : cluster_->nodes()) nodes.push_back(node);
  if (!programs_->PrepareLibrary(process.id, message.request, std::move(message.files), Others(nodes),
                                 Find(message.submitter) != nullptr)) {
    Refuse(process, "asked for a library that cannot be");
  }
}

void NodeDaemon::LibrarySettled(ProcessId id, uint64_t request, std::vector<std::string> paths,
                                const std::string& error) {
  TellProcess(id, LibraryAnswer{request, std::move(paths), error});
}

void NodeDaemon::AdaptToThisNode(const Job& job, ChildProgram& program) {
  if (!IsElsewhere(job.driver)) return;
  if (!IsFolder(program.working_directory)) {
    const char* home = ::getenv("HOME");
    program.working_directory = home != nullptr && IsFolder(home) ? home : "/";
  }
  const ProgramFiles::Start* start = programs_ ? programs_->Find(job.driver) : nullptr;
  if (start == nullptr) return;
  program.command = start->command;
  if (start->library_folder.empty()) return;
  std::string paths = std::string(kLibraryPath) + start->library_folder;
  std::erase_if(program.environment, [&](const std::string& entry) {
    if (!entry.starts_with(kLibraryPath)) return false;
    if (entry.size() > kLibraryPath.size()) paths += ":" + entry.substr(kLibraryPath.size());
    return true;
  });
  program.environment.push_back(std::move(paths));
}

void NodeDaemon::HandleNode(NodeNumber from, ProgramPieceWanted& message) {
  if (!programs_) return;
  auto lists = [&](const OpenSession& session) {
    return std::any_of(session.files.begin(), session.files.end(),
                       [&](const ProgramFile& file) { return file.identity == message.identity; });
  };
  // Of our own drivers, and of jobs that have outlived theirs; what else is given away ProgramFiles knows.
  for (const auto& [driver, job] : jobs_) {
    const bool ours = !IsElsewhere(driver) || NodeOf(driver) == kClusterNode;
    if (ours && !job->core.ending && lists(job->session)) return programs_->Serve(from, message, &job->session);
  }
  Message described;
  if (const JobDescribed* job = cluster_->is_head() ? cluster_->FindJob(message.job) : nullptr) {
    if (NodeOf(message.job) == kClusterNode) described = Decode(job->session);
  }
  programs_->Serve(from, message, std::get_if<OpenSession>(&described));
}

void NodeDaemon::HandleNode(NodeNumber from, ProgramPiece& message) {
  if (programs_) programs_->Handle(from, message);
}

void NodeDaemon::HandleNode(NodeNumber from, ProgramDenied& message) {
  if (programs_) programs_->Handle(from, message);
}

void NodeDaemon::HandleNode(NodeNumber from, ProgramReplaced& message) {
  if (programs_) programs_->Handle(from, message);
}

}  // namespace weft::core
