// A library that registers nothing.
extern "C" int TaccTestNothing() { return 0; }
