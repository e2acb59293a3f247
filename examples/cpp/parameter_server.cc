// A parameter server with several shards: each is an actor that holds a part of the weights, and workers, actors too,
// hold a part of the data.
//
// A worker asks all shards for their weights, computes a gradient from the data that it keeps, and sends each shard its
// part; the driver only says when. The model is linear regression with a thousand weights, so that the result can be
// compared with the truth.
#include <weft/weft.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <span>
#include <vector>

constexpr size_t kShards = 2, kWeightsPerShard = 500, kWorkers = 3, kExamples = 800, kRounds = 100;

using Vector = weft::Array<double>;

class Shard {
 public:
  // The weights as they are now. A copy, since they change; it is made in shared memory and copied no further.
  Vector weights() const {
    Vector copy = weft::empty<double>(weights_.size());
    std::copy(weights_.begin(), weights_.end(), copy.begin());
    return copy;
  }
  void push(std::span<const double> gradient) {  // looked at where the worker wrote it
    for (size_t i = 0; i < weights_.size(); ++i) weights_[i] -= kRate * gradient[i];
  }

 private:
  static constexpr double kRate = 0.2 / kWorkers;
  std::vector<double> weights_ = std::vector<double>(kWeightsPerShard);
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
    std::vector<weft::Ref<Vector>> refs;
    for (auto& shard : shards_) refs.push_back(shard.call<&Shard::weights>());
    std::vector<double> weights, gradient(size());
    for (const auto& part : weft::get(refs)) weights.insert(weights.end(), part.begin(), part.end());
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

 private:
  size_t size() const { return shards_.size() * kWeightsPerShard; }
  std::vector<weft::Actor<Shard>> shards_;
  std::vector<double> inputs_, outputs_;
};

int main() {
  auto session = weft::init();
  std::vector<weft::Actor<Shard>> shards;
  for (size_t i = 0; i < kShards; ++i) shards.push_back(weft::actor<Shard>());
  std::vector<weft::Actor<Worker>> workers;
  for (size_t i = 0; i < kWorkers; ++i) workers.push_back(weft::actor<Worker>(static_cast<int>(i), shards));

  for (size_t round = 0; round < kRounds; ++round) {
    std::vector<weft::Ref<double>> losses;
    for (auto& worker : workers) losses.push_back(worker.call<&Worker::step>());
    double loss = 0;
    for (double part : weft::get(losses)) loss += part / kWorkers;
    if (round % 25 == 0) std::printf("round %2zu: loss %.4f\n", round, loss);
  }

  double worst = 0;
  for (size_t shard = 0; shard < kShards; ++shard) {
    weft::Array<const double> weights = weft::get(shards[shard].call<&Shard::weights>());
    for (size_t i = 0; i < weights.size(); ++i) {
      worst = std::max(worst, std::abs(weights[i] - true_weight(shard * kWeightsPerShard + i)));
    }
  }
  std::printf("ok: %zu weights in %zu shards, the worst is off by %.3f\n", kShards * kWeightsPerShard, kShards, worst);
  return worst < 0.1 ? 0 : 1;
}
