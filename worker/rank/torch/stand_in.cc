// Of a library that has a name alone.
