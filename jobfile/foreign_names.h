// Names and values that people bring from other tools, and how a job file says the same.
#ifndef TACC_JOBFILE_FOREIGN_NAMES_H_
#define TACC_JOBFILE_FOREIGN_NAMES_H_

#include <string>
#include <vector>

namespace tacc::jobfile {

// How a job says what another tool has a field for.
struct ForeignName {
  std::string name;
  // What to do instead, for "unknown field ...; ".
  std::string text;
  // The field to give instead; "" when there is none.
  std::string field;
};

// Of Hugging Face's TrainingArguments and Trainer, accelerate, DeepSpeed, Megatron-LM, peft, torchtitan, axolotl and
// TorchAcc (docs/names.md).
const std::vector<ForeignName>& ForeignNames();

// The entry of ForeignNames called `name`, or null.
const ForeignName* FindForeignName(const std::string& name);

// What to write instead of `value`, a word that other tools know for `field` (train.lr_scheduler_type); "" when there
// is nothing to say.
std::string ForeignValue(const std::string& field, const std::string& value);

}  // namespace tacc::jobfile

#endif  // TACC_JOBFILE_FOREIGN_NAMES_H_
