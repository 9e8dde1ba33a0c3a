#ifndef TACC_WORKER_RANK_TORCH_GLOO_DECLARATIONS_GLOO_RENDEZVOUS_STORE_H_
#define TACC_WORKER_RANK_TORCH_GLOO_DECLARATIONS_GLOO_RENDEZVOUS_STORE_H_

#include <chrono>
#include <string>
#include <vector>

namespace gloo::rendezvous {

class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};

}  // namespace gloo::rendezvous

#endif  // TACC_WORKER_RANK_TORCH_GLOO_DECLARATIONS_GLOO_RENDEZVOUS_STORE_H_
