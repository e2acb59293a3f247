// For tests: a listener and dialled links on one loop, and handlers that record their calls.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "os/event_loop.h"
#include "transport/link.h"
#include "transport/link_listener.h"

namespace weft::core {

struct LinkEnd : Link::Handler {
  std::unique_ptr<Link> link;
  std::string hello;
  bool ready = false;
  bool closed = false;
  bool drained = false;
  std::string why;
  ErrorKind kind{};
  std::vector<std::string> messages;
  std::vector<std::pair<std::string, std::string>> chunks;  // header, payload
  std::string chunk;
  std::function<void(Link&, std::string_view)> on_message;
  std::function<void(Link&)> on_ready;
  std::function<void()> on_closed;
  std::function<void()> around_chunk;  // and after one
  bool refuse_chunks = false;

  void LinkReady(Link& ready_link, std::string_view peer_hello) override {
    ready = true;
    hello = peer_hello;
    if (on_ready) on_ready(ready_link);
  }
  void LinkMessage(Link& from, std::string_view bytes) override {
    messages.emplace_back(bytes);
    if (on_message) on_message(from, bytes);
  }
  uint8_t* LinkChunkBegan(Link&, std::string_view, size_t payload_bytes) override {
    if (around_chunk) around_chunk();
    if (refuse_chunks) return nullptr;
    chunk.assign(payload_bytes, '\0');
    return reinterpret_cast<uint8_t*>(chunk.data());
  }
  void LinkChunkEnded(Link&, std::string_view header) override {
    chunks.emplace_back(header, std::move(chunk));
    chunk.clear();
    if (around_chunk) around_chunk();
  }
  void LinkDrained(Link&) override { drained = true; }
  void LinkClosed(Link&, const Error& error) override {
    closed = true;
    why = error.message;
    kind = error.kind;
    if (on_closed) on_closed();
  }
};

struct LinkPair : LinkListener::AcceptHandler {
  struct Refused {
    std::string peer;
    RefusalKind kind;
    std::string why;
  };

  LinkPair() : loop(std::move(*EventLoop::Create())) {
    settings.token = "0123456789abcdef0123456789abcdef";
    settings.cluster_id = "testing";
    dial_settings = settings;
  }
  bool Listen(size_t max_pending = LinkListener::kMaxPending) {
    auto made = LinkListener::Listen(loop, "127.0.0.1", 0, settings, "listener's hello", *this, max_pending);
    if (made) listener = std::move(*made);
    return listener != nullptr;
  }
  bool Dial(LinkEnd* end) {
    auto made = Link::Dial(loop, "127.0.0.1", listener->port(), dial_settings, "dialler's hello", *end);
    if (made) end->link = std::move(*made);
    return end->link != nullptr;
  }
  // A listener, a dialler, and both ready.
  bool Connect() {
    return (listener != nullptr || Listen()) && Dial(&dialler) &&
           Run([&] { return dialler.closed || (dialler.ready && accepted.ready); }) && !dialler.closed;
  }
  // Turns the loop until the condition holds; false after 20 seconds.
  bool Run(const std::function<bool()>& condition) {
    const int64_t give_up_ns = NowNs() + 20'000'000'000;
    while (!condition()) {
      if (NowNs() > give_up_ns) return false;
      int64_t next = NowNs() + 1'000'000;
      if (listener) next = std::min(next, listener->NextDeadline());
      for (LinkEnd* end : ends()) next = std::min(next, end->link->NextDeadline());
      loop.Wait(next);
      if (listener) listener->Tick(NowNs());
      for (LinkEnd* end : ends()) end->link->Tick(NowNs());
    }
    return true;
  }
  std::vector<LinkEnd*> ends() {
    std::vector<LinkEnd*> all;
    for (LinkEnd* end : {&dialler, &accepted}) {
      if (end->link != nullptr) all.push_back(end);
    }
    for (LinkEnd& end : more) {
      if (end.link != nullptr) all.push_back(&end);
    }
    return all;
  }

  void LinkAccepted(std::unique_ptr<Link> link, std::string_view peer_hello) override {
    LinkEnd* end = &accepted;
    if (accepted.ready) end = &more.emplace_back();
    end->link = std::move(link);
    end->link->set_handler(*end);
    end->LinkReady(*end->link, peer_hello);
  }
  void LinkRefused(const std::string& peer, RefusalKind kind, const Error& why) override {
    refused.push_back({peer, kind, why.message});
  }

  EventLoop loop;
  LinkSettings settings;
  LinkSettings dial_settings;
  std::unique_ptr<LinkListener> listener;
  LinkEnd dialler;
  LinkEnd accepted;
  std::list<LinkEnd> more;
  std::vector<Refused> refused;
};

}  // namespace weft::core
