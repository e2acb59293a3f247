// What only a file does: fill the disk, rot, belong to somebody. The rest is in control_store_contract_test.cc.
#include "control_store/sqlite_store.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "control_store/store_test_support.h"

namespace weft::core {
namespace {

class SqliteStoreTest : public testing::Test {
 protected:
  std::string path() const { return folder_.path + "/store/control.db"; }
  std::unique_ptr<BlockingStore> Open(uint64_t max_bytes = 0) { return MakeSqliteStore({path(), max_bytes}); }
  static StoreStatus Put(BlockingStore& store, std::string key, std::string value) {
    WriteBatch batch;
    batch.Put(Table::kKv, std::move(key), std::move(value));
    const WriteBatch* group = &batch;
    return store.Apply({&group, 1});
  }
  static int Mode(const std::string& path) {
    struct stat info{};
    return ::stat(path.c_str(), &info) == 0 ? static_cast<int>(info.st_mode & 0777) : -1;
  }

  TemporaryFolder folder_;
};

#define ASSERT_STORED(expression)                                                         \
  do {                                                                                    \
    StoreStatus stored = (expression);                                                    \
    ASSERT_TRUE(stored.ok()) << StoreCodeName(stored.code()) << ": " << stored.message(); \
  } while (0)

TEST_F(SqliteStoreTest, NobodyElseCanReadIt) {
  const mode_t old = ::umask(0);
  auto store = Open();
  ASSERT_TRUE(store->Acquire({.name = "head"}).ok());
  ASSERT_STORED(Put(*store, "k", "v"));
  ::umask(old);
  EXPECT_EQ(0700, Mode(folder_.path + "/store"));
  for (const char* end : {"", ".lock", "-wal", "-shm"}) EXPECT_EQ(0600, Mode(path() + end)) << end;
}

TEST_F(SqliteStoreTest, AFolderThatOthersCanWriteToIsRefused) {
  ASSERT_EQ(0, ::mkdir((folder_.path + "/store").c_str(), 0700));
  ASSERT_EQ(0, ::chmod((folder_.path + "/store").c_str(), 0777));
  EXPECT_EQ(StoreCode::kRefused, Open()->Acquire({.name = "head"}).code());
  ASSERT_EQ(0, ::chmod((folder_.path + "/store").c_str(), 0700));
  std::filesystem::create_symlink("/tmp/somewhere_else", path());
  EXPECT_EQ(StoreCode::kRefused, Open()->Acquire({.name = "head"}).code()) << "a link in the place of the file";
}

TEST_F(SqliteStoreTest, AFullStoreIsAnErrorThatPasses) {
  auto store = Open(400'000);
  ASSERT_TRUE(store->Acquire({.name = "head"}).ok());
  ASSERT_STORED(Put(*store, "small", "1"));
  const std::string large(300'000, 'x');
  ASSERT_STORED(Put(*store, "large", large));
  StoreStatus full = Put(*store, "another", large);
  EXPECT_EQ(StoreCode::kNoSpace, full.code()) << full.message();
  ASSERT_STORED(Put(*store, "small", "2"));
  WriteBatch batch;
  batch.Delete(Table::kKv, "large");
  const WriteBatch* group = &batch;
  ASSERT_STORED(store->Apply({&group, 1}));
  ASSERT_STORED(Put(*store, "another", large));
  store.reset();
  auto taken = Open()->Acquire({.name = "head"});
  ASSERT_TRUE(taken.ok()) << taken.status().message();
  ASSERT_EQ(2u, taken->snapshot.size());
  EXPECT_EQ("another", taken->snapshot[0].key);
  EXPECT_EQ("2", taken->snapshot[1].value);
}

// In a child with mounts of its own, which is what a small disk needs.
TEST_F(SqliteStoreTest, AFullDiskIsAnErrorThatPasses) {
  const std::string disk = folder_.path + "/disk";
  ASSERT_EQ(0, ::mkdir(disk.c_str(), 0700));
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", disk.c_str(), "tmpfs", 0, "size=1m,mode=0700") != 0) {
      ::_exit(77);
    }
    auto store = MakeSqliteStore({disk + "/control.db"});
    if (!store->Acquire({.name = "head"}).ok()) ::_exit(1);
    if (!Put(*store, "k", "1").ok()) ::_exit(2);
    const std::string filler = disk + "/filler";
    std::ofstream(filler) << std::string(2 << 20, 'x');  // as much as fits
    StoreStatus full = Put(*store, "large", std::string(100'000, 'x'));
    if (full.code() != StoreCode::kNoSpace) {
      fprintf(stderr, "%s: %s\n", StoreCodeName(full.code()), full.message().c_str());
      ::_exit(3);
    }
    std::filesystem::remove(filler);
    if (!Put(*store, "large", std::string(100'000, 'x')).ok()) ::_exit(4);
    store.reset();
    auto taken = MakeSqliteStore({disk + "/control.db"})->Acquire({.name = "head"});
    ::_exit(taken.ok() && taken->snapshot.size() == 2 ? 0 : 5);
  }
  int status = 0;
  ASSERT_EQ(child, ::waitpid(child, &status, 0));
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "mounting needs root";
  EXPECT_EQ(0, WEXITSTATUS(status));
}

TEST_F(SqliteStoreTest, ADamagedFileIsSaidSo) {
  {
    auto store = Open();
    ASSERT_TRUE(store->Acquire({.name = "head"}).ok());
    for (int i = 0; i < 200; ++i) ASSERT_STORED(Put(*store, std::to_string(i), std::string(500, 'x')));
  }
  const std::string good = ReadFile(path());
  ASSERT_GT(good.size(), 50'000u);
  for (size_t from : {0u, 20u, 4'096u, 20'000u}) {
    std::string bad = good;
    for (size_t i = from; i < from + 9'000 && i < bad.size(); ++i) bad[i] = static_cast<char>(i * 37);
    std::ofstream(path(), std::ios::binary) << bad;
    auto result = Open()->Acquire({.name = "head"});
    EXPECT_EQ(StoreCode::kCorrupt, result.code()) << from << ": " << result.status().message();
    EXPECT_NE(result.status().message().find(path()), std::string::npos);
  }
  std::ofstream(path(), std::ios::binary) << good.substr(0, good.size() / 2);
  EXPECT_EQ(StoreCode::kCorrupt, Open()->Acquire({.name = "head"}).code()) << "cut off";
  std::ofstream(path(), std::ios::binary) << good;
  EXPECT_EQ(200u, Open()->Acquire({.name = "head"})->snapshot.size());
}

TEST_F(SqliteStoreTest, AnotherProgramsFileIsLeftAlone) {
  ASSERT_EQ(0, ::mkdir((folder_.path + "/store").c_str(), 0700));
  sqlite3* other = nullptr;
  ASSERT_EQ(SQLITE_OK, sqlite3_open(path().c_str(), &other));
  ASSERT_EQ(SQLITE_OK, sqlite3_exec(other, "CREATE TABLE bookmarks (url)", nullptr, nullptr, nullptr));
  sqlite3_close(other);
  auto result = Open()->Acquire({.name = "head"});
  EXPECT_EQ(StoreCode::kRefused, result.code()) << result.status().message();
}

TEST_F(SqliteStoreTest, ANewerFormatIsRefused) {
  ASSERT_TRUE(Open()->Acquire({.name = "head"}).ok());
  sqlite3* file = nullptr;
  ASSERT_EQ(SQLITE_OK, sqlite3_open(path().c_str(), &file));
  ASSERT_EQ(SQLITE_OK, sqlite3_exec(file, "PRAGMA user_version = 2", nullptr, nullptr, nullptr));
  sqlite3_close(file);
  EXPECT_EQ(StoreCode::kRefused, Open()->Acquire({.name = "head"}).code());
}

// Another process: it holds the file while it lives, whatever the names are, and not a moment longer.
TEST_F(SqliteStoreTest, ASecondProcessIsRefusedWhileTheFirstLives) {
  int ready[2];
  ASSERT_EQ(0, ::pipe(ready));
  const pid_t child = ::fork();
  if (child == 0) {
    auto store = Open();
    const bool ok = store->Acquire({.name = "head", .lease_ms = 1'000'000}).ok() && Put(*store, "k", "v").ok();
    [[maybe_unused]] auto ignored = ::write(ready[1], ok ? "y" : "n", 1);
    for (;;) ::pause();
  }
  char answer = 0;
  ASSERT_EQ(1, ::read(ready[0], &answer, 1));
  EXPECT_EQ('y', answer);
  auto refused = Open()->Acquire({.name = "head"});
  EXPECT_EQ(StoreCode::kHeld, refused.code()) << refused.status().message();
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  auto taken = Open()->Acquire({.name = "another name"});
  ASSERT_TRUE(taken.ok()) << taken.status().message();
  EXPECT_EQ(1u, taken->snapshot.size());
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace weft::core
