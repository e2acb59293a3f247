#include "weft/detail/session_use.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "api_cpp/state.h"
#include "weft/errors.h"

namespace weft::detail {

// Never freed: taken over by a later thread when its own has ended.
struct alignas(64) Using::Place {
  std::atomic<SessionState*> uses{nullptr};
  std::atomic<bool> taken{true};
  Place* next = nullptr;
};

namespace {

std::atomic<bool> g_needs_fence{true};

int Membarrier(int command) { return static_cast<int>(::syscall(SYS_membarrier, command, 0, 0)); }

}  // namespace

struct PlaceKeeper {
  static std::atomic<Using::Place*> all;
  static Using::Place* Take() {
    for (auto* place = all.load(std::memory_order_acquire); place != nullptr; place = place->next) {
      bool taken = false;
      if (!place->taken.load(std::memory_order_relaxed) &&
          place->taken.compare_exchange_strong(taken, true, std::memory_order_acq_rel)) {
        return place;
      }
    }
    auto* place = new Using::Place();
    place->next = all.load(std::memory_order_relaxed);
    while (!all.compare_exchange_weak(place->next, place, std::memory_order_acq_rel)) {
    }
    return place;
  }
  // Gives it up when the thread ends. What runs in the thread still later, and that is little, takes one for good.
  ~PlaceKeeper() {
    if (Using::t_place != nullptr) Using::t_place->taken.store(false, std::memory_order_release);
    Using::t_place = nullptr;
  }
};
constinit std::atomic<Using::Place*> PlaceKeeper::all{nullptr};

constinit thread_local Using::Place* Using::t_place = nullptr;

Using::Place* Using::PlaceOfThisThread() noexcept {
  if (t_place == nullptr) [[unlikely]] {
    static thread_local PlaceKeeper keeper;
    [[maybe_unused]] PlaceKeeper* made = &keeper;  // now, so that its end comes
    t_place = PlaceKeeper::Take();
  }
  return t_place;
}

Using::Using() noexcept : place_(PlaceOfThisThread()), before_(place_->uses.load(std::memory_order_relaxed)) {
  if (before_ != nullptr) {
    state_ = before_;
    return;
  }
  for (;;) {
    state_ = g_session.load(std::memory_order_acquire);
    if (state_ == nullptr) return;
    if (g_needs_fence.load(std::memory_order_relaxed)) [[unlikely]] {
      place_->uses.store(state_);
    } else {
      place_->uses.store(state_, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    if (g_session.load() == state_) [[likely]]
      return;
  }
}

Using::~Using() {
  if (before_ == nullptr) place_->uses.store(nullptr, std::memory_order_release);
}

SessionState& Using::need() const {
  if (state_ && !Runtime::forked()) [[likely]]
    return *state_;
  if (state_) {
    throw WeftError(
        "this process was forked from a weft driver and cannot use its session; call weft in the parent, or "
        "execute a program of its own");
  }
  throw WeftError("no session is open: call weft::init() and keep what it returns as long as weft is used");
}

void PrepareUsing() {
  if (Membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0) g_needs_fence.store(false);
}

void AwaitUsers(SessionState* state) {
  if (!g_needs_fence.load()) Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  const Using::Place* own = Using::t_place;
  for (auto* place = PlaceKeeper::all.load(std::memory_order_acquire); place != nullptr; place = place->next) {
    while (place != own && place->uses.load() == state) {
      timespec moment{0, 100'000};
      nanosleep(&moment, nullptr);
    }
  }
}

bool IsUsed(SessionState* state) {
  for (auto* place = PlaceKeeper::all.load(std::memory_order_acquire); place != nullptr; place = place->next) {
    if (place->uses.load(std::memory_order_acquire) == state) return true;
  }
  return false;
}

}  // namespace weft::detail
