#include "simulator/simulated_network.h"

#include <algorithm>
#include <utility>

#include "simulator/simulated_cluster.h"
#include "simulator/world.h"
#include "wire/node_messages.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kHandshakeNs = 300 * kMs;
constexpr int64_t kIdleNs = 500 * kMs;  // half of a lease, as in node/cluster.cc
constexpr int64_t kDialLooksNs = 20 * kMs;
// Within this time both sides of a stream that is reset have heard of it: far less than Membership's grace.
constexpr int64_t kResetSkewNs = 8 * kMs;

}  // namespace

SimulatedNetwork::SimulatedNetwork(World& world, size_t machines) : world_(world), machines_(machines) {}

int64_t SimulatedNetwork::Latency() { return 20'000 + world_.Delay(); }

bool SimulatedNetwork::Reaches(size_t from, size_t to) const {
  if (from == to) return true;
  auto cut = cut_until_ns_.find({from, to});
  return cut == cut_until_ns_.end() || cut->second <= world_.now();
}

// ---- connections --------------------------------------------------------------------------------------------------

void SimulatedNetwork::Dial(size_t from, size_t to, uint64_t port, bool idles, std::string hello, Dialled dialled) {
  world_.queue.At(world_.now() + Latency(), [=, this, give_up = world_.now() + kHandshakeNs]() mutable {
    TryDial(from, to, port, idles, std::move(hello), std::move(dialled), give_up);
  });
}

void SimulatedNetwork::TryDial(size_t from, size_t to, uint64_t port, bool idles, std::string hello, Dialled dialled,
                               int64_t give_up_ns) {
  const bool reaches = Reaches(from, to) && Reaches(to, from) && machines_[to].powered &&
                       machines_[to].paused_until_ns <= world_.now() && machines_[from].paused_until_ns <= world_.now();
  if (!reaches && world_.now() < give_up_ns) {
    world_.queue.At(world_.now() + kDialLooksNs, [=, this]() mutable {
      TryDial(from, to, port, idles, std::move(hello), std::move(dialled), give_up_ns);
    });
    return;
  }
  auto listener = listeners_.find({to, port});
  if (!reaches || listener == listeners_.end()) {
    world_.queue.At(world_.now() + Latency(), [reaches, dialled = std::move(dialled)] { dialled(nullptr, reaches); });
    return;
  }
  auto stream = std::make_shared<SimulatedStream>();
  stream->side[SimulatedStream::kDialler].machine = from;
  stream->side[SimulatedStream::kListener].machine = to;
  stream->idles = idles;
  std::erase_if(streams_, [](const auto& weak) { return weak.expired(); });
  streams_.push_back(stream);
  // The dialler hears nothing over the stream before it is told that the stream is there. If that is lost, it hears so.
  auto told = std::make_shared<bool>(false);
  auto fail = [told, dialled](bool) {
    if (!std::exchange(*told, true)) dialled(nullptr, false);
  };
  stream->side[SimulatedStream::kDialler].closed = fail;
  world_.queue.At(std::max(give_up_ns, world_.now()), [this, told, fail, stream] {
    if (*told) return;
    Close(stream, SimulatedStream::kDialler);
    fail(false);
  });
  Send(stream, SimulatedStream::kListener, {[stream, told, dialled] {
         if (!std::exchange(*told, true)) dialled(stream, false);
       }});
  const Listener listen = listener->second;
  if (!listen(stream, hello)) Close(stream, SimulatedStream::kListener);
}

void SimulatedNetwork::Send(const StreamPointer& stream, int from, Parcel parcel) {
  SimulatedStream::Side& to = stream->side[1 - from];
  if (stream->broken || !stream->side[from].open || !to.open) {
    if (parcel.kind != 0) world_.node_coverage.Met(parcel.kind, NetworkFault::kLost);
    return;
  }
  parcel.sent_ns = world_.now();
  if (parcel.kind != 0) world_.node_coverage.Met(parcel.kind);
  const int64_t extra = parcel.kind != 0 && world_.faulty() ? Strike(stream, from, parcel.kind) : 0;
  to.coming.push_back(std::move(parcel));
  Schedule(stream, 1 - from, world_.now() + Latency() + extra);
}

// A planned fault may strike the message that is about to be sent; the result is an extra delay.
int64_t SimulatedNetwork::Strike(const StreamPointer& stream, int from, size_t kind) {
  // It is sent so rarely that a plan hardly ever meets it: most nodes that are refused are told to come back later.
  static const size_t kRefused = NodeMessage(NodeRefused{}).index();
  if (kind == kRefused && world_.random.Chance(40)) {
    planned.push_back(
        {kind, static_cast<NetworkFault>(world_.random.Below(static_cast<uint64_t>(NetworkFault::kCount)))});
  }
  for (size_t i = 0; i < planned.size(); ++i) {
    if (planned[i].kind != kind || planned[i].after-- > 0) continue;
    const NetworkFault fault = planned[i].fault;
    planned.erase(planned.begin() + static_cast<ptrdiff_t>(i));
    world_.Note("strikes", kind, static_cast<uint64_t>(fault));
    const size_t sender = stream->side[from].machine, receiver = stream->side[1 - from].machine;
    const int64_t duration =
        static_cast<int64_t>(world_.random.Below(world_.random.Chance(60) ? 80 * kMs : 2'000 * kMs));
    const int64_t moment = static_cast<int64_t>(world_.random.Below(20'000));
    switch (fault) {
      case NetworkFault::kDelay:
        return 2 * kMs + static_cast<int64_t>(world_.random.Below(40 * kMs));
      case NetworkFault::kCrash:
        world_.queue.At(world_.now() + moment, [=, this] { crash(receiver); });
        break;
      case NetworkFault::kPause:
        Pause(receiver, world_.now() + duration);
        break;
      case NetworkFault::kCut:
        Cut(sender, receiver, world_.now() + duration);
        break;
      case NetworkFault::kLost:
        world_.queue.At(world_.now() + moment, [=, this] { Reset(stream); });
        break;
      case NetworkFault::kCount:
        break;
    }
    return 0;
  }
  return 0;
}

void SimulatedNetwork::Schedule(const StreamPointer& stream, int to, int64_t at_ns) {
  SimulatedStream::Side& side = stream->side[to];
  if (side.pump_at_ns != INT64_MAX) return;
  side.pump_at_ns = at_ns;
  world_.queue.At(at_ns, [this, stream, to] {
    stream->side[to].pump_at_ns = INT64_MAX;
    Pump(stream, to);
  });
}

void SimulatedNetwork::Lose(SimulatedStream::Side& side, NetworkFault fault) {
  for (const Parcel& parcel : side.coming) {
    if (parcel.kind != 0) world_.node_coverage.Met(parcel.kind, fault);
  }
  side.coming.clear();
}

void SimulatedNetwork::Pump(const StreamPointer& stream, int to) {
  SimulatedStream::Side& side = stream->side[to];
  const size_t from = stream->side[1 - to].machine;
  if (!side.open || !machines_[side.machine].powered) return Lose(side, NetworkFault::kCrash);
  if (machines_[side.machine].paused_until_ns > world_.now()) {
    for (const Parcel& parcel : side.coming) {
      if (parcel.kind != 0) world_.node_coverage.Met(parcel.kind, NetworkFault::kPause);
    }
    return Schedule(stream, to, machines_[side.machine].paused_until_ns + Latency());
  }
  if (!Reaches(from, side.machine)) {
    for (const Parcel& parcel : side.coming) {
      if (parcel.kind != 0) world_.node_coverage.Met(parcel.kind, NetworkFault::kCut);
    }
    return Schedule(stream, to, cut_until_ns_.at({from, side.machine}) + Latency());
  }
  if (side.coming.empty()) {
    if (side.ended) TellClosed(stream, to, true, 0);
    return;
  }
  Parcel parcel = std::move(side.coming.front());
  side.coming.pop_front();
  if (parcel.kind != 0 && world_.now() - parcel.sent_ns > 2 * kMs) {
    world_.node_coverage.Met(parcel.kind, NetworkFault::kDelay);
  }
  if (!side.coming.empty() || side.ended) Schedule(stream, to, world_.now() + 500 + world_.Delay() / 4);
  parcel.arrives();
}

// ---- ends ---------------------------------------------------------------------------------------------------------

void SimulatedNetwork::TellClosed(const StreamPointer& stream, int side, bool by_peer, int64_t delay_ns) {
  world_.queue.At(world_.now() + delay_ns, [this, stream, side, by_peer] {
    SimulatedStream::Side& own = stream->side[side];
    if (!own.open) return;
    const int64_t paused = machines_[own.machine].paused_until_ns;
    if (paused > world_.now()) return TellClosed(stream, side, by_peer, paused - world_.now() + Latency());
    Close(stream, side);
    if (own.closed && machines_[own.machine].powered) own.closed(by_peer);
  });
}

void SimulatedNetwork::Close(const StreamPointer& stream, int number, NetworkFault lost_by) {
  SimulatedStream::Side& side = stream->side[number];
  if (!side.open) return;
  side.open = false;
  SimulatedStream::Side& other = stream->side[1 - number];
  // What was not read makes the kernel reset it, and the other may then lose what it had not read either.
  const bool resets = !side.coming.empty() && world_.random.Chance(50);
  Lose(side, lost_by);
  if (!machines_[side.machine].powered) return Lose(other, NetworkFault::kCrash);
  if (resets) Lose(other, NetworkFault::kLost);
  other.ended = true;
  if (other.open) Schedule(stream, 1 - number, world_.now() + Latency());
}

void SimulatedNetwork::Reset(const StreamPointer& stream) {
  // What happens to the connections of a machine that stands still it hears too late: a gap (docs/simulation.md).
  for (const auto& side : stream->side) {
    if (machines_[side.machine].paused_until_ns > world_.now()) return;
  }
  world_.Note("reset", stream->side[0].machine, stream->side[1].machine);
  stream->broken = true;
  for (int side : {0, 1}) {
    SimulatedStream::Side& own = stream->side[side];
    if (!own.open) continue;
    Lose(own, NetworkFault::kLost);
    own.ended = true;
    TellClosed(stream, side, true, static_cast<int64_t>(world_.random.Below(kResetSkewNs)));
  }
}

void SimulatedNetwork::ResetSome() {
  std::vector<StreamPointer> open;
  for (const auto& weak : streams_) {
    auto stream = weak.lock();
    if (stream && stream->side[0].open && stream->side[1].open) open.push_back(std::move(stream));
  }
  if (!open.empty()) Reset(open[world_.random.Below(open.size())]);
}

void SimulatedNetwork::ResetAll(size_t a, size_t b) {
  for (const auto& weak : std::vector<std::weak_ptr<SimulatedStream>>(streams_)) {
    auto stream = weak.lock();
    if (!stream || !stream->side[0].open || !stream->side[1].open) continue;
    const size_t one = stream->side[0].machine, other = stream->side[1].machine;
    if ((one == a && other == b) || (one == b && other == a)) Reset(stream);
  }
}

void SimulatedNetwork::Cut(size_t from, size_t to, int64_t until_ns) {
  if (from == to) return;
  if (from == 0 || to == 0) world_.cluster->Trouble(from + to, until_ns);
  int64_t& cut = cut_until_ns_[{from, to}];
  if (cut <= world_.now()) silent_since_ns_[{from, to}] = world_.now();
  cut = std::max(cut, until_ns);
  LookForSilence(from, to);
}

// The side of a link that has heard nothing for so long ends it.
void SimulatedNetwork::LookForSilence(size_t from, size_t to) {
  world_.queue.At(world_.now() + kIdleNs, [this, from, to, since = world_.now()] {
    const Machine& sender = machines_[from];
    const bool silent = !Reaches(from, to) || sender.paused_until_ns > world_.now() || !sender.powered;
    if (!silent || silent_since_ns_[{from, to}] > since) return;
    for (const auto& weak : std::vector<std::weak_ptr<SimulatedStream>>(streams_)) {
      auto stream = weak.lock();
      if (!stream || !stream->idles) continue;
      for (int side : {0, 1}) {
        if (stream->side[side].machine != to || stream->side[1 - side].machine != from) continue;
        TellClosed(stream, side, false, static_cast<int64_t>(world_.random.Below(5 * kMs)));
      }
    }
  });
}

void SimulatedNetwork::Pause(size_t machine, int64_t until_ns) {
  if (until_ns <= world_.now()) return;
  Machine& paused = machines_[machine];
  world_.cluster->Trouble(machine, until_ns);
  paused.paused_until_ns = std::max(paused.paused_until_ns, until_ns);
  for (size_t other = 0; other < machines_.size(); ++other) {
    if (other == machine) continue;
    silent_since_ns_[{machine, other}] = world_.now();
    LookForSilence(machine, other);
  }
}

void SimulatedNetwork::SetPower(size_t machine, bool on) {
  machines_[machine].powered = on;
  if (on) {
    // A side that still believes in a connection from before learns otherwise when it next sends something.
    for (const auto& weak : streams_) {
      auto stream = weak.lock();
      if (!stream) continue;
      for (int side : {0, 1}) {
        if (stream->side[side].machine != machine || stream->side[side].open) continue;
        stream->side[1 - side].ended = true;
        if (stream->side[1 - side].open) Schedule(stream, 1 - side, world_.now() + Latency());
      }
    }
    return;
  }
  machines_[machine].paused_until_ns = 0;
  for (size_t other = 0; other < machines_.size(); ++other) {
    if (other == machine) continue;
    silent_since_ns_[{machine, other}] = world_.now();
    LookForSilence(machine, other);
  }
}

}  // namespace weft::core
