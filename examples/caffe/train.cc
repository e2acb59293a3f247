// Caffe inside tasks and actors of a C++ program: a task that computes one layer, and actors that train a small net on
// data of their own, whose weights the driver averages after every round.
//
// The net is linear regression on points near y = 0.1 x + 0.3.
#include <weft/weft.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "net.h"

constexpr int kTrainers = 2, kRounds = 5, kSteps = 40, kPoints = 200;

constexpr const char* kSolver = R"(
  base_lr: 0.2
  lr_policy: "fixed"
  train_net_param {
    layer {
      name: "points" type: "Input" top: "x" top: "y"
      input_param { shape { dim: 200 dim: 1 } shape { dim: 200 dim: 1 } }
    }
    layer { name: "line" type: "InnerProduct" bottom: "x" top: "guess" inner_product_param { num_output: 1 } }
    layer { name: "loss" type: "EuclideanLoss" bottom: "guess" bottom: "y" top: "loss" }
  }
)";

weft::Array<float> relu(weft::Array<const float> x) {
  Net net(R"(
    layer { name: "input" type: "Input" top: "x" input_param { shape { dim: 1 } } }
    layer { name: "relu" type: "ReLU" bottom: "x" top: "y" }
  )");
  net.feed("x", x);
  net.forward();
  return net.fetch("y");
}

void make(std::string net) { Net made(net); }
void compute_on_gpu() { Caffe::set_mode(Caffe::GPU); }

class Trainer {
 public:
  explicit Trainer(int seed) : solver_(kSolver) {
    std::mt19937 random(static_cast<unsigned>(seed));
    std::uniform_real_distribution<float> place(-1, 1);
    std::normal_distribution<float> noise(0, 0.01F);
    auto x = solver_.net().data("x"), y = solver_.net().data("y");
    for (int i = 0; i < kPoints; ++i) {
      x[i] = place(random);
      y[i] = 0.1F * x[i] + 0.3F + noise(random);
    }
  }

  // Weight and bias after some steps from these.
  std::vector<float> train(std::vector<float> weights) {
    auto weight = solver_.net().weights("line", 0), bias = solver_.net().weights("line", 1);
    weight[0] = weights[0];
    bias[0] = weights[1];
    solver_.step(kSteps);
    return {weight[0], bias[0]};
  }

 private:
  Solver solver_;
};

int main() {
  auto session = weft::init({.num_cpus = 2});

  auto numbers = weft::empty<float>({2, 3});
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i) - 2;  // -2 -1 0; 1 2 3
  auto positive = weft::get(weft::remote<relu>(weft::put(std::move(numbers))));
  for (float value : positive) std::printf("%g ", value);
  std::printf("in %zu rows of %zu\n", positive.shape(0), positive.shape(1));

  auto unknown = weft::try_get(weft::remote<make>(std::string(R"(layer { name: "a" type: "NoSuchLayer" })")));
  std::printf("%s\n", unknown ? "an unknown layer was made" : "an unknown layer was refused");
  auto gpu = weft::try_get(weft::remote<compute_on_gpu>());
  std::printf("%s\n", gpu ? "a GPU was found" : "a GPU was refused");

  std::vector<weft::Actor<Trainer>> trainers;
  for (int seed = 0; seed < kTrainers; ++seed) trainers.push_back(weft::actor<Trainer>(seed));
  std::vector<float> weights{0, 0};
  for (int round = 0; round < kRounds; ++round) {
    std::vector<weft::Ref<std::vector<float>>> refs;
    for (auto& trainer : trainers) refs.push_back(trainer.call<&Trainer::train>(weights));
    weights = {0, 0};
    for (const auto& trained : weft::get(refs)) {
      for (int i = 0; i < 2; ++i) weights[i] += trained[i] / kTrainers;
    }
  }
  std::printf("y = %.3f x + %.3f\n", weights[0], weights[1]);

  bool right = !unknown && !gpu && positive[0] == 0 && positive[5] == 3 && std::abs(weights[0] - 0.1F) < 0.01F &&
               std::abs(weights[1] - 0.3F) < 0.01F;
  std::printf("%s\n", right ? "ok: Caffe in tasks and actors" : "wrong");
  return right ? 0 : 1;
}
