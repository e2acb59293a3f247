// A parameter server: an actor holds the weights of a small neural network, tasks compute gradients, and the weights
// move between them.
//
// The network has one hidden layer and learns exclusive or, which no straight line can. In rounds: all workers see the
// same weights. Then without waiting for the slowest: each gradient is applied when it comes.
#include <weft/weft.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "check.h"

constexpr int kHidden = 8;
using Weights = std::vector<double>;  // per hidden neuron: two inputs, a bias, its output's weight; last, a bias

struct Network {  // works on weights that are kept elsewhere
  const Weights& w;
  double hidden(int i, double x, double y) const { return std::tanh(w[4 * i] * x + w[4 * i + 1] * y + w[4 * i + 2]); }
  double output(double x, double y) const {
    double sum = w[4 * kHidden];
    for (int i = 0; i < kHidden; ++i) sum += w[4 * i + 3] * hidden(i, x, y);
    return 1 / (1 + std::exp(-sum));
  }
};

class ParameterServer {
 public:
  explicit ParameterServer(double rate) : rate_(rate) {
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    for (double& weight : weights_) weight = normal(random);
  }
  Weights weights() const { return weights_; }
  Weights apply(const std::vector<weft::Ref<Weights>>& gradients) {  // they come from the workers, not by way of main
    for (const Weights& gradient : weft::get(gradients)) {
      for (size_t i = 0; i < weights_.size(); ++i) weights_[i] -= rate_ * gradient[i] / gradients.size();
    }
    updates_ += static_cast<int>(gradients.size());
    return weights_;
  }
  int updates() const { return updates_; }

 private:
  double rate_;
  Weights weights_ = Weights(4 * kHidden + 1);
  int updates_ = 0;
};

// Of the cross-entropy over a batch of noisy examples.
Weights gradient(const Weights& w, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<double> noise(0, 0.1);
  Network network{w};
  Weights g(w.size());
  constexpr int kExamples = 32;
  for (int example = 0; example < kExamples; ++example) {
    double x = example & 1, y = example >> 1 & 1, wanted = x != y;
    x += noise(random), y += noise(random);
    double error = (network.output(x, y) - wanted) / kExamples;
    for (int i = 0; i < kHidden; ++i) {
      double h = network.hidden(i, x, y), back = error * w[4 * i + 3] * (1 - h * h);
      g[4 * i] += back * x;
      g[4 * i + 1] += back * y;
      g[4 * i + 2] += back;
      g[4 * i + 3] += error * h;
    }
    g[4 * kHidden] += error;
  }
  return g;
}

bool has_learnt(const Weights& w) {
  Network network{w};
  return network.output(0, 0) < 0.2 && network.output(1, 1) < 0.2 && network.output(0, 1) > 0.8 &&
         network.output(1, 0) > 0.8;
}

int main() {
  auto session = weft::init({.num_cpus = 4});

  // In rounds. Everything is submitted at once; the order follows from the data.
  auto server = weft::actor<ParameterServer>(2.0);
  weft::Ref<Weights> weights = server.call<&ParameterServer::weights>();
  check(!has_learnt(weft::get(weights)));
  for (int step = 0; step < 200; ++step) {
    std::vector<weft::Ref<Weights>> gradients;
    for (int worker = 0; worker < 4; ++worker) gradients.push_back(weft::remote<gradient>(weights, 4 * step + worker));
    weights = server.call<&ParameterServer::apply>(gradients);
  }
  check(has_learnt(weft::get(weights)));
  check(weft::get(server.call<&ParameterServer::updates>()) == 800);

  // As they come: a slow worker holds up nobody. A gradient is for weights of some steps ago then, so the steps must be
  // smaller.
  server = weft::actor<ParameterServer>(0.5);
  std::vector<weft::Ref<Weights>> pending;
  for (int worker = 0; worker < 4; ++worker) {
    pending.push_back(weft::remote<gradient>(server.call<&ParameterServer::weights>(), worker));
  }
  for (int step = 0; step < 1500; ++step) {
    auto [done, rest] = weft::wait(pending);
    pending = rest;
    pending.push_back(weft::remote<gradient>(server.call<&ParameterServer::apply>(done), 1000 + step));
  }
  check(has_learnt(weft::get(server.call<&ParameterServer::weights>())));
  std::puts("ok: a network learnt exclusive or in 200 rounds of 4 gradients, and in 1500 steps without rounds");
}
