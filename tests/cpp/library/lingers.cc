// A driver whose task does not end, in a session of its own or in the cluster of WEFT_ADDRESS. The thread that calls
// init ends at once. Says "ready", or why not.
#include <weft/weft.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>

int one() { return 1; }
void linger() { std::this_thread::sleep_for(std::chrono::minutes(10)); }

int main() {
  weft::serve_if_worker();
  std::optional<weft::Session> session;
  std::thread([&] {
    try {
      session.emplace(weft::init());
    } catch (const weft::WeftError& error) {
      std::printf("%s\n", error.what());
    }
  }).join();
  if (!session) return 1;
  weft::get(weft::remote<one>());
  auto lingering = weft::remote<linger>();
  std::puts("ready");
  std::fflush(stdout);
  weft::get(lingering);
}
