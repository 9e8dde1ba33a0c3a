#ifndef TACC_PROTO_TACC_V1_JOB_VALIDATOR_H_
#define TACC_PROTO_TACC_V1_JOB_VALIDATOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/tacc/v1/validate_job.h"
#include "tacc/v1/job.pb.h"
#include "tacc/v1/options.pb.h"

namespace tacc {

// As `max` of resources.workers.
inline constexpr int64_t kMaxWorld = 65536;

// Finds all that is wrong with a job (ValidateJobSpec).
class JobValidator {
 public:
  std::vector<JobDiagnostic> Run(const v1::JobSpec& spec);

 private:
  void Add(const std::string& field, const std::string& message, std::vector<std::string> related = {});
  void CheckMessage(const google::protobuf::Message& message, const std::string& path);

  // What to write for a missing section: its required fields.
  static std::string MissingHint(const google::protobuf::FieldDescriptor* field);
  void CheckScalar(const google::protobuf::Message& message, const google::protobuf::FieldDescriptor* field,
                   const v1::FieldRule& rule, const std::string& name);
  void CheckBounds(double value, const v1::FieldRule& rule, const std::string& name);
  void CheckString(const std::string& value, const v1::FieldRule& rule, const std::string& name);
  void CheckList(const google::protobuf::Message& message, const google::protobuf::FieldDescriptor* field,
                 const std::string& name);
  void CheckMap(const google::protobuf::Message& message, const google::protobuf::FieldDescriptor* field,
                const std::string& name);

  // Names and dims are the planner's to check, which knows the model.
  void CheckPins(const v1::DistSpec& dist);
  void CheckModel(const v1::JobSpec& spec);
  void CheckData(const v1::JobSpec& spec);
  void CheckBuckets(const v1::JobSpec& spec);
  // Workers that share a sample's tokens.
  static int64_t ContextSize(const v1::DistSpec& dist);
  void CheckTrain(const v1::JobSpec& spec);
  void CheckOptimizer(const v1::TrainSpec& train);
  void CheckSchedule(const v1::TrainSpec& train);
  void CheckFinetuning(const v1::JobSpec& spec);

  // The sizes of the layout that the job sets.
  struct AxisSize {
    const char* field;
    int64_t size;
  };
  static std::vector<std::string> LayoutFields();
  static std::vector<AxisSize> SetSizes(const v1::DistSpec& dist);
  void CheckCompute(const v1::ComputeSpec& compute);
  void CheckMemory(const v1::MemorySpec& memory);
  void CheckReshard(const v1::DistSpec& dist);
  void CheckTopology(const v1::DistSpec& dist);
  void CheckLayout(const v1::JobSpec& spec);
  static std::string Divisors(int64_t n);

  // The global batch must be a multiple of all that is known of per_device_train_batch_size x dp x fsdp; what is not
  // known can be 1.
  void CheckBatch(const v1::JobSpec& spec);

  std::vector<JobDiagnostic> diagnostics_;
};

}  // namespace tacc

#endif  // TACC_PROTO_TACC_V1_JOB_VALIDATOR_H_
