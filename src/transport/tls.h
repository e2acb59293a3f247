// TLS 1.3 for links, without a socket: bytes of the wire in and out, bytes of the link in and out. Link moves both, so
// the event loop stays in charge.
//
// Both sides show a certificate that the CA file vouches for; there is no mode in which only one does. Names in
// certificates are not checked: nodes come and go under addresses that are not known beforehand, and a node with a
// certificate of this CA and the cluster's token is a member.
//
// TlsContext is made once and shared. TlsSession belongs to one connection; one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "os/socket.h"

typedef struct ssl_ctx_st SSL_CTX;
typedef struct ssl_st SSL;

namespace weft::core {

struct TlsSettings {  // PEM files; all three or none
  std::string certificate_file;
  std::string key_file;
  std::string ca_file;

  bool enabled() const { return !certificate_file.empty() || !key_file.empty() || !ca_file.empty(); }
};

class TlsContext {
 public:
  // The error names the file and what is wrong with it.
  static Result<std::shared_ptr<const TlsContext>> Load(const TlsSettings& settings);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  SSL_CTX* get() const { return context_; }

 private:
  explicit TlsContext(SSL_CTX* context) : context_(context) {}
  SSL_CTX* context_;
};

class TlsSession {
 public:
  TlsSession(std::shared_ptr<const TlsContext> context, bool dialler);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // From the wire.
  void Feed(std::string_view cipher_bytes);
  // To the wire: the first of them is to be sent next.
  std::string_view to_send() const;
  void Sent(size_t bytes);

  // Continues the TLS handshake as far as the bytes allow. kDone: established; kClosed: failed, why() says it.
  IoOutcome::Kind Establish();
  // Like TryRecv and TrySend on the established session. Write accepts everything.
  IoOutcome Read(uint8_t* buffer, size_t size);
  bool Write(std::span<const uint8_t> bytes);
  void SayGoodbye();

  // A secret of this one connection that only its two ends know.
  std::string Binding() const;
  const std::string& why() const { return why_; }

 private:
  IoOutcome::Kind Judge(int result, const char* doing);

  std::shared_ptr<const TlsContext> context_;
  SSL* ssl_;
  std::string why_;
};

}  // namespace weft::core
