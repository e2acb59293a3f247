#include "wire/node_messages.h"

#include <type_traits>

#include "wire/fields.h"

namespace weft::core {

template <class V>
void Fields(V& v, NodeHello& m) {
  v(m.purpose, m.node, m.to, m.submitter, m.worker);
}
template <class V>
void Fields(V& v, NodeJoins& m) {
  v(m.was, m.epoch, m.beat, m.protocol, m.identity, m.name, m.address, m.resources, m.labels);
}
template <class V>
void Fields(V& v, NodeAccepted& m) {
  v(m.node, m.head, m.epoch, m.beat, m.lease_ns);
}
template <class V>
void Fields(V& v, NodeRefused& m) {
  v(m.dead, m.why);
}
template <class V>
void Fields(V& v, NodeBeat& m) {
  v(m.beat, m.epoch);
}
template <class V>
void Fields(V& v, BeatConfirmed& m) {
  v(m.beat, m.epoch);
}
template <class V>
void Fields(V& v, NodeAppeared& m) {
  v(m.node, m.name, m.address, m.resources, m.labels);
}
template <class V>
void Fields(V& v, NodeVanished& m) {
  v(m.node, m.why);
}
template <class V>
void Fields(V& v, NodesListed& m) {
  v(m.nodes);
}
template <class V>
void Fields(V&, NodeGoodbye&) {}
template <class V>
void Fields(V& v, NodeLoad& m) {
  v(m.placements_seen, m.available, m.free_gpus, m.leases);
}
template <class V>
void Fields(V& v, LeaseRequest& m) {
  v(m.request, m.process, m.job, m.shape, m.count, m.depth, m.assigned_heard, m.actor, m.to_hold, m.class_name,
    m.withdrawn);
}
template <class V>
void Fields(V& v, WorkAssigned& m) {
  v(m.requester, m.request, m.placement, m.process, m.job, m.shape, m.count, m.depth, m.actor, m.to_hold, m.class_name);
}
template <class V>
void Fields(V& v, RequestAssigned& m) {
  v(m.request, m.count);
}
template <class V>
void Fields(V& v, RequestRefused& m) {
  v(m.request, m.for_ever, m.why);
}
template <class V>
void Fields(V& v, JobDescribed& m) {
  v(m.driver, m.session, m.output_to);
}
template <class V>
void Fields(V& v, ForProcess& m) {
  v(m.process, m.message);
}
template <class V>
void Fields(V& v, FromProcess& m) {
  v(m.process, m.job, m.message);
}
template <class V>
void Fields(V& v, RoutedAcross& m) {
  v(m.from, m.to, m.payload);
}
template <class V>
void Fields(V& v, ProcessVanished& m) {
  v(m.process, m.pid, m.how);
}
template <class V>
void Fields(V& v, ChannelWanted& m) {
  v(m.submitter, m.worker);
}
template <class V>
void Fields(V& v, SourcesWanted& m) {
  v(m.location);
}
template <class V>
void Fields(V& v, SourcesTold& m) {
  v(m.location, m.complete, m.partial, m.start, m.answer);
}
template <class V>
void Fields(V& v, CopiesDropped& m) {
  v(m.locations);
}
template <class V>
void Fields(V& v, CopyChanged& m) {
  v(m.location, m.held);
}
template <class V>
void Fields(V& v, HoldingsWanted& m) {
  v(m.location);
}
template <class V>
void Fields(V& v, HoldingsTold& m) {
  v(m.location, m.ranges, m.complete, m.gone);
}
template <class V>
void Fields(V& v, ChunkWanted& m) {
  v(m.request, m.location, m.chunk);
}
template <class V>
void Fields(V& v, ChunkUnwanted& m) {
  v(m.request);
}
template <class V>
void Fields(V& v, ChunkDenied& m) {
  v(m.request);
}
template <class V>
void Fields(V& v, ActorOffered& m) {
  v(m.actor, m.worker, m.gpus);
}
template <class V>
void Fields(V& v, ActorNotPlaced& m) {
  v(m.actor, m.why);
}
template <class V>
void Fields(V& v, EndActorWorker& m) {
  v(m.worker, m.leave, m.why);
}
template <class V>
void Fields(V& v, DetachedHeld& m) {
  v(m.actor, m.incarnation, m.worker, m.gpus, m.constructed, m.exiting);
}
template <class V>
void Fields(V& v, DetachedTold& m) {
  v(m.jobs);
}
template <class V>
void Fields(V& v, ConstructActor& m) {
  v(m.worker, m.actor, m.incarnation, m.gpus, m.recipe);
}
template <class V>
void Fields(V& v, WorkDeclined& m) {
  v(m.requester, m.request, m.placement, m.count);
}
template <class V>
void Fields(V& v, NameAsked& m) {
  v(m.actor, m.get_if_exists, m.name_space, m.name, m.class_name, m.metadata);
}
template <class V>
void Fields(V& v, NameAnswered& m) {
  v(m.actor, m.existing, m.metadata, m.error);
}
template <class V>
void Fields(V& v, NameReleased& m) {
  v(m.actor, m.name_space, m.name);
}
template <class V>
void Fields(V& v, JobEnded& m) {
  v(m.job);
}

template <class V>
void Fields(V& v, AskNodes& m) {
  v(m.request);
}
template <class V>
void Fields(V& v, NodesTold& m) {
  v(m.request, m.nodes);
}

template <class V>
void Fields(V& v, ProgramPieceWanted& m) {
  v(m.request, m.job, m.identity, m.offset);
}
template <class V>
void Fields(V& v, ProgramPiece& m) {
  v(m.request, m.offset, m.checksum, m.bytes);
}
template <class V>
void Fields(V& v, ProgramDenied& m) {
  v(m.request, m.why);
}
template <class V>
void Fields(V& v, ChannelBroken& m) {
  v(m.worker, m.other);
}
template <class V>
void Fields(V& v, JoinLater& m) {
  v(m.wait_ns, m.why);
}
template <class V>
void Fields(V& v, NodeUnreachable& m) {
  v(m.node, m.for_ns, m.why);
}
template <class V>
void Fields(V& v, NodeReachable& m) {
  v(m.node);
}
template <class V>
void Fields(V& v, ProgramReplaced& m) {
  v(m.request, m.why);
}
template <class V>
void Fields(V& v, HeldAsked& m) {
  v(m.owner);
}
template <class V>
void Fields(V& v, HeldTold& m) {
  v(m.owner, m.indexes, m.more);
}
template <class V>
void Fields(V& v, HoldsOver& m) {
  v(m.owner, m.indexes);
}
template <class V>
void Fields(V& v, FlowTaken& m) {
  v(m.through);
}
template <class V>
void Fields(V&, ChunksCut&) {}

std::string EncodeHello(const NodeHello& hello) {
  ByteWriter out;
  FieldWriter writer{out};
  Fields(writer, const_cast<NodeHello&>(hello));
  return out.Take();
}

bool DecodeHello(std::string_view bytes, NodeHello* hello) {
  ByteReader in(bytes);
  FieldReader reader{in};
  Fields(reader, *hello);
  return in.ok() && in.AtEnd();
}

std::string EncodeNodeMessage(const NodeMessage& message) { return EncodeVariant(message); }
NodeMessage DecodeNodeMessage(std::string_view bytes) { return DecodeVariant<NodeMessage>(bytes); }

bool IsInFlow(const NodeMessage& message) {
  return std::visit(
      []<class M>(const M&) {
        return !std::is_same_v<M, std::monostate> && !std::is_same_v<M, NodeJoins> &&
               !std::is_same_v<M, NodeAccepted> && !std::is_same_v<M, NodeRefused> && !std::is_same_v<M, NodeBeat> &&
               !std::is_same_v<M, BeatConfirmed> && !std::is_same_v<M, NodeAppeared> &&
               !std::is_same_v<M, NodeVanished> && !std::is_same_v<M, NodesListed> && !std::is_same_v<M, NodeGoodbye> &&
               !std::is_same_v<M, JoinLater> && !std::is_same_v<M, FlowTaken>;
      },
      message);
}

}  // namespace weft::core
