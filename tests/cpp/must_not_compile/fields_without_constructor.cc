// expect: needs a default constructor or one that takes the fields
#include <weft/weft.h>

class Locked {
 public:
  friend auto weft_fields(Locked& l) { return std::tie(l.number_); }
  static Locked Make();

 private:
  Locked() = default;
  int number_ = 0;
};
Locked make();
auto ref = weft::get(weft::remote<make>());
