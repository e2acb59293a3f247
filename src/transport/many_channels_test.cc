// A process with a thousand channels: descriptors, memory, and the cost of a look.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>
#include <memory>
#include <vector>

#include "transport/ring_channel.h"

namespace weft::core {
namespace {

class FdLimit {
 public:
  explicit FdLimit(rlim_t limit) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit lowered = before_;
    lowered.rlim_cur = limit;
    setrlimit(RLIMIT_NOFILE, &lowered);
  }
  ~FdLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_;
};

void Send(RingChannel* channel, const std::string& bytes) {
  uint8_t* room = channel->BeginSend(static_cast<uint32_t>(bytes.size()));
  ASSERT_NE(room, nullptr);
  memcpy(room, bytes.data(), bytes.size());
  channel->CommitSend(1, false, static_cast<uint32_t>(bytes.size()));
}

TEST(ManyChannelsTest, ThousandFitUnderTheUsualDescriptorLimit) {
  const FdLimit limit(1024);
  constexpr uint32_t kChannels = 1500;
  auto here_fd = CreateDoorbellPage();
  auto there_fd = CreateDoorbellPage();
  auto here_bell = std::move(*Doorbell::Open(here_fd->get()));
  auto here = *PeerDoorbell::Open(here_fd->get());
  auto there = *PeerDoorbell::Open(there_fd->get());
  std::vector<std::unique_ptr<RingChannel>> near, far;
  Frame frame;
  for (uint32_t i = 0; i < kChannels; ++i) {
    auto fd = CreateChannelMemory();
    ASSERT_TRUE(fd.ok()) << i << ": " << fd.error().message;
    auto one = RingChannel::Open(fd->get(), true, there, i);
    auto other = RingChannel::Open(fd->get(), false, here, i);
    ASSERT_TRUE(one.ok() && other.ok()) << i;
    // Used in both directions, then idle.
    Send(one->get(), std::string(100, 'a'));
    Send(other->get(), std::string(100, 'b'));
    ASSERT_TRUE((*one)->Peek(&frame));
    (*one)->Pop();
    ASSERT_TRUE((*other)->Peek(&frame));
    (*other)->Pop();
    struct stat status;
    ASSERT_EQ(fstat(fd->get(), &status), 0);
    ASSERT_LE(status.st_blocks * 512, 16 * 1024) << "an idle channel costs at most 16 kB";
    near.push_back(std::move(*one));
    far.push_back(std::move(*other));
  }
  Send(far[1234].get(), "ring");
  far[1234]->Notify(Audience::kAnyone);
  std::vector<uint32_t> rung;
  here_bell->TakeRung(Audience::kAnyone, [&](uint32_t slot) { rung.push_back(slot); });
  ASSERT_EQ(rung, std::vector<uint32_t>{1234});
  ASSERT_TRUE(near[1234]->Peek(&frame));
  EXPECT_EQ(frame.bytes, "ring");

  // A burst through every tenth of them leaves nothing behind after Trim.
  for (uint32_t i = 0; i < kChannels; i += 10) {
    for (int j = 0; j < 200; ++j) Send(near[i].get(), std::string(1000, 'c'));
    while (far[i]->Peek(&frame)) far[i]->Pop();
    EXPECT_GT(near[i]->send_window_bytes(), kRingFirstWindowBytes);
    near[i]->Trim();
    EXPECT_EQ(near[i]->send_window_bytes(), kRingFirstWindowBytes);
  }
}

}  // namespace
}  // namespace weft::core
