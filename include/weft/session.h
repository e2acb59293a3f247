// A session: the local cluster that this program's tasks run on.
//
//   int main() {
//     auto session = weft::init({.num_cpus = 4});
//     ...
//   }
//
// Workers are this same executable, started again with the same arguments: code before init runs in each of them too,
// and init itself serves tasks there and does not return.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/detail/bridge.h"

namespace weft {

struct InitOptions {
  // A cluster to join through its node on this machine: "host:port" of its head, or "auto" for the only one there is.
  // Empty: WEFT_ADDRESS, or a private session. A cluster has what its nodes have; num_cpus does not apply.
  std::string address = {};
  std::optional<double> num_cpus = std::nullopt;  // how many tasks of one CPU run at once; default: the CPUs we may use
  double num_gpus = 0;
  std::vector<std::pair<std::string, double>> resources = {};  // your own, by name
  uint64_t object_store_memory = 0;                            // bytes; 0: 30 % of what the machine or cgroup allows
  std::string name_space = {};                                 // where names of actors belong unless another is given
  bool log_to_driver = true;                                   // show what workers print, with its origin in front
  // Workers are `weft worker` with these libraries of tasks, instead of this executable again: for libraries that use
  // weft inside of programs that know nothing of it. Only functions that lie in them can be called.
  std::vector<std::string> libraries = {};
  std::string python = {};   // the interpreter of Python workers (weft/python.h); default: WEFT_PYTHON, or python3
  std::string program = {};  // the `weft` program; default: WEFT_PROGRAM, beside this executable, or as installed
};

// Ends the session when destroyed: workers stop, and unfinished tasks are lost.
class [[nodiscard]] Session {
 public:
  Session() = default;
  explicit Session(uint32_t epoch) : epoch_(epoch) {}
  Session(Session&& other) noexcept : epoch_(std::exchange(other.epoch_, 0)) {}
  Session& operator=(Session&& other) noexcept {
    if (this != &other) {
      shutdown();
      epoch_ = std::exchange(other.epoch_, 0);
    }
    return *this;
  }
  ~Session() { shutdown(); }
  void shutdown() noexcept {
    if (epoch_ != 0) detail::CloseSession(std::exchange(epoch_, 0));
  }
  bool is_open() const noexcept { return epoch_ != 0 && detail::IsOpen(epoch_); }

 private:
  uint32_t epoch_ = 0;
};

// One session at a time; another can follow when it has ended. Throws std::invalid_argument for wrong options and
// WeftError if the session cannot be started.
inline Session init(const InitOptions& options = {}) { return Session(detail::OpenSession(options)); }

// In a worker process: serves tasks and does not return. Elsewhere: returns at once. For programs that do much before
// init.
void serve_if_worker();

bool is_initialized() noexcept;

}  // namespace weft
