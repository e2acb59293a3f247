// A parameter server with several shards: each is an actor that holds a part of the weights, and workers, actors too,
// hold a part of the data.
//
// A worker asks all shards for their weights, computes a gradient from the data that it keeps, and sends each shard its
// part. In rounds (synchronous), a shard adds up the gradients of all workers and makes one step with their mean; the
// driver begins the next round when all are done. Without rounds (asynchronous), a shard applies each gradient as it
// comes, and no worker waits for another. The model is linear regression with a thousand weights, so that the result
// can be compared with the truth.
#include <weft/weft.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

constexpr size_t kShards = 2, kWeightsPerShard = 500, kWorkers = 3, kExamples = 800, kRounds = 100;

using Vector = weft::Array<double>;

class Shard {
 public:
  // A step is made of the mean of so many gradients: those of all workers, or each one by itself.
  explicit Shard(size_t gradients_per_step) : gradients_per_step_(gradients_per_step) {}

  // The weights as they are now, by reference. A version is copied into shared memory once, for the first worker that
  // asks; all workers look at the same bytes, and they are freed when the last one has let go.
  weft::Ref<Vector> weights() {
    if (!published_) {
      Vector copy = weft::empty<double>(weights_.size());
      std::copy(weights_.begin(), weights_.end(), copy.begin());
      published_ = weft::put(std::move(copy));
    }
    return *published_;
  }

  void push(std::span<const double> gradient) {  // read where the worker wrote it, and added up in place
    for (size_t i = 0; i < sum_.size(); ++i) sum_[i] += gradient[i];
    if (++summed_ < gradients_per_step_) return;
    const double rate = kRate / static_cast<double>(kWorkers);  // so that a round is the same step in both ways
    for (size_t i = 0; i < sum_.size(); ++i) weights_[i] -= rate * std::exchange(sum_[i], 0);
    summed_ = 0;
    published_.reset();
  }

 private:
  static constexpr double kRate = 0.2;
  size_t gradients_per_step_, summed_ = 0;
  std::vector<double> weights_ = std::vector<double>(kWeightsPerShard), sum_ = weights_;
  std::optional<weft::Ref<Vector>> published_;  // none if the weights have changed since
};

double true_weight(size_t i) { return std::sin(static_cast<double>(i)); }

class Worker {
 public:
  Worker(int seed, std::vector<weft::Actor<Shard>> shards) : shards_(std::move(shards)) {
    std::mt19937 random(static_cast<unsigned>(seed));
    std::normal_distribution<double> normal;
    inputs_.resize(kExamples * size());
    for (double& x : inputs_) x = normal(random);
    for (size_t row = 0; row < kExamples; ++row) {
      double y = 0;
      for (size_t i = 0; i < size(); ++i) y += inputs_[row * size() + i] * true_weight(i);
      outputs_.push_back(y);
    }
  }

  // One step; the loss before it.
  double step() {
    std::vector<weft::Ref<weft::Ref<Vector>>> refs;
    for (auto& shard : shards_) refs.push_back(shard.call<&Shard::weights>());
    std::vector<double> weights, gradient(size());
    for (const auto& part : weft::get(weft::get(refs))) weights.insert(weights.end(), part.begin(), part.end());
    double loss = 0;
    for (size_t row = 0; row < kExamples; ++row) {
      const double* x = &inputs_[row * size()];
      double error = -outputs_[row];
      for (size_t i = 0; i < size(); ++i) error += weights[i] * x[i];
      loss += error * error / kExamples;
      for (size_t i = 0; i < size(); ++i) gradient[i] += error * x[i] / kExamples;
    }
    std::vector<weft::Ref<void>> pushed;
    for (size_t i = 0; i < shards_.size(); ++i) {
      std::span<const double> part(&gradient[i * kWeightsPerShard], kWeightsPerShard);
      pushed.push_back(shards_[i].call<&Shard::push>(part));
    }
    weft::get(pushed);
    return loss;
  }

  // Many steps, without waiting for other workers; the loss before the last one.
  double run(size_t steps) {
    double loss = 0;
    while (steps-- > 0) loss = step();
    return loss;
  }

 private:
  size_t size() const { return shards_.size() * kWeightsPerShard; }
  std::vector<weft::Actor<Shard>> shards_;
  std::vector<double> inputs_, outputs_;
};

struct Training {
  explicit Training(size_t gradients_per_step) {
    for (size_t i = 0; i < kShards; ++i) shards.push_back(weft::actor<Shard>(gradients_per_step));
    for (size_t i = 0; i < kWorkers; ++i) workers.push_back(weft::actor<Worker>(static_cast<int>(i), shards));
  }

  // How far the worst weight is from the truth.
  double worst() {
    double worst = 0;
    for (size_t shard = 0; shard < kShards; ++shard) {
      weft::Array<const double> weights = weft::get(weft::get(shards[shard].call<&Shard::weights>()));
      for (size_t i = 0; i < weights.size(); ++i) {
        worst = std::max(worst, std::abs(weights[i] - true_weight(shard * kWeightsPerShard + i)));
      }
    }
    return worst;
  }

  std::vector<weft::Actor<Shard>> shards;
  std::vector<weft::Actor<Worker>> workers;
};

int main() {
  auto session = weft::init();

  Training rounds(kWorkers);
  for (size_t round = 0; round < kRounds; ++round) {
    std::vector<weft::Ref<double>> losses;
    for (auto& worker : rounds.workers) losses.push_back(worker.call<&Worker::step>());
    double loss = 0;
    for (double part : weft::get(losses)) loss += part / kWorkers;
    if (round % 25 == 0) std::printf("round %2zu: loss %.4f\n", round, loss);
  }
  double synchronous = rounds.worst();

  Training free(1);
  std::vector<weft::Ref<double>> losses;
  for (auto& worker : free.workers) losses.push_back(worker.call<&Worker::run>(kRounds));
  for (double loss : weft::get(losses)) std::printf("asynchronous, a worker's last loss: %.4f\n", loss);
  double asynchronous = free.worst();

  std::printf("ok: %zu weights in %zu shards, the worst is off by %.3f in rounds, by %.3f without\n",
              kShards * kWeightsPerShard, kShards, synchronous, asynchronous);
  return synchronous < 0.1 && asynchronous < 0.1 ? 0 : 1;
}
