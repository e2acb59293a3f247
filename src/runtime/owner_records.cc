// The records that an Owner keeps of values, arguments and lists of tasks.
#include <cstring>
#include <utility>

#include "runtime/owner.h"

namespace weft::core {

void Value::SetBytes(ValueKind kind, std::string_view bytes) {
  Clear();
  size_ = static_cast<uint32_t>(bytes.size());
  char* to = small_;
  if (bytes.size() > sizeof small_) to = large_ = static_cast<char*>(::operator new(bytes.size()));
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  kind_.store(kind, std::memory_order_release);  // pairs with kind()
}

void Value::SetStored(const Location& location) {
  Clear();
  location_ = new Location(location);
  kind_.store(ValueKind::kStored, std::memory_order_release);  // pairs with kind()
}

void Value::Clear() {
  if (kind() == ValueKind::kStored) {
    delete location_;
  } else if (size_ > sizeof small_) {
    ::operator delete(large_);
  }
  kind_.store(ValueKind::kPending, std::memory_order_relaxed);
  size_ = 0;
}

void ArgumentBytes::Set(std::string_view bytes) {
  WEFT_CHECK(size_ == 0, "arguments set twice");
  char* to = small_;
  if (bytes.size() > sizeof small_) to = large_ = static_cast<char*>(::operator new(bytes.size()));
  size_ = static_cast<uint32_t>(bytes.size());
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
}

Object::~Object() {
  delete dependents;
  delete contained;
  delete borrowers;
  delete requesters;
  delete copy;
  if (former) {
    for (const Former& each : *former) delete each.contained;
  }
  delete former;
}

void ArgumentBytes::TakeFrom(ArgumentBytes& other) {
  WEFT_CHECK(size_ == 0, "arguments set twice");
  std::memcpy(small_, other.small_, sizeof small_);  // the bytes, or where they are
  size_ = std::exchange(other.size_, 0);
}

void TaskList::PushBack(Task* task) {
  task->previous = last;
  task->next = nullptr;
  (last ? last->next : first) = task;
  last = task;
  ++size;
}

void TaskList::PushFront(Task* task) {
  task->next = first;
  task->previous = nullptr;
  (first ? first->previous : last) = task;
  first = task;
  ++size;
}

void TaskList::InsertBefore(Task* other, Task* task) {
  if (other == first) return PushFront(task);
  task->previous = other->previous;
  task->next = other;
  other->previous->next = task;
  other->previous = task;
  ++size;
}

void TaskList::Remove(Task* task) {
  (task->previous ? task->previous->next : first) = task->next;
  (task->next ? task->next->previous : last) = task->previous;
  task->next = task->previous = nullptr;
  --size;
}

Task* TaskList::PopFront() {
  Task* task = first;
  if (task) Remove(task);
  return task;
}

void ReadyList::Add(Task* task, bool consumer, bool at_front) {
  task->consumer = consumer;
  TaskList& list = consumer ? consumers_ : rest_;
  at_front ? list.PushFront(task) : list.PushBack(task);
}

void ReadyList::Remove(Task* task) { (task->consumer ? consumers_ : rest_).Remove(task); }

Task* ReadyList::PopFront() {
  Task* task = first();
  if (!task) return nullptr;
  in_a_row_ = task->consumer && rest_.first ? in_a_row_ + 1 : 0;
  Remove(task);
  return task;
}

}  // namespace weft::core
