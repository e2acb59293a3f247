#include "runtime/output_marks.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace weft::core {
namespace {

constexpr size_t kMaxNameBytes = 80;

std::string MarkOf(std::string_view name) {
  size_t size = std::min(name.size(), kMaxNameBytes);
  while (size < name.size() && size > 0 && (name[size] & 0xc0) == 0x80) --size;  // not within a character
  std::string mark = "\x1b]weft;";
  mark += name.substr(0, size);
  std::replace_if(mark.begin() + 1, mark.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return mark + "\x1b\\";
}

}  // namespace

OutputMarks::OutputMarks(Doorbell& doorbell) : doorbell_(doorbell) {
  for (int stream = 0; stream < 2; ++stream) {
    Stream& of = streams_[stream];
    if (::fstat(STDOUT_FILENO + stream, &of.pipe) == 0 && S_ISFIFO(of.pipe.st_mode)) of.left = kMarksWithoutText;
  }
}

bool OutputMarks::IsThePipe(int stream) const {
  const struct stat& pipe = streams_[stream].pipe;
  struct stat now;
  return S_ISFIFO(pipe.st_mode) && ::fstat(STDOUT_FILENO + stream, &now) == 0 && now.st_dev == pipe.st_dev &&
         now.st_ino == pipe.st_ino;
}

void OutputMarks::Write(int stream, uint32_t number, std::string_view name) {
  if (!IsThePipe(stream)) return;
  const int fd = STDOUT_FILENO + stream;
  int unread = 0;
  if (::ioctl(fd, FIONREAD, &unread) != 0) return;
  // A task that prints nothing does not wait until other tasks' text is read.
  pollfd room{fd, POLLOUT, 0};
  if (unread > 0 && (::poll(&room, 1, 0) != 1 || (room.revents & POLLOUT) == 0)) return;
  Stream& of = streams_[stream];
  const bool without_text = unread == 0;  // all earlier bytes were read, and had no text
  const bool last = without_text && of.left == 1;
  const std::string mark = MarkOf(last || number == 0 ? "" : name);
  if (::write(fd, mark.data(), mark.size()) < 0) return;
  of.number = last ? 0 : number;
  if (without_text) --of.left;
}

std::string OutputMarks::BeforeText(int stream, uint32_t number, std::string_view name) {
  Stream& of = streams_[stream];
  if (of.number == number || !IsThePipe(stream)) return {};
  of.number = number;
  return MarkOf(name);
}

}  // namespace weft::core
