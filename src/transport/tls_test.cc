// TLS on links where it goes wrong; link_test.cc runs what must work with TLS as without.
#include "transport/tls.h"

#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "os/socket.h"
#include "os/tcp.h"
#include "transport/test_certificates.h"
#include "transport/test_links.h"

namespace weft::core {
namespace {

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class TlsTest : public testing::Test {
 protected:
  std::shared_ptr<const TlsContext> Context(const std::string& name) { return *TlsContext::Load(ca_.Issue(name)); }
  // Both fail, and say so in those words.
  void ExpectRefused(RefusalKind at_dialler, const std::string& dialler_says, RefusalKind at_listener,
                     const std::string& listener_says) {
    ASSERT_FALSE(pair_.Connect());
    ASSERT_TRUE(pair_.Run([&] { return !pair_.refused.empty() && pair_.dialler.closed; }));
    EXPECT_EQ(pair_.dialler.link->refusal(), at_dialler) << pair_.dialler.why;
    EXPECT_TRUE(Has(pair_.dialler.why, dialler_says)) << pair_.dialler.why;
    EXPECT_EQ(pair_.refused[0].kind, at_listener) << pair_.refused[0].why;
    EXPECT_TRUE(Has(pair_.refused[0].why, listener_says)) << pair_.refused[0].why;
    EXPECT_FALSE(pair_.accepted.ready);
    ASSERT_TRUE(pair_.Run([&] { return pair_.listener->pending() == 0; }));
  }

  TestCertificates ca_;
  LinkPair pair_;
};

TEST_F(TlsTest, Files) {
  const TlsSettings good = ca_.Issue("good");
  const TlsSettings other = ca_.Issue("other");
  EXPECT_TRUE(TlsContext::Load(good).ok());
  std::ofstream(ca_.Path("garbage")) << "this is no PEM file\n";
  std::ofstream(ca_.Path("empty")) << "";
  const auto why = [](TlsSettings settings) {
    const auto context = TlsContext::Load(settings);
    return context.ok() ? "" : context.error().message;
  };
  EXPECT_TRUE(Has(why({good.certificate_file, good.key_file, ""}), "three files"));
  EXPECT_TRUE(Has(why({"", "", ""}), "three files"));
  for (const std::string& bad : {ca_.Path("missing"), ca_.Path("garbage"), ca_.Path("empty"), ca_.Path("")}) {
    EXPECT_TRUE(Has(why({bad, good.key_file, good.ca_file}), "certificate file '" + bad)) << bad;
    EXPECT_TRUE(Has(why({good.certificate_file, bad, good.ca_file}), "key file '" + bad)) << bad;
    EXPECT_TRUE(Has(why({good.certificate_file, good.key_file, bad}), "CA file '" + bad)) << bad;
  }
  EXPECT_TRUE(Has(why({ca_.Path("missing"), good.key_file, good.ca_file}), "No such file"));
  EXPECT_TRUE(Has(why({good.certificate_file, other.key_file, good.ca_file}), "key values mismatch"))
      << why({good.certificate_file, other.key_file, good.ca_file});
}

TEST_F(TlsTest, PlainDiallerTlsListener) {
  pair_.settings.tls = Context("listener");
  ExpectRefused(RefusalKind::kTlsWanted, "it wants TLS", RefusalKind::kTlsWanted, "speaks weft without TLS");
}

TEST_F(TlsTest, TlsDiallerPlainListener) {
  pair_.dial_settings.tls = Context("dialler");
  ExpectRefused(RefusalKind::kTlsNotWanted, "without TLS", RefusalKind::kTls, "it speaks TLS and we do not");
}

TEST_F(TlsTest, CertificateOfAnotherCa) {
  TestCertificates other;
  {
    TlsSettings settings = other.Issue("stranger");
    settings.ca_file = ca_.Path("ca.pem");  // trusts us, but is not trusted
    pair_.settings.tls = Context("listener");
    pair_.dial_settings.tls = *TlsContext::Load(settings);
    ASSERT_FALSE(pair_.Connect());
    ASSERT_TRUE(pair_.Run([&] { return !pair_.refused.empty(); }));
    EXPECT_EQ(pair_.refused[0].kind, RefusalKind::kTls);
    EXPECT_TRUE(Has(pair_.refused[0].why, "--tls-ca")) << pair_.refused[0].why;
    EXPECT_TRUE(Has(pair_.dialler.why, "TLS failed")) << pair_.dialler.why;
    EXPECT_TRUE(Has(pair_.dialler.why, "unknown ca") || Has(pair_.dialler.why, "decrypt error")) << pair_.dialler.why;
  }
  {
    LinkPair pair;
    pair.settings.tls = *TlsContext::Load(other.Issue("imposter"));
    pair.dial_settings.tls = Context("dialler");
    ASSERT_FALSE(pair.Connect());
    ASSERT_TRUE(pair.Run([&] { return !pair.refused.empty(); }));
    EXPECT_EQ(pair.dialler.link->refusal(), RefusalKind::kTls);
    EXPECT_TRUE(Has(pair.dialler.why, "--tls-ca")) << pair.dialler.why;
    EXPECT_TRUE(Has(pair.refused[0].why, "TLS failed")) << pair.refused[0].why;
  }
}

TEST_F(TlsTest, ExpiredCertificate) {
  pair_.settings.tls = *TlsContext::Load(ca_.Issue("expired", -10));
  pair_.dial_settings.tls = Context("dialler");
  ASSERT_FALSE(pair_.Connect());
  EXPECT_TRUE(Has(pair_.dialler.why, "expired")) << pair_.dialler.why;
}

// Clients of our own making, as the command line tools of others are.
struct BareClient {
  BareClient(uint16_t port, int max_version, const char* ca_file) : context(::SSL_CTX_new(::TLS_client_method())) {
    ::SSL_CTX_set_max_proto_version(context, max_version);
    ::SSL_CTX_load_verify_file(context, ca_file);
    ssl = ::SSL_new(context);
    auto made = BeginConnectTcp(ResolveTcp("127.0.0.1", port)->front());
    fd = std::move(*made);
    ::SSL_set_fd(ssl, fd.get());
    ::SSL_set_connect_state(ssl);
  }
  ~BareClient() {
    ::SSL_free(ssl);
    ::SSL_CTX_free(context);
  }
  // True once the other side has ended it.
  bool Ended() {
    char buffer[100];
    ::ERR_clear_error();
    const int result = ::SSL_read(ssl, buffer, sizeof buffer);
    if (result > 0) heard += result;
    const int error = ::SSL_get_error(ssl, result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return false;
    if (const unsigned long code = ::ERR_peek_error(); code != 0) why = ::ERR_reason_error_string(code);
    return true;
  }
  SSL_CTX* context;
  SSL* ssl;
  UniqueFd fd;
  int heard = 0;
  std::string why;
};

TEST_F(TlsTest, ClientsWithoutCertificateOrWithOldTls) {
  pair_.settings.tls = Context("listener");
  ASSERT_TRUE(pair_.Listen());
  BareClient nameless(pair_.listener->port(), TLS1_3_VERSION, ca_.Path("ca.pem").c_str());
  ASSERT_TRUE(pair_.Run([&] { return nameless.Ended(); }));
  EXPECT_EQ(nameless.heard, 0);
  EXPECT_TRUE(Has(nameless.why, "certificate required")) << nameless.why;
  BareClient old(pair_.listener->port(), TLS1_2_VERSION, ca_.Path("ca.pem").c_str());
  ASSERT_TRUE(pair_.Run([&] { return old.Ended(); }));
  EXPECT_TRUE(Has(old.why, "protocol version")) << old.why;
  ASSERT_EQ(pair_.refused.size(), 2u);
  for (const LinkPair::Refused& each : pair_.refused) EXPECT_EQ(each.kind, RefusalKind::kTls) << each.why;
}

TEST_F(TlsTest, BrowserAtATlsListener) {
  pair_.settings.tls = Context("listener");
  ASSERT_TRUE(pair_.Listen());
  auto fd = BeginConnectTcp(ResolveTcp("127.0.0.1", pair_.listener->port())->front());
  const std::string request = "GET / HTTP/1.1\r\nHost: evil\r\n\r\n";
  std::string heard;
  bool said = false;
  ASSERT_TRUE(pair_.Run([&] {
    if (!said) {
      said = TrySend(fd->get(), std::span(reinterpret_cast<const uint8_t*>(request.data()), request.size())).bytes > 0;
    }
    uint8_t buffer[1000];
    const IoOutcome outcome = TryRecv(fd->get(), buffer, sizeof buffer);
    heard.append(reinterpret_cast<char*>(buffer), outcome.bytes);
    return outcome.kind == IoOutcome::kClosed;
  }));
  EXPECT_EQ(heard, HttpAnswer());
  EXPECT_EQ(pair_.refused[0].kind, RefusalKind::kHttp);
}

TEST_F(TlsTest, Nonsense) {
  pair_.settings.tls = Context("listener");
  pair_.dial_settings.tls = Context("dialler");
  ASSERT_TRUE(pair_.Listen());
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    auto fd = BeginConnectTcp(ResolveTcp("127.0.0.1", pair_.listener->port())->front());
    ASSERT_TRUE(fd.ok());
    std::string bytes;
    if (random.Chance(80)) bytes += std::string("\x16\x03\x01", 3);
    if (random.Chance(50)) bytes += std::string("\x02\x00\x01\x00\x01\xfc\x03\x03", 8);
    for (uint64_t i = random.Below(2000); i > 0; --i) bytes += static_cast<char>(random.Next());
    const size_t part = 1 + random.Below(bytes.size() + 1);
    for (const std::string& each :
         {bytes.substr(0, std::min(part, bytes.size())), bytes.substr(std::min(part, bytes.size()))}) {
      (void)TrySend(fd->get(), std::span(reinterpret_cast<const uint8_t*>(each.data()), each.size()));
      int turns = 0;
      pair_.Run([&] { return turns++ > 1; });
    }
  }
  ASSERT_TRUE(pair_.Connect()) << pair_.dialler.why;
  EXPECT_EQ(pair_.more.size(), 0u);
}

// The bytes of a good session, changed on the way after it was established: the receiver ends it and shows nothing of
// it.
TEST_F(TlsTest, ChangedOnTheWay) {
  auto listener_context = Context("listener");
  auto dialler_context = Context("dialler");
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    TlsSession dialler(dialler_context, true);
    TlsSession listener(listener_context, false);
    const auto carry = [](TlsSession* from, TlsSession* to) {
      to->Feed(from->to_send());
      from->Sent(from->to_send().size());
    };
    IoOutcome::Kind a = IoOutcome::kWouldBlock, b = IoOutcome::kWouldBlock;
    for (int i = 0; i < 10 && (a != IoOutcome::kDone || b != IoOutcome::kDone); ++i) {
      a = dialler.Establish();
      carry(&dialler, &listener);
      b = listener.Establish();
      carry(&listener, &dialler);
    }
    ASSERT_EQ(a, IoOutcome::kDone) << dialler.why();
    ASSERT_EQ(b, IoOutcome::kDone) << listener.why();
    ASSERT_EQ(dialler.Binding(), listener.Binding());
    const std::string text = "a message of some length";
    ASSERT_TRUE(dialler.Write(std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size())));
    std::string cipher(dialler.to_send());
    const size_t at =
        5 + random.Below(cipher.size() - 5);  // behind the record's head, where it is certain to be noticed
    cipher[at] = static_cast<char>(cipher[at] ^ (1 << random.Below(8)));
    listener.Feed(cipher);
    uint8_t buffer[100];
    ASSERT_EQ(listener.Read(buffer, sizeof buffer).kind, IoOutcome::kClosed) << seed;
    ASSERT_FALSE(listener.why().empty());
  }
}

}  // namespace
}  // namespace weft::core
