// A plain library that a program is linked with: it knows nothing of weft.
extern "C" [[gnu::visibility("default")]] int weigh(int things) { return things * 23; }
