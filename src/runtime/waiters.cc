#include "runtime/waiters.h"

#include <utility>

#include "os/futex.h"
#include "runtime/owner.h"
#include "transport/doorbell.h"

namespace weft::core {

void Waiters::Enter(Waiter& waiter) {
  waiter.next = first_;
  if (first_) first_->previous = &waiter;
  first_ = &waiter;
  ++count_;
  for_news_ += waiter.for_news;
}

void Waiters::Leave(Waiter& waiter) {
  (waiter.previous ? waiter.previous->next : first_) = waiter.next;
  if (waiter.next) waiter.next->previous = waiter.previous;
  waiter.previous = waiter.next = nullptr;
  --count_;
  for_news_ -= waiter.for_news;
  if (std::exchange(waiter.handed, false)) HandOver();
}

void Waiters::Add(Interest& interest, Object* object, Waiter& waiter, bool needed) {
  interest = {.object = object, .waiter = &waiter, .needed = needed, .previous = nullptr, .next = object->interests};
  if (interest.next) interest.next->previous = &interest;
  object->interests = &interest;
  waiter.missing += needed;
}

void Waiters::Remove(Interest& interest) {
  if (!interest.object) return;
  (interest.previous ? interest.previous->next : interest.object->interests) = interest.next;
  if (interest.next) interest.next->previous = interest.previous;
  interest.object = nullptr;
}

void Waiters::Resolved(Object* object) {
  Interest* next = nullptr;
  for (Interest* interest = object->interests; interest; interest = next) {
    next = interest->next;
    Waiter& waiter = *interest->waiter;
    if (!object->ready(waiter.to_look)) continue;
    const bool needed = interest->needed;
    Remove(*interest);
    if (needed && waiter.missing > 0) --waiter.missing;
    if (waiter.ends_at_failure && object->failed()) waiter.failed = true;
    if ((needed && waiter.missing == 0) || waiter.failed) Wake(waiter);
  }
}

void Waiters::NewsCame() {
  if (for_news_ == 0) return;
  for (Waiter* waiter = first_; waiter; waiter = waiter->next) {
    if (waiter->for_news) Wake(*waiter);
  }
}

void Waiters::WakeAll() {
  for (Waiter* waiter = first_; waiter; waiter = waiter->next) Wake(*waiter);
  if (claim_) Wake(*claim_);
  TellPoller();
}

void Waiters::Wake(Waiter& waiter) {
  if (waiter.woken.exchange(1) != 0) return;
  if (&waiter == poller_) {
    doorbell_->WakeWaiter();
  } else {
    FutexWake(&waiter.woken, 1);
  }
}

void Waiters::BeginPolling(Waiter& waiter) {
  poller_ = &waiter;
  waiter.handed = false;
}

void Waiters::EndPolling() {
  poller_ = nullptr;
  if (claim_) Wake(*claim_);
}

void Waiters::HandOver() {
  if (!may_poll() || !first_) return;
  first_->handed = true;
  Wake(*first_);
}

void Waiters::TellPoller() {
  news_.fetch_add(1);  // before the wake-up: the poller looks at it just before it sleeps
  doorbell_->WakeWaiter();
}

}  // namespace weft::core
