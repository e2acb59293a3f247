// In which order a process's messages reach its daemon.
#include "runtime/outbox.h"

#include <gtest/gtest.h>

namespace weft::core {
namespace {

constexpr ProcessId kFirst{1}, kSecond{2};

PeerMessage Registers(uint64_t index) { return {.kind = PeerMessageKind::kAddBorrower, .id = {kFirst, index}}; }

TEST(Outbox, RoutedMessagesGoFirstAndFreedObjectsLast) {
  Outbox outbox;
  EXPECT_FALSE(outbox.any());
  outbox.Free({});
  outbox.Send(ReturnLease{});
  outbox.Route(kFirst, Registers(1));
  EXPECT_TRUE(outbox.any());
  const auto taken = outbox.Take();
  ASSERT_EQ(taken.size(), 3u);
  EXPECT_TRUE(std::holds_alternative<RouteTo>(taken[0].first));
  EXPECT_TRUE(std::holds_alternative<ReturnLease>(taken[1].first));
  EXPECT_TRUE(std::holds_alternative<FreeObjects>(taken[2].first));
  EXPECT_FALSE(outbox.any());
  EXPECT_TRUE(outbox.Take().empty());
}

TEST(Outbox, MessagesToOneProcessTravelTogetherAndKeepTheirOrder) {
  Outbox outbox;
  outbox.Route(kFirst, Registers(1));
  outbox.Route(kFirst, Registers(2));
  outbox.Route(kSecond, Registers(3));
  outbox.Route(kFirst, Registers(4));
  outbox.ForEachRouted([](ProcessId to, std::string& payload) {
    if (to != kSecond) return;
    payload.clear();
    EncodePeerMessage(Registers(9), payload);
  });
  std::vector<std::pair<ProcessId, std::vector<uint64_t>>> sent;
  for (const auto& [message, fds] : outbox.Take()) {
    const auto& route = std::get<RouteTo>(message);
    std::vector<PeerMessage> inner;
    ASSERT_TRUE(DecodePeerMessages(route.payload, inner));
    sent.emplace_back(route.to, std::vector<uint64_t>());
    for (const PeerMessage& each : inner) sent.back().second.push_back(each.id.index);
  }
  const decltype(sent) expected = {{kFirst, {1, 2}}, {kSecond, {9}}, {kFirst, {4}}};
  EXPECT_EQ(sent, expected);
}

TEST(Outbox, ALotForOneProcessIsDivided) {
  Outbox outbox;
  outbox.gather_bytes = 0;
  outbox.Route(kFirst, Registers(1));
  outbox.Route(kFirst, Registers(2));
  EXPECT_EQ(outbox.Take().size(), 2u);
}

TEST(Outbox, HoldsOfOneOwnerThatEndAreToldTogether) {
  Outbox outbox;
  outbox.EndHold({kFirst, 1});
  outbox.EndHold({kFirst, 2});
  outbox.EndHold({kSecond, 3});
  const auto taken = outbox.Take();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(std::get<HoldsEnded>(taken[0].first).indexes, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(std::get<HoldsEnded>(taken[1].first).owner, kSecond);
}

}  // namespace
}  // namespace weft::core
