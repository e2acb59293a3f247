// Whether workers of a driver of another node can be started here, and whether a process here can load a library that
// one of another node has loaded: the files that they are made of (OpenSession::files, FindLibrary::files) are looked
// for at their paths and in the ProgramCache, and if they are not there, they are asked of other nodes. And the other
// side of it: gives pieces of such files to nodes that ask.
//
// What lies at a path counts only if it has the same identity (os/elf.h). What is for another machine or C library is
// refused before anything is sent. One file at a time is asked for per job or library, piece by piece: the next when
// the one before has come; who wants the same file shares it. Sums of whole files are computed in steps, so that the
// loop goes on. Each step has an end: who does not answer is asked again a few times, then the next node is.
//
// Given away are files that a driver of this node lists, that a process of it has shared (Share), and copies whose sum
// is right.
//
// Owned by the NodeDaemon of a lasting node, on its loop thread; it starts the workers when it is told that all is
// there (Host), and asks before each start whether all still is. Starts and loads nothing itself.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
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
    // What a process has asked for by PrepareLibrary: where the files are, in their order; or why it cannot have them,
    // as LibraryAnswer says it.
    virtual void LibrarySettled(ProcessId process, uint64_t request, std::vector<std::string> paths,
                                const std::string& error) = 0;

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

  // Begins to look for a library, on behalf of a process and under its number, which is not 0. False: no correct
  // process asks for that. `here`: who has loaded it is a process of this node.
  bool PrepareLibrary(ProcessId process, uint64_t request, std::vector<ProgramFile> files,
                      std::vector<NodeNumber> sources, bool here);
  // The process has ended.
  void ForgetLibraries(ProcessId process);
  // A process of this node has loaded these. They may be asked for also when it has ended: what was made of them may
  // live on. False: no correct process says that.
  bool Share(const std::vector<ProgramFile>& files);

  void Handle(NodeNumber from, ProgramPiece& message);
  void Handle(NodeNumber from, ProgramDenied& message);
  void Handle(NodeNumber from, ProgramReplaced& message);
  void NodeIsGone(NodeNumber node);
  void LinkBroken(NodeNumber node);

  // To a node that asks; `session` is that of the job it named, nullptr if we know of none that it may ask for.
  void Serve(NodeNumber to, const ProgramPieceWanted& message, const OpenSession* session);

  int64_t NextDeadline() const;
  void Tick(int64_t now_ns);

  // Why a file cannot run on such a machine whoever has it; empty: it can.
  static std::string WhyNotOn(const Machine& machine, const ProgramFile& file);

 private:
  // Who wants files: a job, by its driver and 0; or a process and the number of its request.
  using Requester = std::pair<ProcessId, uint64_t>;
  enum class Stage : uint8_t { kPath, kPathSum, kCache, kEntry, kEntrySum, kComing, kReady };
  struct Place {
    std::string path;
    FileStamp stamp;
    bool own = false;  // at the path that the driver knows it by
  };
  struct Program {
    Requester requester;
    std::vector<ProgramFile> files;
    std::vector<std::string> command;
    std::vector<NodeNumber> sources;
    Stage stage = Stage::kPath;
    std::vector<Place> places;  // of the files before the one that is looked for
    std::string shadowed;       // a library that has another build at its path
    bool replaced = false;      // the build that is wanted was at its path, and another one is now
    bool loaded_here = false;   // by a process of this node, from its path
    std::unique_ptr<FileSum> sum;
    FileStamp summed;
    std::vector<ProgramCache::Entry> entries;
    Start start;
    const ProgramFile& file() const { return files[places.size()]; }
    bool is_library() const { return requester.second != 0; }
  };
  struct Coming {  // by identity: those that want the same share it
    ProgramFile file;
    Requester requester;
    std::vector<NodeNumber> sources;
    size_t source = 0;
    std::string denied;     // by the sources before
    bool replaced = false;  // at one of them
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
  // Copies that somebody asks for, and whose sum this daemon has not computed yet.
  struct Checking {
    std::vector<ProgramCache::Entry> entries;
    std::unique_ptr<FileSum> sum;  // of the last of them
    FileStamp summed;
    std::map<NodeNumber, ProgramPieceWanted> asked;
  };

  // True if there is more to do at once.
  bool Step(Program& program);
  void LookAtPath(Program& program);
  void LookAtEntry(Program& program);
  void DropDamaged(const ProgramCache::Entry& entry, const FileStamp& summed);
  void Found(Program& program, std::string path, FileStamp stamp, bool own);
  static void AnotherIsThere(Program& program);
  void Complete(Program& program);
  void CompleteLibrary(Program& program);
  void Fail(Requester requester, const std::string& why);
  void Fetch(Program& program);
  void Ask(Coming& coming);
  void AskNext(std::string identity, const std::string& why);
  static void ChangeSources(Coming& coming, std::vector<NodeNumber> sources);
  void Abandon(std::string identity, std::string why);  // by value: it ends what they may lie in
  void FailAllThatWaitFor(const ProgramFile& file, const std::string& why, bool replaced = false);
  void AskForOthers();
  void Came(const std::string& identity);
  Coming* FindComing(NodeNumber from, uint64_t request);
  std::set<std::string> InUse() const;
  // A file at its path, or a copy; kInvalid: another build is at its path.
  Result<Served> OpenToServe(const ProgramFile& file);
  std::optional<Served> OpenCopy(const std::string& identity);
  const ProgramFile* FindGiven(const std::string& identity, const OpenSession* session) const;
  bool BeginChecking(NodeNumber to, const ProgramPieceWanted& message);
  void StepChecking(const std::string& identity);

  Host& host_;
  ProgramCache cache_;
  const Machine machine_;
  const NodeNumber self_;
  std::map<Requester, Program> programs_;
  std::map<std::string, Coming> coming_;
  std::map<std::string, FileStamp> verified_;  // copies in the cache whose sum was right
  std::map<std::string, Served> served_;       // by identity
  std::map<std::string, Checking> checking_;   // by identity
  std::map<std::string, ProgramFile> shared_;  // by identity
  std::deque<std::string> shared_order_;       // the oldest first
  uint64_t next_request_ = 1;
};

}  // namespace weft::core
