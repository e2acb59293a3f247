// Marks in a worker's output pipes that say which task printed the text that follows: ESC ] weft; NAME ESC \. The
// daemon removes them (src/node/worker_output.h). Without them it could only guess from the tasks that ran about when
// it read.
//
// When a task begins after one that printed, a mark is written, so that the text of the second task's children or C
// code is not taken for the first's. A worker that does not print should not pay for this: after some marks without any
// text, which the daemon counts in the doorbell's page, the last mark says "nobody", and no more follow until there is
// text. Even then, a front end with its own output buffer (Python's print) names the task.
//
// Owned by Executor, and used for tasks only, since the text of an actor has its name anyway. On the thread that runs
// tasks.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "transport/doorbell.h"

namespace weft::core {

class OutputMarks {
 public:
  // Standard output and standard error are what the daemon gave this process.
  explicit OutputMarks(Doorbell& doorbell);

  // `number` is different for each name.
  void TaskBegins(uint32_t number, std::string_view name) {
    for (int stream = 0; stream < 2; ++stream) {
      Stream& of = streams_[stream];
      const uint32_t seen = doorbell_.text_seen(stream).load(std::memory_order_relaxed);
      if (seen != of.seen) {
        of.seen = seen;
        of.left = kMarksWithoutText;
      }
      if (of.number != number && of.left > 0) Write(stream, number, name);
    }
  }
  // What to put before text of the task that runs, which has this number; mostly empty. `stream`: 0, 1 for errors.
  std::string BeforeText(int stream, uint32_t number, std::string_view name);

 private:
  static constexpr uint32_t kMarksWithoutText = 16;

  struct Stream {
    struct stat pipe = {};
    uint32_t number = 0;  // of the last mark; 0: nobody
    uint32_t seen = 0;
    uint32_t left = 0;  // marks, until there is text; 0 at the beginning if it is no pipe
  };

  void Write(int stream, uint32_t number, std::string_view name);
  // The descriptor is still the pipe, and no file to which a task has redirected it.
  bool IsThePipe(int stream) const;

  Doorbell& doorbell_;
  Stream streams_[2];
};

}  // namespace weft::core
