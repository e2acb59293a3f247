// Whether workers of a driver of another node can be started here: the files that they are made of (OpenSession::files)
// are looked for at their paths and in the ProgramCache, and if they are not there, they are asked of the driver's
// node. On the driver's node, the other side of it: gives pieces of such files to nodes that ask.
//
// What lies at a path counts only if it has the same identity (os/elf.h). What is for another machine or C library is
// refused before anything is sent. One file at a time is asked for per job, piece by piece: the next when the one
// before has come. Sums of whole files are computed in steps, so that the loop goes on.
//
// Owned by the NodeDaemon of a lasting node, on its loop thread; it starts the workers when it is told that all is
// there (Host), and asks before each start whether all still is. Starts nothing itself.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "node/program_cache.h"
#include "wire/node_messages.h"

namespace weft::core {

class ProgramFiles {
 public:
  class Host {
   public:
    virtual void SendToNode(NodeNumber node, const NodeMessage& message) = 0;
    // "node 3 (name)".
    virtual std::string NameOf(NodeNumber node) const = 0;
    // The files of this job are there (Find), or why they cannot be. In the latter case it is forgotten.
    virtual void ProgramSettled(ProcessId job, const std::string& why_not) = 0;

   protected:
    ~Host() = default;
  };
  struct Machine {
    uint16_t machine = 0;
    uint8_t bits = 0;
    uint32_t glibc = 0;
    static Machine OfThisProcess();
  };
  // How workers are started here.
  struct Start {
    std::vector<std::string> command;
    std::string library_folder;  // goes to the front of LD_LIBRARY_PATH; empty: nothing does
  };

  ProgramFiles(Host& host, ProgramCache cache, Machine machine, NodeNumber self)
      : host_(host), cache_(std::move(cache)), machine_(machine), self_(self) {}

  // Begins to look, unless it does already. `sources` are asked in turn for what is not here; without any, it only
  // looks.
  void Prepare(ProcessId job, const OpenSession& session, std::vector<NodeNumber> sources);
  // nullptr: not all is there, or not any more.
  const Start* Find(ProcessId job);
  void Forget(ProcessId job);

  void Handle(NodeNumber from, ProgramPiece& message);
  void Handle(NodeNumber from, ProgramDenied& message);
  void NodeIsGone(NodeNumber node);
  void LinkBroken(NodeNumber node);

  // To a node that asks; `session` is that of the job it named, nullptr if we know of none that it may ask for.
  void Serve(NodeNumber to, const ProgramPieceWanted& message, const OpenSession* session);

  int64_t NextDeadline() const;
  void Tick(int64_t now_ns);

  // Why a file cannot run on such a machine whoever has it; empty: it can.
  static std::string WhyNotOn(const Machine& machine, const ProgramFile& file);

 private:
  enum class Stage : uint8_t { kPath, kPathSum, kCache, kEntry, kEntrySum, kComing, kReady };
  struct Place {
    std::string path;
    FileStamp stamp;
    bool own = false;  // at the path that the driver knows it by
  };
  struct Program {
    ProcessId job;
    std::vector<ProgramFile> files;
    std::vector<std::string> command;
    std::vector<NodeNumber> sources;
    Stage stage = Stage::kPath;
    std::vector<Place> places;  // of the files before the one that is looked for
    std::string shadowed;       // a library that has another build at its path
    std::unique_ptr<FileSum> sum;
    FileStamp summed;
    std::vector<ProgramCache::Entry> entries;
    Start start;
    const ProgramFile& file() const { return files[places.size()]; }
  };
  struct Coming {  // by identity: jobs that want the same share it
    ProgramFile file;
    ProcessId job;
    std::vector<NodeNumber> sources;
    size_t source = 0;
    std::string denied;  // by the sources before
    uint64_t request = 0;
    int64_t again_ns = 0;  // when it is asked for again
    int tries = 0;         // since something came
    ProgramCache::Incoming incoming;
  };
  struct Served {
    UniqueFd fd;
    FileStamp stamp;
    int64_t used_ns = 0;
  };

  // True if there is more to do at once.
  bool Step(Program& program);
  void LookAtPath(Program& program);
  void LookAtEntry(Program& program);
  void Found(Program& program, std::string path, FileStamp stamp, bool own);
  void Complete(Program& program);
  void Fail(ProcessId job, const std::string& why);
  void Fetch(Program& program);
  void Ask(Coming& coming);
  void AskNext(std::string identity, const std::string& why);
  void Abandon(std::string identity, std::string why);  // by value: it ends what they may lie in
  void FailAllThatWaitFor(const ProgramFile& file, const std::string& why);
  void Came(const std::string& identity);
  Coming* FindComing(NodeNumber from, uint64_t request);
  std::set<std::string> InUse() const;
  Result<Served> OpenToServe(const ProgramFile& file);

  Host& host_;
  ProgramCache cache_;
  const Machine machine_;
  const NodeNumber self_;
  std::map<ProcessId, Program> programs_;
  std::map<std::string, Coming> coming_;
  std::map<std::string, FileStamp> verified_;  // copies in the cache whose sum was right
  std::map<std::string, Served> served_;       // by identity
  uint64_t next_request_ = 1;
};

}  // namespace weft::core
