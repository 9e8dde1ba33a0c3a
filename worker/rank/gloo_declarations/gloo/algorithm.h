#ifndef GLOO_ALGORITHM_H_
#define GLOO_ALGORITHM_H_

// ProcessGroupGloo.hpp names nothing of it.

#endif  // GLOO_ALGORITHM_H_
