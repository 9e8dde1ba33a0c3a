// A library that cannot be without Python: it has one of its variables.
extern "C" void* PyExc_RuntimeError;
extern "C" void* TaccTestError() { return PyExc_RuntimeError; }
