#ifndef TACC_WORKER_RANK_STATE_MODEL_CHECK_H_
#define TACC_WORKER_RANK_STATE_MODEL_CHECK_H_

#include <cstdint>
#include <string>

namespace tacc::worker {

// What is to be said, in words, where the model's `config.json` does not name the token that ends the data's texts as
// one that ends a text: its generation would then not stop where the data does. Empty: all is well, or the model does
// not say.
std::string EosMismatch(const std::string& model_dir, const std::string& data_path, int64_t data_eos_token_id);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_STATE_MODEL_CHECK_H_
