#include "os/memory_limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "os/cpu_count.h"

namespace weft::core {
namespace {

// A directory that looks like / to the functions under test.
class FakeRoot : public testing::Test {
 protected:
  FakeRoot() {
    root_ = std::filesystem::path(testing::TempDir()) /
            ("weft-root-" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(root_);
  }
  ~FakeRoot() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& content) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << content;
  }
  std::filesystem::path root_;
};

TEST_F(FakeRoot, TheLowestLimitOfVersion2AndItsParentsCounts) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("proc/meminfo", "MemTotal:       100 kB\nMemAvailable:   4194304 kB\n");
  Write("sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("sys/fs/cgroup/a/memory.max", "2147483648\n");
  auto limits = ReadMemoryLimits(root_);
  EXPECT_EQ(limits.cgroup_bytes, uint64_t{2} << 30);
  EXPECT_EQ(limits.available_bytes, uint64_t{4} << 30);
  EXPECT_EQ(DefaultCapacity(limits), 614u << 20);
}

TEST_F(FakeRoot, Version1WithoutALimitLeavesTheMachine) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/x\n");
  Write("proc/meminfo", "MemAvailable:   1048576 kB\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  auto limits = ReadMemoryLimits(root_);
  EXPECT_EQ(limits.cgroup_bytes, std::nullopt);
  EXPECT_EQ(DefaultCapacity(limits), 307u << 20);
  // The path of the host is not visible in the container, the limit at the mount is.
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n");
  EXPECT_EQ(ReadMemoryLimits(root_).cgroup_bytes, 512u << 20);
}

TEST_F(FakeRoot, AMachineThatTellsNothingGetsASmallStore) {
  EXPECT_EQ(DefaultCapacity(ReadMemoryLimits(root_)), 614u << 20);
  EXPECT_EQ(DefaultCapacity({.cgroup_bytes = 1, .available_bytes = 1}), 64u << 20);
}

TEST_F(FakeRoot, ACpuQuotaIsRoundedDownToWholeCpus) {
  int all = AllowedCpus(root_);
  EXPECT_GE(all, 1);
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(AllowedCpus(root_), all);
  Write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(AllowedCpus(root_), 1);
  Write("sys/fs/cgroup/cpu.max", "20000 100000\n");
  EXPECT_EQ(AllowedCpus(root_), 1);
  std::filesystem::remove_all(root_);
  Write("proc/self/cgroup", "3:cpu:/x\n");
  Write("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "100000\n");
  Write("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(AllowedCpus(root_), 1);
  Write("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(AllowedCpus(root_), all);
}

TEST(MemoryLimitsTest, ThisMachineHasLimits) {
  EXPECT_GE(DefaultCapacity(), 64u << 20);
  int allowed = AllowedCpus();
  EXPECT_GE(IdleCpus(allowed), 1);
  EXPECT_LE(IdleCpus(allowed), allowed);
}

}  // namespace
}  // namespace weft::core
