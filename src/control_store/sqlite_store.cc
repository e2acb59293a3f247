#include "control_store/sqlite_store.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "control_store/holder_id.h"
#include "os/fd.h"

namespace weft::core {
namespace {

constexpr int kApplicationId = 0x77656674;  // "weft", so that `file` and we know whose file it is
constexpr int kFormat = 1;
constexpr int kPageBytes = 4096;

// Runs on while the machine sleeps, is the same for all processes, and no clock setting moves it.
int64_t BootTimeNs() {
  timespec t;
  clock_gettime(CLOCK_BOOTTIME, &t);
  return t.tv_sec * 1'000'000'000ll + t.tv_nsec;
}

// Tells the clock of this boot from that of another.
std::string BootId() {
  UniqueFd fd(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  char text[64];
  ssize_t size = fd ? ::read(fd.get(), text, sizeof text) : 0;
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : std::string();
}

struct CloseDatabase {
  void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
};
struct EndStatement {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Statement = std::unique_ptr<sqlite3_stmt, EndStatement>;

void BindBlob(sqlite3_stmt* statement, int index, const std::string& bytes) {
  // An empty blob needs an address, else it is NULL.
  sqlite3_bind_blob64(statement, index, bytes.empty() ? "" : bytes.data(), bytes.size(), SQLITE_STATIC);
}
std::string ColumnBlob(sqlite3_stmt* statement, int index) {
  const void* data = sqlite3_column_blob(statement, index);
  int size = sqlite3_column_bytes(statement, index);
  return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), static_cast<size_t>(size));
}

class SqliteStore : public BlockingStore {
 public:
  explicit SqliteStore(SqliteStoreOptions options) : options_(std::move(options)), holder_(NewHolderId()) {}

  StoreResult<Leadership> Acquire(const Candidate& candidate) override {
    if (StoreStatus status = Open(); !status.ok()) return status;
    // The holder of the lock lives. Without the lock, we lead only if the holder hangs or we are told to.
    const bool locked = lock_held_ || ::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0;
    StoreResult<Leadership> result = AcquireOpen(candidate, locked);
    if (!result.ok() && locked) ::flock(lock_.get(), LOCK_UN);
    lock_held_ = result.ok() && locked;
    return result;
  }

  StoreStatus Apply(std::span<const WriteBatch* const> group) override {
    if (epoch_ == 0) return NotLeader();
    if (StoreStatus status = Open(); !status.ok()) return status;
    StoreStatus status = Transaction([&] { return ApplyAll(group); });
    if (status.code() == StoreCode::kAway) Shut();  // the next attempt opens it again
    return status;
  }

  void Abandon() override {}  // a transaction that did not end was rolled back

  StoreStatus Renew() override {
    if (epoch_ == 0) return NotLeader();
    if (StoreStatus status = Open(); !status.ok()) return status;
    StoreStatus status = Transaction([&] {
      StoreStatus fenced = CheckFence();
      return fenced.ok() ? WriteLeadership(lease_name_, BootTimeNs() + lease_ns_) : fenced;
    });
    if (status.code() == StoreCode::kAway) Shut();
    return status;
  }

  StoreStatus Resign() override {
    if (epoch_ == 0) return NotLeader();
    if (StoreStatus status = Open(); !status.ok()) return status;
    StoreStatus status = Transaction([&] {
      StoreStatus fenced = CheckFence();
      return fenced.ok() ? WriteLeadership(lease_name_, 0) : fenced;
    });
    if (status.ok()) {
      epoch_ = 0;
      ::flock(lock_.get(), LOCK_UN);
      lock_held_ = false;
    }
    return status;
  }

  void Interrupt() override {}  // a disk answers, sooner or later

 private:
  StoreStatus NotLeader() const { return {StoreCode::kFenced, "this head does not lead: it has not taken the store"}; }

  StoreStatus Failed(const std::string& what) {
    int code = database_ ? sqlite3_errcode(database_.get()) : SQLITE_CANTOPEN;
    std::string text = what + " " + options_.path + ": " + (database_ ? sqlite3_errmsg(database_.get()) : "not open");
    if (int system = database_ ? sqlite3_system_errno(database_.get()) : 0; system != 0 && code != SQLITE_OK) {
      text += std::string(" (") + strerror(system) + ")";
    }
    switch (code & 0xff) {
      case SQLITE_FULL:
        return {StoreCode::kNoSpace, text + "; make room on its disk"};
      case SQLITE_CORRUPT:
      case SQLITE_NOTADB:
        return {StoreCode::kCorrupt, text + "; move the file away to start again, or restore a copy"};
      case SQLITE_READONLY:
      case SQLITE_PERM:
        return {StoreCode::kReadOnly, text};
      case SQLITE_NOMEM:
        return {StoreCode::kNoSpace, text};
      case SQLITE_CANTOPEN:
        return {StoreCode::kRefused, text};
      default:  // busy, locked, input and output errors: may pass
        return {StoreCode::kAway, text};
    }
  }

  StoreStatus Run(const char* sql) {
    if (sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr) != SQLITE_OK) return Failed("cannot write");
    return {};
  }

  StoreResult<Statement> Prepare(const char* sql) {
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(database_.get(), sql, -1, &statement, nullptr) != SQLITE_OK) return Failed("cannot read");
    return Statement(statement);
  }

  StoreResult<int64_t> Number(const char* sql) {
    auto statement = Prepare(sql);
    if (!statement.ok()) return statement.status();
    int step = sqlite3_step(statement->get());
    if (step == SQLITE_DONE) return int64_t{0};
    if (step != SQLITE_ROW) return Failed("cannot read");
    return int64_t{sqlite3_column_int64(statement->get(), 0)};
  }

  template <class Body>
  StoreStatus Transaction(Body&& body) {
    StoreStatus status = Run("BEGIN IMMEDIATE");
    if (!status.ok()) return status;
    status = body();
    if (status.ok()) status = Run("COMMIT");
    if (!status.ok() && sqlite3_get_autocommit(database_.get()) == 0) {
      sqlite3_exec(database_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
    }
    return status;
  }

  StoreStatus OpenFile(const std::string& path, UniqueFd* out) {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    struct stat info{};
    if (!fd || ::fstat(fd.get(), &info) != 0) {
      StoreCode code = errno == ENOSPC || errno == EDQUOT ? StoreCode::kNoSpace : StoreCode::kRefused;
      return {code, "cannot open " + path + ": " + strerror(errno)};
    }
    if (!S_ISREG(info.st_mode) || info.st_uid != ::geteuid()) {
      return {StoreCode::kRefused, path + " is not a file of this user"};
    }
    if ((info.st_mode & 077) != 0) ::fchmod(fd.get(), 0600);
    *out = std::move(fd);
    return {};
  }

  StoreStatus Open() {
    if (database_) return {};
    if (!lock_) {
      std::filesystem::path folder = std::filesystem::path(options_.path).parent_path();
      std::error_code error;
      if (!folder.empty() && ::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
        return {StoreCode::kRefused, "cannot make the folder " + folder.string() + ": " + strerror(errno)};
      }
      struct stat info{};
      if (::stat(folder.empty() ? "." : folder.c_str(), &info) != 0 || info.st_uid != ::geteuid() ||
          (info.st_mode & 022) != 0) {
        return {StoreCode::kRefused, "the folder " + folder.string() +
                                         " belongs to, or can be written by, another user; the control state needs "
                                         "a folder of this user with mode 0700"};
      }
      if (StoreStatus status = OpenFile(options_.path + ".lock", &lock_); !status.ok()) return status;
    }
    UniqueFd made;  // so that SQLite finds it with our mode, which its log gets too
    if (StoreStatus status = OpenFile(options_.path, &made); !status.ok()) return status;
    made.Reset();
    sqlite3* database = nullptr;
    int opened = sqlite3_open_v2(options_.path.c_str(), &database,
                                 SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE, nullptr);
    database_.reset(database);
    StoreStatus status = opened == SQLITE_OK ? Prepare() : Failed("cannot open");
    if (!status.ok()) Shut();
    return status;
  }

  StoreStatus Prepare() {
    sqlite3_busy_timeout(database_.get(), 500);  // another head looks at the file for moments only
    sqlite3_extended_result_codes(database_.get(), 1);
    // A file that another user prepared must not run code in this process.
    sqlite3_db_config(database_.get(), SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
    sqlite3_db_config(database_.get(), SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
    auto application = Number("PRAGMA application_id");
    if (!application.ok()) return application.status();
    auto tables = Number("SELECT count(*) FROM sqlite_master");
    if (!tables.ok()) return tables.status();
    if (*application != kApplicationId && (*application != 0 || *tables != 0)) {
      return {StoreCode::kRefused, options_.path + " is a database of another program"};
    }
    auto format = Number("PRAGMA user_version");
    if (!format.ok()) return format.status();
    if (*format > kFormat) {
      return {StoreCode::kRefused, options_.path + " has format " + std::to_string(*format) +
                                       ", written by a newer weft; this one reads up to " + std::to_string(kFormat)};
    }
    if (StoreStatus status = Run("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL"); !status.ok()) return status;
    if (options_.max_bytes != 0) {
      auto pages = std::max<uint64_t>(options_.max_bytes / kPageBytes, 1);
      auto set = Number(("PRAGMA max_page_count = " + std::to_string(pages)).c_str());
      if (!set.ok()) return set.status();
    }
    if (*application == kApplicationId) return {};
    return Transaction([&] {
      return Run(
          "PRAGMA application_id = 2003134068; PRAGMA user_version = 1;"
          "CREATE TABLE IF NOT EXISTS records (tab INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,"
          " PRIMARY KEY (tab, key));"
          "CREATE TABLE IF NOT EXISTS leadership (one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL,"
          " holder BLOB NOT NULL, name BLOB NOT NULL, boot TEXT NOT NULL, lease_until_ns INTEGER NOT NULL);");
    });
  }

  void Shut() {
    put_.reset();
    erase_.reset();
    database_.reset();
  }

  StoreResult<Leadership> AcquireOpen(const Candidate& candidate, bool locked) {
    auto damage = Prepare("PRAGMA quick_check(1)");
    if (!damage.ok()) return damage.status();
    if (sqlite3_step(damage->get()) != SQLITE_ROW) return Failed("cannot read");
    if (std::string verdict = ColumnBlob(damage->get(), 0); verdict != "ok") {
      return StoreStatus(StoreCode::kCorrupt, options_.path + " is damaged: " + verdict +
                                                  "; move the file away to start again, or restore a copy");
    }
    damage->reset();

    Leadership leadership;
    lease_ns_ = candidate.lease_ms * 1'000'000;
    lease_name_ = candidate.name;
    StoreStatus status = Transaction([&]() -> StoreStatus {
      auto current = Prepare("SELECT epoch, holder, name, boot, lease_until_ns FROM leadership");
      if (!current.ok()) return current.status();
      uint64_t epoch = 0;
      int step = sqlite3_step(current->get());
      if (step == SQLITE_ROW) {
        epoch = static_cast<uint64_t>(sqlite3_column_int64(current->get(), 0));
        const int64_t left_ns = sqlite3_column_int64(current->get(), 4) - BootTimeNs();
        const bool leased = left_ns > 0 && ColumnBlob(current->get(), 3) == boot_;
        if (!locked && leased && !candidate.force && ColumnBlob(current->get(), 1) != holder_) {
          return {StoreCode::kHeld, "another head on this machine ('" + ColumnBlob(current->get(), 2) +
                                        "') leads with " + options_.path + " and renewed its lease; it has " +
                                        std::to_string(left_ns / 1'000'000) + " ms left"};
        }
      } else if (step != SQLITE_DONE) {
        return Failed("cannot read");
      }
      current->reset();
      epoch_ = epoch + 1;
      return WriteLeadership(candidate.name, BootTimeNs() + lease_ns_);
    });
    if (status.ok()) status = Load(&leadership.snapshot);
    if (!status.ok()) {
      epoch_ = 0;
      return status;
    }
    leadership.epoch = epoch_;
    return leadership;
  }

  StoreStatus WriteLeadership(const std::string& name, int64_t lease_until_ns) {
    auto write = Prepare("INSERT OR REPLACE INTO leadership VALUES (1, ?, ?, ?, ?, ?)");
    if (!write.ok()) return write.status();
    sqlite3_bind_int64(write->get(), 1, static_cast<int64_t>(epoch_));
    BindBlob(write->get(), 2, holder_);
    BindBlob(write->get(), 3, name);
    sqlite3_bind_text(write->get(), 4, boot_.c_str(), -1, SQLITE_STATIC);
    sqlite3_bind_int64(write->get(), 5, lease_until_ns);
    if (sqlite3_step(write->get()) != SQLITE_DONE) return Failed("cannot write");
    return {};
  }

  StoreStatus CheckFence() {
    auto current = Prepare("SELECT epoch, holder FROM leadership");
    if (!current.ok()) return current.status();
    if (sqlite3_step(current->get()) != SQLITE_ROW) return Failed("cannot read");
    auto epoch = static_cast<uint64_t>(sqlite3_column_int64(current->get(), 0));
    if (epoch == epoch_ && ColumnBlob(current->get(), 1) == holder_) return {};
    return {StoreCode::kFenced, "another head leads with " + options_.path + " since epoch " + std::to_string(epoch) +
                                    "; ours was " + std::to_string(epoch_)};
  }

  StoreStatus Load(Snapshot* snapshot) {
    auto rows = Prepare("SELECT tab, key, value FROM records ORDER BY tab, key");
    if (!rows.ok()) return rows.status();
    for (;;) {
      int step = sqlite3_step(rows->get());
      if (step == SQLITE_DONE) return {};
      if (step != SQLITE_ROW) return Failed("cannot read");
      const int64_t table = sqlite3_column_int64(rows->get(), 0);
      if (table < 0 || !IsTable(static_cast<uint64_t>(table))) continue;  // of a newer weft
      snapshot->push_back({static_cast<Table>(table), ColumnBlob(rows->get(), 1), ColumnBlob(rows->get(), 2)});
    }
  }

  StoreStatus ApplyAll(std::span<const WriteBatch* const> group) {
    if (StoreStatus status = CheckFence(); !status.ok()) return status;
    if (!put_) {
      auto put = Prepare("INSERT OR REPLACE INTO records VALUES (?, ?, ?)");
      if (!put.ok()) return put.status();
      auto erase = Prepare("DELETE FROM records WHERE tab = ? AND key = ?");
      if (!erase.ok()) return erase.status();
      put_ = std::move(*put);
      erase_ = std::move(*erase);
    }
    for (const WriteBatch* batch : group) {
      for (const Write& write : batch->writes) {
        sqlite3_stmt* statement = write.erase ? erase_.get() : put_.get();
        sqlite3_bind_int64(statement, 1, static_cast<int64_t>(write.table));
        BindBlob(statement, 2, write.key);
        if (!write.erase) BindBlob(statement, 3, write.value);
        int step = sqlite3_step(statement);
        StoreStatus status = step == SQLITE_DONE ? StoreStatus() : Failed("cannot write");
        sqlite3_reset(statement);
        if (!status.ok()) return status;
      }
    }
    return {};
  }

  const SqliteStoreOptions options_;
  const std::string holder_;
  const std::string boot_ = BootId();
  UniqueFd lock_;
  bool lock_held_ = false;
  std::unique_ptr<sqlite3, CloseDatabase> database_;
  Statement put_, erase_;
  uint64_t epoch_ = 0;  // 0: not the leader
  int64_t lease_ns_ = 0;
  std::string lease_name_;
};

}  // namespace

std::unique_ptr<BlockingStore> MakeSqliteStore(SqliteStoreOptions options) {
  return std::make_unique<SqliteStore>(std::move(options));
}

}  // namespace weft::core
