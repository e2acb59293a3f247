// Objects between nodes: brings objects of other nodes here for this node's processes, and gives this node's objects,
// and its copies of others', to other nodes.
//
// Owned by the NodeDaemon of a lasting node, on its loop thread. Decides nothing itself: which copies there are is
// CopyTable's business, which chunk comes from whom PullPlan's, which is sent next ChunkServer's, who has what
// HolderDirectory's, and CopySearch's if nobody knows; this class carries their actions to links and memory, and back.
//
// An object's *home* is the node in whose segment it was written; its location there names it everywhere. The home's
// daemon knows who has copies, tells those who pull it whom to ask, and tells them when it is freed. Copies lie in a
// segment of the daemon's own, which is made with the first of them. Chunks go straight from the segment that the
// object lies in into that segment.
//
// When its home is gone, all other nodes are asked for a copy; for that, copies that nobody uses are kept for a while
// after their home is gone. If no copy can be reached, those who wait get an ObjectLostError that names the node, and
// whether that is gone. The object's owner may be able to make it again; nothing here is.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "node/cluster.h"
#include "object_store/memory_budget.h"
#include "object_store/segment_keeper.h"
#include "object_store/segment_reader.h"
#include "object_store/segment_writer.h"
#include "transfer/chunk_server.h"
#include "transfer/copy_search.h"
#include "transfer/copy_table.h"
#include "transfer/holder_directory.h"
#include "transfer/pull_plan.h"
#include "wire/messages.h"
#include "wire/node_messages.h"

namespace weft::core {

class ObjectExchange {
 public:
  class Host {
   public:
    virtual void TellProcess(ProcessId process, const Message& message) = 0;
    // Objects of this node whose freeing had to wait for chunks that were being sent (Freed).
    virtual void FreeNow(const std::vector<Location>& locations) = 0;

   protected:
    ~Host() = default;
  };

  // Reservations are made in `budget` for the process `account`; their outcomes come back through MemoryGranted,
  // MemoryRefused and Trim.
  ObjectExchange(Cluster& cluster, MemoryBudget& budget, std::vector<MemoryBudget::Action>& budget_actions,
                 SegmentKeeper& segments, Host& host);
  ~ObjectExchange();

  ProcessId account() const { return account_; }

  // ---- this node's processes
  void Fetch(ProcessId process, const FetchObject& message);
  void Release(ProcessId process, const ReleaseObject& message);
  void ProcessEnded(ProcessId process);
  // No process is left on this node: the segment goes too, if nothing is in it.
  void LastProcessEnded();

  // ---- memory
  void MemoryGranted(uint64_t request, uint64_t bytes);
  void MemoryRefused(uint64_t request, const std::string& why);
  void Trim(uint64_t bytes);

  // ---- objects of this node
  // They are freed: copies are dropped. Returns those that may be freed now; FreeNow follows for the others.
  std::vector<Location> Freed(std::vector<Location> locations);
  // The keeper has let go of the segment, or may have.
  void SegmentChanged(SegmentId segment);

  // ---- other nodes
  void Handle(NodeNumber from, SourcesWanted& message);
  void Handle(NodeNumber from, SourcesTold& message);
  void Handle(NodeNumber from, CopiesDropped& message);
  void Handle(NodeNumber from, CopyChanged& message);
  void Handle(NodeNumber from, HoldingsWanted& message);
  void Handle(NodeNumber from, HoldingsTold& message);
  void Handle(NodeNumber from, ChunkWanted& message);
  void Handle(NodeNumber from, ChunkUnwanted& message);
  void Handle(NodeNumber from, ChunkDenied& message);
  uint8_t* ChunkBegan(NodeNumber from, const ChunkHead& head, size_t bytes);
  void ChunkEnded(NodeNumber from, const ChunkHead& head, size_t bytes);
  void LinkBroken(NodeNumber node);
  void NodeIsGone(NodeNumber node);

  // ---- each turn of the loop
  int64_t NextDeadline() const;
  void Tick(int64_t now_ns);

 private:
  struct Copy {
    Location object;
    Allocation room;
    bool sealed = false;
    bool offered = false;
    int64_t asked_ns = 0;  // its home for sources; 0: it has answered
  };
  struct Home {  // an object of this node that others have, or pull
    Location object;
    const uint8_t* data = nullptr;
    std::set<NodeNumber> others;
    uint32_t sending = 0;
    bool freed = false;    // waits for what is being sent
    bool to_free = false;  // and is the daemon's to free then
  };
  struct Receiving {
    ObjectId object;
    uint32_t chunk = 0;
    uint8_t* target = nullptr;             // null: dropped
    std::unique_ptr<uint8_t[]> elsewhere;  // the same chunk is being received into its place from another node
  };
  struct Sent {  // shared with what keeps a chunk until it is sent, and may outlive us
    std::vector<std::pair<NodeNumber, std::pair<uint64_t, ObjectId>>> chunks;
  };

  template <class Event>
  void FeedTable(const Event& event);
  template <class Event>
  void FeedSearch(const Event& event);
  template <class Event>
  void FeedPlan(const Event& event);
  template <class Event>
  void FeedServer(const Event& event);
  template <class Event>
  void FeedDirectory(const Event& event);

  void Perform(const MakeRoom& action);
  void Perform(const BeginPull& action);
  void Perform(const WithdrawCopy& action);
  void Perform(const FreePlace& action);
  void Perform(const TellFetched& action);
  void Perform(const TellUnfetchable& action);
  void Perform(const AskChunk& action);
  void Perform(const CancelChunk& action);
  void Perform(const AskForSources& action);
  void Perform(const KeepChunk& action);
  void Perform(const FinishPull& action);
  void Perform(const FailPull& action);
  void Perform(const SendChunk& action);
  void Perform(const RefuseChunk& action);
  void Perform(const TellHoldings& action);
  void Perform(const TellGone& action);
  void Perform(const GiveSources& action);
  void Perform(const AskHolder& action);
  void Perform(const EndSearch& action);

  // A copy of what has lost its home. Process 0: for its pull.
  void Search(ProcessId process, uint64_t request, const Location& object);
  void KeepOrphans(NodeNumber home);
  Status MakeSegment();
  void TryRoom(const Location& object);
  Home* OpenHome(const Location& object);
  void CloseHome(std::map<ObjectId, Home>::iterator home);
  void ForgetIfAlone(std::map<ObjectId, Home>::iterator home);
  void Discard(NodeNumber from, uint64_t request);
  void LinkLost(NodeNumber node);
  void TakeSent();
  std::string WhyLost(const Location& object, const std::string& why) const;

  Cluster& cluster_;
  MemoryBudget& budget_;
  std::vector<MemoryBudget::Action>& budget_actions_;
  SegmentKeeper& segments_;
  Host& host_;
  const ProcessId account_;

  CopyTable table_;
  CopySearch search_;
  PullPlan plan_;
  ChunkServer server_;
  HolderDirectory directory_;

  std::unique_ptr<SegmentWriter> writer_;  // of copies
  SegmentReader reader_;                   // of this node's processes, for what others pull from them
  std::map<ObjectId, Copy> copies_;        // that have a place
  std::map<ObjectId, Home> homes_;
  std::map<uint64_t, Location> reserving_;  // by request
  uint64_t next_request_ = 1;
  std::map<std::pair<NodeNumber, uint64_t>, Receiving> receiving_;
  std::shared_ptr<Sent> sent_ = std::make_shared<Sent>();
  std::map<Location, int64_t> searched_;    // what search_ looks for, and until when
  std::map<ObjectId, NodeNumber> found_;    // by search_, for pulls that have not begun
  std::map<NodeNumber, int64_t> orphaned_;  // homes that are gone, and until when copies of their objects are kept
  std::map<NodeNumber, int64_t> broken_;    // and when to act upon it
  std::map<NodeNumber, int64_t> heard_;     // from sources, last
  int64_t look_at_ns_ = INT64_MAX;          // whether a source is silent
  int64_t trim_at_ns_ = INT64_MAX;
};

}  // namespace weft::core
