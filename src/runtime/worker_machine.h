// What a worker decides about the tasks it is given, apart from running them: whether an argument that an earlier task
// made is still known, what becomes of the references that come with a task, and which results are worth remembering.
// Pure: no thread, clock, channel or shared memory inside.
//
// Called by Executor (with the runtime's lock held where an Owner is passed) and by the simulator. For each task:
// Accept for each reference that comes with it, then exactly one of Release (it ran) and Decline (it is handed back).
//
// References. The submitter has registered this worker as a borrower of each reference in the task. When the task has
// run, the worker either still uses a reference or gives its registrations back: in the reply if the submitter owns it,
// which costs nothing, otherwise (Owner::Consider) by a message through the daemon. A reply overtakes messages through
// the daemon. So if the worker has handed the reference on, and the owner may not have heard of the new borrower yet,
// it gives its registrations back through the daemon as well, behind that message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/owner.h"
#include "wire/task_frame.h"

namespace weft::core {

class WorkerMachine {
 public:
  // Planted bugs, to show that the simulator finds them. All off outside the simulator's own tests.
  struct Faults {
    bool give_back_before_handing_on = false;
    bool forget_to_retain = false;
  };

  // The result of a recent task. Direct-mapped: a collision forgets, and the task that wanted it is handed back.
  struct Remembered {
    ObjectId id;
    bool stored = false;
    std::string bytes;
    Location location;
  };
  static constexpr size_t kRemembered = 1024;
  static constexpr size_t kMaxRememberedBytes = 1024;

  // The result of an earlier task; nullptr: it is not known, hand the task back.
  const Remembered* Recall(ObjectId id) const;
  // `bytes` or, if stored, `location`. A value with references inside is not remembered: whatever takes it over
  // must be registered as their borrower.
  void Remember(ObjectId id, bool stored, std::string_view bytes, const Location& location, bool has_references);
  void ForgetResults();

  // The references that came with one task: one local reference each; is it a registration?
  using References = std::vector<std::pair<Object*, bool>>;

  // A reference that comes with the task: `registered`, or only looked at in place while the task runs. nullptr if it
  // is an object of our own that no longer exists.
  Object* Accept(Owner& owner, ObjectId id, bool registered, References& accepted);
  // The task does not run after all. Its submitter takes the registrations back itself.
  void Decline(Owner& owner, References& accepted, Actions& out);
  // The task has run, and `submitter` is registered for all that its values contain. What goes into the reply is
  // added to `given_back` and `retained`; actions are to be performed, and sent, before the reply.
  void Release(Owner& owner, ProcessId submitter, References& accepted, std::vector<GivenBack>& given_back,
               std::vector<uint64_t>& retained, Actions& out);

  Faults faults;

 private:
  static size_t Slot(ObjectId id) { return (id.index ^ id.owner.value * 131) % kRemembered; }

  std::vector<Remembered> remembered_{kRemembered};
};

}  // namespace weft::core
