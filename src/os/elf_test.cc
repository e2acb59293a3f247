#include "os/elf.h"

#include <elf.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>

#include "base/random.h"
#include "os/fd.h"

namespace weft::core {
namespace {

Result<ElfFile> Read(const std::string& bytes) {
  return ReadElf(bytes.size(), [&](uint64_t offset, void* to, size_t size) {
    // The reader has to keep inside by itself.
    EXPECT_LE(offset, bytes.size());
    EXPECT_LE(size, bytes.size() - offset);
    if (offset > bytes.size() || size > bytes.size() - offset) return false;
    std::memcpy(to, bytes.data() + offset, size);
    return true;
  });
}

std::string Content(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Elf, ReadsAnExecutable) {
  UniqueFd fd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  auto file = ReadElf(fd.get());
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->bits, 64);
#ifdef __x86_64__
  EXPECT_EQ(file->machine, EM_X86_64);
#endif
  EXPECT_TRUE(file->interpreter.starts_with("/lib")) << file->interpreter;
  EXPECT_NE(std::find(file->needed.begin(), file->needed.end(), "libc.so.6"), file->needed.end());
  EXPECT_EQ(file->soname, "");
  EXPECT_GE(file->glibc, ParseGlibc("2.2"));
  EXPECT_LE(file->glibc, ParseGlibc(::gnu_get_libc_version()));
}

TEST(Elf, ReadsALibrary) {
  // Of this process, wherever it lies.
  std::ifstream maps("/proc/self/maps");
  std::string line, path;
  while (std::getline(maps, line)) {
    if (line.find("/libc.so.6") != std::string::npos) path = line.substr(line.find('/'));
  }
  if (path.empty()) GTEST_SKIP() << "libc is not loaded as libc.so.6";
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  auto file = ReadElf(fd.get());
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->soname, "libc.so.6");
  EXPECT_TRUE(IsIdentity(BuildIdentity(file->build_id))) << BuildIdentity(file->build_id);
}

TEST(Elf, OthersAreNone) {
  EXPECT_EQ(Read("").error().message, "it is no ELF file");
  EXPECT_EQ(Read("#!/bin/sh\necho a script of some length\n").error().message, "it is no ELF file");
  UniqueFd folder(::open("/", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(ReadElf(folder.get()).ok());
}

TEST(Elf, AForeignMachineIsNamed) {
  std::string bytes = Content("/proc/self/exe");
  const uint16_t other = EM_AARCH64;
  std::memcpy(bytes.data() + offsetof(Elf64_Ehdr, e_machine), &other, sizeof other);
  auto file = Read(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(DescribeMachine(file->machine, file->bits), "AArch64 (64 bit)");
  std::string old(52, '\0');  // 32 bit, big-endian: no more than its machine is known
  std::memcpy(old.data(), "\177ELF\1\2\1", 7);
  old[19] = EM_PPC;
  file = Read(old);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->bits, 32);
  EXPECT_EQ(file->machine, EM_PPC);
}

// Whatever is cut off or changed: nothing is read outside, nothing takes long. Sanitizers watch the rest.
TEST(Elf, DamageIsHarmless) {
  const std::string whole = Content("/proc/self/exe");
  for (size_t size = 0; size < 4096; ++size) Read(whole.substr(0, size)).ok();
  Random random(11);
  std::string bytes = whole;
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::pair<size_t, char>> before;
    for (uint64_t i = 0, count = 1 + random.Below(8); i < count; ++i) {
      const size_t at =
          static_cast<size_t>(random.Below(random.Chance(50) ? 1024 : std::min<size_t>(whole.size(), 65536)));
      before.emplace_back(at, bytes[at]);
      // Past the first bytes, or nearly all are no ELF files at once.
      if (at >= 5) bytes[at] = static_cast<char>(random.Below(256));
    }
    if (!Read(bytes).ok()) ++refused;
    for (auto entry = before.rbegin(); entry != before.rend(); ++entry) bytes[entry->first] = entry->second;
  }
  EXPECT_GT(refused, 0);
  EXPECT_EQ(bytes, whole);
}

TEST(Elf, Identities) {
  EXPECT_EQ(BuildIdentity(""), "");
  EXPECT_EQ(BuildIdentity("1234567"), "");
  EXPECT_EQ(BuildIdentity("12345678"), "build:3132333435363738");
  EXPECT_TRUE(IsIdentity("build:3132333435363738"));
  EXPECT_TRUE(IsIdentity("sha256:" + std::string(64, 'f')));
  for (const char* wrong : {"", "build:", "build:31", "build:../../../../etc", "sha256:00", "build:313233343536373G",
                            "other:3132333435363738", "build:3132333435363738/..", "build:3132333435363738 "}) {
    EXPECT_FALSE(IsIdentity(wrong)) << wrong;
  }
}

TEST(Elf, VersionsOfGlibc) {
  EXPECT_EQ(ParseGlibc("2.36"), 2u << 16 | 36u);
  EXPECT_EQ(ParseGlibc("2.2.5"), 2u << 16 | 2u);
  EXPECT_EQ(ParseGlibc("PRIVATE"), 0u);
  EXPECT_EQ(ParseGlibc("99999999.1"), 0u);
  EXPECT_EQ(ParseGlibc("2."), 0u);
  EXPECT_LT(ParseGlibc("2.9"), ParseGlibc("2.34"));
  EXPECT_EQ(DescribeGlibc(ParseGlibc("2.36")), "2.36");
}

}  // namespace
}  // namespace weft::core
