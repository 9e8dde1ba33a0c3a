// A sample of what a job's model writes, for the page about its run.
#ifndef TACC_CLIENT_TACCCTL_SHOW_SAMPLE_H_
#define TACC_CLIENT_TACCCTL_SHOW_SAMPLE_H_

#include "client/taccctl/session/context.h"
#include "tacc/v1/coordinator.pb.h"

namespace tacc::client {

// After a job has finished and a person has watched: lets its exported model write some text (`python -m tacc sample`,
// on the CPU, with the least priority, at most 60 s), shows it and puts it into the run's page. The client does so, for
// it is who wants to see it: no worker waits for it, and no end of a job depends on a Python. Nothing where the folder,
// the tokenizer or a Python cannot be found: the page says how to make one. The Python: TACC_PYTHON, that of the
// checkout, or python3.
void ShowSample(const v1::Job& job, Context* context);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_SHOW_SAMPLE_H_
