// Waiting without a thread: co_await on a Ref, and callbacks.
//
//   weft::Async<int> sum(Ref<int> a, Ref<int> b) { co_return co_await a + co_await b; }
//   int s = sum(x, y).get();
//
// A coroutine that waits holds no thread. When the value is there, it goes on in weft's thread, one for the whole
// process: do not block in it (in particular not with get of something that is not ready).
#pragma once

#include <atomic>
#include <condition_variable>
#include <coroutine>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "weft/ref.h"

namespace weft {
namespace detail {

template <class T>
class RefAwaiter {
 public:
  explicit RefAwaiter(Ref<T> ref) : ref_(std::move(ref)) {}
  bool await_ready() const { return ref_.ready(); }
  void await_suspend(std::coroutine_handle<> waiting) const {
    CallWhenReady(
        RefAccess::Checked(ref_), [](void* address) { std::coroutine_handle<>::from_address(address).resume(); },
        waiting.address());
  }
  Decoded<T> await_resume() const { return get(ref_); }

 private:
  Ref<T> ref_;
};

// What a coroutine leaves for its waiters.
template <class T>
struct AsyncState {
  using Stored = std::conditional_t<std::is_void_v<T>, std::monostate, T>;
  std::mutex mutex;
  std::condition_variable done_changed;
  std::atomic<bool> done{false};  // changed with the mutex
  std::optional<Stored> value;
  std::exception_ptr error;
  std::coroutine_handle<> waiting;

  void Finish() {
    std::coroutine_handle<> next;
    {
      std::lock_guard lock(mutex);
      done = true;
      next = std::exchange(waiting, nullptr);
      done_changed.notify_all();
    }
    WakeTasks();
    if (next) next.resume();
  }
  T Take() {
    if (error) std::rethrow_exception(error);
    if constexpr (!std::is_void_v<T>) return std::move(*value);
  }
};

template <class T>
struct AsyncPromiseBase {
  std::shared_ptr<AsyncState<T>> state = std::make_shared<AsyncState<T>>();
  std::suspend_never initial_suspend() noexcept { return {}; }
  // The frame is gone before any waiter is told.
  struct Last {
    bool await_ready() noexcept { return false; }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> self) noexcept {
      std::shared_ptr<AsyncState<T>> state = self.promise().state;
      self.destroy();
      state->Finish();
    }
    void await_resume() noexcept {}
  };
  Last final_suspend() noexcept { return {}; }
  void unhandled_exception() { state->error = std::current_exception(); }
};

template <class T>
struct AsyncPromise;

}  // namespace detail

template <class T>
detail::RefAwaiter<T> operator co_await(Ref<T> ref) {
  return detail::RefAwaiter<T>(std::move(ref));
}

// The result of a coroutine, which begins at once and runs on even if this is destroyed. Await it or get it once.
template <class T>
class [[nodiscard]] Async {
 public:
  using promise_type = detail::AsyncPromise<T>;
  explicit Async(std::shared_ptr<detail::AsyncState<T>> state) : state_(std::move(state)) {}

  bool ready() const {
    std::lock_guard lock(state_->mutex);
    return state_->done;
  }
  // Blocks until the coroutine has ended; throws what it threw. In a task, as with weft::get, other tasks may use its
  // CPU meanwhile, and it throws TaskCancelledError if the task is cancelled.
  T get() {
    if (!ready() && detail::WaitInTask(state_->done)) return state_->Take();
    std::unique_lock lock(state_->mutex);
    state_->done_changed.wait(lock, [&] { return state_->done.load(); });
    lock.unlock();
    return state_->Take();
  }
  bool await_ready() const { return ready(); }
  bool await_suspend(std::coroutine_handle<> waiting) const {
    std::lock_guard lock(state_->mutex);
    if (state_->done) return false;
    state_->waiting = waiting;
    return true;
  }
  T await_resume() { return state_->Take(); }

 private:
  std::shared_ptr<detail::AsyncState<T>> state_;
};

namespace detail {

template <class T>
struct AsyncPromise : AsyncPromiseBase<T> {
  Async<T> get_return_object() { return Async<T>(this->state); }
  template <class V>
  void return_value(V&& value) {
    this->state->value.emplace(std::forward<V>(value));
  }
};
template <>
struct AsyncPromise<void> : AsyncPromiseBase<void> {
  Async<void> get_return_object() { return Async<void>(state); }
  void return_void() { state->value.emplace(); }
};

}  // namespace detail

namespace detail {

// Of one that is resolved, or whose session has ended.
template <class T>
Result<Decoded<T>> TryReadAtEnd(const Ref<T>& ref) {
  try {
    RefAccess::Checked(ref);
    return TryRead(ref);
  } catch (const WeftError& error) {
    return Failure{.name = "WeftError", .message = error.what()};
  }
}

}  // namespace detail

// Calls back with the Result, once it is there, on weft's thread; if the session ends before, with that failure. An
// exception of the callback ends the program.
template <class T, class Callback>
void on_ready(Ref<T> ref, Callback callback) {
  struct Waiting {
    Ref<T> ref;
    Callback callback;
  };
  core::Object* object = detail::RefAccess::Checked(ref);
  auto waiting = std::make_unique<Waiting>(Waiting{std::move(ref), std::move(callback)});
  detail::CallWhenReady(
      object,
      [](void* context) {
        std::unique_ptr<Waiting> owned(static_cast<Waiting*>(context));
        owned->callback(detail::TryReadAtEnd(owned->ref));
      },
      waiting.get());
  waiting.release();
}

}  // namespace weft
