#include "transport/tls.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace weft::core {
namespace {

// What OpenSSL says of its last failure, and an empty queue for the next.
std::string TakeReason() {
  std::string reason;
  while (const unsigned long code = ::ERR_get_error()) {
    if (!reason.empty()) continue;  // the first is the cause
    const char* text = ::ERR_reason_error_string(code);
    reason = text != nullptr ? text : "error " + std::to_string(code);
  }
  return reason.empty() ? "no reason given" : reason;
}

Error FileError(const char* what, const std::string& file) {
  if (::access(file.c_str(), R_OK) != 0) {
    return Error{ErrorKind::kInvalid,
                 std::string("cannot read the TLS ") + what + " file '" + file + "': " + strerror(errno)};
  }
  return Error{ErrorKind::kInvalid,
               std::string("the TLS ") + what + " file '" + file + "' cannot be used: " + TakeReason()};
}

// A key with a passphrase fails instead of asking on the terminal on which the daemon was started.
int NoPassphrase(char*, int, int, void*) { return 0; }

BIO* FromWire(const SSL* ssl) { return ::SSL_get_rbio(ssl); }
BIO* ToWire(const SSL* ssl) { return ::SSL_get_wbio(ssl); }

}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::Load(const TlsSettings& settings) {
  if (settings.certificate_file.empty() || settings.key_file.empty() || settings.ca_file.empty()) {
    return Error{ErrorKind::kInvalid,
                 "TLS needs three files: a certificate, its key, and the CA that both sides trust"};
  }
  ::ERR_clear_error();
  SSL_CTX* raw = ::SSL_CTX_new(::TLS_method());
  if (raw == nullptr) return Error{ErrorKind::kUnavailable, "OpenSSL cannot be used: " + TakeReason()};
  std::shared_ptr<const TlsContext> context(new TlsContext(raw));
  ::SSL_CTX_set_default_passwd_cb(raw, &NoPassphrase);
  ::SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION);
  // Sessions are not resumed: links are few and live long, and a resumed one would not show its certificate.
  ::SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_num_tickets(raw, 0);
  ::SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  ::SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS);
  if (::SSL_CTX_use_certificate_chain_file(raw, settings.certificate_file.c_str()) != 1) {
    return FileError("certificate", settings.certificate_file);
  }
  if (::SSL_CTX_use_PrivateKey_file(raw, settings.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    return FileError("key", settings.key_file);
  }
  if (::SSL_CTX_check_private_key(raw) != 1) return FileError("key", settings.key_file);
  if (::SSL_CTX_load_verify_file(raw, settings.ca_file.c_str()) != 1) return FileError("CA", settings.ca_file);
  return context;
}

TlsContext::~TlsContext() { ::SSL_CTX_free(context_); }

TlsSession::TlsSession(std::shared_ptr<const TlsContext> context, bool dialler)
    : context_(std::move(context)), ssl_(::SSL_new(context_->get())) {
  BIO* in = ::BIO_new(::BIO_s_mem());
  BIO* out = ::BIO_new(::BIO_s_mem());
  WEFT_CHECK(ssl_ != nullptr && in != nullptr && out != nullptr, "memory for a TLS session");
  ::SSL_set_bio(ssl_, in, out);
  if (dialler) {
    ::SSL_set_connect_state(ssl_);
  } else {
    ::SSL_set_accept_state(ssl_);
  }
}

TlsSession::~TlsSession() { ::SSL_free(ssl_); }

void TlsSession::Feed(std::string_view cipher_bytes) {
  const int taken = ::BIO_write(FromWire(ssl_), cipher_bytes.data(), static_cast<int>(cipher_bytes.size()));
  WEFT_CHECK(taken == static_cast<int>(cipher_bytes.size()), "a memory BIO takes everything");
}

std::string_view TlsSession::to_send() const {
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(ToWire(ssl_), &bytes);
  return size > 0 ? std::string_view(bytes, static_cast<size_t>(size)) : std::string_view();
}

void TlsSession::Sent(size_t bytes) {
  // A memory BIO has no other way to drop bytes than to read them.
  char dropped[16 * 1024];
  while (bytes > 0) {
    const int read = ::BIO_read(ToWire(ssl_), dropped, static_cast<int>(std::min(bytes, sizeof dropped)));
    WEFT_CHECK(read > 0, "what was sent lay in the BIO");
    bytes -= static_cast<size_t>(read);
  }
}

IoOutcome::Kind TlsSession::Judge(int result, const char* doing) {
  if (result > 0) return IoOutcome::kDone;
  switch (::SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return IoOutcome::kWouldBlock;
    case SSL_ERROR_ZERO_RETURN:  // the peer said goodbye
      return IoOutcome::kClosed;
    default:
      break;
  }
  const std::string reason = TakeReason();
  const long verified = ::SSL_get_verify_result(ssl_);
  why_ = std::string("TLS failed ") + doing + ": " + reason;
  if (verified != X509_V_OK) {
    const bool by_date = verified == X509_V_ERR_CERT_NOT_YET_VALID || verified == X509_V_ERR_CERT_HAS_EXPIRED;
    why_ += std::string(" (") + ::X509_verify_cert_error_string(verified) +
            (by_date ? "); check the clocks of both machines, and the dates of the certificates"
                     : "); all nodes need certificates of the CA in --tls-ca");
  }
  return IoOutcome::kClosed;
}

IoOutcome::Kind TlsSession::Establish() {
  ::ERR_clear_error();
  return Judge(::SSL_do_handshake(ssl_), "to establish");
}

IoOutcome TlsSession::Read(uint8_t* buffer, size_t size) {
  ::ERR_clear_error();
  size_t read = 0;
  const IoOutcome::Kind kind = Judge(::SSL_read_ex(ssl_, buffer, size, &read), "while receiving");
  return {kind, read, kind == IoOutcome::kClosed && !why_.empty() ? EPROTO : 0};
}

bool TlsSession::Write(std::span<const uint8_t> bytes) {
  ::ERR_clear_error();
  size_t written = 0;
  // Into memory, so it is all or an error.
  return Judge(::SSL_write_ex(ssl_, bytes.data(), bytes.size(), &written), "while sending") == IoOutcome::kDone;
}

void TlsSession::SayGoodbye() {
  ::ERR_clear_error();
  if (why_.empty()) ::SSL_shutdown(ssl_);
}

std::string TlsSession::Binding() const {
  static constexpr std::string_view kLabel = "EXPORTER-weft-link";
  std::string binding(32, '\0');
  const int done = ::SSL_export_keying_material(ssl_, reinterpret_cast<unsigned char*>(binding.data()), binding.size(),
                                                kLabel.data(), kLabel.size(), nullptr, 0, 0);
  WEFT_CHECK(done == 1, "an established TLS session exports keys");
  return binding;
}

}  // namespace weft::core
