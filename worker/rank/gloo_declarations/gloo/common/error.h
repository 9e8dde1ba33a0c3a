#ifndef GLOO_COMMON_ERROR_H_
#define GLOO_COMMON_ERROR_H_

// ProcessGroupGloo.hpp names nothing of it.

#endif  // GLOO_COMMON_ERROR_H_
