#include "control_store/redis_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <charconv>

namespace weft::core {
namespace {

// The whole text is a number, at most `most`.
bool ParseNumber(std::string_view text, uint32_t most, uint32_t& number) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number <= most;
}

bool Decode(std::string_view text, std::string& out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    unsigned byte = 0;
    if (i + 3 > text.size()) return false;
    auto [end, error] = std::from_chars(text.data() + i + 1, text.data() + i + 3, byte, 16);
    if (error != std::errc() || end != text.data() + i + 3) return false;
    out += static_cast<char>(byte);
    i += 2;
  }
  return true;
}

// The message never contains the URL: it may hold a password.
StoreStatus Wrong(const std::string& what) {
  return {StoreCode::kInvalid,
          "the address of Redis " + what + "; it looks like redis://user:password@host:6379/0 or unix:///path/of.sock"};
}

}  // namespace

bool RedisAddress::IsLocal() const {
  if (host.empty()) return true;
  in_addr v4;
  in6_addr v6;
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  if (::inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return host == "localhost";
}

std::string RedisAddress::Describe() const {
  const std::string name = user.empty() ? std::string() : user + "@";
  const std::string number = database == 0 ? std::string() : std::to_string(database);
  if (host.empty()) return "unix://" + name + unix_path + (number.empty() ? "" : "?db=" + number);
  const bool v6 = host.find(':') != std::string::npos;
  return "redis://" + name + (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port) +
         (number.empty() ? "" : "/" + number);
}

StoreResult<RedisAddress> ParseRedisAddress(std::string_view url) {
  RedisAddress address;
  const size_t colon = url.find("://");
  const std::string_view scheme = url.substr(0, colon);
  if (colon == url.npos) return Wrong("has no scheme");
  if (scheme == "rediss") {
    return StoreStatus(StoreCode::kInvalid,
                       "weft does not speak TLS to Redis (rediss://); use redis:// inside a private network, or a "
                       "tunnel such as stunnel that ends on this machine");
  }
  if (scheme != "redis" && scheme != "unix") return Wrong("has an unknown scheme");
  std::string_view rest = url.substr(colon + 3);
  const size_t end = rest.find('/');
  if (const size_t at = rest.substr(0, end).rfind('@'); at != rest.npos) {
    const std::string_view who = rest.substr(0, at);
    const size_t split = who.find(':');
    if (!Decode(who.substr(0, split), address.user) ||
        (split != who.npos && !Decode(who.substr(split + 1), address.password))) {
      return Wrong("has a user or password with a wrong percent sign");
    }
    rest.remove_prefix(at + 1);
  }
  if (scheme == "unix") {
    if (const size_t query = rest.find('?'); query != rest.npos) {
      std::string_view option = rest.substr(query + 1);
      if (!option.starts_with("db=") || !ParseNumber(option.substr(3), 1'000'000, address.database)) {
        return Wrong("has an unknown option");
      }
      rest = rest.substr(0, query);
    }
    if (rest.empty() || rest[0] != '/') return Wrong("has no absolute path of a socket");
    if (rest.size() > 107) return Wrong("has a path of more than 107 bytes, which no unix socket can have");
    address.unix_path = rest;
    return address;
  }
  if (const size_t slash = rest.find('/'); slash != rest.npos) {
    std::string_view number = rest.substr(slash + 1);
    if (!number.empty() && !ParseNumber(number, 1'000'000, address.database))
      return Wrong("has a wrong database number");
    rest = rest.substr(0, slash);
  }
  if (rest.starts_with('[')) {
    const size_t close = rest.find(']');
    if (close == rest.npos) return Wrong("has a bracket that is not closed");
    address.host = rest.substr(1, close - 1);
    rest.remove_prefix(close + 1);
    if (!rest.empty() && rest[0] != ':') return Wrong("has something between host and port");
  } else {
    const size_t split = rest.find(':');
    address.host = rest.substr(0, split);
    rest = split == rest.npos ? std::string_view() : rest.substr(split);
  }
  if (address.host.empty() || address.host.find('\0') != std::string::npos) return Wrong("has no host");
  if (!rest.empty()) {
    uint32_t port = 0;
    if (!ParseNumber(rest.substr(1), 65'535, port) || port == 0) return Wrong("has a wrong port");
    address.port = static_cast<uint16_t>(port);
  }
  return address;
}

}  // namespace weft::core
