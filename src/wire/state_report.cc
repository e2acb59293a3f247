#include "wire/state_report.h"

#include "base/bytes.h"

namespace weft::core {

std::string EncodeReport(const ProcessReport& report) {
  ByteWriter out;
  out.Fixed(report.all_tasks);
  out.Fixed(report.all_objects);
  out.Fixed(static_cast<uint32_t>(report.tasks.size()));
  for (const TaskReport& task : report.tasks) {
    out.Fixed(task.task);
    out.Fixed(task.object);
    out.Fixed(task.state);
    out.Fixed(task.attempt);
    out.Fixed(task.worker);
    out.Bytes(task.name);
    out.Fixed(static_cast<uint32_t>(task.waits_for.size()));
    for (ObjectId id : task.waits_for) out.Fixed(id);
  }
  out.Fixed(static_cast<uint32_t>(report.objects.size()));
  for (const ObjectReport& object : report.objects) {
    out.Fixed(object.id);
    out.Fixed(object.kind);
    out.Fixed(object.size);
    out.Fixed(object.local_references);
    out.Fixed(object.holds);
    out.Fixed(object.borrowers);
    out.Fixed(object.borrowed);
    out.Fixed(object.segment);
  }
  return out.Take();
}

bool DecodeReport(std::string_view bytes, ProcessReport& report) {
  ByteReader in(bytes);
  report.all_tasks = in.Fixed<uint64_t>();
  report.all_objects = in.Fixed<uint64_t>();
  // Items are of a known least size: a count beyond that is a lie, refused before anything is allocated.
  auto tasks = in.Fixed<uint32_t>();
  if (tasks > in.remaining() / 37) return false;
  for (uint32_t i = 0; i < tasks && in.ok(); ++i) {
    TaskReport& task = report.tasks.emplace_back();
    task.task = in.Fixed<uint64_t>();
    task.object = in.Fixed<uint64_t>();
    task.state = in.Fixed<uint8_t>();
    task.attempt = in.Fixed<uint32_t>();
    task.worker = in.Fixed<ProcessId>();
    task.name = in.Bytes();
    auto waits_for = in.Fixed<uint32_t>();
    if (waits_for > in.remaining() / sizeof(ObjectId)) return false;
    for (uint32_t k = 0; k < waits_for; ++k) task.waits_for.push_back(in.Fixed<ObjectId>());
  }
  auto objects = in.Fixed<uint32_t>();
  if (objects > in.remaining() / 46) return false;
  for (uint32_t i = 0; i < objects && in.ok(); ++i) {
    ObjectReport& object = report.objects.emplace_back();
    object.id = in.Fixed<ObjectId>();
    object.kind = in.Fixed<uint8_t>();
    object.size = in.Fixed<uint64_t>();
    object.local_references = in.Fixed<uint32_t>();
    object.holds = in.Fixed<uint32_t>();
    object.borrowers = in.Fixed<uint32_t>();
    object.borrowed = in.Fixed<uint8_t>();
    object.segment = in.Fixed<uint64_t>();
  }
  return in.ok() && in.AtEnd();
}

}  // namespace weft::core
