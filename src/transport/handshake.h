// How two node daemons authenticate each other before they talk. Pure: bytes in, bytes out, a verdict; no socket, clock
// or random numbers inside (nonces come from the caller).
//
// Both know the cluster's token; it never travels. Each side picks a nonce of 32 bytes, and proves with HMAC-SHA256
// over everything said so far (both nonces, both cluster ids, versions, kinds of message) that it has the token:
//
//   dialler                                      listener
//   Opening(nonce, cluster id)          ->
//                                       <-       Challenge(nonce, cluster id, proof)
//   Proof(proof)                        ->
//   DiallerHello(hello, proof)          ->
//                                       <-       ListenerHello(hello, proof)
//
// Nothing can be replayed (every proof covers fresh nonces of both sides) or reflected (it also covers the kind of
// message, which only one side sends). A hello has up to 64 kB that the machine does not interpret; it is read only
// after the peer has proved that it has the token. Until then a peer costs less than a kilobyte.
//
// The machine never asks for bytes beyond the handshake (wanted()), so that the socket can then be given away as it is.
// Without TLS this guards against strangers, not against an attacker on the wire who changes what is sent afterwards.
// With TLS, `binding` ties the proofs to the one TLS connection.
//
// Called by Link, on the loop thread. docs/formats.md has the bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "os/hmac.h"
#include "wire/messages.h"

namespace weft::core {

enum class RefusalKind : uint8_t {
  kNone = 0,
  kWrongToken = 1,  // travel in a Refusal message, so the numbers stay
  kWrongCluster = 2,
  kWrongVersion = 3,
  kTlsWanted = 4,     // the listener speaks TLS only
  kTlsNotWanted = 5,  // the listener does not speak TLS
  kMalformed = 6,     // from a weft that sends what no correct one sends; or bytes were changed on the way
  kBusy = 7,          // dropped to make room, or is shutting down
  kNotWeft = 32,      // this and the following are detected, never sent
  kHttp = 33,
  kTls = 34,
  kTooSlow = 35,
  kClosed = 36,  // the connection ended before the handshake did, or could not be made
};

struct HandshakeSettings {
  std::string token;       // not empty
  std::string cluster_id;  // at most kMaxClusterIdBytes; a dialler that does not know it yet leaves it empty
  uint32_t version = kProtocolVersion;
  std::string binding;  // what both ends know of the one connection that carries this; empty without TLS
};

// What the first bytes of a connection are, if not ours. kNone: they are ours, or there are too few to say.
RefusalKind ClassifyFirstBytes(std::string_view bytes);

// A whole Refusal message, for when the handshake has not begun: a plain peer at a TLS listener and the reverse.
std::string EncodeRefusal(RefusalKind kind, uint32_t version = kProtocolVersion);
// The answer to a browser.
std::string HttpAnswer();

class Handshake {
 public:
  enum class Role : uint8_t { kDialler, kListener };
  enum class State : uint8_t { kRunning, kDone, kRefused };
  static constexpr size_t kMaxClusterIdBytes = 64;
  static constexpr size_t kMaxHelloBytes = 64 * 1024;
  static constexpr size_t kHeadBytes = 20;

  // `peer` is for messages only: "10.0.0.1:6380".
  Handshake(Role role, HandshakeSettings settings, const Sha256Bytes& nonce, std::string hello, std::string peer);

  State state() const { return state_; }
  // At most so many bytes may be fed now; never more than the handshake's own. 0 once it is decided.
  size_t wanted() const;
  void Feed(std::string_view bytes);
  // The bytes to send, in any state: a refusal tells the peer why.
  std::string TakeOutput() { return std::exchange(output_, {}); }

  // Other ways for a running handshake to end. After a decision they change nothing.
  void TimedOut(int64_t after_ns);
  void PeerClosed(const std::string& how);
  void DroppedForOthers();

  RefusalKind refusal() const { return refusal_; }
  Error error() const;  // of a refused one
  const std::string& peer_hello() const { return peer_hello_; }
  const std::string& peer_cluster_id() const { return peer_cluster_id_; }

 private:
  enum class Kind : uint8_t { kOpening = 1, kChallenge, kProof, kDiallerHello, kListenerHello, kRefusal };

  void HandleFirstBytes();
  bool HandleHead();
  void HandleMessage();
  void Say(Kind kind, std::string_view fields);
  std::string ProofOf(std::string_view message) const;
  bool CheckProof();
  void TakeRefusal();
  void Refuse(RefusalKind kind, std::string why, bool tell = true);
  std::string WrongTokenText() const;

  const Role role_;
  const HandshakeSettings settings_;
  const std::string nonce_;
  std::string hello_;
  const std::string peer_;

  State state_ = State::kRunning;
  Kind expected_;
  std::string input_;       // the message that is being received: head, then body
  size_t body_bytes_ = 0;   // of that message, once its head is whole
  std::string transcript_;  // every message so far, whole, in the order of the conversation
  std::string output_;
  std::string peer_hello_;
  std::string peer_cluster_id_;
  bool heard_ = false;  // a whole message head of a weft
  RefusalKind refusal_ = RefusalKind::kNone;
  std::string why_;
};

}  // namespace weft::core
