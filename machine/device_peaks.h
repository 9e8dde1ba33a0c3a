// The peaks that MFU is counted against, of GPU models that everybody compares.
#ifndef TACC_MACHINE_DEVICE_PEAKS_H_
#define TACC_MACHINE_DEVICE_PEAKS_H_

#include <map>
#include <string>

namespace tacc {

// Dense products of bf16 and f16 on tensor cores, in FLOP/s: NVIDIA's data sheets of A100, H100 and H200 in their SXM
// form, and of B200 in DGX. bench/gpu_step.py reads these lines.
inline constexpr double kA100HalfFlops = 312e12;
inline constexpr double kH100HalfFlops = 989e12;
inline constexpr double kH200HalfFlops = 989e12;
inline constexpr double kB200HalfFlops = 2250e12;

// dtype -> dense FLOP/s by the vendor's data sheet, for the GPU that its driver calls `model` ("NVIDIA H100 80GB
// HBM3"); empty for models (and forms of them: PCIe, NVL, parts of a GPU) that the table does not hold.
std::map<std::string, double> TablePeaks(const std::string& model);

}  // namespace tacc

#endif  // TACC_MACHINE_DEVICE_PEAKS_H_
