#ifndef TACC_PROTO_TACC_V1_JOB_WORDS_H_
#define TACC_PROTO_TACC_V1_JOB_WORDS_H_

#include <string>

namespace tacc {

// A number as a job file would have it: in the shortest form that reads back, 5e-05.
std::string NumberText(double value);

// Text of the user's in a message: control characters escaped, long ones cut.
std::string QuotedText(const std::string& text);

}  // namespace tacc

#endif  // TACC_PROTO_TACC_V1_JOB_WORDS_H_
