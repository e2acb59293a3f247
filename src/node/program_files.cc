#include "node/program_files.h"

#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <span>

#include "base/check.h"
#include "base/clock.h"
#include "log/log.h"
#include "os/elf.h"
#include "transfer/checksum.h"

namespace weft::core {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// No program has so many libraries of its own.
constexpr size_t kMaxFiles = 1024;
// A piece takes milliseconds; whoever has not sent it by then has not heard of it, or has much to do.
constexpr int64_t kPatienceNs = 10 * kSecond;
constexpr int kMaxTries = 4;
constexpr int64_t kAfterBreakNs = kSecond / 5;
// Of a file's sum in one turn of the loop: a few milliseconds.
constexpr size_t kSumStepBytes = 1 << 20;
// A file that is being given away stays open so long after the last piece.
constexpr int64_t kServedNs = 30 * kSecond;
// A process loads few libraries at once.
constexpr size_t kMaxRequests = 64;
// Of processes of this node, in all; the oldest are forgotten.
constexpr size_t kMaxShared = 4096;
// So many nodes say in an error why they do not send a file.
constexpr size_t kMostReasons = 3;

std::string InWords(uint64_t bytes) {
  char text[32];
  const auto amount = static_cast<double>(bytes);
  if (bytes < 10'000'000) {
    std::snprintf(text, sizeof text, "%.0f kB", amount / 1e3);
  } else {
    std::snprintf(text, sizeof text, "%.0f MB", amount / 1e6);
  }
  return text;
}

// "build 12ab34cd": enough to tell two apart.
std::string BuildInWords(const std::string& identity) {
  const size_t colon = identity.find(':');
  return (identity.starts_with("build:") ? "build " : "SHA-256 ") + identity.substr(colon + 1, 12);
}

UniqueFd OpenFile(const std::string& path) {
  // Not waiting for the other end, should it be a pipe by now.
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

bool IsName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool IsRole(const ProgramFile& file, ProgramRole role) { return file.role == static_cast<uint8_t>(role); }

bool MakesSense(const ProgramFile& file) {
  return IsIdentity(file.identity) && file.path.starts_with("/") && file.path.find('\0') == std::string::npos &&
         file.interpreter.find('\0') == std::string::npos && IsName(file.name) && IsName(BaseName(file.path));
}

// The library of tasks, and then what it needs.
bool IsLibrary(const std::vector<ProgramFile>& files) {
  if (files.empty() || files.size() > kMaxFiles || !IsRole(files[0], ProgramRole::kTaskLibrary)) return false;
  return std::all_of(files.begin(), files.end(), MakesSense) &&
         std::all_of(files.begin() + 1, files.end(), [](const auto& f) { return IsRole(f, ProgramRole::kLibrary); });
}

std::string WhyNoList(const std::vector<ProgramFile>& files, const std::vector<std::string>& command) {
  if (files.size() > kMaxFiles) return "it consists of too many files";
  if (!std::all_of(files.begin(), files.end(), MakesSense)) return "its driver's list of files makes no sense";
  const bool in_order = !command.empty() && IsRole(files[0], ProgramRole::kProgram) && files[0].path == command[0];
  return in_order ? "" : "its driver's list of files does not begin with the program";
}

}  // namespace

ProgramFiles::Machine ProgramFiles::Machine::OfThisProcess() {
  Machine machine;
  if (auto own = ReadElf(OpenFile("/proc/self/exe").get()); own.ok()) {
    machine.machine = own->machine;
    machine.bits = own->bits;
  }
  machine.glibc = ParseGlibc(::gnu_get_libc_version());
  return machine;
}

std::string ProgramFiles::WhyNotOn(const Machine& machine, const ProgramFile& file) {
  if (file.machine == 0) return "";
  if (machine.machine != 0 && (file.machine != machine.machine || file.bits != machine.bits)) {
    return file.path + " is for " + DescribeMachine(file.machine, file.bits) + ", and this machine is " +
           DescribeMachine(machine.machine, machine.bits) +
           "; keep its tasks and actors on machines of the driver's kind (labels, resources)";
  }
  if (!file.interpreter.empty() && ::access(file.interpreter.c_str(), F_OK) != 0) {
    return file.path + " is loaded by " + file.interpreter +
           ", which this machine does not have: it was built for another C library; build it for this one, or keep its "
           "tasks and actors on machines like the driver's (labels, resources)";
  }
  if (machine.glibc != 0 && file.glibc > machine.glibc) {
    return file.path + " needs glibc " + DescribeGlibc(file.glibc) + ", and this machine has " +
           DescribeGlibc(machine.glibc) +
           "; build it where the oldest glibc of the cluster is, or keep its tasks and actors on machines that have a "
           "newer one (labels, resources)";
  }
  return "";
}

// ---- looking --------------------------------------------------------------------------------------------------------

void ProgramFiles::Prepare(ProcessId job, const OpenSession& session, std::vector<NodeNumber> sources) {
  auto [entry, fresh] = programs_.try_emplace({job, 0});
  Program& program = entry->second;
  if (!fresh) {
    if (!sources.empty()) program.sources = std::move(sources);
    return;
  }
  program.requester = entry->first;
  program.files = session.files;
  program.command = session.worker_command;
  program.sources = std::move(sources);
}

bool ProgramFiles::PrepareLibrary(ProcessId process, uint64_t request, std::vector<ProgramFile> files,
                                  std::vector<NodeNumber> sources, bool here) {
  if (request == 0 || !IsLibrary(files)) return false;
  const auto first = programs_.lower_bound({process, 1});
  const auto last = programs_.upper_bound({process, UINT64_MAX});
  if (std::distance(first, last) >= static_cast<ptrdiff_t>(kMaxRequests)) return false;
  auto [entry, fresh] = programs_.try_emplace({process, request});
  if (!fresh) return false;
  Program& program = entry->second;
  program.requester = entry->first;
  program.files = std::move(files);
  program.sources = std::move(sources);
  program.loaded_here = here;
  return true;
}

const ProgramFiles::Start* ProgramFiles::Find(ProcessId job) {
  auto found = programs_.find({job, 0});
  if (found == programs_.end() || found->second.stage != Stage::kReady) return nullptr;
  const Program& program = found->second;
  for (const Place& place : program.places) {
    if (StampAt(place.path) == place.stamp) continue;
    programs_.erase(found);  // it was replaced, or dropped for want of room
    return nullptr;
  }
  if (!program.start.library_folder.empty() && !StampAt(program.start.command[0])) {
    programs_.erase(found);
    return nullptr;
  }
  for (const Place& place : program.places) {
    if (!place.own) cache_.Used(place.path);
  }
  return &program.start;
}

void ProgramFiles::Forget(ProcessId job) {
  programs_.erase({job, 0});
  AskForOthers();
}

void ProgramFiles::ForgetLibraries(ProcessId process) {
  programs_.erase(programs_.lower_bound({process, 1}), programs_.upper_bound({process, UINT64_MAX}));
  AskForOthers();
}

void ProgramFiles::AskForOthers() {
  // What nobody waits for any more is not asked for any more; what others wait for is asked for in their name.
  for (auto entry = coming_.begin(); entry != coming_.end();) {
    Coming& coming = entry->second;
    auto waiting = std::find_if(programs_.begin(), programs_.end(), [&](const auto& item) {
      return item.second.stage == Stage::kComing && item.second.file().identity == entry->first;
    });
    if (waiting == programs_.end()) {
      entry = coming_.erase(entry);
      continue;
    }
    if (!programs_.contains(coming.requester)) {
      coming.requester = waiting->first;
      if (!waiting->second.sources.empty()) ChangeSources(coming, waiting->second.sources);  // else it only looks
      coming.again_ns = NowNs();
    }
    ++entry;
  }
}

// Who sends it goes on with it, if it is among them; else it begins anew.
void ProgramFiles::ChangeSources(Coming& coming, std::vector<NodeNumber> sources) {
  auto sender = std::find(sources.begin(), sources.end(), coming.sources[coming.source]);
  const bool goes_on = sender != sources.end();
  if (goes_on) std::rotate(sources.begin(), sender, sender + 1);
  coming.sources = std::move(sources);
  coming.source = 0;
  if (!goes_on) coming.incoming.BeginAnew();
}

bool ProgramFiles::Step(Program& program) {
  switch (program.stage) {
    case Stage::kPath:
      LookAtPath(program);
      return true;
    case Stage::kPathSum:
    case Stage::kEntrySum: {
      const FileSum::State state = program.sum->Step(kSumStepBytes);
      if (state == FileSum::State::kMore) return true;
      const bool at_path = program.stage == Stage::kPathSum;
      auto sum = std::exchange(program.sum, nullptr);
      const ProgramFile& file = program.file();
      const bool whole = state == FileSum::State::kDone && StampOf(sum->fd()) == program.summed;
      if (at_path) {
        if (whole && "sha256:" + sum->hexadecimal() == file.identity) {
          Found(program, file.path, program.summed, true);
        } else {
          AnotherIsThere(program);
          program.stage = Stage::kCache;
        }
        return true;
      }
      const ProgramCache::Entry entry = program.entries.back();
      const std::string identity = file.identity.starts_with("build:") ? QuickIdentity(sum->fd()) : file.identity;
      if (whole && sum->hexadecimal() == entry.sum && identity == file.identity &&
          (file.identity.starts_with("build:") || file.identity == "sha256:" + entry.sum)) {
        verified_[entry.path] = program.summed;
        Found(program, entry.path, program.summed, false);
      } else {
        DropDamaged(entry, program.summed);
        program.entries.pop_back();
        program.stage = Stage::kEntry;
      }
      return true;
    }
    case Stage::kCache:
      program.entries = cache_.Find(program.file().identity);
      program.stage = Stage::kEntry;
      return true;
    case Stage::kEntry:
      LookAtEntry(program);
      return true;
    case Stage::kComing:
    case Stage::kReady:
      return false;
  }
  return false;
}

// Unless a new one has taken its place, because somebody else has noticed it before.
void ProgramFiles::DropDamaged(const ProgramCache::Entry& entry, const FileStamp& summed) {
  if (StampAt(entry.path) != summed) return;
  LogWarning("program", "the copy %s is damaged and removed", entry.path.c_str());
  cache_.Drop(entry);
}

void ProgramFiles::LookAtPath(Program& program) {
  if (program.places.empty()) {
    std::string why = program.is_library() ? "" : WhyNoList(program.files, program.command);
    // Of all files, before any is sent.
    for (const ProgramFile& file : program.files) {
      if (why.empty()) why = WhyNotOn(machine_, file);
    }
    if (!why.empty()) return Fail(program.requester, why);
  }
  const ProgramFile& file = program.file();
  program.stage = Stage::kCache;
  if (file.path.starts_with("/proc/")) return;  // names something else on every machine
  UniqueFd fd = OpenFile(file.path);
  auto stamp = fd ? StampOf(fd.get()) : std::nullopt;
  if (!stamp) return;
  const std::string identity = QuickIdentity(fd.get());
  if (identity == file.identity) return Found(program, file.path, *stamp, true);
  if (file.identity.starts_with("sha256:") && stamp->size == file.size) {
    program.sum = std::make_unique<FileSum>(std::move(fd));
    program.summed = *stamp;
    program.stage = Stage::kPathSum;
    return;
  }
  AnotherIsThere(program);
}

// Another build, at the path of the file.
void ProgramFiles::AnotherIsThere(Program& program) {
  const ProgramFile& file = program.file();
  program.replaced = program.replaced || program.loaded_here;
  // A library of tasks is opened by the path of its copy.
  const bool by_path = program.is_library() && program.places.empty();
  if (!IsRole(file, ProgramRole::kProgram) && !by_path) program.shadowed = file.path;
}

void ProgramFiles::LookAtEntry(Program& program) {
  if (program.entries.empty()) return Fetch(program);
  const ProgramCache::Entry& entry = program.entries.back();
  UniqueFd fd = OpenFile(entry.path);
  auto stamp = fd ? StampOf(fd.get()) : std::nullopt;
  if (!stamp) {
    program.entries.pop_back();
    return;
  }
  if (auto verified = verified_.find(entry.path); verified != verified_.end() && verified->second == *stamp) {
    return Found(program, entry.path, *stamp, false);
  }
  program.sum = std::make_unique<FileSum>(std::move(fd));
  program.summed = *stamp;
  program.stage = Stage::kEntrySum;
}

void ProgramFiles::Found(Program& program, std::string path, FileStamp stamp, bool own) {
  if (!own) cache_.Used(path);
  program.places.push_back({std::move(path), stamp, own});
  program.entries.clear();
  program.stage = Stage::kPath;
  if (program.places.size() == program.files.size()) Complete(program);
}

void ProgramFiles::Complete(Program& program) {
  const std::vector<Place>& places = program.places;
  program.start.command = program.command;
  const bool all_own = std::all_of(places.begin(), places.end(), [](const Place& place) { return place.own; });
  if (!all_own) {
    auto fixed = std::find_if(program.files.begin(), program.files.end(), [](const auto& f) { return f.fixed_paths; });
    if (!program.shadowed.empty() && fixed != program.files.end()) {
      return Fail(program.requester,
                  "another build of the library " + program.shadowed + " is installed here, and " + fixed->path +
                      " would load it whatever it is told, because it says itself where its libraries "
                      "lie (DT_RPATH); link with -Wl,--enable-new-dtags, or install the same build here");
    }
    std::vector<std::pair<std::string, std::string>> links;
    std::set<std::string> names;
    for (size_t i = 0; i < places.size(); ++i) {
      const ProgramFile& file = program.files[i];
      if (i == 0 && !program.is_library()) {
        if (!places[0].own) links.emplace_back("bin/" + BaseName(file.path), places[0].path);
      } else if (names.insert(file.name).second) {
        links.emplace_back("lib/" + file.name, places[i].path);
      }
    }
    auto folder = cache_.Link(links);
    if (!folder) return Fail(program.requester, folder.error().message);
    program.start.library_folder = *folder + "/lib";
  }
  if (program.is_library()) return CompleteLibrary(program);
  if (!all_own) {
    const std::string& libraries = program.start.library_folder;
    if (!places[0].own) {
      program.start.command[0] = libraries.substr(0, libraries.rfind('/')) + "/bin/" + BaseName(program.files[0].path);
    }
    for (size_t i = 1; i < places.size(); ++i) {
      if (places[i].own || !IsRole(program.files[i], ProgramRole::kTaskLibrary)) continue;
      std::replace(program.start.command.begin() + 1, program.start.command.end(), program.files[i].path,
                   libraries + "/" + program.files[i].name);
    }
  }
  program.stage = Stage::kReady;
  host_.ProgramSettled(program.requester.first, "");
}

// The process opens them now. Nothing keeps the copies from then on: what is loaded needs no file, and who finds one
// gone asks again.
void ProgramFiles::CompleteLibrary(Program& program) {
  std::vector<std::string> paths;
  for (size_t i = 0; i < program.files.size(); ++i) {
    paths.push_back(program.places[i].own ? program.files[i].path
                                          : program.start.library_folder + "/" + program.files[i].name);
  }
  const Requester requester = program.requester;
  programs_.erase(requester);
  host_.LibrarySettled(requester.first, requester.second, std::move(paths), "");
}

void ProgramFiles::Fail(Requester requester, const std::string& why) {
  auto failed = programs_.extract(requester);
  if (requester.second == 0) {
    return host_.ProgramSettled(requester.first,
                                "the driver's program cannot be run on " + host_.NameOf(self_) + ": " + why);
  }
  const Program& program = failed.mapped();
  host_.LibrarySettled(requester.first, requester.second, {},
                       std::string(program.replaced ? "VersionMismatchError" : "RuntimeEnvSetupError") +
                           "\nthe library " + program.files[0].path + " cannot be used on " + host_.NameOf(self_) +
                           ": " + why);
}

std::set<std::string> ProgramFiles::InUse() const {
  std::set<std::string> paths;
  for (const auto& [requester, program] : programs_) {
    for (const Place& place : program.places) paths.insert(place.path);
  }
  return paths;
}

// ---- asking ---------------------------------------------------------------------------------------------------------

void ProgramFiles::Fetch(Program& program) {
  const ProgramFile& file = program.file();
  const std::string absent =
      file.path + " (" + BuildInWords(file.identity) + ", " + InWords(file.size) + ") is not there, and ";
  program.stage = Stage::kComing;
  if (coming_.contains(file.identity)) return;
  const uint64_t most = cache_.limits().file_bytes;
  if (file.size == 0 || file.size > most) {
    return Fail(program.requester, absent + "it is too large to be sent (at most " + InWords(most) +
                                       "); install it at the same path on every machine");
  }
  if (program.sources.empty()) {
    return Fail(program.requester,
                absent +
                    (program.is_library() ? (program.replaced ? "another build of it is at that path by now"
                                                              : "no node is known that could send it")
                                          : "its driver's node is gone") +
                    "; install it at the same path on every machine" +
                    (program.replaced ? ", or start the driver again" : ""));
  }
  auto incoming = cache_.Begin(file.size, InUse());
  if (!incoming) {
    return Fail(program.requester, absent + "a copy cannot be kept: " + incoming.error().message +
                                       "; make room, or install it at the same path on every machine");
  }
  auto [entry, fresh] = coming_.emplace(
      file.identity,
      Coming{
          .file = file, .requester = program.requester, .sources = program.sources, .incoming = std::move(*incoming)});
  Ask(entry->second);
}

void ProgramFiles::Ask(Coming& coming) {
  coming.request = next_request_++;
  coming.again_ns = NowNs() + kPatienceNs;
  host_.SendToNode(coming.sources[coming.source], ProgramPieceWanted{coming.request, coming.requester.first,
                                                                     coming.file.identity, coming.incoming.received()});
}

void ProgramFiles::AskNext(std::string identity, const std::string& why) {
  Coming& coming = coming_.at(identity);
  if (coming.source < kMostReasons) {
    if (!coming.denied.empty()) coming.denied += "; ";
    coming.denied += host_.NameOf(coming.sources[coming.source]) + " does not send it: " + why;
  } else if (coming.source == kMostReasons) {
    coming.denied += "; nor does any other node";
  }
  coming.tries = 0;
  if (++coming.source >= coming.sources.size()) return Abandon(identity, coming.denied);
  coming.incoming.BeginAnew();
  Ask(coming);
}

void ProgramFiles::Abandon(std::string identity, std::string why) {
  auto found = coming_.find(identity);
  const ProgramFile file = found->second.file;
  const bool replaced = found->second.replaced;
  coming_.erase(found);
  FailAllThatWaitFor(file, why, replaced);
}

void ProgramFiles::FailAllThatWaitFor(const ProgramFile& file, const std::string& why, bool replaced) {
  std::vector<Requester> waiting;
  for (auto& [requester, program] : programs_) {
    if (program.stage != Stage::kComing || program.file().identity != file.identity) continue;
    program.replaced = program.replaced || replaced;
    waiting.push_back(requester);
  }
  for (const Requester& requester : waiting) {
    Fail(requester, file.path + " (" + BuildInWords(file.identity) + ") is not there, and " + why +
                        "; install it at the same path on every machine, or start the driver again");
  }
}

void ProgramFiles::Came(const std::string& identity) {
  auto found = coming_.find(identity);
  Coming coming = std::move(found->second);
  coming_.erase(found);
  auto entry = cache_.Finish(std::move(coming.incoming), identity);
  if (!entry) return FailAllThatWaitFor(coming.file, "it did not arrive as it was: " + entry.error().message);
  if (auto stamp = StampAt(entry->path)) verified_[entry->path] = *stamp;
  for (auto& [requester, program] : programs_) {
    if (program.stage == Stage::kComing && program.file().identity == identity) program.stage = Stage::kCache;
  }
}

ProgramFiles::Coming* ProgramFiles::FindComing(NodeNumber from, uint64_t request) {
  for (auto& [identity, coming] : coming_) {
    if (coming.request == request && coming.sources[coming.source] == from) return &coming;
  }
  return nullptr;  // asked for again meanwhile, or no longer wanted
}

void ProgramFiles::Handle(NodeNumber from, ProgramPiece& message) {
  Coming* coming = FindComing(from, message.request);
  if (coming == nullptr) return;
  const std::string identity = coming->file.identity;
  const uint64_t left = coming->file.size - coming->incoming.received();
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(message.bytes.data()), message.bytes.size());
  if (message.offset != coming->incoming.received() ||
      message.bytes.size() != std::min<uint64_t>(left, kProgramPieceBytes) || Checksum(bytes) != message.checksum) {
    if (++coming->tries < kMaxTries) return Ask(*coming);
    return AskNext(identity, "what it sends is damaged");
  }
  if (Status status = coming->incoming.Append(message.bytes); !status) {
    return Abandon(identity, "a copy cannot be kept: " + status.error().message);
  }
  coming->tries = 0;
  if (coming->incoming.received() == coming->file.size) return Came(identity);
  Ask(*coming);
}

void ProgramFiles::Handle(NodeNumber from, ProgramDenied& message) {
  if (Coming* coming = FindComing(from, message.request)) AskNext(coming->file.identity, message.why);
}

void ProgramFiles::Handle(NodeNumber from, ProgramReplaced& message) {
  Coming* coming = FindComing(from, message.request);
  if (coming == nullptr) return;
  coming->replaced = true;
  AskNext(coming->file.identity, message.why);
}

void ProgramFiles::NodeIsGone(NodeNumber node) {
  std::vector<std::string> asked;
  for (auto& [identity, coming] : coming_) {
    if (coming.sources[coming.source] == node) asked.push_back(identity);
    // Nor is it asked later.
    const auto later = coming.sources.begin() + static_cast<ptrdiff_t>(coming.source) + 1;
    coming.sources.erase(std::remove(later, coming.sources.end(), node), coming.sources.end());
  }
  for (const std::string& identity : asked) {
    if (coming_.contains(identity)) AskNext(identity, "it is gone");
  }
  for (auto& [requester, program] : programs_) std::erase(program.sources, node);
  for (auto& [identity, checking] : checking_) checking.asked.erase(node);
}

void ProgramFiles::LinkBroken(NodeNumber node) {
  for (auto& [identity, coming] : coming_) {
    if (coming.sources[coming.source] == node) coming.again_ns = std::min(coming.again_ns, NowNs() + kAfterBreakNs);
  }
}

// ---- giving ---------------------------------------------------------------------------------------------------------

bool ProgramFiles::Share(const std::vector<ProgramFile>& files) {
  if (!IsLibrary(files)) return false;
  for (const ProgramFile& file : files) {
    if (!shared_.insert_or_assign(file.identity, file).second) continue;
    shared_order_.push_back(file.identity);
    if (shared_order_.size() <= kMaxShared) continue;
    shared_.erase(shared_order_.front());
    shared_order_.pop_front();
  }
  return true;
}

// That a driver of this node lists, or a process of it has shared.
const ProgramFile* ProgramFiles::FindGiven(const std::string& identity, const OpenSession* session) const {
  if (session != nullptr) {
    auto file = std::find_if(session->files.begin(), session->files.end(),
                             [&](const ProgramFile& listed) { return listed.identity == identity; });
    if (file != session->files.end()) return &*file;
  }
  auto shared = shared_.find(identity);
  return shared != shared_.end() ? &shared->second : nullptr;
}

Result<ProgramFiles::Served> ProgramFiles::OpenToServe(const ProgramFile& file) {
  Error why{ErrorKind::kGone, file.path + " is not there any more"};
  if (UniqueFd fd = OpenFile(file.path)) {
    auto stamp = StampOf(fd.get());
    // Of a file without a build id the receiver computes the sum, which is its identity.
    const bool same = stamp && stamp->size == file.size &&
                      (file.identity.starts_with("sha256:") || QuickIdentity(fd.get()) == file.identity);
    if (same) return Served{std::move(fd), *stamp, 0};
    why = {ErrorKind::kInvalid, file.path + " was replaced since " +
                                    (IsRole(file, ProgramRole::kProgram) ? "the driver started" : "it was loaded")};
  }
  // A node that was sent it can pass it on.
  auto copy = OpenCopy(file.identity);
  if (copy && copy->stamp.size == file.size) return std::move(*copy);
  return why;
}

std::optional<ProgramFiles::Served> ProgramFiles::OpenCopy(const std::string& identity) {
  for (const ProgramCache::Entry& entry : cache_.Find(identity)) {
    auto verified = verified_.find(entry.path);
    UniqueFd fd = OpenFile(entry.path);
    auto stamp = fd ? StampOf(fd.get()) : std::nullopt;
    if (stamp && verified != verified_.end() && verified->second == *stamp) return Served{std::move(fd), *stamp, 0};
  }
  return std::nullopt;
}

// True: there are copies, and the sums of some must be known before one can be given away.
bool ProgramFiles::BeginChecking(NodeNumber to, const ProgramPieceWanted& message) {
  auto found = checking_.find(message.identity);
  if (found == checking_.end()) {
    auto entries = cache_.Find(message.identity);
    std::erase_if(entries, [&](const ProgramCache::Entry& entry) {
      auto verified = verified_.find(entry.path);
      return verified != verified_.end() && StampAt(entry.path) == verified->second;
    });
    if (entries.empty()) return false;
    found = checking_.emplace(message.identity, Checking{.entries = std::move(entries)}).first;
  }
  found->second.asked[to] = message;  // what it asked before it no longer waits for
  return true;
}

void ProgramFiles::StepChecking(const std::string& identity) {
  Checking& checking = checking_.at(identity);
  bool right = false;
  if (!checking.sum && !checking.entries.empty()) {
    UniqueFd fd = OpenFile(checking.entries.back().path);
    auto stamp = fd ? StampOf(fd.get()) : std::nullopt;
    if (!stamp) {
      checking.entries.pop_back();
      return;
    }
    checking.summed = *stamp;
    checking.sum = std::make_unique<FileSum>(std::move(fd));
  }
  if (checking.sum) {
    const FileSum::State state = checking.sum->Step(kSumStepBytes);
    if (state == FileSum::State::kMore) return;
    const ProgramCache::Entry& entry = checking.entries.back();
    right = state == FileSum::State::kDone && checking.sum->hexadecimal() == entry.sum &&
            StampOf(checking.sum->fd()) == checking.summed;
    if (right) {
      verified_[entry.path] = checking.summed;
    } else {
      DropDamaged(entry, checking.summed);
    }
    checking.sum.reset();
    checking.entries.pop_back();
    if (!right && !checking.entries.empty()) return;
  }
  auto asked = std::move(checking.asked);
  checking_.erase(identity);
  for (const auto& [node, message] : asked) {
    if (right) {
      Serve(node, message, nullptr);
    } else {
      host_.SendToNode(node, ProgramDenied{message.request, "its copy is damaged"});
    }
  }
}

void ProgramFiles::Serve(NodeNumber to, const ProgramPieceWanted& message, const OpenSession* session) {
  auto deny = [&](std::string why) { host_.SendToNode(to, ProgramDenied{message.request, std::move(why)}); };
  if (!IsIdentity(message.identity)) return deny("that is no file's identity");
  const ProgramFile* file = FindGiven(message.identity, session);
  const std::string name = file != nullptr ? file->path : "its copy";
  auto found = served_.find(message.identity);
  if (found != served_.end() && StampOf(found->second.fd.get()) != found->second.stamp) {
    served_.erase(found);
    if (message.offset > 0) return deny(name + " was changed while it was read");
    found = served_.end();
  }
  if (found == served_.end()) {
    Result<Served> opened = Error{
        ErrorKind::kGone, session == nullptr ? "it knows nobody any more who has it" : "its driver needs no such file"};
    if (file != nullptr) {
      opened = OpenToServe(*file);
    } else if (auto copy = OpenCopy(message.identity)) {
      opened = std::move(*copy);
    }
    if (!opened && BeginChecking(to, message)) return;
    if (!opened && opened.error().kind == ErrorKind::kInvalid) {
      return host_.SendToNode(to, ProgramReplaced{message.request, opened.error().message});
    }
    if (!opened) return deny(opened.error().message);
    found = served_.emplace(message.identity, std::move(*opened)).first;
  }
  Served& served = found->second;
  served.used_ns = NowNs();
  if (message.offset >= served.stamp.size) return deny("it has no such piece");
  ProgramPiece piece{message.request, message.offset, 0, {}};
  piece.bytes.resize(static_cast<size_t>(std::min<uint64_t>(kProgramPieceBytes, served.stamp.size - message.offset)));
  for (size_t done = 0; done < piece.bytes.size();) {
    const ssize_t size = ::pread(served.fd.get(), piece.bytes.data() + done, piece.bytes.size() - done,
                                 static_cast<off_t>(message.offset + done));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return deny(name + " cannot be read: " + (size < 0 ? strerror(errno) : "it is shorter now"));
    done += static_cast<size_t>(size);
  }
  piece.checksum = Checksum({reinterpret_cast<const uint8_t*>(piece.bytes.data()), piece.bytes.size()});
  host_.SendToNode(to, piece);
}

// ---- time -----------------------------------------------------------------------------------------------------------

int64_t ProgramFiles::NextDeadline() const {
  int64_t next = INT64_MAX;
  if (!checking_.empty()) return 0;
  for (const auto& [requester, program] : programs_) {
    if (program.stage != Stage::kComing && program.stage != Stage::kReady) return 0;
  }
  for (const auto& [identity, coming] : coming_) next = std::min(next, coming.again_ns);
  for (const auto& [identity, served] : served_) next = std::min(next, served.used_ns + kServedNs);
  return next;
}

void ProgramFiles::Tick(int64_t now_ns) {
  std::erase_if(served_, [&](const auto& entry) { return now_ns - entry.second.used_ns >= kServedNs; });
  std::vector<std::string> late;
  for (const auto& [identity, coming] : coming_) {
    if (coming.again_ns <= now_ns) late.push_back(identity);
  }
  for (const std::string& identity : late) {
    auto found = coming_.find(identity);
    if (found == coming_.end()) continue;
    if (++found->second.tries < kMaxTries) {
      Ask(found->second);
    } else {
      AskNext(identity, "it does not answer");
    }
  }
  std::vector<std::string> checked;
  for (const auto& [identity, checking] : checking_) checked.push_back(identity);
  for (const std::string& identity : checked) StepChecking(identity);
  // A step of each; what is quick is done at once. A step may end one of them.
  std::vector<Requester> requesters;
  for (const auto& [requester, program] : programs_) requesters.push_back(requester);
  for (const Requester& requester : requesters) {
    for (size_t steps = 0; steps < 8 * kMaxFiles; ++steps) {
      auto found = programs_.find(requester);
      if (found == programs_.end()) break;
      const bool sums = found->second.sum != nullptr;
      if (!Step(found->second) || sums) break;
    }
  }
}

}  // namespace weft::core
