// Random bytes from the kernel, for nonces, tokens and identities. Never for anything that a simulator runs.
#pragma once

#include <errno.h>
#include <sys/random.h>

#include <cstdint>
#include <span>

#include "base/check.h"

namespace weft::core {

inline void FillWithEntropy(std::span<uint8_t> bytes) {
  while (!bytes.empty()) {
    // Waits only while the machine is just booting and has no randomness yet.
    const ssize_t filled = ::getrandom(bytes.data(), bytes.size(), 0);
    if (filled < 0 && errno == EINTR) continue;
    WEFT_CHECK(filled > 0, "the kernel gives random bytes");
    bytes = bytes.subspan(static_cast<size_t>(filled));
  }
}

}  // namespace weft::core
