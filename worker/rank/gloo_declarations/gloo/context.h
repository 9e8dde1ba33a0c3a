#ifndef GLOO_CONTEXT_H_
#define GLOO_CONTEXT_H_

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo

#endif  // GLOO_CONTEXT_H_
