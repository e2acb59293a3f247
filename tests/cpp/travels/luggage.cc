// A plain library that a program is linked with: it knows nothing of weft.
extern "C" int weigh(int things) { return things * 23; }
