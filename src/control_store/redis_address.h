// Where a Redis server is, and as which user to connect.
//
//   redis://[user[:password]@]host[:port][/db]      host may be [::1]; user and password may be percent-encoded
//   unix://[user[:password]@]/path/of.sock[?db=N]
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "control_store/control_store.h"

namespace weft::core {

struct RedisAddress {
  std::string host;  // empty: unix_path
  uint16_t port = 6379;
  std::string unix_path;
  std::string user;  // empty: the default one
  std::string password;
  uint32_t database = 0;

  bool IsLocal() const;          // a unix socket, or a loopback address or name: not reachable from other machines
  std::string Describe() const;  // for messages: without the password
};

StoreResult<RedisAddress> ParseRedisAddress(std::string_view url);

}  // namespace weft::core
