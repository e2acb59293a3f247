// The questions that threads of this process have sent to the daemon, and the answers until they are taken. Pure.
//
// Called with the lock of the Runtime. A question is open from Begin until its answer was taken, or until its requester
// has given up and the answer has come. Does not send, wait, or look into answers.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

#include "wire/messages.h"

namespace weft::core {

struct Object;

class Questions {
 public:
  uint64_t Begin() { return next_++; }
  bool IsAnswered(uint64_t question) const { return answers_.contains(question); }
  // Takes its answer, which has come.
  Message Take(uint64_t question) { return std::move(answers_.extract(question).mapped()); }
  // No thread waits for the answer any more. `handle`: of an actor that may have been created by then.
  void GiveUp(uint64_t question, Object* handle) { given_up_[question] = handle; }
  // Returns nothing if the answer is kept for its requester; otherwise the requester has given up, with this handle or
  // none.
  std::optional<Object*> Answered(uint64_t question, Message&& answer) {
    if (auto unwanted = given_up_.extract(question)) return unwanted.mapped();
    answers_.insert_or_assign(question, std::move(answer));
    return std::nullopt;
  }

 private:
  uint64_t next_ = 1;
  std::unordered_map<uint64_t, Message> answers_;
  std::unordered_map<uint64_t, Object*> given_up_;
};

}  // namespace weft::core
