// Reads what workers print, from pipes, and passes it on in whole lines.
//
// A worker marks whose text follows, where it changes (src/runtime/output_marks.h): ESC ] weft; NAME ESC \, which no
// terminal shows. Marks are taken out here. One without a name says that it is not known whose text follows.
//
// Called by the node daemon on its loop thread. While it is paused nothing is read: the workers' output waits in its
// pipes, so that printing cannot fill the memory. Does not know processes, and sends nothing itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "node/line_splitter.h"
#include "os/event_loop.h"
#include "os/fd.h"
#include "wire/ids.h"

namespace weft::core {

class WorkerOutputs {
 public:
  struct Listener {
    std::function<void(ProcessId worker, std::string_view bytes)> read;  // as they come
    // `printer`: the task of the last mark before these lines; empty: none.
    std::function<void(ProcessId worker, bool is_stderr, std::string lines, const std::string& printer)> whole_lines;
  };

  WorkerOutputs(EventLoop& loop, Listener listener) : loop_(loop), listener_(std::move(listener)) {}

  // The descriptor must not block.
  void Watch(ProcessId worker, bool is_stderr, UniqueFd fd);
  // Passes on what is left, unfinished lines included: of one that has ended, of everybody.
  void Drain(ProcessId worker);
  void DrainAll();
  void Pause(bool pause);
  bool paused() const { return paused_; }

 private:
  struct Pipe {
    ProcessId worker;
    bool is_stderr = false;
    UniqueFd fd;
    EventLoop::WatchId watch = 0;
    LineSplitter lines;
    std::string printer;
  };

  void StartWatching(uint64_t number, Pipe& pipe);
  void OnReadable(uint64_t number);
  // Reads what the pipe has, at most `limit` bytes. False when it has ended.
  bool Pump(Pipe& pipe, size_t limit);
  void PassRest(Pipe& pipe);
  void PassLines(Pipe& pipe, std::string_view lines);

  EventLoop& loop_;
  Listener listener_;
  std::map<uint64_t, Pipe> pipes_;
  uint64_t next_pipe_ = 1;
  bool paused_ = false;
};

}  // namespace weft::core
