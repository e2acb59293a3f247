// NodeDaemon: workers of C++ drivers of other nodes. Their program may not be here, or be another one (ProgramFiles);
// starts of workers wait until it is. And for other nodes: the programs of our own drivers.
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
  if (!programs_ || job.session.files.empty() || job.ForksWorkers(action.kind.guest) || !IsElsewhere(job.driver)) {
    return false;
  }
  if (Find(job.output_to) != nullptr) return false;  // a lasting job of a driver that is here
  if (programs_->Find(job.driver) != nullptr) return false;
  std::vector<NodeNumber> sources;
  for (NodeNumber node : {NodeOf(job.driver), NodeOf(job.output_to), cluster_->head()}) {
    const bool fresh = std::find(sources.begin(), sources.end(), node) == sources.end();
    if (node != cluster_->self() && cluster_->Knows(node) && fresh) sources.push_back(node);
  }
  awaiting_program_[job.driver].push_back(action);
  programs_->Prepare(job.driver, job.session, std::move(sources));
  return true;
}

bool NodeDaemon::LooksForProgram(const Job& job) {
  if (!programs_ || job.session.files.empty() || job.ForksWorkers(false)) return false;
  programs_->Prepare(job.driver, job.session, {});
  return true;
}

void NodeDaemon::ProgramSettled(ProcessId driver, const std::string& why_not) {
  auto waiting = awaiting_program_.extract(driver);
  Job* job = FindJob(driver);
  if (job == nullptr || job->ending) return;
  if (why_not.empty() && NodeOf(driver) != kClusterNode) job->pool->SessionOpened(NowNs(), pool_actions_);
  if (waiting.empty()) return;
  for (const StartWorker& action : waiting.mapped()) {
    if (why_not.empty()) {
      Perform(action);
    } else {
      job->PoolOf(action.kind.guest)->WorkerEnded(action.worker, why_not, NowNs(), pool_actions_);
    }
  }
}

void NodeDaemon::ForgetProgram(ProcessId job) {
  awaiting_program_.erase(job);
  if (programs_) programs_->Forget(job);
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
  // Of our own drivers, and of jobs that have outlived theirs: nobody else's files are given away.
  for (const auto& [driver, job] : jobs_) {
    const bool ours = !IsElsewhere(driver) || NodeOf(driver) == kClusterNode;
    if (ours && !job->ending && lists(job->session)) return programs_->Serve(from, message, &job->session);
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

}  // namespace weft::core
