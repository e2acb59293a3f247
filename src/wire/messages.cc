#include "wire/messages.h"

#include "wire/fields.h"

namespace weft::core {

// Each message lists its fields once, for both directions.
template <class V>
void Fields(V& v, ProgramFile& m) {
  v(m.role, m.bits, m.machine, m.fixed_paths, m.glibc, m.size, m.path, m.identity, m.interpreter, m.name);
}
template <class V>
void Fields(V& v, OpenSession& m) {
  v(m.protocol, m.pid, m.resources, m.object_store_bytes, m.python_workers, m.worker_command, m.python_worker_command,
    m.environment, m.working_directory, m.forward_output, m.files, m.preload);
}
template <class V>
void Fields(V& v, WorkerReady& m) {
  v(m.protocol, m.pid);
}
template <class V>
void Fields(V& v, RequestLeases& m) {
  v(m.shape, m.count, m.depth, m.heard);
}
template <class V>
void Fields(V& v, ReturnLease& m) {
  v(m.lease);
}
template <class V>
void Fields(V&, Blocked&) {}
template <class V>
void Fields(V&, Unblocked&) {}
template <class V>
void Fields(V& v, SegmentCreated& m) {
  v(m.size);
}
template <class V>
void Fields(V& v, OpenSegment& m) {
  v(m.segment);
}
template <class V>
void Fields(V& v, ReserveMemory& m) {
  v(m.bytes, m.request);
}
template <class V>
void Fields(V& v, ReleaseMemory& m) {
  v(m.bytes);
}
template <class V>
void Fields(V& v, RouteTo& m) {
  v(m.to, m.payload);
}
template <class V>
void Fields(V& v, FreeObjects& m) {
  v(m.locations);
}
template <class V>
void Fields(V&, CloseSession&) {}
template <class V>
void Fields(V& v, Welcome& m) {
  v(m.process, m.driver, m.object_store_bytes, m.reserved_bytes, m.cpus, m.session, m.python_workers);
}
template <class V>
void Fields(V& v, ChannelOpened& m) {
  v(m.peer, m.own_slot, m.peer_slot, m.first_side);
}
template <class V>
void Fields(V& v, StreamOpened& m) {
  v(m.peer, m.own_slot, m.first_side);
}
template <class V>
void Fields(V& v, LeaseGranted& m) {
  v(m.shape, m.lease, m.worker, m.gpus);
}
template <class V>
void Fields(V& v, LeaseRecalled& m) {
  v(m.lease);
}
template <class V>
void Fields(V& v, ProcessDied& m) {
  v(m.process, m.pid, m.how);
}
template <class V>
void Fields(V& v, SegmentOpened& m) {
  v(m.segment, m.size);
}
template <class V>
void Fields(V& v, SegmentClosed& m) {
  v(m.segment);
}
template <class V>
void Fields(V& v, MemoryReserved& m) {
  v(m.request, m.granted, m.why_not);
}
template <class V>
void Fields(V& v, TrimMemory& m) {
  v(m.bytes);
}
template <class V>
void Fields(V& v, Routed& m) {
  v(m.from, m.payload);
}
template <class V>
void Fields(V& v, ObjectsFreed& m) {
  v(m.locations);
}
template <class V>
void Fields(V& v, WorkerOutput& m) {
  v(m.worker, m.pid, m.is_stderr, m.text, m.name);
}
template <class V>
void Fields(V& v, SessionRefused& m) {
  v(m.why);
}
template <class V>
void Fields(V& v, LeaseRefused& m) {
  v(m.shape, m.why, m.count);
}
template <class V>
void Fields(V& v, Exit& m) {
  v(m.now, m.why);
}
template <class V>
void Fields(V& v, CreateActor& m) {
  v(m.request, m.actor, m.to_place, m.to_hold, m.max_restarts, m.detached, m.get_if_exists, m.deferred, m.depth, m.name,
    m.name_space, m.class_name, m.metadata);
}
template <class V>
void Fields(V& v, PlaceActor& m) {
  v(m.actor);
}
template <class V>
void Fields(V& v, KeepActor& m) {
  v(m.actor);
}
template <class V>
void Fields(V& v, HandOverActor& m) {
  v(m.actor, m.recipe, m.why, m.error);
}
template <class V>
void Fields(V& v, LookupActor& m) {
  v(m.request, m.name, m.name_space);
}
template <class V>
void Fields(V& v, ListActors& m) {
  v(m.request, m.all, m.name_space);
}
template <class V>
void Fields(V& v, WatchActor& m) {
  v(m.actor);
}
template <class V>
void Fields(V& v, ReleaseActor& m) {
  v(m.actor);
}
template <class V>
void Fields(V& v, KillActor& m) {
  v(m.actor, m.no_restart, m.why, m.error);
}
template <class V>
void Fields(V& v, ActorConstructed& m) {
  v(m.actor, m.ok, m.error);
}
template <class V>
void Fields(V& v, ActorExiting& m) {
  v(m.actor);
}
template <class V>
void Fields(V& v, ActorAnswer& m) {
  v(m.request, m.actor, m.metadata, m.error);
}
template <class V>
void Fields(V& v, ActorList& m) {
  v(m.request, m.actors);
}
template <class V>
void Fields(V& v, ActorChanged& m) {
  v(m.actor, m.state, m.incarnation, m.worker, m.gpus, m.why, m.error, m.construct, m.refused);
}
template <class V>
void Fields(V& v, Observe& m) {
  v(m.protocol, m.what, m.limit);
}
template <class V>
void Fields(V& v, NodeInfo& m) {
  v(m.daemon_pid, m.driver_pid, m.total, m.available, m.store_bytes, m.store_used_bytes, m.started_ns,
    m.working_directory);
}
template <class V>
void Fields(V& v, ProcessInfo& m) {
  v(m.process, m.pid, m.role, m.stage, m.store_bytes, m.actor, m.how);
}
template <class V>
void Fields(V& v, ActorInfo& m) {
  v(m.actor, m.state, m.incarnation, m.worker, m.detached, m.restarts_left, m.class_name, m.name, m.name_space, m.why);
}
template <class V>
void Fields(V& v, NodeListed& m) {
  v(m.node, m.session, m.alive, m.head, m.own, m.name, m.address, m.total, m.available, m.labels, m.why);
}
template <class V>
void Fields(V& v, Observed& m) {
  v(m.reports);
}
template <class V>
void Fields(V& v, AskState& m) {
  v(m.request, m.limit);
}
template <class V>
void Fields(V& v, StateReport& m) {
  v(m.request, m.process, m.report);
}
template <class V>
void Fields(V& v, AskShape& m) {
  v(m.request, m.shape);
}
template <class V>
void Fields(V& v, ShapeAnswer& m) {
  v(m.request, m.fact);
}
template <class V>
void Fields(V& v, ChannelLost& m) {
  v(m.worker);
}
template <class V>
void Fields(V& v, FetchObject& m) {
  v(m.request, m.location);
}
template <class V>
void Fields(V& v, ReleaseObject& m) {
  v(m.request);
}
template <class V>
void Fields(V& v, ObjectFetched& m) {
  v(m.request, m.location);
}
template <class V>
void Fields(V& v, ObjectUnfetchable& m) {
  v(m.request, m.error, m.node_gone);
}
template <class V>
void Fields(V& v, ShareLibrary& m) {
  v(m.request, m.files);
}
template <class V>
void Fields(V& v, FindLibrary& m) {
  v(m.request, m.submitter, m.files);
}
template <class V>
void Fields(V& v, LibraryAnswer& m) {
  v(m.request, m.paths, m.error);
}
template <class V>
void Fields(V& v, OrphansFound& m) {
  v(m.objects);
}
template <class V>
void Fields(V& v, HeldObjects& m) {
  v(m.owner, m.indexes, m.more);
}
template <class V>
void Fields(V& v, HoldsEnded& m) {
  v(m.owner, m.indexes);
}
template <class V>
void Fields(V& v, HoldOrphan& m) {
  v(m.request, m.object);
}
template <class V>
void Fields(V& v, AskHeld& m) {
  v(m.owner);
}
template <class V>
void Fields(V& v, OrphanHeld& m) {
  v(m.request);
}
template <class V>
void Fields(V& v, ResultsLeft& m) {
  v(m.objects);
}

std::string Encode(const Message& message) { return EncodeVariant(message); }
Message Decode(std::string_view bytes) { return DecodeVariant<Message>(bytes); }

std::string EncodeFiles(const std::vector<ProgramFile>& files) {
  ByteWriter out;
  FieldWriter{out}.One(files);
  return out.Take();
}

bool DecodeFiles(std::string_view bytes, std::vector<ProgramFile>* files) {
  ByteReader in(bytes);
  files->clear();
  FieldReader{in}.One(*files);
  return in.ok() && in.AtEnd();
}

}  // namespace weft::core
