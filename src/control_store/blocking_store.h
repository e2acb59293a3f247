// The interface that a real backend implements: the control store as calls that may block, all on one thread.
//
// WorkerStore calls it on a thread of its own and makes a ControlStore of it: it has the queue, the order, the waiting
// for a store that is away, and the time limits, once for all backends.
#pragma once

#include <span>

#include "control_store/control_store.h"

namespace weft::core {

class BlockingStore {
 public:
  virtual ~BlockingStore() = default;

  // One attempt. Connects or opens if necessary.
  virtual StoreResult<Leadership> Acquire(const Candidate& candidate) = 0;

  // Applies all batches at once, or none. After kAway the outcome is not known: the caller calls again with the same
  // batches until it is, or calls Abandon.
  virtual StoreStatus Apply(std::span<const WriteBatch* const> group) = 0;

  // The group of the last Apply is given up: it must not be found applied once a later one is.
  virtual void Abandon() = 0;

  virtual StoreStatus Renew() = 0;
  virtual StoreStatus Resign() = 0;

  // The only call from another thread, once, before the destruction: a blocked call returns soon, with kAway.
  virtual void Interrupt() = 0;
};

}  // namespace weft::core
