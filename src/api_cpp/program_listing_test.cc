#include "api_cpp/program_listing.h"

#include <gtest/gtest.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

#include "os/elf.h"

namespace weft::detail {
namespace {

std::string Own() {
  char path[PATH_MAX];
  return ::realpath("/proc/self/exe", path) ? path : "";
}

TEST(ProgramListing, TheProgramAndWhatItHasLoaded) {
  const auto files = ListProgramFiles({Own(), "--flag", "/lib/not/a/library.so"}, {});
  ASSERT_GE(files.size(), 2u);
  EXPECT_EQ(files[0].path, Own());
  EXPECT_EQ(files[0].role, static_cast<uint8_t>(core::ProgramRole::kProgram));
  EXPECT_NE(files[0].interpreter, "");
  EXPECT_NE(files[0].machine, 0);
  struct stat info{};
  ASSERT_EQ(::stat(Own().c_str(), &info), 0);
  EXPECT_EQ(files[0].size, static_cast<uint64_t>(info.st_size));
  auto weft =
      std::find_if(files.begin(), files.end(), [](const auto& file) { return file.name.starts_with("libweft"); });
  ASSERT_NE(weft, files.end()) << "libweft.so is loaded";
  EXPECT_EQ(weft->role, static_cast<uint8_t>(core::ProgramRole::kLibrary));
  for (const auto& file : files) {
    EXPECT_TRUE(core::IsIdentity(file.identity)) << file.path << " " << file.identity;
    EXPECT_FALSE(IsSystemLibrary(file.path)) << file.path;
    EXPECT_NE(file.name, "libc.so.6");
  }
}

TEST(ProgramListing, LibrariesOfTasksAndWhatTheyNeed) {
  const auto loaded = ListProgramFiles({Own()}, {});
  auto weft =
      std::find_if(loaded.begin(), loaded.end(), [](const auto& file) { return file.name.starts_with("libweft"); });
  ASSERT_NE(weft, loaded.end());
  // As if this program, which needs libweft.so, were the library.
  const auto files = ListProgramFiles({weft->path, "worker", Own()}, {Own()});
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[1].role, static_cast<uint8_t>(core::ProgramRole::kTaskLibrary));
  EXPECT_EQ(files[1].path, Own());
}

TEST(ProgramListing, WithoutABuildIdTheContentCounts) {
  char path[] = "/tmp/weft-listing-XXXXXX";
  const int fd = ::mkstemp(path);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::write(fd, "abc", 3), 3);
  ::close(fd);
  const auto files = ListProgramFiles({path}, {});
  ::unlink(path);
  ASSERT_GE(files.size(), 1u);
  EXPECT_EQ(files[0].identity, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(files[0].machine, 0);
  EXPECT_TRUE(ListProgramFiles({"/nowhere/at/all"}, {}).empty());
}

TEST(ProgramListing, ALibraryWithoutWhatWorkersHave) {
  // As if this program, which needs libweft.so, were the library.
  const auto files = ListLibraryFiles(Own());
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].path, Own());
  EXPECT_EQ(files[0].role, static_cast<uint8_t>(core::ProgramRole::kTaskLibrary));
  EXPECT_TRUE(core::IsIdentity(files[0].identity));
  EXPECT_TRUE(ListLibraryFiles("/nowhere/at/all.so").empty());
}

TEST(ProgramListing, WhatIsTheSystems) {
  for (const char* yes : {"/lib/x86_64-linux-gnu/libm.so.6", "/usr/lib/libz.so", "/lib64/libc.so", "/usr/lib64/a.so"}) {
    EXPECT_TRUE(IsSystemLibrary(yes)) << yes;
  }
  for (const char* no : {"/usr/local/lib/libx.so", "/library/libx.so", "/opt/lib/libx.so", "/home/u/lib64/x.so"}) {
    EXPECT_FALSE(IsSystemLibrary(no)) << no;
  }
}

}  // namespace
}  // namespace weft::detail
