// Never more bodies at once than CPUs, in sessions whose workers are this test program.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "weft/weft.h"

namespace {

constexpr int kCpus = 2;

struct Counts {
  std::atomic<int> now;
  std::atomic<int> most;
};

// A file that all processes of the session map.
Counts* Map(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR);
  void* memory = ::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  return memory == MAP_FAILED ? nullptr : static_cast<Counts*>(memory);
}

std::vector<uint8_t> Make(std::string path, size_t size) {
  Counts* counts = Map(path);
  const int now = ++counts->now;
  for (int most = counts->most; now > most && !counts->most.compare_exchange_weak(most, now);) {
  }
  // Long enough to overlap with others, if others run.
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
  while (std::chrono::steady_clock::now() < end) {
  }
  --counts->now;
  ::munmap(counts, sizeof *counts);
  return std::vector<uint8_t>(size, 7);
}

class Cpus : public ::testing::TestWithParam<size_t> {};

TEST_P(Cpus, AreNotExceededByTasksWithResultsInTheStore) {
  char path[] = "/tmp/weft_cpus_test_XXXXXX";
  const int fd = ::mkstemp(path);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::ftruncate(fd, sizeof(Counts)), 0);
  ::close(fd);
  Counts* counts = Map(path);
  {
    auto session = weft::init({.num_cpus = kCpus, .object_store_memory = 1'600'000'000});
    const size_t size = GetParam();
    std::vector<weft::Ref<std::vector<uint8_t>>> made;
    for (int i = 0; i < (size < 1'000'000 ? 300 : 12); ++i) made.push_back(weft::remote<Make>(std::string(path), size));
    for (const auto& each : made) EXPECT_EQ(weft::get(each).size(), size);
  }
  EXPECT_GE(counts->most, 1);
  EXPECT_LE(counts->most, kCpus);
  ::munmap(counts, sizeof *counts);
  ::unlink(path);
}
INSTANTIATE_TEST_SUITE_P(Sizes, Cpus, ::testing::Values(0, 1'000, 20'000, 160'000, 2'000'000, 100'000'000));

}  // namespace
