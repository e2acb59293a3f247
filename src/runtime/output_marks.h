// Says in what a worker prints whose text follows: marks in its pipes, ESC ] weft; NAME ESC \, which the daemon takes
// out again (src/node/worker_output.h). Without them it could only see which tasks ran about when it read.
//
// A task that prints is followed by a mark when another begins, so that a child of the second, or its C code, is not
// taken for the first. A worker that does not print should not pay for it: after some marks without any text, which the
// daemon counts in the doorbell's page, the last one says "nobody", and there are no more until text has come. Then a
// front end that writes text through a buffer of its own (Python's print) still says whose it is.
//
// Owned by Executor; for tasks, as an actor's text has its name anyway. On the thread that runs tasks.
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
  // To be put before text of the task that has begun, which has this number; mostly empty. `stream`: 0, 1 for errors.
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
  // And not a file to which a task has redirected the descriptor.
  bool IsThePipe(int stream) const;

  Doorbell& doorbell_;
  Stream streams_[2];
};

}  // namespace weft::core
