// expect: can only be moved, so give it with std::move
// expect: CheckedArgument<2
#include <weft/weft.h>

#include <memory>

int use(int number, std::unique_ptr<int> pointer);
std::unique_ptr<int> pointer;
auto ref = weft::remote<use>(1, pointer);
