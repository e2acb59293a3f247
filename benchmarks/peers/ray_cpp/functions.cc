#include "functions.h"

#include <ray/api.h>

int Increment(int x) { return x + 1; }

Counter* Counter::Create(int start) {
  auto* counter = new Counter();
  counter->count_ = start;
  return counter;
}

int Counter::Add(int x) { return count_ += x; }

RAY_REMOTE(Increment, Counter::Create, &Counter::Add);
