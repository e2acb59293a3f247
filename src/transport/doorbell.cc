#include "transport/doorbell.h"

namespace weft::core {
namespace {

Result<std::shared_ptr<Mapping>> MapPage(int fd) {
  if (Status status = CheckSealedMemfd(fd, kDoorbellPageBytes); !status) return status.error();
  auto mapping = Mapping::Map(fd, kDoorbellPageBytes, Mapping::Access::kReadWrite);
  if (!mapping) return mapping.error();
  return std::make_shared<Mapping>(std::move(*mapping));
}

DoorbellPage* PageOf(const Mapping& memory) { return reinterpret_cast<DoorbellPage*>(memory.data()); }

Result<std::shared_ptr<Mapping>> MapDoorbell(int fd) {
  auto memory = MapPage(fd);
  if (memory && PageOf(**memory)->magic != DoorbellPage::kMagic) {
    return Error{ErrorKind::kInvalid, "the shared memory that was received is not a doorbell page"};
  }
  return memory;
}

}  // namespace

Result<UniqueFd> CreateDoorbellPage() {
  auto fd = CreateMemfd("doorbell", kDoorbellPageBytes);
  if (!fd) return fd;
  auto memory = MapPage(fd->get());
  if (!memory) return memory.error();
  // All else starts as zero, which means awake, unarmed and silent.
  PageOf(**memory)->magic = DoorbellPage::kMagic;
  return fd;
}

Result<std::unique_ptr<Doorbell>> Doorbell::Open(int fd) {
  auto memory = MapDoorbell(fd);
  if (!memory) return memory.error();
  return std::make_unique<Doorbell>(std::move(*memory));
}

Doorbell::Doorbell(std::shared_ptr<Mapping> memory) : memory_(std::move(memory)), page_(PageOf(*memory_)) {}

SleepOutcome Doorbell::SleepPublished(WaiterState kind, int64_t deadline_ns) {
  const FutexOutcome outcome = FutexWait(&page_->waiter_state, static_cast<uint32_t>(kind), deadline_ns);
  const uint32_t state = page_->waiter_state.exchange(static_cast<uint32_t>(WaiterState::kAwake));
  // Woken and out of time at once counts as woken: another thread has spent a wake-up on us.
  if (state != static_cast<uint32_t>(kind) || outcome == FutexOutcome::kWoken) return SleepOutcome::kWoken;
  return outcome == FutexOutcome::kTimedOut ? SleepOutcome::kTimedOut : SleepOutcome::kInterrupted;
}

SleepOutcome Doorbell::SleepAsBackground(int64_t deadline_ns) {
  uint32_t signal = DoorbellPage::kNone;
  if (!page_->background_signal.compare_exchange_strong(signal, DoorbellPage::kAsleep)) {
    page_->background_signal.exchange(DoorbellPage::kNone);  // it came before we slept
    return SleepOutcome::kWoken;
  }
  const FutexOutcome outcome = FutexWait(&page_->background_signal, DoorbellPage::kAsleep, deadline_ns);
  signal = page_->background_signal.exchange(DoorbellPage::kNone);
  if (signal != DoorbellPage::kAsleep || outcome == FutexOutcome::kWoken) return SleepOutcome::kWoken;
  return outcome == FutexOutcome::kTimedOut ? SleepOutcome::kTimedOut : SleepOutcome::kInterrupted;
}

Result<std::shared_ptr<PeerDoorbell>> PeerDoorbell::Open(int fd) {
  auto memory = MapDoorbell(fd);
  if (!memory) return memory.error();
  return std::make_shared<PeerDoorbell>(std::move(*memory));
}

PeerDoorbell::PeerDoorbell(std::shared_ptr<Mapping> memory) : memory_(std::move(memory)), page_(PageOf(*memory_)) {}

void PeerDoorbell::Adopt(uint32_t slot) {
  const uint32_t word = (slot / 64) % DoorbellPage::kWords;
  for (Audience audience : {Audience::kExecutor, Audience::kAnyone}) {
    auto& rung = page_->rung[static_cast<int>(audience)];
    if ((rung.words[word].load() & (uint64_t{1} << (slot % 64))) == 0) continue;
    rung.summary.fetch_or(uint64_t{1} << word);
    WakeFor<Uninterrupted>(audience);
  }
}

void PeerDoorbell::WakeAll() {
  page_->waiter_state.exchange(static_cast<uint32_t>(WaiterState::kAwake));
  FutexWake(&page_->waiter_state);
  page_->background_signal.exchange(DoorbellPage::kSignalled);
  FutexWake(&page_->background_signal);
}

}  // namespace weft::core
