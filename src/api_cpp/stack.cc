#include "api_cpp/stack.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unwind.h>

#include <cstring>
#include <string_view>
#include <typeinfo>

#include "api_cpp/symbols.h"

namespace weft::detail {
namespace {

constexpr size_t kMaxLines = 40;
constexpr size_t kMaxFunctionName = 300;

// Small, because it takes room in every thread of every program that uses weft.
thread_local ThrowPoint* t_point = nullptr;
thread_local const char* t_running = nullptr;

bool IsMachineryOfThrowing(std::string_view name) {
  return name == "__cxa_throw" || name == "__cxa_rethrow" || name.starts_with("std::rethrow_exception(") ||
         name.starts_with("std::__throw_") || name.find("__interceptor___cxa_throw") != std::string_view::npos;
}

// The callers of the task's function are weft's.
bool IsBelowTask(std::string_view name) {
  if (constexpr std::string_view kDeduced = "decltype(auto) "; name.starts_with(kDeduced)) {
    name.remove_prefix(kDeduced.size());
  }
  return name.substr(0, name.find('(')).find("weft::detail::") != std::string_view::npos;
}

}  // namespace

// libstdc++ asks this whether a handler for EscapingException takes the thrown exception.
class AskedType : public std::type_info {
 public:
  AskedType() : std::type_info("N4weft6detail17EscapingExceptionE") {}
  bool __do_catch(const std::type_info*, void**, unsigned) const override {
    // Asked again while the stack is unwound, by which time it has gone.
    if (t_point && t_point->count_ == 0) t_point->Note();
    return false;
  }
};

// The object that the compiler uses as the type_info of EscapingException. Made before all other objects of the
// program, because exceptions may be thrown early.
__attribute__((init_priority(101), used,
               visibility("default"))) AskedType g_asked_type __asm__("_ZTIN4weft6detail17EscapingExceptionE");

ThrowPoint::Watching::Watching(ThrowPoint& point, const void* frame) noexcept : before_(t_point) {
  point.count_ = 0;
  point.limit_ = reinterpret_cast<uintptr_t>(frame);
  t_point = &point;
}

ThrowPoint::Watching::~Watching() { t_point = before_; }

void ThrowPoint::Note() noexcept {
  auto each = [](_Unwind_Context* context, void* data) {
    auto& to = *static_cast<ThrowPoint*>(data);
    if (to.count_ == kMaxFrames || _Unwind_GetCFA(context) > to.limit_) return _URC_END_OF_STACK;
    int before = 0;
    uintptr_t address = _Unwind_GetIPInfo(context, &before);
    if (address) to.addresses_[to.count_++] = before ? address : address - 1;  // the call, not what follows it
    return _URC_NO_REASON;
  };
  _Unwind_Backtrace(each, this);
}

std::string ThrowPoint::Stack() const {
  if (count_ == 0) return "";
  Frame frames[kMaxFrames];
  size_t begin = 0, end = count_;
  for (size_t i = 0; i < end; ++i) {
    frames[i] = DescribeAddress(addresses_[i]);
    if (IsMachineryOfThrowing(frames[i].function)) begin = i + 1;
  }
  while (begin < end && frames[begin].function.empty() && frames[begin].place.starts_with("libstdc++")) ++begin;
  if (count_ < kMaxFrames) {
    while (end > begin && IsBelowTask(frames[end - 1].function)) --end;
  }
  std::string text;
  for (size_t i = begin; i < end; ++i) {
    if (i - begin == kMaxLines) {
      text.append("    ... and ").append(std::to_string(end - i)).append(count_ == kMaxFrames ? " or more" : "");
      text.append(" calls below\n");
      break;
    }
    std::string& name = frames[i].function;
    if (name.size() > kMaxFunctionName) name.resize(kMaxFunctionName), name.append("...");
    text.append("    at ").append(name.empty() ? "?" : name).append(" (").append(frames[i].place).append(")\n");
  }
  if (!text.empty()) text.pop_back();
  return text;
}

// ---- crashes

namespace {

constexpr struct {
  int number;
  const char* name;
} kCrashes[] = {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}, {SIGABRT, "SIGABRT"}};

void Say(const char* text) noexcept {
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

struct CrashFrames {
  size_t seen = 0, written = 0;
  uintptr_t fault = 0;  // the frame of the crash; those before it are the handler's
};

void ReportCrash(int number, siginfo_t*, void*) noexcept {
  ::alarm(10);  // should the report itself hang, the process still ends
  ::signal(SIGALRM, SIG_DFL);
  const char* name = "a signal";
  for (const auto& crash : kCrashes) {
    if (crash.number == number) name = crash.name;
  }
  Say("weft: this worker ends with ");
  Say(name);
  if (t_running) {
    Say(" in task '");
    Say(t_running);
    Say("'");
  }
  Say(":\n");
  auto each = [](_Unwind_Context* context, void* data) {
    auto& frames = *static_cast<CrashFrames*>(data);
    int before = 0;
    uintptr_t address = _Unwind_GetIPInfo(context, &before);
    if (before) frames.fault = address;  // what the signal interrupted
    if (!frames.fault) return ++frames.seen < 16 ? _URC_NO_REASON : _URC_END_OF_STACK;
    if (!address || frames.written == 24) return _URC_END_OF_STACK;
    ++frames.written;
    return WriteFrame(STDERR_FILENO, before ? address : address - 1) ? _URC_NO_REASON : _URC_END_OF_STACK;
  };
  CrashFrames frames;
  _Unwind_Backtrace(each, &frames);
  // The handler is gone (SA_RESETHAND), so this ends the process as the signal would have.
  ::raise(number);
}

}  // namespace

void InstallCrashReport() noexcept {
  // Loads what the unwinder needs, which it must not do when the heap may be broken.
  void* here[1];
  ::backtrace(here, 1);
  constexpr size_t kSize = 64 * 1024;
  stack_t present{};
  if (::sigaltstack(nullptr, &present) == 0 && (present.ss_flags & SS_DISABLE)) {
    void* memory = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    stack_t own{};
    own.ss_sp = memory;
    own.ss_size = kSize;
    ::sigaltstack(&own, nullptr);
  }
  for (const auto& crash : kCrashes) {
    struct sigaction action{};
    if (::sigaction(crash.number, nullptr, &action) != 0 || (action.sa_flags & SA_SIGINFO) ||
        action.sa_handler != SIG_DFL) {
      continue;
    }
    action = {};
    action.sa_sigaction = ReportCrash;
    action.sa_flags = static_cast<int>(SA_SIGINFO | SA_ONSTACK | SA_RESETHAND | SA_NODEFER);
    ::sigaction(crash.number, &action, nullptr);
  }
}

void SetRunningTask(const char* name) noexcept { t_running = name; }

}  // namespace weft::detail
