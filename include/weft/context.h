// Where this code runs: task, actor, process, node; and what the session has.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace weft {

// All ids are hexadecimal. Fields that do not apply are empty.
struct Context {
  std::string job_id;     // the driver whose program this is
  std::string node_id;    // the machine
  std::string worker_id;  // the process, driver or worker
  bool is_worker = false;
  std::string name_space;  // where names of actors are looked up unless another is given
  // In a task or call:
  std::string task_id, task_name;
  int attempt = 0;                          // 1 at the first retry
  std::map<std::string, double> resources;  // what this task or actor holds
  std::vector<int> gpu_ids;                 // which of the GPUs; also in CUDA_VISIBLE_DEVICES
  std::string actor_id, actor_name;         // in an actor
  bool was_reconstructed = false;           // the actor has been restarted
};
Context context();

struct NodeInfo {
  std::string id, name;
  std::string address;  // where other nodes reach it; empty in a private session
  bool alive = true;
  bool is_head = false;
  std::map<std::string, double> resources, available;  // empty if it is not alive
  std::map<std::string, std::string> labels;
  std::string death_reason;  // if it is not alive
};
// The nodes of the cluster (one in a private session), in the order in which they came, including those that are gone.
std::vector<NodeInfo> nodes();

// What all machines have together, and how much is free now, without resources that are used up.
std::map<std::string, double> cluster_resources();
std::map<std::string, double> available_resources();

namespace this_task {

// Whether this task or call was cancelled and should end soon.
bool is_cancelled() noexcept;
// Throws TaskCancelledError if so; do not catch it, so that the task ends as cancelled.
void check_cancelled();
// Sleeps; ends early by throwing TaskCancelledError if the task is cancelled.
void sleep_for(std::chrono::nanoseconds duration);

}  // namespace this_task
}  // namespace weft
