#ifndef TACC_WORKER_RANK_TORCH_GLOO_DECLARATIONS_GLOO_CONTEXT_H_
#define TACC_WORKER_RANK_TORCH_GLOO_DECLARATIONS_GLOO_CONTEXT_H_

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo

#endif  // TACC_WORKER_RANK_TORCH_GLOO_DECLARATIONS_GLOO_CONTEXT_H_
