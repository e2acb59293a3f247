// One authenticated connection between two node daemons: handshake (transport/handshake.h), then messages and chunks.
//
// On the daemon's EventLoop, one thread. The owner calls Tick when NextDeadline has come, and is called through
// Handler, never from inside its own calls to Send, Close and so on. A Link may be destroyed in any callback about
// itself.
//
// A message is a uint32 length and so many bytes. A chunk is a message whose payload is read straight to where the
// receiver wants it (a segment) and sent straight from where it lies. A message of length 0 is a sign of life; the link
// sends and consumes them itself. A length that the peer announces is checked against max_message_bytes before anything
// is allocated.
//
// A Link does not connect again, does not route, and gives no receipt: messages that were queued when it ended may have
// arrived or not.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "os/event_loop.h"
#include "os/fd.h"
#include "os/tcp.h"
#include "transport/handshake.h"
#include "transport/tls.h"

namespace weft::core {

struct LinkSettings {
  std::string token;
  std::string cluster_id;                 // empty for a dialler that joins: then peer_cluster_id() says it
  std::shared_ptr<const TlsContext> tls;  // null: plain
  size_t max_queued_bytes = 64 << 20;
  size_t max_message_bytes = 16 << 20;
  int64_t handshake_timeout_ns = 10'000'000'000;  // connecting included
  // After so much silence the link ends; signs of life are sent four times as often. Both sides should have the same
  // value. 0: never.
  int64_t idle_timeout_ns = 0;
  uint32_t version = kProtocolVersion;
};

class LinkListener;

class Link {
 public:
  class Handler {
   public:
    // Authenticated. Only for a dialled link; an accepted one is ready when it is handed over (LinkListener).
    virtual void LinkReady(Link& link, std::string_view peer_hello) = 0;
    // The bytes are valid during the call only.
    virtual void LinkMessage(Link& link, std::string_view bytes) = 0;
    // Where to write the payload of a chunk: `payload_bytes` there must stay valid until LinkChunkEnded, LinkClosed or
    // DiscardChunk. Null: nowhere; it is read and dropped (LinkChunkEnded is called all the same).
    virtual uint8_t* LinkChunkBegan(Link&, std::string_view /*header*/, size_t /*payload_bytes*/) { return nullptr; }
    virtual void LinkChunkEnded(Link&, std::string_view /*header*/) {}
    // After Send returned kFull: less than half of the queue is left.
    virtual void LinkDrained(Link&) {}
    // The last call. link.refusal() says why a handshake failed (kNone: it had succeeded).
    virtual void LinkClosed(Link& link, const Error& why) = 0;

   protected:
    ~Handler() = default;
  };

  // Resolves the host, which may block if it is a name, and tries its addresses one after the other.
  static Result<std::unique_ptr<Link>> Dial(EventLoop& loop, const std::string& host, uint16_t port,
                                            const LinkSettings& settings, std::string hello, Handler& handler);
  static Result<std::unique_ptr<Link>> Dial(EventLoop& loop, std::vector<TcpAddress> addresses,
                                            const LinkSettings& settings, std::string hello, Handler& handler);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  void set_handler(Handler& handler) { handler_ = &handler; }

  enum class SendOutcome : uint8_t {
    kSent,      // or queued
    kFull,      // over max_queued_bytes: nothing was queued; LinkDrained will follow. An empty queue takes any message.
    kTooLarge,  // over max_message_bytes, or empty: never
    kClosed,    // not ready yet, or no longer
  };
  // Sends what the socket takes at once, and the rest when it is writable.
  [[nodiscard]] SendOutcome Send(std::string_view bytes);
  // The header (1 to kMaxChunkHeaderBytes) is copied, the payload is not: `keeper` keeps it alive, and is dropped when
  // it has been sent or the link is gone.
  [[nodiscard]] SendOutcome SendChunk(std::string_view header, std::span<const uint8_t> payload,
                                      std::shared_ptr<const void> keeper);
  static constexpr size_t kMaxChunkHeaderBytes = 4096;
  // While corked, Send only queues: for several messages in one system call. Uncorking sends.
  void Cork(bool corked);
  size_t queued_bytes() const { return queued_bytes_; }

  // Stops after the present message, until resumed or the peer is gone. For a receiver that cannot keep up.
  void PauseReading(bool paused);
  // There is no longer a place for the payload of the chunk that is being received; drops the rest of it.
  void DiscardChunk();

  // Ends without a callback; queued messages are lost. CloseWhenSent receives nothing more, waits until the queue has
  // been sent and the peer has seen the end (or some seconds), and ends with LinkClosed (kGone, "closed by us").
  void Close();
  void CloseWhenSent();

  // For a connection that becomes a channel between two processes: gives the socket away, after the handshake and
  // before any message. Call it in LinkReady or LinkAccepted, or later if you called PauseReading there. The link of a
  // plain connection is then closed without a callback. With TLS the descriptor is one end of a socket pair, and
  // the link must be kept, with a handler: it relays until either side ends (LinkClosed).
  Result<UniqueFd> ReleaseSocket();

  bool ready() const { return state_ == State::kOpen; }
  RefusalKind refusal() const { return refusal_; }
  // For a dialled link that could not be made: the machine answers, and no process listens at that port.
  bool nobody_listens() const { return nobody_listens_; }
  const std::string& peer_cluster_id() const { return peer_cluster_id_; }
  // Text like "10.0.0.1:6380"; the peer's address is the one that was dialled, or from which it dialled.
  const std::string& peer_address() const { return peer_address_; }
  std::string local_address() const;

  // When Tick is needed: for time-outs, and things that wait for the next turn. INT64_MAX: never.
  int64_t NextDeadline() const;
  void Tick(int64_t now_ns);

 private:
  friend class LinkListener;
  enum class State : uint8_t {
    kConnecting,
    kTls,  // in the TLS handshake
    kHandshake,
    kOpen,
    kClosing,    // CloseWhenSent
    kLingering,  // refused; gives the peer time to read why
    kRelaying,
    kClosed,
  };
  enum class Stage : uint8_t { kPrefix, kBody, kChunkPrefix, kChunkHeader, kChunkPayload };
  struct Outgoing {
    std::string bytes;
    std::span<const uint8_t> payload;  // after the bytes
    std::shared_ptr<const void> keeper;
    size_t sent = 0;
    size_t size() const { return bytes.size() + payload.size(); }
  };

  Link(EventLoop& loop, const LinkSettings& settings, std::string hello, Handler* handler, LinkListener* listener);
  static std::unique_ptr<Link> Accept(EventLoop& loop, UniqueFd socket, std::string peer_address,
                                      const LinkSettings& settings, std::string hello, LinkListener& listener);

  Status Watch();
  void UpdateWatch();
  void HandleEvents(uint32_t events);
  Status ConnectNext();
  void FinishConnecting();
  void BeginHandshake();
  void DriveTls();
  bool JudgeFirstBytes();
  void DriveHandshake();
  void EndHandshake();
  void EnterOpen();
  bool waits_for_turn() const { return state_ == State::kOpen && !paused_ && (unread_ || !stash_.empty()); }
  bool ReadMessages();  // false: more may wait in the socket, or it is over
  void Parse(std::span<const uint8_t> bytes);
  void FinishPart();
  void Expect(Stage stage, uint8_t* target, size_t bytes);
  SendOutcome CheckRoom(size_t message_bytes);
  void QueueRaw(std::string bytes);
  void Flush();
  IoOutcome FlushPlain();
  IoOutcome FlushTls();
  void Advance(size_t sent);
  IoOutcome ReadSome(uint8_t* buffer, size_t size);
  IoOutcome FillTls();
  void Relay(bool wire_hung_up, bool process_hung_up);
  void PassToProcess();
  bool all_sent() const { return queued_bytes_ == 0 && (tls_ == nullptr || tls_->to_send().empty()); }
  void DriveClosing();
  void Linger();
  void Fail(Error why);
  void Release();

  EventLoop& loop_;
  const LinkSettings settings_;
  std::string hello_;
  Handler* handler_;
  LinkListener* listener_;  // until it has handed us over
  std::string peer_address_;
  std::vector<TcpAddress> to_try_;  // when connecting; the last one first

  UniqueFd socket_;
  EventLoop::WatchId watch_ = 0;
  State state_ = State::kConnecting;
  std::unique_ptr<Handshake> handshake_;
  std::unique_ptr<TlsSession> tls_;
  std::string first_bytes_;  // until they tell whether the peer speaks TLS at all
  bool peer_speaks_tls_ = false;
  RefusalKind refusal_ = RefusalKind::kNone;
  bool nobody_listens_ = false;
  std::string peer_cluster_id_;
  int64_t deadline_ns_ = INT64_MAX;
  int64_t last_heard_ns_ = 0;
  int64_t last_said_ns_ = 0;

  // Sending.
  std::deque<Outgoing> queue_;
  size_t queued_bytes_ = 0;
  bool corked_ = false;
  bool was_full_ = false;
  bool send_failed_ = false;  // the loop will tell

  // Receiving.
  Stage stage_ = Stage::kPrefix;
  uint8_t prefix_[4];
  uint8_t* target_ = prefix_;  // null: dropped
  size_t missing_ = sizeof prefix_;
  size_t message_bytes_ = 0;
  std::unique_ptr<uint8_t[]> body_;
  std::string chunk_header_;
  std::string stash_;  // read, but not handled before the pause
  bool paused_ = false;
  bool unread_ = false;  // the TLS session may hold bytes, of which no event tells

  bool shut_down_ = false;  // nothing more will be sent
  size_t lingered_bytes_ = 0;
  // Relaying between the wire and a process, whose end of the pair has the other descriptor.
  UniqueFd relay_;
  EventLoop::WatchId relay_watch_ = 0;
  std::string to_process_;
  bool wire_ended_ = false;
  bool process_ended_ = false;

  const std::shared_ptr<bool> destroyed_ = std::make_shared<bool>(false);  // seen by code in a callback
};

}  // namespace weft::core
