#include "weft/detail/session_use.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "api_cpp/state.h"
#include "weft/errors.h"

namespace weft::detail {

namespace {

std::atomic<bool> g_needs_fence{true};

int Membarrier(int command) { return static_cast<int>(::syscall(SYS_membarrier, command, 0, 0)); }

std::atomic<UserPlace*> g_places{nullptr};
std::atomic<int> g_given_up{0};  // about how many of them are free: with none, no thread looks for one

// Gives the place up when the thread ends. The little code that runs in the thread even later takes one for good.
struct PlaceKeeper {
  ~PlaceKeeper() {
    if (t_user_place == nullptr) return;
    t_user_place->taken.store(false, std::memory_order_release);
    t_user_place = nullptr;
    g_given_up.fetch_add(1, std::memory_order_relaxed);
  }
};

}  // namespace

constinit thread_local UserPlace* t_user_place = nullptr;

UserPlace* TakeUserPlace() noexcept {
  static thread_local PlaceKeeper keeper;
  [[maybe_unused]] PlaceKeeper* made = &keeper;  // now, so that its end comes
  const bool any = g_given_up.load(std::memory_order_relaxed) > 0;
  for (auto* place = any ? g_places.load(std::memory_order_acquire) : nullptr; place != nullptr; place = place->next) {
    bool taken = false;
    if (!place->taken.load(std::memory_order_relaxed) &&
        place->taken.compare_exchange_strong(taken, true, std::memory_order_acq_rel)) {
      g_given_up.fetch_sub(1, std::memory_order_relaxed);
      return t_user_place = place;
    }
  }
  auto* place = new UserPlace();
  place->next = g_places.load(std::memory_order_relaxed);
  while (!g_places.compare_exchange_weak(place->next, place, std::memory_order_acq_rel)) {
  }
  return t_user_place = place;
}

SessionState* Using::Begin() noexcept {
  for (;;) {
    SessionState* state = g_session.load(std::memory_order_acquire);
    if (state == nullptr) return nullptr;
    if (g_needs_fence.load(std::memory_order_relaxed)) [[unlikely]] {
      place_->uses.store(state);
    } else {
      place_->uses.store(state, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    if (g_session.load() == state) [[likely]]
      return state;
  }
}

uint32_t Using::epoch() const { return need().epoch; }

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
  const UserPlace* own = t_user_place;
  for (auto* place = g_places.load(std::memory_order_acquire); place != nullptr; place = place->next) {
    while (place != own && place->uses.load() == state) {
      timespec moment{0, 100'000};
      nanosleep(&moment, nullptr);
    }
  }
}

bool IsUsed(SessionState* state) {
  for (auto* place = g_places.load(std::memory_order_acquire); place != nullptr; place = place->next) {
    if (place->uses.load(std::memory_order_acquire) == state) return true;
  }
  return false;
}

}  // namespace weft::detail
