#include "wire/library_body.h"

#include <gtest/gtest.h>

namespace weft::core {
namespace {

LibraryBody Body(size_t files) {
  LibraryBody body{"12ab", "/opt/odd\nname/libtasks.so", {}};
  for (size_t i = 0; i < files; ++i) {
    ProgramFile file;
    file.path = "/opt/lib" + std::to_string(i) + ".so";
    file.size = i;
    body.files.push_back(file);
  }
  return body;
}

TEST(LibraryBody, ComesBack) {
  for (size_t count : {0, 1, 7}) {
    LibraryBody read;
    ASSERT_TRUE(DecodeLibraryBody(EncodeLibraryBody(Body(count)), &read));
    EXPECT_EQ(read.build, "12ab");
    EXPECT_EQ(read.path, "/opt/odd\nname/libtasks.so");
    ASSERT_EQ(read.files.size(), count);
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(read.files[i].size, i);
  }
}

TEST(LibraryBody, TooManyFilesAreLeftOut) {
  LibraryBody many = Body(kMaxLibraryFiles + 1), long_names = Body(20);
  for (ProgramFile& file : long_names.files) file.path.append(10'000, 'x');
  for (const LibraryBody& body : {many, long_names}) {
    const std::string bytes = EncodeLibraryBody(body);
    LibraryBody read;
    ASSERT_TRUE(DecodeLibraryBody(bytes, &read));
    EXPECT_TRUE(read.files.empty());
    EXPECT_LT(bytes.size(), 200u);
  }
}

TEST(LibraryBody, NonsenseIsNone) {
  const std::string whole = EncodeLibraryBody(Body(3));
  LibraryBody read;
  EXPECT_FALSE(DecodeLibraryBody("", &read));
  EXPECT_FALSE(DecodeLibraryBody("a function of Python", &read));
  EXPECT_FALSE(DecodeLibraryBody(kLibraryMark, &read));
  for (size_t size = whole.find('\0') + 1; size < whole.size(); ++size) {
    EXPECT_FALSE(DecodeLibraryBody(whole.substr(0, size), &read)) << size;
  }
  EXPECT_FALSE(DecodeLibraryBody(whole + "x", &read));
}

}  // namespace
}  // namespace weft::core
