// expect: specialise weft::Codec
#include <weft/weft.h>

class Opaque {
 public:
  explicit Opaque(int);
};
int use(Opaque opaque);
auto ref = weft::remote<use>(Opaque(1));
