#include "node/worker_output.h"

#include <errno.h>
#include <unistd.h>

#include <utility>

namespace weft::core {

void WorkerOutputs::Watch(ProcessId worker, bool is_stderr, UniqueFd fd) {
  uint64_t number = next_pipe_++;
  auto& pipe = pipes_[number];
  pipe.worker = worker;
  pipe.is_stderr = is_stderr;
  pipe.fd = std::move(fd);
  if (!paused_) StartWatching(number, pipe);
}

void WorkerOutputs::StartWatching(uint64_t number, Pipe& pipe) {
  auto watch = loop_.Add(pipe.fd.get(), EPOLLIN, [this, number](uint32_t) { OnReadable(number); });
  pipe.watch = watch ? *watch : 0;
}

void WorkerOutputs::OnReadable(uint64_t number) {
  auto found = pipes_.find(number);
  if (found == pipes_.end()) return;
  auto& pipe = found->second;
  if (Pump(pipe, 64 << 10)) return;
  PassRest(pipe);
  if (pipe.watch != 0) loop_.Remove(pipe.watch);
  pipes_.erase(found);
}

bool WorkerOutputs::Pump(Pipe& pipe, size_t limit) {
  char buffer[64 << 10];
  for (size_t done = 0; done < limit;) {
    ssize_t size = ::read(pipe.fd.get(), buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (size == 0) return false;
    done += static_cast<size_t>(size);
    std::string_view text(buffer, static_cast<size_t>(size));
    listener_.read(pipe.worker, text);
    PassLines(pipe, pipe.lines.Append(text));
  }
  return true;
}

void WorkerOutputs::PassRest(Pipe& pipe) { PassLines(pipe, pipe.lines.TakeRest()); }

void WorkerOutputs::PassLines(Pipe& pipe, std::string_view lines) {
  constexpr std::string_view kBegin = "\x1b]weft;", kEnd = "\x1b\\";
  while (!lines.empty()) {
    const size_t mark = lines.find(kBegin);
    const size_t end = mark == lines.npos ? lines.npos : lines.find(kEnd, mark);
    // Half a mark is text like any other: a line without an end was cut there.
    const std::string_view text = lines.substr(0, end == lines.npos ? lines.npos : mark);
    if (!text.empty()) listener_.whole_lines(pipe.worker, pipe.is_stderr, std::string(text), pipe.printer);
    if (end == lines.npos) return;
    pipe.printer = lines.substr(mark + kBegin.size(), end - mark - kBegin.size());
    lines.remove_prefix(end + kEnd.size());
  }
}

void WorkerOutputs::Drain(ProcessId worker) {
  for (auto entry = pipes_.begin(); entry != pipes_.end();) {
    auto& pipe = entry->second;
    if (pipe.worker != worker) {
      ++entry;
      continue;
    }
    // A pipe holds 64 kB; one that has more is being filled by a child that the worker left behind.
    bool open = Pump(pipe, 1 << 20);
    PassRest(pipe);
    if (open) {
      ++entry;
      continue;
    }
    if (pipe.watch != 0) loop_.Remove(pipe.watch);
    entry = pipes_.erase(entry);
  }
}

void WorkerOutputs::DrainAll() {
  for (auto& [number, pipe] : pipes_) {
    Pump(pipe, 1 << 20);
    PassRest(pipe);
  }
}

void WorkerOutputs::Pause(bool pause) {
  if (pause == paused_) return;
  paused_ = pause;
  for (auto& [number, pipe] : pipes_) {
    if (!pause) {
      StartWatching(number, pipe);
      continue;
    }
    // Removed and not only silenced: an end of the pipe would be reported again and again.
    if (pipe.watch != 0) loop_.Remove(pipe.watch);
    pipe.watch = 0;
  }
}

}  // namespace weft::core
