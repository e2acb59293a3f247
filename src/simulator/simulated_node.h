// One life of a node daemon, as far as its place in the cluster goes: what surrounds a shipped Member, and on machine 0
// a shipped Head, with the simulated network and control store in place of the real ones.
//
// What concerns processes is SimulatedDaemon's business, which is made when the node has its number. A life that has
// lost its place ends; SimulatedCluster begins another on the same machine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/member.h"
#include "control_store/simulated_store.h"
#include "head/head.h"
#include "node/node_io.h"
#include "scheduling/global_scheduler.h"
#include "simulator/simulated_network.h"
#include "simulator/world.h"
#include "wire/node_messages.h"

namespace weft::core {

struct SimulatedMachine;

class SimulatedNode final : public NodeLinks, private Member::Io, private Member::Host, private Head::Host {
 public:
  SimulatedNode(World& world, SimulatedMachine& machine, bool head, uint64_t port);

  void Start();
  // The daemon's process ends, and with it all that it started.
  void End();
  bool ended() const { return ended_; }
  bool is_head() const override { return head_ && head_->leads(); }
  NodeNumber self() const override { return member_.self(); }
  NodeNumber head() const override { return member_.head(); }
  bool Knows(NodeNumber node) const override { return member_.Knows(node); }
  bool MayAppear(NodeNumber node) const override;
  const std::map<NodeNumber, NodeDescription>& nodes() const override { return member_.nodes(); }
  const SimulatedMachine& machine() const { return machine_; }
  const GlobalScheduler* scheduler() const { return head_ ? head_->scheduler() : nullptr; }

  std::string Describe(NodeNumber node) const override { return member_.Describe(node); }

  void Send(NodeNumber to, const NodeMessage& message) override;
  void SendToHead(const NodeMessage& message) { Send({}, message); }
  void SendToAll(const NodeMessage& message) override;
  void DialChannel(ProcessId submitter, ProcessId worker) override;
  const JobDescribed* FindJob(ProcessId job) const override { return head_->FindJob(job); }
  void KnowJob(JobDescribed job) override { head_->KnowJob(std::move(job)); }
  void ForgetJob(ProcessId job) override { head_->ForgetJob(job); }
  void Persist(WriteBatch batch, std::function<void()> then, HeadLedger::Waits waits) override {
    head_->Persist(std::move(batch), std::move(then), std::move(waits));
  }

  // Runs in this daemon, later if its machine stands still; never if it has ended.
  void Later(int64_t delay_ns, std::function<void()> what);
  void CheckRest() const;
  std::string Describe() const;

 private:
  struct Stream {
    StreamPointer pointer;  // null: it is being dialled
    int side = SimulatedStream::kDialler;
    std::string address;  // that was dialled
  };

  void Turn(const std::function<void()>& what);
  void ScheduleTick();
  void Tick();

  // Member::Io
  Status Dial(uint64_t link, const std::string& address, const std::string& hello, int64_t timeout_ns) override;
  Result<std::string> Listen() override;
  void Send(uint64_t link, std::string_view bytes) override;
  bool Pass(uint64_t link, std::string_view bytes) override;
  void Close(uint64_t link, const std::string& breach) override;
  void CloseWhenSent(uint64_t link) override;
  void Log(LogLevel level, const char* what, const std::string& text) override;
  // Member::Host
  void ClusterJoined(NodeNumber self) override;
  void ClusterRefused(const std::string& why) override { Leave(why); }
  void HeadForgot() override;
  void ClusterLeft(const std::string& why) override { Leave(why); }
  void FreezeWork(const std::string& why) override;
  void ThawWork() override;
  void NodeMessageCame(NodeNumber from, NodeMessage& message) override;
  void NodeIsGone(NodeNumber node, const std::string& why) override;
  void LinkBroken(NodeNumber) override {}
  void NodeHasRoom(NodeNumber) override {}
  // Head::Host
  void HeadLeads(const std::string& cluster_id) override;
  void HeadWaits() override {}
  void HeadEnded(const std::string& why) override { Leave(why); }
  int64_t Now() const override;  // this machine's clock
  int64_t UnixMs() const override { return Now() / 1'000'000; }

  bool Accept(const StreamPointer& stream, const std::string& hello);
  void Connected(uint64_t link, StreamPointer stream, bool nobody_listens);
  void Attach(uint64_t link, StreamPointer stream, int side);
  void Lost(uint64_t link, ErrorKind kind, bool nobody_listens);
  void Leave(const std::string& why);

  void WatchMembers();
  void PumpStore();

  World& world_;
  SimulatedMachine& machine_;
  const uint64_t port_;
  Member member_;
  std::map<uint64_t, Stream> streams_;
  SimulatedDaemon* daemon_ = nullptr;
  bool ended_ = false;
  bool in_turn_ = false;
  int64_t tick_at_ns_ = INT64_MAX;  // on the simulation's clock

  // On machine 0.
  std::unique_ptr<SimulatedStore> store_;
  std::unique_ptr<Head> head_;
  std::set<NodeNumber> suspected_;
  bool pumping_store_ = false;
};

}  // namespace weft::core
