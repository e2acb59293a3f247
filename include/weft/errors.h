// Everything that weft throws for errors at run time; Python's API has the same tree.
//
//   WeftError (a std::runtime_error)
//   ├── TaskError                       the task's own code threw; type_name() says what
//   ├── TaskCancelledError              the task was cancelled before it ended
//   ├── WorkerCrashedError              the process that ran the task died (exit, abort, signal, kill -9)
//   ├── ActorError
//   │   ├── ActorDiedError              the actor is gone for good
//   │   └── ActorUnavailableError       the actor cannot be reached now, perhaps later
//   ├── ObjectLostError                 every copy of the object is gone
//   │   ├── OwnerDiedError              the process that owned the reference died
//   │   └── ReconstructionFailedError   the object was lost and could not be computed again
//   ├── ObjectStoreFullError            no room in shared memory, even after waiting
//   ├── OutOfDiskError                  no room on disk for spilled objects
//   ├── OutOfMemoryError                the worker was ended to save the machine from running out of memory
//   ├── NodeDiedError                   a machine is gone
//   ├── GetTimeoutError                 a timeout ran out; the task goes on
//   ├── UnschedulableError              no machine can ever satisfy the request
//   ├── PendingCallsLimitExceeded       too many calls wait for this actor
//   ├── RuntimeEnvSetupError            the environment of a task or actor could not be made
//   ├── DeadlockError                   tasks or actors wait for each other in a circle
//   ├── AuthenticationError             a wrong or missing token
//   ├── VersionMismatchError            the other side speaks another version of weft
//   └── ValueTypeError                  a value is not of the C++ type that it is read as
//
// Wrong arguments are not in the tree: they throw std::invalid_argument, where they are not compile errors.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

namespace weft {

// Libraries catch what other libraries throw, even if they are compiled with hidden symbols.
#pragma GCC visibility push(default)

class WeftError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The code of a task threw an exception. what() says which task, the type, the message, the process and the stack.
//
//   catch (const weft::TaskError& error) {
//     if (error.is<std::out_of_range>()) ...   // or a class derived from it
//   }
//
// A task that does not catch the error of another task's result passes on that first error, with its own stack below.
class TaskError : public WeftError {
 public:
  TaskError(std::string type_name, std::string message, std::string function_name, int pid, std::string stack = {},
            std::vector<std::string> bases = {});
  const std::string& type_name() const noexcept { return type_name_; }          // "std::out_of_range"
  const std::string& message() const noexcept { return message_; }              // what() of the original
  const std::string& function_name() const noexcept { return function_name_; }  // of the task
  int pid() const noexcept { return pid_; }                                     // where it ran
  // The calls that led to the throw, innermost first, a line each; Python's traceback if the task was in Python. May be
  // empty: a program without symbols has none.
  const std::string& stack() const noexcept { return stack_; }
  // The names of the classes that the exception's class is derived from.
  const std::vector<std::string>& bases() const noexcept { return bases_; }

  // Whether the exception was of this class or of one derived from it, by name: only its text is here.
  template <class E>
  bool is() const {
    return is(typeid(E));
  }
  bool is(std::string_view class_name) const noexcept;
  bool is(const std::type_info& type) const;

 private:
  std::string type_name_, message_, function_name_, stack_;
  std::vector<std::string> bases_;
  int pid_;
};

class TaskCancelledError : public WeftError {
 public:
  using WeftError::WeftError;
};
class WorkerCrashedError : public WeftError {
 public:
  using WeftError::WeftError;
};
class ActorError : public WeftError {
 public:
  using WeftError::WeftError;
};
class ActorDiedError : public ActorError {
 public:
  using ActorError::ActorError;
};
class ActorUnavailableError : public ActorError {
 public:
  using ActorError::ActorError;
};
class ObjectLostError : public WeftError {
 public:
  using WeftError::WeftError;
};
class OwnerDiedError : public ObjectLostError {
 public:
  using ObjectLostError::ObjectLostError;
};
class ReconstructionFailedError : public ObjectLostError {
 public:
  using ObjectLostError::ObjectLostError;
};
class ObjectStoreFullError : public WeftError {
 public:
  using WeftError::WeftError;
};
class OutOfDiskError : public WeftError {
 public:
  using WeftError::WeftError;
};
class OutOfMemoryError : public WeftError {
 public:
  using WeftError::WeftError;
};
class NodeDiedError : public WeftError {
 public:
  using WeftError::WeftError;
};
class GetTimeoutError : public WeftError {
 public:
  using WeftError::WeftError;
};
class UnschedulableError : public WeftError {
 public:
  using WeftError::WeftError;
};
class PendingCallsLimitExceeded : public WeftError {
 public:
  using WeftError::WeftError;
};
class RuntimeEnvSetupError : public WeftError {
 public:
  using WeftError::WeftError;
};
class DeadlockError : public WeftError {
 public:
  using WeftError::WeftError;
};
class AuthenticationError : public WeftError {
 public:
  using WeftError::WeftError;
};
class VersionMismatchError : public WeftError {
 public:
  using WeftError::WeftError;
};
class ValueTypeError : public WeftError {
 public:
  using WeftError::WeftError;
};

#pragma GCC visibility pop

}  // namespace weft
