#ifndef TACC_WORKER_RANK_TORCH_RUNTIME_H_
#define TACC_WORKER_RANK_TORCH_RUNTIME_H_

#include <functional>
#include <string>

namespace tacc::worker {

// Sets the number of threads of LibTorch, MKL and OpenMP, and makes each of them (and every thread that the caller
// starts later) flush denormal numbers to zero: they cost a hundred times a normal one.
void ConfigureThreads(int threads);

// What the device is and does, as the JSON object `device` of docs/contracts.md: peak of the matrix product (best of
// several shapes, about two seconds a dtype), memory bandwidth, memory, loopback link. `threads` are used for all of
// it. Takes about six seconds by `clock` (steady seconds), and on a machine that is busy with other things hardly twice
// that: everything is repeated less often there, and of the shapes only those count for which there was time; the
// object then has `cut_short`.
std::string ProbeDevice(int threads, const std::function<double()>& clock);

// The devices of this machine as a JSON list of `name`, `kind` and `model` (docs/contracts.md): the CPU.
std::string ListDevices();

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_TORCH_RUNTIME_H_
