// Matrix multiplication by blocks: each block of the product is a task, and so is each of its parts.
//
// A matrix here is a square of references to blocks. C(i, j) is the sum over k of A(i, k) B(k, j): one task per
// product, which adds to what the task before has computed. Blocks are arrays of two dimensions, read where they lie;
// nothing but references passes through the driver.
#include <weft/weft.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

using Block = weft::Array<double>;
using View = weft::Array<const double>;
using Matrix = std::vector<std::vector<weft::Ref<Block>>>;

constexpr size_t kBlock = 160, kBlocks = 4;  // 640 x 640

double element_a(size_t row, size_t column) { return std::sin(static_cast<double>(row * 7 + column)); }
double element_b(size_t row, size_t column) { return std::cos(static_cast<double>(row + column * 3)); }

template <double (*Element)(size_t, size_t)>
Block make_block(size_t block_row, size_t block_column) {
  Block block = weft::empty<double>({kBlock, kBlock});
  for (size_t i = 0; i < kBlock; ++i) {
    for (size_t j = 0; j < kBlock; ++j) block(i, j) = Element(block_row * kBlock + i, block_column * kBlock + j);
  }
  return block;
}

Block multiply(View a, View b) {
  size_t n = a.shape(0), m = b.shape(1);
  Block c = weft::empty<double>({n, m});
  std::fill(c.begin(), c.end(), 0.0);
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < a.shape(1); ++k) {
      double factor = a(i, k);
      double* to = &c(i, 0);
      const double* from = &b(k, 0);
      for (size_t j = 0; j < m; ++j) to[j] += factor * from[j];
    }
  }
  return c;
}

Block multiply_add(View a, View b, View before) {
  Block c = multiply(a, b);
  for (size_t i = 0; i < c.size(); ++i) c[i] += before[i];
  return c;
}

template <double (*Element)(size_t, size_t)>
Matrix make_matrix() {
  Matrix matrix(kBlocks);
  for (size_t i = 0; i < kBlocks; ++i) {
    for (size_t j = 0; j < kBlocks; ++j) matrix[i].push_back(weft::remote<make_block<Element>>(i, j));
  }
  return matrix;
}

Matrix operator*(const Matrix& a, const Matrix& b) {  // returns at once
  Matrix c(kBlocks);
  for (size_t i = 0; i < kBlocks; ++i) {
    for (size_t j = 0; j < kBlocks; ++j) {
      weft::Ref<Block> sum = weft::remote<multiply>(a[i][0], b[0][j]);
      for (size_t k = 1; k < kBlocks; ++k) sum = weft::remote<multiply_add>(a[i][k], b[k][j], sum);
      c[i].push_back(sum);
    }
  }
  return c;
}

int main() {
  auto session = weft::init();
  auto begin = std::chrono::steady_clock::now();
  Matrix product = make_matrix<element_a>() * make_matrix<element_b>();
  double worst = 0;
  for (size_t i = 0; i < kBlocks; ++i) {
    for (size_t j = 0; j < kBlocks; ++j) {
      View block = weft::get(product[i][j]);
      for (size_t at : {size_t{0}, kBlock / 2, kBlock - 1}) {  // some elements, computed as the definition says
        double wanted = 0;
        for (size_t k = 0; k < kBlocks * kBlock; ++k) {
          wanted += element_a(i * kBlock + at, k) * element_b(k, j * kBlock + at);
        }
        worst = std::max(worst, std::abs(block(at, at) - wanted));
      }
    }
  }
  std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("ok: two %zu x %zu matrices multiplied by %zu tasks in %.2f s, off by %.0e at most\n", kBlocks * kBlock,
              kBlocks * kBlock, kBlocks * kBlocks * kBlocks, seconds.count(), worst);
  return worst < 1e-9 ? 0 : 1;
}
