#include "control_store/record_sealer.h"

#include <gtest/gtest.h>

#include "control_store/tables.h"

namespace weft::core {
namespace {

const std::string kKey("k\0y", 3);

TEST(RecordSealer, WhatIsSealedComesBack) {
  RecordSealer sealer("token", "cluster");
  for (std::string body : {std::string(), std::string("def f(): pass"), std::string(1'000'000, '\0')}) {
    auto opened = RecordSealer("token", "cluster").Open(Table::kActors, kKey, sealer.Seal(Table::kActors, kKey, body));
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    EXPECT_EQ(body, *opened);
  }
}

TEST(RecordSealer, AnyEditIsRefused) {
  RecordSealer sealer("token", "cluster");
  const std::string record = sealer.Seal(Table::kActors, kKey, "def f(): pass");
  for (size_t i = 0; i < record.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string edited = record;
      edited[i] = static_cast<char>(edited[i] ^ (1 << bit));
      EXPECT_EQ(StoreCode::kCorrupt, sealer.Open(Table::kActors, kKey, edited).code()) << i;
    }
    EXPECT_EQ(StoreCode::kCorrupt, sealer.Open(Table::kActors, kKey, record.substr(0, i)).code()) << i;
  }
  EXPECT_EQ(StoreCode::kCorrupt, sealer.Open(Table::kActors, kKey, record + "x").code());
  EXPECT_EQ(StoreCode::kCorrupt, sealer.Open(Table::kActors, kKey, "").code());
}

TEST(RecordSealer, ASealIsBoundToTableKeyTokenAndCluster) {
  const std::string record = RecordSealer("token", "cluster").Seal(Table::kActors, kKey, "body");
  EXPECT_EQ(StoreCode::kCorrupt, RecordSealer("token", "cluster").Open(Table::kJobs, kKey, record).code());
  EXPECT_EQ(StoreCode::kCorrupt, RecordSealer("token", "cluster").Open(Table::kActors, "k", record).code());
  EXPECT_EQ(StoreCode::kCorrupt, RecordSealer("another", "cluster").Open(Table::kActors, kKey, record).code());
  EXPECT_EQ(StoreCode::kCorrupt, RecordSealer("token", "another").Open(Table::kActors, kKey, record).code());
  EXPECT_EQ(StoreCode::kCorrupt, RecordSealer("", "cluster").Open(Table::kActors, kKey, record).code());
}

TEST(RecordSealer, AWholeBatchIsSealed) {
  RecordSealer sealer("token", "cluster");
  WriteBatch batch;
  Put(batch, KvRecord{"space", "key", "value"});
  DeleteJob(batch, 3);
  sealer.SealAll(batch);
  const Write& put = batch.writes[0];
  auto opened = sealer.Open(put.table, put.key, put.value);
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ("value", Decode<KvRecord>({put.table, put.key, *opened})->value);
  EXPECT_TRUE(batch.writes[1].value.empty());
}

}  // namespace
}  // namespace weft::core
