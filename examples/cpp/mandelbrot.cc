// A picture of the Mandelbrot set: every strip of it is a task, and the driver writes the strips as a PPM file.
//
// usage: mandelbrot [file]        (mandelbrot.ppm unless given; most viewers open it)
//
// Strips inside the set take much longer than the others. There are more strips than CPUs, so a worker that is done
// takes the next one; nothing needs to be divided fairly beforehand.
#include <weft/weft.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdio>
#include <vector>

struct Pixel {  // a plain struct is an element of an array like a number
  uint8_t red = 0, green = 0, blue = 0;
};

constexpr size_t kWidth = 900, kHeight = 600, kRowsPerStrip = 20;
constexpr int kMaxSteps = 1000;
constexpr double kScale = 3.6 / kWidth;  // of the plane per pixel

Pixel color(double steps) {  // smooth: blue over white and orange to black
  constexpr std::array<std::array<double, 3>, 6> kStops = {
      {{0, 7, 100}, {32, 107, 203}, {237, 255, 255}, {255, 170, 0}, {60, 10, 2}, {0, 7, 100}}};
  double place = std::fmod(std::sqrt(steps) * 0.55, 5.0);
  auto stop = static_cast<size_t>(place);
  double part = place - static_cast<double>(stop);
  auto mix = [&](size_t i) { return static_cast<uint8_t>(kStops[stop][i] * (1 - part) + kStops[stop + 1][i] * part); };
  return {mix(0), mix(1), mix(2)};
}

Pixel pixel(std::complex<double> c) {
  double x = 0, y = 0;
  for (int step = 0; step < kMaxSteps; ++step) {
    double xx = x * x, yy = y * y;
    if (xx + yy > 256) return color(step + 4 - std::log2(std::log2(xx + yy)));
    y = 2 * x * y + c.imag();
    x = xx - yy + c.real();
  }
  return {};
}

// Rows first to first + kRowsPerStrip, made in shared memory.
weft::Array<Pixel> strip(size_t first) {
  weft::Array<Pixel> rows = weft::empty<Pixel>({kRowsPerStrip, kWidth});
  for (size_t row = 0; row < kRowsPerStrip; ++row) {
    for (size_t column = 0; column < kWidth; ++column) {
      double x = static_cast<double>(column) - kWidth / 2.0, y = kHeight / 2.0 - static_cast<double>(first + row);
      rows(row, column) = pixel({-0.75 + kScale * x, kScale * y});
    }
  }
  return rows;
}

int main(int argc, char** argv) {
  auto session = weft::init();
  const char* path = argc > 1 ? argv[1] : "mandelbrot.ppm";
  auto begin = std::chrono::steady_clock::now();

  std::vector<weft::Ref<weft::Array<Pixel>>> strips;
  for (size_t first = 0; first < kHeight; first += kRowsPerStrip) strips.push_back(weft::remote<strip>(first));

  std::FILE* file = std::fopen(path, "wb");
  if (!file) {
    std::perror(path);
    return 1;
  }
  std::fprintf(file, "P6\n%zu %zu\n255\n", kWidth, kHeight);
  size_t black = 0;
  for (const auto& ref : strips) {  // in order; the later ones are computed meanwhile
    weft::Array<const Pixel> rows = weft::get(ref);
    std::fwrite(rows.data(), sizeof(Pixel), rows.size(), file);
    black += static_cast<size_t>(
        std::count_if(rows.begin(), rows.end(), [](Pixel p) { return p.red + p.green + p.blue == 0; }));
  }
  if (std::fclose(file) != 0) {
    std::perror(path);
    return 1;
  }
  std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  double area = static_cast<double>(black) * kScale * kScale;
  std::printf("ok: %s, %zu x %zu pixels by %zu tasks in %.2f s; the set's area is about %.2f\n", path, kWidth, kHeight,
              strips.size(), seconds.count(), area);
  return std::abs(area - 1.51) < 0.03 ? 0 : 1;
}
