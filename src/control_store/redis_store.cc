#include "control_store/redis_store.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "control_store/holder_id.h"
#include "control_store/redis_connection.h"
#include "os/fd.h"

namespace weft::core {
namespace {

constexpr const char* kFormat = "1";
constexpr size_t kChunkBytes = size_t{1} << 20;  // of a repair: what a server does in one go
constexpr int kScanCount = 200;                  // records per reply while loading

// ---- scripts ----------------------------------------------------------------------------------------------------
// Each is atomic. KEYS[1] is always the fence: a hash with epoch, holder, name, applied (the mark of the last write
// here), journalled (that of the last journal), layout and format. ARGV[1], ARGV[2]: the caller's epoch and holder.
// They answer {'done'}, {'fenced', epoch}, {'lost'} (this server does not know what it was told before) or as said.

// What all writes begin with.
#define WEFT_CHECK_FENCE                                                                 \
  "local f = redis.call('HMGET', KEYS[1], 'epoch', 'holder', 'applied', 'journalled')\n" \
  "if f[1] ~= ARGV[1] or f[2] ~= ARGV[2] then\n"                                         \
  "  if not f[1] or tonumber(f[1]) < tonumber(ARGV[1]) then return {'lost'} end\n"       \
  "  return {'fenced', f[1]}\n"                                                          \
  "end\n"

enum Script : size_t {
  kAcquire,
  kFence,
  kApply,
  kJournal,
  kClearJournal,
  kRenew,
  kResign,
  kBegin,
  kChunk,
  kFinish,
  kProbe,
};
constexpr const char* kScripts[] = {
    // kAcquire. KEYS: fence, lease, leftovers. ARGV: least epoch, holder, name, lease ms, force, layout, format.
    // {'done', epoch} or {'held', ms left, name}
    "local h = redis.call('GET', KEYS[2])\n"
    "local name = redis.call('HGET', KEYS[1], 'name') or ''\n"
    "if h and h ~= ARGV[2] and name ~= ARGV[3] and ARGV[5] ~= '1' then\n"
    "  return {'held', tostring(redis.call('PTTL', KEYS[2])), name}\n"
    "end\n"
    "local epoch = tonumber(redis.call('HGET', KEYS[1], 'epoch') or '0') + 1\n"
    "if epoch < tonumber(ARGV[1]) then epoch = tonumber(ARGV[1]) end\n"
    "epoch = string.format('%.0f', epoch)\n"
    "redis.call('HSET', KEYS[1], 'epoch', epoch, 'holder', ARGV[2], 'name', ARGV[3], 'layout', ARGV[6],\n"
    "           'format', ARGV[7])\n"
    "redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[4])\n"
    "for i = 3, #KEYS do redis.call('UNLINK', KEYS[i]) end\n"
    "return {'done', epoch}\n",

    // kFence, on the other servers. KEYS: fence, leftovers. ARGV: epoch, holder, name, layout, format.
    "local f = redis.call('HMGET', KEYS[1], 'epoch', 'holder')\n"
    "if f[1] and (tonumber(f[1]) > tonumber(ARGV[1]) or (f[1] == ARGV[1] and f[2] ~= ARGV[2])) then\n"
    "  return {'fenced', f[1]}\n"
    "end\n"
    "redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'holder', ARGV[2], 'name', ARGV[3], 'layout', ARGV[4],\n"
    "           'format', ARGV[5])\n"
    "for i = 2, #KEYS do redis.call('UNLINK', KEYS[i]) end\n"
    "return {'done'}\n",

    // kApply. KEYS: fence, lease, tables. ARGV: epoch, holder, expected mark, new mark, lease ms ('0': no lease here),
    // then for each write: index of the table, '1' to erase, key, value.
    WEFT_CHECK_FENCE
    "if f[3] == ARGV[4] then return {'done'} end\n"
    "if (f[3] or '') ~= ARGV[3] then return {'lost'} end\n"
    "for i = 6, #ARGV, 4 do\n"
    "  local k = KEYS[2 + tonumber(ARGV[i])]\n"
    "  if ARGV[i + 1] == '1' then redis.call('HDEL', k, ARGV[i + 2])\n"
    "  else redis.call('HSET', k, ARGV[i + 2], ARGV[i + 3]) end\n"
    "end\n"
    "redis.call('HSET', KEYS[1], 'applied', ARGV[4])\n"
    "if ARGV[5] ~= '0' then redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[5]) end\n"
    "return {'done'}\n",

    // kJournal. KEYS: fence, journal. ARGV: epoch, holder, expected mark, new mark, journal.
    WEFT_CHECK_FENCE
    "if f[4] == ARGV[4] then return {'done'} end\n"
    "if (f[4] or '') ~= ARGV[3] then return {'lost'} end\n"
    "redis.call('SET', KEYS[2], ARGV[5])\n"
    "redis.call('HSET', KEYS[1], 'journalled', ARGV[4])\n"
    "return {'done'}\n",

    // kClearJournal. KEYS: fence, journal. ARGV: epoch, holder, new mark.
    WEFT_CHECK_FENCE
    "redis.call('DEL', KEYS[2])\n"
    "redis.call('HSET', KEYS[1], 'journalled', ARGV[3])\n"
    "return {'done'}\n",

    // kRenew. KEYS: fence, lease. ARGV: epoch, holder, lease ms ('0': no lease here), the mark that it should have.
    // A server that was restarted without its last writes is noticed here, too: the head may have nothing more to
    // write, and must not die before the loss is mended.
    WEFT_CHECK_FENCE
    "if (f[3] or '') ~= ARGV[4] then return {'lost'} end\n"
    "if ARGV[3] ~= '0' then redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3]) end\n"
    "return {'done'}\n",

    // kResign. KEYS: fence, lease. ARGV: epoch, holder.
    WEFT_CHECK_FENCE
    "redis.call('DEL', KEYS[2])\n"
    "redis.call('HSET', KEYS[1], 'holder', '')\n"
    "return {'done'}\n",

    // kBegin: of a repair. KEYS: fence, lease, repairing, new tables. ARGV: epoch, holder, name, lease ms, layout,
    // format, the repair's own name. A lease of an earlier life of this head (the name is its) does not block: a
    // server that forgot the last second may have it again.
    "local f = redis.call('HMGET', KEYS[1], 'epoch', 'holder', 'name')\n"
    "if f[1] and (tonumber(f[1]) > tonumber(ARGV[1]) or (f[1] == ARGV[1] and f[2] ~= ARGV[2])) then\n"
    "  return {'fenced', f[1]}\n"
    "end\n"
    "if ARGV[4] ~= '0' then\n"
    "  local h = redis.call('GET', KEYS[2])\n"
    "  if h and h ~= ARGV[2] and f[3] ~= ARGV[3] then return {'fenced', f[1] or '0'} end\n"
    "end\n"
    "for i = 3, #KEYS do redis.call('UNLINK', KEYS[i]) end\n"
    "if ARGV[4] ~= '0' then redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[4]) end\n"
    "redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'holder', ARGV[2], 'name', ARGV[3], 'layout', ARGV[5],\n"
    "           'format', ARGV[6])\n"
    "redis.call('SET', KEYS[3], ARGV[7])\n"
    "return {'done'}\n",

    // kChunk. KEYS: fence, repairing, new tables. ARGV: epoch, holder, the repair's name, then index, key, value.
    WEFT_CHECK_FENCE
    "if redis.call('GET', KEYS[2]) ~= ARGV[3] then return {'lost'} end\n"
    "for i = 4, #ARGV, 3 do redis.call('HSET', KEYS[2 + tonumber(ARGV[i])], ARGV[i + 1], ARGV[i + 2]) end\n"
    "return {'done'}\n",

    // kFinish. KEYS: fence, repairing, journal, then each table with its new one. ARGV: epoch, holder, the repair's
    // name, new mark, '1' if the journal is here.
    WEFT_CHECK_FENCE
    "if redis.call('GET', KEYS[2]) ~= ARGV[3] then return {'lost'} end\n"
    "redis.call('DEL', KEYS[2])\n"
    "for i = 4, #KEYS, 2 do\n"
    "  redis.call('UNLINK', KEYS[i])\n"
    "  if redis.call('EXISTS', KEYS[i + 1]) == 1 then redis.call('RENAME', KEYS[i + 1], KEYS[i]) end\n"
    "end\n"
    "redis.call('HSET', KEYS[1], 'applied', ARGV[4])\n"
    "if ARGV[5] == '1' then\n"
    "  redis.call('DEL', KEYS[3])\n"
    "  redis.call('HSET', KEYS[1], 'journalled', ARGV[4])\n"
    "end\n"
    "return {'done'}\n",

    // kProbe: what this user may not do. KEYS: an unused key. {command, ...}
    // A command that fails for another reason is allowed.
    "local k, missing = KEYS[1], {}\n"
    "for _, try in ipairs({{'SET', k, ''}, {'GET', k}, {'EXISTS', k}, {'PTTL', k}, {'RENAME', k, k}, {'DEL', k},\n"
    "    {'HSET', k, 'f', ''}, {'HGET', k, 'f'}, {'HMGET', k, 'f'}, {'HSCAN', k, '0'}, {'HDEL', k, 'f'},\n"
    "    {'UNLINK', k}}) do\n"
    "  local reply = redis.pcall(unpack(try))\n"
    "  if type(reply) == 'table' and reply.err and (reply.err:find('NOPERM') or reply.err:find(\"can't run this\")) "
    "then\n"
    "    missing[#missing + 1] = try[1]:lower()\n"
    "  end\n"
    "end\n"
    "return missing\n",
};

// ---- marks ------------------------------------------------------------------------------------------------------
// Name a write: the leader's epoch and the number of its write. They grow.
struct Mark {
  uint64_t epoch = 0, number = 0;
  auto operator<=>(const Mark&) const = default;
  std::string Text() const { return std::to_string(epoch) + "." + std::to_string(number); }
};
// Nothing was written yet, or nonsense, which is older than everything too.
Mark ParseMark(std::string_view text) {
  Mark mark;
  const size_t dot = text.find('.');
  if (dot == text.npos) return {};
  auto first = std::from_chars(text.data(), text.data() + dot, mark.epoch);
  auto second = std::from_chars(text.data() + dot + 1, text.data() + text.size(), mark.number);
  return first.ec == std::errc() && second.ec == std::errc() ? mark : Mark{};
}

// Of INFO's lines "field:value".
std::string_view InfoField(std::string_view info, std::string_view field) {
  for (size_t at = info.find(field); at != info.npos; at = info.find(field, at + 1)) {
    const size_t colon = at + field.size();
    if ((at != 0 && info[at - 1] != '\n') || colon >= info.size() || info[colon] != ':') continue;
    return info.substr(colon + 1, info.find_first_of("\r\n", colon) - colon - 1);
  }
  return {};
}

uint64_t Hash(Table table, std::string_view key) {  // FNV-1a: stored places depend on it
  uint64_t hash = 0xcbf29ce484222325ull ^ static_cast<uint8_t>(table);
  hash *= 0x100000001b3ull;
  for (char c : key) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  return hash ^ hash >> 32;
}

struct OneWrite {
  Table table;
  bool erase;
  std::string_view key, value;
};
using Part = std::vector<OneWrite>;  // of a group, for one server

class RedisStore : public BlockingStore {
 public:
  explicit RedisStore(RedisStoreOptions options)
      : options_(std::move(options)),
        prefix_("weft:{" + options_.cluster + "}:"),
        stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    for (size_t i = 0; i < options_.servers.size(); ++i) {
      shards_.push_back({.layout = std::to_string(i) + "/" + std::to_string(options_.servers.size())});
    }
    for (uint8_t i = 1; i <= kTables; ++i) {
      tables_.push_back(prefix_ + "table:" + TableName(static_cast<Table>(i)));
      new_tables_.push_back(prefix_ + "repair:" + TableName(static_cast<Table>(i)));
    }
  }

  StoreResult<Leadership> Acquire(const Candidate& candidate) override {
    Leadership leadership;
    epoch_ = 0;
    pending_.reset();
    StoreStatus status = TakeOver(candidate, leadership);
    if (!status.ok()) {
      epoch_ = 0;
      // After an outage the leader comes first, however long ago this candidate saw the lease free.
      if (status.code() != StoreCode::kHeld) free_since_ns_ = -1;
      DropBroken();
      return status;
    }
    leadership.epoch = epoch_;
    for (const auto& [key, value] : copy_) leadership.snapshot.push_back({key.first, key.second, value});
    return leadership;
  }

  StoreStatus Apply(std::span<const WriteBatch* const> group) override {
    if (epoch_ == 0) return NotLeader();
    if (!pending_) MakePending(group);
    StoreStatus status = ApplyPending();
    if (status.code() == StoreCode::kAway) {
      DropBroken();
      return status;
    }
    if (status.ok()) {
      for (const Part& part : pending_->parts) {
        for (const OneWrite& write : part) {
          std::pair key(write.table, std::string(write.key));
          if (write.erase) {
            copy_.erase(key);
          } else {
            copy_[std::move(key)] = write.value;
          }
        }
      }
      pending_.reset();
    } else if (status.code() == StoreCode::kFenced) {
      pending_.reset();
    } else {
      Abandon();
      // At once, if it can be; else before the next write.
      if (MendDoubtful().code() == StoreCode::kAway) DropBroken();
    }
    return status;
  }

  void Abandon() override {
    if (!pending_) return;
    for (size_t i = 0; i < shards_.size(); ++i) {
      if (!pending_->parts[i].empty() && pending_->tried[i]) shards_[i].doubtful = true;
    }
    if (pending_->journal_tried) journal_doubtful_ = true;
    pending_.reset();
  }

  StoreStatus Renew() override {
    if (epoch_ == 0) return NotLeader();
    StoreStatus status = MendDoubtful();
    for (size_t i = 0; i < shards_.size() && status.ok(); ++i) {
      status = RenewAt(i);
      if (status.code() != StoreCode::kHeld) continue;
      status = Repair(i);
      if (status.ok()) status = RenewAt(i);
      if (status.code() == StoreCode::kHeld) status = LostAgain(i);
    }
    if (status.code() == StoreCode::kAway) DropBroken();
    return status;
  }

  StoreStatus Resign() override {
    if (epoch_ == 0) return NotLeader();
    StoreStatus status = MendDoubtful();
    if (status.ok()) status = RunMended(0, kResign, {Key("fence"), Key("lease")}, {EpochText(), holder_});
    if (status.code() == StoreCode::kAway) DropBroken();
    if (status.ok()) epoch_ = 0;
    return status;
  }

  void Interrupt() override {
    uint64_t one = 1;
    [[maybe_unused]] auto ignored = ::write(stop_.get(), &one, sizeof one);
  }

 private:
  struct Shard {
    std::unique_ptr<RedisConnection> connection;
    std::string layout;     // "which/of how many"
    std::string applied;    // the mark that the server should have
    bool doubtful = false;  // an abandoned write may be there: rewrite the tables before the next one
    std::string info;       // what it says about itself
    bool probed = false;    // its user may do what we do
  };
  struct Pending {  // a group whose outcome is not known yet. Points into the caller's batches
    uint64_t number = 0;
    std::vector<Part> parts;  // for each server
    std::vector<bool> tried, done;
    bool journal_needed = false, journal_tried = false, journal_done = false;
  };

  StoreStatus NotLeader() const { return {StoreCode::kFenced, "this head does not lead: it has not taken the store"}; }
  StoreStatus Fenced(std::string_view epoch) const {
    return {StoreCode::kFenced, "another head leads in " + options_.servers[0].Describe() + " since epoch " +
                                    std::string(epoch) + "; ours was " + EpochText()};
  }
  std::string Key(const char* what) const { return prefix_ + what; }
  std::string EpochText() const { return std::to_string(epoch_); }
  const std::string& LeaseText(size_t shard) const { return shard == 0 ? lease_text_ : zero_; }

  // ---- connections ----------------------------------------------------------------------------------------------

  void DropBroken() {  // after an unknown outcome replies might still come: nothing may take them for its own
    for (Shard& shard : shards_) shard.connection.reset();
  }

  StoreStatus Connect(size_t index) {
    Shard& shard = shards_[index];
    if (shard.connection) return {};
    const RedisAddress& address = options_.servers[index];
    auto made = RedisConnection::Connect(address, options_.connect_timeout_ms, stop_.get());
    if (!made.ok()) return made.status();
    std::unique_ptr<RedisConnection> connection = std::move(*made);
    auto ask = [&](std::initializer_list<std::string_view> words) {
      return connection->Ask(words, options_.silence_timeout_ms, stop_.get());
    };
    if (!address.IsLocal() && !options_.allow_open) {
      auto open = ask({"PING"});
      if (open.ok()) {
        return {StoreCode::kRefused,
                address.Describe() +
                    " accepts connections without a password, and is not on this machine; give it one "
                    "(requirepass or an ACL user), or say that this is intended (--allow-open-redis)"};
      }
      if (open.code() == StoreCode::kAway) return open.status();
    }
    if (!address.password.empty() || !address.user.empty()) {
      auto welcome =
          address.user.empty() ? ask({"AUTH", address.password}) : ask({"AUTH", address.user, address.password});
      if (!welcome.ok()) return welcome.status();
    }
    if (address.database != 0) {
      auto selected = ask({"SELECT", std::to_string(address.database)});
      if (!selected.ok()) return selected.status();
    }
    auto info = ask({"INFO"});
    if (!info.ok()) return info.status();
    shard.info = info->Text();
    const std::string_view version = InfoField(shard.info, "redis_version");
    int major = 0;
    std::from_chars(version.data(), version.data() + version.size(), major);
    if (major < 6) {
      return {StoreCode::kRefused,
              address.Describe() + " is Redis " + std::string(version) + "; weft needs 6 or newer"};
    }
    if (InfoField(shard.info, "role") == "slave") {
      return {StoreCode::kReadOnly, address.Describe() + " is a replica; give the address of the primary"};
    }
    if (InfoField(shard.info, "cluster_enabled") == "1") {
      return {StoreCode::kRefused,
              address.Describe() + " belongs to a Redis Cluster, which is not supported; give single servers"};
    }
    if (const auto policy = InfoField(shard.info, "maxmemory_policy");
        policy.starts_with("allkeys") && InfoField(shard.info, "maxmemory") != "0") {
      return {StoreCode::kRefused, address.Describe() + " throws keys away when its memory is full (maxmemory-policy " +
                                       std::string(policy) + "); set it to noeviction"};
    }
    for (const char* script : kScripts) connection->Send({"SCRIPT", "LOAD", script});
    RedisConnection* raw = connection.get();
    if (StoreStatus status = RedisConnection::Await({&raw, 1}, options_.silence_timeout_ms, stop_.get());
        !status.ok()) {
      return status;
    }
    for ([[maybe_unused]] const char* script : kScripts) {
      RedisReply reply = connection->Next();
      if (StoreStatus status = connection->Judge(reply); !status.ok()) return status;
      connection->scripts.emplace_back(reply.Text());
    }
    shard.connection = std::move(connection);
    return shard.probed ? StoreStatus() : Probe(index);
  }

  // Reports all missing rights now and at once, not with the one write that needs them months later.
  StoreStatus Probe(size_t index) {
    auto missing = Ask(index, {"EVALSHA", shards_[index].connection->scripts[kProbe], "1", Key("probe")});
    if (!missing.ok()) return missing.status();
    if (missing->items.empty()) {
      shards_[index].probed = true;
      return {};
    }
    const RedisAddress& address = options_.servers[index];
    std::string names, rights;
    for (const RedisReply& name : missing->items) {
      names += (names.empty() ? "" : ", ") + std::string(name.Text());
      rights += " +" + std::string(name.Text());
    }
    const std::string user = address.user.empty() ? "default" : address.user;
    return {StoreCode::kRefused, address.Describe() + " does not allow the user '" + user + "' the commands " + names +
                                     "; its administrator says: ACL SETUSER " + user + rights};
  }

  void Send(size_t shard, Script script, const std::vector<std::string>& keys,
            const std::vector<std::string_view>& arguments) {
    std::vector<std::string_view> words{"EVALSHA", shards_[shard].connection->scripts[script]};
    const std::string count = std::to_string(keys.size());
    words.push_back(count);
    words.insert(words.end(), keys.begin(), keys.end());
    words.insert(words.end(), arguments.begin(), arguments.end());
    shards_[shard].connection->Send(words);
  }

  // What a script answered. kHeld stands for 'lost' here, which no caller further up sees.
  StoreStatus Verdict(size_t shard, const RedisReply& reply) const {
    if (StoreStatus status = shards_[shard].connection->Judge(reply); !status.ok()) return status;
    const std::string_view word = reply.At(0).Text();
    if (word == "done") return {};
    if (word == "fenced") return Fenced(reply.At(1).Text());
    if (word == "lost") return {StoreCode::kHeld, "lost"};
    return {StoreCode::kCorrupt, options_.servers[shard].Describe() + " gave an answer that its script cannot give"};
  }

  StoreStatus RunOnce(size_t shard, Script script, const std::vector<std::string>& keys,
                      const std::vector<std::string_view>& arguments) {
    if (StoreStatus status = Connect(shard); !status.ok()) return status;
    Send(shard, script, keys, arguments);
    RedisConnection* connection = shards_[shard].connection.get();
    if (StoreStatus status = RedisConnection::Await({&connection, 1}, options_.silence_timeout_ms, stop_.get());
        !status.ok()) {
      return status;
    }
    RedisReply reply = connection->Next();
    return Verdict(shard, reply);
  }

  // Once more after a repair, if the server turns out to have lost something.
  StoreStatus RunMended(size_t shard, Script script, const std::vector<std::string>& keys,
                        const std::vector<std::string_view>& arguments) {
    StoreStatus status = RunOnce(shard, script, keys, arguments);
    if (status.code() != StoreCode::kHeld) return status;
    if (status = Repair(shard); !status.ok()) return status;
    status = RunOnce(shard, script, keys, arguments);
    return status.code() == StoreCode::kHeld ? LostAgain(shard) : status;
  }
  StoreStatus RenewAt(size_t shard) {
    return RunOnce(shard, kRenew, {Key("fence"), Key("lease")},
                   {EpochText(), holder_, LeaseText(shard), shards_[shard].applied});
  }
  StoreStatus LostAgain(size_t shard) const {
    return {StoreCode::kAway, options_.servers[shard].Describe() + " forgets what it was told"};
  }

  // ---- writing --------------------------------------------------------------------------------------------------

  void MakePending(std::span<const WriteBatch* const> group) {
    // Only the last write of a key in the group matters, as the group is applied at once.
    std::map<std::pair<Table, std::string_view>, const Write*> last;
    for (const WriteBatch* batch : group) {
      for (const Write& write : batch->writes) last[{write.table, write.key}] = &write;
    }
    Pending pending;
    pending.parts.resize(shards_.size());
    for (const auto& [key, write] : last) {
      pending.parts[ShardOf(write->table, write->key)].push_back(
          {write->table, write->erase, write->key, write->value});
    }
    Renumber(pending);
    pending_ = std::move(pending);
  }
  size_t ShardOf(Table table, std::string_view key) const { return Hash(table, key) % shards_.size(); }
  void Renumber(Pending& pending) {
    pending.number = ++number_;
    pending.tried.assign(shards_.size(), false);
    pending.done.assign(shards_.size(), false);
    pending.journal_tried = pending.journal_done = false;
    pending.journal_needed =
        std::count_if(pending.parts.begin(), pending.parts.end(), [](const Part& part) { return !part.empty(); }) > 1;
  }

  StoreStatus ApplyPending() {
    if (StoreStatus status = MendDoubtful(); !status.ok()) return status;
    // Each repair gives the group a new number and begins again. Servers that forget all the time are away.
    for (size_t attempt = 0; attempt <= 2 * shards_.size(); ++attempt) {
      size_t lost = shards_.size();
      StoreStatus status = TryPending(lost);
      if (lost == shards_.size()) return status;
      if (status = Repair(lost); !status.ok()) return status;
    }
    return LostAgain(0);
  }

  StoreStatus TryPending(size_t& lost) {
    Pending& pending = *pending_;
    const std::string mark = Mark{epoch_, pending.number}.Text();
    const std::string epoch = EpochText();
    if (pending.journal_needed && !pending.journal_done) {
      const std::string journal = EncodeJournal(mark, pending.parts);
      pending.journal_tried = true;
      StoreStatus status =
          RunOnce(0, kJournal, {Key("fence"), Key("journal")}, {epoch, holder_, journalled_, mark, journal});
      if (status.code() == StoreCode::kHeld) lost = 0;
      if (!status.ok()) return status;
      pending.journal_done = true;
      journalled_ = mark;
    }
    std::vector<size_t> asked;
    std::vector<RedisConnection*> connections;
    for (size_t i = 0; i < shards_.size(); ++i) {
      if (pending.parts[i].empty() || pending.done[i]) continue;
      if (StoreStatus status = Connect(i); !status.ok()) return status;
      asked.push_back(i);
      connections.push_back(shards_[i].connection.get());
    }
    for (size_t i : asked) {
      pending.tried[i] = true;
      SendPart(i, pending.parts[i], shards_[i].applied, mark);
    }
    if (StoreStatus status = RedisConnection::Await(connections, options_.silence_timeout_ms, stop_.get());
        !status.ok()) {
      return status;
    }
    StoreStatus worst;
    for (size_t i : asked) {
      RedisReply reply = shards_[i].connection->Next();
      StoreStatus status = Verdict(i, reply);
      if (status.ok()) {
        pending.done[i] = true;
        shards_[i].applied = mark;
        continue;
      }
      if (status.code() != StoreCode::kAway) pending.tried[i] = false;  // a script that refuses has changed nothing
      if (status.code() == StoreCode::kHeld) lost = i;
      // Being fenced is final; a refusal comes before what can be mended.
      if (worst.ok() || status.code() == StoreCode::kFenced || worst.code() == StoreCode::kHeld) worst = status;
    }
    if (worst.code() != StoreCode::kHeld) lost = shards_.size();
    return worst;
  }

  void SendPart(size_t shard, const Part& part, std::string_view expected, const std::string& mark) {
    std::vector<std::string> keys{Key("fence"), Key("lease")};
    keys.insert(keys.end(), tables_.begin(), tables_.end());
    const std::string epoch = EpochText();
    std::vector<std::string_view> arguments{epoch, holder_, expected, mark, LeaseText(shard)};
    for (const OneWrite& write : part) {
      arguments.push_back(TableIndex(write.table));
      arguments.push_back(write.erase ? "1" : "0");
      arguments.push_back(write.key);
      arguments.push_back(write.value);
    }
    Send(shard, kApply, keys, arguments);
  }
  static std::string_view TableIndex(Table table) {
    static_assert(kTables < 10);
    return std::string_view("0123456789").substr(static_cast<uint8_t>(table), 1);
  }

  static std::string EncodeJournal(std::string_view mark, const std::vector<Part>& parts) {
    ByteWriter out;
    out.Fixed(uint8_t{1});
    out.Bytes(mark);
    out.Fixed(static_cast<uint32_t>(parts.size()));
    for (const Part& part : parts) {
      out.Fixed(static_cast<uint32_t>(part.size()));
      for (const OneWrite& write : part) {
        out.Fixed(static_cast<uint8_t>(write.table));
        out.Fixed(static_cast<uint8_t>(write.erase));
        out.Bytes(write.key);
        out.Bytes(write.value);
      }
    }
    return out.Take();
  }
  static bool DecodeJournal(std::string_view bytes, std::string& mark, std::vector<Part>& parts) {
    ByteReader in(bytes);
    if (in.Fixed<uint8_t>() != 1) return false;
    mark = in.Bytes();
    const auto count = in.Fixed<uint32_t>();
    if (count > in.remaining() / 4) return false;
    for (uint32_t i = 0; i < count && in.ok(); ++i) {
      Part& part = parts.emplace_back();
      const auto writes = in.Fixed<uint32_t>();
      if (writes > in.remaining() / 10) return false;
      for (uint32_t k = 0; k < writes && in.ok(); ++k) {
        const auto table = in.Fixed<uint8_t>();
        const auto erase = in.Fixed<uint8_t>();
        const std::string_view key = in.Bytes();
        const std::string_view value = in.Bytes();
        if (!IsTable(table) || erase > 1) return false;
        part.push_back({static_cast<Table>(table), erase == 1, key, value});
      }
    }
    return in.ok() && in.AtEnd();
  }

  // ---- repair ---------------------------------------------------------------------------------------------------

  StoreStatus MendDoubtful() {
    if (journal_doubtful_) {
      const std::string mark = Mark{epoch_, ++number_}.Text();
      StoreStatus status = RunMended(0, kClearJournal, {Key("fence"), Key("journal")}, {EpochText(), holder_, mark});
      if (!status.ok()) return status;
      journalled_ = mark;
      journal_doubtful_ = false;
    }
    for (size_t i = 0; i < shards_.size(); ++i) {
      if (!shards_[i].doubtful) continue;
      if (StoreStatus status = Repair(i); !status.ok()) return status;
    }
    return {};
  }

  // Writes the tables of one server again, from our copy, beside the old ones; then they change places.
  StoreStatus Repair(size_t shard) {
    const std::string repair = NewHolderId();
    const std::string epoch = EpochText();
    auto run = [&](Script script, const std::vector<std::string>& keys,
                   const std::vector<std::string_view>& arguments) {
      StoreStatus status = RunOnce(shard, script, keys, arguments);
      return status.code() == StoreCode::kHeld ? LostAgain(shard) : status;
    };
    std::vector<std::string> keys{Key("fence"), Key("lease"), Key("repairing")};
    keys.insert(keys.end(), new_tables_.begin(), new_tables_.end());
    StoreStatus status =
        run(kBegin, keys, {epoch, holder_, name_, LeaseText(shard), shards_[shard].layout, kFormat, repair});
    if (!status.ok()) return status;

    keys = {Key("fence"), Key("repairing")};
    keys.insert(keys.end(), new_tables_.begin(), new_tables_.end());
    const std::vector<std::string_view> head{epoch, holder_, repair};
    std::vector<std::string_view> arguments = head;
    size_t bytes = 0;
    auto flush = [&]() -> StoreStatus {
      if (arguments.size() == head.size()) return {};
      StoreStatus sent = run(kChunk, keys, arguments);
      arguments = head;
      bytes = 0;
      return sent;
    };
    for (const auto& [key, value] : copy_) {
      if (ShardOf(key.first, key.second) != shard) continue;
      arguments.push_back(TableIndex(key.first));
      arguments.push_back(key.second);
      arguments.push_back(value);
      bytes += key.second.size() + value.size() + WriteBatch::kWriteOverhead;
      if (bytes < kChunkBytes) continue;
      if (status = flush(); !status.ok()) return status;
    }
    if (status = flush(); !status.ok()) return status;

    // A new mark, so that no write that was on its way to the old tables follows on it.
    const std::string mark = Mark{epoch_, ++number_}.Text();
    keys = {Key("fence"), Key("repairing"), Key("journal")};
    for (size_t i = 0; i < tables_.size(); ++i) {
      keys.push_back(tables_[i]);
      keys.push_back(new_tables_[i]);
    }
    if (status = run(kFinish, keys, {epoch, holder_, repair, mark, shard == 0 ? "1" : "0"}); !status.ok())
      return status;
    shards_[shard].applied = mark;
    shards_[shard].doubtful = false;
    if (shard == 0) {
      journalled_ = mark;
      journal_doubtful_ = false;
    }
    // The group under way is written again everywhere, and after this mark, so that the journal's comparison holds.
    if (pending_) Renumber(*pending_);
    return {};
  }

  // ---- taking over ----------------------------------------------------------------------------------------------

  StoreStatus TakeOver(const Candidate& candidate, Leadership& leadership) {
    uint64_t least_epoch = 1;
    std::string former, layout, format;
    for (size_t i = 0; i < shards_.size(); ++i) {
      if (StoreStatus status = Connect(i); !status.ok()) {
        free_since_ns_ = -1;
        return status;
      }
      auto fence = Ask(i, {"HMGET", Key("fence"), "epoch", "holder", "layout", "format"});
      if (!fence.ok()) return fence.status();
      uint64_t epoch = 0;
      std::string_view text = fence->At(0).Text();
      std::from_chars(text.data(), text.data() + text.size(), epoch);
      least_epoch = std::max(least_epoch, epoch + 1);
      if (i == 0) former = fence->At(1).Text();
      layout = fence->At(2).Text();
      format = fence->At(3).Text();
      if (!format.empty() && format != kFormat) {
        return {StoreCode::kRefused, options_.servers[i].Describe() + " has tables of format " + format +
                                         ", written by another version of weft; this one reads " + kFormat};
      }
      if (!layout.empty() && layout != shards_[i].layout) {
        return {StoreCode::kInvalid, options_.servers[i].Describe() + " was server " + layout +
                                         " of this cluster and is now given as " + shards_[i].layout +
                                         "; give the same servers in the same order"};
      }
    }
    auto lease = Ask(0, {"GET", Key("lease")});
    if (!lease.ok()) return lease.status();
    if (lease->type != RedisReply::kNil || former.empty()) {
      free_since_ns_ = -1;  // held, or given up in order: the script decides
    } else {
      // A server that takes no writes (it is full, or cannot save) has let the lease of a living leader run out.
      if (auto written = Ask(0, {"SET", Key("probe"), "", "PX", "1000"}); !written.ok()) return written.status();
      if (free_since_ns_ < 0) free_since_ns_ = NowNs();
      if (!candidate.force && NowNs() - free_since_ns_ < candidate.grace_ms * 1'000'000) {
        return {StoreCode::kHeld, "the lease in " + options_.servers[0].Describe() + " ran out a moment ago"};
      }
    }

    name_ = candidate.name;
    lease_text_ = std::to_string(candidate.lease_ms);
    holder_ = NewHolderId();
    auto taken = Ask(0, [&] {
      std::vector<std::string> words{"EVALSHA",
                                     shards_[0].connection->scripts[kAcquire],
                                     std::to_string(3 + new_tables_.size()),
                                     Key("fence"),
                                     Key("lease"),
                                     Key("repairing")};
      words.insert(words.end(), new_tables_.begin(), new_tables_.end());
      words.insert(words.end(), {std::to_string(least_epoch), holder_, name_, lease_text_, candidate.force ? "1" : "0",
                                 shards_[0].layout, kFormat});
      return words;
    }());
    if (!taken.ok()) return taken.status();
    if (taken->At(0).Text() == "held") {
      return {StoreCode::kHeld, "another head ('" + std::string(taken->At(2).Text()) + "') leads in " +
                                    options_.servers[0].Describe() + "; its lease has " +
                                    std::string(taken->At(1).Text()) + " ms left"};
    }
    const std::string_view epoch = taken->At(1).Text();
    std::from_chars(epoch.data(), epoch.data() + epoch.size(), epoch_);
    if (epoch_ == 0) return {StoreCode::kCorrupt, options_.servers[0].Describe() + " gave no epoch"};
    number_ = 0;
    free_since_ns_ = -1;
    journal_doubtful_ = false;
    copy_.clear();

    const std::string epoch_text = EpochText();
    for (size_t i = 1; i < shards_.size(); ++i) {
      std::vector<std::string> keys{Key("fence"), Key("repairing")};
      keys.insert(keys.end(), new_tables_.begin(), new_tables_.end());
      StoreStatus status = RunOnce(i, kFence, keys, {epoch_text, holder_, name_, shards_[i].layout, kFormat});
      if (!status.ok()) return status;
    }
    // From here on no other head writes.
    for (size_t i = 0; i < shards_.size(); ++i) {
      auto marks = Ask(i, {"HMGET", Key("fence"), "applied", "journalled"});
      if (!marks.ok()) return marks.status();
      shards_[i].applied = marks->At(0).Text();
      shards_[i].doubtful = false;
      if (i == 0) journalled_ = marks->At(1).Text();
    }
    if (StoreStatus status = FinishJournal(); !status.ok()) return status;
    for (size_t i = 0; i < shards_.size(); ++i) {
      if (StoreStatus status = Load(i); !status.ok()) return status;
      Warn(i, leadership.warnings);
    }
    StoreStatus status = RenewAt(0);
    return status.code() == StoreCode::kHeld ? LostAgain(0) : status;
  }

  StoreResult<RedisReply> Ask(size_t shard, const std::vector<std::string>& words) {
    RedisConnection* connection = shards_[shard].connection.get();
    connection->Send(std::vector<std::string_view>(words.begin(), words.end()));
    if (StoreStatus status = RedisConnection::Await({&connection, 1}, options_.silence_timeout_ms, stop_.get());
        !status.ok()) {
      return status;
    }
    RedisReply reply = connection->Next();
    if (StoreStatus status = connection->Judge(reply); !status.ok()) return status;
    return reply;
  }

  // What the leader before us has begun on several servers, and may not have finished.
  StoreStatus FinishJournal() {
    auto reply = Ask(0, {"GET", Key("journal")});
    if (!reply.ok()) return reply.status();
    if (reply->type == RedisReply::kNil) return {};
    std::string mark_text;
    std::vector<Part> parts;
    if (!DecodeJournal(reply->Text(), mark_text, parts) || parts.size() != shards_.size()) {
      return {StoreCode::kCorrupt, options_.servers[0].Describe() + " has a journal that no head has written; delete " +
                                       Key("journal") + " if the last commit may be lost"};
    }
    const Mark mark = ParseMark(mark_text);
    for (size_t i = 0; i < shards_.size(); ++i) {
      if (parts[i].empty() || ParseMark(shards_[i].applied) >= mark) continue;
      SendPart(i, parts[i], shards_[i].applied, mark_text);
      RedisConnection* connection = shards_[i].connection.get();
      if (StoreStatus status = RedisConnection::Await({&connection, 1}, options_.silence_timeout_ms, stop_.get());
          !status.ok()) {
        return status;
      }
      RedisReply answer = connection->Next();
      StoreStatus status = Verdict(i, answer);
      if (!status.ok()) return status.code() == StoreCode::kHeld ? LostAgain(i) : status;
      shards_[i].applied = mark_text;
    }
    return {};
  }

  StoreStatus Load(size_t shard) {
    for (uint8_t number = 1; number <= kTables; ++number) {
      const Table table = static_cast<Table>(number);
      std::string cursor = "0";
      do {
        auto reply = Ask(shard, {"HSCAN", tables_[number - 1u], cursor, "COUNT", std::to_string(kScanCount)});
        if (!reply.ok()) return reply.status();
        cursor = reply->At(0).Text();
        const RedisReply& list = reply->At(1);
        if (cursor.empty() || list.type != RedisReply::kArray) {
          return {StoreCode::kCorrupt, options_.servers[shard].Describe() + " does not list its table"};
        }
        for (size_t i = 0; i + 1 < list.items.size(); i += 2) {
          const std::string_view key = list.items[i].Text();
          if (ShardOf(table, key) != shard) continue;  // not ours: weft does not write it here
          copy_[{table, std::string(key)}] = list.items[i + 1].Text();
        }
      } while (cursor != "0");
    }
    return {};
  }

  void Warn(size_t shard, std::vector<std::string>& warnings) const {
    const std::string where = options_.servers[shard].Describe();
    if (InfoField(shards_[shard].info, "aof_enabled") != "1") {
      warnings.push_back(where +
                         " does not keep an append-only file: if it and the head die together, the last commits are "
                         "lost (set appendonly yes)");
    }
  }

  const RedisStoreOptions options_;
  const std::string prefix_;
  const std::string zero_ = "0";
  std::vector<std::string> tables_, new_tables_;
  UniqueFd stop_;
  std::vector<Shard> shards_;

  uint64_t epoch_ = 0;  // 0: not the leader
  std::string holder_, name_, lease_text_;
  uint64_t number_ = 0;            // of our last write
  std::string journalled_;         // the mark that the first server should have
  bool journal_doubtful_ = false;  // a group was given up whose journal may be there
  std::optional<Pending> pending_;
  std::map<std::pair<Table, std::string>, std::string> copy_;  // of all that is committed
  int64_t free_since_ns_ = -1;  // when this candidate first saw the lease free; -1: it was not
};

}  // namespace

StoreResult<std::unique_ptr<BlockingStore>> MakeRedisStore(RedisStoreOptions options) {
  if (options.servers.empty()) return StoreStatus(StoreCode::kInvalid, "no Redis server is given");
  if (options.servers.size() > 64) return StoreStatus(StoreCode::kInvalid, "at most 64 Redis servers");
  auto allowed = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_'; };
  if (options.cluster.empty() || options.cluster.size() > 100 ||
      !std::all_of(options.cluster.begin(), options.cluster.end(), allowed)) {
    return StoreStatus(StoreCode::kInvalid, "a cluster's name in Redis has 1 to 100 letters, digits, '-' and '_'");
  }
  return std::unique_ptr<BlockingStore>(std::make_unique<RedisStore>(std::move(options)));
}

}  // namespace weft::core
