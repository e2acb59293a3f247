// For tests: a CA and certificates of it, as PEM files in a folder that goes with the object.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "base/check.h"
#include "transport/tls.h"

namespace weft::core {

class TestCertificates {
 public:
  TestCertificates() {
    char name[] = "/tmp/weft-tls-test-XXXXXX";
    WEFT_CHECK(::mkdtemp(name) != nullptr, "a folder for certificates");
    folder_ = name;
    key_ = ::EVP_EC_gen("P-256");
    certificate_ = Sign(key_, "weft test CA", true, key_, nullptr);
    WriteCertificate(Path("ca.pem"), certificate_);
  }
  ~TestCertificates() {
    ::X509_free(certificate_);
    ::EVP_PKEY_free(key_);
    std::filesystem::remove_all(folder_);
  }
  TestCertificates(const TestCertificates&) = delete;
  TestCertificates& operator=(const TestCertificates&) = delete;

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  // A certificate of this CA under that name.
  TlsSettings Issue(const std::string& name, int64_t valid_seconds = 3600) {
    EVP_PKEY* key = ::EVP_EC_gen("P-256");
    X509* certificate = Sign(key, name, false, key_, certificate_, valid_seconds);
    WriteCertificate(Path(name + ".pem"), certificate);
    FILE* file = ::fopen(Path(name + ".key").c_str(), "w");
    WEFT_CHECK(::PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr) == 1, "a key is written");
    ::fclose(file);
    ::X509_free(certificate);
    ::EVP_PKEY_free(key);
    return {Path(name + ".pem"), Path(name + ".key"), Path("ca.pem")};
  }

 private:
  static X509* Sign(EVP_PKEY* key, const std::string& name, bool ca, EVP_PKEY* issuer_key, X509* issuer,
                    int64_t valid_seconds = 3600) {
    X509* certificate = ::X509_new();
    ::X509_set_version(certificate, 2);
    static long serial = 1;
    ::ASN1_INTEGER_set(::X509_get_serialNumber(certificate), serial++);
    ::X509_gmtime_adj(::X509_getm_notBefore(certificate), -3600);
    ::X509_gmtime_adj(::X509_getm_notAfter(certificate), valid_seconds);
    ::X509_set_pubkey(certificate, key);
    X509_NAME* subject = ::X509_get_subject_name(certificate);
    ::X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name.c_str()), -1,
                                 -1, 0);
    ::X509_set_issuer_name(certificate, issuer != nullptr ? ::X509_get_subject_name(issuer) : subject);
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    ::X509V3_set_ctx(&context, issuer != nullptr ? issuer : certificate, certificate, nullptr, nullptr, 0);
    X509_EXTENSION* extension =
        ::X509V3_EXT_conf_nid(nullptr, &context, NID_basic_constraints, ca ? "critical,CA:TRUE" : "CA:FALSE");
    ::X509_add_ext(certificate, extension, -1);
    ::X509_EXTENSION_free(extension);
    WEFT_CHECK(::X509_sign(certificate, issuer_key, ::EVP_sha256()) > 0, "a certificate is signed");
    return certificate;
  }
  static void WriteCertificate(const std::string& path, X509* certificate) {
    FILE* file = ::fopen(path.c_str(), "w");
    WEFT_CHECK(file != nullptr && ::PEM_write_X509(file, certificate) == 1, "a certificate is written");
    ::fclose(file);
  }

  std::string folder_;
  EVP_PKEY* key_;
  X509* certificate_;
};

}  // namespace weft::core
