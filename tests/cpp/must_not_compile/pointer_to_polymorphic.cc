// expect: a pointer to a polymorphic class may point to a derived one
#include <weft/weft.h>

#include <memory>

struct Shape {
  virtual ~Shape() = default;
  int id = 0;
};
auto ref = weft::put(std::make_unique<Shape>());
