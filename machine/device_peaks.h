// The peaks that MFU is counted against, of GPU models that everybody compares.
#ifndef TACC_MACHINE_DEVICE_PEAKS_H_
#define TACC_MACHINE_DEVICE_PEAKS_H_

#include <map>
#include <string>

namespace tacc {

// dtype -> dense FLOP/s by the vendor's data sheet, for the GPU that its driver calls `model` ("NVIDIA H100 80GB
// HBM3"); empty for models (and forms of them: PCIe, NVL, parts of a GPU) that the table does not hold.
std::map<std::string, double> TablePeaks(const std::string& model);

}  // namespace tacc

#endif  // TACC_MACHINE_DEVICE_PEAKS_H_
