#include "runtime/worker_machine.h"

namespace weft::core {

const WorkerMachine::Remembered* WorkerMachine::Recall(ObjectId id) const {
  const Remembered& memory = remembered_[Slot(id)];
  return memory.id == id ? &memory : nullptr;
}

void WorkerMachine::Remember(ObjectId id, bool stored, std::string_view bytes, const Location& location,
                             bool has_references) {
  if (has_references || (!stored && bytes.size() > kMaxRememberedBytes)) return;
  Remembered& memory = remembered_[Slot(id)];
  memory.id = id;
  memory.stored = stored;
  memory.location = location;
  if (!stored) memory.bytes.assign(bytes);
}

void WorkerMachine::ForgetResults() {
  for (Remembered& memory : remembered_) memory.id = {};
}

Object* WorkerMachine::Accept(Owner& owner, ObjectId id, bool registered, References& accepted) {
  bool counted = registered && id.owner != owner.self();
  Object* object = owner.Receive(id, counted ? 1 : 0);
  if (object) accepted.emplace_back(object, counted);
  return object;
}

void WorkerMachine::Decline(Owner& owner, References& accepted, Actions& out) {
  for (auto& [object, counted] : accepted) {
    object->local_references.fetch_sub(1, std::memory_order_acq_rel);
    if (counted) --object->registrations;
  }
  for (auto& [object, counted] : accepted) owner.Consider(object, out);
  accepted.clear();
}

void WorkerMachine::Release(Owner& owner, ProcessId submitter, References& accepted, std::vector<GivenBack>& given_back,
                            std::vector<uint64_t>& retained, Actions& out) {
  for (auto& [object, counted] : accepted) object->local_references.fetch_sub(1, std::memory_order_acq_rel);
  // Nothing is freed in this loop, and an object that is listed twice is settled the first time.
  for (auto& [object, counted] : accepted) {
    if (!object->borrowed || object->id.owner != submitter) continue;
    bool used =
        object->local_references.load(std::memory_order_acquire) > 0 || object->holds > 0 || object->callbacks > 0;
    bool keep = used || (object->handed_on && !faults.give_back_before_handing_on);
    if (keep && object->registrations == 0 && !faults.forget_to_retain) {
      // The result of an earlier task, of which the submitter did not know when it pushed this one.
      retained.push_back(object->id.index);
      object->registrations = 1;
    } else if (!keep && object->registrations > 0) {
      given_back.push_back({object->id.index, object->registrations});
      object->registrations = 0;
    }
  }
  for (auto& [object, counted] : accepted) owner.Consider(object, out);
  accepted.clear();
}

}  // namespace weft::core
