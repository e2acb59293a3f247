#include "control_store/tables.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace weft::core {
namespace {

template <class Record>
StoredRecord Stored(const Record& record) {
  WriteBatch batch;
  Put(batch, record);
  EXPECT_EQ(1u, batch.writes.size());
  return {batch.writes[0].table, batch.writes[0].key, batch.writes[0].value};
}

ClusterRecord ACluster() { return {{1, 2, 3}, 17, 4, 1'700'000'000'000, 9'500}; }
NodeRecord ANode() {
  return {7,  {9, 8},  NodeRecord::kDead, "host", "10.0.0.1:6380", {{"CPU", 40'000}, {"GPU", 10'000}}, {{"rack", "4"}},
          -1, "silent"};
}
JobRecord AJob() { return {3, {99}, JobRecord::kRunning, "train.py", "space", 5, 0, "", "s"}; }
ActorRecord AnActor() {
  return {{{5}, 6},  3,   1,  2, -1, 3, 1, 7, {12}, {{"CPU", 10'000}}, {}, "name", std::string("s\0p", 3),
          "Counter", "m", "c"};
}

template <class Record>
void ComesBackAndNothingElseDoes(const Record& record) {
  StoredRecord stored = Stored(record);
  auto decoded = Decode<Record>(stored);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(record, *decoded);

  StoredRecord other = stored;
  other.table = Table::kPlacementGroups;
  EXPECT_FALSE(Decode<Record>(other).has_value());
  other = stored;
  other.value[0] = 2;
  EXPECT_FALSE(Decode<Record>(other).has_value()) << "a version that is not known";
}

TEST(Tables, RecordsComeBack) {
  ComesBackAndNothingElseDoes(ACluster());
  ComesBackAndNothingElseDoes(ANode());
  ComesBackAndNothingElseDoes(AJob());
  ComesBackAndNothingElseDoes(AnActor());
  ComesBackAndNothingElseDoes(NameRecord{"space", "name", {{1}, 2}});
  ComesBackAndNothingElseDoes(KvRecord{"", std::string("\0k", 2), "value"});
}

// Truncated, lengthened, flipped: never more than a refusal, and what is accepted encodes to the same bytes again.
template <class Record>
void SurvivesAnything(const Record& record, bool may_be_longer = false) {
  const StoredRecord stored = Stored(record);
  for (size_t size = 0; size < stored.value.size(); ++size) {
    StoredRecord shorter = stored;
    shorter.value.resize(size);
    EXPECT_TRUE(may_be_longer || !Decode<Record>(shorter).has_value()) << size;
  }
  Random random(17);
  for (int i = 0; i < 20'000; ++i) {
    StoredRecord edited = stored;
    for (uint64_t k = 0; k <= random.Below(3); ++k) {
      std::string& bytes = random.Chance(20) && !edited.key.empty() ? edited.key : edited.value;
      bytes[random.Below(bytes.size())] = static_cast<char>(random.Chance(30) ? 0xff : random.Next());
    }
    if (auto decoded = Decode<Record>(edited)) {
      EXPECT_EQ(edited, Stored(*decoded));
    }
  }
}

TEST(Tables, BytesAreInput) {
  SurvivesAnything(ACluster());
  SurvivesAnything(ANode());
  SurvivesAnything(AJob());
  SurvivesAnything(AnActor());
  SurvivesAnything(NameRecord{"space", "name", {{1}, 2}});
  SurvivesAnything(KvRecord{"space", "key", "value"}, true);
}

TEST(Tables, KeysDoNotMeet) {
  EXPECT_NE(Stored(KvRecord{"a", "bc", ""}).key, Stored(KvRecord{"ab", "c", ""}).key);
  EXPECT_LT(Stored(NodeRecord{.number = 255}).key, Stored(NodeRecord{.number = 256}).key) << "sorted by number";
  FunctionKey key{1, 1ull << 63};
  EXPECT_EQ(key, *ParseFunctionTableKey(FunctionTableKey(key)));
  EXPECT_FALSE(ParseFunctionTableKey("short").has_value());
}

TEST(Tables, DeletingNamesTheSameKey) {
  WriteBatch batch;
  DeleteNode(batch, 7);
  DeleteJob(batch, 3);
  DeleteActor(batch, {{5}, 6});
  DeleteName(batch, "space", "name");
  DeleteKv(batch, "space", "key");
  std::vector<std::string> keys = {Stored(ANode()).key, Stored(AJob()).key, Stored(AnActor()).key,
                                   Stored(NameRecord{"space", "name", {}}).key,
                                   Stored(KvRecord{"space", "key", ""}).key};
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_TRUE(batch.writes[i].erase);
    EXPECT_EQ(keys[i], batch.writes[i].key);
  }
}

}  // namespace
}  // namespace weft::core
