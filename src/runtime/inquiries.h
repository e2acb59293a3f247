// Asks why something waits: carries the questions of WaitGraph to the processes that know, and their answers back.
// Pure: calls in, questions out through Host.
//
// One object per process, used under the lock of the Runtime and by the simulator's process. An inquiry takes one
// traversal of the graph, or two if the first one finds the wait stuck: only facts that both have seen count. Each
// traversal has a number of its own, so an answer to an earlier one is dropped. An answer that does not come ends
// nothing; the caller forgets the inquiry when it has lasted too long.
//
// Does not decide when to ask, and does not know threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/wait_graph.h"
#include "wire/ids.h"
#include "wire/wait_facts.h"

namespace weft::core {

// Belongs to the caller, which keeps it in place until it is done, forgotten or abandoned.
struct Inquiry {
  int64_t began_ns = 0;  // the caller's
  bool done = false;
  WaitVerdict verdict;  // once it is done
  std::unique_ptr<WaitGraph> graph;

  // ---- of Inquiries alone
  uint64_t number = 0;  // of the present traversal
  bool second = false;
  size_t open = 0;  // questions without answer
  WaitProof proof;  // of the first traversal
};

class Inquiries {
 public:
  class Host {
   public:
    virtual ~Host() = default;
    // Takes the replies from the rings, so that they are known. May change or free any object.
    virtual void TakeReplies() = 0;
    // To the daemon, and to the owner of an object or (index 0) a process: the answer comes later, with this number.
    virtual void AskShape(uint64_t number, const ResourceAmounts& shape) = 0;
    virtual void AskWhy(uint64_t number, ObjectId subject) = 0;
    // What this process itself knows.
    virtual ProcessFact FactOfSelf() = 0;
    virtual ObjectFact FactOfObject(ObjectId own) = 0;
    // It is done. The host may end the inquiry's life in here.
    virtual void InquiryEnded(Inquiry& inquiry) = 0;
  };
  // Planted bug, to show that the tests find it. Off outside tests.
  struct Faults {
    bool judge_from_one_pass = false;
  };

  // After so long without all answers the caller forgets it: a process is stopped or overloaded.
  static constexpr int64_t kPatienceNs = 2'000'000'000;

  explicit Inquiries(Host& host) : host_(host) {}
  void set_self(ProcessId self) { self_ = self; }

  // It may be done when this returns, if there was nothing to ask.
  void Begin(Inquiry& inquiry, std::unique_ptr<WaitGraph> graph);
  void WhyAnswered(uint64_t number, ObjectId subject, std::string_view fact);
  void ShapeAnswered(uint64_t number, std::string_view fact);
  // A process has died and may owe an answer: all open inquiries are done, and their waits may go on.
  void AbandonAll();
  // No longer waits for answers. This does not make the inquiry done.
  void Forget(Inquiry& inquiry);
  bool any_open() const { return !open_.empty(); }

  Faults faults;

 private:
  void BeginPass(Inquiry& inquiry, std::unique_ptr<WaitGraph> graph);
  void Continue(Inquiry& inquiry);  // asks what can be asked; judges when all answers are there
  Inquiry* TakeAnswer(uint64_t number);
  void End(Inquiry& inquiry);

  Host& host_;
  ProcessId self_;
  std::vector<Inquiry*> open_;
  uint64_t last_number_ = 0;
};

}  // namespace weft::core
