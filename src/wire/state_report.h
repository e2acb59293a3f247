// What a process knows of the tasks it has submitted and of the objects it owns or borrows, for an observer: the
// payload of StateReport. Made by the runtime's link thread, read by observers. A report that does not decode exactly
// is dropped whole.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "wire/ids.h"

namespace weft::core {

struct TaskReport {
  uint64_t task = 0;    // the submitter's handle, as in event logs
  uint64_t object = 0;  // index of the first return, 0 without one
  uint8_t state = 0;    // TaskState
  uint32_t attempt = 0;
  ProcessId worker;  // to which it was pushed
  std::string name;
  std::vector<ObjectId> waits_for;  // arguments that are not there yet; a few of them
};

struct ObjectReport {
  ObjectId id;
  uint8_t kind = 0;  // ValueKind
  uint64_t size = 0;
  uint32_t local_references = 0;
  uint32_t holds = 0;
  uint32_t borrowers = 0;
  uint8_t borrowed = 0;
  uint64_t segment = 0;  // where it is stored; 0: inline or not there
};

struct ProcessReport {
  uint64_t all_tasks = 0, all_objects = 0;  // in all; the lists hold at most as many as were asked for
  std::vector<TaskReport> tasks;
  std::vector<ObjectReport> objects;
};

std::string EncodeReport(const ProcessReport& report);
bool DecodeReport(std::string_view bytes, ProcessReport& report);

}  // namespace weft::core
