// Two nodes that talk through a list of messages: one has the files, the other looks for them.
#include "node/program_files.h"

#include <elf.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <deque>
#include <fstream>
#include <functional>
#include <string>

#include "base/clock.h"
#include "os/elf.h"
#include "transfer/checksum.h"

namespace weft::core {
namespace {

constexpr NodeNumber kGiver{1}, kTaker{2}, kOther{3};
constexpr ProcessId kJob{uint64_t{1} << 32 | 7}, kSecondJob{uint64_t{1} << 32 | 8};

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Write(const std::string& path, const std::string& content) {
  ::unlink(path.c_str());
  std::ofstream(path, std::ios::binary) << content;
  ::chmod(path.c_str(), 0700);
}

std::string SumOf(const std::string& content) {
  Sha256 sum;
  sum.Add(content);
  return Hexadecimal(sum.Finish());
}

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/weft-programs-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~Folder() { [[maybe_unused]] int ignored = ::system(("rm -rf " + path_).c_str()); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

struct Node : ProgramFiles::Host {
  struct Sent {
    NodeNumber to;
    NodeMessage message;
  };
  void SendToNode(NodeNumber node, const NodeMessage& message) override { sent.push_back({node, message}); }
  std::string NameOf(NodeNumber node) const override { return "node " + std::to_string(node.value); }
  void ProgramSettled(ProcessId job, const std::string& why_not) override { settled.emplace_back(job, why_not); }

  void LibrarySettled(ProcessId process, uint64_t request, std::vector<std::string> paths,
                      const std::string& error) override {
    libraries.push_back({process, request, std::move(paths), error});
  }

  struct Library {
    ProcessId process;
    uint64_t request = 0;
    std::vector<std::string> paths;
    std::string error;
  };
  std::deque<Sent> sent;
  std::vector<std::pair<ProcessId, std::string>> settled;
  std::vector<Library> libraries;
};

class ProgramFilesTest : public ::testing::Test {
 protected:
  ProgramFilesTest() { Make({}); }

  void Make(ProgramCache::Limits limits) {
    taker = std::make_unique<ProgramFiles>(taker_host, ProgramCache(cache(), limits),
                                           ProgramFiles::Machine::OfThisProcess(), kTaker);
    giver = std::make_unique<ProgramFiles>(giver_host, ProgramCache(folder / "giver/programs", {}),
                                           ProgramFiles::Machine::OfThisProcess(), kGiver);
  }
  std::string cache() const { return folder / "taker/programs"; }

  // A file of the driver's, which the other node would have at the same path.
  ProgramFile Add(const std::string& name, const std::string& content, ProgramRole role) {
    ProgramFile file;
    file.role = static_cast<uint8_t>(role);
    file.path = folder / name;
    file.name = name;
    file.size = content.size();
    file.identity = "sha256:" + SumOf(content);
    Write(file.path, content);
    session.files.push_back(file);
    if (role != ProgramRole::kLibrary) session.worker_command.push_back(file.path);
    return file;
  }

  // All that there is to do; `between` may change what is sent.
  void Run(const std::function<void(NodeMessage&)>& between = [](NodeMessage&) {}) {
    for (int quiet = 0; quiet < 3;) {
      taker->Tick(NowNs());
      ++quiet;
      if (taker->NextDeadline() == 0) quiet = 0;
      while (!taker_host.sent.empty()) {
        auto sent = std::move(taker_host.sent.front());
        taker_host.sent.pop_front();
        quiet = 0;
        ++asked;
        if (sent.to != kGiver) continue;
        giver->Serve(kTaker, std::get<ProgramPieceWanted>(sent.message), known ? &session : nullptr);
      }
      while (!giver_host.sent.empty()) {
        auto sent = std::move(giver_host.sent.front());
        giver_host.sent.pop_front();
        quiet = 0;
        between(sent.message);
        if (auto* piece = std::get_if<ProgramPiece>(&sent.message)) taker->Handle(kGiver, *piece);
        if (auto* denied = std::get_if<ProgramDenied>(&sent.message)) taker->Handle(kGiver, *denied);
        if (auto* replaced = std::get_if<ProgramReplaced>(&sent.message)) taker->Handle(kGiver, *replaced);
      }
    }
  }
  // Why it cannot be; empty: it can.
  std::string Outcome(ProcessId job = kJob) {
    EXPECT_FALSE(taker_host.settled.empty());
    if (taker_host.settled.empty()) return "nothing";
    auto [which, why] = taker_host.settled.back();
    EXPECT_EQ(which, job);
    taker_host.settled.pop_back();
    return why;
  }
  void Hide(const ProgramFile& file) { ::rename(file.path.c_str(), (file.path + ".hidden").c_str()); }

  Folder folder;
  Node taker_host, giver_host;
  std::unique_ptr<ProgramFiles> taker, giver;
  OpenSession session;
  bool known = true;
  int asked = 0;
};

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_F(ProgramFilesTest, WhatIsAtItsPathIsUsed) {
  Add("program", std::string(3 << 20, 'p'), ProgramRole::kProgram);
  Add("liba.so", "a library", ProgramRole::kLibrary);
  taker->Prepare(kJob, session, {kGiver});
  EXPECT_EQ(taker->Find(kJob), nullptr);
  Run();
  EXPECT_EQ(Outcome(), "");
  const auto* start = taker->Find(kJob);
  ASSERT_NE(start, nullptr);
  EXPECT_EQ(start->command, session.worker_command);
  EXPECT_EQ(start->library_folder, "");
  EXPECT_EQ(asked, 0);
  // Until it is replaced.
  Write(folder / "liba.so", "another library");
  EXPECT_EQ(taker->Find(kJob), nullptr);
}

// Paths are the same on both nodes here, so what the giver has is in its own cache.
class SentTest : public ProgramFilesTest {
 protected:
  // The giver opens the file while it is there, the taker finds nothing at the path.
  void Send() {
    taker->Prepare(kJob, session, {kGiver});
    for (const ProgramFile& file : session.files) Hide(file);
    // Serve opens by path: put them back only while the giver looks.
    for (int turn = 0; turn < 200 && taker_host.settled.empty(); ++turn) {
      taker->Tick(NowNs());
      Deliver();
    }
  }
  void Deliver() {
    for (const ProgramFile& file : session.files) ::rename((file.path + ".hidden").c_str(), file.path.c_str());
    while (!taker_host.sent.empty()) {
      auto sent = std::move(taker_host.sent.front());
      taker_host.sent.pop_front();
      ++asked;
      giver->Serve(kTaker, std::get<ProgramPieceWanted>(sent.message), known ? &session : nullptr);
    }
    for (const ProgramFile& file : session.files) Hide(file);
    while (!giver_host.sent.empty()) {
      auto sent = std::move(giver_host.sent.front());
      giver_host.sent.pop_front();
      if (change) change(sent.message);
      if (auto* piece = std::get_if<ProgramPiece>(&sent.message)) taker->Handle(kGiver, *piece);
      if (auto* denied = std::get_if<ProgramDenied>(&sent.message)) taker->Handle(kGiver, *denied);
      if (auto* replaced = std::get_if<ProgramReplaced>(&sent.message)) taker->Handle(kGiver, *replaced);
    }
  }
  std::function<void(NodeMessage&)> change;
};

TEST_F(SentTest, WhatIsMissingComesInPieces) {
  std::string content(size_t{3} << 20, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 + i / 4096);
  content += "the rest";
  Add("program", content, ProgramRole::kProgram);
  Add("tasks.so", "tasks", ProgramRole::kTaskLibrary);
  Add("liba.so", "a library", ProgramRole::kLibrary);
  Send();
  ASSERT_EQ(Outcome(), "");
  EXPECT_EQ(asked, 4 + 1 + 1);
  const auto* start = taker->Find(kJob);
  ASSERT_NE(start, nullptr);
  EXPECT_EQ(Content(start->command[0]), content);
  EXPECT_TRUE(start->command[0].ends_with("/bin/program"));
  EXPECT_EQ(Content(start->command[1]), "tasks");
  EXPECT_EQ(Content(start->library_folder + "/liba.so"), "a library");
  struct stat info{};
  ASSERT_EQ(::stat(start->command[0].c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0500u);
  ASSERT_EQ(::stat(cache().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);

  // A second job asks nobody; nor does a daemon that is started later.
  asked = 0;
  taker->Prepare(kSecondJob, session, {});
  Run();
  EXPECT_EQ(Outcome(kSecondJob), "");
  Make({});
  taker->Prepare(kJob, session, {});
  Run();
  EXPECT_EQ(Outcome(), "");
  EXPECT_NE(taker->Find(kJob), nullptr);
  EXPECT_EQ(asked, 0);
}

TEST_F(SentTest, LookingAheadAsksNobody) {
  Add("program", std::string(5000, 'p'), ProgramRole::kProgram);
  Hide(session.files[0]);
  taker->Prepare(kJob, session, {});
  Run();
  EXPECT_TRUE(Has(Outcome(), "its driver's node is gone"));
  EXPECT_EQ(asked, 0);
  // Work comes while it looks.
  taker->Prepare(kJob, session, {});
  taker->Prepare(kJob, session, {kGiver});
  Send();
  EXPECT_EQ(Outcome(), "");
}

TEST_F(SentTest, ADamagedCopyIsNotUsed) {
  Add("program", std::string(5000, 'p'), ProgramRole::kProgram);
  Send();
  ASSERT_EQ(Outcome(), "");
  char path[4096];
  const ssize_t size = ::readlink(taker->Find(kJob)->command[0].c_str(), path, sizeof path);
  const std::string copy(path, static_cast<size_t>(size));
  ::chmod(copy.c_str(), 0700);
  std::fstream(copy, std::ios::in | std::ios::out | std::ios::binary).seekp(4000).put('x');
  ASSERT_EQ(::utimensat(AT_FDCWD, copy.c_str(), nullptr, 0), 0);  // the clock of files may be coarse
  EXPECT_EQ(taker->Find(kJob), nullptr);
  taker->Prepare(kJob, session, {});
  Run();
  EXPECT_TRUE(Has(Outcome(), "its driver's node is gone"));
  EXPECT_NE(::access(copy.c_str(), F_OK), 0);
  Send();
  EXPECT_EQ(Outcome(), "");
  EXPECT_EQ(Content(copy), std::string(5000, 'p'));
}

TEST_F(SentTest, DamageOnTheWayIsNoticed) {
  Add("program", std::string(5000, 'p'), ProgramRole::kProgram);
  int damaged = 0;
  change = [&](NodeMessage& message) {
    auto& piece = std::get<ProgramPiece>(message);
    if (++damaged <= 2) piece.bytes[17] ^= 4;
  };
  Send();
  EXPECT_EQ(Outcome(), "");  // asked for again
  EXPECT_EQ(damaged, 3);
}

TEST_F(SentTest, AnotherFileThanTheOneAskedForIsNotKept) {
  Add("program", std::string(5000, 'p'), ProgramRole::kProgram);
  change = [&](NodeMessage& message) {
    auto& piece = std::get<ProgramPiece>(message);
    piece.bytes.assign(5000, 'q');
    piece.checksum = Checksum({reinterpret_cast<const uint8_t*>(piece.bytes.data()), piece.bytes.size()});
  };
  Send();
  EXPECT_TRUE(Has(Outcome(), "it did not arrive as it was"));
  EXPECT_TRUE(ProgramCache(cache(), {}).Find(session.files[0].identity).empty());
}

TEST_F(SentTest, NonsenseIsNoPiece) {
  Add("program", std::string(5000, 'p'), ProgramRole::kProgram);
  change = [&](NodeMessage& message) {
    auto& piece = std::get<ProgramPiece>(message);
    piece.bytes.resize(4999);
    piece.checksum = Checksum({reinterpret_cast<const uint8_t*>(piece.bytes.data()), piece.bytes.size()});
  };
  Send();
  EXPECT_TRUE(Has(Outcome(), "node 1 does not send it: what it sends is damaged"));
  ProgramPiece stray{77, 0, 0, "?"};
  taker->Handle(kGiver, stray);
}

TEST_F(SentTest, WhoHasItNotSaysWhy) {
  Add("program", "content", ProgramRole::kProgram);
  known = false;
  Send();
  EXPECT_TRUE(Has(Outcome(), "node 1 does not send it: it knows nobody any more who has it"));
  known = true;
  session.files[0].size = 6;  // grown since
  Send();
  EXPECT_TRUE(Has(Outcome(), "was replaced since the driver started"));
}

TEST_F(SentTest, LargeFilesAreNotSent) {
  Make({.file_bytes = 1000, .all_bytes = 10000});
  Add("program", std::string(1001, 'p'), ProgramRole::kProgram);
  Send();
  const std::string why = Outcome();
  EXPECT_TRUE(Has(why, "too large to be sent (at most 1 kB); install it")) << why;
  EXPECT_EQ(asked, 0);
}

TEST_F(SentTest, TheOldestMakesRoom) {
  Make({.file_bytes = 1000, .all_bytes = 2500});
  ProgramCache cached(cache(), {});
  auto names = [&] {
    std::vector<bool> there;
    for (const char* content : {"a", "b", "c"}) {
      there.push_back(!cached.Find("sha256:" + SumOf(std::string(1000, *content))).empty());
    }
    return there;
  };
  for (const char* content : {"a", "b"}) {
    session = {};
    Add("program", std::string(1000, *content), ProgramRole::kProgram);
    Send();
    ASSERT_EQ(Outcome(), "");
    taker->Forget(kJob);
  }
  EXPECT_EQ(names(), (std::vector<bool>{true, true, false}));
  // Long ago, 'a' before 'b'; and then 'a' once more.
  for (const auto& [content, seconds] : {std::pair{'a', 1000}, std::pair{'b', 2000}}) {
    const timespec times[2] = {{seconds, 0}, {0, UTIME_OMIT}};
    const std::string path = cached.Find("sha256:" + SumOf(std::string(1000, content)))[0].path;
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  cached.Used(cached.Find("sha256:" + SumOf(std::string(1000, 'a')))[0].path);
  session = {};
  Add("program", std::string(1000, 'c'), ProgramRole::kProgram);
  Send();
  ASSERT_EQ(Outcome(), "");
  EXPECT_EQ(names(), (std::vector<bool>{true, false, true}));  // 'a' was used after 'b'
  // What a job uses stays; with three of them there is no room.
  session = {};
  Add("program", std::string(1000, 'a'), ProgramRole::kProgram);
  Hide(session.files[0]);
  taker->Prepare(kSecondJob, session, {});
  Run();
  ASSERT_EQ(Outcome(kSecondJob), "");
  session = {};
  Add("program", std::string(1000, 'b'), ProgramRole::kProgram);
  const ProcessId third{uint64_t{1} << 32 | 9};
  Hide(session.files[0]);
  taker->Prepare(third, session, {kGiver});
  Run();
  EXPECT_TRUE(Has(Outcome(third), "leave no room for it"));
  EXPECT_NE(taker->Find(kJob), nullptr);
}

TEST_F(SentTest, JobsShareWhatComes) {
  Add("program", std::string(3 << 20, 'p'), ProgramRole::kProgram);
  taker->Prepare(kJob, session, {kGiver});
  taker->Prepare(kSecondJob, session, {kGiver});
  Hide(session.files[0]);
  taker->Tick(NowNs());
  Deliver();
  taker->Forget(kJob);  // who began it has gone
  for (int turn = 0; turn < 20 && taker_host.settled.empty(); ++turn) {
    taker->Tick(NowNs());
    Deliver();
  }
  EXPECT_EQ(Outcome(kSecondJob), "");
  EXPECT_LE(asked, 5);
  // And if all have gone, nothing is left of it.
  session = {};
  Add("program", std::string(3 << 20, 'q'), ProgramRole::kProgram);
  Hide(session.files[0]);
  taker->Prepare(kJob, session, {kGiver});
  taker->Tick(NowNs());
  EXPECT_EQ(taker_host.sent.size(), 1u);
  taker->Forget(kJob);
  int incoming = ::system(("ls " + cache() + " | grep -q incoming").c_str());
  EXPECT_NE(incoming, 0);
}

TEST_F(SentTest, AnotherNodeIsAskedWhenOneIsGone) {
  Add("program", "content", ProgramRole::kProgram);
  taker->Prepare(kJob, session, {kOther, kGiver});
  Hide(session.files[0]);
  taker->Tick(NowNs());
  ASSERT_EQ(taker_host.sent.size(), 1u);
  EXPECT_EQ(taker_host.sent[0].to, kOther);
  taker_host.sent.clear();
  taker->NodeIsGone(kOther);
  Deliver();
  taker->Tick(NowNs());
  EXPECT_EQ(Outcome(), "");

  session = {};
  Add("program", "another", ProgramRole::kProgram);
  Hide(session.files[0]);
  taker->Prepare(kSecondJob, session, {kOther});
  taker->Tick(NowNs());
  taker->NodeIsGone(kOther);
  const std::string why = Outcome(kSecondJob);
  EXPECT_TRUE(Has(why, "node 3 does not send it: it is gone")) << why;
}

TEST_F(SentTest, WhoDoesNotAnswerIsAskedAgain) {
  Add("program", "content", ProgramRole::kProgram);
  taker->Prepare(kJob, session, {kGiver});
  Hide(session.files[0]);
  taker->Tick(NowNs());
  taker->LinkBroken(kGiver);
  EXPECT_LT(taker->NextDeadline(), NowNs() + 1'000'000'000);
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(taker_host.sent.size(), static_cast<size_t>(i));
    taker->Tick(taker->NextDeadline());
  }
  EXPECT_TRUE(taker_host.settled.empty());
  taker->Tick(taker->NextDeadline());
  EXPECT_TRUE(Has(Outcome(), "it does not answer"));
}

TEST_F(ProgramFilesTest, OnlyListedFilesAreGiven) {
  Add("program", "content", ProgramRole::kProgram);
  Write(folder / "secret", "secret");
  giver->Serve(kTaker, {1, kJob, "sha256:" + SumOf("secret"), 0}, &session);
  ASSERT_EQ(giver_host.sent.size(), 1u);
  EXPECT_EQ(std::get<ProgramDenied>(giver_host.sent[0].message).why, "its driver needs no such file");
  giver->Serve(kTaker, {2, kJob, session.files[0].identity, uint64_t{1} << 63}, &session);
  EXPECT_TRUE(std::holds_alternative<ProgramDenied>(giver_host.sent[1].message));
  giver->Serve(kTaker, {3, kJob, session.files[0].identity, 3}, &session);
  EXPECT_EQ(std::get<ProgramPiece>(giver_host.sent[2].message).bytes, "tent");
  // Changed in place meanwhile.
  std::ofstream(folder / "program", std::ios::app) << "more";
  giver->Serve(kTaker, {4, kJob, session.files[0].identity, 3}, &session);
  EXPECT_TRUE(Has(std::get<ProgramDenied>(giver_host.sent[3].message).why, "was changed while it was read"));
}

TEST_F(ProgramFilesTest, ListsThatMakeNoSenseAreRefused) {
  auto attempt = [&](const std::function<void(ProgramFile&)>& spoil) {
    session = {};
    Add("program", "content", ProgramRole::kProgram);
    Add("liba.so", "library", ProgramRole::kLibrary);
    spoil(session.files[1]);
    taker->Prepare(kJob, session, {});
    Run();
    EXPECT_TRUE(Has(Outcome(), "makes no sense"));
  };
  attempt([](ProgramFile& file) { file.identity = "build:../../../../etc/passwd"; });
  attempt([](ProgramFile& file) { file.name = "../liba.so"; });
  attempt([](ProgramFile& file) { file.name = ".."; });
  attempt([](ProgramFile& file) { file.name = ""; });
  attempt([](ProgramFile& file) { file.path = "liba.so"; });
  attempt([](ProgramFile& file) { file.path.push_back('\0'); });
  session = {};
  Add("liba.so", "library", ProgramRole::kLibrary);
  taker->Prepare(kJob, session, {});
  Run();
  EXPECT_TRUE(Has(Outcome(), "does not begin with the program"));
}

TEST_F(SentTest, ALibraryThatWouldBeShadowedIsRefused) {
  Add("program", "content", ProgramRole::kProgram);
  ProgramFile library = Add("liba.so", "library", ProgramRole::kLibrary);
  session.files[0].fixed_paths = 1;
  // Another build lies where the program looks for it first.
  taker->Prepare(kJob, session, {kGiver});
  Write(library.path, "another");
  for (int turn = 0; turn < 20 && taker_host.settled.empty(); ++turn) {
    taker->Tick(NowNs());
    while (!taker_host.sent.empty()) {
      auto wanted = std::get<ProgramPieceWanted>(taker_host.sent.front().message);
      taker_host.sent.pop_front();
      ProgramPiece piece{wanted.request, 0, 0, "library"};
      piece.checksum = Checksum({reinterpret_cast<const uint8_t*>(piece.bytes.data()), piece.bytes.size()});
      taker->Handle(kGiver, piece);
    }
  }
  EXPECT_TRUE(Has(Outcome(), "says itself where its libraries lie"));
}

// ---- libraries of tasks that processes ask for ----------------------------------------------------------------------

constexpr ProcessId kWorker{uint64_t{2} << 32 | 5}, kSecondWorker{uint64_t{2} << 32 | 6};

class LibraryTest : public SentTest {
 protected:
  LibraryTest() {
    known = false;  // no driver lists them
    Add("tasks.so", std::string(3 << 20, 't') + "asks", ProgramRole::kTaskLibrary);
    Add("liba.so", "a library", ProgramRole::kLibrary);
    EXPECT_TRUE(giver->Share(session.files));
  }
  bool Want(ProcessId process, uint64_t request, std::vector<NodeNumber> sources = {kGiver}) {
    return taker->PrepareLibrary(process, request, session.files, std::move(sources), false);
  }
  Node::Library Answer() {
    for (int turn = 0; turn < 200 && taker_host.libraries.empty(); ++turn) {
      taker->Tick(NowNs());
      Deliver();
      giver->Tick(NowNs());
    }
    EXPECT_FALSE(taker_host.libraries.empty());
    if (taker_host.libraries.empty()) return {};
    Node::Library answer = taker_host.libraries.back();
    taker_host.libraries.pop_back();
    return answer;
  }
  void HideAll() {
    for (const ProgramFile& file : session.files) Hide(file);
  }
  bool AnythingHalfWritten() { return ::system(("ls " + cache() + " | grep -q incoming").c_str()) == 0; }
};

TEST_F(LibraryTest, ComesWithWhatItNeeds) {
  HideAll();
  ASSERT_TRUE(Want(kWorker, 7));
  auto answer = Answer();
  EXPECT_EQ(answer.error, "");
  EXPECT_EQ(answer.process, kWorker);
  EXPECT_EQ(answer.request, 7u);
  ASSERT_EQ(answer.paths.size(), 2u);
  EXPECT_TRUE(answer.paths[0].ends_with("/lib/tasks.so")) << answer.paths[0];
  EXPECT_EQ(Content(answer.paths[0]), std::string(3 << 20, 't') + "asks");
  EXPECT_EQ(Content(answer.paths[1]), "a library");
  EXPECT_EQ(asked, 4 + 1);
  // The second asks nobody.
  ASSERT_TRUE(Want(kSecondWorker, 7));
  EXPECT_EQ(Answer().paths, answer.paths);
  EXPECT_EQ(asked, 5);
}

TEST_F(LibraryTest, WhatIsAtItsPathIsUsed) {
  Hide(session.files[1]);
  ASSERT_TRUE(Want(kWorker, 1));
  taker->Tick(NowNs());
  taker->Tick(NowNs());
  HideAll();
  auto answer = Answer();
  ASSERT_EQ(answer.paths.size(), 2u);
  EXPECT_EQ(answer.paths[0], session.files[0].path);
  EXPECT_EQ(Content(answer.paths[1]), "a library");
}

TEST_F(LibraryTest, TwoWhoWantItShareIt) {
  HideAll();
  ASSERT_TRUE(Want(kWorker, 1));
  ASSERT_TRUE(Want(kSecondWorker, 1));
  ASSERT_TRUE(Want(kSecondWorker, 2));
  taker->Tick(NowNs());
  Deliver();
  taker->ForgetLibraries(kWorker);  // who began it has died
  EXPECT_EQ(Answer().process, kSecondWorker);
  EXPECT_EQ(Answer().process, kSecondWorker);
  EXPECT_LE(asked, 6);
  EXPECT_TRUE(taker_host.libraries.empty());
}

TEST_F(LibraryTest, NothingIsLeftOfWhatNobodyWaitsFor) {
  HideAll();
  ASSERT_TRUE(Want(kWorker, 1));
  taker->Tick(NowNs());
  Deliver();
  EXPECT_TRUE(AnythingHalfWritten());
  taker->ForgetLibraries(kWorker);
  EXPECT_FALSE(AnythingHalfWritten());
  EXPECT_EQ(taker->NextDeadline(), INT64_MAX);
}

TEST_F(LibraryTest, AnotherNodeSendsAllOfIt) {
  HideAll();
  ASSERT_TRUE(Want(kWorker, 1, {kOther, kGiver}));
  taker->Tick(NowNs());
  ASSERT_EQ(taker_host.sent.size(), 1u);
  ProgramPiece piece{std::get<ProgramPieceWanted>(taker_host.sent[0].message).request, 0, 0,
                     std::string(kProgramPieceBytes, '?')};
  piece.checksum = Checksum({reinterpret_cast<const uint8_t*>(piece.bytes.data()), piece.bytes.size()});
  taker->Handle(kOther, piece);
  taker_host.sent.clear();
  taker->NodeIsGone(kOther);
  // What the first has sent is not mixed with what the second sends.
  auto answer = Answer();
  ASSERT_EQ(answer.error, "");
  EXPECT_EQ(Content(answer.paths[0]), std::string(3 << 20, 't') + "asks");
  EXPECT_FALSE(AnythingHalfWritten());
}

TEST_F(LibraryTest, WhoGoesOnWaitingMayHaveOtherSources) {
  HideAll();
  ASSERT_TRUE(Want(kWorker, 1, {kOther}));
  ASSERT_TRUE(Want(kSecondWorker, 1, {kGiver}));
  taker->Tick(NowNs());
  ASSERT_EQ(taker_host.sent.size(), 1u);
  ProgramPiece piece{std::get<ProgramPieceWanted>(taker_host.sent[0].message).request, 0, 0,
                     std::string(kProgramPieceBytes, '?')};
  piece.checksum = Checksum({reinterpret_cast<const uint8_t*>(piece.bytes.data()), piece.bytes.size()});
  taker->Handle(kOther, piece);
  taker_host.sent.clear();
  taker->ForgetLibraries(kWorker);
  auto answer = Answer();
  EXPECT_EQ(answer.process, kSecondWorker);
  ASSERT_EQ(answer.error, "");
  EXPECT_EQ(Content(answer.paths[0]), std::string(3 << 20, 't') + "asks");
  EXPECT_EQ(asked, 4 + 1);
}

TEST_F(LibraryTest, NodesThatAreGoneAreNotAsked) {
  HideAll();
  ASSERT_TRUE(Want(kWorker, 1, {kGiver, kOther}));
  taker->Tick(NowNs());
  taker->NodeIsGone(kOther);
  taker->NodeIsGone(kGiver);
  const std::string why = Answer().error;
  EXPECT_TRUE(Has(why, "RuntimeEnvSetupError\nthe library " + session.files[0].path)) << why;
  EXPECT_TRUE(Has(why, "node 1 does not send it: it is gone")) << why;
  EXPECT_FALSE(Has(why, "node 3")) << why;
  ASSERT_TRUE(Want(kWorker, 2, {}));
  EXPECT_TRUE(Has(Answer().error, "no node is known that could send it"));
}

TEST_F(LibraryTest, WhatCannotRunIsRefusedBeforeAnythingIsSent) {
  HideAll();
  session.files[1].machine = EM_AARCH64;
  session.files[1].bits = 64;
  ASSERT_TRUE(Want(kWorker, 1));
  const std::string why = Answer().error;
  EXPECT_TRUE(Has(why, "RuntimeEnvSetupError\nthe library " + session.files[0].path +
                           " cannot be used on node 2: " + session.files[1].path + " is for AArch64 (64 bit)"))
      << why;
  EXPECT_EQ(asked, 0);
}

TEST_F(LibraryTest, AnotherBuildAtTheSourceIsAMismatch) {
  Write(session.files[0].path, "built anew");
  ASSERT_TRUE(Want(kWorker, 1));
  HideAll();
  const std::string why = Answer().error;
  EXPECT_TRUE(Has(why, "VersionMismatchError\n")) << why;
  EXPECT_TRUE(Has(why, session.files[0].path + " was replaced since it was loaded")) << why;
}

TEST_F(LibraryTest, AnotherBuildOnTheOwnNodeIsAMismatch) {
  Write(session.files[0].path, "built anew");
  ASSERT_TRUE(taker->PrepareLibrary(kWorker, 1, session.files, {}, true));
  Run();
  ASSERT_EQ(taker_host.libraries.size(), 1u);
  EXPECT_TRUE(Has(taker_host.libraries[0].error, "VersionMismatchError\n")) << taker_host.libraries[0].error;
}

TEST_F(LibraryTest, CopiesArePassedOn) {
  HideAll();
  ASSERT_TRUE(Want(kWorker, 1));
  ASSERT_EQ(Answer().error, "");
  // The daemon that has the copies is a new one, knows of nothing, and computes their sums first.
  Make({});
  Node third_host;
  const std::string folder_of_third = folder / "third/programs";
  ProgramFiles third(third_host, ProgramCache(folder_of_third, {}), ProgramFiles::Machine::OfThisProcess(), kOther);
  auto ask = [&] {
    EXPECT_TRUE(third.PrepareLibrary(kWorker, 1, session.files, {kTaker}, false));
    for (int turn = 0; turn < 200 && third_host.libraries.empty(); ++turn) {
      third.Tick(NowNs());
      for (; !third_host.sent.empty(); third_host.sent.pop_front()) {
        taker->Serve(kOther, std::get<ProgramPieceWanted>(third_host.sent.front().message), nullptr);
      }
      taker->Tick(NowNs());
      for (; !taker_host.sent.empty(); taker_host.sent.pop_front()) {
        auto& message = taker_host.sent.front().message;
        if (auto* piece = std::get_if<ProgramPiece>(&message)) third.Handle(kTaker, *piece);
        if (auto* denied = std::get_if<ProgramDenied>(&message)) third.Handle(kTaker, *denied);
      }
    }
    auto answer = third_host.libraries.empty() ? Node::Library{} : third_host.libraries.back();
    third_host.libraries.clear();
    return answer;
  };
  auto answer = ask();
  ASSERT_EQ(answer.error, "");
  ASSERT_EQ(answer.paths.size(), 2u);
  EXPECT_EQ(Content(answer.paths[1]), "a library");
  EXPECT_EQ(taker->NextDeadline() == 0, false);  // nothing is computed any more

  // A damaged copy is not.
  Make({});
  [[maybe_unused]] int ignored = ::system(("rm -rf " + folder_of_third).c_str());
  const std::string copy = ProgramCache(cache(), {}).Find(session.files[1].identity)[0].path;
  ::chmod(copy.c_str(), 0700);
  Write(copy, "a lobrary");
  answer = ask();
  EXPECT_TRUE(Has(answer.error, "its copy is damaged")) << answer.error;
  EXPECT_NE(::access(copy.c_str(), F_OK), 0);
}

TEST_F(LibraryTest, WhatNoCorrectProcessAsksForIsRefused) {
  EXPECT_FALSE(Want(kWorker, 0));
  for (uint64_t request = 1; request <= 64; ++request) EXPECT_TRUE(Want(kWorker, request));
  EXPECT_FALSE(Want(kWorker, 65));
  EXPECT_TRUE(Want(kSecondWorker, 1));
  EXPECT_FALSE(Want(kSecondWorker, 1));
  auto attempt = [&](const std::function<void(std::vector<ProgramFile>&)>& spoil) {
    std::vector<ProgramFile> files = session.files;
    spoil(files);
    EXPECT_FALSE(taker->PrepareLibrary(kSecondWorker, 9, files, {}, false));
    EXPECT_FALSE(taker->Share(files));
  };
  attempt([](auto& files) { files.clear(); });
  attempt([](auto& files) { std::swap(files[0], files[1]); });
  attempt([](auto& files) { files[1].role = static_cast<uint8_t>(ProgramRole::kTaskLibrary); });
  attempt([](auto& files) { files[1].name = "../liba.so"; });
  attempt([](auto& files) { files[0].path = "tasks.so"; });
  attempt([](auto& files) { files[0].identity = "build:../../x"; });
  attempt([](auto& files) { files.resize(2000, files[1]); });
}

TEST_F(ProgramFilesTest, BuildIdsAreEnough) {
  ProgramFile file = Add("program", Content("/proc/self/exe"), ProgramRole::kProgram);
  const std::string build = QuickIdentity(UniqueFd(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC)).get());
  if (build.empty()) GTEST_SKIP() << "this program was linked without a build id";
  session.files[0].identity = build;
  taker->Prepare(kJob, session, {});
  Run();
  EXPECT_EQ(Outcome(), "");
  taker->Forget(kJob);
  // The last digit is another one.
  session.files[0].identity.back() = session.files[0].identity.back() == '0' ? '1' : '0';
  taker->Prepare(kJob, session, {});
  Run();
  EXPECT_TRUE(Has(Outcome(), "is not there"));
}

TEST(ProgramMachine, WhatCannotRunIsRefused) {
  const ProgramFiles::Machine machine{EM_X86_64, 64, ParseGlibc("2.31")};
  ProgramFile file;
  file.path = "/opt/x";
  file.machine = EM_AARCH64;
  file.bits = 64;
  EXPECT_TRUE(Has(ProgramFiles::WhyNotOn(machine, file), "/opt/x is for AArch64 (64 bit), and this machine is x86-64"));
  file.machine = EM_386;
  file.bits = 32;
  EXPECT_TRUE(Has(ProgramFiles::WhyNotOn(machine, file), "is for x86 (32 bit)"));
  file.machine = EM_X86_64;
  file.bits = 64;
  EXPECT_EQ(ProgramFiles::WhyNotOn(machine, file), "");
  file.glibc = ParseGlibc("2.38");
  EXPECT_TRUE(Has(ProgramFiles::WhyNotOn(machine, file), "needs glibc 2.38, and this machine has 2.31"));
  file.glibc = ParseGlibc("2.31");
  file.interpreter = "/lib/ld-musl-no-such.so.1";
  EXPECT_TRUE(Has(ProgramFiles::WhyNotOn(machine, file), "loaded by /lib/ld-musl-no-such.so.1"));
  const auto here = ProgramFiles::Machine::OfThisProcess();
  EXPECT_NE(here.machine, 0);
  EXPECT_GE(here.glibc, ParseGlibc("2.17"));
}

}  // namespace
}  // namespace weft::core
