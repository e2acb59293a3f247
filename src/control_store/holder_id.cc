#include "control_store/holder_id.h"

#include <sys/random.h>

#include "base/check.h"

namespace weft::core {

std::string NewHolderId() {
  unsigned char bytes[16];
  WEFT_CHECK(::getrandom(bytes, sizeof bytes, 0) == sizeof bytes, "the kernel gives random bytes");
  std::string text;
  for (unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace weft::core
