// Nested tasks: a task may start tasks and wait for them.
//
// While it waits it lends its CPU to others, so nesting deeper than there are CPUs comes to an end as well. Here models
// with different learning rates are trained side by side, and each training computes its gradients in tasks of its own.
#include <weft/weft.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "check.h"

// Of (x - target)^2, as one of several workers sees it.
double gradient(double x, double target, int worker) { return 2 * (x - target) + 0.01 * (worker - 1); }

struct Model {
  double rate = 0, x = 0;
};

Model train(double rate, int steps) {
  Model model{rate, 0};
  for (int step = 0; step < steps; ++step) {
    std::vector<weft::Ref<double>> parts;
    for (int worker = 0; worker < 3; ++worker) parts.push_back(weft::remote<gradient>(model.x, 5.0, worker));
    for (double part : weft::get(parts)) model.x -= rate * part / 3;
  }
  return model;
}

int depth(int levels) { return levels == 0 ? 0 : 1 + weft::get(weft::remote<depth>(levels - 1)); }

int square(int x) { return x * x; }

// References can be returned too: the caller that gets this list decides when to wait.
std::vector<weft::Ref<int>> spawn(int count) {
  std::vector<weft::Ref<int>> refs;
  for (int i = 0; i < count; ++i) refs.push_back(weft::remote<square>(i));
  return refs;
}

int main() {
  auto session = weft::init({.num_cpus = 2});

  std::vector<weft::Ref<Model>> trainings;
  for (double rate : {0.001, 0.1, 0.3}) trainings.push_back(weft::remote<train>(rate, 30));
  std::vector<Model> models = weft::get(trainings);
  check(std::abs(models[0].x - 5) > 1);  // too careful
  check(std::abs(models[1].x - 5) < 0.1 && std::abs(models[2].x - 5) < 0.1);

  check(weft::get(weft::remote<depth>(8)) == 8);  // eight tasks wait in each other, on two CPUs

  std::vector<weft::Ref<int>> refs = weft::get(weft::remote<spawn>(5));
  check(weft::get(refs) == std::vector<int>{0, 1, 4, 9, 16});
  std::puts("ok: three trainings ran 270 tasks of their own, and eight tasks waited in each other on two CPUs");
}
