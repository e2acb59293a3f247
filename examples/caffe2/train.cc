// Caffe2 inside tasks and actors of a C++ program: a task that runs one operator, and actors that train a small net on
// data of their own, whose weights the driver averages after every round.
//
// The net is linear regression on points near y = 0.1 x + 0.3, with the gradient's operators written out: Caffe2
// derives them in Python only.
#include <weft/weft.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "workspace.h"

constexpr int kTrainers = 2, kRounds = 5, kSteps = 40, kPoints = 200;

constexpr const char* kTrain = R"(
  name: "train"
  op { type: "FC" input: "x" input: "weight" input: "bias" output: "guess" }
  op { type: "SquaredL2Distance" input: "guess" input: "y" output: "distance" }
  op { type: "AveragedLoss" input: "distance" output: "loss" }
  op { type: "ConstantFill" output: "one" arg { name: "shape" ints: 1 } arg { name: "value" f: 1 } }
  op { type: "AveragedLossGradient" input: "distance" input: "one" output: "d_distance" }
  op { type: "SquaredL2DistanceGradient" input: "guess" input: "y" input: "d_distance" output: "d_guess" output: "d_y" }
  op { type: "FCGradient" input: "x" input: "weight" input: "d_guess" output: "d_weight" output: "d_bias" }
  op { type: "WeightedSum" input: "weight" input: "one" input: "d_weight" input: "rate" output: "weight" }
  op { type: "WeightedSum" input: "bias" input: "one" input: "d_bias" input: "rate" output: "bias" }
)";

weft::Array<float> relu(weft::Array<const float> x) {
  Workspace workspace;
  workspace.feed("x", x);
  workspace.run_net_once(R"(op { type: "Relu" input: "x" output: "y" })");
  return workspace.fetch<float>("y");
}

void run(std::string net) { Workspace().run_net_once(net); }

class Trainer {
 public:
  explicit Trainer(int seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    std::uniform_real_distribution<float> place(-1, 1);
    std::normal_distribution<float> noise(0, 0.01F);
    std::vector<float> x(kPoints), y(kPoints);
    for (int i = 0; i < kPoints; ++i) {
      x[i] = place(random);
      y[i] = 0.1F * x[i] + 0.3F + noise(random);
    }
    workspace_.feed<float>("x", x, {kPoints, 1});
    workspace_.feed<float>("y", y, {kPoints, 1});
    workspace_.feed<float>("rate", std::vector<float>{-0.1F}, {1});
    set_weights({0, 0});
    workspace_.create_net(kTrain);
  }

  // Weight and bias after some steps from these.
  std::vector<float> train(std::vector<float> weights) {
    set_weights(weights);
    for (int i = 0; i < kSteps; ++i) workspace_.run_net("train");
    return {workspace_.fetch<float>("weight")[0], workspace_.fetch<float>("bias")[0]};
  }

 private:
  void set_weights(const std::vector<float>& weights) {
    workspace_.feed<float>("weight", std::span(weights).first(1), {1, 1});
    workspace_.feed<float>("bias", std::span(weights).last(1), {1});
  }

  Workspace workspace_;
};

int main() {
  auto session = weft::init({.num_cpus = 2});

  auto numbers = weft::empty<float>({2, 3});
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i) - 2;  // -2 -1 0; 1 2 3
  auto positive = weft::get(weft::remote<relu>(weft::put(std::move(numbers))));
  for (float value : positive) std::printf("%g ", value);
  std::printf("in %zu rows of %zu\n", positive.shape(0), positive.shape(1));

  auto failed = weft::try_get(weft::remote<run>(std::string(R"(op { type: "NoSuchOperator" })")));
  std::printf("%s\n", failed ? "an unknown operator ran" : "an unknown operator was refused");

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

  bool right = !failed && positive[0] == 0 && positive[5] == 3 && std::abs(weights[0] - 0.1F) < 0.01F &&
               std::abs(weights[1] - 0.3F) < 0.01F;
  std::printf("%s\n", right ? "ok: Caffe2 in tasks and actors" : "wrong");
  return right ? 0 : 1;
}
